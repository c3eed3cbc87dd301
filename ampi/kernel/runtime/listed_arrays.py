"""Compile ``np.array`` of a list correctly where Numba would lose elements, by replacing the list with an array.

Numba (at least up to 0.68) lets the last loop before ``np.array(found)`` write into a new array instead of appending to
the list.  This array lacks the items that earlier loops have appended, and the loop cannot read the list or its
length::

    found = []                                  found = []
    for v in a:                                 for v in a:
        found.append(v)                             found.append(v)
    for v in b:                                 array = np.empty(len(b))
        found.append(v)                         for k, v in enumerate(b):
                                                    array[k] = v
    return np.array(found)                      return array

This is correct only if nothing else uses the list, as in comprehensions.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from numba.core import compiler, inline_closurecall, ir
from numba.core.cpu import ParallelOptions
from numba.core.errors import NumbaError
from numba.core.ir_utils import GuardException, get_definition, guard


@contextlib.contextmanager
def whole_lists(lost: list[str] | None = None) -> Iterator[None]:
    """A context in which Numba's arrays of lists hold all elements of the lists.

    Enter it only while holding Numba's compiler lock.  With ``lost``, Numba loses elements as it would without this
    context, and the names of the lists are added to ``lost``.
    """
    fill = inline_closurecall._inline_arraycall

    def fill_or_leave(func_ir: Any, cfg: Any, visited: Any, loop: Any, *rest: Any, **more: Any) -> Any:
        found = _list_behind(func_ir, loop)
        if found is not None and not _is_touched_once(func_ir, loop, found):
            if lost is None:
                raise GuardException
            if guard(fill, func_ir, cfg, visited, loop, *rest, **more):
                lost.append(found.name)
            return True
        return fill(func_ir, cfg, visited, loop, *rest, **more)

    inline_closurecall._inline_arraycall = fill_or_leave
    try:
        yield
    finally:
        inline_closurecall._inline_arraycall = fill


@functools.lru_cache(256)
def lists_cut_short(function: Any) -> tuple[str, ...]:
    """The lists of a Python function from which Numba makes arrays that lack elements."""
    if not {"append", "array"} <= set(function.__code__.co_names):
        return ()
    lost: list[str] = []
    try:
        func_ir = compiler.run_frontend(function)
        with whole_lists(lost):
            inline_closurecall.InlineClosureCallPass(func_ir, ParallelOptions(False), {}, True).run()
    except NumbaError:  # it cannot be compiled, which raises an error elsewhere
        return ()
    return tuple(lost)


def _list_behind(func_ir: Any, loop: Any) -> Any:
    """The list from which an array is made right after a loop; None if there is none."""
    if len(loop.exits) != 1:
        return None
    (after,) = loop.exits
    found = guard(inline_closurecall._find_arraycall, func_ir, func_ir.blocks[after])
    return None if found is None else found[0]


def _is_touched_once(func_ir: Any, loop: Any, variable: Any) -> bool:
    """Return whether a list starts empty, is appended to in one place of a loop, and becomes an array once."""
    made = _definition(func_ir, variable)
    if made is None:
        return False
    appended = sunk = 0
    for label, block in func_ir.blocks.items():
        for statement in block.body:
            names = [v for v in statement.list_vars() if _definition(func_ir, v) is made]
            value = getattr(statement, "value", None)
            if not names or isinstance(statement, ir.Del) or value is made:
                continue
            if isinstance(statement, ir.Assign) and _definition(func_ir, statement.target) is made:
                continue  # another name of it
            if isinstance(value, ir.Expr) and value.op == "getattr" and value.attr == "append" and label in loop.body:
                appended += 1
            else:
                sunk += 1
    return appended == 1 and sunk == 1


def _definition(func_ir: Any, variable: Any) -> Any:
    found = guard(get_definition, func_ir, variable)
    if isinstance(found, ir.Expr) and found.op == "cast":
        return guard(get_definition, func_ir, found.value)
    return found

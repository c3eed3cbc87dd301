"""`ampi.compiled_loops`: loops of functions are compiled in programs that are not run by ``python -m ampi.run``."""

from __future__ import annotations

import ast
import inspect
import os
import sys
import types
from collections.abc import Iterator
from typing import Any

from ...errors import KernelError
from ...kernel.frontend.base.source import read_source
from ..edits import is_compiled
from .loops import Loop
from .rewriting import Guards, Objects, note_loops
from .running import UNSET, Running

_LOOPS = "__ampi_loops__"
_INSTALLED = ("site-packages", "dist-packages")


def with_compiled_loops(function: types.FunctionType, loops: list[Running] | None = None) -> types.FunctionType:
    """Put guards before the loops of a function, in place.

    Parameters
    ----------
    function : function
    loops : list, optional
        Receives the objects that run its loops.

    Raises
    ------
    KernelError
        Its source cannot be read.
    """
    found = vars(function).get(_LOOPS)
    if found is None:
        found = vars(function)[_LOOPS] = []
        _guard(function, found)
    if loops is not None:
        loops += found
    return function


def _guard(function: types.FunctionType, loops: list[Running]) -> None:
    source = read_source(function)
    definition: Any = source.definition
    definition.decorator_list = []
    if function.__name__ != definition.name or any(map(_is_mangled, ast.walk(definition))):
        return
    objects = Objects()

    def make(loop: Loop) -> Running:
        loops.append(Running(loop, lambda: False))
        return loops[-1]

    free = function.__code__.co_freevars
    tree: Any = ast.Module([definition], [])
    if free:
        values: list[ast.stmt] = [ast.Assign([ast.Name(name, ast.Store())], ast.Constant(None)) for name in free]
        outer: Any = ast.parse("def _(): pass").body[0]
        outer.body = [*values, definition]
        tree.body = [outer]
    note_loops(tree)
    guards = Guards(source.filename, objects, make, UNSET, is_compiled, lambda node: False)
    guards.names = function.__qualname__.split(".")[:-1]
    code = objects.compiled(ast.fix_missing_locations(guards.visit(tree)), source.filename)
    found = _code_of(code, function.__code__)
    if found is None:
        loops.clear()
        return
    named: dict[str, Any] = {"co_qualname": function.__qualname__} if sys.version_info >= (3, 11) else {}
    function.__code__ = found.replace(**named)


def _is_mangled(node: ast.AST) -> bool:
    """Return whether a name means another one inside of a class."""
    name = getattr(node, "attr", getattr(node, "id", ""))
    return isinstance(name, str) and name.startswith("__") and not name.endswith("__")


def _code_of(code: types.CodeType, wanted: types.CodeType) -> types.CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if (constant.co_name, constant.co_freevars) == (wanted.co_name, wanted.co_freevars):
                return constant
            found = _code_of(constant, wanted)
            if found is not None:
                return found
    return None


class compiled_loops:
    """Compile the loops of Python functions that prove hot, as ``python -m ampi.run --compile`` does.

    ``@ampi.compiled_loops`` does so for a function, wherever it is called.  ``with ampi.compiled_loops():`` does so for
    calls, while the block runs, of all functions of the calling module, and of modules in its folder and below, that
    are defined by then; loops that stand in the block itself are not compiled.

    A loop that proves hot, and consists of arithmetic on numbers and elements of arrays, becomes an `ampi.kernel`.  Its
    results are Python's, with their types, and so are exceptions; the last digits of functions and powers may differ.
    Everything else runs as it would otherwise.

    Parameters
    ----------
    function : callable, optional
        The decorated function.  It is changed in place, and returned.

    Raises
    ------
    KernelError
        The source of the decorated function cannot be read.

    Examples
    --------
    >>> @ampi.compiled_loops
    ... def dot(x, y):
    ...     total = 0.0
    ...     for i in range(len(x)):
    ...         total += x[i] * y[i]
    ...     return total
    >>> ampi.grad(dot)(numpy.ones(3), numpy.arange(3.0))
    array([0., 1., 2.])
    """

    _entered: list[Any] = []

    def __new__(cls, function: Any = None) -> Any:
        """The decorated function, or a decorator that is a context as well."""
        return super().__new__(cls) if function is None else _decorated(function)

    def __call__(self, function: Any) -> Any:
        return _decorated(function)

    def __enter__(self) -> compiled_loops:
        frame = sys._getframe(1)
        self._loops = [loop for function in _functions_near(frame) for loop in _loops_of(function)]
        self._entered.append(self)
        for loop in self._loops:
            loop.on = loop.loop.refusal is None
        return self

    def __exit__(self, *exception: Any) -> None:
        self._entered.remove(self)
        still = {id(loop) for other in self._entered for loop in other._loops}
        for loop in self._loops:
            loop.on = loop.on and id(loop) in still


def _decorated(function: Any) -> Any:
    found = inspect.unwrap(getattr(function, "__func__", function))
    if not isinstance(found, types.FunctionType):
        raise KernelError(f"ampi.compiled_loops takes a Python function, not {function!r}")
    loops: list[Running] = []
    with_compiled_loops(found, loops)
    for loop in loops:
        loop.on = loop.loop.refusal is None
    _decorated_functions.add(found)
    return function


_decorated_functions: set[types.FunctionType] = set()


def _loops_of(function: types.FunctionType) -> list[Running]:
    """The loops of a function that are compiled only in a context."""
    loops: list[Running] = []
    if function not in _decorated_functions:
        try:
            with_compiled_loops(function, loops)
        except KernelError:
            return []
    return loops


def _functions_near(frame: types.FrameType) -> Iterator[types.FunctionType]:
    """The functions of the module of a frame, and of modules in its folder."""
    name = frame.f_globals.get("__name__")
    file = frame.f_globals.get("__file__")
    folder = None if file is None else os.path.dirname(os.path.abspath(file))
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        near = folder is not None and isinstance(path, str) and os.path.abspath(path).startswith(folder + os.sep)
        if vars(module).get("__name__") == name or (near and not any(part in path for part in _INSTALLED)):
            yield from _functions_in(vars(module), module.__name__)


def _functions_in(names: Any, module: str) -> Iterator[types.FunctionType]:
    for value in list(names.values()):
        value = getattr(value, "__func__", value)
        value = value.fget if isinstance(value, property) else value
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, types.FunctionType):
            yield value
        elif isinstance(value, type):
            yield from _functions_in(vars(value), module)

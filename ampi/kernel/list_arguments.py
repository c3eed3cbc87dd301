"""Lists among the arguments of kernels: arrays of their items, from which derivatives flow back to the items.

Numba gets the list itself.  For derivatives the numbers of a list are one array, and so are its matrices; its vectors,
which may differ in length, are one array of all elements.  A tape records the construction of these arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ampi import numpy as ours
from ampi.errors import ActivityError, KernelError
from ampi.kernel import arguments
from ampi.kernel.arguments import ListArgument
from ampi.memory import storages as memory
from ampi.memory.extents import Extent


def with_lists(kernel: Any, args: tuple[Any, ...], recording: Any) -> tuple[Any, ...]:
    """The arguments of a call with a `ListArgument` instead of each list."""
    return tuple(_with_lists(kernel, a, recording) for a in args)


def _with_lists(kernel: Any, value: Any, recording: Any) -> Any:
    if isinstance(value, tuple) and arguments.has_list(value):
        return arguments.rebuilt(value, [_with_lists(kernel, v, recording) for v in value])
    return _listed(kernel, value, recording) if arguments.is_list(value) else value


def _listed(kernel: Any, given: Any, recording: Any) -> ListArgument:
    items = list(given)
    active = recording is not None and any(isinstance(v, memory.TrackedArray) for v in items)
    if not active:
        items = [arguments.plain(v) for v in items]
    if not all(isinstance(v, (np.ndarray, np.generic, bool, int, float, complex)) for v in items):
        return ListArgument(given, ())  # not accepted: the parser raises the error
    dtypes = list(dict.fromkeys(str(v.dtype if isinstance(v, np.ndarray) else np.asarray(v).dtype) for v in items))
    if len(dtypes) > 1:
        raise KernelError(f"{kernel.__name__}(): a list of {', '.join(dtypes)}; give all items the same type")
    functions: Any = ours if active else np
    arrays = [v for v in items if isinstance(v, np.ndarray) and not arguments.is_scalar(v)]
    if not arrays:
        if active:
            return ListArgument(given, (functions.array(items),))
        return ListArgument(given, (_read_only(np.array(items, None if items else np.float64)),))
    shapes = [np.shape(v) for v in items]
    vectors = len(shapes[0]) == 1
    if len(set(map(len, shapes) if vectors else shapes)) > 1:
        raise KernelError(
            f"{kernel.__name__}(): a list of arrays of shapes {', '.join(map(str, dict.fromkeys(shapes)))}; pass them "
            "in a tuple"
        )
    if not vectors:
        return ListArgument(given, (functions.stack(items),))
    starts = np.cumsum([0, *(n for (n,) in shapes)], dtype=np.intp)
    return ListArgument(given, (functions.concatenate(items), _read_only(starts)))


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def refuse_overlap(kernel: Any, names: tuple[str, ...], writes: Any, bound: tuple[Any, ...], leaves: Any) -> None:
    """Raise an error if the kernel writes an array that is also in a list, whose derivatives are taken of a copy."""
    for given in (a for a in bound if isinstance(a, ListArgument)):
        for item in (v for v in given.items if isinstance(v, np.ndarray) and v.ndim):
            for k in writes:
                if Extent(leaves[k]).overlaps(Extent(item)):
                    raise ActivityError(
                        f"{kernel.__name__}(): an array in a list overlaps argument '{names[k]}' in memory, which the "
                        "kernel writes; pass the arrays in a tuple, or a copy"
                    )

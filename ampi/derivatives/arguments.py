"""Arguments of differentiated functions: nested tuples, lists and dictionaries of arrays, and their tangents."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..base.structures import leaves, like
from ..errors import ActivityError, TapeError
from ..memory.layouts import behaves_otherwise
from ..memory.storages import carries_derivatives, tracked_copy
from ..tape.apart import copied_apart, is_apart, is_tracked


def map_leaves(function: Callable, x: Any) -> Any:
    """Apply a function to the leaves of tuples, lists and dictionaries."""
    if x is None:
        return None
    if isinstance(x, (tuple, list, dict)):
        return like(x, [map_leaves(function, item) for item in (x.values() if isinstance(x, dict) else x)])
    return function(x)


def leaves_of(x: Any) -> list:
    """Return the leaves of tuples, lists and dictionaries; None is no leaf."""
    return [leaf for leaf in leaves(x) if leaf is not None]


def parts_for(x: Any, given: Any, where: str) -> list:
    """Return what is given for each leaf of a structure: a seed or a tangent; None where it is None.

    Parameters
    ----------
    x
        Tuples, lists and dictionaries of arrays.
    given
        The same structure, with something else instead of each leaf.
    where : str
        The name of what is given, for errors.

    Raises
    ------
    TapeError
        The structures differ.
    """
    if x is None:
        if given is not None:
            raise TapeError(f"{where} is a {type(given).__name__}, and has to be None: there is no array")
        return []
    if not isinstance(x, (tuple, list, dict)):
        if isinstance(given, (dict, tuple)) or (isinstance(given, list) and not _is_list_of_numbers(given)):
            raise TapeError(f"{where} is a {type(given).__name__} of {len(given)}, and belongs to a {type(x).__name__}")
        return [given]
    if given is None:
        return [None] * len(leaves_of(x))
    kind = dict if isinstance(x, dict) else (tuple, list)
    if not isinstance(given, kind) or len(given) != len(x):
        size = f" of {len(given)}" if isinstance(given, (tuple, list, dict)) else ""
        raise TapeError(f"{where} is a {type(given).__name__}{size}, and belongs to a {type(x).__name__} of {len(x)}")
    names = list(x) if isinstance(x, dict) else range(len(x))
    if isinstance(x, dict) and given.keys() != x.keys():
        raise TapeError(f"{where} has the keys {list(given)}, and belongs to a dictionary with {list(x)}")
    return [part for name in names for part in parts_for(x[name], given[name], f"{where}[{name!r}]")]


def is_inexact(x: Any) -> bool:
    return carries_derivatives(x.dtype if isinstance(x, np.ndarray) or is_apart(x) else np.asarray(x).dtype)


def _is_list_of_numbers(x: Any) -> bool:
    """Return whether this is a list from which NumPy makes an array of numbers, as `Tape.watch` accepts it."""
    return isinstance(x, list) and len(x) > 0 and all(_is_number(item) or _is_list_of_numbers(item) for item in x)


def _is_number(x: Any) -> bool:
    return isinstance(x, (int, float, complex, np.number)) and not isinstance(x, np.ndarray)


def with_arrays(x: Any) -> Any:
    """Return an argument with arrays instead of its lists of numbers."""
    if _is_list_of_numbers(x):
        return np.array(x)
    if isinstance(x, (tuple, list, dict)):
        return like(x, [with_arrays(item) for item in (x.values() if isinstance(x, dict) else x)])
    return x


def require_on_host(leaf: Any, where: str) -> None:
    """Raise an error if an argument or a result is an array on a device, where a function takes none."""
    if is_apart(leaf):
        raise ActivityError(
            f"{where} is an array on a device; here arguments and results are arrays on the host: let the function "
            "begin with ampi.cuda.to_device(x), and return d.copy_to_host()"
        )


def require_tracked(leaf: Any, where: str) -> None:
    """Raise an error if a result is an array of another package on a device."""
    if is_apart(leaf) and not is_tracked(leaf):
        raise ActivityError(
            f"{where} is an array of {type(leaf).__module__.partition('.')[0]} on a device, whose derivatives are not "
            "tracked; return one of ampi.cuda (as_cuda_array(x) before x is computed), or d.copy_to_host()"
        )


def on_host(y: Any) -> Any:
    """Return a copy on the host of a result on a device; other results unmodified."""
    require_tracked(y, "the result of the function")
    return y.copy_to_host() if is_apart(y) else y


def unboxed(found: Any) -> Any:
    """Return an array of no axes on the host as a number."""
    return found if is_apart(found) else found[()]


def require_readable(tape: Any, leaf: Any, where: str) -> None:
    """Raise an error if a result is an array of another package, or an object with active arrays in its attributes."""
    require_tracked(leaf, where)
    held = getattr(leaf, "__dict__", None)
    if isinstance(leaf, np.ndarray) or is_apart(leaf) or not isinstance(held, dict):
        return
    for name, part in held.items():
        if any(tape.is_active(array) for array in leaves(part)):
            raise TapeError(
                f"{where} is a {type(leaf).__name__}, and derivatives of its attribute {name!r} would be lost; return "
                "arrays, or tuples, lists and dictionaries of them"
            )


def has_tangent(leaf: Any) -> bool:
    return (isinstance(leaf, (np.ndarray, np.generic, float, complex)) or is_apart(leaf)) and is_inexact(leaf)


def number_of_directions(asked: str, tangents: Any, given: bool | int) -> int:
    """Return the number of directions of tangents: the length of the leading axis of the first one."""
    first = next((np.shape(plain_of(leaf)) for leaf in leaves_of(with_arrays(tangents)) if leaf is not None), None)
    if first == ():
        raise TapeError(f"{asked}: with vectorised=True tangents have a leading axis, and one is a number")
    if first is None and isinstance(given, bool):
        raise TapeError(f"{asked}: no tangent says how many directions there are; pass their number: vectorised=k")
    count = first[0] if isinstance(given, bool) else int(given)  # type: ignore[index]
    if count < 1:
        raise TapeError(f"{asked}: {count} directions; pass one at least")
    return count


def with_tangents(
    tape: Any,
    x: Any,
    x_dot: Any,
    where: str,
    asked: str = "ampi.jvp",
    start: Callable | None = None,
    lead: tuple[int, ...] = (),
) -> Any:
    """Return an argument with copies, on the tape, of the leaves that have tangents; other leaves are unmodified.

    Callers other than `jvp` pass ``start(x, x_dot)``, which makes the copies, also of leaves whose tangent is None.
    Tangents have the leading axes ``lead``.
    """
    if _is_list_of_numbers(x):
        x = np.array(x)
    if isinstance(x, (tuple, list, dict)):
        if x_dot is None:
            x_dot = {name: None for name in x} if isinstance(x, dict) else [None] * len(x)
        kind = dict if isinstance(x, dict) else (tuple, list)
        if not isinstance(x_dot, kind) or len(x_dot) != len(x) or (isinstance(x, dict) and x_dot.keys() != x.keys()):
            raise TapeError(f"{asked}: {where} is a {type(x).__name__} of {len(x)}, and its tangent is not")
        names = list(x) if isinstance(x, dict) else range(len(x))
        return like(x, [with_tangents(tape, x[k], x_dot[k], f"{where}[{k!r}]", asked, start, lead) for k in names])
    if is_apart(x):
        if start is not None:
            require_on_host(x, f"{asked}: {where}")
        return _on_device(tape, x, x_dot, f"{asked}: {where}", lead)
    tape.is_active(x)  # raises if it carries derivatives on an outer tape
    plainly = plain_of(x)
    if x is None or x_dot is None:
        if start is not None and x is not None:
            return start(plainly, None)
        return tracked_copy(plainly) if isinstance(x, np.ndarray) and not behaves_otherwise(type(plainly)) else x
    if not is_inexact(plainly):
        raise ActivityError(f"{asked}: {where} is of dtype {np.asarray(plainly).dtype}; its tangent must be None")
    given = np.asarray(plain_of(x_dot))
    if given.shape != (*lead, *np.shape(plainly)):
        beside = f", which has to be {(*lead, *np.shape(plainly))}" if lead else ""
        raise TapeError(f"{asked}: {where} has the shape {np.shape(plainly)}, its tangent {given.shape}{beside}")
    if given.dtype.kind == "c" and np.asarray(plainly).dtype.kind != "c":
        raise TapeError(f"{asked}: {where} is real, its tangent complex")
    if start is not None:
        return start(plainly, given)
    copy = tracked_copy(plainly)
    tape.start(copy, given)
    return copy


def _on_device(tape: Any, x: Any, x_dot: Any, where: str, lead: tuple[int, ...]) -> Any:
    """Return a copy of an argument on a device, with its tangent (on the host or the device; None: it is constant)."""
    copy = copied_apart(x)
    if x_dot is None:
        return copy
    if not is_inexact(copy):
        raise ActivityError(f"{where} is of dtype {copy.dtype}; its tangent must be None")
    given = copied_apart(x_dot) if is_apart(x_dot) else np.asarray(plain_of(x_dot))
    if given.shape != (*lead, *copy.shape):
        beside = f", which has to be {(*lead, *copy.shape)}" if lead else ""
        raise TapeError(f"{where} has the shape {copy.shape}, its tangent {given.shape}{beside}")
    if given.dtype.kind == "c" and copy.dtype.kind != "c":
        raise TapeError(f"{where} is real, its tangent complex")
    tape.start(copy, given)
    return copy

"""Reduction operations on elements that consist of a value and its tangent: ``combine(a, b)`` stores a ∘ b in b.

At a tie the tangent of the lowest rank counts, as its adjoint does in reverse mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...tape import Push
from ..memory.buffers import NOTHING, Buffer
from ..memory.tangents import tangent_in
from ..waiting.notices import stranded
from .reductions import Reduction, before

_Op = mpi.Op  # mpi4py's own: its names may be rebound


def elements_with_tangents(dtype: np.dtype, located: bool) -> np.dtype:
    """Return the dtype of elements with a value, its tangent, and for MINLOC and MAXLOC a location."""
    names = ["value", "tangent", *(["location"] if located else [])]
    return np.dtype(list(zip(names, (dtype, dtype, np.dtype(np.intc)))), align=True)


def filled(elements: np.dtype, tangents: np.ndarray, values: Any) -> np.ndarray:
    """Return an array of elements; ``values`` is an array, or has fields for values and locations."""
    made = np.empty(len(tangents), elements)
    made["tangent"] = tangents
    if "location" in elements.names:  # type: ignore[operator]
        made["value"], made["location"] = values["value"], values["location"]
    else:
        made["value"] = values
    return made


class Elements:
    """Elements with a value and its tangent: how MPI sends and combines them.

    Attributes
    ----------
    dtype : numpy.dtype
    datatype : mpi4py.MPI.Datatype
    operation : mpi4py.MPI.Op
        Combines them.  All directions share one operation, since mpi4py has room for 32.
    """

    __slots__ = ("datatype", "dtype", "operation")
    datatype: mpi.Datatype
    operation: mpi.Op

    def __init__(self, push: Push, handle: int, rule: Reduction, dtype: np.dtype) -> None:
        self.dtype = elements_with_tangents(dtype, rule.located)
        push, key = push.whole, (handle, rule, self.dtype)
        found = push.state.get(("pairs", key))
        if found is None:
            found = push.state["pairs", key] = _made(push, key)
        self.operation, self.datatype = found

    def of(self, push: Push, x: Buffer, values: Callable[[], np.ndarray] | None) -> np.ndarray:
        """Return the elements of a buffer; ``values()`` gives values and locations that are no longer in memory."""
        if x is NOTHING:
            return np.zeros(0, self.dtype)
        found: Any = x.values() if values is None else values()
        if values is None and "location" in self.dtype.names:  # type: ignore[operator]
            found = {"value": found, "location": x.others(np.dtype(np.intc))}
        return filled(self.dtype, tangent_in(push, x), found)


def _made(push: Push, key: tuple[int, Reduction, np.dtype]) -> tuple[mpi.Op, mpi.Datatype]:
    handle, rule, dtype = key
    datatype = mpi.BYTE.Create_contiguous(dtype.itemsize).Commit()
    push.at_end(lambda error: datatype.Free())  # type: ignore[arg-type, return-value]
    if key in _left:
        return _left[key], datatype
    combine = combination(handle, rule)

    def function(inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
        a, b = (np.frombuffer(buffer, dtype) for buffer in (inbuf, inoutbuf))
        with np.errstate(all="ignore"):
            combine(a, b)

    made = _Op.Create(function, False)
    push.at_end(lambda error: made.Free() if error is None else _left.__setitem__(key, made))
    return made, datatype


_left: dict[tuple[int, Reduction, np.dtype], mpi.Op] = {}
"""Operations that MPI may still call for requests that an error has left incomplete: reused, and not freed."""
stranded.append(_left)


def combination(handle: int, rule: Reduction) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return ``combine(a, b)`` of an operation with a rule, other than the sum."""
    return _COMBINED.get(handle) or _by_kernel(rule)


def _product(a: np.ndarray, b: np.ndarray) -> None:
    b["tangent"] = a["tangent"] * b["value"] + a["value"] * b["tangent"]
    b["value"] *= a["value"]


def _extremum(beats: Callable[[Any, Any], np.ndarray]) -> Callable[[np.ndarray, np.ndarray], None]:
    def combine(a: np.ndarray, b: np.ndarray) -> None:
        stays = ~beats(b["value"], a["value"])
        b[stays] = a[stays]

    return combine


def _located(beats: Callable[[np.ndarray, np.ndarray, np.ufunc], np.ndarray], better: np.ufunc) -> Callable:
    def combine(a: np.ndarray, b: np.ndarray) -> None:
        stays = ~beats(b, a, better)
        b[stays] = a[stays]

    return combine


_COMBINED: dict[int, Callable] = {
    mpi.PROD.handle: _product,
    mpi.MIN.handle: _extremum(np.less),
    mpi.MAX.handle: _extremum(np.greater),
    mpi.MINLOC.handle: _located(before, np.less),
    mpi.MAXLOC.handle: _located(before, np.greater),
}


def _by_kernel(rule: Reduction) -> Callable[[np.ndarray, np.ndarray], None]:
    """Return ``combine(a, b)`` of a custom operation, by the tangent of its kernel."""
    from ...kernel.case import Case
    from ...kernel.forward import make_tangent_contract

    kernel = rule.prefix.__self__.kernel  # type: ignore[union-attr]
    made: list[Any] = []

    def combine(a: np.ndarray, b: np.ndarray) -> None:
        names = "value", "tangent"
        (x, x_dot), (y, y_dot) = ([np.ascontiguousarray(c[name]) for name in names] for c in (a, b))
        if not made:
            made.append(make_tangent_contract(kernel, Case(kernel.types_of((x, y)), frozenset({0, 1}))))
        shadows = x_dot, y_dot
        made[0].tangent(x, y, *(shadows[k] for k in made[0].shadows))
        b["value"], b["tangent"] = y, y_dot

    return combine

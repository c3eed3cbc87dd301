"""NumPy's namespace with functions that return `ampi.ndarray`: write ``import ampi.numpy as np``.

Everything of NumPy is here.  What creates arrays (from nothing, from files, from Python numbers) gives an
`ampi.ndarray`; what computes with them is NumPy's own function, which sees an `ampi.ndarray` by NumPy's dispatch.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as _np

from . import memory as _memory
from .array import ndarray
from .indexing import from_nested as _from_nested
from .indexing import plain_of as _plain_of

__all__ = [name for name in dir(_np) if not name.startswith("_")]

_CREATORS = (
    "arange bartlett blackman diag_indices eye frombuffer fromfile fromfunction fromiter fromregex fromstring full "
    "genfromtxt geomspace hamming hanning identity indices kaiser linspace load loadtxt logspace tri vander"
).split()


def _creating(function: Callable) -> Callable:
    """A function of NumPy with its result as an `ampi.ndarray`."""

    @functools.wraps(function)
    def create(*arguments: Any, **keywords: Any) -> Any:
        return _memory.wrapped(function(*arguments, **keywords))

    return create


for _name in _CREATORS:
    globals()[_name] = _creating(getattr(_np, _name))


def _new(shape: Any, dtype: Any, order: str) -> ndarray:
    return _np.ndarray.__new__(ndarray, shape, _np.float64 if dtype is None else dtype, None, 0, None, order)


@functools.wraps(_np.empty)
def empty(shape: Any, dtype: Any = float, order: Any = "C", **keywords: Any) -> ndarray:
    return _new(shape, dtype, order)


@functools.wraps(_np.zeros)
def zeros(shape: Any, dtype: Any = float, order: Any = "C", **keywords: Any) -> ndarray:
    # NumPy's own zeros come untouched from the operating system.
    return _memory.wrapped(_np.zeros(shape, dtype, order))


@functools.wraps(_np.ones)
def ones(shape: Any, dtype: Any = None, order: Any = "C", **keywords: Any) -> ndarray:
    return _memory.wrapped(_np.ones(shape, dtype, order))


@functools.wraps(_np.array)
def array(
    object: Any, dtype: Any = None, *, copy: Any = True, order: Any = "K", subok: bool = False, ndmin: int = 0
) -> ndarray:
    if isinstance(object, (list, tuple)):
        nested = _from_nested(object, dtype=dtype, order=order)
        if nested is not object:
            return _with_dimensions(nested, ndmin)
    if isinstance(object, ndarray):
        wanted = object.dtype if dtype is None else _np.dtype(dtype)
        made = _np.array(_plain_of(object), dtype=wanted, copy=copy, order=order)
        if _np.may_share_memory(made, object):
            return _with_dimensions(object, ndmin)
        return _with_dimensions(object.astype(wanted, order), ndmin)
    return _as_ours(_np.array(object, dtype=dtype, copy=copy, order=order, ndmin=ndmin))


def _with_dimensions(made: ndarray, ndmin: int) -> ndarray:
    return made.reshape((1,) * (ndmin - made.ndim) + made.shape) if made.ndim < ndmin else made


def _as_ours(made: Any) -> Any:
    if isinstance(made, _np.ndarray):
        return _memory.tracked(made)
    return made


@functools.wraps(_np.asarray)
def asarray(a: Any, dtype: Any = None, order: Any = None, **keywords: Any) -> ndarray:
    if isinstance(a, ndarray) and dtype is None and order in (None, "K", "A"):
        return a
    copy = keywords.get("copy")
    return array(a, dtype, copy=copy, order="K" if order is None else order)


asanyarray = asarray


@functools.wraps(_np.ascontiguousarray)
def ascontiguousarray(a: Any, dtype: Any = None, **keywords: Any) -> ndarray:
    return array(a, dtype, copy=None, order="C", ndmin=1)


@functools.wraps(_np.asfortranarray)
def asfortranarray(a: Any, dtype: Any = None, **keywords: Any) -> ndarray:
    return array(a, dtype, copy=None, order="F", ndmin=1)


@functools.wraps(_np.copy)
def copy(a: Any, order: Any = "K", subok: bool = False) -> ndarray:
    return array(a, order=order, copy=True)


def _like(function: Callable) -> Callable:
    @functools.wraps(function)
    def create(*arguments: Any, **keywords: Any) -> ndarray:
        keywords.pop("subok", None)
        return _memory.wrapped(function(_plain_of(arguments[0]), *arguments[1:], **keywords))

    return create


zeros_like = _like(_np.zeros_like)
ones_like = _like(_np.ones_like)
empty_like = _like(_np.empty_like)


class _Submodule(types.ModuleType):
    """A namespace below `ampi.numpy` whose functions give `ampi.ndarray`s."""

    def __init__(self, name: str, origin: types.ModuleType) -> None:
        super().__init__(f"ampi.numpy.{name}", origin.__doc__)
        self._origin = origin

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._origin, name)
        if isinstance(found, (types.FunctionType, types.BuiltinFunctionType)):
            found = _creating(found)
            setattr(self, name, found)
        elif callable(found) and not isinstance(found, type):
            found = _creating(found)
            setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return dir(self._origin)


linalg = _Submodule("linalg", _np.linalg)
fft = _Submodule("fft", _np.fft)
random = _Submodule("random", _np.random)


def __getattr__(name: str) -> Any:
    return getattr(_np, name)


def __dir__() -> list[str]:
    return sorted({*dir(_np), *globals()})

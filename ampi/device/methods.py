"""Operators and methods of arrays on a device, as those of `numpy.ndarray`: calls of NumPy's functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin


class Arithmetic(Protocol):
    """What arrays on a device can compute (`functions`, which enters it here when it is imported)."""

    def call_ufunc(self, ufunc: np.ufunc, method: str, inputs: tuple, keywords: dict[str, Any]) -> Any:
        """Call ``ufunc.method(*inputs, **keywords)``."""

    def call_function(self, function: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
        """Call a function of NumPy."""

    def gather(self, array: Any, key: Any) -> Any:
        """``array[key]`` with arrays in the key."""

    def assign(self, array: Any, key: Any, value: Any) -> None:
        """``array[key] = value``."""

    def astype(self, array: Any, dtype: Any, copy: bool = True) -> Any:
        """``array.astype(dtype)``."""


arithmetic: list[Arithmetic] = []


class Methods(NDArrayOperatorsMixin):
    """Operators and methods of arrays that are not in the memory of the host."""

    __slots__ = ()

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        return arithmetic[0].call_ufunc(ufunc, method, inputs, keywords)

    def __array_function__(self, function: Callable, types: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
        return arithmetic[0].call_function(function, arguments, keywords)

    def __iter__(self) -> Any:
        return (self[k, ...] for k in range(len(self)))  # type: ignore[arg-type,index]

    @property
    def real(self) -> Any:
        """The real part, a view."""
        return np.real(self)  # type: ignore[arg-type]

    @property
    def imag(self) -> Any:
        """The imaginary part, a view of complex numbers."""
        return np.imag(self)  # type: ignore[arg-type]

    def astype(self, dtype: Any, copy: bool = True) -> Any:
        """Return the array in another dtype."""
        return arithmetic[0].astype(self, dtype, copy)

    def flatten(self, order: str = "C") -> Any:
        """Return a copy with one axis."""
        return np.ravel(np.copy(self, order), order)  # type: ignore[call-overload]

    def fill(self, value: Any) -> None:
        """Set all elements to a number."""
        self[...] = value  # type: ignore[index]

    def _not_here(self, *arguments: Any, **keywords: Any) -> NoReturn:
        raise AttributeError("an array on a device is not sorted in place; write numpy.sort(d)")

    sort = partition = _not_here


def _method(name: str, function: Callable) -> Callable:
    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return function(self, *arguments, **keywords)

    method.__name__ = name
    method.__qualname__ = f"Methods.{name}"
    method.__doc__ = f"Call `numpy.{function.__name__}`."
    return method


for _name in (
    "all any argmax argmin argsort clip compress conj conjugate copy cumprod cumsum diagonal dot max mean min nonzero "
    "prod ptp put repeat round searchsorted squeeze std sum swapaxes take trace var"
).split():
    setattr(Methods, _name, _method(_name, getattr(np, _name)))

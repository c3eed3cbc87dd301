"""Blocks of bytes: fast allocation, copies and comparison."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable

import numpy as np

from .extents import address_of


def _copied(array: np.ndarray) -> np.ndarray:
    return array.copy(order="K")


def _zeroed(nbytes: int) -> np.ndarray:
    return np.zeros(nbytes, np.uint8)


_copying: Callable[[np.ndarray], np.ndarray] = _copied
_zeroing: Callable[[int], np.ndarray] = _zeroed


def set_functions(copying: Callable[[np.ndarray], np.ndarray], zeroing: Callable[[int], np.ndarray]) -> None:
    """Register faster functions that copy large arrays and make large blocks of zeros."""
    global _copying, _zeroing
    _copying, _zeroing = copying, zeroing


def copied(array: np.ndarray) -> np.ndarray:
    """Return a copy of a plain array that will not be read soon, in the same memory order."""
    return _copying(array)


def spaced(array: np.ndarray) -> np.ndarray:
    """Return a copy of an array in the same memory order that is not contiguous, if that is not and has several axes:
    with a gap of one element after each part along the outermost axis."""
    order = sorted(range(array.ndim), key=lambda axis: -abs(array.strides[axis]))
    outermost = next((axis for axis in order if array.shape[axis] > 1), None)
    strides, step = [0] * array.ndim, array.itemsize
    for axis in reversed(order):
        if axis == outermost:
            step += array.itemsize
        strides[axis] = step
        step *= array.shape[axis]
    is_long = sum(n > 1 for n in array.shape) > 1
    if array.flags.forc or not is_long or not array.size or array.dtype.hasobject:
        return copied(array)
    copy = np.ndarray(array.shape, array.dtype, np.empty(step, np.uint8), 0, strides)
    copy[...] = array
    return copy


def zeroed(nbytes: int) -> np.ndarray:
    """Return a new block of bytes of zero."""
    return _zeroing(nbytes)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether two contiguous arrays of one shape, dtype and order hold the same bytes."""
    if a.nbytes < _FEW_BYTES:
        return a.tobytes("A") == b.tobytes("A")
    return not _compare(address_of(a), address_of(b), a.nbytes)


class SharedCopies(dict[tuple, np.ndarray]):
    """Copies of the present values of plain arrays, by `place_of`; equal values at one place share one."""

    def __call__(self, view: np.ndarray, place: tuple) -> np.ndarray:
        copy = self.get(place)
        present = view if view.flags.forc else view.copy(order="K")
        if copy is None or not same_bytes(copy, present):
            copy = self[place] = view.copy(order="K") if present is view else present
        return copy


def is_zero(array: np.ndarray) -> bool:
    """Return whether all numbers of an array are zero; if one of the first is not, this takes no time."""
    if array.ndim > 1 and not array.flags.c_contiguous and len(array) <= _FEW_ROWS:
        return all(map(is_zero, array))
    if not array.flags.c_contiguous:
        return not array.any()
    if array.nbytes <= 8:
        return not any(array.tobytes())
    address = address_of(array)  # all bytes are zero if the first ones are, and each is as that eight bytes before
    return not any(array.ravel().view(np.uint8)[:8].tobytes()) and not _compare(address, address + 8, array.nbytes - 8)


_FEW_ROWS = 64
_FEW_BYTES = 4096
# memcmp reads both arrays once and allocates nothing; NumPy's comparison allocates an array.
_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t


def add_repeated(view: np.ndarray, block: np.ndarray, value: np.ndarray) -> None:
    """Add to a view of a block of bytes that has some elements more than once: these get the sum."""
    first = (address_of(view) - address_of(block)) // view.itemsize
    shift = (address_of(view) - address_of(block)) % view.itemsize
    n = (block.nbytes - shift) // view.itemsize
    elements = np.ndarray((n,), view.dtype, block, shift)
    place = np.full((), first)
    for axis, (stride, length) in enumerate(zip(view.strides, view.shape)):
        steps = np.arange(length) * (stride // view.itemsize)
        place = place + steps.reshape((length,) + (1,) * (view.ndim - axis - 1))
    np.add.at(elements, place, value.astype(view.dtype, copy=False))


MAX_FREED_BYTES = 1 << 30


def _retain_freed_memory() -> None:
    """Have the C library keep memory that is freed, up to `MAX_FREED_BYTES`, for the next allocation.

    A tape saves and frees arrays like a stack, and so does a kernel's adjoint; new pages from the system for each of
    them, in each sweep, would cost more than the arithmetic.  Once a program has freed a block as large as the one
    below, glibc serves smaller blocks from memory that it keeps; other C libraries have no such rule.
    """
    np.empty((1 << 25) - (1 << 14), np.uint8)
    with contextlib.suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).mallopt(_TRIM_THRESHOLD, MAX_FREED_BYTES)


_TRIM_THRESHOLD = -1  # M_TRIM_THRESHOLD of <malloc.h>
_retain_freed_memory()

"""Addresses of arrays, and the bytes that they touch."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

_DUMMY = np.zeros(16, np.uint8)


def _address_from_interface(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def _address_from_struct(array: np.ndarray) -> int:
    return _pointer_at(id(array) + _HEAD).value or 0


# The data pointer is the first field of NumPy's array struct (its C API promises this); reading it there costs a
# tenth of building the interface dictionary, and every record reads a few addresses.
_HEAD = object.__basicsize__
_pointer_at = ctypes.c_void_p.from_address
try:
    _struct_is_known = _address_from_struct(_DUMMY) == _address_from_interface(_DUMMY)
except (AttributeError, ValueError):
    _struct_is_known = False

address_of = _address_from_struct if _struct_is_known else _address_from_interface
"""Address of an array's first element."""


def bounds_of(array: np.ndarray) -> tuple[int, int]:
    """Return the addresses where the bytes that an array touches begin and end.

    (NumPy's own function uses the array interface, which counts as handing the memory out.)
    """
    low = high = address_of(array)
    if not array.size:
        return low, high
    for n, stride in zip(array.shape, array.strides):
        if stride < 0:
            low += (n - 1) * stride
        else:
            high += (n - 1) * stride
    return low, high + array.itemsize


class Extent:
    """The bytes that an array touches, for overlap tests: bounds, and the exact pattern where the array has gaps.

    ``pattern`` has the address, shape, strides and element size; ``listed`` is a reference to the tape for which this
    extent is among the needs of its storage.  An array without elements touches no bytes.
    """

    __slots__ = ("dense", "high", "listed", "low", "pattern")

    def __init__(self, array: np.ndarray) -> None:
        self.listed: Any = None
        address = address_of(array)
        self.dense = array.flags.forc
        if not array.size:
            self.low = self.high = 0
        elif self.dense:
            self.low = address
            self.high = address + array.nbytes
        else:
            self.low, self.high = bounds_of(array)
        self.pattern = (address, array.shape, array.strides, array.itemsize)

    @classmethod
    def of_range(cls, low: int, high: int) -> Extent:
        """Return the extent of a range of addresses."""
        extent = cls.__new__(cls)
        extent.listed = None
        extent.dense = True
        extent.low, extent.high = low, high
        extent.pattern = (low, (high - low,), (1,), 1)
        return extent

    def overlaps(self, other: Extent) -> bool:
        """Return whether a byte belongs to both extents."""
        if self.high <= other.low or other.high <= self.low:
            return False
        if self.dense and other.dense:
            return True
        low = min(self.low, other.low)
        try:
            return np.shares_memory(self._sketch(low), other._sketch(low), max_work=10_000)
        except np.exceptions.TooHardError:
            return True

    def covers(self, other: Extent) -> bool:
        """Return whether every byte of the other extent certainly belongs to this one."""
        if self.dense:
            return self.low <= other.low and other.high <= self.high
        return self.pattern == other.pattern

    def _sketch(self, low: int) -> np.ndarray:
        address, shape, strides, itemsize = self.pattern
        # Addresses only: `shares_memory` never reads, and a dummy of stride zero satisfies NumPy's bounds check.
        dummy = np.lib.stride_tricks.as_strided(_DUMMY, (1,), (0,))
        interface = {
            "shape": shape,
            "strides": strides,
            "typestr": f"|V{itemsize}",
            "data": (dummy.__array_interface__["data"][0] + address - low, True),
            "version": 3,
        }
        return np.asarray(_Interface(interface))


def array_at(address: int, shape: Sequence[int], strides: Sequence[int], dtype: np.dtype) -> np.ndarray:
    """Return an array at an address, which does not keep the memory alive, and does not read it."""
    if 0 in shape:
        return np.empty(shape, dtype)
    interface = {
        "shape": tuple(shape),
        "strides": tuple(strides),
        "typestr": f"|V{dtype.itemsize}",
        "data": (address, False),
        "version": 3,
    }
    return np.asarray(_Interface(interface)).view(dtype)


class _Interface:
    def __init__(self, interface: dict) -> None:
        self.__array_interface__ = interface


def may_repeat(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> bool:
    """Return whether strided elements may overlap; False only if they certainly do not."""
    reach = itemsize
    for stride, n in sorted((abs(stride), n) for stride, n in zip(strides, shape) if n > 1):
        if stride < reach:
            return True
        reach += stride * (n - 1)
    return False


def repeats_elements(array: np.ndarray) -> bool:
    """Return whether two elements of an array share memory, as in broadcast arrays and sliding windows."""
    if array.flags.forc or not may_repeat(array.shape, array.strides, array.itemsize):
        return False
    places = np.zeros((), np.int64)
    for stride, n in zip(array.strides, array.shape):
        places = np.add.outer(places, abs(stride) * np.arange(n))
    return bool((np.diff(np.sort(places, axis=None)) < array.itemsize).any())


def memory_at(address: int, nbytes: int) -> np.ndarray:
    """Return a range of addresses as an array of bytes, which does not keep the memory alive."""
    return np.frombuffer(_bytes_type(nbytes).from_address(address), np.uint8)


@functools.lru_cache(256)
def _bytes_type(nbytes: int) -> Any:
    """Return the ctypes array type of this many bytes; making one takes as long as copying 100 KiB."""
    return ctypes.c_ubyte * nbytes


def is_power_of_two(n: int) -> bool:
    """Return whether ``n`` is zero or a power of two: at these sizes, growing collections drop dead entries."""
    return n & (n - 1) == 0


def place_of(view: np.ndarray) -> tuple[Any, ...]:
    """Return the address, shape, strides and dtype of an array."""
    return address_of(view), view.shape, view.strides, view.dtype


def may_change(view: np.ndarray) -> bool:
    """Return whether any code can write to a plain array, or to its base."""
    array: Any = view
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return True
        array = array.base
    return array is not None and not isinstance(array, bytes)


def behind(base: Any) -> Any:
    """Return the array behind a base: there may be a memoryview, or the dummy of `as_strided`, in between."""
    if isinstance(base, memoryview):
        return base.obj
    if type(base) is _STRIDED:
        return base.base
    return base.array if type(base) is _Bytes else base


class _Bytes:
    """A range of an array's memory, for NumPy; it keeps the array alive."""

    def __init__(self, array: np.ndarray, begin: int, end: int) -> None:
        self.array = array
        self.__array_interface__ = {"shape": (end - begin,), "typestr": "|u1", "data": (begin, False), "version": 3}


def bytes_within(array: np.ndarray, begin: int, end: int) -> np.ndarray:
    """Return a range of addresses in the memory of an array as bytes."""
    return np.asarray(_Bytes(array, begin, end))


_STRIDED = type(np.lib.stride_tricks.as_strided(np.zeros(1)).base)

"""Copies of arrays: layout in memory, and classes whose arrays compute differently."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from ..errors import ActivityError

_NO_BEHAVIOUR = frozenset(
    "__array_finalize__ __array_priority__ __array_wrap__ __buffer__ __class_getitem__ __copy__ __deepcopy__ __doc__ "
    "__format__ __getattribute__ __init__ __init_subclass__ __new__ __reduce__ __reduce_ex__ __repr__ __setattr__ "
    "__setstate__ __str__".split()
)
_BEHAVIOUR = frozenset(vars(np.ndarray)) - _NO_BEHAVIOUR
_BEHAVE_AS_ARRAYS = (np.ndarray, np.memmap, np.recarray)


@functools.cache
def behaves_otherwise(cls: type) -> bool:
    """Return whether arrays of a class compute differently from plain ones (masked arrays, matrices, units)."""
    above = cls.__mro__[: cls.__mro__.index(np.ndarray)]
    return any(not _BEHAVIOUR.isdisjoint(vars(base)) for base in above if base not in _BEHAVE_AS_ARRAYS)


def require_plain_class(cls: type) -> None:
    """Raise an error if arrays of a class compute differently from an `ampi.ndarray`."""
    if behaves_otherwise(cls):
        instead = (
            "pass its numbers (x.data, or x.filled(...)), and take its mask into account inside the function: "
            "np.where(mask, 0, x), or where=~mask"
            if issubclass(cls, np.ma.MaskedArray)
            else "pass numpy.asarray(x), and write @ for products of matrices"
            if issubclass(cls, np.matrix)
            else "pass numpy.asarray(x), and compute with plain arrays"
        )
        raise ActivityError(
            f"a {cls.__module__}.{cls.__qualname__} cannot be an independent: derivatives are those of plain arrays, "
            f"and would not be those of what this class computes; {instead}"
        )


def memory_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> list[int]:
    """Return the axes from the slowest-varying to the fastest, as `numpy.nditer` sorts them, ignoring zero strides."""
    lengths = [0 if n == 1 else abs(stride) for n, stride in zip(shape, strides)]
    quickest_first: list[int] = []
    for axis in reversed(range(len(lengths))):
        place = len(quickest_first)
        for k in reversed(range(len(quickest_first))):
            other = lengths[quickest_first[k]]
            if other and lengths[axis]:
                if other <= lengths[axis]:
                    break
                place = k
        quickest_first.insert(place, axis)
    return quickest_first[::-1]


def alike(cls: type, source: np.ndarray) -> tuple[Any, Any]:
    """Return a new array of a class with the layout of another, and the array that owns its memory (usually itself).

    The two have the same contiguity and the same order of axes and elements in memory, and reshaping joins the same
    axes without a copy.  Gaps between elements become as small as that allows, and elements that the source repeats
    (strides of zero) become separate elements.
    """
    flags = source.flags
    if flags.forc:
        order: Any = "C" if flags.c_contiguous else "F"
        new = np.ndarray.__new__(cls, source.shape, source.dtype, order=order)
        return new, new
    strides = _distinct_strides(source)
    steps = [(n - 1) * stride for n, stride in zip(source.shape, strides)]
    nbytes = sum(map(abs, steps)) + source.itemsize
    first = -sum(step for step in steps if step < 0)
    owner = np.ndarray.__new__(cls, -(-nbytes // source.itemsize), source.dtype)
    return np.ndarray.__new__(cls, source.shape, source.dtype, owner, first, strides), owner


def laid_out_copy(source: Any) -> np.ndarray:
    """Return a plain copy with the layout of `alike`."""
    source = np.asarray(source)
    copy, _ = alike(np.ndarray, source)
    copy[...] = source
    return copy


def _distinct_strides(source: np.ndarray) -> tuple[int, ...]:
    """Return strides with the order and signs of an array's own, but with small gaps."""
    shape, original, itemsize = source.shape, source.strides, source.itemsize
    strides = [itemsize] * source.ndim
    extent = 0  # bytes of the axes so far
    inner: list[int] = []
    for axis in reversed(memory_order(shape, original)):
        if shape[axis] == 1:
            continue
        step = abs(original[axis])
        joined = [k for k in inner if step == shape[k] * abs(original[k]) and shape[k] * strides[k] >= extent]
        if joined:
            stride = extent
        elif inner:
            stride = extent + itemsize
        elif step == itemsize:
            stride = itemsize
        else:
            stride = step if step % itemsize and step > itemsize else 2 * itemsize
        strides[axis] = stride
        extent = shape[axis] * stride
        inner.append(axis)
    return tuple(-stride if sign < 0 else stride for stride, sign in zip(strides, original))


def is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...], itemsize: int) -> bool:
    """Return whether the elements are contiguous in C or Fortran order."""
    long = [(n, stride) for n, stride in zip(shape, strides) if n != 1]
    if 0 in shape:
        return True
    steps = [math.prod(n for n, _ in long[k + 1 :]) * itemsize for k in range(len(long))]
    back = [math.prod(n for n, _ in long[:k]) * itemsize for k in range(len(long))]
    return [stride for _, stride in long] in (steps, back)

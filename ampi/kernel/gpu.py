"""Names that CUDA sources made by ampi import: the only module that imports the compiler for GPUs.

``numba.cuda`` is Numba's own, or that of the package numba-cuda where it is installed (``pip install ampi[cuda]``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import cuda

__all__ = ["added", "blocks_of", "copied", "cuda", "empty", "number", "parts", "zeros"]


def blocks_of(griddim: Any) -> tuple[int, int, int]:
    """Return the number of blocks of a grid along x, y and z."""
    given = tuple(griddim) if isinstance(griddim, (tuple, list)) else (griddim,)
    x, y, z = (*given, 1, 1)[:3]
    return int(x), int(y), int(z)


def empty(shape: tuple[int, ...], dtype: Any) -> Any:
    """Make an array on the device, with at least one element: CUDA has no empty arrays."""
    return cuda.device_array(tuple(max(n, 1) for n in shape), dtype)


def zeros(shape: int | tuple[int, ...], dtype: Any) -> Any:
    """Make an array of zeros on the device."""
    return cuda.to_device(np.zeros(shape, dtype))


def copied(array: Any) -> Any:
    """Copy an array on the device."""
    made = cuda.device_array(array.shape, array.dtype)
    made.copy_to_device(array)
    return made


def number(array: Any) -> Any:
    """Return the only element of an array on the device."""
    return array.copy_to_host()[0]


def added(array: Any, index: tuple[int, ...], value: Any) -> None:
    """Add a number to an element of an array on the device."""
    if hasattr(array, "__cuda_array_interface__") and hasattr(cuda, "as_cuda_array"):  # not in the simulator
        array = cuda.as_cuda_array(array, sync=False)
    array[index] = array[index] + value


def added_on_host(array: Any, index: tuple[int, ...], value: Any) -> None:
    """Add a number to an element of an array on the host."""
    array[index] += value


def parts(array: Any) -> Any:
    """Return a view of the real and imaginary parts of an array on the device, along an additional last axis."""
    if not hasattr(array, "_ary"):
        return cuda.as_cuda_array(_Parts(array), sync=False)
    return type(array)(parts_of(array._ary))  # in the simulator


def parts_of(array: np.ndarray) -> np.ndarray:
    """Return a view of the real and imaginary parts of an array on the host, along an additional last axis."""
    real = array.real
    return np.lib.stride_tricks.as_strided(real, (*array.shape, 2), (*array.strides, real.itemsize))


class _Parts:
    """Parts of complex numbers, in the form that numba.cuda accepts."""

    def __init__(self, array: Any) -> None:
        self.array = array  # keeps the memory alive
        itemsize = array.dtype.itemsize // 2
        interface = {**array.__cuda_array_interface__, "typestr": f"<f{itemsize}", "shape": (*array.shape, 2)}
        interface.pop("descr", None)
        self.__cuda_array_interface__ = {**interface, "strides": (*array.strides, itemsize)}

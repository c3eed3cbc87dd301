"""Devices: a GPU, through numba.cuda, or the processor if there is none; both run the same generated sources.

Only the device object accesses its memory: it allocates, copies, adds, and launches kernels.  All other code handles
addresses only.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import KernelError
from ..memory.extents import address_of, array_at

_chosen: list[Any] = []


KERNELS = """
@cuda.jit
def copy(target, source):
    i = cuda.grid(1)
    if i < target.shape[0] * target.shape[1] * target.shape[2]:
        j, k = i // target.shape[2], i % target.shape[2]
        target[j // target.shape[1], j % target.shape[1], k] = source[j // target.shape[1], j % target.shape[1], k]


@cuda.jit
def add(target, source):
    i = cuda.grid(1)
    if i < target.shape[0] * target.shape[1] * target.shape[2]:
        j, k = i // target.shape[2], i % target.shape[2]
        target[j // target.shape[1], j % target.shape[1], k] += source[j // target.shape[1], j % target.shape[1], k]
"""


class _Interface:
    """An array on a device in the form that numba.cuda accepts."""

    def __init__(self, memory: Any) -> None:
        self.memory = memory  # keeps it alive
        self.__cuda_array_interface__ = memory.interface()


class Processor:
    """A device whose memory is the host's: CUDA kernels are compiled for the processor."""

    is_gpu = False

    def __repr__(self) -> str:
        return "<the processor, as a device>"

    def empty(self, nbytes: int) -> tuple[int, Any]:
        """Return the address of a new block, and the object that keeps it alive."""
        block = np.empty(max(nbytes, 1), np.uint8)
        return address_of(block), block

    @contextlib.contextmanager
    def reach(self) -> Iterator[None]:
        """Return a context in which the device's memory may be read and written."""
        yield

    def handle(self, memory: Any) -> Any:
        """Return the array that kernels take."""
        return array_at(memory.address, memory.shape, memory.strides, memory.dtype)

    def read(self, memory: Any) -> np.ndarray:
        """Return a copy on the host."""
        with self.reach():
            return np.array(self.handle(memory))

    def write(self, memory: Any, values: Any) -> None:
        """Copy from the host; a number is broadcast."""
        with self.reach():
            self.handle(memory)[...] = values

    def copy(self, target: Any, source: Any) -> None:
        """Copy on the device."""
        with self.reach():
            self.handle(target)[...] = self.handle(source)

    def add(self, target: Any, source: Any) -> None:
        """Add on the device."""
        with self.reach():
            target = self.handle(target)
            target += self.handle(source)

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that launches kernels."""
        with self.reach():
            return function(*args)

    @functools.cached_property
    def names(self) -> dict[str, Any]:
        """Return the names that generated CUDA sources import."""
        from ..kernel import kernel
        from ..kernel.frontend.base.cuda_names import NAMES
        from ..kernel.gpu import added_on_host, parts_of

        cuda = ModuleType("ampi.cuda")  # the name by which kernels know it
        vars(cuda).update(NAMES, jit=functools.partial(kernel, target="cuda"))
        return {
            "cuda": cuda,
            "copied": np.copy,
            "empty": lambda shape, dtype: np.empty([max(n, 1) for n in shape], dtype),
            "number": lambda array: array[0],
            "added": added_on_host,
            "parts": parts_of,
            "zeros": np.zeros,
        }

    def adopt(self, array: Any) -> None:
        """Raise an error: arrays of other packages cannot be used without a GPU."""
        raise KernelError(
            f"an array on a device ({type(array).__name__}), and no CUDA driver was found, so that ampi.cuda "
            "computes on the processor\n  pass a NumPy array, or ampi.cuda.to_device(NumPy array)"
        )

    library: Any = np
    """The module that computes with arrays on the device."""

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which `library` may compute with arrays of the device."""
        return self.reach()

    array = handle  # in the form that `library` takes

    def adopted(self, array: Any) -> tuple[int, Any]:
        """Return the address of a result of `library`, and the object that keeps it alive."""
        return address_of(array), array

    def synchronize(self) -> None:
        """Do nothing: launches are done when they return."""


class Gpu:
    """A GPU, or Numba's simulator of one."""

    is_gpu = True

    def __init__(self, cuda: Any) -> None:
        from numba.core import config

        self.cuda = cuda
        self.is_simulated = bool(config.ENABLE_CUDASIM)

    def __repr__(self) -> str:
        return "<Numba's simulator>" if self.is_simulated else f"<CUDA device {self.cuda.get_current_device().id}>"

    def empty(self, nbytes: int) -> tuple[int, Any]:
        """Return the address of a new block, and the object that keeps it alive."""
        block = self.cuda.device_array(max(nbytes, 1), np.uint8)
        if self.is_simulated:
            return address_of(block._ary), block
        return block.__cuda_array_interface__["data"][0], block

    def handle(self, memory: Any) -> Any:
        """Return the array that kernels take."""
        if not self.is_simulated:
            return self.cuda.as_cuda_array(_Interface(memory), sync=False)
        array = array_at(memory.address, memory.shape, memory.strides, memory.dtype)
        return type(self.cuda.device_array(1))(array)

    def read(self, memory: Any) -> np.ndarray:
        """Return a copy on the host."""
        found = self.handle(memory) if memory.is_contiguous() else self.handle(memory.copy())
        return np.array(found.copy_to_host()).reshape(memory.shape)

    def write(self, memory: Any, values: Any) -> None:
        """Copy from the host; a number is broadcast."""
        values = np.ascontiguousarray(np.broadcast_to(np.asarray(values, memory.dtype), memory.shape))
        if memory.is_contiguous():
            self.handle(memory).copy_to_device(values.reshape(memory.shape))
        else:
            self.copy(memory, memory.new_like(values))

    def copy(self, target: Any, source: Any) -> None:
        """Copy on the device."""
        if target.nbytes:
            self._all(self._kernels[0], target, source)

    def add(self, target: Any, source: Any) -> None:
        """Add on the device."""
        if target.nbytes:
            self._all(self._kernels[1], target, source)

    def _all(self, kernel: Any, target: Any, source: Any) -> None:
        """Launch a kernel with a thread for each element."""
        shape = target.shape or (1,)
        while len(shape) < 3:
            shape = (1, *shape)
        shape = (int(np.prod(shape[:-2])), *shape[-2:])  # of more than three axes, the first ones must be contiguous
        handles = [self.handle(m.in_three_axes(shape)) for m in (target, source)]
        kernel[-(-int(np.prod(shape)) // 128), 128](*handles)

    @functools.cached_property
    def _kernels(self) -> tuple[Any, Any]:
        space: dict[str, Any] = {"cuda": self.cuda}  # where the simulator looks for it
        exec(KERNELS, space)
        return space["copy"], space["add"]

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        """Call a function that launches kernels."""
        return function(*args)

    @functools.cached_property
    def names(self) -> dict[str, Any]:
        """Return the names that generated CUDA sources import."""
        from ..kernel import gpu

        return {name: getattr(gpu, name) for name in gpu.__all__}

    def adopt(self, array: Any) -> None:
        """Do nothing: arrays of other packages can be used."""

    @functools.cached_property
    def library(self) -> Any:
        """Return the module that computes with arrays on the device: CuPy, or NumPy for the simulator."""
        if self.is_simulated:
            return np
        try:
            import cupy  # type: ignore[import-not-found]
        except ImportError:
            raise KernelError(
                f"{where_called()}: arithmetic with arrays on a GPU needs CuPy, which is not installed\n  install it "
                "(pip install cupy-cuda12x), or write a CUDA kernel"
            ) from None
        return cupy

    def computing(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which `library` may compute with arrays of the device."""
        return contextlib.nullcontext()

    def array(self, memory: Any) -> Any:
        """Return an array in the form that `library` takes."""
        if self.is_simulated:
            return array_at(memory.address, memory.shape, memory.strides, memory.dtype)
        if type(memory.owner) is self.library.ndarray and _is_all_of(memory, memory.owner):
            return memory.owner
        return self.library.asarray(_Interface(memory))

    def adopted(self, array: Any) -> tuple[int, Any]:
        """Return the address of a result of `library`, and the object that keeps it alive."""
        return address_of(array) if self.is_simulated else array.data.ptr, array

    def synchronize(self) -> None:
        """Wait until all launches have finished."""
        self.cuda.synchronize()


def _is_all_of(memory: Any, array: Any) -> bool:
    """Return whether an array of the library is the one that a `Memory` describes."""
    return (memory.address, memory.shape, memory.strides, memory.dtype) == (
        array.data.ptr,
        array.shape,
        array.strides,
        array.dtype,
    )


def device() -> Any:
    """Return the device: a GPU, or the processor if there is none."""
    if not _chosen:
        _chosen.append(_found())
    return _chosen[0]


def choose(one: Any) -> Any:
    """Use another device from now on, and return the previous one; None stands for the default."""
    before = _chosen[:]
    _chosen[:] = [] if one is None else [one]
    return before[0] if before else None


def _found() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from ..kernel.gpu import cuda

            available = cuda.is_available()
    except ImportError:
        available = False
    return Gpu(cuda) if available else Processor()

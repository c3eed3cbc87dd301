"""Names of ``numba.cuda`` for kernels that run without CUDA: ``import ampi.cuda as cuda`` in its place.

Kernels take NumPy arrays, or arrays on a device (`to_device`), and not both.

``@cuda.jit`` is ``@ampi.kernel(target="cuda")``, ``@cuda.jit(device=True)`` a function that such kernels call.
"""

from __future__ import annotations

from typing import Any

from ampi.device.arrays import as_cuda_array, device_array, device_array_like, from_dlpack, to_device
from ampi.device.backends import device as _device
from ampi.errors import KernelError
from ampi.kernel import kernel
from ampi.kernel.frontend.base.cuda_names import NAMES

globals().update(NAMES)
__all__ = [
    *NAMES,
    "as_cuda_array",
    "default_stream",
    "device_array",
    "device_array_like",
    "from_dlpack",
    "is_available",
    "jit",
    "stream",
    "synchronize",
    "to_device",
]


def jit(function: Any = None, *, device: bool = False, **options: Any) -> Any:
    """Make a CUDA kernel of a function, or with ``device`` a function that kernels call.

    Parameters
    ----------
    function : callable
        Written for one thread, as for ``numba.cuda.jit``.  A signature of Numba's may stand in its place: kernels are
        compiled for the arguments that they are given, whatever it says.
    device : bool, optional
        Whether it is a function that kernels call.
    **options
        ``fastmath``; ``opt``, ``lineinfo``, ``debug``, ``max_registers``, ``cache`` and ``inline`` have no effect.
    """
    if not callable(function) or isinstance(function, (str, list)) or not hasattr(function, "__code__"):
        return lambda f: jit(f, device=device, **options)
    known = {name: value for name, value in options.items() if name == "fastmath"}
    return kernel(function, **known) if device else kernel(function, target="cuda", **known)


def synchronize() -> None:
    """Wait for all launches."""
    _device().synchronize()


def stream() -> Any:
    """A stream, for launches: on the processor they run in the order of the program."""
    return _device().cuda.stream() if _is_gpu() else 0


def default_stream() -> Any:
    """The default stream."""
    return _device().cuda.default_stream() if _is_gpu() else 0


def is_available() -> bool:
    """Return whether there is a GPU; without one, kernels run on the processor."""
    return bool(_device().is_gpu)


def _is_gpu() -> bool:
    return _device().is_gpu and not _device().is_simulated


class MissingName(KernelError, AttributeError):
    """A name of ``numba.cuda`` that is not in `ampi.cuda`."""


def __getattr__(name: str) -> Any:
    raise MissingName(
        f"ampi.cuda has no '{name}': it has the names that CUDA kernels use, to_device, device_array, "
        "device_array_like, "
        "as_cuda_array and from_dlpack"
    )

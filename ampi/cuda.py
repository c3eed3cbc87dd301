"""Names of ``numba.cuda`` for kernels that run without CUDA: ``import ampi.cuda as cuda`` in its place.

``@cuda.jit`` is ``@ampi.kernel(target="cuda")``, ``@cuda.jit(device=True)`` a function that such kernels call.
"""

from __future__ import annotations

from typing import Any

from ampi.errors import KernelError
from ampi.kernel import kernel
from ampi.kernel.frontend.base.cuda_names import NAMES

globals().update(NAMES)


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
    """Do nothing: launches on the processor are complete when they return."""


def stream() -> int:
    """A stream, for launches: those on the processor run in the order of the program."""
    return 0


def default_stream() -> int:
    """The default stream."""
    return 0


def is_available() -> bool:
    """False: kernels run on the processor."""
    return False


class MissingName(KernelError, AttributeError):
    """A name of ``numba.cuda`` that is not in `ampi.cuda`."""


def __getattr__(name: str) -> Any:
    raise MissingName(
        f"ampi.cuda has no '{name}': it has the names that CUDA kernels use, and kernels take NumPy arrays, which need "
        "no copies on a device"
    )

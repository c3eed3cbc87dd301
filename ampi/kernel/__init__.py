"""Local kernels: Python functions compiled by Numba and differentiated by source transformation."""

from typing import Any

from numba import prange

from ampi.kernel.dispatcher import Kernel, kernel
from ampi.kernel.frontend.custom import custom_jvp

__all__ = ["ANALYSES", "Kernel", "custom_jvp", "kernel", "prange"]


def __getattr__(name: str) -> Any:
    """``ANALYSES`` derives from the table of passes, which is imported when it is asked for."""
    if name == "ANALYSES":
        from ampi.kernel.pipeline import ANALYSES

        return ANALYSES
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Local kernels: Python functions compiled by Numba and differentiated by source transformation."""

from typing import TYPE_CHECKING, Any

from ampi.kernel.dispatcher import Kernel, kernel
from ampi.kernel.frontend.language.custom import custom_jvp

if TYPE_CHECKING:
    from numba import prange

__all__ = ["ANALYSES", "Kernel", "custom_jvp", "kernel", "prange"]


def __getattr__(name: str) -> Any:
    """Import ``ANALYSES``, which derives from the table of passes, and Numba's names on first use."""
    if name == "ANALYSES":
        from ampi.kernel.pipeline import ANALYSES

        return ANALYSES
    if name == "prange":
        from numba import prange

        globals()["prange"] = prange
        return prange
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""Local kernels: Python functions compiled by Numba and differentiated by source transformation."""

from numba import prange

from ampi.kernel.custom import custom_jvp
from ampi.kernel.pipeline import ANALYSES, Kernel, kernel

__all__ = ["ANALYSES", "Kernel", "custom_jvp", "kernel", "prange"]

"""The one place that says what arrays, kernels and communicator the program runs on."""

import numba
import numpy as np
from mpi4py import MPI

__all__ = ["COMM_WORLD", "MPI", "kernel", "np", "prange", "value"]

COMM_WORLD = MPI.COMM_WORLD
prange = numba.prange

kernel = numba.njit(fastmath=True, error_model="numpy", parallel=True, cache=True)
"""Compiles a kernel."""

value = np.asarray
"""The value alone of an array, for files, comparisons and printing."""

"""The one place that says what arrays, kernels and communicator the program runs on."""

import numba
import numpy as np
from mpi4py import MPI

__all__ = ["COMM_SELF", "COMM_WORLD", "MPI", "kernel", "np", "prange", "value"]

COMM_SELF = MPI.COMM_SELF
COMM_WORLD = MPI.COMM_WORLD
prange = numba.prange

kernel = numba.njit(fastmath=True, error_model="numpy", forceinline=True, cache=True)
"""Compiles a kernel; a kernel that another one calls becomes part of it."""

value = np.asarray
"""The value alone of an array or scalar, for decisions and for printing."""

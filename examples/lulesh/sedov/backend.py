"""The one place that says what arrays, kernels and communicator the program runs on."""

import numba
from mpi4py import MPI

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor

__all__ = [
    "COMM_SELF",
    "COMM_WORLD",
    "MPI",
    "ArgumentParser",
    "ThreadPoolExecutor",
    "constant",
    "kernel",
    "np",
    "prange",
    "serial_kernel",
    "value",
]

COMM_SELF = ampi.COMM_SELF
COMM_WORLD = ampi.COMM_WORLD
ArgumentParser = ampi.ArgumentParser
prange = numba.prange
numba.set_num_threads(1)  # until lulesh.py is told otherwise: ranks are what the work is divided into first

kernel = ampi.kernel(parallel=True, fastmath=True, forceinline=True)
"""Compiles a kernel and differentiates it; a kernel that another one calls becomes part of it. On one thread it is
compiled without threads."""

serial_kernel = ampi.kernel(fastmath=True, forceinline=True)
"""The same for a kernel without a parallel loop, which Numba would warn of on more threads than one."""

value = ampi.value
"""The value alone of an array or scalar, for decisions and for printing."""


def constant(table):
    """An index table, read-only from now on: a tape need not look whether it has changed, nor keep a copy."""
    table.flags.writeable = False
    return table

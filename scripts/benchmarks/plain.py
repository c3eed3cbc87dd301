"""What LULESH and miniBUDE import from their module ``backend``, without ampi: NumPy, Numba and mpi4py."""

from argparse import ArgumentParser
from concurrent.futures import ThreadPoolExecutor

import numba
import numpy as np
from mpi4py import MPI

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

COMM_SELF, COMM_WORLD = MPI.COMM_SELF, MPI.COMM_WORLD
prange = numba.prange
kernel = numba.njit(parallel=True, fastmath=True)
serial_kernel = numba.njit(fastmath=True)


def value(x):
    return x


def constant(table):
    table.flags.writeable = False
    return table

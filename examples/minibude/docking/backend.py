"""The one place that says what arrays, kernels and communicator the program runs on."""

import numba
from mpi4py import MPI

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor

__all__ = ["COMM_WORLD", "MPI", "ArgumentParser", "ThreadPoolExecutor", "kernel", "np", "prange", "value"]

COMM_WORLD = ampi.COMM_WORLD
ArgumentParser = ampi.ArgumentParser
prange = numba.prange

kernel = ampi.kernel(fastmath=True, parallel=True)
"""Compiles a kernel and differentiates it."""

value = ampi.value
"""The value alone of an array, for files, comparisons and printing."""

"""Helpers of the tests of windows."""

import numpy
from mpi4py import MPI
from programs import typeof

import ampi
import ampi.numpy


def windows_of(np):
    """The window class for a program on ampi, or on mpi4py and NumPy."""
    return ampi.Win if np is ampi.numpy else ampi.Win._base


def allocated(np, comm, n, dtype):
    """A window and an array on its memory, filled with zeros."""
    size = numpy.dtype(dtype).itemsize
    win = windows_of(np).Allocate(n * size, size, comm=comm)
    memory = np.frombuffer(win.tomemory(), dtype)
    memory[...] = 0
    win.Fence()
    return win, memory


def created(np, comm, n, dtype):
    memory = np.zeros(n, dtype)
    return windows_of(np).Create(memory, numpy.dtype(dtype).itemsize, comm=comm), memory


def right(comm, steps=1):
    return (comm.rank + steps) % comm.size


# Programs: functions of the array module, the communicator and this rank's array of 3.


def put(np, comm, x):
    win, memory = created(np, comm, 5, x.dtype)
    memory[:3] = x * x
    used = memory**2
    win.Fence()
    win.Put(x * 3, right(comm), 1)
    win.Fence()
    y = memory**2 + used
    win.Fence()
    win.Put([x, 2, typeof(x)], right(comm, 2), (0, 2))
    win.Fence()
    y = y * memory
    win.Free()
    return y


def attached(np, comm, win, memory):
    """Attach an array; returns the addresses on all ranks."""
    win.Attach(memory)
    return comm.allgather(MPI.Get_address(memory))

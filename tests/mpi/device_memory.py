"""Messages of buffers in device memory while a tape records, run by test_device_memory.py.  The host cannot access this
memory, so that the process crashes if the tape touches it."""

import ctypes
import mmap
import sys

import numpy as np

import ampi
from ampi import MPI


class Device:
    """An array in the memory of a device that does not exist."""

    def __init__(self, count):
        self.size = max(count * 8, mmap.PAGESIZE)
        self.memory = mmap.mmap(-1, self.size)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.mprotect(ctypes.c_void_p(self.address), ctypes.c_size_t(self.size), 0) == 0
        self.shape, self.dtype = (count,), np.dtype(float)
        self.__cuda_array_interface__ = {
            "shape": self.shape,
            "typestr": "<f8",
            "data": (self.address, False),
            "version": 3,
        }


def send(comm, device):
    comm.Send(device, MPI.PROC_NULL)


def receive(comm, device):
    comm.Recv(device, MPI.PROC_NULL)


def exchange(comm, device):
    comm.Sendrecv(device, MPI.PROC_NULL, 0, Device(3), MPI.PROC_NULL, 0)


def later(comm, device):
    MPI.Request.Waitall([comm.Irecv(device, MPI.PROC_NULL), comm.Isend(device, MPI.PROC_NULL)])


def persistent(comm, device):
    request = comm.Recv_init(device, MPI.PROC_NULL)
    for _ in range(2):
        request.Start()
        request.Wait()
    request.Free()


def replaced(comm, device):
    comm.Sendrecv_replace(device, MPI.PROC_NULL, 0, MPI.PROC_NULL, 0)


def broadcast(comm, device):
    comm.Bcast(device)


CALLS = {f.__name__: f for f in (send, receive, exchange, later, persistent, replaced, broadcast)}


def main(name):
    def loss(x):
        y = x * x
        CALLS[name](MPI.COMM_SELF, Device(3))
        return ampi.numpy.sum(y * y)

    x = np.arange(3.0)
    np.testing.assert_array_equal(ampi.grad(loss)(x), 4 * x**3)
    print("done")


if __name__ == "__main__":
    main(sys.argv[1])

"""Versions for a bug report, and a self-test on all ranks, which ``python -m ampi`` prints."""

import numpy
from mpi4py import MPI

import ampi
import ampi.numpy as np
from ampi.base.versions import TESTED, installed, untested, version
from ampi.device.ranks import described
from ampi.kernel.runtime.files import folder
from ampi.mpi.device_buffers import supports_cuda

SIZE = 4  # numbers per rank in the self-test


@ampi.kernel
def cubes(x, y):
    """The local work of the self-test."""
    for i in range(len(x)):
        y[i] = x[i] * x[i] * x[i]


def energy(x):
    """The objective of the self-test over all ranks: Σ x³ + Σ (last of the left neighbour) · (own first)."""
    comm = ampi.COMM_WORLD
    left = np.zeros(1)
    comm.Sendrecv(x[-1:], (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
    y = np.zeros(len(x))
    cubes(x, y)
    total = np.zeros(1)
    comm.Allreduce(np.sum(y) + left[0] * x[0], total)
    return total[0]


def numbers(rank):
    """A rank's input of the self-test."""
    return numpy.arange(1.0, SIZE + 1.0) + 0.5 * rank


def gradient(rank, size):
    """The derivative of `energy`, written by hand."""
    found = 3.0 * numbers(rank) ** 2
    found[0] += numbers((rank - 1) % size)[-1]
    found[-1] += numbers((rank + 1) % size)[0]
    return found


def self_test(comm):
    """Test a gradient through messages, a collective and a kernel; returns the problems on rank 0. Collective."""
    try:
        found = ampi.grad(energy, objective="replicated")(numbers(comm.rank))
        expected = gradient(comm.rank, comm.size)
        problem = "" if numpy.allclose(found, expected, rtol=1e-12) else f"the gradient is {found}, and not {expected}"
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    problems = comm.gather(problem) or []
    return [f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem]


def tested_text(found):
    """Lines that say whether the installed versions were tested."""
    problems = untested(found)
    if not problems:
        return [f"tested with Python {TESTED[0]['Python']} to {TESTED[-1]['Python']} and with these releases"]
    return [
        *(f"not tested: {problem}" for problem in problems),
        "  (functions that differ from the versions for which ampi has rules are refused by name)",
    ]


def main():
    """Print the versions of ampi, mpi4py, the MPI library and Numba, and run the self-test; the exit status is its
    result."""
    comm = MPI.Intracomm(MPI.COMM_WORLD)
    if comm.rank == 0:
        library = " ".join(MPI.Get_library_version().splitlines()[0].strip("\0").split())
        found = installed()
        print(f"ampi {version('ampi')}: gradients of Python MPI programs")
        print(", ".join(f"{name} {own}" for name, own in found.items()))
        print("\n".join(tested_text(found)))
        print(f"{library} (MPI {MPI.VERSION}.{MPI.SUBVERSION}), {comm.size} rank(s)")
        print(described(supports_cuda()))
        print(f"compiled kernels are kept in {folder()}", flush=True)
    problems = self_test(comm)
    failed = comm.bcast(len(problems))
    if comm.rank == 0:
        what = "a gradient through messages, a collective and a kernel"
        print("\n".join([f"self-test: {what} is {'WRONG' if failed else 'right'} on {comm.size} rank(s)", *problems]))
        if comm.size == 1:
            print("(mpiexec -n 2 python -m ampi tries messages between ranks)")
        print("mpiexec -n N python program.py               a program that imports ampi")
        print("mpiexec -n N python -m ampi.run program.py   a program written against mpi4py alone", flush=True)
    return 1 if failed else 0

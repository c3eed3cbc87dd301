"""Helpers of the tests of requests."""

from mpi4py import MPI

import ampi

Request = MPI.Request


def around(comm, by=1):
    return (comm.rank + by) % comm.size, (comm.rank - by) % comm.size


# -------------------------------------------------------------------------------------------- mpi4py's own classes


class Original:
    """mpi4py's own class, as `from mpi4py.MPI import Request` before `import ampi` has it."""

    Request = ampi.MPI.Request._base

"""MPI: communicators, requests and the table of operations."""

import atexit

from ..kernel.runtime import progress
from . import endings
from .log.reverse import reverse_of
from .namespace import BASE, COMM_SELF, COMM_WORLD, MPI, install, installed, rebind_classes
from .waiting import board

rebind_classes()
if MPI.Is_initialized() and not MPI.Is_finalized():
    if not board.has_servers():  # which mpi4py ends
        endings.install(BASE["COMM_WORLD"], reverse_of(COMM_WORLD).comm)
    atexit.register(board.board.ends)  # called first
    progress.show_where(lambda: board.board.rank == 0)

__all__ = ["COMM_SELF", "COMM_WORLD", "MPI", "install", "installed"]

"""MPI: communicators, requests and the table of operations."""

from . import endings
from .namespace import BASE, COMM_SELF, COMM_WORLD, MPI, install, rebind_classes

rebind_classes()
if MPI.Is_initialized() and not MPI.Is_finalized():
    endings.install(BASE["COMM_WORLD"], COMM_WORLD._reverse.comm)

__all__ = ["COMM_SELF", "COMM_WORLD", "MPI", "install"]

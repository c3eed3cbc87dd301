"""MPI: communicators, requests and the table of operations."""

from .namespace import COMM_SELF, COMM_WORLD, MPI, install, rebind_classes

rebind_classes()

__all__ = ["COMM_SELF", "COMM_WORLD", "MPI", "install"]

"""Pools of ``mpi4py.futures``: whether the ranks of ``MPI.COMM_WORLD`` run the program together."""

from __future__ import annotations

import sys
from typing import Any


def has_servers() -> bool:
    """Return whether ``python -m mpi4py.futures`` runs the program: the other ranks wait for tasks, and import ampi at
    other times or never."""
    futures = sys.modules.get("mpi4py.futures._core")
    return getattr(futures, "SharedPool", None) is not None


def runs_alone() -> bool:
    """Return whether this is a task of ``mpi4py.futures``, or a program whose other ranks wait for tasks: no other rank
    makes the same calls."""
    futures: Any = sys.modules.get("mpi4py.futures._core")
    return has_servers() or hasattr(getattr(futures, "_tls", None), "comm_server")

"""Call sites in the program, and names of communicators, for error messages."""

from __future__ import annotations

import sys
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI as mpi

_Comm = mpi.Comm  # mpi4py's own: the name in its module is rebound later
_OWN = ("ampi.", "mpi4py.")
# A loop has thousands of messages, but few lines.  Code objects are identified by their ids: hashing them takes long.
_codes: dict[int, tuple[Any, bool]] = {}  # and whether they are ampi's own (or mpi4py's)
sites: dict[tuple[int, int], tuple[Any, int]] = {}
"""Call sites known so far, by the ids of code objects (those of programs are kept alive here) and instructions."""


_tables: dict[int, tuple[Any, list[int], list[int]]] = {}
"""For each code object, by id: where the instructions of its lines begin, and the lines."""


def call_site(depth: int = 2) -> tuple[Any, int]:
    """Return code object and instruction of the innermost caller outside ampi; `line_of` turns them into text.

    The ``depth`` innermost frames are skipped: they are known to be ampi's own.
    """
    frame: Any = sys._getframe(depth)
    while True:
        code = frame.f_code
        key = id(code)
        known = _codes.get(key)
        if known is None:
            known = _codes[key] = code, frame.f_globals.get("__name__", "").startswith(_OWN)
        if not known[1] or frame.f_back is None:
            break
        frame = frame.f_back
    site = key, frame.f_lasti
    where = sites.get(site)
    if where is None:
        where = sites[site] = code, site[1]
    return where


def call_sites() -> Iterator[tuple[Any, int]]:
    """Iterate over the call sites of all callers outside ampi, the innermost first."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not frame.f_globals.get("__name__", "").startswith(_OWN):
            yield frame.f_code, frame.f_lasti
        frame = frame.f_back


def line_of(where: tuple[Any, int]) -> str:
    """Return ``file:line`` of a call site."""
    code, instruction = where
    known = _tables.get(id(code))
    if known is None:
        parts = [(start, number or code.co_firstlineno) for start, end, number in code.co_lines() if start < end]
        known = _tables[id(code)] = code, [start for start, _ in parts], [number for _, number in parts]
    _, starts, numbers = known
    return f"{code.co_filename}:{numbers[bisect_right(starts, instruction) - 1]}"


def name_of(comm: Any) -> str:
    """Return the name of a communicator, or a description of one that has no name."""
    return _Comm.Get_name(comm) or f"a communicator of {_Comm.Get_size(comm)} ranks"

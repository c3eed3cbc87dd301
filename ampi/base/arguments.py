"""Command lines of programs that run on several ranks."""

from __future__ import annotations

import argparse
import platform
from typing import Any

from mpi4py.MPI import COMM_WORLD

from .versions import version


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that prints on one rank what all of them have read.

    All ranks of a program have the same command line: help, a version, and what is wrong with the arguments are printed
    by the first rank alone, and every rank ends with the same status.  Nothing is communicated: ranks may parse at
    different times, or not at all.

    Parameters
    ----------
    *arguments, **keywords
        As of `argparse.ArgumentParser`.
    comm : Comm, optional
        The ranks that have the command line in common (`COMM_WORLD`); its rank 0 prints.

    Examples
    --------
    >>> import ampi
    >>> parser = ampi.ArgumentParser(description="Heat in a plate.")
    >>> _ = parser.add_argument("-n", type=int, default=48, help="grid points along an edge")
    >>> parser.parse_args(["-n", "12"]).n
    12
    """

    def __init__(self, *arguments: Any, comm: Any = COMM_WORLD, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.prints = comm.Get_rank() == 0

    def _print_message(self, message: str, file: Any = None) -> None:
        if self.prints:
            super()._print_message(message, file)


def add_version(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--version`` to a parser of one of ampi's own commands."""
    parser.add_argument("-V", "--version", action="version", version=version_line(), help="print the version, and exit")


def version_line() -> str:
    """Return ampi's version, and that of Python, as ``--version`` prints them."""
    return f"ampi {version('ampi')} (Python {platform.python_version()})"

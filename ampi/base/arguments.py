"""Command lines of programs that run on several ranks."""

from __future__ import annotations

import argparse
import difflib
import platform
from collections.abc import Sequence
from typing import Any

from mpi4py.MPI import COMM_WORLD

from .versions import version


class ArgumentParser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` that prints on one rank only.

    All ranks of a program have the same command line: help, version and errors are printed by the first rank alone, and
    every rank ends with the same status.  Nothing is communicated: ranks may parse at different times, or not at all.

    Parameters
    ----------
    *arguments, **keywords
        Those of `argparse.ArgumentParser`.
    comm : Comm, optional
        The ranks that share the command line (`COMM_WORLD`); its rank 0 prints.

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


def add_version(parser: argparse.ArgumentParser) -> argparse.Action:
    """Add the option ``--version`` to a parser of one of ampi's own commands."""
    return parser.add_argument(
        "-V", "--version", action="version", version=version_line(), help="print the version, and exit"
    )


def add_files(action: argparse.Action) -> argparse.Action:
    """Have tools that complete command lines (shtab) offer files for an argument."""
    action.complete = {"bash": "_shtab_compgen_files", "zsh": "_files", "tcsh": "f"}  # type: ignore[attr-defined]
    return action


def refuse_unknown(
    parser: argparse.ArgumentParser, arguments: Sequence[str], actions: Sequence[argparse.Action]
) -> None:
    """End with an error that names the first unknown option before a program, which argparse reports as a missing one.

    Parameters
    ----------
    parser : ArgumentParser
    arguments : sequence of str
        The command line.
    actions : sequence of Action
        The parser's options.
    """
    known = {name: action for action in actions for name in action.option_strings}
    rest = iter(arguments)
    for argument in rest:
        if not argument.startswith("-") or argument in ("-", "--"):
            return
        name, equals, _ = argument.partition("=")
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            parser.error(f"unknown option {name}" + (f", did you mean {near[0]}?" if near else ""))
        if known[name].nargs is None and not equals:  # takes a value
            next(rest, None)


def version_line() -> str:
    """Return ampi's version, and that of Python, as ``--version`` prints them."""
    return f"ampi {version('ampi')} (Python {platform.python_version()})"

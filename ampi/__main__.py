# PYTHON_ARGCOMPLETE_OK
"""The commands: ``ampi run``, ``ampi check`` and others, also as ``python -m ampi run``; without one, a self-test.

`parser` has all commands with all options, for tools that complete command lines: ``shtab ampi.__main__.parser`` prints
a script for a shell, and argcomplete asks this file.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from ampi.base.arguments import ArgumentParser, add_version

COMMANDS = {
    "run": "run a program, and differentiate, check, trace or profile it, unmodified",
    "check": "list places in a program that will not be differentiated",
    "report": "run a program, and write a report of what all ranks did: timeline, messages, memory, cost of lines",
    "scaling": "measure, plot, fit and model how a program and its gradient scale",
    "kernel": "print the adjoint or tangent program of a kernel",
    "coverage": "list all methods of mpi4py that move data, and how they are differentiated",
}
"""The commands, and what they do."""


def main(arguments: Sequence[str] | None = None) -> int | None:
    """Run a command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    if "_ARGCOMPLETE" in os.environ:
        _complete()
    if not given or given[0] not in COMMANDS:
        parse(given)
        from ampi import self_test

        return self_test.main()
    if arguments is None and __name__ != "__main__":
        _start_as_module()
    command, *rest = given
    sys.argv = [f"{_own_name()} {command}", *rest]
    return _module(command).main(rest, sys.argv[0])


def _own_name() -> str:
    return "python -m ampi" if os.path.basename(sys.argv[0]) in ("__main__.py", "-m", "-c") else "ampi"


def _start_as_module() -> None:
    """Give a program the same `sys.path` as under ``python -m ampi``, and leave the script out of tracebacks."""
    from ampi import run

    run.RUNNERS.update((__file__, sys.argv[0], os.path.abspath(sys.argv[0])))
    if not getattr(sys.flags, "safe_path", False) and not sys.flags.isolated:
        sys.path[0] = os.getcwd()


def _module(command: str) -> ModuleType:
    """The module of a command, with `fill` for its parser, and `main`."""
    if command == "run":
        from ampi import run

        return run
    if command == "check":
        from ampi import check

        return check
    if command == "report":
        from ampi import report_command

        return report_command
    if command == "scaling":
        from ampi.scaling import command as scaling

        return scaling
    if command == "kernel":
        from ampi.kernel import __main__ as kernel

        return kernel
    from ampi import coverage

    return coverage


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Parse a command line without a known command: it may only ask for help or the version."""
    found = _parser(filled=False)
    if arguments and arguments[0].endswith(".py"):
        found.error(f"{arguments[0]} is no command; write {_own_name()} run {arguments[0]}")
    return found.parse_args(arguments)


def parser() -> argparse.ArgumentParser:
    """All commands with all options."""
    return _parser(filled=True)


def _parser(filled: bool) -> argparse.ArgumentParser:
    found = ArgumentParser(
        prog=_own_name(),
        description="Gradients of Python MPI programs. Without a command: print the versions that matter in a bug "
        "report, and try a gradient on the ranks of this program (mpiexec -n 2 ampi tries messages, too).",
        epilog="Each command has its own --help, and most need ranks: mpiexec -n 4 ampi run program.py. "
        "python -m ampi run and python -m ampi.run are the same as ampi run.",
    )
    add_version(found)
    commands = found.add_subparsers(metavar="COMMAND", dest="command", help="what to do")
    for name, text in COMMANDS.items():
        one = commands.add_parser(name, help=text, description=text, add_help=False)
        if filled:
            _module(name).fill(one)
    return found


def _complete() -> None:
    """Answer the shell, if argcomplete is installed."""
    with contextlib.suppress(ImportError):
        import argcomplete

        argcomplete.autocomplete(parser())


if __name__ == "__main__":
    sys.exit(main())

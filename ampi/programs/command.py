"""``python -m ampi.run --wrt NAME --of NAME program.py``: gradients of an unmodified program."""

from __future__ import annotations

import argparse
import contextlib
import gc
import shlex
import sys
from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ..arrays.callers import SHOWING
from ..base.arguments import ArgumentParser, add_files
from ..derivatives.objectives import OBJECTIVES
from ..errors import ProgramError
from . import results, traced
from .differences import compare
from .edits import edit
from .gradients import Differentiation, strictly
from .modules import Modules
from .outlining.guarded import Loops
from .runs import Program, Runner

USAGE = """\
{prog} [option] ... <file> [argument] ...
   or: {prog} [option] ... -m <module> [argument] ...
   or: {prog} [option] ... -c <command> [argument] ...
   or: {prog} [option] ... - [argument] ...          (the program comes from standard input)"""

DESCRIPTION = """\
Runs a Python program with MPI.COMM_WORLD, MPI.COMM_SELF and the classes of mpi4py.MPI replaced by ampi's.
An exception on one rank is printed once, with the rank, and ends all ranks.
With --wrt and --of it prints the gradient of one variable of the program with respect to another."""

EPILOG = "--also, --shown, --wrt, --of and --replicated may be given several times."

_WITH_A_VALUE = (
    *("--also", "--shown", "--wrt", "--of", "--objective", "--output", "--report", "--graph", "--replicated"),
)
FIRST = (*_WITH_A_VALUE, "--numpy", "--compile", "--no-compile", "--check", "--declared", "--profile")
HELP, VERSION = ("-h", "--help"), ("-V", "--version")


class Parser(ArgumentParser):
    """The parser of the options before the program; a wrong one is a `ProgramError`."""

    def error(self, message: str) -> Any:
        raise ProgramError(message)


def parser(prog: str, usage: str = USAGE) -> Parser:
    """The parser of the options of a command that runs programs."""
    shape = lambda prog: argparse.RawDescriptionHelpFormatter(prog, max_help_position=26, width=118)
    found = Parser(
        **{"prog": prog, "usage": usage.format(prog=prog), "description": DESCRIPTION, "epilog": EPILOG},
        formatter_class=shape,
        add_help=False,
        allow_abbrev=False,
    )
    fill(found)
    return found


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the options, and the program, to a parser."""
    flag = lambda name, text: parser.add_argument(name, action="store_true", help=text)
    some = lambda name, what, text: parser.add_argument(name, action="append", default=[], metavar=what, help=text)
    path = lambda name, what, text: add_files(parser.add_argument(name, metavar=what, help=text))
    flag("--numpy", "the program's `import numpy` is ampi.numpy, its numba.njit is ampi.kernel (--wrt does so, too)")
    flag("--compile", "compile the loops of the program's own modules that prove hot (--wrt does so, too)")
    flag("--no-compile", "with --wrt: run all loops in Python")
    some("--also", "PACKAGE", "PACKAGE belongs to the program, as the script and what is below its folder does")
    some("--shown", "PACKAGE", "PACKAGE only shows or stores the numbers that it is given: no derivative is lost there")
    text = (
        "differentiate with respect to NAME, where it is first assigned: a variable of the script's top level, "
        "function:name, module:function:name, Class.method:self.name, or name@LINE"
    )
    some("--wrt", "NAME", text)
    text = "differentiate NAME (the sum of an array), at the end of its scope, or after LINE; function:return is the "
    some("--of", "NAME", text + "result of a function")
    text = "sum (of the ranks' values; the default), replicated (one value that all have), root (rank 0's)"
    parser.add_argument("--objective", metavar="WHAT", choices=OBJECTIVES, default="sum", help=text)
    path("--output", "FILE", "write the gradients of all ranks to FILE (HDF5)")
    flag("--check", "run the program again with displaced variables and compare with finite differences")
    some("--replicated", "NAME", "NAME (of --wrt) is one value that all ranks have: --check displaces it alike on all")
    flag("--declared", "differentiate what the program marks with ampi.dependent and ampi.independent")
    path("--report", "FOLDER", "write a timeline of all ranks: index.html for a browser, trace.json.gz for Perfetto")
    path("--graph", "FILE", "write the graph of messages, and of their reversal, for Graphviz")
    flag("--profile", "print a table of what primal, recording and sweep cost, by source line")
    parser.add_argument("-h", "--help", action="store_true", help="print this text")
    parser.add_argument("-V", "--version", action="store_true", help="print the version of ampi")
    add_files(parser.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS))


def split(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """Split a command line into ampi's options, and the program with its arguments.

    Raises
    ------
    ProgramError
        An option is wrong.
    """
    mine: list[str] = []
    rest = list(arguments)
    while rest and rest[0].partition("=")[0] in FIRST:
        option = rest.pop(0)
        mine.append(option)
        if option in _WITH_A_VALUE and rest:
            mine[-1] = f"{option}={rest.pop(0)}"
    options = parser("ampi.run").parse_args(mine)
    if rest and rest[0] in (*HELP, *VERSION):
        return options, rest
    if options.declared:
        options.numpy = True
    elif bool(options.wrt) != bool(options.of):
        given, missing = ("--wrt", "--of") if options.wrt else ("--of", "--wrt")
        raise ProgramError(f"{given} without {missing}: name what is differentiated, and with respect to what")
    elif not options.wrt and (options.check or options.output):
        raise ProgramError("--check and --output go with --wrt and --of (or --declared)")
    if options.no_compile and (options.compile or not (options.wrt or options.declared)):
        raise ProgramError("--no-compile goes with --wrt and --of (or --declared), and without --compile")
    if options.replicated and not options.check:
        raise ProgramError("--replicated NAME goes with --check: it says how a variable is displaced")
    return options, rest


def program_of(arguments: list[str]) -> Program:
    """The program that a command line names."""
    comm = mpi.Intracomm(mpi.COMM_WORLD)
    match arguments:
        case ["-m" | "-c" as kind, what, *rest]:
            return Program(kind, what, rest)
        case ["-", *rest]:
            return Program("-", comm.bcast(sys.stdin.read() if comm.Get_rank() == 0 else None), rest)
        case [path, *rest]:
            return Program("file", path, rest)
    raise ProgramError("no program to run")


def is_only_watched(options: argparse.Namespace) -> bool:
    """Return whether a program runs unmodified, and is only traced."""
    others = (options.numpy, options.compile, options.also, options.wrt, options.of, options.declared)
    return traced.is_asked_for(options) and not any(others)


def run(options: argparse.Namespace, arguments: list[str]) -> int:
    """Run a program, differentiate it if requested, and print the results. Collective.

    Returns
    -------
    int
        The exit status: 1 if a check failed.

    Raises
    ------
    ProgramError
        On all ranks: a requested variable does not exist, or cannot be differentiated.
    """
    program = program_of(arguments)
    SHOWING.update(options.shown)
    with without_the_runners_path(program):
        if not options.wrt and not options.declared:
            with traced.observed(options, program.what):
                run_plainly(program, options.also, options.compile)
            return 0
        problem = Differentiation(
            *(program, options.wrt, options.of, options.also, options.objective, options.declared),
            replicated=options.replicated,
            compiles=not options.no_compile,
            compares=options.check or bool(options.report),
        )
        return differentiate(problem, options, speak(problem.comm))


def speak(comm: Any) -> Callable[[str], None]:
    """A function that prints on rank 0."""
    return lambda text: print(text, flush=True) if comm.Get_rank() == 0 else None


def run_plainly(program: Program, packages: list[str], compiles: bool = False) -> None:
    """Run a program whose modules get the stand-ins, and compile its loops if requested."""
    unchanged = lambda tree, filename, name: edit(tree, filename, [])
    loops = Loops(lambda: False) if compiles else None
    modules = Modules(program.folders, [*packages, *program.packages], unchanged, {}, loops)
    with strictly():
        Runner(program, modules, final=True).run()


def differentiate(problem: Differentiation, options: argparse.Namespace, say: Callable[[str], None]) -> int:
    """Compute the gradients of a program that the options request."""
    if options.output:
        traced.require_writable("--output", options.output, [options.output])
    with traced.observed(options, problem.program.what) as seen:
        found = problem.gradients()
        if seen is not None:
            seen.see_primal(problem)
        return _judge(problem, options, say, found, seen)


def _judge(
    problem: Differentiation, options: argparse.Namespace, say: Callable[[str], None], found: Any, seen: Any
) -> int:
    """Print and write the results, and compare them with finite differences."""
    say(results.describe(problem, found))
    if options.output:
        results.write(options.output, problem, found, shlex.join(["python", "-m", "ampi.run", *sys.argv[1:]]))
        say(f"written to {options.output}")
    if not options.check:
        return 0
    compared = compare(problem, found)
    if seen is not None:
        seen.add_check(problem, found, compared)
    problem.runner.forget()
    gc.collect()  # objects of C code in reference cycles must go before their classes do, at exit
    for one in compared:
        say(str(one))
    for said in sorted({said for given in problem.comm.allgather(list(problem.verdicts)) for said in given}):
        say(f"(With displaced variables the program ended with its own error, after it had computed them: {said})")
    return 0 if all(one.passed for one in compared) else 1


@contextlib.contextmanager
def without_the_runners_path(program: Program) -> Any:
    """`sys.path` without the entry that Python added for ``-m ampi.run``."""
    first = sys.path[0]
    if not getattr(sys.flags, "safe_path", False):
        sys.path.pop(0)
    try:
        yield
    finally:
        sys.path.insert(0, first)

"""List places in a program that will not be differentiated: ``python -m ampi.check program.py``.

The source of the script and of its own modules is examined. With ``--run`` the program also runs, and the lines that
carried derivatives are listed: ``mpiexec -n N python -m ampi.check --run --wrt NAME program.py``.
"""

import argparse
import contextlib
import sys

import ampi.mpi
from ampi import run as runner
from ampi.base.arguments import ArgumentParser, add_files, add_version, refuse_unknown
from ampi.errors import ProgramError
from ampi.programs import command, lint, traffic
from ampi.programs.gradients import Differentiation
from ampi.programs.outlining import uncompiled


def main(arguments=None, prog="python -m ampi.check"):
    """Entry point of ``python -m ampi.check``; the exit status is 1 if something was found."""
    comm = ampi.COMM_WORLD
    options = parse(sys.argv[1:] if arguments is None else arguments, prog)
    say = command.speak(comm)
    try:
        loops = []
        found = lint.look(options.script, options.also, loops)
    except (OSError, SyntaxError, ValueError) as error:
        with contextlib.redirect_stdout(sys.stderr):
            say(f"ampi.check: {lint.unreadable(options.script, error)}")
        return 2
    for finding in found:
        say(str(finding))
    for loop in loops:
        say(str(loop))
    say(f"{len(found)} place{'s' * (len(found) != 1)} in {options.script} and its modules")
    if options.run:
        status = run(options, comm, say)
        if status:
            return status
    return 1 if found else 0


def fill(parser):
    """Add the arguments to a parser; returns its options."""
    add = parser.add_argument
    options = [
        add("-h", "--help", action="help", help="show this help message and exit"),
        add("--also", action="append", default=[], metavar="PACKAGE", help="PACKAGE belongs to the program"),
        add("--run", action="store_true", help="run the program, and list lines that carried derivatives"),
        add("--wrt", action="append", default=[], metavar="NAME", help="an independent, for --run"),
        add_version(parser),
    ]
    add_files(add("script", help="the program, a file or a folder with a __main__.py"))
    rest = add("arguments", nargs=argparse.REMAINDER, help="of the program, for --run")
    rest.required = False  # otherwise it is listed as missing together with the script
    return options


def parse(arguments, prog):
    """Parse the command line."""
    parser = ArgumentParser(prog=prog, description=__doc__.splitlines()[0], add_help=False)
    refuse_unknown(parser, arguments, fill(parser))
    options = parser.parse_args(arguments)
    if options.run and not options.wrt:
        parser.error("--run needs --wrt NAME: the variable with respect to which to differentiate")
    return options


def run(options, comm, say):
    """Run the program, and print the lines that carried derivatives."""
    program = command.program_of([options.script, *options.arguments])
    board = runner.Board()
    board.show_warnings_once()
    runner.RUNNERS.add(__file__)
    try:
        with command.without_the_runners_path(program):
            ampi.mpi.install()
            problem = Differentiation(program, options.wrt, [], options.also, compares=False)
            text = traffic.run(problem)
    except ProgramError as error:
        with contextlib.redirect_stdout(sys.stderr):
            say(f"ampi.check: {error}")
        return 2
    except Exception as error:  # of the program: shown once, from its own lines on
        runner.fail(board, error)
        return 1
    say(text)
    for line in uncompiled.described(problem.modules.loops.running):
        say(line)
    return 0


if __name__ == "__main__":
    sys.exit(main())

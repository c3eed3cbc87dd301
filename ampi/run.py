"""Run an mpi4py program with ampi's communicators: ``mpiexec -n N python -m ampi.run program.py``.

`mpi4py.MPI.COMM_WORLD`, `COMM_SELF` and the names of the classes are replaced before the program starts. Everything
else is as under ``python -m mpi4py.run``: `sys.argv`, ``__main__``, ``-m``, ``-c``, ``-``, and exit codes; a nonzero
status on one rank ends all ranks. An exception is shown once: the ranks of a node write their tracebacks to a board in
shared memory, and the lowest rank that failed prints them for all.
"""

import ast
import collections
import contextlib
import difflib
import fcntl
import hashlib
import io
import os
import pathlib
import re
import runpy
import sys
import tempfile
import time
import traceback
import warnings

import mpi4py.run
import numpy as np
from mpi4py import MPI

import ampi.base.checks
import ampi.base.pools
import ampi.mpi
from ampi.base.arguments import version_line
from ampi.base.program_lines import is_of_a_library
from ampi.errors import ProgramError
from ampi.programs import command, traced
from ampi.programs.session import OnThisRank

WORLD = MPI.Intracomm(MPI.COMM_WORLD)  # mpi4py's own handle: install() rebinds the name
RANK, SIZE = WORLD.rank, WORLD.size  # a program may fail after Finalize

NAME = "python -m ampi.run"
PROGRAMS = os.path.dirname(command.__file__)
PACKAGE = os.path.join(os.path.dirname(ampi.__file__), "")
RUNNERS = {__file__, traced.__file__, mpi4py.run.__file__, runpy.run_path.__code__.co_filename}
"""Files whose frames are omitted at the beginning of a traceback."""

SYNTAX = "is not Python"
JOINING = 0.25  # seconds in which ranks that fail together are gathered into one report
PATIENCE = 5.0  # seconds a rank waits for the one that prints
MOST_WARNINGS = 512  # warnings that are compared with those of other ranks
TEXT_SIZE = 1 << 14  # bytes of a traceback on the board


fill = command.fill


def main(arguments=None, prog=NAME, usage=command.USAGE):
    """Entry point of ``python -m ampi.run``."""
    options, arguments = parse(sys.argv[1:] if arguments is None else arguments, command.parser(prog, usage))
    refuse_servers(arguments)
    require_program(arguments)
    write_whole_lines()
    board = Board()
    board.show_warnings_once()
    try:
        install()
        if options is None:
            mpi4py.run.run_command_line(arguments)
        elif command.is_only_watched(options):
            traced.run_as_it_is(options, arguments)
        else:
            status = command.run(options, arguments)
            WORLD.Barrier()
            sys.exit(status)
    except ProgramError as error:
        if isinstance(error, OnThisRank):
            fail(board, error, traced.unwritten())
        else:
            say(f"ampi.run: {error}\n{traced.unwritten()}", sys.stderr, end="")
            WORLD.Barrier()
        sys.exit(1)
    except SystemExit as exit:
        if exit.code not in (None, 0) and traced.unwritten():
            board.post("")
            board.wait_for_turn()
            print(traced.unwritten(), end="", file=sys.stderr, flush=True)
        mpi4py.run.set_abort_status(exit)
        raise
    except BaseException as error:
        fail(board, error, traced.unwritten())


def refuse_servers(arguments):
    """End with an error if the other ranks wait for tasks of ``mpi4py.futures``, or would."""
    instead = "enter mpi4py.futures.MPICommExecutor in the program, on all ranks, and run it by ampi.run alone"
    if ampi.base.pools.has_servers():
        print(
            f"ampi.run: python -m mpi4py.futures runs it on one rank, while the others wait for tasks; {instead}",
            file=sys.stderr,
            flush=True,
        )
        sys.exit(2)
    if arguments[:1] == ["-m"] and arguments[1] == "mpi4py.futures":
        say(f"ampi.run: -m mpi4py.futures leaves all ranks but one waiting for tasks; {instead}", sys.stderr)
        sys.exit(2)


def parse(arguments, parser=None):
    """Split the command line into ampi's options (None if there are none), and the program with its arguments.

    Exits for ``-h``, and if there is no program.
    """
    options = None
    parser = parser or command.parser(NAME)
    try:
        if arguments and arguments[0].partition("=")[0] in command.FIRST:
            options, arguments = command.split(arguments)
    except ProgramError as error:
        say(f"ampi.run: {error}\n(see {parser.prog} --help)", sys.stderr)
        sys.exit(2)
    match arguments:
        case [option, *_] if option in command.HELP:
            say(parser.format_help(), sys.stdout, end="")
            sys.exit(0)
        case [option, *_] if option in command.VERSION:
            say(version_line(), sys.stdout)
            sys.exit(0)
        case ["-m" | "-c", _, *_] | ["-", *_]:
            return options, arguments
        case [path, *_] if not path.startswith("-"):
            return options, arguments
        case _:
            say(f"{parser.format_usage()}ampi.run: {wrong(arguments)} (see {parser.prog} --help)", sys.stderr)
            sys.exit(2)


def require_program(arguments):
    """End all ranks with one message if any of them cannot read the program, or it is not Python. Collective."""
    path, *rest = arguments
    problem = ""
    if path == "-c":
        problem = not_python(rest[0], "<string>")
    elif not path.startswith("-"):
        try:
            if not os.path.isdir(path):
                open(path, "rb").close()
            elif not os.path.exists(os.path.join(path, "__main__.py")):
                problem = f"cannot run {path}: the folder has no __main__.py"
        except OSError as error:
            problem = f"cannot run {path}: {error.strerror}"
        if not problem and path.endswith(".py") and os.path.isfile(path):
            problem = not_python(pathlib.Path(path).read_bytes(), path)
    problems = WORLD.allgather(problem)
    if any(problems):
        rank, problem = next((rank, problem) for rank, problem in enumerate(problems) if problem)
        where = f" (on rank {rank} of {SIZE})" if not all(problems) else ""
        say(f"ampi.run: {problem}{where}", sys.stderr)
        sys.exit(1 if SYNTAX in problem else 2)


def not_python(source, path):
    """A message with the line, as Python prints it, if a source is not Python; otherwise empty."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # shown when the program is compiled to run
        try:
            compile(source, path, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as error:  # the second where there are null bytes
            said = "".join(traceback.format_exception_only(error)).rstrip()
            return f"{path} {SYNTAX}:\n{said}"
    return ""


def wrong(arguments):
    """The error message for a command line without a program."""
    known = (*command.FIRST, *command.HELP, *command.VERSION, "-m", "-c")
    match arguments:
        case []:
            text = "no program to run"
        case ["-m" | "-c" as option]:
            text = f"{option} needs a value"
        case [option, *_]:
            near = difflib.get_close_matches(option.partition("=")[0], known, 1)
            text = f"unknown option {option}" + (f", did you mean {near[0]}?" if near else "")
    return text


def say(text, stream, end="\n"):
    """Print from rank 0 only."""
    if RANK == 0:
        print(text, file=stream, flush=True, end=end)


def write_whole_lines():
    """On several ranks, let each line of output be written at once, so that lines of different ranks do not mix."""
    for stream in (sys.stdout, sys.stderr):
        if SIZE > 1 and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)  # with -u, print writes a line in pieces


def install():
    """Replace mpi4py's communicators and class names by ampi's."""
    ampi.base.checks.strict = True  # arrays that leave for plain NumPy are errors
    ampi.mpi.install()


def fail(board, error, besides=""):
    """Show `error` and a further text, and end all ranks with its status."""
    status = ampi.mpi.waiting.notices.status_of(error)
    sys.stdout.flush()
    board.post(render(error))
    board.wait_for_turn()
    sys.stderr.write(board.report() + besides)
    sys.stderr.flush()
    if MPI.Is_finalized():
        sys.exit(status)
    time.sleep(0.05)  # mpiexec may drop unread output when it ends the ranks
    ampi.mpi.endings.abort(WORLD, status)


def render(error):
    """The traceback from the program's first frame on, without those of the runner."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename in RUNNERS:
        frames = frames.tb_next
    shown = traceback.TracebackException(type(error), error, frames)
    outside = [frame for frame in shown.stack if os.path.dirname(frame.filename) != PROGRAMS]
    if isinstance(error, SyntaxError):  # its source has no frame
        outside = [frame for frame in outside if frame.filename != ast.__file__]
    shown.stack = traceback.StackSummary.from_list(outside)
    return "".join(shown.format())


class Board:
    """A slot in shared memory for each rank of a node: time of failure (0: none), rank, traceback.

    The constructor is collective over all ranks of the program; afterwards no rank needs others, or MPI. (It is a
    mapped file and not a window, since Open MPI frees a window's memory in `Finalize`.)
    """

    slot = np.dtype([("rank", "i8"), ("time", "f8"), ("text", f"S{TEXT_SIZE}")])

    def __init__(self):
        node = WORLD.Split_type(MPI.COMM_TYPE_SHARED)
        path = node.bcast(self.make(node.size) if node.rank == 0 else None)
        slots = self.file = None
        if path is not None:
            with contextlib.suppress(OSError, ValueError):
                slots = np.memmap(path, self.slot, "r+", shape=node.size)
                self.warned = np.memmap(path, "u8", "r+", slots.nbytes, shape=MOST_WARNINGS)
                self.file = os.open(path, os.O_RDWR)
        node.Barrier()
        if path is not None and node.rank == 0:
            os.unlink(path)
        if node.allreduce(slots is not None, MPI.LAND):
            self.slots, place = slots, node.rank
        else:  # no room for a file: each rank sees only itself
            self.slots, place = np.zeros(1, self.slot), 0
        self.mine = self.slots[place : place + 1]
        self.mine["rank"] = RANK
        node.Free()

    def make(self, size):
        """A file for this number of ranks; None if there is no room for it, since writing to its pages would then
        kill."""
        path = None
        try:
            handle, path = tempfile.mkstemp(prefix="ampi-run-")
            try:
                os.posix_fallocate(handle, 0, self.slot.itemsize * size + 8 * MOST_WARNINGS)
            finally:
                os.close(handle)
        except OSError:
            if path is not None:
                os.unlink(path)
            path = None
        return path

    def show_warnings_once(self):
        """Show a warning that several ranks of the node raise once, without interleaving.

        NumPy's warnings about numbers, such as a division by zero, name the line that called NumPy, which is one of
        ampi's here. They are shown with the program's line, once for each.
        """
        times = collections.Counter()
        shared = SIZE > 1 and self.file is not None

        def show(message, category, filename, lineno, file=None, line=None):
            frame = sys._getframe(1) if filename.startswith(PACKAGE) else None
            while frame is not None and (frame.f_code.co_filename.startswith(PACKAGE) or is_of_a_library(frame)):
                frame = frame.f_back
            if frame is not None:
                filename, lineno, line = frame.f_code.co_filename, frame.f_lineno, None
            text = warnings.formatwarning(message, category, filename, lineno, line)
            if file is not None:
                file.write(text)
                return
            times[text] += 1
            if sys.stderr is None or (frame is not None and times[text] > 1):
                return
            if not shared or self.is_first(f"{times[text]} {text}"):
                sys.stderr.write(f"rank {RANK} of {SIZE}: {text}" if RANK and shared else text)

        warnings.showwarning = show

    def is_first(self, text):
        """Return whether no rank of the node has shown this text."""
        mark = int.from_bytes(hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest(), "little") or 1
        try:
            fcntl.lockf(self.file, fcntl.LOCK_EX)
        except OSError:  # a file system without locks
            return True
        try:
            known = np.flatnonzero((self.warned == mark) | (self.warned == 0))
            if not len(known):
                return True
            is_new = self.warned[known[0]] == 0
            self.warned[known[0]] = mark
            return bool(is_new)
        finally:
            fcntl.lockf(self.file, fcntl.LOCK_UN)

    def post(self, text):
        text = text.encode()
        if len(text) > TEXT_SIZE:  # the end has the error
            text = b"...\n" + text[4 - TEXT_SIZE :]
        self.mine["text"] = text
        self.mine["time"] = time.time()

    def wait_for_turn(self):
        """Wait, except on the lowest rank that failed, which ends the others; these return after a time limit."""
        time.sleep(JOINING)
        if self.failed()["rank"][0] != self.mine["rank"]:
            time.sleep(PATIENCE)

    def failed(self):
        """The slots of the ranks that have failed, by rank."""
        return self.slots[self.slots["time"] > 0]

    def report(self):
        """The first failure in full, with all ranks that failed in the same way, and a line for each other kind."""
        alike = {}
        for rank, _, text in np.sort(self.failed(), order="time").tolist():
            text = text.decode(errors="replace")
            alike.setdefault(re.sub("0x[0-9a-f]+", "0x...", text), []).append((rank, text))
        first, *others = alike.values()
        lines = [f"{name_ranks(first)} failed:\n{first[0][1]}"]
        for group in others:
            lines.append(f"{name_ranks(group)} failed too: {group[0][1].rstrip().splitlines()[-1]}\n")
        return "".join(lines)


def name_ranks(group):
    ranks = sorted(rank for rank, _ in group)
    if len(ranks) == SIZE > 1:
        return f"All {SIZE} ranks"
    return f"Rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} of {SIZE}"


if __name__ == "__main__":
    main()

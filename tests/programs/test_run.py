"""``python -m ampi.run``: like ``python -m mpi4py.run``, with ampi's communicators and one traceback for all ranks."""

import re
import subprocess
import sys
import textwrap

import pytest
from chessboard import alternate
from patience import patience

RUNNERS = ("mpi4py.run", "ampi.run")


@pytest.fixture
def program(tmp_path):
    """``program(source)``: the path of a script."""

    def write(source, name="program.py"):
        path = tmp_path / name
        path.write_text(textwrap.dedent(source))
        return path

    return write


def run_alone(*arguments, stdin=None, cwd=None):
    command = [sys.executable, *map(str, arguments)]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=patience(60), cwd=cwd, check=False
    )


SURROUNDINGS = """
import sys
print(sys.argv, __name__, sys.modules["__main__"] is not None, sys.path[0], __builtins__ is not None)
class Thing: pass
import pickle
print(type(pickle.loads(pickle.dumps(Thing()))).__module__)
"""


@pytest.mark.parametrize("form", ["file", "relative file", "module", "command", "standard input"])
def test_surroundings_are_those_of_mpi4py_run(program, form):
    path = program(SURROUNDINGS)
    arguments, stdin = {
        "file": ([path, "-x", "1"], None),
        "relative file": ([path.name, "-x", "1"], None),
        "module": (["-m", "program", "-x", "1"], None),
        "command": (["-c", SURROUNDINGS, "-x", "1"], None),
        "standard input": (["-", "-x", "1"], SURROUNDINGS),
    }[form]
    theirs, ours = (run_alone("-m", runner, *arguments, stdin=stdin, cwd=path.parent) for runner in RUNNERS)
    assert ours.returncode == theirs.returncode == 0, ours.stderr
    assert ours.stdout == theirs.stdout != ""


EXITS = {
    "sys.exit(0)": 0,
    "sys.exit()": 0,
    "sys.exit(3)": 3,
    "sys.exit('a message')": 1,
    "rank == 1 and sys.exit(3); MPI.COMM_WORLD.Barrier()": 3,
    "rank == 0 and sys.exit('a message'); MPI.COMM_WORLD.Barrier()": 1,
    "rank == 1 and (_ for _ in ()).throw(KeyboardInterrupt); MPI.COMM_WORLD.Barrier()": 130,
    "1 / 0": 1,
    "MPI.Finalize(); sys.exit(4)": 4,
    "MPI.Finalize(); 1 / 0": 1,
}


@pytest.mark.parametrize("statement, runner", alternate(EXITS, RUNNERS))
def test_exit_status(program, mpiexec, statement, runner):
    path = program(f"import sys; from mpi4py import MPI; rank = MPI.COMM_WORLD.rank\n{statement}")
    assert mpiexec(2, "-m", runner, path).returncode == EXITS[statement]


def test_traceback_names_the_rank_and_ends_the_others(program, mpiexec):
    path = program("""
        from mpi4py import MPI

        def step(rank):
            if rank == 2:
                raise ValueError("negative volume")

        print("before", flush=True)
        step(MPI.COMM_WORLD.rank)
        MPI.COMM_WORLD.Barrier()
        print("never")
    """)
    result = mpiexec(4, "-m", "ampi.run", path)
    assert result.returncode == 1
    assert result.stdout.count("before") == 4 and "never" not in result.stdout
    lines = result.stderr.splitlines()
    assert lines[:3] == [
        "Rank 2 of 4 failed:",
        "Traceback (most recent call last):",
        f'  File "{path}", line 9, in <module>',
    ]
    assert "ValueError: negative volume" in lines
    assert result.stderr.count("Traceback") == 1


def test_the_same_failure_on_all_ranks_is_shown_once(program, mpiexec):
    result = mpiexec(4, "-m", "ampi.run", program("class A: pass\nraise RuntimeError(f'object at {A()}')"))
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == result.stderr.count("RuntimeError: object at") == 1
    assert result.stderr.startswith("All 4 ranks failed:")


def test_different_failures_take_one_line_each(program, mpiexec):
    source = "from mpi4py import MPI\nrank = MPI.COMM_WORLD.rank\nraise RuntimeError(f'failure of rank {rank}')"
    result = mpiexec(3, "-m", "ampi.run", program(source))
    assert result.returncode == 1
    assert result.stderr.count("Traceback") == 1
    assert len(re.findall(r"^RuntimeError: failure of rank \d$", result.stderr, re.M)) == 1
    assert len(re.findall(r"^Rank (\d) of 3 failed too: RuntimeError: failure of rank \1$", result.stderr, re.M)) == 2


def test_long_message_keeps_its_end(program, mpiexec):
    result = mpiexec(2, "-m", "ampi.run", program("raise RuntimeError('x' * 10**6 + ' the end')"))
    assert result.returncode == 1
    assert "x the end\n" in result.stderr
    assert len(result.stderr) < 20000


@pytest.mark.parametrize("source", ["def f(:", "import no_such_module", "raise SystemError('café')"])
def test_programs_that_do_not_get_far(program, mpiexec, source):
    result = mpiexec(2, "-m", "ampi.run", program(source))
    assert result.returncode == 1
    assert "ampi/run.py" not in result.stderr and "runpy" not in result.stderr


@pytest.mark.parametrize("options", [(), ("-u",)], ids=["buffered", "unbuffered"])
def test_lines_of_ranks_do_not_mix(program, mpiexec, options):
    path = program("""
        from mpi4py import MPI
        rank = MPI.COMM_WORLD.Get_rank()
        for k in range(500):
            print("rank", rank, "line", k, "x" * 40)
    """)
    printed = mpiexec(3, *options, "-m", "ampi.run", path).stdout.splitlines()
    assert sorted(printed) == sorted(f"rank {rank} line {k} {'x' * 40}" for rank in range(3) for k in range(500))


def test_missing_program(mpiexec, tmp_path):
    result = mpiexec(2, "-m", "ampi.run", tmp_path / "no_such_program.py")
    assert result.returncode == 2
    assert result.stderr.count("No such file") == 1


@pytest.mark.parametrize("arguments", [[], ["-m"], ["-c"], ["--unknown", "program.py"]])
def test_wrong_command_line(arguments):
    result = run_alone("-m", "ampi.run", *arguments)
    assert result.returncode == 2
    assert "usage: python -m ampi.run" in result.stderr


@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_is_printed_once(mpiexec, option):
    result = mpiexec(2, "-m", "ampi.run", option)
    assert result.returncode == 0 and not result.stderr
    assert result.stdout.count("usage: python -m ampi.run") == 1


COMMANDS = """
import contextlib, importlib, io, sys
import ampi
for name in ("__main__", "check", "coverage", "kernel.__main__", "run", "scaling.command"):
    main = importlib.import_module(f"ampi.{name}").main
    for option in ("--version", "--help", "--nonsense"):
        sys.argv = ["program", option]
        for stream in ("stdout", "stderr"):
            setattr(sys, stream, io.StringIO())
        try:
            main()
            status = "returned"
        except SystemExit as end:
            status = end.code
        out, err = sys.stdout.getvalue(), sys.stderr.getvalue()
        sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
        for rank in range(ampi.COMM_WORLD.size):
            ampi.COMM_WORLD.Barrier()
            if rank == ampi.COMM_WORLD.rank:
                counts = len(out.splitlines()), len(err.splitlines())
                print(name, option, rank, status, *counts, option in err or "required" in err, flush=True)
"""


def test_options_of_all_commands_are_read_by_all_ranks_and_answered_once(mpiexec):
    result = mpiexec(2, "-c", COMMANDS)
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines()]
    assert len(lines) == 6 * 3 * 2
    for name, option, rank, status, out, err, named in lines:
        where = name, option, rank
        assert status == ("2" if option == "--nonsense" else "0"), where
        if rank == "1":
            assert out == err == "0", where
        elif option == "--nonsense":
            assert out == "0" and 1 < int(err) < 8 and named == "True", where
        else:
            assert err == "0" and (out == "1") == (option == "--version") and out != "0", where


@pytest.mark.parametrize(
    "arguments, message",
    [
        ([], "no program to run"),
        (["-m"], "-m needs a value"),
        (["--wtr", "x", "program.py"], "unknown option --wtr, did you mean --wrt?"),
        (["--wrt", "x", "program.py"], "--wrt without --of"),
        (["--wrt"], "expected one argument"),
    ],
)
def test_what_is_wrong_with_a_command_line_is_the_last_line(arguments, message, capsys):
    from ampi import run

    with pytest.raises(SystemExit, match="2"):
        run.parse(arguments)
    said = capsys.readouterr().err
    assert message in "".join(said.splitlines()[-2:]) and len(said.splitlines()) < 7


def test_versions(mpiexec):
    result = mpiexec(2, "-m", "ampi")
    assert result.returncode == 0, result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()][:2] == ["ampi", "Python"]
    assert "mpi4py 4" in result.stdout and "2 rank" in result.stdout


def test_communicators_and_classes_are_ours(program, mpiexec):
    path = program("""
        import pickle
        import mpi4py.MPI
        from mpi4py import MPI
        from mpi4py.MPI import COMM_WORLD, Request
        import ampi

        assert MPI.COMM_WORLD is ampi.COMM_WORLD and COMM_WORLD is ampi.COMM_WORLD
        assert MPI.COMM_SELF is ampi.COMM_SELF
        assert isinstance(MPI.COMM_WORLD, MPI.Intracomm)
        for name in "Comm Intracomm Cartcomm Request Prequest".split():
            assert getattr(MPI, name) is getattr(ampi.MPI, name), name
        assert Request is ampi.Request
        assert pickle.loads(pickle.dumps(MPI.COMM_WORLD)) == MPI.COMM_WORLD
        print("ours")
    """)
    result = mpiexec(2, "-m", "ampi.run", path)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["ours", "ours"]


@pytest.mark.parametrize("options", [(), ("--numpy",), ("--wrt", "x", "--of", "y")], ids=len)
def test_a_program_that_cannot_be_read_is_one_line(mpiexec, tmp_path, options):
    for name, why in {"nothere.py": "No such file or directory", ".": "the folder has no __main__.py"}.items():
        result = mpiexec(2, "-m", "ampi.run", *options, tmp_path / name)
        assert result.returncode == 2
        assert result.stderr.splitlines()[0] == f"ampi.run: cannot run {tmp_path / name}: {why}"
        assert "Traceback" not in result.stderr and result.stderr.count("ampi.run") == 1


def test_a_program_with_a_syntax_error_is_shown_without_frames_of_ampi(mpiexec, tmp_path):
    (tmp_path / "prog.py").write_text("x = (\n")
    for options in ((), ("--wrt", "x", "--of", "y")):
        result = mpiexec(1, "-m", "ampi.run", *options, tmp_path / "prog.py")
        assert result.returncode != 0 and result.stderr.count("  File ") == 1, result.stderr
        assert "SyntaxError: '(' was never closed" in result.stderr


WARNING = """
import sys, warnings
from mpi4py import MPI
comm = MPI.COMM_WORLD
warnings.simplefilter("always")
for k in range(3):
    for _ in range(3):
        warnings.warn(f"of all ranks, {k}")
    warnings.warn("of the last rank" if comm.rank == comm.size - 1 else f"of all ranks, {k}")
warnings.warn("long " + "a" * 3000)
comm.Barrier()
print("in the file", file=open(sys.argv[1] + str(comm.rank), "w"))
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_warnings_of_several_ranks_are_shown_once(mpiexec, tmp_path, ranks):
    (tmp_path / "prog.py").write_text(WARNING)
    result = mpiexec(ranks, "-m", "ampi.run", tmp_path / "prog.py", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    if ranks == 1:  # as Python shows them
        assert result.stderr.count("Warning: of all ranks, 0") == result.stderr.count("Warning: of the last rank") == 3
        return
    lines = result.stderr.splitlines()
    for k in range(3):  # three times from one line, once from another
        assert sum(f"UserWarning: of all ranks, {k}" in line for line in lines) == 4, result.stderr
    last = [line for line in lines if "UserWarning: of the last rank" in line]
    assert len(last) == 3
    assert all(
        line.startswith("rank 2 of 3: ") and line.endswith("prog.py:9: UserWarning: of the last rank") for line in last
    )
    assert sum(line.endswith("a" * 3000) for line in lines) == 1


@pytest.mark.parametrize("ranks", [1, 2])
def test_warnings_of_numpy_name_the_lines_of_the_program_once(mpiexec, program, ranks):
    """Also in runs for finite differences, and of operations that ampi carries out in other ways."""
    path = program("""
        import numpy as np
        k = 2.0
        x = k * np.array([0.0, 1.0, 2.0])
        a = np.log(x)[1:]
        for _ in range(3):
            b = (x / x)[1:]
        c = np.sum(a * b)
    """)
    printed = mpiexec(ranks, "-m", "ampi.run", "--wrt", "k", "--of", "c", "--check", path)
    assert "PASS" in printed.stdout, printed.stdout
    found = re.findall(r"(\S+):(\d+): RuntimeWarning: (.*)", printed.stderr)
    lines = [(file.rpartition("/")[2], int(line)) for file, line, _ in found]
    assert sorted(lines) == [("program.py", 5), ("program.py", 7)], printed.stderr

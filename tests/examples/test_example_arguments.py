"""Help and errors of the examples' command lines are printed once, on any number of ranks."""

import importlib

import pytest
from example import EXAMPLES, load
from mpi4py import MPI

import ampi

PROGRAMS = sorted(path for path in EXAMPLES.glob("*/*.py") if "ArgumentParser(" in path.read_text(encoding="utf-8"))


def printed(capsys, monkeypatch, path, *arguments):
    """The exit status, and what each rank has printed."""
    monkeypatch.setattr("sys.argv", [path.name, *arguments])
    try:
        example = load(path.stem, path.parent.name)
    except ModuleNotFoundError as missing:
        pytest.skip(f"needs {missing.name}")
    with pytest.raises(SystemExit) as end:
        example.main()
    out, err = capsys.readouterr()
    return end.value.code, MPI.COMM_WORLD.allgather(out + err)


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["check", "coverage", "kernel.__main__", "scaling.command"])
def test_commands_of_ampi_print_once(capsys, name):
    command = importlib.import_module(f"ampi.{name}")
    for arguments, status, word in (["--help"], 0, "usage:"), (["--no-such-option"], 2, "error:"):
        with pytest.raises(SystemExit) as end:
            command.main(arguments)
        out, err = capsys.readouterr()
        first, *others = MPI.COMM_WORLD.allgather(out + err)
        assert end.value.code == status and first.count(word) == 1 and not any(others)


@pytest.mark.mpi
def test_any_communicator_may_determine_who_prints(capsys):
    comm = MPI.COMM_WORLD
    backwards = comm.Split(0, -comm.rank)
    parser = ampi.ArgumentParser(prog="some", comm=backwards)
    parser.add_subparsers().add_parser("part", comm=backwards).add_argument("-n", type=int)
    with pytest.raises(SystemExit):
        parser.parse_args(["part", "-n", "many"])
    backwards.Free()
    assert bool(capsys.readouterr().err) == (comm.rank == comm.size - 1)


@pytest.mark.mpi
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help_and_errors_are_printed_once(capsys, monkeypatch, path):
    status, (first, *others) = printed(capsys, monkeypatch, path, "--help")
    assert status == 0 and first.startswith("usage:") and "--help" in first and not any(others)
    status, (first, *others) = printed(capsys, monkeypatch, path, "--no-such-option")
    assert status == 2 and first.count("error:") == 1 and not any(others)

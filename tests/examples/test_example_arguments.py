"""What the examples print of their arguments: once, on however many ranks."""

import pytest
from example import EXAMPLES, load
from mpi4py import MPI

PROGRAMS = sorted(path for path in EXAMPLES.glob("*/*.py") if "ArgumentParser" in path.read_text(encoding="utf-8"))


def printed(capsys, monkeypatch, path, *arguments):
    """The exit status, and what each rank has printed."""
    monkeypatch.setattr("sys.argv", [path.name, *arguments])
    with pytest.raises(SystemExit) as end:
        load(path.stem, path.parent.name).main()
    out, err = capsys.readouterr()
    return end.value.code, MPI.COMM_WORLD.allgather(out + err)


@pytest.mark.mpi
@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_help_and_complaints_are_printed_once(capsys, monkeypatch, path):
    status, (first, *others) = printed(capsys, monkeypatch, path, "--help")
    assert status == 0 and first.startswith("usage:") and "--help" in first and not any(others)
    status, (first, *others) = printed(capsys, monkeypatch, path, "--no-such-option")
    assert status == 2 and first.count("error:") == 1 and not any(others)

"""Fixtures of the tests of programs."""

import textwrap

import pytest
from mpi4py import MPI
from program_runs import WORLD


@pytest.fixture
def program(tmp_path_factory):
    """``program(source, {file: source})``: the path of a script beside other modules, the same on all ranks."""

    def write(source, modules=()):
        folder = None
        if WORLD.rank == 0:
            folder = tmp_path_factory.mktemp("program")
            files = {"prog.py": source, **dict(modules)}
            for name, text in files.items():
                path = folder / name
                path.parent.mkdir(exist_ok=True)
                path.write_text(textwrap.dedent(text))
        return MPI.COMM_WORLD.bcast(folder) / "prog.py"

    return write

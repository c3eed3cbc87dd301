"""Fixtures of the tests of time loops."""

import pathlib

import pytest

from ampi.mpi import COMM_WORLD


@pytest.fixture
def shared(tmp_path):
    return pathlib.Path(COMM_WORLD.bcast(str(tmp_path), 0))

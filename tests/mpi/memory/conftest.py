"""Fixtures of the tests of message arguments."""

import pytest
from mpi4py import MPI
from sent_values import DATATYPES


@pytest.fixture(params=DATATYPES, ids=lambda make: make.__name__)
def datatype(request):
    made = request.param()
    made.Commit()
    yield made
    if made != MPI.DATATYPE_NULL:
        made.Free()

"""Fixtures of the tests of generated programs."""

import pytest
from generated_check import attach_buffer

from ampi.mpi.namespace import BASE


@pytest.fixture
def buffered_sends():
    attach_buffer()
    yield
    BASE["Detach_buffer"]()

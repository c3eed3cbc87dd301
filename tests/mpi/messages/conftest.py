"""Fixtures of the tests of messages."""

import pytest

import ampi


@pytest.fixture
def comm(monkeypatch):
    """A communicator that a test may leave broken."""
    monkeypatch.setenv("AMPI_TIMEOUT", "2")
    return ampi.COMM_WORLD.Dup()

"""Reports of programs that complete some of their requests, and of checks and files that fail."""

import json

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi import MPI
from ampi.mpi import COMM_WORLD
from ampi.reports import written

FIRST, SECOND = 11, 12


def some(requests):
    return MPI.Prequest.Waitsome(requests)


def some_tested(requests):
    while not (found := MPI.Prequest.Testsome(requests)):
        pass
    return found


def one(requests):
    return [MPI.Prequest.Waitany(requests)]


def one_tested(requests):
    while not (found := MPI.Prequest.Testany(requests))[1]:
        pass
    return [found[0]]


def all_tested(requests):
    assert not MPI.Prequest.Testall(requests)
    return [0] if requests[0].Test() else all_tested(requests)


@pytest.mark.mpi(min_size=2, max_size=2)
@pytest.mark.parametrize("complete", [some, some_tested, one, one_tested, all_tested])
@pytest.mark.parametrize("source", [MPI.ANY_SOURCE, 0])
def test_persistent_requests_arrive_when_they_are_complete(complete, source):
    """With ANY_SOURCE, a request that was not complete yet ended the program with a KeyError."""
    comm, data = COMM_WORLD, numpy.zeros(2)
    with ampi.tracing() as trace:
        if comm.rank == 0:
            comm.Send(numpy.ones(1), 1, FIRST)
            comm.recv(source=1)
            comm.Send(numpy.ones(1), 1, SECOND)
        else:
            requests = [comm.Recv_init(data[k : k + 1], source, tag) for k, tag in enumerate((FIRST, SECOND))]
            MPI.Prequest.Startall(requests)
            assert complete(requests) == [0]
            comm.send(None, 0)
            (before, _), plain = data.copy(), trace.tracer.plain
            assert before == 1.0 and len(plain.pending) == 1
            requests[1].Wait()
            assert not plain.pending
            received = [m for m in plain.messages({}, False) if m[3] in (FIRST, SECOND)]
            assert [m[2:4] for m in received] == [(0, FIRST), (0, SECOND)] and received[0][7] < received[1][7]
            for request in requests:
                request.Free()
    trace.gather()


class Check:
    """A test of a gradient that is not a number."""

    passed = False
    curve = ((0.1, 1.0), (0.01, numpy.nan), (0.001, numpy.inf))


@pytest.mark.mpi(max_size=2)
def test_a_check_that_is_not_a_number(tmp_path):
    """Rank 0 ended with an error, and the others waited forever."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = np.sum(x * x)
    tape.gradient(y, x)
    ampi.report(tape, tmp_path / "out", check=Check())
    if COMM_WORLD.rank == 0:
        page = (tmp_path / "out" / "index.html").read_text()
        assert json.dumps([0.1, 1.0], separators=(",", ":")) in page


@pytest.mark.mpi(max_size=2)
def test_an_error_on_the_rank_that_writes_is_one_on_all(tmp_path, monkeypatch):
    def fail(path, figures):
        raise ValueError("no page today")

    monkeypatch.setattr(written, "write_page", fail)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        np.sum(x * x)
    with pytest.raises(ValueError if COMM_WORLD.rank == 0 else ampi.AmpiError, match="no page today"):
        ampi.report(tape, tmp_path / "out")

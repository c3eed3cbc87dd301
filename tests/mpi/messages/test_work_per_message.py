"""Instructions of Python that repeated messages take while a tape records, and in a sweep."""

import numpy
import pytest
from instructions import counted, instructions

import ampi
import ampi.numpy as np

COMM = ampi.COMM_SELF
FEW, MANY = 10, 30


def nonblocking(x, y):
    ampi.Request.Waitall([COMM.Irecv(y, 0), COMM.Isend(x, 0)])


def exchange(x, y):
    COMM.Sendrecv(x, 0, 0, y, 0, 0)


def counts(move, turns):
    """Return the numbers for recording so many turns, and for their sweep."""

    def loop():
        for _ in range(turns):
            move(x, y)

    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = np.zeros(2)
        y[...] = x
        recorded = instructions(loop)
    return recorded, instructions(tape.gradient, y, x, numpy.ones(2))


@counted
@pytest.mark.parametrize("move, most", [(nonblocking, (560, 830)), (exchange, (365, 720))])
def test_work_per_turn(move, most):
    counts(move, MANY)
    few, many = (counts(move, turns) for turns in (FEW, MANY))
    found = [(n - m) / (MANY - FEW) for n, m in zip(many, few)]
    assert all(n <= limit for n, limit in zip(found, most)), found

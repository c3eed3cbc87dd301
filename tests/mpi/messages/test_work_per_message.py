"""Instructions of Python that repeated messages take while a tape records, and in a sweep."""

import json
import os
import sys

import numpy
import pytest
from instructions import counted, instructions
from uncompiled import in_a_process

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


def per_turn(move):
    """Return the numbers for recording and sweeping one more turn."""
    counts(move, MANY)
    few, many = (counts(move, turns) for turns in (FEW, MANY))
    return [(n - m) / (MANY - FEW) for n, m in zip(many, few)]


@counted
@pytest.mark.parametrize("move, most", [(nonblocking, (560, 830)), (exchange, (365, 720))])
def test_work_per_turn(move, most):
    # in a process of its own: methods of communicators have wrappers once a process has used a device or made a report
    output = in_a_process(__file__, move.__name__, PYTHONPATH=os.pathsep.join(sys.path))
    found = json.loads(output)
    assert all(n <= limit for n, limit in zip(found, most)), found


if __name__ == "__main__":
    print(json.dumps(per_turn(globals()[sys.argv[1]])))

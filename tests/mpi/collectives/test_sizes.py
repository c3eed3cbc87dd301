"""Collectives with mismatched counts: on all ranks an error with both counts before any adjoint is sent."""

import random

import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi.mpi.collectives.table import COLLECTIVES, SCANS

MPI = ampi.MPI
comm = ampi.COMM_WORLD
ME, P = comm.rank, comm.size


def matrix(seed):
    """The count that each rank sends to each other one; the same matrix on all ranks."""
    drawn = random.Random(seed)
    return [[drawn.randrange(1, 5) for _ in range(P)] for _ in range(P)]


def vector(counts, room=4):
    """A receive argument with room for more elements than its counts."""
    return [anp.zeros(sum(counts) + room), (counts, np.cumsum([0, *counts[:-1]]).tolist())]


class Case:
    """The arguments of one collective on this rank; ``wrong`` changes one count on one rank.

    Buffers are large enough in any case, so that MPI itself overwrites nothing else.
    """

    def __init__(self, name, seed, wrong):
        self.name, self.wrong = name, wrong
        self.x = np.arange(1.0, 60.0) + ME
        self.n = matrix(seed)
        self.root = random.Random(seed).randrange(P)
        self.liar = random.Random(seed + 1).randrange(P)

    def lies(self, rank=None):
        return 1 if self.wrong and (self.liar if rank is None else rank) == ME else 0

    def run(self, x):
        getattr(self, f"run_{self.name.lower()}")(x)

    def run_bcast(self, x):
        comm.Bcast([x, 3 - self.lies()], self.root)

    def run_gather(self, x):
        receive = [anp.zeros(3 * P + 4), 3] if ME == self.root else None
        comm.Gather([x, 3 - self.lies()], receive, self.root)

    def run_gatherv(self, x):
        counts = self.n[self.root]
        receive = vector(counts) if ME == self.root else None
        comm.Gatherv([x, counts[ME] - self.lies()], receive, self.root)

    def run_scatter(self, x):
        comm.Scatter([x, 3] if ME == self.root else None, [anp.zeros(9), 3 + self.lies()], self.root)

    def run_scatterv(self, x):
        counts = self.n[self.root]
        send = [x, (counts, np.cumsum([0, *counts[:-1]]).tolist())] if ME == self.root else None
        comm.Scatterv(send, [anp.zeros(9), counts[ME] + self.lies()], self.root)

    def run_allgather(self, x):
        comm.Allgather([x, 3 - self.lies()], [anp.zeros(3 * P + 4), 3])

    def run_allgatherv(self, x):
        counts = self.n[0]
        comm.Allgatherv([x, counts[ME] - self.lies()], vector(counts))

    def run_alltoall(self, x):
        comm.Alltoall([x, 2], [anp.zeros(3 * P + 9), 2 + self.lies()])

    def both(self):
        going, coming = list(self.n[ME]), [row[ME] for row in self.n]
        if self.lies():
            coming[random.Random(self.root).randrange(P)] += 1
        return going, coming

    def run_alltoallv(self, x):
        going, coming = self.both()
        comm.Alltoallv([x, (going, np.cumsum([0, *going[:-1]]).tolist())], vector(coming))

    def run_alltoallw(self, x):
        going, coming = self.both()
        places = [(np.cumsum([0, *counts[:-1]]) * 8).tolist() for counts in (going, coming)]
        types = [MPI.DOUBLE] * P
        comm.Alltoallw([x, (going, places[0]), types], [anp.zeros(sum(coming) + 4), (coming, places[1]), types])

    def reduction(self, method, x, *others):
        n = 3 - self.lies()
        getattr(comm, method)([x, n], [anp.zeros(9), n], *others)

    def run_reduce(self, x):
        self.reduction("Reduce", x, MPI.SUM, self.root)

    def run_allreduce(self, x):
        self.reduction("Allreduce", x)

    def run_scan(self, x):
        self.reduction("Scan", x)

    def run_exscan(self, x):
        self.reduction("Exscan", x)

    def run_reduce_scatter_block(self, x):
        n = 3 - self.lies()
        comm.Reduce_scatter_block([x, n], [anp.zeros(9), n])

    def run_reduce_scatter(self, x):
        counts = list(self.n[0])
        counts[0] -= self.lies()
        comm.Reduce_scatter([x, sum(counts)], [anp.zeros(9), counts[ME]], counts)


NAMES = [operation.name for operation in (*COLLECTIVES, *SCANS)]
LOCAL = {"Allgather", "Allgatherv"}
"""Collectives in which the rank with wrong arguments always notices."""


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_what_fits_is_swept(name, seed):
    case = Case(name, seed, False)
    with ampi.Tape() as tape:
        x = tape.watch(case.x)
        case.run(x)
        y = (x * x).sum()
    tape.gradient(y, x)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", NAMES)
def test_other_counts_are_an_error_with_both_counts(name, seed, monkeypatch):
    """The primal call is skipped, since its result depends on the MPI library."""
    from ampi.mpi.collectives import collective_recording

    perform = collective_recording.perform
    monkeypatch.setitem(
        getattr(type(comm), name).__globals__,
        "perform",
        lambda comm, operation, primal, *given: perform(comm, operation, lambda *_: None, *given),
    )
    case = Case(name, seed, True)
    seen = None
    own = comm.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(case.x)
        try:
            run_on(own, case, x)
        except ampi.CommunicationError as error:
            seen = str(error)
        y = (x * x).sum()
    assert seen is None or "the counts do not fit" in seen
    assert not (name in LOCAL and case.liar == ME) or seen is not None
    said = comm.allgather(seen)
    if any(said):
        assert all("elements of 8 bytes" in text and f"{name} on" in text for text in said if text)
        return  # those ranks have no record of the call
    try:
        tape.gradient(y, x)
        found = ""
    except ampi.CommunicationError as error:
        found = str(error)
    texts = comm.allgather(found)
    said = [line for text in texts for line in text.splitlines() if "the counts do not fit" in line]
    assert said
    assert all("elements of 8 bytes" in line for line in said), said


def run_on(own, case, x):
    global comm
    world, comm = comm, own
    try:
        case.run(x)
    finally:
        comm = world

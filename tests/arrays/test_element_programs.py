"""Loops over elements, drawn by chance: NumPy's values bit by bit, with and without a tape; gradients against
differences, and against the same program with each operation recorded by itself."""

import contextlib
import sys
import warnings

import numpy as np
import pytest
from element_programs import ElementProgram, helpers, slope, twice
from numpy_check import Alone, Refused, examine, record
from numpy_programs import NARROW, WIDE, starts

import ampi
from ampi.tape import element_places

WORLD = ampi.COMM_WORLD
MPI = sys.modules["ampi.mpi.original"]  # mpi4py's own
TOLERANCES = {"wide": 1e-10, "narrow": 2e-4}


class OnRanks(Alone):
    """Programs with messages of elements; with other independents on each rank."""

    def __init__(self, plain=None, ours=None, differs=True):
        self.communicates, self.alone, self.differs = ours is not None, ours is None or ours.size == 1, differs
        self.plain = {**helpers(), "comm": plain, "passive": contextlib.nullcontext, "value": lambda x: x}
        self.plain |= {"slope": slope, "twice": twice}
        self.ours = {**helpers(), "comm": ours, "passive": ampi.passive, "value": ampi.value}
        self.ours |= {"slope": our_slope, "twice": our_twice}

    def starts(self):
        """The independents of this rank."""
        if not self.communicates:
            return starts()
        return {n: v * v.dtype.type(1 + 0.01 * WORLD.rank) for n, v in starts().items()}

    def any(self, flag):
        """Return whether something is true on any rank."""
        return self.plain["comm"].allreduce(bool(flag), MPI.LOR) if self.communicates else flag

    def sum(self, x):
        """The sum over all ranks."""
        return self.plain["comm"].allreduce(x) if self.communicates else x


def our_slope(row):
    """`slope`, on a tape of its own."""
    with ampi.Tape() as tape:
        s = tape.watch(np.ones(2))
        a = ampi.numpy.array(np.asarray(ampi.value(row)).real, dtype=float)
        first, last = a[0], a[-1]
        a[0] = first * s[0]
        y = a[0] + last * s[1]
    return float(np.sum(tape.gradient(y, s)))


@ampi.custom_vjp
def our_twice(s):
    return s * 2.0


our_twice.defvjp(lambda s: (ampi.value(s) * 2.0, None), lambda _, g: (g * 2.0,))

LOCAL = OnRanks()
PASSING = OnRanks(differs=False)
ALONE = OnRanks(MPI.COMM_SELF, ampi.COMM_SELF)
TOGETHER = OnRanks(MPI.COMM_WORLD, WORLD)


def one_by_one(tape):
    """Each operation has a record of its own."""
    tape.pen = None


def recorded_otherwise(lines, world):
    """How the gradient differs from that of the same program recorded operation by operation."""
    found = []
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        for name, dtypes in (("wide", WIDE), ("narrow", NARROW)):
            _, quick = record(lines, dtypes, world)
            _, slow = record(lines, dtypes, world, one_by_one)
            for n, g in quick.items():
                finite = np.isfinite(slow[n]) & np.isfinite(g)
                scale = max(1.0, *np.abs(slow[n][finite]).ravel(), 1.0)
                if np.any(np.abs(g - slow[n])[finite] > TOLERANCES[name] * scale):
                    found.append(f"{name}: gradient for {n}: {g}, operation by operation {slow[n]}")
    return found


def problems_of(seed, world, length=7):
    lines = ElementProgram(seed, length, MPI.COMM_SELF if world.communicates else None, not world.differs).lines
    try:
        if world.communicates:
            examine(lines, ALONE)
        found = examine(lines, world)
        found = found or recorded_otherwise(lines, world)
    except Refused:
        return []
    return [*lines, *found] if found else []


@pytest.fixture(autouse=True)
def found(monkeypatch, first):
    """Most with elements found by tables of their offsets, which arrays as small as these have not earned otherwise."""
    if first:
        monkeypatch.setattr(element_places, "FEWEST", 1)


@pytest.mark.parametrize("first", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in (8, 16))])
def test_random_loops(first, swept):
    assert not {seed: found for seed in range(first, first + 8) if (found := problems_of(seed, LOCAL))}


@pytest.mark.parametrize("first", range(0, 16, 8))
def test_random_loops_with_constants(first):
    """Also tapes inside of a tape, and rules of the user's."""
    assert not {seed: found for seed in range(first, first + 8) if (found := problems_of(seed, PASSING))}


@pytest.mark.mpi(max_size=4)
@pytest.mark.parametrize("first", [0, pytest.param(8, marks=pytest.mark.slow)])
def test_random_loops_with_messages(first):
    assert not {seed: found for seed in range(first, first + 8) if (found := problems_of(seed, TOGETHER, 5))}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(100_000, 104_000, 400))
def test_many_random_loops(first):
    assert not {seed: found for seed in range(first, first + 400) if (found := problems_of(seed, LOCAL))}

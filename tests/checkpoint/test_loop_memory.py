"""The memory of time loops: it grows neither with their steps nor beyond what ``memory=`` gives them."""

import gc
import tracemalloc

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD


def plainly(step, steps):
    def loop(u):
        for _ in range(steps):
            step(u)
        return u

    return loop


MASK = numpy.arange(24).reshape(4, 6) % 3 == 0
ROWS = numpy.array([0, 2])


@ampi.kernel
def in_a_column(u):
    for i in range(1, u.shape[0] - 1):
        u[i, 2] = u[i, 2] * 0.99


def to_oneself(u):
    COMM_WORLD.Sendrecv(u[0].copy(), COMM_WORLD.rank, recvbuf=u[1], source=COMM_WORLD.rank)


def element_by_element(u):
    for i in range(4):
        for j in range(1, 5):
            u[i, j] = u[i, j] * 0.9


def overlapping(u):
    u[:2] *= 0.99
    u[1:3] *= 0.98


def some(u, key):
    u[key] = u[key] * 0.99


PARTS = {
    "interior": lambda u: some(u, (slice(1, -1), slice(1, -1))),
    "column": lambda u: some(u, (slice(None), 1)),
    "strided": lambda u: some(u, (slice(None, None, 2), slice(None, None, 3))),
    "mask": lambda u: some(u, MASK),
    "rows": lambda u: some(u, ROWS),
    "where": lambda u: np.multiply(u, 0.99, out=u, where=MASK),
    "put": lambda u: np.put(u, [1, 3], [0.5, 0.6]),
    "putmask": lambda u: np.putmask(u, MASK, 0.3),
    "copyto": lambda u: np.copyto(u[1:3], u[1:3] * 0.9),
    "at": lambda u: np.add.at(u, ROWS, 0.1),
    "element": lambda u: some(u, (1, 2)),
    "elements": element_by_element,
    "overlapping": overlapping,
    "kernel": in_a_column,
    "kernel of a part": lambda u: in_a_column(u[1:]),
    "message": to_oneself,
    "reduction": lambda u: COMM_WORLD.Allreduce(u[0].copy(), u[2]),
    "sort": lambda u: u[1].sort(),
    "flat": lambda u: u.flat.__setitem__(slice(0, 5), 0.2),
}


@pytest.mark.parametrize("needed", [1, 30])  # of the array, before the loop: few are kept otherwise than many
@pytest.mark.parametrize("part", PARTS)
def test_what_is_kept_of_memory_from_before_the_loop_does_not_grow_with_its_steps(part, needed):
    """Steps that write to a part of an array, all to the same."""

    def program(x0, loop):
        u = np.array(x0)
        first = sum(np.sum(np.sin(u[k % 4, k % 6 :]) ** 2) for k in range(needed))
        return first + np.sum(loop(u) ** 2)

    def step(u):
        PARTS[part](u)

    x0, kept = numpy.linspace(0.1, 0.9, 24).reshape(4, 6), []
    for steps in (25, 60):
        with ampi.Tape() as tape:
            x = tape.watch(x0)
            y = program(x, lambda u: ampi.timeloop(step, u, steps, checkpoints=2))  # noqa: B023
        (loop,) = (record for record in tape.records if hasattr(record, "owners"))
        kept.append(sum(action.saved.nbytes for action in loop.undo))
        expected = ampi.grad(lambda x: program(x, plainly(step, steps)))(x0)  # noqa: B023
        numpy.testing.assert_array_equal(tape.gradient(y, x), expected)
    assert kept[0] == kept[1] <= 3 * x0.nbytes


@ampi.kernel
def relax(u, v):
    for i in range(1, len(u) - 1):
        v[i] = u[i] + 0.1 * (u[i - 1] - 2 * u[i] + u[i + 1]) * u[i]


def in_place(s):
    s["u"] *= 1.0 - 0.05 * s["u"]


def functional(s):
    u = s["u"]
    return {"u": u * (1 - 0.005 * np.sin(u) * np.cos(u)) + 0.01 * np.exp(-u * u), "v": s["v"]}


def several(s):
    s["u"][1:] += 0.1 * (s["v"][:-1] - s["u"][:-1])
    s["v"] *= 1 - 0.002 * s["u"]
    s["w"] = s["u"] * s["v"]


def by_kernel(s):
    relax(s["u"], s["v"])
    s["u"], s["v"] = s["v"], s["u"]


def through_lists(s):
    a, b = s.pop("pair", (s["u"], s["v"]))
    s["pair"] = (a + 0.1 * b * b, b * 0.99)
    s["u"] = s["pair"][0] * 1.0


def around_the_ranks(s):
    after, before = (COMM_WORLD.rank + 1) % COMM_WORLD.size, (COMM_WORLD.rank - 1) % COMM_WORLD.size
    came = np.zeros(len(s["u"]))
    COMM_WORLD.Sendrecv(s["u"], after, recvbuf=came, source=before)
    s["u"] = s["u"] * (1.0 + 0.01 * came)


STEPS = [in_place, functional, several, by_kernel, through_lists, around_the_ranks]
N = 20_000
OWN = 6 * 8 * N
"""Arrays of the program itself: what it begins with, the gradient."""


def peak_of(step, steps, **options):
    """The most memory that a gradient takes beside what was there before, in bytes, by what is told to tracemalloc."""

    def final(x):
        s = ampi.timeloop(step, {"u": np.array(x), "v": np.sin(x)}, steps, **options)
        return np.sum(s["u"]) + np.sum(s["v"])

    x = numpy.linspace(0.1, 0.9, N)
    ampi.grad(final)(x)  # imports and compiles, all that so many elements need
    gc.collect()
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        ampi.grad(final)(x)
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.mark.mpi(max_size=4)
@pytest.mark.parametrize(
    "options, step",
    [
        pytest.param(options, step, marks=[pytest.mark.slow] * (bool(options) and k > 1))
        for options in ({}, {"storage": True})
        for k, step in enumerate(STEPS)
    ],
    ids=lambda x: ("on disk" if x else "in memory") if isinstance(x, dict) else x.__name__,
)
def test_memory_does_not_grow_with_steps(step, options, tmp_path):
    options = {name: COMM_WORLD.bcast(str(tmp_path)) for name in options}
    few, many = (peak_of(step, steps, checkpoints=3, **options) for steps in (12, 36 if options else 60))
    assert many <= few + 8 * 8 * N  # states of more steps, of which some have more parts


@pytest.mark.mpi
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("arrays", [40, 100])
def test_memory_is_what_was_given(step, arrays):
    """``memory=``: what the gradient takes is at most 1.1 times that beside the program's own, and that is used."""
    seen, given = [], arrays * 8 * N
    taken = peak_of(step, 40, memory=given, progress=seen.append)
    assert taken <= 1.1 * given + OWN and seen[-1].memory_peak <= 1.25 * given
    assert taken >= 0.5 * given or seen[-1].executed <= 50  # there is room for almost all steps
    assert len(set(COMM_WORLD.allgather(seen[-1].executed))) == 1


def tracked_arrays_by_name(u):
    return {k: u * (1 + 1e-3 * k) for k in range(120)}, lambda s: {k: v - 1e-3 * v * v for k, v in s.items()}


def numbers_in_a_list(u):
    return [u[0] * (1e-3 * k) for k in range(120)], lambda s: [v - 1e-3 * v * v for v in s]


def numbers_of_python(u):
    first = {"u": u * 1.0, "counts": [float(k) for k in range(3000)]}
    return first, lambda s: {"u": s["u"] - 1e-3 * s["u"] ** 2, "counts": [n + 1.0 for n in s["counts"]]}


def plain_arrays_in_place(u):
    def step(s):
        for v in s["rest"].values():
            v += 1.0
        s["u"] = s["u"] - 1e-3 * s["u"] ** 2
        return s

    return {"u": u * 1.0, "rest": {k: numpy.ones(3) for k in range(500)}}, step


def sum_of(s):
    if isinstance(s, dict):
        return sum(map(np.sum, s.values())) if "u" not in s else np.sum(s["u"])
    return sum(s)


@pytest.mark.mpi(max_size=2)
@pytest.mark.parametrize(
    "made",
    [
        pytest.param(tracked_arrays_by_name, marks=pytest.mark.slow),
        numbers_in_a_list,
        pytest.param(numbers_of_python, marks=pytest.mark.slow),
        plain_arrays_in_place,
    ],
    ids=lambda f: f.__name__,
)
def test_states_of_many_small_parts_take_what_was_given(made):
    """Their objects take many times what is in them."""

    def final(u, steps=150):
        return sum_of(ampi.timeloop(made(u)[1], made(u)[0], steps=steps, memory=8 * 2**20))

    u = numpy.ones(4)
    ampi.grad(lambda u: final(u, 3))(u)
    gc.collect()
    tracemalloc.start(1)
    try:
        before = tracemalloc.get_traced_memory()[0]
        ampi.grad(final)(u)
        taken = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert taken <= 1.1 * 8 * 2**20 + 2**20, taken / 2**20

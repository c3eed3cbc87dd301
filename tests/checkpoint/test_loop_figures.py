"""Time loops, one property at a time: the last step, memory, number of runs, inner loops, second derivatives."""

import warnings

import numpy
import pytest
from timeloop_programs import decayed, plainly, same, through

import ampi
import ampi.numpy as np
from ampi.checkpoint import replay
from ampi.memory.live_arrays import tracked_arrays
from ampi.memory.storages import arrays_of_blocks, storage_of
from ampi.mpi import COMM_WORLD

RANKS = COMM_WORLD.size


X = numpy.array([0.3, 0.7, 1.1])


@pytest.mark.mpi(min_size=2)
def test_ranks_that_disagree_on_the_last_step():
    counted = {"n": 0, "u": np.array(X)}

    def step(state):
        state["n"] += 1

    with pytest.raises(ampi.CommunicationError, match=r"before step 2, until\(state\) is true on the ranks 1 of"):
        ampi.timeloop(step, counted, until=lambda s: s["n"] >= (2 if COMM_WORLD.rank == 1 else 3))


@pytest.mark.mpi
def test_memory():
    x = numpy.linspace(0.1, 0.9, 1000)
    kinds = [2**20, "1 MiB", "1.5MB", "200 KiB"]
    for memory in kinds:
        same(through(lambda u: ampi.timeloop(decayed, u, 30, memory=memory), x), through(plainly(decayed, 30), x))  # noqa: B023
    with pytest.raises(ampi.TapeError, match=r"memory=10000 is too small on some rank; give at least \d+"):
        through(lambda u: ampi.timeloop(decayed, u, 30, memory=10_000), x)


@pytest.mark.parametrize("seed", range(12))
def test_states_hold_what_steps_have_written(seed):
    """Drawn: arrays that no step writes, that steps write first, that some steps write, and that the last ones do."""
    draw = numpy.random.default_rng(seed)
    kinds = draw.permutation(["read", "read", "first", "sometimes", "late"])
    steps, large = 24, 1000
    when = set(draw.choice(steps, 5, replace=False))

    def step(state):
        n, u = state["n"], state["u"]
        for kind, a in zip(kinds, state["arrays"]):
            if kind == "first" or (kind == "sometimes" and n in when) or (kind == "late" and n >= 20):
                a[...] = u.sum() * 0.01
            u *= 1.0 + 0.001 * a[: u.size]
        state["n"] = n + 1

    def final(u0, **kept):
        arrays = [np.array(numpy.linspace(0.1 * k, 1.0, large)) for k in range(5)]
        state = {"u": np.array(u0), "n": 0, "arrays": arrays, "plain": numpy.ones(large)}
        if not kept:
            for _ in range(steps):
                step(state)
        else:
            state = ampi.timeloop(step, state, steps, progress=seen.append, **kept)
        return np.sum(state["u"] ** 2) + sum(a[-1] for a in state["arrays"])

    u0 = numpy.linspace(0.5, 1.0, 4)
    expected = ampi.grad(final)(u0)
    for kept in (1, 3):
        seen = []
        numpy.testing.assert_allclose(ampi.grad(final)(u0, checkpoints=kept), expected, rtol=1e-13)
        held = seen[-1].memory_peak / (8 * large)
        assert held <= kept * 4.3  # "first", "sometimes", "late" and what is plain, but not the others


@pytest.mark.parametrize("kept, most", [(5, 6.86), (10, 3.93), (20, 2.83), (40, 2.15)])
def test_steps_are_run_as_often_as_is_needed(kept, most):
    count = 0

    def step(u):
        nonlocal count
        count += 1
        u *= 0.999

    through(lambda u: ampi.timeloop(step, u, 1000, checkpoints=kept), X)
    assert count <= most * 1000


@pytest.mark.parametrize("kept", [1, 2, 4, 20])
@pytest.mark.parametrize("size", [2, 3, 5])
def test_one_memory_in_several_places_of_the_state_and_empty_parts(size, kept):
    def step(s):
        s["k"] *= 1.1  # which a step has made, and at which l looks
        s["u"] *= 1.0 - 0.1 * s["u"]
        s["u"][1:] += 0.1 * s["l"]
        s["v"] += 0.05 * s["u"][::-1]
        s["e"] = s["e"] * 2.0
        s["k"] = np.concatenate([s["u"], s["e"]]) * 0.5
        s["l"] = s["k"][1:]
        s["w"][0] = s["w"][0] * s["l"][0]

    def run(loop):
        def f(u):
            s = {"u": u, "v": u[::-1], "w": u, "e": np.zeros(0), "k": u * 2}
            s["l"] = s["k"][1:]
            s = loop(s)
            return np.concatenate([s["u"], s["v"], s["l"] * s["k"][1:], s["e"]])

        return f

    x = numpy.linspace(0.4, 0.9, size)
    same(through(run(lambda s: ampi.timeloop(step, s, 9, checkpoints=kept)), x), through(run(plainly(step, 9)), x))


def test_loops_in_loops():
    def outer(u):
        return ampi.timeloop(decayed, u * 1.01, 3, checkpoints=2)

    same(
        through(lambda u: ampi.timeloop(outer, u, 6, checkpoints=2), X),
        through(plainly(lambda u: plainly(decayed, 3)(u * 1.01), 6), X),
    )


def test_what_recorded_steps_save_is_memory_that_is_there(monkeypatch):
    """The state that an outer step was given is gone when the loop is over; an inner loop had needed all memory."""
    freeze, seen = replay.Taped.freeze, []

    def looks(taped, owners):
        freeze(taped, owners)
        del owners
        there = {storage_of(array) for array in (*tracked_arrays(), *arrays_of_blocks())}
        seen.append(all(action.storage in there for action in taped.tape.records[-1].undo))

    def outer(u):
        return ampi.timeloop(decayed, u * 1.01, 3, checkpoints=2)

    monkeypatch.setattr(replay.Taped, "freeze", looks)
    through(lambda u: ampi.timeloop(outer, u, 6, checkpoints=2), X)
    assert seen and all(seen)


def test_without_a_tape_and_forward():
    u = np.array(X)
    assert ampi.timeloop(decayed, u, 5) is u
    y, y_dot = ampi.jvp(lambda x: ampi.timeloop(decayed, x * 1.0, 5), (X,), (numpy.ones(3),))
    expected = ampi.jvp(lambda x: plainly(decayed, 5)(x * 1.0), (X,), (numpy.ones(3),))
    numpy.testing.assert_array_equal(y, expected[0])
    numpy.testing.assert_array_equal(y_dot, expected[1])


def around(u):
    """A step that communicates around a ring of ranks."""
    after, before = (COMM_WORLD.rank + 1) % RANKS, (COMM_WORLD.rank - 1) % RANKS
    COMM_WORLD.Sendrecv(u[-1:].copy(), after, recvbuf=u[:1], source=before)
    u[1:] += 0.1 * u[:-1] * u[1:] - 0.05 * u[1:] ** 3


@pytest.mark.mpi
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"checkpoints": 2},
        {"memory": "1MiB"},
        {"storage": "nowhere", "checkpoints": 2},
        {"schedule": lambda n, k: ()},
    ],
    ids=lambda given: " ".join(given) or "nothing",
)
def test_second_derivatives_keep_all_steps_and_say_so(given):
    """`hvp`, `jvp` of `grad` and `linearize` are those of the plain loop; what is asked for in vain is named."""

    def total(loop):
        return lambda x: np.sum(loop(x * 1.0) ** 2)

    def once(u):
        return ampi.timeloop(around, u, 7, **given)

    x, v = X * (1 + 0.1 * COMM_WORLD.rank), numpy.array([1.0, -0.5, 0.25]) + COMM_WORLD.rank
    expected, h = ampi.hvp(total(plainly(around, 7)), x, v), 1e-5
    checkpointed = total(lambda u: ampi.timeloop(around, u, 7, checkpoints=2))
    slopes = [ampi.grad(checkpointed)(x + sign * h * v) for sign in (1, -1)]
    numpy.testing.assert_allclose(expected, (slopes[0] - slopes[1]) / (2 * h), rtol=1e-6, atol=1e-8)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = ampi.hvp(total(once), x, v)
        _, in_jvp = ampi.jvp(ampi.grad(total(once)), (x,), (v,))
        _, push = ampi.linearize(once, x)
        pushed = push(v)
    numpy.testing.assert_array_equal(found, expected)
    numpy.testing.assert_array_equal(in_jvp, expected)
    numpy.testing.assert_array_equal(pushed, ampi.linearize(plainly(around, 7), x)[1](v))
    said = [w for w in caught if w.category is ampi.PerformanceWarning]
    assert len(said) == (3 if given else 0)
    assert all(w.filename == __file__ and all(f"{name}=" in str(w.message) for name in given) for w in said)


@pytest.mark.parametrize("kept", [1, 3, 20])
@pytest.mark.parametrize("make", [numpy.random.default_rng, numpy.random.RandomState])
def test_random_generators_in_the_state(make, kept):
    def step(state):
        u, rng = state
        u += 0.1 * rng.normal(size=3) * u
        return u, rng

    found = through(lambda u: ampi.timeloop(step, (u, make(3)), 9, checkpoints=kept)[0], X)
    rng = make(3)
    same(found, through(lambda u: plainly(step, 9)((u, rng))[0], X))

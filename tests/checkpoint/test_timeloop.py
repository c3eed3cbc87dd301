"""Time loops: the gradient with a few kept states is that of the plain loop, whatever the steps do."""

import collections
import dataclasses
import random as randomness
import warnings

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.checkpoint import replay
from ampi.memory.live_arrays import tracked_arrays
from ampi.memory.storages import arrays_of_blocks, storage_of
from ampi.mpi import COMM_WORLD

RANKS = COMM_WORLD.size


@ampi.kernel
def rotate(u, v, c):
    for i in range(len(u)):
        s = u[i]
        u[i] = s - 0.1 * c * v[i] * s
        v[i] = v[i] + 0.1 * c * s * v[i]


@dataclasses.dataclass
class Fields:
    """What a program may have as its state."""

    u: object
    v: object
    work: object
    dt: object = 0.1
    cycle: int = 0
    history: list = dataclasses.field(default_factory=list)


Pair = collections.namedtuple("Pair", "u v")


class Drawn:
    """A step and a state, drawn at random.

    The step is a list of operations on two arrays, a time step, a counter, scratch memory and parameters; the state
    holds these as a dataclass, dictionary, tuple, list, named tuple, or partly in variables outside.
    """

    def __init__(self, seed, comm=None):
        draw = randomness.Random(seed)
        self.comm = comm
        self.form = draw.choice(["dataclass", "dict", "tuple", "list", "named tuple", "outside"])
        self.steps = draw.choice([1, 2, 3, 5, 8, 13])
        self.checkpoints = draw.choice([1, 2, 3, 5, 20])
        self.operations = [draw.choice(OPERATIONS) for _ in range(draw.randint(1, 5))]
        self.functional = self.form in ("tuple", "named tuple")
        self.dtype = draw.choice([float, float, complex])
        self.size = draw.randint(2, 5)
        self.twice = draw.random() < 0.3
        self.overwrites = draw.random() < 0.5
        self.view = draw.random() < 0.3
        self.options = {}

    def __str__(self):
        names = ", ".join(o.__name__ for o in self.operations)
        return f"{self.form} of {self.dtype.__name__}, {self.steps} steps, {self.checkpoints} kept: {names}"

    def run(self, k, x, loops):
        """The objective; ``loops``: by `ampi.timeloop`."""
        u, v = x * k, np.sin(x)
        if self.view:
            u, v = np.stack([u, v])
        fields = Fields(u, v, np.zeros(self.size, self.dtype))
        parameter = x + 1.0
        outside = np.zeros(3, self.dtype)

        def advance(f):
            for operation in self.operations:
                operation(f, parameter, outside, self.comm)
            f.cycle += 1

        step, state, found = self.spelled(advance, fields)
        if loops:
            state = ampi.timeloop(step, state, steps=self.steps, checkpoints=self.checkpoints, **self.options)
        else:
            for _ in range(self.steps):
                result = step(state)
                state = state if result is None else result
        u, v = found(state)
        total = np.sum(np.real(u * np.conj(u))) + np.sum(np.real(v)) + np.sum(np.real(outside))
        if self.overwrites:
            u[...] = 0.5
            parameter[...] = 2.0
            outside *= u[0]
            total = total + np.sum(np.real(outside * parameter[0]))
        if self.twice:
            self.twice = False
            try:
                total = total + self.run(total * 1e-3, x, loops)
            finally:
                self.twice = True
        return total

    def spelled(self, advance, f):
        """The step on a state in the form that was drawn, the state, and what finds u and v in it."""

        def on_dict(s):
            g = Fields(**s)
            advance(g)
            s.update(vars(g))

        def on_list(s):
            g = Fields(*s)
            advance(g)
            s[:] = [g.u, g.v, g.work, g.dt, g.cycle, g.history]

        def on_tuple(s):
            (u, v), work, rest = s
            g = Fields(u * 1.0, v * 1.0, work, *rest)
            advance(g)
            return type(s[0])(g.u, g.v) if type(s[0]) is Pair else (g.u, g.v), g.work, [g.dt, g.cycle, g.history]

        if self.form == "dataclass":
            return advance, f, lambda s: (s.u, s.v)
        if self.form == "dict":
            return on_dict, dict(vars(f)), lambda s: (s["u"], s["v"])
        if self.form == "list":
            return on_list, [f.u, f.v, f.work, f.dt, f.cycle, f.history], lambda s: s[:2]
        if self.form == "outside":

            def beside(s):  # arrays that are overwritten in place need not be in the state
                g = Fields(f.u, f.v, f.work, s["dt"], s["cycle"], s["history"])
                old = g.u, g.v
                advance(g)
                for target, new in zip(old, (g.u, g.v)):
                    if new is not target:
                        target[...] = new
                s.update(dt=g.dt, cycle=g.cycle, history=g.history)

            return beside, {"dt": f.dt, "cycle": f.cycle, "history": f.history}, lambda s: (f.u, f.v)
        first = Pair(f.u, f.v) if self.form == "named tuple" else (f.u, f.v)
        return on_tuple, (first, f.work, [f.dt, f.cycle, f.history]), lambda s: s[0]


def in_place(f, p, outside, comm):
    f.u += 0.1 * f.dt * f.v * p


def rebound(f, p, outside, comm):
    f.v = f.v - 0.1 * f.u * f.v


def slices(f, p, outside, comm):
    f.u[1:] = f.u[1:] * (1.0 + 0.1 * np.conj(f.v[:-1]))


def exchanged(f, p, outside, comm):
    f.u, f.v = f.v, f.u


def scratch(f, p, outside, comm):
    f.work[...] = f.u * f.v
    f.v = f.v + 0.05 * f.work


def adaptive(f, p, outside, comm):
    f.dt = 0.1 / (1.0 + np.sum(np.abs(f.u) ** 2))


def single_elements(f, p, outside, comm):
    for i in range(1, len(f.u)):
        f.u[i] = f.u[i] + 0.1 * f.u[i - 1] * f.v[i]


def summed_up(f, p, outside, comm):
    outside[f.cycle % 3] += np.sum(f.u) * p[0]


def remembered(f, p, outside, comm):
    f.history.append(np.sum(f.v))
    if len(f.history) > 2:
        f.u = f.u + 0.01 * f.history[-3]


def kernel(f, p, outside, comm):
    if f.u.dtype == float:
        rotate(f.u, f.v, 0.7)


def constants(f, p, outside, comm):
    f.work[0] = 0.3
    f.u[0] = f.u[0] * f.work[0]


def neighbours(f, p, outside, comm):
    if comm is not None:
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        request = comm.Isend(f.u * 1.0, after, 3)
        came = np.zeros(f.u.shape, f.u.dtype)
        comm.Recv(came, before, 3)
        request.Wait()
        f.v = f.v + 0.1 * came


def reduced(f, p, outside, comm):
    if comm is not None:
        total = np.zeros(len(f.u), f.u.dtype)
        comm.Allreduce(f.u, total)
        f.u = f.u * (1.0 + 0.01 * total)


def as_objects(f, p, outside, comm):
    if comm is not None:
        f.v = comm.bcast(f.v, f.cycle % comm.size) * 0.9 + f.v * 0.1


OPERATIONS = [in_place, rebound, slices, exchanged, scratch, adaptive, single_elements, summed_up, remembered, kernel,
              constants, neighbours, reduced, as_objects]  # fmt: skip


def check(drawn, rank=0):
    rng = numpy.random.default_rng(rank + 17)
    x = rng.uniform(0.5, 1.0, drawn.size).astype(drawn.dtype)
    if drawn.dtype is complex:
        x = x + 0.3j * rng.uniform(size=drawn.size)
    expected, back = ampi.vjp(lambda k, x: drawn.run(k, x, False), 0.9, x)
    found, again = ampi.vjp(lambda k, x: drawn.run(k, x, True), 0.9, x)
    assert numpy.array_equal(expected, found), str(drawn)
    wanted = back(1.0)
    for _ in range(2):  # the second sweep has no states that the first one kept
        for a, b in zip(again(1.0), wanted, strict=True):
            numpy.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13, err_msg=str(drawn))


@pytest.mark.parametrize("seed", range(60))
def test_drawn_steps(seed):
    check(Drawn(seed))


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(1000, 1030))
def test_drawn_steps_that_communicate(seed):
    check(Drawn(seed, COMM_WORLD), COMM_WORLD.rank)


# ---------------------------------------------------------------------------------------------- one thing at a time


def decayed(u):
    u *= 1.0 - 0.1 * u


def through(loop, x):
    """Value and gradient of the sum of squares of what a loop makes of x * 1."""
    return ampi.value_and_grad(lambda x: np.sum(loop(x * 1.0) ** 2))(x)


def same(a, b):
    numpy.testing.assert_allclose(a[0], b[0], rtol=1e-14)
    numpy.testing.assert_allclose(a[1], b[1], rtol=1e-12)


def plainly(step, n):
    def loop(u):
        for _ in range(n):
            result = step(u)
            u = u if result is None else result
        return u

    return loop


X = numpy.array([0.3, 0.7, 1.1])


@pytest.mark.mpi
@pytest.mark.parametrize("kept", [1, 3, 10])
def test_until(kept):
    """The number of steps follows from the state, on all ranks."""

    def largest(u):
        return COMM_WORLD.allreduce(float(ampi.value(np.max(u))), ampi.MPI.MAX)

    def loop(u):
        while not largest(u) < 0.5:
            decayed(u)
        return u

    x = X * (1 + 0.1 * COMM_WORLD.rank)
    found = through(lambda u: ampi.timeloop(decayed, u, until=lambda u: largest(u) < 0.5, checkpoints=kept), x)
    same(found, through(loop, x))
    limited = through(lambda u: ampi.timeloop(decayed, u, 4, until=lambda u: largest(u) < 0.5, checkpoints=kept), x)
    same(limited, through(plainly(decayed, 4), x))
    none = through(lambda u: ampi.timeloop(decayed, u, until=lambda u: True), x)
    same(none, through(lambda u: u, x))


@pytest.mark.mpi(min_size=2)
def test_ranks_that_do_not_agree_on_the_last_step():
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
    with pytest.raises(ampi.TapeError, match=r"memory=10000 is too little on some rank; give at least \d+"):
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
    """A step that goes around the ranks."""
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


def counted():
    count = [0]

    def count_on():
        count[0] += 1
        return count[0]

    return count_on


CAPRICIOUS = {  # what a step finds beside its state, which is another thing each time
    "a generator": lambda: numpy.random.default_rng(2).normal,
    "the global generator": lambda: numpy.random.rand,
    "random": lambda: randomness.random,
    "a counter": counted,
    "a clock": lambda: __import__("time").perf_counter_ns,
}
PLACES = {  # where that goes: into all of an array, last bits of an element, an array beside the state, its numbers
    "all": lambda s, value: s["u"].__imul__(1.0 + 1e-3 * (value % 7.1)),
    "a bit": lambda s, value: s["u"].__setitem__(1, s["u"][1] * (1.0 + 2.3e-16 * (value * 12345.678 % 1e4))),
    "beside": lambda s, value: s["beside"].__setitem__(0, 1e-3 * (value % 7.1)),
    "a number": lambda s, value: s.__setitem__("dt", numpy.float64(1e-3 * (value % 7.1))),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("what", CAPRICIOUS)
def test_what_does_not_reproduce_itself_is_named(what, where):
    """However often steps are run again: no gradient is made of steps that do not fit together."""
    for steps, kept in [(n, k) for n in (2, 3, 5, 8) for k in (1, 2, 3)]:
        value, figures = CAPRICIOUS[what](), []
        beside = np.zeros(2)

        def step(s):
            s["u"] += 0.1 * s["u"] * (s["dt"] + s["beside"][0])
            PLACES[where]({**s, "beside": beside} if where == "beside" else s, value())  # noqa: B023

        def loop(u):
            state = {"u": u, "dt": numpy.float64(0.1), "beside": beside}  # noqa: B023
            return ampi.timeloop(step, state, steps, checkpoints=kept, progress=figures.append)["u"]  # noqa: B023

        try:
            through(loop, X)
        except ampi.TapeError as error:
            assert "test_timeloop.py:" in str(error) and "does not reproduce itself" in str(error)
            assert "state['" in str(error)
        else:
            assert figures[-1].executed == steps, (kept, steps)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kept", [1, 3])
def test_a_step_that_one_rank_does_not_reproduce_ends_all_ranks(kept):
    comm = COMM_WORLD.Dup()

    def step(s):
        total = np.zeros(3)
        comm.Allreduce(s["u"], total)
        s["u"] = s["u"] * 0.9 + 0.01 * total
        if comm.rank == 1:
            s["v"] = s["v"] * (1.0 + randomness.random())

    def loop(u):
        state = ampi.timeloop(step, {"u": u, "v": u * 2.0}, 6, checkpoints=kept)
        return state["u"] + state["v"]

    expected = "step . does not reproduce itself"
    error = ampi.TapeError if COMM_WORLD.rank == 1 else ampi.CommunicationError
    with pytest.raises(error, match=expected if COMM_WORLD.rank == 1 else f"because rank 1 .*{expected}"):
        through(loop, X)
    comm.Free()


@pytest.mark.parametrize("begins", [0, 4, 8])
def test_a_kernel_that_is_called_late(mpiexec, tmp_path, begins):
    """What is compared does not depend on what the program has imported by then."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import numpy, ampi, ampi.numpy as np
@ampi.kernel
def halve(u):
    for i in range(u.shape[0]):
        u[i] *= 0.5
def step(s):
    s["u"] *= 0.9
    if s["n"] == {begins}:
        halve(s["u"])
    s["n"] += 1
with ampi.Tape() as tape:
    x = tape.watch(numpy.ones(3))
    y = ampi.timeloop(step, {{"u": x * 1.0, "n": 0}}, 8, checkpoints=2)["u"]
w = np.ones(1)
with ampi.Tape() as other:
    halve(other.watch(w) * 1.0)
for _ in range(2):
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(3)), 0.9**8 * {0.5 if begins < 8 else 1.0})
""")
    done = mpiexec(1, str(program))
    assert done.returncode == 0, done.stderr


def test_numbers_of_python_that_are_others_are_said():
    def step(s):
        s["u"] *= 0.9
        s["seconds"] = randomness.random()
        s["n"] += 1

    def loop(u):
        return ampi.timeloop(step, {"u": u, "seconds": 0.0, "n": 0}, 9, checkpoints=2)["u"]

    with pytest.warns(ampi.ActivityWarning, match=r"step \d gives other numbers in state\['seconds'\] when") as said:
        through(loop, X)
    assert len(said) == 1


def test_what_is_carried_on_beside_the_state_is_named():
    hidden = []

    def step(u):
        hidden.append(u * 2.0)
        return u * (1.0 + 0.1 * hidden[-2] if len(hidden) > 1 else 1.0)

    with pytest.raises(ampi.ActivityError, match="an earlier step has computed, and that is not in its state"):
        through(lambda u: ampi.timeloop(step, u, 5, checkpoints=10), X)


def test_the_state_is_as_it_was_after_a_sweep():
    state = Fields(None, None, None)

    def step(f):
        f.u = f.u * 0.9
        f.v *= f.u
        f.cycle += 1
        f.history.append(f.cycle)

    with ampi.Tape() as tape:
        x = tape.watch(X)
        state.u, state.v = x * 1.0, x * 2.0
        ampi.timeloop(step, state, 7, checkpoints=2)
        y = np.sum(state.u * state.v)
    before = state.u, state.v, ampi.value(state.u).copy(), ampi.value(state.v).copy()
    for _ in range(2):
        tape.gradient(y, x)
        assert state.cycle == 7 and state.history == [1, 2, 3, 4, 5, 6, 7]
        assert state.u is before[0] and state.v is before[1]
        numpy.testing.assert_array_equal(state.u, before[2])
        numpy.testing.assert_array_equal(state.v, before[3])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "say how many steps"),
        ({"steps": -1}, "steps is -1; it must be an integer of at least 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": 3, "checkpoints": 0}, "checkpoints is 0"),
        ({"steps": 3, "checkpoints": 2, "memory": 100}, "not both"),
        ({"steps": 3, "memory": "much"}, "memory is 'much'"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ampi.TapeError, match=message):
        ampi.timeloop(decayed, np.array(X), **arguments)


@pytest.mark.mpi
@pytest.mark.mpi(min_size=2)
def test_windows_of_steps_leave_what_was_recorded_before_the_loop():
    """What is known of others' accesses when a message comes in which no step's adjoint has a part."""
    comm = COMM_WORLD.Dup()

    def step(u):
        requests = [comm.Isend(u[0:1], r, 8) for r in range(comm.size)]
        total = u * 0.5
        for r in range(comm.size):
            came = np.zeros(1)
            comm.Recv(came, r, 8)
            total += 0.1 * np.sin(came)
        ampi.MPI.Request.Waitall(requests)
        win = ampi.MPI.Win.Allocate_shared(24, 8, comm=comm)
        mine = np.frombuffer(win.Shared_query(comm.rank)[0], "d")
        mine[...] = 0.0
        win.Fence()
        near = np.frombuffer(win.Shared_query((comm.rank + 1) % comm.size)[0], "d")
        mine += np.sin(u)
        win.Fence()
        near[0:1] *= np.cos(u[0:1])
        win.Fence()
        total[0:1] += 0.3 * np.sin(mine[0:1])
        del near
        win.Free()
        return total

    expected = through(plainly(step, 5), X)
    for kept in (1, 2, 3):
        same(through(lambda u: ampi.timeloop(step, u, 5, checkpoints=kept), X), expected)  # noqa: B023
    comm.Free()


def test_windows_of_before_the_loop_are_refused():
    win = ampi.MPI.Win.Allocate(24, 8, comm=COMM_WORLD)
    memory = np.frombuffer(win.tomemory(), "d")

    def step(u):
        memory[...] = u
        win.Fence()

    try:
        with pytest.raises(ampi.ActivityError, match="memory of a window"):
            through(lambda u: ampi.timeloop(step, u, 2), X)
    finally:
        COMM_WORLD.Barrier()
        win.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("checkpoints", [1, 4])
def test_windows_that_no_step_uses_stay_as_they_are(checkpoints):
    comm = COMM_WORLD.Dup()
    wins = [ampi.MPI.Win.Allocate(24, 8, comm=comm), ampi.MPI.Win.Create_dynamic(comm=comm)]
    wins[1].Attach(mine := np.zeros(3))
    try:
        expected = through(plainly(decayed, 4), X)
        same(through(lambda u: ampi.timeloop(decayed, u, 4, checkpoints=checkpoints), X), expected)
    finally:
        wins[1].Detach(mine)
        for win in wins:
            win.Free()
        comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", ["put", "get"])
def test_windows_of_before_the_loop_that_other_ranks_use_in_steps_are_refused_everywhere(way):
    """By one rank, in an epoch of Lock: the others make no call."""
    comm = COMM_WORLD.Dup()
    win = ampi.MPI.Win.Allocate(24, 8, comm=comm)

    def step(u):
        if comm.rank == 0:
            win.Lock(1)
            (win.Put if way == "put" else win.Get)(u, 1)
            win.Unlock(1)
        comm.Barrier()
        return u * 2.0

    try:
        with pytest.raises((ampi.ActivityError, ampi.CommunicationError), match="memory of a window"):
            through(lambda u: ampi.timeloop(step, u, 2, checkpoints=1, comm=comm), X)
    finally:
        COMM_WORLD.Barrier()
        win.Free()
        comm.Free()


def test_walks_want_a_tape_that_keeps_all_steps():
    step = lambda u: np.sin(u) * u
    x_dot = np.cos(np.arange(4.0))
    found = []
    for tangents in (False, True):
        with ampi.Tape(tangents=tangents) as tape:
            x = tape.watch(np.linspace(0.2, 1.1, 4))
            y = ampi.timeloop(step, x * 1, 5)
        if not tangents:
            with pytest.raises(ampi.ActivityError, match=r"ampi\.timeloop: .*ampi\.Tape\(tangents=True\)"):
                tape.tangent(y, x, x_dot)
            continue
        found = tape.tangent(y, x, x_dot), tape.gradient(y, x, seed=x_dot)
    y_dot = ampi.jvp(lambda x: ampi.timeloop(step, x * 1, 5), np.linspace(0.2, 1.1, 4), x_dot)[1]
    np.testing.assert_allclose(found[0], y_dot, rtol=1e-14)
    np.testing.assert_allclose(found[0] @ x_dot, found[1] @ x_dot, rtol=1e-13)

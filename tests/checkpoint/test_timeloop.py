"""Time loops: the gradient with a few kept states is that of the plain loop, whatever the steps do."""

import collections
import random as randomness

import numpy
import pytest
from timeloop_programs import Fields, decayed, plainly, same, through

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD


@ampi.kernel
def rotate(u, v, c):
    for i in range(len(u)):
        s = u[i]
        u[i] = s - 0.1 * c * v[i] * s
        v[i] = v[i] + 0.1 * c * s * v[i]


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


def test_walks_need_a_tape_that_keeps_all_steps():
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

"""Arrays that steps of a time loop leave behind outside the state, and loops that end with an error."""

import re

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

X = numpy.array([0.3, 0.7, -0.2])


def differences(f, x, width=1e-6):
    units = numpy.eye(x.size) * width
    return numpy.array([(float(f(x + unit)) - float(f(x - unit))) / (2.0 * width) for unit in units])


class Observed:
    """A loop whose steps store results outside the state; ``which`` are read afterwards."""

    def __init__(self, store, which, **options):
        self.store, self.which, self.options = store, which, options

    def __call__(self, x):
        found, count = [], [0]

        def step(u):
            u = np.sin(u)
            found.append(self.store(u))
            count[0] += 1
            return u

        u = ampi.timeloop(step, np.array(x) * 1.0, **{"steps": 7, "checkpoints": 2, **self.options})
        return np.sum(u) + sum(np.sum(found[k]) for k in self.which)


LOOPS = {
    "steps": {},
    "one checkpoint": {"checkpoints": 1},
    "until": {"steps": None, "until": lambda u: bool(abs(ampi.value(u)[1]) < 0.45)},
    "all recorded": {"checkpoints": 20},
    "memory": {"checkpoints": None, "memory": "1MiB"},
    "schedule": {"schedule": "Revolve"},
}


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("which", [[0], [3], [-1], range(5)], ids=["first", "fourth", "last", "all"])
@pytest.mark.parametrize("store", [np.sum, np.copy, lambda u: u[0], lambda u: u[1:] * 2.0], ids=list("abcd"))
def test_results_beside_the_state_are_an_error(store, which, loop):
    """They had been constants, without a word."""
    program = Observed(store, which, **LOOPS[loop])
    with pytest.raises(ampi.ActivityError, match=r"was computed by a step of .* and is not in its state"):
        ampi.grad(program)(X)


@pytest.mark.parametrize("loop", LOOPS)
def test_values_beside_the_state_are_constants(loop):
    """This is what the error recommends."""
    program = Observed(lambda u: ampi.value(np.sum(u)), range(5), **LOOPS[loop])
    expected = ampi.grad(Observed(ampi.value, [], **LOOPS[loop]))(X)
    numpy.testing.assert_array_equal(ampi.grad(program)(X), expected)


@pytest.mark.parametrize("loop", LOOPS)
def test_printed_and_forgotten_results_may_be_anywhere(loop):
    """Only those that are used matter."""
    program = Observed(np.sum, [], **LOOPS[loop])
    numpy.testing.assert_allclose(ampi.grad(program)(X), differences(program, X), rtol=1e-7)


def table(make, **options):
    """Return a loop with a table that its first step makes."""

    def program(x):
        held = {}
        x = np.array(x) * 1.0

        def step(u):
            if not held:
                held["table"] = make(x)
            u *= 0.5 * held["table"]

        return np.sum(ampi.timeloop(step, x * 1.0, **{"steps": 7, "checkpoints": 2, **options}) * held["table"])

    return program


@pytest.mark.parametrize("loop", ["steps", "one checkpoint", "all recorded", "memory", "schedule"])
def test_constant_tables_of_the_first_step(loop):
    """They may be made by the first step and used by all others, and after the loop."""
    program = table(lambda x: np.linspace(1.0, 2.0, 3), **LOOPS[loop])
    numpy.testing.assert_allclose(ampi.grad(program)(X), differences(program, X), rtol=1e-7)


@pytest.mark.parametrize("loop", ["steps", "one checkpoint", "all recorded", "memory", "schedule"])
def test_active_tables_of_the_first_step_are_an_error(loop):
    """Other steps had read them as constants."""
    with pytest.raises(ampi.ActivityError, match=r"by a step of ampi\.timeloop|an earlier step has computed"):
        ampi.grad(table(np.exp, **LOOPS[loop]))(X)


def late_table(make, made, **options):
    """Return a loop with a table that step ``made`` makes from the independents or the state, and later ones use."""

    def program(x):
        held = {}
        x = np.array(x) * 1.0

        def step(s):
            if s["n"] == made and not held:
                held["table"] = make(x, s["u"])
            if s["n"] >= made:
                s["u"] = s["u"] * 0.5 + held["table"]
            s["n"] += 1

        return np.sum(
            ampi.timeloop(step, {"u": x * 1.0, "n": 0}, **{"steps": 9, "checkpoints": 2, **options})["u"] ** 2
        )

    return program


@pytest.mark.parametrize("loop", ["steps", "one checkpoint", "all recorded", "memory", "schedule"])
@pytest.mark.parametrize("made", [1, 3, 6, 7])
@pytest.mark.parametrize(
    "make",
    [
        lambda x, u: np.exp(x),
        lambda x, u: u * 2.0,
        lambda x, u: np.sum(u),
        lambda x, u: u[1],
        lambda x, u: x[1:2] * 3.0,
    ],
    ids=["independents", "state", "sum", "element", "view"],
)
def test_active_tables_of_later_steps_are_an_error(make, made, loop):
    """Steps that run again had read them as constants."""
    with pytest.raises(ampi.ActivityError, match=r"by a step of ampi\.timeloop|an earlier step has computed"):
        ampi.grad(late_table(make, made, **LOOPS[loop]))(X)


@pytest.mark.parametrize("loop", ["steps", "one checkpoint", "all recorded", "memory", "schedule"])
@pytest.mark.parametrize("made", [1, 3, 7])
@pytest.mark.parametrize("make", [lambda x, u: ampi.value(u) * 2.0, lambda x, u: numpy.ones(3)], ids=["value", "NumPy"])
def test_values_of_later_steps_are_constants(make, made, loop):
    """They may be made by any step."""
    constant = {}

    def first(x, u):
        return constant.setdefault("table", numpy.array(make(x, u)))

    program = late_table(make, made, **LOOPS[loop])
    frozen = late_table(first, made, **LOOPS[loop])
    frozen(X)
    numpy.testing.assert_allclose(ampi.grad(program)(X), differences(frozen, X), rtol=1e-7)


class Stopped(Exception):
    """Raised by a step."""


def stopped_at(n):
    count = [0]

    def step(u):
        count[0] += 1
        if count[0] == n:
            raise Stopped
        u[...] = 1.1 * np.sin(u)

    return step


@pytest.mark.parametrize("loop", ["steps", "one checkpoint", "all recorded"])
@pytest.mark.parametrize("n", [2, 5, 7])
def test_states_after_an_error_are_not_known(n, loop):
    """Their derivatives had been zero."""

    def program(x):
        u = np.array(x) * 1.0
        try:
            ampi.timeloop(stopped_at(n), u, **{"steps": 7, "checkpoints": 2, **LOOPS[loop]})
        except Stopped:
            pass
        return np.sum(u * u)

    with pytest.raises(ampi.ActivityError, match=re.escape("an ampi.timeloop that ended with an error")):
        ampi.grad(program)(X)


@pytest.mark.mpi
@pytest.mark.parametrize("loop", ["steps", "one checkpoint", "all recorded"])
@pytest.mark.parametrize("n", [1, 2, 5, 7])
def test_loops_that_begin_again_after_an_error(n, loop):
    """What steps before the error have overwritten is restored in the sweep, and what they used is active again."""

    def program(x):
        k = np.array(x) * 2.0
        u = k * k
        product = u * u * k  # needs values that the loop overwrites
        backup = u * 1.0
        step = stopped_at(n)

        def scaled(u):
            u *= k
            step(u)

        options = {"steps": 7, "checkpoints": 2, **LOOPS[loop]}
        try:
            ampi.timeloop(scaled, u, **options)
        except Stopped:
            u = backup
            ampi.timeloop(lambda u: np.multiply(u, np.cos(k), out=u), u, **options)
        return COMM_WORLD.allreduce(np.sum(u * k) + np.sum(product))

    gradient = ampi.grad(lambda x: program(x) / COMM_WORLD.size)(X)
    numpy.testing.assert_allclose(gradient, differences(lambda x: program(x) / COMM_WORLD.size, X), rtol=1e-6)


def test_a_budget_that_is_too_small_leaves_the_state_as_it_was():
    """The step that was measured is undone."""

    def program(x):
        u = np.array(x) * 1.0
        try:
            ampi.timeloop(stopped_at(9), u, steps=7, memory=10)
        except ampi.TapeError:
            ampi.timeloop(stopped_at(9), u, steps=7, memory="1MiB")
        return np.sum(u * u)

    numpy.testing.assert_allclose(ampi.grad(program)(X), differences(program, X), rtol=1e-7)

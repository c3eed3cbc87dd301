"""Random numbers whose distribution depends on something active: an error that says what to write, whoever draws."""

import copy
import inspect
import pickle

import numpy
import pytest
from numpy.random import mtrand

import ampi
import ampi.numpy as anp


class Derived(numpy.random.RandomState):
    pass


class Ours(anp.random.RandomState):
    pass


STATE, GENERATOR = numpy.random.RandomState(1), numpy.random.default_rng(1)
DRAWN = {cls: [name for name in dir(cls) if name.islower() and name[0] != "_"] for cls in map(type, (STATE, GENERATOR))}
NOTHING_ACTIVE = {"bit_generator", "bytes", "get_state", "rand", "randn", "seed", "set_state", "spawn", "tomaxint"}
KEPT = {  # before any tape
    **{("RandomState", name): getattr(STATE, name) for name in DRAWN[numpy.random.RandomState]},
    **{("Generator", name): getattr(GENERATOR, name) for name in DRAWN[numpy.random.Generator] if name != "spawn"},
}
STATES = {
    "an object": lambda name: getattr(numpy.random.RandomState(3), name),
    "kept": lambda name: KEPT["RandomState", name],
    "the class": lambda name: getattr(numpy.random.RandomState, name).__get__(STATE),
    "a derived class": lambda name: getattr(Derived(3), name),
    "a function": lambda name: getattr(numpy.random, name),
    "its module": lambda name: getattr(mtrand, name),
    "the shared object": lambda name: getattr(mtrand._rand, name),
    "ours": lambda name: getattr(anp.random.RandomState(3), name),
    "derived from ours": lambda name: getattr(Ours(3), name),
    "our function": lambda name: getattr(anp.random, name),
    "our module": lambda name: getattr(anp.random.mtrand, name),
    "our shared object": lambda name: getattr(anp.random.mtrand._rand, name),
}
GENERATORS = {
    "an object": lambda name: getattr(numpy.random.default_rng(3), name),
    "kept": lambda name: KEPT["Generator", name],
    "ours": lambda name: getattr(anp.random.default_rng(3), name),
}
CASES = [
    (cls, name, way)
    for cls, ways in ((numpy.random.RandomState, STATES), (numpy.random.Generator, GENERATORS))
    for name in DRAWN[cls]
    if name not in NOTHING_ACTIVE
    for way in ways
]


def given_as(x):
    """An argument that depends on x, in one of several forms."""
    return x, x[0], [x[0], 2.0], 2 * x


@pytest.mark.parametrize("cls, name, way", CASES, ids=[f"{c.__name__}.{n} of {w}" for c, n, w in CASES])
def test_each_argument_that_is_active_is_an_error(cls, name, way):
    draw = (STATES if cls is numpy.random.RandomState else GENERATORS)[way](name)
    parameters = [p for p in inspect.signature(getattr(numpy.random, cls.__name__).__dict__[name]).parameters]
    for parameter in parameters:
        if parameter in ("self", "size", "dtype", "out", "axis", "method", "endpoint", "replace", "shuffle"):
            continue
        if parameter in ("check_valid", "tol", "nsample", "ngood", "nbad", "nsamp") and name != "hypergeometric":
            continue
        with ampi.Tape() as tape:
            x = tape.watch(numpy.array([0.4, 0.5]))
            for argument in given_as(x):
                if name == "shuffle" and isinstance(argument, list):
                    continue
                with pytest.raises(ampi.errors.ActivityError, match=name):
                    if parameters.index(parameter) == 1:
                        draw(argument)
                    else:
                        draw(**{parameter: argument})


@pytest.mark.parametrize("way", STATES)
def test_items_of_a_list_keep_their_derivatives_when_they_are_shuffled(way):
    def f(x):
        items = [x[0], x[1], x[2]]
        STATES[way]("shuffle")(items)
        return items[0] + 2 * items[1] + 3 * items[2]

    assert sorted(ampi.grad(f)(numpy.ones(3))) == [1.0, 2.0, 3.0]


def test_numbers_that_are_drawn_are_the_same_on_a_tape():
    expected = [getattr(numpy.random.RandomState(5), name)(0.5, size=3) for name in ("normal", "gamma", "exponential")]
    with ampi.Tape() as tape:
        tape.watch(numpy.ones(1))
        for module in (numpy, anp):
            found = [getattr(module.random.RandomState(5), n)(0.5, size=3) for n in ("normal", "gamma", "exponential")]
            assert all(numpy.array_equal(a, b) for a, b in zip(found, expected))


@pytest.mark.parametrize("made", [lambda: anp.random.RandomState(3), lambda: anp.random.mtrand._rand])
def test_copies_go_on_as_the_generator_does(made):
    state = made()
    state.normal()  # keeps the second number of a pair
    copies = [copy.deepcopy(state), pickle.loads(pickle.dumps(state))]
    drawn = state.normal(size=4)
    for other in copies:
        assert isinstance(other, anp.random.RandomState)
        assert numpy.array_equal(other.normal(size=4), drawn)


def test_the_shared_generator_is_that_of_the_functions():
    anp.random.seed(7)
    first = anp.random.mtrand._rand.normal(size=3)
    anp.random.mtrand._rand.seed(7)
    assert numpy.array_equal(anp.random.normal(size=3), first)
    assert isinstance(anp.random.mtrand._rand, numpy.random.RandomState)
    assert isinstance(first, ampi.ndarray)


WEIGHTS = {
    "RandomState": "np.random.RandomState(5)",
    "mtrand": "np.random.mtrand.RandomState(5)",
    "shared": "(np.random.seed(5), np.random.mtrand._rand)[1]",
    "by name": "__import__('numpy.random', fromlist=['RandomState']).RandomState(5)",
}


@pytest.mark.mpi
@pytest.mark.parametrize("how", WEIGHTS)
def test_weights_of_a_program_are_updated_in_place(how, tmp_path_factory):
    path = ampi.COMM_WORLD.bcast(str(tmp_path_factory.mktemp("drawn")) if not ampi.COMM_WORLD.rank else None)
    if not ampi.COMM_WORLD.rank:
        with open(f"{path}/prog.py", "w") as file:
            file.write(
                "import numpy as np\nlr = 0.1\n"
                f"w = {WEIGHTS[how]}.normal(0.0, 1.0, (3, 2))\nw -= lr * np.cos(w)\nJ = float(np.sum(w**2))\n"
            )
    ampi.COMM_WORLD.Barrier()
    w0 = numpy.random.RandomState(5).normal(0.0, 1.0, (3, 2))
    w = w0 - 0.1 * numpy.cos(w0)
    _, (found,) = ampi.trace(f"{path}/prog.py", wrt=("lr",), of="J")
    assert float(found) == pytest.approx(-2 * numpy.sum(w * numpy.cos(w0)), rel=1e-13)

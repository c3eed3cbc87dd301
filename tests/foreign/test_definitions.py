"""`ampi.rules.define`: rules for functions of libraries that know nothing of ampi."""

import functools
import inspect
import sys
import types

import numpy
import pytest

import ampi
import ampi.numpy as np

SOURCE = """
import functools
import numpy

def solve(a, b, transposed=False):
    "The solution of a x = b."
    return numpy.linalg.solve(numpy.asarray(a).T if transposed else numpy.asarray(a), numpy.asarray(b))

def decorated(f):
    @functools.wraps(f)
    def call(*arguments):
        return f(*arguments)
    return call

@decorated
def cubed(x):
    return numpy.asarray(x) ** 3

def both(x, *others, scale=1.0, **named):
    return {"sum": scale * (numpy.asarray(x) + sum(others)), "count": len(others), "double": [2 * numpy.asarray(x)]}

def summed(comm, x):
    return comm.allreduce(float(numpy.asarray(x).sum()))

def largest(x, axis=None, least=-numpy.inf):
    "The largest squares, rounded upwards."
    return numpy.nextafter(numpy.max(numpy.asarray(x) ** 2, axis, initial=least), numpy.inf)

class Field:
    def __init__(self, values):
        self.values = numpy.asarray(values)

    def scaled(self, factor):
        return Field(self.values * factor)
"""


@pytest.fixture
def library():
    """A module that has been imported before it gets rules."""
    module = types.ModuleType("a_library")
    exec(SOURCE, vars(module))
    sys.modules["a_library"] = module
    yield module
    del sys.modules["a_library"]


def differences(f, x, h=1e-6):
    return numpy.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in numpy.eye(x.size).reshape(-1, *x.shape)])


def test_adjoints_of_names_that_were_imported_before(library):
    solve = library.solve
    ampi.rules.define(
        "a_library:solve",
        adjoint={
            "b": lambda g, a, transposed: solve(a, g, not transposed),
            "a": lambda g, a, transposed, result: _of_matrix(solve(a, g, not transposed), result, transposed),
        },
    )
    a, b = numpy.array([[3.0, 1.0], [0.5, 2.0]]), numpy.array([1.0, -2.0])
    for transposed in (False, True):
        f = lambda a, b, t=transposed: (solve(a, b, t) ** 2).sum()
        found = ampi.grad(f, argnums=(0, 1))(a, b)
        numpy.testing.assert_allclose(found[0].ravel(), differences(lambda a, f=f: f(a, b), a), rtol=1e-6)
        numpy.testing.assert_allclose(found[1], differences(lambda b, f=f: f(a, b), b), rtol=1e-6)
    assert str(inspect.signature(solve)) == "(a, b, transposed=False)" and solve.__doc__.startswith("The solution")
    assert type(solve(a, b)) is numpy.ndarray


def _of_matrix(bar, x, transposed):
    return -numpy.outer(x, bar) if transposed else -numpy.outer(bar, x)


def test_formulas_and_functions_with_cells(library):
    partial = functools.partial(library.cubed)

    @ampi.rules.define("a_library:cubed")
    def cubed(x):
        return x * x * x * (1 + 1e-9)

    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        y = partial(x)
    numpy.testing.assert_array_equal(ampi.value(y), [1.0, 8.0])  # the function's own values
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=[1.0, 1.0]), [3.0, 12.0], rtol=1e-6)


@pytest.mark.parametrize(("axis", "least"), [(None, -numpy.inf), (1, -numpy.inf), (1, 4.0)])
def test_extrema_of_formulas_that_round_otherwise_keep_their_derivatives(library, axis, least):
    @ampi.rules.define(library.largest)
    def largest(x, axis=None, least=-numpy.inf):
        return np.max(x * x, axis, initial=least)

    x = numpy.array([[0.3, -1.9, 1.2], [-2.3, 0.4, 2.1]])
    value = lambda x: np.sum(library.largest(x, axis, least))
    squares = lambda x: numpy.sum(numpy.max(numpy.asarray(x) ** 2, axis, initial=least))
    expected = differences(squares, x).reshape(x.shape)
    numpy.testing.assert_allclose(ampi.grad(value)(x), expected, rtol=1e-8, atol=1e-8)
    assert ampi.jvp(value, (x,), (x,))[1] == pytest.approx(numpy.vdot(expected, x))
    numpy.testing.assert_allclose(ampi.hvp(value, (x,), (x,))[0], numpy.where(expected, 2.0 * x, 0.0), rtol=1e-14)


def test_results_and_arguments_of_any_structure(library):
    ampi.rules.define(
        "a_library:both",
        adjoint={
            "x": lambda g, scale: scale * g["sum"] + 2 * g["double"][0],
            "others": lambda g, scale, others: tuple(scale * g["sum"] for _ in others),
        },
    )
    with ampi.Tape() as tape:
        x, u, v = (tape.watch(numpy.ones(2)) for _ in range(3))
        y = library.both(x, u, v, scale=3.0)
        loss = np.sum(y["sum"]) + np.sum(y["double"][0])
    assert y["count"] == 2
    for found, expected in zip(tape.gradient(loss, [x, u, v]), (5.0, 3.0, 3.0)):
        numpy.testing.assert_array_equal(found, [expected] * 2)
    with ampi.Tape() as tape, pytest.raises(ampi.ActivityError, match=r"test_definitions.py.*both.*argument scale"):
        library.both(1.0, scale=tape.watch(2.0))


def test_arrays_inside_of_objects(library):
    Field = library.Field
    ampi.rules.define_class("a_library:Field", lambda f: ((f.values,), None), lambda arrays, _: _field(Field, *arrays))
    ampi.rules.define(
        "a_library:Field.scaled",
        adjoint={"self": lambda g, factor: (g[0] * factor,), "factor": lambda g, self: (g[0] * self.values).sum()},
    )
    with ampi.Tape() as tape:
        x, s = tape.watch(numpy.array([1.0, 2.0])), tape.watch(3.0)
        field = _field(Field, x).scaled(s)
        loss = np.sum(field.values**2)
    assert type(field) is Field
    found = tape.gradient(loss, [x, s])
    numpy.testing.assert_allclose(found[0], [18.0, 36.0])
    numpy.testing.assert_allclose(found[1], 30.0)


def _field(cls, values):
    made = object.__new__(cls)
    made.values = values
    return made


def test_values_that_are_needed_are_those_of_the_call(library):
    ampi.rules.define("a_library:solve", adjoint={"b": lambda g, a: numpy.linalg.solve(a.T, g)})
    a = numpy.array([[2.0, 0.0], [0.0, 4.0]])
    with ampi.Tape() as tape:
        b = tape.watch(numpy.ones(2))
        y = library.solve(a, b)
        a[:] = 1.0  # a plain array of the program's
    numpy.testing.assert_array_equal(tape.gradient(y, b, seed=numpy.ones(2)), [0.5, 0.25])


@pytest.mark.mpi
def test_adjoints_that_communicate(library):
    comm = ampi.COMM_WORLD
    ampi.rules.define(
        "a_library:summed",
        adjoint={"x": lambda g, comm, x: numpy.full(numpy.shape(x), comm.allreduce(float(g)))},
        communicates=True,
    )
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(comm.rank)) if comm.rank != 1 else numpy.ones(1)  # empty on rank 0, passive on 1
        y = library.summed(comm, x) * 2.0
    found = tape.gradient(y if comm.rank == 0 else None, None if comm.rank == 1 else x)
    if comm.rank != 1:
        numpy.testing.assert_array_equal(found, numpy.full(comm.rank, 2.0))


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_forward_mode_refuses_adjoints_that_write_into_plain_arrays(library):
    def scattered(g, x):
        bar = numpy.zeros(x.shape)
        bar[:] = 2.0 * g
        return bar

    library.doubled = lambda x: x * 2.0
    ampi.rules.define(library.doubled, adjoint={"x": scattered})
    f = lambda x: library.doubled(x).sum()
    numpy.testing.assert_array_equal(ampi.grad(f)(numpy.ones(2)), [2.0, 2.0])
    with pytest.raises(ampi.ActivityError, match="no tangent"):
        ampi.jvp(f, (numpy.ones(2),), (numpy.ones(2),))


def test_mistakes_are_errors(library):
    with pytest.raises(TypeError, match=r"package\.module:name"):
        ampi.rules.define("a_library.solve", adjoint={"b": lambda g: g})
    with pytest.raises(TypeError, match="no parameter 'c'"):
        ampi.rules.define(library.solve, adjoint={"c": lambda g: g})
    with pytest.raises(TypeError, match="requests 'z'"):
        ampi.rules.define(library.solve, adjoint={"b": lambda g, z: g})
    with pytest.raises(TypeError, match="is a class"):
        ampi.rules.define(library.Field, adjoint={})
    ampi.rules.define(library.solve, adjoint={"b": lambda g: g[:1]})
    with ampi.Tape() as tape:
        b = tape.watch(numpy.ones(2))
        y = library.solve(numpy.eye(2), b)
    with pytest.raises(ampi.TapeError, match=r"returned shape \(1,\) for b of shape \(2,\)"):
        tape.gradient(y, b, seed=numpy.ones(2))


def test_importing_ampi_imports_no_part_of_scipy_for_its_rules():
    import subprocess

    code = (
        "import sys, ampi.rules, ampi.foreign.scipy; "
        "print([m for m in sys.modules if m.startswith('ampi.foreign.scipy.')])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"

"""Active numbers and arrays with objects of other classes in arithmetic: the class computes with the active number
itself, or an error says that a derivative would be lost."""

import fractions
import operator

import numpy
import pytest

import ampi
import ampi.numpy

X0 = numpy.array([0.7, 1.3])
V0 = numpy.array([2.2, -1.1, 0.55])
OPERATORS = "add sub mul truediv mod floordiv pow".split()


class Field:
    """An object like those of libraries that have their own arrays."""

    def __init__(self, values):
        self.values = values


for name in OPERATORS:
    forward = getattr(operator, name)
    setattr(Field, f"__{name}__", lambda self, x, forward=forward: Field(forward(self.values, x)))
    setattr(Field, f"__r{name}__", lambda self, x, forward=forward: Field(forward(x, self.values)))


class Indexed(Field):
    """The same with elements."""

    def __getitem__(self, key):
        return self.values[key]


NUMBERS = {"scalar": lambda x: x.sum(), "element": lambda x: x[1], "0-d array": lambda x: (x[:1] * 2).reshape(())}
POSITIVE = {"pow"}


@pytest.mark.parametrize("name", OPERATORS)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("kind", [Field, Indexed])
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_objects_compute_with_the_active_number(name, number, kind):
    forward = getattr(operator, name)
    values = abs(V0) if name in POSITIVE else V0

    def program(x):
        a = NUMBERS[number](x)
        left, right = forward(kind(values), a), forward(a, kind(values))
        return (left.values * right.values * numpy.cos(numpy.arange(3))).sum()

    gradient = ampi.grad(program)(X0)
    h = 1e-6
    expected = [(program(X0 + d) - program(X0 - d)) / (2 * h) for d in h * numpy.eye(2)]
    numpy.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7)


def test_a_ufunc_with_the_object_in_front_is_its_operator():
    def program(x):
        return numpy.multiply(Field(V0), x.sum()).values.sum() * numpy.subtract(x.sum(), Field(V0)).values[0]

    h = 1e-6
    expected = [(program(X0 + d) - program(X0 - d)) / (2 * h) for d in h * numpy.eye(2)]
    numpy.testing.assert_allclose(ampi.grad(program)(X0), expected, rtol=1e-6)


def test_other_numbers_are_numbers():
    half = fractions.Fraction(1, 2)
    gradient = ampi.grad(lambda x: (x.sum() * half) * (half + x[0]))(X0)
    numpy.testing.assert_allclose(gradient, [0.5 * (0.5 + X0[0]) + 0.5 * X0.sum(), 0.5 * (0.5 + X0[0])], rtol=1e-14)


@pytest.mark.parametrize(
    "program",
    [
        lambda x: x * Field(V0),
        lambda x: numpy.multiply(Field(V0), x),
        lambda x: x * numpy.array([1.0, 2.0], object),
        lambda x: numpy.array([1.0, 2.0], object) + x,
        lambda x: x.sum() * numpy.array([1.0, 2.0], object),
        lambda x: ampi.numpy.array([1.0, 2.0], object) @ x,
        lambda x: numpy.hypot(x.sum(), Field(V0)),
        lambda x: numpy.multiply.outer(x, numpy.array([1.0], object)),
    ],
)
def test_where_python_would_compute_with_elements_is_an_error(program):
    with ampi.Tape() as tape:
        x = tape.watch(X0)
        with pytest.raises(ampi.ActivityError, match=r"test_operands.py:\d+: numpy.* object"):
            program(x)


def test_without_an_active_operand_it_is_numpys():
    with ampi.Tape() as tape:
        tape.watch(X0)
        x = ampi.numpy.array(X0)
        assert (x * numpy.array([1.0, 2.0], object)).dtype == object
        assert isinstance((x * Field(V0))[0], Field)
    with ampi.Tape() as tape:
        x = tape.watch(X0)
        with pytest.raises(TypeError):
            x.sum() * None


@pytest.mark.parametrize(
    "power",
    [
        lambda x: x ** x[0],
        lambda x: ampi.numpy.outer(x, x) ** x[1],
        lambda x: numpy.array([3.0, 2.0]) ** x[0],
        lambda x: operator.ipow(x * 1.0, x[0]),
        lambda x: operator.ipow(ampi.numpy.outer(x, x), x[1]),
        lambda x: x ** (x * 1.0)[0:1].reshape(()),
    ],
)
def test_powers_of_arrays_with_active_exponents(power):
    """NumPy 2.2 makes a Python float of a 0-d exponent."""
    gradient = ampi.grad(lambda x: power(x).sum())(X0)
    expected = [(power(X0 + d).sum() - power(X0 - d).sum()) / 2e-6 for d in 1e-6 * numpy.eye(2)]
    numpy.testing.assert_allclose(gradient, expected, rtol=1e-7)

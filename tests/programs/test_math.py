"""Python's `math` under ``python -m ampi.run``: values and errors are Python's, and derivatives are kept."""

import math

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.programs.numbers import convert, make_math

OURS = make_math()
X = numpy.array([1.3, 2.2, 0.7])

WRONG = {
    "sqrt": lambda m, a, b, c: m.sqrt(-a),
    "log": lambda m, a, b, c: m.log(a - a),
    "log to 1": lambda m, a, b, c: m.log(a, 1.0),
    "exp": lambda m, a, b, c: m.exp(1000.0 * a),
    "pow": lambda m, a, b, c: m.pow(a - a, -1),
    "root": lambda m, a, b, c: m.pow(-a, 0.5),
    "acos": lambda m, a, b, c: m.acos(b),
    "fmod": lambda m, a, b, c: m.fmod(a, 0.0),
    "sin": lambda m, a, b, c: m.sin(a * math.inf),
    "dist": lambda m, a, b, c: m.dist([a], [b, c]),
    "gamma": lambda m, a, b, c: m.gamma(a - a - 1.0),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_are_pythons(what):
    """A program may catch them; NaN or infinity had been returned, with NumPy's warning."""
    with pytest.raises((ArithmeticError, ValueError)) as expected:
        WRONG[what](math, *X)

    def program(x):
        with pytest.raises(type(expected.value)) as found:
            WRONG[what](OURS, *x)
        assert str(found.value) == str(expected.value)
        return np.sum(x)

    ampi.grad(program)(X)


FUNCTIONS = {
    **{
        name: (lambda m, a, b, c, name=name: getattr(m, name)(a * c))
        for name in "sin cos tan sinh cosh tanh exp expm1 log log2 log10 log1p sqrt asin acos atan asinh fabs".split()
    },
    **{name: (lambda m, a, b, c, name=name: getattr(m, name)(a * c)) for name in "erf erfc gamma lgamma".split()},
    "gamma of a negative number": lambda m, a, b, c: m.gamma(-a) + m.lgamma(-b),
    "pow": lambda m, a, b, c: m.pow(a, b),
    "pow of a constant": lambda m, a, b, c: m.pow(2, b) * m.pow(a, 3),
    "hypot": lambda m, a, b, c: m.hypot(a, b),
    "fmod": lambda m, a, b, c: m.fmod(b, a),
    "acosh": lambda m, a, b, c: m.acosh(a),
    "atan2": lambda m, a, b, c: m.atan2(a, b),
    "log to a base": lambda m, a, b, c: m.log(a, b),
    "hypot of one": lambda m, a, b, c: m.hypot(-a),
    "hypot of three": lambda m, a, b, c: m.hypot(a, b, c),
    "hypot of large numbers": lambda m, a, b, c: m.hypot(1e200 * a, 1e200 * b, 1e200) * 1e-200,
    "hypot of small numbers": lambda m, a, b, c: m.hypot(1e-200 * a, 1e-200 * b, 1e-200) * 1e200,
    "dist": lambda m, a, b, c: m.dist((1e200 * a, 2.0), (1e200 * b, c)) * 1e-200,
    "fsum": lambda m, a, b, c: m.fsum([a, 1e16 * b, 1.0, -1e16 * b]),
    "fsum of an iterator": lambda m, a, b, c: m.fsum(iter([a, b, 0.1])),
    "prod": lambda m, a, b, c: m.prod([a, b], start=c),
}


@pytest.mark.parametrize("what", FUNCTIONS)
def test_values_are_pythons(what):
    """Bitwise; and derivatives agree with differences."""
    function, values = FUNCTIONS[what], []

    def program(x):
        found = function(OURS, *x)
        values.append(float(ampi.value(found)))
        return found

    gradient = ampi.grad(program)(X)
    assert values == [float(function(math, *X))]
    if what == "fsum":
        numpy.testing.assert_allclose(gradient, [1.0, 0.0, 0.0])
        return
    moves = 1e-6 * numpy.eye(3)
    differences = [(function(math, *(X + d)) - function(math, *(X - d))) / 2e-6 for d in moves]
    numpy.testing.assert_allclose(gradient, differences, rtol=1e-7, atol=1e-8)


def test_complex_numbers_of_two_parts():
    """``complex(a, b)`` keeps both derivatives, and has the parts that it is given, signed zeros and infinities too."""

    def program(x):
        z = convert(complex, x[0], x[1]) * convert(complex, 2, x[2]) / convert(complex, x[1] * x[2], 0.5)
        return abs(z) * z.real

    def by_differences(f):
        return [(f(X + 1e-6 * e) - f(X - 1e-6 * e)) / 2e-6 for e in numpy.eye(3)]

    def by_name(x):
        z = convert(complex, real=x[0], imag=x[1]) * convert(complex, 2, imag=x[2]) + convert(complex, imag=x[0] * x[1])
        return abs(z) * (z * convert(complex, real=x[1])).imag

    numpy.testing.assert_allclose(ampi.grad(by_name)(X), by_differences(by_name), rtol=1e-7)
    numpy.testing.assert_allclose(ampi.grad(program)(X), by_differences(program), rtol=1e-7)
    numpy.testing.assert_allclose(ampi.hessian(program, X), by_differences(ampi.grad(program)), rtol=1e-7, atol=1e-7)
    with ampi.Tape() as tape:
        a, b = tape.watch(numpy.array([math.inf, -0.0]))
        for pair in ((a, b), (b, a), (b, b)):
            assert str(convert(complex, *pair)) == str(complex(*map(float, map(ampi.value, pair))))

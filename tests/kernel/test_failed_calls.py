"""Programs that catch the exception of a kernel, and go on with the arrays that it was to fill."""

import math

import numpy
import pytest

import ampi

X = numpy.array([0.9, 0.8, 1.1, 1.3, 1.2, 1.0])
WEIGHTS = numpy.arange(1.0, 7.0)


def after_writing(x, y):
    s = x[0]
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
        if s > 2.5:
            raise ValueError("too large")
        s = s * x[i] + s * s / (1.0 + s * s)
    return s


def before_writing(x, y):
    if x[0] > 0.5:
        raise ValueError("too large")
    s = x[0]
    for i in range(x.shape[0]):
        s = s * x[i] + s * s / (1.0 + s * s)
        y[i] = s
    return s


def dividing(x, y):
    if x[0] < 0.5:
        raise ValueError("too small")
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
        y[i] /= i - 3
    return 0.0


def used(kernel, x, y, overwritten):
    """A value that depends on what a failed kernel has left in ``y``, or has not, if it is ``overwritten``."""
    with pytest.raises((ValueError, ZeroDivisionError)):
        kernel(x, y)
    if overwritten:
        y[...] = 2.0 * x
    return (y * WEIGHTS).sum() * x[0]


@pytest.mark.parametrize("without", ["", "split"])
@pytest.mark.parametrize("function", [after_writing, before_writing, dividing])
def test_what_a_failed_kernel_has_written_has_no_derivative(function, without):
    """An error rather than the derivative of what was there before, unless the kernel fails before it writes."""
    kernel = ampi.kernel(function, without=without, error_model="python")
    for overwritten in (True, False, False, False):  # repeated calls are recorded by other code
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = x * 3.0
            value = used(kernel, x, y, overwritten)
        if overwritten or function is before_writing:
            factor = 2.0 if overwritten else 3.0
            expected = factor * (WEIGHTS * X[0] + (X @ WEIGHTS) * numpy.eye(6)[0])
            numpy.testing.assert_allclose(tape.gradient(value, x), expected, rtol=1e-14)
        else:
            with pytest.raises(ampi.ActivityError, match=r"a kernel raised .* used afterwards"):
                tape.gradient(value, x)


@pytest.mark.parametrize("function", [after_writing, before_writing])
@pytest.mark.parametrize("error_model", ["numpy", "python"])
def test_forward_and_second_order(function, error_model):
    kernel = ampi.kernel(function, error_model=error_model)

    def left(x):
        return used(kernel, x, x * 3.0, False)

    def overwritten(x):
        return used(kernel, x, x * 3.0, True)

    assert math.isfinite(ampi.jvp(overwritten, (X,), (X,))[1])
    assert numpy.isfinite(ampi.hvp(overwritten, X, X)).all()
    _, tangent = ampi.jvp(left, (X,), (X,))
    assert math.isfinite(tangent) == (function is before_writing)
    if function is after_writing:
        with pytest.raises(ampi.ActivityError, match="used afterwards"):
            ampi.hvp(left, X, X)


def test_an_array_of_constants_is_not_taken_for_its_old_value():
    kernel = ampi.kernel(after_writing)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        value = used(kernel, x, ampi.numpy.zeros(6), False)
    with pytest.raises(ampi.ActivityError, match="used afterwards"):
        tape.gradient(value, x)

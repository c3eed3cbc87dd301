"""Values that adjoints read where the kernel left them: in its arguments after the call, and in scratch arrays."""

import math

import numpy
import pytest

import ampi
import ampi.numpy

RNG = numpy.random.default_rng(7)
X = RNG.uniform(0.5, 1.5, 12)


def product(x, y):
    total = 1.0
    for i in range(x.shape[0]):
        total *= x[i]
        y[i] = total


def shifted(x, y):
    total = 0.5
    for i in range(2, x.shape[0] - 1):
        total = total * x[i] + 1.0 / total
        y[i + 1] = total


def rows(x, y):
    for i in range(x.shape[0]):
        total = x[i, 0]
        for j in range(x.shape[1]):
            total = total * x[i, j] / (1.0 + total * total)
            y[i, j] = total


def in_place(x, y):
    total = 1.0
    for i in range(x.shape[0]):
        total = total * x[i] / (1.0 + total * total) + 0.25
        x[i] = total
    for i in range(1, x.shape[0]):
        y[i] = x[i] * x[i] * x[i - 1]


def now_and_then(x, y):
    total = 1.0
    for i in range(x.shape[0]):
        total *= x[i]
        if i % 3 != 1:
            y[i] = total


def overwritten(x, y):
    total = 1.0
    for i in range(x.shape[0]):
        total *= x[i]
        y[i // 2] = total


def nothing(np, call, x):
    y = np.zeros(x.shape, x.dtype)
    call(x, y)
    return y


def changed_later(np, call, x):
    y = np.zeros(x.shape, x.dtype)
    call(x, y)
    z = y * y
    y *= 2.0
    y[1:] *= z[:-1]
    return y


def changed_before(np, call, x):
    y = x**2
    z = y * y  # needs y as it is before the call
    call(x, y)
    return y * z


def again_and_again(np, call, x):
    y = x * 1.0
    for _ in range(6):
        call(x, y)
        y *= x
        call(y, x)
        x *= 0.5 / (1.0 + y * y)
    return y * x


def partly(np, call, x):
    y = np.ones((2, *x.shape), x.dtype)
    call(x, y[1])
    y[0] = y[1] * x
    call(y[0], y[1])
    return y


PROGRAMS = [nothing, changed_later, changed_before, again_and_again, partly]
KERNELS = {"product": product, "shifted": shifted, "in_place": in_place, "rows": rows}
UNSAVED = {"product": (1,), "shifted": (1,), "rows": (1,), "in_place": (0,)}


def complex_step(program, function, x, seed):
    """Gradient of <seed, program(x)> by complex steps, with the kernel as plain Python."""
    found = numpy.zeros(x.shape)
    for k in range(x.size):
        moved = x.astype(complex)
        moved.flat[k] += 1e-30j
        found.flat[k] = numpy.sum(seed * program(numpy, function, moved.copy())).imag / 1e-30
    return found


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_values_left_by_a_kernel(program, name):
    rng = numpy.random.default_rng(11)
    function = KERNELS[name]
    x0 = X.reshape(3, 4) if name == "rows" else X
    kernel = ampi.kernel(function)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(ampi.numpy, kernel, x)
    seed = rng.standard_normal(y.shape)
    expected = complex_step(program, function, x0, seed)
    for _ in range(2):  # a sweep changes nothing
        numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), expected, rtol=1e-10, atol=1e-12)
    numpy.testing.assert_array_equal(y, program(numpy, kernel, x0.copy()))


@pytest.mark.parametrize("name", KERNELS)
def test_what_is_stored_is_not_saved(name):
    kernel = ampi.kernel(KERNELS[name])
    x = X.reshape(3, 4) if name == "rows" else X
    with ampi.Tape() as tape:
        nothing(ampi.numpy, kernel, tape.watch(x))
    (contract,) = kernel.contracts.values()
    assert contract.after == UNSAVED[name]
    assert "saved" not in kernel.adjoint_source(x, x)


@pytest.mark.parametrize("function", [now_and_then, overwritten])
def test_overwritten_values_are_saved(function):
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(function)
    assert "saved" in kernel.adjoint_source(X, X)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = nothing(ampi.numpy, kernel, x)
    seed = rng.standard_normal(y.shape)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), complex_step(nothing, function, X, seed), rtol=1e-12)


def network(x, w, y):
    hidden = numpy.empty(w.shape[0])
    for s in range(x.shape[0]):
        for i in range(w.shape[0]):
            t = 0.0
            for j in range(w.shape[1]):
                t += w[i, j] * x[s, j]
            hidden[i] = math.tanh(t)
        for i in range(w.shape[0]):
            y[s] += hidden[i] * hidden[hidden.shape[0] - 1 - i]


def remembering(x, w, y):
    hidden = numpy.zeros(w.shape[0])
    for s in range(x.shape[0]):
        for i in range(1, w.shape[0]):  # the first element is unchanged
            t = 0.0
            for j in range(w.shape[1]):
                t += w[i, j] * x[s, j]
            hidden[i] = math.tanh(t + hidden[i - 1])
        hidden[0] = hidden[1] * 0.5
        for i in range(w.shape[0]):
            y[s] += hidden[i] * hidden[i]


def in_two_directions(x, w, y):
    both = numpy.ones((w.shape[1], w.shape[0]))
    for s in range(x.shape[0]):
        for i in range(w.shape[0]):
            for j in range(both.shape[0]):
                both[j, i] = math.sin(w[i, j] * x[s, j])
        for i in range(w.shape[0]):
            for j in range(w.shape[1]):
                y[s] += both[j, i] * both[j, i] * w[i, j]


@pytest.mark.parametrize("function, is_private", [(network, True), (remembering, False), (in_two_directions, True)])
def test_scratch_arrays(function, is_private):
    rng = numpy.random.default_rng(11)
    x0, w0 = rng.uniform(0.1, 1, (5, 3)), rng.uniform(-1, 1, (4, 3))
    found = []
    for without in ("", "private,kept"):
        kernel = ampi.kernel(function, without=without)
        with ampi.Tape() as tape:
            x, w = tape.watch(x0), tape.watch(w0)
            y = ampi.numpy.zeros(5)
            kernel(x, w, y)
        found.append(tape.gradient(y, (x, w), seed=numpy.arange(1.0, 6.0)))

    def value(x, w):
        y = numpy.zeros(5)
        ampi.kernel(function)(x, w, y)
        return float(numpy.arange(1.0, 6.0) @ y)

    dx, dw = rng.standard_normal(x0.shape), rng.standard_normal(w0.shape)
    differences = [(value(x0 + h * dx, w0 + h * dw) - value(x0 - h * dx, w0 - h * dw)) / (2 * h) for h in (2e-4, 1e-4)]
    expected = differences[1] + (differences[1] - differences[0]) / 3
    for x_bar, w_bar in found:
        assert numpy.vdot(x_bar, dx) + numpy.vdot(w_bar, dw) == pytest.approx(expected, rel=1e-8)
        numpy.testing.assert_allclose(x_bar, found[0][0], rtol=1e-12, atol=1e-14)
    assert ("saved" not in ampi.kernel(function).adjoint_source(x0, w0, numpy.zeros(5))) == is_private

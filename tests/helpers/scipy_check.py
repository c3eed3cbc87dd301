"""Compares functions of ampi's arrays with those of NumPy's: values and dtypes; and derivatives with differences."""

import numpy as np
from second_check import products

import ampi

STEP = 2.0**-17


def scalar_of(result, weights=None):
    """A weighted sum of all numbers of a result, as a function of the arguments."""
    total = 0.0
    rng = np.random.default_rng(5)
    for part in flat(result):
        w = rng.uniform(0.5, 1.5, np.shape(part))
        if np.asarray(ampi.value(part)).dtype.kind == "c":
            total = total + (part.real * w).sum() + (part.imag * rng.uniform(0.5, 1.5, np.shape(part))).sum()
        elif np.asarray(ampi.value(part)).dtype.kind == "f":
            total = total + (part * w).sum()
    return total


def flat(x):
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from flat(item)
    elif isinstance(x, (np.ndarray, np.generic, float, complex)):
        yield x


def check(function, *arrays, rtol=1e-5, atol=1e-6, step=STEP, rounding=0.0):
    """Compare values with those without ampi, the gradient with respect to all arrays (in double precision) with
    differences, and forward mode with the gradient, to rounding."""
    arrays = [np.asarray(a) for a in arrays]
    expected = list(flat(function(*arrays)))
    rng = np.random.default_rng(7)
    moves = [
        rng.uniform(-1, 1, a.shape) + (1j * rng.uniform(-1, 1, a.shape) if a.dtype.kind == "c" else 0) for a in arrays
    ]
    with ampi.Tape() as tape:
        watched = [tape.watch(a) for a in arrays]
        result = function(*watched)
        y = scalar_of(result)
    found = list(flat(result))
    assert len(found) == len(expected)
    for f, e in zip(found, expected):
        e = np.asarray(e)
        assert f.dtype == e.dtype and f.shape == e.shape, (f.dtype, e.dtype, f.shape, e.shape)
        np.testing.assert_allclose(ampi.value(f), e, rtol=0, atol=rounding)
    if not any(np.asarray(ampi.value(f)).dtype.kind in "fc" for f in found):
        return
    gradient = tape.gradient(y, watched)
    along = lambda h: scalar_of(function(*[a + h * m for a, m in zip(arrays, moves)]))
    near = (along(step) - along(-step)) / (2 * step)
    far = (along(2 * step) - along(-2 * step)) / (4 * step)
    value = sum(np.vdot(g, m).real for g, m in zip(gradient, moves))
    scale = max(1.0, abs(near))
    assert abs(near - far) < 1e-3 * scale, ("differences do not converge", near, far)
    assert abs(value - (4 * near - far) / 3) <= rtol * scale + atol, (value, near, far)
    _, forward = ampi.jvp(lambda *x: scalar_of(function(*x)), tuple(arrays), tuple(moves))
    # The same partial derivatives, summed in another order.
    rounding = (
        1e-10 if all(np.asarray(e).dtype.char in "dD" for e in expected if np.asarray(e).dtype.kind in "fc") else 1e-5
    )
    size = sum(abs(g * m).sum() for g, m in zip(gradient, moves))
    assert abs(forward - value) <= rounding * max(1.0, size), ("forward", forward, value)


def check_twice(function, x, rtol=1e-4, atol=1e-5, step=1e-5):
    """Compare a Hessian-vector product of a weighted sum of all results with differences of gradients."""
    f = lambda x: scalar_of(function(x))
    rng = np.random.default_rng(8)
    move = rng.uniform(-1, 1, x.shape) + (1j * rng.uniform(-1, 1, x.shape) if x.dtype.kind == "c" else 0)
    _, (product,) = products(f, (x,), (move[::-1],), (move,))
    gradient = ampi.grad(f)
    near = (gradient(x + step * move) - gradient(x - step * move)) / (2 * step)
    np.testing.assert_allclose(product, near, rtol=rtol, atol=atol + rtol * abs(near).max())

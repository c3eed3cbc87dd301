"""Derivatives compared with finite differences."""

import warnings

import numpy as np
from forward_check import check_seeds, is_drawn

import ampi

# Central difference of sixth order: its error at this step is far below the tolerances.
_STEP = 2e-4
_STENCIL = ((1, 45.0 / 60.0), (2, -9.0 / 60.0), (3, 1.0 / 60.0))


def random(generator, shape, dtype, low=0.3, high=0.9):
    """An array of the dtype with values (of real and imaginary part) between two bounds.

    The values are spread evenly, so that finite differences do not change their order.
    """
    n = int(np.prod(shape))
    spread = lambda: (low + (high - low) * (generator.permutation(n) + generator.uniform(0.45, 0.55, n)) / n).reshape(
        shape
    )
    x = spread()
    if np.dtype(dtype).kind == "c":
        x = x + 1j * spread()
    return np.asarray(x, dtype)


def leaves(y):
    """Inexact arrays and scalars of a result, as plain arrays."""
    if isinstance(y, (tuple, list)):
        return [leaf for item in y for leaf in leaves(item)]
    return [np.asarray(y)] if np.asarray(y).dtype.kind in "fc" else []


def pairing(a, b):
    """Real inner product of two lists of arrays."""
    return sum(float(np.real(np.vdot(p, q))) for p, q in zip(a, b))


def difference(f, h):
    """The derivative at zero of a function of one number, by fourth-order differences."""
    return (8 * (f(h) - f(-h)) - (f(2 * h) - f(-2 * h))) / (12 * h)


def directional(f, x, x_dot):
    """Derivative of f at x along x_dot, leaf by leaf of the result."""
    total = None
    for k, weight in _STENCIL:
        moved = [leaves(f(*[np.array(a + s * k * _STEP * d) for a, d in zip(x, x_dot)])) for s in (1, -1)]
        change = [weight / _STEP * (p - m) for p, m in zip(*moved)]
        total = change if total is None else [t + c for t, c in zip(total, change)]
    return total


def pulled_back(f, x, y_bar=None, generator=None):
    """Result and adjoints of f at x for a seed (random if a generator is given)."""
    with ampi.Tape() as tape:
        watched = [tape.watch(a) for a in x]
        y = f(*watched)
    outputs = [leaf for leaf in _tracked_leaves(y)]
    if y_bar is None:
        y_bar = [random(generator, np.shape(leaf), leaf.dtype, -1.0, 1.0) for leaf in outputs]
    with warnings.catch_warnings():
        # Some programs give constants on purpose.
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        return outputs, y_bar, tape.gradient(outputs, watched, seed=y_bar), tape, watched


def _tracked_leaves(y):
    if isinstance(y, (tuple, list)):
        return [leaf for item in y for leaf in _tracked_leaves(item)]
    if isinstance(y, np.ndarray) and y.dtype.kind in "fc":
        return [y]
    assert not isinstance(y, (float, complex, np.inexact)), f"a bare {type(y).__name__} came back"
    return []


def check_adjoint(f, x, tolerance=2e-8, seed=0, exact=True):
    """⟨ȳ, ẏ⟩ = ⟨x̄, ẋ⟩ with ẏ from finite differences; the values are those of plain NumPy; a second sweep agrees."""
    generator = np.random.default_rng(seed)
    expected = leaves(f(*[np.array(a) for a in x]))
    outputs, y_bar, x_bar, tape, watched = pulled_back(f, x, generator=generator)
    assert len(outputs) == len(expected)
    for got, want in zip(outputs, expected):
        assert got.shape == want.shape and got.dtype == want.dtype
        if exact:
            np.testing.assert_array_equal(np.asarray(got), want)
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-14, atol=1e-15)
    for a, bar in zip(x, x_bar):
        assert bar.shape == np.shape(a) and bar.dtype == np.asarray(a).dtype
        assert type(bar) is np.ndarray
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        again = tape.gradient(outputs, watched, seed=y_bar)
    for first, second in zip(x_bar, again):
        np.testing.assert_array_equal(first, second)
    if is_drawn(1):
        check_seeds(tape, outputs, watched, 2)
    for k in range(len(x)):
        x_dot = [np.zeros_like(a) for a in x]
        x_dot[k] = random(generator, np.shape(x[k]), np.asarray(x[k]).dtype, -1.0, 1.0)
        y_dot = directional(f, x, x_dot)
        left, right = pairing(y_bar, y_dot), pairing(x_bar, x_dot)
        size = sum(np.linalg.norm(b) * np.linalg.norm(d) for b, d in zip(y_bar, y_dot)) + 1e-3
        assert abs(left - right) <= tolerance * size, f"argument {k}: <y_bar, y_dot> = {left}, <x_bar, x_dot> = {right}"
    return x_bar

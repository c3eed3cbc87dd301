"""Kernels that return lists of numbers or tuples, alone or among other results; and a number or None."""

import numba
import numpy as np
import pytest
from numba.extending import register_jitable

import ampi

X = np.array([0.7, 0.8, 1.3, 0.4])


def flat(value):
    if isinstance(value, (tuple, list)):
        for v in value:
            yield from flat(v)
    elif np.asarray(ampi.value(value)).dtype.kind == "f":
        yield value


def squares(a):
    return [v * v for v in a if v > 0.5]


def pairs(a):
    found = []
    for i in range(3):
        found.append((i, a[i] * a[i + 1]))
    return found


def among_others(a):
    found = [(0, a[0])]
    for i in range(1, 3):
        found.append((2 * i, a[i] ** 2))
    large = [v * a[0] for v in a if v > 0.75]
    return large, (found[::-1], a * 3.0), a[0] * a[1]


def path(a):
    steps = []
    i = j = 3
    s = 0.0
    while i > 0 and j > 0:
        steps.append((i, j))
        s += a[i] * a[j]
        if i > j:
            i -= 1
        else:
            j -= 1
    return steps[::-1], s


def of_one_ways_or_another(a):
    if a[0] > 1.0:
        return [a[0] * 1.0]
    return [v * a[1] for v in a]


@register_jitable
def first_large(a, limit=0.75):
    for v in a:
        if v > limit:
            return v * v


def first_large_and_more(a):
    found = []
    for k in range(2):
        found.append(a[k] * a[3])
    return first_large(a), (found, first_large(a, 5.0)), a[1] * 2.0


def of_another(a):
    found = first_large(a, 0.9)
    return found if found is None or a[0] > 5.0 else found * 2.0


@pytest.mark.parametrize(
    "function",
    [squares, pairs, among_others, path, of_one_ways_or_another, first_large, first_large_and_more, of_another],
)
def test_derivatives(function):
    """Compare gradient, tangent and second derivatives with differences of the function compiled by Numba."""
    compiled, kernel = numba.njit(function), ampi.kernel(function)
    rng = np.random.default_rng(2)
    direction = rng.uniform(-1, 1, X.shape)

    def total(values, xp):
        return sum((1 + 0.3 * k) * xp.sum(xp.sin(v)) for k, v in enumerate(flat(values)))

    def value(x):
        return total(kernel(x * 1.0), ampi.numpy)

    def primal(t):
        return total(compiled(X + t * direction), np)

    h = 1e-4
    first = (8 * (primal(h) - primal(-h)) - primal(2 * h) + primal(-2 * h)) / (12 * h)
    second = (16 * (primal(h) + primal(-h)) - primal(2 * h) - primal(-2 * h) - 30 * primal(0.0)) / (12 * h * h)
    np.testing.assert_allclose(ampi.grad(value)(X) @ direction, first, rtol=1e-9)
    found, tangent = ampi.jvp(value, X, direction)
    np.testing.assert_allclose(found, primal(0.0), rtol=1e-14)
    np.testing.assert_allclose(tangent, first, rtol=1e-9)
    if function is not of_one_ways_or_another:  # which array it is depends on a branch: refused in second order
        np.testing.assert_allclose(ampi.hvp(value, X, direction) @ direction, second, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_they_are_lists():
    """They hold Python numbers if these have no derivatives, and may be empty."""
    expected = numba.njit(among_others)(X)
    kernel = ampi.kernel(among_others)
    assert kernel(X)[0] == expected[0]
    with ampi.Tape() as tape:
        a = tape.watch(X)
        large, (found, array), _ = kernel(a)
        assert type(large) is list and [float(v) for v in large] == expected[0]
        assert type(found) is list and [(type(k), k, float(v)) for k, v in found] == [
            (int, k, v) for k, v in expected[1][0]
        ]
        large.append(array[0] * 2.0)
        result = sum(large[1:])
        assert ampi.kernel(squares)(a * 0.1) == []
        steps, _ = ampi.kernel(path)(a)
        assert steps == numba.njit(path)(X)[0]
    expected = [X[2] + 6.0, 0.0, X[0], 0.0]  # large is a[1] * a[0], a[2] * a[0], 6 * a[0]
    np.testing.assert_allclose(tape.gradient(result, a), expected)


@pytest.mark.parametrize("limit", [0.75, 5.0])
@pytest.mark.parametrize("number", ["the value", "its place"])
def test_a_number_or_none(number, limit):
    def place(a, limit):
        for k, v in enumerate(a):
            if v > limit:
                return k

    function = first_large if number == "the value" else place
    expected = numba.njit(function)(X, limit)
    kernel = ampi.kernel(function)
    with ampi.Tape() as tape:
        a = tape.watch(X)
        found = kernel(a, limit)
        result = a[0] * (2.0 if found is None else found + 1.0)
    assert (found is None) == (expected is None) == (limit == 5.0)
    gradient = [2.0 if found is None else expected + 1.0, 0.0, 0.0, 0.0]
    if found is not None:
        assert float(found) == expected
        gradient[1] = X[0] * 2 * X[1] if number == "the value" else 0.0
    np.testing.assert_allclose(tape.gradient(result, a), gradient, rtol=1e-14)

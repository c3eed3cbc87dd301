"""Short loops unrolled, small local arrays turned into scalars, constants propagated: same results, fewer loops."""

import numba
import numpy as np
import pytest
from numba import prange, typeof

from ampi import tape
from ampi.kernel import ir, kernel
from ampi.kernel.codegen import emit
from ampi.kernel.frontend.parse import parse
from ampi.kernel.normalise.lower import lower
from ampi.kernel.normalise.scalar_replacement import scalarise
from ampi.kernel.normalise.simplify import simplify
from ampi.kernel.normalise.unroll import unroll

LEVI_CIVITA = np.zeros((3, 3, 3))
LEVI_CIVITA[0, 1, 2] = LEVI_CIVITA[1, 2, 0] = LEVI_CIVITA[2, 0, 1] = 1.0
LEVI_CIVITA[2, 1, 0] = LEVI_CIVITA[1, 0, 2] = LEVI_CIVITA[0, 2, 1] = -1.0
CORNERS = ((0, 1, 2), (1, 2, 3), (2, 3, 0))


@kernel
def cross(a, b, n=3):
    c = np.zeros(n)
    for i in range(n):
        for j in range(n):
            for k in range(n):
                c[i] += LEVI_CIVITA[i, j, k] * a[j] * b[k]
    return c


def cross_products(x, y, out):
    for e in prange(x.shape[0]):
        local = np.empty((2, 3))
        for i in range(3):
            local[0, i] = x[e, i]
            local[1][i] = y[e, i]
        c = cross(local[0], local[1])
        for i in range(3):
            out[e, i] = c[i]


def mixed(x, out):
    w = np.ones(4, dtype=np.float32)
    grid = np.full((2, 2), 0.5)
    for k in range(len(CORNERS)):
        row = grid[k % 2]
        for c in range(0, 3, 2):
            w[CORNERS[k][c]] += x[k] * 3
            row[c // 2] -= w[CORNERS[k][c]]
        if k == 1:
            row[0] = 7.0
        elif k > 1 and grid.shape[0] == 2:
            continue
        out[k] = row[1] + len(row)
    total = 0.0
    for r in range(-2, 0):
        for value in w:
            total += value * grid[r, 0]
    return total


def returned(x):
    w = np.zeros(3)
    for k in range(3):
        w[k] = x[k] * k
    return w


def indexed_by_a_variable(x, k):
    w = np.zeros(3)
    for i in range(3):
        w[i] = x[i] * i
    return w[k]


def shared_by_iterations(x):
    s = np.zeros(1)
    for i in range(len(x)):
        s[0] += x[i]
    return s[0]


def numbers(*shape):
    return np.random.default_rng(3).random(shape)


CASES = [
    (cross_products, (numbers(4, 3), numbers(4, 3), numbers(4, 3)), 0),
    (mixed, (numbers(4), numbers(4)), 0),
    (returned, (numbers(3),), 1),
    (indexed_by_a_variable, (numbers(3), 2), 1),
    (shared_by_iterations, (numbers(5),), 0),
]


def allocations(function):
    return sum(isinstance(n, ir.Alloc) for n in ir.walk(function.body))


def trips(function):
    return [n for n in ir.walk(function.body) if isinstance(n, ir.For) and isinstance(n.stop, ir.Const)]


@pytest.mark.parametrize(("function", "arguments", "left"), CASES)
@pytest.mark.parametrize("passes", [(simplify,), (unroll,), (unroll, simplify, scalarise), (scalarise,)])
def test_results_are_the_same(function, arguments, left, passes):
    result = lower(parse(function, tuple(map(typeof, arguments))))
    for change in passes:
        result = change(simplify(result) if len(passes) == 3 else result)
    if len(passes) == 3:
        assert allocations(result) == left
        assert not trips(result)
    (result,) = emit.spelled(result)
    namespace = dict(result.constants)
    exec(emit.HEADER + emit.source(result), namespace)
    mine, theirs = ([a.copy() if isinstance(a, np.ndarray) else a for a in arguments] for _ in range(2))
    got = numba.njit(namespace[result.name])(*mine)
    expected = numba.njit(function)(*theirs)
    if result.result != "scalar" and expected is not None:
        (got,) = got
    if expected is not None:
        np.testing.assert_array_equal(got, expected)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_shared_array_in_a_parallel_loop_stays():
    def parallel(x):
        s = np.zeros(1)
        for i in prange(len(x)):
            s[0] += x[i]
        return s[0]

    result = scalarise(lower(parse(parallel, (typeof(np.zeros(2)),))))
    assert allocations(result) == 1


def test_limits():
    result = lower(parse(returned, (typeof(np.zeros(2)),)))
    assert len(trips(unroll(result, max_trips=2))) == 1
    assert len(trips(unroll(result, max_size=5))) == 1
    assert (
        allocations(scalarise(unroll(lower(parse(shared_by_iterations, (typeof(np.zeros(2)),)))), max_elements=0)) == 1
    )


def test_adjoint_has_no_local_arrays():
    compiled = kernel(cross_products)
    x = numbers(4, 3)
    text = compiled.adjoint_source(x, x, x)
    assert "local[" not in text
    assert "c[" not in text
    assert "LEVI_CIVITA[" not in text
    assert "range(3)" not in text
    with tape.Tape() as t:
        a, b = t.watch(numbers(2, 3)), t.watch(numbers(2, 3) + 1)
        out = t.watch(np.zeros((2, 3)))
        compiled(a, b, out)
    seed = numbers(2, 3)
    a_bar, b_bar = t.gradient(out, (a, b), seed=seed)
    np.testing.assert_allclose(a_bar, np.cross(b, seed), rtol=1e-12)
    np.testing.assert_allclose(b_bar, np.cross(seed, a), rtol=1e-12)

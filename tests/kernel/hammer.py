"""Runs every form of a parallel adjoint many times on eight threads, and compares with the serial program.

``test_parallel.py`` starts it with ``NUMBA_NUM_THREADS=8``. Arguments: the number of runs, and ``all`` to include
kernels that repeat a form. Prints what differs and exits with status 1.
"""

import sys

import kernel_checks
import numba
import numpy as np
from kernel_checks import Check, without
from numba import prange

import ampi

SIZE = 3000
REPEATS = int(sys.argv[1])
ALL = "all" in sys.argv[2:]
NEVER = 1e9  # cost of an element or of an atomic addition


def apart(x, out, c):
    s = 0.0
    for i in prange(x.shape[0]):
        out[i] = c * x[i] * x[i]
        s += out[i] * x[i]
    return s


def neighbours(u, new):
    for i in prange(2, u.shape[0] - 1):
        new[i] = u[i - 2] * u[i] + u[i + 1] * u[i + 1]


def looked_up(x, out, index):
    for i in prange(out.shape[0]):
        out[i] = x[index[i]] * x[index[i]] * out[i]


def flat(x, out, n):
    for i in prange(out.shape[0] // n):
        for j in range(n):
            out[i] += x[i * n + j] * x[i * n + j]


def whole(u, new, weight):
    new[1:-1] = u[1:-1] * weight[1:-1] + u[:-2] * u[2:]
    t = new * weight
    return np.sum(np.sin(t) * u)


def extremes(x, out):
    low, high, least, most = 9.0, -9.0, 9.0, -9.0
    for i in prange(x.shape[0]):
        v = x[i] * x[i]
        low = min(low, v)
        high = max(high, v)
        least = min(v, least)
        most = max(v, most)
        out[i] = v * x[i]
    return low, high, least, most


def mesh(x, out, corner):
    for e in prange(out.shape[0]):
        s = 0.0
        for k in range(4):
            s += x[0, corner[e, k]] * x[1, corner[e, 3 - k]]
        out[e] = s


def stencil_by_table(x, out, neighbor):
    for e in prange(out.shape[0] - 1):
        out[e] = x[e] * x[neighbor[e, 0]] - x[neighbor[e + 1, 1]] * x[e + 1]


def cases():
    """Form, kernel, arguments, and the costs that make its loop take this form."""
    rng = np.random.default_rng(2)
    x, y = rng.uniform(0.5, 1.5, (2, SIZE))
    field = rng.uniform(0.5, 1.5, (2, 40))  # few elements: threads collide all the time
    corner = rng.integers(0, 40, (SIZE, 4))
    no_cost = (1.0, 0.0, NEVER, NEVER)
    yield "blocks", neighbours, [x, y], no_cost
    if ALL:
        yield "apart", apart, [x, y, 0.7], no_cost
        yield "apart", flat, [x, y, 5], no_cost
        yield "apart", whole, [x, y, x[::-1].copy()], no_cost
    yield "apart", extremes, [rng.choice(x[:40], SIZE), y], no_cost  # each extreme occurs many times
    yield "distinct", looked_up, [x, y, rng.permutation(SIZE)], no_cost
    close = (np.arange(SIZE)[:, None] + rng.integers(0, 40, (SIZE, 4))).astype(np.uint32)
    if ALL:
        yield "near", mesh, [rng.uniform(0.5, 1.5, (2, SIZE + 40)), y, close], no_cost
    yield "near", stencil_by_table, [rng.uniform(0.5, 1.5, SIZE + 40), y, close[:, :2].copy()], no_cost
    yield "own", mesh, [field, y, corner], (1.0, 0.0, 0.0, NEVER)
    if ALL:
        yield "atomic", mesh, [field, y, corner], (1.0, 0.0, NEVER, 0.0)
    single = np.float32
    yield "atomic", mesh, [field.astype(single), y.astype(single), corner.astype(np.uint32)], (1.0, 0.0, NEVER, 0.0)
    if ALL:
        yield "atomic", looked_up, [x[:40] + 0.3j, y + 0.1j, corner[:, 0] - 40], (1.0, 0.0, NEVER, 0.0)


def hammer(name, kernel, arguments, costs):
    kernel_checks.COSTS = costs
    active = [n for n, a in zip(kernel.__code__.co_varnames, arguments) if np.asarray(a).dtype.kind in "fc"]
    serial = Check(kernel, arguments, active, jit=True)
    array_seeds, result_seeds = serial.seeds()
    expected = serial.adjoints(array_seeds, result_seeds)
    check = Check(kernel, arguments, active, without("gather", threads=True))
    check.run_adjoint = kernel_checks.load(check.adjoint.function, jit=True, parallel=True)
    tolerance = 1e-3 if arguments[0].dtype == np.float32 else 1e-11
    first = None
    for repeat in range(REPEATS):
        found = check.adjoints(array_seeds, result_seeds)
        first = first or found
        for n in expected:
            np.testing.assert_allclose(found[n], expected[n], tolerance, tolerance, err_msg=f"{name} {n}, run {repeat}")
            if name != "atomic":
                np.testing.assert_array_equal(found[n], first[n], err_msg=f"{name} {n}, run {repeat}")


@ampi.kernel(parallel=True, deterministic=True)
def energy(x, index):
    s = 0.0
    for i in prange(index.shape[0]):
        s += np.sin(x[index[i]]) * x[index[i]]
    return s


def reproducible():
    """Check that a deterministic kernel gives bitwise identical results on any number of threads."""
    rng = np.random.default_rng(3)
    x, index = rng.uniform(0.5, 1.5, 50), rng.integers(0, 50, 200_000)
    found = set()
    for count in (1, 2, 3, 8, 8, 8):
        numba.set_num_threads(count)
        value, gradient = ampi.value_and_grad(lambda x: energy(x, index))(x)
        found.add((float(value), gradient.tobytes()))
    assert len(found) == 1, "a deterministic kernel depends on the number of threads"
    expected = np.bincount(index, minlength=50) * (np.sin(x) + x * np.cos(x))
    np.testing.assert_allclose(gradient, expected, 1e-12)
    numba.set_num_threads(8)


if __name__ == "__main__":
    assert numba.get_num_threads() == 8
    for case in cases():
        hammer(*case)
    reproducible()
    sys.exit(0)

"""A tie goes to the first: of two arguments, of an array's elements, and to the lowest rank.

Arrays are drawn from few numbers, so that most extremes are tied; compared are an array on one rank, NumPy's functions
written out by hand, kernels, and the same array spread over ranks.
"""

import numba
import numpy
import pytest

import ampi
import ampi.numpy as np


def _drawn(generator, shape):
    return generator.integers(-1, 2, shape).astype(float)


def _weights(x):
    return 1.0 + numpy.arange(x.size).reshape(x.shape)


def _first(x, extreme, axis=None):
    """The gradient of the sum of extremes with weights: to the first element in C order."""
    rows = numpy.moveaxis(x, axis, -1).reshape(-1, x.shape[axis]) if axis is not None else x.reshape(1, -1)
    found = numpy.zeros(rows.shape)
    place = (rows.argmax if extreme == "max" else rows.argmin)(-1)
    found[numpy.arange(len(rows)), place] = 1.0 + numpy.arange(len(rows))
    if axis is None:
        return found.reshape(x.shape)
    return numpy.moveaxis(found.reshape(numpy.moveaxis(x, axis, -1).shape), -1, axis)


def _agrees(f, x, expected, generator):
    """Reverse, forward and second order."""
    v = generator.standard_normal(x.shape)
    assert (ampi.grad(f)(x) == expected).all()
    assert numpy.isclose(ampi.jvp(f, x, v)[1], (expected * v).sum())
    curved = ampi.hvp(lambda x: f(x) ** 2 / 2, x, v)
    assert numpy.allclose(curved, (expected * v).sum() * expected)


REDUCTIONS = {
    "max": ["max", "amax", "nanmax", "maximum.reduce", "fmax.reduce"],
    "min": ["min", "amin", "nanmin", "minimum.reduce", "fmin.reduce"],
}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("axis", [None, 0, 1, 2])
@pytest.mark.parametrize("extreme, name", [(e, n) for e, names in REDUCTIONS.items() for n in names])
def test_extremes_of_arrays(extreme, name, axis, seed):
    generator = numpy.random.default_rng(seed)
    x = _drawn(generator, (2, 3, 4))
    function = np
    for part in name.split("."):
        function = getattr(function, part)

    def f(x):
        found = function(x, axis=axis)
        return np.sum(found * _weights(found))

    _agrees(f, x, _first(x, extreme, axis), generator)


@pytest.mark.parametrize("seed", range(5))
def test_extremes_over_several_axes_with_masks_and_initial_values(seed):
    generator = numpy.random.default_rng(seed)
    x, mask = _drawn(generator, (2, 3, 4)), generator.random((2, 3, 4)) < 0.7
    expected = numpy.zeros(x.shape)
    shown = numpy.where(mask, x, -9.0)
    for k in range(3):
        row = shown[:, k].reshape(-1)
        if row.max() > 0.0:  # an initial value comes before the elements
            expected[:, k].reshape(-1)[:] = 0.0
            place = numpy.unravel_index(row.argmax(), (2, 4))
            expected[place[0], k, place[1]] = 1.0 + k
    f = lambda x: np.sum(np.max(x, axis=(0, 2), where=mask, initial=0.0) * numpy.arange(1.0, 4.0))
    _agrees(f, x, expected, generator)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extremes_of_two_arguments(name, seed):
    generator = numpy.random.default_rng(seed)
    x, y = _drawn(generator, (2, 6))
    function = getattr(np, name)
    wins = x >= y if name.endswith("max") or name == "maximum" else x <= y
    expected = numpy.array([wins, ~wins]) * _weights(x)
    _agrees(lambda z: np.sum(function(z[0], z[1]) * _weights(x)), numpy.array([x, y]), expected, generator)
    # Of long arrays and of single numbers, which are recorded in other ways.
    long = numpy.repeat(numpy.array([x, y]), 50, axis=1)
    found = ampi.grad(lambda z: np.sum(function(z[0], z[1])))(long)
    assert (found == numpy.repeat(numpy.array([wins, ~wins]), 50, axis=1)).all()
    for k in range(6):
        found = ampi.grad(lambda z, k=k: function(z[0, k], z[1, k]))(numpy.array([x, y]))
        assert found[:, k].tolist() == [float(wins[k]), float(not wins[k])]
    assert (ampi.grad(lambda z: np.sum(function(z, 1.0)))(numpy.ones(3)) == 1).all()
    assert (ampi.grad(lambda z: np.sum(function(1.0, z)))(numpy.ones(3)) == 0).all()


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_so_far(name, seed):
    generator = numpy.random.default_rng(seed)
    x = _drawn(generator, 8)
    expected, best = numpy.zeros(8), 0
    for k in range(8):
        if x[k] > x[best] if name == "maximum" else x[k] < x[best]:
            best = k
        expected[best] += k + 1.0
    function = getattr(np, name)
    _agrees(lambda x: np.sum(function.accumulate(x) * _weights(x)), x, expected, generator)


def test_elements_that_replace_those_of_an_array():
    def f(z):
        a = z[:2] * 1.0
        np.maximum.at(a, [0, 1], z[2:])
        return np.sum(a)

    assert ampi.grad(f)(numpy.ones(4)).tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("low, x, high, expected", [(1, 1, 2, "010"), (0, 2, 2, "010"), (2, 2, 2, "010"),
                                                    (2, 1, 2, "100"), (2, 3, 2, "001"), (3, 2, 1, "001")])  # fmt: skip
def test_clip_takes_the_array_before_its_bounds_and_the_lower_one_before_the_upper(low, x, high, expected):
    given = numpy.array([low, x, high], float)
    assert ampi.grad(lambda z: np.clip(z[1:2], z[0], z[2]).sum())(given).tolist() == [float(e) for e in expected]
    by_hand = ampi.grad(lambda z: np.minimum(np.maximum(z[1], z[0]), z[2]))(given)
    assert by_hand.tolist() == [float(e) for e in expected]


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("name", ["sort", "partition", "median", "percentile", "quantile", "ptp"])
def test_orders_keep_that_of_equal_elements(name, seed):
    generator = numpy.random.default_rng(seed)
    x = _drawn(generator, 7)
    order = x.argsort(kind="stable")
    rank = numpy.zeros(7)
    if name == "sort":
        rank[order] = numpy.arange(1.0, 8.0)
        f = lambda x: np.sum(np.sort(x) * numpy.arange(1.0, 8.0))
    elif name == "partition":
        rank[order[3]] = 1.0
        f = lambda x: np.partition(x, 3)[3]
    elif name == "ptp":
        rank[x.argmax()] += 1.0
        rank[x.argmin()] -= 1.0
        f = np.ptp
    elif name == "median":
        rank[order[3]] = 1.0
        f = np.median
    else:
        rank[order[1]], rank[order[2]] = 0.5, 0.5
        f = (lambda x: np.percentile(x, 25)) if name == "percentile" else lambda x: np.quantile(x, 0.25)
    _agrees(f, x, rank, generator)


@ampi.kernel
def _of_all(x):
    m = x[0]
    for k in range(len(x)):
        m = max(m, x[k])
    return m + 10 * np.max(x) - 100 * np.min(x)


@ampi.kernel
def _elementwise(x, y, out):
    for k in range(len(x)):
        out[k] = np.maximum(x[k], y[k]) + 10 * min(x[k], y[k]) + 100 * np.fmax(x[k], y[k]) + 1000 * abs(x[k])


@ampi.kernel(parallel=True)
def _on_threads(x):
    m = -np.inf
    for k in numba.prange(len(x)):
        m = max(m, x[k])
    return m


def _elements(x, y):
    return np.maximum(x, y) + 10 * np.minimum(x, y) + 100 * np.fmax(x, y) + 1000 * np.abs(x)


def test_kernels_take_what_arrays_take():
    generator = numpy.random.default_rng(0)

    def in_kernel(z):
        out = np.zeros(5)
        _elementwise(z[:5], z[5:], out)
        return np.sum(out * numpy.arange(1.0, 6.0))

    def on_arrays(z):
        return np.sum(_elements(z[:5], z[5:]) * numpy.arange(1.0, 6.0))

    whole = lambda x: 11 * np.max(x) - 100 * np.min(x)
    for _ in range(20):
        x = _drawn(generator, 10)
        for kernel, function in ((_of_all, whole), (_on_threads, np.max), (in_kernel, on_arrays)):
            expected, v = ampi.grad(function)(x), generator.standard_normal(10)
            assert (ampi.grad(kernel)(x) == expected).all()
            assert numpy.isclose(ampi.jvp(kernel, x, v)[1], (expected * v).sum())


@pytest.mark.parametrize("f, x, expected", [
    (np.abs, [0.0, -0.0], [1, 1]), (np.fabs, [0.0, -0.0], [1, 1]), (lambda x: np.copysign(x, -2.0), [0.0], [-1]),
    (lambda x: np.abs(x + 0j), [0.0], [1]), (lambda x: np.hypot(x, 0.0), [0.0, -1.0], [1, -1]),
    (lambda x: abs(x[0]) + 0 * x, [0.0], [1]), (np.abs, numpy.zeros(100), numpy.ones(100)),
])  # fmt: skip
def test_kinks_at_zero_take_the_side_on_the_right(f, x, expected):
    assert (ampi.grad(lambda x: np.sum(f(x)))(numpy.asarray(x)) == expected).all()


@ampi.kernel
def _magnitudes(z):
    return np.sum(np.abs(z))


def test_magnitudes_of_complex_zeros_have_the_same_derivative_in_kernels_and_in_both_modes():
    z, v = numpy.array([0j, 3 + 4j]), numpy.array([1 + 2j, 1.0])
    for f in (_magnitudes, lambda z: np.sum(np.abs(z))):
        assert numpy.allclose(ampi.grad(f)(z), [1, 0.6 + 0.8j])
        assert numpy.isclose(ampi.jvp(f, z, v)[1], 1.6)


# ------------------------------------------------------------------------------------------------- spread over ranks


def _share(x, comm):
    return numpy.array_split(x, comm.size)[comm.rank]


def _whole(f, x, comm):
    """The gradient of all ranks' parts."""
    found = ampi.grad(f, objective="replicated")(_share(x, comm))
    return numpy.concatenate(comm.allgather(numpy.asarray(found)))


def _by_object(x, comm, op):
    local = -numpy.inf if op == ampi.MPI.MAX else numpy.inf
    local = (np.max(x) if op == ampi.MPI.MAX else np.min(x)) if x.size else local
    return comm.allreduce(local, op=op)


def _by_buffer(x, comm, op):
    local, found = np.zeros(1), np.zeros(1)
    local[:] = (np.max if op == ampi.MPI.MAX else np.min)(x) if x.size else (-1 if op == ampi.MPI.MAX else 1) * 9.0
    comm.Allreduce(local, found, op=op)
    return found[0]


def _by_kernel(x, comm, op):
    found, local = np.zeros(1), np.zeros(1)
    local[:] = (1 if op == ampi.MPI.MAX else -1) * _on_threads((1 if op == ampi.MPI.MAX else -1) * x)
    comm.Allreduce(local, found, op=op)
    return found[0]


@pytest.mark.mpi
@pytest.mark.parametrize("way", [_by_object, _by_buffer, _by_kernel])
def test_the_number_of_ranks_does_not_change_a_gradient(way):
    comm = ampi.COMM_WORLD
    generator = numpy.random.default_rng(1)
    for _ in range(4):
        x = _drawn(generator, 2 * comm.size + 1)
        for op, extreme in ((ampi.MPI.MAX, "max"), (ampi.MPI.MIN, "min")):
            found = _whole(lambda x, op=op: way(x, comm, op), x, comm)
            assert (found == _first(x, extreme)).all()


@pytest.mark.mpi
def test_a_step_that_depends_on_the_greatest_speed():
    comm = ampi.COMM_WORLD
    weights = _share(numpy.arange(8.0), comm)

    def objective(u):
        step = 0.4 / comm.allreduce(np.max(np.abs(u)), op=ampi.MPI.MAX)
        return comm.allreduce(np.sum(weights * (u - step * u**2)))

    found = _whole(objective, numpy.full(8, 1.5), comm)
    expected = numpy.arange(8.0) * (1 - 2 * 0.4)
    expected[0] += 28 * 0.4
    assert numpy.allclose(found, expected)

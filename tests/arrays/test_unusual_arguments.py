"""Derivatives of NumPy's functions with rarely used arguments, compared with differences of NumPy's own results.

Requested dtypes and signatures, outputs of several results, masks, overlapping memory, equal spacings, first results of
another dtype.
"""

import warnings

import numpy
import pytest

import ampi
import ampi.numpy as np

pytestmark = pytest.mark.filterwarnings("ignore::numpy.exceptions.ComplexWarning")

_WEIGHTS = numpy.array([1.3, -0.7, 2.1, 0.4, -1.9, 0.8])
_POINT = numpy.array([0.35, 0.82, -0.33, -1.3, 0.91, 0.45])
_STEP = 1e-6


def _is_right(f, x, tolerance=1e-6):
    """Whether reverse, forward and second order agree with differences of NumPy's own results."""
    plain = lambda x: f(numpy, x.copy())
    ours = lambda x: f(np, x)
    moves = _STEP * numpy.eye(x.size)
    expected = numpy.array([(plain(x + h) - plain(x - h)) / (2 * _STEP) for h in moves])
    v = numpy.linspace(0.3, 1.1, x.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)  # some of these are constants
        assert ampi.value(ours(np.array(x))) == pytest.approx(plain(x), rel=1e-12)
        gradient = ampi.grad(ours)
        numpy.testing.assert_allclose(gradient(x), expected, rtol=tolerance, atol=tolerance)
        assert ampi.jvp(ours, x, v)[1] == pytest.approx(expected @ v, rel=tolerance, abs=tolerance)
        curved = (gradient(x + 10 * _STEP * v) - gradient(x - 10 * _STEP * v)) / (20 * _STEP)
        numpy.testing.assert_allclose(ampi.hvp(ours, x, v), curved, rtol=1e-4, atol=1e-4)


_UFUNCS = "add subtract multiply divide power sin exp log sqrt arcsin arctan square absolute negative".split()


def _drawn_call(generator):
    """A ufunc with real or complex operands, a dtype or a signature, and perhaps an output array."""
    name = str(generator.choice(_UFUNCS))
    ufunc = getattr(numpy, name)
    is_complex = bool(generator.integers(2))
    given = "D" if is_complex else "d"
    loops = [t for t in ufunc.types if set(t) <= set("lDd->") and len(set(t[: ufunc.nin])) == 1]
    loop = str(generator.choice(loops))
    options = {"casting": "unsafe"}
    if generator.integers(2) or loop[0] != loop[-1]:
        options["signature"] = loop
    else:
        options["dtype"] = numpy.dtype(loop[-1])
    has_output = bool(generator.integers(2))
    factor = (2.3 + 0.4j) if is_complex else 2.3
    shift = 1.7 if name != "arcsin" else 0.1

    def f(np, x):
        z = x[:3] + (1j * x[3:] if is_complex else x[3:] + shift)
        operands = [z, np.cos(z) * factor + 0.5][: ufunc.nin]
        if has_output:
            out = np.zeros(3, given)
            getattr(np, name)(*operands, out=out, **options)
        else:
            out = getattr(np, name)(*operands, **options)
        return ((out * (_WEIGHTS[:3] + 0.3j)).real.sum() + x.sum()) * x[0]

    return f


@pytest.mark.parametrize("seed", [*range(60), *[pytest.param(k, marks=pytest.mark.slow) for k in range(60, 1500)]])
def test_a_call_computes_in_the_requested_dtype(seed):
    generator = numpy.random.default_rng(seed)
    f = _drawn_call(generator)
    x = generator.uniform(0.15, 0.85, 6) * generator.choice([-1, 1], 6)
    with numpy.errstate(all="ignore"):
        if not numpy.isfinite(f(numpy, x)):
            pytest.skip("not defined here")
        _is_right(f, x, 1e-5)


@pytest.mark.parametrize("name", ["maximum", "minimum", "fmax", "fmin"])
def test_extremes_in_a_lower_precision(name):
    f = lambda x: getattr(np, name).reduce(x, dtype=np.float32) * 2.0
    place = getattr(numpy, name).reduce(_POINT) == _POINT
    assert (ampi.grad(f)(_POINT) == 2.0 * place).all()
    assert ampi.jvp(f, _POINT, _WEIGHTS)[1] == pytest.approx(2.0 * _WEIGHTS[place][0], rel=1e-6)
    g = lambda x: getattr(np, name).accumulate(x, dtype=np.float32)[-1] * 2.0
    if name in ("maximum", "minimum"):
        assert (ampi.grad(g)(_POINT) == 2.0 * place).all()


@pytest.mark.parametrize("dtype", [int, bool])
def test_a_reduction_to_integers_is_constant(dtype):
    _is_right(lambda np, x: np.maximum.reduce(x, dtype=dtype, initial=0) * x[0], 3 * _POINT)
    _is_right(lambda np, x: np.add.reduce(x, dtype=dtype) * x[0], 3 * _POINT)


def test_a_reduction_to_integers_in_an_array_of_floats():
    def f(x):
        out = np.zeros(())
        np.add.reduce(3 * x, dtype=int, out=out)
        return out[()] * x[0]

    assert ampi.grad(f)(_POINT)[0] == numpy.add.reduce(3 * _POINT, dtype=int)
    with pytest.raises(ampi.ActivityError, match="sum"):
        ampi.grad(lambda x: np.sum(3 * x, dtype=int, out=np.zeros(())) * x[0])(_POINT)


@pytest.mark.parametrize("name", ["divmod", "modf"])
def test_several_results_under_a_mask(name):
    def f(x):
        outs = np.ones(6), np.ones(6)
        getattr(np, name)(*([x, 0.7] if name == "divmod" else [x]), out=outs, where=numpy.arange(6) % 2 == 0)
        return np.sum(outs[name == "divmod"])

    with pytest.raises(ampi.ActivityError, match="with the argument where"):
        ampi.grad(f)(_POINT)


@pytest.mark.parametrize("target", [slice(0, 6, 2), slice(1, 4), slice(5, 2, -1), slice(3, 0, -1), slice(4, None, -2)])
@pytest.mark.parametrize("source", [slice(0, 6, 2), slice(1, 4), slice(5, 2, -1), slice(3, 0, -1), slice(4, None, -2)])
@pytest.mark.parametrize("mask", [True, [True, True, True], [True, False, True], [False, True, True]])
def test_values_copied_within_one_array(target, source, mask):
    def f(np, x):
        y = x * 1.0
        np.copyto(y[target], y[source], where=mask)
        return np.sum(y * y * _WEIGHTS)

    _is_right(f, _POINT)


_SPACINGS = {
    "equal": numpy.arange(6.0),
    "unequal": numpy.array([0.0, 0.7, 1.1, 2.3, 3.1, 4.8]),
    "falling": -0.5 * numpy.arange(6.0),
}


@pytest.mark.parametrize("edge_order", [1, 2])
@pytest.mark.parametrize("spacing", list(_SPACINGS))
@pytest.mark.parametrize("are_values_active", [True, False])
def test_gradient_by_places(edge_order, spacing, are_values_active):
    x = _SPACINGS[spacing]
    values = lambda np, x: np.sin(x) if are_values_active else _WEIGHTS
    _is_right(lambda np, x: np.sum(np.gradient(values(np, x), x, edge_order=edge_order) * _WEIGHTS), x, 1e-5)

    def of_planes(np, x):
        planes = np.outer(values(np, x), x if are_values_active else _WEIGHTS).reshape(2, 3, 6)
        found = np.gradient(planes, x[1], x, axis=(-2, 2), edge_order=edge_order)
        return np.sum(found[0] ** 2) + np.sum(found[1] * _WEIGHTS)

    _is_right(of_planes, x + 1.0, 1e-5)


def test_nan_in_one_part_of_a_complex_number():
    def f(np, x):
        z = np.zeros(3, complex)
        z.real = [numpy.nan, numpy.inf, 1.0]
        z.imag = x[:3]
        z.real[2] = x[3]
        np.nan_to_num(z, copy=False, posinf=2.0)
        return np.sum((z * z * (1 + 2j)).real)

    _is_right(f, _POINT)


def test_a_margin_that_is_filled_afterwards():
    def f(np, x):
        junk = numpy.full(10, 1e300)
        del junk  # leaves numbers in memory that are no indices
        y = np.pad(x, 2, mode="empty")
        y[:2], y[-2:] = 0.0, x[0]
        return np.sum(y * y * y)

    _is_right(f, _POINT)


def test_einsum_of_real_parts():
    f = lambda np, x: np.einsum(
        "i,i,i->", x[:3] + 1j * x[3:], (1 + 2j) * x[3:], _WEIGHTS[:3], dtype=float, casting="unsafe"
    )
    _is_right(f, _POINT)


def test_a_range_with_a_stop_only():
    _is_right(lambda np, x: np.sum(np.arange(x[0] + 4.0, None, 1.0) ** 2) * x[0], _POINT)


@pytest.mark.parametrize("places", [[0.0, 1.0, 1.0], [0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0], [1.0]])
def test_interpolation_with_a_jump_at_the_end(places):
    f = lambda np, x: np.sum(np.interp([-1.0, 0.0, 0.5, 1.0, 2.0], places, x[: len(places)]) * _WEIGHTS[:5])
    _is_right(f, _POINT)


def test_rows_with_results_of_another_dtype_than_the_first():
    def f(np, x):
        y = np.apply_along_axis(lambda row: row.sum() if row[0] < 0 else 0, 1, 4 * x.reshape(2, 3))
        return np.sum(y) * x[0]

    _is_right(f, _POINT)
    _is_right(f, _POINT[::-1].copy() - 0.5)


_ONLY_ACTIVE = {
    "range": lambda np, x: np.histogram(_WEIGHTS, 4, (x[0] - 3.0, x[1] + 3.0), True)[0] * _WEIGHTS[:4],
    "range=": lambda np, x: np.histogram(_WEIGHTS, 4, range=(x[0] - 3.0, x[1] + 3.0), density=True)[0] ** 2,
    "range of dd": lambda np, x: np.histogramdd(
        _WEIGHTS.reshape(3, 2), (2, 3), [None, (x[0] - 5.0, x[1] + 4.0)], density=True
    )[0],
    "range of 2d": lambda np, x: np.histogram2d(
        _WEIGHTS, _WEIGHTS, 3, [[x[0] - 4.0, x[1] + 3.0], [-3, 3]], density=True
    )[0],
    "range of edges": lambda np, x: np.histogram_bin_edges(_WEIGHTS, 3, (x[0] - 4.0, x[1] + 3.0)) ** 2,
    "left": lambda np, x: np.interp([-1.0, 0.5, 3.0], [0, 1.0], [2.0, 3.0], left=x[0], right=x[1]) ** 2,
    "constant_values": lambda np, x: np.pad(_WEIGHTS, 2, constant_values=x[0] * x[1]) ** 2,
    "k": lambda np, x: np.polyint(_WEIGHTS, 2, k=[x[0], x[1]]) ** 2,
    "dx": lambda np, x: np.trapezoid(_WEIGHTS, dx=x[0]) ** 2,
    "default": lambda np, x: np.select([_WEIGHTS > 0], [_WEIGHTS], x) ** 2,
    "period": lambda np, x: np.unwrap(9 * _WEIGHTS, period=x[0] + 2.0) ** 2,
}


@pytest.mark.parametrize("name", list(_ONLY_ACTIVE))
def test_only_a_parameter_on_which_numpy_does_not_dispatch_is_active(name):
    _is_right(lambda np, x: np.sum(_ONLY_ACTIVE[name](np, x)), _POINT)


@pytest.mark.parametrize("name", ["fftn", "rfftn", "irfftn"])
def test_a_transform_along_one_axis_twice(name):
    def f(x):
        return np.sum(np.abs(getattr(np.fft, name)(x.reshape(2, 3), s=(5, 4), axes=(1, 1))) ** 2)

    with pytest.raises(ampi.ActivityError, match="repeated axes"):
        ampi.grad(f)(_POINT)
    _is_right(lambda np, x: np.sum(np.abs(np.fft.fftn(x.reshape(2, 3), axes=(1, 1)) * _WEIGHTS[:3]) ** 2), _POINT)


def test_elements_of_long_double_that_are_taken():
    def f(np, x):
        y = np.take(x.astype(np.longdouble), [[1, 1, 2], [5, 0, 1]])
        z = np.roll((x * (1 + 2j)).astype(np.clongdouble), 2)
        return (np.sum(y * y * y).astype(float) + np.sum((z * z).imag).astype(float)) * x[0]

    _is_right(f, _POINT)


def test_structured_elements_that_are_taken():
    def f(np, x):
        s = np.zeros(3, [("a", "f8"), ("b", "f8")])
        s["a"], s["b"] = x[:3], x[3:] * x[:3]
        return np.sum(np.take(s, [2, 0, 0])["b"] ** 2 * _WEIGHTS[:3]) + np.sum(np.roll(s, 1)["a"] * x[:3])

    _is_right(f, _POINT)

"""scipy.ndimage: linear filters and interpolation of active arrays."""

import numpy as np
import pytest
import scipy.ndimage as nd
from scipy_check import check

import ampi

MODES = ["reflect", "constant", "nearest", "mirror", "wrap"]


def drawn(rng, ndim=2, complex=False):
    x = rng.normal(size=rng.integers(2, 7, ndim)) + (1j * rng.normal() if complex else 0)
    return np.asfortranarray(x) if rng.random() < 0.5 else x[::-1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("mode", MODES)
def test_filters(mode, seed):
    rng = np.random.default_rng(seed)
    x = drawn(rng, complex=seed == 2)
    n = int(rng.integers(1, 8))
    w, origin = rng.normal(size=n), int(rng.integers(-(n // 2), (n - 1) // 2 + 1))
    axis = int(rng.integers(-2, 2))
    for f in (nd.correlate1d, nd.convolve1d):
        check(lambda x, w, f=f: f(x, w, axis, mode=mode, cval=0.3, origin=origin), x, w)
    check(lambda x: nd.convolve1d(x, w + 0.5j, axis, mode=mode), x)
    check(lambda x: nd.correlate1d(x, w + 0.5j, axis, mode=mode), x)
    w = rng.normal(size=rng.integers(1, 5, 2))
    origin = [int(rng.integers(-(n // 2), (n - 1) // 2 + 1)) for n in w.shape]
    for f in (nd.correlate, nd.convolve):
        check(lambda x, w, f=f: f(x, w, mode=mode, cval=0.3, origin=origin), x, w)
    check(lambda x: nd.uniform_filter1d(x, n, axis, mode=mode, cval=0.2), x)
    check(lambda x: nd.uniform_filter(x, (n, 2), mode=mode), x)
    check(lambda x: nd.gaussian_filter1d(x, 1.2, axis, 1, mode=mode), x)
    check(lambda x: nd.gaussian_filter(x, (0.7, 0.0), mode=mode), x)
    check(lambda x: nd.gaussian_filter(x, 0.7, axes=(1,), mode=mode, radius=1), x)
    for f in (nd.correlate, nd.convolve):
        check(lambda x, w, f=f: f(x, w, mode=mode, cval=0.3), x, w + 0.5j * w[::-1])
        check(lambda x, w, f=f: f(x[0], w[0], mode=mode), x, w + 0.5j * w[::-1])
    for f in (nd.sobel, nd.prewitt):
        check(lambda x, f=f: f(x, axis, mode=mode), x.real)
    check(lambda x: nd.gaussian_filter1d(x[:1], 1.2, 0, 1, mode=mode), x)
    check(lambda x: nd.laplace(x, mode=mode), x.real)
    check(lambda x: nd.gaussian_laplace(x, 0.8, mode=mode), x.real)
    check(lambda x: nd.gaussian_gradient_magnitude(x, 0.8, mode=mode), x.real)


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror", "reflect", "grid-wrap", "grid-constant"])
def test_interpolation(mode, order):
    rng = np.random.default_rng(order)
    x = rng.normal(size=(5, 4))
    at = rng.uniform(-2, 7, (2, 9))
    check(lambda x: nd.map_coordinates(x, at, order=order, mode=mode), x)
    check(lambda x: nd.shift(x, (1.3, -0.4), order=order, mode=mode), x)
    check(lambda x: nd.zoom(x, (1.7, 0.8), order=order, mode=mode), x)
    check(lambda x: nd.affine_transform(x, [[0.9, 0.2], [-0.1, 1.1]], 0.4, order=order, mode=mode), x)


@pytest.mark.filterwarnings("ignore:The behavior of affine_transform with a 1-D array")  # SciPy 1.15
@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("mode", ["constant", "nearest", "mirror", "reflect", "grid-wrap", "grid-constant"])
def test_interpolation_where_rounding_decides(mode, order):
    """Points in the middle between two elements, and at the borders of all elements, up to rounding."""
    x = np.random.default_rng(order).normal(size=(5, 4))
    at = np.mgrid[-7:12:0.5, -3:6:0.5]
    options = {"order": order, "mode": mode, "cval": 0.7}
    check(lambda x: nd.map_coordinates(x, at, **options), x)
    for shift in (0.5, (-1.5, 6.5), (-6.5, -7.5)):
        check(lambda x, shift=shift: nd.shift(x, shift, **options), x)
    for zoom in (2, (0.4, 1.5), (7, 0.2)):
        check(lambda x, zoom=zoom: nd.zoom(x, zoom, **options), x)
    for matrix, offset in (([0.5, 2], [-0.5, 1]), ([0.1, 0.3], -0.5), ([[0, 1], [0.5, 0]], 0.5)):
        check(lambda x, m=matrix, o=offset: nd.affine_transform(x, m, o, (9, 12), **options), x)
    check(lambda x: nd.affine_transform(x, [[0.1, 0.3, 0.1], [0.7, 0.2, 0.3]], 0, (20, 20), **options), x)


def test_gaussian_derivatives_along_some_axes():
    """SciPy extends the whole array as it does along an axis, for the derivative along that axis."""
    x = np.random.default_rng(0).normal(size=(5, 3))
    for f in (nd.gaussian_laplace, nd.gaussian_gradient_magnitude):
        for axes in (None, (0, 1), (1, 0)):
            check(lambda x, f=f, a=axes: f(x, (0.5, 1), mode=["wrap", "constant"], cval=2, axes=a, truncate=2), x)
        check(lambda x, f=f: f(x, 0.7, mode="wrap", axes=(-1,)), x)
    check(lambda x: nd.gaussian_laplace(x, (0.7,), axes=(-1,)), x)


def test_fourier_filters():
    x = np.random.default_rng(0).normal(size=(4, 6)) * (1 + 0.5j)
    check(lambda x: nd.fourier_gaussian(x, 0.5), x)
    check(lambda x: nd.fourier_uniform(x, 2), x)
    check(lambda x: nd.fourier_shift(x, (1.5, 0.3)), x)
    check(lambda x: nd.fourier_gaussian(x, 0.5, n=8), x.real)


@pytest.mark.parametrize(
    "name, f",
    [
        ("median_filter", lambda x: nd.median_filter(x, 3)),
        ("shift", lambda x: nd.map_coordinates(nd.shift(x, 0.5), [[0.5], [0.5]])),
        ("spline_filter", nd.spline_filter),
        ("output", lambda x: nd.correlate1d(x, [1.0, 2.0], output=np.zeros((3, 3)))),
        ("map_coordinates", lambda x: nd.map_coordinates(np.ones((3, 3)), x[:2], order=1)),
        ("generic_filter", lambda x: nd.generic_filter(np.ones((3, 3)), lambda v: v[0] * x[0, 0], 2)),
    ],
)
def test_what_is_not_supported_is_an_error(name, f):
    with ampi.Tape() as tape:
        x = tape.watch(np.ones((3, 3)))
        with pytest.raises(ampi.ActivityError, match=rf"test_scipy_ndimage\.py:.*{name}"):
            f(x)

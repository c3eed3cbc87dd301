"""scipy.interpolate: interpolants of active values, at active places."""

import numpy as np
import pytest
import scipy.interpolate as ip
from scipy_check import check

import ampi

X = np.array([0.0, 0.7, 1.5, 2.1, 3.0, 3.6])
AT = np.array([[0.2, 1.1, 3.5], [2.0, -0.4, 4.0]])


def values(*shape):
    return np.random.default_rng(len(shape)).normal(size=(6, *shape))


@pytest.mark.parametrize("bc", ["not-a-knot", "natural", "clamped", ((1, 0.3), (2, 0.1))])
def test_cubic_splines(bc):
    check(lambda y, at: ip.CubicSpline(X, y, bc_type=bc)(at), values(), AT)
    check(lambda y: ip.CubicSpline(X, y)(AT, 1), values(2))
    check(lambda y: ip.CubicSpline(X, y, axis=1)(AT[0]), values(2).T)
    check(lambda y, s: ip.CubicHermiteSpline(X, y, s)(AT), values(), values() ** 2)
    check(lambda y: ip.CubicSpline(X, y, extrapolate=False)(AT[0]), values())
    check(lambda at: ip.CubicSpline(X, values())(at) + ip.PchipInterpolator(X, values())(at), AT)


def test_splines_of_coefficients():
    t = np.r_[0.0, 0.0, 0.0, X[:4], 3.6, 3.6, 3.6]
    check(lambda c, at: ip.BSpline(t, c, 3)(at), values(), AT)
    check(lambda c, at: ip.BSpline(t, c, 3, extrapolate="periodic")(at), values(2) * (1 + 0.3j), AT)
    check(lambda c: np.nan_to_num(ip.BSpline(t, c, 3, False, axis=1)(AT)), values(2).T)


@pytest.mark.parametrize("kind", [ip.PchipInterpolator, ip.Akima1DInterpolator])
def test_splines_of_slopes_of_their_own(kind):
    check(lambda y, at: kind(X, y, extrapolate=True)(at), values(), AT)
    check(lambda y: kind(X, y, axis=1, extrapolate=True)(AT), values(3).T)
    check(lambda y: kind(X[:2], y, extrapolate=True)(AT, 1), values()[:2])


def test_periodic_spline():
    close = lambda y: np.concatenate([y, y[:1]])
    check(lambda y: ip.CubicSpline(X, close(y), bc_type="periodic")(AT), values()[:5])


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_interpolating_splines(k):
    check(lambda y, at: ip.make_interp_spline(X, y, k)(at), values(), AT[0])
    check(lambda y: ip.make_interp_spline(X, y, k)(AT), values(2, 3))
    check(lambda y: ip.make_interp_spline(X, y, k, axis=1)(AT[0]), values(2).T)


@pytest.mark.parametrize("kind", ["linear", "nearest", "nearest-up", "previous", "next"])
def test_one_axis(kind):
    inner = np.clip(AT + 0.03, 0.1, 3.5)
    check(lambda y, at: ip.interp1d(X, y, kind)(at), values(), inner)
    check(lambda y: ip.interp1d(X, y, kind, axis=1)(inner), values(2).T)
    check(lambda y: ip.interp1d(X, y, kind, bounds_error=False, fill_value=0.5)(AT), values())
    mixed = X[[3, 0, 5, 1, 2, 4]]
    check(lambda y: ip.interp1d(mixed, y, kind, axis=0)(inner), values(2))
    check(lambda y: ip.interp1d(mixed, y, kind).y * values(), values())
    if kind == "linear":
        check(lambda y, at: ip.interp1d(mixed, y, kind)(at), values(), inner)
        check(lambda y, at: ip.interp1d(X, y, kind, fill_value="extrapolate")(at), values(), AT)


@pytest.mark.parametrize("method", ["linear", "nearest"])
def test_grids(method):
    rng = np.random.default_rng(3)
    points = (X, np.array([0.0, 1.0, 2.5]))
    v = rng.normal(size=(6, 3))
    at = rng.uniform(0.05, 2.4, (4, 2, 2))
    check(lambda v, at: ip.RegularGridInterpolator(points, v, method)(at), v, at)
    check(lambda v: ip.RegularGridInterpolator(points, v, method)(at), rng.normal(size=(6, 3, 2)))
    check(lambda v: ip.RegularGridInterpolator(points, v, method, False, 0.3)(3 * at - 2), v)
    check(lambda v: ip.RegularGridInterpolator(points, v, method, False, None)(3 * at - 2), v)
    check(lambda v: ip.interpn(points, v, at, method), v)
    check(lambda v, a, b: ip.RegularGridInterpolator(points, v, method)((a, b[:, 0])), v, at[..., 0], at[:2, :1, 1])
    check(lambda v, a, b: ip.interpn(points, v, (a, b), method), v, at[0, :, 0], at[0, :, 1])


@pytest.mark.parametrize(
    "name, f",
    [
        ("knots", lambda y: ip.CubicSpline(y + 9 * X, X)),
        ("knots", lambda y: ip.PPoly(np.ones((2, 5)) * y[0], y + 9 * X)),
        ("knots", lambda y: ip.BSpline(y + 9 * X, np.ones(4), 1)),
        ("antiderivative", lambda y: ip.PchipInterpolator(X, y).antiderivative()),
        ("integrate", lambda y: ip.BSpline(X, y[:4], 1).integrate(0, 1)),
        ("interp1d", lambda y: ip.interp1d(X, y, "cubic")),
        ("make_interp_spline", lambda y: ip.make_interp_spline(X, y, bc_type="natural")),
        ("integrate", lambda y: ip.CubicSpline(X, y).integrate(0, 1)),
        ("derivative", lambda y: ip.make_interp_spline(X, y).derivative()),
        ("RegularGridInterpolator", lambda y: ip.RegularGridInterpolator((X,), y, "cubic")),
        ("RegularGridInterpolator", lambda y: ip.RegularGridInterpolator((X, [1.0]), y[:, None])([[1.0, 1.0]])),
        ("UnivariateSpline", lambda y: ip.UnivariateSpline(X, y)),
        ("splrep", lambda y: ip.splrep(X, y)),
        ("griddata", lambda y: ip.griddata(X, y, 0.5)),
        ("RBFInterpolator", lambda y: ip.RBFInterpolator(X[:, None], y)),
    ],
)
def test_what_is_not_supported_is_an_error(name, f):
    with ampi.Tape() as tape:
        y = tape.watch(values())
        with pytest.raises(ampi.ActivityError, match=rf"test_scipy_interpolate\.py:.*{name}"):
            f(y)

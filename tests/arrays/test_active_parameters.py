"""Each numeric parameter of functions of NumPy and SciPy is made active in turn: its derivative, or an error."""

import warnings

import numpy
import pytest
import scipy.fft
import scipy.integrate
import scipy.interpolate
import scipy.ndimage
import scipy.optimize
import scipy.signal
import scipy.stats

import ampi
import ampi.numpy as anp
from ampi.arrays import losses as outside

V = numpy.array([0.7, 1.9, 0.4, 2.6, 1.3])
UP = numpy.array([0.1, 0.9, 1.7, 2.8, 3.6])
M = numpy.array([[2.1, 0.3, -0.4], [0.3, 1.7, 0.2], [0.5, -0.2, 3.1]])
HOLES = numpy.array([0.7, numpy.nan, 0.4, numpy.inf, 1.3])


def case(call, **given):
    return call, {name: numpy.asarray(x, float) for name, x in given.items()}


NUMPY = {
    "interp": case(lambda np, x, xp, fp: np.interp(x, xp, fp), x=V, xp=UP, fp=V),
    "interp, outside": case(
        lambda np, x, left, right: np.interp(x, UP[1:3], V[1:3], left, right), x=V, left=0.3, right=2
    ),
    "interp, period": case(lambda np, x, period: np.interp(x, UP, V, period=period), x=V, period=3.9),
    "histogram": case(lambda np, a, bins: np.histogram(a, bins)[0] * 1.0, a=V, bins=UP),
    "histogram, density": case(lambda np, a, bins: np.histogram(a, bins, density=True)[0], a=V, bins=UP),
    "histogram, weights": case(lambda np, w, bins: np.histogram(V, bins, weights=w)[0], w=V, bins=UP),
    "histogram, edges": case(lambda np, low, high: np.histogram(V, 4, (low, high))[1], low=0.2, high=3.0),
    "histogram_bin_edges": case(lambda np, a: np.histogram_bin_edges(a, 3), a=V),
    "histogram2d": case(lambda np, w: np.histogram2d(V, UP, 2, weights=w)[0], w=V),
    "percentile": case(lambda np, a, q: np.percentile(a, q), a=V, q=[20.0, 61.0]),
    "quantile": case(lambda np, a, q: np.quantile(a, q), a=V, q=[0.2, 0.61]),
    "nanpercentile": case(lambda np, a, q: np.nanpercentile(a, q), a=V, q=[20.0, 61.0]),
    "nanquantile": case(lambda np, a, q: np.nanquantile(a, q), a=V, q=[0.2, 0.61]),
    "clip": case(lambda np, a, low, high: np.clip(a, low, high), a=V, low=0.5, high=2.0),
    "clip, method": case(lambda np, a, low, high: np.asarray(a).clip(low, high), a=V, low=0.5, high=2.0),
    "gradient": case(lambda np, f, h: np.gradient(f, h), f=V, h=0.3),
    "gradient, points": case(lambda np, f, x: np.gradient(f, x), f=V, x=UP),
    "gradient, 2-d": case(lambda np, f, h, x: np.gradient(f, h, x)[1], f=M, h=0.3, x=UP[:3]),
    "trapezoid": case(lambda np, y, x: np.trapezoid(y, x), y=V, x=UP),
    "trapezoid, dx": case(lambda np, y, dx: np.trapezoid(y, dx=dx), y=V, dx=0.3),
    "full": case(lambda np, fill: np.full((2, 3), fill), fill=1.3),
    "full, several": case(lambda np, fill: np.full((2, 3), fill), fill=V[:3]),
    "full_like": case(lambda np, a, fill: np.full_like(a, fill), a=V, fill=1.3),
    "pad": case(lambda np, a, c: np.pad(a, 2, constant_values=c), a=V, c=0.4),
    "pad, both": case(lambda np, a, c: np.pad(a, 2, constant_values=(c, 2 * c)), a=V, c=0.4),
    "pad, ramp": case(lambda np, a, c: np.pad(a, 2, "linear_ramp", end_values=c), a=V, c=0.4),
    "convolve": case(lambda np, a, v: np.convolve(a, v), a=V, v=UP[:3]),
    "correlate": case(lambda np, a, v: np.correlate(a, v, "full"), a=V, v=UP[:3]),
    "digitize": case(lambda np, x, bins: np.digitize(x, bins) * 1.0, x=V, bins=UP),
    "searchsorted": case(lambda np, a, v: np.searchsorted(a, v) * 1.0, a=UP, v=V),
    "average": case(lambda np, a, w: np.average(a, weights=w), a=V, w=UP),
    "cov": case(lambda np, m, w: np.cov(m, aweights=w), m=M, w=UP[:3]),
    "corrcoef": case(lambda np, m, y: np.corrcoef(m, y), m=V, y=UP),
    "nan_to_num": case(lambda np, nan, big: np.nan_to_num(HOLES, nan=nan, posinf=big), nan=0.3, big=5.0),
    "nan_to_num of both": case(
        lambda np, x, nan: np.nan_to_num(np.where(HOLES > 1, HOLES, x), nan=nan, posinf=2.0), x=V, nan=0.3
    ),
    "where": case(lambda np, x, y: np.where(V > 1, x, y), x=V, y=UP),
    "select": case(lambda np, x, d: np.select([V > 1], [x], d), x=V, d=0.4),
    "choose": case(lambda np, x, y: np.choose([0, 1, 0, 1, 1], [x, y]), x=V, y=UP),
    "piecewise": case(lambda np, x, c: np.piecewise(x, [V > 1], [c, lambda t: t * t]), x=V, c=0.4),
    "heaviside": case(lambda np, h: np.heaviside(numpy.array([0.0, 1.0]), h), h=0.4),
    "unwrap": case(lambda np, p, period: np.unwrap(p, period=period), p=V * 9, period=5.0),
    "unwrap, discont": case(lambda np, p, d: np.unwrap(p, discont=d), p=V * 9, d=4.0),
    "diff": case(lambda np, a, p, q: np.diff(a, prepend=p, append=q), a=V, p=0.2, q=0.9),
    "ediff1d": case(lambda np, a, p, q: np.ediff1d(a, to_begin=p, to_end=q), a=V, p=0.2, q=0.9),
    "insert": case(lambda np, a, v: np.insert(a, 2, v), a=V, v=0.4),
    "append": case(lambda np, a, v: np.append(a, v), a=V, v=0.4),
    "sum, initial": case(lambda np, a, i: np.sum(a, initial=i), a=V, i=0.3),
    "prod, initial": case(lambda np, a, i: np.prod(a, initial=i), a=V, i=0.3),
    "max, initial": case(lambda np, a, i: np.max(a, initial=i), a=V, i=5.3),
    "vander": case(lambda np, x: np.vander(x, 3), x=V),
    "tri": case(lambda np, x: np.tril(x), x=M),
    "polyval": case(lambda np, p, x: np.polyval(p, x), p=V, x=UP),
    "polyfit": case(lambda np, x, y, w: np.polyfit(x, y, 2, w=w), x=UP, y=V, w=UP),
    "polyadd": case(lambda np, p, q: np.polyadd(p, q), p=V, q=UP[:2]),
    "polyint": case(lambda np, p, k: np.polyint(p, k=k), p=V, k=0.3),
    "roots": case(lambda np, p: np.roots(p).real, p=UP[:3]),
    "poly": case(lambda np, r: np.poly(r), r=V),
    "bincount": case(lambda np, w: np.bincount([0, 1, 1, 2, 0], w), w=V),
    "kaiser": case(lambda np, beta: np.kaiser(5, beta), beta=2.3),
    "einsum": case(lambda np, a, b: np.einsum("i,i->i", a, b), a=V, b=UP),
    "tensordot": case(lambda np, a, b: np.tensordot(a, b, 1), a=M, b=M + 1),
    "cross": case(lambda np, a, b: np.cross(a, b), a=V[:3], b=UP[:3]),
    "kron": case(lambda np, a, b: np.kron(a, b), a=V, b=UP),
    "round": case(lambda np, a: np.round(a, 1), a=V),
    "ldexp": case(lambda np, a: np.ldexp(a, 2), a=V),
    "copysign": case(lambda np, a, b: np.copysign(a, b), a=V, b=-UP),
    "fromfunction": case(lambda np, a: np.fromfunction(lambda i: i * a, (4,)), a=0.3),
    "put": case(lambda np, v: put(np, v), v=V[:2]),
    "place": case(lambda np, v: placed(np, v), v=V[:2]),
    "put_along_axis": case(lambda np, v: along(np, v), v=V[:3]),
    "fill_diagonal": case(lambda np, v: diagonal(np, v), v=0.4),
    "lstsq": case(lambda np, a, b: np.linalg.lstsq(a, b, rcond=None)[0], a=M, b=V[:3]),
    "pinv": case(lambda np, a: np.linalg.pinv(a), a=M),
    "norm": case(lambda np, a: np.linalg.norm(a, 3), a=V),
    "norm, order": case(lambda np, a, p: np.linalg.norm(a, p), a=V, p=2.5),
    "solve": case(lambda np, a, b: np.linalg.solve(a, b), a=M, b=V[:3]),
    "chebval": case(lambda np, x, c: numpy.polynomial.chebyshev.chebval(x, c), x=V, c=UP),
}


def put(np, v):
    a = np.zeros(5)
    np.put(a, [1, 3], v)
    return a


def placed(np, v):
    a = np.zeros(5)
    np.place(a, V > 1, v)
    return a


def along(np, v):
    a = np.zeros((3, 3))
    np.put_along_axis(a, numpy.array([[1], [0], [2]]), v[:, None], 1)
    return a


def diagonal(np, v):
    a = np.zeros((3, 3))
    np.fill_diagonal(a, v)
    return a


SCIPY = {
    "trapezoid, dx": case(lambda np, y, dx: scipy.integrate.trapezoid(y, dx=dx), y=V, dx=0.3),
    "cumulative_trapezoid": case(lambda np, y, x: scipy.integrate.cumulative_trapezoid(y, x, initial=0), y=V, x=UP),
    "simpson, dx": case(lambda np, y, dx: scipy.integrate.simpson(y, dx=dx), y=V, dx=0.3),
    "simpson, x": case(lambda np, y, x: scipy.integrate.simpson(y, x=x), y=V, x=UP),
    "romb, dx": case(lambda np, y, dx: scipy.integrate.romb(y, dx), y=V, dx=0.3),
    "quad, ends": case(lambda np, a, b: scipy.integrate.quad(lambda t: t * t, a, b)[0], a=0.2, b=1.2),
    "quad, args": case(lambda np, k: scipy.integrate.quad(lambda t, k: k * t, 0, 1, args=(k,))[0], k=0.7),
    "CubicSpline": case(lambda np, x, y, t: scipy.interpolate.CubicSpline(x, y)(t), x=UP, y=V, t=[0.5, 2.0]),
    "CubicSpline, slopes": case(
        lambda np, s: scipy.interpolate.CubicSpline(UP, V, bc_type=((1, s), (2, 0.0)))([0.5, 2.0]), s=0.3
    ),
    "Pchip": case(lambda np, x, y, t: scipy.interpolate.PchipInterpolator(x, y)(t), x=UP, y=V, t=[0.5, 2.0]),
    "Akima": case(lambda np, x, y, t: scipy.interpolate.Akima1DInterpolator(x, y)(t), x=UP, y=V, t=[0.5, 2.0]),
    "interp1d": case(
        lambda np, x, y, t, f: scipy.interpolate.interp1d(x, y, bounds_error=False, fill_value=f)(t),
        x=UP,
        y=V,
        t=[0.5, 9.0],
        f=0.4,
    ),
    "splev": case(lambda np, y, t: scipy.interpolate.splev(t, scipy.interpolate.splrep(UP, y)), y=V, t=[0.5, 2.0]),
    "splrep, s": case(lambda np, s: scipy.interpolate.splev([0.5], scipy.interpolate.splrep(UP, V, s=s)), s=0.3),
    "UnivariateSpline": case(lambda np, y: scipy.interpolate.UnivariateSpline(UP, y)([0.5]), y=V),
    "BSpline": case(lambda np, t, c, x: scipy.interpolate.BSpline(t, c, 1)(x), t=numpy.arange(7.0), c=V, x=[1.5, 2.2]),
    "RegularGrid": case(lambda np, y, t: scipy.interpolate.RegularGridInterpolator((UP,), y)(t), y=V, t=[[0.5], [2.0]]),
    "RegularGrid, points": case(lambda np, x: scipy.interpolate.RegularGridInterpolator((x,), V)([[0.5], [2.0]]), x=UP),
    "Rbf": case(
        lambda np, y, e: scipy.interpolate.RBFInterpolator(UP[:, None], y, kernel="gaussian", epsilon=e)([[0.5]]),
        y=V,
        e=1.2,
    ),
    "gaussian_filter": case(lambda np, a, s: scipy.ndimage.gaussian_filter(a, s), a=V, s=1.1),
    "gaussian_filter1d": case(
        lambda np, a, s, c: scipy.ndimage.gaussian_filter1d(a, s, mode="constant", cval=c), a=V, s=1.1, c=0.4
    ),
    "ndimage.convolve": case(
        lambda np, a, w, c: scipy.ndimage.convolve(a, w, mode="constant", cval=c), a=V, w=UP[:3], c=0.4
    ),
    "correlate1d": case(
        lambda np, a, w, c: scipy.ndimage.correlate1d(a, w, mode="constant", cval=c), a=V, w=UP[:3], c=0.4
    ),
    "uniform_filter": case(lambda np, a, c: scipy.ndimage.uniform_filter(a, 3, mode="constant", cval=c), a=V, c=0.4),
    "map_coordinates": case(
        lambda np, a, x, c: scipy.ndimage.map_coordinates(a, [x], order=1, cval=c), a=V, x=[0.5, 2.2, 7.0], c=0.4
    ),
    "shift": case(lambda np, a, s, c: scipy.ndimage.shift(a, s, order=1, cval=c), a=V, s=0.4, c=0.3),
    "zoom": case(lambda np, a, z: scipy.ndimage.zoom(a, z, order=1), a=V, z=1.5),
    "rotate": case(lambda np, a, d, c: scipy.ndimage.rotate(a, d, order=1, reshape=False, cval=c), a=M, d=11.0, c=0.4),
    "affine_transform": case(
        lambda np, a, m, o: scipy.ndimage.affine_transform(a, m, o, order=1),
        a=M,
        m=[[1.1, 0.1], [0.0, 0.9]],
        o=[0.1, 0.2],
    ),
    "lfilter": case(lambda np, b, a, x: scipy.signal.lfilter(b, a, x), b=UP[1:3], a=[1.0, 0.3], x=V),
    "lfilter, zi": case(lambda np, z: scipy.signal.lfilter([1.0, 0.2], [1.0, 0.3], V, zi=z)[0], z=[0.3]),
    "filtfilt": case(lambda np, b, x: scipy.signal.filtfilt(b, [1.0, 0.3], x, padlen=2), b=UP[1:3], x=V),
    "sosfilt": case(lambda np, b, x: scipy.signal.sosfilt(np.stack([*b, 1.0, 0.3, 0.1])[None], x), b=UP[:3], x=V),
    "fftconvolve": case(lambda np, a, v: scipy.signal.fftconvolve(a, v), a=V, v=UP),
    "detrend": case(lambda np, a: scipy.signal.detrend(a), a=V),
    "resample": case(lambda np, a: scipy.signal.resample(a, 7), a=V),
    "welch": case(lambda np, a, f: scipy.signal.welch(a, f, nperseg=4)[1], a=V, f=2.0),
    "butter": case(lambda np, w: scipy.signal.butter(2, w)[0], w=0.3),
    "chirp": case(lambda np, t, f: scipy.signal.chirp(t, f, 1.0, 2.0), t=UP, f=0.5),
    "gaussian": case(lambda np, s: scipy.signal.windows.gaussian(5, s), s=1.2),
    "fht": case(lambda np, a, h: scipy.fft.fht(a, h, 0.5), a=V[:4], h=0.2),
    "dct": case(lambda np, a: scipy.fft.dct(a), a=V),
    "brentq": case(lambda np, a, k: scipy.optimize.brentq(lambda x, k: x * x - k, a, 4.0, args=(k,)), a=0.0, k=2.0),
    "minimize_scalar": case(
        lambda np, k: scipy.optimize.minimize_scalar(lambda x, k: (x - k) ** 2, args=(k,)).x, k=2.0
    ),
    "fsolve": case(lambda np, k: scipy.optimize.fsolve(lambda x, k: x**2 - k, 1.0, args=(k,)), k=2.0),
    "root": case(lambda np, k: scipy.optimize.root(lambda x, k: x**2 - k, 1.0, args=(k,)).x, k=2.0),
    "curve_fit": case(lambda np, y: scipy.optimize.curve_fit(lambda x, a, b: a * x + b, UP, y)[0], y=V),
    "newton": case(lambda np, k: scipy.optimize.newton(lambda x, k: x * x - k, 1.0, args=(k,)), k=2.0),
    "least_squares": case(lambda np, k: scipy.optimize.least_squares(lambda x, k: x - k, [0.0], args=(k,)).x, k=2.0),
    "norm.pdf": case(lambda np, x, m, s: scipy.stats.norm.pdf(x, m, s), x=V, m=0.3, s=1.4),
    "gamma.cdf": case(lambda np, x, a: scipy.stats.gamma.cdf(x, a), x=V, a=1.4),
    "trim_mean": case(lambda np, a: scipy.stats.trim_mean(a, 0.2), a=V),
    "zscore": case(lambda np, a: scipy.stats.zscore(a), a=V),
}
CASES = {**{f"numpy {name}": c for name, c in NUMPY.items()}, **{f"scipy {name}": c for name, c in SCIPY.items()}}
PARAMETERS = [(name, parameter) for name, (_, given) in CASES.items() for parameter in given]


def weighted(np, found):
    return np.sum(found * np.cos(1.0 + numpy.arange(numpy.size(found)).reshape(numpy.shape(found))))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("name, parameter", PARAMETERS, ids=[f"{n}-{p}" for n, p in PARAMETERS])
def test_each_parameter_has_its_derivative_or_is_an_error(name, parameter):
    call, given = CASES[name]
    x0 = given[parameter]

    def f(np, x):
        return weighted(np, call(np, **{**given, parameter: x}))

    assert numpy.isfinite(float(f(numpy, x0)))
    outside._warned.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        try:
            gradient = ampi.grad(lambda x: f(anp, x) + 0 * anp.sum(x))(x0)
        except ampi.ActivityError as error:
            assert len(str(error)) > 40
            return
        said = any(issubclass(w.category, ampi.ActivityWarning) for w in seen)
        expected = numpy.zeros(x0.size)
        for k in range(x0.size):
            step = 1e-6 * numpy.eye(1, x0.size, k).reshape(x0.shape)
            expected[k] = (float(f(numpy, x0 + step)) - float(f(numpy, x0 - step))) / 2e-6
    if not said:
        numpy.testing.assert_allclose(numpy.ravel(gradient), expected, rtol=2e-6, atol=2e-7)

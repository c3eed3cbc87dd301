"""scipy.signal: convolutions and filters of active arrays."""

import numpy as np
import pytest
import scipy.signal as sg
from scipy_check import check

import ampi


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate", "fftconvolve", "oaconvolve", "convolve2d", "correlate2d"])
def test_convolutions(name, mode, seed):
    rng = np.random.default_rng(seed)
    ndim = 2 if name.endswith("2d") else int(rng.integers(1, 3))
    a = rng.normal(size=rng.integers(4, 8, ndim)) + (1j * rng.normal() if seed == 1 else 0)
    b = rng.normal(size=rng.integers(1, 5, ndim))[::-1] * (1 + (0.5j if seed == 2 else 0))
    check(lambda a, b: getattr(sg, name)(a, b, mode=mode), a, b)


@pytest.mark.parametrize("name", ["convolve", "correlate", "convolve2d", "correlate2d"])
def test_small_elements_beside_large_ones(name):
    """Without Fourier transforms all elements of the derivative are exact."""
    x, w = (np.exp(-40.0 * np.arange(n)) for n in (6, 3))
    if name.endswith("2d"):
        x, w = x[None], w[None]
    for reverse in (False, True):
        weights = np.exp(-40.0 * np.arange(8.0))[:: -1 if reverse else 1].reshape((1,) * (x.ndim - 1) + (-1,))
        f = lambda x, w, weights=weights: (getattr(sg, name)(x, w) * weights).sum()
        for k, one in enumerate((x, w)):
            found = ampi.grad(f, argnums=k)(x, w)
            for place in np.ndindex(one.shape):
                unit = np.zeros(one.shape)
                unit[place] = 1
                np.testing.assert_allclose(found[place], f(*[(x, unit), (unit, w)][1 - k]), rtol=1e-12)


def test_along_some_axes():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(3, 7)), rng.normal(size=(1, 4))
    check(lambda a, b: sg.fftconvolve(a, b, "same", axes=1), a, b)
    check(lambda a, b: sg.oaconvolve(a, b, axes=-1), a, b)


B, A = [0.3, 0.5, 0.2], [1.5, -0.6, 0.1, 0.05]


@pytest.mark.parametrize("axis", [0, 1])
def test_filters(axis):
    rng = np.random.default_rng(axis)
    x = np.asfortranarray(rng.normal(size=(15, 19)))
    check(lambda x: sg.lfilter(B, A, x, axis), x)
    check(lambda b, a, x: sg.lfilter(b, a, x, axis), np.array(B), np.array(A), x)
    zi = rng.normal(size=(3, 19) if axis == 0 else (15, 3))
    check(lambda b, a, x, zi: sg.lfilter(b, a, x, axis, zi), np.array(B), np.array(A), x, zi)
    check(lambda x: sg.filtfilt(B, A, x, axis), x)
    check(lambda x: sg.filtfilt(B, A, x, axis, padtype="even", padlen=5), x)
    check(lambda x: sg.filtfilt(B, A, x, axis, padtype=None), x)
    sos = sg.butter(5, 0.3, output="sos")
    ones = np.ones((len(sos), 1))
    check(lambda sos, x: sg.sosfilt(np.concatenate([sos[:, :3], ones, sos[:, 4:]], 1), x, axis), sos, x, rounding=1e-14)
    check(lambda x: sg.sosfilt(sos, x, axis), x)
    check(lambda x, zi: sg.sosfilt(sos, x[0], zi=zi), x, sg.sosfilt_zi(sos))
    check(lambda x: sg.sosfiltfilt(sos, x, axis, padlen=6), x)
    for mode in ("interp", "mirror", "nearest", "constant", "wrap"):
        check(lambda x, mode=mode: sg.savgol_filter(x, 7, 3, 1, 0.5, axis, mode), x)
    check(lambda x: sg.savgol_filter(x, 6, 2, axis=axis), x)
    check(lambda x: sg.detrend(x, axis), x)
    check(lambda x: sg.detrend(x, axis, "constant"), x, rounding=1e-14)
    check(lambda x: sg.detrend(x, axis, bp=[5, 9]), x, rounding=1e-14)
    check(lambda x: sg.hilbert(x, axis=axis), x)
    check(lambda x: sg.hilbert(x, 12, axis=axis), x)


@pytest.mark.parametrize(
    "name, f",
    [
        ("medfilt", sg.medfilt),
        ("welch", lambda a: sg.welch(a, nperseg=8)),
        ("filtfilt", lambda x: sg.filtfilt(B, A, x, method="gust")),
        ("convolve2d", lambda x: sg.convolve2d(np.outer(x, x), np.ones((2, 2)), boundary="wrap")),
        ("resample", lambda x: sg.resample(x, 7)),
        ("sepfir2d", lambda x: sg.sepfir2d(np.outer(x, x), x[:3], x[:3])),
        ("filtfilt", lambda x: sg.filtfilt(x[:3], A, np.ones(40))),
    ],
)
def test_what_is_not_supported_is_an_error(name, f):
    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(1, 2, 30))
        with pytest.raises(ampi.ActivityError, match=rf"test_scipy_signal\.py:.*{name}"):
            f(x)

"""scipy.fft: transforms of active arrays."""

import numpy as np
import pytest
import scipy.fft
from scipy.fft import dct, rfftn
from scipy_check import check

BASIC = ["fft", "ifft", "rfft", "irfft", "hfft", "ihfft"]


def drawn(rng, name, shape):
    x = rng.normal(size=shape)
    takes_complex = not name.startswith(("rfft", "ihfft"))
    return x + 1j * rng.normal(size=shape) if takes_complex and rng.random() < 0.6 else x


def laid_out(rng, x):
    """The same numbers in another order in memory."""
    kind = rng.integers(4)
    if kind == 0:
        return np.asfortranarray(x)
    if kind == 1:
        wide = np.zeros((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)
        wide[..., ::2] = x
        return wide[..., ::2]
    return x[::-1] if kind == 2 else x


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", BASIC)
def test_one_axis(name, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 7, rng.integers(1, 4)))
    x = laid_out(rng, drawn(rng, name, shape))
    n = [None, int(rng.integers(2, 9))][rng.integers(2)]
    axis = int(rng.integers(-x.ndim, x.ndim))
    norm = [None, "backward", "ortho", "forward"][rng.integers(4)]
    check(lambda x: getattr(scipy.fft, name)(x, n, axis, norm=norm), x)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", [f"{name}{end}" for name in BASIC for end in "2n"])
def test_several_axes(name, seed):
    rng = np.random.default_rng(seed)
    shape = tuple(rng.integers(2, 6, rng.integers(2, 4)))
    x = laid_out(rng, drawn(rng, name, shape))
    axes = tuple(int(k) for k in rng.permutation(x.ndim)[:2])
    s = [None, tuple(int(n) for n in rng.integers(2, 7, 2))][rng.integers(2)]
    norm = [None, "ortho", "forward"][rng.integers(3)]
    check(lambda x: getattr(scipy.fft, name)(x, s, axes, norm=norm), x)
    check(lambda x: getattr(scipy.fft, name)(x), x)
    check(lambda x: getattr(scipy.fft, name)(x, (3, -1), axes, norm=norm), x)  # -1: the axis's own length
    check(lambda x: getattr(scipy.fft, name)(x, (-1, 4), axes, norm=norm), x)


@pytest.mark.parametrize("norm", [None, "ortho", "forward"])
@pytest.mark.parametrize("orthogonalize", [None, True, False])
@pytest.mark.parametrize("kind", [1, 2, 3, 4])
@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idst"])
def test_cosines_and_sines(name, kind, orthogonalize, norm):
    rng = np.random.default_rng(kind)
    x = laid_out(rng, rng.normal(size=(3, 5)))
    for at in ((None, -1), (4, 0), (3, 1)):
        check(lambda x, at=at: getattr(scipy.fft, name)(x, kind, *at, norm, orthogonalize=orthogonalize), x)
    check(lambda x: getattr(scipy.fft, name + "n")(x, kind, norm=norm, orthogonalize=orthogonalize), x)
    check(lambda x: getattr(scipy.fft, name + "n")(x, kind, (4, 6), (1, 0), norm, orthogonalize=orthogonalize), x)
    x = x + 1j * rng.normal(size=x.shape)  # SciPy ignores `orthogonalize`
    check(lambda x: getattr(scipy.fft, name)(x, kind, 4, norm=norm, orthogonalize=orthogonalize), x)
    check(lambda x: getattr(scipy.fft, name + "n")(x, kind, (4, -1), None, norm, orthogonalize=orthogonalize), x)


def test_names_that_were_imported_before_and_single_precision():
    check(lambda x: rfftn(x).imag + dct(x)[:, :3], np.arange(12.0).reshape(3, 4) ** 2 % 5)
    check(lambda x: scipy.fft.fft(x.astype(np.complex64)), np.arange(4.0), rtol=1e-2, step=2.0**-6)

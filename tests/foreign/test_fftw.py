"""Plans of FFTW, as pyFFTW and mpi4py-fft have them, against finite differences and the values without a tape."""

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.base import checks

X0 = numpy.random.default_rng(0).standard_normal((4, 6))
WEIGHTS = numpy.cos(numpy.arange(24)).reshape(4, 6)


@pytest.fixture(autouse=True)
def strictly(monkeypatch):
    monkeypatch.setattr(checks, "strict", True)


def examine(program, single=False):
    """Values bit by bit, and the gradient along a direction."""
    value, gradient = ampi.value_and_grad(program)(X0)
    assert float(value) == float(program(X0))
    direction = numpy.random.default_rng(1).standard_normal(X0.shape)
    h, tolerance = (1e-2, 1e-3) if single else (1e-5, 1e-7)
    difference = float(program(X0 + h * direction) - program(X0 - h * direction)) / (2 * h)
    assert float((gradient * direction).sum()) == pytest.approx(difference, rel=tolerance)


def weighted(y):
    return (abs(y) ** 2 * numpy.cos(numpy.arange(y.size)).reshape(y.shape)).sum()


def there_and_back(pyfftw, x, kind="complex128"):
    a, b = (pyfftw.empty_aligned((4, 6), dtype=kind) for _ in range(2))
    forward = pyfftw.FFTW(a, b, axes=(0, 1))
    backward = pyfftw.FFTW(b, a, axes=(0, 1), direction="FFTW_BACKWARD")
    a[:] = x
    forward()
    b *= WEIGHTS
    backward()
    return weighted(a)


def of_real_numbers(pyfftw, x):
    a, b = np.zeros((4, 6)), np.zeros((4, 4), dtype=complex)
    forward = pyfftw.FFTW(a, b, axes=(0, 1))
    backward = pyfftw.FFTW(b, a, axes=(0, 1), direction="FFTW_BACKWARD")
    u = forward(x).copy()
    v = np.zeros((4, 6))
    assert backward(u * (1 + WEIGHTS[:, :4]), v) is v
    return (v**3).sum() + weighted(u)


def of_other_arrays(pyfftw, x):
    a, b = np.zeros((4, 6), dtype=complex), np.zeros((4, 6), dtype=complex)
    plan = pyfftw.FFTW(a, b, axes=(0,))
    u, v = x * 1j, np.zeros((4, 6), dtype=complex)
    plan.update_arrays(u, v)
    plan()
    square = v * v
    u[:] = 2 * u
    plan.execute()
    return weighted(square) + (v.real**3).sum()


def in_place(pyfftw, x):
    a = pyfftw.zeros_aligned((4, 6), dtype=complex)
    plan = pyfftw.FFTW(a, a, axes=(1,))
    a[:] = x
    plan()
    plan(ortho=True, normalise_idft=False)
    return weighted(a)


PYFFTW = {
    "there and back": there_and_back,
    "real numbers": of_real_numbers,
    "other arrays": of_other_arrays,
    "in place": in_place,
    "builder": lambda pyfftw, x: weighted(pyfftw.builders.rfft(x)()),
    "interface": lambda pyfftw, x: weighted(pyfftw.interfaces.numpy_fft.fft(x, axis=0, threads=1)),
    "interface of several axes": lambda pyfftw, x: weighted(
        pyfftw.interfaces.numpy_fft.rfft2(x, axes=(1, 0), s=(6, 4))
    ),
    "interface back": lambda pyfftw, x: weighted(pyfftw.interfaces.numpy_fft.irfft(x + 1j * WEIGHTS, 6, 0)),
}


@pytest.mark.parametrize("offset", [0, 1])  # pyFFTW does other things with arrays that are not aligned
@pytest.mark.parametrize("name", PYFFTW)
def test_pyfftw(name, offset):
    pyfftw = pytest.importorskip("pyfftw")
    pytest.importorskip("pyfftw.interfaces.numpy_fft")

    def program(x):
        memory = pyfftw.empty_aligned(25, dtype=float)
        moved = memory[offset : offset + 24].reshape(4, 6)
        moved[...] = x
        return PYFFTW[name](pyfftw, moved)

    examine(program)


def test_pyfftw_in_single_precision():
    pyfftw = pytest.importorskip("pyfftw")
    examine(lambda x: there_and_back(pyfftw, x, "complex64").astype(float), single=True)


COSINES_AND_SINES = [f"R{kind}DFT{ends}" for kind in "EO" for ends in ("00", "10", "01", "11")]


def of_two_axes(pyfftw, x, first, second):
    a, b = pyfftw.zeros_aligned((4, 6)), pyfftw.zeros_aligned((4, 6))
    plan = pyfftw.FFTW(a, b, axes=(1, 0), direction=[f"FFTW_{first}", f"FFTW_{second}"])
    a[:] = x
    plan()
    square = b * b
    return weighted(square) + (plan(square * WEIGHTS, ortho=True, normalise_idft=False) ** 3).sum()


@pytest.mark.parametrize("second", ["REDFT10", "RODFT00"])
@pytest.mark.parametrize("first", COSINES_AND_SINES)
def test_cosine_and_sine_transforms_of_pyfftw(first, second):
    pyfftw = pytest.importorskip("pyfftw")
    examine(lambda x: of_two_axes(pyfftw, x, first, second))


@pytest.mark.parametrize("name", ["dct", "idct", "dst", "idstn", "dctn"])
def test_real_transforms_of_pyfftw_s_interface(name):
    interface = pytest.importorskip("pyfftw.interfaces.scipy_fft")
    examine(lambda x: weighted(getattr(interface, name)(x, type=2)))


def test_pyfftw_as_scipy_s_backend():
    interface = pytest.importorskip("pyfftw.interfaces.scipy_fft")
    fft = pytest.importorskip("scipy.fft")

    def program(x):
        with fft.set_backend(interface):
            return weighted(fft.dctn(x)) + weighted(fft.rfftn(x))

    examine(program)


@pytest.mark.parametrize("kind", [0, *range(3, 11)])  # mpi4py-fft takes 1 and 2 for transforms of complex arrays
@pytest.mark.parametrize("axes", [(0,), (1,), (1, 0)])  # of even lengths, and of odd ones
@pytest.mark.parametrize("shape", [(4, 6), (5, 3)])
def test_real_transforms_of_mpi4py_fft(kind, axes, shape):
    factory = pytest.importorskip("mpi4py_fft.fftw.factory")
    utilities = pytest.importorskip("mpi4py_fft.fftw.utilities")

    def program(x):
        a, b = utilities.aligned(shape, dtype=float), utilities.aligned(shape, dtype=float)
        kinds = [kind, *[5] * (len(axes) - 1)]
        plan = factory.get_planned_FFT(a, b, axes, kinds, flags=(64,), normalization=0.5)
        a[:] = np.resize(x, shape)
        plan(normalize=True)
        return weighted(b) + (b**3).sum()

    examine(program)


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_plans_of_mpi4py_fft(real, given):
    fftw = pytest.importorskip("mpi4py_fft.fftw")

    def program(x):
        a = fftw.aligned((4, 6), dtype=float if real else complex)
        forward = (fftw.rfftn if real else fftw.fftn)(a, axes=(0, 1))
        b = forward.output_array
        backward = (fftw.irfftn if real else fftw.ifftn)(b, axes=(0, 1), output_array=a)
        if given:
            u = fftw.aligned(b.shape, dtype=complex)
            a[:] = x * (1.0 if real else 1j)
            forward(a, u, normalize=True)
            v, w = fftw.aligned(a.shape, dtype=a.dtype), fftw.aligned(b.shape, dtype=complex)
            w[:] = u * WEIGHTS[:, : u.shape[1]]
            backward(w, v)
            return weighted(v) + weighted(u)
        a[:] = x
        forward(normalize=True)
        b *= WEIGHTS[:, : b.shape[1]]
        backward()
        return weighted(a)

    examine(program)

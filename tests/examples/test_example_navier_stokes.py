"""The flow and its gradient, against NumPy on one rank with a tangent-linear model written by hand; the field found."""

import numpy as np
import pytest
from example import few_ranks, load, started

N, STEPS, TIME, VISCOSITY = 12, 4, 0.5, 2e-3


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("NuMPI")
    return load("navier_stokes")


def serial(w, dw):
    """The field at the end, and its tangent."""
    k = np.fft.fftfreq(N, 1 / N)
    kx, ky = np.meshgrid(k, k)
    k2 = kx**2 + ky**2
    kept = (abs(kx) < N / 3) & (abs(ky) < N / 3)
    back = lambda s: np.fft.ifft2(s).real

    def slopes(s):
        psi = np.divide(s, k2, out=np.zeros_like(s), where=k2 > 0)
        return [back(f) for f in (1j * ky * psi, -1j * kx * psi, 1j * kx * s, 1j * ky * s)]

    def both(s, ds):
        (u, v, wx, wy), (du, dv, dwx, dwy) = slopes(s), slopes(ds)
        change = np.fft.fft2(u * wx + v * wy) * kept
        dchange = np.fft.fft2(du * wx + u * dwx + dv * wy + v * dwy) * kept
        return np.array([-change - VISCOSITY * k2 * s, -dchange - VISCOSITY * k2 * ds])

    h, x = TIME / STEPS, np.array([np.fft.fft2(w), np.fft.fft2(dw)])
    for _ in range(STEPS):
        a = both(*x)
        b = both(*(x + h / 2 * a))
        c = both(*(x + h / 2 * b))
        x = x + h / 6 * (a + 2 * b + 2 * c + both(*(x + h * c)))
    return back(x[0]), back(x[1])


@pytest.mark.mpi
def test_gradient_is_that_of_the_tangent_linear_model(example):
    if N % example.comm.size:
        pytest.skip("the rows cannot be shared")
    flow = example.Flow(N, STEPS, TIME, VISCOSITY)
    rng = np.random.default_rng(0)
    start, seen, direction = 3 * rng.normal(size=(3, N, N))
    end, change = serial(start, direction)
    np.testing.assert_allclose(example.ampi.value(flow.run(start[flow.mine])), end[flow.mine], atol=1e-12)
    value, gradient = example.ampi.value_and_grad(flow.misfit)(start[flow.mine], seen[flow.mine])
    assert example.comm.allreduce(float(value)) == pytest.approx(np.sum((end - seen) ** 2), rel=1e-12)
    slope = example.comm.allreduce(float(np.sum(gradient * direction[flow.mine])))
    assert slope == pytest.approx(2 * np.sum((end - seen) * change), rel=1e-11)


@pytest.mark.mpi
def test_field_is_found(example):
    few_ranks()
    flow = example.Flow(N, 3, 0.3)
    true = example.truth(flow)
    found = example.invert(flow, example.ampi.value(flow.run(true)))
    np.testing.assert_allclose(found.x.reshape(true.shape), true, atol=1e-6)


def test_program(mpiexec, tmp_path):
    for name in ("matplotlib", "NuMPI"):
        pytest.importorskip(name)
    picture, options = tmp_path / "flow.png", ("-n", 12, "--steps", 3, "--time", 0.3)
    assert "unknowns" in started(mpiexec, 2, "navier_stokes", "navier_stokes", picture, *options)

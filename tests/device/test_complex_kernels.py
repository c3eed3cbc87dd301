"""Kernels of complex numbers on a device: derivatives as on NumPy arrays, and as differences give them."""

import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
from numba import config

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp

in_python = pytest.mark.skipif(not config.DISABLE_JIT, reason="runs where nothing is compiled: see test_in_python")
compiled = pytest.mark.skipif(config.DISABLE_JIT, reason="Numba compiles nothing")


@compiled
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("where", ["the processor", pytest.param("the simulator", marks=pytest.mark.slow)])
def test_in_python(where):
    """Tests here are run in a process of their own in which nothing is compiled, which would take far longer."""
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    if where == "the simulator":
        environment["NUMBA_ENABLE_CUDASIM"] = "1"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=pathlib.Path(__file__).parent)
    assert run.returncode == 0, run.stdout + run.stderr


@cuda.jit
def elements(a, b, s):
    i = cuda.grid(1)
    if i < b.size:
        b[i] = a[i] * a[i] * s + a[i].conjugate()


@cuda.jit
def in_place(a, b, s):
    i = cuda.grid(1)
    if i < b.size:
        a[i] = a[i] * (0.5 + 1j) + s
        b[i] += a[i] * a[i] / (2.0 + a[i].real)


@cuda.jit
def neighbours(a, b, s):
    """Several threads read an element, whose adjoint they add up."""
    i = cuda.grid(1)
    if i < b.size:
        b[i] = a[i] * a[(i + 1) % a.size] - a[(5 * i) % 3] * s


@cuda.jit
def parts(a, b, s):
    """Parts, and the absolute value."""
    i = cuda.grid(1)
    if i < b.size:
        z = a[i] * s
        b[i] = complex(z.real * z.imag, abs(z))


@cuda.jit
def shared(a, b, s):
    tile = cuda.shared.array(4, np.complex128)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    tile[t] = a[i % a.size] * s
    cuda.syncthreads()
    if i < b.size:
        b[i] = tile[3 - t] * a[i]


KERNELS = elements, in_place, neighbours, parts, shared
SIZE = 7


def program(kernel, on_device):
    def loss(x, y, s):
        z = x + 1j * y
        a = cuda.to_device(z) if on_device else anp.array(z)
        b = cuda.to_device(0.5 * z) if on_device else 0.5 * z
        kernel[2, 4](a, b, s)
        a, b = (d.copy_to_host() if on_device else d for d in (a, b))
        weights = np.linspace(0.5, 1.5, SIZE)
        return anp.sum((b * anp.conj(b)).real * weights) + anp.sum((a * a).imag)

    return loss


@in_python
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_complex(kernel):
    draw = np.random.default_rng(2)
    x, y, s = draw.normal(size=SIZE), draw.normal(size=SIZE), 1.3
    host, found = (ampi.value_and_grad(program(kernel, d), argnums=(0, 1, 2))(x, y, s) for d in (False, True))
    np.testing.assert_allclose(found[0], host[0], rtol=1e-12)
    for one, other in zip(found[1], host[1]):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-11)
    run, h = program(kernel, True), 1e-5
    v, w = draw.normal(size=SIZE), draw.normal(size=SIZE)
    up, down = (float(run(x + k * h * v, y + k * h * w, s + k * h * 0.7)) for k in (1, -1))
    slope = np.sum(found[1][0] * v) + np.sum(found[1][1] * w) + 0.7 * found[1][2]
    np.testing.assert_allclose((up - down) / (2 * h), slope, rtol=1e-6)
    np.testing.assert_allclose(ampi.jvp(run, (x, y, s), (v, w, 0.7))[1], slope, rtol=1e-10)

"""Random numbers of ``numba.cuda.random``, and functions that count bits, in CUDA kernels."""

import math

import numpy as np
import pytest
from uncompiled import compiled, in_python, run_in_python

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import KernelError
from ampi.cuda.random import (
    create_xoroshiro128p_states,
    xoroshiro128p_normal_float32,
    xoroshiro128p_normal_float64,
    xoroshiro128p_uniform_float32,
    xoroshiro128p_uniform_float64,
)
from ampi.kernel.cuda.interpreter import interpret

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
DRAWS = 3
A = np.linspace(0.5, 2.0, 8)


@compiled
def test_in_python(request):
    """Most tests are run in a process of their own in which nothing is compiled."""
    run_in_python(__file__, request)


@compiled
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_numbers_are_numbas():
    theirs = pytest.importorskip("numba.cuda.random")
    states = create_xoroshiro128p_states(5, 2**63 + 7, 2)
    expected = np.zeros(5, theirs.xoroshiro128p_dtype)
    theirs.init_xoroshiro128p_states_cpu(expected, np.uint64(2**63 + 7), 2)
    assert states.dtype == expected.dtype and (states == expected).all()

    @cuda.jit
    def drawn(states, by_names, by_numbas):
        i = cuda.grid(1)
        if i < states.size:
            by_names[i, 0] = xoroshiro128p_uniform_float32(states, i)
            by_names[i, 1] = cuda.random.xoroshiro128p_uniform_float64(states, i)
            by_names[i, 2] = xoroshiro128p_normal_float32(states, i)
            by_names[i, 3] = xoroshiro128p_normal_float64(states, i)
            by_numbas[i, 0] = theirs.xoroshiro128p_uniform_float32(states, i)
            by_numbas[i, 1] = theirs.xoroshiro128p_normal_float64(states, i)

    numbers, others = np.zeros((5, 4)), np.zeros((5, 2))
    drawn[2, 4](states, numbers, others)
    names = "uniform_float32 uniform_float64 normal_float32 normal_float64 uniform_float32 normal_float64".split()
    functions = [getattr(theirs, f"xoroshiro128p_{name}") for name in names]
    wanted = np.array([[f(expected, i) for f in functions] for i in range(5)])
    np.testing.assert_allclose(np.hstack([numbers, others]), wanted, rtol=1e-6)
    np.testing.assert_array_equal(numbers[:, :2], wanted[:, :2])
    assert (states == expected).all()


@cuda.jit
def mean(states, a, out, n):
    i = cuda.grid(1)
    if i < a.size:
        total = 0.0
        for _ in range(n):
            total += math.exp(a[i] * xoroshiro128p_uniform_float64(states, i))
        out[i] = total / n + a[i] * a[i] * xoroshiro128p_normal_float64(states, i)


STATES = create_xoroshiro128p_states(8, seed=1)


def loss(a, on_device=False):
    """Two launches, of which the second continues the sequences."""
    states = cuda.to_device(STATES) if on_device else STATES.copy()
    a, out = (cuda.to_device(a), cuda.device_array(8)) if on_device else (a, anp.zeros(8))
    mean[2, 4](states, a, out, DRAWS)
    first = anp.sum(out * out)
    mean[2, 4](states, a, out, DRAWS)
    return first + anp.sum(out * out)


@in_python
def test_derivatives():
    gradient, h = ampi.grad(loss)(A), 1e-6
    quotients = [(float(loss(A + h * e)) - float(loss(A - h * e))) / (2 * h) for e in np.eye(8)]
    np.testing.assert_allclose(gradient, quotients, rtol=1e-6)
    assert float(ampi.jvp(loss, (A,), (np.cos(A),))[1]) == pytest.approx(float(gradient @ np.cos(A)), rel=1e-12)
    np.testing.assert_allclose(ampi.grad(loss)(A, on_device=True), gradient, rtol=1e-13)
    assert (
        "atomic"
        not in mean.adjoint_source(mean[2, 4], STATES, A, np.zeros(8), DRAWS, target="cuda").partition("def ")[2]
    )


@in_python
def test_not_known():
    @cuda.jit
    def kernel(states):
        cuda.random.xoroshiro128p_jump(states, 0)

    with pytest.raises(KernelError, match="'xoroshiro128p_jump'"):
        kernel[1, 1](STATES)
    with pytest.raises(KernelError, match="can be used only in CUDA kernels"):
        xoroshiro128p_uniform_float64(STATES, 0)


@cuda.jit
def bits(x, counts):
    i = cuda.grid(1)
    if i < x.size:
        counts[i, 0] = cuda.popc(x[i])
        counts[i, 1] = cuda.brev(x[i])
        counts[i, 2] = cuda.clz(x[i])
        counts[i, 3] = cuda.ffs(x[i])


def bits_of(x, width):
    digits = format(int(x) & ((1 << width) - 1), f"0{width}b")
    clz = digits.find("1") if "1" in digits else width
    return digits.count("1"), int(digits[::-1], 2), clz, digits[::-1].find("1") + 1


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_bits(dtype):
    info = np.iinfo(dtype)
    x = np.array([0, 1, 2, 3, 12, 255, 5 << 20, 1 << 30, info.max, info.max - 1, info.min, info.min + 1], dtype)
    expected = np.array([bits_of(v, info.bits) for v in x], np.uint64)
    found, interpreted = np.zeros_like(expected), np.zeros_like(expected)
    bits[2, 8](x, found)
    np.testing.assert_array_equal(found, expected)
    interpret(bits.py_func, (2, 1, 1), (8, 1, 1), 0, (x, interpreted), None)
    np.testing.assert_array_equal(interpreted, expected)


def test_bits_of_numbers_that_are_no_integers():
    @cuda.jit
    def kernel(x):
        x[0] = cuda.popc(x[0])

    with pytest.raises(KernelError, match=r"cuda\.popc takes an integer, not a float64"):
        kernel[1, 1](np.ones(1))

"""CUDA kernels on the CPU: derivatives in several directions at once, custom rules of device functions, complex and
structured arrays, and device arrays."""

import math

import numpy as np
import pytest
from numba import complex128, float64
from uncompiled import compiled, in_python, run_in_python

import ampi
import ampi.cuda as cuda
from ampi import KernelError
from ampi.kernel.analysis.exactness import has_parallel_sum

SIZE = 8
RANDOM = np.random.default_rng(11)


@compiled
def test_in_python(request):
    """Run most of these tests in a separate process without compilation, which would take far longer."""
    run_in_python(__file__, request)


def result(kernel, a, *more):
    """The result of a kernel run in blocks of four threads."""
    b = ampi.numpy.zeros(SIZE, complex if a.dtype.kind == "c" else float)
    kernel[SIZE // 4, 4](a, b, *more)
    return b


# --------------------------------------------------------------------------------------------- several directions


@cuda.jit
def mixed(a, b):
    shared = cuda.shared.array(4, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = math.sin(a[i])
    cuda.syncthreads()
    b[i] = shared[3 - t] * a[i] + a[(i + 3) % a.size] ** 2


def by_numpy(a):
    turned = np.sin(a).reshape(-1, 4)[:, ::-1].ravel()
    return turned * a + np.roll(a, -3) ** 2


@pytest.mark.parametrize("jacobian", [ampi.jacfwd, ampi.jacrev])
@pytest.mark.parametrize(
    "form", [pytest.param("python", marks=in_python), pytest.param("compiled", marks=[compiled, pytest.mark.slow])]
)
def test_jacobians(jacobian, form):
    """Compiled kernels treat the directions as vectors."""
    a = RANDOM.normal(size=SIZE)
    expected = [by_numpy(a + 1e-30j * e).imag / 1e-30 for e in np.eye(SIZE)]
    found = jacobian(lambda x: result(mixed, x), a)
    np.testing.assert_allclose(np.asarray(found), np.transpose(expected), rtol=1e-12, atol=1e-13)


@in_python
def test_hessian():
    a = RANDOM.normal(size=SIZE)
    found = ampi.hessian(lambda x: ampi.numpy.sum(result(mixed, x) ** 2), a)
    gradient = ampi.grad(lambda x: ampi.numpy.sum(result(mixed, x) ** 2))
    expected = [(gradient(a + 1e-5 * e) - gradient(a - 1e-5 * e)) / 2e-5 for e in np.eye(SIZE)]
    np.testing.assert_allclose(np.asarray(found), np.asarray(expected), rtol=1e-6, atol=1e-6)


# --------------------------------------------------------------------------------------------- custom rules


@ampi.custom_vjp
@ampi.kernel
def steep(x, scale):
    return math.tanh(x) * scale


def steep_forward(x, scale):
    return math.tanh(x) * scale, scale


def steep_backward(scale, g):
    return 100.0 * g * scale, 7.0 * g


steep.defvjp(steep_forward, steep_backward)


@ampi.custom_jvp
@ampi.kernel
def bent(x):
    return x * x


@bent.defjvp
def bent_jvp(primals, tangents):
    return primals[0] * primals[0], 10.0 * primals[0] * tangents[0]


@cuda.jit
def with_rules(a, b):
    shared = cuda.shared.array(4, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = steep(a[i], 2.0) + bent(a[i])
    cuda.syncthreads()
    b[i] = shared[3 - t]


@in_python
def test_custom_rules():
    """The rules differ from the true derivatives, to show that they are used; in GPU source as well."""
    a = RANDOM.normal(size=SIZE)
    gradient = ampi.grad(lambda x: ampi.numpy.sum(result(with_rules, x)))(a)
    np.testing.assert_allclose(gradient, 200 + 10 * a, rtol=1e-13)
    text = with_rules.adjoint_source(with_rules[2, 4], a, np.zeros(SIZE), target="cuda")
    assert "200.0 *" in text or "100.0 *" in text


@compiled
def test_deterministic():
    """With deterministic=True sums of many blocks are bitwise identical from run to run, on any number of threads."""
    import numba

    def pairs(a, b):
        i = cuda.grid(1)
        if i < a.size:
            b[i] = a[i] * a[(7 * i) % a.size]

    kernel = ampi.kernel(target="cuda", deterministic=True)(pairs)
    a = RANDOM.normal(size=30_000)

    def objective(x):
        b = ampi.numpy.zeros(x.size)
        kernel[250, 128](x, b)
        return ampi.numpy.sum(b)

    gradients = []
    threads = numba.get_num_threads()
    for count in (1, threads, threads):
        numba.set_num_threads(count)
        gradients.append(ampi.grad(objective)(a))
    numba.set_num_threads(threads)
    assert all(np.array_equal(gradients[0], g) for g in gradients)
    expected = np.zeros(a.size)
    other = (7 * np.arange(a.size)) % a.size
    np.add.at(expected, np.arange(a.size), a[other])
    np.add.at(expected, other, a)
    np.testing.assert_allclose(gradients[0], expected, rtol=1e-13, atol=1e-13)


def test_deterministic_sums():
    """Sums of several blocks are recognised, so that blocks of a deterministic kernel run one after another."""

    def added(a, total):
        i, j = cuda.grid(2)
        if i < a.shape[0] and j < a.shape[1]:
            cuda.atomic.add(total, j % 3, a[i, j])

    a, total = RANDOM.normal(size=(100, 10)), np.zeros(3)
    launch = ampi.kernel(target="cuda", deterministic=True)(added)[(50, 2), (2, 8)]
    lowered, _ = launch.prepared((a, total))
    assert has_parallel_sum(lowered.py_func.__ampi_ir__)
    launch(a, total)
    np.testing.assert_allclose(total, [a[:, k::3].sum() for k in range(3)])


# --------------------------------------------------------------------------------------------- indices that change


@cuda.jit
def stepping(a, b):
    i = cuda.grid(1)
    while i < a.size:
        b[i] = a[i] * a[i]
        i += cuda.gridsize(1)


@cuda.jit
def copied(a, b):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    j = i
    k = j
    while j < a.size:
        b[j] += math.sin(a[j]) * a[k]
        j += cuda.gridDim.x * cuda.blockDim.x
    if k < 3:
        k = k + 1
    b[i] += a[k]


def in_steps(a):
    return a * a


def in_copies(a):
    first = np.arange(4)
    b = np.sin(a) * a[np.arange(SIZE) % 4]
    b[:4] += a[np.where(first < 3, first + 1, first)]
    return b


@compiled
@pytest.mark.parametrize(("kernel", "expected"), [(stepping, in_steps), (copied, in_copies)])
def test_indices_that_change(kernel, expected):
    """Numba refuses a second assignment to the index of a parallel loop, and to copies of it."""
    a, v = RANDOM.normal(size=(2, SIZE))

    def run(x):
        b = ampi.numpy.zeros(SIZE)
        kernel[2, 2](x, b)
        return b

    np.testing.assert_allclose(run(a), expected(a), rtol=1e-14)
    jacobian = np.array([expected(a + 1e-30j * e).imag / 1e-30 for e in np.eye(SIZE)])  # of all elements, by rows
    np.testing.assert_allclose(ampi.jvp(run, (a,), (v,))[1], v @ jacobian, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(ampi.grad(lambda x: run(x) @ v)(a), jacobian @ v, rtol=1e-12, atol=1e-14)


@cuda.jit
def scattered(places, a, b):
    i = cuda.grid(1)
    if i < a.size:
        cuda.atomic.add(b, places[i], a[i] * a[i])


@compiled
@pytest.mark.parametrize("vectorised", [False, True])
def test_tangents_of_atomic_additions(vectorised):
    """Threads add to the same elements in the tangent, too; plain additions would lose some in half of all runs."""
    places = RANDOM.integers(0, 3, 640)
    a, v = RANDOM.normal(size=(2, places.size))
    sums = [np.bincount(places, x) for x in (a * a, 2 * a * v, 2 * a * a)]

    def run(x):
        b = ampi.numpy.zeros(3)
        scattered[places.size // 32, 32](places, x, b)
        return b

    for _ in range(100):
        value, tangent = ampi.jvp(run, (a,), (np.array([v, a]) if vectorised else v,), vectorised=vectorised)
        np.testing.assert_allclose(value, sums[0], rtol=1e-10)
        np.testing.assert_allclose(tangent, sums[1:] if vectorised else sums[1], rtol=1e-10, atol=1e-8)


# --------------------------------------------------------------------------------------------- kinds of arrays


@cuda.jit
def of_complex(a, b):
    shared = cuda.shared.array(4, complex128)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = a[i] * a[i] * 1j
    cuda.syncthreads()
    b[i] = shared[3 - t]


@in_python
def test_complex_arrays():
    a = RANDOM.normal(size=SIZE) + 1j * RANDOM.normal(size=SIZE)
    gradient = ampi.grad(lambda x: ampi.numpy.sum(ampi.numpy.abs(result(of_complex, x)) ** 2))(a)
    np.testing.assert_allclose(gradient, 4 * np.abs(a) ** 2 * a, rtol=1e-12)


PARTICLE = np.dtype([("x", float), ("v", float)])


@cuda.jit
def moved(particles, b, step):
    i = cuda.grid(1)
    if i < particles.size:
        particles[i].x += step * particles[i].v
        b[i] = particles[i].x * particles[i].v


@in_python
def test_structured_arrays():
    def loss(x, v, step):
        particles, b = ampi.numpy.zeros(SIZE, PARTICLE), ampi.numpy.zeros(SIZE)
        particles["x"], particles["v"] = x, v
        moved[2, 4](particles, b, step)
        return ampi.numpy.sum(b)

    x, v = RANDOM.normal(size=(2, SIZE))
    assert float(loss(x, v, 0.5)) == pytest.approx(np.sum((x + 0.5 * v) * v))
    by_x, by_v, by_step = ampi.grad(loss, argnums=(0, 1, 2))(x, v, 0.5)
    np.testing.assert_allclose(by_x, v)
    np.testing.assert_allclose(by_v, x + v)
    assert by_step == pytest.approx(np.sum(v * v))


# --------------------------------------------------------------------------------------------- arrays on a device


class OnDevice:
    """An array on a device that does not exist: it has only an address, which must not be used."""

    shape, dtype, size = (SIZE,), np.dtype(float), SIZE
    __cuda_array_interface__ = {"shape": shape, "typestr": "<f8", "data": (4096, False), "version": 3}


def test_arrays_on_a_device_are_refused():
    with pytest.raises(
        KernelError, match=r"argument 'a' is an array on a device.*no CUDA driver.*\n.*ampi.cuda.to_device"
    ):
        mixed[2, 4](OnDevice(), np.zeros(SIZE))
    with pytest.raises(KernelError, match=r"an array on a device \(OnDevice\), and no CUDA driver.*\n.*to_device"):
        ampi.grad(ampi.numpy.sum)(OnDevice())

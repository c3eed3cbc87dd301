"""Arrays on a device as independents and results: derivatives are those on the host, and lie on the device."""

import fake_cupy
import guarded_device
import numpy as np
import pytest
from numba import config
from uncompiled import in_python, run_in_python

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import ActivityError, KernelError, TapeError
from ampi.device import backends

compiled = pytest.mark.skipif(config.DISABLE_JIT, reason="runs the others")
X = np.linspace(0.5, 2.0, 6).reshape(2, 3)
S = 1.5


@compiled
def test_in_python(request):
    """The tests are run in a process of their own in which nothing is compiled."""
    run_in_python(__file__, request)


@pytest.fixture(params=["guarded", "cupy"], autouse=True)
def device(request):
    """Devices whose memory ends the process that touches it."""
    made = guarded_device.Guarded() if request.param == "guarded" else fake_cupy.FakeGpu()
    before = backends.choose(made)
    yield made
    backends.choose(before)


@cuda.jit
def scaled(u, v, s):
    i, j = cuda.grid(2)
    if i < u.shape[0] and j < u.shape[1]:
        v[i, j] = s * u[i, j] * u[i, j]


def program(d, s):
    """A launch, NumPy's functions, and an assignment: of an array on a device or on the host."""
    on_host = isinstance(d, np.ndarray)
    v = anp.zeros(d.shape) if on_host else cuda.device_array(d.shape)
    scaled[(1, 1), (4, 4)](d, v, s)
    v[0] += np.sin(d[1])
    return v * d


def total(d, s):
    return np.sum(program(d, s) ** 2)


def there(found):
    """The values of a result, which must be on the device."""
    assert type(found) is type(cuda.device_array(1)), type(found)
    return found.copy_to_host()


@in_python
def test_gradients():
    value, (x_bar, s_bar) = ampi.value_and_grad(total, argnums=(0, 1))(X, S)
    d = cuda.to_device(X)
    found, (d_bar, number) = ampi.value_and_grad(total, argnums=(0, 1))(d, S)
    assert isinstance(found, float) and isinstance(number, float)
    np.testing.assert_allclose(found, value, rtol=1e-13)
    np.testing.assert_allclose(there(d_bar), x_bar, rtol=1e-13)
    np.testing.assert_allclose(number, s_bar, rtol=1e-13)
    np.testing.assert_array_equal(d.copy_to_host(), X)
    np.testing.assert_allclose(there(ampi.grad(total)(d.T.T[:, ::-1], S)), ampi.grad(total)(X[:, ::-1], S), rtol=1e-13)


@in_python
def test_mixed_structures():
    """Arguments may hold arrays on the host and on the device, and numbers."""

    def loss(given, k):
        d = given["d"] * given["rest"][1]
        return np.sum(d.copy_to_host() * given["rest"][0]) * k

    given = {"d": cuda.to_device(X), "rest": (np.cos(X), S)}
    bars, k_bar = ampi.grad(loss, argnums=(0, 1))(given, 2.0)
    np.testing.assert_allclose(there(bars["d"]), 2 * S * np.cos(X), rtol=1e-13)
    np.testing.assert_allclose(bars["rest"][0], 2 * S * X, rtol=1e-13)
    assert isinstance(bars["rest"][0], np.ndarray)
    np.testing.assert_allclose(bars["rest"][1], 2 * np.sum(X * np.cos(X)), rtol=1e-13)
    np.testing.assert_allclose(k_bar, S * np.sum(X * np.cos(X)), rtol=1e-13)


@in_python
def test_tapes():
    with ampi.Tape(tangents=True) as tape:
        d = tape.watch(cuda.to_device(X))
        y = program(d, S)
        once = np.sum(d)
    y_bar = np.cos(X)
    expected = ampi.vjp(lambda x: program(x, S), X)[1](y_bar)[0]
    for seed in (y_bar, cuda.to_device(y_bar)):
        np.testing.assert_allclose(there(tape.gradient(y, d, seed=seed)), expected, rtol=1e-13)
    np.testing.assert_array_equal(there(tape.gradient(once, d)), np.ones((2, 3)))
    both = tape.gradient((y, once), [d, None, (d,)], seed=(y_bar, 2.0))
    assert both[1] is None
    np.testing.assert_allclose(there(both[2][0]), expected + 2.0, rtol=1e-13)
    with pytest.raises(TapeError, match=r"seed has shape \(3,\), its output \(2, 3\)"):
        tape.gradient(y, d, seed=cuda.to_device(np.ones(3)))
    with pytest.raises(TapeError, match=r"y has shape \(2, 3\); pass seed="):
        tape.gradient(y, d)
    with pytest.raises(TapeError, match=r"x is not an array that tape\.watch returned"):
        tape.gradient(y, d[0], seed=y_bar)
    seeds = np.stack([y_bar, 2 * y_bar])
    for given in (seeds, cuda.to_device(seeds)):
        found = there(tape.gradient(y, d, seeds=given))
        np.testing.assert_allclose(found, [expected, 2 * expected], rtol=1e-13)


@in_python
def test_watched_in_place():
    """An array of ours is itself declared, with the value that it has there."""
    with ampi.Tape() as tape:
        d = cuda.to_device(X)
        d *= 2.0
        assert tape.watch(d) is d and tape.watch(d) is d
        y = np.sum(d * d)
        with pytest.raises(TapeError, match="this array is watched already"):
            tape.watch(d)
        d[...] = 0.0
    np.testing.assert_allclose(there(tape.gradient(y, d)), 4 * X, rtol=1e-13)


@in_python
def test_forward():
    v, s_dot = np.cos(X), 0.25
    value, slope = ampi.jvp(program, (X, S), (v, s_dot))
    d = cuda.to_device(X)
    for tangent in (v, cuda.to_device(v)):
        found, dot = ampi.jvp(program, (d, S), (tangent, s_dot))
        np.testing.assert_allclose(there(found), value, rtol=1e-13)
        np.testing.assert_allclose(there(dot), slope, rtol=1e-13)
    many = np.stack([v, 2 * v, np.ones_like(v)])
    expected = ampi.jvp(program, (X, S), (many, None), vectorised=True)[1]
    for tangents in (many, cuda.to_device(many)):
        found = ampi.jvp(program, (d, S), (tangents, None), vectorised=True)[1]
        np.testing.assert_allclose(there(found), expected, rtol=1e-13)
    constant = ampi.jvp(lambda d, s: (d, s * 2.0), (d, S), (None, 1.0))[1]
    np.testing.assert_array_equal(there(constant[0]), np.zeros((2, 3)))
    assert constant[1] == 2.0
    with pytest.raises(TapeError, match=r"primals\[0\] has the shape \(2, 3\), its tangent \(3,\)"):
        ampi.jvp(program, (d, S), (np.ones(3), None))


@in_python
def test_pullbacks_and_linear_maps():
    v, y_bar = np.cos(X), np.sin(X)
    d = cuda.to_device(X)
    value, pullback = ampi.vjp(program, d, S)
    expected, of_host = ampi.vjp(program, X, S)
    np.testing.assert_allclose(there(value), expected, rtol=1e-13)
    for seed in (y_bar, cuda.to_device(y_bar)):
        d_bar, s_bar = pullback(seed)
        np.testing.assert_allclose(there(d_bar), of_host(y_bar)[0], rtol=1e-13)
        np.testing.assert_allclose(s_bar, of_host(y_bar)[1], rtol=1e-13)
    push = ampi.linearize(program, d, S)[1]
    for tangent in (v, cuda.to_device(v)):
        np.testing.assert_allclose(there(push(tangent, 0.5)), ampi.jvp(program, (X, S), (v, 0.5))[1], rtol=1e-13)


@in_python
def test_values_are_constant():
    def loss(x):
        d = cuda.to_device(x)
        return np.sum(d * ampi.value(d)).copy_to_host()[()]

    np.testing.assert_array_equal(ampi.grad(loss)(X), X)


@in_python
def test_cupys_arrays(device):
    """Arrays of another package are copied, as plain NumPy arrays are."""
    if not isinstance(device, fake_cupy.FakeGpu):
        pytest.skip("of the fake CuPy")
    made = fake_cupy.Cupy()
    c = made.asarray(X.tolist())
    np.testing.assert_allclose(there(ampi.grad(total)(c, S)), ampi.grad(total)(X, S), rtol=1e-13)
    np.testing.assert_allclose(
        there(ampi.jvp(program, (c, S), (c, None))[1]), ampi.jvp(program, (X, S), (X, None))[1], rtol=1e-13
    )
    with ampi.Tape() as tape:
        d = tape.watch(c)
        y = program(d, S)
    np.testing.assert_allclose(
        there(tape.gradient(y, d, seed=c)), ampi.vjp(lambda x: program(x, S), X)[1](X)[0], rtol=1e-13
    )
    np.testing.assert_array_equal(c.get(), X)
    for call in (
        lambda: ampi.jvp(lambda d: c, (c,), (c,)),
        lambda: ampi.vjp(lambda d: c, c),
        lambda: ampi.grad(lambda d: c)(c),
    ):
        with pytest.raises(ActivityError, match="array of fake_cupy on a device, whose derivatives are not tracked"):
            call()


def outer(x):
    d = cuda.to_device(x)
    return np.sum(x) + np.sum(ampi.grad(lambda e: np.sum(e * e))(d))


INTEGERS = np.arange(6).reshape(2, 3)
REFUSED = {
    "integers": (lambda d: ampi.grad(np.sum)(cuda.to_device(INTEGERS)), ActivityError, "dtype int64"),
    "tangents of integers": (
        lambda d: ampi.jvp(np.sum, (cuda.to_device(INTEGERS),), (X,)),
        ActivityError,
        "dtype int64; its tangent must be None",
    ),
    "vector": (lambda d: ampi.grad(lambda d: d * 2)(d), TapeError, "must return one real number"),
    "hvp": (lambda d: ampi.hvp(np.sum, (d,), (d,)), ActivityError, r"ampi.hvp: primals\[0\] is an array on a device"),
    "constants of hvp": (
        lambda d: ampi.hvp(lambda x, d: np.sum(x), (X, d), (X, None)),
        ActivityError,
        "array on a device",
    ),
    "jacrev": (lambda d: ampi.jacrev(lambda x: x, d), ActivityError, "ampi.jacrev: x is an array on a device"),
    "jacfwd": (lambda d: ampi.jacfwd(lambda x: x, d), ActivityError, "ampi.jacfwd: x is an array on a device"),
    "rows": (lambda d: ampi.jacrev(cuda.to_device, X), ActivityError, "ampi.jacrev: a result is an array on a device"),
    "columns": (lambda d: ampi.jacfwd(cuda.to_device, X), ActivityError, "ampi.jacfwd: a result is an array on"),
    "hessian": (lambda d: ampi.hessian(np.sum, d), ActivityError, "ampi.hessian: x is an array on a device"),
    "inner": (lambda d: ampi.grad(outer)(X), (ActivityError, TapeError), "tape|derivatives"),
    "inner forward": (lambda d: ampi.jvp(outer, (X,), (X,)), (ActivityError, TapeError), "tape|derivatives"),
}


@in_python
@pytest.mark.parametrize("what", REFUSED)
def test_refusals(what):
    call, error, text = REFUSED[what]
    with pytest.raises(error, match=text):
        call(cuda.to_device(X))


@in_python
def test_custom_rules():
    square = ampi.custom_vjp(lambda x: x * x)
    square.defvjp(lambda x: (x * x, x), lambda x, bar: (2 * x * bar,))
    square.defjvp(lambda x, x_dot: (x[0] * x[0], 2 * x[0] * x_dot[0]))
    d = cuda.to_device(X)
    np.testing.assert_allclose(there(square(d)), X * X, rtol=1e-14)
    for call in (lambda: ampi.grad(lambda d: np.sum(square(d)))(d), lambda: ampi.jvp(square, (d,), (X,))):
        with pytest.raises(ActivityError, match=r"custom rule, is given an array on a device.*copy_to_host\(\)"):
            call()


@in_python
def test_layouts_are_not_set():
    d = cuda.to_device(X)
    for name, value in (("dtype", np.int64), ("shape", (6,)), ("strides", (8, 8))):
        with pytest.raises(AttributeError, match=f"the {name} of an array on a device cannot be set"):
            setattr(d, name, value)


@in_python
def test_without_a_driver():
    class Elsewhere:
        """An array whose memory does not exist."""

        shape, dtype, size = (3,), np.dtype(float), 3
        __cuda_array_interface__ = {"shape": shape, "typestr": "<f8", "data": (4096, False), "version": 3}

    backends.choose(backends.Processor())
    for call in (lambda x: ampi.grad(anp.sum)(x), lambda x: ampi.jvp(anp.sum, (x,), (x,))):
        with pytest.raises(KernelError, match=r"an array on a device \(Elsewhere\), and no CUDA driver.*\n.*to_device"):
            call(Elsewhere())

"""JAX functions in programs: values and derivatives beside JAX's own and beside finite differences."""

import numpy
import pytest

import ampi
import ampi.numpy as np

jax = pytest.importorskip("jax")
jnp = jax.numpy


@pytest.fixture(autouse=True)
def double():
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


UNARY = {
    "sin": jnp.sin,
    "tanh": jnp.tanh,
    "exp": lambda u: jnp.exp(-u * u),
    "sort": jnp.sort,
    "softmax": jax.nn.softmax,
    "cumsum": jnp.cumsum,
    "reversed": lambda u: u[::-1],
    "same": lambda u: u,
    "scan": lambda u: jax.lax.scan(lambda c, v: (0.5 * c + v, c * v), 0.1, u)[1],
}
BINARY = {
    "add": lambda u, v: u + v,
    "multiply": lambda u, v: u * v,
    "divide": lambda u, v: u / (2.0 + v * v),
    "where": lambda u, v: jnp.where(u > v, u * v, u - v),
    "matrix": lambda u, v: jnp.outer(u, v) @ u,
}


def drawn(seed):
    """A random JAX function of two arrays, and its description."""
    rng = numpy.random.default_rng(seed)
    steps = []
    for _ in range(rng.integers(1, 6)):
        if rng.random() < 0.5:
            steps.append((rng.choice(list(UNARY)), int(rng.integers(2))))
        else:
            steps.append((rng.choice(list(BINARY)), int(rng.integers(2))))

    def function(x, y):
        values = [x, y]
        for name, k in steps:
            values[k] = UNARY[name](values[k]) if name in UNARY else BINARY[name](values[k], values[1 - k])
        return {"a": values[0], "b": (jnp.sum(values[1]), values[1] * 2)}

    return function, steps


def objectives(function, used):
    """The same objective of a program, which goes on with the results and overwrites its arrays, and in JAX."""

    def program(x, y):
        u, v = x * 1.0, y * 1.0
        found = used(u, v)
        u[:], v[1:] = 0.5, 2.0 * v[1:]
        return np.sum(found["a"] * found["b"][1]) * found["b"][0] + np.sum(v * u)

    def in_jax(x, y):
        found = function(x, y)
        v = jnp.asarray(y).at[1:].multiply(2.0)
        return jnp.sum(found["a"] * found["b"][1]) * found["b"][0] + 0.5 * jnp.sum(v)

    return program, in_jax


def check_seed(seed):
    function, steps = drawn(seed)
    function = jax.jit(function) if seed % 2 else function
    program, in_jax = objectives(function, ampi.from_jax(function))
    rng = numpy.random.default_rng(1000 + seed)
    x, y, x_dot, y_dot = rng.normal(size=(4, 5))
    close = lambda found, expected: numpy.testing.assert_allclose(
        found, expected, rtol=1e-9, atol=1e-9, err_msg=str(steps)
    )
    close(program(np.array(x), np.array(y)), in_jax(x, y))
    for found, expected in zip(ampi.grad(program, argnums=(0, 1))(x, y), jax.grad(in_jax, argnums=(0, 1))(x, y)):
        close(found, expected)
    close(ampi.jvp(program, (x, y), (x_dot, y_dot))[1], jax.jvp(in_jax, (x, y), (x_dot, y_dot))[1])
    first = lambda x: program(x, y)
    expected = jax.jvp(jax.grad(lambda x: in_jax(x, y)), (x,), (x_dot,))[1]
    close(ampi.hvp(first, x, x_dot), expected)
    with ampi.Tape() as tape:
        u = tape.watch(x)
        found = ampi.from_jax(function)(u, y)["a"]
    seeds = rng.normal(size=(3, *found.shape))
    _, pullback = jax.vjp(lambda x: function(x, y)["a"], x)
    close(tape.gradient(found, u, seeds=seeds), [pullback(jnp.asarray(seed))[0] for seed in seeds])
    close(tape.tangent(found, u, x_dot), jax.jvp(lambda x: function(x, y)["a"], (x,), (x_dot,))[1])


@pytest.mark.parametrize("seed", range(6))
def test_drawn_functions(seed):
    check_seed(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 150))
def test_many_drawn_functions(seed):
    check_seed(seed)


@pytest.mark.parametrize("name", ["square", "conjugate", "absolute", "mixed"])
def test_complex_numbers(name):
    """Against differences of the program, in the real inner product."""
    function = {
        "square": lambda z: z * z * (1 + 2j),
        "conjugate": lambda z: jnp.conj(z) * z**2,
        "absolute": lambda z: jnp.abs(z) ** 1.5,
        "mixed": lambda z: jnp.real(z) * 1j + jnp.exp(z),
    }[name]
    used = ampi.from_jax(function)
    rng = numpy.random.default_rng(3)
    z, d = rng.normal(size=(2, 4)) + 1j * rng.normal(size=(2, 4))
    program = lambda z: np.sum(np.abs(used(z) - (0.3 + 0.1j)) ** 2)
    found = numpy.sum(numpy.conj(ampi.grad(program)(z)) * d).real
    h = 1e-6
    expected = (program(np.array(z + h * d)) - program(np.array(z - h * d))) / (2 * h)
    assert found == pytest.approx(float(expected), rel=1e-7)


def test_integers_and_constants():
    calls = []

    def function(x, which, power, flag):
        calls.append(power)
        return x[which] ** power if flag else x * 0.0

    used = ampi.from_jax(function)
    x, which = numpy.arange(1.0, 5.0), numpy.array([0, 2, 2])
    assert ampi.grad(lambda x: np.sum(used(x, which, 3, True)))(x).tolist() == [3.0, 0.0, 2 * 27.0, 0.0]
    assert ampi.grad(lambda x: np.sum(used(x, which[:1], 2, True)))(x).tolist() == [2.0, 0.0, 0.0, 0.0]
    assert not ampi.grad(lambda x: np.sum(used(x, which, 3, False)))(x).any()
    assert isinstance(calls[0], int)
    integers = ampi.from_jax(lambda x: (x * 2.0, jnp.argmax(x)))
    assert ampi.grad(lambda x: np.sum(integers(x)[0] * int(integers(x)[1])))(x).tolist() == [6.0] * 4


def test_single_precision_is_no_surprise():
    used = ampi.from_jax(jnp.sin)
    jax.config.update("jax_enable_x64", False)
    with pytest.raises(ampi.ActivityError, match=r"float64, and JAX would compute in single.*jax_enable_x64"):
        used(np.ones(3))
    g = ampi.grad(lambda x: np.sum(used(x)))(numpy.ones(3, numpy.float32))
    assert g.dtype == numpy.float32 and g == pytest.approx(numpy.cos(numpy.ones(3)))


def test_arrays_of_any_layout():
    used = ampi.from_jax(lambda x: jnp.sum(x * x))
    x = numpy.arange(24.0).reshape(4, 6)
    for view in (x, x.T, x[::-1, ::2], x[1:3, 1:], x[:, :0], numpy.asfortranarray(x)):
        assert numpy.array_equal(ampi.grad(lambda x: used(x))(view), 2 * view)


@pytest.mark.mpi(min_size=2, max_size=4)  # each rank imports JAX
def test_a_closure_in_a_solver_on_several_ranks():
    """A network computes fluxes between cells that ranks exchange; the gradient is that of all ranks' inputs."""
    comm = ampi.COMM_WORLD
    closure = ampi.from_jax(jax.jit(lambda w, left, right: jnp.tanh(w[0] * left + w[1] * right) * (right - left)))
    w = numpy.array([0.3, -0.7])

    def energy(x):
        u = x * 1.0
        for _ in range(3):
            left = np.zeros(1)
            comm.Sendrecv(u[-1:], (comm.rank + 1) % comm.size, recvbuf=left, source=(comm.rank - 1) % comm.size)
            u = u + 0.1 * closure(w, np.concatenate([left, u[:-1]]), u)
        total = np.zeros(1)
        comm.Allreduce(np.sum(u**2), total)
        return total[0]

    x = numpy.linspace(0.0, 1.0, 4) + comm.rank
    gradient = ampi.grad(energy, objective="replicated")(x)

    def serial(x):
        u = x
        for _ in range(3):
            left = jnp.roll(u, 1)
            u = u + 0.1 * jnp.tanh(w[0] * left + w[1] * u) * (u - left)
        return jnp.sum(u**2)

    whole = numpy.concatenate(comm.allgather(x))
    expected = jax.grad(serial)(whole)
    assert gradient == pytest.approx(numpy.asarray(expected)[4 * comm.rank : 4 * comm.rank + 4], rel=1e-10)


def test_without_jax_the_extra_is_named(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"ampi\[jax\]"):
        ampi.from_jax(lambda x: x)

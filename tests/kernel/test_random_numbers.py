"""Random numbers in kernels: drawn once, as Numba draws them, and constants for all derivatives."""

import math

import numba
import numpy as np
import pytest
from random_check import examine_drawn, noisy, seed_numba
from random_draws import FlowThatDraws, LanguageThatDraws

import ampi
import ampi.numpy as anp
from ampi import ActivityError, KernelError
from ampi.kernel.runtime.random_state import Generators

# ruff: noqa: NPY002  (Numba implements these functions' generator)

X = np.array([0.3, 0.8, 1.2])
D = np.array([1.0, -2.0, 0.5])


def metropolis(x):
    y, taken = x[0], 0
    energy = y * y
    for _ in range(30):
        new = y + 0.3 * np.random.standard_normal() * x[1]
        change = new * new * x[2] - energy
        if change < 0 or np.random.random() < np.exp(-change):
            y, energy = new, new * new * x[2]
            taken += 1
    return y * energy + taken


def until_one_says_no(x):
    s = x[0]
    while np.random.random() < 0.8:
        s = s * 0.9 + np.random.uniform(x[1], x[2])
    return s


def arrays(x):
    a = np.random.normal(x[0], x[1], (3, 4))
    b = np.random.rand(3, 4) * x[2]
    c = np.random.randn(4)
    return (a * b).sum() + (c * a[1]).sum() * np.random.random_sample()


def orders(x):
    p = np.random.permutation(3)
    y = x.copy()
    np.random.shuffle(y)
    m = np.outer(x, x)
    np.random.shuffle(m)
    q = np.random.choice(x, 2)
    r = np.random.choice(3, 2, False)
    k = np.random.randint(0, 3, 2)
    s = x[p[0]] * y[0] + q[0] * q[1] * x[r[1]] + y[k[1]] * np.random.randint(5) + m[0, 1]
    return s + np.random.permutation(x)[1] * np.random.choice(x)


def by_inversion(x):
    s = np.random.exponential(x[0]) + np.random.lognormal(x[1], x[2]) + np.random.laplace(x[0], x[1])
    s += np.random.logistic(x[0], x[1]) + np.random.gumbel(x[1], x[0]) + np.random.weibull(x[2])
    s += np.random.pareto(x[2] + 1) + np.random.rayleigh(x[0]) + np.random.standard_exponential()
    s += np.random.triangular(0.0, x[0], x[0] + x[1]) * np.random.power(x[2])
    return s + np.random.standard_cauchy() * x[0]


def by_rejection(x):
    s = np.random.gamma(1.5, x[0]) + np.random.gamma(0.5, x[1]) + np.random.standard_gamma(1.0) * x[2]
    s += np.random.beta(0.5, 2.0) * x[1] + np.random.chisquare(3) * x[0] + np.random.f(3.0, 4.0) * x[1]
    s += np.random.vonmises(0.1, 1.0) * x[0] + np.random.standard_t(3.0) * x[1] + np.random.wald(1.0, 2.0) * x[2]
    k = np.random.poisson(3.0) + np.random.poisson(20.0) + np.random.binomial(10, 0.3) + np.random.geometric(0.2)
    return s + x[0] * (k + np.random.negative_binomial(3, 0.4) + np.random.zipf(2.5) + np.random.logseries(0.4))


def seeded_inside(x):
    np.random.seed(5)
    return x[0] * np.random.random() + x[1] * np.random.normal()


def in_calls_and_comprehensions(x):
    s = 0.0
    for v in x:
        s += noisy(v) * noisy(v * v)
    t = [np.random.random() * v for v in x]
    return s * t[1] + sum(t) + np.array([np.random.random() for _ in range(4)]).sum() * x[0]


def in_lists(x):
    found = []
    for v in x:
        u = np.random.random()
        if u < 0.7:
            found.append(u * v)
    return np.array(found).sum()


def what_lists_would_compute_twice(x):
    kept = [v * x[0] for v in x if np.random.random() < 0.6]
    drawn = [v * x[1] for v in np.random.random(4)]
    some = []
    for v in np.random.random(2):
        some.append(v * x[2])
    for _ in range(np.random.randint(2, 5)):
        some.append(np.random.random() * x[0])
    some.extend(np.random.random(3))
    return sum(kept) * sum(drawn) * sum(some) + len(kept)


def more_than_there_is_room_for(x):
    s = 0.0
    for k in range(2000):
        s += np.random.random() * x[k % 3]
    return s


KERNELS = [
    metropolis,
    until_one_says_no,
    arrays,
    orders,
    by_inversion,
    by_rejection,
    seeded_inside,
    in_calls_and_comprehensions,
    in_lists,
    what_lists_would_compute_twice,
    more_than_there_is_room_for,
]


def own_state():
    return Generators().own


class Seeded:
    """Runs calls after seeding Numba's generator, and checks that all leave it in the same state."""

    def __init__(self, seed=3):
        self.seed = seed
        self.state = None

    def __call__(self, call):
        seed_numba(self.seed)
        result = call()
        assert self.state in (None, own_state())
        self.state = own_state()
        return result


def slopes(f, x, h=1e-6):
    return np.array([(f(x + e) - f(x - e)) / (2 * h) for e in h * np.eye(x.size)])


LONG = {"by_rejection", "by_inversion", "orders", "arrays"}  # compile for seconds


@pytest.mark.parametrize(
    "f", [pytest.param(f, marks=[pytest.mark.slow] * (f.__name__ in LONG)) for f in KERNELS], ids=lambda f: f.__name__
)
def test_all_modes_draw_what_numba_draws(f):
    plain, kernel, seeded = numba.njit(f, error_model="numpy"), ampi.kernel(f), Seeded()
    expected = seeded(lambda: plain(X))
    assert seeded(lambda: kernel(X)) == expected
    values = []

    def program(x):
        result = kernel(x)
        values.append(float(ampi.value(result)))
        return result

    gradient = seeded(lambda: ampi.grad(program)(X))

    def other(x):
        seed_numba(3)
        return plain(x)

    np.testing.assert_allclose(gradient, slopes(other, X), rtol=1e-6, atol=1e-7)
    value, tangent = seeded(lambda: ampi.jvp(program, (X,), (D,)))
    np.testing.assert_allclose(tangent, gradient @ D, rtol=1e-12)
    assert values == [expected] * 2 and value == expected


@pytest.mark.parametrize(
    "f", [metropolis, pytest.param(by_inversion, marks=pytest.mark.slow)], ids=lambda f: f.__name__
)
def test_second_order_and_vector_modes(f):
    kernel, seeded = ampi.kernel(f), Seeded()
    seeded(lambda: kernel(X))

    def gradient_at(x):
        return seeded_anew(lambda: ampi.grad(kernel)(x))

    def seeded_anew(call):
        seed_numba(3)
        return call()

    (product,) = seeded(lambda: ampi.hvp(kernel, (X,), (D,)))
    differences = (gradient_at(X + 1e-6 * D) - gradient_at(X - 1e-6 * D)) / 2e-6
    np.testing.assert_allclose(product, differences, rtol=1e-5, atol=1e-6)
    jacobian = seeded(lambda: ampi.jacrev(lambda x: anp.stack([kernel(x), x[0] * x[1]]), X))
    np.testing.assert_allclose(jacobian[0], gradient_at(X), rtol=1e-12)
    forward = seeded(lambda: ampi.jacfwd(lambda x: anp.stack([kernel(x), x[0] * x[1]]), X))
    np.testing.assert_allclose(forward, jacobian, rtol=1e-12, atol=1e-15)


def test_each_call_has_numbers_of_its_own():
    @ampi.kernel
    def draw(x):
        return x[0] * np.random.standard_normal()

    def program(x):
        return sum(draw(x) * (k + 1.0) for k in range(4))

    seeded = Seeded()
    expected = seeded(lambda: [float(draw(np.ones(1))) for _ in range(4)])
    gradient = seeded(lambda: ampi.grad(program)(np.array([2.0])))
    np.testing.assert_allclose(gradient, np.dot(expected, [1.0, 2.0, 3.0, 4.0]))


def test_what_is_written_in_place_and_aliased():
    @ampi.kernel
    def walk(u, v, s):
        for k in range(u.shape[0]):
            u[k] = u[k] * v[k] + np.random.normal(0.0, s[0])
            if np.random.random() < u[k]:
                v[k] += u[k] * np.random.random()

    plain = numba.njit(walk.py_func)

    def program(s):
        u = anp.ones(4) * 0.5
        v = anp.ones(4) * s
        walk(u, v, s)
        walk(u, u, s)  # one array under two names
        return (u * u * v).sum()

    def other(s):
        seed_numba(3)
        u, v = np.full(4, 0.5), np.ones(4) * s
        plain(u, v, s)
        plain(u, u, s)
        return (u * u * v).sum()

    s, seeded = np.array([0.4]), Seeded()
    seeded(lambda: other(s))
    np.testing.assert_allclose(seeded(lambda: ampi.grad(program)(s)), slopes(other, s), rtol=1e-6)


def test_exceptions_are_those_without_a_tape():
    @ampi.kernel
    def fails(x):
        x[0] = np.random.random() * x[0]
        if np.random.random() < 2.0:
            raise ValueError("after two numbers")
        return x[0]

    def program(x):
        y = x * 1.0
        with pytest.raises(ValueError, match="after two numbers"):
            fails(y)
        return y.sum()

    seeded = Seeded()
    found = []

    def plainly():
        x = X.copy()
        with pytest.raises(ValueError, match="after two numbers"):
            fails(x)
        found.append(x[0])

    seeded(plainly)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = x * 1.0

        def recorded():
            with pytest.raises(ValueError, match="after two numbers"):
                fails(y)

        seeded(recorded)
    assert y[0] == found[0]


# ----------------------------------------------------------------------------------------------- generators


def by_a_generator(generator, x):
    s = 0.0
    for v in x:
        s += generator.normal(v, 0.5) * v + generator.exponential(v) * generator.random()
        if generator.random() < 0.5:
            s *= generator.uniform(x[0], 2.0)
    w = generator.standard_normal((2, 3)) * generator.random(3)
    y = x.copy()
    generator.shuffle(y)
    m = np.outer(x, x)
    generator.shuffle(m)
    p, k = generator.permutation(3), generator.integers(0, 3, 4)
    return s + w.sum() * x[2] + y[0] * generator.permutation(x)[1] * x[p[2]] * x[k[3]] + m[0, 1]


def drawn_by(generator, v):
    return generator.normal(v, 0.5) * v


drawn_inside = numba.njit(drawn_by)


def distributions_of_a_generator(generator, x):
    s = drawn_inside(generator, x[1]) + generator.lognormal(x[0], x[1]) + generator.gamma(1.5, x[0])
    s += generator.chisquare(3.0) * x[0] + generator.beta(0.5, 0.7) * x[1] + generator.rayleigh(x[0])
    s += generator.weibull(x[2]) + generator.pareto(x[2] + 1) + generator.laplace(x[0], x[1])
    s += generator.logistic(x[0], x[1]) + generator.standard_exponential() + generator.standard_gamma(2.0)
    k = generator.poisson(3.0) + generator.binomial(10, 0.3) + generator.geometric(0.2)
    return s + x[0] * (k + generator.standard_t(3.0) + generator.wald(1.0, 2.0) + generator.standard_cauchy())


def drawn_twice(generator, x):
    return generator.normal(x[0], x[1]) ** 3 * generator.exponential(x[2])


BY_GENERATORS = [
    drawn_twice,
    *(pytest.param(f, marks=pytest.mark.slow) for f in (by_a_generator, distributions_of_a_generator)),
]


@pytest.mark.parametrize("f", BY_GENERATORS, ids=lambda f: f.__name__)
def test_generators(f):
    plain, kernel = numba.njit(f, error_model="numpy"), ampi.kernel(f)
    first = np.random.default_rng(3)
    expected = plain(first, X)
    values = []

    def run(call):
        made = np.random.default_rng(3)

        def program(x):
            values.append(kernel(made, x))
            return values[-1]

        result = call(program)
        assert made.bit_generator.state == first.bit_generator.state
        assert float(ampi.value(values[-1])) == expected
        return result

    run(lambda program: program(X))
    gradient = run(lambda program: ampi.grad(program)(X))
    np.testing.assert_allclose(gradient, slopes(lambda x: plain(np.random.default_rng(3), x), X), rtol=1e-6)
    _, tangent = run(lambda program: ampi.jvp(program, (X,), (D,)))
    np.testing.assert_allclose(tangent, gradient @ D, rtol=1e-12)
    if f is not drawn_twice:
        return
    (product,) = run(lambda program: ampi.hvp(program, (X,), (D,)))
    near = [ampi.grad(lambda x: kernel(np.random.default_rng(3), x))(X + s * 1e-6 * D) for s in (1.0, -1.0)]
    np.testing.assert_allclose(product, (near[0] - near[1]) / 2e-6, rtol=1e-5, atol=1e-6)


def test_ampis_numpy_in_kernels_and_its_generators():
    space = {"np": anp, "ampi": ampi}

    @ampi.kernel
    def draw(generator, x):
        return anp.random.normal(x[0], 0.5) * generator.normal() * x[1]

    assert space
    seeded = Seeded()
    expected = seeded(lambda: float(draw(anp.random.default_rng(1), X)))
    gradient = seeded(lambda: ampi.grad(lambda x: draw(anp.random.default_rng(1), x))(X))
    np.testing.assert_allclose(gradient[1], expected / X[1])


# ----------------------------------------------------------------------------------------------- time loops


@ampi.kernel
def noisy_step(u, a):
    for i in range(u.shape[0]):
        u[i] = u[i] * 0.9 + np.random.normal(0.0, a[0]) + 0.1 * np.random.random() * u[i] * u[i]
        if np.random.random() < 0.3:
            u[i] *= 1.1


@pytest.mark.parametrize("kept", [1, 2, 5, "folder"])
def test_steps_that_run_again_draw_the_same(kept, tmp_path):
    def program(a):
        u = anp.ones(3) * 1.0
        where = {"checkpoints": 2, "storage": tmp_path} if kept == "folder" else {"checkpoints": kept}
        u = ampi.timeloop(lambda s: noisy_step(s, a), u, steps=7, **where)
        return (u * u).sum()

    def all_at_once(a):
        u = anp.ones(3) * 1.0
        for _ in range(7):
            noisy_step(u, a)
        return (u * u).sum()

    a, seeded = np.array([0.3]), Seeded()
    expected = seeded(lambda: ampi.grad(all_at_once)(a))
    np.testing.assert_array_equal(seeded(lambda: ampi.grad(program)(a)), expected)


# ----------------------------------------------------------------------------------------------- refusals


def gamma_of_active_shape(x):
    return np.random.gamma(x[0], 1.0)


def poisson_of_an_active_rate(x):
    rate = x[0] * 2.0
    return x[1] * np.random.poisson(rate)


@pytest.mark.parametrize("f", [gamma_of_active_shape, poisson_of_an_active_rate], ids=lambda f: f.__name__)
def test_parameters_that_decide_on_the_number_must_be_passive(f):
    kernel = ampi.kernel(f)
    assert np.isfinite(kernel(X))
    for mode in (lambda: ampi.grad(kernel)(X), lambda: ampi.jvp(kernel, (X,), (D,)), lambda: ampi.hvp(kernel, X, D)):
        with pytest.raises(
            ActivityError,
            match=r"(?s)(np\.random|Generator)\.\w+ has no derivative with respect to its parameters"
            r".*(gammaincinv\(shape, u\)|draw standard numbers)",
        ):
            mode()


def test_parameters_that_are_passive_for_this_call():
    @ampi.kernel
    def draw(x, shape):
        return x[0] * np.random.gamma(shape[0], 1.0)

    seed_numba(1)
    expected = draw(np.ones(1), np.ones(1))
    seed_numba(1)
    np.testing.assert_allclose(ampi.grad(lambda x: draw(x, np.ones(1)))(np.array([2.0])), expected)


def in_a_parallel_loop(x):
    s = 0.0
    for k in numba.prange(3):
        s += np.random.normal(x[k], 1.0)
    return s


def in_a_call_of_a_parallel_loop(x):
    s = 0.0
    for k in numba.prange(3):
        s += noisy(x[k])
    return s


def in_a_chain(x):
    return x[0] if 0.0 < np.random.random() < np.random.random() else x[1]


def not_known(x):
    return x[0] * np.random.hypergeometric(3, 4, 5)


REFUSED = [
    (in_a_parallel_loop, "random numbers in a parallel loop", "draw them before the loop"),
    (in_a_call_of_a_parallel_loop, "random numbers in a parallel loop", "draw them before the loop"),
    (in_a_chain, "random numbers in a chain of comparisons", "on its own line"),
    (not_known, "numpy.random.hypergeometric is not known", "draw the numbers outside"),
]


@pytest.mark.parametrize("f, problem, advice", REFUSED, ids=[r[0].__name__ for r in REFUSED])
def test_refused(f, problem, advice):
    with pytest.raises(KernelError, match=f"(?s){problem}.*{advice}"):
        ampi.kernel(f)(X)


def test_kernels_on_threads_are_refused():
    kernel = ampi.kernel(arrays, parallel=True)
    with pytest.raises(KernelError, match=r"(?s)random numbers in a kernel with parallel=True.*as an array"):
        kernel(X)


def test_functions_with_derivatives_of_their_own_are_refused():
    @ampi.custom_jvp
    @ampi.kernel
    def own(x):
        return x * np.random.random()

    @own.defjvp
    def tangent(primals, tangents):
        return primals[0], tangents[0]

    @ampi.kernel
    def caller(x):
        return own(x[0])

    with pytest.raises(KernelError, match="random numbers in 'own', which has a custom derivative"):
        caller(X)


def test_other_numbers_than_before_are_an_error():
    """On threads, a Numba kernel draws from other generators than the program that draws in advance."""
    from ampi.kernel.drawing import Drawing

    drawing = Drawing("f", lambda drawn: (1,), ("float64",), False)
    numbers = drawing((), ())

    @numba.njit
    def draw():
        return np.random.random()

    with pytest.raises(KernelError, match=r"f\(\): the kernel draws different random numbers"):
        numbers.run(draw)


# ----------------------------------------------------------------------------------------------- random kernels


@pytest.mark.parametrize("seed", [102, *(pytest.param(s, marks=pytest.mark.slow) for s in (1, 3, 104, 106, 111))])
def test_random(seed):
    try:
        examine_drawn((FlowThatDraws, LanguageThatDraws)[seed % 2](seed).source(), seed)
    except KernelError as problem:
        pytest.skip(str(problem))


def test_documented_formulas():
    """``normal(loc, scale)`` is ``loc + scale * z``."""

    @ampi.kernel
    def draw(x):
        return np.random.normal(x[0], x[1])

    @numba.njit
    def standard():
        return np.random.standard_normal()

    seed_numba(2)
    z = standard()
    seed_numba(2)
    np.testing.assert_allclose(ampi.grad(draw)(X), [1.0, z, 0.0])
    assert math.isfinite(z)

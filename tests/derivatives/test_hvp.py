"""Second order on one rank: symmetry and differences over NumPy's rules and generated programs, and what it refuses."""

import numpy as np
import pytest
from forward_check import draw
from numpy_programs import Program, starts
from numpy_rule_cases import ALL, CASES
from second_check import check_at_minimum, check_second, objective_of
from test_forward import of_program

import ampi


@pytest.mark.parametrize("dtype", [np.float64, np.complex128])
@pytest.mark.parametrize(("name", "k"), ALL, ids=[f"{name}-{k}" for name, k in ALL])
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")  # x**0 is a constant in NumPy 2.2
def test_every_rule_of_numpy(name, k, dtype):
    c = CASES[name][k]
    if np.dtype(dtype).kind not in c.kinds:
        pytest.skip("NumPy or the rule is for the other kind of numbers")
    with np.errstate(all="ignore"):  # nan_to_num gives the largest number
        check_second(objective_of(c.f), c.arguments(dtype), 1e-11)
        check_at_minimum(c.f, c.arguments(dtype))


def check_program(lines):
    """The check for a generated program in double precision, if it has a gradient that is finite."""
    x = [np.asarray(a, np.float64 if a.dtype == np.float32 else a.dtype) for a in starts().values()]
    f = objective_of(of_program(lines))
    try:
        gradient = ampi.grad(f, tuple(range(len(x))))(*x)
    except (ampi.AmpiError, TypeError, ValueError):
        return  # refused, or not to be had in double precision
    if all(np.isfinite(g).all() for g in gradient):
        check_second(f, x, 1e-10, rough=1e-5)


@pytest.mark.parametrize("first", range(0, 48, 8))
def test_generated_programs(first):
    for seed in range(first, first + 8):
        lines = Program(seed).lines
        try:
            check_program(lines)
        except Exception as error:
            raise AssertionError(f"program {seed}:\n" + "\n".join(lines)) from error


def rosenbrock(x):
    return (100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2).sum()


def hessian_of_rosenbrock(x):
    found = np.zeros((len(x), len(x)))
    for k in range(len(x) - 1):
        found[k, k] += 1200.0 * x[k] ** 2 - 400.0 * x[k + 1] + 2.0
        found[k + 1, k + 1] += 200.0
        found[k, k + 1] = found[k + 1, k] = -400.0 * x[k]
    return found


def test_hessian_known_by_formula():
    x = np.linspace(-1.2, 1.0, 5)
    expected = hessian_of_rosenbrock(x)
    np.testing.assert_allclose(ampi.hessian(rosenbrock, x, comm=ampi.COMM_SELF), expected, rtol=1e-13, atol=1e-13)
    v = np.cos(x)
    np.testing.assert_allclose(ampi.hvp(rosenbrock, x, v), expected @ v, rtol=1e-13)
    loops = lambda x: sum(100.0 * (x[k + 1] - x[k] ** 2) ** 2 + (1.0 - x[k]) ** 2 for k in range(len(x) - 1))
    np.testing.assert_allclose(ampi.hvp(loops, x, v), expected @ v, rtol=1e-13)  # element by element


def test_overwritten_memory_has_its_tangents_back():
    """A time loop in place: u ← u² + k u, whose values and tangents the sweep needs from the last step to the first."""

    def f(u, k):
        for _ in range(4):
            u *= u + k
            u[1:] += 0.1 * u[:-1] * k
            u[np.array([0, 2])] *= u[1]
            np.multiply(u, u, out=u, where=np.array([True, False, True, False]))
        return u.sum()

    check_second(f, [np.array([0.3, 0.5, 0.7, 0.4]), np.array(0.2)])
    x = np.array([0.3, 0.5, 0.7, 0.4])
    ampi.hvp(f, (x, 0.2), (np.ones(4), None))
    np.testing.assert_array_equal(x, [0.3, 0.5, 0.7, 0.4])


@pytest.mark.parametrize("options", [{"checkpoints": 2}, {"memory": "1MiB"}])
@pytest.mark.filterwarnings("ignore::ampi.errors.PerformanceWarning")
def test_time_loop_keeps_all_steps(options):
    def step(u):
        u *= 1.0 + 0.1 * np.sin(u)

    def f(u):
        u = u.copy()
        ampi.timeloop(step, u, 7, **options)
        return (u * u).sum()

    x, v = np.array([0.3, 0.5, 0.7]), np.array([1.0, -1.0, 0.5])
    check_second(f, [x])

    def plain(u):
        u = u.copy()
        for _ in range(7):
            step(u)
        return (u * u).sum()

    np.testing.assert_array_equal(ampi.hvp(f, x, v), ampi.hvp(plain, x, v))


def test_memory_that_constants_overwrite():
    def f(x):
        y = x * x
        z = np.sin(y)
        y[...] = 3.0  # all of it, and passive from here on
        return (z * y).sum() + (y * x).sum()

    check_second(f, [np.array([0.3, 0.5])])


def test_structures():
    def f(pair, options):
        a, b = pair
        return (a * a * b).sum() * options["k"]

    a, b = np.array([1.0, 2.0]), np.array([3.0, 4.0])
    found = ampi.hvp(f, ((a, b), {"k": 2.0, "n": 4}), ((np.ones(2), None), {"k": 1.0, "n": None}))
    (ha, hb), rest = found
    np.testing.assert_allclose(ha, 2 * b * 2.0 + 2 * a * b)
    np.testing.assert_allclose(hb, 2 * a * 2.0 + a * a)
    assert rest["k"] == (2 * a * b).sum() and rest["n"] is None
    assert ampi.hvp(lambda x: x**3, 2.0, 1.0) == 12.0


def test_complex_numbers():
    """F = |z|⁴, whose gradient is 4 |z|² z."""
    z, v = np.array([1.0 + 2.0j, -0.5j]), np.array([0.3 - 1.0j, 2.0 + 0.0j])
    found = ampi.hvp(lambda z: ((z * np.conj(z)).real ** 2).sum(), z, v)
    expected = 4 * np.abs(z) ** 2 * v + 8 * np.real(np.conj(z) * v) * z
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_zero_times_infinity_leaves_others_alone():
    """A rule that looks for nan in what it computes sees those elements alone."""

    def f(x):
        y = np.sqrt(x)
        return (np.where(np.arange(3) > 0, y * y * y, 0.0)).sum()

    found = ampi.hvp(f, np.array([0.0, 1.0, 4.0]), np.ones(3))
    np.testing.assert_allclose(found[1:], 0.75 / np.sqrt([1.0, 4.0]), rtol=1e-13)

    def g(x):  # √x (x - a), whose ȳ is zero at x = a and whose ȳ̇ is not
        return (np.sqrt(x) * (x - np.array([0.0, 1.0, 4.0]))).sum()

    found = ampi.hvp(g, np.array([0.0, 1.0, 4.0]), np.ones(3))
    np.testing.assert_allclose(found[1:], [1.0, 0.5], rtol=1e-13)


def squared():
    @ampi.custom_vjp
    def f(x, k):
        return k * x * x

    f.defvjp(lambda x, k: (k * x * x, (x, k)), lambda r, g: (2.0 * r[1] * r[0] * g, (r[0] ** 2 * g).sum()))
    return f


def test_custom_vjp_needs_a_tangent():
    with pytest.raises(ampi.ActivityError, match=r"f\.defjvp"):
        ampi.hvp(lambda x: squared()(x, 2.0).sum(), np.ones(3), np.ones(3))


def test_custom_vjp_with_a_tangent():
    f = squared()
    f.defjvp(lambda a, d: (a[1] * a[0] ** 2, 2 * a[1] * a[0] * d[0] + a[0] ** 2 * d[1]))
    check_second(lambda x, k: (f(np.sin(x), k) * x).sum(), [np.arange(1.0, 4.0), np.array(1.5)])


def test_custom_vjp_that_overwrites_is_refused():
    @ampi.custom_vjp
    def doubled(x):
        x *= 2.0
        return x

    def forward(x):
        x *= 2.0
        return x, None

    doubled.defvjp(forward, lambda _, g: (2.0 * g,))
    doubled.defjvp(lambda a, d: (forward(a[0])[0], 2.0 * d[0]))
    with pytest.raises(ampi.ActivityError, match="doubled, which overwrites an argument, has no second derivative"):
        ampi.hvp(lambda x: (doubled(x * x) ** 2).sum(), np.ones(3), np.ones(3))


def test_jvp_of_grad_is_the_same():
    x, v = np.linspace(-1.2, 1.0, 5), np.linspace(1.0, 2.0, 5)
    gradient, product = ampi.jvp(ampi.grad(rosenbrock), x, v)
    np.testing.assert_allclose(gradient, ampi.grad(rosenbrock)(x), rtol=1e-14)
    np.testing.assert_array_equal(product, ampi.hvp(rosenbrock, x, v))
    (value, _), (value_dot, _) = ampi.jvp(ampi.value_and_grad(rosenbrock), x, v)
    np.testing.assert_allclose([value, value_dot], [rosenbrock(x), gradient @ v], rtol=1e-13)


def test_jvp_of_what_is_computed_of_a_gradient():
    x, v = np.linspace(-1.2, 1.0, 5), np.linspace(1.0, 2.0, 5)
    _, found = ampi.jvp(lambda x: (ampi.grad(rosenbrock)(2.0 * x) * x).sum(), x, v)
    expected = ampi.grad(rosenbrock)(2.0 * x) @ v + 2.0 * x @ hessian_of_rosenbrock(2.0 * x) @ v
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_jvp_of_grad_with_respect_to_a_parameter():
    f = lambda x, k: (k * x**3).sum()
    _, found = ampi.jvp(lambda k: ampi.grad(f)(np.array([1.0, 2.0]), k), 2.0, 1.0)
    np.testing.assert_allclose(found, [3.0, 12.0])


def test_other_nestings_are_refused():
    x = np.ones(3)
    with pytest.raises(ampi.TapeError, match="outer tape"):
        ampi.grad(lambda x: (ampi.grad(rosenbrock)(x) ** 2).sum())(x)
    with pytest.raises(ampi.TapeError, match="outer tape"):
        ampi.grad(lambda x: (ampi.hvp(rosenbrock, x, np.ones(3)) ** 2).sum())(x)
    with pytest.raises(ampi.TapeError, match="outer tape"):
        ampi.hvp(lambda x: (ampi.grad(rosenbrock)(x) ** 2).sum(), x, x)


@pytest.mark.parametrize(
    ("primals", "v", "error", "what"),
    [
        (np.ones(3), np.ones(2), ampi.TapeError, "shape"),
        ((np.ones(3),), np.ones(3), ampi.TapeError, "tuple of 1"),
        ((np.ones(3),), (np.ones(3), np.ones(3)), ampi.TapeError, "tuple of 1"),
        (np.ones(3), 1j * np.ones(3), ampi.TapeError, "complex"),
    ],
)
def test_vectors_that_do_not_fit(primals, v, error, what):
    with pytest.raises(error, match=what):
        ampi.hvp(lambda x: x.sum(), primals, v)


def test_what_has_no_second_derivative_is_an_error():
    with pytest.raises(ampi.ActivityError, match="qr"):
        ampi.hvp(lambda x: np.linalg.qr(x, "raw")[0].sum(), np.eye(3), np.eye(3))
    with pytest.raises(ampi.ActivityError, match=r"scipy\.\S* has no second derivative yet|erf"):
        scipy_special = pytest.importorskip("scipy.linalg")
        ampi.hvp(lambda x: scipy_special.expm(x).sum(), np.eye(3), np.eye(3))


def test_adjoint_that_drops_derivatives_is_found():
    """What an adjoint computes without NumPy's dispatch is no zero, but an error."""
    from ampi.tape import BaseAdjoint, Sweep, current

    class Dropping(BaseAdjoint):
        second_order = "differentiated"

        def __init__(self, x, y):
            self.x, self.y = ampi.memory.storages.region_of(x), ampi.memory.storages.region_of(y)

        def __call__(self, sweep: Sweep):
            sweep.add(self.x, np.array(ampi.value(sweep.shadow(self.y))))

        def tangent(self, push):
            push.put(self.y, push.get(self.x))

    def f(x):
        x = x * x
        y = ampi.numpy.array(ampi.value(x).copy())
        current().activate(y)
        current().append(Dropping(x, y), created=(y,))
        return (y * y).sum()

    with pytest.raises(ampi.ActivityError, match="drops derivatives"):
        ampi.hvp(f, np.ones(3), np.ones(3))


def test_function_that_depends_on_nothing():
    with pytest.warns(ampi.ActivityWarning, match="depends on nothing"):
        found = ampi.hvp(lambda x: ampi.numpy.ones(()) * 2.0, np.ones(3), np.ones(3))
    np.testing.assert_array_equal(found, np.zeros(3))


def test_symmetry_test():
    assert ampi.testing.symmetry_test(rosenbrock, np.linspace(-1.2, 1.0, 5)).passed
    bad = squared()
    bad.defjvp(lambda a, d: (a[1] * a[0] ** 2, 3 * a[1] * a[0] * d[0]))  # not the derivative
    f = lambda x: (bad(x, 2.0) * x[::-1]).sum() ** 2
    with pytest.raises(AssertionError, match="symmetry of the Hessian: FAILED"):
        ampi.testing.symmetry_test(f, np.arange(1.0, 4.0))


@pytest.mark.parametrize("seed", range(3))
def test_gradient_and_value_are_those_of_first_order(seed):
    from ampi.derivatives.second_order import products

    generator = np.random.default_rng(seed)
    x = generator.uniform(0.5, 1.5, 6)
    f = lambda x: np.linalg.norm(np.outer(x, x) @ np.exp(x)) + np.cumprod(x)[-2]
    found = products(f, (x,), (draw(generator, x),), "sum", None)
    value, gradient = ampi.value_and_grad(f)(x)
    assert found.value == value
    np.testing.assert_allclose(found.gradient[0], gradient, rtol=1e-14)


def test_a_tape_that_fails_to_open_is_closed(monkeypatch):
    from ampi.tape import current, open_tapes
    from ampi.tape import tape as tapes

    def fails(tape):
        raise ValueError("at the opening")

    monkeypatch.setattr(tapes, "at_opening", [fails, *tapes.at_opening])
    for call in (lambda: ampi.hvp(lambda x: x * x, 1.0, 1.0), lambda: ampi.grad(lambda x: x * x)(1.0)):
        with pytest.raises(ValueError, match="at the opening"):
            call()
        assert current() is None and not open_tapes

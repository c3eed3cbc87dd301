"""Forward mode on one rank: the dot-product identity over NumPy's rules and generated programs, and what it refuses."""

import numpy as np
import pytest
from forward_check import check_forward
from numpy_programs import WIDE, Program, run, starts
from numpy_rule_cases import ALL, CASES
from test_numpy_programs import FOUND

import ampi
from ampi.arrays import fast_calls, fast_writes


@pytest.fixture(params=["few", "many", "any"])
def elements(request, monkeypatch):
    """Calls are recorded in the way of arrays with few elements, in that of all usual calls, and in the general one."""
    monkeypatch.setattr(fast_calls, "MOST_ELEMENTS", 64 if request.param == "few" else 0)
    if request.param == "any":
        monkeypatch.setattr(fast_writes, "LARGEST", 0)


@pytest.mark.parametrize("dtype", [np.float64, np.complex128, np.float32])
@pytest.mark.parametrize(("name", "k"), ALL, ids=[f"{name}-{k}" for name, k in ALL])
def test_every_rule_of_numpy(name, k, dtype, elements):
    c = CASES[name][k]
    if np.dtype(dtype).kind not in c.kinds:
        pytest.skip("NumPy or the rule is for the other kind of numbers")
    check_forward(c.f, c.arguments(dtype), 1e-12 if dtype is not np.float32 else 2e-5)


def of_program(lines):
    """A generated program as a function of its independents; gives all that has derivatives."""

    def f(*x):
        names = run(lines, ampi.numpy, WIDE, {n: a.copy() for n, a in zip("xzf", x)})
        found = []
        for value in names.values():
            if isinstance(value, ampi.ndarray):
                parts = [value] if value.dtype.names is None else [value[...][n] for n in value.dtype.names]
                found += [part for part in parts if part.dtype.kind in "fc"]
        return found

    return f


def check_program(lines):
    """The identity for a generated program in double precision."""
    x = [np.asarray(a, np.float64 if a.dtype == np.float32 else a.dtype) for a in starts().values()]
    try:
        with ampi.Tape() as tape:
            found = of_program(lines)(*[tape.watch(a) for a in x])
    except (ampi.AmpiError, TypeError, ValueError):
        return  # refused, or not to be had in double precision
    if all(np.isfinite(ampi.value(a)).all() for a in found):
        check_forward(of_program(lines), x, 1e-11)


@pytest.mark.parametrize("name", FOUND)
def test_programs_of_fixed_seeds(name):
    check_program(FOUND[name])


@pytest.mark.parametrize("first", range(0, 80, 8))
def test_generated_programs(first):
    for seed in range(first, first + 8):
        lines = Program(seed).lines
        try:
            check_program(lines)
        except Exception as error:
            raise AssertionError(f"program {seed}:\n" + "\n".join(lines)) from error


def test_structures_and_constants():
    def f(pair, options):
        a, b = pair
        return {"sum": a.sum() * options["k"], "both": (a + b, 3, None), "constant": np.ones(2)}

    a, b = np.arange(3.0), np.ones(3)
    y, y_dot = ampi.jvp(f, ((a, b), {"k": 2.0, "n": 4}), ((np.ones(3), None), {"k": 0.5, "n": None}))
    assert y["sum"] == 6.0 and y_dot["sum"] == 3 * 2.0 + 3.0 * 0.5
    np.testing.assert_array_equal(y_dot["both"][0], np.ones(3))
    assert y_dot["both"][1:] == (None, None)
    np.testing.assert_array_equal(y_dot["constant"], np.zeros(2))
    np.testing.assert_array_equal(a, np.arange(3.0))


@pytest.mark.parametrize(
    ("primals", "tangents", "error", "what"),
    [
        (np.ones(3), np.ones(2), ampi.TapeError, "shape"),
        ((np.ones(3),), (np.ones(3), np.ones(3)), ampi.TapeError, "tuple of 1"),
        (np.ones(3, int), np.ones(3), ampi.ActivityError, "must be None"),
        (np.ones(3), 1j * np.ones(3), ampi.TapeError, "complex"),
    ],
)
def test_tangents_that_do_not_fit(primals, tangents, error, what):
    with pytest.raises(error, match=what):
        ampi.jvp(lambda x: x, primals, tangents)


def test_linearize_goes_forward_and_tape_back():
    x0 = np.linspace(0.1, 0.9, 5)

    def f(x):
        x[1:] *= x[:-1]
        return np.exp(x), {"n": 3, "s": x.sum()}

    y, push = ampi.linearize(f, x0)
    for v in np.eye(5):
        expected, y_dot = ampi.jvp(f, x0, v)
        found = push(v)
        np.testing.assert_allclose(found[0], y_dot[0], rtol=1e-14)
        np.testing.assert_allclose(found[1]["s"], y_dot[1]["s"], rtol=1e-14)
        assert found[1]["n"] is None and expected[1]["n"] == y[1]["n"] == 3


def test_gauss_newton_from_one_tape():
    x0 = np.linspace(0.1, 0.9, 4)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = np.sin(np.outer(x, x)).ravel()
        x *= 2.0  # the walk and the sweep see the earlier values
    v = np.arange(1.0, 5.0)
    for _ in range(2):
        product = tape.gradient(y, x, seed=tape.tangent(y, x, v))
    jacobian = np.array([tape.tangent(y, x, e) for e in np.eye(4)]).T
    np.testing.assert_allclose(product, jacobian.T @ jacobian @ v, rtol=1e-12)
    np.testing.assert_array_equal(x, 2.0 * x0)


def test_memory_stays_that_of_the_program():
    from ampi.tape import ForwardTape

    with ForwardTape() as tape:
        x = ampi.numpy.ones(100)
        tape.start(x, np.ones(100))
        for _ in range(50):
            x = x * 1.01
            x[3:] += x[:-3]
        assert len(tape) == 0 and len(tape.forward._blocks) <= 2 and not tape._needed


def test_what_has_no_rule_is_an_error():
    with pytest.raises(ampi.ActivityError, match="qr"):
        ampi.jvp(lambda x: np.linalg.qr(x, "raw")[0], np.eye(3), np.eye(3))


def test_outer_tape_is_not_lost():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(2))
        with pytest.raises(ampi.TapeError, match="outer tape"):
            ampi.jvp(lambda a: a * x, np.ones(2), np.ones(2))
        with pytest.raises(ampi.TapeError, match="outer tape"):
            ampi.jvp(lambda a: a, x, np.ones(2))


def clipped():
    """The identity, with halved derivatives."""

    @ampi.custom_vjp
    def halved(x):
        return x

    halved.defvjp(lambda x: (x, None), lambda _, g: (0.5 * g,))
    return halved


def test_custom_vjp_needs_a_tangent():
    with pytest.raises(ampi.ActivityError, match=r"halved\.defjvp"):
        ampi.jvp(lambda x: clipped()(x) * 2.0, np.ones(3), np.ones(3))


def test_walk_through_custom_vjp():
    halved = clipped()
    _, push = ampi.linearize(lambda x: halved(x) * 2.0, np.ones(3))
    with pytest.raises(ampi.ActivityError, match=r"halved\.defjvp"):
        push(np.ones(3))
    halved.defjvp(lambda arguments, tangents: (arguments[0], 0.5 * tangents[0]))
    with pytest.raises(ampi.ActivityError, match=r"halved\.defjvp"):
        push(np.ones(3))  # what it takes was not kept

    power = ampi.custom_vjp(lambda part, n: {"y": part["x"] ** n})
    power.defvjp(
        lambda part, n: ({"y": part["x"] ** n}, (part["x"], n)),
        lambda kept, g: ({"x": kept[1] * kept[0] ** (kept[1] - 1) * g["y"]}, None),
    )
    power.defjvp(lambda a, d: ({"y": a[0]["x"] ** a[1]}, {"y": a[1] * a[0]["x"] ** (a[1] - 1) * d[0]["x"]}))
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        a = x * 1.0
        y = power({"x": a}, 3)["y"]
        a[...] = 7.0  # after the call
        z = y * a
    directions = np.eye(3)
    for x_dot, found in zip(directions, tape.tangent(z, x, directions, vectorised=True)):
        np.testing.assert_allclose(found, 21.0 * np.arange(1.0, 4.0) ** 2 * x_dot, rtol=1e-14)
        np.testing.assert_allclose(tape.tangent(z, x, x_dot), found, rtol=1e-14)
    np.testing.assert_array_equal(ampi.value(a), 7.0)


def test_custom_vjp_with_a_tangent():
    halved = clipped()
    halved.defjvp(lambda arguments, tangents: (arguments[0], 0.5 * tangents[0]))
    check_forward(lambda x: [halved(x) * x, x * x], [np.arange(1.0, 4.0)])


def test_custom_vjp_that_overwrites():
    @ampi.custom_vjp
    def doubled(x, k):
        x *= k
        return x

    def forward(x, k):
        x *= k
        return x, k

    def tangent(arguments, tangents):
        x, k = arguments
        x_dot = k * tangents[0]
        x *= k
        return x, x_dot

    doubled.defvjp(forward, lambda k, g: (k * g, None))
    doubled.defjvp(tangent)

    def f(x):
        y = x * x
        view = y[1:]
        return doubled(view, 3.0), y

    check_forward(f, [np.arange(1.0, 5.0)])

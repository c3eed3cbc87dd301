"""Forms of loops over elements: what they record, numbers that live on, and gradients by the complex step."""

import copy
import types

import numpy as np
import pytest
from test_elements import by_complex_step, flat_only

import ampi
import ampi.numpy as anp
from ampi.tape import element_places, elements

N = 5


def flat(np, x):
    """Several forms, of which each ends in an element of the result."""
    z, one, none = x * 1.0, np.zeros(1, x.dtype), np.zeros((), x.dtype)
    o = types.SimpleNamespace(a=x[0] * 0.0, v=x * 1.0)
    rows = np.zeros((3, N), x.dtype) + x
    held = []
    for i in range(N):
        one[0] += x[i] * x[i - 1]
        none[()] += x[i] * 0.5
        o.a += x[i] * x[-1]
        o.v[i] *= x[0]
        for j in range(3):
            rows[j][i] += x[j] * rows[j - 1][i]
            held.append(rows[j][i] * x[i])
    for a, b in zip(rows[0], rows[1]):
        z[0] += a * b
    few = rows[1, 1:4] * x[2]
    few += rows[2, :3]
    few -= x[1]
    few += held[1]
    z[1] = one[0] * none[()] + o.a
    z[2] = few[0] * few[2] - few[1]
    z[3] = sum(held[::2]) + -o.v[3]
    one[0] = 0.5
    z[4] += one[0] * np.sin(x[4]) + np.exp(x[3]) ** x[2]
    return z


def test_gradients(monkeypatch):
    monkeypatch.setattr(element_places, "FEWEST", 1)
    x0, seed = np.linspace(0.5, 1.5, N), np.linspace(1.0, 2.0, N)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = flat(anp, x)
    np.testing.assert_array_equal(ampi.value(y), flat(np, x0))
    expected = by_complex_step(lambda x: flat(np, x), x0, seed)
    np.testing.assert_allclose(tape.gradient(y, x, seed=seed), expected, rtol=1e-13)
    x_dot = np.linspace(-1.0, 1.0, N)
    np.testing.assert_allclose(np.vdot(tape.tangent(y, x, x_dot), seed), np.vdot(expected, x_dot), rtol=1e-12)


STATEMENTS = [
    "one[0] += x[i, j] * x[j, i]",
    "none[()] += x[i, j] * x[j, i]",
    "c[i][j] += x[i][j] * x[j][i]",
    "s += x[i][j] * x[i, j]",
    "s += -x[i, j]",
    "s += abs(x[i, j] - 0.75)",
    "s += np.sin(x[i, j]) * np.sqrt(x[i, j])",
    "s += x[i, j] ** x[j, i]",
    "s += np.float64(x[i, j])",
    "s += max(x[i, j], x[j, i])",
    "o.a += x[i, j]",
    "d['a'] += x[i, j]",
    "q[0] += x[i, j]",
    "c[i, j], c[j, i] = c[j, i], c[i, j]",
    "s += x.T[i, j] * c.T.T[j, i]",
    "c.T[i, j] += x.T[j, i]",
    "s += x.flat[9 * i + j] * x.flat[-j - 1]",
]


@flat_only
@pytest.mark.parametrize("statement", STATEMENTS)
def test_a_form_is_recorded_as_elements(statement):
    names = {"np": anp, "one": anp.zeros(1), "none": anp.zeros(()), "c": anp.zeros((9, 9)), "s": 0.0}
    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(0.5, 1.0, 81).reshape(9, 9))
        zero = x[0, 0] * 0.0
        names |= {"x": x, "o": types.SimpleNamespace(a=zero), "d": {"a": zero}, "q": [zero]}
        exec(f"for i in range(9):\n    for j in range(9):\n        {statement}", names)
    assert len(tape) < 12


def makers(a, b, v, x):
    return {
        "element": lambda: v[1],
        "element of a row": lambda: x[1][1],
        "sum": lambda: a + b,
        "product with a constant": lambda: 2.0 * a,
        "quotient": lambda: a / b,
        "minus": lambda: -a,
        "absolute": lambda: abs(a),
        "sine": lambda: np.sin(a),
        "square": lambda: a**2,
        "power": lambda: a**b,
        "constant": lambda: anp.ones(3)[1],
    }


def number(x):
    return x.tolist() if isinstance(x, memoryview) else float(np.ravel(ampi.value(x))[0])


@pytest.mark.parametrize("name", makers(*[None] * 4))
def test_numbers_that_the_program_holds_are_not_used_again(name):
    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(1.0, 2.0, 36).reshape(6, 6))
        v = x[2] * 1.0
        a, b = v[0], v[3]
        make = makers(a, b, v, x)[name]
        held = []
        for _ in range(20):
            held += [make(), anp.asarray(make()), make().reshape(1), memoryview(make()), copy.copy(make())]
        values = [*map(number, held)]
        for k in range(3 * elements.ROOM):
            make() + float(k)
        assert [*map(number, held)] == values
        y = held[0] * held[15]
    if tape.is_active(y):
        both = tape.gradient(y, x)
        with ampi.Tape() as tape:
            x = tape.watch(np.linspace(1.0, 2.0, 36).reshape(6, 6))
            v = x[2] * 1.0
            once = makers(v[0], v[3], v, x)[name]()
            y = once * once
        np.testing.assert_allclose(both, tape.gradient(y, x), rtol=1e-14)


def test_numbers_have_a_fixed_shape():
    with ampi.Tape() as tape:
        a = tape.watch(np.ones(3))[0]
    for name, value in (("shape", (1,)), ("dtype", np.int64), ("strides", ())):
        with pytest.raises(AttributeError):
            setattr(a, name, value)


def test_a_complex_number_as_a_real_one():
    with ampi.Tape() as tape:
        z = tape.watch(np.array([1 + 2j, 3 - 1j]))
        with pytest.warns(np.exceptions.ComplexWarning):
            y = np.float64(z[0]) * 2.0
    np.testing.assert_array_equal(tape.gradient(y, z), [2.0, 0.0])


def test_an_array_of_one_element_that_becomes_constant():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0]))
        one = anp.zeros(1)
        one[0] = x[0] * x[1]
        y = one[0] * 2.0
        one[0] = 5.0
        assert not tape.is_active(one)
        one[0] *= x[1]
        y = y + one[0]
    np.testing.assert_array_equal(tape.gradient(y, x), [6.0, 9.0])


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_factors_of_lower_precision_keep_double_precision(kind):
    def f(x):
        return anp.sin(x[0] * kind(0.3)) * kind(0.7) + x[1] / kind(0.3)

    x0 = np.array([0.7, 1.3])
    expected = [np.cos(x0[0] * float(kind(0.3))) * float(kind(0.3)) * float(kind(0.7)), 1 / float(kind(0.3))]
    np.testing.assert_allclose(ampi.grad(f)(x0), expected, rtol=1e-15)

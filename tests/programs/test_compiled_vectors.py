"""Vectors of a few numbers in compiled loops: rows of arrays, slices, and what is computed from them."""

import linecache
import math
import types

import numpy as np
import pytest
from loop_programs import at_once

import ampi
import ampi.numpy
from ampi.programs.outlining import running
from ampi.programs.outlining.compiled_loops import with_compiled_loops

POINTS = np.random.default_rng(0).uniform(0.0, 3.0, (7, 3))


def guarded(program):
    """Put guards before a program's loops, or switch on those that it has; return what runs the loops."""
    loops = []
    with_compiled_loops(program, loops)
    for loop in loops:
        loop.on = loop.loop.refusal is None
    return loops


def both_ways(program, *arguments):
    """Run a program in Python and with compiled loops; return the outcomes and the forms of its loops."""
    copies = [np.array(a) if isinstance(a, np.ndarray) else a for a in arguments]
    in_python = program(*copies), copies
    loops = guarded(program)
    with at_once(interpreted=False):
        found = program(*arguments)
    return in_python, (found, arguments), [form for one in loops for form in one.forms.values()]


def agree(one, other):
    assert type(one) is type(other)
    if isinstance(one, (tuple, list)):
        assert len(one) == len(other)
        for a, b in zip(one, other):
            agree(a, b)
    else:
        np.testing.assert_allclose(one, other, rtol=1e-13)


def pair_forces(x, box, force):
    energy = 0.0
    for i in range(len(x) - 1):
        for j in range(i + 1, len(x)):
            d = x[i] - x[j]
            d -= box * np.round(d / box)
            for k in range(3):
                if d[k] > 1.2:
                    d[k] -= 0.1
            r2 = d @ d
            if r2 > 2.0:
                continue
            s6 = (1.0 / r2) ** 3
            energy += 4.0 * s6 * (s6 - 1.0)
            force[i] += 24.0 * s6 * (2.0 * s6 - 1.0) / r2 * d
            force[j] -= 24.0 * s6 * (2.0 * s6 - 1.0) / r2 * d
    return energy


def direction(a, b):
    d = b - a
    return d / math.sqrt(d.dot(d))


def angles(x):
    total = 0.0
    for i in range(1, len(x) - 1):
        u = direction(x[i], x[i - 1])
        v = direction(x[i], x[i + 1])
        w = np.cross(u, v)
        total += np.dot(u, v) + np.linalg.norm(w) + w[0] * w[-1]
    return total


def centre(x, m):
    lowest = 0.0
    for i in range(len(x)):
        a, b, c = x[i]
        weighted = m[i] * np.array([a, b, 2.0 * c])
        shifted = np.maximum(weighted, 0.5)
        shifted[1:3] = x[i, 0:2]
        lowest += shifted.min() - weighted.sum() / weighted.shape[0] + np.mean(x[i, :])
    return lowest, weighted, a


def matrix_rows(x, out):
    for i in range(len(x)):
        acc = np.zeros(3)
        for j in range(len(x)):
            acc += x[j] * (i - j)
        out[i] = acc
        out[i, :] *= 2.0
        out[i] **= 2
    return acc


def rate(s, p, scale=0.5):
    x, y, z = s
    return scale * np.array([p[0] * (y - x), x * (p[1] - z) - y, x * y - z])


def runge_kutta(s, p, h):
    total = 0.0
    for _ in range(20):
        k1 = rate(s, p)
        k2 = rate(s + h / 2 * k1, p)
        k3 = rate(s + h / 2 * k2, p, 0.25)
        k4 = rate(s + h * k3, p)
        s = s + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        total += s[2] * h
    return total, s


def secants(x, out):
    total, old, new = 0.0, x[0] * 1.0, x[1] * 1.0
    for i in range(2, len(x)):
        far = np.linalg.norm(x[i]) > 2.5
        middle = x[i, 0:2]
        step = (x[i] if far else new) - old
        old, new = new, new + 0.5 * step * middle[1]
        middle *= 0.5
        out[i] = old - new * middle[-2]
        total += old @ new
    return total


@pytest.mark.parametrize(
    ("program", "arguments"),
    [
        (runge_kutta, lambda: (np.array([1.0, 0.5, 2.0]), np.array([3.0, 2.0]), 0.05)),
        (secants, lambda: (POINTS.copy(), np.zeros((7, 3)))),
        (pair_forces, lambda: (POINTS.copy(), 3.0, np.zeros((7, 3)))),
        (angles, lambda: (POINTS.copy(),)),
        (centre, lambda: (POINTS.copy(), np.linspace(1.0, 2.0, 7))),
        (matrix_rows, lambda: (POINTS.copy(), np.zeros((7, 3)))),
        (matrix_rows, lambda: (POINTS.T.copy().T[::-1], np.zeros((7, 3)))),
    ],
)
def test_values(program, arguments):
    one, other, forms = both_ways(program, *arguments())
    agree(one[0], other[0])
    agree(list(one[1]), list(other[1]))
    assert [form.kernel is not None for form in forms] == [True]


def sum_of_rows(program, x, out):
    program(x, out)
    return out.sum()


@pytest.mark.parametrize(
    ("program", "objective"),
    [
        (runge_kutta, lambda f, x, np: f(x[0], x[1], 0.05)[0] + f(x[2] + 1.0, x[3], 0.02)[1].sum()),
        (secants, lambda f, x, np: f(x + 0.0, np.zeros((7, 3)))),
        (pair_forces, lambda f, x, np: f(x, 3.0, np.zeros((7, 3)))),
        (angles, lambda f, x, np: f(x)),
        (centre, lambda f, x, np: f(x, np.linspace(1.0, 2.0, 7))[0]),
        (matrix_rows, lambda f, x, np: sum_of_rows(f, x, np.zeros((7, 3)))),
    ],
)
def test_gradients(program, objective):
    space = globals() | {"np": ampi.numpy}
    space["rate"] = types.FunctionType(rate.__code__, space, "rate", rate.__defaults__)
    active = types.FunctionType(program.__code__, space, program.__name__)
    loops = guarded(active)
    along = np.random.default_rng(1).standard_normal(POINTS.shape)
    with at_once(interpreted=False):
        found = ampi.grad(lambda x: objective(active, x, ampi.numpy))(POINTS)
    step = 1e-6
    ends = [objective(program, POINTS + sign * step * along, np) for sign in (1, -1)]
    np.testing.assert_allclose(np.sum(found * along), (ends[0] - ends[1]) / (2 * step), rtol=2e-7)
    assert [form.kernel is not None for one in loops for form in one.forms.values()] == [True]


def test_a_vector_after_the_loop_carries_derivatives():
    def program(x):
        for i in range(len(x)):
            d = 2.0 * x[i]
        return d

    loops = guarded(program)
    with at_once(interpreted=False):
        found = ampi.grad(lambda x: (program(x) * np.array([1.0, 2.0, 3.0])).sum())(POINTS)
    np.testing.assert_array_equal(found[-1], [2.0, 4.0, 6.0])
    assert not found[:-1].any()
    (form,) = loops[0].forms.values()
    assert form.kernel is not None


@pytest.mark.parametrize("active", [True, False])
def test_a_vector_after_the_loop_is_ampis(active):
    def program(x, c):
        for i in range(len(x)):
            d = np.array([x[i, 0], c[i], 1.0])
        return d

    loops = guarded(program)
    x, c = ampi.numpy.array(POINTS), ampi.numpy.array(POINTS[:, 1])
    with at_once(interpreted=False), ampi.Tape() as tape:
        if active:
            tape.watch(c)
        d = program(x, c)
        assert type(d) is type(x)
        d *= c[0]
        total = d.sum()
    assert [form.kernel is not None for one in loops for form in one.forms.values()] == [True]
    np.testing.assert_allclose(d, np.array([POINTS[-1, 0], POINTS[-1, 1], 1.0]) * POINTS[0, 1])
    if active:
        found = tape.gradient(total, c)
        np.testing.assert_allclose(found[-1], POINTS[0, 1])
        np.testing.assert_allclose(found[0], POINTS[-1, 0] + POINTS[-1, 1] + 1.0)


def two_names(x, out):
    for i in range(len(x)):
        d = x[i] * 2.0
        e = d
        e[0] = 7.0
        out[i] = d


def kept_from_before(x, out):
    before = np.zeros(3)
    d = np.zeros(3)
    for i in range(len(x)):
        before = d
        d = x[i] + 1.0
        out[i] = before


def given_away(x, out):
    for i in range(len(x)):
        row = x[i]
        row += 1.0
        out[i] = x[i]


def swapped(x, out):
    for i in range(len(x) - 1):
        d = x[i] + 0.0
        d = np.cross(d, x[i + 1]) + d[0] * d
        out[i] = d[::-1]


def from_outside(x, out):
    s = x[0]
    for i in range(len(x)):
        x[0, 1] += 1.0
        s = s + x[i]
        out[i] = s


def moved(z):
    z = z + 1.0
    z[0] = 5.0
    return z


def same(z):
    return z


def through_functions(x, out):
    for i in range(len(x)):
        d = x[i] - 1.0
        e = same(d)
        e[1] = 9.0
        f = moved(d)
        out[i] = d + f


def chosen(x, out):
    for i in range(len(x)):
        d = x[i] if i > 2 else out[i]
        d += 1.0


def unsure(x, out):
    for i in range(len(x)):
        if i == 0 or x[i, 0] > 1.0:
            d = x[i] * 2.0
        out[i] = d


def too_long(x, out):
    for i in range(len(x)):
        out[i] = np.sum(x[i] * x[i])


@pytest.mark.parametrize(
    "program",
    [two_names, kept_from_before, given_away, swapped, from_outside, through_functions, chosen, unsure, too_long],
)
def test_arrays_with_several_names(program):
    """Two names of one array, arrays of the iteration before, views: results are Python's, compiled or not."""
    x = np.random.default_rng(2).uniform(0.0, 2.0, (6, 9)) if program is too_long else POINTS.copy()
    one, other, _ = both_ways(program, x, np.zeros((len(x), x.shape[1] if program is not too_long else 1)))
    agree(list(one[1]), list(other[1]))


def test_rows_of_another_length(monkeypatch):
    """A loop that was compiled for rows of three elements is right for rows of two, and of nine."""
    monkeypatch.setattr(running, "UNRECORDED", 10)

    def program(x):
        total = 0.0
        for i in range(1, len(x)):
            d = x[i] - x[i - 1]
            total += np.dot(d, d)
        return total

    guarded(program)
    for columns in (3, 2, 9, 3, 1, 3, 2):
        x = np.random.default_rng(columns).standard_normal((40, columns))
        np.testing.assert_allclose(program(x), (np.diff(x, axis=0) ** 2).sum(), rtol=1e-13)


@pytest.mark.parametrize(
    ("last", "error"),
    [("d[k]", IndexError), ("d[0] / (n - n)", None), ("np.sum(d + x[0, 0:2])", ValueError), ("d[5]", IndexError)],
)
def test_errors_are_pythons(last, error):
    lines = "s = 0.0", "for i in range(n):", "    d = x[i] * 2.0", f"    s += {last}", "return s"
    text = "def program(x, k, n):\n" + "".join(f"    {line}\n" for line in lines)
    linecache.cache["<vectors>"] = (len(text), None, text.splitlines(True), "<vectors>")
    space = {"np": np}
    exec(compile(text, "<vectors>", "exec"), space)
    guarded(space["program"])
    with at_once(interpreted=False), np.errstate(all="ignore"):
        if error is None:
            assert math.isinf(space["program"](POINTS, 3, 5))
            return
        with pytest.raises(error):
            space["program"](POINTS, 3, 5)

"""Loops of Python over single elements: flat statements on the tape, and NumPy's own item access without one."""

import _thread
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi.base import checks
from ampi.tape import elements

flat_only = pytest.mark.skipif(checks.is_full(), reason="AMPI_CHECK=full records each operation by itself")


def recurrence(g):
    for i in range(1, g.shape[0]):
        for j in range(1, g.shape[1]):
            g[i, j] = g[i - 1, j] + g[i, j - 1] * g[0, j] - g[i - 1, j - 1] / (2.0 + g[i, 0] ** 2)
    return g


def by_complex_step(f, x, seed):
    """The gradient of Σ seed f(x)."""
    found = np.zeros(x.shape)
    for place in np.ndindex(*x.shape):
        moved = x.astype(complex)
        moved[place] += 1e-30j
        found[place] = np.sum(seed * f(moved)).imag / 1e-30
    return found


@pytest.mark.parametrize("dtype, tolerance", [(np.float64, 1e-12), (np.float32, 2e-5)])
def test_a_recurrence(dtype, tolerance, swept):
    rng = np.random.default_rng(1)
    x0, seed = rng.uniform(-1, 1, (6, 7)).astype(dtype), rng.uniform(-1, 1, (6, 7))
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = recurrence(x.copy())
    assert len(tape) == 3 or checks.is_full()  # the independent, the copy, and all of the loop
    np.testing.assert_array_equal(ampi.value(y), recurrence(x0.copy()))
    expected = by_complex_step(recurrence, x0.astype(float), seed)
    for _ in range(2):
        found = tape.gradient(y, x, seed=seed)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("order", "CF")
def test_views_negative_indices_and_kinds_of_integers(order, swept):
    def program(x):
        part = x[::-1, 1::2]
        for k in range(3):
            part[-k, np.int64(k % 2)] = x.T[k, -1] * x[k % 2][np.array(2)]
            x[1:, 1:][k % 2, 0] *= part[0][-1]
        return x

    rng = np.random.default_rng(2)
    x0, seed = rng.uniform(0.5, 1.5, (3, 4)), rng.uniform(-1, 1, (3, 4))
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(x.copy(order))
    np.testing.assert_allclose(tape.gradient(y, x, seed=seed), by_complex_step(program, x0.copy(), seed), rtol=1e-12)


def test_indices_of_short_integers(swept):
    """Offsets in bytes do not fit into them."""
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(100.0).reshape(10, 10))
        a = x.copy()
        i, j = np.int8(5), np.uint8(7)
        a[i, i] = a[i, j] * 2.0
        y = a[i, i] + a[:, 0][i]
    expected = np.zeros((10, 10))
    expected[5, 7], expected[5, 0] = 2.0, 1.0
    np.testing.assert_array_equal(tape.gradient(y, x), expected)


def test_a_number_keeps_what_was_read_when_its_element_is_overwritten(swept):
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0]))
        a = x.copy()
        t = a[0] * a[1]
        a[0] = 5.0
        a[1] = a[0] * t
        a[0] = t * t
        y = np.sum(a) + a[0]
    # a = (x₀² x₁², 5 x₀ x₁), y = 2 a₀ + a₁
    np.testing.assert_allclose(tape.gradient(y, x), [4 * 2 * 9 + 15, 4 * 3 * 4 + 10])


def test_numbers_leave_for_arrays_and_come_back(swept):
    def program(x, np):
        s = x[0] * x[1]
        v = s * x  # s as an operand of an array
        t = np.sin(s) + v[1] * s
        w = np.array([s, t, 2.0])
        x[0] = w[1] * np.sum(w)
        return w * x[0] + np.hypot(s, t) ** 1.5

    x0, seed = np.array([0.7, 1.3, 2.0]), np.array([1.0, -2.0, 0.5])
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(x.copy(), anp)
    h = 1e-6
    for k in range(3):
        ends = [np.sum(seed * program(x0 + s * h * (np.arange(3) == k), np)) for s in (1, -1)]
        assert abs(tape.gradient(y, x, seed=seed)[k] - (ends[0] - ends[1]) / (2 * h)) < 1e-6


def test_a_number_is_an_output_and_an_independent():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0]))
        s = x[0] * x[1]
        before = s * 2.0
        assert tape.watch(s) is s
        y = s * s + before
        with ampi.passive():
            kept = [s, y]
    x_bar, s_bar = tape.gradient(kept[1], [x, s])
    np.testing.assert_allclose(x_bar, [(12 + 2) * 3, (12 + 2) * 2])
    assert s_bar == 12.0
    np.testing.assert_allclose(tape.gradient([kept[0], y], x, seed=[1.0, 0.0]), [3.0, 2.0])


def test_elements_that_earlier_records_need_are_saved(swept):
    n = 2000
    x0 = np.random.default_rng(3).uniform(0.5, 1.5, n)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        a = x.copy()
        y = a * a
        z = np.sin(a[::2])
        for k in range(n):
            a[k] = a[k - 1] * 2.0 if k % 3 else 0.0
    for k in range(0, n, 7):
        a[k] = 1.0  # after the tape has been closed
    present = ampi.value(a)
    for _ in range(2):
        np.testing.assert_allclose(tape.gradient([y, z], x, seed=[np.ones(n), np.zeros(n // 2)]), 2 * x0)
        found = tape.gradient([y, z], x, seed=[np.zeros(n), np.ones(n // 2)])
        np.testing.assert_allclose(found[::2], np.cos(x0[::2]))
        np.testing.assert_array_equal(ampi.value(a), present)


@flat_only
def test_an_iteration_takes_few_bytes():
    n = 60
    with ampi.Tape() as tape:
        g = tape.watch(np.ones((n, n))).copy()
        for i in range(1, n):
            for j in range(1, n):
                g[i, j] = g[i - 1, j] + g[i, j - 1] - g[i - 1, j - 1]
        s = g[0, 0] * 1.0
    for statements in tape.elements.statements:
        statements.complete()
    flat = sum(8 * (len(s.integers) + len(s.reals)) for s in tape.elements.statements)
    assert (flat + 8 * tape.elements.count) / (n - 1) ** 2 <= 200  # with the adjoints of a sweep
    assert float(ampi.value(s)) == 1.0


@flat_only
def test_a_long_loop_draws_one_warning(monkeypatch):
    monkeypatch.setattr(elements, "LINE_IS_HOT", 5000)
    with warnings.catch_warnings(record=True) as caught, ampi.Tape() as tape:
        warnings.simplefilter("always")
        a = tape.watch(np.ones(10)).copy()
        for k in range(30_000):
            a[k % 10] = a[k % 7] * 0.5
    said = [str(w.message) for w in caught if w.category is ampi.PerformanceWarning]
    assert len(said) == 1 and "test_elements.py:" in said[0] and "@ampi.kernel" in said[0]


IDLE = """
import numpy as np, ampi, ampi.numpy as anp

a = anp.arange(4.0)
for _ in range(100):
    a[1] = a[2]
assert "__getitem__" not in vars(ampi.ndarray)
assert type(a[1]) is np.float64 and [type(v) for v in a] == [np.float64] * 4
assert type(a[1:]) is ampi.ndarray and type(a[...]) is ampi.ndarray
with ampi.Tape() as tape:
    x = tape.watch(a)
    c = anp.full(2, 3.0)
    assert isinstance(c[0], ampi.ndarray)
    y = x[1] * a[2] * (c[0] * c[1]) / 9.0
for _ in range(100):
    a[1] = a[2]  # the tape may be swept again
assert "__getitem__" not in vars(ampi.ndarray)
np.testing.assert_array_equal(tape.gradient(y, x), [0.0, 2.0, 2.0, 0.0])
"""


@flat_only
def test_without_a_tape_elements_are_numpys(tmp_path):
    """In a process of its own: structured arrays, which other tests make, need item access of ampi's."""
    path = tmp_path / "program.py"
    path.write_text(IDLE)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_number_of_another_threads_tape_is_refused():
    raised = []
    ended = threading.Event()

    def use(s):
        try:
            s * anp.ones(2)
        except ampi.ActivityError as error:
            raised.append(error)
        ended.set()

    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0]))
        s = x[0] * x[1]
        _thread.start_new_thread(use, (s,))  # not one of `threading`, which are tasks
        ended.wait(60.0)
        y = s * s
    assert raised
    np.testing.assert_allclose(tape.gradient(y, x), [36.0, 24.0])


def test_a_number_of_an_inner_tape_in_an_array_of_an_outer_one_is_refused():
    for write in (lambda x, s: x.__setitem__(0, s), lambda x, s: x.__setitem__(slice(1), s[None])):
        with ampi.Tape() as outer:
            x = outer.watch(np.array([2.0, 3.0])).copy()
            with ampi.Tape() as inner:
                s = inner.watch(np.array([5.0, 7.0]))[0] * 2.0
                with pytest.raises(ampi.TapeError, match="outer tape"):
                    write(x, s)


@pytest.mark.parametrize("number", [2.0, np.float64(2.0), np.int8(2), np.float32(2.0), np.array(2.0)])
def test_a_number_of_numpys_is_clipped(number):
    with ampi.Tape() as tape:
        x = tape.watch(np.array([0.1, 0.7]))
        y = np.clip(number, x[0], x[1]) * 3.0
    np.testing.assert_array_equal(tape.gradient(y, x), [0.0, 3.0])
    with ampi.Tape() as tape:
        s = tape.watch(np.array([0.1, 0.7]))[1]
        if isinstance(number, np.generic):
            with pytest.raises(ampi.ActivityError, match=r"np\.clip"):
                number.clip(0.0, s)


def test_complex_numbers_in_real_elements():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", np.exceptions.ComplexWarning)
        a, z = anp.zeros(2), anp.array([1 + 2j, 3j])
        a[0] = z.sum()
        a[1] = z[0] * 2
    np.testing.assert_array_equal(a, [1.0, 2.0])


def test_a_dropped_derivative_draws_a_warning_with_the_line():
    with warnings.catch_warnings(record=True) as caught, ampi.Tape() as tape:
        warnings.simplefilter("always")
        x = tape.watch(np.array([2.0, 3.0]))
        assert float(x[0] * x[1]) == 6.0
    assert len(caught) == 1 and "test_elements.py:" in str(caught[0].message)


def test_rules_of_the_users_and_elements():
    @ampi.custom_vjp
    def cube(s):
        return s**3

    cube.defvjp(lambda s: (ampi.value(s) ** 3, ampi.value(s)), lambda s, y_bar: (3 * s**2 * y_bar,))
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0]))
        a = x.copy()
        for k in range(2):
            a[k] = cube(a[k] * 2.0) + a[k]
        y = np.sum(a)
    np.testing.assert_allclose(tape.gradient(y, x), 24 * np.array([4.0, 9.0]) + 1)


def test_division_by_zero_and_nothing_times_infinity(swept):
    with ampi.Tape() as tape, np.errstate(all="ignore"):
        x = tape.watch(np.array([0.0, 2.0]))
        a = x.copy()
        a[0] = a[1] / a[0]
        a[1] = a[0] * 0.0 + x[1]
        y = a[1] * 1.0
        z = np.sqrt(x[0]) * 0.0 + x[1]
    np.testing.assert_array_equal(tape.gradient(z, x), [0.0, 1.0])
    assert np.isnan(ampi.value(y))


STRUCTURED = """
import numpy, ampi, ampi.numpy as np

with ampi.Tape():
    pass
x = np.ones(3)
for _ in range(5000):
    x[0]
assert type(x[0]) is numpy.float64
v = {make}
element = v[1]
with ampi.Tape() as tape:
    a = tape.watch(numpy.array([2.0]))
    v["p"] = 3.0 * a[0]
    y = element["p"] * element["p"]
print(tape.gradient(y, a)[0])
"""


@pytest.mark.parametrize(
    "make",
    [
        "np.zeros(2, [('p', 'f8'), ('q', 'i4')])",
        "np.zeros((2, 1)).view([('p', 'f8')])[:, 0]",
        "np.array(numpy.zeros(2, [('p', 'f8')]))",
        "np.asarray(numpy.zeros(2, [('p', 'f8')]))",
        "np.empty(2).astype([('p', 'f8')])",
        "np.full(2, numpy.zeros((), [('p', 'f8')]))",
        "np.concatenate([numpy.zeros(1, [('p', 'f8')])] * 2)",
        "np.empty_like(numpy.zeros(2, [('p', 'f8')]))",
    ],
)
def test_elements_of_structured_arrays_that_were_taken_before_the_tape(make, tmp_path):
    """They are views: they see what becomes active later."""
    path = tmp_path / "program.py"
    path.write_text(STRUCTURED.format(make=make))
    done = subprocess.run([sys.executable, path], capture_output=True, text=True)
    assert done.returncode == 0 and float(done.stdout) == 36.0, done.stderr


@pytest.mark.parametrize("key", [(0, 5), (-1, 5), (-6, 0), (7, 0)])
def test_the_error_of_an_index_out_of_bounds_is_numpys(key):
    plain = np.ones((5, 5))
    with pytest.raises(IndexError) as expected:
        plain[key]
    with ampi.Tape() as tape:
        x = tape.watch(plain.copy())
        total = 0.0
        for i in range(5):
            for j in range(5):
                total += x[i, j] * x[i - 1, j]  # now there is a table of elements
        with pytest.raises(IndexError) as found:
            x[key]
    assert str(found.value) == str(expected.value)

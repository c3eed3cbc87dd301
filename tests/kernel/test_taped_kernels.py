"""Kernels on a tape: gradients of programs that call kernels."""

import math

import numba
import numpy as np
import pytest
from test_pipeline import State, add_square, roots, scaled, weighted

from ampi import tape
from ampi.errors import ActivityError, KernelError
from ampi.kernel import kernel
from ampi.memory.storages import TrackedArray, tracked


def directional(function, point, direction):
    """Central difference, extrapolated once."""

    def slope(h):
        return (function(point + h * direction) - function(point - h * direction)) / (2 * h)

    return (4 * slope(5e-5) - slope(1e-4)) / 3


def chain(x, a, y, z):
    """Two calls; y is written and then overwritten."""
    s = weighted(x, y, a)
    state = scaled(State(z, y))
    t = weighted(state.x, y, s)
    return t


def plain_chain(x, a):
    return chain(x, a, np.zeros(5), np.zeros(5))


def test_gradient_through_calls():
    x0, a0 = np.linspace(0.3, 0.9, 5), 0.7
    with tape.Tape() as t:
        x, a = t.watch(x0), t.watch(a0)
        y, z = tracked(np.zeros(5)), tracked(np.zeros(5))
        r = chain(x, a, y, z)
    assert isinstance(r, TrackedArray)
    assert r.shape == ()
    assert float(np.asarray(r)) == pytest.approx(plain_chain(x0, a0))
    y_after = np.array(y)
    for _ in range(2):  # a sweep changes nothing
        x_bar, a_bar = t.gradient(r, (x, a))
        np.testing.assert_array_equal(np.asarray(y), y_after)
        direction = np.cos(np.arange(5))
        expected = directional(lambda p: plain_chain(p, a0), x0, direction)
        assert x_bar @ direction == pytest.approx(expected, rel=1e-8)
        assert a_bar == pytest.approx(directional(lambda p: plain_chain(x0, p), a0, 1.0), rel=1e-8)


def test_results_that_are_arrays():
    with tape.Tape() as t:
        x = t.watch(np.array([1.0, 4.0]))
        y, n, first = roots(x)
        z = roots(y)[0]
    assert isinstance(y, TrackedArray)
    assert n == 2
    assert not isinstance(n, np.ndarray)
    np.testing.assert_allclose(t.gradient(z, x, seed=np.array([1.0, 2.0])), [0.25, 2 * 0.25 * 4 ** (-0.75)])
    np.testing.assert_allclose(t.gradient(first, x), [1.0, 0.0])


def test_result_that_is_an_argument():
    with tape.Tape() as t:
        v = t.watch(np.array([0.5, 1.0]))
        state = scaled(State(tracked(np.zeros(2)), v))
        out = scaled(State(tracked(np.zeros(2)), state.x))
    inner = 3 * np.sin([0.5, 1.0])
    expected = 3 * np.cos(inner) * 3 * np.cos([0.5, 1.0])
    np.testing.assert_allclose(t.gradient(out.x, v, seed=np.ones(2)), expected)


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_the_same_array_twice():
    x0 = np.array([0.5, 2.0])
    with tape.Tape() as t:
        x = t.watch(x0)
        y = tracked(np.asarray(x) * 1.0)
        add_square(x, y)
        add_square(x, x)
    np.testing.assert_allclose(t.gradient(x, x, seed=np.ones(2)), 1 + 2 * x0)
    assert t.gradient(y, x, seed=np.ones(2)) == pytest.approx(2 * x0)


def test_the_same_arrays_again_and_again():
    """They are passive and active, on one tape and the next, in another shape, and read-only."""
    x0 = np.array([0.5, 2.0])
    x, y = tracked(x0.copy()), tracked(np.zeros(2))
    for _ in range(3):
        add_square(x, y)
        with tape.Tape() as t:
            add_square(x, y)  # passive
            t.watch(x)
            for _ in range(3):
                add_square(x, y)
            add_square(y, x)
        y_before = np.asarray(y)
        np.testing.assert_allclose(t.gradient(x, x, seed=np.ones(2)), 1 + 2 * y_before * 6 * x0)
        x[...], y[...] = x0, 0.0
    y.flags.writeable = False
    with tape.Tape() as t, pytest.raises((TypeError, KernelError, numba.core.errors.NumbaError)):
        t.watch(x)
        add_square(x, y)
    assert not np.asarray(y).any()


@kernel
def first_row(x, y):
    for i in range(y.shape[0]):
        y[i] = x[0, i] ** 2


@pytest.mark.filterwarnings("ignore:Setting the shape on a NumPy array:DeprecationWarning")
def test_arrays_changed_in_place_between_calls():
    with tape.Tape() as t:
        x = t.watch(np.arange(6.0) + 1)
        u, y = x * 1.0, tracked(np.zeros(2))
        u.shape = (3, 2)
        for _ in range(2):
            first_row(u, y)
        z = y * 1.0
        u.shape = (2, 3)
        first_row(u, y)
        u[0, 0] = 0.0
    np.testing.assert_allclose(t.gradient((y, z), x, seed=(np.ones(2), np.ones(2))), [4, 8, 0, 0, 0, 0])


def test_overlapping_arguments_are_refused():
    with tape.Tape() as t:
        x = t.watch(np.arange(4.0))
        with pytest.raises(ActivityError, match="overlap"):
            add_square(x[1:], x[:-1])
        add_square(x[::2], x[1::2])
    np.testing.assert_allclose(t.gradient(x, x, seed=np.ones(4)), [1.0, 1.0, 5.0, 1.0])


def test_plain_output_is_refused():
    x, y = np.arange(3.0), np.zeros(3)
    with tape.Tape() as t:
        x = t.watch(x)
        with pytest.raises(ActivityError, match=r"test_taped_kernels.py:\d+: argument 'y' is a plain array"):
            add_square(x, y)
    assert not y.any()


def test_plain_input_may_change_afterwards():
    factor = np.array([2.0, 3.0])

    @kernel
    def times(x, f, y):
        for i in range(len(x)):
            y[i] = x[i] * f[i]

    with tape.Tape() as t:
        x = t.watch(np.ones(2))
        y = tracked(np.zeros(2))
        times(x, factor, y)
        factor[:] = 100.0
    np.testing.assert_allclose(t.gradient(y, x, seed=np.ones(2)), [2.0, 3.0])


def test_overwriting_after_the_tape_and_in_passive_blocks():
    @kernel
    def fill(x, value):
        for i in range(len(x)):
            x[i] = value

    with tape.Tape() as t:
        x = t.watch(np.array([2.0, 3.0]))
        y = tracked(np.zeros(2))
        add_square(x, y)
        with tape.passive():
            fill(x, 7.0)
        z = tracked(np.zeros(2))
        add_square(x, z)
        fill(y[:1], 5.0)
    fill(x, 100.0)
    np.testing.assert_allclose(t.gradient(y, x, seed=np.ones(2)), [0.0, 6.0])
    np.testing.assert_array_equal(np.asarray(x), [100.0, 100.0])


def test_single_precision_and_complex():
    @kernel
    def product(x, y):
        s = x[0] * 0
        for i in range(len(x)):
            y[i] = x[i] * x[i]
            s += y[i]
        return s

    for dtype in (np.float32, np.complex64, np.complex128):
        values = np.array([1.5, 2.0 if dtype is np.float32 else 2.0 + 1j], dtype)
        with tape.Tape() as t:
            x = t.watch(values)
            y = tracked(np.zeros(2, dtype))
            s = product(x, y)
        gradient = t.gradient(s, x)
        assert gradient.dtype == dtype
        np.testing.assert_allclose(gradient, np.conj(2 * values), rtol=1e-6)


def test_nothing_active():
    with tape.Tape() as t:
        x = tracked(np.arange(3.0))
        r = add_square(x, tracked(np.zeros(3)))
    assert r == 0.0
    assert len(t) == 0


def test_memory_of_unneeded_arguments_is_released():
    import weakref

    @kernel
    def double(x, y):
        for i in range(len(x)):
            y[i] = 2 * x[i]

    with tape.Tape() as t:
        x = t.watch(np.ones(1000))
        y = tracked(np.zeros(1000))
        double(x, y)
        z = tracked(np.zeros(1000))
        double(y, z)
        gone = weakref.ref(y)
        del y
        assert gone() is None
    np.testing.assert_allclose(t.gradient(z, x, seed=np.ones(1000)), 4.0)


@pytest.mark.parametrize("order", ["C", "F", "strided"])
def test_plain_inputs_are_kept_bit_by_bit(order):
    """Zeros of either sign, and different nans, are distinguished; equal values are kept once."""
    plain = {"C": np.zeros((3, 4)), "F": np.zeros((4, 3)).T, "strided": np.zeros((6, 8))[::2, ::2]}[order]

    @kernel
    def by_sign(x, c, y):
        for i in range(c.shape[0]):
            for j in range(c.shape[1]):
                y[i, j] = x[i, j] * math.copysign(1.0, c[i, j])

    expected = []
    with tape.Tape() as t:
        x = t.watch(np.ones((3, 4)))
        ys = [tracked(np.zeros((3, 4))) for _ in range(5)]
        for y, value in zip(ys, (0.0, -0.0, -0.0, math.nan, -math.nan)):
            plain[1, 2] = value
            by_sign(x, plain, y)
            sign = np.copysign(np.ones((3, 4)), plain)
            expected.append(sign)
        assert len({id(copy) for copy in t.constant.values()}) == 1
        plain[...] = 7.0
    for y, sign in zip(ys, expected):
        np.testing.assert_array_equal(t.gradient(y, x, seed=np.ones((3, 4))), sign)


def test_plain_arrays_without_dimensions_are_not_numbers():
    """To a kernel a tracked one is a number, but a plain one an array; they must not be confused."""

    @kernel
    def scaled(x, y, a):
        for i in range(len(x)):
            y[i] = x[i] * a

    @kernel
    def shifted(x, y, a):
        for i in range(len(x)):
            y[i] = x[i] * a[()]

    for function, number in ((scaled, tracked(np.array(3.0))), (shifted, np.array(3.0))):
        with tape.Tape() as t:
            x = t.watch(np.ones(4))
            y = tracked(np.zeros(4))
            function(x, y, number)
        np.testing.assert_array_equal(t.gradient(y, x, seed=np.ones(4)), 3.0)

    @kernel
    def either(x, y, a):
        for i in range(len(x)):
            y[i] = 2 * x[i]

    for number in (tracked(np.array(3.0)), np.array(3.0), 3.0):
        with tape.Tape() as t:
            x = t.watch(np.ones(4))
            y = tracked(np.zeros(4))
            either(x, y, number)
        np.testing.assert_array_equal(t.gradient(y, x, seed=np.ones(4)), 2.0)
    assert len(either.contracts) == 3


def test_values_that_several_kernels_and_tapes_need():
    """An inner and an outer tape, two kernels that need the same values, which are overwritten in between."""

    @kernel
    def square_into(x, y):
        for i in range(len(x)):
            y[i] = x[i] * x[i]

    @kernel
    def cube_into(x, y):
        for i in range(len(x)):
            y[i] = x[i] * x[i] * x[i]

    @kernel
    def double(x):
        for i in range(len(x)):
            x[i] = 2 * x[i]

    constant = tracked(np.array([3.0, 4.0]))
    with tape.Tape() as outer:
        x = outer.watch(np.array([1.0, 2.0]))
        ys = [tracked(np.zeros(2)) for _ in range(4)]
        for k in (0, 2):
            square_into(x, ys[k])
            cube_into(x, ys[k + 1])
            with tape.Tape() as inner:
                z = inner.watch(np.ones(2))
                zs = [tracked(np.zeros(2)) for _ in range(2)]
                square_into(z, zs[0])
                cube_into(z, zs[1])
                double(z)
            for y, factor in zip(zs, (2.0, 3.0)):
                np.testing.assert_array_equal(inner.gradient(y, z, seed=constant), factor * np.array([3.0, 4.0]))
            double(x)
        x[...] = 0.0
    x0 = np.array([1.0, 2.0])
    for y, expected in zip(ys, (2 * x0, 3 * x0**2, 8 * x0, 24 * x0**2)):
        np.testing.assert_array_equal(outer.gradient(y, x, seed=np.ones(2)), expected)


def test_new_arrays_share_facts_about_their_types():
    @kernel
    def double(x, y):
        for i in range(len(x)):
            y[i] = 2 * x[i]

    with tape.Tape() as t:
        x = t.watch(np.ones(5))
        ys = [tracked(np.zeros(5)) for _ in range(4)]
        for y in ys:
            double(x, y)
        assert len(double.primals) == 1
        for seen_before in (True, False):
            frozen = tracked(np.zeros(5))
            if seen_before:
                double(x, frozen)
            frozen.flags.writeable = False
            with pytest.raises(KernelError, match="read-only"):
                double(x, frozen)
    for y in ys:
        np.testing.assert_array_equal(t.gradient(y, x, seed=np.ones(5)), 2.0)


def test_contract():
    types = weighted.types_of((np.zeros(3), np.zeros(3), 1.0, 2))
    contract = weighted.contract(types, frozenset({"x"}))
    assert contract.names == ("x", "y", "a", "power")
    assert contract.writes == (1,)
    assert contract.becomes_active == (1,)
    assert contract.result_active == (True,)
    assert 0 in contract.needs

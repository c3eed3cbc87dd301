"""The tape: undo log, sweeps that can be repeated, memory that is freed, and random programs in place."""

import gc
import tracemalloc
import warnings
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ampi
from ampi.memory.extents import Extent
from ampi.memory.storages import storage_of

# ------------------------------------------------------------------------------------------------- random programs

N = 6

MOST_ELEMENTS = 0  # values of few elements are copied, and never put back


@st.composite
def views(draw):
    start = draw(st.integers(0, N - 1))
    stop = draw(st.integers(start + 1, N))
    return slice(start, stop, draw(st.sampled_from([1, 2]))), draw(st.booleans())


@st.composite
def programs(draw):
    kinds = st.sampled_from(
        ["new", "assign", "add", "multiply", "sine", "scatter", "mask", "constant", "alias", "reduce"]
    )
    step = st.tuples(
        kinds,
        st.integers(0, 9),
        st.integers(0, 9),
        views(),
        views(),
        st.lists(st.integers(0, N - 1), min_size=1, max_size=4),
    )
    return draw(st.lists(step, min_size=1, max_size=14))


def run(steps, x):
    """Works on real, complex and tracked arrays alike; holomorphic, so that a complex step differentiates it."""
    arrays = [x, x * 2.0, np.sin(x)]
    for kind, a, b, (s, flip_s), (t, flip_t), index in steps:
        target = arrays[a % len(arrays)]
        source = arrays[b % len(arrays)]
        into, out_of = target[s], source[t]
        into = into[::-1] if flip_s else into
        out_of = out_of[::-1] if flip_t else out_of
        n = min(len(into), len(out_of))
        into, out_of = into[:n], out_of[:n]
        if kind == "new":
            arrays.append(target * np.cos(source))
        elif kind == "assign":
            into[...] = out_of
        elif kind == "add":
            into += out_of * 0.5
        elif kind == "multiply":
            into *= out_of
        elif kind == "sine":
            np.sin(out_of, out=into)
        elif kind == "scatter":
            target[index] = source[[(k + 1) % N for k in index]] * target[index]
        elif kind == "mask":
            mask = np.arange(N) % 2 == a % 2
            np.multiply(target, source, out=target, where=mask)
            target[~mask] += source[mask]
        elif kind == "constant":
            into[...] = 0.25
        elif kind == "alias":
            arrays.append(target[::-1])
        elif kind == "reduce":
            into[0] = (source * target).sum()
        # Bounded, so that rounding stays small.
        np.sin(target, out=target)
    return arrays


@settings(max_examples=300)
@given(programs(), st.integers(0, 2**31))
def test_random_programs_against_complex_steps(steps, seed):
    generator = np.random.default_rng(seed)
    x, x_dot = generator.uniform(0.2, 1.0, (2, N))
    with ampi.Tape() as tape:
        watched = tape.watch(x)
        start = watched * 1.0
        results = run(steps, start)
        y = np.concatenate(results)
    y_bar = generator.standard_normal(y.shape)
    tangent = np.concatenate(run(steps, x + 1e-30j * x_dot)).imag / 1e-30
    expected = np.concatenate(run(steps, x.copy()))
    np.testing.assert_array_equal(y, expected)
    before = [ampi.value(r) for r in results]
    x_bar = tape.gradient(y, watched, seed=y_bar)
    scale = np.abs(y_bar) @ np.abs(tangent) + np.abs(x_bar) @ np.abs(x_dot) + 1e-12
    assert abs(y_bar @ tangent - x_bar @ x_dot) <= 1e-10 * scale
    for r, value in zip(results, before):
        np.testing.assert_array_equal(r, value)
    np.testing.assert_array_equal(tape.gradient(y, watched, seed=y_bar), x_bar)
    np.testing.assert_array_equal(tape.gradient(y, watched, seed=-2.0 * y_bar), -2.0 * x_bar)


# --------------------------------------------------------------------------------------------- sweeps and the undo log


def test_memory_is_as_it_was_after_a_sweep_and_after_a_failed_one():
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        y = x * x
        z = y * y
        y[1:] = z[:2]

        def broken(sweep):
            raise RuntimeError("no adjoint")

        w = (y * z).sum()
    before = ampi.value([x, y, z, w])
    tape.gradient(w, x)
    tape.records.insert(2, type(tape.records[0])(broken, (), ()))
    with pytest.raises(RuntimeError, match="no adjoint"):
        tape.gradient(w, x)
    for array, value in zip([x, y, z, w], before):
        np.testing.assert_array_equal(array, value)


def test_writes_after_the_tape_is_closed_do_not_disturb_it():
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        y = x * x
        z = (y * y).sum()
    y[...] = 100.0
    y[[0, 1]] += 3.0
    y.sort()
    x *= 7.0
    np.testing.assert_allclose(tape.gradient(z, x), 4 * np.arange(1.0, 4.0) ** 3)
    np.testing.assert_array_equal(x, 7 * np.arange(1.0, 4.0))
    np.testing.assert_array_equal(y, [100.0, 103.0, 103.0])


def test_two_tapes_over_one_memory():
    x0 = ampi.numpy.arange(1.0, 4.0)
    with ampi.Tape() as first:
        x = first.watch(x0)
        y = x * x * x
        s = y.sum()
    with ampi.Tape() as second:
        second.watch(x0)
        x0 *= x0
        t = (x0 * x0).sum()
    np.testing.assert_allclose(second.gradient(t, x0), 4 * np.arange(1.0, 4.0) ** 3)
    np.testing.assert_allclose(first.gradient(s, x), 3 * np.arange(1.0, 4.0) ** 2)


def test_gradient_with_respect_to_the_value_at_the_watch():
    x = ampi.numpy.array([2.0, 3.0])
    with ampi.Tape() as tape:
        tape.watch(x)
        x *= x
        y = (x * x).sum()
    np.testing.assert_allclose(tape.gradient(y, x), 4 * np.array([2.0, 3.0]) ** 3)


def test_overwritten_independent_has_gradient_zero():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        x[...] = 2.0
        y = tape.watch(np.ones(3))
        z = (x * y).sum()
    x_bar, y_bar = tape.gradient(z, (x, y))
    np.testing.assert_array_equal(x_bar, 0.0)
    np.testing.assert_array_equal(y_bar, 2.0)


def test_structures_of_outputs_and_independents():
    with ampi.Tape() as tape:
        a, b = tape.watch(2.0), tape.watch(np.ones(2))
        y, z = a * b, a * a
    bars = tape.gradient((y, None, z), [a, (b, None)], seed=(np.array([1.0, 3.0]), None, 10.0))
    assert bars[0] == 4.0 + 40.0
    np.testing.assert_array_equal(bars[1][0], [2.0, 6.0])
    assert bars[1][1] is None
    assert tape.gradient(None, a) == 0.0


def test_seeds_must_fit():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        y = x * x
    with pytest.raises(ampi.TapeError, match="seed"):
        tape.gradient(y, x)
    with pytest.raises(ampi.TapeError, match="shape"):
        tape.gradient(y, x, seed=np.ones(4))
    with pytest.raises(ampi.TapeError, match="plain"):
        tape.gradient(np.ones(3), x)
    with pytest.raises(ampi.TapeError, match="watch"):
        tape.gradient(y, y, seed=np.ones(3))


def test_an_output_computed_too_late_is_noticed():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
    with pytest.warns(ampi.ActivityWarning, match="after the tape was closed"):
        tape.gradient((x * x).sum(), x)


def test_misuse_of_tapes():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(2))
        with pytest.raises(ampi.ActivityError, match="int"):
            tape.watch(np.arange(3))
        with ampi.Tape() as inner:
            with pytest.raises(ampi.TapeError, match="outer tape"):
                x * 2.0
            with pytest.raises(ampi.TapeError, match="outer tape"):
                inner.watch(x)
            with pytest.raises(ampi.TapeError):
                tape.watch(np.ones(2))
            inner.watch(np.ones(1))
    with pytest.raises(ampi.TapeError, match="once"), tape:
        pass
    with pytest.raises(ampi.TapeError):
        tape.watch(np.ones(1))


def test_watching_the_same_memory_again():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        other = tape.watch(np.ones(1))
        assert tape.watch(x) is x  # the same value: nothing to tell apart
        y = x * other
        x *= 2.0
        with pytest.raises(ampi.TapeError, match="copy"):
            tape.watch(x)
        part, later = tape.watch(x[1:]), tape.watch(x.copy())
        z = (x * y * later).sum()
    np.testing.assert_array_equal(tape.gradient(z, x), [12.0, 12.0, 12.0])
    np.testing.assert_array_equal(tape.gradient(z, part), [4.0, 4.0])
    np.testing.assert_array_equal(tape.gradient(z, later), [2.0, 2.0, 2.0])


def test_results_of_sweeps_share_no_memory():
    """With each other: a whole array that is watched first, the same again by a view, and one that is watched later."""
    with ampi.Tape() as tape:
        x, y = tape.watch(np.ones(3)), tape.watch(np.ones(3))
        part = tape.watch(y[:2])
        later = tape.watch(x * 2.0)
        z = (x * later).sum() + y.sum()
    first = tape.gradient(z, [x, y, part, later])
    second = tape.gradient(z, [x, y, part, later], seed=3.0)
    for array in first:
        array[...] = 0.0
    for k, array in enumerate(second):
        np.testing.assert_array_equal(array, 3.0 * np.array([4.0, 1.0, 1.0, 1.0])[k])
        array[...] = k
    np.testing.assert_array_equal([array[0] for array in second], np.arange(4.0))


def test_watching_leaves_plain_arguments_alone():
    x0 = np.ones(3)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        x += 1.0
        s = tape.watch(2.0)
    np.testing.assert_array_equal(x0, 1.0)
    assert s.shape == () and isinstance(s, ampi.ndarray)


def test_passive_writes_lose_their_derivative_but_not_earlier_values():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        y = x * x
        z = y * y
        with ampi.passive():
            y[0] = 10.0
            y[[2]] = 20.0
        w = (y + z).sum()
    np.testing.assert_allclose(tape.gradient(w, x), [4.0, 4.0 + 32.0, 108.0])


# --------------------------------------------------------------------------------- what is saved, what is kept alive


def test_only_what_is_needed_and_overwritten_is_saved():
    with ampi.Tape() as tape:
        field = tape.watch(np.ones((100, 100)))
        field += 1.0
        assert tape.saved_bytes == 0
        energy = (field * field).sum()
        for _ in range(3):
            field[0] = 2.0 * field[50]
        assert tape.saved_bytes <= 3 * field[0].nbytes
        field[5:7, [1, 2]] = 0.0
        assert tape.saved_bytes <= 3 * field[0].nbytes + 32
        other = field * 2.0
        other[...] = 1.0
        assert tape.saved_bytes <= 3 * field[0].nbytes + 32
    expected = np.full((100, 100), 4.0)
    np.testing.assert_array_equal(tape.gradient(energy, field), expected)


def test_a_value_is_saved_once_while_nobody_needs_the_new_one():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(1000))
        y = x * x
        for _ in range(5):
            x += 1.0
        assert tape.saved_bytes == x.nbytes
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(1000)), 2.0)


def test_intermediates_that_nobody_needs_are_freed_while_recording():
    n = 200_000
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(n))
        y = x * 1.0
        gone = weakref.ref(y)
        tracemalloc.start()
        for _ in range(50):
            y = 2.0 * (y + 1.0) - y[::-1]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    gc.collect()
    assert gone() is None
    assert peak < 8 * n * 6
    bar = tape.gradient(y, x, seed=np.ones(n))
    np.testing.assert_array_equal(bar, 1.0)


def test_results_needed_by_their_own_rule_keep_one_array_only():
    n = 100_000
    with ampi.Tape() as tape:
        x = tape.watch(np.full(n, 1e-3))
        y = x
        tracemalloc.start()
        for _ in range(10):
            y = np.exp(y + 1e-3) - 1.0
        current, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert current < 8 * n * 13
    assert len(tape) > 30


def test_shadows_end_where_their_memory_began():
    n = 200_000
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(n))
        y = x
        for _ in range(30):
            y = y + 1.0
    tracemalloc.start()
    tape.gradient(y, x, seed=np.ones(n))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n * 8


def test_a_deleted_tape_needs_nothing():
    x = ampi.numpy.ones(3)
    with ampi.Tape() as tape:
        tape.watch(x)
        (x * x).sum()
    assert storage_of(x).needs
    del tape
    gc.collect()
    x += 1.0
    assert not storage_of(x).needs


def test_sweeps_of_constants_change_nothing():
    with ampi.Tape() as tape, warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tape.watch(np.ones(3))
        c = ampi.numpy.arange(3.0)
        d = c * c
        c[...] = 5.0
        y = (x * d).sum()
    np.testing.assert_array_equal(tape.gradient(y, x), [0.0, 1.0, 4.0])
    assert not tape.is_active(c) and tape.is_active(x)


def test_extent_of_needs_is_by_region():
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(12.0).reshape(3, 4))
        y = x[:, 1] * x[:, 1]
        x[:, 2] = 0.0
        assert tape.saved_bytes == 0
        x[1] = 0.0
        assert tape.saved_bytes == 4 * 8
    expected = np.zeros((3, 4))
    expected[:, 1] = 2 * np.array([1.0, 5.0, 9.0])
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(3)), expected)
    assert Extent(np.zeros(3)).dense


def test_callbacks_of_opening_tapes_may_remove_themselves(monkeypatch):
    from ampi.tape import tape

    seen = []

    def once(_):
        tape.at_opening.remove(once)
        seen.append("once")

    monkeypatch.setattr(tape, "at_opening", [*tape.at_opening, once, lambda _: seen.append("always")])
    for _ in range(2):
        with ampi.Tape():
            pass
    assert seen == ["once", "always", "always"]

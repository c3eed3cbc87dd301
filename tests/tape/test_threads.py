"""Recording, passivity and tapes belong to the thread, and to the task of asyncio, that asks for them."""

import contextvars
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from patience import patience
from threads import in_thread, nothing_records

import ampi
import ampi.numpy as np

MOST_ELEMENTS = 0  # values of few elements are copied, and never put back


@ampi.kernel
def squares(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i]


def halves():
    """A tape that records in the caller's thread, and an active array."""
    tape = ampi.Tape()
    tape.__enter__()
    x = tape.watch(numpy.array([1.0, 2.0, 3.0]))
    return tape, x


# ------------------------------------------------------------------------------------------------------- passivity


def test_passivity_in_one_thread_does_not_concern_another():
    inside, done = threading.Event(), threading.Event()

    def worker():
        with ampi.passive():
            inside.set()
            assert done.wait(patience(100))

    thread = threading.Thread(target=worker)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0, 3.0]))
        thread.start()
        assert inside.wait(patience(100))
        y = np.sum(x * x)
        done.set()
        thread.join()
    numpy.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0, 6.0])


def test_a_sweep_in_one_thread_does_not_stop_the_recording_of_another():
    reached, done = threading.Event(), threading.Event()

    @ampi.custom_vjp
    def slow(x):
        return x * 1.0

    def backward(_, g):
        reached.set()
        assert done.wait(patience(100))
        return (g,)

    slow.defvjp(lambda x: (x * 1.0, None), backward)
    thread = threading.Thread(target=lambda: ampi.grad(lambda x: np.sum(slow(x)))(numpy.ones(2)))
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        thread.start()
        assert reached.wait(patience(100))
        y = np.sum(x**3)
        done.set()
        thread.join()
    numpy.testing.assert_allclose(tape.gradient(y, x), [3.0, 12.0])


def test_gradients_inside_passive_blocks_are_those_of_their_own_tapes():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        with ampi.passive():
            inner = ampi.grad(lambda z: np.sum(z * x * z))(numpy.array([3.0, 4.0]))
        y = np.sum(x * inner)
    numpy.testing.assert_array_equal(inner, [6.0, 16.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x), [6.0, 16.0])


# ------------------------------------------------------------------------------------- what another thread may not do

OPERATIONS = {
    "x + 1": lambda x: x + 1.0,
    "2 * x": lambda x: 2.0 * x,
    "x @ x": lambda x: x @ x,
    "np.sum": lambda x: np.sum(x),
    "x.sum": lambda x: x.sum(),
    "np.dot": lambda x: np.dot(x, x),
    "np.where": lambda x: np.where(x > 1.0, x, 0.0),
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "np.einsum": lambda x: np.einsum("i,i->", x, x),
    "np.fft.fft": lambda x: np.fft.fft(x),
    "np.linalg.norm": lambda x: np.linalg.norm(x),
    "np.add.reduce": lambda x: np.add.reduce(x),
    "np.multiply.outer": lambda x: np.multiply.outer(x, x),
    "np.array of a list": lambda x: np.array([x, x]),
    "np.roll": lambda x: np.roll(x, 1),
    "x.copy": lambda x: x.copy(),
    "x.astype": lambda x: x.astype(numpy.float32),
    "x[[0, 2]]": lambda x: x[[0, 2]],
    "x[1]": lambda x: x[1],
    "x[1] = 7": lambda x: x.__setitem__(1, 7.0),
    "x[[1]] = 7": lambda x: x.__setitem__([1], 7.0),
    "x += 1": lambda x: x.__iadd__(1.0),
    "np.add(out=x)": lambda x: np.add(1.0, 2.0, out=x),
    "np.copyto": lambda x: np.copyto(x, 0.0),
    "x.fill": lambda x: x.fill(0.0),
    "x.sort": lambda x: x.sort(),
    "kernel of x": lambda x: squares(x, np.zeros(3)),
    "kernel into x": lambda x: squares(np.zeros(3), x),
    "on a tape of its own": lambda x: ampi.grad(lambda z: np.sum(z * x))(numpy.ones(3)),
    "tape.watch": lambda x: ampi.vjp(lambda z: z * 2.0, x),
}


@pytest.mark.parametrize("context", ["its own", "copied"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_of_another_thread_on_active_arrays_are_refused(name, context):
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0, 3.0]))
        run = contextvars.copy_context().run if context == "copied" else lambda f, *a: f(*a)
        with pytest.raises(ampi.ActivityError) as error:
            in_thread(run, OPERATIONS[name], x)
        for words in ("thread 'MainThread'", "thread 'worker_0'", "shape (", "test_threads.py:", "ampi.value(x)"):
            assert words in str(error.value)
        numpy.testing.assert_array_equal(ampi.value(x), [1.0, 2.0, 3.0])
        y = np.sum(x * x)
    numpy.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0, 6.0])


def test_what_another_thread_may_do(monkeypatch):
    """Reading, deliberate constants, and whatever is not active."""

    def worker(x, c):
        assert str(x) and x.shape == (3,) and x[1:].size == 2
        assert (x > 1.0).sum() == 2 and np.argmax(x) == 2
        assert ampi.value(x).sum() == 6.0
        with ampi.passive():
            assert np.sum(x * x) == 14.0
        with pytest.warns(ampi.ActivityWarning, match="drops its derivative"):
            assert x[2:].item() == 3.0
        with pytest.warns(ampi.ActivityWarning, match="drops its derivative"):
            assert numpy.asarray(x).sum() == 6.0
        return ampi.grad(lambda z: np.sum(z * c * z))(ampi.value(x))

    monkeypatch.setattr(ampi.arrays.losses.checks, "strict", False)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0, 3.0]))
        c = np.full(3, 2.0)
        found = in_thread(worker, x, c)
        y = np.sum(x * c)
    numpy.testing.assert_array_equal(found, [4.0, 8.0, 12.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x), [2.0, 2.0, 2.0])


WRITES = {
    "item": lambda c: c.__setitem__(slice(None), 9.0),
    "ufunc": lambda c: np.multiply(c, 2.0, out=c),
    "in place": lambda c: c.__iadd__(1.0),
    "kernel": lambda c: squares(np.full(3, 2.0), c),
    "passive": lambda c: passively(lambda: c.__setitem__(1, 9.0)),
    "own tape": lambda c: ampi.grad(lambda z: written(c, z))(numpy.ones(3)),
    "plain view": lambda c: c.view(numpy.ndarray).__setitem__(1, 9.0),
    "buffer": lambda c: memoryview(c).__setitem__(1, 9.0),
    "random numbers": lambda c: numpy.random.default_rng(1).random(out=c),
}


def passively(action):
    with ampi.passive():
        action()


def written(c, z):
    c[0] = 4.0
    return np.sum(z * c)


@pytest.mark.parametrize("name", WRITES)
def test_what_another_thread_overwrites_is_saved(name):
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0, 3.0]))
        c = np.array([5.0, 6.0, 7.0])
        y = x * c
        in_thread(WRITES[name], c)
        after = ampi.value(c)
        assert (after != [5.0, 6.0, 7.0]).any()
        z = np.sum(y + 0.0 * c)
    for _ in range(2):
        numpy.testing.assert_array_equal(tape.gradient(z, x), [5.0, 6.0, 7.0])
        numpy.testing.assert_array_equal(c, after)


def test_active_memory_that_another_thread_overwrites_on_purpose_is_constant():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0, 3.0]))
        y = x * x
        in_thread(passively, lambda: y.__setitem__(1, 9.0))
        z = np.sum(y)
    assert z == 19.0
    numpy.testing.assert_array_equal(tape.gradient(z, x), [2.0, 0.0, 6.0])


# ---------------------------------------------------------------------------------------------- tapes of many threads


def program(seed, x, c):
    """A program drawn by chance; analytic, for NumPy and ampi alike."""
    draw = random.Random(seed)
    numpy_ = np if isinstance(x, ampi.ndarray) else numpy
    s = x * 1.0
    for _ in range(12):
        kind, a = draw.randrange(5), draw.uniform(0.2, 0.8)
        if kind == 0:
            s = numpy_.sin(s) * c[: s.size]
        elif kind == 1:
            s = s * s[::-1] + a
        elif kind == 2:
            s[1:] = s[:-1] * a
        elif kind == 3:
            s *= a * c[: s.size]
        else:
            s = numpy_.concatenate([s[:2], numpy_.cos(s[2:])])
    return numpy_.sum(s * s)


@pytest.mark.parametrize("round_", range(3))
def test_threads_with_tapes_of_their_own_do_not_disturb_each_other(round_):
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    shared = np.array(numpy.linspace(0.5, 1.5, 8))
    try:

        def worker(k):
            found = []
            for n in range(6):
                if (k + n) % 3 == 2:
                    with ampi.passive():
                        np.sum(shared * shared)
                x0 = numpy.random.default_rng([round_, k, n]).uniform(0.4, 0.9, 5)
                value, gradient = ampi.value_and_grad(program, argnums=1)((round_, k, n).__repr__(), x0, shared)
                found.append((x0, value, gradient))
            return found

        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(worker, range(4)))
    finally:
        sys.setswitchinterval(before)
    for k, found in enumerate(results):
        for n, (x0, value, gradient) in enumerate(found):
            key = (round_, k, n).__repr__()
            numpy.testing.assert_allclose(value, program(key, x0, ampi.value(shared)), rtol=1e-14)
            for i in range(5):
                moved = x0.astype(complex)
                moved[i] += 1e-30j
                expected = program(key, moved, ampi.value(shared)).imag / 1e-30
                numpy.testing.assert_allclose(gradient[i], expected, rtol=1e-10, atol=1e-14)


def test_threads_need_and_overwrite_parts_of_one_array():
    """Each thread's tape needs values of its part, which it overwrites, again and again."""
    shared = np.zeros((4, 50))
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)

    def worker(k):
        def f(x):
            part, total = shared[k], np.zeros(())
            for n in range(40):
                part[:] = float(n + k)
                total = total + np.sum(x * part)
            return total

        return ampi.grad(f)(numpy.ones(50))

    try:
        with ThreadPoolExecutor(4) as pool:
            results = list(pool.map(worker, range(4)))
    finally:
        sys.setswitchinterval(before)
    for k, found in enumerate(results):
        numpy.testing.assert_array_equal(found, numpy.full(50, sum(n + k for n in range(40))))


def test_threads_join_in_an_outer_tape_by_custom_vjp():
    def part(k, x):
        return np.sin(x) * (k + 1.0)

    @ampi.custom_vjp
    def parts(x):
        raise AssertionError("not without a tape")

    def forward(x):
        with ThreadPoolExecutor(3) as pool:
            found = list(pool.map(lambda k: ampi.vjp(lambda s: part(k, s), ampi.value(x)), range(3)))
        return sum(y for y, _ in found), [pullback for _, pullback in found]

    def backward(pullbacks, g):
        with ThreadPoolExecutor(3) as pool:
            return (sum(pool.map(lambda pullback: pullback(g)[0], pullbacks)),)

    parts.defvjp(forward, backward)
    x0 = numpy.array([0.3, 0.7])
    found = ampi.grad(lambda x: np.sum(parts(x * 2.0)))(x0)
    numpy.testing.assert_allclose(found, 2 * 6 * numpy.cos(2 * x0), rtol=1e-14)


# -------------------------------------------------------------------------------------- who closes and sweeps a tape


def test_another_thread_may_sweep_a_closed_tape():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        y = np.sum(x * x)
    numpy.testing.assert_array_equal(in_thread(tape.gradient, y, x), [2.0, 4.0])


def test_another_thread_may_not_sweep_an_open_tape():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        y = np.sum(x * x)
        with pytest.raises(ampi.TapeError, match="still open in thread 'MainThread'"):
            in_thread(tape.gradient, y, x)
    numpy.testing.assert_array_equal(tape.gradient(y, x), [2.0, 4.0])


def test_a_tape_is_swept_by_one_thread_at_a_time():
    reached, done = threading.Event(), threading.Event()

    @ampi.custom_vjp
    def slow(x):
        return x * 1.0

    def backward(_, g):
        reached.set()
        assert done.wait(patience(100))
        return (g,)

    slow.defvjp(lambda x: (x * 1.0, None), backward)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]))
        y = np.sum(slow(x))
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(tape.gradient, y, x)
        assert reached.wait(patience(100))
        with pytest.raises(ampi.TapeError, match="being swept already"):
            tape.gradient(y, x)
        done.set()
        numpy.testing.assert_array_equal(first.result(), [1.0, 1.0])
    numpy.testing.assert_array_equal(tape.gradient(y, x), [1.0, 1.0])


def test_sweeps_that_would_restore_the_same_memory_do_not_mix():
    """Two tapes need an array which was overwritten later: their sweeps at once would leave it wrong."""
    c = np.array([5.0, 6.0])
    reached, done = threading.Event(), threading.Event()

    @ampi.custom_vjp
    def slow(x):
        return x * 1.0

    def backward(_, g):
        reached.set()
        assert done.wait(patience(100))
        return (g,)

    slow.defvjp(lambda x: (x * 1.0, None), backward)

    def record(function):
        with ampi.Tape() as tape:
            x = tape.watch(numpy.array([1.0, 2.0]))
            y = np.sum(function(x) * c)
        return tape, y, x

    first, second = record(slow), record(lambda x: x)
    c[:] = 9.0
    third = record(lambda x: x)  # which needs the present values
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(first[0].gradient, first[1], first[2])
        assert reached.wait(patience(100))
        for tape, y, x in (second, third):
            with pytest.raises(ampi.TapeError, match="sweeps of two threads"):
                tape.gradient(y, x)
        with pytest.raises(ampi.TapeError, match="has restored its earlier values"):
            record(lambda x: x)
        with pytest.raises(ampi.TapeError, match="has restored its earlier values"):
            c[:] = 1.0
        done.set()
        numpy.testing.assert_array_equal(pending.result(), [5.0, 6.0])
    numpy.testing.assert_array_equal(second[0].gradient(second[1], second[2]), [5.0, 6.0])
    numpy.testing.assert_array_equal(third[0].gradient(third[1], third[2]), [9.0, 9.0])
    numpy.testing.assert_array_equal(c, [9.0, 9.0])


def test_a_tape_that_another_thread_closes_is_closed():
    tape, x = halves()
    with pytest.raises(ampi.TapeError, match="closed by thread 'worker_0'"):
        in_thread(tape.__exit__)
    assert nothing_records()
    numpy.testing.assert_array_equal(x * 2.0, [2.0, 4.0, 6.0])
    assert len(tape) == 1


def test_tapes_that_are_closed_out_of_order_are_closed():
    outer, _ = halves()
    inner = ampi.Tape()
    with inner:
        with pytest.raises(ampi.TapeError, match="reverse order"):
            outer.__exit__()
        z = inner.watch(numpy.ones(2))
        y = np.sum(z * 3.0)
    assert nothing_records()
    numpy.testing.assert_array_equal(inner.gradient(y, z), [3.0, 3.0])
    with pytest.raises(ampi.TapeError, match="closed once"):
        outer.__exit__()


def test_exceptions_inside_of_tapes_leave_nothing_recording():
    with pytest.raises(ZeroDivisionError):
        with ampi.Tape() as outer:
            outer.watch(numpy.ones(2))
            with ampi.Tape():
                with ampi.passive():
                    raise ZeroDivisionError
    assert nothing_records()

"""Tasks in other threads: the sweep is their graph backwards, results are bitwise repeatable."""

import _thread
import concurrent.futures
import gc
import threading
import time
import weakref

import numpy
import pytest
from patience import patience
from task_programs import check, check_race

import ampi
import ampi.numpy as np
from ampi.futures import Future, ThreadPoolExecutor, as_completed, wait

X = numpy.array([0.4, 0.7, 1.1, 1.3])


def same(f, g=None, x=X):
    """The gradient of a function with tasks is that of another one without, or of itself with tasks run at once."""
    numpy.testing.assert_allclose(ampi.grad(f)(x), ampi.grad(g)(x), rtol=1e-13)


# ------------------------------------------------------------------------------------------------- drawn programs


@pytest.mark.parametrize("seed", range(6))
def test_drawn_graphs_of_tasks(seed):
    check(seed)


@pytest.mark.parametrize("seed", range(6))
def test_planted_races_are_found(seed):
    if check_race(seed) is None:
        pytest.skip("this program has no place for a race")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("begin", range(1000, 2000, 100))
def test_many_drawn_graphs(begin):
    for seed in range(begin, begin + 100):
        check(seed)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_planted_races():
    assert sum(bool(check_race(seed)) for seed in range(3000, 3240)) >= 200


# -------------------------------------------------------------------------------------------------------- results


def test_names_are_those_of_concurrent_futures():
    for name in set(ampi.futures.__all__) - {"MPICommExecutor", "MPIPoolExecutor"}:
        assert getattr(ampi.futures, name) is getattr(concurrent.futures, name)


def parts(x, k):
    return np.sum(np.sin(x[k:]) * (k + 1.0))


def test_map_and_submit():
    def f(x):
        with ThreadPoolExecutor(2) as pool:
            total = sum(pool.map(parts, [x] * 3, range(3)))
            return total * pool.submit(parts, x, k=1).result()

    same(f, lambda x: sum(parts(x, k) for k in range(3)) * parts(x, 1))


def test_graph_of_futures():
    def f(x):
        with ThreadPoolExecutor(3) as pool:
            a = pool.submit(lambda: x * x)
            b = pool.submit(lambda: np.sin(a.result()))
            c = pool.submit(lambda: a.result() * b.result())
            return np.sum(c.result() + b.result())

    same(f, lambda x: np.sum(x * x * np.sin(x * x) + np.sin(x * x)))


def test_parts_of_an_array_are_updated_in_place():
    def part(x, y, k):
        y[k::2] = x[k::2] ** 2
        y[k::2] *= y[k::2] + 1.0

    def f(x, call):
        y = np.zeros(4)
        call(part, x, y)
        return np.sum(y * x)

    def by_tasks(part, x, y):
        with ThreadPoolExecutor(2) as pool:
            wait([pool.submit(part, x, y, k) for k in range(2)])

    same(lambda x: f(x, by_tasks), lambda x: f(x, lambda part, x, y: [part(x, y, k) for k in range(2)]))


@pytest.mark.parametrize("how", ["wait", "as_completed", "callback", "done", "exception", "shutdown", "end"])
def test_what_happens_before(how):
    """Each way to learn that a task has ended orders what it wrote before what is read then."""

    def f(x):
        y = np.zeros(4)
        pool = ThreadPoolExecutor(2)

        def write():
            y[:] = x * x

        future = pool.submit(write)
        if how == "wait":
            assert wait([future]).done == {future}
        elif how == "as_completed":
            assert list(as_completed([future])) == [future]
        elif how == "callback":
            z = np.zeros(4)
            over = pool.submit(lambda: None)
            over.result()
            future.add_done_callback(lambda future: z.__setitem__(slice(None), y * 3.0))
            pool.shutdown()
            return np.sum(z)
        elif how == "done":
            while not future.done():
                time.sleep(1e-4)
        elif how == "exception":
            assert future.exception(patience(60)) is None
        elif how == "shutdown":
            pool.shutdown()
        else:
            return y
        pool.shutdown()
        return np.sum(y * 3.0)

    if how == "end":
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = f(x)
        numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(4)), 2 * X)
    else:
        numpy.testing.assert_allclose(ampi.grad(f)(X), 6 * X)


def test_nested_submits_and_executors_shared_by_functions():
    pool = ThreadPoolExecutor(4)

    def inner(a, k):
        return np.sum(a[:k] ** 2)

    def outer(a):
        futures = [pool.submit(inner, a, k) for k in (1, 3)]
        return futures[0].result() * futures[1].result()

    def f(x):
        return pool.submit(outer, x).result() + pool.submit(inner, x * x, 4).result()

    with pool:
        same(f, lambda x: inner(x, 1) * inner(x, 3) + inner(x * x, 4))


def test_a_future_that_a_task_returns():
    def f(x):
        with ThreadPoolExecutor(2) as pool:
            future = pool.submit(lambda: pool.submit(np.sin, x)).result()
            assert isinstance(future, Future)
            return np.sum(future.result())

    same(f, lambda x: np.sum(np.sin(x)))


def test_exceptions_of_tasks():
    def f(x):
        y = x * 1.0

        def half(k):
            y[k] = y[k] * x[k]
            if k == 1:
                raise ZeroDivisionError("task")
            y[k] *= 2.0

        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(half, k) for k in range(3)]
            with pytest.raises(ZeroDivisionError, match="task"):
                futures[1].result()
            assert futures[1].exception().args == ("task",)
        return np.sum(y)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * X * [2, 1, 2, 0] + [0, 0, 0, 1])


def test_exceptions_that_nobody_catches_leave_nothing_behind():
    def f(x):
        with ThreadPoolExecutor(2) as pool:
            pool.submit(np.sin, x)
            raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            ampi.grad(f)(X)
    from ampi.tape.recording import open_tapes, tasks

    assert not open_tapes and not tasks


def test_cancelled_tasks():
    def f(x):
        gate = threading.Event()
        y = x * 2.0
        with ThreadPoolExecutor(1) as pool:
            pool.submit(gate.wait)
            future = pool.submit(y.fill, 0.0)
            assert future.cancel()
            gate.set()
            with pytest.raises(concurrent.futures.CancelledError):
                future.result()
        return np.sum(y * y)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 8 * X)


def test_unfinished_tasks_at_the_end():
    with ThreadPoolExecutor(2) as pool:

        def late(x, y):
            time.sleep(0.05)
            y[:] = x * x

        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = np.zeros(4)
            pool.submit(late, x, y)
        numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(4)), 2 * X)


def test_scalars_go_in_and_out():
    def f(x):
        s = x[0] * x[1] + 2.0
        with ThreadPoolExecutor(2) as pool:
            futures = [pool.submit(lambda k: s * x[k] + float(k), k) for k in range(4)]
            return sum(future.result() * s for future in futures)

    def g(x):
        s = x[0] * x[1] + 2.0
        return sum((s * x[k] + float(k)) * s for k in range(4))

    same(f, g)


@ampi.kernel
def squares(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i] + y[i]


@pytest.mark.parametrize("dtype", ["f8", "f4", "c16", ">f8"])
def test_kernels_and_dtypes(dtype):
    def f(x, call):
        z = x.astype(dtype)
        y = np.zeros((3, 4), dtype)
        call(lambda k: y[k].__iadd__(z * z * k) if dtype == ">f8" else squares(z, y[k]), range(3))
        return np.sum(np.real(y * y)).astype(float)

    def by_tasks(function, items):
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(function, items))

    x = ampi.grad(lambda x: f(x, by_tasks))(X)
    numpy.testing.assert_allclose(x, ampi.grad(lambda x: f(x, lambda f, k: list(map(f, k))))(X), rtol=1e-6)


@ampi.kernel
def slow(x, y):
    for i in range(len(x)):
        s = x[i]
        for _ in range(300):
            s = np.sin(s) + 0.1 * s
        y[i] = s


def test_kernels_in_tasks_release_the_gil():
    """Also one that has been compiled before the first task; the adjoint as well."""
    slow(np.ones(1), np.zeros(1))
    ticks, over = [0], threading.Event()

    def tick():
        while not over.wait(1e-3):
            ticks[0] += 1

    def f(x):
        y = np.zeros(x.size)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(slow, x, y).result()
        return np.sum(y)

    ampi.grad(f)(X)  # which compiles
    _thread.start_new_thread(tick, ())
    try:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.full(20_000, 0.3))
            y = f(x)
        primal, ticks[0] = ticks[0], 0
        tape.gradient(y, x)
        assert primal > 20 and ticks[0] > 20  # of a hundred each, and of one or two where it is held
    finally:
        over.set()


def test_a_tape_is_swept_many_times_in_any_thread():
    with ThreadPoolExecutor(2) as pool:
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = x * 1.0
            pool.submit(lambda: y.__imul__(x)).result()
            z = pool.submit(lambda: y * y).result()
            y[:] = 0.0
        for seed in (1.0, 2.0):
            found = tape.gradient(z, x, seed=numpy.full(4, seed))
            numpy.testing.assert_allclose(found, seed * 4 * X**3)
        found = pool.submit(tape.gradient, z, x, numpy.ones(4)).result(patience(60))
        numpy.testing.assert_allclose(found, 4 * X**3)
        assert (y == 0.0).all()


def test_gradients_in_tasks():
    def f(x):
        with ThreadPoolExecutor(2) as pool:
            slope = pool.submit(ampi.grad(lambda z: np.sum(z**3)), ampi.value(x)).result()
            return np.sum(x * pool.submit(lambda: x * slope).result())

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * X * 3 * X**2)


def test_tasks_of_passive_blocks_are_constants():
    def f(x):
        with ThreadPoolExecutor(2) as pool, ampi.passive():
            scale = pool.submit(lambda: np.sum(x * x)).result()
        return np.sum(x) * scale

    numpy.testing.assert_allclose(ampi.grad(f)(X), numpy.full(4, (X * X).sum()))


def test_tapes_with_tasks_are_freed():
    with ThreadPoolExecutor(2) as pool:
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = sum(pool.map(parts, [x] * 3, range(3)))
        tape.gradient(y, x)
        gone = [weakref.ref(tape), weakref.ref(tape.tasks.past[0])]  # the latter has the tasks' records
        gc.disable()
        try:
            del tape, x, y
            time.sleep(0.05)
            assert [found() for found in gone] == [None, None]
        finally:
            gc.enable()


# ------------------------------------------------------------------------------------------------------ refusals


def test_a_sweep_before_tasks_have_ended_is_an_error():
    gate = threading.Event()
    with ThreadPoolExecutor(1) as pool, ampi.Tape() as tape:
        x = tape.watch(X)
        y = np.sum(x * x)
        future = pool.submit(gate.wait)
        with pytest.raises(ampi.TapeError, match="have not ended"):
            tape.gradient(y, x)
        gate.set()
        future.result()
        numpy.testing.assert_array_equal(tape.gradient(y, x), 2 * X)


def test_messages_in_tasks_are_refused():
    def f(x):
        def task():
            y = np.zeros(4)
            ampi.COMM_WORLD.Allreduce(x, y)
            return np.sum(y)

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(task).result()

    for run in (lambda: ampi.grad(f)(X), lambda: ampi.jvp(f, (X,), (X,)), lambda: ampi.hvp(f, X, X)):
        with pytest.raises(ampi.ActivityError, match="MPI is called in a task"):
            run()


# ------------------------------------------------------------------------------------------------------ old values


@ampi.kernel
def squared(u, v):
    for i in range(u.shape[0]):
        for j in range(u.shape[1]):
            v[i, j] = u[i, j] * u[i, j]


def test_old_values_of_columns_need_no_other_adjoint_than_memory():
    """Whether a task's adjoint reads saved values, or memory that another one has restored, is left to chance."""

    def f(x):
        u, v = x * 1.0, np.zeros((3, 8))
        parts = [slice(0, 4), slice(4, 8)]

        def step(part):
            squared(u[:, part], v[:, part])
            squared(v[:, part], u[:, part])

        with ThreadPoolExecutor(2) as pool:
            for _ in range(3):
                wait([pool.submit(step, part) for part in parts])
        return np.sum(u)

    x = numpy.linspace(0.5, 0.9, 24).reshape(3, 8)
    numpy.testing.assert_allclose(ampi.grad(f)(x), 64 * x**63, rtol=1e-12)
    assert all(len(contract.adjoint.overloads) == 1 for contract in squared.contracts.values())

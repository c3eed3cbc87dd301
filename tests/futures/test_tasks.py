"""Tasks in other threads: the sweep is their graph backwards, races are errors, results are bitwise repeatable."""

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
from ampi.tape import living

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


def test_many_sweeps_in_one_and_walks():
    def f(x):
        y = np.zeros(8)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda k: y[4 * k : 4 * k + 4].__iadd__(np.sin(x * (k + 1.0)) * x), range(2)))
        return y * np.concatenate([x, x])

    def g(x):
        return np.concatenate([np.sin(x) * x, np.sin(2 * x) * x]) * np.concatenate([x, x])

    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = f(x)
    with ampi.Tape() as other:
        x_ = other.watch(X)
        y_ = g(x_)
    seeds = numpy.random.default_rng(0).uniform(size=(3, 8))
    numpy.testing.assert_allclose(tape.gradient(y, x, seeds=seeds), other.gradient(y_, x_, seeds=seeds), rtol=1e-13)
    push, other_push = ampi.linearize(f, X)[1], ampi.linearize(g, X)[1]
    numpy.testing.assert_allclose(push(seeds[0, :4]), other_push(seeds[0, :4]), rtol=1e-13)
    numpy.testing.assert_allclose(ampi.jacrev(f, X), ampi.jacrev(g, X), rtol=1e-13)


def test_time_loops_around_tasks():
    def step(u):
        new = np.zeros(4)
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda k: new[2 * k : 2 * k + 2].__iadd__(np.sin(u[2 * k : 2 * k + 2]) * u[0]), range(2)))
        return new

    def plainly(u):
        return np.sin(u) * u[0]

    def run(step):
        return lambda x: np.sum(ampi.timeloop(step, x * 1.0, steps=7, checkpoints=2))

    same(run(step), run(plainly))


@pytest.mark.parametrize("where", ["in a task", "beside a task"])
def test_time_loops_in_and_beside_tasks_keep_all_steps(where):
    def loop(x):
        return ampi.timeloop(lambda u: np.sin(u) * 1.1, x * 1.0, steps=5, checkpoints=2)

    def f(x):
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(np.cos, x)
            found = pool.submit(loop, x).result() if where == "in a task" else loop(x)
            return np.sum(found * other.result())

    expected = ampi.grad(lambda x: np.sum(loop(x) * np.cos(x)))(X)
    with pytest.warns(ampi.PerformanceWarning, match="keep all steps"):
        numpy.testing.assert_allclose(ampi.grad(f)(X), expected, rtol=1e-13)


def test_tapes_with_tasks_are_freed():
    with ThreadPoolExecutor(2) as pool:
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = sum(pool.map(parts, [x] * 3, range(3)))
        tape.gradient(y, x)
        gone = weakref.ref(tape)
        gc.disable()
        try:
            del tape, x, y
            time.sleep(0.05)
            assert gone() is None
        finally:
            gc.enable()


# ------------------------------------------------------------------------------------------------------ refusals

RACES = {
    "two writes": (lambda x, y: y.fill(1.0), lambda x, y: y[2:].__iadd__(x[:2])),
    "write and read": (lambda x, y: y[:2].__imul__(x[:2]), lambda x, y: np.sum(y * x)),
    "read and write": (lambda x, y: np.sin(y), lambda x, y: y[3:].__setitem__(0, 5.0)),
    "a kernel": (lambda x, y: squares(x, y), lambda x, y: squares(y, np.zeros(4))),
    "a strided view": (lambda x, y: y[::2].__imul__(2.0), lambda x, y: np.sum(y[2:] ** 2)),
}


@pytest.mark.parametrize("name", RACES)
def test_races_are_errors_that_name_both_lines_and_the_array(name):
    first, second = RACES[name]

    def f(x):
        y = x * 2.0
        with ThreadPoolExecutor(2) as pool:
            pool.submit(first, x, y)
            pool.submit(second, x, y)
        return np.sum(y)

    line = f.__code__.co_firstlineno + 3
    with pytest.raises(ampi.ActivityError, match="at the same time") as error:
        ampi.grad(f)(X)
    for words in (f"test_tasks.py:{line}", f"test_tasks.py:{line + 1}", "(y"):
        assert words in str(error.value)


def test_a_race_with_the_thread_of_the_tape():
    def f(x):
        y = x * 2.0
        with ThreadPoolExecutor(2) as pool:
            future = pool.submit(np.sum, y * y)
            z = pool.submit(lambda: np.sum(y * y))
            y[0] = 3.0
            return z.result() + future.result()

    with pytest.raises(ampi.ActivityError, match="the thread of the tape writes to it"):
        ampi.grad(f)(X)


def test_what_only_looks_like_a_race():
    def f(x):
        y = np.zeros((2, 4))
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(y[0, ::2].__iadd__, x[:2])
            pool.submit(y[0, 1::2].__iadd__, x[2:])
            first.result()
            y[0, ::2] *= x[0]
            last = pool.submit(y[0, ::2].__imul__, 2.0)
            last.result()
            return np.sum(y[0, ::2])

    numpy.testing.assert_allclose(ampi.grad(f)(X), [2 * (2 * X[0] + X[1]), 2 * X[0], 0, 0])


def by_a_task(x):
    with ThreadPoolExecutor(2) as pool:
        return pool.submit(lambda: np.sum(x * x)).result()


def by_a_thread(x):
    found = []

    def work():
        try:
            found.append(np.sum(x * x))
        except ampi.ActivityError as error:
            found.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if isinstance(found[0], Exception):
        raise found[0]
    return found[0]


@pytest.mark.parametrize("f", [by_a_task, by_a_thread])
def test_forward_mode_and_second_order(f):
    dot = numpy.array([1.0, -2.0, 0.5, 3.0])
    value, tangent = ampi.jvp(f, (X,), (dot,))
    assert value == np.sum(X * X) and tangent == pytest.approx(2.0 * X @ dot, rel=1e-15)
    numpy.testing.assert_allclose(ampi.hvp(f, X, dot), 2.0 * dot, rtol=1e-15)


def test_many_tasks_write_tangents_into_one_array():
    """Blocks of tangents are made by whoever comes first; values that an operation needs belong to its task."""

    def f(x):
        y = np.zeros(4000)

        def part(k):
            for _ in range(3):
                y[k::8] = y[k::8] * x[k % 4] + x[k % 4]
                y[k::8] *= y[k::8]
            squares(y[k::8], y[k::8])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(part, range(8)))
        return np.sum(y[:16])

    def serial(x):
        y = np.zeros(16)
        for k in range(8):
            for _ in range(3):
                y[k::8] = y[k::8] * x[k % 4] + x[k % 4]
                y[k::8] *= y[k::8]
            squares(y[k::8], y[k::8])
        return np.sum(y)

    dot = numpy.array([1.0, -2.0, 0.5, 3.0])
    x0 = 0.5 * X
    for _ in range(5):
        assert ampi.jvp(f, (x0,), (dot,))[1] == pytest.approx(ampi.jvp(serial, (x0,), (dot,))[1], rel=1e-12)
    numpy.testing.assert_allclose(ampi.hvp(f, x0, dot), ampi.hvp(serial, x0, dot), rtol=1e-11)


def test_tapes_of_forward_modes_are_freed():
    before = len(living)
    gc.disable()
    try:
        for _ in range(3):
            ampi.jvp(by_a_task, (X,), (X,))
            ampi.hvp(by_a_task, X, X)
        time.sleep(0.05)
        assert len(living) <= before
    finally:
        gc.enable()


@pytest.mark.parametrize("f", [by_a_task, by_a_thread])
@pytest.mark.parametrize("how", ["vector mode", "hessian", "a budget"])
def test_what_tasks_do_not_do_yet_is_an_error(how, f):
    with pytest.raises(ampi.ActivityError, match="tasks and threads are differentiated by"):
        if how == "vector mode":
            ampi.jvp(f, (X,), (numpy.eye(4),), vectorised=True)
        elif how == "hessian":
            ampi.hessian(f, X)
        else:
            with ampi.Tape(memory="1GiB", spill=True) as tape:
                f(tape.watch(X))


@pytest.mark.parametrize("by", ["NumPy", "a kernel"])
def test_budgets_count_what_tasks_keep(by):
    def f(x, pool):
        def work(k):
            y = x * (k + 1.0)
            for _ in range(50):
                if by == "NumPy":
                    y *= y * 0.9
                else:
                    squares(x, y)
                    y *= y * 0.1
            return np.sum(y)

        return sum(pool.map(work, range(4)))

    x0 = numpy.linspace(0.1, 0.2, 2000)
    with ThreadPoolExecutor(2) as pool:
        with ampi.Tape(memory="1GiB") as tape:
            x = tape.watch(x0)
            y = f(x, pool)
        numpy.testing.assert_allclose(tape.gradient(y, x), ampi.grad(f)(x0, pool), rtol=1e-13)
        held = tape.budget.held
        assert held >= tape.saved_bytes > 1e6
        with pytest.raises(ampi.TapeError, match="exceed its budget"), ampi.Tape(memory=held // 2) as tape:
            f(tape.watch(x0), pool)
        with ampi.Tape(memory=held + 1) as tape:
            f(tape.watch(x0), pool)


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

"""Tasks in other threads: forward mode, second order, many sweeps, time loops and budgets."""

import gc
import threading
import time

import numpy
import pytest
import task_loops

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor
from ampi.tape import living

X = numpy.array([0.4, 0.7, 1.1, 1.3])


def same(f, g=None, x=X):
    """The gradient of a function with tasks is that of another one without, or of itself with tasks run at once."""
    numpy.testing.assert_allclose(ampi.grad(f)(x), ampi.grad(g)(x), rtol=1e-13)


@ampi.kernel
def squares(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i] + y[i]


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


def test_steps_that_run_again_submit_to_an_executor_that_is_shut_down():
    names = []

    def f(x):
        def step(u):
            future = pool.submit(lambda: (names.append(threading.current_thread().name), np.sin(u) * 1.1)[1])
            return future.result()

        with ThreadPoolExecutor(1, "mine") as pool:
            found = ampi.timeloop(step, x * 1.0, steps=6, checkpoints=1)
        with pytest.raises(RuntimeError, match="after shutdown"):
            pool.submit(np.sin, x)
        return np.sum(found)

    expected = ampi.grad(lambda x: np.sum(ampi.timeloop(lambda u: np.sin(u) * 1.1, x * 1.0, steps=6)))(X)
    numpy.testing.assert_array_equal(ampi.grad(f)(X), expected)
    assert len(names) > 12 and set(names) == {"mine_0"}


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


@pytest.mark.parametrize("seed", range(10))
def test_drawn_time_loops_with_tasks(seed):
    task_loops.check(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("begin", range(1000, 1400, 100))
def test_many_drawn_time_loops_with_tasks(begin):
    refused = [task_loops.check(seed) for seed in range(begin, begin + 100)]
    assert refused.count(None) > 80


@pytest.mark.parametrize("where", ["in a task", "beside a task"])
def test_time_loops_in_and_beside_tasks_store_all_steps(where):
    def loop(x):
        return ampi.timeloop(lambda u: np.sin(u) * 1.1, x * 1.0, steps=5, checkpoints=2)

    def f(x):
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(np.cos, x)
            found = pool.submit(loop, x).result() if where == "in a task" else loop(x)
            return np.sum(found * other.result())

    expected = ampi.grad(lambda x: np.sum(loop(x) * np.cos(x)))(X)
    with pytest.warns(ampi.PerformanceWarning, match="store all steps"):
        numpy.testing.assert_allclose(ampi.grad(f)(X), expected, rtol=1e-13)


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
def test_several_directions_and_a_file(f):
    dots = numpy.random.default_rng(0).uniform(size=(5, 4))
    numpy.testing.assert_allclose(ampi.jvp(f, (X,), (dots,), vectorised=True)[1], 2.0 * dots @ X, rtol=1e-15)
    numpy.testing.assert_allclose(ampi.jacfwd(f, X)[0], 2.0 * X, rtol=1e-15)
    numpy.testing.assert_allclose(ampi.hvp(f, X, dots, vectorised=True), 2.0 * dots, rtol=1e-15)
    numpy.testing.assert_allclose(ampi.hessian(f, X), 2.0 * numpy.eye(4), rtol=1e-15)
    with ampi.Tape(memory="1GiB", spill=True) as tape:
        x = tape.watch(X)
        y = f(x)
    numpy.testing.assert_allclose(tape.gradient(y, x), 2.0 * X, rtol=1e-15)


def test_tangents_of_kernels_are_interleaved_only_where_no_tasks_run():
    """A kernel asks for interleaved tangents before, beside and after tasks that use rows of the same array."""

    def program(x, pool):
        y, z = np.zeros(16), np.concatenate([x, x, x, x])
        squares(z, y)
        futures = [pool.submit(lambda k: y[k::8].__imul__(z[k::8] + x[0]), k) for k in range(4)]
        squares(z[12:], y[4:8])
        for k in range(4):
            futures[k].result()
            squares(z[k::8], y[k::8])
        return np.sum(y * z)

    def f(x):
        with ThreadPoolExecutor(4) as pool:
            return program(x, pool)

    dots = numpy.random.default_rng(0).uniform(size=(9, 4))
    slope = ampi.grad(lambda x: program(x, task_loops.Now()))(X)
    for _ in range(10):
        numpy.testing.assert_allclose(ampi.jvp(f, (X,), (dots,), vectorised=True)[1], dots @ slope, rtol=1e-12)


def test_old_values_of_tasks_go_to_a_file():
    def f(x, pool):
        y = np.zeros((4, 5000))

        def work(k):
            for j in range(20):
                y[k] = y[k] * x[j] + x[j + 1] * 0.5
                squares(y[k], y[k])
                y[k] *= 0.5

        for _ in range(2):
            list(pool.map(work, range(4)))
        return np.sum(y * y)

    x0 = numpy.linspace(0.1, 0.5, 21)
    with ThreadPoolExecutor(4) as pool:
        slope = ampi.grad(f)(x0, pool)
        with ampi.Tape(memory="1MB", spill=True) as tape:
            x = tape.watch(x0)
            y = f(x, pool)
        assert tape.budget.file.nbytes > 5e6 > 10 * tape.budget.held
        for _ in range(2):
            numpy.testing.assert_array_equal(tape.gradient(y, x), slope)
        numpy.testing.assert_allclose(tape.gradient(y, x, seeds=[1.0, 2.0]), [slope, 2.0 * slope], rtol=1e-13)


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

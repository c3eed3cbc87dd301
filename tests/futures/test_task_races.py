"""Races of tasks in other threads are errors, and the result of a task does not depend on concurrent tasks."""

import time

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor, races, wait

X = numpy.array([0.4, 0.7, 1.1, 1.3])


@ampi.kernel
def squares(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i] + y[i]


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
    for words in (f"test_task_races.py:{line}", f"test_task_races.py:{line + 1}", "(y"):
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


@ampi.kernel
def weighted(u, v, out):
    for i in range(len(out)):
        out[i] = u[i] * v[i]


@pytest.mark.parametrize("by", ["a kernel", "NumPy"])
def test_what_is_active_does_not_depend_on_tasks_beside(by):
    """A task makes a part of an array active before or after another one reads constants from another part of it."""

    def recorded(first):
        over = {"activate": False, "use": False}  # flags that are polled order nothing
        y, z = np.ones(8), np.ones(4)

        def after(name, function):
            while not over[name]:
                time.sleep(1e-4)
            function()

        def activate():
            y[:4] = x * x
            over["activate"] = True

        def use():
            if by == "a kernel":
                weighted(y[4:], x, z)
            else:
                z[:] = y[4:] * x
            over["use"] = True

        tasks = [activate, lambda: after("activate", use)] if first else [lambda: after("use", activate), use]
        with ampi.Tape() as tape:
            x = tape.watch(X)
            with ThreadPoolExecutor(2) as pool:
                wait([pool.submit(task) for task in tasks])
            total = np.sum(y) + np.sum(z * z)
        slope = tape.gradient(total, x)
        numpy.testing.assert_allclose(slope, 4 * X, rtol=1e-15)
        adjoints = [record.adjoint for record in tape.records if record.adjoint is not None]
        return [(type(adjoint).__name__, len(races.regions_of(adjoint))) for adjoint in adjoints]

    assert recorded(True) == recorded(False)


def test_what_a_task_has_activated_is_active_after_it():
    def f(x):
        y = np.zeros((4, 4))
        with ThreadPoolExecutor(4) as pool:
            futures = [pool.submit(weighted, x, x * (k + 1.0), y[k]) for k in range(4)]
            later = [
                pool.submit(lambda k: (futures[k - 1].result(), np.sum(y[k - 1] * y[k - 1]))[1], k) for k in range(4)
            ]
            return sum(future.result() * (k + 1.0) for k, future in enumerate(later))

    expected = sum(4 * X**3 * k**2 * (k % 4 + 1.0) for k in range(1, 5))
    numpy.testing.assert_allclose(ampi.grad(f)(X), expected, rtol=1e-13)
    numpy.testing.assert_allclose(ampi.jvp(f, (X,), (X,))[1], expected @ X, rtol=1e-13)


LATE = {
    "a write": lambda x, y: y.__setitem__(5, 1.0),
    "a read": lambda x, y: np.sum(y[:3] * x[:3]),
    "another part": lambda x, y: squares(x[:4], y[2:6]),
    "none": lambda x, y: np.sum(x[:4] * x[4:]),
}


@pytest.mark.parametrize("late", LATE)
def test_a_race_in_a_late_step_of_a_loop(monkeypatch, late):
    """The steps before have the same operations without a race; what they do is compared once."""
    compared = []
    among = races._race_among
    monkeypatch.setattr(races, "_race_among", lambda accesses: compared.append(1) or among(accesses))
    counts = []

    def f(x):
        y = x * 2.0
        halves = [(x[:4], y[:4]), (x[4:], y[4:])]
        with ThreadPoolExecutor(2) as pool:
            for k in range(12):
                tasks = [pool.submit(squares, *half) for half in halves]
                if k == 11:
                    LATE[late](x, y)
                wait(tasks)
                counts.append(len(compared))
        return np.sum(y * y)

    x = numpy.concatenate([X, X])
    if late == "none":
        expected = (lambda y: 2 * y * (2 + 12 * 2 * x))(2 * x + 12 * x * x)
        numpy.testing.assert_allclose(ampi.grad(f)(x), expected, rtol=1e-13)
        assert counts[10] == counts[4]
    else:
        with pytest.raises(ampi.ActivityError, match="at the same time"):
            ampi.grad(f)(x)

"""Tasks of workers that do not run the differentiated function: they run again in the sweep, with adjoints."""

import dataclasses
import itertools

import numpy
import pytest
from rank_programs import check_apart

import ampi
import ampi.numpy as np
from ampi.futures import MPICommExecutor

comm = ampi.COMM_WORLD
X = numpy.array([0.4, 0.7, 1.1])


@pytest.mark.mpi
@pytest.mark.parametrize("seeds", [range(8), range(8, 16)])
def test_drawn_programs(seeds):
    with MPICommExecutor(comm, root=0) as pool:
        for seed in seeds if pool is not None else ():
            check_apart(seed, pool)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.timeout(600)
def test_many_drawn_programs():
    with MPICommExecutor(comm, root=0) as pool:
        for seed in range(1000, 1200) if pool is not None else ():
            check_apart(seed, pool)


@pytest.fixture(scope="module")
def pool():
    with MPICommExecutor(ampi.COMM_SELF) as executor:  # entered before any tape: its worker is a thread of mpi4py's
        yield executor


def cube(x, k=1.0):
    return x**3 * k


def joined(x, y):
    x *= y[0]
    return {"waves": np.sin(x) * y, "sum": np.sum(x * x * y[1])}, y[:2] * x[1]


def of_two(call):
    """A function whose results of tasks are used with different weights, one of them in other tasks as well."""

    def f(x):
        u = np.exp(0.3 * x)
        (found, pair), other = call(joined, x * x, u), call(cube, u, 0.5)
        u *= 2.0
        return np.sum(found["waves"] ** 2) * found["sum"] + np.sum(call(cube, other * pair[0]) * u) + pair[1] ** 2

    return f


@pytest.mark.parametrize("directions", [None, 1, 3])
def test_second_order(pool, directions):
    v = numpy.random.default_rng(0).uniform(-1.0, 1.0, (directions or 1, 3))[... if directions else 0]
    f, g = (
        of_two(lambda *task: pool.submit(*task).result()),
        of_two(lambda function, x, *rest: function(x * 1.0, *rest)),
    )
    options = {"vectorised": True} if directions else {}
    numpy.testing.assert_allclose(ampi.hvp(f, X, v, **options), ampi.hvp(g, X, v, **options), rtol=1e-12)
    numpy.testing.assert_allclose(ampi.hessian(f, X), ampi.hessian(g, X), rtol=1e-11, atol=1e-12)


def test_second_order_of_complex_numbers_and_of_time_loops(pool):
    def complex_(call):
        return lambda x: np.sum(np.abs(call(cube, x * (1.0 + 0.5j), 0.3 - 1.0j) * call(cube, x * 1.0)) ** 2)

    def loop(call):
        return lambda x: np.sum(ampi.timeloop(lambda u: call(scaled, u * u), x * 1.0, steps=4))

    v = numpy.array([1.0, -0.5, 0.25])
    for f in (complex_, loop):
        found = ampi.hvp(f(lambda *task: pool.submit(*task).result()), X, v)
        expected = ampi.hvp(f(lambda function, *arguments: function(*arguments)), X, v)
        numpy.testing.assert_allclose(found, expected, rtol=1e-12)


def test_second_order_of_tasks_that_give_other_results_is_an_error(pool):
    with pytest.raises(ampi.ActivityError, match=r"test_remote_tasks\.py:\d+ gives other results when it runs again"):
        ampi.hvp(lambda x: np.sum(pool.submit(drawn, x).result() ** 2), X, X)


numbers = itertools.count()


def drawn(x):
    return x * next(numbers)


def test_tasks_that_give_other_results_are_errors(pool):
    with pytest.raises(ampi.ActivityError, match=r"test_remote_tasks\.py:\d+ gives other results when it runs again"):
        ampi.grad(lambda x: np.sum(pool.submit(drawn, x).result()))(X)


def failing(x):
    raise ZeroDivisionError(x[0] > 0)


def test_exceptions_and_results_that_are_not_asked_for(pool):
    def f(x):
        futures = [pool.submit(cube, x, k) for k in range(4)]
        with pytest.raises(ZeroDivisionError):
            pool.submit(failing, x).result()
        assert futures[1].result() is futures[1].result()
        return np.sum(futures[1].result() * futures[3].result())

    numpy.testing.assert_allclose(ampi.grad(f)(X), 18 * X**5, rtol=1e-14)


def test_results_belong_to_where_the_task_was_submitted(pool):
    kept, errors = [], []

    def called(future):
        try:
            future.result()
        except ampi.ActivityError as error:
            errors.append(str(error))

    def f(x):
        kept.append(pool.submit(cube, x))
        kept[-1].exception()
        pool.submit(cube, x * 2.0).add_done_callback(called)
        with pytest.raises(ampi.ActivityError, match="asked for in another"):
            ampi.grad(lambda z: np.sum(z * kept[-1].result()))(X)
        with ampi.passive():
            constant = kept[-1].result()
        return np.sum(x * constant)

    numpy.testing.assert_allclose(ampi.grad(f)(X), X**3)
    assert all("asked for in another" in error for error in errors)
    assert not isinstance(kept[0].result(), ampi.ndarray)  # the tape is closed
    numpy.testing.assert_array_equal(kept[0].result(), X**3)


@dataclasses.dataclass
class Computes:
    a: object

    def __setstate__(self, state):
        self.a = state["a"] * 2.0

    def __getstate__(self):
        return {"a": self.a * 3.0}


def inside(given, n):
    return Computes(given.a * n), n


def test_objects_that_compute_while_they_are_pickled(pool):
    def f(x):
        found, n = pool.submit(inside, Computes(x), 5).result()
        assert n == 5
        return np.sum(found.a * x)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * 36 * 5 * X, rtol=1e-14)


def test_arguments_are_those_of_the_submit(pool):
    def f(x):
        u = x * 1.0
        futures = []
        for _ in range(3):
            futures.append(pool.submit(cube, u, u[0]))
            u *= 2.0
        return sum(np.sum(future.result()) for future in futures) + np.sum(u)

    def plain(x):
        return sum(np.sum(cube(x * c, x[0] * c)) for c in (1.0, 2.0, 4.0)) + np.sum(8.0 * x)

    numpy.testing.assert_allclose(ampi.grad(f)(X), ampi.grad(plain)(X), rtol=1e-13)


def scaled(u):
    return np.sin(u) * 1.1


@pytest.mark.parametrize("checkpoints", [None, 2])
def test_time_loops(pool, checkpoints):
    def run(step):
        options = {} if checkpoints is None else {"checkpoints": checkpoints}
        return ampi.grad(lambda x: np.sum(ampi.timeloop(step, x * 1.0, steps=6, **options)))(X)

    numpy.testing.assert_allclose(run(lambda u: pool.submit(scaled, u).result()), run(scaled), rtol=1e-13)


def test_executors_of_communicators_that_have_ended():
    executors = MPICommExecutor(ampi.COMM_SELF)
    executor = executors.__enter__()

    def f(x):
        found = executor.submit(cube, x).result()
        executors.__exit__(None, None, None)
        return np.sum(found)

    with pytest.raises(ampi.TapeError, match="its MPICommExecutor has ended"):
        ampi.grad(f)(X)


def test_parts_without_elements(pool):
    """Some parts are empty where there are more workers than elements."""

    def f(x):
        futures = [pool.submit(cube, part, 2.0) for part in np.array_split(x, 5)]
        return np.sum(np.concatenate([future.result() for future in futures]))

    numpy.testing.assert_allclose(ampi.grad(f)(X), 6.0 * X**2, rtol=1e-14)
    numpy.testing.assert_allclose(ampi.hvp(f, X, X), 12.0 * X**2, rtol=1e-14)

"""Futures that the program itself fulfils, and tasks that never run."""

import threading
import time
from concurrent.futures import BrokenExecutor, Future, InvalidStateError, ThreadPoolExecutor, as_completed, wait

import numpy
import pytest

import ampi
import ampi.numpy as np

X = numpy.array([0.4, 0.7, 1.1])


def by_a_thread(x, ask):
    promise = Future()
    thread = threading.Thread(target=lambda: promise.set_result(np.sin(x) * x))
    thread.start()
    found = ask(promise)
    thread.join()
    return np.sum(found * x)


def to_a_task(x, ask):
    promise = Future()
    with ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(lambda: np.sum(ask(promise) * x))
        pool.submit(lambda: promise.set_result(np.sin(x) * x))
        return waiting.result()


class Found(Exception):
    pass


def as_an_error(x, ask):
    promise = Future()
    with ThreadPoolExecutor(2) as pool:
        pool.submit(lambda: promise.set_exception(Found(np.sin(x) * x)))
        try:
            ask(promise)
        except Found as error:
            return np.sum(error.args[0] * x)


def polled(promise):
    while not promise.done():
        pass
    return promise.result()


ASKED = {
    "result": lambda promise: promise.result(),
    "wait": lambda promise: wait([promise]).done.pop().result(),
    "as_completed": lambda promise: next(as_completed([promise])).result(),
    "done": polled,
}


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("f", [by_a_thread, to_a_task, as_an_error])
def test_a_future_that_the_program_fulfils_orders_what_comes_before_and_after(f, ask):
    direction = numpy.array([1.0, -0.5, 0.25])
    expected = 2.0 * X * numpy.sin(X) + X**2 * numpy.cos(X)
    numpy.testing.assert_allclose(ampi.grad(lambda x: f(x, ask))(X), expected, rtol=1e-13)
    assert ampi.jvp(lambda x: f(x, ask), (X,), (direction,))[1] == pytest.approx(expected @ direction, rel=1e-13)


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.timeout(30)
def test_a_pool_whose_initializer_fails_ends_the_program_as_without_derivatives(reads):
    """Tasks that were submitted before the pool broke never run, and nothing waits for them."""

    def f(x):
        def begin():
            raise ZeroDivisionError(np.sum(x) if reads else 0)

        with ThreadPoolExecutor(2, initializer=begin) as pool:
            return sum(pool.map(np.sum, [x] * 5))

    for run in (lambda: ampi.grad(f)(X), lambda: ampi.jvp(f, (X,), (X,)), lambda: ampi.hvp(f, X, X)):
        with pytest.raises(BrokenExecutor):
            run()


def test_a_callback_of_a_future_that_is_done_already_happens_after():
    """It runs at once, in the thread that adds it."""

    def f(x):
        a, promise, found = np.zeros(3), Future(), []

        def fulfil():
            a[...] = np.sin(x)
            promise.set_result(None)
            ended.append(True)

        ended = []
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fulfil)
            while not ended:  # which orders nothing
                time.sleep(0.001)
            promise.add_done_callback(lambda future: found.append(np.sum(a * x)))
        return found[0]

    expected = numpy.sin(X) + X * numpy.cos(X)
    numpy.testing.assert_allclose(ampi.grad(f)(X), expected, rtol=1e-13)


def test_a_future_that_is_done_already_orders_nothing_that_comes_later():
    def f(x):
        a, promise, ended = np.zeros(3), Future(), []

        def fulfil_again():
            a[...] = np.sin(x)
            with pytest.raises(InvalidStateError):
                promise.set_result(None)
            ended.append(True)

        promise.set_result(None)
        with ThreadPoolExecutor(1) as pool:
            pool.submit(fulfil_again)
            while not ended:
                time.sleep(0.001)
            promise.result()
            return np.sum(a * x)

    with pytest.raises(ampi.ActivityError, match="used at the same time"):
        ampi.grad(f)(X)

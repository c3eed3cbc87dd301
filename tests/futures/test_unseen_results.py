"""Results of tasks that arrive by asyncio have derivatives; those that arrive where ampi sees no order are errors."""

import asyncio
import collections
import functools
import queue
import threading
import time

import numpy
import pytest
from patience import patience

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor

X = numpy.array([0.4, 0.7, 1.1, 1.3])
DOT = numpy.array([1.0, -0.5, 2.0, 0.3])


def part(x, k):
    return np.sum(np.sin(x * (k + 1)) ** 2) * (k + 1)


def serial(x):
    return np.sum(x) * sum(part(x, k) ** (k + 1) for k in range(3))


async def in_threads(x, k):
    return await asyncio.to_thread(part, x, k)


async def with_keywords(x, k):
    return await asyncio.to_thread(part, x=x, k=k)


async def in_the_default_executor(x, k):
    return await asyncio.get_running_loop().run_in_executor(None, part, x, k)


async def in_an_executor(x, k):
    with ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, part, x, k)


async def wrapped(x, k):
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(part, x, k)
        if k == 1:
            future.result()  # it has ended before asyncio sees it
        return await asyncio.wrap_future(future)


@pytest.mark.parametrize("how", [in_threads, with_keywords, in_the_default_executor, in_an_executor, wrapped])
@pytest.mark.parametrize("together", [False, True])
def test_tasks_of_asyncio(how, together):
    async def main(x):
        if together:
            parts = await asyncio.gather(*(how(x, k) for k in range(3)))
        else:
            parts = [await how(x, k) for k in range(3)]
        return np.sum(x) * sum(parts[k] ** (k + 1) for k in range(3))

    f = lambda x: asyncio.run(main(x))
    numpy.testing.assert_allclose(ampi.grad(f)(X), ampi.grad(serial)(X), rtol=1e-12)
    assert ampi.jvp(f, (X,), (DOT,))[1] == pytest.approx(ampi.jvp(serial, (X,), (DOT,))[1], rel=1e-12)


def by_simple_queue(x):
    found = queue.SimpleQueue()
    thread = threading.Thread(target=lambda: found.put(part(x, 1)))
    thread.start()
    result = np.sum(x) + found.get()
    thread.join()
    return result


def by_polling(x):
    found = collections.deque()
    thread = threading.Thread(target=lambda: found.append(part(x, 1)))
    thread.start()
    until = time.monotonic() + patience(30)
    while not found and time.monotonic() < until:
        time.sleep(1e-4)
    result = np.sum(x) + found.popleft()
    thread.join()
    return result


def by_a_cache(x):
    """Where one task finds what another one has computed."""
    is_there = queue.SimpleQueue()

    @functools.lru_cache
    def cached(k):
        return part(x, k)

    def first():
        value = cached(1)
        is_there.put(None)
        return value

    def second():
        is_there.get()
        return cached(1) * 2.0

    with ThreadPoolExecutor(2) as pool:
        return sum(future.result() for future in [pool.submit(first), pool.submit(second)])


@ampi.kernel
def doubled(x):
    total = 0.0
    for i in range(len(x)):
        total += 2.0 * x[i] * x[i]
    return total


def by_a_kernel(x):
    y, ready = np.zeros(4), queue.SimpleQueue()

    def fill():
        y[:] = np.sin(x)
        ready.put(None)

    thread = threading.Thread(target=fill)
    doubled(y)  # prepares calls for constants
    thread.start()
    ready.get()
    result = doubled(y) + np.sum(x)
    thread.join()
    return result


@pytest.mark.parametrize("f", [by_simple_queue, by_polling, by_a_cache, by_a_kernel])
def test_results_that_arrive_in_no_determined_order_are_errors(f):
    with pytest.raises(ampi.ActivityError, match="in no determined order"):
        ampi.grad(f)(X)
    with pytest.raises(ampi.ActivityError, match="in no determined order"):
        ampi.jvp(f, (X,), (DOT,))

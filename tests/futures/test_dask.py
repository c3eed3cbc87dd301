"""dask's ``delayed`` with the schedulers of one process, and tasks that run in a copy of the context."""

import contextvars

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor

X = numpy.array([0.4, 0.7, 1.1, 1.3])
DOT = numpy.array([1.0, -0.5, 2.0, 0.3])


def part(x, k):
    return np.sum(np.sin(x * (k + 1)) ** 2)


def serial(x):
    return sum(part(x, k) * part(x, k + 1) for k in range(3))


@pytest.mark.parametrize("options", [{"scheduler": "synchronous"}, {"scheduler": "threads", "num_workers": 2}])
def test_delayed(options):
    dask = pytest.importorskip("dask")

    def f(x):
        parts = [dask.delayed(part, pure=False)(x, k) for k in range(4)]
        products = [dask.delayed(lambda a, b: a * b)(parts[k], parts[k + 1]) for k in range(3)]
        return dask.delayed(sum)(products).compute(**options)

    numpy.testing.assert_allclose(ampi.grad(f)(X), ampi.grad(serial)(X), rtol=1e-12)
    assert ampi.jvp(f, (X,), (DOT,))[1] == pytest.approx(ampi.jvp(serial, (X,), (DOT,))[1], rel=1e-12)
    numpy.testing.assert_allclose(ampi.hvp(f, X, DOT), ampi.hvp(serial, X, DOT), rtol=1e-12)


def test_tasks_in_a_copy_of_the_context():
    """As dask and many others submit them."""
    name = contextvars.ContextVar("name", default="nobody")
    seen = []

    def work(x, k):
        seen.append(name.get())
        return part(x, k)

    def f(x):
        name.set("somebody")
        with ThreadPoolExecutor(2) as pool:
            parts = [pool.submit(contextvars.copy_context().run, work, x, k) for k in range(4)]
            return sum(parts[k].result() * parts[k + 1].result() for k in range(3))

    numpy.testing.assert_allclose(ampi.grad(f)(X), ampi.grad(serial)(X), rtol=1e-12)
    numpy.testing.assert_allclose(ampi.hvp(f, X, DOT), ampi.hvp(serial, X, DOT), rtol=1e-12)
    assert set(seen) == {"somebody"}


def test_second_order_waits_for_callbacks():
    def f(x):
        found = []
        with ThreadPoolExecutor(2) as pool:
            future = pool.submit(part, x, 0)
            future.add_done_callback(lambda done: found.append(done.result() * 2.0))
        return future.result()

    numpy.testing.assert_allclose(ampi.hvp(f, X, DOT), ampi.hvp(lambda x: part(x, 0), X, DOT), rtol=1e-12)

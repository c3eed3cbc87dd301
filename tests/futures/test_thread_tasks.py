"""Threads of `threading`: start and join are a fork and a join; queues, events, locks ... order what they do."""

import io
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
import tqdm
from patience import patience

import ampi
import ampi.numpy as np

X = numpy.array([0.4, 0.7, 1.1, 1.3])


def started(*functions):
    threads = [threading.Thread(target=function) for function in functions]
    for thread in threads:
        thread.start()
    return threads


def joined(*functions):
    for thread in started(*functions):
        thread.join()


def test_threads_are_joined():
    def f(x):
        y = np.zeros(4)

        def part(k):
            y[k::2] = x[k::2] ** 2

        joined(lambda: part(0), lambda: part(1))
        return np.sum(y * x)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 3 * X**2)


@pytest.mark.parametrize("how", ["join", "is_alive", "timeout"])
def test_ways_to_learn_that_a_thread_has_ended(how):
    def f(x):
        y = np.zeros(4)
        has_added = []
        (thread,) = started(lambda: has_added.append(y.__iadd__(x * x) is y))
        if how == "join":
            thread.join()
        while how == "is_alive" and thread.is_alive():
            time.sleep(1e-4)
        while how == "timeout" and not has_added:
            time.sleep(1e-4)
            thread.join(1e-3)
        thread.join(patience(60))
        return np.sum(y)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * X)


class Worker(threading.Thread):
    """A class of the program's own, with ``run``."""

    def __init__(self, x):
        super().__init__(daemon=True)
        self.x = x

    def run(self):
        self.found = np.sum(self.x**3)


def test_classes_of_threads_timers_and_threads_in_threads():
    def f(x):
        worker = Worker(x)
        worker.start()
        y = np.zeros(4)

        def outer():
            joined(lambda: y.__iadd__(x))
            y[:2] *= 3.0

        timer = threading.Timer(0.001, outer)
        timer.start()
        worker.join()
        timer.join()
        return worker.found + np.sum(y)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 3 * X**2 + [3, 3, 1, 1])


def test_workers_with_queues():
    def f(x):
        todo, found = queue.Queue(), queue.PriorityQueue()

        def work():
            while (k := todo.get()) is not None:
                found.put((k, np.sin(x[k]) * x[k]))
                todo.task_done()

        threads = started(work, work, work)
        for k in range(4):
            todo.put(k)
        total = sum(found.get()[1] for _ in range(4))
        todo.join()
        for _ in threads:
            todo.put(None)
        for thread in threads:
            thread.join()
        return total

    numpy.testing.assert_allclose(ampi.grad(f)(X), numpy.cos(X) * X + numpy.sin(X))


def test_a_bounded_queue_orders_its_free_places():
    """The producer uses a buffer again when the consumer has taken the item after next."""

    def f(x):
        buffers = np.zeros((2, 4))
        items = queue.Queue(1)
        free = queue.Queue(2)
        total = np.zeros(())
        for k in range(2):
            free.put(k)

        def produce():
            for n in range(5):
                k = free.get()
                buffers[k] = x * (n + 1.0)
                items.put(k)

        thread = threading.Thread(target=produce)
        thread.start()
        for _ in range(5):
            k = items.get()
            total += np.sum(buffers[k] ** 2)
            free.put(k)
        thread.join()
        return total

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * X * sum((n + 1) ** 2 for n in range(5)))


def by_room(x, capacity):
    """Use one slot after the other, where only the bound of the queue tells that it is free again."""
    slots = np.zeros((2, 4))
    items = queue.Queue(capacity)
    total = np.zeros(())

    def consume():
        nonlocal total
        last = None
        while (k := items.get()) is not None:
            if last is not None:
                total = total + np.sum(slots[last] ** 2)
            last = k
        total = total + np.sum(slots[last] ** 2)

    thread = threading.Thread(target=consume)
    thread.start()
    for n in range(4):
        slots[n % 2] = x * (n + 1.0)
        items.put(n % 2)
        if capacity == 0:
            time.sleep(0.01)
    items.put(None)
    thread.join()
    return total


def test_places_of_an_unbounded_queue_order_nothing():
    with pytest.raises(ampi.ActivityError, match="at the same time"):
        ampi.grad(lambda x: by_room(x, 0))(X)


def test_events_conditions_semaphores_and_barriers():
    def f(x):
        y, z = np.zeros(4), np.zeros(4)
        event, semaphore, barrier = threading.Event(), threading.Semaphore(0), threading.Barrier(2)
        condition, ready = threading.Condition(), []

        def first():
            y[:] = x * x
            event.set()
            barrier.wait()
            y[:2] += z[2:]
            barrier.wait()
            with condition:
                ready.append(1)
                condition.notify_all()

        def second():
            event.wait()
            z[:] = y * x
            barrier.wait()
            z[:2] *= 2.0
            barrier.wait()
            with condition:
                while not ready:
                    condition.wait()
            y[2:] *= z[:2]
            semaphore.release()

        threads = started(first, second)
        semaphore.acquire()
        total = np.sum(y * z)
        for thread in threads:
            thread.join()
        return total

    def plainly(x):
        y = x * x
        z = y * x
        y = np.concatenate([y[:2] + z[2:], y[2:]])
        z = np.concatenate([z[:2] * 2.0, z[2:]])
        y = np.concatenate([y[:2], y[2:] * z[:2]])
        return np.sum(y * z)

    numpy.testing.assert_allclose(ampi.grad(f)(X), ampi.grad(plainly)(X), rtol=1e-13)


def test_locks_inside_of_operations_order_nothing():
    """What an operation writes is noted before its record is there, so nothing may come in between."""
    lock = threading.Lock()

    @ampi.custom_vjp
    def square(x, y):
        with lock:
            y[...] = x * x
        return y

    def forward(x, y):
        return square.f(x, y), x.copy()

    square.defvjp(forward, lambda x, g: (2.0 * x * g, None))

    def f(x):
        y = np.zeros((3, 4))
        joined(*(lambda k=k: square(x, y[k]) for k in range(3)))
        return np.sum(y * y)

    for _ in range(5):
        numpy.testing.assert_allclose(ampi.grad(f)(X), 12 * X**3)


def test_a_kernel_that_is_compiled_in_threads():
    @ampi.kernel
    def cubes(x, y):
        for i in range(len(x)):
            y[i] = x[i] * x[i] * x[i] + y[i]

    def f(x):
        y = np.zeros((3, 4))
        joined(*(lambda k=k: cubes(x, y[k]) for k in range(3)))
        return np.sum(y * y)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 18 * X**5)


LOCKS = {"lock": threading.Lock, "rlock": threading.RLock, "condition": threading.Condition}


@pytest.mark.parametrize("kind", [*LOCKS, "acquire", "semaphore"])
def test_locks(kind):
    def f(x):
        lock = threading.Semaphore() if kind == "semaphore" else LOCKS.get(kind, threading.Lock)()
        y, total = np.ones(1), np.zeros(1)

        def work(k):
            part = np.sin(x[k]) * x[k]
            if kind == "acquire":
                lock.acquire()
                try:
                    y[0] *= part
                    total[0] += part
                finally:
                    lock.release()
                return
            with lock:
                y[0] *= part
                total[0] += part

        joined(*(lambda k=k: work(k) for k in range(4)))
        return total[0] * y[0]

    def plainly(x):
        parts = np.sin(x) * x
        return np.sum(parts) * np.prod(parts)

    numpy.testing.assert_allclose(ampi.grad(f)(X), ampi.grad(plainly)(X), rtol=1e-12)


def test_races_of_threads_are_errors():
    def f(x):
        y = np.zeros(4)
        lock = threading.Lock()

        def locked():
            with lock:
                y[...] += x

        joined(lambda: y.__iadd__(x), locked)
        return np.sum(y)

    with pytest.raises(ampi.ActivityError, match="at the same time") as error:
        ampi.grad(f)(X)
    assert str(error.value).count("test_thread_tasks.py") == 2


def test_a_thread_that_is_not_joined_is_an_error():
    def f(x):
        y = np.zeros(4)
        (thread,) = started(lambda: y.__iadd__(x))
        while not y.any():
            time.sleep(1e-4)
        f.thread = thread
        return np.sum(x)

    with pytest.raises(ampi.ActivityError, match="call its join") as error:
        ampi.grad(f)(X)
    f.thread.join()
    assert "test_thread_tasks.py" in str(error.value)


def test_threads_without_derivatives_are_left_alone():
    """They are not waited for; after the tape's end they see constants."""
    stop, found = threading.Event(), []

    def watch(x):
        stop.wait()
        found.append(float(np.sum(x)))

    def f(x):
        f.thread = threading.Thread(target=watch, args=(x,), daemon=True)
        f.thread.start()
        return np.sum(x * x)

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * X)
    stop.set()
    f.thread.join(patience(60))
    numpy.testing.assert_allclose(found, [X.sum()])


def test_an_error_beside_running_threads_leaves_nothing_behind():
    from ampi.tape.recording import open_tapes, tasks

    stop = threading.Event()

    def f(x):
        f.thread = threading.Thread(target=lambda: (x + 1.0, stop.wait(), x + 1.0))
        f.thread.start()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        ampi.grad(f)(X)
    assert not open_tapes and not tasks
    stop.set()
    f.thread.join(patience(60))


def test_exceptions_of_threads_and_threads_in_passive_blocks(monkeypatch):
    raised = []
    monkeypatch.setattr(threading, "excepthook", lambda args: raised.append(args.exc_type))

    def f(x):
        y, scale = x * 1.0, []

        def fail():
            y[:] *= x
            raise ZeroDivisionError

        joined(fail)
        with ampi.passive():
            joined(lambda: scale.append(np.sum(x)))
        return np.sum(y) * scale[0]

    numpy.testing.assert_allclose(ampi.grad(f)(X), 2 * X * X.sum())
    assert raised == [ZeroDivisionError]


def test_started_twice_is_pythons_error():
    def f(x):
        (thread,) = started(lambda: None)
        thread.join()
        with pytest.raises(RuntimeError, match="once"):
            thread.start()
        return np.sum(x)

    numpy.testing.assert_allclose(ampi.grad(f)(X), numpy.ones(4))


PROGRAM = """
import io
import queue
import threading
import numpy as np

theta, found = 0.7, queue.Queue()

def model(k):
    found.put(np.sum(np.sin(theta * (1 + k / 10) * np.arange(4.0)) ** 2))

threads = [threading.Thread(target=model, args=(k,)) for k in range(6)]
for thread in threads:
    thread.start()
J = sum(found.get() for thread in threads)
for thread in threads:
    thread.join()
"""


def test_unmodified_programs(tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(PROGRAM)
    _, (slope,) = ampi.trace(str(path), wrt=("theta",), of="J")
    s, j = 1 + numpy.arange(6) / 10, numpy.arange(4.0)
    assert abs(float(slope) - (s[:, None] * j * numpy.sin(1.4 * s[:, None] * j)).sum()) < 1e-12


def test_threads_of_installed_packages_are_left_alone(monkeypatch):
    """The monitor of a progress bar is no task."""
    monkeypatch.setattr(tqdm.tqdm, "monitor", None)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = np.sum(x)
        for _ in tqdm.tqdm(range(3), file=io.StringIO()):
            y = y * y
    tqdm.tqdm.monitor.exit()
    assert tape.tasks is None
    numpy.testing.assert_allclose(tape.gradient(y, x), numpy.full(4, 8.0 * X.sum() ** 7))


def test_adjoints_of_kernels_use_as_many_threads_as_the_kernels_did():
    """Numba has a number of threads for each thread, which is that of the machine in new ones."""
    numba = pytest.importorskip("numba")
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("one thread")
    from numba import get_num_threads, set_num_threads

    found = []

    @ampi.custom_vjp
    def doubled(x):
        return 2.0 * x

    def backward(nothing, seed):
        found.append(get_num_threads())
        return (2.0 * seed,)

    doubled.defvjp(lambda x: (2.0 * x, None), backward)

    def work(x):
        found.append(get_num_threads())
        return np.sum(doubled(x))

    def f(x):
        with ThreadPoolExecutor(1, initializer=set_num_threads, initargs=(1,)) as pool:
            return pool.submit(work, x).result()

    before = get_num_threads()
    set_num_threads(2)
    try:
        numpy.testing.assert_array_equal(ampi.grad(f)(X), numpy.full(4, 2.0))
        assert found == [1, 1] and get_num_threads() == 2
    finally:
        set_num_threads(before)

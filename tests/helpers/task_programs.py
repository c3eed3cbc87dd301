"""Random programs with tasks: graphs of submits and results over views of a few arrays, with and without races.  In a
third of them tasks are threads, which signal each other.

A program is generated in its serial order, each task where it is submitted.  For each strand the operations that are
known to happen before are tracked as a set.  An operation that conflicts with an unordered one is left out, or, in a
program with a planted race, inserted once.
"""

import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed, wait

import numpy

import ampi
from ampi.tape import spill

SHAPES = {"a": (14,), "b": (4, 6), "c": (3, 8), "x": (12,)}
MANY = 48
"""Number of workers for programs whose tasks wait for tasks that they submitted themselves."""
THREADS = "threads"
"""Used instead of a number of workers: each task is a thread, which waits for signals of others."""


@ampi.kernel
def blend(u, v, out):
    for i in range(len(out)):
        out[i] = 0.5 * out[i] + u[i] * v[len(out) - 1 - i] * 0.3


def blend_plain(u, v, out):
    out[...] = 0.5 * out + u * v[::-1] * 0.3


class Stop(Exception):
    """The exception that tasks raise."""


def drawn_key(draw, name):
    """A random index for a view of four elements."""
    shape = SHAPES[name]
    if len(shape) == 1:
        step = draw.choice((1, 1, 2, 3, -1))
        reach = 3 * abs(step)
        first = draw.randrange(shape[0] - reach)
        return slice(first, first + reach + 1, step) if step > 0 else slice(first, first + reach + 1)
    if shape[0] == 4 and draw.random() < 0.5:
        return (slice(None), draw.randrange(shape[1]))
    first = draw.randrange(shape[1] - 3)
    return (draw.randrange(shape[0]), slice(first, first + 4))


SIGNALS = ("queue", "stack", "event", "semaphore", "all done")
ONCE = ("queue", "stack", "semaphore")
"""Kinds of signals that only one strand can receive."""

NUMBERS = {name: numpy.arange(int(numpy.prod(shape))).reshape(shape) for name, shape in SHAPES.items()}


class Program:
    """A random program: ``body`` is a list of operations, ``workers`` are the numbers of threads that may run it."""

    def __init__(self, seed, planted=False):
        self.draw = random.Random(seed)
        self.threads = seed % 3 == 2
        self.deep = self.threads or self.draw.random() < 0.3
        self.wanted = planted
        self.planted = False
        self.count = 0
        self.accesses = {}  # by array and element: reads and writes, as (operation, whether it writes)
        self.signals = []  # (number, kind, operations that it makes known, whether somebody has waited for it)
        self.tasks = []  # (number, operations that its end makes known, its submit, whether it gives a value)
        self.size = self.draw.randrange(8, 30)
        self.body = self.drawn_body(set(), 0, self.size, frozenset())
        self.workers = (THREADS, THREADS) if self.threads else (MANY, MANY // 2) if self.deep else (1, 2, 4)

    def number(self):
        self.count += 1
        return self.count

    def conflicts(self, places, known):
        """Operations, not known to happen before, that conflict with these accesses."""
        return {
            other
            for place, writes in places.items()
            for other, wrote in self.accesses.get(place, ())
            if (writes or wrote) and other not in known
        }

    def enter(self, places, known):
        """Decide whether to insert an operation with these accesses, and register it if so."""
        found = self.conflicts(places, known)
        if found and (self.planted or not self.wanted):
            return False
        number = self.number()
        for place, writes in places.items():
            self.accesses.setdefault(place, []).append((number, writes))
        known.add(number)
        if found:
            self.planted = True
        return True

    def places(self, reads, write=None):
        found = {(name, k): False for name, key in reads for k in NUMBERS[name][key].ravel().tolist()}
        if write is not None:
            found.update(((write[0], k), True) for k in NUMBERS[write[0]][write[1]].ravel().tolist())
        return found

    def view(self, names="abcx"):
        name = self.draw.choice(names)
        return name, drawn_key(self.draw, name)

    def drawn_body(self, known, depth, size, at_start):
        draw, body = self.draw, []
        for _ in range(size):
            kind = draw.random()
            if kind < 0.45:
                reads, write = [self.view() for _ in range(2)], self.view("abc")
                what = draw.choice(("product", "sine", "in place", "constant", "kernel", "read"))
                if what == "kernel" and set(self.places(reads)) & set(self.places([write])):
                    what = "product"
                used = {"sine": reads[:1], "in place": [], "constant": []}.get(what, reads)
                overwritten = None if what == "read" else write
                if what == "in place" or what == "kernel":
                    used = [*used, write]
                if self.enter(self.places(used, overwritten), known):
                    body.append((what, write, *reads))
            elif self.threads and kind < 0.6:
                body += self.drawn_signal(known)
            elif kind < 0.75 and depth < 3:
                body.append(self.drawn_task(known, depth))
            elif kind < 0.79 and depth == 0:
                body += self.drawn_fan(known)
            else:
                started = known if self.deep or depth == 0 else known & at_start
                usable = [t for t in self.tasks if t and t[2] in started]
                if not usable:
                    continue
                number, ends, _, gives = draw.choice(usable)
                if draw.random() < 0.3 and depth == 0:
                    several = [draw.choice(usable) for _ in range(2)]
                    body.append((draw.choice(("wait", "as completed")), tuple(t[0] for t in several)))
                    for t in several:
                        known |= t[1]
                else:
                    body.append((draw.choice(("result", "result", "exception")), number))
                    known |= ends
                if gives and ends <= known and draw.random() < 0.8:
                    write = self.view("abc")
                    if self.enter(self.places([write], write), known):
                        body.append(("use", write, number))
        return body

    def drawn_fan(self, known):
        """Several tasks that use the value of another task: its adjoint is a sum over them."""
        draw, fan = self.draw, []
        usable = [t for t in self.tasks if t and t[2] in known and t[3]]
        if usable:
            number, ends, _, _ = draw.choice(usable)
            for _ in range(5):
                submit = self.number()
                known.add(submit)
                inside, write = known | ends, self.view("abc")
                if self.enter(self.places([write], write), inside):
                    self.tasks.append((len(self.tasks), inside, submit, False))
                    fan.append(
                        ("submit", len(self.tasks) - 1, [("result", number), ("use", write, number)], None, False)
                    )
        return fan

    def drawn_signal(self, known):
        """Send a signal, or wait for one that was sent earlier in the serial order."""
        draw = self.draw
        if draw.random() < 0.5:
            kinds = (*SIGNALS, "condition") if not self.wanted else SIGNALS  # its lock also orders, by chance
            self.signals.append([len(self.signals), draw.choice(kinds), set(known), False])
            return [("signal", *self.signals[-1][:2])]
        usable = [signal for signal in self.signals if not (signal[3] and signal[1] in ONCE)]
        if not usable:
            return []
        signal = draw.choice(usable)
        signal[3] = True
        known |= signal[2]
        return [("await", *signal[:2])]

    def drawn_task(self, known, depth):
        draw = self.draw
        submit = self.number()
        known.add(submit)
        inside = set(known)
        number = len(self.tasks)
        self.tasks.append(None)
        fate = draw.random()
        if fate < 0.08 and depth == 0 and not self.threads:
            self.tasks[number] = (number, set(), submit, False)
            return ("cancelled", number, [("constant", self.view("abc"))])
        body = self.drawn_body(inside, depth + 1, draw.randrange(1, 6), frozenset(known))
        gives = None
        if fate < 0.16:
            body.append(("raise",))
        elif fate < 0.7:
            reads, how = [self.view(), self.view()], draw.choice(("sum", "product", "sine"))
            if self.enter(self.places(reads[:1] if how == "sine" else reads), inside):
                gives = (how, *reads)
        self.tasks[number] = (number, inside, submit, gives is not None)
        called = draw.random() < 0.1
        return ("submit", number, body, gives, called)


class Signal:
    """A signal of a given kind: sent by ``give``, received by ``wait``."""

    def __init__(self, kind):
        self.kind, self.flag = kind, False
        self.queue = queue.LifoQueue(1) if kind == "stack" else queue.Queue()
        self.event, self.semaphore, self.condition = threading.Event(), threading.Semaphore(0), threading.Condition()
        if kind == "all done":
            self.queue.put(None)

    def give(self):
        if self.kind in ("queue", "stack"):
            self.queue.put(None)
        elif self.kind == "event":
            self.event.set()
        elif self.kind == "semaphore":
            self.semaphore.release()
        elif self.kind == "condition":
            with self.condition:
                self.flag = True
                self.condition.notify_all()
        else:
            self.queue.task_done()

    def wait(self):
        if self.kind in ("queue", "stack"):
            self.queue.get()
        elif self.kind == "event":
            self.event.wait()
        elif self.kind == "semaphore":
            self.semaphore.acquire()
        elif self.kind == "condition":
            with self.condition:
                self.condition.wait_for(lambda: self.flag)
        else:
            self.queue.join()


class Thread:
    """A thread with the interface of a future."""

    def __init__(self, function, *arguments):
        self.found = self.error = None
        self.thread = threading.Thread(target=self.run, args=(function, *arguments))

    def run(self, function, *arguments):
        try:
            self.found = function(*arguments)
        except BaseException as error:
            self.error = error

    def exception(self):
        self.thread.join()
        return self.error

    def result(self):
        while self.thread.is_alive():
            time.sleep(1e-4)
        if self.error is not None:
            raise self.error
        return self.found

    def cancelled(self):
        return False


class Run:
    """One run of a program on ``workers`` threads; with None serially in this thread, in order of submission."""

    def __init__(self, program, workers, kernel, zeros):
        self.program, self.workers, self.kernel, self.zeros = program, workers, kernel, zeros
        self.futures = {}
        self.signals = {number: Signal(kind) for number, kind, *_ in program.signals}

    def __call__(self, x):
        self.arrays = {"x": x}
        for k, name in enumerate("abc"):
            self.arrays[name] = self.zeros(SHAPES[name])
            flat = self.arrays[name].reshape(-1)
            flat[:12] = x * (0.5 + 0.2 * k)
            flat[12:] = x[: flat.size - 12] * 0.7
        numpy_ = self.numpy = ampi.numpy if isinstance(x, ampi.ndarray) else numpy
        if self.workers is None:
            self.body(self.program.body)
        elif self.workers == THREADS:
            self.body(self.program.body)
            asked = 0
            while asked < len(self.futures):  # threads may start others
                asked = len(self.futures)
                for future in list(self.futures.values()):
                    if not isinstance(future.exception(), (Stop, type(None))):
                        raise future.exception()
        else:
            with ThreadPoolExecutor(self.workers) as self.pool:
                self.body(self.program.body)
                while any(f._state in ("PENDING", "RUNNING") for f in list(self.futures.values())):
                    time.sleep(1e-4)  # tasks may submit others, and not all of them have been waited for
            for future in self.futures.values():
                if not future.cancelled() and not isinstance(future.exception(), (Stop, type(None))):
                    raise future.exception()
        total = 0.0
        for k, name in enumerate("abc"):
            total = total + (k + 1.0) * numpy_.sum(self.arrays[name] ** 2)
        return total

    def view(self, where):
        name, key = where
        return self.arrays[name][key]

    def body(self, operations):
        for what, *rest in operations:
            if what in ("submit", "cancelled"):
                self.submit(what, *rest)
            elif what in ("signal", "await"):
                if self.workers is not None:
                    signal = self.signals[rest[0]]
                    signal.give() if what == "signal" else signal.wait()
            elif what == "raise":
                raise Stop
            elif what in ("result", "exception"):
                self.ask(what, rest[0])
            elif what in ("wait", "as completed"):
                self.ask_all(what, rest[0])
            elif what == "use":
                self.view(rest[0])[...] = 0.4 * self.view(rest[0]) + 0.3 * self.value(rest[1])
            else:
                self.compute(what, *rest)

    def compute(self, what, write, *reads):
        target = self.view(write)
        numpy_ = self.numpy
        if what == "product":
            target[...] = self.view(reads[0]) * self.view(reads[1]) * 0.5
        elif what == "sine":
            target[:] = numpy_.sin(self.view(reads[0]))
        elif what == "in place":
            target *= 0.8
            target += target * target * 0.1
        elif what == "constant":
            target[...] = 0.25
        elif what == "kernel":
            self.kernel(self.view(reads[0]), self.view(reads[1]), target)
        else:
            numpy_.sum(self.view(reads[0]) * self.view(reads[1]))

    def task(self, body, gives):
        self.body(body)
        if gives is None:
            return None
        how, first, second = gives
        first, second = self.view(first), self.view(second)
        if how == "sum":
            return self.numpy.sum(first * second)
        return first * second if how == "product" else self.numpy.sin(first)

    def submit(self, what, number, body, gives=None, called=False):
        if what == "cancelled":
            self.futures[number] = None if self.workers is None else self.cancelled(body)
        elif self.workers is None:
            try:
                self.futures[number] = self.task(body, gives)
            except Stop as error:
                self.futures[number] = error
        elif self.workers == THREADS:
            self.futures[number] = Thread(self.task, body, gives)
            self.futures[number].thread.start()
        else:
            self.futures[number] = future = self.pool.submit(self.task, body, gives)
            if called:
                future.add_done_callback(lambda future: future.exception() or future.result())

    def cancelled(self, body):
        """The future of a task that is cancelled while another one occupies the only worker."""
        gate = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(gate.wait)
            future = pool.submit(self.body, body)
            assert future.cancel()
            gate.set()
        return future

    def ask(self, what, number):
        if self.workers is not None and not self.futures[number].cancelled():
            try:
                getattr(self.futures[number], what)()
            except Stop:
                pass

    def ask_all(self, what, numbers):
        if self.workers is not None:
            futures = [self.futures[number] for number in numbers]
            if self.workers == THREADS:
                for future in futures:
                    future.exception()
                return
            for _ in as_completed(futures) if what == "as completed" else wait(futures).done:
                pass

    def value(self, number):
        return self.futures[number] if self.workers is None else self.futures[number].result()


X0 = numpy.linspace(0.3, 1.4, 12)


def differentiated(program, workers):
    """Value and gradient."""
    run = Run(program, workers, blend, lambda shape: ampi.numpy.zeros(shape))
    return ampi.value_and_grad(run)(X0)


def in_forward_modes(program, workers, direction):
    """The tangent of the value, and a Hessian-vector product."""
    run = lambda: Run(program, workers, blend, lambda shape: ampi.numpy.zeros(shape))
    return float(ampi.jvp(run(), (X0,), (direction,))[1]), ampi.hvp(run(), X0, direction)


def in_vector_modes(program, workers, directions):
    """The tangents of the value in several directions, and products of its Hessian with them."""
    run = lambda: Run(program, workers, blend, lambda shape: ampi.numpy.zeros(shape))
    forward = ampi.jvp(run(), (X0,), (directions,), vectorised=True)[1]
    return forward, ampi.hvp(run(), X0, directions, vectorised=True)


def on_a_tape(program, workers, seeds, **options):
    """A gradient of the arrays, one for each of several seeds at once, and the bytes of old values in a file."""
    run = Run(program, workers, blend, lambda shape: ampi.numpy.zeros(shape))
    with ampi.Tape(**options) as tape:
        x = tape.watch(X0)
        run(x)
    y = [run.arrays[name] for name in "abc"]
    one, many = tape.gradient(y, x, [seed[0] for seed in seeds]), tape.gradient(y, x, seeds=seeds)
    walked = tape.tangent(y[0], x, X0) if options.get("tangents") else None
    return one, many, walked, tape.budget.file.nbytes if tape.budget else 0


def slope(program, direction):
    """The directional derivative by complex step, without ampi."""
    run = Run(program, None, blend_plain, lambda shape: numpy.zeros(shape, complex))
    return run(X0 + 1e-30j * direction).imag / 1e-30


def check(seed):
    """Raise unless a random program has the right gradient, bitwise identical with any number of workers."""
    program = Program(seed)
    value, gradient = differentiated(program, None)
    direction = numpy.random.default_rng(seed).uniform(-1.0, 1.0, 12)
    expected = slope(program, direction)
    numpy.testing.assert_allclose(gradient @ direction, expected, rtol=1e-9, atol=1e-12)
    found = [differentiated(program, workers) for workers in program.workers]  # threads: twice
    for one, bar in found:
        assert one == value
        numpy.testing.assert_allclose(bar, gradient, rtol=1e-12, atol=1e-12)
        assert bar.tobytes() == found[0][1].tobytes(), "another number of workers gives other bits"
    check_forward_modes(program, direction, expected)
    check_vector_modes(program, seed)
    check_files(program, seed)


def check_forward_modes(program, direction, expected):
    """Raise unless forward mode and second order are also right with tasks."""
    _, product = in_forward_modes(program, None, direction)
    found = [in_forward_modes(program, workers, direction) for workers in program.workers[:2]]
    for dot, other in found:
        numpy.testing.assert_allclose(dot, expected, rtol=1e-9, atol=1e-12)
        numpy.testing.assert_allclose(other, product, rtol=1e-9, atol=1e-9)
        assert dot == found[0][0], "other workers give other bits"  # second order rounds in other ways


def check_vector_modes(program, seed):
    """Raise unless forward mode and second order in several directions are those of one direction after the other."""
    count = (2, 5)[seed % 2]  # five: the tangents of kernels are interleaved where no tasks run
    directions = numpy.random.default_rng(seed).uniform(-1.0, 1.0, (count, 12))
    for found, product in [in_vector_modes(program, workers, directions) for workers in program.workers[:2]]:
        for dot, other, direction in zip(found, product, directions):
            expected, second = in_forward_modes(program, None, direction)
            numpy.testing.assert_allclose(dot, expected, rtol=1e-12, atol=1e-12)
            numpy.testing.assert_allclose(other, second, rtol=1e-9, atol=1e-9)


def check_files(program, seed):
    """Raise unless sweeps in one and in several directions, and walks, find the values that have gone to a file."""
    random_numbers = numpy.random.default_rng(seed)
    seeds = [random_numbers.uniform(-1.0, 1.0, (2, *SHAPES[name])) for name in "abc"]
    expected = on_a_tape(program, None, seeds)
    walks = on_a_tape(program, None, seeds, tangents=True)[2]
    least, spill.MIN_BYTES = spill.MIN_BYTES, 8
    try:
        for k, workers in enumerate(program.workers):
            one, many, walked, _ = on_a_tape(program, workers, seeds, memory=64, spill=True, tangents=bool(k))
            numpy.testing.assert_allclose(one, expected[0], rtol=1e-12, atol=1e-12)
            numpy.testing.assert_allclose(many, expected[1], rtol=1e-12, atol=1e-12)
            if k:
                numpy.testing.assert_allclose(walked, walks, rtol=1e-12, atol=1e-12)
    finally:
        spill.MIN_BYTES = least


RUNS = (
    lambda program, workers, direction: differentiated(program, workers),
    lambda program, workers, direction: ampi.jvp(
        Run(program, workers, blend, lambda shape: ampi.numpy.zeros(shape)), (X0,), (direction,)
    ),
    lambda program, workers, direction: ampi.hvp(
        Run(program, workers, blend, lambda shape: ampi.numpy.zeros(shape)), X0, direction
    ),
    lambda program, workers, direction: in_vector_modes(program, workers, numpy.eye(2, 12)),
)
"""The modes in which a race has to be found: gradient, forward mode, second order, several directions."""


def check_race(seed):
    """Raise unless the planted race of a random program is found; returns True, or None if none was planted."""
    program = Program(seed, planted=True)
    if not program.planted:
        return None
    direction = numpy.ones(12)
    for workers, run in zip((*program.workers[:2], *program.workers[:2]), RUNS):
        try:
            run(program, workers, direction)
        except ampi.ActivityError as error:
            assert "at the same time" in str(error), error
        else:
            raise AssertionError("a race was not found")
    return True

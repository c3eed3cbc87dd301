"""Random programs with tasks and time loops: loops whose steps submit tasks, loops in tasks, and both."""

import contextlib
import itertools
import random
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy

import ampi
import ampi.numpy as np

N = 6


@ampi.kernel
def mix(u, v, out):
    for i in range(len(out)):
        out[i] = 0.7 * u[i] + 0.2 * u[i] * v[len(v) - 1 - i]


class Now:
    """An executor that runs each task when it is submitted."""

    def submit(self, function, *arguments):
        return Done(function(*arguments))


class Done:
    """The future that `Now` returns."""

    def __init__(self, found):
        self.found = found

    def result(self):
        return self.found


class Loops:
    """A random program; ``kinds`` describes it."""

    def __init__(self, seed):
        draw = self.draw = random.Random(seed)
        self.workers = draw.choice((1, 2, 4))
        self.steps = draw.randrange(1, 9)
        self.checkpoints = draw.choice((None, 1, 2, 3, 20))
        self.in_place = draw.random() < 0.4
        self.by_kernel = draw.random() < 0.4
        self.parts = draw.choice((1, 2, 3))
        self.where = draw.choice(("outside", "outside", "in a task", "beside a task", "two at once"))
        self.carried = self.where == "outside" and draw.random() < 0.25
        self.own_pool = draw.random() < 0.3
        self.chained = draw.random() < 0.4

    @property
    def kinds(self):
        names = ("workers", "steps", "checkpoints", "in_place", "by_kernel", "parts", "where", "carried", "own_pool")
        return {name: getattr(self, name) for name in (*names, "chained")}

    def run(self, x, by_tasks):
        with ThreadPoolExecutor(self.workers) if by_tasks else contextlib.nullcontext(Now()) as self.pool:
            self.late = None
            if self.where == "outside":
                found = self.loop(x * 1.0, by_tasks)
            elif self.where == "in a task":
                found = self.pool.submit(self.loop, x * 1.0, False).result()
            elif self.where == "beside a task":
                other = self.pool.submit(np.cos, x)
                found = self.loop(x * 1.0, by_tasks and self.workers > 1)
                found = found * other.result()
            else:
                both = [self.pool.submit(self.loop, x * k, False) for k in (1.0, 0.5)]
                found = both[0].result() * both[1].result()
            if self.late is not None:
                found = found + self.late.result()
        return np.sum(found * found)

    def loop(self, u, by_tasks):
        def step(u):
            return self.step(u, by_tasks)

        options = {} if self.checkpoints is None else {"checkpoints": self.checkpoints}
        return ampi.timeloop(step, u, steps=self.steps, **options)

    def step(self, u, by_tasks):
        if self.own_pool and by_tasks:
            with ThreadPoolExecutor(2) as pool:
                return self.compute(u, pool)
        return self.compute(u, self.pool if by_tasks else Now())

    def compute(self, u, pool):
        new = np.zeros(N)
        ends = numpy.linspace(0, N, self.parts + 1).astype(int)
        tasks = []
        for a, b in itertools.pairwise(ends):
            before = tasks[-1:] if self.chained else []
            tasks.append(pool.submit(self.part, u, new, a, b, before))
        if self.carried and self.late is not None:
            new = self.finished(tasks, new) + 0.1 * self.late.result()
        else:
            new = self.finished(tasks, new)
        if self.carried:
            self.late = pool.submit(np.sin, new)
        if self.in_place:
            u[:] = new
            return u
        return new

    @staticmethod
    def finished(tasks, new):
        for task in tasks:
            task.result()
        return new

    def part(self, u, new, a, b, before):
        for task in before:
            task.result()
        if self.by_kernel:
            mix(u[a:b], u, new[a:b])
        else:
            new[a:b] = 0.7 * u[a:b] + 0.2 * u[a:b] * u[::-1][a:b]
        if before:
            new[a:b] *= 1.0 + 0.1 * new[a - 1]


def check(seed):
    """Raise unless a random program has the gradient of its serial run, or both are refused; return the refusal."""
    program = Loops(seed)
    x = numpy.linspace(0.3, 0.9, N)
    runs = [False, True, True]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.PerformanceWarning)
        found, errors = [], []
        for by_tasks in runs:
            try:
                found.append(ampi.grad(lambda x: program.run(x, by_tasks))(x))  # noqa: B023
            except (ampi.ActivityError, ampi.TapeError) as error:
                if not program.carried:  # what steps pass on has to be in the state
                    raise
                errors.append(str(error))
    if errors:
        assert len(errors) >= 2 and all("step" in e or "thread" in e for e in errors), (program.kinds, errors)
        return errors[-1]
    numpy.testing.assert_allclose(found[1], found[0], rtol=1e-12, err_msg=str(program.kinds))
    assert found[1].tobytes() == found[2].tobytes()
    return None

"""Random programs with tasks on other ranks, by an MPICommExecutor, compared with a serial run."""

import random
from concurrent.futures import CancelledError

import numpy
from mpi4py import MPI

import ampi
import ampi.numpy as np
from ampi.futures import MPICommExecutor, as_completed, wait


class Stop(Exception):
    """The exception that tasks raise."""


def weigh(x, y, factor=1.0):
    return np.sin(x * y) * factor


def in_place(x, y):
    """Compute in place, on copies of the arguments, as tasks on other ranks do."""
    x = x * 1.0
    x[::2] *= y[::2]
    x[1] = np.sum(y)
    return {"found": x, "parts": (np.sum(x), [y * 1.0, 3])}


def contract(given):
    (x, scale), y = given["pair"], given["other"]
    return np.outer(x, y) @ x * scale


def narrow(x, dtype="f4"):
    return (x.astype(dtype) * x.astype(dtype)).real.astype("f8")


def scalar(x):
    return np.sum(x**2) * 0.3


def fail(x):
    _ = x * x
    raise Stop(7)


def constant(n):
    return numpy.arange(float(n)), "text"


def chosen(x):
    """Use a gradient inside a task."""
    return ampi.grad(lambda z: np.sum(z**3))(ampi.value(x)) * x


class Serial:
    """An executor that runs each task when it is submitted."""

    def submit(self, function, *arguments, **keywords):
        return Done(function, arguments, keywords)

    def map(self, function, *iterables, chunksize=1):
        return map(function, *iterables)

    def starmap(self, function, iterable, chunksize=1):
        return (function(*arguments) for arguments in iterable)


class Done:
    def __init__(self, function, arguments, keywords):
        self.found = self.error = None
        try:
            self.found = function(*arguments, **keywords)
        except Stop as error:
            self.error = error

    def result(self):
        if self.error is not None:
            raise self.error
        return self.found


class Program:
    """A random program: a function of the executor and an array, which draws the same steps in each run."""

    def __init__(self, seed):
        self.seed = seed

    def body(self, pool, x):
        """The program, run on the root."""
        draw = random.Random(self.seed)
        serial = isinstance(pool, Serial)
        values, futures = [x, x * 0.5 + 0.1, np.cos(x)], []
        own = x * 1.0  # which is overwritten
        total = np.zeros(())

        def value():
            return draw.choice([*values, own, own[::-1], x[1:4].repeat(2)[:5]])

        def use(found):
            if isinstance(found, dict):
                found = found["found"] * found["parts"][0] + found["parts"][1][0] * found["parts"][1][1]
            if isinstance(found, tuple):
                found = found[0][:1] * np.ones(5)
            values.append(0.4 * np.tanh(found) + 0.1 * x)

        def submitted():
            kind = draw.choice(("weigh", "in place", "contract", "narrow", "scalar", "fail", "constant", "chosen"))
            if kind == "weigh":
                return pool.submit(weigh, value(), y=value(), factor=draw.choice((0.5, values[-1][2])))
            if kind == "in place":
                return pool.submit(in_place, value(), value())
            if kind == "contract":
                return pool.submit(contract, {"pair": [value(), 0.3], "other": value()})
            if kind == "narrow":
                return pool.submit(narrow, value(), draw.choice(("f4", "c16", "f8")))
            function = {"scalar": scalar, "fail": fail, "constant": constant, "chosen": chosen}[kind]
            return pool.submit(function, 5 if kind == "constant" else value())

        for _ in range(draw.randrange(6, 20)):
            what = draw.random()
            if what < 0.5:
                futures.append(submitted())
            elif what < 0.75 and futures:
                future = futures.pop(draw.randrange(len(futures)))
                try:
                    use(future.result())
                except Stop as error:
                    assert error.args == (7,)
            elif what < 0.8 and futures:
                if not serial:
                    few = futures[:3]
                    for _ in as_completed(few) if draw.random() < 0.5 else wait(few).done:
                        pass
                else:
                    draw.random()
            elif what < 0.9:
                size, given = draw.choice((1, 1, 3)), [value() for _ in range(4)]
                if draw.random() < 0.5:
                    found = pool.map(weigh, given, given[::-1], chunksize=size)
                else:
                    found = pool.starmap(weigh, [(a, own) for a in given], chunksize=size)
                total = total + sum(np.sum(y) * (k + 1.0) for k, y in enumerate(found))
            elif what < 0.95:
                own[draw.randrange(5)] *= 0.7  # tasks have the values of before
            else:
                with ampi.passive():
                    factor = pool.submit(scalar, value()).result()
                total = total + np.sum(value()) * ampi.value(factor)
        if futures and draw.random() < 0.3:
            last = futures.pop()
            if not serial:
                last.cancel()
                try:
                    last.exception()
                except CancelledError:
                    pass
        for k, y in enumerate([*values, own]):
            total = total + np.sum(y**2) * (k + 1.0)
        return total

    def serially(self, x):
        return self.body(Serial(), x)

    def on_ranks(self, comm, root):
        def f(x):
            total = None
            with MPICommExecutor(comm, root=root) as pool:
                if pool is not None:
                    total = self.body(pool, x)
            return total

        return f


X0 = numpy.linspace(0.3, 1.2, 5)


def check(seed, comm=ampi.COMM_WORLD):
    """Raise unless a random program has the values and derivatives of its serial run; collective."""
    program = Program(seed)
    root = seed % comm.size
    f = program.on_ranks(comm, root)
    mode = ("value_and_grad", "value_and_grad", "jvp", "hvp")[seed // 5 % 4]
    direction = numpy.random.default_rng(seed).uniform(-1.0, 1.0, 5)
    if mode == "jvp":
        found, expected = (ampi.jvp(g, (X0,), (direction,)) for g in (f, program.serially))
    elif mode == "hvp":
        found, expected = (ampi.hvp(g, X0, direction) for g in (f, program.serially))
    else:
        found, expected = (ampi.value_and_grad(g)(X0) for g in (f, program.serially))
        again = ampi.grad(f)(X0)
        assert again.tobytes() == found[1].tobytes(), "another run gives other bits"
    if comm.rank == root:
        for one, other in zip(*((found, expected) if mode != "hvp" else ((found,), (expected,)))):
            numpy.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)
    elif mode == "value_and_grad":
        assert not found[1].any()


def check_apart(seed, pool):
    """Raise unless a random program is right with a pool whose workers do not run it; on the root of the pool."""
    program = Program(seed)
    f, g = (lambda x: program.body(pool, x)), program.serially
    directions = numpy.random.default_rng(seed).uniform(-1.0, 1.0, (3, 5))
    mode = ("value_and_grad", "second order", "jvp", "several", "walk", "value_and_grad")[seed % 6]
    if mode == "jvp":
        found, expected = (ampi.jvp(h, (X0,), (directions[0],)) for h in (f, g))
    elif mode == "several":
        found, expected = (
            (
                *ampi.jvp(h, (X0,), (directions,), vectorised=True),
                ampi.jacrev(lambda x, h=h: h(x) * np.ones(2), X0, comm=MPI.COMM_SELF),
            )
            for h in (f, g)
        )
    elif mode == "second order":
        found, expected = (
            (ampi.hvp(h, X0, directions[0]), ampi.hvp(h, X0, directions, vectorised=True)) for h in (f, g)
        )
    elif mode == "walk":
        found, expected = ((value, push(directions[1])) for value, push in (ampi.linearize(h, X0) for h in (f, g)))
    else:
        found, expected = (ampi.value_and_grad(h)(X0) for h in (f, g))
        assert ampi.grad(f)(X0).tobytes() == found[1].tobytes(), "another run gives other bits"
    for one, other in zip(found, expected):
        numpy.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12)


if __name__ == "__main__":
    import sys

    from mpi4py.futures import MPIPoolExecutor

    first, count = map(int, sys.argv[1:3])
    pool = MPIPoolExecutor() if sys.argv[3:] == ["apart"] else None
    for seed in range(first, first + count):
        try:
            check(seed) if pool is None else check_apart(seed, pool)
        except BaseException:
            print(f"rank {ampi.COMM_WORLD.rank}: seed {seed}", flush=True)
            import traceback

            traceback.print_exc()
            MPI.COMM_WORLD.Abort(1)
    print("fine", flush=True)

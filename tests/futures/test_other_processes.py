"""Active arrays given to other processes: an error that names the line, the argument and the array, and no hang."""

import re
import subprocess
import sys
import textwrap

import pytest
from patience import patience

PROGRAM = """
    import functools, multiprocessing, sys, threading, numpy
    from concurrent.futures import ProcessPoolExecutor
    import ampi, ampi.numpy as np

    state = {}

    class Model:
        def __init__(self, x):
            self.parts = [{"x": x}]

    class Worker(multiprocessing.get_context(sys.argv[1]).Process):
        def __init__(self, x):
            super().__init__()
            self.x = x

        def run(self):
            pass

    def total(x, k=1.0):
        return float(numpy.sum(x) * k)

    def of_model(model):
        return 1.0

    def of_global(k):
        return inner(k)

    def inner(k):
        return np.sum(k * state["x"])

    def setup(x):
        state["y"] = x

    def again(x, k):
        while True:
            yield x * k

    def cases(x, context):
        state["x"] = x
        with ProcessPoolExecutor(1, mp_context=context) as pool:
            yield "submit", lambda: pool.submit(total, x)
            yield "keyword", lambda: pool.submit(total, 1.0, k=x[0])
            yield "map", lambda: list(pool.map(total, [1.0, x], chunksize=2))
            yield "object", lambda: pool.submit(of_model, Model(x))
            yield "partial", lambda: pool.submit(functools.partial(total, x))
            yield "method", lambda: pool.submit(Model(x).__init__, 1.0)
            yield "global", lambda: pool.submit(of_global, 1.0)
            with ampi.passive():
                assert pool.submit(total, x).result() == 6.0
            assert pool.submit(total, ampi.value(x), 2.0).result() == 12.0
        with context.Pool(1) as pool:
            yield "apply", lambda: pool.apply(total, (x,))
            yield "apply_async", lambda: pool.apply_async(total, (1.0,), {"k": x[0]})
            yield "pool.map", lambda: pool.map(total, [x, 2.0 * x])
            yield "starmap", lambda: pool.starmap(total, [(1.0, x[0])])
            yield "imap", lambda: next(pool.imap(total, [x]))
            yield "imap of no end", lambda: next(pool.imap_unordered(total, again(x, 1.0)))
            assert pool.map(total, [numpy.ones(3)] * 3) == [3.0] * 3
            assert pool.apply(total, (ampi.value(x),)) == 6.0
        yield "initializer", lambda: context.Pool(1, setup, (x,)).terminate()
        yield "process", lambda: context.Process(target=total, args=(x,)).start()
        yield "subclass", lambda: Worker(x).start()
        queue, simple, (near, far) = context.Queue(), context.SimpleQueue(), context.Pipe()
        yield "queue", lambda: queue.put(x)
        yield "simple queue", lambda: simple.put([x])
        yield "pipe", lambda: near.send({"x": x})
        queue.put(numpy.ones(2))
        assert queue.get().sum() == 2.0

    def f(x):
        for name, call in cases(x, multiprocessing.get_context(sys.argv[1])):
            try:
                call()
            except ampi.ActivityError as error:
                print(name, "|", error)
            else:
                print(name, "| NOTHING")
        return np.sum(x)

    if __name__ == "__main__":
        print(ampi.grad(f)(numpy.array([1.0, 2.0, 3.0])))
"""

GIVEN = {
    "submit": "argument x of total, float64 of shape",
    "keyword": "argument k of total",
    "map": "argument x of total",
    "object": "argument model of of_model",
    "partial": "the function total",
    "method": "the function __init__",
    "global": "reads the global state",
    "apply": "argument x of total",
    "apply_async": "argument k of total",
    "pool.map": "an item for total",
    "starmap": "an item for",
    "imap": "an item for total",
    "imap of no end": "",
    "initializer": "argument",
    "process": "argument x of total",
    "subclass": "attribute x",
    "queue": "the object",
    "simple queue": "the object",
    "pipe": "the object",
}


def run(*arguments, timeout=60):
    """Run Python without mpiexec, which children that are spawned would call in vain."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=patience(timeout))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_all_ways_to_other_processes(tmp_path, method):
    (tmp_path / "program.py").write_text(textwrap.dedent(PROGRAM))
    result = run(tmp_path / "program.py", method)
    assert result.returncode == 0, result.stderr
    said = dict(line.split(" | ", 1) for line in result.stdout.splitlines() if " | " in line)
    assert said.keys() == GIVEN.keys()
    for name, given in GIVEN.items():
        assert given in said[name], said[name]
        if name != "imap of no end":  # its generator computes in a thread of the pool, where nothing records
            assert re.search(r"program\.py:\d+: ", said[name]), said[name]
    assert "[1. 1. 1.]" in result.stdout
    assert "Warning" not in result.stderr


UNMODIFIED = """
    import multiprocessing, sys
    import numpy as np
    from concurrent.futures import ProcessPoolExecutor
    from mpi4py import MPI

    x = np.linspace(0.5, 1.0, 4)

    def member(x, k):
        return np.sum(np.sin(k * x))

    def of_global(k):
        return np.sum(np.sin(k * x))

    if __name__ == "__main__":
        executor = ProcessPoolExecutor(2, mp_context=multiprocessing.get_context(sys.argv[1]))
        executor.submit(max, 1, 2).result()  # the workers are running
        function, arguments = (member, [x]) if sys.argv[2] == "member" else (of_global, [])
        loss = sum(f.result() for f in [executor.submit(function, *arguments, k) for k in range(3)])
"""


@pytest.mark.parametrize(("method", "function"), [("fork", "member"), ("spawn", "of_global")])
def test_unmodified_programs_end_with_an_error(tmp_path, method, function):
    (tmp_path / "program.py").write_text(textwrap.dedent(UNMODIFIED))
    result = run("-m", "ampi.run", "--wrt", "x", "--of", "loss", tmp_path / "program.py", method, function)
    assert result.returncode != 0
    assert re.search(r"ActivityError: .*program\.py:\d+: .*ProcessPoolExecutor", result.stderr), result.stderr

"""Costs of tapes: a memory budget that moves most values to a file, and bytes of small records."""

import gc
import statistics
import time
import tracemalloc
from collections.abc import Iterator

import numpy

import ampi
import ampi.numpy as np

BAR, STRETCH = 1.3, 1.1
LINEAR = 1.25, 1.1  # the cost of a record in a tape of a million, against one of a hundred thousand


@ampi.kernel
def react(u, new, c):
    """Reaction and diffusion: some flops for each number that is read."""
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1] - 4.0 * u[i, j]
            new[i, j] = u[i, j] + c * around * numpy.exp(-u[i, j]) + c * numpy.sin(u[i, j]) ** 2


def taped(steps: int, x0: numpy.ndarray, **budget) -> tuple:
    """A tape of so many steps, and the seconds of its recording and its sweep."""
    start = time.perf_counter()
    with ampi.Tape(**budget) as tape:
        x = tape.watch(x0)
        u, v = x * 1.0, np.array(x0)
        for _ in range(steps):
            react(u, v, 0.01)
            u, v = v, u
        y = np.sum(u)
    middle = time.perf_counter()
    gradient = tape.gradient(y, x)
    return tape, gradient, middle - start, time.perf_counter() - middle


def rows(repeat: int) -> Iterator[dict]:
    """Recording and sweep of a tape of ten times its budget, against one in memory; and small records."""
    x0 = numpy.random.default_rng(0).uniform(0.5, 1.5, (600, 600))
    steps = 100
    tape, expected, *_ = taped(steps, x0)
    saved = tape.saved_bytes
    times: dict[str, list] = {"memory": [], "file": []}
    for n in range(repeat + 1):
        for kind, budget in (("memory", {}), ("file", {"memory": saved // 10, "spill": True})):
            tape, gradient, *found = taped(steps, x0, **budget)
            assert (gradient == expected).all()
            times[kind] += [found] * bool(n)
            del tape, gradient
    names = "recording", "sweep", "recording and sweep"
    for name, pick in zip(names, (lambda t: t[0], lambda t: t[1], sum)):
        primal, gradient = (statistics.median(map(pick, times[kind])) for kind in ("memory", "file"))
        bars = {"bar": BAR, "stretch": STRETCH} if name == "sweep" else {}
        yield {
            "name": f"budget {name}",
            "what": f"budget: {name} of a tape of ten times its budget, and in memory",
            "primal": primal,
            "gradient": gradient,
            "value": gradient / primal,
            "unit": "x",
            "note": f"{saved / 2**20:.0f} MiB, {0.9 * saved / gradient / 2**20:.0f} MiB/s to and from the file",
            **bars,
        }
    yield from small_records()


def swept(records: int) -> tuple[float, float]:
    """Seconds of recording and sweeping so many operations on arrays of two elements, for each of them."""
    gc.collect()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, 0.5))
        u = x * 1.0
        start = time.perf_counter()
        for _ in range(records):
            u *= 0.999999
        middle = time.perf_counter()
        y = np.sum(u)
    swept_from = time.perf_counter()
    tape.gradient(y, x)
    return (middle - start) / records, (time.perf_counter() - swept_from) / records


def small_records() -> Iterator[dict]:
    """A million of them against a hundred thousand."""
    swept(1000)
    tracemalloc.start()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, 0.5))
        u = x * 1.0
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(20_000):
            u *= u
        nbytes = (tracemalloc.get_traced_memory()[0] - before) / 20_000
    tracemalloc.stop()
    assert len(tape) > 20_000
    yield {
        "name": "bytes of a record",
        "what": "bytes of a small record with an old value",
        "value": nbytes,
        "unit": "B",
    }
    few, many = swept(100_000), swept(1_000_000)
    for name, a, b in zip(("recording", "sweep"), few, many):
        yield {
            "name": f"small records {name}",
            "what": f"small records: {name} of a million, each against those of 100,000",
            "primal": a * 100_000,
            "gradient": b * 1_000_000,
            "value": b / a,
            "unit": "x",
            "bar": LINEAR[0],
            "stretch": LINEAR[1],
        }

"""Costs of Python loops over single elements, and of NumPy's functions of small arrays, relative to NumPy alone."""

import numpy
from local import interleaved, seconds

import ampi
import ampi.numpy

N = 100
BARS = {"idle": (2.0, 1.5), "recording": (15.0, 10.0), "sweep": (10.0, 2.0)}
SMALL = {
    "product": lambda x, c: x * c,
    "sum": lambda x, c: x + c,
    "sine": lambda x, c: numpy.sin(x),
}
CALLS = 500
MICROSECONDS = 5.0
"""The bar of what a recorded function of a small array may take beside NumPy's, and its sweep."""


def update(g):
    """Σ over all paths to an element: an update of each from three others."""
    n, m = g.shape
    for i in range(1, n):
        for j in range(1, m):
            g[i, j] = g[i - 1, j] + g[i, j - 1] - g[i - 1, j - 1]


def rows(repeat: int) -> list[dict]:
    return [*elements(repeat), *small_arrays(repeat)]


def elements(repeat: int) -> list[dict]:
    start = numpy.random.default_rng(7).standard_normal((N, N))
    seed = numpy.ones((N, N))
    state: dict = {}

    def record() -> float:
        with ampi.Tape() as tape:
            x = tape.watch(start)
            g = x.copy()
            taken = seconds(lambda: update(g))
        state.update(tape=tape, x=x, g=g)
        return taken

    def sweep() -> float:
        return seconds(lambda: state["tape"].gradient(state["g"], state["x"], seed=seed))

    def idle() -> float:
        g = ampi.numpy.array(start)
        return seconds(lambda: update(g))

    def plain() -> float:
        g = start.copy()
        return seconds(lambda: update(g))

    primal, *found = interleaved([plain, idle, record, sweep], repeat)
    made = state["tape"].elements
    used = sum(8 * (len(s.integers) + len(s.reals)) for s in made.statements) + 8 * made.count
    notes = {"recording": f"{used / (N - 1) ** 2:.0f} bytes an update on the tape"}
    return [
        {
            "name": f"loops_{kind}",
            "what": f"updates of single elements, {N} x {N}: {kind}",
            "primal": primal,
            "gradient": taken,
            "value": taken / primal,
            "unit": "x",
            "bar": BARS[kind][0],
            "stretch": BARS[kind][1],
            **({"note": notes[kind]} if kind in notes else {}),
        }
        for kind, taken in zip(BARS, found)
    ]


def small_arrays(repeat: int) -> list[dict]:
    start = numpy.random.default_rng(8).uniform(0.5, 1.0, 10)
    found = []
    for name, function in SMALL.items():
        state: dict = {}

        def plain(function=function) -> float:
            return seconds(lambda: [function(start, start) for _ in range(CALLS)]) / CALLS

        def record(function=function, state=state) -> float:
            with ampi.Tape() as tape:
                x = y = tape.watch(start)

                def work() -> None:
                    nonlocal y
                    for _ in range(CALLS):
                        y = function(y, start)

                taken = seconds(work)
            state.update(tape=tape, x=x, y=y)
            return taken / CALLS

        def sweep(state=state) -> float:
            seed = numpy.ones(10)
            return seconds(lambda: state["tape"].gradient(state["y"], state["x"], seed=seed)) / CALLS

        primal, recorded, swept = interleaved([plain, record, sweep], repeat)
        for kind, taken in (("recorded, beside NumPy's time", recorded - primal), ("swept", swept)):
            found.append(
                {
                    "name": f"small_{name}_{kind.partition(',')[0]}",
                    "what": f"{name} of 10 elements: {kind}",
                    "primal": primal,
                    "gradient": taken,
                    "value": 1e6 * taken,
                    "unit": "us",
                    "bar": MICROSECONDS,
                    "stretch": MICROSECONDS / 2,
                }
            )
    return found

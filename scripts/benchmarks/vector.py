"""Cost of a sweep for eight seeds, relative to eight sweeps over the same tape.

``rows`` measures a heat equation here, and LULESH in a separate process, which runs::

    python vector.py SIZE REPEAT
"""

import json
import sys

import lulesh
import numpy
from local import interleaved, seconds
from programs import PROGRAMS, random

import ampi
import ampi.numpy

DIRECTIONS = 8
POINTS = 1_000, 200_000  # in the heat equation, whose 50 steps are calls of one kernel
SIZES = 10, 20  # of LULESH


def rows(repeat: int) -> list[dict]:
    """Ratios of the times."""
    found = [row(f"heat_1d_{n}", f"50 steps of heat 1D, {n} points", *heat(n, repeat)) for n in POINTS]
    for size in SIZES:
        taken = lulesh.start(1, size, repeat, script=__file__)
        where = f"a cycle of LULESH, 1 rank -s {size}"
        found.append(row(f"lulesh_{size}", where, *taken["seeds"]))
        found.append(row(f"lulesh_jvp_{size}", where, *taken["tangents"], of="tangents in one run"))
    return found


def row(name: str, what: str, together: float, single: float, of: str = "seeds in one sweep") -> dict:
    return {
        "name": f"vector_{name}",
        "what": f"{DIRECTIONS} {of}: {what}",
        "gradient": together,
        "value": together / single,
        "unit": "x",
        "bar": 0.5,
        "stretch": 1 / 3,
        "note": f"{single * 1e3:.3f} ms one after the other",
    }


def both(tape, y, x, seeds, repeat: int) -> list[float]:
    """Medians of the sweep for all seeds, and of all sweeps for one; the results have to be the same,
    but for the order in which kernels with ``fastmath`` add up (LULESH's)."""

    def together():
        return tape.gradient(y, x, seeds=seeds)

    def single():
        return [tape.gradient(y, x, seed=seed) for seed in seeds]

    return compared(together, single, repeat)


def compared(together, single, repeat: int) -> list[float]:
    for j, found in enumerate(single()):
        for a, b in zip(together(), found):
            numpy.testing.assert_allclose(a[j], b, rtol=1e-12, atol=1e-12 * abs(b).max())
    return interleaved([lambda: seconds(together), lambda: seconds(single)], repeat)


def both_forward(f, x, tangents, repeat: int) -> list[float]:
    """The same of runs in forward mode."""

    def together():
        return [ampi.jvp(f, x, tangents, vectorised=True)[1]]

    def single():
        return [[ampi.jvp(f, x, tuple(t[j] for t in tangents))[1]] for j in range(DIRECTIONS)]

    return compared(together, single, repeat)


def heat(points: int, repeat: int) -> list[float]:
    program = PROGRAMS["heat_1d"]()
    kernel = ampi.kernel(program.kernel, error_model="numpy")
    with ampi.Tape() as tape:
        u = tape.watch(random(points))
        y = program.run(ampi.numpy, kernel, u)
    return both(tape, y, [u], random(DIRECTIONS, points, seed=9), repeat)


def main() -> None:
    sys.path[:0] = [str(lulesh.ROOT / "examples" / "lulesh")]
    from sedov import backend, hydro, sensitivity
    from sedov.domain import Domain

    size, repeat = map(int, sys.argv[1:])
    domain = Domain(backend.COMM_WORLD, size)
    for _ in range(lulesh.WARM_CYCLES):
        hydro.advance(domain)
    state = sensitivity.save(domain)
    with ampi.Tape() as tape:
        watched = [tape.watch(getattr(domain, name)) for name in sensitivity.INDEPENDENTS]
        sensitivity.run_cycles(domain, 1)
    energy = domain.energy
    seeds = random(DIRECTIONS, *energy.shape, seed=9)
    times = {"seeds": both(tape, energy, watched, seeds, repeat)}
    x = tuple(state[name] for name in sensitivity.INDEPENDENTS)
    tangents = tuple(1e-6 * random(DIRECTIONS, *a.shape, seed=k) for k, a in enumerate(x))
    times["tangents"] = both_forward(lulesh.energy_of_a_cycle(domain, state), x, tangents, repeat)
    print(json.dumps(times), flush=True)


if __name__ == "__main__":
    main()

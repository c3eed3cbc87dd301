"""Costs of forward mode and second order: LULESH and miniBUDE.

``rows`` starts the measurements, each in a separate process, which runs one of::

    python modes.py lulesh SIZE REPEAT
    python modes.py minibude REPEAT
"""

import dataclasses
import json
import sys

import lulesh
import minibude
import numpy
from local import interleaved, seconds

import ampi
import ampi.numpy

SIZE = 30  # of LULESH: the second programs of its kernels are compiled for minutes the first time


def rows(repeat: int) -> list[dict]:
    """Ratios of times, and of memory."""
    blast = lulesh.start(1, "lulesh", SIZE, repeat, script=__file__)
    docking = lulesh.start(1, "minibude", max(3, repeat // 5), script=__file__)
    where = f"a cycle of LULESH, 1 rank -s {SIZE}"
    poses = f"miniBUDE with respect to the protein, {minibude.POSES} poses"
    of_memory = f"{blast['hvp_bytes'] / 2**20:.0f} MiB against {blast['gradient_bytes'] / 2**20:.0f} MiB"
    return [
        row("lulesh_jvp", f"jvp against the primal: {where}", blast, "jvp", "primal", 2.0),
        row("lulesh_hvp", f"hvp against the gradient: {where}", blast, "hvp", "gradient", 2.5, 2.0),
        row(
            "lulesh_hvp_memory",
            f"memory of hvp against the gradient's: {where}",
            blast,
            "hvp_bytes",
            "gradient_bytes",
            3,
        )
        | {"note": of_memory},
        row("minibude_jvp", f"jvp against the primal: {poses}", docking, "jvp", "primal", 2.0),
    ]


def row(name: str, what: str, found: dict, one: str, other: str, bar: float, stretch: float | None = None) -> dict:
    return {
        "name": name,
        "what": what,
        "value": found[one] / found[other],
        "unit": "x",
        "bar": bar,
        "stretch": bar if stretch is None else stretch,
        "note": f"{found[one] * 1e3:.1f} ms against {found[other] * 1e3:.1f} ms",
    }


def of_lulesh(size: int, repeat: int) -> dict:
    """Medians of a cycle's primal, jvp, gradient and hvp, in turn, and peaks of memory."""
    sys.path[:0] = [str(lulesh.ROOT / "examples" / "lulesh")]
    import resident
    from sedov import backend, hydro, sensitivity
    from sedov.domain import Domain

    names = list(sensitivity.INDEPENDENTS)

    def works(domain):
        state = sensitivity.save(domain)
        x = tuple(state[name] for name in names)
        v = tuple(numpy.random.default_rng(k).uniform(-1, 1, a.shape) * 1e-6 for k, a in enumerate(x))

        energy = lulesh.energy_of_a_cycle(domain, state)
        with_gradient = ampi.grad(energy, tuple(range(len(names))))
        return {
            "primal": lambda: energy(*x),
            "jvp": lambda: ampi.jvp(energy, x, v),
            "gradient": lambda: with_gradient(*x),
            "hvp": lambda: ampi.hvp(energy, x, v),
        }

    for work in works(Domain(backend.COMM_SELF, 2)).values():
        work()  # compiles, or loads
    domain = Domain(backend.COMM_WORLD, size)
    for _ in range(lulesh.WARM_CYCLES):
        hydro.advance(domain)
    measured = works(domain)
    base = resident.settle()
    peaks = {f"{name}_bytes": resident.peak(measured[name], base) for name in ("gradient", "hvp")}
    times = interleaved([lambda work=work: seconds(work) for work in measured.values()], repeat)
    return dict(zip(measured, times)) | peaks


def of_minibude(repeat: int) -> dict:
    """Medians of the primal and jvp, in turn."""
    sys.path[:0] = [str(minibude.ROOT / "examples" / "minibude")]
    from docking import energy
    from docking.deck import read_deck

    deck = read_deck(minibude.DECK)
    poses = numpy.resize(deck.poses.T, (minibude.POSES, len(deck.poses))).T.copy()
    deck = dataclasses.replace(deck, poses=poses)

    def program(protein):
        energies = ampi.numpy.empty(minibude.POSES, deck.poses.dtype)
        return energy.pose_energies(dataclasses.replace(deck, protein=protein), energies)

    v = numpy.ones_like(ampi.value(deck.protein))
    works = [lambda: program(deck.protein), lambda: ampi.jvp(program, deck.protein, v)]
    for work in works:
        work()
    return dict(zip(("primal", "jvp"), interleaved([lambda work=work: seconds(work) for work in works], repeat)))


def main() -> None:
    what, *numbers = sys.argv[1:]
    print(json.dumps({"lulesh": of_lulesh, "minibude": of_minibude}[what](*map(int, numbers))), flush=True)


if __name__ == "__main__":
    main()

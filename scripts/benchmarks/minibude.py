"""Costs of miniBUDE and its gradients for 65,536 poses on one core."""

import dataclasses
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DECK = ROOT / "tests" / "data" / "bm1"  # some of its poses, taken several times
POSES = 65536
BARS = {"protein": (1.35, 1.0), "poses": (1.35, 1.0), "parameters": (1.35, 1.0), "all three": (1.6, 1.25)}
WITH_RESPECT_TO = {"parameters": "force-field parameters", "protein": "protein coordinates"}


def rows(repeat: int) -> list[dict]:
    """Primal, and the gradients with respect to protein, poses and parameters, apart and together."""
    primal, *gradients = times(repeat, list(BARS))
    found = [
        {
            "name": "minibude_primal",
            "what": f"miniBUDE primal, one core, {POSES} poses of bm1",
            "value": primal,
            "unit": "s",
            "bar": 0.55,
            "stretch": 0.45,
            "scale": "pairs",
        }
    ]
    for what, median in zip(BARS, gradients):
        bar, stretch = BARS[what]
        found.append(
            {
                "name": f"minibude_{what.replace(' ', '_')}",
                "what": f"miniBUDE gradient with respect to {WITH_RESPECT_TO.get(what, what)}",
                "primal": primal,
                "gradient": median,
                "value": median,
                "unit": "s",
                "bar": bar,
                "stretch": stretch,
                "scale": "pairs",
                "note": f"{median / primal:.2f} x its own primal",
            }
        )
    return found


def threads(repeat: int) -> list[dict]:
    """Two threads against one; nothing where there may be only one."""
    from numba import config

    if config.NUMBA_NUM_THREADS < 2:
        print(f"miniBUDE on two threads: left out, Numba may use {config.NUMBA_NUM_THREADS}", file=sys.stderr)
        return []
    one, two = (times(repeat, ["protein"], threads) for threads in (1, 2))
    return [
        {
            "name": f"minibude_threads_{kind}",
            "what": f"miniBUDE {kind}: two threads against one",
            "value": one[k] / two[k],
            "unit": "/",
            "bar": 1.7,
            "stretch": 1.9,
        }
        for k, kind in enumerate(("primal", "gradient"))
    ]


def times(repeat: int, whats: list[str], threads: int = 1) -> list[float]:
    """Medians in seconds: of the primal, and of the gradients with respect to these."""
    sys.path[:0] = [str(ROOT / "examples" / "minibude")]
    import numba
    import numpy
    from docking import energy
    from docking.deck import read_deck
    from local import interleaved, seconds

    import ampi

    deck = read_deck(DECK)
    deck = dataclasses.replace(deck, poses=numpy.resize(deck.poses.T, (POSES, len(deck.poses))).T.copy())
    energies = ampi.numpy.empty(POSES, deck.poses.dtype)
    seed = numpy.ones(POSES, deck.poses.dtype)

    def gradient(names):
        with ampi.Tape() as tape:
            watched = {name: tape.watch(getattr(deck, name)) for name in names}
            y = energy.pose_energies(dataclasses.replace(deck, **watched), energies)
        return tape.gradient(y, list(watched.values()), seed=seed)

    clocks = [lambda: seconds(lambda: energy.pose_energies(deck))]
    for what in whats:
        names = ("protein", "poses", "parameters") if what == "all three" else (what,)
        clocks.append(lambda names=names: seconds(lambda: gradient(names)))
    numba.set_num_threads(threads)
    try:
        return interleaved(clocks, repeat, warm_up=1)
    finally:
        numba.set_num_threads(1)

"""Validation of a model: each measured number of ranks is predicted from the others."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from ampi.scaling.census import PRIMAL, RECORDING, SWEEP
from ampi.scaling.classes import QUANTITIES, Classes, Place, classes_of
from ampi.scaling.loggp import Network
from ampi.scaling.model import Model
from ampi.scaling.study import ScalingError


def described(recorded: Mapping[int, list[dict[str, Any]]], network: Network, scaling: str) -> Iterator[str]:
    """A line for each number of ranks: whether counts, bytes and partners are exact, and the errors of the times.

    Parameters
    ----------
    recorded : dict
        The census of each rank, by number of ranks.
    network : Network
    scaling : str
        The study's kind of scaling.
    """
    yield "Each number of ranks, predicted from the others:"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for ranks in sorted(recorded):
        others = {count: found for count, found in recorded.items() if count != ranks}
        try:
            model = Model(others, network, scaling)
            if ranks < model.extrapolation.first:
                raise ScalingError("it is less than the others that are alike")
            found = model(ranks)
        except ScalingError as error:
            found = None if ranks == min(recorded) else _of_itself(recorded, network, scaling, ranks)
            if found is None:  # its times are those of the computation everywhere, or there are none
                yield f"{ranks:8} not predicted: {error}"
                continue
            counts = f"counts not predicted: {error}"
        else:
            wrong = _differing(found.classes, classes_of(recorded[ranks]))
            counts = f"counts, bytes and partners are not exact: {'; '.join(wrong[:3])}" if wrong else "counts exact"
        times = [
            _compared(phase, found.seconds[phase], max(rank["seconds"][name] for rank in recorded[ranks]))
            for phase, name in ((PRIMAL, RECORDING), (SWEEP, SWEEP))
        ]
        many = f"; more ranks than the {cores} cores here" if ranks > cores else ""
        yield f"{ranks:8} {counts}; {', '.join(times)}{many}"


def _of_itself(recorded: Mapping[int, list[dict[str, Any]]], network: Network, scaling: str, ranks: int) -> Any:
    """The prediction for a number of ranks from all recordings, including that number; None if there is none."""
    try:
        return Model(recorded, network, scaling)(ranks)
    except ScalingError:
        return None


def _compared(phase: str, predicted: float, measured: float) -> str:
    error = f" ({predicted / measured - 1:+.0%})" if measured else ""
    return f"{phase} {predicted:.3g} s for {measured:.3g} s{error}"


def _differing(predicted: Classes, measured: Classes) -> list[str]:
    """The quantities that differ, summed over all ranks, and also their squares so that errors do not cancel."""
    there, here = _sums(predicted), _sums(measured)
    return [
        f"{name} of {' '.join(place[:3])}"
        for place, name in sorted(there.keys() | here.keys())
        if there.get((place, name)) != here.get((place, name))
    ]


def _sums(classes: Classes) -> dict[tuple[Place, str], tuple[Fraction, Fraction]]:
    found: dict[tuple[Place, str], tuple[Fraction, Fraction]] = {}
    for rank in classes.values():
        for place, row in rank.rows.items():
            for name in QUANTITIES if row.calls else ():
                value = Fraction(getattr(row, name))
                once, twice = found.get((place, name), (Fraction(0), Fraction(0)))
                found[place, name] = once + rank.population * value, twice + rank.population * value**2
    return found

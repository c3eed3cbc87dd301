"""Directions in which independents are displaced, for a comparison with differences."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ProgramError
from .gradients import Differentiation


def choose_direction(problem: Differentiation, seed: int) -> bool:
    """Set a direction for each independent, of the size of its elements; return whether one has single precision.

    Values that are equal on all ranks are displaced equally, as the ranks may take decisions by them; `choose_apart`
    displaces them differently.
    """
    texts = {x.text for x in problem.session.independents}
    unknown = sorted(problem.replicated - texts)
    if unknown:
        raise ProgramError(f"--replicated {unknown[0]}: the independents are {', '.join(sorted(texts))}")
    structured = [x.text for x in problem.session.independents if any(v.dtype.names for v in x.values)]
    problem.agree([f"{text} is a structured array, which --check cannot displace" for text in structured])
    singles = False
    for number, independent in enumerate(problem.session.independents):
        values = independent.values
        replicated = all(_alike(problem, values))
        if independent.text in problem.replicated and not replicated:
            raise ProgramError(f"--replicated {independent.text}: the ranks do not all have the same values of it")
        rng = np.random.default_rng([seed, number, 0 if replicated else problem.comm.Get_rank()])
        everything = problem.comm.allreduce(sum(float(np.sum(sizes_of(v))) for v in values))
        independent.direction = [_direction(rng, v, sizes_of(v) if everything else None) for v in values]
        singles |= any(v.dtype in (np.float32, np.complex64, np.float16) for v in values)
    return bool(problem.comm.allreduce(int(singles)))


def choose_apart(problem: Differentiation, seed: int, zeros: bool, texts: list[str]) -> str:
    """Set directions drawn separately on each rank for the independents of these names, except replicated ones; the
    others are displaced equally.

    ``zeros``: elements that are zero are also displaced, by the root mean square of the others.  (A program may need
    some to be zero, at a kink.)  Returns a description of what is displaced here and not by `choose_direction`; empty
    if there is nothing. Collective.
    """
    apart, nought = [], []
    comm = problem.comm
    for number, independent in enumerate(problem.session.independents):
        values = independent.values
        is_one = independent.text in problem.replicated or independent.text not in texts
        if not is_one and any(_alike(problem, values)) and comm.Get_size() > 1:
            apart.append(independent.text)
        rng = np.random.default_rng([seed, number, 0 if is_one else comm.Get_rank(), 1])
        sizes = [sizes_of(v) for v in values]
        square = comm.allreduce(sum(float(np.sum(s**2)) for s in sizes))
        count = comm.allreduce(sum(int(np.count_nonzero(s)) for s in sizes))
        if (
            zeros
            and independent.text in texts
            and count
            and comm.allreduce(sum(int(s.size - np.count_nonzero(s)) for s in sizes))
        ):
            nought.append(independent.text)
            sizes = [np.where(s == 0, math.sqrt(square / count), s) for s in sizes]
        independent.direction = [_direction(rng, v, s if count else None) for v, s in zip(values, sizes)]
    texts = [f"{', '.join(apart)} displaced differently on each rank"] if apart else []
    texts += [f"elements of {', '.join(nought)} that are zero displaced too"] if nought else []
    return " and ".join(texts)


def _alike(problem: Differentiation, values: list) -> list[bool]:
    """For each leaf, whether all ranks have the same values; none if numbers of leaves differ."""
    everywhere = problem.comm.allgather([(v.shape, v.dtype.str, v.tobytes()) for v in values])
    if any(len(one) != len(everywhere[0]) for one in everywhere):
        return [False]
    return [all(one == leaf[0] for one in leaf) for leaf in zip(*everywhere)]


def _direction(rng: Any, values: Any, sizes: Any) -> Any:
    def draw() -> Any:
        return rng.uniform(0.5, 1.5, values.shape) * rng.choice([-1.0, 1.0], values.shape)

    found = draw() + 1j * draw() if values.dtype.kind == "c" else draw()
    return found if sizes is None else found * sizes


def sizes_of(values: Any) -> Any:
    """The sizes of elements; 1 for those that are not finite, as uninitialised memory may be."""
    return np.where(np.isfinite(values), np.abs(values), 1.0)

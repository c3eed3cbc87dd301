"""Comparison of a gradient with finite differences, from runs of the program with displaced independents."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from .displacements import choose_apart, choose_direction, sizes_of
from .gradients import Differentiation, Gradients, NotApart

STEPS = (1e-3, 1e-4, 1e-5, 1e-6)
STEPS_OF_SINGLES = (1e-1, 3e-2, 1e-2, 3e-3)
SHORTER = 1e-2, 1e-3, 1e-5
"""Factors of the last step for shorter ones, tried if the gradient agrees with none: a threshold may be closer."""


@dataclasses.dataclass
class Comparison:
    """The derivative of one dependent along a direction.

    Attributes
    ----------
    text : str
        The dependent.
    exact : float
        ⟨gradient, direction⟩, summed over the ranks.
    steps, differences : list of float
        Steps, and central difference quotients.
    forward, backward : list of float
        One-sided difference quotients.
    noise : float
        The difference of the values of two runs with the same independents.
    scale : float
        The size of the values and of the terms of their sums, to which rounding errors are relative.
    eps : float
        The precision of the arithmetic.
    apart : Comparison or None
        The same along a direction that differs among ranks with equal values, and also displaces elements that are
        zero.
    way : str
        A description of the displacements of ``apart`` that this one does not have.
    note : str
        What has not been compared, and why.
    """

    text: str
    exact: float
    steps: list[float]
    differences: list[float]
    noise: float
    scale: float
    eps: float
    forward: list[float] = dataclasses.field(default_factory=list)
    backward: list[float] = dataclasses.field(default_factory=list)
    apart: Comparison | None = None
    way: str = ""
    note: str = ""

    @property
    def tolerance(self) -> float:
        """The relative difference that is allowed."""
        return 1e-5 if self.eps < 1e-12 else 2e-2

    def error(self, k: int) -> float:
        """The relative difference at a step (at a kink, that of the side that agrees)."""
        side = self.side(k)
        return self._relative(getattr(self, side)[k] if side and not self.agrees(k) else self.differences[k])

    @property
    def curve(self) -> list[tuple[float, float]]:
        """The relative difference at each step, for a plot."""
        return [(step, self.error(k)) for k, step in enumerate(self.steps)]

    @property
    def smallest(self) -> float:
        """The smallest relative difference."""
        return min(map(self.error, range(len(self.steps))))

    def _relative(self, quotient: float) -> float:
        size = max(abs(self.exact), abs(quotient))
        return abs(quotient - self.exact) / size if size else 0.0

    def _rounding(self, k: int) -> float:
        return 8 * self.eps * self.scale / self.steps[k]

    def _is_near(self, quotient: float, k: int) -> bool:
        size = max(abs(self.exact), abs(quotient))
        return abs(quotient - self.exact) <= self.tolerance * size + self._rounding(k)

    def agrees(self, k: int) -> bool:
        """Return whether gradient and difference quotient agree at a step, up to known rounding errors."""
        last = len(STEPS) - 1
        is_told = k <= last or (self._is_clear and self._rounding(k) <= 1e-2 * abs(self.differences[last] - self.exact))
        return is_told and self._is_near(self.differences[k], k)

    @property
    def _is_clear(self) -> bool:
        """True if the quotients of the last two usual steps agree, so that there are no unknown rounding errors."""
        last, before = self.differences[len(STEPS) - 1], self.differences[len(STEPS) - 2]
        return abs(last - before) <= 1e-3 * abs(last)

    def side(self, k: int) -> str:
        """The side at a kink whose one-sided quotient agrees with the gradient; empty if there is none, or both
        agree."""
        quotients = {"forward": self.forward[k], "backward": self.backward[k]} if self.forward else {}
        near = [name for name, quotient in quotients.items() if self._is_near(quotient, k)]
        apart = abs(self.forward[k] - self.backward[k]) if near else 0.0
        is_kink = apart > 100 * (self.tolerance * abs(self.exact) + self._rounding(k))
        return near[0] if len(near) == 1 and is_kink else ""

    @property
    def is_repeatable(self) -> bool:
        """True if runs reproduce the value, as accurately as the differences need it."""
        return self.noise <= max(64 * self.eps * self.scale, 0.1 * self.tolerance * self.steps[0] * abs(self.exact))

    @property
    def passed(self) -> bool:
        return self.agrees_somewhere and (self.apart is None or not self.apart.contradicts)

    @property
    def agrees_somewhere(self) -> bool:
        """True if gradient and differences agree along this direction."""
        return self.is_repeatable and any(self.agrees(k) or self.side(k) for k in range(len(self.steps)))

    @property
    def contradicts(self) -> bool:
        """True if the differences agree with each other but not with the gradient, which must then be wrong."""
        return not self.agrees_somewhere and any(self._has_converged(k) for k in range(1, len(self.steps)))

    def _has_converged(self, k: int) -> bool:
        """Return whether the quotients of two steps agree, and those of the two sides."""
        before, here = self.differences[k - 1], self.differences[k]
        rounding = self._rounding(k - 1) + self._rounding(k)
        return abs(here - before) <= self.tolerance * abs(here) + rounding and not self._is_bent(k)

    def _table(self, along: str) -> list[str]:
        lines = [
            f"{along}: the gradient gives {self.exact:+.12e}",
            "   step      central difference     relative difference",
        ]
        for k, step in enumerate(self.steps):
            lines.append(f"   {step:.0e}   {self.differences[k]:+.12e}   {self._relative(self.differences[k]):.1e}")
        return lines

    def __str__(self) -> str:
        apart = self.apart
        text = self._described()
        if not self.agrees_somewhere or (apart is None and not self.note):
            return text
        lines = text.splitlines()
        if apart is None:
            lines.insert(-1, self.note)
        elif not apart.contradicts:
            lines[-1:-1] = [f"With {self.way}: relative difference {apart.smallest:.1e}", self.note]
        else:
            lines[-1:] = apart._table(f"With {self.way}")
            lines += [f"FAIL (relative difference {apart.smallest:.1e}, allowed {self.tolerance:.0e})", self.note]
        return "\n".join(filter(None, lines))

    def _described(self) -> str:
        lines = self._table(f"Check of {self.text} along a random direction")
        if not self.is_repeatable:
            verdict = f"FAIL: the value differs between runs (by {self.noise:.1e}): something in it is left to chance"
        else:
            best = min(range(len(self.steps)), key=self.error)
            verdict = f"{'PASS' if self.agrees_somewhere else 'FAIL'} (relative difference {self.error(best):.1e}, "
            is_zero = self.agrees_somewhere and self.error(best) > self.tolerance
            verdict += "all of it rounding)" if is_zero else f"allowed {self.tolerance:.0e})"
            if not any(self.agrees(k) for k in range(len(self.steps))):
                lines += self._sides()
        return "\n".join([*lines, verdict])

    def _sides(self) -> list[str]:
        """Lines with the one-sided quotients, if they differ."""
        for k in reversed(range(len(self.forward))):
            if side := self.side(k):
                quotient = getattr(self, side)[k]
                error = self._relative(quotient)
                return [f"   {self.steps[k]:.0e}   {quotient:+.12e}   {error:.1e}   {side} alone: here is a kink"]
        k = len(STEPS) - 1
        if not self.forward or not self._is_bent(k):
            return []
        sides = f"forward {self.forward[k]:+.9e}, backward {self.backward[k]:+.9e}"
        return [
            f"   {self.steps[k]:.0e}   {sides}: here is a kink",
            "   (as at a maximum of equal values; where several kinks coincide, the gradient may be that of neither "
            "side: start from different values)",
        ]

    def _is_bent(self, k: int) -> bool:
        """Return whether the quotients of the two sides differ for short steps, beyond what curvature explains."""
        jump, before = (abs(self.forward[j] - self.backward[j]) for j in (k, k - 1))
        return jump > 100 * self._rounding(k) and jump > 0.3 * before


def compare(problem: Differentiation, found: Gradients, seed: int = 0) -> list[Comparison]:
    """Compare a gradient with differences, by several runs with displaced independents. Collective.

    The first direction displaces values that are equal on all ranks equally.  A gradient with its parts on the wrong
    ranks is right along it, so a second direction displaces equal values differently.
    """
    singles = choose_direction(problem, seed) or problem.is_single
    again = problem.displaced_values(0.0)
    compared = _along(problem, found, singles, again, problem.displaced_values)
    if any(one.passed for one in compared):
        _compare_apart(problem, found, seed, singles, compared)
    return compared


def _along(
    problem: Differentiation, found: Gradients, singles: bool, again: list, values: Callable
) -> list[Comparison]:
    """The comparison along the independents' directions; ``values(step)`` runs the program."""
    steps = list(STEPS_OF_SINGLES if singles else STEPS)
    ends = [[values(step), values(-step)] for step in steps]
    compared = _compared(problem, found, singles, steps, again, ends)
    if not singles and not all(one.agrees_somewhere or not one.is_repeatable for one in compared):
        more = [factor * steps[-1] for factor in SHORTER]
        ends += [[values(step), values(-step)] for step in more]
        compared = _compared(problem, found, singles, steps + more, again, ends)
    return compared


def _compare_apart(
    problem: Differentiation, found: Gradients, seed: int, singles: bool, compared: list[Comparison]
) -> None:
    """Add comparisons along directions drawn separately on each rank, with elements that are zero where possible."""
    texts = [x.text for x in problem.session.independents]
    missing: dict[str, str] = {}  # displacements that were not compared, and the reasons
    for zeros in (True, False):
        if _compare_in_way(problem, found, seed, singles, compared, missing, zeros, texts):
            break
    else:
        if len(texts) > 1 and missing:  # find the one that cannot be displaced so
            missing.clear()
            for text in texts:
                _compare_in_way(problem, found, seed, singles, compared, missing, True, [text])
    for one in compared:
        skipped = [f"(Not compared: {way}. The reason: {reason})" for way, reason in missing.items()]
        one.note = "\n".join(filter(None, [one.note, *(skipped if one.passed else ())]))


def _compare_in_way(
    problem: Differentiation,
    found: Gradients,
    seed: int,
    singles: bool,
    compared: list[Comparison],
    missing: dict[str, str],
    zeros: bool,
    texts: list[str],
) -> bool:
    """Compare with these independents displaced separately on each rank. Collective.

    Returns whether the comparison is conclusive, or there is nothing to compare.
    """
    way = choose_apart(problem, seed, zeros, texts)
    if not way or way in missing:
        return not missing
    try:
        apart = _along(problem, found, singles, found.values, problem.values_apart)
    except NotApart as error:
        missing[way] = f"with other values {error}"
        return False
    if not all(one.agrees_somewhere or one.contradicts for one in apart):
        missing[way] = "the differences do not converge, as at a kink"
        return False
    places = problem.held()
    shown = f"{', '.join(places[:4])}{', …' if len(places) > 4 else ''}"
    held = f"(Decisions of the program that depend on them were held fixed, at {shown})" if places else ""
    for one, other in zip(compared, apart):
        if one.apart is None or not one.apart.contradicts:
            one.apart, one.way = other, way
            one.note = _advice(way) if other.contradicts else held
    return True


def _advice(way: str) -> str:
    if "on each rank" not in way:
        return ""
    return (
        "(All ranks have the same values there. The gradient is right in its sum over ranks, but not on each rank: "
        "if the program has one value of which only the sum counts, write --replicated NAME.)"
    )


def _compared(
    problem: Differentiation, found: Gradients, singles: bool, steps: list[float], again: Any, ends: list
) -> list[Comparison]:
    compared = []
    for k, dependent in enumerate(problem.session.dependents):
        exact = 0.0
        for number, independent in enumerate(problem.session.independents):
            for g, d in zip(found.leaves(k, number), independent.direction or ()):
                exact += float(np.sum(np.real(np.conj(np.asarray(g, complex)) * d)))
        value = found.values[k]
        values = [value, *(one[k] for pair in ends for one in pair)]
        is_single = singles or getattr(dependent.value, "dtype", None) == np.float32
        made = Comparison(
            dependent.text,
            problem.comm.allreduce(exact),
            list(steps),
            [(up[k] - down[k]) / (2 * step) for (up, down), step in zip(ends, steps)],
            abs(again[k] - value),
            max(float(np.max(np.abs(values))), problem.magnitude_of(dependent)),
            float(np.finfo(np.float32 if is_single else np.float64).eps),
            [(up[k] - value) / step for (up, _), step in zip(ends, steps)],
            [(value - down[k]) / step for (_, down), step in zip(ends, steps)],
        )
        compared.append(made)
    return compared


def worst_entry(problem: Differentiation, found: Gradients, seed: int = 0, most: int = 6) -> str:
    """The entry of the first dependent's gradient that differs most from its difference quotient, among a few.

    The largest entries of each rank and some random ones are compared, with two runs each. Collective.
    """
    comm = problem.comm
    singles = problem.is_single
    step = 1e-2 if singles else 1e-5
    worst, said = -1.0, ""
    for rank, number, leaf, index in _entries(problem, found, seed, most):
        exact, x = _point(problem, found, rank, number, leaf, index)
        up, down = (problem.displaced_values(sign * step)[0] for sign in (1.0, -1.0))
        quotient = (up - down) / (2 * step)
        exact = comm.allreduce(exact)
        size = max(abs(exact), abs(quotient))
        error = abs(exact - quotient) / size if size else 0.0
        if error > worst:
            where = "all ranks" if rank is None else f"rank {rank}"
            worst = error
            said = (
                f"{x.text}[{', '.join(map(str, index))}] on {where}: for a relative change of this entry the gradient "
                f"gives {exact:+.6e}, and the central difference {quotient:+.6e}: relative difference {error:.1e}"
            )
    return said


def _entries(problem: Differentiation, found: Gradients, seed: int, most: int) -> list[tuple]:
    """The entries to compare: rank (None: equal on all), independent, leaf and index. The same on all ranks."""
    rng = np.random.default_rng(seed)
    mine = []
    for number, _ in enumerate(problem.session.independents):
        for leaf, g in enumerate(found.leaves(0, number)):
            g = np.abs(np.asarray(g))
            if g.size and g.dtype.names is None:
                for flat in {int(np.argmax(g)), int(rng.integers(g.size))}:
                    mine.append((float(g.flat[flat]), number, leaf, tuple(map(int, np.unravel_index(flat, g.shape)))))
    everywhere = problem.comm.allgather(mine)
    alike = problem.comm.Get_size() > 1 and all(one == everywhere[0] for one in everywhere)
    ranks = [None] if alike else range(len(everywhere))
    every = [(size, rank, *rest) for rank in ranks for size, *rest in everywhere[rank or 0]]
    largest = sorted(every, key=lambda entry: -entry[0])[: most // 2]
    others = [entry for entry in every if entry not in largest]
    drawn = [others[k] for k in rng.permutation(len(others))[: most - len(largest)]]
    return [entry[1:] for entry in (*largest, *drawn)]


def _point(
    problem: Differentiation, found: Gradients, rank: int | None, number: int, leaf: int, index: tuple
) -> tuple[float, Any]:
    """Displace independents at one entry only; this rank's part of the derivative."""
    exact = 0.0
    for k, independent in enumerate(problem.session.independents):
        independent.direction = [np.zeros(v.shape, v.dtype) for v in independent.values]
        if k == number and rank in (None, problem.comm.Get_rank()):
            d = independent.direction[leaf]
            d[index] = sizes_of(independent.values[leaf][index]) or 1.0
            g = np.asarray(found.leaves(0, number)[leaf], complex)
            exact = float(np.sum(np.real(np.conj(g) * d)))
    return exact, problem.session.independents[number]

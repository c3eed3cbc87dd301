"""Exact functions of the number of ranks, with one term, found by exact agreement with counts.

In contrast to `fits`, for times, nothing is approximated here: counts and bytes of a program follow from its
decomposition, as c (n - a)^k for n^d ranks (faces of a cube, ends of a chain), a power of P, or a logarithm.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction


@dataclasses.dataclass(frozen=True)
class Form:
    """c max(n - a, 0)^k on n^d ranks, or c ceil(log2 P).

    Examples
    --------
    >>> from ampi.scaling.forms import Form
    >>> faces = Form(6, shift=2, power=2, dimension=3)
    >>> faces(27), faces(64), str(faces)
    (Fraction(6, 1), Fraction(24, 1), '6 (P^(1/3) - 2)^2')
    """

    factor: Fraction | int
    shift: int = 0
    power: int = 0
    dimension: int = 1
    logarithmic: bool = False

    def __call__(self, ranks: int) -> Fraction | None:
        """The value on ``ranks`` ranks; None if there is no such decomposition (no cube of ranks)."""
        if self.logarithmic:
            return Fraction(self.factor) * (ranks - 1).bit_length()
        if not self.power:
            return Fraction(self.factor)
        edge = root(ranks, self.dimension)
        if edge**self.dimension != ranks:
            return None
        base = max(edge - self.shift, 0)
        return Fraction(self.factor) * Fraction(base) ** self.power if base or self.power > 0 else None

    def __str__(self) -> str:
        factor = str(self.factor)
        if self.logarithmic:
            return f"{factor} log2 P"
        if not self.power:
            return factor
        edge = "P" if self.dimension == 1 else f"P^(1/{self.dimension})"
        if not self.shift:
            power = Fraction(self.power, self.dimension)
            text = "P" if power == 1 else f"P^{power}" if power.denominator == 1 else f"P^({power})"
        else:
            text = f"({edge} - {self.shift})" + (f"^{self.power}" if self.power != 1 else "")
        return text if self.factor == 1 else f"{factor} {text}"


def root(ranks: int, dimension: int) -> int:
    """The largest n with n^dimension not above the number of ranks.

    Examples
    --------
    >>> from ampi.scaling.forms import root
    >>> root(1000, 3), root(999, 3)
    (10, 9)
    """
    n = round(ranks ** (1 / dimension))
    return n if n**dimension <= ranks else n - 1


def _candidates() -> Iterator[Form]:
    """All forms with the factor 1, simplest first."""
    yield Form(1)
    yield Form(1, power=1)
    yield Form(1, logarithmic=True)
    for dimension, power in itertools.product((1, 2, 3), (1, -1, 2, -2, 3)):
        if power % dimension or dimension == 1:
            yield Form(1, power=power, dimension=dimension)
    for dimension in (1, 2, 3):
        for shift, power in itertools.product((1, 2), range(1, dimension + 1)):
            yield Form(1, shift, power, dimension)


MOST = 200_000
"""The number of combinations of forms to try."""
CANDIDATES = tuple(_candidates())


def agreeing(values: Mapping[int, Fraction | int]) -> list[Form]:
    """The forms that agree exactly with all values, given by number of ranks; simplest first.

    Examples
    --------
    >>> from ampi.scaling.forms import agreeing
    >>> [str(form) for form in agreeing({2: 0, 4: 2, 5: 3})]
    ['(P - 2)']
    """
    found = []
    for form in CANDIDATES:
        known = {ranks: form(ranks) for ranks in values}
        if None in known.values():
            continue
        factors = {Fraction(values[ranks]) / value for ranks, value in known.items() if value}
        if len(factors) > 1 or any(values[ranks] for ranks, value in known.items() if not value):
            continue
        if factors or not any(values.values()):
            found.append(dataclasses.replace(form, factor=_short(next(iter(factors), Fraction(0)))))
    return found


def _short(number: Fraction) -> Fraction | int:
    return int(number) if number.denominator == 1 else number


def summing(choices: Mapping[str, list[Form]], ranks: Iterable[int]) -> dict[str, Form] | None:
    """One form for each class, so that their sum is the number of ranks for all numbers; None if there is none."""
    ranks = list(ranks)
    for chosen in itertools.islice(itertools.product(*choices.values()), MOST):
        if all(sum(value or 0 for value in (form(p) for form in chosen)) == p for p in ranks):
            return dict(zip(choices, chosen))
    return None

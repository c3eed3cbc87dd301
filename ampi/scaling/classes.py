"""Classes of ranks (corners, edges, faces, interior), and the communication of each on any number of ranks.

Ranks of a class have equal numbers of partners and messages, and the same role in collectives with a root.  The number
of ranks in each, and the communication of one of them at each line, are exact functions (`forms`) that agree with all
measured numbers of ranks; together the classes contain all ranks.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from ampi.scaling.census import PRIMAL, Key
from ampi.scaling.forms import CANDIDATES, Form, agreeing, root, summing
from ampi.scaling.study import ScalingError

QUANTITIES = ("calls", "sent", "received", "partners")
ROOTED = ("Bcast", "Reduce", "Gather", "Scatter")
Place = tuple[str, str, str, int]
"""Phase, line, operation, and the index of the communicator there, from the smallest on."""


@dataclasses.dataclass(frozen=True, order=True)
class Row:
    """The communication of one rank of a class at a line: means over the class, as exact fractions."""

    size: Fraction
    calls: Fraction
    sent: Fraction
    received: Fraction
    partners: Fraction


@dataclasses.dataclass(frozen=True)
class Rank:
    """A class of ranks: their number, the number of partners of each, and a row for each place."""

    population: int
    partners: Fraction
    rows: dict[Place, Row]

    def total(self, quantity: str, phase: str) -> Fraction:
        """Calls or bytes of one rank in a phase."""
        return sum((getattr(row, quantity) for place, row in self.rows.items() if place[0] == phase), Fraction(0))


Classes = dict[Any, Rank]


def classes_of(ranks: Sequence[Mapping[str, Any]]) -> Classes:
    """The classes of a run, from the census of its ranks (`census.Census.described`)."""
    groups: dict[Any, list[dict[Place, tuple]]] = collections.defaultdict(list)
    partners: dict[Any, list[int]] = collections.defaultdict(list)
    for rank in ranks:
        rows = [(Key(*row[:4]), *row[4:]) for row in rank["rows"]]
        others = {partner for row in rows for partner in row[4] if partner != rank["rank"]}
        parts = frozenset(
            (key.line, key.operation, sent > 0, received > 0)
            for key, _, sent, received, _ in rows
            if key.phase == PRIMAL and key.operation in ROOTED
        )
        numbers = collections.Counter({"send": 0, "receive": 0})
        for key, calls, *_ in rows:
            numbers[key.operation] += calls if key.phase == PRIMAL else 0
        label = len(others), numbers["send"], numbers["receive"], tuple(sorted(parts))
        groups[label].append(_placed(rows))
        partners[label].append(len(others))
    return {
        label: Rank(len(members), Fraction(sum(partners[label]), len(members)), _means(members))
        for label, members in groups.items()
    }


def _placed(rows: list[tuple]) -> dict[Place, tuple]:
    """Size of the communicator, calls, bytes out and in, and partners, by place."""
    found: dict[Place, tuple] = {}
    order: collections.Counter[tuple] = collections.Counter()
    for key, calls, sent, received, partners in sorted(rows, key=lambda row: row[0]):
        at = key.phase, key.line, key.operation
        place = (*at, order[at])
        found[place] = key.size, calls, sent, received, len(partners)
        order[at] += 1
    return found


def _means(members: list[dict[Place, tuple]]) -> dict[Place, Row]:
    places = {place for member in members for place in member}
    means = {}
    for place in sorted(places):
        having = [member[place] for member in members if place in member]
        size = Fraction(sum(values[0] for values in having), len(having))
        sums = [Fraction(sum(values[k] for values in having), len(members)) for k in range(1, 5)]
        means[place] = Row(size, *sums)
    return means


@dataclasses.dataclass(frozen=True)
class Extrapolation:
    """Classes as functions of the number of ranks; `extrapolate` makes it.

    Attributes
    ----------
    dimension : int
        Numbers of ranks are n^dimension.
    first : int
        The smallest number of ranks for which it holds.
    populations, partners : dict
        By class: forms.
    rows : dict
        By class and place: forms of the row's fields.
    doubts : list of str
        Quantities without an exact form: the value on the most ranks is used.
    """

    dimension: int
    first: int
    populations: dict[Any, Form]
    partners: dict[Any, Form]
    rows: dict[Any, dict[Place, dict[str, Form]]]
    doubts: list[str]

    def nearest(self, ranks: int) -> int:
        """The largest number of ranks, up to this one, for which the decomposition exists."""
        return max(root(ranks, self.dimension) ** self.dimension, self.first)

    def __call__(self, ranks: int) -> Classes:
        """The classes on a number of ranks.

        Raises
        ------
        ScalingError
            There is no such decomposition.
        """
        if self.nearest(ranks) != ranks:
            kind = {1: "", 2: "; it takes squares", 3: "; it takes cubes"}[self.dimension]
            raise ScalingError(f"the program does not run on {ranks} ranks as on those measured{kind}")
        found = {}
        for label, form in self.populations.items():
            population = form(ranks)
            if population:
                rows = {
                    place: Row(**{name: form(ranks) or Fraction(0) for name, form in forms.items()})
                    for place, forms in self.rows[label].items()
                }
                found[label] = Rank(int(population), self.partners[label](ranks) or Fraction(0), rows)
        return found


def extrapolate(measured: Mapping[int, Classes]) -> Extrapolation:
    """Find forms that agree with all measured numbers of ranks, apart from small ones without a whole decomposition
    (one rank has no neighbours).

    Raises
    ------
    ScalingError
        There are no such forms, or fewer than two numbers of ranks.
    """
    counts = sorted(measured)
    for relabel in (_by_messages, _by_order):
        for dimension in (1, 2, 3):
            for k in range(len(counts) - 1):
                chosen = {ranks: measured[ranks] for ranks in counts[k:]}
                if any(root(ranks, dimension) ** dimension != ranks for ranks in chosen):
                    continue
                relabelled = relabel(chosen)
                populations = None if relabelled is None else _populations(relabelled, dimension)
                if relabelled is not None and populations is not None:
                    return _rows(relabelled, dimension, populations)
    raise ScalingError(
        f"the partners of ranks on {', '.join(map(str, counts))} ranks follow no known decomposition "
        "(a ring, a chain, squares, cubes, all to all, one to all): measure on more numbers of ranks, or others"
    )


def _by_messages(measured: Mapping[int, Classes]) -> dict[int, Classes] | None:
    return dict(measured)


def _by_order(measured: Mapping[int, Classes]) -> dict[int, Classes] | None:
    """Classes labelled by their sorted order: numbers of partners and messages may grow with that of ranks."""
    if len({len(classes) for classes in measured.values()}) > 1:
        return None
    return {ranks: dict(enumerate(classes[label] for label in sorted(classes))) for ranks, classes in measured.items()}


def _populations(measured: Mapping[int, Classes], dimension: int) -> dict[Any, Form] | None:
    labels = sorted({label for classes in measured.values() for label in classes})
    choices = {}
    for label in labels:
        values = {ranks: classes[label].population if label in classes else 0 for ranks, classes in measured.items()}
        choices[label] = agreeing(values)
        if not choices[label]:
            return None
    most = root(max(measured), dimension)
    return summing(choices, [*measured, *((most + k) ** dimension for k in (1, 2, 3, 7))])


def _rows(measured: Mapping[int, Classes], dimension: int, populations: dict[Any, Form]) -> Extrapolation:
    doubts: list[str] = []
    partners: dict[Any, Form] = {}
    rows: dict[Any, dict[Place, dict[str, Form]]] = {}
    for label in populations:
        having = {ranks: classes[label] for ranks, classes in measured.items() if label in classes}
        partners[label] = _form({ranks: rank.partners for ranks, rank in having.items()}, "partners", doubts)
        rows[label] = {}
        for place in sorted({place for rank in having.values() for place in rank.rows}):
            known = {ranks: rank.rows[place] for ranks, rank in having.items() if place in rank.rows}
            rows[label][place] = {}
            for name in ("size", *QUANTITIES):
                values = {ranks: getattr(row, name) for ranks, row in known.items()}
                if name != "size":
                    values.update(dict.fromkeys(having.keys() - known.keys(), Fraction(0)))
                rows[label][place][name] = _form(values, f"{name} of {' '.join(place[:3])}", doubts)
    return Extrapolation(dimension, min(measured), populations, partners, rows, doubts)


def _form(values: Mapping[int, Fraction], what: str, doubts: list[str]) -> Form:
    """The simplest form that agrees; a communicator seen once with all ranks is assumed to have all ranks."""
    found = agreeing(values)
    if what.startswith("size") and values.keys() == set(values.values()):
        return Form(1, power=1)
    if found:
        return found[0]
    text = ", ".join(f"{float(value):g} on {ranks}" for ranks, value in sorted(values.items()))
    doubts.append(f"{what}: {text} ranks")
    last = values[max(values)]
    return dataclasses.replace(CANDIDATES[0], factor=last)

"""Hygienic names: generated names that cannot collide with the user's.

A user's name in the IR is a Python identifier.  A generated name ends in a mark, which no identifier contains, and a
number (``x@2``, ``x_bar@1``); only `Names` makes them.  The text before the mark is for readers: no pass interprets the
spelling of a name.  `identifiers` assigns identifiers to all of them when a program is emitted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

from ampi.kernel import ir

_MARK = re.compile(r"@\d+")


def stem(name: str) -> str:
    """A name, or a text with names, without marks, as shown to users."""
    return _MARK.sub("", name)


def all_names(function: ir.Function) -> set[str]:
    """The names of a function's arguments, constants and variables."""
    names = {n.name for n in ir.walk(function.body) if isinstance(n, ir.Var)}
    return names | {a.name for a in function.arguments} | {name for name, _ in function.constants}


class Names:
    """Makes names that differ from those in ``taken`` and from one another."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self.taken = set(taken)
        self.count: Counter[str] = Counter()

    @classmethod
    def of(cls, function: ir.Function) -> Names:
        """A source of new names for a function."""
        return cls(all_names(function))

    def copy(self) -> Names:
        """A source of the same names."""
        made = Names(self.taken)
        made.count = self.count.copy()
        return made

    def fresh(self, hint: str) -> str:
        """A new name similar to ``hint``: a word, a name, or both (``x@2_bar``)."""
        base = stem(hint)
        while True:
            self.count[base] += 1
            name = f"{base}@{self.count[base]}"
            if name not in self.taken:
                self.taken.add(name)
                return name

    def variable(self, hint: str, type_: Any) -> ir.Var:
        return ir.Var(self.fresh(hint), type_)

"""Coalescing: a carried or joined scalar and its values become one variable if they do not interfere.

Leaving single assignment form takes copies: before a loop, at the end of its body, and at the end of each side of a
branch.  The two names of a copy become one variable if they never hold different values that are both still to be read.
Live ranges are found in one backward walk (single assignment needs no iteration), and two names interfere if one is
set while the other is live (Chaitin).  All names of a variable are compared with all of another before the two are
merged, since names that do not interfere pairwise may do so through a third one (the "lost copy" and "swap" problems).

::

    t = s + f[i]                                 s = s + f[i]
    (carried: s = t)                 becomes
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Stmt, Var
from ampi.kernel.ir.liveness import used
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.ssa import Branch, Loop, blocks, definitions, every, names_read


def share_names(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Use one variable for names that do not interfere, in statements in single assignment form."""
    ends, beginnings = list(_copies_at_ends(body)), list(_copies_at_beginnings(body))
    lives = _Lives({v.name for pair in (*ends, *beginnings) for v in pair})
    lives.block(body, set())
    variables = _Variables(lives.interfering)
    for value, var in ends:
        if variables.is_alone(value):
            variables.unite(value, var)
    for value, var in beginnings:
        if variables.root(var) == var:
            variables.unite(value, var)
    return substitute(body, {name: variables.root(var) for name, var in variables.parent.items()})


def _copies_at_ends(body: tuple[Stmt, ...]) -> Iterator[tuple[Var, Var]]:
    """Pairs of a scalar and its value at the end of a loop's body or of a side of a branch."""
    for s in body:
        for block in blocks(s):
            yield from _copies_at_ends(block)
        if isinstance(s, Branch):
            for j in s.joins:
                yield from _copy(j.then, j.var, s.then)
                yield from _copy(j.orelse, j.var, s.orelse)
        elif isinstance(s, Loop):
            for c in s.carried:
                yield from _copy(c.next, c.var, s.body)


def _copies_at_beginnings(body: tuple[Stmt, ...]) -> Iterator[tuple[Var, Var]]:
    """Pairs of a carried scalar and its value before the loop."""
    for k, s in enumerate(body):
        for block in blocks(s):
            yield from _copies_at_beginnings(block)
        for c in s.carried if isinstance(s, Loop) else ():
            yield from _copy(c.init, c.var, body[:k])


def _copy(value: Expr, var: Var, block: tuple[Stmt, ...]) -> Iterator[tuple[Var, Var]]:
    """A copy that is avoided if the block computes ``value`` directly in ``var``."""
    if isinstance(value, Var) and value.type == var.type:
        if any(value in definitions(s) for s in block if not isinstance(s, ir.Alloc)):
            yield value, var


class _Lives:
    """Finds which of some names interfere."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.interfering: dict[str, set[str]] = defaultdict(set)

    def block(self, body: tuple[Stmt, ...], live: set[str]) -> set[str]:
        """The names that are live before statements, if ``live`` are those after them."""
        for s in reversed(body):
            live = self.statement(s, live)
        return live

    def statement(self, s: Stmt, live: set[str]) -> set[str]:
        match s:
            case Loop():
                return self.loop(s, live)
            case Branch():
                return self.branch(s, live)
            case ir.Launch():  # sets one scalar after the other, each from its old value
                for r in s.reduced:
                    self.set_to({r.var.name}, live | self.read(s) - used(r.init))
        self.set_to(_defined(s), live)
        return live - _defined(s) | self.read(s)

    def loop(self, s: Loop, live: set[str]) -> set[str]:
        here = _defined(s)
        inside = here | {name for t in every(s.body) for name in _defined(t)}
        nexts = {name for c in s.carried for name in used(c.next)} & self.names
        around = {name for t in every(s.body) for name in self.read(t)} | nexts
        around = around - inside | live
        if s.condition is not None:
            around |= {s.condition.name} & self.names
        # the scalars are set before the bounds are evaluated
        self.set_to(here, around | used((s.start, s.stop)) & self.names)
        self.block(s.body, around - here | nexts)
        return (around | self.read(s) - nexts) - inside

    def branch(self, s: Branch, live: set[str]) -> set[str]:
        here = _defined(s)
        self.set_to(here, live)
        sides = (
            (s.then, {name for j in s.joins for name in used(j.then)}),
            (
                s.orelse,
                {name for j in s.joins for name in used(j.orelse)},
            ),
        )
        before = used(s.condition) & self.names
        for block, taken in sides:
            before |= self.block(block, live - here | taken & self.names)
        return before - {name for block, _ in sides for t in every(block) for name in _defined(t)}

    def set_to(self, names: set[str], live: set[str]) -> None:
        """Note that names are set while others are live, and at the same time as each other."""
        for name in names & self.names:
            others = (live | names & self.names) - {name}
            self.interfering[name] |= others
            for other in others:
                self.interfering[other].add(name)

    def read(self, s: Stmt) -> frozenset[str]:
        return names_read(s) & self.names


def _defined(s: Stmt) -> set[str]:
    return {v.name for v in definitions(s)}


class _Variables:
    """Names that are one variable: a forest whose roots give the variables their names."""

    def __init__(self, interfering: dict[str, set[str]]) -> None:
        self.interfering = interfering
        self.parent: dict[str, Var] = {}
        self.members: dict[str, set[str]] = {}

    def root(self, var: Var) -> Var:
        while var.name in self.parent:
            var = self.parent[var.name]
        return var

    def is_alone(self, var: Var) -> bool:
        """Return whether a name does not yet stand for another one."""
        return var.name not in self.parent

    def unite(self, value: Var, var: Var) -> None:
        """Merge two names into one variable, named after the second, unless parts of the two interfere."""
        value, var = self.root(value), self.root(var)
        if value == var:
            return
        of_value, of_var = (self.members.setdefault(v.name, {v.name}) for v in (value, var))
        if any(not self.interfering[name].isdisjoint(of_var) for name in of_value):
            return
        self.parent[value.name] = var
        of_var |= of_value

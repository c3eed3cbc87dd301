"""States of a loop's variables while it is interpreted abstractly."""

from __future__ import annotations

import dataclasses
from typing import Any

from .kinds import BOOL, SAFE, Number, Refused, join


class Restart(Exception):
    """Raised to interpret a loop again from its beginning, with a fact that was found."""


@dataclasses.dataclass
class State:
    """The variables that may be assigned, and the names that the loop has assigned for certain."""

    env: dict[str, Any]
    sure: frozenset[str]
    maybe: frozenset[str] = frozenset()
    """Names that may have no value yet."""
    checked: frozenset[tuple[str, str]] = frozenset()
    """Indices that are within the bounds of an axis."""
    same: frozenset[frozenset[str]] = frozenset()
    """Pairs of variables that may stand for one vector."""

    def copy(self) -> State:
        return dataclasses.replace(self, env=dict(self.env))


def joined(a: State | None, b: State | None, lowering: Any, loop: bool = False) -> State | None:
    """Return the state after either of two paths; with ``loop`` the second leads back to the head of a loop."""
    if a is None or b is None:
        return a if b is None else b
    env: dict[str, Any] = {}
    maybe = set(a.maybe | b.maybe)
    for name in {**a.env, **b.env}:
        if name not in a.env or name not in b.env:
            maybe.add(name)
            env[name] = a.env.get(name, b.env.get(name))
            continue
        one, other = a.env[name], b.env[name]
        if not (isinstance(one, Number) and isinstance(other, Number)):
            if one != other:
                raise Refused(lowering.loop.node, f"'{name}' is one array or another")
            env[name] = one
            continue
        env[name] = _numbers(name, one, other, lowering, loop)
    return State(env, a.sure & b.sure, frozenset(maybe), a.checked & b.checked, a.same | b.same)


def _numbers(name: str, one: Number, other: Number, lowering: Any, loop: bool) -> Number:
    if one.form != other.form:
        if BOOL in (one.form, other.form):
            raise Refused(lowering.loop.node, f"'{name}' is a truth value and a number in turn")
        if name not in lowering.reals:
            lowering.reals.add(name)
            raise Restart
    if loop and other.magnitude > one.magnitude:
        if name not in lowering.capped:
            lowering.capped.add(name)
            raise Restart
        other = dataclasses.replace(other, magnitude=max(SAFE, other.magnitude))  # widening: a counter ends at once
    return join(one, other)

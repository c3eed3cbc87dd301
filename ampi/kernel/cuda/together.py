"""Cooperation of threads: scalars that they combine, and memory of a block, whose use requires barriers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ampi.kernel import ir


def combined(body: tuple[ir.Stmt, ...], name: str) -> str | None:
    """Return how independent iterations of a loop combine a scalar: "add", "min", "max", "or"; None if they do not."""
    kinds: set[str] = set()
    chain = {name}

    def of(e: ir.Expr) -> bool:
        return any(isinstance(n, ir.Var) and n.name in chain for n in ir.walk(e))

    def form(e: ir.Expr) -> bool:
        match e:
            case ir.Var():
                return e.name in chain
            case ir.Op(name="add", args=(a, b)):
                kinds.add("add")
                return (form(a) and not of(b)) or (form(b) and not of(a))
            case ir.Op(name="sub", args=(a, b)):
                kinds.add("add")
                return form(a) and not of(b)
            case ir.Op(name="fused", args=(a, b, c)):
                kinds.add("add")
                return form(c) and not of(a) and not of(b)
            case ir.Op(name="min" | "max" as word, args=(a, b)):
                kinds.add(word)
                return (form(a) and not of(b)) or (form(b) and not of(a))
            case ir.Op(name="select", args=(c, a, b)):
                return not of(c) and form(a) and form(b)
            case ir.Op(name="cast", args=(a,)):
                return bool(a.type == e.type) and form(a)
        return False

    statements = [n for n in ir.walk(body) if isinstance(n, ir.Stmt)]
    while True:
        before = len(chain)
        chain |= {n.target.name for n in statements if isinstance(n, ir.Assign) and of(n.value)}
        if len(chain) == before:
            break
    for n in statements:
        match n:
            case ir.Assign(target=target, value=value) if target.name in chain:
                if isinstance(value, ir.Const) and value.value is True:
                    kinds.add("or")
                elif not form(value) and not (target.name != name and is_zero(value)):
                    return None
            case ir.For() | ir.While() | ir.If():
                controls = [getattr(n, f, None) for f in ("start", "stop", "condition")]
                if any(c is not None and of(c) for c in controls):
                    return None
            case ir.Store() | ir.Accumulate():
                if any(map(of, (*n.index, n.value))):
                    return None
    return next(iter(kinds), "add") if len(kinds) <= 1 else None


def is_zero(e: ir.Expr) -> bool:
    return isinstance(e, ir.Const) and e.value == 0 and not isinstance(e.value, bool)


@dataclass
class Used:
    """The arrays that statements load, store and add to; with the element if the thread owns it."""

    loads: set[Any] = field(default_factory=set)
    stores: set[Any] = field(default_factory=set)
    adds: set[Any] = field(default_factory=set)

    def needs_barrier(self, after: Used) -> bool:
        return (
            _meet(after.stores, self.loads | self.stores | self.adds)
            or _meet(after.loads | after.adds, self.stores)
            or _meet(after.loads, self.adds)
            or _meet(after.adds, self.loads)
        )

    def include(self, other: Used) -> None:
        self.loads |= other.loads
        self.stores |= other.stores
        self.adds |= other.adds

    def __bool__(self) -> bool:
        return bool(self.loads or self.stores or self.adds)


def _meet(a: set[Any], b: set[Any]) -> bool:
    return any(x[0] == y[0] and (x[1] is None or x != y) for x in a for y in b)

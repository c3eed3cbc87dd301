"""Atomic maxima and minima in shared memory, in a derivative on a GPU: the threads of a block find which of them wins.

Each thread keeps its value; after a barrier the extreme is found, after another one the first thread that has it, and
after a third one that thread alone stores it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.guards import FALSE, TRUE, has_barrier
from ampi.kernel.frontend.cuda.language import INT, place
from ampi.kernel.ir.names import Names, stem

Fail = Callable[[int, str, str], NoReturn]
ZERO, ONE = ir.Const(0, INT), ir.Const(1, INT)


def is_extreme(s: Any) -> bool:
    """Return whether a statement stores the maximum or minimum of an element and a value, atomically."""
    return isinstance(s, ir.Store) and s.atomic and isinstance(s.value, ir.Op) and s.value.name in ("max", "min")


def compared(name: str, a: ir.Expr, b: ir.Expr) -> ir.Op:
    """Return a comparison."""
    return ir.Op(name, (a, b), types.boolean)


def rewritten(body: tuple[ir.Stmt, ...], order: ir.Expr, names: Names, fail: Fail) -> tuple[ir.Stmt, ...]:
    """Return statements of a thread in which one thread of a block stores an extreme into shared memory.

    ``order`` is smaller for threads that come later.
    """
    shared = {s.target.name: s for s in ir.walk(body) if isinstance(s, ir.Alloc) and s.shared}
    found = [s for s in ir.walk(body) if is_extreme(s) and isinstance(s.array.type.dtype, types.Float)]
    if not any(s.array.name in shared for s in found):
        return body
    return _Rewriting(shared, {s.value.args[0].name for s in found}, order, names, fail).block(body)


@dataclass
class _Rewriting:
    shared: dict[str, ir.Alloc]
    olds: set[str]  # variables that only hold the old element
    order: ir.Expr
    names: Names
    fail: Fail
    places: dict[str, tuple[ir.Var, ir.Var]] = field(default_factory=dict)

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            out += [ir.in_blocks(s, self.block)] if has_barrier(s) else self.statement(s)
        return tuple(out)

    def of_block(self, s: Any) -> bool:
        return is_extreme(s) and s.array.name in self.shared and isinstance(s.array.type.dtype, types.Float)

    def statement(self, s: ir.Stmt) -> list[ir.Stmt]:
        """Return a statement that each thread runs by itself, with what the block does afterwards."""
        stores = [n for n in ir.walk(s) if self.of_block(n)]
        if not stores:
            return list(self.inside((s,)))
        loop = next(
            (n for n in ir.walk(s) if isinstance(n, (ir.For, ir.While)) and any(map(self.of_block, ir.walk(n)))), None
        )
        if loop is not None:
            name = stores[0].value.name  # type: ignore[attr-defined]
            self.fail(loop.line, f"cuda.atomic.{name} of shared memory in a loop, in source for a GPU",
                      f"take the {name} in a variable first, and store it after the loop")  # fmt: skip
        self.kept: list[tuple[Any, ir.Var, ir.Var, tuple[ir.Var, ...]]] = []
        made = self.inside((s,))
        before: list[ir.Stmt] = []
        after: list[ir.Stmt] = []
        for store, has, value, index in self.kept:
            zero = ir.Const(0.0, value.type)
            before += [ir.Assign(has, FALSE), ir.Assign(value, zero), *(ir.Assign(k, ZERO) for k in index)]
            after += self.together(store, has, value, index)
        return [*(replace(b, line=s.line) for b in before), *made, *after]

    def inside(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """Return statements in which a thread keeps its value instead of storing it."""
        out: list[ir.Stmt] = []
        for s in body:
            if isinstance(s, ir.Assign) and s.target.name in self.olds and self.is_old(s):
                continue
            if isinstance(s, ir.If):
                s = replace(s, then=self.inside(s.then), orelse=self.inside(s.orelse))
            if not self.of_block(s):
                out.append(s)
                continue
            assert isinstance(s, ir.Store) and isinstance(s.value, ir.Op)
            has = self.names.variable("has", types.boolean)
            value = self.names.variable("value", s.array.type.dtype)
            index = tuple(self.names.variable("place", INT) for _ in s.index)
            self.kept.append((s, has, value, index))
            for k, i in zip(index, s.index):
                out.append(ir.Assign(k, ir.Op("cast", (i,), INT) if i.type != INT else i, line=s.line))
            out += [ir.Assign(value, s.value.args[1], line=s.line), ir.Assign(has, TRUE, line=s.line)]
        return tuple(out)

    def is_old(self, s: ir.Assign) -> bool:
        return isinstance(s.value, ir.Load) and s.value.array.name in self.shared

    def together(self, s: Any, has: ir.Var, value: ir.Var, index: tuple[ir.Var, ...]) -> list[ir.Stmt]:
        """Return the statements of a block that store an extreme."""
        array, dtype, line, kind = s.array, s.array.type.dtype, s.line, s.value.name
        out: list[ir.Stmt] = []
        if array.name not in self.places:
            final, winner = (
                self.names.variable(f"{stem(array.name)}_{what}", types.Array(ty, array.type.ndim, "C"))
                for what, ty in (("final", dtype), ("winner", INT))
            )
            shape = self.shared[array.name].shape
            out += [ir.Alloc(v, shape, None, shared=True, line=line) for v in (final, winner)]
            self.places[array.name] = final, winner
        final, winner = self.places[array.name]
        barrier = ir.Barrier(line=line)
        load = lambda a: ir.Load(a, index, a.type.dtype)
        every = tuple(self.names.variable("k", INT) for _ in index)
        first = (
            ir.Store(final, every, ir.Load(array, every, dtype), line=line),
            ir.Store(winner, every, ZERO, line=line),
        )
        copy: tuple[ir.Stmt, ...] = first
        for k, (v, n) in reversed(list(enumerate(zip(every, self.shared[array.name].shape)))):
            start, step = (place("rank"), place("threads")) if k == 0 else (ZERO, ONE)
            copy = (ir.For(v, start, n, step, copy, line=line),)
        extreme = ir.Accumulate(final, index, value, atomic=True, kind=kind, line=line)
        changes = compared("gt" if kind == "max" else "lt", value, load(array))
        has_it = ir.Op("and", (compared("eq", value, load(final)), changes), types.boolean)
        enters = ir.Accumulate(winner, index, self.order, atomic=True, kind="max", line=line)
        stores = replace(s, index=index, value=ir.Op(kind, (load(array), value), dtype), atomic=False)
        wins = compared("eq", load(winner), self.order)
        return [
            *out, barrier, *copy, barrier,
            ir.If(has, (extreme,), line=line), barrier,
            ir.If(has, (ir.If(has_it, (enters,), line=line),), line=line), barrier,
            ir.If(has, (ir.If(wins, (stores,), line=line),), line=line),
        ]  # fmt: skip

"""Atomic additions in registers (scalar promotion): a loop that adds to one element does so once, at its end.

The element is the same in all iterations, and nothing else in the loop touches the array.  That no other argument has
the same memory is tested at each launch (`CudaKernel.lowered`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.ir.names import Names

FALSE, TRUE = (ir.Const(b, types.boolean) for b in (False, True))


def in_registers(body: tuple[ir.Stmt, ...], names: Names) -> tuple[tuple[ir.Stmt, ...], set[str]]:
    """Statements with atomic additions after the loops that add to one element, and the arrays of these."""
    views = (n for n in ir.walk(body) if isinstance(n, (ir.Alias, ir.View)))
    promotion = _Promotion(names, {v.name for n in views for v in (n.target, n.array)})
    return promotion.block(body), promotion.arrays


@dataclass
class _Promotion:
    names: Names
    seen: set[str]  # arrays with parts that have names, too
    arrays: set[str] = field(default_factory=set)

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            s = ir.in_blocks(s, self.block)
            is_serial = isinstance(s, ir.While) or (isinstance(s, ir.For) and not s.parallel)
            out += self.loop(s) if is_serial else [s]
        return tuple(out)

    def loop(self, s: ir.For | ir.While) -> list[ir.Stmt]:
        """A loop, with what is before and behind it."""
        before: list[ir.Stmt] = []
        behind: list[ir.Stmt] = []
        for array, index in _elements(s):
            if array.name in self.seen:
                continue
            self.arrays.add(array.name)
            total = ir.Var(self.names.fresh("total"), array.type.dtype)
            before.append(ir.Assign(total, ir.Const(_zero(total.type), total.type), line=s.line))
            direct = [n for n in s.body if _adds_to(n, array, index)]
            one = ir.Accumulate(array, index, total, atomic=True, line=(direct or [s])[0].line)
            is_run: ir.Expr
            if direct and isinstance(s, ir.For) and s.step == ir.Const(1, s.step.type):
                is_run, mark = ir.Op("lt", (s.start, s.stop), types.boolean), None
            else:  # only if an iteration has come there: the element might not exist
                is_run = mark = ir.Var(self.names.fresh("adds"), types.boolean)
                before.append(ir.Assign(mark, FALSE, line=s.line))
            behind.append(ir.If(is_run, (one,), line=s.line))
            s = replace(s, body=_replaced(s.body, array, index, total, mark))
        return [*before, s, *behind]


def _zero(dtype: types.Type) -> complex:
    return 0 if isinstance(dtype, types.Integer) else 0j if isinstance(dtype, types.Complex) else 0.0


def _adds_to(s: ir.Stmt, array: ir.Var, index: tuple[ir.Expr, ...]) -> bool:
    return isinstance(s, ir.Accumulate) and s.atomic and s.array.name == array.name and s.index == index


def _elements(loop: ir.For | ir.While) -> Iterator[tuple[ir.Var, tuple[ir.Expr, ...]]]:
    """The elements to which a loop only adds, and to no other of the array unless constant indices tell them apart."""
    nodes = list(ir.walk(loop))
    jumps = ir.Raise, ir.Custom, ir.Break, ir.Continue, ir.Return
    if any(isinstance(n, jumps) or (isinstance(n, ir.For) and n.parallel) for n in nodes):
        return
    found: dict[str, list[ir.Accumulate]] = {}
    for n in nodes:
        if isinstance(n, ir.Accumulate) and n.atomic:
            found.setdefault(n.array.name, []).append(n)
    if not found:
        return
    changed = {v.name for v in assigned((loop,))}
    for name, sums in found.items():
        mentioned = sum(isinstance(n, ir.Var) and n.name == name for n in nodes)
        sizes = sum(isinstance(n, ir.Size) and n.array.name == name for n in nodes)
        if mentioned - sizes != len(sums) or not isinstance(sums[0].array.type.dtype, types.Number):
            continue  # it is read, or stored to
        elements = tuple(dict.fromkeys(n.index for n in sums))
        is_known = all(isinstance(i, ir.Const) for e in elements for i in e)
        if len(elements) > 1 and (not is_known or any(i.value < 0 for e in elements for i in e)):  # type: ignore[attr-defined]
            continue
        if any(isinstance(n, ir.Load) or (isinstance(n, ir.Var) and n.name in changed) for n in ir.walk(elements)):
            continue
        for index in elements:
            yield sums[0].array, index


def _replaced(
    body: tuple[ir.Stmt, ...], array: ir.Var, index: tuple[ir.Expr, ...], total: ir.Var, mark: ir.Var | None
) -> tuple[ir.Stmt, ...]:
    """Statements that add to a scalar, and mark that they do."""
    out: list[ir.Stmt] = []
    for s in body:
        match s:
            case ir.Accumulate() if _adds_to(s, array, index):
                if mark is not None:
                    out.append(ir.Assign(mark, TRUE, line=s.line))
                s = ir.Assign(total, ir.Op("add", (total, s.value), total.type), line=s.line)
            case _:
                s = ir.in_blocks(s, lambda block: _replaced(block, array, index, total, mark))
        out.append(s)
    return tuple(out)

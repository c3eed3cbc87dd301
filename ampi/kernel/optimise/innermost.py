"""Innermost loops: how the indices of accesses change from iteration to iteration, and buffers between loops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.ir import Expr, Op, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.remarks import Remark
from ampi.kernel.ir.ssa import INT, Loop, contains_loop, names_read

MAX_SCRATCH = 1 << 17  # bytes of a function's buffers on the stack, which is small for threads


class InnermostLoops(Builder):
    """Rewrites the innermost loops of a function (in single assignment form) by `loop`."""

    def __init__(self, function: ir.Function, names: Names) -> None:
        super().__init__(names)
        self.accesses = tbr.collect(function)
        self.remarks: list[Remark] = []
        self.on_stack = 0  # bytes
        self.buffers_of: list[list[Stmt]] = [[]]  # of the function, and of the enclosing parallel loops

    def run(self, function: ir.Function) -> ir.Function:
        body = self.visit(function.body)
        return replace(function, body=(*self.buffers_of[0], *body))

    def loop(self, s: Loop) -> list[Stmt]:
        """Rewrite a loop without inner loops."""
        raise NotImplementedError

    def visit(self, body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        out: list[Stmt] = []
        for s in body:
            if isinstance(s, Loop):
                if not contains_loop(s.body):
                    out += self.loop(s)
                    continue
                s = self.outer_loop(s)
            else:
                s = ir.in_blocks(s, self.visit)
            out.append(s)
        return tuple(out)

    def outer_loop(self, s: Loop) -> Loop:
        if not s.parallel:
            return replace(s, body=self.visit(s.body))
        self.buffers_of.append([])
        body = self.visit(s.body)
        return replace(s, body=(*self.buffers_of.pop(), *body))

    def op(self, name: str, *args: Expr) -> Expr:
        return self.value(Op(name, args, INT))

    def buffer(self, name: str, ty: Any, size: int) -> Var:
        buffer = self.fresh(name, types.Array(ty, 1, "C"))
        nbytes = size * ty.bitwidth // 8
        scratch = self.on_stack + nbytes <= MAX_SCRATCH
        self.on_stack += nbytes if scratch else 0
        self.emit(ir.Alloc(buffer, (constant(size, INT),), constant(0, ty), scratch, line=self.line))
        return buffer

    # accesses

    def place(self, t: Stmt, s: Loop) -> tuple[Any, ...] | None:
        """The index of an access, if it increases by one in the last dimension from iteration to iteration."""
        forms = [tbr.affine(i, self.accesses) for i in index_of(t)]
        own = (s.var.name, "")
        if not forms or forms[-1].terms.get(own) != 1 or any(own in f.terms for f in forms[:-1]):
            return None
        inside = {v for f in forms for v, _ in f.terms if v != s.var.name and self.varies(v, s)}
        return None if inside else tuple((f.constant, tuple(sorted(f.terms.items()))) for f in forms)

    def is_fixed(self, t: Stmt, s: Loop) -> bool:
        """Return whether all iterations touch the same element."""
        return not any(
            self.varies(n.name, s) or n == s.var for i in index_of(t) for n in ir.walk(i) if isinstance(n, Var)
        )

    def varies(self, name: str, s: Loop) -> bool:
        return any(loop.name == s.name for loop in self.accesses.depth.get(name, ()))


def index_of(t: Stmt) -> tuple[Expr, ...]:
    match t:
        case ir.Assign(value=ir.Load(index=index)) | ir.Store(index=index) | ir.Accumulate(index=index):
            return index
        case _:
            return ()


def array_of(t: Stmt) -> str | None:
    match t:
        case ir.Assign(value=ir.Load(array=array)) | ir.Store(array=array) | ir.Accumulate(array=array):
            return array.name
        case _:
            return None


def used_part(body: Iterable[Stmt], atoms: Iterable[Expr] = ()) -> tuple[Stmt, ...]:
    """Statements without the assignments whose values neither the other statements nor these atoms use."""
    names = {a.name for a in atoms if isinstance(a, Var)}
    kept: list[Stmt] = []
    for t in reversed(tuple(body)):
        if not isinstance(t, ir.Assign) or t.target.name in names:
            names |= names_read(t)
            kept.append(t)
    return tuple(reversed(kept))

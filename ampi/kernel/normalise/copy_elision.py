"""Copy elision: a copy that never changes, of an array that never changes, is replaced by the array.

An array is *quiet* if it is an argument that the kernel does not write, or a local array that is written as a whole,
once, right after its allocation.  A quiet copy of a quiet array can be replaced by that array.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.rewrite import substitute


def without_copies(function: ir.Function) -> ir.Function:
    """Remove quiet copies of quiet arrays from a function with resolved views and operations on whole arrays."""
    return _Copies(function).run()


class _Copies:
    def __init__(self, function: ir.Function):
        self.function = function
        self.arguments = {a.name for a in function.arguments}
        self.returned = {
            v.name
            for n in ir.walk(function.body)
            if isinstance(n, ir.Return)
            for v in n.values
            if isinstance(v, ir.Var)
        }
        self.writes = Counter(_written(n) for n in ir.walk(function.body))
        self.shape: dict[str, tuple[ir.Expr, ...]] = {}
        self.quiet = {a.name for a in function.arguments if not self.writes[a.name]}
        self.quiet |= {name for name, _ in function.constants}
        self.same: dict[str, ir.Expr] = {}

    def run(self) -> ir.Function:
        body = self.block(self.function.body)
        if not self.same:
            return self.function
        return replace(self.function, body=tuple(substitute(s, self.same) for s in body))

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            match s:
                case ir.If() | ir.For() | ir.While() | ir.Custom():
                    s = ir.in_blocks(s, self.block)
                case ir.Alloc(target=target, shape=shape):
                    self.shape[target.name] = shape
                case ir.Elementwise() | ir.Fill():
                    allocation = out[-1] if out and isinstance(out[-1], ir.Alloc) else None
                    name = _written(s)
                    if allocation is not None and allocation.target.name == name and self.writes[name] == 1:
                        self.quiet.add(name)
                        source = self.copied(s)
                        if source is not None:
                            self.same[name] = source
                            out.pop()
                            continue
            out.append(s)
        return tuple(out)

    def copied(self, s: ir.Stmt) -> ir.Var | None:
        """The array that a statement copies as a whole, if it is quiet."""
        match s:
            case ir.Elementwise(array=array, axes=axes, index=index, value=ir.Load(array=source, index=place)):
                source_now = self.same.get(source.name, source)
                assert isinstance(source_now, ir.Var)
                if index != axes or place != axes or s.accumulate or source_now.name not in self.quiet:
                    return None
                if array.type.dtype != source.type.dtype or not self.is_all(s.shape, source, source_now):
                    return None
                is_returned = source_now.name in self.arguments and array.name in self.returned
                return None if is_returned else source_now
        return None

    def is_all(self, shape: tuple[ir.Expr, ...], *names: ir.Var) -> bool:
        """Return whether a shape is that of one of these arrays."""
        for array in names:
            if shape == tuple(ir.Size(array, k, types.intp) for k in range(len(shape))):
                return True
            if array.name in self.shape and self.shape[array.name] == shape:
                return all(isinstance(n, ir.Const) for n in shape)
        return False


def _written(node: ir.Expr | ir.Stmt) -> str:
    """The array that a statement writes, or may write through an alias; otherwise an empty string."""
    match node:
        case ir.Store(array=array) | ir.Accumulate(array=array) | ir.Elementwise(array=array) | ir.Alias(array=array):
            return array.name
        case ir.Fill(target=target):
            return target.name
    return ""

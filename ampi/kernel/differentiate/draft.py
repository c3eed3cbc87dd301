"""The plain adjoint of a kernel, and the programs that are built from its statements.

`adjoint.build` writes the statements that compute forward and those that go backward.  Together they are the adjoint;
apart, they are the two halves of a split reversal.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.differentiate.derivative import Derivative, arrays_read
from ampi.kernel.ir import Expr, Stmt, Var
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.remarks import Kind, Remark
from ampi.kernel.ir.ssa import every


@dataclass(frozen=True)
class Draft:
    """The first form of a kernel's adjoint, in single assignment form.

    Attributes
    ----------
    primal : ir.Function
        The kernel.
    names : Names
        The source of new names.
    leaves : tuple of ir.Argument
        The arguments of an adjoint program: the kernel's arguments, shadows, seeds.
    before, back : tuple of ir.Stmt
        The statements that compute forward, and those that go backward.
    results : tuple of ir.Expr
        The kernel's results, as the forward statements compute them.
    values : tuple of ir.Expr
        The returned values: the adjoints of the active scalar arguments.
    shadowed, scalars : tuple of ir.Argument
        The arguments that have a shadow, and the active scalars.
    result_active : tuple of bool
        For each leaf of the result, whether it depends on an active argument.
    shadow, after : dict
        The shadows of arrays, and the names for the arrays as they were after the call.
    saved : dict
        Descriptions of what the arrays of saved values hold.
    active, ends, written : frozenset of str
        Active arguments; those whose shadow is only read; the arrays that the kernel writes.
    """

    primal: ir.Function
    names: Names
    leaves: tuple[ir.Argument, ...]
    before: tuple[Stmt, ...]
    back: tuple[Stmt, ...]
    results: tuple[Expr, ...]
    values: tuple[Expr, ...]
    shadowed: tuple[ir.Argument, ...]
    scalars: tuple[ir.Argument, ...]
    result_active: tuple[bool, ...]
    shadow: dict[str, Var]
    after: dict[str, Var]
    saved: dict[str, str]
    active: frozenset[str]
    ends: frozenset[str]
    written: frozenset[str]

    def whole(self) -> ir.Function:
        """The adjoint as one program."""
        return self.program("adjoint", self.leaves, (*self.before, *self.back), self.values)

    def reverse(self) -> ir.Function:
        """The statements that go backward."""
        return self.program("reverse", self.leaves, self.back, self.values)

    def forward(self, values: tuple[Expr, ...]) -> ir.Function:
        """The statements that compute forward."""
        return self.program("forward", self.primal.arguments, self.before, values)

    def program(
        self, suffix: str, arguments: tuple[ir.Argument, ...], body: tuple[Stmt, ...], values: tuple[Expr, ...]
    ) -> ir.Function:
        end = ir.Return(values, line=self.primal.first_line)
        return replace(
            self.primal,
            name=f"{self.primal.name}_{suffix}",
            arguments=arguments,
            body=(*body, end),
            result=("tuple", len(values)),
        )

    def is_saving(self, s: ir.Alloc) -> bool:
        """Return whether an allocation is for values of the forward sweep: saved ones, or a copy of an array."""
        return s.target.name in self.saved or (isinstance(s.fill, Var) and isinstance(s.fill.type, types.Array))

    def kept(self, generated: ir.Function, after: Iterable[str]) -> list[Remark]:
        """Remarks on what a program saves and copies; ``after`` are the arrays whose values after the call are read."""
        found = [Remark.of(Kind.AFTER, array=name) for name in after]
        for s in every(generated.body):
            if isinstance(s, ir.Alloc) and s.target.name in self.saved:
                found.append(Remark.of(Kind.SAVED, s.line, value=self.saved[s.target.name]))
            elif isinstance(s, ir.Alloc) and isinstance(s.fill, Var) and isinstance(s.fill.type, types.Array):
                found.append(Remark.of(Kind.COPIED, array=s.fill.name))
        return found

    def derivative(
        self,
        generated: ir.Function,
        needs: frozenset[str],
        after: Iterable[str],
        remarks: Iterable[Remark],
        saves: bool,
    ) -> Derivative:
        """A program built from this draft, with the facts about it."""
        names = frozenset(a.name for a in self.primal.arguments if isinstance(a.type, types.Array))
        return Derivative(
            function=generated,
            needs=needs & names,
            reads=arrays_read(self.primal) & names,
            writes=self.written & names,
            becomes_active=frozenset(a.name for a in self.shadowed if a.name not in self.active),
            result_active=self.result_active,
            shadows=tuple(a.name for a in self.shadowed),
            scalars=tuple(a.name for a in self.scalars),
            distinct=tuple(a.role[1] for a in generated.arguments if a.role and a.is_a("distinct")),
            after=tuple(after),
            ends=tuple(a.name for a in self.shadowed if a.name in self.ends),
            new=tuple(a.role[1] for a in generated.arguments if a.role and a.is_a("new")),
            remarks=tuple(dict.fromkeys(remarks)),
            saves=saves,
        )

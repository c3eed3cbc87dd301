"""Scopes: the values of the primal's names in one run of the function or of an iteration."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ampi.kernel.ir import Expr, Var
from ampi.kernel.ir.ssa import Loop


@dataclass
class Scope:
    """One run of the function or of an iteration: the values of the original names in the generated code."""

    parent: Scope | None = None
    loop: Loop | None = None
    values: dict[str, Expr] = field(default_factory=dict)
    saved_scalars: dict[str, Var] = field(default_factory=dict)
    saved_loads: dict[str, tuple[Var, tuple[Loop, ...]]] = field(default_factory=dict)
    snapshots: dict[str, tuple[Var, Loop, tuple[Expr, ...]]] = field(default_factory=dict)

    def outwards(self) -> Iterator[Scope]:
        """The scope and those around it."""
        scope: Scope | None = self
        while scope is not None:
            yield scope
            scope = scope.parent

    def find(self, name: str) -> Expr | None:
        return next((scope.values[name] for scope in self.outwards() if name in scope.values), None)

    def atom(self, e: Expr) -> Expr:
        """The value of an atom of the primal."""
        found = self.find(e.name) if isinstance(e, Var) else None
        return e if found is None else found

    def atoms(self, es: Iterable[Expr]) -> tuple[Expr, ...]:
        return tuple(map(self.atom, es))

    def array(self, array: Var) -> Var:
        """The array that stands for an array of the primal."""
        found = self.atom(array)
        assert isinstance(found, Var)
        return found

    def find_snapshot(self, name: str) -> tuple[Var, Loop, tuple[Expr, ...]]:
        """The array of snapshots for a load, the loop that numbers them, and the index of the first element."""
        return next(scope.snapshots[name] for scope in self.outwards() if name in scope.snapshots)

    def find_saved(self, name: str) -> tuple[Var, tuple[Loop, ...]]:
        """The array of values saved for a load, and the loops whose iterations they belong to."""
        return next(scope.saved_loads[name] for scope in self.outwards() if name in scope.saved_loads)

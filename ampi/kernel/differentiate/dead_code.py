"""Dead code elimination: remove statements on which no result depends.

The earlier passes compute every scope forward, and save every value that might be needed.  This pass keeps the part on
which returned values and writes to the caller's arrays depend.  So it decides what is "to be recorded", for scalars,
arrays, saved values and whole sweeps alike.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Stmt, Var
from ampi.kernel.ir.builder import same
from ampi.kernel.ir.rebuild import substitute
from ampi.kernel.ir.ssa import Branch, Loop, every, written


def live_part(function: ir.Function) -> ir.Function:
    """Remove statements of a function (in single assignment form) that have no effect on results and arguments."""
    function = replace(function, body=without_constant_carried(function.body))
    live = _Liveness(function).run()
    return replace(function, body=_kept(function.body, live))


class _Liveness:
    """Marks names, starting from results and arguments."""

    def __init__(self, function: ir.Function) -> None:
        self.arguments = {a.name for a in function.arguments}
        self.names: set[str] = set()
        self.statements: set[int] = set()
        self.needs: dict[str, list[tuple[Expr, ...]]] = defaultdict(list)
        self.enclosing: dict[str, list[tuple[Stmt, ...]]] = defaultdict(list)
        self.writers: dict[str, list[tuple[Stmt, tuple[Stmt, ...]]]] = defaultdict(list)
        self.queue: list[str] = []
        self.roots: list[tuple[Stmt, tuple[Stmt, ...]]] = []
        self.collect(function.body, ())

    def collect(self, body: tuple[Stmt, ...], around: tuple[Stmt, ...]) -> None:
        for s in body:
            match s:
                case ir.Assign(target=target, value=value):
                    self.define(target, (value,), around)
                case ir.Alloc(target=target, shape=shape, fill=fill):
                    self.define(target, shape if fill is None else (*shape, fill), around)
                case Loop(var=var, carried=carried, body=inner):
                    self.define(var, (), (*around, s))
                    for c in carried:
                        self.define(c.var, (c.init, c.next), (*around, s))
                    self.collect(inner, (*around, s))
                case Branch(joins=joins):
                    for j in joins:
                        self.define(j.var, (j.then, j.orelse), (*around, s))
                    self.collect(s.then, (*around, s))
                    self.collect(s.orelse, (*around, s))
            array = written(s)
            if array is not None and not isinstance(s, ir.Alloc):
                self.writers[array.name].append((s, around))
            fails = isinstance(s, ir.Raise) or (isinstance(s, ir.Fill) and s.raises)
            if fails or isinstance(s, ir.Return) or (array is not None and array.name in self.arguments):
                self.roots.append((s, around))

    def define(self, var: Var, needs: tuple[Expr, ...], around: tuple[Stmt, ...]) -> None:
        self.needs[var.name].append(needs)
        self.enclosing[var.name].append(around)

    def run(self) -> _Liveness:
        for s, around in self.roots:
            self.mark_statement(s, around)
        while self.queue:
            name = self.queue.pop()
            for needs in self.needs[name]:
                self.mark_expressions(needs)
            for around in self.enclosing[name]:
                self.mark_around(around)
            for s, around in self.writers[name]:
                self.mark_statement(s, around)
        return self

    def mark_statement(self, s: Stmt, around: tuple[Stmt, ...]) -> None:
        self.mark_around(around)  # of each place: copies of a loop's body may share a statement
        if id(s) in self.statements:
            return
        self.statements.add(id(s))
        match s:
            case ir.Store(array=array, index=index, value=value) | ir.Accumulate(array=array, index=index, value=value):
                self.mark_expressions((array, *index, value))
            case ir.Grow(target=target, size=size):
                self.mark_expressions((target, size))
            case ir.Fill(target=target, arguments=arguments):
                self.mark_expressions((target, *arguments))
            case ir.Return(values=values):
                self.mark_expressions(values)

    def mark_around(self, around: tuple[Stmt, ...]) -> None:
        """Mark the conditions and bounds of the enclosing statements."""
        for s in reversed(around):
            if id(s) in self.statements:
                return
            self.statements.add(id(s))
            if isinstance(s, Branch):
                self.mark_expressions((s.condition,))
            elif isinstance(s, Loop):
                self.mark_expressions((s.start, s.stop, *(() if s.condition is None else (s.condition,))))

    def mark_expressions(self, expressions: tuple[Expr, ...]) -> None:
        for e in expressions:
            for node in ir.walk(e):
                if isinstance(node, Var) and node.name not in self.names:
                    self.names.add(node.name)
                    self.queue.append(node.name)


def _kept(body: tuple[Stmt, ...], live: _Liveness) -> tuple[Stmt, ...]:
    kept: list[Stmt] = []
    for s in body:
        match s:
            case ir.Assign(target=target) | ir.Alloc(target=target):
                if target.name in live.names:
                    kept.append(s)
            case Loop():
                if id(s) in live.statements:
                    carried = tuple(c for c in s.carried if c.var.name in live.names)
                    kept.append(replace(s, carried=carried, body=_kept(s.body, live)))
            case Branch():
                if id(s) in live.statements:
                    joins = tuple(j for j in s.joins if j.var.name in live.names)
                    kept.append(replace(s, then=_kept(s.then, live), orelse=_kept(s.orelse, live), joins=joins))
            case _:
                if id(s) in live.statements:
                    kept.append(s)
    return tuple(kept)


def without_constant_carried(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Replace carried scalars that keep their first value through all iterations by that value."""
    while True:
        constants: dict[str, Expr] = {}
        for s in every(body):
            if isinstance(s, Loop):
                carried = (c for c in s.carried if c.var != s.condition)  # a while loop needs its condition
                constants |= {c.var.name: c.init for c in carried if c.next == c.var or same(c.next, c.init)}
            elif isinstance(s, Branch):
                constants |= {j.var.name: j.then for j in s.joins if same(j.then, j.orelse)}
        if not constants:
            return body
        body = substitute(_dropped(body, constants), _resolved(constants))


def _resolved(constants: dict[str, Expr]) -> dict[str, Expr]:
    def final(e: Expr) -> Expr:
        while isinstance(e, Var) and e.name in constants:
            e = constants[e.name]
        return e

    return {name: final(e) for name, e in constants.items()}


def _dropped(body: tuple[Stmt, ...], constants: dict[str, Expr]) -> tuple[Stmt, ...]:
    def block(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        found = []
        for s in statements:
            if isinstance(s, Loop):
                s = replace(s, carried=tuple(c for c in s.carried if c.var.name not in constants))
            elif isinstance(s, Branch):
                s = replace(s, joins=tuple(j for j in s.joins if j.var.name not in constants))
            found.append(ir.in_blocks(s, block))
        return tuple(found)

    return block(body)

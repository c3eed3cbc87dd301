"""Loop fission at barriers (MCUDA): a kernel for one thread becomes phases that all threads of a block run.

Between two barriers threads may run in any order, so a phase is a loop over them.  Loops and branches around barriers,
whose conditions are equal in all threads (`uniformity`), enclose the phases.  A scalar that a thread carries from one
phase to another is stored in an array over threads, and a local array gets one more dimension; values that depend only
on constants and on the thread's index are recomputed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.guards import FALSE, TRUE, Guard, has_barrier
from ampi.kernel.cuda.uniformity import Uniformity, assigned
from ampi.kernel.frontend.cuda.language import INT, place
from ampi.kernel.ir import inference, printer
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import substitute

Fail = Callable[[int, str, str], NoReturn]
ADVICE = (
    "let all threads of the block reach it: put cuda.syncthreads() after the branch or the loop, and conditions "
    "around the statements between barriers"
)


@dataclass(frozen=True)
class Phase(ir.Stmt):
    """The statements of each thread of a block between two barriers."""

    body: tuple[ir.Stmt, ...]


@printer.statement.register
def _(s: Phase) -> printer.Parts:
    yield "each thread of the block", s.body


def split(
    body: tuple[ir.Stmt, ...], known: Uniformity, names: Names, fail: Fail, arguments: frozenset[str]
) -> tuple[ir.Stmt, ...]:
    """Return the statements of a block: allocations, phases, and statements of all threads of the block together."""
    of_block = _agreed(body, known, fail)
    splitting = _Splitting(of_block, known, names)
    phased = splitting.block(body)
    return _Registers(phased, frozenset(splitting.of_block), arguments, known, names, fail).run()


# --------------------------------------------------------------------------------------------- what a block decides


def _agreed(body: tuple[ir.Stmt, ...], known: Uniformity, fail: Fail) -> set[str]:
    """Return the scalars on which loops and branches around barriers depend: they are computed once for a block."""
    wanted: set[str] = set()
    while True:
        before = set(wanted)
        for s in ir.walk(body):
            if isinstance(s, (ir.If, ir.For, ir.While)) and is_of_block(s, wanted):
                controls = () if isinstance(s, Guard) else _controls(s)
                if any(map(known.differs, controls)):
                    _refuse(s, wanted, fail)
                wanted |= {n.name for e in controls for n in ir.walk(e) if _is_scalar(n)}
                if isinstance(s, ir.For):
                    wanted.add(s.var.name)
            elif isinstance(s, ir.Assign) and s.target.name in wanted:
                wanted |= {n.name for n in ir.walk(s.value) if _is_scalar(n)}
        if wanted == before:
            break
    for s in ir.walk(body):
        if isinstance(s, ir.Barrier) and s.target is not None:
            wanted.add(s.target.name)
    return wanted


def _controls(s: ir.Stmt) -> tuple[ir.Expr, ...]:
    return (s.start, s.stop, s.step) if isinstance(s, ir.For) else (s.condition,)  # type: ignore[attr-defined]


def _is_scalar(n: Any) -> bool:
    return isinstance(n, ir.Var) and inference.is_scalar(n.type)


def is_of_block(s: ir.Stmt, wanted: set[str]) -> bool:
    """Return whether a statement contains something that the threads of a block do together."""
    return has_barrier(s) or any(v.name in wanted for v in assigned((s,)))


def _refuse(s: ir.Stmt, wanted: set[str], fail: Fail) -> NoReturn:
    barriers = [n for n in ir.walk(s) if isinstance(n, ir.Barrier)]
    what = "branch" if isinstance(s, ir.If) else "loop"
    if barriers and all(b.kind == "warp" for b in barriers):
        text = f"threads of a block run this {what} differently, and exchange values within a warp in it"
        fail(s.line, text, "let all threads of the block run it, or move the exchange after it")
    at = barriers[0].line if barriers else s.line
    text = f"not all threads of a block reach this barrier: they differ in the {what} of line {s.line}"
    fail(at, text, ADVICE)


# --------------------------------------------------------------------------------------------- phases


@dataclass
class _Open:
    """Statements under a guard, in the phase under construction."""

    guard: Guard
    inside: list[Any] = field(default_factory=list)


class _Splitting:
    def __init__(self, of_block: set[str], known: Uniformity, names: Names) -> None:
        self.of_block = of_block
        self.known = known
        self.names = names
        self.out: list[ir.Stmt] = []
        self.phase: list[Any] = []
        self.guards: tuple[Guard, ...] = ()

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        around, self.out = self.out, []
        self.statements(body)
        self.flush()
        found, self.out = tuple(self.out), around
        return found

    def statements(self, body: tuple[ir.Stmt, ...]) -> None:
        for number, s in enumerate(body):
            together = self.is_together(s)
            if together and self.guards and not isinstance(s, Guard):
                guards = self.guards
                there = self.some_are_there()
                self.guards = ()
                self.out.append(ir.If(there, self.with_guards(guards, body[number:]), line=s.line))
                self.guards = guards
                return
            self.statement(s, together)

    def with_guards(self, guards: tuple[Guard, ...], body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        """Return the statements of a block whose phases only some of the threads run."""
        inner = _Splitting(self.of_block, self.known, self.names)
        inner.checked(guards, body)
        inner.flush()
        return tuple(inner.out)

    def checked(self, guards: tuple[Guard, ...], body: tuple[ir.Stmt, ...]) -> None:
        """Split statements that at least one thread of the block runs."""
        for s in body:
            if isinstance(s, Guard):
                self.guards = guards
                self.statement(s, self.is_together(s))
            elif self.is_together(s):
                self.flush()
                match s:
                    case ir.For() | ir.While():
                        self.out.append(replace(s, body=self.with_guards(guards, s.body)))
                    case ir.If():
                        then, orelse = (self.with_guards(guards, b) for b in (s.then, s.orelse))
                        self.out.append(replace(s, then=then, orelse=orelse))
                    case _:
                        self.guards = guards
                        self.statement(s, True)
            else:
                self.guards = guards
                self.statement(s, False)

    def is_together(self, s: ir.Stmt) -> bool:
        """Return whether a statement belongs to no phase, barriers included."""
        if isinstance(s, ir.Barrier):
            return False
        return is_of_block(s, self.of_block)

    def statement(self, s: ir.Stmt, together: bool) -> None:
        match s:
            case ir.Barrier(target=None):
                self.flush()
            case ir.Barrier():
                self.votes(s)
            case Guard() if together:
                around, self.guards = self.guards, (*self.guards, s)
                self.statements(s.then)
                self.guards = around
            case ir.For() | ir.While() if together:
                self.flush()
                self.out.append(replace(s, body=self.block(s.body)))
            case ir.If() if together:
                self.flush()
                self.out.append(replace(s, then=self.block(s.then), orelse=self.block(s.orelse)))
            case ir.Assign() if together:
                self.flush()
                self.out.append(s)
            case ir.Alloc(shared=True):
                self.out.append(s)
            case _:
                self.add(s)

    def add(self, s: ir.Stmt) -> None:
        """Put a statement into the phase, under the guards that enclose it."""
        block = self.phase
        for guard in self.guards:
            if not (block and isinstance(block[-1], _Open) and block[-1].guard is guard):
                block.append(_Open(guard))
            block = block[-1].inside
        block.append(s)

    def flush(self) -> None:
        if self.phase:
            self.out.append(Phase(tuple(_closed(self.phase)), line=_first(self.phase).line))
            self.phase = []

    def votes(self, s: ir.Barrier) -> None:
        """Combine the values of all threads at a barrier: their number, and, or or."""
        assert s.target is not None and s.value is not None
        self.flush()
        count = ir.Var(self.names.fresh("count"), INT)
        self.of_block.add(count.name)
        total = ir.Const(1 if s.kind == "and" else 0, INT)
        vote = ir.Op("cast", (s.value,), INT)
        name = {"count": "add", "and": "min", "or": "max"}[s.kind]
        self.out.append(ir.Assign(count, total, line=s.line))
        self.add(ir.Assign(count, ir.Op(name, (count, vote), INT), line=s.line))
        self.flush()
        self.out.append(ir.Assign(s.target, ir.Op("cast", (count,), s.target.type), line=s.line))

    def some_are_there(self) -> ir.Var:
        """Return a variable that is True if some thread of the block passes the guards."""
        self.flush()
        there = ir.Var(self.names.fresh("some"), types.boolean)
        self.of_block.add(there.name)
        self.out.append(ir.Assign(there, FALSE))
        self.add(ir.Assign(there, TRUE))
        self.flush()
        return there


def _closed(statements: list[Any]) -> Iterator[ir.Stmt]:
    for s in statements:
        if isinstance(s, _Open):
            yield ir.If(s.guard.condition, tuple(_closed(s.inside)), line=s.guard.line)
        else:
            yield s


def _first(statements: list[Any]) -> ir.Stmt:
    first = statements[0]
    return _first(first.inside) if isinstance(first, _Open) else first


# --------------------------------------------------------------------------------------------- values across phases


@dataclass
class _Use:
    """The scalars of a phase that are read before they are assigned, and those that may be assigned."""

    exposed: dict[str, ir.Var] = field(default_factory=dict)
    perhaps: dict[str, ir.Var] = field(default_factory=dict)


class _Registers:
    """Storage in arrays for the values that a thread carries from one phase to another."""

    def __init__(
        self,
        body: tuple[ir.Stmt, ...],
        of_block: frozenset[str],
        arguments: frozenset[str],
        known: Uniformity,
        names: Names,
        fail: Fail,
    ) -> None:
        self.body, self.names, self.fail = body, names, fail
        outside = {v.name for s in _around(body) for v in assigned_here(s)}
        self.fixed = of_block | arguments | outside
        self.known = known
        self.phases = [s for s in ir.walk(body) if isinstance(s, Phase)]
        self.count: dict[str, int] = {}
        self.value: dict[str, ir.Assign] = {}
        for s in ir.walk(body):
            for v in assigned_here(s):
                self.count[v.name] = self.count.get(v.name, 0) + 1
            if isinstance(s, ir.Assign):
                self.value[s.target.name] = s
        self.constant = arguments
        self.again: dict[str, bool] = {}
        self.views, self.moved = self.arrays()
        uses = [self.use(p.body) for p in self.phases]
        self.uses = {id(p): u for p, u in zip(self.phases, uses)}
        crossing = {name: v for u, _ in uses for name, v in u.exposed.items() if not self.is_again(name)}
        self.register = {
            name: ir.Var(names.fresh(f"{name}_of_threads"), types.Array(v.type, 1, "C")) for name, v in crossing.items()
        }
        self.scalar = crossing
        self.begins = dict(self.first_phases())  # for each register, the phase before which it has no value

    def run(self) -> tuple[ir.Stmt, ...]:
        shared = [s for s in ir.walk(self.body) if isinstance(s, ir.Alloc) and s.shared]
        threads = place("threads")
        registers = [
            ir.Alloc(v, (threads,), None if name in self.begins else ir.Const(_zero(v.type.dtype), v.type.dtype))
            for name, v in self.register.items()
        ]
        moved = [ir.Alloc(big, (threads, *s.shape), None, line=s.line) for s, big in self.moved.values()]
        return (*(replace(s, shared=False) for s in shared), *registers, *moved, *self.block(self.body))

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            match s:
                case Phase():
                    s = self.phase(s)
                case ir.Alloc(shared=True):
                    continue
                case _:
                    s = ir.in_blocks(s, self.block)
            out.append(s)
        return tuple(out)

    def first_phases(self) -> Iterator[tuple[str, int]]:
        """Iterate over registers, each with the phase outside loops that assigns it before any other uses it."""
        outer = {id(s) for s in self.body}
        visited: set[str] = set()
        for p in self.phases:
            use, _ = self.uses[id(p)]
            for name in self.register:
                if name not in visited and (name in use.exposed or name in use.perhaps):
                    visited.add(name)
                    if id(p) in outer and name not in use.exposed:
                        yield name, id(p)

    # ------------------------------------------------------------------------------------------- a phase

    def phase(self, p: Phase) -> Phase:
        use, certain = self.uses[id(p)]
        before: dict[str, ir.Stmt] = {}
        names: dict[str, ir.Expr] = {}
        for name in use.exposed:
            self.ready(name, before)
        for name, v in use.perhaps.items():
            if name in self.register and name not in certain:
                if self.begins.get(name) == id(p):
                    before[name] = ir.Assign(v, ir.Const(_zero(v.type), v.type))
                else:
                    self.ready(name, before)
        own = {s.target.name for s in ir.walk(p.body) if isinstance(s, (ir.Alloc, ir.Alias, ir.View))}
        arrays = {n.name for n in ir.walk(p.body) if isinstance(n, ir.Var) and not _is_scalar(n)}
        for name in sorted(arrays):
            self.array(name, own, before, names)
        body = tuple(s for s in p.body if not (isinstance(s, ir.Alloc) and s.target.name in self.moved))
        body = tuple(map(self.without_moved, body))
        after = [
            ir.Store(self.register[name], (place("rank"),), v)
            for name, v in use.perhaps.items()
            if name in self.register
        ]
        line = {"line": p.line}
        statements = (*(replace(s, **line) for s in before.values()), *body, *(replace(s, **line) for s in after))
        return replace(p, body=tuple(substitute(s, names) for s in statements))

    def without_moved(self, s: ir.Stmt) -> ir.Stmt:
        """Return a statement without allocations of local arrays, which are made for all threads in advance."""
        moved = lambda t: isinstance(t, ir.Alloc) and t.target.name in self.moved
        return ir.in_blocks(s, lambda block: tuple(self.without_moved(t) for t in block if not moved(t)))

    def ready(self, name: str, before: dict[str, ir.Stmt]) -> None:
        """Ensure that a scalar has its value when a phase begins."""
        if name in before or name in self.fixed:
            return
        if self.is_again(name):
            s = self.value[name]
            for n in ir.walk(s.value):
                if _is_scalar(n):
                    self.ready(n.name, before)
            before[name] = s
        elif name in self.register:
            v = self.scalar[name]
            before[name] = ir.Assign(v, ir.Load(self.register[name], (place("rank"),), v.type))

    def array(self, name: str, own: set[str], before: dict[str, ir.Stmt], names: dict[str, ir.Expr]) -> None:
        """Ensure that a name refers to its array in a phase."""
        if name in names:
            return
        if name in self.moved:
            s, big = self.moved[name]
            view = inference.element_view(big.type, 1)
            names[name] = ir.Var(self.names.fresh(name), view)
            before[f"array {name}"] = ir.Alias(names[name], big, (place("rank"),))  # type: ignore[arg-type]
        elif name in self.views and name not in own:
            s = self.views[name]
            self.array(s.array.name, own, before, names)
            for n in ir.walk((s.index, getattr(s, "shape", ()))):
                if _is_scalar(n):
                    self.ready(n.name, before)
            names[name] = ir.Var(self.names.fresh(name), s.target.type)
            before[f"array {name}"] = s

    # ------------------------------------------------------------------------------------------- analysis

    def arrays(self) -> tuple[dict[str, Any], dict[str, tuple[ir.Alloc, ir.Var]]]:
        """Return all names for parts of arrays, and the local arrays that several phases use."""
        views, moved = {}, {}
        where: dict[str, set[int]] = {}
        home: dict[str, int] = {}
        for p in self.phases:
            for n in ir.walk(p.body):
                if isinstance(n, ir.Var) and not _is_scalar(n):
                    where.setdefault(n.name, set()).add(id(p))
            for s in ir.walk(p.body):
                if isinstance(s, (ir.Alias, ir.View)):
                    if s.target.name in home:
                        self.fail(s.line, f"'{s.target.name}' stands for different arrays", "use two names")
                    views[s.target.name], home[s.target.name] = s, id(p)
        for name, s in views.items():
            root = s
            while root.array.name in views:
                root = views[root.array.name]
            where.setdefault(root.array.name, set()).update(where[name])
            if where[name] != {home[name]}:
                self.check_view(s)
        for p in self.phases:
            for s in ir.walk(p.body):
                if isinstance(s, ir.Alloc) and not s.shared and where[s.target.name] != {id(p)}:
                    if s.fill is not None:
                        self.fail(s.line, f"the array '{s.target.name}' is used after a barrier",
                                  "make it by cuda.local.array, and fill it in a loop")  # fmt: skip
                    ndim = s.target.type.ndim + 1
                    big = ir.Var(self.names.fresh(s.target.name), types.Array(s.target.type.dtype, ndim, "C"))
                    moved[s.target.name] = s, big
        return views, moved

    def check_view(self, s: Any) -> None:
        """Refuse a part of an array that several phases use if its index changes, or is an element of an array."""
        for n in ir.walk((s.index, getattr(s, "shape", ()))):
            lasts = _is_scalar(n) and (self.count.get(n.name, 0) <= 1 or n in getattr(s, "axes", ()))
            if isinstance(n, ir.Load) or (_is_scalar(n) and not lasts):
                self.fail(s.line, f"the part '{s.target.name}' of an array is used after a barrier",
                          "take the part again after it, or index the array itself")  # fmt: skip

    def is_again(self, name: str) -> bool:
        """Return whether a scalar is recomputed in each phase: cheaply, from constants and thread indices alone."""
        known = self.again.get(name)
        if known is None:
            self.again[name] = False  # the answer for a scalar that depends on itself
            known = self.again[name] = self._is_again(name)
        return known

    def _is_again(self, name: str) -> bool:
        s = self.value.get(name)
        if s is None or name in self.fixed or self.count.get(name) != 1:
            return False
        if not isinstance(s.target.type, (types.Integer, types.Boolean)):
            return False
        for n in ir.walk(s.value):
            if isinstance(n, ir.Load) or (isinstance(n, ir.Op) and n.name in ("old", "truediv", "pow")):
                return False
            if _is_scalar(n) and n.name not in self.constant and not self.is_again(n.name):
                return False
        return True

    def use(self, body: tuple[ir.Stmt, ...]) -> tuple[_Use, set[str]]:
        """Return the scalars of a phase, and those that it certainly assigns."""
        found = _Use()
        # Parts of arrays are taken in the phase that uses them, which reads the scalars in their indices.
        for name in {n.name for n in ir.walk(body) if isinstance(n, ir.Var)} & set(self.views):
            s = self.views[name]
            own = any(t is s for t in ir.walk(body))
            while not own:
                self.read((s.index, getattr(s, "shape", ())), set(), found, getattr(s, "axes", ()))
                if s.array.name not in self.views:
                    break
                s = self.views[s.array.name]
        return found, self.flow(body, set(), found)

    def read(self, expressions: Any, certain: set[str], found: _Use, axes: tuple[ir.Var, ...] = ()) -> None:
        for n in ir.walk(expressions):
            if _is_scalar(n) and n.name not in certain and n.name not in self.fixed and n not in axes:
                found.exposed[n.name] = n

    def flow(self, body: tuple[ir.Stmt, ...], certain: set[str], found: _Use) -> set[str]:
        """Return the scalars certainly assigned after statements; note those that they read and assign."""

        def assign(v: ir.Var) -> None:
            if v.name not in self.fixed:
                found.perhaps[v.name] = v
                certain.add(v.name)

        for s in body:
            match s:
                case ir.Assign():
                    self.read(s.value, certain, found)
                    assign(s.target)
                case ir.If():
                    self.read(s.condition, certain, found)
                    sides = [self.flow(b, set(certain), found) for b in (s.then, s.orelse)]
                    certain |= sides[0] & sides[1]
                case ir.For():
                    self.read((s.start, s.stop, s.step), certain, found)
                    self.flow(s.body, certain | {s.var.name}, found)
                case ir.While():
                    self.read(s.condition, certain, found)
                    self.flow(s.body, set(certain), found)
                case ir.Custom():
                    self.read(s.arguments, certain, found)
                    inner = self.flow(s.body, set(certain), found)
                    self.read(s.results, inner, found)
                    for v in s.outputs:
                        assign(v)
                case ir.View() | ir.Elementwise():
                    axes = {v.name for v in s.axes}
                    self.read((s.shape,), certain, found)
                    self.read((s.index, getattr(s, "value", ())), certain | axes, found)
                case _:
                    for child in ir.children(s):
                        self.read(child, certain, found)
        return certain


def assigned_here(s: Any) -> tuple[ir.Var, ...]:
    """Return the scalars that a statement itself assigns."""
    match s:
        case ir.Assign(target=target) | ir.Barrier(target=ir.Var() as target):
            return (target,)
        case ir.For(var=var):
            return (var,)
        case ir.Custom(outputs=outputs):
            return outputs
    return ()


def _around(body: tuple[ir.Stmt, ...]) -> Iterator[ir.Stmt]:
    """Iterate over the statements of a block that are in no phase."""
    for s in body:
        if isinstance(s, Phase):
            continue
        yield s
        for block in (getattr(s, "body", ()), getattr(s, "then", ()), getattr(s, "orelse", ())):
            yield from _around(block)


def _zero(ty: Any) -> Any:
    return (
        False
        if isinstance(ty, types.Boolean)
        else 0j
        if isinstance(ty, types.Complex)
        else 0.0
        if isinstance(ty, types.Float)
        else 0
    )

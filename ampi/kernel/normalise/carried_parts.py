"""Carried views: parts of an array that live from one iteration to the next are replaced by their start and step.

A name for a part of an array that is used in the next iteration or after the loop becomes the numbers that define the
part; where it is used, the part is taken again::

    row = a[0]                            row_start = 0
    for i in range(1, n):                 for i in range(1, n):
        s += row[0] * a[i, 0]     ->          now = a[row_start]
        row = a[i]                            s += now[0] * a[i, 0]
                                              row_start = i

So there is no copy: writes to the array, or through the name, are seen.  Names for parts of different arrays are left
to ``carried_arrays``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.liveness import used
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped, substitute
from ampi.kernel.normalise.array_phi import live_around, with_live

Block = tuple[ir.Stmt, ...]
Binding = ir.Alias | ir.View
Loop = ir.For | ir.While


def as_numbers(function: ir.Function) -> ir.Function:
    """Replace carried names for parts of one array by numbers, in a lowered function with views."""
    tried: set[str] = set()
    while True:
        carried = [(name, loops) for name, loops in _carried(function).items() if name not in tried]
        groups = (_group(function, *found, whole) for found in carried for whole in (True, False))
        group = next(filter(None, groups), None)
        if group is None:
            return function
        tried |= set(group.parts)
        function = _Rewrite(function, group).run()


# --------------------------------------------------------------------------------------------------- carried names


def _carried(function: ir.Function) -> dict[str, list[Loop]]:
    """The names that loops bind to arrays and that are used in a later iteration or after the loop, with the loops."""
    found: dict[str, list[Loop]] = {}

    def block(body: Block, live: set[str]) -> None:
        for s, after in with_live(body, live):
            match s:
                case ir.If():
                    block(s.then, after)
                    block(s.orelse, after)
                case ir.For() | ir.While():
                    around = live_around(s, after)
                    bound = [n.target.name for n in ir.walk(s.body) if isinstance(n, (ir.Alias, ir.View))]
                    for name in dict.fromkeys(bound):
                        if name in around and not (isinstance(s, ir.For) and s.parallel):
                            found.setdefault(name, []).append(s)
                    block(s.body, around)
                case ir.Custom():
                    block(s.body, after)

    block(function.body, set())
    return found


@dataclass(frozen=True)
class Axis:
    """The position of an array's axis in a part: from ``start`` in steps of ``step`` along an axis of the part, or
    fixed at ``start``."""

    start: ir.Expr
    step: ir.Expr
    along: int | None


@dataclass
class Group:
    """Names for parts of one array; for each name, the axis of the part for each axis of the array, or None."""

    root: ir.Var
    parts: dict[str, tuple[int | None, ...]]


def _group(function: ir.Function, name: str, loops: Iterable[Loop], whole: bool) -> Group | None:
    """A carried name and the names from which it is taken, if loops bind them to parts of one array: a ``whole`` one,
    or a part that has a name before the loops.
    """
    bindings: dict[str, list[ir.Stmt]] = {}
    for n in ir.walk(function.body):
        if isinstance(n, (ir.Alias, ir.View, ir.Alloc, ir.Grow)):
            bindings.setdefault(n.target.name, []).append(n)
    inside = {id(n) for loop in loops for n in ir.walk(loop)}
    root: ir.Var | None = None
    names, waiting = {name: None}, [name]  # in the same order in all processes
    while waiting:
        for b in bindings[waiting.pop()]:
            if not isinstance(b, (ir.Alias, ir.View)):
                return None
            known = bindings.get(b.array.name, [])
            outside = len(known) == 1 and id(known[0]) not in inside
            if not known or (outside and not (whole and isinstance(known[0], (ir.Alias, ir.View)))):
                if root is not None and root.name != b.array.name:
                    return None
                root = b.array
            elif b.array.name not in names:
                names[b.array.name] = None
                waiting.append(b.array.name)
    found = [b for n in names for b in bindings[n] if isinstance(b, (ir.Alias, ir.View))]
    if root is None or not any(id(b) in inside for b in found if isinstance(b, ir.View) or b.index):
        return None
    parts: dict[str, tuple[int | None, ...]] = {root.name: tuple(range(root.type.ndim))}
    known_before = 0
    while len(parts) > known_before:  # again when all are known, so that every binding is checked
        known_before = len(parts)
        for b in found:
            if b.array.name in parts:
                axes = _axes(b)
                if axes is None:
                    return None
                mapping = tuple(None if k is None else axes[k].along for k in parts[b.array.name])
                if parts.setdefault(b.target.name, mapping) != mapping:
                    return None
    if len(parts) <= len(names):
        return None
    del parts[root.name]
    return Group(root, parts)


def _axes(b: Binding) -> tuple[Axis, ...] | None:
    """The part of an array in terms of starts and steps; None if it cannot be written so."""
    if isinstance(b, ir.Alias):
        rest = b.array.type.ndim - len(b.index)
        return (*(Axis(i, ZERO, None) for i in b.index), *(Axis(ZERO, ONE, k) for k in range(rest)))
    found: list[Axis] = []
    for e in b.index:
        along = [k for k, axis in enumerate(b.axes) if axis.name in used(e)]
        line = _line(e, b.axes[along[0]]) if len(along) == 1 else (e, ZERO) if not along else None
        if line is None:
            return None
        found.append(Axis(*line, along[0] if along else None))
    return tuple(found)


def _line(e: ir.Expr, axis: ir.Var) -> tuple[ir.Expr, ir.Expr] | None:
    """``start`` and ``step`` of an expression ``start + step * axis``."""
    total = index_algebra.as_sum(e)
    steps = [(term, factor) for term, factor in total.terms.items() if axis.name in used(term)]
    if len(steps) != 1:
        return None
    ((term, factor),) = steps
    step: ir.Expr = ir.Const(int(factor), INT)
    if term != axis:  # step * axis
        factors = term.args if isinstance(term, ir.Op) and term.name == "mul" else ()
        others = [f for f in factors if f != axis]
        if len(factors) != 2 or len(others) != 1 or axis.name in used(others[0]):
            return None
        step = index_algebra.mul(step, others[0])
    return index_algebra.as_expression(total.without(term)), step


# --------------------------------------------------------------------------------------------------- rewriting


@dataclass(frozen=True)
class Numbers:
    """The numbers that define the part for which a name stands: variables, or values common to all bindings."""

    start: tuple[ir.Expr, ...]  # for each axis of the whole array
    step: tuple[ir.Expr | None, ...]  # None: the part has no such axis
    size: tuple[ir.Expr, ...]  # for each axis of the part


class _Rewrite:
    def __init__(self, function: ir.Function, group: Group):
        self.function, self.group, self.root = function, group, group.root
        self.fresh = Names.of(function).variable
        bindings = [n for n in ir.walk(function.body) if isinstance(n, (ir.Alias, ir.View)) and self.binds(n)]
        self.types = {b.target.name: b.target.type for b in bindings}
        self.dense = all(a.step == ONE for b in bindings for a in _axes(b) or () if a.along is not None)
        self.whole = self.from_zero(bindings)
        sizes = self.constant_sizes(bindings)
        self.numbers = {name: self.variables(name, sizes) for name in group.parts}
        self.now: dict[str, ir.Var] = {}  # the part taken for the uses that follow

    def run(self) -> ir.Function:
        return replace(self.function, body=self.block(self.function.body))

    def binds(self, s: Any) -> bool:
        return isinstance(s, (ir.Alias, ir.View)) and s.target.name in self.group.parts

    def variables(self, name: str, sizes: dict[tuple[str, int], ir.Expr | None]) -> Numbers:
        mapping = self.group.parts[name]
        start = tuple(
            ZERO if (name, j) in self.whole else self.fresh(f"{name}_start", INT) for j in range(len(mapping))
        )
        of_step = lambda: ONE if self.dense else self.fresh(f"{name}_step", INT)
        of_size = lambda k: sizes.get((name, k)) or self.fresh(f"{name}_size", INT)
        step = tuple(None if k is None else of_step() for k in mapping)
        return Numbers(start, step, tuple(of_size(k) for k in range(self.types[name].ndim)))

    def from_zero(self, bindings: list[Binding]) -> set[tuple[str, int]]:
        """The axes of the whole array on which a part always begins at the first element."""
        found = {(n, j) for n, mapping in self.group.parts.items() for j, k in enumerate(mapping) if k is not None}
        while True:
            before = set(found)
            for b in bindings:
                axes = _axes(b) or ()
                for j, k in enumerate(self.group.parts.get(b.array.name, range(b.array.type.ndim))):
                    begins = b.array == self.root or (b.array.name, j) in found
                    if k is not None and not (begins and axes[k].start == ZERO):
                        found.discard((b.target.name, j))
            if found == before:
                return found

    def constant_sizes(self, bindings: list[Binding]) -> dict[tuple[str, int], ir.Expr | None]:
        """The sizes that are numbers, or those of the whole array, at every binding of a name; None: they differ."""
        found: dict[tuple[str, int], ir.Expr | None] = {}
        while True:
            before = dict(found)
            for b in bindings:
                for k in range(b.target.type.ndim):
                    if isinstance(b, ir.View):
                        size = b.shape[k]
                        fixed = isinstance(size, ir.Const) or (isinstance(size, ir.Size) and size.array == self.root)
                        known = size if fixed else None
                    elif b.array == self.root:
                        known = ir.Size(self.root, k + len(b.index), INT)
                    elif (b.array.name, k + len(b.index)) in found:
                        known = found[b.array.name, k + len(b.index)]
                    else:
                        continue
                    if found.setdefault((b.target.name, k), known) != known:
                        found[b.target.name, k] = None
            if found == before:
                return found

    # statements

    def block(self, body: Block) -> Block:
        return tuple(new for s in body for new in self.statement(s))

    def statement(self, s: ir.Stmt) -> Iterator[ir.Stmt]:
        if isinstance(s, (ir.Alias, ir.View)) and self.binds(s):
            yield from self.bind(s)
            return
        inner = [f for f in ("then", "orelse", "body") if hasattr(s, f)]
        bound = {n.target.name for n in ir.walk(s) if self.binds(n)}
        if not bound or not inner:  # parts taken before hold inside
            yield from self.taken(s, s.line)
            yield self.renamed(s)
            return
        heads = {}
        for f in ("condition", "start", "stop", "step", "arguments", "results", "residuals"):
            if hasattr(s, f) and isinstance(s, ir.While):
                heads[f] = mapped(getattr(s, f), self.in_numbers)
            elif hasattr(s, f):
                yield from self.taken(getattr(s, f), s.line)
                heads[f] = self.renamed(getattr(s, f))
        again = isinstance(s, (ir.For, ir.While))  # the blocks also begin with bindings of an earlier iteration
        after = {name: part for name, part in self.now.items() if name not in bound}
        begin = after if again else self.now
        blocks = {}
        for f in inner:
            self.now = dict(begin)
            blocks[f] = self.block(getattr(s, f))
        self.now = after
        yield replace(s, **heads, **blocks)

    def renamed(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self.renamed, value))
        return substitute(value, dict(self.now)) if used(value) & set(self.now) else value

    def bind(self, s: Binding) -> Iterator[ir.Stmt]:
        """Set the numbers of the part for which a name stands from here on; all are computed before any is set."""
        parts = {"index": s.index, "shape": s.shape} if isinstance(s, ir.View) else {"index": s.index}
        yield from self.taken(tuple(parts.values()), s.line)
        s = replace(s, **{f: self.renamed(value) for f, value in parts.items()})
        mine = self.numbers[s.target.name]
        values = [(v, e) for v, e in self.values(s, mine) if isinstance(v, ir.Var)]
        if s.array.name == s.target.name:
            copies = [(v, self.fresh(f"{v.name}_next", INT), e) for v, e in values]
            for _, copy, e in copies:
                yield ir.Assign(copy, cast(e, INT), line=s.line)
            values = [(v, copy) for v, copy, _ in copies]
        for v, e in values:
            yield ir.Assign(v, cast(e, INT), line=s.line)
        self.now.pop(s.target.name, None)

    def values(self, s: Binding, mine: Numbers) -> Iterator[tuple[ir.Expr, ir.Expr]]:
        axes = _axes(s)
        assert axes is not None
        source = self.numbers.get(s.array.name)
        if source is None:
            for j, at in enumerate(axes):
                yield mine.start[j], at.start
                yield mine.step[j] or ONE, at.step
        else:
            for j, along in enumerate(self.group.parts[s.array.name]):
                if along is None:
                    yield mine.start[j], source.start[j]
                    continue
                at, step = axes[along], source.step[j] or ONE
                first = at.start if at.along is not None else _from_start(at.start, source.size[along])
                yield mine.start[j], index_algebra.add(source.start[j], index_algebra.mul(step, first))
                yield mine.step[j] or ONE, index_algebra.mul(step, at.step)
        for k, size in enumerate(mine.size):
            if isinstance(s, ir.View):
                yield size, s.shape[k]
            else:
                whole = ir.Size(s.array, k + len(s.index), INT)
                yield size, whole if source is None else source.size[k + len(s.index)]

    # uses

    def taken(self, value: Any, line: int) -> Iterator[ir.Stmt]:
        """Take the parts that a value uses, at the current values of their numbers."""
        for name in [n for n in self.group.parts if n in used(value) and n not in self.now]:
            numbers = self.numbers[name]
            known: dict[str, ir.Expr] = {}
            for v in (*numbers.start, *numbers.step, *numbers.size):
                if isinstance(v, ir.Var):
                    known[v.name] = copy = self.fresh(f"{v.name}_now", INT)
                    yield ir.Assign(copy, v, line=line)
            axes = tuple(self.fresh("i", INT) for _ in numbers.size)
            index = self.index(name, axes)
            part = ir.View(self.fresh(name, self.types[name]), self.root, axes, numbers.size, index, line=line)
            new = substitute(part, known)
            yield new
            self.now[name] = new.target

    def index(self, name: str, axes: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
        numbers, found = self.numbers[name], []
        for start, step, k in zip(numbers.start, numbers.step, self.group.parts[name]):
            offset = (
                None if k is None or step is None else axes[k] if step == ONE else ir.Op("mul", (step, axes[k]), INT)
            )
            found.append(start if offset is None else offset if start == ZERO else ir.Op("add", (start, offset), INT))
        return tuple(found)

    def in_numbers(self, e: ir.Expr) -> ir.Expr:
        """An expression that each iteration evaluates, in terms of the numbers instead of the parts."""
        if isinstance(e, ir.Size) and e.array.name in self.numbers:
            return cast(self.numbers[e.array.name].size[e.axis], e.type)
        if isinstance(e, ir.Load) and e.array.name in self.numbers:
            sizes = self.numbers[e.array.name].size
            axes = tuple(_from_start(i, n) for i, n in zip(e.index, sizes))
            return replace(e, array=self.root, index=self.index(e.array.name, axes))
        return e


def _from_start(index: ir.Expr, size: ir.Expr) -> ir.Expr:
    below = index_algebra.lowest(index)
    if below is not None and below >= 0:
        return index
    return ir.Op("select", (ir.Op("lt", (index, ZERO), types.boolean), index_algebra.add(index, size), index), INT)

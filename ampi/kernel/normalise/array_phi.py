"""Array phi resolution: names that stand for one of several arrays (``u, v = v, u``, ``z = x if flag else y``).

The analyses need one array per name.  At each place such a name has a few possible arrays (two for buffers that are
swapped in a loop).  A scalar holds the current case at run time, and each part of the program in which no name changes
its array is written once for every case, under that condition.

If a returned array is one of several, a copy is returned; derivatives are the same.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NoReturn

from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.ir import inference
from ampi.kernel.ir.liveness import live_before, used
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.rewrite import mapped, rename

State = tuple[tuple[str, str], ...]  # each name with its array, sorted

Block = tuple[ir.Stmt, ...]

MAX_STATES = 24


def resolve(function: ir.Function) -> ir.Function:
    """The function (lowered) in which every name of an array stands for one array."""
    names = references(function)
    return _Resolve(function, names).run() if names else function


def references(function: ir.Function) -> set[str]:
    """The names of arrays that are bound more than once, and their aliases."""
    aliases = [s for s in ir.walk(function.body) if isinstance(s, ir.Alias) and not s.index]
    count: dict[str, int] = {}
    for s in aliases:
        count[s.target.name] = count.get(s.target.name, 0) + 1
    found = {name for name, n in count.items() if n > 1}
    while more := {s.target.name for s in aliases if s.array.name in found} - found:
        found |= more
    return found


class _Resolve:
    def __init__(self, function: ir.Function, names: set[str]):
        self.function = function
        self.references = names
        self.arrays = {a.name: ir.Var(a.name, a.type) for a in function.arguments}
        self.arrays |= {n.name: n for n in ir.walk(function.body) if isinstance(n, ir.Var)}
        self.fresh = Names.of(function).fresh
        self.uses = self.count(function.body)
        self.which = ir.Var(self.fresh("buffers"), types.int64)
        self.numbers: dict[State, int] = {}

    def run(self) -> ir.Function:
        begin = ir.Assign(self.which, self.number(()))
        body, _ = self.block(self.function.body, [()], set())
        return replace(self.function, body=(begin, *body))

    # helpers

    def count(self, node: Any) -> dict[str, int]:
        found: dict[str, int] = {}
        for n in ir.walk(node):
            if isinstance(n, ir.Var):
                found[n.name] = found.get(n.name, 0) + 1
        return found

    def fail(self, s: ir.Stmt, problem: str) -> NoReturn:
        raise KernelError(f"{self.function.where(s.line)}: {stem(problem)}")

    def rebinds(self, s: ir.Stmt) -> bool:
        return isinstance(s, ir.Alias) and s.target.name in self.references

    def rebinds_inside(self, s: ir.Stmt) -> bool:
        return any(self.rebinds(n) for n in ir.walk(s) if isinstance(n, ir.Stmt))

    # states

    def known(self, state: State, live: set[str]) -> State:
        """The part of a state that matters where these names are live."""
        return tuple((name, array) for name, array in state if name in live)

    def rebound(self, state: State, s: ir.Alias) -> State:
        names = dict(state)
        array = names.get(s.array.name) if s.array.name in self.references else s.array.name
        names.pop(s.target.name, None)
        if array is not None:
            names[s.target.name] = array
        return tuple(sorted(names.items()))

    def flow(self, body: tuple[ir.Stmt, ...], states: list[State], live: set[str]) -> list[State]:
        """The states after a block."""
        for s, after in with_live(body, live):
            if self.rebinds(s):
                states = [self.rebound(state, s) for state in states]
            elif isinstance(s, ir.If) and self.rebinds_inside(s):
                states = _unique((*self.flow(s.then, states, after), *self.flow(s.orelse, states, after)))
            elif isinstance(s, (ir.For, ir.While)) and self.rebinds_inside(s):
                states = self.head(s, states, after)
            states = _unique(self.known(state, after) for state in states)
        return states

    def head(self, s: ir.For | ir.While, states: list[State], after: set[str]) -> list[State]:
        """The states at the beginning of any iteration, and after the loop."""
        around = live_around(s, after)
        states = _unique(self.known(state, around) for state in states)
        while True:
            ends = (self.known(state, around) for state in self.flow(s.body, states, around))
            more = _unique((*states, *ends))
            if len(more) == len(states):
                return states
            if isinstance(s, ir.For) and s.parallel:
                self.fail(s, "an array is swapped from one iteration of prange to the next; use range")
            if len(more) > MAX_STATES:
                self.fail(s, "too many names are bound to different arrays here; give each array its own name")
            states = more

    def number(self, state: State) -> ir.Const:
        return ir.Const(self.numbers.setdefault(state, len(self.numbers)), types.int64)

    def move(self, old: list[State], change: Callable[[State], State], line: int) -> tuple[list[ir.Stmt], list[State]]:
        """The statements that set the next state, and the next states."""
        new = [change(state) for state in old]
        if new == old:
            return [], new
        value: ir.Expr = self.number(new[-1])
        for a, b in zip(reversed(old[:-1]), reversed(new[:-1])):
            if self.number(b) != value:
                value = ir.Op("select", (self.holds([a]), self.number(b), value), types.int64)
        return [ir.Assign(self.which, value, line=line)], _unique(new)

    def holds(self, states: list[State]) -> ir.Expr:
        """The condition that one of these states holds."""
        condition: ir.Expr | None = None
        for state in states:
            this = ir.Op("eq", (self.which, self.number(state)), types.boolean)
            condition = this if condition is None else ir.Op("or", (condition, this), types.boolean)
        assert condition is not None
        return condition

    # rewriting

    def block(self, body: Block, states: list[State], live: set[str]) -> tuple[list[ir.Stmt], list[State]]:
        result: list[ir.Stmt] = []
        for _, group in itertools.groupby(with_live(body, live), lambda pair: self.kind(pair[0])):
            statements = list(group)
            first, after = statements[0][0], statements[-1][1]
            if not self.kind(first):
                result += self.versions([s for s, _ in statements], states)
            elif self.rebinds(first):
                run = [s for s, _ in statements]
                follow = functools.partial(self.after, run, after)
                new, states = self.move(states, follow, first.line)
                result += new
            else:
                for s, after in statements:
                    new, states = self.statement(s, states, after)
                    result += new
        if body and isinstance(body[-1], ir.Return):
            return result, states
        end, states = self.move(states, lambda state: self.known(state, live), 0)
        return [*result, *end], states

    def kind(self, s: ir.Stmt) -> int:
        """0: no name changes its array; 1: one does; 2: one may inside, or the statement must stay alone."""
        if self.rebinds(s):
            return 1
        return 2 if isinstance(s, (ir.Alloc, ir.Fill, ir.Return)) or self.rebinds_inside(s) else 0

    def after(self, run: list[ir.Stmt], live: set[str], state: State) -> State:
        for s in run:
            state = self.rebound(state, s)
        return self.known(state, live)

    def statement(self, s: ir.Stmt, states: list[State], after: set[str]) -> tuple[list[ir.Stmt], list[State]]:
        match s:
            case ir.Alloc():
                self.require_free(s, states, after)
                return self.allocate(s, states), states
            case ir.Fill():
                return [s], states
            case ir.Return():
                return self.return_values(s, states), states
            case ir.If():
                condition = self.expression(s.condition, states)
                then, after_then = self.block(s.then, states, after)
                orelse, after_else = self.block(s.orelse, states, after)
                if not s.orelse:
                    orelse, after_else = self.move(states, lambda state: self.known(state, after), s.line)
                new = replace(s, condition=condition, then=tuple(then), orelse=tuple(orelse))
                return [new], _unique((*after_then, *after_else))
            case ir.For() | ir.While():
                return self.loop(s, states, after)
        raise AssertionError(s)

    def loop(self, s: ir.For | ir.While, states: list[State], after: set[str]) -> tuple[list[ir.Stmt], list[State]]:
        around = live_around(s, after)
        heads = self.head(s, states, after)
        if isinstance(s, ir.For) and s.parallel and len(heads) > 1:
            self.fail(s, "names are bound to other arrays inside prange and around it; give each array its own name")
        if isinstance(s, ir.For):
            bounds = {name: self.expression(getattr(s, name), states) for name in ("start", "stop", "step")}
            s = replace(s, **bounds)
        else:
            s = replace(s, condition=self.expression(s.condition, heads))
        begin, _ = self.move(states, lambda state: self.known(state, around), s.line)
        body, _ = self.block(s.body, heads, around)
        end, left = self.move(heads, lambda state: self.known(state, after), 0)
        return [*begin, replace(s, body=tuple(body)), *end], left

    def versions(self, piece: list[ir.Stmt], states: list[State]) -> list[ir.Stmt]:
        """Statements in which no name changes its array, once for each meaning of the names in them."""
        mentioned = [bool(used(s) & self.references) for s in piece]
        if not any(mentioned):
            return piece
        first = mentioned.index(True)
        last = len(piece) - mentioned[::-1].index(True)
        before, middle, after = piece[:first], piece[first:last], piece[last:]
        names = set().union(*(used(s) for s in middle)) & self.references
        meanings = self.meanings(states, names)
        if len(meanings) == 1:
            return [*before, *self.version(middle, meanings[0][0], {}), *after]
        self.require_closed(middle)
        own = [n.target.name for n in ir.walk(tuple(middle)) if isinstance(n, (ir.Alloc, ir.Alias, ir.View))]
        result: tuple[ir.Stmt, ...] = ()
        for number, (meaning, states_with_it) in reversed(list(enumerate(meanings))):
            fresh = {name: self.fresh(name) for name in own} if number else {}
            body = tuple(self.version(middle, meaning, fresh))
            result = body if not result else (ir.If(self.holds(states_with_it), body, result, line=middle[0].line),)
        return [*before, *result, *after]

    def meanings(self, states: list[State], names: set[str]) -> list[tuple[State, list[State]]]:
        """The possible meanings of these names, with the states in which they hold."""
        meanings: dict[State, list[State]] = {}
        for state in states:
            meaning = self.known(state, names)
            if len(meaning) == len(names):
                meanings.setdefault(meaning, []).append(state)
        return list(meanings.items()) or [((), states)]

    def version(self, statements: list[ir.Stmt], meaning: State, fresh: dict[str, str]) -> list[ir.Stmt]:
        names: dict[str, ir.Expr] = {name: self.arrays[array] for name, array in meaning}
        return [rename(s, names, lambda name: fresh.get(name, name)) for s in statements]

    def require_closed(self, statements: list[ir.Stmt]) -> None:
        """Raise an error if a name bound in the statements is used after them."""
        inside = self.count(tuple(statements))
        for s in ir.walk(tuple(statements)):
            if isinstance(s, (ir.Alloc, ir.Alias, ir.View)) and inside[s.target.name] != self.uses[s.target.name]:
                name, array = s.target.name, s.target.name if isinstance(s, ir.Alloc) else s.array.name
                self.fail(
                    s, f"'{name}' is a part of '{array}', which may be one of several arrays; index '{array}' itself"
                )

    def expression(self, e: ir.Expr, states: list[State]) -> ir.Expr:
        names = used(e) & self.references
        if not names:
            return e
        meanings = self.meanings(states, names)
        result: ir.Expr | None = None
        for meaning, states_with_it in reversed(meanings):
            value = self.replaced(e, dict(meaning))
            result = value if result is None else ir.Op("select", (self.holds(states_with_it), value, result), e.type)
        assert result is not None
        return result

    def replaced(self, e: ir.Expr, meaning: dict[str, str]) -> ir.Expr:
        change = lambda v: self.arrays[meaning[v.name]] if isinstance(v, ir.Var) and v.name in meaning else v
        return mapped(e, change)

    def require_free(self, s: ir.Alloc, states: list[State], live: set[str]) -> None:
        """Raise an error if a name still stands for the array that the previous iteration allocated here."""
        if any(array == s.target.name for state in states for _, array in self.known(state, live)):
            self.fail(
                s,
                f"the array '{s.target.name}' is still in use when the next iteration allocates it again; allocate two "
                "arrays before the loop and swap them",
            )

    def allocate(self, s: ir.Alloc, states: list[State]) -> list[ir.Stmt]:
        shape = tuple(self.expression(e, states) for e in s.shape)
        if s.fill is None or not used(s.fill) & self.references:
            return [replace(s, shape=shape)]
        if not isinstance(s.fill.type, types.Array):
            return [replace(s, shape=shape, fill=self.expression(s.fill, states))]
        return [replace(s, shape=shape, fill=None), *self.versions(list(self.copy(s.fill, s.target, s.line)), states)]

    def copy(self, source: ir.Var, target: ir.Var, line: int) -> Iterator[ir.Stmt]:
        """``target[...] = source``, element by element."""
        index = tuple(ir.Var(self.fresh("i"), types.int64) for _ in range(target.type.ndim))
        body: ir.Stmt = ir.Store(target, index, ir.Load(source, index, source.type.dtype), line=line)
        zero, one = ir.Const(0, types.int64), ir.Const(1, types.int64)
        for axis, i in reversed(list(enumerate(index))):
            body = ir.For(i, zero, ir.Size(source, axis, types.int64), one, (body,), line=line)
        yield body

    def return_values(self, s: ir.Return, states: list[State]) -> list[ir.Stmt]:
        before: list[ir.Stmt] = []
        values: list[ir.Expr] = []
        for value in s.values:
            names = used(value) & self.references
            meanings = self.meanings(states, names)
            if not inference.is_array(value.type) or len(meanings) == 1:
                values.append(self.expression(value, states))
                continue
            target = ir.Var(self.fresh(f"{value.name}_result"), value.type.copy(layout="C", readonly=False))
            shape = tuple(ir.Size(value, axis, types.int64) for axis in range(value.type.ndim))
            shape = tuple(self.expression(e, states) for e in shape)
            before.append(ir.Alloc(target, shape, None, line=s.line))
            before += self.versions(list(self.copy(value, target, s.line)), states)
            values.append(target)
        return [*before, replace(s, values=tuple(values))]


def with_live(body: tuple[ir.Stmt, ...], live: set[str]) -> list[tuple[ir.Stmt, set[str]]]:
    """Every statement of a block with the names that are live after it."""
    found = []
    for s in reversed(body):
        found.append((s, live))
        live = live_before((s,), live)
    return found[::-1]


def live_around(s: ir.For | ir.While, after: set[str]) -> set[str]:
    """The names live at the beginning and end of a loop's iterations."""
    around = after | used(s.condition) if isinstance(s, ir.While) else set(after)
    while (more := around | live_before(s.body, around)) != around:
        around = more
    return around


def _unique(states: Any) -> list[State]:
    return list(dict.fromkeys(states))

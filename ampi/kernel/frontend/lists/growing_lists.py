"""Lists that grow and shrink, rewritten as arrays with a count of their items (bounded stacks), before type inference.

``l = [x0]`` and statements after it that append, extend, insert, pop, ... become an array with room for all items that
they may add, and a count of its items; after the last of them the name stands for the filled part::

    l = [x0]                              room = n + 1
    for i in range(n):                    list = an array of room numbers
        l.append(l[-1] * a[i])     ->     list[0], count = x0, 1
    return sum(l)                         for i in range(n):
                                              list[count], count = list[count - 1] * a[i], count + 1
                                          l = list[:count]
                                          return sum(l)

The room is an expression if the numbers of iterations of loops are.  Otherwise it is counted beforehand, by a copy of
the loop with only the statements that matter for it (its program slice, see `Counting`).  Where these depend on the
list itself, or on values that the loop writes, the array grows with the list.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np

from ampi.kernel.frontend.base.refusals import POPPED, READ, WRITTEN
from ampi.kernel.frontend.lists.lengths import (
    TOO_LONG,
    Counting,
    Room,
    added,
    change,
    changes,
    is_addition,
    is_deletion,
    is_display,
    loaded,
    mentions,
    started,
    stored,
)
from ampi.kernel.frontend.lists.nodes import (
    Elements,
    Filled,
    Known,
    Length,
    MakeRoom,
    Place,
    Position,
    assign,
    increase,
    is_membership,
    loop,
    name_of,
    named,
    new_list,
    placed,
    put,
)

_ROOM = 16  # the initial size of an array that grows
_ON_ITS_OWN_LINE = "assign the popped item to a name first, on a line of its own"

# ---------------------------------------------------------------------------------------------------- the list


class Growing:
    """Rewrites the list ``name``, which statement ``number`` of a block creates, as an array."""

    def __init__(self, spelling: Any, body: list[ast.stmt], number: int, name: str):
        self.spelling, self.name = spelling, name
        self.fresh, self.fail = spelling.fresh, spelling.source.fail
        last = max(k for k, s in enumerate(body) if k > number and changes(s, name))
        self.before, self.first = body[:number], body[number]
        self.inside, self.after = body[number + 1 : last + 1], body[last + 1 :]
        self.rooms = Room(name)
        self.count = self.fresh(f"{name}_count")
        self.array: str | None = None  # the array that holds the list at this point
        self.counted = self.grows = False  # how the array gets enough room
        self.result: list[ast.stmt] = []

    def block(self) -> list[ast.stmt]:
        """The block with an array instead of the list."""
        value = self.first.value
        item_names: list[str] | None = None
        if isinstance(value, ast.List) and not any(isinstance(v, ast.Starred) for v in value.elts):
            item_names = [self.fresh(f"{self.name}_value") for _ in value.elts]
            self.add(self.first, *(assign(k, v) for k, v in zip(item_names, value.elts)))
            if all(self.is_plain(s) for s in self.inside):
                return self.as_display(item_names)
        else:
            self.array = self.fresh(self.name)
            value = value if isinstance(value, ast.ListComp) else Elements(value)
            self.add(self.first, assign(self.array, value), assign(self.count, Length(named(self.array))))
        inside = list(self.inside)
        while inside:
            if self.array is None and not mentions(inside[0], self.name):
                self.result.append(inside.pop(0))
                continue
            self.segment(inside, item_names)
        self.add(self.inside[-1], assign(self.name, Filled(named(self.array), named(self.count))))
        return [*self.before, *self.result, *self.after]

    def add(self, like: ast.AST, *statements: ast.stmt) -> None:
        self.result += [placed(s, like) for s in statements]

    def refuse(self, node: ast.AST) -> Any:
        problem = f"the list '{self.name}' grows here by an unknown number of items"
        self.fail(node, problem, "make an array with np.empty that is large enough, and count")

    # a list to which only statements of its own block append, before any other use

    def is_plain(self, statement: ast.stmt) -> bool:
        if change(statement, self.name) == "append" and isinstance(statement, ast.Expr):
            return not mentions(statement.value.args[0], self.name)
        return not mentions(statement, self.name)

    def as_display(self, item_names: list[str]) -> list[ast.stmt]:
        for statement in self.inside:
            if change(statement, self.name) is None:
                self.result.append(statement)
                continue
            item_names.append(self.fresh(f"{self.name}_value"))
            self.add(statement, assign(item_names[-1], statement.value.args[0]))
        whole = ast.List([named(k) for k in item_names], ast.Load())
        self.add(self.first, assign(self.name, whole))
        return [*self.before, *self.result, *self.after]

    # a list in an array: statements in segments for which the room is known beforehand

    def segment(self, inside: list[ast.stmt], item_names: list[str] | None) -> None:
        first = inside[0]
        number, room = self.together(inside)
        self.counted = self.grows = False
        if number == 0:
            number, counted = 1, self.fresh("room")
            beforehand = Counting(self.spelling, self.rooms, counted).statements(first)
            self.grows, self.counted = beforehand is None, beforehand is not None
            self.result += beforehand or []
            room = ast.Constant(_ROOM) if beforehand is None else named(counted)
        new = self.fresh(self.name)
        if self.array is None:
            item_names = item_names or []
            room = ast.BinOp(room, ast.Add(), ast.Constant(len(item_names)))
            self.add(first, assign(new, new_list(room, new)))
            self.add(first, *(put(new, ast.Constant(k), named(v)) for k, v in enumerate(item_names)))
            self.add(first, assign(self.count, ast.Constant(len(item_names))))
        elif not (isinstance(room, ast.Constant) and room.value == 0):
            place = self.fresh("place")
            self.add(first, assign(new, new_list(ast.BinOp(room, ast.Add(), named(self.count)), new)))
            old = ast.Subscript(named(self.array), Place(named(place)), ast.Load())
            numbers = ast.Call(Known(range), [named(self.count)], [])
            self.add(first, loop(named(place, ast.Store()), numbers, [put(new, named(place), old)]))
        else:
            new = self.array
        self.array = new
        replaced = _Changing(self)
        for statement in inside[:number]:
            self.result += replaced.statement(statement)
        del inside[:number]

    def together(self, inside: list[ast.stmt]) -> tuple[int, ast.expr]:
        """The number of statements from here on whose room is known before the first of them runs, and that room."""
        total: ast.expr = ast.Constant(0)
        written: set[str] = set()
        for number, statement in enumerate(inside):
            room = self.rooms.of([statement], set())
            if room is None or loaded(room) & written:
                return number, total
            total = added(total, room)
            written |= stored(statement)
        return len(inside), total


# -------------------------------------------------------------------------------------------------- the statements


def _goes_through(items: ast.expr, name: str) -> bool:
    """Return whether a loop over an expression iterates over the list, alone or with others."""
    if isinstance(items, ast.Call) and name_of(items.func) in ("enumerate", "zip", "reversed"):
        return any(_goes_through(a, name) for a in items.args)
    return name_of(items) == name


class _Changing(ast.NodeTransformer):
    """Rewrites statements that change and read a list as statements on its array."""

    def __init__(self, list_: Growing):
        self.list, self.name, self.fresh = list_, list_.name, list_.fresh
        self.array, self.count = list_.array, list_.count

    def statement(self, s: ast.stmt) -> list[ast.stmt]:
        return [placed(x, s) for x in self.replaced(s)]

    def body(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        return [made for s in statements for made in self.statement(s)]

    def replaced(self, s: ast.stmt) -> list[ast.stmt]:
        if not mentions(s, self.name):
            return [s]
        kind = change(s, self.name)
        if kind is not None and isinstance(s, ast.Expr):
            before, arguments = self.popped(s, s.value.args)
            return [*before, *getattr(self, kind)(s, *arguments)]
        if is_addition(s, self.name):
            return self.extend(s, s.value)
        if is_deletion(s, self.name):
            return self.pop(s, s.targets[0].slice)
        if started(s) == self.name:
            if not isinstance(s.value, ast.List) or mentions(s.value, self.name):
                self.list.refuse(s)
            return [assign(self.count, ast.Constant(0)), *(x for v in s.value.elts for x in self.append(s, v))]
        if isinstance(s, ast.For) and _goes_through(s.iter, self.name) and any(changes(b, self.name) for b in s.body):
            problem = f"a loop over the list '{self.name}', which changes it"
            self.list.fail(s, problem, f"loop over a copy: {self.name}[:]")
        before = self.heads(s)
        for field in ("body", "orelse"):
            inner = getattr(s, field, None)
            if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                setattr(s, field, self.body(inner))
        return [*before, s]

    def heads(self, s: ast.stmt) -> list[ast.stmt]:
        """Replace the list in a statement's own expressions; return the statements for the pops in these."""
        fields = [f for f, v in ast.iter_fields(s) if f not in ("body", "orelse")]
        parts = [getattr(s, f) for f in fields]
        given = [p for p in parts if isinstance(p, ast.expr)]
        before, _ = self.popped(s, given)
        for field in fields:
            value = getattr(s, field)
            if isinstance(value, ast.expr):
                setattr(
                    s,
                    field,
                    self.whole(value) if field == "iter" and name_of(value) == self.name else self.visit(value),
                )
            elif isinstance(value, list):
                value[:] = [self.visit(v) if isinstance(v, ast.expr) else v for v in value]
        return before

    def popped(self, s: ast.stmt, expressions: list[ast.expr]) -> tuple[list[ast.stmt], list[ast.expr]]:
        """Statements for the pops in expressions, and the expressions with names for the popped items."""
        calls = [n for e in expressions for n in ast.walk(e) if change(n, self.name) == "pop"]
        if not calls:
            return [], expressions
        place = lambda n: (n.lineno, n.col_offset)
        own = {id(call.func.value) for call in calls}
        last = max(map(place, calls))
        others = any(
            name_of(n) == self.name and id(n) not in own and place(n) < last for e in expressions for n in ast.walk(e)
        )
        maybe = (ast.BoolOp, ast.IfExp, ast.Lambda, ast.ListComp, ast.GeneratorExp)
        if others or isinstance(s, ast.While) or any(isinstance(n, maybe) for e in expressions for n in ast.walk(e)):
            self.list.fail(calls[0], f"'{self.name}.pop()' inside an expression", _ON_ITS_OWN_LINE)
        before: list[ast.stmt] = []
        names = {}
        for call in sorted(calls, key=place):
            names[id(call)] = name = self.fresh("popped")
            before += [placed(x, s) for x in self.pop(s, *call.args, name=name)]
        replace = _Replace(names)
        for field, value in ast.iter_fields(s):
            if isinstance(value, ast.expr):
                setattr(s, field, replace.visit(value))
        return before, [replace.visit(e) for e in expressions]

    def guard(self) -> list[ast.stmt]:
        """The statements before an item is added: they lengthen the array, or check room that was counted beforehand.

        The counting loop may have been compiled differently, so its count may be wrong.
        """
        if self.list.grows:
            return [MakeRoom(named(self.array), named(self.count))]
        if not self.list.counted:
            return []
        full = ast.Compare(named(self.count), [ast.GtE()], [Length(named(self.array))])
        error = ast.Call(Known(RuntimeError), [ast.Constant(TOO_LONG)], [])
        return [ast.If(full, [ast.Raise(error, None)], [])]

    # methods that change a list

    def append(self, s: ast.stmt, value: ast.expr) -> list[ast.stmt]:
        return [*self.guard(), put(self.array, named(self.count), self.visit(value)), increase(self.count)]

    def extend(self, s: ast.stmt, values: ast.expr) -> list[ast.stmt]:
        if mentions(values, self.name) and not is_display(values):
            self.list.refuse(s)
        if is_display(values):
            item_names = [self.fresh("value") for _ in values.elts]
            return [
                *(assign(k, self.visit(v)) for k, v in zip(item_names, values.elts)),
                *(x for k in item_names for x in self.append(s, named(k))),
            ]
        item, before = self.fresh("item"), []
        if isinstance(values, ast.ListComp):
            items = self.fresh("items")
            before, values = [assign(items, values)], named(items)
        return [*before, loop(named(item, ast.Store()), values, self.append(s, named(item)))]

    def insert(self, s: ast.stmt, index: ast.expr, value: ast.expr) -> list[ast.stmt]:
        place, item, k = self.fresh("place"), self.fresh("value"), self.fresh("k")
        within = ast.Call(Known(min), [self.position(index), named(self.count)], [])
        numbers = ast.Call(Known(range), [named(self.count), named(place), ast.Constant(-1)], [])
        below = self.element(ast.BinOp(named(k), ast.Sub(), ast.Constant(1)))
        return [
            *self.guard(),
            assign(place, within),
            assign(item, self.visit(value)),
            loop(named(k, ast.Store()), numbers, [put(self.array, named(k), below)]),
            put(self.array, named(place), named(item)),
            increase(self.count),
        ]

    def pop(self, s: ast.stmt, index: ast.expr | None = None, name: str | None = None) -> list[ast.stmt]:
        empty = ast.Compare(named(self.count), [ast.Eq()], [ast.Constant(0)])
        error = ast.Call(Known(IndexError), [ast.Constant("pop from empty list")], [])
        before: list[ast.stmt] = [ast.If(empty, [ast.Raise(error, None)], [])]
        fewer = assign(self.count, ast.BinOp(named(self.count), ast.Sub(), ast.Constant(1)))
        if index is None or (isinstance(index, ast.UnaryOp) and ast.unparse(index) == "-1"):
            taken = [assign(name, self.element(named(self.count)))] if name else []
            return [*before, fewer, *taken]
        place, k = self.fresh("place"), self.fresh("k")
        before.append(assign(place, self.position(index, POPPED)))
        taken = [assign(name, self.element(named(place)))] if name else []
        numbers = ast.Call(Known(range), [named(place), named(self.count)], [])
        above = self.element(ast.BinOp(named(k), ast.Add(), ast.Constant(1)))
        return [*before, *taken, fewer, loop(named(k, ast.Store()), numbers, [put(self.array, named(k), above)])]

    def clear(self, s: ast.stmt) -> list[ast.stmt]:
        return [assign(self.count, ast.Constant(0))]

    def reverse(self, s: ast.stmt) -> list[ast.stmt]:
        k, value, other = self.fresh("k"), self.fresh("value"), self.fresh("other")
        half = ast.BinOp(named(self.count), ast.FloorDiv(), ast.Constant(2))
        last = ast.BinOp(named(self.count), ast.Sub(), ast.Constant(1))
        swap = [
            assign(other, ast.BinOp(last, ast.Sub(), named(k))),
            assign(value, self.element(named(k))),
            put(self.array, named(k), self.element(named(other))),
            put(self.array, named(other), named(value)),
        ]
        return [loop(named(k, ast.Store()), ast.Call(Known(range), [half], []), swap)]

    def sort(self, s: ast.stmt) -> list[ast.stmt]:
        k, ordered = self.fresh("k"), self.fresh("ordered")
        of_all = ast.Call(Known(np.sort), [Filled(named(self.array), named(self.count))], [])
        item = ast.Subscript(named(ordered), named(k), ast.Load())
        numbers = ast.Call(Known(range), [named(self.count)], [])
        return [assign(ordered, of_all), loop(named(k, ast.Store()), numbers, [put(self.array, named(k), item)])]

    # expressions that read a list

    def element(self, index: ast.expr) -> ast.expr:
        return ast.Subscript(named(self.array), Place(index), ast.Load())

    def position(self, index: ast.expr, text: str = "") -> ast.expr:
        """The position of an index: one out of range is an error with this text, or else moved to the start."""
        position: ast.expr = Position(self.visit(index), named(self.count), text)
        return position if text else ast.Call(Known(max), [position, ast.Constant(0)], [])

    def visit_Call(self, node: ast.Call) -> Any:
        if self.is_len(node.func) and [name_of(a) for a in node.args] == [self.name]:
            return ast.copy_location(named(self.count), node)
        node.args = [self.whole(a) if name_of(a) == self.name else self.visit(a) for a in node.args]
        node.func = self.visit(node.func)
        for keyword in node.keywords:
            keyword.value = self.visit(keyword.value)
        return node

    def visit_Compare(self, node: ast.Compare) -> Any:
        node.left = self.visit(node.left)
        searched = is_membership(node)
        node.comparators = [
            self.whole(c) if searched and name_of(c) == self.name else self.visit(c) for c in node.comparators
        ]
        return node

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        if name_of(node.value) != self.name or isinstance(node.slice, (ast.Slice, ast.Tuple)):
            return self.generic_visit(node)
        text = READ if isinstance(node.ctx, ast.Load) else WRITTEN
        return placed(ast.Subscript(named(self.array), self.position(node.slice, text), node.ctx), node)

    def is_len(self, function: ast.expr) -> bool:
        spelling, name = self.list.spelling, name_of(function) or ""
        return spelling.known.get(name) is len and name not in stored(spelling.source.definition)

    def whole(self, node: ast.expr) -> ast.expr:
        return placed(Filled(named(self.array), named(self.count)), node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id == self.name:
            problem = f"the list '{self.name}' as a whole, before it has stopped growing"
            self.list.fail(node, problem, "use its elements here, or an array of them: np.array(...)")
        return node


class _Replace(ast.NodeTransformer):
    def __init__(self, names: dict[int, str]):
        self.names = names

    def visit_Call(self, node: ast.Call) -> Any:
        name = self.names.get(id(node))
        return self.generic_visit(node) if name is None else ast.copy_location(named(name), node)

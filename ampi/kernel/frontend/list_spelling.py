"""Lists of numbers, spelled out as arrays that are filled, before anything is typed.

* ``[f(x) for x in a if x > 0]`` is an array with room for all, and a loop that puts the values into it;
* ``l = [x0]`` and a ``for`` loop with ``l.append(x)`` is an array with room for as many as the loop may append, and
  after the loop the part that was filled;
* ``l = [x, y]`` whose elements are assigned is an array of these.

What a list can do that an array does otherwise, ``l + m`` for one, is refused where it is met (see `is_list`).
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable
from typing import Any

from numba import typed, types

from ampi.kernel import ir
from ampi.kernel.frontend import array_values, loops, sequences
from ampi.kernel.frontend.source import Source
from ampi.kernel.frontend.values import Group, Unknown, Value
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.names import Names

# --------------------------------------------------------------------------------------------------- what is made


class NewList(ast.expr):
    """An array with room for ``length`` numbers, of the type of those that are put into the list ``key``."""

    _fields = ("length",)
    key: str


class Length(ast.expr):
    """How many iterations a loop over something has."""

    _fields = ("iter",)


class Filled(ast.expr):
    """The first elements of a list."""

    _fields = ("list", "count")


class Elements(ast.expr):
    """An array of the numbers in a list."""

    _fields = ("list",)


class Put(ast.stmt):
    """``list[place] = value``."""

    _fields = ("list", "place", "value")
    key: str


def new_list(builder: Any, node: NewList) -> ir.Var:
    dtype = builder.scope.kinds.get(f"list {node.key}")
    if dtype is None:
        raise Unknown
    length = array_values.steady(builder, cast(builder.scalar(node.length), types.intp))
    return as_list(builder, array_values.new_array(builder, "list", dtype, (length,)))


def length(builder: Any, node: Length) -> ir.Expr:
    items = loops.iterated(builder, node.iter)
    return ir.Const(len(items.items), types.intp) if isinstance(items, Group) else cast(items.length, types.intp)


def filled(builder: Any, node: Filled) -> Value:
    whole = array_values.Range(None, builder.scalar(node.count), None)
    return as_list(builder, array_values.part(builder, node, builder.value(node.list), [whole], None))


def elements(builder: Any, node: Elements) -> Value:
    value = builder.value(node.list)
    return as_list(builder, sequences.array_of(builder, node.list, value)) if isinstance(value, Group) else value


def put(builder: Any, node: Put) -> None:
    value = builder.scalar(node.value)
    key, type_ = f"list {node.key}", inference.plain(value.type)
    known = builder.scope.kinds.get(key)
    builder.scope.kinds[key] = type_ if known is None else inference.unify(known, type_)
    array = builder.value(node.list)
    builder.emit(ir.Store(array, (builder.scalar(node.place),), cast(value, array.type.dtype)))


def as_list(builder: Any, array: ir.Var) -> ir.Var:
    builder.lists.add(array.name)
    return array


def refuse_lists(builder: Any, node: ast.AST, problem: str, *values: Value) -> None:
    if any(isinstance(v, ir.Var) and v.name in builder.lists for v in values):
        builder.fail(node, problem, "make an array of it first: np.array(...)")


EXPRESSIONS: dict[type[ast.expr], Callable[..., Value]] = {
    NewList: new_list,
    Length: length,
    Filled: filled,
    Elements: elements,
}

# --------------------------------------------------------------------------------------------------- how it is spelled


def spell_lists(source: Source, taken: list[str], known: dict[str, Any]) -> None:
    """Rewrite ``source.definition`` in place; ``known`` are the names around it."""
    spelling = _Spelling(source, Names(taken))
    definition = source.definition
    for node in ast.walk(definition):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and _makes_a_list(node.value, known):
            node.value = ast.copy_location(ast.List([], ast.Load()), node.value)
    spelling.assigned_elements(definition)
    definition.body = spelling.block(definition.body)


class _Spelling:
    def __init__(self, source: Source, names: Names):
        self.source = source
        self.fresh = names.fresh

    def block(self, body: list[ast.stmt]) -> list[ast.stmt]:
        body = self.grown(body)
        result: list[ast.stmt] = []
        for statement in body:
            for field in ("body", "orelse"):
                inner = getattr(statement, field, None)
                if isinstance(inner, list) and inner and isinstance(inner[0], ast.stmt):
                    setattr(statement, field, self.block(inner))
            result += self.comprehensions(statement)
            result.append(statement)
        return result

    # comprehensions

    def comprehensions(self, statement: ast.stmt) -> list[ast.stmt]:
        """The loops for the comprehensions in a statement, which then has names for their lists."""
        before: list[ast.stmt] = []
        fields = {ast.For: ("iter",), ast.If: ("test",)}.get(type(statement), ("value", "test", "exc"))
        if isinstance(statement, (ast.While, ast.FunctionDef)):
            return before
        for field in fields:
            value = getattr(statement, field, None)
            if isinstance(value, ast.expr):
                setattr(statement, field, self.without(value, before))
        return before

    def without(self, node: ast.expr, before: list[ast.stmt]) -> ast.expr:
        if isinstance(node, (ast.BoolOp, ast.IfExp, ast.Lambda)):
            return node  # not always computed
        if isinstance(node, ast.ListComp) and len(node.generators) == 1:
            return self.comprehension(node, before)
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.without(value, before))
            elif isinstance(value, list):
                value[:] = [self.without(v, before) if isinstance(v, ast.expr) else v for v in value]
        return node

    def comprehension(self, node: ast.ListComp, before: list[ast.stmt]) -> ast.expr:
        (generator,) = node.generators
        bound = {n.id for n in ast.walk(generator.target) if isinstance(n, ast.Name)}
        names = {n: self.fresh(n) for n in bound}
        for part in (generator.target, node.elt, *generator.ifs):
            for n in ast.walk(part):
                if isinstance(n, ast.Name) and n.id in names:
                    n.id = names[n.id]
        array, count = self.fresh("list"), self.fresh("count")
        inside: list[ast.stmt] = []
        element = self.without(node.elt, inside)
        if inside:
            return node
        size: ast.expr = Length(generator.iter)
        if generator.ifs:
            number = self.fresh("number")
            more = self.when(generator.ifs, [_increase(number)])
            before += [_assign(number, ast.Constant(0)), _for(_copy(generator.target), _copy(generator.iter), more)]
            size = ast.Name(number, ast.Load())
        fill = [_put(array, ast.Name(count, ast.Load()), element), _increase(count)]
        loop = _for(generator.target, _copy(generator.iter), self.when(generator.ifs, fill))
        before += [_assign(array, _new_list(size, array)), _assign(count, ast.Constant(0)), loop]
        for statement in before:
            _placed(statement, node)
        return _placed(ast.Name(array, ast.Load()), node)

    def when(self, conditions: list[ast.expr], body: list[ast.stmt]) -> list[ast.stmt]:
        for condition in reversed(conditions):
            body = [ast.If(_copy(condition), body, [])]
        return body

    # lists that grow

    def grown(self, body: list[ast.stmt]) -> list[ast.stmt]:
        for number, statement in enumerate(body):
            name = _begun(statement)
            if name is None or not any(_appends(s, name) for s in body[number + 1 :]):
                continue
            return self.grown(self.array_for(body, number, name))
        return body

    def array_for(self, body: list[ast.stmt], number: int, name: str) -> list[ast.stmt]:
        """The block with an array for the list that its statement of this number begins."""
        first = body[number]
        values, between, after = list(first.value.elts), [], body[number + 1 :]
        kept = [self.fresh(f"{name}_value") for _ in values]
        between += [_assign(k, v) for k, v in zip(kept, values)]
        while after and not (isinstance(after[0], ast.For) and _appends(after[0], name)):
            statement = after.pop(0)
            if _is_append(statement, name):
                kept.append(self.fresh(f"{name}_value"))
                statement = _placed(_assign(kept[-1], statement.value.args[0]), statement)
            elif _mentions(statement, name):
                if not any(_appends(s, name) for s in after) and not _appends(statement, name):
                    return self.finished(body[:number], first, name, between, kept, [statement, *after])
                self.refuse(statement, name)
            between.append(statement)
        if not after:
            return self.finished(body[:number], first, name, between, kept, [])
        loop = after.pop(0)
        if any(_appends(s, name) for s in after):
            self.refuse(next(s for s in after if _appends(s, name)), name)
        array, count = self.fresh(name), self.fresh(f"{name}_count")
        stored = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        room = ast.BinOp(self.room([loop], name, stored, True), ast.Add(), ast.Constant(len(kept)))
        begin = [_assign(array, _new_list(room, array))]
        begin += [_put(array, ast.Constant(k), ast.Name(v, ast.Load())) for k, v in enumerate(kept)]
        begin.append(_assign(count, ast.Constant(len(kept))))
        _Growing(self, name, array, count).visit(loop)
        end = _assign(name, Filled(ast.Name(array, ast.Load()), ast.Name(count, ast.Load())))
        for statement in (*between, *begin):
            _placed(statement, loop) if not hasattr(statement, "lineno") else None
        _placed(end, loop)
        return [*body[:number], *between, *begin, loop, end, *after]

    def finished(
        self, earlier: list[ast.stmt], first: ast.stmt, name: str, between: list[ast.stmt], kept: list[str], rest: Any
    ) -> list[ast.stmt]:
        """A list to which only statements of its own block append."""
        whole = ast.List([ast.Name(k, ast.Load()) for k in kept], ast.Load())
        for statement in between:
            _placed(statement, first) if not hasattr(statement, "lineno") else None
        return [*earlier, *between, _placed(_assign(name, whole), first), *rest]

    def room(self, body: list[ast.stmt], name: str, stored: set[str], outermost: bool = False) -> ast.expr:
        """How many numbers some statements append at most."""
        total: ast.expr = ast.Constant(0)
        for s in body:
            if _is_append(s, name):
                total = ast.BinOp(total, ast.Add(), ast.Constant(1))
            elif isinstance(s, ast.For) and _appends(s, name):
                if not outermost and any(isinstance(n, ast.Name) and n.id in stored for n in ast.walk(s.iter)):
                    self.refuse(s, name)
                inner = self.room(s.body, name, stored)
                total = ast.BinOp(total, ast.Add(), ast.BinOp(Length(_copy(s.iter)), ast.Mult(), inner))
            elif isinstance(s, ast.If):
                total = ast.BinOp(total, ast.Add(), self.room([*s.body, *s.orelse], name, stored))
            elif _appends(s, name):
                self.refuse(s, name)
        return total

    def refuse(self, node: ast.AST, name: str) -> None:
        problem = f"the list '{name}' grows here, where it is not seen how long it can become"
        self.source.fail(node, problem, "make an array with np.empty that is large enough, and count")

    # lists whose elements are assigned

    def assigned_elements(self, definition: ast.AST) -> None:
        stored = {
            n.value.id
            for n in ast.walk(definition)
            if isinstance(n, ast.Subscript) and isinstance(n.ctx, ast.Store) and isinstance(n.value, ast.Name)
        }
        for n in ast.walk(definition):
            if not (isinstance(n, ast.Assign) and len(n.targets) == 1 and isinstance(n.targets[0], ast.Name)):
                continue
            value = n.value
            if n.targets[0].id in stored and ((isinstance(value, ast.List) and value.elts) or _is_repeated(value)):
                n.value = _placed(Elements(value), value)


class _Growing(ast.NodeTransformer):
    """Puts what a loop appends to a list into an array."""

    def __init__(self, spelling: _Spelling, name: str, array: str, count: str):
        self.spelling, self.name, self.array, self.count = spelling, name, array, count

    def visit_Expr(self, node: ast.Expr) -> Any:
        if not _is_append(node, self.name):
            return self.generic_visit(node)
        value = self.visit(node.value.args[0])
        place = ast.Name(self.count, ast.Load())
        return [_placed(_put(self.array, place, value), node), _placed(_increase(self.count), node)]

    def visit_Call(self, node: ast.Call) -> Any:
        if ast.unparse(node.func) == "len" and [ast.unparse(a) for a in node.args] == [self.name]:
            return ast.copy_location(ast.Name(self.count, ast.Load()), node)
        return self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        is_list = isinstance(node.value, ast.Name) and node.value.id == self.name
        if not is_list or isinstance(node.slice, (ast.Slice, ast.Tuple)):
            return self.generic_visit(node)
        index, value = self.visit(node.slice), ast.Name(self.array, ast.Load())
        if isinstance(index, ast.UnaryOp) and isinstance(index.op, ast.USub):
            index = ast.BinOp(ast.Name(self.count, ast.Load()), ast.Sub(), index.operand)
        return _placed(ast.Subscript(value, index, node.ctx), node)

    def visit_Name(self, node: ast.Name) -> Any:
        if node.id == self.name:
            self.spelling.refuse(node, self.name)
        return node


def _makes_a_list(call: ast.Call, known: dict[str, Any]) -> bool:
    """Whether it is ``list()``, or ``List()`` of ``numba.typed``."""
    path: list[str] = []
    owner: Any = call.func
    while isinstance(owner, ast.Attribute):
        path, owner = [owner.attr, *path], owner.value
    found: Any = known.get(owner.id) if isinstance(owner, ast.Name) else None
    for name in path:
        found = getattr(found, name, None)
    return (found is list or found is typed.List) and not (call.args or call.keywords)


def _begun(statement: ast.stmt) -> str | None:
    """The name of the list that a statement begins."""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1 and isinstance(statement.value, ast.List):
        target = statement.targets[0]
        return target.id if isinstance(target, ast.Name) else None
    return None


def _is_repeated(value: ast.expr) -> bool:
    return isinstance(value, ast.BinOp) and isinstance(value.op, ast.Mult) and isinstance(value.left, ast.List)


def _is_append(statement: ast.AST, name: str) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == "append"):
        return False
    return isinstance(call.func.value, ast.Name) and call.func.value.id == name and len(call.args) == 1


def _appends(statement: ast.AST, name: str) -> bool:
    return any(_is_append(n, name) for n in ast.walk(statement))


def _mentions(statement: ast.AST, name: str) -> bool:
    return any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(statement))


def _assign(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _increase(name: str) -> ast.stmt:
    return _assign(name, ast.BinOp(ast.Name(name, ast.Load()), ast.Add(), ast.Constant(1)))


def _for(target: ast.expr, items: ast.expr, body: list[ast.stmt]) -> ast.For:
    return ast.For(target, items, body, [])


def _put(array: str, place: ast.expr, value: ast.expr) -> ast.stmt:
    statement = Put(ast.Name(array, ast.Load()), place, value)
    statement.key = array
    return statement


def _new_list(length: ast.expr, key: str) -> ast.expr:
    made = NewList(length)
    made.key = key
    return made


def _copy(node: Any) -> Any:
    return copy.deepcopy(node)


def _placed(node: Any, like: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(node, like))

"""Optional variables: names that are None on some paths and a number or an array on others become a name and a flag.

::

    best = None                               best_given = False
    for x in a:                               for x in a:
        if best is None or x > best:    ->        if not best_given or x > best:
            best = x                                  best, best_given = x, True
    return best                               if not best_given: return None
                                              return best

Where Python would raise a TypeError because it computes with None, so does the kernel.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from ampi.kernel import ir
from ampi.kernel.frontend.base.values import Static, Value, negation
from ampi.kernel.frontend.language.desugar import in_order
from ampi.kernel.frontend.lists.nodes import assign, named, placed
from ampi.kernel.ir.names import Names, stem

_ADVICE = "test whether it is None before, or use a special number instead of None"


class Present(ast.expr):
    """The value of a name, which must not be None here."""

    _fields = ("name", "flag")


def present_value(builder: Any, node: Present) -> Value:
    present = builder.scalar(node.flag)
    if not (isinstance(present, ir.Const) and present.value):
        name = stem(node.name.id)
        text = f'raise TypeError("{name} is None where a number or an array is needed")'
        builder.emit(ir.If(negation(present), (ir.Raise(text, exact=False, line=builder.line),)))
    return builder.any_value(node.name)


EXPRESSIONS: dict[type[ast.expr], Callable[..., Any]] = {Present: present_value}


def spell_optional_names(
    definition: ast.FunctionDef,
    given: dict[str, Any],
    known: dict[str, Any],
    fail: Any,
    is_kernel: Callable[[Any], bool],
) -> bool:
    """Rewrite ``definition``, whose variables are webs, in place; return whether it changed.

    ``given`` has the types or values of the arguments, ``known`` the values of the names around the function; those for
    which ``is_kernel`` is true take None as an argument.
    """
    _without_choices_of_none(definition)
    names = _optional(definition, given)
    if not names:
        return False
    fresh = Names(in_order(definition)).fresh
    new = {name: fresh(name) for name in names & _parameters(definition)}  # parameters that are None at first
    for n in ast.walk(definition):
        if isinstance(n, ast.Name) and n.id in new:
            n.id = new[n.id]
    flags = {name: fresh(f"{name}_given") for name in sorted(new.get(name, name) for name in names)}
    first = definition.body[0]
    begin = [placed(assign(name, ast.Constant(None)), first) for name in new.values()]
    definition.body = _Writer(flags, known, fail, is_kernel).body([*begin, *definition.body], frozenset())[0]
    return True


def _parameters(definition: ast.FunctionDef) -> set[str]:
    return {n.arg for n in ast.walk(definition.args) if isinstance(n, ast.arg)}


def _is_none(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _optional(definition: ast.FunctionDef, given: dict[str, Any]) -> set[str]:
    """The names that are None on one path and something else on another."""
    nothing = {name for name, value in given.items() if value == Static(None)} & _parameters(definition)
    something: set[str] = set()
    other: set[str] = {name for name in given if name not in nothing}  # names assigned by other kinds of statements
    seen: set[int] = set()
    copies: list[tuple[str, str]] = []
    for s in ast.walk(definition):
        match s:
            case ast.Assign(targets=targets, value=value):
                stored = [n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
                if _is_none(value):
                    plain = [t for t in targets if isinstance(t, ast.Name)]
                    nothing |= {t.id for t in plain}
                    seen |= {id(t) for t in plain}
                    continue
                if isinstance(value, ast.Name):
                    copies += [(t.id, value.id) for t in targets if isinstance(t, ast.Name)]
            case ast.For(target=target):
                stored = [n for n in ast.walk(target) if isinstance(n, ast.Name)]
            case _:
                continue
        stored = [n for n in stored if isinstance(n.ctx, ast.Store)]
        something |= {n.id for n in stored}
        seen |= {id(n) for n in stored}
    for n in ast.walk(definition):
        if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and id(n) not in seen:
            other.add(n.id)
    found = (nothing & something) - other
    while more := {name for name, source in copies if source in found} - found - other:
        found |= more
    return found


def _without_choices_of_none(definition: ast.FunctionDef) -> None:
    """Rewrite ``x = a if test else None`` and ``x, y = None, None`` as two assignments each."""

    class Spell(ast.NodeTransformer):
        def visit_Assign(self, node: ast.Assign) -> Any:
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp(test=test, body=body, orelse=orelse)):
                    if _is_none(body) or _is_none(orelse):
                        return placed(ast.If(test, [assign(name, body)], [assign(name, orelse)]), node)
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)):
                    if len(targets) == len(values) and all(map(_is_none, values)):
                        return [placed(ast.Assign([t], v), node) for t, v in zip(targets, values, strict=True)]
            return node

    Spell().visit(definition)


def _none(name: str) -> str:
    """The fact that a name is None."""
    return f"{name} is None"


class _Writer:
    """Inserts flags into statements, and tracks facts from one to the next.

    The facts are the names that are certainly not None, and those that certainly are (`_none`).
    """

    def __init__(self, flags: dict[str, str], known: dict[str, Any], fail: Any, is_kernel: Callable[[Any], bool]):
        self.flags, self.known, self.fail, self.is_kernel = flags, known, fail, is_kernel

    def body(self, statements: list[ast.stmt], facts: frozenset[str]) -> tuple[list[ast.stmt], frozenset[str] | None]:
        """The statements, and the facts after them (None if their end is not reached)."""
        out: list[ast.stmt] = []
        now: frozenset[str] | None = facts
        for s in statements:
            if now is None:
                break
            made, now = self.statement(s, now)
            out += made
        return out, now

    def statement(self, s: ast.stmt, facts: frozenset[str]) -> tuple[list[ast.stmt], frozenset[str] | None]:
        match s:
            case ast.Assign(targets=targets, value=value) if _is_none(value):
                mine = [t.id for t in targets if isinstance(t, ast.Name) and t.id in self.flags]
                s.targets = [t for t in targets if not (isinstance(t, ast.Name) and t.id in self.flags)]
                gone = [self.flag(name, False, s) for name in mine]
                return [*([s] if s.targets else []), *gone], (facts - set(mine)).union(map(_none, mine))
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Name(id=other)) if self.is_open(other, facts):
                if name not in self.flags:
                    self.refuse(s.value)
                copied = placed(assign(self.flags[name], named(self.flags[other])), s)
                return [s, copied], facts - {name, _none(name)}
            case ast.If():
                s.test, yes, no = self.test(s.test, facts)
                s.body, then = self.body(s.body, yes)
                s.orelse, otherwise = self.body(s.orelse, no)
                s.body = s.body or [placed(ast.Pass(), s)]
                paths = [w for w in (then, otherwise) if w is not None]
                return [s], frozenset.intersection(*paths) if paths else None
            case ast.While() | ast.For():
                facts -= self.changed_facts(s)
                inside = facts
                if isinstance(s, ast.While):
                    s.test, inside, _ = self.test(s.test, facts)
                else:
                    s.iter = self.expression(s.iter, facts)
                    stored = self.stored(s.target)
                    s.body[:0] = [self.flag(name, True, s) for name in stored]
                s.body, _ = self.body(s.body, inside)
                return [s], facts
            case ast.Return(value=ast.Name(id=name)) if self.is_open(name, facts):
                nothing = ast.If(self.is_none(name, s), [ast.Return(ast.Constant(None))], [])
                return [placed(nothing, s), s], None
        for field, value in ast.iter_fields(s):
            if isinstance(value, ast.expr):
                setattr(s, field, self.expression(value, facts))
            elif isinstance(value, list):
                value[:] = [self.expression(v, facts) if isinstance(v, ast.expr) else v for v in value]
        if isinstance(s, (ast.Return, ast.Raise, ast.Break, ast.Continue)):
            return [s], None
        stored = self.stored(*s.targets) if isinstance(s, ast.Assign) else []
        flags = [self.flag(name, True, s) for name in stored if name not in facts]
        return [s, *flags], facts.union(stored).difference(map(_none, stored))

    def stored(self, *targets: ast.AST) -> list[str]:
        found = (n for t in targets for n in ast.walk(t) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
        return list(dict.fromkeys(n.id for n in found if n.id in self.flags))

    def changed_facts(self, loop: ast.stmt) -> set[str]:
        """The facts that a loop may change."""
        changed_facts: set[str] = set()
        for s in ast.walk(loop):
            if isinstance(s, ast.Assign) and (_is_none(s.value) or isinstance(s.value, ast.Name)):
                changed_facts |= {t.id for t in s.targets if isinstance(t, ast.Name)}
        return changed_facts.union(map(_none, self.stored(loop)))

    def flag(self, name: str, value: bool, like: ast.AST) -> ast.stmt:
        return placed(assign(self.flags[name], ast.Constant(value)), like)

    def is_open(self, name: str, facts: Iterable[str]) -> bool:
        return name in self.flags and name not in facts

    def is_none(self, name: str, like: ast.AST) -> Any:
        return placed(ast.UnaryOp(ast.Not(), named(self.flags[name])), like)

    def refuse(self, node: ast.Name) -> Any:
        return self.fail(node, f"'{stem(node.id)}' may be None here", _ADVICE)

    # ------------------------------------------------------------------------------------------------- expressions

    def test(self, node: Any, facts: frozenset[str]) -> tuple[Any, frozenset[str], frozenset[str]]:
        """A condition, and the facts if it holds and if it does not."""
        match node:
            case ast.Compare(left=ast.Name(id=name), ops=[op], comparators=[right]) if name in self.flags and _is_none(
                right
            ):
                if isinstance(op, (ast.Is, ast.Eq)):
                    return self.is_none(name, node), facts | {_none(name)}, facts | {name}
                return placed(named(self.flags[name]), node), facts | {name}, facts | {_none(name)}
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                node.operand, yes, no = self.test(operand, facts)
                return node, no, yes
            case ast.BoolOp(op=op, values=values):
                paths = []
                now = facts
                for k, value in enumerate(values):
                    values[k], yes, no = self.test(value, now)
                    now, other = (yes, no) if isinstance(op, ast.And) else (no, yes)
                    paths.append(other)
                other = frozenset.intersection(*paths)
                return node, *((now, other) if isinstance(op, ast.And) else (other, now))
            case ast.Name(id=name) if self.is_open(name, facts):
                if _none(name) not in facts:
                    self.refuse(node)
                return placed(ast.Constant(False), node), facts, facts
        return self.expression(node, facts), facts, facts

    def expression(self, node: Any, facts: frozenset[str], computes: bool = False) -> Any:
        """An expression with flags; ``computes`` is true where Python raises a TypeError for None."""
        match node:
            case ast.Name(id=name, ctx=ast.Load()) if self.is_open(name, facts):
                if not computes:
                    self.refuse(node)
                return placed(Present(node, named(self.flags[name])), node)
            case ast.Compare(left=ast.Name(id=name), comparators=[right]) if name in self.flags and _is_none(right):
                return self.test(node, facts)[0]
            case ast.BoolOp():
                return self.test(node, facts)[0]
            case ast.IfExp():
                node.test, yes, no = self.test(node.test, facts)
                node.body = self.expression(node.body, yes)
                node.orelse = self.expression(node.orelse, no)
                return node
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()) if self.is_open(name, facts):
                self.refuse(node.value)
        passes = not isinstance(node, ast.Call) or self.is_kernel(self.called(node.func))
        arithmetic = isinstance(node, (ast.BinOp, ast.UnaryOp, ast.Compare, ast.Subscript, ast.Attribute))
        for field, value in ast.iter_fields(node):
            if isinstance(value, ast.expr):
                setattr(node, field, self.expression(value, facts, arithmetic))
            elif isinstance(value, list):
                computes = arithmetic or not passes
                value[:] = [self.expression(v, facts, computes) if isinstance(v, ast.expr) else v for v in value]
                for k in value:
                    if isinstance(k, (ast.keyword, ast.comprehension)):
                        self.expression(k, facts, not passes)
        return node

    def called(self, node: ast.expr) -> Any:
        match node:
            case ast.Name(id=name):
                return self.known.get(name)
            case ast.Attribute(value=value, attr=attr):
                return getattr(self.called(value), attr, None)
        return None

"""The printed form of the intermediate representation, for people who read the results of passes.

Every node of ``ir`` and ``ssa`` has one::

    function relax(u: array(float64, 1d, C), v: array(float64, 1d, C))
      for i in 1 .. u.shape[0] - 1 parallel                                  # 7
        t: float64 = u[i - 1] + u[i + 1]                                     # 8
        v[i] = 0.5 * t                                                       # 8
      return

A variable's type is shown at its definition.  Operations without an operator are written like calls, by their names in
the tables.  At the right margin is the line of the user's source from which a statement comes.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import singledispatch
from typing import Any

from ampi.kernel import ir
from ampi.kernel.ir import Expr, Stmt, Var, ssa

MARGIN = 96  # the column of line numbers

# Python's operators by their names in the table of intrinsics, and how tightly they bind.
_BINARY = {
    "or": ("or", 1),
    "and": ("and", 2),
    "lt": ("<", 4),
    "le": ("<=", 4),
    "gt": (">", 4),
    "ge": (">=", 4),
    "eq": ("==", 4),
    "ne": ("!=", 4),
    "bitor": ("|", 5),
    "bitxor": ("^", 6),
    "bitand": ("&", 7),
    "lshift": ("<<", 8),
    "rshift": (">>", 8),
    "add": ("+", 9),
    "sub": ("-", 9),
    "mul": ("*", 10),
    "truediv": ("/", 10),
    "floordiv": ("//", 10),
    "mod": ("%", 10),
    "pow": ("**", 12),
}
_UNARY = {"not": ("not ", 3), "neg": ("-", 11), "pos": ("+", 11), "invert": ("~", 11)}


def printed(node: Any) -> str:
    """The printed form of a function, a statement, a block of statements (a tuple), or an expression."""
    if isinstance(node, Expr):
        return expression(node)
    if isinstance(node, ir.Function):
        return "\n".join(_function(node))
    return "\n".join(_block(node if isinstance(node, tuple) else (node,), 0))


# --------------------------------------------------------------------------------------------------- expressions


def expression(e: Expr, around: int = 0) -> str:
    """An expression, in parentheses if the surrounding operator binds more tightly."""
    match e:
        case ir.Const():
            return _constant(e)
        case Var():
            return e.name
        case ir.Size():
            return f"{e.array.name}.shape[{e.axis}]"
        case ir.Load():
            return f"{e.array.name}[{_list(e.index)}]"
        case ir.Op(name=name, args=(left, right)) if name in _BINARY:
            sign, tightness = _BINARY[name]
            text = f"{expression(left, tightness)} {sign} {expression(right, tightness + 1)}"
            return f"({text})" if tightness < around else text
        case ir.Op(name=name, args=(operand,)) if name in _UNARY:
            sign, tightness = _UNARY[name]
            text = f"{sign}{expression(operand, tightness)}"
            return f"({text})" if tightness < around else text
        case ir.Op(name="cast", args=args):
            return f"{e.type}({_list(args)})"
        case ir.Op():
            return f"{e.name}({_list(e.args)})"
    raise NotImplementedError(f"no printed form of {type(e).__name__}")


def _constant(e: ir.Const) -> str:
    usual = {bool: "bool", int: "int64", float: "float64", complex: "complex128"}
    return repr(e.value) if usual.get(type(e.value)) == str(e.type) else f"{e.type}({e.value!r})"


def _list(expressions: Iterable[Expr]) -> str:
    return ", ".join(map(expression, expressions))


def _typed(v: Any) -> str:
    return f"{v.name}: {v.type}"


# --------------------------------------------------------------------------------------------------- statements


def _function(f: ir.Function) -> list[str]:
    arguments = ", ".join(map(_typed, f.arguments))
    lines = [f"function {f.name}({arguments})"]
    lines += [f"  constant {name}" for name, _ in f.constants]
    return lines + _block((*f.agreeing, *f.body), 1)


def _block(body: tuple[Stmt, ...], depth: int) -> list[str]:
    return [line for s in body for line in _lines(s, depth)]


def _lines(s: Stmt, depth: int) -> list[str]:
    """The lines of a statement and of the blocks in it."""
    lines: list[str] = []
    for head, block in statement(s):
        text = "  " * depth + head
        lines.append(f"{text:<{MARGIN}}  # {s.line}" if s.line and not lines else text)
        lines += _block(block, depth + 1)
    return lines


Parts = Iterable[tuple[str, tuple[Stmt, ...]]]


@singledispatch
def statement(s: Stmt) -> Parts:
    """A statement in parts, each a line and the block below it."""
    raise NotImplementedError(f"no printed form of {type(s).__name__}")


@statement.register
def _(s: ir.Barrier) -> Parts:
    value = "" if s.value is None else f"{expression(s.value)}"
    target = "" if s.target is None else f"{s.target.name} = "
    yield f"{target}barrier {s.kind} {value}".rstrip(), ()


@statement.register
def _(s: ir.Assign) -> Parts:
    yield f"{_typed(s.target)} = {expression(s.value)}", ()


@statement.register
def _(s: ir.Store) -> Parts:
    yield f"{s.array.name}[{_list(s.index)}] = {expression(s.value)}", ()


SIGNS = {"add": "+=", "max": "max=", "min": "min="}


@statement.register
def _(s: ir.Accumulate) -> Parts:
    yield f"{s.array.name}[{_list(s.index)}] {'atomic ' * s.atomic}{SIGNS[s.kind]} {expression(s.value)}", ()


@statement.register
def _(s: ir.Alloc) -> Parts:
    fill = "" if s.fill is None else f" filled with {expression(s.fill)}"
    yield f"{_typed(s.target)} = array of ({_list(s.shape)}){fill}", ()


@statement.register
def _(s: ir.Grow) -> Parts:
    yield f"grow {s.target.name} to {expression(s.size)}", ()


@statement.register
def _(s: ir.Fill) -> Parts:
    yield f"{s.target.name}[:] = {s.function}({_list(s.arguments)})", ()


@statement.register
def _(s: ir.Alias) -> Parts:
    yield f"{_typed(s.target)} is {s.array.name}[{_list(s.index)}]", ()


@statement.register
def _(s: ir.View) -> Parts:
    yield f"{_typed(s.target)} is {s.array.name}[{_list(s.index)}] {_axes(s)}", ()


@statement.register
def _(s: ir.Elementwise) -> Parts:
    sign = "+=" if s.accumulate else "="
    yield f"{s.array.name}[{_list(s.index)}] {sign} {expression(s.value)} {_axes(s)}{' at once' * s.snapshot}", ()


def _axes(s: ir.View | ir.Elementwise) -> str:
    ranges = ", ".join(f"{axis.name} < {expression(n)}" for axis, n in zip(s.axes, s.shape))
    return f"for all ({ranges})"


@statement.register
def _(s: ir.Agree) -> Parts:
    yield f"agree {expression(s.first)} == {expression(s.second)}{f' or {s.problem!r}' * bool(s.problem)}", ()


@statement.register
def _(s: ir.For) -> Parts:
    words = " parallel" * s.parallel + " whole" * s.whole
    words += "".join(f" reducing {name} by {operation}" for name, operation in s.reductions)
    step = "" if s.step == ir.Const(1, s.step.type) else f" by {expression(s.step)}"
    yield f"for {_typed(s.var)} in {expression(s.start)} .. {expression(s.stop)}{step}{words}", s.body


@statement.register
def _(s: ir.While) -> Parts:
    yield f"while {expression(s.condition)}", s.body


@statement.register
def _(s: ir.If) -> Parts:
    yield f"if {expression(s.condition)}", s.then
    if s.orelse:
        yield "else", s.orelse


@statement.register
def _(s: ir.Custom) -> Parts:
    yield f"custom ({_list(s.arguments)}) -> ({', '.join(map(_typed, s.outputs))})", s.body
    yield f"gives ({_list(s.results)}) and ({_list(s.residuals)}) to its rule", ()


@statement.register
def _(s: ir.Break) -> Parts:
    yield "break", ()


@statement.register
def _(s: ir.Continue) -> Parts:
    yield "continue", ()


@statement.register
def _(s: ir.Return) -> Parts:
    yield f"return {_list(s.values)}".rstrip(), ()


@statement.register
def _(s: ir.Raise) -> Parts:
    yield f"raise {s.text}{' of its own' * s.own}", ()


@statement.register
def _(s: ir.Launch) -> Parts:
    words = "".join(f" reducing {_typed(r.var)} from {expression(r.init)} by {r.operation}" for r in s.reduced)
    words += f" sharing {_list(s.shared)}" * bool(s.shared) + " by adding" * s.added
    words += f" if {_list(s.distinct)}" * bool(s.distinct) + f" {s.distance} apart" * bool(s.distance)
    yield f"launch {s.part.name}({_list(s.arguments)}) on {expression(s.start)} .. {expression(s.stop)}{words}", ()
    for part in (s.part, s.atomic):
        if part is not None:
            yield _function(part)[0], part.body


@statement.register
def _(s: ssa.Loop) -> Parts:
    if s.condition is None:
        head = f"loop {_typed(s.var)} in {expression(s.start)} .. {expression(s.stop)}"
    else:
        head = f"loop {s.var.name} while {s.condition.name}"
    head += " backward" * (s.step == -1) + " parallel" * s.parallel + " independent" * s.independent
    yield head + " whole" * s.whole, s.body
    for c in s.carried:
        yield f"carry {_typed(c.var)} from {expression(c.init)} to {expression(c.next)}", ()


@statement.register
def _(s: ssa.Branch) -> Parts:
    yield f"if {expression(s.condition)}", s.then
    if s.orelse:
        yield "else", s.orelse
    yield from (_join(j) for j in s.joins)


@statement.register
def _(s: ssa.Custom) -> Parts:
    yield f"custom ({_list(s.arguments)})", s.then
    yield from (_join(j) for j in s.joins)
    yield f"gives ({_list(s.results)}) and ({_list(s.residuals)}) to its rule", ()


def _join(j: ssa.Join) -> tuple[str, tuple[Stmt, ...]]:
    return f"join {_typed(j.var)} from {expression(j.then)} or {expression(j.orelse)}", ()

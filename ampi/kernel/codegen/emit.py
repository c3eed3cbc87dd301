"""Source emission: a kernel's IR as Python source in Numba's subset.

A comment on every line has the number of the user's line from which it comes.  ``source(function)`` returns the text of
one ``def``; ``HEADER`` has the imports that it needs.  Names are replaced by identifiers first (``spelled`` does so for
several functions at once).
"""

from __future__ import annotations

import ast
import cmath
import functools
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.codegen import identifiers
from ampi.kernel.codegen.identifiers import parts
from ampi.kernel.codegen.templates import ATOM, Text, filled, normalised
from ampi.kernel.ir import calls, matrices
from ampi.kernel.ir.intrinsics import TABLE
from ampi.kernel.ir.lanes import Lanes

HEADER = """\
import cmath
import math

import numpy as np
from numba import prange

from ampi.kernel.special import digamma, fused, get_num_threads, longer, put_into, scratch, selected, separate
from ampi.kernel.special import solve_upper, tetragamma, trigamma, where_nonzero
from ampi.kernel.threads import ALONE, APART, ATOMIC, NEAR, OWN, add_own, atomic_add, blocks_are_apart, choose, piece
from ampi.kernel.threads import largest_of_parts, place_of_largest, place_of_smallest, smallest_of_parts
"""
_OF_SCIPY = re.compile(r"\bscipy_\w+(?=\()")
_FOREIGN = re.compile(r"\bforeign_\d_\w+(?=\()")
FACTS = (
    "CONTRACT",
    "ADJOINT",
    "LANES",
    "SOURCE",
    "PARTS",
    "COSTS",
    "PROGRAM",
    "SPLIT",
    "SPLIT_PROGRAM",
    "disagreement",
)
"""Other names that a generated file defines (see ``programs``)."""
DRAWING = ("interval", "seeded")
"""The imports that are added to a file that draws random numbers."""
LANES = (
    *("added", "any_of", "both", "chosen", "converted", "each", "equal", "inverse", "loaded"),
    *("multiplied_and_added", "one_of", "spread", "stored", "unequal"),
)
"""The imports that are added to a file with derivatives in several directions."""
WORDS = {"min": "smallest", "max": "largest"}


def header(*sources: str) -> str:
    """The imports that these programs need."""
    names = sorted({name for source in sources for name in _OF_SCIPY.findall(source)})
    imports = [f"from ampi.kernel.runtime.scipy_calls import {name}\n" for name in names]
    for name in sorted({name for source in sources for name in _FOREIGN.findall(source)}):
        (function,) = TABLE[name].callables
        imports.append(f"from {function.__module__} import {function.__name__} as {name}\n")
    return HEADER + "".join(imports)


def reserved() -> frozenset[str]:
    """The names that a generated file defines, apart from its programs and their constants."""
    return _always_reserved() | {name for name in TABLE if name.startswith("foreign_")}


@functools.cache
def _always_reserved() -> frozenset[str]:
    imports = (node for node in ast.parse(HEADER).body if isinstance(node, (ast.Import, ast.ImportFrom)))
    of_scipy = (name for name in TABLE if name.startswith("scipy_"))
    always = frozenset(a.asname or a.name for node in imports for a in node.names)
    return always | frozenset((*FACTS, *DRAWING, *LANES, *of_scipy))


def spelled(*functions: ir.Function) -> tuple[ir.Function, ...]:
    """The functions of one file with identifiers for their names."""
    return identifiers.spelled(functions, reserved())


def source(function: ir.Function) -> str:
    """The function as Python source, preceded by the functions that it calls on threads, or that are compiled
    separately."""
    (function,) = spelled(function)
    separate = (f"@separate\n{_definition(spelled(f)[0])}" for f in calls.needed((function,)))
    return "\n\n".join((*separate, *map(_definition, (*parts(function), function))))


def _definition(function: ir.Function) -> str:
    writer = _Writer()
    arguments = ", ".join(a.name for a in function.arguments)
    writer.line(f"def {function.name}({arguments}):", 0)
    writer.flat_result = function.result != "scalar"
    writer.block(function.body)
    return "\n".join(writer.lines) + "\n"


def expression(value: ir.Expr) -> str:
    """An expression as Python source."""
    return _text(value)[0]


def numpy_name(ty: Any) -> str:
    """The NumPy name of a scalar type: ``np.float64`` and so on."""
    return "np.bool_" if isinstance(ty, types.Boolean) else f"np.{ty.name}"


# --------------------------------------------------------------------------------------------- expressions


def _text(value: ir.Expr) -> Text:
    """An expression as Python source, and its level: how tightly it is bound."""
    match value:
        case ir.Const():
            return normalised(_literal(value.value, value.type))
        case ir.Var(name=name):
            return name, ATOM
        case ir.Size(array=array, axis=axis):
            return f"{array.name}.shape[{axis}]", ATOM
        case ir.Load(array=array, index=index) if isinstance(value.type, Lanes):
            return normalised(f"loaded({array.name}, {_index_tuple(index)}, {value.type.count})")
        case ir.Op(name="any", args=(x,)):
            return filled("any_of(x)", _text(x))
        case ir.Op(name=name, args=args) if isinstance(value.type, Lanes) and name in _IN_LANES:
            return filled(_IN_LANES[name](value.type), *map(_text, args))
        case ir.Load(array=array, index=index):
            return f"{array.name}[{', '.join(map(expression, index)) or '()'}]", ATOM
        case ir.Op(name="select", args=(condition, x, y)) if _is_plain(x) and _is_plain(y):
            return filled("selected(x, y, z)", _text(condition), _text(x), _text(y))
        case ir.Op(name="and" | "or" as name, args=(x, y)) if _is_cheap_condition(x) and _is_cheap_condition(y):
            return filled("x & y" if name == "and" else "x | y", _text(x), _text(y))
        case ir.Op(name="cast", args=(x,)):
            return filled(f"{numpy_name(value.type)}(x)", _text(x))
        case ir.Op(name=name, args=args):
            entry = TABLE[name]
            text = entry.source
            if entry.source_int is not None and isinstance(value.type, types.Integer):
                text = entry.source_int
            if args and isinstance(args[0].type, types.Complex):
                text = text.replace("math.", "cmath.")
            return filled(text, *(map(_converted, args) if all(map(_is_integer, args)) else map(_text, args)))
    raise AssertionError(value)


def _is_integer(value: ir.Expr) -> bool:
    return isinstance(value, ir.Const) and isinstance(value.type, types.Integer)


def _converted(value: ir.Const) -> Text:
    """An integer in its constructor: Python would compute operations on plain literals without overflow."""
    return normalised(f"{numpy_name(value.type)}({int(value.value)})")


def _is_plain(value: ir.Expr) -> bool:
    """Return whether a value is a variable or constant, apart from its sign."""
    if isinstance(value, ir.Op) and value.name == "neg":
        (value,) = value.args
    return isinstance(value, (ir.Var, ir.Const)) and isinstance(value.type, (types.Number, types.Boolean))


def _is_cheap_condition(value: ir.Expr) -> bool:
    """Return whether evaluating a condition costs no more than skipping it by a branch, and cannot fail."""
    if not isinstance(value.type, types.Boolean):
        return False
    match value:
        case ir.Op(name="lt" | "le" | "gt" | "ge" | "eq" | "ne", args=args):
            return all(map(_is_plain, args))
        case ir.Op(name="and" | "or" | "not", args=args):
            return all(map(_is_cheap_condition, args))
    return _is_plain(value)


_IN_LANES: dict[str, Callable[[Lanes], str]] = {
    "spread": lambda lanes: f"spread(x, {lanes.count})",
    "cast": lambda lanes: f"converted(x, {lanes.dtype.bitwidth})",
    "select": lambda lanes: "chosen(x, y, z)",
    "fused": lambda lanes: "multiplied_and_added(x, y, z)",
    "ne": lambda lanes: "unequal(x, y)",
    "eq": lambda lanes: "equal(x, y)",
    "and": lambda lanes: "both(x, y)",
    "or": lambda lanes: "one_of(x, y)",
    "not": lambda lanes: "inverse(x)",
}


def _index_tuple(index: tuple[ir.Expr, ...]) -> str:
    return f"({', '.join(map(expression, index))}{',' if len(index) == 1 else ''})"


def _literal(value: Any, ty: Any) -> str:
    if isinstance(ty, types.Boolean):
        return repr(bool(value))
    if isinstance(ty, types.Integer):
        return repr(int(value)) if ty in (types.int64, types.intp) else f"{numpy_name(ty)}({int(value)})"
    text = _complex_text(complex(value)) if isinstance(ty, types.Complex) else _float_text(float(value))
    return text if ty in (types.float64, types.complex128) else f"{numpy_name(ty)}({text})"


def _float_text(value: float) -> str:
    if math.isnan(value):
        return "math.nan"
    if math.isinf(value):
        return "math.inf" if value > 0 else "-math.inf"
    return repr(value)


def _complex_text(value: complex) -> str:
    plain = cmath.isfinite(value) and value.real == 0 and math.copysign(1, value.real) > 0
    return repr(value) if plain else f"complex({_float_text(value.real)}, {_float_text(value.imag)})"


# --------------------------------------------------------------------------------------------- statements


class _Writer:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self.depth = 0
        self.flat_result = True

    def line(self, text: str, number: int) -> None:
        comment = f"  # line {number}" if number else ""
        self.lines.append("    " * self.depth + text + comment)

    def block(self, body: tuple[ir.Stmt, ...]) -> None:
        self.depth += 1
        for statement in body:
            self.statement(statement)
        if not body:
            self.line("pass", 0)
        self.depth -= 1

    def statement(self, s: ir.Stmt) -> None:
        match s:
            case ir.Assign(target=target, value=ir.Op(name="add", args=(ir.Var(name=name), value))) if (
                name == target.name
            ):
                self.line(f"{name} += {expression(value)}", s.line)
            case ir.Assign(target=target, value=value):
                self.line(f"{target.name} = {expression(value)}", s.line)
            case ir.Store(array=array, index=index, value=value) if isinstance(value.type, Lanes):
                self.line(f"stored({array.name}, {_index_tuple(index)}, {expression(value)})", s.line)
            case ir.Accumulate(array=array, index=index, value=value) if isinstance(value.type, Lanes):
                self.line(f"added({array.name}, {_index_tuple(index)}, {expression(value)})", s.line)
            case ir.Store(array=array, index=index, value=value):
                self.line(f"{array.name}[{self.index(index)}] = {expression(value)}", s.line)
            case ir.Accumulate(array=array, index=index, value=value, atomic=True):
                comma = "," if len(index) == 1 else ""
                self.line(f"atomic_add({array.name}, ({self.index(index)}{comma}), {expression(value)})", s.line)
            case ir.Accumulate(array=array, index=index, value=ir.Op(name="neg", args=(value,))):
                self.line(f"{array.name}[{self.index(index)}] -= {expression(value)}", s.line)
            case ir.Accumulate(array=array, index=index, value=value):
                self.line(f"{array.name}[{self.index(index)}] += {expression(value)}", s.line)
            case ir.Alloc(target=target, shape=shape, fill=fill):
                allocation = _scratch(s) if s.scratch else _allocation(target.type, shape, fill)
                self.line(f"{target.name} = {allocation}", s.line)
            case ir.Fill():
                self.line(matrices.source(s), s.line)
            case ir.Grow(target=target, size=size):
                self.grow(target, size, s.line)
            case ir.Alias(target=target, array=array, index=index):
                subscript = f"[{self.index(index)}]" if index else ""
                self.line(f"{target.name} = {array.name}{subscript}", s.line)
            case ir.For(body=body):
                self.line(f"for {s.var.name} in {_range(s)}:", s.line)
                self.block(_without_changing_copies(s) if s.parallel else body)
            case ir.While(condition=condition, body=body):
                self.line(f"while {expression(condition)}:", s.line)
                self.block(body)
            case ir.If():
                self.branch(s, "if")
            case ir.Custom():
                for inner in s.body:
                    self.statement(inner)
                for output, value in zip(s.outputs, s.results):
                    if output != value:
                        self.line(f"{output.name} = {expression(value)}", s.line)
            case ir.Return(values=values):
                self.result(values, s.line)
            case ir.Break():
                self.line("break", s.line)
            case ir.Continue():
                self.line("continue", s.line)
            case ir.Launch():
                self.launch(s)
            case ir.Raise(text=text):
                for part in text.splitlines():
                    self.line(part, s.line)
            case _:
                raise AssertionError(s)

    def index(self, index: tuple[ir.Expr, ...]) -> str:
        return ", ".join(map(expression, index)) or "()"

    def branch(self, s: ir.If, word: str) -> None:
        self.line(f"{word} {expression(s.condition)}:", s.line)
        self.block(s.then)
        match s.orelse:
            case ():
                pass
            case (ir.If() as nested,):
                self.branch(nested, "elif")
            case _:
                self.line("else:", 0)
                self.block(s.orelse)

    def launch(self, s: ir.Launch) -> None:
        """The call of a part on threads; see `ampi.kernel.runtime.threads` for the forms."""
        name = {hint: v.name for hint, v in s.temporaries.items()}
        start, stop = expression(s.start), expression(s.stop)
        count, form = name["threads"], name["form"]
        own = {a.name: name[f"own {k}"] for k, a in enumerate(s.shared) if f"own {k}" in name}
        self.line(f"{count} = {s.count or 'get_num_threads()'}", s.line)
        extent = f"{stop} - {start}" if start != "0" else stop
        sizes = " + ".join(f"{a.name}.size" for a in s.shared) if own else "0"
        apart = "True"
        if s.distance:
            apart = f"{extent} >= {2 * s.distance} * {count}"
        elif s.shared:
            apart = " and ".join(map(expression, s.distinct)) or "False"
        facts = ", ".join((extent, str(s.work), sizes, str(s.increments), count, apart, str(bool(own))))
        self.line(f"{form} = choose({facts}, {bool(s.reaches)}, COSTS)", s.line)
        if s.reaches:
            found = " and ".join(self.apart(r, start, stop, count) for r in s.reaches)
            self.line(f"if {form} == NEAR and not ({found}):", s.line)
            self.inside(lambda: self.line(f"{form} = choose({facts}, False, COSTS)", s.line))
        for k, r in enumerate(s.reduced):
            dtype = numpy_name(r.var.type)
            several = f"2 * {count}" if s.distance or s.reaches else count
            filled = f"np.zeros({several}" if r.operation == "add" else f"np.full({several}, {expression(r.init)}"
            self.line(f"{name[f'parts {k}']} = {filled}, {dtype})", s.line)
        for array, many in own.items():
            dtype = numpy_name(next(a for a in s.shared if a.name == array).type.dtype)
            self.line(f"{many} = np.empty(({count} - 1 if {form} == OWN else 0, *{array}.shape), {dtype})", s.line)
        self.line(f"if {form} == ALONE:", s.line)
        self.inside(lambda: self.call(s, s.part, start, stop, "0"))
        self.line("else:", s.line)
        self.inside(lambda: self.blocks(s, start, stop) if s.distance else self.on_threads(s, start, stop, own))
        for k, r in enumerate(s.reduced):
            several, begin = name[f"parts {k}"], expression(r.init)
            if r.operation == "add":
                self.line(f"{r.var.name} = {begin}", s.line)
                self.line(f"for {name['thread']} in range({several}.shape[0]):", s.line)
                self.inside(lambda v=r.var.name, m=several: self.line(f"{v} += {m}[{name['thread']}]", s.line))
            elif r.operation == "place":
                extreme = s.reduced[r.of]
                given = f"{expression(extreme.init)}, {name[f'parts {r.of}']}, {several}, {r.last}"
                self.line(f"{r.var.name} = place_of_{WORDS[extreme.operation]}({given})", s.line)
            else:
                self.line(f"{r.var.name} = {WORDS[r.operation]}_of_parts({begin}, {several})", s.line)

    def apart(self, r: ir.Reach, start: str, stop: str, count: str) -> str:
        """The call that tests whether blocks of one parity touch the same elements."""
        facts = (r.first, r.last, r.own, r.low, r.high, start, stop, f"2 * {count}")
        return f"blocks_are_apart({r.index.name}.reshape(-1), {r.index.name}.shape[0], {', '.join(map(str, facts))})"

    def inside(self, write: Callable[[], None]) -> None:
        self.depth += 1
        write()
        self.depth -= 1

    def call(self, s: ir.Launch, part: ir.Function, begin: str, end: str, place: str, **instead: str) -> None:
        """Call a part, with some arguments replaced by other arrays, and store its results."""
        given = [expression(a) for a in s.arguments]
        arguments = ", ".join([begin, end, *(instead.get(a, a) for a in given)])
        targets = ", ".join(f"{s.temporaries[f'parts {k}'].name}[{place}]" for k in range(len(s.reduced)))
        self.line(f"{targets}{' = ' if targets else ''}{part.name}({arguments})", s.line)

    def on_threads(self, s: ir.Launch, start: str, stop: str, own: dict[str, str]) -> None:
        name = {hint: v.name for hint, v in s.temporaries.items()}
        thread, count, form, begin, end = (name[n] for n in ("thread", "threads", "form", "begin", "end"))
        part, parts = thread, count
        if s.reaches:
            phase, phases = name["phase"], name["phases"]
            self.line(f"{phases} = 2 if {form} == NEAR else 1", s.line)
            self.line(f"for {phase} in range({phases}):", s.line)
            self.depth += 1
            part, parts = f"{phases} * {thread} + {phase}", f"{phases} * {count}"
        self.line(f"for {thread} in prange({count}):", s.line)
        self.depth += 1
        self.line(f"{begin}, {end} = piece({start}, {stop}, {part}, {parts})", s.line)
        word = "if"
        if s.atomic is not None:
            self.line(f"{word} {form} == ATOMIC:", s.line)
            self.inside(lambda: self.call(s, s.atomic, begin, end, part))
            word = "elif"
        if own:
            self.line(f"{word} {form} == OWN and {thread} > 0:", s.line)
            self.depth += 1
            for many in own.values():
                self.line(f"{many}[{thread} - 1] = 0", s.line)
            self.call(s, s.part, begin, end, part, **{a: f"{m}[{thread} - 1]" for a, m in own.items()})
            self.depth -= 1
            self.line("else:", s.line)
            self.inside(lambda: self.call(s, s.part, begin, end, part))
        else:
            self.call(s, s.part, begin, end, part)
        self.depth -= 2 if s.reaches else 1
        if own:
            self.line(f"if {form} == OWN:", s.line)
            self.depth += 1
            self.line(f"for {thread} in prange({count}):", s.line)
            for array, many in own.items():
                self.inside(lambda a=array, m=many: self.line(f"add_own({a}, {m}, {thread}, {count})", s.line))
            self.depth -= 1

    def blocks(self, s: ir.Launch, start: str, stop: str) -> None:
        name = {hint: v.name for hint, v in s.temporaries.items()}
        thread, count, phase, begin, end = (name[n] for n in ("thread", "threads", "phase", "begin", "end"))
        self.line(f"for {phase} in range(2):", s.line)
        self.depth += 1
        self.line(f"for {thread} in prange({count}):", s.line)
        self.depth += 1
        self.line(f"{begin}, {end} = piece({start}, {stop}, 2 * {thread} + {phase}, 2 * {count})", s.line)
        self.call(s, s.part, begin, end, f"2 * {thread} + {phase}")
        self.depth -= 2

    def grow(self, target: ir.Var, size: ir.Expr, line: int) -> None:
        name, need = target.name, expression(size)
        self.line(f"if {name}.shape[0] < {need}:", line)
        self.depth += 1
        self.line(f"{name} = longer({name}, 2 * ({need}))", line)
        self.depth -= 1

    def result(self, values: tuple[ir.Expr, ...], line: int) -> None:
        texts = [f"each({expression(v)})" if isinstance(v.type, Lanes) else expression(v) for v in values]
        if not self.flat_result:
            self.line(f"return {texts[0]}", line)
        elif texts:
            comma = "," if len(texts) == 1 else ""
            self.line(f"return ({', '.join(texts)}{comma})", line)
        else:
            self.line("return ()", line)


def _without_changing_copies(loop: ir.For) -> tuple[ir.Stmt, ...]:
    """Statements of a parallel loop in which variables that change are assigned ``np.int64(i)``, not its index ``i``.

    Numba takes a copy of the index for the index itself, and refuses a second assignment to it.  Inside the loop the
    index is an unsigned integer, and a variable that may be either an index or a signed integer becomes a float.
    """
    changes = Counter(s.var.name if isinstance(s, ir.For) else s.target.name  # type: ignore[attr-defined]
                      for s in ir.walk(loop.body) if isinstance(s, (ir.Assign, ir.For)))  # fmt: skip
    copies = {loop.var.name}

    def visit(block: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in block:
            match s:
                case ir.Assign(target=target, value=ir.Var(name=name) as value) if name in copies:
                    if changes[target.name] > 1:
                        s = replace(s, value=ir.Op("cast", (value,), value.type))
                    else:
                        copies.add(target.name)
                case _:
                    s = ir.in_blocks(s, visit)
            out.append(s)
        return tuple(out)

    return visit(loop.body)


def _scratch(s: ir.Alloc) -> str:
    return f"scratch({expression(s.shape[0])}, {numpy_name(s.target.type.dtype)})"


def _allocation(ty: Any, shape: tuple[ir.Expr, ...], fill: ir.Expr | None) -> str:
    if fill is not None and isinstance(fill.type, types.Array):
        return f"{expression(fill)}.copy()"
    extents = ", ".join(map(expression, shape))
    extents = extents if len(shape) == 1 else f"({extents})"
    dtype = f"dtype={numpy_name(ty.dtype)}"
    if fill is None:
        return f"np.empty({extents}, {dtype})"
    if isinstance(fill, ir.Const) and fill.value == 0:
        return f"np.zeros({extents}, {dtype})"
    return f"np.full({extents}, {expression(fill)}, {dtype})"


def _range(s: ir.For) -> str:
    word = "prange" if s.parallel else "range"
    is_one = isinstance(s.step, ir.Const) and s.step.value == 1
    is_zero = isinstance(s.start, ir.Const) and s.start.value == 0
    if not is_one:
        bounds = (s.start, s.stop, s.step)
    else:
        bounds = (s.stop,) if is_zero else (s.start, s.stop)
    return f"{word}({', '.join(map(expression, bounds))})"

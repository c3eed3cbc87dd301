"""Launches before that of a derivative on a GPU, which find what no thread knows alone.

Where threads store a maximum or minimum into one element (``cuda.atomic.max``, ``min``), one of them wins: a first
launch finds the extreme, a second one the first thread that has it, in the order in which the processor runs them.  In
the derivative only that thread stores.  And where the adjoint saves values of loops of unknown length (``while``), a
launch counts their iterations, and they become loops over the largest number that a thread needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda import flat, shared_extremes
from ampi.kernel.cuda.guards import TRUE
from ampi.kernel.cuda.loops import Geometry, by_speed, places_of_axis
from ampi.kernel.cuda.shared_extremes import compared, is_extreme
from ampi.kernel.frontend.cuda.language import AXES, INT, place
from ampi.kernel.ir.names import Names

WINNER, FINAL, LENGTH = "winner of", "final values of", "iterations of loop"
"""First words of the paths of arguments that launches before a derivative fill; users' arguments have no such paths."""
FIRST = 2**62
"""The number of a launch's first thread where winners are found; later ones have smaller ones, and zero means none."""
Fail = Callable[[int, str, str], NoReturn]
ONE_ELEMENT = types.Array(INT, 1, "C")


@dataclass(frozen=True)
class Form:
    """What the threads of an emitted program do.

    Attributes
    ----------
    what : str
        ``"run"``: the kernel itself; ``"winners"`` or ``"lengths"``: a launch that finds them; ``"known"``: the kernel
        as it is differentiated, with arguments that those launches have filled.
    counted : bool
        Whether loops of unknown length are loops over a number of iterations that the host knows.
    """

    what: str
    counted: bool = False


RUN = Form("run")


def is_prepared(a: ir.Argument) -> bool:
    """Return whether a launch before the derivative fills an argument."""
    return bool(a.path) and a.path[0] in (WINNER, FINAL, LENGTH)


def prepared(
    body: tuple[ir.Stmt, ...],
    form: Form,
    arguments: dict[str, ir.Argument],
    geometry: Geometry,
    names: Names,
    fail: Fail,
) -> tuple[tuple[ir.Stmt, ...], tuple[ir.Argument, ...]]:
    """Return the statements of a thread of an emitted program, without jumps, and its further arguments."""
    more: list[ir.Argument] = []
    if form.what in ("winners", "known"):
        body = shared_extremes.rewritten(body, order(body, geometry, ("threadIdx",)), names, fail)
    extremes = _Extremes(body, form, arguments, names, fail)
    if extremes.arrays and form.what in ("winners", "known"):
        extremes.begin(geometry)
        more += extremes.more()
    body = extremes.block(body)
    if extremes.key is not None:
        body = (ir.Assign(extremes.key, order(body, geometry)), *body)
    if form.counted or form.what == "lengths":
        loops = _Loops(form, names)
        body = loops.block(body)
        more += [ir.Argument(v.name, v.type, (LENGTH, k)) for k, v in enumerate(loops.lengths)]
    return body, tuple(more)


SIZES = {"grid": "gridsize", "blockIdx": "gridDim", "threadIdx": "blockDim"}


def order(
    body: tuple[ir.Stmt, ...], geometry: Geometry, levels: tuple[str, ...] = ("blockIdx", "threadIdx")
) -> ir.Expr:
    """Return a number that is smaller for threads that the processor runs later."""
    if len(levels) > 1 and flat.is_flat(flat.with_plain_places(body)):
        levels = ("grid",)
    axes = [k for k in range(3) if geometry.grid[k] or geometry.block[k] > 1]
    number: ir.Expr = ir.Const(0, INT)
    for index, size in ((level, SIZES[level]) for level in levels):
        for k in reversed(by_speed(body, [places_of_axis(axis) for axis in AXES], axes)):
            number = ir.Op("mul", (number, place(f"{size}.{AXES[k]}")), INT)
            number = ir.Op("add", (number, place(f"{index}.{AXES[k]}")), INT)
    return ir.Op("sub", (ir.Const(FIRST, INT), number), INT)


class _Extremes:
    """Rewriting of atomic maxima and minima."""

    def __init__(
        self, body: tuple[ir.Stmt, ...], form: Form, arguments: dict[str, ir.Argument], names: Names, fail: Fail
    ) -> None:
        self.form, self.names, self.fail = form, names, fail
        self.arrays: dict[str, ir.Var] = {}  # of numbers with derivatives
        self.olds: set[str] = set()  # variables that only hold the old element
        self.key: ir.Var | None = None
        self.winner: dict[str, ir.Var] = {}
        self.final: dict[str, ir.Var] = {}
        self.paths = {name: a.shown for name, a in arguments.items()}
        self.shared = {s.target.name for s in ir.walk(body) if isinstance(s, ir.Alloc) and s.shared}
        stores = [s for s in ir.walk(body) if is_extreme(s)]
        for s in stores:
            self.check(s, stores, body)

    def check(self, s: Any, stores: list[Any], body: tuple[ir.Stmt, ...]) -> None:
        name = s.array.name
        if name in self.paths or name in self.shared:
            self.olds.add(s.value.args[0].name)
        if name not in self.paths:
            return
        others = [t for t in stores if t.array.name == name]
        if any(t.value.name != s.value.name and not _apart(s.index, t.index) for t in others):
            text = f"maxima and minima in the same elements of '{self.paths[name]}', in source for a GPU: their order"
            self.fail(s.line, f"{text} decides the result", "store them in two arrays")
        nodes = list(ir.walk(body))
        uses = sum(isinstance(n, ir.Var) and n.name == name for n in nodes)
        sizes = sum(isinstance(n, ir.Size) and n.array.name == name for n in nodes)
        if uses != sizes + 2 * len(others):  # each has a store, and a load of the old element
            text = f"'{self.paths[name]}' is used in another way as well as by cuda.atomic.{s.value.name}, in source"
            self.fail(s.line, f"{text} for a GPU", "use it otherwise in a launch of its own")
        if isinstance(s.array.type.dtype, types.Float):
            self.arrays[name] = s.array

    def begin(self, geometry: Geometry) -> None:
        self.key = self.names.variable("order", INT)
        for name, array in self.arrays.items():
            self.winner[name] = self.names.variable(f"{name}_winner", types.Array(INT, array.type.ndim, "C"))
            if self.form.what == "winners":
                kind = types.Array(array.type.dtype, array.type.ndim, "C")
                self.final[name] = self.names.variable(f"{name}_final", kind)

    def more(self) -> Iterator[ir.Argument]:
        for first, arrays in ((FINAL, self.final), (WINNER, self.winner)):
            for name, v in arrays.items():
                yield ir.Argument(v.name, v.type, (first, self.paths[name]))

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            match s:
                case ir.Assign(target=target) if target.name in self.olds:
                    continue
                case ir.Store() if is_extreme(s):
                    s = self.store(s)
            out.append(ir.in_blocks(s, self.block))
        return tuple(out)

    def store(self, s: Any) -> ir.Stmt:
        name, index = s.array.name, s.index
        own = ir.Load(s.array, index, s.array.type.dtype)
        value, key = s.value.args[1], self.key
        if name not in self.paths and name not in self.shared:
            return s
        if name not in self.arrays or key is None:
            return ir.Accumulate(s.array, index, value, atomic=True, kind=s.value.name, line=s.line)
        winner = ir.Load(self.winner[name], index, INT)
        if self.form.what == "known":
            stores = replace(s, value=replace(s.value, args=(own, value)), atomic=False)
            return ir.If(compared("eq", winner, key), (stores,), line=s.line)
        has_it = compared("eq", value, ir.Load(self.final[name], index, own.type))
        changes = compared("gt" if s.value.name == "max" else "lt", value, own)
        store = ir.Accumulate(self.winner[name], index, key, atomic=True, kind="max", line=s.line)
        return ir.If(ir.Op("and", (has_it, changes), types.boolean), (store,), line=s.line)


def _apart(one: tuple[ir.Expr, ...], other: tuple[ir.Expr, ...]) -> bool:
    """Return whether constant indices tell two elements apart."""
    pairs = [(a.value, b.value) for a, b in zip(one, other) if isinstance(a, ir.Const) and isinstance(b, ir.Const)]
    return any(a != b and (a < 0) == (b < 0) for a, b in pairs)


class _Loops:
    """Rewriting of loops of unknown length."""

    def __init__(self, form: Form, names: Names) -> None:
        self.form, self.names = form, names
        self.lengths: list[ir.Var] = []

    def block(self, body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in body:
            out += self.loop(s) if isinstance(s, ir.While) else [ir.in_blocks(s, self.block)]
        return tuple(out)

    def loop(self, s: ir.While) -> tuple[ir.Stmt, ...]:
        kind = ONE_ELEMENT if self.form.what == "lengths" else INT
        length = self.names.variable("length", kind)
        self.lengths.append(length)
        body, line = self.block(s.body), s.line
        one, zero = ir.Const(1, INT), ir.Const(0, INT)
        if self.form.what == "lengths":
            count = self.names.variable("count", INT)
            counts = ir.Assign(count, ir.Op("add", (count, one), INT), line=line)
            return (
                ir.Assign(count, zero, line=line),
                replace(s, body=(counts, *body)),
                ir.Accumulate(length, (zero,), count, atomic=True, kind="max", line=line),
            )
        going, turn = self.names.variable("going", types.boolean), self.names.variable("turn", INT)
        once = ir.Assign(going, s.condition, line=line), ir.If(going, body, line=line)
        return (
            ir.Assign(going, TRUE, line=line),
            ir.For(turn, zero, length, one, (ir.If(going, once, line=line),), line=line),
        )

"""Windows: the part of an array that one iteration of a loop multiplies, as bounds that any iteration can compute.

In ``for i: y[i, i:m] = x[:, i] @ x[:, i:m]`` the window of iteration ``i`` is the columns from ``i`` to ``m``.  To
treat several iterations together, its bounds must be known for each of them beforehand: `Iteration.form` writes a
scalar in terms of the loop's counter and of values from outside the loop.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.ssa import INT, ZERO, Branch, Loop, blocks, definitions, every, written

LARGEST = 60  # nodes in a form
MOVABLE = frozenset(
    {"add", "sub", "mul", "neg", "min", "max", "cast", "select", "and", "or", "not", "lt", "le", "gt", "ge", "eq", "ne"}
)


class Iteration:
    """The values of one iteration of a loop, whose local arrays are those that its body allocates."""

    def __init__(self, loop: Loop) -> None:
        self.loop = loop
        self.assigned: dict[str, Expr | None] = {v.name: None for s in every((loop,)) for v in definitions(s)}
        del self.assigned[loop.var.name]
        for s in every(loop.body):
            if isinstance(s, ir.Assign):
                self.assigned[s.target.name] = s.value
            elif isinstance(s, Branch):
                for j in s.joins:
                    self.assigned[j.var.name] = Op("select", (s.condition, j.then, j.orelse), j.var.type)
        self.local = {s.target.name: s for s in loop.body if isinstance(s, ir.Alloc)}
        self.changed = {w.name for s in every(loop.body) if (w := written(s)) is not None}
        self._forms: dict[str, Expr | None] = {}

    def is_steady(self, array: Var) -> bool:
        """Return whether an array is that of before the loop in all iterations."""
        return array.name not in self.changed and array.name not in self.assigned

    def form(self, e: Expr) -> Expr | None:
        """An expression of the loop's counter and of values from outside; None if there is none that may move."""
        found = self._form(e)
        return found if found is None or sum(1 for _ in ir.walk(found)) <= LARGEST else None

    def _form(self, e: Expr) -> Expr | None:
        match e:
            case Var(name=name) if name in self.assigned:
                if name not in self._forms:
                    value = self.assigned[name]
                    self._forms[name] = None if value is None else self.form(value)
                return self._forms[name]
            case Op(name=name, args=args) if name in MOVABLE:
                forms = [self.form(a) for a in args]
                if name in ("select", "and", "or") and any(isinstance(n, ir.Load) for f in forms for n in _nodes(f)):
                    return None
                return None if None in forms else Op(name, tuple(f for f in forms if f is not None), e.type)
            case Size(array=array, axis=axis) if array.name in self.local:
                return self.form(self.local[array.name].shape[axis])
            case ir.Load(array=array, index=index) if self.is_steady(array):
                forms = [self.form(i) for i in index]
                return None if None in forms else ir.Load(array, tuple(f for f in forms if f is not None), e.type)
            case Var() | Const() | Size():
                return e if not isinstance(e, Size) or e.array.name not in self.assigned else None
        return None

    def varies(self, form: Expr) -> bool:
        """Return whether a form depends on the iteration."""
        return self.loop.var in ir.walk(form)

    def varying(
        self, places: Iterable[Place], counters: Iterable[Var], counts: Iterable[Expr | None]
    ) -> set[Var | None]:
        """The counters of the axes whose part differs from iteration to iteration; None: an index without a counter."""
        found = {p.counter for p in places if self.varies(p.offset)}
        return found | {c for c, n in zip(counters, counts) if n is not None and self.varies(n)}

    def count(self, stop: Expr) -> Expr | None:
        """The form of the number of iterations of an inner loop from zero, or of a size; possibly negative."""
        found = self.form(stop)
        return found.args[0] if isinstance(found, Op) and found.name == "max" and found.args[1] == ZERO else found


def _nodes(form: Expr | None) -> Iterable[Any]:
    return () if form is None else ir.walk(form)


def at(to: Builder, form: Expr, counter: Expr | None = None, of: Var | None = None) -> Expr:
    """Write the value of a form, for an iteration whose counter is given."""
    match form:
        case Var():
            return counter if form == of and counter is not None else form
        case Op(name=name, args=args):
            return to.value(Op(name, tuple(at(to, a, counter, of) for a in args), form.type))
        case ir.Load(array=array, index=index):
            return to.load(array, tuple(at(to, i, counter, of) for i in index))
    return form


@dataclass(frozen=True)
class Place:
    """One index of an access in a nest: a counter of the nest (or none) and the form of what is added to it."""

    counter: Var | None
    offset: Expr


@dataclass(frozen=True)
class Window:
    """``count`` elements from ``low``, as forms; the iterations of the loop have different ones."""

    low: Expr
    count: Expr


@dataclass(frozen=True)
class Nest:
    """Two loops with one access in the inner one: the loops, and the statements before the access."""

    loops: tuple[Loop, Loop]
    before: tuple[Stmt, ...]
    last: Stmt

    def defined(self, e: Expr) -> Expr | None:
        """The expression that a name in the nest stands for."""
        return next((s.value for s in self.before if isinstance(s, ir.Assign) and s.target == e), None)

    def place(self, index: Expr, iteration: Iteration) -> Place | None:
        counters = tuple(loop.var for loop in self.loops)
        if isinstance(index, Var) and index in counters:
            return Place(index, ZERO)
        form = iteration.form(index)
        if form is not None:
            return Place(None, form)
        match self.defined(index):
            case Op(name="add", args=(a, b)):
                for counter, other in ((a, b), (b, a)):
                    offset = iteration.form(other)
                    if counter in counters and offset is not None and isinstance(counter, Var):
                        return Place(counter, offset)
            case Op(name="sub", args=(Var() as a, b)) if a in counters and (offset := iteration.form(b)) is not None:
                return Place(a, Op("neg", (offset,), INT))
        return None

    def places(self, index: Iterable[Expr], iteration: Iteration) -> tuple[Place, ...] | None:
        """The places of an access in which each counter stands once; None for others."""
        found = [self.place(i, iteration) for i in index]
        if any(p is None for p in found):
            return None
        places = tuple(p for p in found if p is not None)
        counters = [p.counter for p in places if p.counter is not None]
        return places if len(set(counters)) == len(counters) else None

    def count(self, counter: Var, iteration: Iteration) -> Expr | None:
        return iteration.count(next(loop.stop for loop in self.loops if loop.var == counter))


def nest(s: Stmt) -> Nest | None:
    """The two plain loops that a statement consists of; None if it is another statement."""
    if not (isinstance(s, Loop) and s.body and isinstance(s.body[-1], Loop) and s.body[-1].body):
        return None
    inner = s.body[-1]
    before = (*s.body[:-1], *inner.body[:-1])
    for loop in (s, inner):
        if loop.start != ZERO or loop.step != 1 or loop.carried or loop.condition is not None or loop.parallel:
            return None
    plain = all(isinstance(t, ir.Assign | Branch) and all(isinstance(u, ir.Assign) for u in _inside(t)) for t in before)
    return Nest((s, inner), before, inner.body[-1]) if plain else None


def _inside(s: Stmt) -> list[Stmt]:
    return [t for block in blocks(s) for t in every(block)]


class Windowed:
    """What has a window along one of its two axes, if the iterations use different parts."""

    places: tuple[Place, ...]
    counters: tuple[Var, ...]
    counts: tuple[Expr, Expr]
    axis: int | None

    @property
    def window(self) -> Window | None:
        if self.axis is None:
            return None
        low = next(p.offset for p in self.places if p.counter == self.counters[self.axis])
        return Window(low, self.counts[self.axis])


@dataclass(frozen=True)
class Matrix(Windowed):
    """A matrix of which an iteration has a copy: its elements are those of ``source`` at ``places``.

    ``counters`` are those of its axes, ``counts`` their forms, and ``axis`` is the one of the window (None: the same
    matrix in all iterations).  Without ``places`` it is ``source`` itself.
    """

    name: str
    source: Var
    places: tuple[Place, ...]
    counters: tuple[Var, ...]
    counts: tuple[Expr, Expr]
    axis: int | None


def matrix(array: Var, iteration: Iteration) -> Matrix | None:
    """A matrix that is the same in all iterations, or a copy of a window of an array that is."""
    if iteration.is_steady(array):
        sizes = Size(array, 0, INT), Size(array, 1, INT)
        return Matrix(array.name, array, (), (), sizes, None)
    allocated = iteration.local.get(array.name)
    writers = [s for s in iteration.loop.body if any(written(t) == array for t in every((s,)))]
    if allocated is None or allocated.fill is not None or len(writers) != 2:
        return None
    filled = nest(writers[1])
    if filled is None or not isinstance(store := filled.last, ir.Store) or store.array != array:
        return None
    counters = tuple(i for i in store.index if isinstance(i, Var))
    loaded = filled.defined(store.value)
    if not isinstance(loaded, ir.Load) or not iteration.is_steady(loaded.array) or loaded.type != array.type.dtype:
        return None
    if {*counters} != {loop.var for loop in filled.loops} or len(counters) != 2:
        return None
    places = filled.places(loaded.index, iteration)
    counts = [iteration.count(size) for size in allocated.shape]
    if places is None or counts != [filled.count(c, iteration) for c in counters] or None in counts:
        return None
    if {p.counter for p in places} - {None} != {*counters}:
        return None
    varying = iteration.varying(places, counters, counts)
    if len(varying) > 1 or None in varying:
        return None
    axis = next((k for k, c in enumerate(counters) if c in varying), None)
    return Matrix(array.name, loaded.array, places, counters, (counts[0], counts[1]), axis)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Product:
    """``target = matrix @ vector`` over axis ``over`` of the matrix, by a statement at ``position`` of the body."""

    position: int
    target: Var
    matrix: Matrix
    vector: Var
    over: int


def product(position: int, iteration: Iteration) -> Product | None:
    """The product of a matrix with a vector that a statement makes."""
    s = iteration.loop.body[position]
    if isinstance(s, ir.Fill) and s.function == "dot":
        target, over = s.target, 1 if s.arguments[0].type.ndim == 2 else 0
        factors = s.arguments if over else s.arguments[::-1]
        if factors[0].type.ndim != 2 or factors[1].type.ndim != 1:
            return None
    elif (sums := nest(s)) is not None and isinstance(sums.last, ir.Accumulate):
        found, target, over = _factors(sums, sums.last, iteration), sums.last.array, 0
        if found is None or not _is_cleared(target, position, iteration):
            return None
        factors = found
    else:
        return None
    if not isinstance(target.type.dtype, types.Float) or any(f.type.dtype != target.type.dtype for f in factors):
        return None
    whole = matrix(factors[0], iteration)
    known = target.name in iteration.local and factors[1].name not in iteration.changed - {*iteration.local}
    return Product(position, target, whole, factors[1], over) if whole is not None and known else None


def _factors(sums: Nest, s: ir.Accumulate, iteration: Iteration) -> tuple[Var, Var] | None:
    """The matrix and the vector of ``target[k] += matrix[i, k] * vector[i]``."""
    i, k = (loop.var for loop in sums.loops)
    value = sums.defined(s.value)
    if s.index != (k,) or s.atomic or not isinstance(value, Op) or value.name != "mul":
        return None
    match [sums.defined(a) for a in value.args]:
        case [ir.Load(array=a, index=(b, c)), ir.Load(array=v, index=(d,))] if (b, c, d) == (i, k, i):
            vector = v
        case [ir.Load(array=v, index=(d,)), ir.Load(array=a, index=(b, c))] if (b, c, d) == (i, k, i):
            vector = v
        case _:
            return None
    counts = [iteration.count(loop.stop) for loop in sums.loops]
    sizes = [iteration.count(Size(v, 0, INT)) for v in (vector, s.array)]
    return (a, vector) if counts == sizes and None not in counts and len(sums.before) == 3 else None


def _is_cleared(target: Var, position: int, iteration: Iteration) -> bool:
    """Return whether an array is new and zero before a statement, and nothing else writes it."""
    allocated = iteration.local.get(target.name)
    writers = [k for k, s in enumerate(iteration.loop.body) if any(written(t) == target for t in every((s,)))]
    zero = allocated is not None and isinstance(allocated.fill, Const) and allocated.fill.value == 0
    return zero and len(writers) == 2 and writers[1] == position


@dataclass(frozen=True)
class Outer(Windowed):
    """``array[places] += f * g`` for two counters: an update by an outer product, at ``position`` of the body.

    ``factors`` are loaded, in the order of the places of ``counters``; ``axis`` is the number of the counter of the
    window, if the iterations have different ones.
    """

    position: int
    array: Var
    places: tuple[Place, ...]
    counters: tuple[Var, Var]
    counts: tuple[Expr, Expr]
    factors: tuple[ir.Load, ir.Load]
    axis: int | None


def outer(position: int, iteration: Iteration) -> Outer | None:
    """The update of an array by an outer product that a statement makes."""
    found = nest(iteration.loop.body[position])
    if found is None or not isinstance(s := found.last, ir.Accumulate) or s.atomic or s.array.name in iteration.local:
        return None
    value, places = found.defined(s.value), found.places(s.index, iteration)
    if not isinstance(value, Op) or value.name != "mul" or not isinstance(s.array.type.dtype, types.Float):
        return None
    if places is None or any(a.type != s.array.type.dtype for a in value.args):
        return None
    counters = tuple(p.counter for p in places if p.counter is not None)
    loads = {}
    for a in value.args:
        load = found.defined(a)
        if not isinstance(load, ir.Load) or len(load.index) != 1 or load.index[0] not in counters:
            return None
        loads[load.index[0]] = load
    counts = [found.count(c, iteration) for c in counters]
    if len(counters) != 2 or len(loads) != 2 or None in counts:
        return None
    varying = iteration.varying(places, counters, counts)
    if len(varying) > 1 or None in varying:
        return None
    axis = next((k for k, c in enumerate(counters) if c in varying), None)
    return Outer(
        position,
        s.array,
        places,
        (counters[0], counters[1]),
        (counts[0], counts[1]),  # type: ignore[arg-type]
        (loads[counters[0]], loads[counters[1]]),
        axis,
    )

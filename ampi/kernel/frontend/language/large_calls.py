"""Calls of large functions, which are compiled and differentiated separately (see ``ampi.kernel.ir.calls``).

Inlining pays for small functions.  A large one that is called in several places would be differentiated and compiled
for each of them, within every caller.  So a call becomes an operation on whole arrays if the function

* takes numbers and arrays, and returns numbers, or arrays that it was given;
* writes only to arrays whose elements it takes by constant indices (a few, which are copied there and back);
* draws no random numbers, raises no exceptions itself, and has no parallel loops.

A later step finds out whether its other arrays stay unchanged until their derivatives are computed.  If not, the kernel
is parsed again, and all calls are inlined.
"""

from __future__ import annotations

import ast
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.base import outside
from ampi.kernel.ir import calls, inference
from ampi.kernel.ir.index_algebra import minimum
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.ir.rewrite import substitute

LARGE = 300
"""The number of operations from which a function counts as large: the call itself costs a fraction of a microsecond."""
PLACES = 2
"""The number of calls in one function from which a large callee is compiled separately."""
ELEMENTS = 64
"""The largest number of elements that are copied to a call and back."""

Index = tuple[ir.Expr, ...]


def is_large(builder: Any, node: ast.Call, function: Any, callee: ir.Function) -> bool:
    """Return whether a function of the program is to be compiled separately."""
    if (function.__module__ or "").startswith("ampi.kernel."):  # one of NumPy's functions, written as a kernel
        return False
    operations = (n for n in ir.walk(callee.body) if isinstance(n, (ir.Op, ir.Load, ir.Store)))
    if next(itertools.islice(operations, LARGE - 1, None), None) is None:
        return False
    wanted = ast.dump(node.func)
    places = sum(isinstance(n, ast.Call) and ast.dump(n.func) == wanted for n in ast.walk(builder.definition))
    return places >= PLACES


def call(builder: Any, callee: ir.Function, leaves: list[ir.Expr], derivatives: Any) -> list[ir.Expr] | None:
    """The leaves of the result of a call that is compiled separately; None if it cannot be."""
    arrays = [v for v in leaves if inference.is_array(v.type)]
    if any(not isinstance(v, ir.Var) or v.name in builder.lists | builder.list_arguments for v in arrays):
        return None
    prepared = _prepared(callee, derivatives)
    plan = None if prepared is None else plan_of(prepared)
    if plan is None:
        return None
    given = dict(zip((a.name for a in callee.arguments), leaves, strict=True))
    roots = [builder.roots.get(v.name, v.name) for v in arrays if isinstance(v, ir.Var)]
    if plan.written and len(set(roots)) < len(roots):
        return None
    return _Call(builder, prepared, plan, given, derivatives).emitted()


def _prepared(callee: ir.Function, derivatives: Any) -> ir.Function | None:
    """The function in terms of elements of its arguments; None if it has to be inlined."""
    if callee.drawn or callee.generators or callee.has_effects or not _is_plain(callee.result):
        return None
    known = callee.__dict__
    if "_prepared" not in known:  # nodes are immutable
        known["_prepared"] = derivatives.prepared(callee)
    found: ir.Function | None = known["_prepared"]
    return found


@dataclass(frozen=True)
class Plan:
    """How the arguments and results of a function are packed.

    ``blocks`` are the arrays of which a few elements are copied, with the sizes of the copies, ``written`` those among
    them that change; ``whole`` are the other arrays.
    """

    floats: tuple[ir.Argument, ...]
    integers: tuple[ir.Argument, ...]
    whole: tuple[ir.Argument, ...]
    blocks: dict[str, tuple[int, ...]]
    written: frozenset[str]
    results: tuple[ir.Expr, ...]


def plan_of(callee: ir.Function) -> Plan | None:
    """The plan of a function; None if it has to be inlined."""
    refused = (ir.Raise, ir.Launch, ir.Barrier)
    if any(isinstance(n, refused) or (isinstance(n, ir.For) and n.parallel) for n in ir.walk(callee.body)):
        return None
    results = callee.body[-1].values if callee.body and isinstance(callee.body[-1], ir.Return) else ()
    numbers = [a for a in callee.arguments if not inference.is_array(a.type)]
    arrays = {a.name: a for a in callee.arguments if inference.is_array(a.type)}
    written = _written(callee, arrays)
    blocks = {name: size for name in arrays if (size := _block(callee, arrays[name])) is not None}
    returned = {v.name for v in results if isinstance(v, ir.Var) and inference.is_array(v.type)}
    values = [v.type for v in results if not inference.is_array(v.type)]
    fits = (
        all(_is_packed(a.type) for a in numbers)
        and all(_is_packed(t) for t in values)
        and all(isinstance(a.type.dtype, types.Integer) or a.type.dtype == types.float64 for a in arrays.values())
        and all(arrays[name].type.dtype == types.float64 for name in written & set(arrays))
        and written <= set(blocks)
        and returned <= set(arrays)
        and (values or written)
    )
    if not fits:
        return None
    floats = tuple(a for a in numbers if a.type == types.float64)
    return Plan(
        floats,
        tuple(a for a in numbers if a not in floats),
        tuple(a for name, a in arrays.items() if name not in blocks),
        blocks,
        frozenset(written),
        results,
    )


def _is_plain(structure: Any) -> bool:
    """Return whether a result is a number, an array, None or a tuple of these."""
    if isinstance(structure, tuple):
        return (structure[1] is None or not structure[1].__module__.startswith("ampi.")) and all(
            map(_is_plain, structure[2])
        )
    return True


def _is_packed(type_: types.Type) -> bool:
    """Return whether one or two float64 numbers hold every number of this type exactly."""
    plain = inference.plain(type_)
    signed = isinstance(plain, types.Integer) and plain != types.uint64
    return plain == types.float64 or isinstance(plain, types.Boolean) or signed


def _written(callee: ir.Function, arrays: dict[str, ir.Argument]) -> set[str]:
    """The arguments that a function writes."""
    found = set()
    for n in ir.walk(callee.body):
        if isinstance(n, (ir.Store, ir.Accumulate)):
            found.add(n.array.name)
        elif isinstance(n, (ir.Grow, ir.Fill)):
            found.add(n.target.name)
    return found & set(arrays)


def _block(callee: ir.Function, array: ir.Argument) -> tuple[int, ...] | None:
    """The sizes of the part of an array that a function touches, if all indices are constant; otherwise None."""
    indices: list[Index] = []
    mentioned = touched = 0
    for n in ir.walk(callee.body):
        mentioned += isinstance(n, ir.Var) and n.name == array.name
        if isinstance(n, (ir.Load, ir.Store, ir.Accumulate)) and n.array.name == array.name:
            touched += 1
            indices.append(n.index)
        elif isinstance(n, ir.For) and _limit(n.stop) is not None:
            touched += sum(isinstance(v, ir.Var) and v.name == array.name for v in ir.walk(n.stop))
    returned = callee.body[-1].values if callee.body and isinstance(callee.body[-1], ir.Return) else ()
    touched += sum(isinstance(v, ir.Var) and v.name == array.name for v in returned)
    if mentioned != touched or array.type.dtype != types.float64:
        return None
    counters = {n.var.name: _largest(n) for n in ir.walk(callee.body) if isinstance(n, ir.For)}
    assigned = {n.target.name for n in ir.walk(callee.body) if isinstance(n, ir.Assign)}
    sizes = [1] * array.type.ndim
    for index in indices:
        for axis, i in enumerate(index):
            largest = i.value if isinstance(i, ir.Const) else None
            if isinstance(i, ir.Var) and i.name not in assigned:
                largest = counters.get(i.name)
            if largest is None or largest < 0:
                return None
            sizes[axis] = max(sizes[axis], int(largest) + 1)
    return tuple(sizes) if math.prod(sizes) <= ELEMENTS else None


def _largest(loop: ir.For) -> int | None:
    """The largest value of a counter with constant bounds; None if it may be negative or is unknown."""
    limit = _limit(loop.stop)
    bounds = (loop.start, loop.stop if limit is None else limit, loop.step)
    if not all(isinstance(b, ir.Const) for b in bounds):
        return None
    values = range(*(b.value for b in bounds))  # type: ignore[attr-defined]
    return None if not values or min(values) < 0 else max(values)


def _limit(stop: ir.Expr) -> ir.Const | None:
    """The constant in ``min(constant, array.shape[axis])``, the bound of a loop that copies the elements of a call."""
    if isinstance(stop, ir.Op) and stop.name == "min" and isinstance(stop.args[1], ir.Size):
        return stop.args[0] if isinstance(stop.args[0], ir.Const) else None
    return None


class _Call:
    """A call of a function with a plan."""

    def __init__(self, builder: Any, callee: ir.Function, plan: Plan, given: dict[str, Any], derivatives: Any) -> None:
        self.builder, self.callee, self.plan, self.given = builder, callee, plan, given
        self.derivatives = derivatives
        self.own = itertools.count()

    def emitted(self) -> list[ir.Expr] | None:
        """Emit the call; return the leaves of its result."""
        builder, plan = self.builder, self.plan
        name = calls.register(self.function(), self.derivatives)
        if name is None:
            return None
        packed = [self.vector("numbers", types.float64, [self.given[a.name] for a in plan.floats])]
        packed += [self.vector("integers", types.int64, [self.given[a.name] for a in plan.integers])]
        arguments = [v for v in packed if v is not None]
        arguments += [array_values.copied(builder, self.given[a.name], f"{a.name}_given") for a in plan.whole]
        arguments += [
            array_values.copied(builder, outside.constant_array(builder, n, array), f"{n}_given")
            for n, array in self.callee.constants
        ]
        arguments += [self.block(name, sizes) for name, sizes in plan.blocks.items()]
        count = sum(_slots(v.type) for v in plan.results if not inference.is_array(v.type))
        total = count + sum(math.prod(plan.blocks[n]) for n in sorted(plan.written))
        result = array_values.new_array(builder, f"{self.callee.name}_result", types.float64, (_integer(total),))
        builder.emit(ir.Fill(result, name, tuple(arguments)))
        found: list[ir.Expr] = []
        at = 0
        for value in plan.results:
            if inference.is_array(value.type):
                found.append(self.given[value.name])
                continue
            found.append(builder.temporary(self.callee.name, _unpacked(result, at, value.type)))
            at += _slots(value.type)
        for n in sorted(plan.written):
            self.write_back(n, result, at)
            at += math.prod(plan.blocks[n])
        return found

    def vector(self, word: str, dtype: types.Type, values: list[ir.Expr]) -> ir.Var | None:
        """A new vector of numbers."""
        if not values:
            return None
        target = array_values.new_array(self.builder, word, dtype, (_integer(len(values)),))
        for k, value in enumerate(values):
            self.builder.emit(ir.Store(target, (_integer(k),), cast(value, dtype)))
        return target

    def block(self, name: str, sizes: tuple[int, ...]) -> ir.Var:
        """A copy of the elements of an array that the function touches."""
        array = self.given[name]
        zero = ir.Const(0.0, types.float64)
        target = array_values.new_array(self.builder, f"{name}_given", types.float64, tuple(map(_integer, sizes)), zero)
        self.each(array, sizes, lambda index: ir.Store(target, index, ir.Load(array, index, types.float64)))
        return target

    def write_back(self, name: str, result: ir.Var, first: int) -> None:
        array, sizes = self.given[name], self.plan.blocks[name]

        def statement(index: Index) -> ir.Stmt:
            place = _flat(index, sizes, first)
            return ir.Store(array, index, ir.Load(result, (place,), types.float64))

        self.each(array, sizes, statement)

    def each(self, array: ir.Var, sizes: tuple[int, ...], make: Any) -> None:
        """Emit a statement for each of the first elements of an array, at most ``sizes`` of them along each axis."""
        builder = self.builder
        shape = array_values.shape_of(builder, array)
        stops = [minimum(_integer(n), size) for n, size in zip(sizes, shape, strict=True)]
        builder.emit(_nest(stops, lambda hint: builder.names.fresh(hint), make, builder.line))

    # ------------------------------------------------------------------------------------------- the function

    def function(self) -> ir.Function:
        """The function that takes and returns arrays."""
        plan, callee = self.plan, self.callee
        body: list[ir.Stmt] = []
        arguments: list[ir.Argument] = []
        names: dict[str, ir.Expr] = {}
        for group, dtype, word in (
            (plan.floats, types.float64, "numbers"),
            (plan.integers, types.int64, "integers"),
        ):
            if group:
                vector = ir.Var(self.fresh(word), types.Array(dtype, 1, "C"))
                arguments.append(ir.Argument(vector.name, vector.type, (vector.name,)))
            for k, a in enumerate(group):
                value = cast(ir.Load(vector, (_integer(k),), dtype), inference.plain(a.type))
                body.append(ir.Assign(ir.Var(a.name, inference.plain(a.type)), value, line=callee.first_line))
        whole = [(a.name, a.type) for a in plan.whole]
        whole += [(n, types.Array(_element(array), array.ndim, "C")) for n, array in callee.constants]
        for name, type_ in whole:  # the call passes the array itself if it does not change
            arguments.append(ir.Argument(name, type_, (name,)))
        for name, sizes in plan.blocks.items():
            type_ = types.Array(types.float64, len(sizes), "C")
            there = ir.Var(self.fresh(f"{name}_given"), type_)
            arguments.append(ir.Argument(there.name, type_, (there.name,)))
            own = names[name] = ir.Var(name, type_)
            body.append(ir.Alloc(own, tuple(map(_integer, sizes)), None))
            store = lambda i, own=own, there=there: ir.Store(own, i, ir.Load(there, i, types.float64))
            body.append(_nest([_integer(n) for n in sizes], self.fresh, store, callee.first_line))
        last = callee.body[-1] if callee.body and isinstance(callee.body[-1], ir.Return) else None
        body += [substitute(s, names) for s in (callee.body if last is None else callee.body[:-1])]
        body += self.packed(names)
        return ir.Function(
            name=callee.name,
            arguments=tuple(arguments),
            body=tuple(body),
            filename=callee.filename,
            first_line=callee.first_line,
            result="array",
        )

    def packed(self, names: dict[str, ir.Expr]) -> Iterator[ir.Stmt]:
        """The statements that write the results of the function into one array."""
        plan = self.plan
        count = sum(_slots(v.type) for v in plan.results if not inference.is_array(v.type))
        total = count + sum(math.prod(plan.blocks[n]) for n in plan.written)
        result = ir.Var(self.fresh("result"), types.Array(types.float64, 1, "C"))
        yield ir.Alloc(result, (_integer(total),), None)
        at = 0
        for value in plan.results:
            if inference.is_array(value.type):
                continue
            for part in _parts(value):
                yield ir.Store(result, (_integer(at),), cast(part, types.float64))
                at += 1
        for n in sorted(plan.written):
            sizes, array = plan.blocks[n], names[n]
            store = lambda i, a=array, sizes=sizes, at=at: ir.Store(
                result, (_flat(i, sizes, at),), ir.Load(a, i, types.float64)
            )
            yield _nest([_integer(k) for k in sizes], self.fresh, store, self.callee.first_line)
            at += math.prod(sizes)
        yield ir.Return((result,), line=self.callee.first_line)

    def fresh(self, hint: str) -> str:
        return f"{hint}@call{next(self.own)}"


def _element(array: Any) -> types.Type:
    """The type of the elements of a constant array."""
    return numpy_support.from_dtype(array.dtype)


def _integer(n: int) -> ir.Const:
    return ir.Const(n, types.intp)


def _nest(stops: list[ir.Expr], fresh: Any, make: Any, line: int) -> ir.Stmt:
    """Loops over all indices below ``stops``."""
    index = tuple(ir.Var(fresh("i"), types.intp) for _ in stops)
    statement = replace(make(index), line=line)
    for var, stop in reversed(list(zip(index, stops, strict=True))):
        statement = ir.For(var, _integer(0), stop, _integer(1), (statement,), line=line)
    return statement


def _flat(index: Index, sizes: tuple[int, ...], first: int) -> ir.Expr:
    """The place of an element in a vector in which the array begins at ``first``."""
    place: ir.Expr = _integer(first)
    factor = math.prod(sizes)
    for i, n in zip(index, sizes, strict=True):
        factor //= n
        place = ir.Op("add", (place, ir.Op("mul", (i, _integer(factor)), types.intp)), types.intp)
    return place


def _slots(type_: types.Type) -> int:
    """The number of elements for a number: two for an integer, which float64 may not hold."""
    return 2 if isinstance(inference.plain(type_), types.Integer) else 1


def _parts(value: ir.Expr) -> list[ir.Expr]:
    """A number as values that float64 holds exactly."""
    if _slots(value.type) == 1:
        return [value]
    whole = cast(value, types.int64)
    operation = lambda name, n: ir.Op(name, (whole, ir.Const(n, types.int64)), types.int64)
    return [operation("rshift", 32), operation("bitand", 2**32 - 1)]


def _unpacked(result: ir.Var, at: int, type_: types.Type) -> ir.Expr:
    """The number whose parts begin at a place of the result."""
    load = lambda k: ir.Load(result, (_integer(k),), types.float64)
    plain = inference.plain(type_)
    if plain == types.float64:
        return load(at)
    if isinstance(plain, types.Boolean):
        return ir.Op("ne", (load(at), ir.Const(0.0, types.float64)), types.boolean)
    high = ir.Op("lshift", (cast(load(at), types.int64), ir.Const(32, types.int64)), types.int64)
    whole = ir.Op("bitor", (high, cast(load(at + 1), types.int64)), types.int64)
    return cast(whole, plain)

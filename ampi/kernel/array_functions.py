"""NumPy's functions and methods of whole arrays, as far as Numba has them: sums, extremes, products, shapes.

One function here says what one of NumPy's does, in terms of loops, views and element-by-element expressions (see
``array_values``), so that its derivatives follow.  The first two arguments are the parser and the call; the values of
the call's arguments come next, under NumPy's names for them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import array_values, extents, inference, ir
from ampi.kernel.array_values import Lazy, axes_for, computed, element_at, is_array, shape_of
from ampi.kernel.extents import INT, ONE, ZERO

Handler = Callable[..., Any]
FUNCTIONS: dict[Any, Handler] = {}
FIFTY = ir.Const(50, INT)
METHODS: dict[str, Handler] = {}


def rule(*functions: Any, method: str | None = None) -> Callable[[Handler], Handler]:
    """Register what a function of NumPy, and a method of arrays, does."""

    def register(handler: Handler) -> Handler:
        FUNCTIONS.update(dict.fromkeys(functions, handler))
        if method is not None:
            METHODS[method] = handler
        return handler

    return register


def lookup(function: Any) -> Handler | None:
    try:
        return FUNCTIONS.get(function)
    except TypeError:  # not hashable
        return None


def is_of_arrays(handler: Handler, values: list[Any]) -> bool:
    """Whether a call is one of arrays, and not of numbers."""
    return handler in MAKERS or any(map(is_array, values)) or (handler is concatenate and bool(values))


def call(builder: Any, node: ast.Call, handler: Handler, values: list[Any], keywords: dict[str, Any]) -> Any:
    try:
        return handler(builder, node, *values, **keywords)
    except TypeError as problem:
        if problem.__traceback__ is not None and problem.__traceback__.tb_next is None:
            builder.fail(node, f"{ast.unparse(node.func)}: {problem}", "use the arguments that Numba knows")
        raise


# --------------------------------------------------------------------------------------------------- sums and extremes


def fold(builder: Any, value: Any, first: ir.Expr, combine: Callable[[ir.Expr, ir.Expr], ir.Expr], hint: str) -> ir.Var:
    """Take all elements of an array together into one number, from ``first`` on."""
    total = ir.Var(builder.names.fresh(hint), first.type)
    builder.emit(ir.Assign(total, first))
    axes, shape = axes_for(builder, value.type.ndim), shape_of(builder, value)
    new = builder.cast(combine(total, element_at(value, axes)), total.type)
    emit_loops(builder, axes, shape, ir.Assign(total, new, line=builder.line))
    return total


def emit_loops(builder: Any, axes: tuple[ir.Var, ...], shape: tuple[ir.Expr, ...], body: ir.Stmt) -> None:
    for axis, size in reversed(list(zip(axes, shape, strict=True))):
        body = ir.For(axis, ZERO, size, ONE, (body,), whole=axis is axes[0], line=builder.line)
    builder.emit(body)


def number(value: int, type_: types.Type) -> ir.Const:
    if isinstance(type_, types.Complex):
        return ir.Const(complex(value), type_)
    return ir.Const(float(value) if isinstance(type_, types.Float) else int(value), type_)


def binary(builder: Any, node: ast.AST, op: ast.operator) -> Callable[[ir.Expr, ir.Expr], ir.Expr]:
    return lambda x, y: builder.binary(node, op, x, y)


def array(builder: Any, node: ast.AST, value: Any) -> Any:
    """The argument of a function that takes an array."""
    if not is_array(value):
        builder.fail(node, f"{ast.unparse(node.func)} takes an array here")
    return value


def axis_of(builder: Any, node: ast.AST, a: Any, axis: Any) -> int:
    if not (isinstance(axis, ir.Const) and -a.type.ndim <= axis.value < a.type.ndim):
        builder.fail(node, "the axis must be a constant, and one of the array's", "write axis=0")
    return axis.value % a.type.ndim


def is_none(value: Any) -> bool:
    return value is None or getattr(value, "value", value) is None


@rule(np.sum, method="sum")
def sum_(builder: Any, node: ast.Call, a: Any, axis: Any = None) -> Any:
    type_ = array_values.result_type(builder, node, np.sum, array(builder, node, a))
    add = binary(builder, node, ast.Add())
    if is_none(axis):
        return fold(builder, a, number(0, type_), add, "total")
    along = axis_of(builder, node, a, axis)
    shape, axes = shape_of(builder, a), axes_for(builder, a.type.ndim)
    if len(shape) == 1:
        return fold(builder, a, number(0, type_), add, "total")
    kept = [k for k in range(len(shape)) if k != along]
    target = array_values.new_array(builder, "totals", type_, tuple(shape[k] for k in kept), number(0, type_))
    index = tuple(axes[k] for k in kept)
    builder.emit(ir.Elementwise(target, axes, shape, index, builder.cast(element_at(a, axes), type_), accumulate=True))
    return target


@rule(np.prod, method="prod")
def prod(builder: Any, node: ast.Call, a: Any) -> Any:
    type_ = array_values.result_type(builder, node, np.prod, array(builder, node, a))
    return fold(builder, a, number(1, type_), binary(builder, node, ast.Mult()), "product")


@rule(np.mean, method="mean")
def mean(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    type_ = array_values.result_type(builder, node, np.mean, array(builder, node, a))
    total = fold(builder, a, number(0, type_), binary(builder, node, ast.Add()), "total")
    count = builder.cast(extents.product(shape_of(builder, a)), inference.real(type_))
    return builder.cast(builder.binary(node, ast.Div(), total, count), type_)


@rule(np.var, method="var")
def var(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    type_ = array_values.result_type(builder, node, np.var, array(builder, node, a))
    middle = builder.temporary("middle", mean(builder, node, a))

    def add(total: ir.Expr, x: ir.Expr) -> ir.Expr:
        difference = builder.binary(node, ast.Sub(), x, middle)
        return builder.binary(node, ast.Add(), total, squared(builder, node, difference))

    total = fold(builder, a, number(0, type_), add, "total")
    count = builder.cast(extents.product(shape_of(builder, a)), type_)
    return builder.binary(node, ast.Div(), total, count)


@rule(np.std, method="std")
def std(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return builder.operation(node, "sqrt", np.sqrt, var(builder, node, a))


def squared(builder: Any, node: ast.AST, x: ir.Expr) -> ir.Expr:
    """The square of a number's magnitude."""
    if not isinstance(x.type, types.Complex):
        return builder.binary(node, ast.Mult(), x, x)
    parts = (builder.part(node, name, x) for name in ("real", "imag"))
    return builder.binary(node, ast.Add(), *(builder.binary(node, ast.Mult(), p, p) for p in parts))


@rule(np.linalg.norm)
def norm(builder: Any, node: ast.Call, x: Any) -> ir.Expr:
    type_ = array_values.result_type(builder, node, np.linalg.norm, array(builder, node, x))
    add = lambda total, e: builder.binary(node, ast.Add(), total, squared(builder, node, e))
    total = fold(builder, x, number(0, type_), add, "total")
    return builder.cast(builder.operation(node, "sqrt", np.sqrt, total), type_)


def extreme(builder: Any, node: ast.Call, a: Any, name: str, function: Any) -> ir.Var:
    first = element_at(array(builder, node, a), (ZERO,) * a.type.ndim)
    if isinstance(first.type, types.Complex):
        builder.fail(node, f"np.{name} of complex numbers has no derivative", "use the real parts or magnitudes")
    return fold(builder, a, first, lambda x, y: builder.operation(node, name, function, x, y), f"{name}imum")


@rule(np.min, np.amin, method="min")
def min_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return extreme(builder, node, a, "min", min)


@rule(np.max, np.amax, method="max")
def max_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return extreme(builder, node, a, "max", max)


def place_of(builder: Any, node: ast.Call, a: Any, op: ast.cmpop) -> ir.Var:
    """The number of the first element that is the smallest or largest."""
    a = computed(builder, array(builder, node, a), "values")
    if a.type.ndim != 1:
        builder.fail(node, f"{ast.unparse(node.func)} of an array of several dimensions", "take a row, or loop")
    best = ir.Var(builder.names.fresh("best"), INT)
    builder.emit(ir.Assign(best, ZERO))
    (axis,) = axes_for(builder, 1)
    better = builder.compare(node, op, element_at(a, (axis,)), element_at(a, (best,)))
    choose = ir.If(better, (ir.Assign(best, axis, line=builder.line),), line=builder.line)
    emit_loops(builder, (axis,), shape_of(builder, a), choose)
    return best


@rule(np.argmin, method="argmin")
def argmin(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return place_of(builder, node, a, ast.Lt())


@rule(np.argmax, method="argmax")
def argmax(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return place_of(builder, node, a, ast.Gt())


@rule(np.any, method="any")
def any_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    either = lambda x, y: ir.Op("or", (x, builder.truth(node, y)), types.boolean)
    return fold(builder, array(builder, node, a), ir.Const(False, types.boolean), either, "any")


@rule(np.all, method="all")
def all_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    both = lambda x, y: ir.Op("and", (x, builder.truth(node, y)), types.boolean)
    return fold(builder, array(builder, node, a), ir.Const(True, types.boolean), both, "all")


@rule(np.count_nonzero)
def count_nonzero(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    def more(count: ir.Expr, x: ir.Expr) -> ir.Expr:
        one = ir.Op("select", (builder.truth(node, x), ONE, ZERO), INT)
        return ir.Op("add", (count, one), INT)

    return fold(builder, array(builder, node, a), ZERO, more, "count")


def running(builder: Any, node: ast.Call, a: Any, function: Any, op: ast.operator, first: int) -> ir.Var:
    """The sums or products of the first elements."""
    if array(builder, node, a).type.ndim != 1:
        builder.fail(node, f"{ast.unparse(node.func)} of an array of several dimensions", "take rows, or loop")
    type_ = array_values.result_type(builder, node, function, a).dtype
    shape, axes = shape_of(builder, a), axes_for(builder, 1)
    target = array_values.new_array(builder, "running", type_, shape)
    total = ir.Var(builder.names.fresh("total"), type_)
    builder.emit(ir.Assign(total, number(first, type_)))
    new = builder.cast(builder.binary(node, op, total, element_at(a, axes)), type_)
    line = builder.line
    body = (ir.Assign(total, new, line=line), ir.Store(target, axes, total, line=line))
    builder.emit(ir.For(axes[0], ZERO, shape[0], ONE, body, line=line))
    return target


@rule(np.cumsum, method="cumsum")
def cumsum(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return running(builder, node, a, np.cumsum, ast.Add(), 0)


@rule(np.cumprod, method="cumprod")
def cumprod(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return running(builder, node, a, np.cumprod, ast.Mult(), 1)


@rule(np.trace)
def trace(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    type_ = array_values.result_type(builder, node, np.trace, array(builder, node, a))
    (axis,) = axes_for(builder, 1)
    rows, columns = shape_of(builder, a)
    diagonal = Lazy(types.Array(type_, 1, "C"), (axis,), (extents.minimum(rows, columns),), element_at(a, (axis, axis)))
    return fold(builder, diagonal, number(0, type_), binary(builder, node, ast.Add()), "total")


# --------------------------------------------------------------------------------------------------- products


def product(builder: Any, node: ast.AST, function: Any, a: Any, b: Any) -> Any:
    """``np.dot(a, b)`` and ``a @ b`` of vectors and matrices."""
    for value in (a, b):
        if not is_array(value):
            builder.fail(node, "a product of arrays needs two arrays")
    type_ = array_values.result_type(builder, node, function, a, b)
    # each element is used many times
    a, b = (computed(builder, v, "factor") if max(a.type.ndim, b.type.ndim) > 1 else v for v in (a, b))
    inner = shape_of(builder, a)[-1]
    multiply = binary(builder, node, ast.Mult())
    if not inference.is_array(type_):
        axes = axes_for(builder, 1)
        terms = Lazy(types.Array(type_, 1, "C"), axes, (inner,), multiply(element_at(a, axes), element_at(b, axes)))
        return fold(builder, terms, number(0, type_), binary(builder, node, ast.Add()), "total")
    rows, columns = shape_of(builder, a)[:-1], shape_of(builder, b)[1:]
    floats = all(isinstance(v.type.dtype, (types.Float, types.Complex)) for v in (a, b))
    if floats and not all(isinstance(n, ir.Const) for n in (*rows, inner, *columns)):
        return as_lazy(builder, filled(builder, "dot", type_.dtype, (*rows, *columns), a, b))
    i, k, j = axes_for(builder, len(rows)), axes_for(builder, 1), axes_for(builder, len(columns))
    target = array_values.new_array(builder, "product", type_.dtype, (*rows, *columns), number(0, type_.dtype))
    value = builder.cast(multiply(element_at(a, (*i, *k)), element_at(b, (*k, *j))), type_.dtype)
    shape = (*rows, inner, *columns)
    builder.emit(ir.Elementwise(target, (*i, *k, *j), shape, (*i, *j), value, accumulate=True))
    return target


@rule(np.dot, method="dot")
def dot(builder: Any, node: ast.Call, a: Any, b: Any) -> Any:
    return product(builder, node, np.dot, a, b)


def matmul(builder: Any, node: ast.AST, a: Any, b: Any) -> Any:
    return product(builder, node, operator.matmul, a, b)


def filled(builder: Any, function: str, dtype: types.Type, shape: tuple[ir.Expr, ...], *arguments: Any) -> ir.Var:
    """The result of an operation on whole matrices, from copies that nothing changes (``copies`` leaves some out)."""
    copies = tuple(array_values.copied(builder, a, "matrix") for a in arguments)
    target = array_values.new_array(builder, function, dtype, shape)
    builder.emit(ir.Fill(target, function, copies))
    return target


def system(builder: Any, node: ast.Call, function: Any, *arguments: Any) -> types.Type:
    """The type of a result of ``np.linalg``."""
    for a in arguments:
        if not isinstance(array(builder, node, a).type.dtype, (types.Float, types.Complex)):
            builder.fail(node, f"{ast.unparse(node.func)} of integers", "use floating-point numbers")
    return array_values.result_type(builder, node, function, *arguments)


@rule(np.linalg.solve)
def solve(builder: Any, node: ast.Call, a: Any, b: Any) -> Lazy:
    type_ = system(builder, node, np.linalg.solve, a, b)
    return as_lazy(builder, filled(builder, "solve", type_.dtype, shape_of(builder, b), a, b))


def as_lazy(builder: Any, value: ir.Var) -> Lazy:
    """An array to be copied before it is changed."""
    axes = axes_for(builder, value.type.ndim)
    return Lazy(value.type, axes, shape_of(builder, value), element_at(value, axes))


@rule(np.linalg.inv)
def inv(builder: Any, node: ast.Call, a: Any) -> Lazy:
    type_, shape = system(builder, node, np.linalg.inv, a), shape_of(builder, a)
    i, j = axes_for(builder, 2)
    here = ir.Op("eq", (i, j), types.boolean)
    unit = ir.Op("select", (here, number(1, type_.dtype), number(0, type_.dtype)), type_.dtype)
    return as_lazy(builder, filled(builder, "solve", type_.dtype, shape, a, Lazy(type_, (i, j), shape, unit)))


@rule(np.linalg.det)
def det(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    type_ = system(builder, node, np.linalg.det, a)
    return element_at(filled(builder, "det", type_, (ONE,), a), (ZERO,))


@rule(np.linalg.cholesky)
def cholesky(builder: Any, node: ast.Call, a: Any) -> Lazy:
    type_ = system(builder, node, np.linalg.cholesky, a)
    return as_lazy(builder, filled(builder, "cholesky", type_.dtype, shape_of(builder, a), a))


@rule(np.vdot)
def vdot(builder: Any, node: ast.Call, a: Any, b: Any) -> Any:
    array_values.result_type(builder, node, np.vdot, array(builder, node, a), array(builder, node, b))
    axes = axes_for(builder, a.type.ndim)
    conjugate = Lazy(a.type, axes, shape_of(builder, a), builder.conjugate(element_at(a, axes)))
    return product(builder, node, np.vdot, conjugate, b)


@rule(np.outer)
def outer(builder: Any, node: ast.Call, a: Any, b: Any) -> Lazy:
    for value in (a, b):
        if array(builder, node, value).type.ndim != 1:
            builder.fail(node, "np.outer of an array of several dimensions", "use .ravel()")
    type_ = array_values.result_type(builder, node, np.outer, a, b)
    i, j = axes_for(builder, 2)
    value = builder.binary(node, ast.Mult(), element_at(a, (i,)), element_at(b, (j,)))
    return Lazy(type_, (i, j), (*shape_of(builder, a), *shape_of(builder, b)), builder.cast(value, type_.dtype))


# --------------------------------------------------------------------------------------------------- choices


@rule(np.where)
def where(builder: Any, node: ast.Call, condition: Any, x: Any = None, y: Any = None) -> Lazy:
    if x is None and y is None:
        return nonzero(builder, node, condition)
    if x is None or y is None:
        builder.fail(node, "np.where of a condition and one value", "give both values: np.where(condition, x, y)")

    def choose(c: ir.Expr, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = type_.dtype
        return ir.Op("select", (builder.truth(node, c), builder.cast(a, dtype), builder.cast(b, dtype)), dtype)

    type_ = array_values.result_type(builder, node, np.where, condition, x, y)
    return array_values.operation(builder, node, np.where, choose, condition, x, y)


@rule(np.nonzero, method="nonzero")
def nonzero(builder: Any, node: ast.Call, a: Any) -> Any:
    return builder.group((flatnonzero(builder, node, a),))


@rule(np.flatnonzero)
def flatnonzero(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    if array(builder, node, a).type.ndim != 1:
        builder.fail(node, f"{ast.unparse(node.func)} of an array of several dimensions", "use .ravel(), or loop")
    return array_values.places(builder, node, a)


@rule(np.clip, method="clip")
def clip(builder: Any, node: ast.Call, a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    for bound, name, function in ((a_min, "maximum", np.maximum), (a_max, "minimum", np.minimum)):
        if not is_none(bound):
            make = lambda x, y, name=name, function=function: builder.operation(node, name, function, x, y)
            a = array_values.operation(builder, node, function, make, a, bound)
    return a


# --------------------------------------------------------------------------------------------------- shapes


@rule(np.copy, method="copy")
def copy(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return array_values.copied(builder, array(builder, node, a), "copy")


@rule(np.ascontiguousarray)
def ascontiguousarray(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    a = array(builder, node, a)
    return a if isinstance(a, ir.Var) and a.type.layout == "C" else array_values.copied(builder, a, "copy")


@rule(np.transpose, method="transpose")
def transpose(builder: Any, node: ast.Call, a: Any, axes: Any = None) -> ir.Var:
    a = computed(builder, array(builder, node, a))
    order = tuple(reversed(range(a.type.ndim)))
    if not is_none(axes):
        items = getattr(axes, "items", ())
        if not (len(items) == a.type.ndim and all(isinstance(i, ir.Const) for i in items)):
            builder.fail(node, "the axes must be a tuple of constants, one per axis")
        order = tuple(i.value % a.type.ndim for i in items)
    sizes, variables = shape_of(builder, a), axes_for(builder, a.type.ndim)
    index = tuple(variables[order.index(k)] for k in range(a.type.ndim))
    turned = {"C": "F", "F": "C"}.get(a.type.layout, "A") if is_none(axes) else "A"
    shape = tuple(sizes[k] for k in order)
    return array_values.rearranged(builder, a, a.type.copy(layout=turned), variables, shape, index, None)


def reshaped(builder: Any, node: ast.AST, a: ir.Var, shape: tuple[ir.Expr, ...]) -> ir.Var:
    """A view of a contiguous array in another shape."""
    if a.type.layout != "C":
        builder.fail(node, "another shape of an array that is not contiguous", "take a copy first: a.copy()")
    sizes, axes = shape_of(builder, a), axes_for(builder, len(shape))
    place: ir.Expr = ZERO
    for axis, size in zip(axes, shape, strict=True):
        place = extents.add(extents.mul(place, size), axis)
    index: list[ir.Expr] = []
    for size in reversed(sizes[1:]):
        index.append(ir.Op("mod", (place, size), INT))
        place = ir.Op("floordiv", (place, size), INT)
    index.append(place)
    type_ = a.type.copy(ndim=len(shape))
    return array_values.rearranged(builder, a, type_, axes, shape, index[::-1], None)


@rule(np.reshape, method="reshape")
def reshape(builder: Any, node: ast.Call, a: Any, *shape: Any) -> ir.Var:
    a = computed(builder, array(builder, node, a))
    items = shape[0].items if len(shape) == 1 and hasattr(shape[0], "items") else shape
    if not items or not all(isinstance(n, ir.Expr) and isinstance(n.type, types.Integer) for n in items):
        builder.fail(node, "a shape must be integers")
    sizes = tuple(array_values.steady(builder, n) for n in items)
    rest = [k for k, n in enumerate(sizes) if isinstance(n, ir.Const) and n.value == -1]
    if len(rest) == 1:
        others = extents.product(tuple(n for n in sizes if not isinstance(n, ir.Const) or n.value != -1))
        total = extents.product(shape_of(builder, a))
        missing = total if others == ONE else ir.Op("floordiv", (total, others), INT)
        sizes = tuple(missing if k == rest[0] else n for k, n in enumerate(sizes))
    return reshaped(builder, node, a, sizes)


@rule(np.ravel, method="ravel")
def ravel(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    a = array(builder, node, a)
    if isinstance(a, Lazy) or a.type.layout != "C":
        a = array_values.copied(builder, a, "copy")
    return a if a.type.ndim == 1 else reshaped(builder, node, a, (extents.product(shape_of(builder, a)),))


def flatten(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return ravel(builder, node, array_values.copied(builder, array(builder, node, a), "copy"))


METHODS["flatten"] = flatten


@rule(np.flip)
def flip(builder: Any, node: ast.Call, m: Any) -> ir.Var:
    a = computed(builder, array(builder, node, m))
    back = array_values.Range(None, None, ir.Const(-1, INT))
    return array_values.part(builder, node, a, [back] * a.type.ndim, None)


@rule(np.diff)
def diff(builder: Any, node: ast.Call, a: Any) -> Lazy:
    a = computed(builder, array(builder, node, a))
    sides = [
        array_values.part(builder, node, a, [Ellipsis, array_values.Range(bounds[0], bounds[1], None)], None)
        for bounds in ((ONE, None), (None, ir.Const(-1, INT)))
    ]
    return array_values.operation(builder, node, operator.sub, binary(builder, node, ast.Sub()), *sides)


@rule(np.roll)
def roll(builder: Any, node: ast.Call, a: Any, shift: Any) -> Lazy:
    a = computed(builder, array(builder, node, a))
    if a.type.ndim != 1 or not (isinstance(shift, ir.Expr) and isinstance(shift.type, types.Integer)):
        builder.fail(node, "np.roll takes a vector and an integer here", "loop over the rows")
    (axis,), (size,) = axes_for(builder, 1), shape_of(builder, a)
    origin = ir.Op("mod", (extents.sub(axis, array_values.steady(builder, shift)), size), INT)
    return Lazy(a.type.copy(layout="C"), (axis,), (size,), element_at(a, (origin,)))


def fill(builder: Any, node: ast.Call, a: Any, value: Any) -> Any:
    array_values.assign(builder, node, array_values.whole(builder, a), value)
    return builder.nothing


METHODS["fill"] = fill


def astype(builder: Any, node: ast.Call, a: Any, dtype: Any) -> Lazy:
    ty, axes = builder.dtype(node, dtype), axes_for(builder, a.type.ndim)
    value = element_at(a, axes)
    if isinstance(value.type, types.Complex) and not isinstance(ty, types.Complex):
        builder.fail(node, f"a {value.type} as {ty}", "take .real first")
    return Lazy(types.Array(ty, len(axes), "C"), axes, shape_of(builder, a), builder.cast(value, ty))


METHODS["astype"] = astype


@rule(np.concatenate)
def concatenate(builder: Any, node: ast.Call, arrays: Any, axis: Any = ZERO) -> ir.Var:
    parts = list(getattr(arrays, "items", ()))
    if not parts or not all(map(is_array, parts)):
        builder.fail(node, "np.concatenate takes a tuple of arrays")
    along = axis_of(builder, node, parts[0], axis)
    type_ = array_values.result_type(builder, node, np.concatenate, builder.typed_group(parts))
    shape = list(shape_of(builder, parts[0]))
    starts: list[ir.Expr] = [ZERO]
    for p in parts:
        starts.append(extents.add(starts[-1], shape_of(builder, p)[along]))
    shape[along] = starts[-1]
    target = array_values.new_array(builder, "joined", type_.dtype, tuple(shape))
    for p, start in zip(parts, starts, strict=False):
        axes, sizes = axes_for(builder, p.type.ndim), shape_of(builder, p)
        for k in range(len(sizes)):
            if k != along:
                array_values.agree(builder, node, shape[k], sizes[k])
        index = tuple(extents.add(start, a) if k == along else a for k, a in enumerate(axes))
        builder.emit(ir.Elementwise(target, axes, sizes, index, builder.cast(element_at(p, axes), type_.dtype)))
    return target


# --------------------------------------------------------------------------------------------------- new arrays


@rule(np.arange)
def arange(builder: Any, node: ast.Call, start: Any, stop: Any = None, step: Any = None) -> Lazy:
    start, stop = (start, stop) if stop is not None else (ZERO, start)
    given = [v for v in (start, stop, step) if v is not None]
    type_ = array_values.result_type(builder, node, np.arange, *given)
    start, stop = (array_values.settled(builder, v) for v in (start, stop))
    step = ONE if step is None else array_values.settled(builder, step)
    if all(isinstance(v.type, types.Integer) for v in (start, stop, step)):
        count = trips(start, stop, step)
    else:
        span = builder.binary(node, ast.Div(), builder.binary(node, ast.Sub(), stop, start), step)
        count = builder.cast(builder.operation(node, "ceil", np.ceil, span), INT)
    length = array_values.steady(builder, extents.maximum(count, ZERO))
    (axis,) = axes_for(builder, 1)
    value = builder.binary(node, ast.Add(), start, builder.binary(node, ast.Mult(), axis, step))
    return Lazy(type_, (axis,), (length,), builder.cast(value, type_.dtype))


def trips(start: ir.Expr, stop: ir.Expr, step: ir.Expr) -> ir.Expr:
    """How many numbers there are from one on before another."""
    up, down = extents.sub(stop, start), extents.sub(start, stop)
    if isinstance(step, ir.Const):
        size = abs(step.value)
        return extents.floordiv(extents.add(up if step.value > 0 else down, ir.Const(size - 1, INT)), size)
    ways = ((up, step), (down, extents.sub(ZERO, step)))
    counts = (ir.Op("floordiv", (extents.add(span, extents.sub(n, ONE)), n), INT) for span, n in ways)
    return ir.Op("select", (ir.Op("gt", (step, ZERO), types.boolean), *counts), INT)


@rule(np.linspace)
def linspace(builder: Any, node: ast.Call, start: Any, stop: Any, num: Any = FIFTY) -> Lazy:
    type_ = array_values.result_type(builder, node, np.linspace, start, stop, num)
    start, stop, num = (array_values.settled(builder, v) for v in (start, stop, num))
    span = builder.binary(node, ast.Sub(), stop, start)
    step = builder.temporary("step", builder.binary(node, ast.Div(), span, extents.maximum(extents.sub(num, ONE), ONE)))
    (axis,) = axes_for(builder, 1)
    value = builder.binary(node, ast.Add(), start, builder.binary(node, ast.Mult(), axis, step))
    return Lazy(type_, (axis,), (num,), builder.cast(value, type_.dtype))


@rule(np.eye, np.identity)
def eye(builder: Any, node: ast.Call, n: Any) -> ir.Var:
    size, (axis,) = array_values.steady(builder, n), axes_for(builder, 1)
    target = array_values.new_array(builder, "unit", types.float64, (size, size), number(0, types.float64))
    builder.emit(ir.Elementwise(target, (axis,), (size,), (axis, axis), number(1, types.float64)))
    return target


MAKERS = (arange, linspace, eye)

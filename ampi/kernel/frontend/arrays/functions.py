"""Rules of NumPy's functions and methods of arrays that Numba supports: sums, extremes, products, new arrays.

A rule builds the IR of a call from loops, views and element-by-element expressions (see ``arrays.values``), so that
derivatives follow.  Its first two arguments are the parser and the call; the values of the call's arguments come next,
under NumPy's names for them.
"""

from __future__ import annotations

import ast
import inspect
import operator
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, computed, element_at, is_array, shape_of
from ampi.kernel.frontend.base.values import Group, conjugate, part_of
from ampi.kernel.ir import index_algebra, inference
from ampi.kernel.ir.index_algebra import INT, ONE, ZERO
from ampi.kernel.ir.intrinsics import cast

Handler = Callable[..., Any]
FUNCTIONS: dict[Any, Handler] = {}
FIFTY = ir.Const(50, INT)
METHODS: dict[str, Handler] = {}
LISTS: dict[Handler, tuple[str, ...]] = {}
OF_ANYTHING: set[Handler] = set()


def rule(
    *functions: Any, method: str | None = None, lists: str = "", of_anything: bool = False
) -> Callable[[Handler], Handler]:
    """Register a rule for functions of NumPy, and for a method of arrays.

    The parameters named in ``lists`` also take tuples and lists of numbers; with ``of_anything`` the rule also applies
    to calls without an array argument.
    """

    def register(handler: Handler) -> Handler:
        FUNCTIONS.update(dict.fromkeys(functions, handler))
        if method is not None:
            METHODS[method] = handler
        if lists:
            LISTS[handler] = tuple(lists.split())
        if of_anything or lists:
            OF_ANYTHING.add(handler)
        return handler

    return register


def lookup(function: Any) -> Handler | None:
    try:
        return FUNCTIONS.get(function)
    except TypeError:  # not hashable
        return None


def is_of_arrays(handler: Handler, values: list[Any]) -> bool:
    """Return whether a rule applies to a call with these arguments."""
    return handler in OF_ANYTHING or any(is_array(a) for v in values for a in (v, *getattr(v, "items", ())))


def call(builder: Any, node: ast.Call, handler: Handler, values: list[Any], keywords: dict[str, Any]) -> Any:
    try:
        bound = inspect.signature(handler).bind(builder, node, *values, **keywords)
    except TypeError as problem:
        builder.fail(node, f"{ast.unparse(node.func)}: {problem}", "use the arguments that Numba knows")
    for name in LISTS.get(handler, ()):
        value = bound.arguments.get(name)
        if isinstance(value, Group):
            bound.arguments[name] = sequences.array_of(builder, node, value)
    return handler(*bound.args, **bound.kwargs)


# --------------------------------------------------------------------------------------------------- sums and extremes


def fold(builder: Any, value: Any, first: ir.Expr, combine: Callable[[ir.Expr, ir.Expr], ir.Expr], hint: str) -> ir.Var:
    """Combine all elements of an array into one number, starting from ``first``."""
    total = ir.Var(builder.names.fresh(hint), first.type)
    builder.emit(ir.Assign(total, first))
    axes, shape = axes_for(builder, value.type.ndim), shape_of(builder, value)
    new = cast(combine(total, element_at(value, axes)), total.type)
    emit_loops(builder, axes, shape, ir.Assign(total, new, line=builder.line))
    return total


def emit_loops(builder: Any, axes: tuple[ir.Var, ...], shape: tuple[ir.Expr, ...], *body: ir.Stmt) -> None:
    for axis, size in reversed(list(zip(axes, shape, strict=True))):
        body = (ir.For(axis, ZERO, size, ONE, body, whole=axis is axes[0], line=builder.line),)
    builder.emit(*body)


def number(value: int, type_: types.Type) -> ir.Const:
    if isinstance(type_, types.Complex):
        return ir.Const(complex(value), type_)
    return ir.Const(float(value) if isinstance(type_, types.Float) else int(value), type_)


def binary(builder: Any, node: ast.AST, op: ast.operator) -> Callable[[ir.Expr, ir.Expr], ir.Expr]:
    return lambda x, y: builder.binary(node, op, x, y)


def array(builder: Any, node: ast.AST, value: Any) -> Any:
    """The argument of a function that takes an array; fails for anything else."""
    if not is_array(value):
        builder.fail(node, f"{ast.unparse(node.func)} takes an array here")
    return value


def axis_of(builder: Any, node: ast.AST, a: Any, axis: Any) -> int:
    if not (isinstance(axis, ir.Const) and -a.type.ndim <= axis.value < a.type.ndim):
        builder.fail(node, "the axis must be a constant, and an axis of the array", "write axis=0")
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
    others = [k for k in range(len(shape)) if k != along]
    target = array_values.new_array(builder, "totals", type_, tuple(shape[k] for k in others), number(0, type_))
    index = tuple(axes[k] for k in others)
    builder.emit(ir.Elementwise(target, axes, shape, index, cast(element_at(a, axes), type_), accumulate=True))
    return target


@rule(np.prod, method="prod")
def prod(builder: Any, node: ast.Call, a: Any) -> Any:
    type_ = array_values.result_type(builder, node, np.prod, array(builder, node, a))
    return fold(builder, a, number(1, type_), binary(builder, node, ast.Mult()), "product")


@rule(np.mean, method="mean")
def mean(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    type_ = array_values.result_type(builder, node, np.mean, array(builder, node, a))
    total = fold(builder, a, number(0, type_), binary(builder, node, ast.Add()), "total")
    count = cast(index_algebra.product(shape_of(builder, a)), inference.real(type_))
    return cast(builder.binary(node, ast.Div(), total, count), type_)


@rule(np.var, method="var")
def var(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    type_ = array_values.result_type(builder, node, np.var, array(builder, node, a))
    middle = builder.temporary("middle", mean(builder, node, a))

    def add(total: ir.Expr, x: ir.Expr) -> ir.Expr:
        difference = builder.binary(node, ast.Sub(), x, middle)
        return builder.binary(node, ast.Add(), total, squared(builder, node, difference))

    total = fold(builder, a, number(0, type_), add, "total")
    count = cast(index_algebra.product(shape_of(builder, a)), type_)
    return builder.binary(node, ast.Div(), total, count)


@rule(np.std, method="std")
def std(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    return builder.operation(node, "sqrt", np.sqrt, var(builder, node, a))


def squared(builder: Any, node: ast.AST, x: ir.Expr) -> ir.Expr:
    """The square of a number's magnitude."""
    if not isinstance(x.type, types.Complex):
        return builder.binary(node, ast.Mult(), x, x)
    parts = (part_of(name, x) for name in ("real", "imag"))
    return builder.binary(node, ast.Add(), *(builder.binary(node, ast.Mult(), p, p) for p in parts))


def norm(builder: Any, node: ast.Call, x: Any) -> ir.Expr:
    type_ = array_values.result_type(builder, node, np.linalg.norm, array(builder, node, x))
    add = lambda total, e: builder.binary(node, ast.Add(), total, squared(builder, node, e))
    total = fold(builder, x, number(0, type_), add, "total")
    return cast(builder.operation(node, "sqrt", np.sqrt, total), type_)


EMPTY = "zero-size array to reduction operation {}imum which has no identity"


def extreme(builder: Any, node: ast.Call, a: Any, name: str, function: Any, of_numpy: bool = True) -> ir.Var:
    """The first smallest or largest element; the first NaN ``of_numpy``, whereas Python's functions compare with it."""
    first = element_at(array(builder, node, a), (ZERO,) * a.type.ndim)
    if isinstance(first.type, types.Complex):
        builder.fail(node, f"np.{name} of complex numbers has no derivative", "use the real parts or magnitudes")
    array_values.require_elements(builder, a, EMPTY.format(name), exact=of_numpy)
    if not of_numpy or not isinstance(first.type, types.Float):
        return fold(builder, a, first, lambda x, y: builder.operation(node, name, function, x, y), f"{name}imum")
    found, x = ir.Var(builder.names.fresh(f"{name}imum"), first.type), ir.Var(builder.names.fresh("value"), first.type)
    missing = ir.Var(builder.names.fresh("missing"), INT)
    builder.emit(ir.Assign(found, first))
    builder.emit(ir.Assign(missing, ZERO))
    axes, shape = axes_for(builder, a.type.ndim), shape_of(builder, a)
    body = (
        ir.Assign(x, element_at(a, axes), line=builder.line),
        ir.Assign(found, builder.operation(node, name, function, found, x), line=builder.line),
        count_nan(builder, missing, x),
    )
    emit_loops(builder, axes, shape, *body)
    emit_if_missing(builder, missing, a, lambda place: ir.Assign(found, element_at(a, unraveled(place, shape))))
    return found


def count_nan(builder: Any, missing: ir.Var, x: ir.Expr) -> ir.Stmt:
    """Count a NaN.  It is faster than to compare by an order in which NaN is the largest number: no iteration waits."""
    is_nan = cast(ir.Op("ne", (x, x), types.boolean), INT)
    return ir.Assign(missing, index_algebra.add(missing, is_nan), line=builder.line)


def emit_if_missing(builder: Any, missing: ir.Var, a: Any, then: Callable[[ir.Expr], ir.Stmt]) -> None:
    """If some elements are NaN, search for the first one, and execute ``then`` for its place."""
    shape, (k,) = shape_of(builder, a), axes_for(builder, 1)
    place, x = ir.Var(builder.names.fresh("place"), INT), ir.Var(builder.names.fresh("value"), a.type.dtype)
    size = index_algebra.product(shape)
    back = index_algebra.sub(index_algebra.sub(size, ONE), k)
    is_nan = ir.Op("ne", (x, x), types.boolean)
    choose = ir.If(is_nan, (ir.Assign(place, back, line=builder.line),), line=builder.line)
    element = ir.Assign(x, element_at(a, unraveled(back, shape)), line=builder.line)
    search = ir.For(k, ZERO, size, ONE, (element, choose), line=builder.line)
    found = (ir.Assign(place, ZERO, line=builder.line), search, then(place))
    builder.emit(ir.If(ir.Op("gt", (missing, ZERO), types.boolean), found, line=builder.line))


def unraveled(k: ir.Expr, shape: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
    """The index of element ``k`` of an array, counted along its rows."""
    if len(shape) == 1:
        return (k,)
    *rest, last = shape
    return (*unraveled(ir.Op("floordiv", (k, last), INT), tuple(rest)), ir.Op("mod", (k, last), INT))


@rule(np.min, np.amin, method="min")
def min_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return extreme(builder, node, a, "min", min)


@rule(np.max, np.amax, method="max")
def max_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    return extreme(builder, node, a, "max", max)


@rule(np.ptp)
def ptp(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    a = computed(builder, array(builder, node, a), "values")
    array_values.require_elements(builder, a, "zero-size array reduction not possible")
    return builder.binary(node, ast.Sub(), max_(builder, node, a), min_(builder, node, a))


@rule(np.any, method="any")
def any_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    either = lambda x, y: ir.Op("or", (x, builder.truth(node, y)), types.boolean)
    return fold(builder, array(builder, node, a), ir.Const(False, types.boolean), either, "any")


@rule(np.all, method="all")
def all_(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    both = lambda x, y: ir.Op("and", (x, builder.truth(node, y)), types.boolean)
    return fold(builder, array(builder, node, a), ir.Const(True, types.boolean), both, "all")


def count_nonzero(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    def more(count: ir.Expr, x: ir.Expr) -> ir.Expr:
        one = ir.Op("select", (builder.truth(node, x), ONE, ZERO), INT)
        return ir.Op("add", (count, one), INT)

    return fold(builder, array(builder, node, a), ZERO, more, "count")


def running(builder: Any, node: ast.Call, a: Any, function: Any, op: ast.operator, first: int) -> ir.Var:
    """Cumulative sums or products."""
    if array(builder, node, a).type.ndim != 1:
        builder.fail(node, f"{ast.unparse(node.func)} of an array of several dimensions", "take rows, or loop")
    type_ = array_values.result_type(builder, node, function, a).dtype
    shape, axes = shape_of(builder, a), axes_for(builder, 1)
    target = array_values.new_array(builder, "running", type_, shape)
    total = ir.Var(builder.names.fresh("total"), type_)
    builder.emit(ir.Assign(total, number(first, type_)))
    new = cast(builder.binary(node, op, total, element_at(a, axes)), type_)
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


def trace(builder: Any, node: ast.Call, a: Any) -> ir.Var:
    type_ = array_values.result_type(builder, node, np.trace, array(builder, node, a))
    (axis,) = axes_for(builder, 1)
    rows, columns = shape_of(builder, a)
    diagonal = Lazy(
        types.Array(type_, 1, "C"), (axis,), (index_algebra.minimum(rows, columns),), element_at(a, (axis, axis))
    )
    return fold(builder, diagonal, number(0, type_), binary(builder, node, ast.Add()), "total")


# --------------------------------------------------------------------------------------------------- products


def product(builder: Any, node: ast.AST, function: Any, a: Any, b: Any) -> Any:
    """``np.dot(a, b)`` and ``a @ b`` of vectors and matrices."""
    for value in (a, b):
        if not is_array(value):
            builder.fail(node, "a product of arrays needs two arrays")
    type_ = array_values.result_type(builder, node, function, a, b)
    # A whole-array expression is computed first, since each element is used many times.
    a, b = (computed(builder, v, "factor") if max(a.type.ndim, b.type.ndim) > 1 else v for v in (a, b))
    inner = shape_of(builder, a)[-1]
    multiply = binary(builder, node, ast.Mult())
    if not inference.is_array(type_):
        if shape_of(builder, b)[0] != inner:
            builder.emit(ir.Agree(inner, shape_of(builder, b)[0]))
        axes = axes_for(builder, 1)
        terms = Lazy(types.Array(type_, 1, "C"), axes, (inner,), multiply(element_at(a, axes), element_at(b, axes)))
        return fold(builder, terms, number(0, type_), binary(builder, node, ast.Add()), "total")
    rows, columns = shape_of(builder, a)[:-1], shape_of(builder, b)[1:]
    floats = all(isinstance(v.type.dtype, (types.Float, types.Complex)) for v in (a, b))
    if floats and not all(isinstance(n, ir.Const) for n in (*rows, inner, *columns)):
        return as_lazy(builder, filled(builder, "dot", type_.dtype, (*rows, *columns), a, b))
    i, k, j = axes_for(builder, len(rows)), axes_for(builder, 1), axes_for(builder, len(columns))
    target = array_values.new_array(builder, "product", type_.dtype, (*rows, *columns), number(0, type_.dtype))
    value = cast(multiply(element_at(a, (*i, *k)), element_at(b, (*k, *j))), type_.dtype)
    shape = (*rows, inner, *columns)
    builder.emit(ir.Elementwise(target, (*i, *k, *j), shape, (*i, *j), value, accumulate=True))
    return target


@rule(np.dot, method="dot")
def dot(builder: Any, node: ast.Call, a: Any, b: Any) -> Any:
    return product(builder, node, np.dot, a, b)


def matmul(builder: Any, node: ast.AST, a: Any, b: Any) -> Any:
    return product(builder, node, operator.matmul, a, b)


def filled(builder: Any, function: str, dtype: types.Type, shape: tuple[ir.Expr, ...], *arguments: Any) -> ir.Var:
    """The result of an operation on whole matrices, from copies that stay unchanged (see ``copy_elision``)."""
    copies = tuple(array_values.copied(builder, a, "matrix") for a in arguments)
    target = array_values.new_array(builder, function, dtype, shape)
    builder.emit(ir.Fill(target, function, copies))
    return target


def system(builder: Any, node: ast.Call, function: Any, *arguments: Any) -> types.Type:
    """The type of a result of ``np.linalg``; fails for arrays of integers."""
    for a in arguments:
        if not isinstance(array(builder, node, a).type.dtype, (types.Float, types.Complex)):
            builder.fail(node, f"{ast.unparse(node.func)} of integers", "use floating-point numbers")
    return array_values.result_type(builder, node, function, *arguments)


@rule(np.linalg.solve)
def solve(builder: Any, node: ast.Call, a: Any, b: Any) -> Lazy:
    type_ = system(builder, node, np.linalg.solve, a, b)
    return as_lazy(builder, filled(builder, "solve", type_.dtype, shape_of(builder, b), a, b))


def as_lazy(builder: Any, value: ir.Var) -> Lazy:
    """An array as a whole-array expression, which is copied when it is bound to a name."""
    axes = axes_for(builder, value.type.ndim)
    return Lazy(value.type, axes, shape_of(builder, value), element_at(value, axes))


@rule(np.linalg.inv)
def inv(builder: Any, node: ast.Call, a: Any) -> Lazy:
    type_ = system(builder, node, np.linalg.inv, a)
    return as_lazy(builder, filled(builder, "inv", type_.dtype, shape_of(builder, a), a))


@rule(np.linalg.det)
def det(builder: Any, node: ast.Call, a: Any) -> ir.Expr:
    type_ = system(builder, node, np.linalg.det, a)
    return element_at(filled(builder, "det", type_, (ONE,), a), (ZERO,))


@rule(np.linalg.slogdet)
def slogdet(builder: Any, node: ast.Call, a: Any) -> Any:
    dtype = system(builder, node, np.linalg.slogdet, a)[0]
    if isinstance(dtype, types.Complex):
        builder.fail(node, "np.linalg.slogdet of complex numbers", "use np.linalg.det")
    a = computed(builder, a, "matrix")
    sign = element_at(filled(builder, "sign", INT, (ONE,), a), (ZERO,))
    size = element_at(filled(builder, "logdet", dtype, (ONE,), a), (ZERO,))
    return Group((cast(sign, dtype), size))


@rule(np.linalg.cholesky)
def cholesky(builder: Any, node: ast.Call, a: Any) -> Lazy:
    type_ = system(builder, node, np.linalg.cholesky, a)
    return as_lazy(builder, filled(builder, "cholesky", type_.dtype, shape_of(builder, a), a))


@rule(np.vdot)
def vdot(builder: Any, node: ast.Call, a: Any, b: Any) -> Any:
    array_values.result_type(builder, node, np.vdot, array(builder, node, a), array(builder, node, b))
    axes = axes_for(builder, a.type.ndim)
    conjugated = Lazy(a.type, axes, shape_of(builder, a), conjugate(element_at(a, axes)))
    return product(builder, node, np.vdot, conjugated, b)


@rule(np.outer)
def outer(builder: Any, node: ast.Call, a: Any, b: Any) -> Lazy:
    for value in (a, b):
        if array(builder, node, value).type.ndim != 1:
            builder.fail(node, "np.outer of an array of several dimensions", "use .ravel()")
    type_ = array_values.result_type(builder, node, np.outer, a, b)
    i, j = axes_for(builder, 2)
    value = builder.binary(node, ast.Mult(), element_at(a, (i,)), element_at(b, (j,)))
    return Lazy(type_, (i, j), (*shape_of(builder, a), *shape_of(builder, b)), cast(value, type_.dtype))


@rule(np.kron)
def kron(builder: Any, node: ast.Call, a: Any, b: Any) -> Lazy:
    type_ = array_values.result_type(builder, node, np.kron, array(builder, node, a), array(builder, node, b))
    a, b = (computed(builder, v, "factor") for v in (a, b))
    axes, sizes = axes_for(builder, type_.ndim), shape_of(builder, b)
    if a.type.ndim != b.type.ndim:
        builder.fail(node, "np.kron of arrays of different numbers of dimensions", "insert axes with None")
    blocks = tuple(ir.Op("floordiv", pair, INT) for pair in zip(axes, sizes))
    inside = tuple(ir.Op("mod", pair, INT) for pair in zip(axes, sizes))
    value = builder.binary(node, ast.Mult(), element_at(a, blocks), element_at(b, inside))
    shape = tuple(index_algebra.mul(m, n) for m, n in zip(shape_of(builder, a), sizes))
    return Lazy(type_, axes, shape, cast(value, type_.dtype))


@rule(np.cross, lists="a b")
def cross(builder: Any, node: ast.Call, a: Any, b: Any) -> ir.Var:
    """The cross product of vectors of two or three components, or of arrays of such rows."""
    type_ = array_values.result_type(builder, node, np.cross, array(builder, node, a), array(builder, node, b))
    a, b = (computed(builder, v, "factor") for v in (a, b))
    three = ir.Const(3, INT)
    rows: tuple[ir.Expr, ...] = ()
    for v in (a, b):
        *own, last = shape_of(builder, v)
        if last != ir.Const(2, INT):
            array_values.agree(builder, node, last, three)
        for mine, other in zip(own, rows):
            array_values.agree(builder, node, other, mine)
        rows = rows or tuple(own)
    target = array_values.new_array(builder, "cross", type_.dtype, (*rows, three))
    times = binary(builder, node, ast.Mult())
    for k in range(3):
        axes = axes_for(builder, len(rows))
        at = lambda v, n, axes=axes: component(builder, v, (*axes, ir.Const(n % 3, INT)))
        value = builder.binary(node, ast.Sub(), times(at(a, k + 1), at(b, k + 2)), times(at(a, k + 2), at(b, k + 1)))
        place, value = (*axes, ir.Const(k, INT)), cast(value, type_.dtype)
        if rows:
            builder.emit(ir.Elementwise(target, axes, rows, place, value))
        else:
            builder.emit(ir.Store(target, place, value))
    return target


def component(builder: Any, v: ir.Var, index: tuple[ir.Expr, ...]) -> ir.Expr:
    """A component of vectors of three components, or of two and a zero."""
    if index[-1].value == 2 and shape_of(builder, v)[-1] == ir.Const(2, INT):
        return number(0, v.type.dtype)
    return array_values.element_of(builder, v, index)


@rule(np.convolve, lists="a v")
def convolve(builder: Any, node: ast.Call, a: Any, v: Any, mode: Any = None) -> ir.Var:
    return convolution(builder, node, a, v, mode or "full", is_correlation=False)


def convolution(builder: Any, node: ast.Call, a: Any, v: Any, mode: Any, is_correlation: bool) -> ir.Var:
    """``np.convolve(a, v, mode)``.

    A correlation, for which ``v`` is reversed, begins elsewhere in the mode ``same`` where ``v`` is the longer one:
    NumPy swaps the two, and reverses the result.
    """
    type_ = array_values.result_type(builder, node, np.convolve, array(builder, node, a), array(builder, node, v))
    a, v = (computed(builder, x, "factor") for x in (a, v))
    for x, name in ((a, "a"), (v, "v")):
        array_values.require_elements(builder, x, f"'{name}' cannot be empty")
    (m,), (n,), (i, j) = shape_of(builder, a), shape_of(builder, v), axes_for(builder, 2)
    size = index_algebra.sub(index_algebra.add(m, n), ONE)
    target = array_values.new_array(builder, "convolution", type_.dtype, (size,), number(0, type_.dtype))
    value = cast(builder.binary(node, ast.Mult(), element_at(a, (i,)), element_at(v, (j,))), type_.dtype)
    builder.emit(ir.Elementwise(target, (i, j), (m, n), (index_algebra.add(i, j),), value, accumulate=True))
    mode = getattr(mode, "value", mode)
    if mode == "full":
        return target
    longer, shorter = index_algebra.maximum(m, n), index_algebra.minimum(m, n)
    if mode not in ("same", "valid"):
        builder.fail(node, f"{ast.unparse(node.func)} with the mode {mode!r}", "use full, same or valid")
    valid = mode == "valid"
    start = index_algebra.sub(shorter, ONE)
    if is_correlation and not valid:
        start = index_algebra.minimum(m, index_algebra.sub(n, ONE))
    start = start if valid else index_algebra.floordiv(start, 2)
    count = index_algebra.add(index_algebra.sub(longer, shorter), ONE) if valid else longer
    start, count = (builder.temporary(hint, e) for hint, e in (("start", start), ("count", count)))
    part = array_values.Range(start, index_algebra.add(start, count), None)
    return array_values.part(builder, node, target, [part], None)


@rule(np.correlate, lists="a v")
def correlate(builder: Any, node: ast.Call, a: Any, v: Any, mode: Any = None) -> ir.Var:
    (axis,), (size,) = axes_for(builder, 1), shape_of(builder, array(builder, node, v))
    v = computed(builder, v, "factor")
    back = conjugate(element_at(v, (index_algebra.sub(index_algebra.sub(size, ONE), axis),)))
    turned = Lazy(v.type.copy(layout="C"), (axis,), (size,), back)
    return convolution(builder, node, a, turned, mode or "valid", is_correlation=True)


# --------------------------------------------------------------------------------------------------- choices


def where(builder: Any, node: ast.Call, condition: Any, x: Any, y: Any) -> Lazy:
    def choose(c: ir.Expr, a: ir.Expr, b: ir.Expr) -> ir.Expr:
        dtype = type_.dtype
        return ir.Op("select", (builder.truth(node, c), cast(a, dtype), cast(b, dtype)), dtype)

    type_ = array_values.result_type(builder, node, np.where, condition, x, y)
    return array_values.operation(builder, node, np.where, choose, condition, x, y)


@rule(np.clip, method="clip")
def clip(builder: Any, node: ast.Call, a: Any, a_min: Any = None, a_max: Any = None) -> Any:
    given = [ir.Var("", types.none) if is_none(v) else v for v in (a_min, a_max)]
    dtype = array_values.result_type(builder, node, np.clip, array(builder, node, a), *given).dtype
    for bound, name, function in ((a_min, "maximum", np.maximum), (a_max, "minimum", np.minimum)):
        if not is_none(bound):
            make = lambda x, y, name=name, function=function: builder.operation(node, name, function, x, y)
            a = array_values.operation(builder, node, function, make, a, bound)
    return replace(a, type=a.type.copy(dtype=dtype), value=cast(a.value, dtype)) if isinstance(a, Lazy) else a


# --------------------------------------------------------------------------------------------------- new arrays


@rule(np.arange, of_anything=True)
def arange(builder: Any, node: ast.Call, start: Any, stop: Any = None, step: Any = None, dtype: Any = None) -> Lazy:
    start, stop = (ZERO, start) if is_none(stop) else (start, stop)
    step = None if is_none(step) else step
    given = [v for v in (start, stop, step) if v is not None]
    type_ = array_values.result_type(builder, node, np.arange, *given)
    start, stop, step = (array_values.settled(builder, v) for v in (start, stop, ONE if step is None else step))
    array_values.refuse_number(builder, "eq", step, "Maximum allowed size exceeded")
    if all(isinstance(v.type, types.Integer) for v in (start, stop, step)):
        count = trips(start, stop, step)
    else:
        span = builder.binary(node, ast.Div(), builder.binary(node, ast.Sub(), stop, start), step)
        count = cast(builder.operation(node, "ceil", np.ceil, span), INT)
    length = array_values.steady(builder, index_algebra.maximum(count, ZERO))
    (axis,) = axes_for(builder, 1)
    value = builder.binary(node, ast.Add(), start, builder.binary(node, ast.Mult(), axis, step))
    type_ = type_ if is_none(dtype) else type_.copy(dtype=builder.dtype(node, dtype))
    return Lazy(type_, (axis,), (length,), cast(value, type_.dtype))


def trips(start: ir.Expr, stop: ir.Expr, step: ir.Expr) -> ir.Expr:
    """The length of ``range(start, stop, step)``."""
    up, down = index_algebra.sub(stop, start), index_algebra.sub(start, stop)
    if isinstance(step, ir.Const):
        size = abs(step.value)
        return index_algebra.floordiv(index_algebra.add(up if step.value > 0 else down, ir.Const(size - 1, INT)), size)
    ways = ((up, step), (down, index_algebra.sub(ZERO, step)))
    counts = (ir.Op("floordiv", (index_algebra.add(span, index_algebra.sub(n, ONE)), n), INT) for span, n in ways)
    return ir.Op("select", (ir.Op("gt", (step, ZERO), types.boolean), *counts), INT)


@rule(np.linspace, of_anything=True)
def linspace(builder: Any, node: ast.Call, start: Any, stop: Any, num: Any = FIFTY) -> Lazy:
    type_ = array_values.result_type(builder, node, np.linspace, start, stop, num)
    start, stop, num = (array_values.settled(builder, v) for v in (start, stop, num))
    array_values.refuse_number(builder, "lt", num, "negative dimensions not allowed")
    span = builder.binary(node, ast.Sub(), stop, start)
    step = builder.temporary(
        "step", builder.binary(node, ast.Div(), span, index_algebra.maximum(index_algebra.sub(num, ONE), ONE))
    )
    (axis,) = axes_for(builder, 1)
    value = builder.binary(node, ast.Add(), start, builder.binary(node, ast.Mult(), axis, step))
    return Lazy(type_, (axis,), (num,), cast(value, type_.dtype))

"""Calls of ``cuda`` functions in kernels: Python -> IR of a single thread.

In this form thread indices are operations without arguments (``threadIdx.x``, ``blockDim.x``, ``grid.x``, …), shared
arrays are marked, and barriers are statements; `ampi.kernel.cuda` turns it into loops over threads.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.values import is_array
from ampi.kernel.frontend.base.cuda_names import WARP, Intrinsic
from ampi.kernel.frontend.base.values import Group, Static, Value
from ampi.kernel.frontend.cuda.device_functions import BITS, DRAWS
from ampi.kernel.frontend.language.inline import call_function
from ampi.kernel.frontend.language.invocations import AUTHORED, call_values, shape_of_new
from ampi.kernel.ir import inference
from ampi.kernel.ir.intrinsics import cast

INT = types.int64
AXES = "xyz"


def place(name: str) -> ir.Op:
    """Return the operation without arguments that gives an index: ``threadIdx.x``, ``grid.x``, …"""
    return ir.Op(name, (), INT)


def call(builder: Any, function: Intrinsic, node: ast.Call, hint: str | None) -> Value:
    """The value of a call of a function of ``cuda``."""
    rule = RULES.get(function.name)
    if rule is None:
        builder.fail(node, f"cuda.{function.name} is not known to the differentiator", ADVICE.get(function.name, ""))
    return rule(builder, node, function.name, hint)


def positional(builder: Any, node: ast.Call, names: str) -> list[Any]:
    """The values of a call's arguments in the order of these names; None for an optional one (``name=``) left out."""
    values, keywords = call_values(builder, node)
    wanted = names.split()
    needed = sum(not n.endswith("=") for n in wanted)
    wanted = [n.rstrip("=") for n in wanted]
    given = dict(zip(wanted, values))
    unknown = set(keywords) - set(wanted) | (set(keywords) & set(given))
    given.update(keywords)
    if len(values) > len(wanted) or unknown or any(n not in given for n in wanted[:needed]):
        builder.fail(node, f"{ast.unparse(node.func)} takes ({', '.join(wanted)})")
    return [given.get(n) for n in wanted]


def number(builder: Any, node: ast.AST, value: Any, what: str = "a number is needed here") -> ir.Expr:
    if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
        builder.fail(node, what)
    return value


# ------------------------------------------------------------------------------------------------------- places


def grid(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    (ndim,) = positional(builder, node, "ndim")
    if not (isinstance(ndim, ir.Const) and ndim.value in (1, 2, 3)):
        builder.fail(node, f"cuda.{name} takes 1, 2 or 3")
    found = tuple(place(f"{name}.{axis}") for axis in AXES[: ndim.value])
    return found[0] if len(found) == 1 else Group(found)


# ------------------------------------------------------------------------------------------------------- arrays


def new_array(builder: Any, node: ast.Call, name: str, hint: str | None) -> ir.Var:
    shape, dtype = positional(builder, node, "shape dtype")
    if isinstance(dtype, ir.Expr):
        builder.fail(node, "the dtype must be a type", "write float64 (of numba or NumPy) and the like")
    ty = builder.dtype(node, dtype)
    sizes = shape_of_new(builder, node, shape)
    if not all(isinstance(n, ir.Const) for n in sizes):
        builder.fail(
            node,
            f"the shape of cuda.{name} is not a constant",
            "write a number, or a global variable" + (", or 0 and its size at the launch" if name[0] == "s" else ""),
        )
    if name == "shared.array" and any(n.value == 0 for n in sizes):
        if len(sizes) != 1:
            builder.fail(node, "dynamic shared memory has one dimension", "write shape 0")
        bytes_ = numpy_support.as_dtype(ty).itemsize
        sizes = (ir.Op("floordiv", (place("shared"), ir.Const(bytes_, INT)), INT),)
    array = array_values.new_array(builder, name.partition(".")[0], ty, sizes, None, variable=hint)
    if name == "shared.array":
        made = builder.block[-1]
        builder.block[-1] = ir.Alloc(made.target, made.shape, None, shared=True, line=made.line)
    return array


def constant_array(builder: Any, node: ast.Call, name: str, hint: str | None) -> ir.Var:
    (array,) = positional(builder, node, "ary")
    if not (isinstance(array, ir.Var) and array.name in builder.constants):
        builder.fail(node, "cuda.const.array_like takes a global array")
    return array


# ------------------------------------------------------------------------------------------------------- barriers


def barrier(kind: str) -> Callable[..., Value]:
    def emit(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
        if kind == "warp":
            positional(builder, node, "mask=")
        else:
            positional(builder, node, "")
        builder.emit(ir.Barrier(kind, line=node.lineno))
        return Static(None)

    return emit


def voting(kind: str, scope: str = "block") -> Callable[..., Value]:
    """A barrier that combines a predicate over the threads of a block (``kind``: count, and, or)."""

    def emit(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
        (predicate,) = positional(builder, node, "predicate")
        target = ir.Var(builder.names.fresh("votes"), types.int32)
        builder.emit(ir.Barrier(kind, truth(builder, node, predicate), target, line=node.lineno))
        return target

    return emit


def truth(builder: Any, node: ast.AST, value: Any) -> ir.Expr:
    return builder.truth(node, number(builder, node, value))


def nothing(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    """A fence: it needs no statement, as other threads see what a thread has written only after a barrier."""
    call_values(builder, node)
    return Static(None)


# ------------------------------------------------------------------------------------------------------- atomics


def element(builder: Any, node: ast.Call, array: Any, index: Any) -> tuple[ir.Var, tuple[ir.Expr, ...]]:
    """The array and the indices of the element that an atomic operation changes."""
    if not (isinstance(array, ir.Var) and is_array(array)):
        builder.fail(node, "the first argument of an atomic operation is an array", "and the second one an index")
    items = list(index.items) if isinstance(index, Group) else [index]
    items = [number(builder, node, i, "an index must be an integer") for i in items]
    found = builder.index(node, array, items)
    if len(found) != array.type.ndim:
        builder.fail(
            node, f"{len(found)} indices for an array of {array.type.ndim} dimensions", "write a tuple: (i, j)"
        )
    return array, found


def old_value(builder: Any, array: ir.Var, index: tuple[ir.Expr, ...]) -> ir.Var:
    return builder.temporary("old", ir.Op("old", (ir.Load(array, index, array.type.dtype),), array.type.dtype))


def at_once(builder: Any, index: tuple[ir.Expr, ...]) -> tuple[ir.Expr, ...]:
    """Indices that are computed once."""
    return tuple(i if isinstance(i, (ir.Var, ir.Const)) else builder.temporary("place", i) for i in index)


def adding(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    given, index, value = positional(builder, node, "ary idx val")
    array, index = element(builder, node, given, index)
    index, value = at_once(builder, index), number(builder, node, value)
    builder.require_store(node, array, value.type)
    old = old_value(builder, array, index)
    value = cast(value, array.type.dtype)
    if name == "atomic.sub":
        value = builder.negated(node, value)
    builder.emit(ir.Accumulate(array, index, value, atomic=True))
    return old


def changing(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    """Operations that store a function of the old element and a value."""
    given, index, value = positional(builder, node, "ary idx val")
    array, index = element(builder, node, given, index)
    index, value = at_once(builder, index), number(builder, node, value)
    dtype = array.type.dtype
    if name not in EXTREMES:
        refuse_floats(builder, node, name, array)
    builder.require_store(node, array, value.type)
    old, value = old_value(builder, array, index), builder.temporary("value", cast(value, dtype))
    one, zero = ir.Const(1, INT), ir.Const(0, INT)
    is_less, is_zero = (ir.Op(n, a, types.boolean) for n, a in (("lt", (old, value)), ("eq", (old, zero))))
    match name.partition(".")[2]:
        case "max" | "nanmax":
            new: ir.Expr = ir.Op("max", (old, value), dtype)
        case "min" | "nanmin":
            new = ir.Op("min", (old, value), dtype)
        case "exch":
            new = value
        case "inc":
            new = cast(ir.Op("select", (is_less, cast(ir.Op("add", (old, one), INT), INT), zero), INT), dtype)
        case "dec":
            is_high = ir.Op("gt", (old, value), types.boolean)
            wraps = ir.Op("or", (is_zero, is_high), types.boolean)
            new = cast(ir.Op("select", (wraps, cast(value, INT), ir.Op("sub", (old, one), INT)), INT), dtype)
        case operation:
            new = ir.Op({"and_": "bitand", "or_": "bitor", "xor": "bitxor"}[operation], (old, value), dtype)
    builder.emit(ir.Store(array, index, new, atomic=True))
    return old


def comparing(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    if name == "atomic.cas":
        given, index, expected, value = positional(builder, node, "ary idx old val")
    else:
        given, expected, value = positional(builder, node, "ary old val")
        index = ir.Const(0, INT)
    array, index = element(builder, node, given, index)
    refuse_floats(builder, node, name, array)
    index = at_once(builder, index)
    dtype = array.type.dtype
    value = builder.temporary("value", cast(number(builder, node, value), dtype))
    expected = builder.temporary("expected", cast(number(builder, node, expected), dtype))
    old = old_value(builder, array, index)
    is_it = ir.Op("eq", (old, expected), types.boolean)
    builder.emit(ir.Store(array, index, ir.Op("select", (is_it, value, old), dtype), atomic=True))
    return old


def refuse_floats(builder: Any, node: ast.Call, name: str, array: ir.Var) -> None:
    if not isinstance(array.type.dtype, (types.Integer, types.Boolean)):
        builder.fail(
            node,
            f"cuda.{name} on '{array.name}', an array of {array.type.dtype}: which thread comes first decides its "
            "value, which has no derivative",
            "use it on arrays of integers (counters, locks), and cuda.atomic.add, max or min on numbers",
        )


# ------------------------------------------------------------------------------------------------------- warps


def sent(builder: Any, value: ir.Expr) -> ir.Var:
    """An array over the threads of the block with the values that they exchange in a warp."""
    array = array_values.new_array(builder, "sent", value.type, (place("threads"),), None)
    made = builder.block[-1]
    builder.block[-1] = ir.Alloc(made.target, made.shape, None, shared=True, line=made.line)
    builder.emit(ir.Store(array, (place("rank"),), value))
    builder.emit(ir.Barrier("warp"))
    return array


def received(builder: Any, value: ir.Expr) -> ir.Var:
    """A value computed from what other threads have sent, before they send something else."""
    result = builder.temporary("received", value)
    builder.emit(ir.Barrier("warp"))
    return result


def shuffle(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    _, value, lane = positional(builder, node, "mask value src_lane" if name == "shfl_sync" else "mask value delta")
    value, lane = number(builder, node, value), cast(number(builder, node, lane), INT)
    value = value if isinstance(value, (ir.Var, ir.Const)) else builder.temporary("value", value)
    array = sent(builder, value)
    own, width = place("laneid"), ir.Const(WARP, INT)
    match name:
        case "shfl_sync":
            source: ir.Expr = ir.Op("mod", (lane, width), INT)
        case "shfl_up_sync":
            source = ir.Op("sub", (own, lane), INT)
        case "shfl_down_sync":
            source = ir.Op("add", (own, lane), INT)
        case _:
            source = ir.Op("bitxor", (own, lane), INT)
    source = builder.temporary("lane", source)
    first = ir.Op("sub", (place("rank"), own), INT)
    there = builder.temporary("thread", ir.Op("add", (first, source), INT))
    zero = ir.Const(0, INT)
    low, high = (ir.Op(n, (source, bound), types.boolean) for n, bound in (("ge", zero), ("lt", width)))
    inside = ir.Op("and", (low, high), types.boolean)
    inside = ir.Op("and", (inside, ir.Op("lt", (there, place("threads")), types.boolean)), types.boolean)
    there = builder.temporary("thread", ir.Op("select", (inside, there, place("rank")), INT))
    return received(builder, ir.Load(array, (there,), value.type))


def vote(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    mask, predicate = positional(builder, node, "mask predicate")
    array = sent(builder, builder.temporary("said", cast(truth(builder, node, predicate), INT)))
    first = ir.Op("sub", (place("rank"), place("laneid")), INT)
    end = ir.Op("min", (ir.Op("add", (first, ir.Const(WARP, INT)), INT), place("threads")), INT)
    count = ir.Var(builder.names.fresh("count"), INT)
    lane = ir.Var(builder.names.fresh("lane"), INT)
    said = ir.Load(array, (lane,), INT)
    bit = ir.Op("lshift", (said, ir.Op("sub", (lane, first), INT)), INT)
    wanted = bit if name == "ballot_sync" else said
    mask = cast(number(builder, node, mask), INT)
    mask = mask if isinstance(mask, (ir.Var, ir.Const)) else builder.temporary("mask", mask)
    is_in = ir.Op("bitand", (ir.Op("rshift", (mask, ir.Op("sub", (lane, first), INT)), INT), ir.Const(1, INT)), INT)
    wanted = ir.Op("mul", (wanted, is_in), INT)
    members = ir.Var(builder.names.fresh("members"), INT)
    zero = ir.Const(0, INT)
    builder.emit(ir.Assign(count, zero))
    builder.emit(ir.Assign(members, zero))
    body = (
        ir.Assign(count, ir.Op("add", (count, wanted), INT), line=node.lineno),
        ir.Assign(members, ir.Op("add", (members, is_in), INT), line=node.lineno),
    )
    builder.emit(ir.For(lane, first, end, ir.Const(1, INT), body, line=node.lineno))
    result: ir.Expr = count
    if name == "all_sync":
        result = ir.Op("eq", (count, members), types.boolean)
    elif name == "any_sync":
        result = ir.Op("gt", (count, zero), types.boolean)
    elif name == "eq_sync":
        none, every = (ir.Op("eq", (count, n), types.boolean) for n in (zero, members))
        result = ir.Op("or", (none, every), types.boolean)
    return received(builder, result)


# ------------------------------------------------------------------------------------------------------- mathematics


def fused(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    a, b, c = (number(builder, node, v) for v in positional(builder, node, "a b c"))
    product = builder.binary(node, ast.Mult(), a, b)
    return builder.binary(node, ast.Add(), product, c)


def chosen(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    a, b, c = (number(builder, node, v) for v in positional(builder, node, "a b c"))
    ty = inference.unify(b.type, c.type)
    return ir.Op("select", (builder.truth(node, a), cast(b, ty), cast(c, ty)), ty)


def reciprocal_root(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    (x,) = (number(builder, node, v) for v in positional(builder, node, "x"))
    root = builder.operation(node, "sqrt", math.sqrt, x)
    return builder.binary(node, ast.Div(), cast(ir.Const(1.0, types.float64), root.type), root)


def of_bits(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    (x,) = (number(builder, node, v) for v in positional(builder, node, "x"))
    if not isinstance(x.type, types.Integer):
        builder.fail(node, f"cuda.{name} takes an integer, not a {x.type}")
    width = 32 if x.type.bitwidth <= 32 else 64
    wide = cast(x, INT)
    if width == 32:
        wide = ir.Op("bitand", (wide, ir.Const(0xFFFFFFFF, INT)), INT)
    return call_function(builder, node, BITS[name], [wide, ir.Const(width, INT)], {}, hint)


def drawn(builder: Any, node: ast.Call, name: str, hint: str | None) -> Value:
    states, index = positional(builder, node, "states index")
    return call_function(builder, node, DRAWS[name], [states, index], {}, hint)


EXTREMES = ("atomic.max", "atomic.min", "atomic.nanmax", "atomic.nanmin")
RULES: dict[str, Callable[..., Value]] = {
    "grid": grid,
    "gridsize": grid,
    "shared.array": new_array,
    "local.array": new_array,
    "const.array_like": constant_array,
    "syncthreads": barrier("sync"),
    "syncwarp": barrier("warp"),
    "syncthreads_count": voting("count"),
    "syncthreads_and": voting("and"),
    "syncthreads_or": voting("or"),
    "threadfence": nothing,
    "threadfence_block": nothing,
    "threadfence_system": nothing,
    "nanosleep": nothing,
    "atomic.add": adding,
    "atomic.sub": adding,
    **{f"atomic.{n}": changing for n in ("max", "min", "nanmax", "nanmin", "exch", "inc", "dec", "and_", "or_", "xor")},
    "atomic.cas": comparing,
    "atomic.compare_and_swap": comparing,
    **dict.fromkeys(("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"), shuffle),
    **dict.fromkeys(("all_sync", "any_sync", "eq_sync", "ballot_sync"), vote),
    "fma": fused,
    "selp": chosen,
    "rsqrt": reciprocal_root,
    **dict.fromkeys(BITS, of_bits),
    **dict.fromkeys(DRAWS, drawn),
}
ADVICE = {
    "cg.this_grid": "blocks cannot wait for one another in a launch: split it into two launches",
    "cg.this_block": "write cuda.syncthreads()",
    "activemask": "name the lanes: 0xffffffff",
}
AUTHORED[Intrinsic] = call

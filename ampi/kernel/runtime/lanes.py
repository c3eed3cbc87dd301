"""Vectors of derivatives in several directions: a type for Numba, for derivative programs in vector mode.

A value of the type `Lanes` is one vector of the processor (or a few), with an element for each direction.  Derivatives
are linear: they are added and subtracted, multiplied and divided by numbers that all directions share, and selected by
conditions.  In arrays the directions are the last axis, which is contiguous.
"""

from __future__ import annotations

import operator
from typing import Any

from llvmlite import ir as llvm
from numba import types
from numba.core import cgutils
from numba.core.datamodel import models
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, register_model
from numba.np import arrayobj


class Lanes(types.Type):
    """The type of ``count`` numbers of one floating-point type, or of as many conditions."""

    def __init__(self, dtype: types.Float | types.Boolean, count: int) -> None:
        self.dtype = dtype
        self.count = count
        super().__init__(name=f"Lanes({dtype}, {count})")


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager: Any, type_: Lanes) -> None:
        number = llvm.IntType(1) if type_.dtype == types.boolean else manager.lookup(type_.dtype).get_value_type()
        super().__init__(manager, type_, llvm.VectorType(number, type_.count))


# -------------------------------------------------------------------------------------------------- arithmetic


@infer_global(operator.add)
@infer_global(operator.iadd)
@infer_global(operator.sub)
class _Sum(AbstractTemplate):
    def generic(self, args: tuple, kws: dict) -> Any:
        if not kws and len(args) == 2 and isinstance(args[0], Lanes) and args[0] == args[1]:
            return signature(args[0], *args)
        return None


@infer_global(operator.mul)
class _Product(AbstractTemplate):
    def generic(self, args: tuple, kws: dict) -> Any:
        if not kws and len(args) == 2:
            for lanes, number in (args, args[::-1]):
                if isinstance(lanes, Lanes) and types.unliteral(number) == lanes.dtype:
                    return signature(lanes, *map(types.unliteral, args))
        return None


@infer_global(operator.truediv)
class _Quotient(AbstractTemplate):
    def generic(self, args: tuple, kws: dict) -> Any:
        if not kws and len(args) == 2 and isinstance(args[0], Lanes) and types.unliteral(args[1]) == args[0].dtype:
            return signature(args[0], args[0], args[0].dtype)
        return None


@infer_global(operator.neg)
@infer_global(operator.pos)
class _Signed(AbstractTemplate):
    def generic(self, args: tuple, kws: dict) -> Any:
        return signature(args[0], args[0]) if not kws and len(args) == 1 and isinstance(args[0], Lanes) else None


@lower_builtin(operator.add, Lanes, Lanes)
@lower_builtin(operator.iadd, Lanes, Lanes)
def _add(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fadd(*args)


@lower_builtin(operator.sub, Lanes, Lanes)
def _sub(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fsub(*args)


@lower_builtin(operator.mul, Lanes, types.Float)
def _mul(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fmul(args[0], _filled(builder, sig.return_type, args[1]))


@lower_builtin(operator.mul, types.Float, Lanes)
def _mul_reversed(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fmul(_filled(builder, sig.return_type, args[0]), args[1])


@lower_builtin(operator.truediv, Lanes, types.Float)
def _div(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fdiv(args[0], _filled(builder, sig.return_type, args[1]))


@lower_builtin(operator.neg, Lanes)
def _neg(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.fneg(args[0])


@lower_builtin(operator.pos, Lanes)
def _pos(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return args[0]


def _filled(builder: Any, lanes: Lanes, number: Any) -> Any:
    """A vector with the same number in all directions."""
    if lanes.dtype == types.boolean:
        number = builder.trunc(number, llvm.IntType(1)) if number.type.width > 1 else number
    vector = llvm.VectorType(number.type, lanes.count)
    first = builder.insert_element(llvm.Constant(vector, llvm.Undefined), number, llvm.IntType(32)(0))
    nowhere = llvm.Constant(llvm.VectorType(llvm.IntType(32), lanes.count), [0] * lanes.count)
    return builder.shuffle_vector(first, llvm.Constant(vector, llvm.Undefined), nowhere)


@intrinsic(prefer_literal=True)
def spread(typing_context: Any, number: Any, count: Any) -> Any:
    """A vector of ``count`` equal numbers."""
    lanes = Lanes(types.unliteral(number), count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return _filled(builder, lanes, args[0])

    return lanes(types.unliteral(number), count), generate


@intrinsic
def chosen(typing_context: Any, condition: Any, a: Any, b: Any) -> Any:
    """``a if condition else b``, where both are evaluated."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        which = args[0] if isinstance(condition, Lanes) else context.cast(builder, args[0], condition, types.boolean)
        return builder.select(which, args[1], args[2])

    return a(condition, a, b), generate


def _conditions(lanes: Lanes) -> Lanes:
    return Lanes(types.boolean, lanes.count)


@intrinsic
def unequal(typing_context: Any, a: Any, b: Any) -> Any:
    """For each direction, whether two numbers differ."""
    return _conditions(a)(a, b), lambda context, builder, sig, args: builder.fcmp_unordered("!=", *args)


@intrinsic
def equal(typing_context: Any, a: Any, b: Any) -> Any:
    """For each direction, whether two numbers are equal."""
    return _conditions(a)(a, b), lambda context, builder, sig, args: builder.fcmp_ordered("==", *args)


@intrinsic
def both(typing_context: Any, a: Any, b: Any) -> Any:
    """For each direction, whether both conditions hold."""
    return a(a, b), lambda context, builder, sig, args: builder.and_(*args)


@intrinsic
def one_of(typing_context: Any, a: Any, b: Any) -> Any:
    """For each direction, whether at least one of two conditions holds."""
    return a(a, b), lambda context, builder, sig, args: builder.or_(*args)


@intrinsic
def inverse(typing_context: Any, a: Any) -> Any:
    """For each direction, whether a condition does not hold."""
    return a(a), lambda context, builder, sig, args: builder.not_(args[0])


@intrinsic
def any_of(typing_context: Any, a: Any) -> Any:
    """Return whether a condition holds in any direction."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits = llvm.IntType(a.count)
        return builder.icmp_unsigned("!=", builder.bitcast(args[0], bits), bits(0))

    return types.boolean(a), generate


@intrinsic
def multiplied_and_added(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    """``x * y + z`` as in `special.fused`, where ``z`` and one of the factors are vectors of directions."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        given = [a if isinstance(t, Lanes) else _filled(builder, z, a) for a, t in zip(args, (x, y, z))]
        vector = given[2].type
        name = f"llvm.fmuladd.v{z.count}f{z.dtype.bitwidth}"
        function = cgutils.get_or_insert_function(builder.module, llvm.FunctionType(vector, [vector] * 3), name)
        return builder.call(function, given)

    return z(x, y, z), generate


@intrinsic(prefer_literal=True)
def converted(typing_context: Any, lanes: Any, bits: Any) -> Any:
    """The numbers in another precision: 32 or 64 bits."""
    target = Lanes(types.float32 if bits.literal_value == 32 else types.float64, lanes.count)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        vector = context.get_value_type(target)
        if target == lanes:
            return args[0]
        narrower = target.dtype.bitwidth < lanes.dtype.bitwidth
        return (builder.fptrunc if narrower else builder.fpext)(args[0], vector)

    return target(lanes, bits), generate


@intrinsic
def each(typing_context: Any, lanes: Any) -> Any:
    """The numbers, as a tuple."""
    found = types.UniTuple(lanes.dtype, lanes.count)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = [builder.extract_element(args[0], llvm.IntType(32)(k)) for k in range(lanes.count)]
        return context.make_tuple(builder, found, parts)

    return found(lanes), generate


# ------------------------------------------------------------------------------------------------------ memory


def _place(
    context: Any, builder: Any, array_type: Any, array: Any, index_type: Any, index: Any, count: int
) -> tuple[Any, int]:
    """A pointer to the numbers of an element, and their alignment in bytes."""
    made = context.make_array(array_type)(context, builder, array)
    shapes, strides = (cgutils.unpack_tuple(builder, part, array_type.ndim) for part in (made.shape, made.strides))
    offset = context.get_constant(types.intp, 0)
    for k, (kind, position) in enumerate(zip(index_type, cgutils.unpack_tuple(builder, index, len(index_type)))):
        found = context.cast(builder, position, kind, types.intp if kind.signed else types.uintp)
        if kind.signed:
            found = arrayobj.fix_integer_index(context, builder, types.intp, found, shapes[k])
        offset = builder.add(offset, builder.mul(found, strides[k], flags=("nsw",)), flags=("nsw",))
    byte = llvm.IntType(8).as_pointer()
    first = builder.gep(builder.bitcast(made.data, byte), [offset], inbounds=True)
    number = context.get_value_type(array_type.dtype)
    return builder.bitcast(first, llvm.VectorType(number, count).as_pointer()), array_type.dtype.bitwidth // 8


@intrinsic(prefer_literal=True)
def loaded(typing_context: Any, array: Any, index: Any, count: Any) -> Any:
    """``array[index]`` in ``count`` directions."""
    index = _plain_index(index)
    lanes = Lanes(array.dtype, count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer, aligned = _place(context, builder, array, args[0], index, args[1], lanes.count)
        return builder.load(pointer, align=aligned)

    return lanes(array, index, count), generate


@intrinsic
def stored(typing_context: Any, array: Any, index: Any, lanes: Any) -> Any:
    """``array[index] = lanes``."""
    index = _plain_index(index)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer, aligned = _place(context, builder, array, args[0], index, args[1], lanes.count)
        builder.store(args[2], pointer, align=aligned)
        return context.get_dummy_value()

    return types.void(array, index, lanes), generate


@intrinsic
def added(typing_context: Any, array: Any, index: Any, lanes: Any) -> Any:
    """``array[index] += lanes``."""
    index = _plain_index(index)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        pointer, aligned = _place(context, builder, array, args[0], index, args[1], lanes.count)
        builder.store(builder.fadd(builder.load(pointer, align=aligned), args[2]), pointer, align=aligned)
        return context.get_dummy_value()

    return types.void(array, index, lanes), generate


def _plain_index(index: types.BaseTuple) -> types.BaseTuple:
    return types.Tuple.from_types([types.unliteral(kind) for kind in index])

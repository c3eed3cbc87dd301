"""Numba intrinsics written in LLVM IR, as packages have them."""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def ones_in(typing_context, x):
    """The number of bits that are set."""
    if not isinstance(x, types.Integer):
        return None

    def generate(context, builder, signature, arguments):
        (value,) = arguments
        kind = value.type
        name = f"llvm.ctpop.i{kind.width}"
        function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind, [kind]), name)
        return context.cast(builder, builder.call(function, [value]), x, types.int64)

    return types.int64(x), generate


@intrinsic
def as_number(typing_context, x):
    """The double that has these bits."""

    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def as_bits(typing_context, x):
    def generate(context, builder, signature, arguments):
        return builder.bitcast(arguments[0], ir.IntType(64))

    return types.int64(types.float64), generate


@intrinsic
def higher(typing_context, x, y):
    def generate(context, builder, signature, arguments):
        return builder.icmp_signed(">", *arguments)

    return types.boolean(types.int64, types.int64), generate


@intrinsic
def less_than_sum(typing_context, x, y, z, w):
    def generate(context, builder, signature, arguments):
        first, *others = arguments
        total = others[0]
        for other in others[1:]:
            total = builder.add(total, other)
        return builder.icmp_signed("<", first, total)

    return types.boolean(types.int64, types.int64, types.int64, types.int64), generate


@intrinsic
def fused(typing_context, x, y, z):
    """``x * y + z``, rounded once."""
    signature = types.float64(types.float64, types.float64, types.float64)
    return signature, lambda context, builder, signature, arguments: builder.fma(*arguments)


@intrinsic
def twice_rounded(typing_context, x, y, z):
    def generate(context, builder, signature, arguments):
        x, y, z = arguments
        return builder.fadd(builder.fmul(x, y), z)

    return types.float64(types.float64, types.float64, types.float64), generate

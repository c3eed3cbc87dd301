"""Functions in derivative programs that Numba lacks, or that it cannot cache."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, ConcreteTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, overload
from numba.np import arrayobj


def get_num_threads() -> int:
    """``numba.get_num_threads`` in a form that compiled code in a cache can call."""
    return numba.get_num_threads()


@intrinsic
def _threads(typing_context: Any) -> Any:
    numba.get_num_threads()  # starts the threads, and makes the name below known

    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        function = ir.FunctionType(cgutils.intp_t, [])
        return builder.call(cgutils.get_or_insert_function(builder.module, function, "get_num_threads"), [])

    return types.intp(), call


@overload(get_num_threads)
def _get_num_threads() -> Any:
    return lambda: _threads()  # type: ignore[call-arg]


def separate(function: Any) -> Any:
    """Compile a function of a generated file that others in it call; divisions by zero follow IEEE arithmetic."""
    return njit(error_model="numpy")(function)


def fused(x, y, z):
    """``x * y + z``, rounded once if the processor can do that, and otherwise twice."""
    return x * y + z


@intrinsic
def _fused(typing_context: Any, x: Any, y: Any, z: Any) -> Any:
    def call(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        number = arguments[0].type
        function = ir.FunctionType(number, [number] * 3)
        return builder.call(builder.module.declare_intrinsic("llvm.fmuladd", [number], function), arguments)

    return x(x, x, x), call


@overload(fused, inline="always")
def _overload_fused(x, y, z):  # Numba compares the arguments with those of the lambda, annotations included
    if x == y == z and x in (types.float32, types.float64):
        return lambda x, y, z: _fused(x, y, z)
    return lambda x, y, z: x * y + z


def selected(condition, x, y):
    """``x if condition else y`` without a branch: both are evaluated.

    The time of Numba's analyses grows with the square of the number of branches.
    """
    return x if condition else y


@infer_global(selected)
class _Selected(AbstractTemplate):
    def generic(self, args: tuple, kws: dict) -> Any:
        if kws or len(args) != 3:
            return None
        found = self.context.unify_types(*map(types.unliteral, args[1:]))
        return None if found is None else signature(found, types.boolean, found, found)


@lower_builtin(selected, types.Boolean, types.Any, types.Any)
def _select(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    return builder.select(*args)


def where_nonzero(factor, product):
    """``product if factor != 0 else 0.0`` without a branch: a product with a factor that is zero is zero, even if the
    other factor is infinite."""
    return product if factor != 0 else 0.0


@infer_global(where_nonzero)
class _WhereNonzero(ConcreteTemplate):
    cases = [signature(types.float64, types.float64, types.float64)]


@lower_builtin(where_nonzero, types.float64, types.float64)
def _where_nonzero(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    factor, product = args
    zero = context.get_constant(types.float64, 0.0)
    return builder.select(builder.fcmp_unordered("!=", factor, zero), product, zero)


def scratch(size, dtype):
    """A vector of zeros of a constant size, which exists while the program runs.

    In compiled code it is on the stack, so that compilers know that it has no aliases.
    """
    return np.zeros(size, dtype)


@infer_global(scratch)
class _Scratch(AbstractTemplate):
    prefer_literal = True

    def generic(self, args: tuple, kws: dict) -> Any:
        if kws or len(args) != 2 or not isinstance(args[0], types.IntegerLiteral):
            return None
        return signature(types.Array(args[1].dtype, 1, "C"), *args)


@lower_builtin(scratch, types.IntegerLiteral, types.DTypeSpec)  # no call: the stack is that of the program
def _on_stack(context: Any, builder: Any, sig: Any, args: Any) -> Any:
    array_type, count = sig.return_type, sig.args[0].literal_value
    number = context.get_data_type(array_type.dtype)
    block = cgutils.alloca_once(builder, ir.ArrayType(number, count))
    block.align = 64
    width = context.get_abi_sizeof(number)
    cgutils.memset(builder, block, context.get_constant(types.intp, count * width), 0)
    array = context.make_array(array_type)(context, builder)
    intp = lambda n: context.get_constant(types.intp, n)
    arrayobj.populate_array(
        array,
        data=builder.bitcast(block, number.as_pointer()),
        shape=cgutils.pack_array(builder, [intp(count)]),
        strides=cgutils.pack_array(builder, [intp(width)]),
        itemsize=intp(width),
        meminfo=None,
    )
    return array._getvalue()


@njit
def put_into(target, source):
    """``target[:] = source`` of arrays of the same shape.

    For an assignment to a part of an array Numba would also compile an error message, which takes seconds.
    """
    for place in np.ndindex(source.shape):
        target[place] = source[place]


@njit
def longer(array, size):
    """A new vector of this size, which begins with the elements of ``array`` (compare `put_into`)."""
    new = np.empty(size, array.dtype)
    for i in range(array.shape[0]):
        new[i] = array[i]
    return new


SOLVED_AT_ONCE = 16  # rows of a block


@njit(error_model="numpy")
def solve_upper(matrix, right):
    """Solve an upper triangular system, by blocks of rows from the last one on.

    Numba has no such function, and takes five seconds to compile its general solver.
    """
    found = right.copy()
    stop = matrix.shape[0]
    while stop > 0:
        start = max(stop - SOLVED_AT_ONCE, 0)
        rows = found[start:stop]
        if stop < matrix.shape[0]:
            known = np.dot(matrix[start:stop, stop:].copy(), found[stop:])
            for i in range(stop - start):
                for j in range(found.shape[1]):
                    rows[i, j] -= known[i, j]
        for i in range(stop - 1, start - 1, -1):
            for k in range(i + 1, stop):
                factor = matrix[i, k]
                for j in range(found.shape[1]):
                    found[i, j] -= factor * found[k, j]
            for j in range(found.shape[1]):
                found[i, j] /= matrix[i, i]
        stop = start
    return found


@njit
def digamma(x):
    """The derivative of ``lgamma``: reflection for x <= 0, recurrence up to 10, then the asymptotic series."""
    if x <= 0.0:
        if x == math.floor(x):
            return math.nan
        return digamma(1.0 - x) - math.pi / math.tan(math.pi * x)
    shift = 0.0
    while x < 10.0:
        shift -= 1.0 / x
        x += 1.0
    w = 1.0 / (x * x)
    series = w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w * (1 / 132 - w * 691 / 32760)))))
    return shift + math.log(x) - 0.5 / x - series


@njit
def trigamma(x):
    """The second derivative of ``lgamma``, by the same steps as ``digamma``."""
    if x <= 0.0:
        if x == math.floor(x):
            return math.nan
        s = math.pi / math.sin(math.pi * x)
        return s * s - trigamma(1.0 - x)
    shift = 0.0
    while x < 10.0:
        shift += 1.0 / (x * x)
        x += 1.0
    w = 1.0 / (x * x)
    series = w * (1 / 6 - w * (1 / 30 - w * (1 / 42 - w * (1 / 30 - w * (5 / 66 - w * 691 / 2730)))))
    return shift + 1.0 / x + 0.5 * w + series / x


@njit
def tetragamma(x):
    """The third derivative of ``lgamma``, by the same steps as ``digamma``."""
    if x <= 0.0:
        if x == math.floor(x):
            return math.nan
        s, c = math.sin(math.pi * x), math.cos(math.pi * x)
        return tetragamma(1.0 - x) - 2.0 * math.pi**3 * c / (s * s * s)
    shift = 0.0
    while x < 10.0:
        shift -= 2.0 / (x * x * x)
        x += 1.0
    w = 1.0 / (x * x)
    series = w * (1 / 2 - w * (1 / 6 - w * (1 / 6 - w * (3 / 10 - w * (5 / 6 - w * 691 / 210)))))
    return shift - w - w / x - series * w

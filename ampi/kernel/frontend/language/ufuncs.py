"""Calls of ``@numba.vectorize`` and ``@numba.guvectorize`` functions in kernels: loops around the inlined function."""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
from numba import types
from numba.np import numpy_support
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import as_lazy
from ampi.kernel.frontend.arrays.values import Lazy, axes_for, computed, element_at, element_of, is_array, shape_of
from ampi.kernel.frontend.base.values import Static, Value
from ampi.kernel.frontend.language import loops
from ampi.kernel.frontend.language.inline import call_function
from ampi.kernel.frontend.language.invocations import AUTHORED, call_values
from ampi.kernel.ir import inference
from ampi.kernel.ir.index_algebra import ONE, ZERO
from ampi.kernel.ir.intrinsics import cast


def call_arguments(builder: Any, node: ast.Call, name: str) -> list[Value]:
    values, keywords = call_values(builder, node)
    if keywords:
        builder.fail(node, f"keyword arguments of '{name}'", "pass plain positional arguments")
    for value in values:
        if not (is_array(value) or (isinstance(value, ir.Expr) and inference.is_scalar(value.type))):
            builder.fail(node, f"'{name}' takes numbers and arrays")
    return [array_values.settled(builder, v) for v in values]


# --------------------------------------------------------------------------------------------------- vectorize


def vectorized(builder: Any, function: DUFunc, node: ast.Call, hint: str | None) -> Value:
    """A call with numbers or, element by element, with arrays; an additional last argument takes the result."""
    values, name = call_arguments(builder, node, function.__name__), function.__name__
    inputs, target = values[: function.nin], values[function.nin :]
    if len(inputs) != function.nin or len(target) > 1:
        builder.fail(node, f"'{name}' of {len(values)} arguments", f"it takes {function.nin}")
    wanted = loop_types(function, [dtype_of(v) for v in inputs])
    type_ = array_values.result_type(builder, node, function, *values)
    dtype = type_.dtype if inference.is_array(type_) else type_

    def value_of(*elements: ir.Expr) -> ir.Expr:
        arguments = [cast(e, t) for e, t in zip(elements, wanted, strict=True)]
        value = call_function(builder, node, function._dispatcher.py_func, arguments, {})
        return cast(value, declared_result(function, wanted, dtype))

    if not any(map(is_array, values)):
        return cast(value_of(*inputs), dtype)
    inputs = [computed(builder, v, "operand") for v in inputs]
    shape = array_values.broadcast(builder, node, *values)
    axes = axes_for(builder, len(shape))
    result = target[0] if target else array_values.new_array(builder, "values", dtype, shape, variable=hint)

    def body() -> None:
        value = value_of(*(element_of(builder, v, axes) for v in inputs))
        builder.emit(ir.Store(result, axes, cast(value, result.type.dtype)))

    loops.emit_nest(builder, node, axes, [(ZERO, size) for size in shape], body)
    return result


def dtype_of(value: Value) -> types.Type:
    return inference.plain(value.type.dtype if is_array(value) else value.type)


def loop_types(function: DUFunc, call_arguments: list[types.Type]) -> list[types.Type]:
    """The types to which arguments are converted, if the function was compiled for certain types."""
    if not function._frozen:
        return call_arguments
    dtypes = [numpy_support.as_dtype(t) for t in call_arguments]
    for loop in function.types:
        wanted = [np.dtype(c) for c in loop.partition("->")[0]]
        if all(np.can_cast(a, b) for a, b in zip(dtypes, wanted, strict=True)):
            return [numpy_support.from_dtype(d) for d in wanted]
    return call_arguments


def declared_result(function: DUFunc, wanted: list[types.Type], dtype: types.Type) -> types.Type:
    """The type of the result, if the function was compiled for certain types; otherwise ``dtype``."""
    characters = "".join(numpy_support.as_dtype(t).char for t in wanted)
    for loop in function.types if function._frozen else ():
        arguments, _, result = loop.partition("->")
        if arguments == characters:
            return numpy_support.from_dtype(np.dtype(result))
    return dtype


# --------------------------------------------------------------------------------------------------- guvectorize


def generalized(builder: Any, function: GUFunc, node: ast.Call, hint: str | None) -> Value:
    """A generalized ufunc: a call of the function for each part of the arrays, output arrays included."""
    made = function.gufunc_builder
    values, cores = call_arguments(builder, node, function.__name__), [*made.sin, *made.sout]
    if len(values) != len(cores):
        advice = f"pass all {len(cores)}, including the output arrays"
        builder.fail(node, f"'{function.__name__}' of {len(values)} arguments", advice)
    parameters = signature_of(made, values, cores)
    count = len(made.sin)
    inputs = [converted(builder, v, p) for v, p in zip(values[:count], parameters, strict=False)]
    outputs = values[count:]
    for value in outputs:
        if not (isinstance(value, ir.Var) and is_array(value)):
            builder.fail(node, f"'{function.__name__}' needs output arrays", "pass named arrays")
    arrays = [*inputs, *outputs]
    leading = [shape_of(builder, v)[: v.type.ndim - len(c)] if is_array(v) else () for v, c in zip(arrays, cores)]
    shape = max(leading, key=len)
    for own in leading:
        for mine, theirs in zip(reversed(own), reversed(shape)):
            if mine != ONE:
                array_values.agree(builder, node, theirs, mine)
    axes = axes_for(builder, len(shape))

    def part(k: int) -> Value:
        value, own = arrays[k], leading[k]
        if not is_array(value):
            return value
        index = tuple(ZERO if n == ONE else a for n, a in zip(own, axes[len(axes) - len(own) :], strict=True))
        if cores[k]:
            return builder.subscript(node, value, index, None)
        if k < count and not inference.is_array(parameters[k]):
            return element_at(value, index)
        single = types.Array(value.type.dtype, 1, "A", readonly=not value.type.mutable)
        return array_values.rearranged(builder, value, single, axes_for(builder, 1), (ONE,), index, None)

    def body() -> None:
        call_function(builder, node, made.py_func, [part(k) for k in range(len(arrays))], {})

    loops.emit_nest(builder, node, axes, [(ZERO, size) for size in shape], body)
    return Static(None)  # as in Numba; in NumPy the call returns the results


def signature_of(made: Any, values: list[Value], cores: list[Any]) -> list[types.Type]:
    """The types of the function's parameters: of the first signature into which the values fit."""
    dtypes = [numpy_support.as_dtype(dtype_of(v)) for v in values]
    for signature in made._sigs:
        wanted = [numpy_support.as_dtype(getattr(t, "dtype", t)) for t in signature.args]
        if all(np.can_cast(a, b) for a, b in zip(dtypes, wanted, strict=True)):
            return list(signature.args)
    return [types.Array(dtype_of(v), len(c), "A") if c else dtype_of(v) for v, c in zip(values, cores, strict=True)]


def converted(builder: Any, value: Value, parameter: types.Type) -> Value:
    dtype = getattr(parameter, "dtype", parameter)
    if not is_array(value):
        return cast(value, dtype)
    if value.type.dtype == dtype:
        return computed(builder, value, "operand")
    lazy = value if isinstance(value, Lazy) else as_lazy(builder, value)
    type_ = types.Array(dtype, len(lazy.axes), "C")
    return computed(builder, Lazy(type_, lazy.axes, lazy.shape, cast(lazy.value, dtype)), "operand")


AUTHORED[DUFunc] = vectorized
AUTHORED[GUFunc] = generalized

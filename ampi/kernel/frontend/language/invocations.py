"""Calls in a kernel, of NumPy's and Python's functions and of other kernels: Python -> values."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import LiteralTypingError, NumbaError
from numba.core.registry import cpu_target
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import functions as array_functions
from ampi.kernel.frontend.arrays import sequences, structured_arrays
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.arrays.values import Lazy, is_array
from ampi.kernel.frontend.base import compositions
from ampi.kernel.frontend.base import draws as random_draws
from ampi.kernel.frontend.base.declared import declared, python_function_of
from ampi.kernel.frontend.base.refusals import BY_POSITION, instead_of, keywords_of
from ampi.kernel.frontend.base.values import (
    ZERO,
    Group,
    Slice,
    Static,
    Value,
    conjugate,
    is_list_of_arrays,
    is_listed,
    part_of,
)
from ampi.kernel.frontend.language import expressions, foreign_intrinsics, operator_functions
from ampi.kernel.frontend.language.desugar import Nested
from ampi.kernel.frontend.language.inline import call_function
from ampi.kernel.frontend.scipy import special as scipy_special
from ampi.kernel.ir import inference, intrinsics
from ampi.kernel.ir.intrinsics import cast
from ampi.kernel.runtime import overloads
from ampi.kernel.runtime.cache import function_of
from ampi.kernel.runtime.listed_arrays import lists_cut_short
from ampi.kernel.runtime.scipy_names import name_in_scipy

CASTS: tuple[Any, ...] = (
    *(bool, int, float, np.bool_, np.int8, np.int16, np.int32, np.int64, np.intp),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.float32, np.float64, np.complex64, np.complex128),
)
OF_A_NUMBER = (
    np.sum,
    np.prod,
    np.mean,
    np.max,
    np.min,
    np.nanmax,
    np.nanmin,
    np.any,
    np.all,
)  # the number, or its truth
ALLOCATIONS = (np.empty, np.zeros, np.ones, np.full, np.empty_like, np.zeros_like, np.ones_like, np.full_like)
AUTHORED: dict[type, Callable[..., Any]] = {}
"""Parsers of calls, by the type of the function called: custom derivatives, stencils and Numba's ufuncs.

Other modules register them.  A parser returns None if the call is to be parsed as one of the plain function.
"""
_PARAMETER = inspect.Parameter
_SIGNATURES = {
    "empty": "shape dtype",
    "zeros": "shape dtype",
    "ones": "shape dtype",
    "full": "shape fill_value dtype",
    "empty_like": "a dtype",
    "zeros_like": "a dtype",
    "ones_like": "a dtype",
    "full_like": "a fill_value dtype",
    "array": "object dtype",
}
_ALLOCATION_SIGNATURES = {
    name: inspect.Signature(
        [
            _PARAMETER(p, _PARAMETER.POSITIONAL_OR_KEYWORD, default=None if p == "dtype" else _PARAMETER.empty)
            for p in parameters.split()
        ]
    )
    for name, parameters in _SIGNATURES.items()
}


def kernel_function(value: Any) -> Any:
    """The Python function of a kernel, or of a function compiled by Numba; None for anything else."""
    function = function_of(value) if hasattr(value, "py_func") else None
    if not inspect.isfunction(function):
        return None
    return python_function_of(value) if function is value.py_func and not declared(function) else function


def _is_one_of(function: Any, functions: tuple[Any, ...]) -> bool:
    return any(function is f for f in functions)


def _name_of(function: Any) -> str:
    of_scipy = name_in_scipy(function)
    if of_scipy is not None:
        return f"scipy.special.{of_scipy}"
    module = getattr(function, "__module__", None)
    name = getattr(function, "__name__", None) or re.sub(r"^<|( object)? at 0x\w+|>$", "", str(function))
    return name if module in (None, "builtins") else f"{module}.{name}"


def call_value(builder: Any, node: ast.Call, hint: str | None = None) -> Value:
    if isinstance(node.func, ast.Attribute):
        method = method_value(builder, node)
        if method is not None:
            return method
    called = builder.value(node.func)
    if not isinstance(called, Static):
        builder.fail(node, "this cannot be called")
    function = called.value
    if isinstance(function, (types.Number, types.Boolean)):  # Numba's types convert, as NumPy's do
        function = numpy_support.as_dtype(function).type
    function = scipy_special.stand_in(function)
    call_rule = next((AUTHORED[c] for c in type(function).__mro__ if c in AUTHORED), None)
    if call_rule is not None:
        value = call_rule(builder, function, node, hint)
        if value is not None:
            return value
        function = function.f
    python_function = kernel_function(function)
    if python_function is not None:
        if hasattr(function, "targetoptions"):  # a function that Numba compiles, not a kernel
            refuse_short_lists(builder, node, python_function)
        return call_kernel(builder, node, python_function, hint)
    if _is_one_of(function, ALLOCATIONS) or function is np.array:
        return allocate(builder, node, function, hint)
    if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
        return named_tuple(builder, node, function)
    if function is slice:
        return slice_object(builder, node)
    if function is isinstance:
        return operator_functions.is_instance(builder, node)
    expression = operator_functions.as_expression(function, node)
    if expression is not None:
        return builder.value(expression)
    if function is len and len(node.args) == 1 and not node.keywords:
        return length(builder, node, builder.any_value(node.args[0]))
    if function is list and len(node.args) == 1 and not node.keywords:
        return listed(builder, node, builder.any_value(node.args[0]))
    handler = array_functions.lookup(function)
    if handler is not None:
        values, keywords = call_values(builder, node, lists=function is np.asarray)
        if array_functions.is_of_arrays(handler, [*values, *keywords.values()]):
            return array_functions.call(builder, node, handler, values, keywords)
    if foreign_intrinsics.is_foreign(function):
        return foreign_intrinsics.call(builder, node, function)
    if handler is None and not is_known(function):
        refuse(builder, node, function)
    if inspect.isfunction(function) and intrinsics.lookup(function) is None and handler is None:
        values, keywords = call_values(builder, node)
        chosen = overloaded(builder, node, function, values, keywords)
        if chosen is not None:
            return call_function(builder, node, chosen, values, keywords, hint)
        builder.fail(node, f"'{function.__name__}' is a plain Python function", "decorate it with @ampi.kernel")
    arguments = expressions.spread(builder, node.args)
    if node.keywords:
        arguments = in_order(builder, node, function, arguments)
    if isinstance(function, np.ufunc) and len(arguments) > function.nin:
        return into_result(builder, node, function, arguments)
    return of_elements(builder, node, function, arguments)


def slice_object(builder: Any, node: ast.Call) -> Group:
    """``slice(start, stop, step)``, for use as an index."""
    values = expressions.spread(builder, node.args)
    if node.keywords or not 1 <= len(values) <= 3:
        builder.fail(node, "slice takes one to three bounds")
    nothing: Value = Static(None)
    if len(values) == 1:
        values = [nothing, *values]
    for value in values:
        if value != nothing and not (isinstance(value, ir.Expr) and isinstance(value.type, types.Integer)):
            builder.fail(node, "the bounds of a slice must be integers")
    return Group((*values, *[nothing] * (3 - len(values))), Slice)


def overloaded(builder: Any, node: ast.Call, function: Any, values: list[Value], keywords: dict[str, Value]) -> Any:
    """The overload that a Numba extension declares for a plain function; None if there is none."""

    def type_of(value: Value) -> types.Type:
        found = builder.type_of(node, value)
        if not isinstance(found, types.Omitted):
            return found
        given = numba.njit(found.value.py_func) if isinstance(found.value, Nested) else found.value
        try:
            return types.literal(given)
        except LiteralTypingError:
            builtin = inspect.isbuiltin(given) or isinstance(given, np.ufunc)
            return cpu_target.typing_context.resolve_value_type(given) if builtin else numba.typeof(given)

    try:
        return overloads.implementation(function, [*map(type_of, values)], {n: type_of(v) for n, v in keywords.items()})
    except NumbaError as problem:
        builder.fail(node, f"'{function.__name__}': {problem}")


SPECIAL: tuple[Any, ...] = (
    *(min, max, sum, len, pow, np.real, np.imag, np.conj, np.conjugate, np.finfo, np.iinfo, print, type),
)


def is_known(function: Any) -> bool:
    """Return whether calls of a function can be parsed, for some arguments."""
    if _is_one_of(function, CASTS) or _is_one_of(function, SPECIAL) or intrinsics.lookup(function) is not None:
        return True
    is_plain = inspect.isfunction(function) and (function.__module__ or "").partition(".")[0] not in ("numpy", "numba")
    return is_plain or compositions.is_composed(function) or _is_one_of(function, (range, zip, enumerate, numba.prange))


def refuse(builder: Any, node: ast.Call, function: Any) -> None:
    """Raise the error for an unsupported function, with what to use instead."""
    name = _name_of(function)
    if type(function).__name__ == "JitClassType":
        builder.fail(node, f"the jitclass {name}", "pass its data in a named tuple; write its methods as kernels")
    builder.fail(node, f"{name} is not known to the differentiator", instead_of(name))


def of_elements(builder: Any, node: ast.Call, function: Any, arguments: list[Value]) -> Value:
    if any(function is f for f in (min, max, sum)) and arguments and is_array(arguments[0]):
        return of_vector(builder, node, function, *arguments)
    if any(map(is_array, arguments)) and intrinsics.lookup(function) is not None:
        make = lambda *values: call(builder, node, function, list(values))
        return array_values.operation(builder, node, function, make, *arguments)
    return call(builder, node, function, arguments)


def in_order(builder: Any, node: ast.Call, function: Any, arguments: list[Value]) -> list[Value]:
    """Arguments by position and by keyword, in the order of a built-in function's parameters."""
    name = _name_of(function)
    if name in BY_POSITION:
        builder.fail(node, *keywords_of(name, node))
    if isinstance(function, np.ufunc) or any(k.arg is None for k in node.keywords):
        builder.fail(node, f"keyword arguments of {name}", "pass plain positional arguments")
    values = expressions.spread(builder, [k.value for k in node.keywords])
    given = {k.arg: v for k, v in zip(node.keywords, values, strict=True)}
    try:
        bound = inspect.signature(function).bind(*arguments, **given)
        assert not bound.kwargs
    except (TypeError, ValueError, AssertionError):
        builder.fail(node, f"keyword arguments of {name}", "pass plain positional arguments")
    return list(bound.args)


def into_result(builder: Any, node: ast.Call, function: Any, arguments: list[Value]) -> Value:
    """A ufunc with an output array: ``np.multiply(a, b, result)``."""
    *given, target = arguments
    if len(arguments) != function.nin + 1 or function.nout != 1:
        builder.fail(node, f"{_name_of(function)} of {len(arguments)} arguments")
    if not (isinstance(target, ir.Var) and is_array(target)):
        builder.fail(node, f"the last argument of {_name_of(function)} must be an output array", "pass a named array")
    value = of_elements(builder, node, function, given)
    array_values.assign(builder, node, array_values.whole(builder, target), value)
    return target


def method_value(builder: Any, node: ast.Call) -> Value | None:
    """The value of a method call on a scalar, an array or a random generator; None for anything else."""
    owner = node.func.value
    if isinstance(owner, ast.Name) and owner.id not in builder.webs.definitions:
        if not isinstance(builder.globals.get(owner.id), np.ndarray):
            return None
    value = builder.value(owner)
    if isinstance(value, Static) and isinstance(value.value, random_draws.Generator):
        return random_draws.method_value(builder, node, value.value, *call_values(builder, node))
    if isinstance(value, ir.Expr) and inference.is_scalar(value.type):
        if node.func.attr in ("conjugate", "conj"):
            return conjugate(value)
        if node.func.attr == "item" and not (node.args or node.keywords):
            return value
    if isinstance(value, Records) and not value.index and node.func.attr == "copy" and not (node.args or node.keywords):
        return structured_arrays.with_arrays(value, lambda a: array_values.copied(builder, a, "copy"))
    if is_array(value):
        if node.func.attr in ("conjugate", "conj") and not (node.args or node.keywords):
            return of_elements(builder, node, np.conjugate, [value])
        handler = array_functions.METHODS.get(node.func.attr)
        if handler is None and sequences.is_list(builder, value):
            builder.fail(node, f"'.{node.func.attr}()' of a list is not supported here", sequences.OF_LISTS)
        if handler is None:
            builder.fail(
                node, f"'.{node.func.attr}()' of an array is not known to the differentiator", instead_of("numpy.")
            )
        values, keywords = call_values(builder, node)
        return array_functions.call(builder, node, handler, [value, *values], keywords)
    return None


def named_tuple(builder: Any, node: ast.Call, cls: Any) -> Group:
    values, keywords = call_values(builder, node)
    try:
        items = cls(*values, **keywords)
    except TypeError as problem:
        builder.fail(node, str(problem))
    return Group(tuple(array_values.computed(builder, v) if isinstance(v, Lazy) else v for v in items), cls)


def call_values(builder: Any, node: ast.Call, lists: bool = False) -> tuple[list[Value], dict[str, Value]]:
    """The values of positional and keyword arguments; with ``lists`` these may be lists of tuples."""
    if any(k.arg is None for k in node.keywords):
        builder.fail(node, "** in a call is not supported", "pass the arguments one by one")
    make = builder.any_value if lists else builder.value
    values = expressions.spread(builder, [*node.args, *(k.value for k in node.keywords)], make)
    number = len(values) - len(node.keywords)
    return values[:number], {k.arg: v for k, v in zip(node.keywords, values[number:], strict=True)}


def call(builder: Any, node: ast.Call, function: Any, arguments: list[Value]) -> Value:
    """A call of a built-in, ``math`` or NumPy function on scalars."""
    if function is len and len(arguments) == 1:
        return length(builder, node, arguments[0])
    if function in (min, max) and len(arguments) == 1 and isinstance(arguments[0], Group):
        arguments = list(arguments[0].items)
    if function is sum and arguments and isinstance(arguments[0], Group):
        return total_of(builder, node, arguments[0], *arguments[1:])
    compose = compositions.lookup(function, arguments)
    if compose is not None:
        composed = compose(builder, node, *arguments)
        return Group(composed) if isinstance(composed, tuple) else composed
    if function is type and len(arguments) == 1:
        return class_of(builder, node, arguments[0])
    if function in (np.finfo, np.iinfo) and len(arguments) == 1 and isinstance(arguments[0], Static):
        return Static(function(arguments[0].value))
    if function is float and len(arguments) == 1 and isinstance(getattr(arguments[0], "value", None), str):
        return number_in_text(builder, node, arguments[0].value)
    for argument, given in zip(arguments, node.args, strict=False):
        if not isinstance(argument, ir.Expr):
            builder.fail(given, f"{_name_of(function)} takes numbers here", "pass numbers, or an array")
        if inference.is_array(argument.type):
            builder.fail(given, f"{_name_of(function)} of a whole array is not known", instead_of(_name_of(function)))
    if len(arguments) == 1 and _is_one_of(function, (*CASTS, complex, *OF_A_NUMBER)):
        return convert(builder, node, function, arguments[0])
    if function in (np.real, np.imag):
        return part_of(function.__name__, arguments[0])
    if function in (np.conj, np.conjugate):
        return conjugate(arguments[0])
    if function is pow and len(arguments) == 2:
        return builder.binary(node, ast.Pow(), *arguments)
    return intrinsic(builder, node, function, arguments)


def listed(builder: Any, node: ast.Call, value: Value) -> Value:
    """``list(x)``: a new list of the same numbers, or of the same arrays."""
    if array_values.is_array(value) and value.type.ndim == 1:
        return sequences.copied_list(builder, node, value)
    if array_values.is_array(value):  # its rows; read-only, since replacing an item must not write to the matrix
        value = array_values.computed(builder, value)
        rows = ir.Var(builder.new_array_name(None, "rows"), value.type.copy(readonly=True))
        builder.emit(ir.Alias(rows, value, ()))
        builder.describe_part(rows, value, 0)
        return rows
    if is_listed(value):
        return sequences.of_columns(sequences.array_of(builder, node, column) for column in value.items)
    if isinstance(value, Group) and value.cls is not Slice:
        return value
    return builder.fail(node, "list takes a tuple, a list, an array or a range")


def number_in_text(builder: Any, node: ast.Call, text: str) -> ir.Const:
    """``float("inf")``."""
    try:
        return ir.Const(float(text), types.float64)
    except ValueError as problem:
        return builder.fail(node, str(problem))


def class_of(builder: Any, node: ast.Call, value: Value) -> Static:
    """``type(x)`` of a number: its NumPy scalar type."""
    if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
        builder.fail(node, "type(...) of something that is not a number", "use a.dtype of an array")
    return Static(numpy_support.as_dtype(inference.plain(value.type)).type)


def convert(builder: Any, node: ast.Call, function: Any, value: ir.Expr) -> ir.Expr:
    if function in (bool, np.bool_, np.any, np.all):
        return builder.truth(node, value)
    type_ = inference.result_type(function, (value.type,))
    if type_ is None:
        builder.fail(node, f"{_name_of(function)} of a {value.type}", "take .real first")
    return cast(value, type_)


def total_of(builder: Any, node: ast.Call, group: Group, start: Value | None = None) -> Value:
    """``sum`` of a tuple."""
    total = ZERO if start is None else start
    for item in group.items:
        if not all(isinstance(v, ir.Expr) and inference.is_scalar(v.type) for v in (total, item)):
            builder.fail(node, "sum of a tuple whose items are not all numbers")
        total = builder.binary(node, ast.Add(), total, item)
    return total


def of_vector(builder: Any, node: ast.Call, function: Any, a: Any, start: Value = ZERO, *more: Value) -> ir.Expr:
    """``sum``, ``min`` or ``max`` of a vector."""
    if a.type.ndim != 1 or more or (start is not ZERO and function is not sum):
        advice = f"write np.{function.__name__}(...)"
        builder.fail(node, f"{function.__name__} of a multi-dimensional array, or of an array and more", advice)
    if function is not sum:
        return array_functions.extreme(builder, node, a, function.__name__, function, of_numpy=False)
    if not (isinstance(start, ir.Expr) and inference.is_scalar(start.type)):
        builder.fail(node, "the start of a sum is not a number")
    type_ = inference.unify(start.type, builder.binary(node, ast.Add(), start, ir.Const(0, a.type.dtype)).type)
    add = array_functions.binary(builder, node, ast.Add())
    return array_functions.fold(builder, a, cast(start, type_), add, "total")


def intrinsic(builder: Any, node: ast.Call, function: Any, arguments: list[ir.Expr]) -> ir.Expr:
    name = intrinsics.lookup(function)
    if name is None:
        builder.fail(
            node,
            f"{_name_of(function)} is not known to the differentiator",
            instead_of(_name_of(function)),
        )
    arity = intrinsics.TABLE[name].arity
    if len(arguments) != arity and function not in (min, max):
        builder.fail(node, f"{_name_of(function)} of {len(arguments)} arguments", f"it takes {arity} here")
    if function in (min, max) and len(arguments) > 2:
        result = arguments[0]
        for argument in arguments[1:]:
            result = builder.operation(node, name, function, result, argument)
        return result
    result = builder.operation(node, name, function, *arguments)
    if name in ("pow", "truediv", "floordiv") and all(isinstance(a.type, types.Integer) for a in arguments):
        # In generated source it is an operator, whose result could be an integer.
        result = replace(result, args=tuple(cast(a, result.type) for a in arguments))
    return result


def length(builder: Any, node: ast.Call, value: Value) -> ir.Expr:
    if is_list_of_arrays(value):
        return sequences.number_of_arrays(builder, value)
    if is_listed(value):
        return array_values.shape_of(builder, value.items[0])[0]
    if isinstance(value, Group):
        return ir.Const(len(value.items), types.intp)
    if isinstance(value, Records) and not value.index:
        return array_values.shape_of(builder, value.first)[0]
    if is_array(value):
        return array_values.shape_of(builder, value)[0]
    if isinstance(value, Static) and hasattr(value.value, "__len__"):
        return ir.Const(len(value.value), types.intp)
    return builder.fail(node, "len of a number")


def allocate(builder: Any, node: ast.Call, function: Any, hint: str | None) -> ir.Var | Records:
    """``np.empty``, ``np.zeros`` and their relatives, and ``np.array`` of a tuple of numbers."""
    values, keywords = call_values(builder, node, lists=function is np.array)
    try:
        bound = _ALLOCATION_SIGNATURES[function.__name__].bind(*values, **keywords).arguments
    except TypeError as problem:
        builder.fail(node, f"np.{function.__name__}: {problem}")
    if function is np.array:
        dtype = None if array_functions.is_none(bound.get("dtype")) else builder.dtype(node, bound["dtype"])
        return sequences.array_of(builder, node, bound["object"], dtype, hint)
    if function.__name__.endswith("_like"):
        like = bound["a"]
        if isinstance(like, Records) and not like.index:
            shape, default = array_values.shape_of(builder, like.first)[: like.ndim], like.type.dtype
        elif is_array(like):
            shape, default = array_values.shape_of(builder, like), like.type.dtype
        elif isinstance(like, ir.Expr):
            shape, default = (), inference.plain(like.type)
        else:
            builder.fail(node, f"np.{function.__name__} needs an array or a number")
    else:
        shape = shape_of_new(builder, node, bound["shape"])
        default = types.float64
    fill = filling(builder, node, function, bound)
    if function in (np.full,) and fill is not None:
        default = fill.type
    dtype = default if bound.get("dtype") is None else builder.dtype(node, bound["dtype"], structured=True)
    if isinstance(dtype, types.Record):
        return structured_arrays.new(builder, node, dtype, shape, fill, hint or "records")
    fill = None if fill is None else cast(fill, dtype)
    return array_values.new_array(builder, "local", dtype, shape, fill, variable=hint)


def filling(builder: Any, node: ast.AST, function: Any, bound: dict[str, Value]) -> ir.Expr | None:
    kind = function.__name__.removesuffix("_like")
    if kind == "full":
        value = bound["fill_value"]
        if not (isinstance(value, ir.Expr) and inference.is_scalar(value.type)):
            builder.fail(node, "np.full needs a number to fill with")
        return value
    return {"empty": None, "zeros": ir.Const(0, types.int64), "ones": ir.Const(1, types.int64)}[kind]


def shape_of_new(builder: Any, node: ast.AST, value: Value) -> tuple[ir.Expr, ...]:
    items = value.items if isinstance(value, Group) else (value,)
    for item in items:
        if not (isinstance(item, ir.Expr) and isinstance(item.type, types.Integer)):
            builder.fail(node, "the shape of a new array must be integers")
    if not 1 <= len(items) <= 4:
        builder.fail(node, f"a new array of {len(items)} dimensions", "use one to four")
    return tuple(items)


def refuse_short_lists(builder: Any, node: ast.Call, function: Any) -> None:
    for name in lists_cut_short(function):
        builder.fail(
            node,
            f"'{function.__name__}', as Numba compiles it, converts only some elements of the list '{name}'",
            "decorate it with @ampi.kernel, which converts them all",
        )


def call_kernel(builder: Any, node: ast.Call, function: Any, hint: str | None) -> Value:
    """Inline the call of another kernel."""
    values, keywords = call_values(builder, node, lists=True)
    if any(map(is_listed, (*values, *keywords.values()))):
        builder.fail(node, "a list of tuples here", sequences.OF_TUPLES)
    return call_function(builder, node, function, values, keywords, hint)

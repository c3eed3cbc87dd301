"""Calls in a kernel, of NumPy's and Python's functions and of other kernels: Python -> values."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend import array_functions, array_values, compositions, expressions, subscripts
from ampi.kernel.frontend.array_values import Lazy, is_array
from ampi.kernel.frontend.declared import declared, numbas
from ampi.kernel.frontend.inline import inline, leaf_values
from ampi.kernel.frontend.structured_arrays import Records
from ampi.kernel.frontend.values import ZERO, Group, Single, Static, Value, conjugate, part_of
from ampi.kernel.ir import index_algebra, inference, intrinsics
from ampi.kernel.ir.intrinsics import cast

CASTS: tuple[Any, ...] = (
    *(bool, int, float, np.bool_, np.int8, np.int16, np.int32, np.int64, np.intp),
    *(np.uint8, np.uint16, np.uint32, np.uint64, np.float32, np.float64, np.complex64, np.complex128),
)
ALLOCATIONS = (np.empty, np.zeros, np.ones, np.full, np.empty_like, np.zeros_like, np.ones_like, np.full_like)
AUTHORED: dict[type, Callable[..., Any]] = {}
"""What parses calls of functions whose derivatives their author writes, by the types of these; `custom_calls` enters
it.  It gives None where the call is one of the plain function."""
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
    function = getattr(value, "py_func", None)
    if not inspect.isfunction(function):
        return None
    return function if declared(function) else numbas(value)


def _is_one_of(function: Any, functions: tuple[Any, ...]) -> bool:
    return any(function is f for f in functions)


def _name_of(function: Any) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__name__", str(function))
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
    call_rule = next((AUTHORED[c] for c in type(function).__mro__ if c in AUTHORED), None)
    if call_rule is not None:
        value = call_rule(builder, function, node, hint)
        if value is not None:
            return value
        function = function.f
    python_function = kernel_function(function)
    if python_function is not None:
        return call_kernel(builder, node, python_function, hint)
    if _is_one_of(function, ALLOCATIONS) or function is np.array:
        return allocate(builder, node, function, hint)
    if isinstance(function, type) and issubclass(function, tuple) and hasattr(function, "_fields"):
        return named_tuple(builder, node, function)
    handler = array_functions.lookup(function)
    if handler is not None:
        values, keywords = call_values(builder, node)
        if array_functions.is_of_arrays(handler, values):
            return array_functions.call(builder, node, handler, values, keywords)
    if inspect.isfunction(function) and intrinsics.lookup(function) is None:
        builder.fail(node, f"'{function.__name__}' is a plain Python function", "decorate it with @ampi.kernel")
    if node.keywords:
        builder.fail(node, "keyword arguments are only supported for kernels", "pass plain positional arguments")
    arguments = expressions.spread(builder, node.args)
    if isinstance(function, np.ufunc) and len(arguments) > function.nin:
        builder.fail(node, f"{_name_of(function)} with an array for its result", "write result[:] = ...")
    if any(map(is_array, arguments)) and intrinsics.lookup(function) is not None:
        make = lambda *values: call(builder, node, function, list(values))
        return array_values.operation(builder, node, function, make, *arguments)
    return call(builder, node, function, arguments)


def method_value(builder: Any, node: ast.Call) -> Value | None:
    """Methods of scalars and arrays."""
    owner = node.func.value
    if isinstance(owner, ast.Name) and owner.id not in builder.webs.definitions:
        return None
    value = builder.value(owner)
    if isinstance(value, ir.Expr) and inference.is_scalar(value.type) and node.func.attr in ("conjugate", "conj"):
        return conjugate(value)
    if is_array(value):
        handler = array_functions.METHODS.get(node.func.attr)
        if handler is None:
            builder.fail(
                node, f"'.{node.func.attr}()' of an array is not supported in a kernel", "loop over its elements"
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


def call_values(builder: Any, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    """The values of positional and keyword arguments."""
    if any(k.arg is None for k in node.keywords):
        builder.fail(node, "** in a call is not supported", "pass the arguments one by one")
    values = expressions.spread(builder, [*node.args, *(k.value for k in node.keywords)])
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
    if function in (np.finfo, np.iinfo) and len(arguments) == 1 and isinstance(arguments[0], Static):
        return Static(function(arguments[0].value))
    for argument, given in zip(arguments, node.args, strict=False):
        if not isinstance(argument, ir.Expr):
            builder.fail(given, f"{_name_of(function)} takes numbers")
        if inference.is_array(argument.type):
            builder.fail(given, f"{_name_of(function)} of a whole array", "loop over its elements")
    if _is_one_of(function, CASTS) and len(arguments) == 1:
        return convert(builder, node, function, arguments[0])
    if function in (np.real, np.imag):
        return part_of(function.__name__, arguments[0])
    if function in (np.conj, np.conjugate):
        return conjugate(arguments[0])
    if function is pow and len(arguments) == 2:
        return builder.binary(node, ast.Pow(), *arguments)
    return intrinsic(builder, node, function, arguments)


def convert(builder: Any, node: ast.Call, function: Any, value: ir.Expr) -> ir.Expr:
    if function in (bool, np.bool_):
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
            builder.fail(node, "sum of a tuple that holds other things than numbers")
        total = builder.binary(node, ast.Add(), total, item)
    return total


def intrinsic(builder: Any, node: ast.Call, function: Any, arguments: list[ir.Expr]) -> ir.Expr:
    name = intrinsics.lookup(function)
    if name is None:
        builder.fail(
            node,
            f"{_name_of(function)} is not known to the differentiator",
            "call a kernel (@ampi.kernel), or a function of math or NumPy on scalars that the table lists",
        )
    if function in (min, max) and len(arguments) > 2:
        result = arguments[0]
        for argument in arguments[1:]:
            result = builder.operation(node, name, function, result, argument)
        return result
    result = builder.operation(node, name, function, *arguments)
    if name in ("pow", "truediv", "floordiv") and all(isinstance(a.type, types.Integer) for a in arguments):
        # written as an operator of integers it could have another type
        result = replace(result, args=tuple(cast(a, result.type) for a in arguments))
    return result


def length(builder: Any, node: ast.Call, value: Value) -> ir.Expr:
    if isinstance(value, Group):
        return ir.Const(len(value.items), types.intp)
    if isinstance(value, Records) and not value.index:
        return array_values.shape_of(builder, value.first)[0]
    if is_array(value):
        return array_values.shape_of(builder, value)[0]
    if isinstance(value, Static) and hasattr(value.value, "__len__"):
        return ir.Const(len(value.value), types.intp)
    return builder.fail(node, "len of a number")


def allocate(builder: Any, node: ast.Call, function: Any, hint: str | None) -> ir.Var:
    """``np.empty``, ``np.zeros`` and their relatives, and ``np.array`` of a tuple of numbers."""
    values, keywords = call_values(builder, node)
    try:
        bound = _ALLOCATION_SIGNATURES[function.__name__].bind(*values, **keywords).arguments
    except TypeError as problem:
        builder.fail(node, f"np.{function.__name__}: {problem}")
    if function is np.array:
        return array_of(builder, node, bound["object"], bound.get("dtype"), hint)
    if function.__name__.endswith("_like"):
        like = bound["a"]
        if not is_array(like):
            builder.fail(node, f"np.{function.__name__} needs an array")
        shape = array_values.shape_of(builder, like)
        default = like.type.dtype
    else:
        shape = shape_of_new(builder, node, bound["shape"])
        default = types.float64
    fill = filling(builder, node, function, bound)
    if function in (np.full,) and fill is not None:
        default = fill.type
    dtype = default if bound.get("dtype") is None else builder.dtype(node, bound["dtype"])
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
            builder.fail(node, "the shape of a local array must be integers")
    if not 1 <= len(items) <= 4:
        builder.fail(node, f"a local array of {len(items)} dimensions", "use one to four")
    return tuple(items)


def array_of(builder: Any, node: ast.Call, value: Value, dtype: Value | None, hint: str | None) -> ir.Var:
    shape, items = nested(builder, node, value)
    if dtype is not None:
        type_ = builder.dtype(node, dtype)
    else:
        type_ = functools.reduce(inference.unify, (item.type for item in items.values()))
    return subscripts.filled_array(builder, "local", shape, items, type_, hint)


def nested(builder: Any, node: ast.Call, value: Value) -> tuple[tuple[int, ...], dict[tuple[int, ...], ir.Expr]]:
    """Shape and elements of an array that is written as nested tuples or lists of numbers."""
    if isinstance(value, ir.Expr) and inference.is_scalar(value.type):
        return (), {(): value}
    if not isinstance(value, Group) or not value.items:
        builder.fail(node, "np.array takes tuples or lists of numbers here", "use np.empty and assign the elements")
    rows = [nested(builder, node, item) for item in value.items]
    if len({shape for shape, _ in rows}) > 1:
        builder.fail(node, "the lists in np.array differ in length")
    items = {(k, *index): item for k, (_, row) in enumerate(rows) for index, item in row.items()}
    return (len(rows), *rows[0][0]), items


def call_kernel(builder: Any, node: ast.Call, function: Any, hint: str | None) -> Value:
    """Inline the call of another kernel."""
    arguments = bound_values(builder, node, function)
    single: Single = frozenset()
    if builder.single_axes:
        leaves = enumerate(leaf_values(arguments))
        arrays = ((k, array_values.shape_of(builder, leaf)) for k, leaf in leaves if is_array(leaf))
        single = frozenset((k, axis) for k, shape in arrays for axis, n in enumerate(shape) if n == index_algebra.ONE)
    argument_types = tuple(builder.type_of(node, v) for v in arguments)
    declaration = declared(function)
    if declaration is not None:
        taken = builder.signature(declaration, argument_types, node)[0]
        scalar = [inference.is_scalar(given) and inference.is_scalar(t) for given, t in zip(argument_types, taken)]
        arguments = [cast(v, t) if s else v for v, t, s in zip(arguments, taken, scalar)]
        argument_types = tuple(t if s else given for given, t, s in zip(argument_types, taken, scalar))
    callee = builder.callee(node, function, argument_types, single)
    return inline(builder, callee, arguments, node, hint)


def bound_values(builder: Any, node: ast.Call, function: Any) -> list[Value]:
    """The values of a call's arguments in the order of the function's parameters, defaults as `Static`."""
    positional, keywords = call_values(builder, node)
    positional = [array_values.computed(builder, v) if isinstance(v, Lazy) else v for v in positional]
    keywords = {k: array_values.computed(builder, v) if isinstance(v, Lazy) else v for k, v in keywords.items()}
    signature = inspect.signature(function)
    try:
        found = signature.bind(*positional, **keywords).arguments
    except TypeError as problem:
        builder.fail(node, f"{function.__name__}(): {problem}")
    return [found.get(p.name, Static(p.default)) for p in signature.parameters.values()]

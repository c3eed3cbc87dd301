"""Parameters of a kernel: tuples and structured arrays become one argument for each leaf."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from typing import Any

from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import sequences, structured_arrays
from ampi.kernel.frontend.arrays.structured_arrays import Records
from ampi.kernel.frontend.base import draws as random_draws
from ampi.kernel.frontend.base import outside
from ampi.kernel.frontend.base.refusals import instead_of_argument
from ampi.kernel.frontend.base.source import Source
from ampi.kernel.frontend.base.values import ArraysOfList, Group, Static, Value
from ampi.kernel.frontend.language import assignments
from ampi.kernel.ir import inference


def given_values(
    function: Any, source: Source, argument_types: tuple[types.Type, ...], is_called: bool = False
) -> dict[str, Any]:
    """The type of each parameter, or ``Static`` for None and for defaults that are not passed."""
    arguments = source.definition.args
    if arguments.kwarg:
        source.fail(source.definition, "**kwargs are not supported", "name every parameter")
    if arguments.vararg and (arguments.kwonlyargs or arguments.defaults) and not is_called:
        source.fail(source.definition, "*args beside defaults or keyword-only parameters", "name every parameter")
    parameters = list(inspect.signature(function).parameters.values())
    if len(argument_types) > len(parameters):
        source.fail(source.definition, f"takes {len(parameters)} arguments, {len(argument_types)} were given")
    given: dict[str, Any] = {}
    for position, parameter in enumerate(parameters):
        if position < len(argument_types):
            type_ = argument_types[position]
            if isinstance(type_, types.Dispatcher):
                given[parameter.name] = Static(type_.dispatcher)
            elif isinstance(type_, types.Omitted):
                given[parameter.name] = Static(type_.value)
            elif isinstance(type_, types.StringLiteral):
                given[parameter.name] = Static(type_.literal_value)
            elif isinstance(type_, (types.NumberClass, types.DType)):
                given[parameter.name] = Static(numpy_support.as_dtype(type_.dtype))
            else:
                given[parameter.name] = Static(None) if isinstance(type_, types.NoneType) else type_
        elif parameter.default is not inspect.Parameter.empty:
            given[parameter.name] = Static(parameter.default)
        else:
            source.fail(source.definition, f"missing argument '{parameter.name}'")
    return given


def static_test(given: dict[str, Any], test: ast.expr, is_parameter: Callable[[str], bool]) -> bool | None:
    """The outcome of ``x is None``, ``x is not None`` and ``x == "text"`` for a parameter."""
    match test:
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = static_test(given, operand, is_parameter)
            return None if inner is None else not inner
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.Is() | ast.IsNot() as op], comparators=[ast.Constant(value=None)]
        ) if is_parameter(name):
            return (given[name] == Static(None)) == isinstance(op, ast.Is)
        case ast.Compare(
            left=ast.Name(id=name), ops=[ast.Eq() | ast.NotEq() as op], comparators=[ast.Constant(value=str(text))]
        ) if is_parameter(name) and isinstance(given[name], Static):
            return (given[name].value == text) == isinstance(op, ast.Eq)
    return None


def declare(builder: Any) -> tuple[ir.Argument, ...]:
    """Declare one argument per leaf; parameters that the body assigns again get a local copy."""
    arguments: list[ir.Argument] = []
    values: dict[str, Value] = {}
    for parameter, kind in builder.given.items():
        name = builder.webs.parameters[parameter]
        if isinstance(kind, Static):
            values[name] = outside.value_of(builder, builder.definition, name, kind.value)
        else:
            values[name] = _leaves(builder, name, kind, (parameter,), arguments)
    builder.immutable = {a.name for a in arguments}
    for name, value in values.items():
        if isinstance(value, ir.Const) and builder.webs.definitions[name] == 1:
            builder.scope.kinds[name] = value
        else:
            assignments.bind(builder, builder.definition, name, value)
    return tuple(arguments)


def _leaves(builder: Any, name: str, type_: types.Type, path: tuple, arguments: list[ir.Argument]) -> Value:
    if isinstance(type_, types.NoneType):
        return Static(None)
    if isinstance(type_, types.Omitted):
        return outside.value_of(builder, builder.definition, name, type_.value)
    if isinstance(type_, types.Dispatcher):
        return Static(type_.dispatcher)
    if isinstance(type_, types.NumPyRandomGeneratorType):
        return random_draws.generator_argument(builder, type_, path)
    if structured_arrays.is_structured(type_):
        fields = tuple(
            (f, _leaves(builder, f"{name}_{f}", t, (*path, f), arguments))
            for f, t in structured_arrays.field_types(type_)
        )
        if not fields:
            builder.fail(builder.definition, f"argument '{name}' is a structured array without a field of numbers")
        return Records(type_, type_.ndim, fields)
    if inference.is_scalar(type_) or inference.is_array(type_):
        own_name = len(path) == 1 and builder.webs.definitions[name] == 1
        leaf = name if own_name else builder.names.fresh(name)
        builder.single |= {(leaf, axis) for number, axis in builder.single_axes if number == len(arguments)}
        arguments.append(ir.Argument(leaf, type_, path))
        return ir.Var(leaf, type_)
    if isinstance(type_, (types.List, types.ListType)):
        found = _list(builder, name, type_.dtype, path, arguments)
        if found is not None:
            return found
    if isinstance(type_, types.BaseTuple):
        fields_ = getattr(type_, "fields", range(len(type_)))
        items = tuple(
            _leaves(builder, f"{name}_{f}", t, (*path, f), arguments) for f, t in zip(fields_, type_.types, strict=True)
        )
        return Group(items, getattr(type_, "instance_class", None))
    return builder.fail(
        builder.definition,
        f"argument '{'.'.join(map(str, path))}' is a {type_}",
        instead_of_argument(type_),
    )


def _list(builder: Any, name: str, item: types.Type, path: tuple, arguments: list[ir.Argument]) -> Value | None:
    """A parameter that is a list, as read-only arrays; None for a list of other items.

    A list of numbers is an array, a list of matrices an array of one more dimension, and a list of vectors two arrays
    (see `ArraysOfList`).
    """

    def argument(dtype: types.Type, ndim: int, *field: str) -> ir.Var:
        leaf = builder.names.fresh("_".join((name, *field)))
        arguments.append(ir.Argument(leaf, types.Array(dtype, ndim, "C", readonly=True), (*path, *field)))
        builder.list_arguments.add(leaf)
        return ir.Var(leaf, arguments[-1].type)

    if inference.is_scalar(item):
        return sequences.as_list(builder, argument(item, 1))
    if not inference.is_array(item) or not item.ndim or not inference.is_scalar(item.dtype):
        return None
    if item.ndim > 1:
        return sequences.as_list(builder, argument(item.dtype, item.ndim + 1))
    return Group((argument(item.dtype, 1), argument(types.intp, 1, "starts")), ArraysOfList)

"""Closure conversion by value: globals and closure variables of a kernel are constants, read when it is parsed."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection
from types import ModuleType
from typing import Any

import numba
import numpy as np
from numba import types
from numba.core.errors import NumbaError

from ampi.arrays.losses import would_be_lost
from ampi.kernel import ir
from ampi.kernel.frontend.base.cuda_names import Place, stand_in
from ampi.kernel.frontend.base.values import Group, Static, Value
from ampi.kernel.ir import inference
from ampi.kernel.runtime.frozen import became_active
from ampi.memory.storages import TrackedArray, is_scalar, plain

MAX_CONSTANT_ARRAY = 100_000


def free_names(function: Any) -> dict[str, Any]:
    """Built-ins, globals and closure variables of a function as they are now."""
    names = {**vars(builtins), **function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            names[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            names.pop(name, None)
    names.update(became_active(function))
    return names


def is_prange(node: ast.expr, known: dict[str, Any], local_names: Collection[str]) -> bool:
    """Return whether an expression is a call of ``numba.prange``, under any name."""
    if not isinstance(node, ast.Call):
        return False
    function, path = node.func, []
    while isinstance(function, ast.Attribute):
        path.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name) or function.id in local_names:
        return False
    value = known.get(function.id)
    for attribute in reversed(path):
        value = getattr(value, attribute, None)
    return value is numba.prange


def value_of(builder: Any, node: ast.AST, name: str, value: Any) -> Value:
    """The value of a global or closure variable, as a constant of the kernel."""
    # ampi.numpy's wrapper of a NumPy function stands for that function.
    value = stand_in(getattr(value, "numpy_function", value))
    if isinstance(value, ModuleType):
        value = vars(value).get("stands_for", value)
    if isinstance(value, TrackedArray):
        value = without_derivatives(builder, node, name, value)
    if isinstance(value, np.ndarray):
        if value.ndim == 0 or value.dtype.kind not in "bifuc" or value.size > MAX_CONSTANT_ARRAY:
            reason = "too large for a constant" if value.size > MAX_CONSTANT_ARRAY else f"of dtype {value.dtype}"
            reason = reason if value.ndim else "0-dimensional"
            builder.fail(node, f"the global array '{name}' is {reason}", "pass it as an argument")
        return constant_array(builder, name, value)
    return constant(builder, value, node)


def without_derivatives(builder: Any, node: ast.AST, name: str, value: TrackedArray) -> Any:
    """The constant value of a global or closure variable that is a tracked array or scalar."""
    if would_be_lost(value):
        builder.fail(
            node,
            f"the global variable '{name}' carries derivatives, but globals are constants in a kernel",
            "pass it as an argument",
        )
    return plain(value)[()] if is_scalar(value) else plain(value)


def constant(builder: Any, value: Any, node: Any) -> Value:
    """The value of a Python object that is known at compile time."""
    if isinstance(value, TrackedArray) and is_scalar(value):
        value = without_derivatives(builder, node, ast.unparse(node), value)
    if issubclass(type(value), (bool, int, float, complex, np.number, np.bool_)):
        try:
            type_ = inference.plain(numba.typeof(value))
        except (NumbaError, ValueError):
            builder.fail(node, f"the constant {value!r} has no Numba type")
        return ir.Const(value.item() if isinstance(value, np.generic) else value, type_)
    if isinstance(value, Place):
        return ir.Op(value.name, (), types.int64)
    if isinstance(value, tuple):
        cls = type(value) if hasattr(value, "_fields") else None
        return Group(tuple(constant(builder, v, node) for v in value), cls)
    return Static(value)


def constant_array(builder: Any, name: str, value: np.ndarray) -> ir.Var:
    """A global array as a constant of the kernel; it is copied, since the program may change it."""
    if id(value) not in builder.frozen:
        copy = value.copy(order="A")
        copy.flags.writeable = False
        builder.frozen[id(value)] = (value, copy)
    constant = builder.frozen[id(value)][1]
    known = next((n for n, array in builder.constants.items() if array is constant), None)
    if known is None:
        known = builder.names.fresh(name)
        builder.constants[known] = constant
    return ir.Var(known, numba.typeof(constant))

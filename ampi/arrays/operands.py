"""Arithmetic of active arrays with objects: instances of classes with their own operators, and arrays of objects.

NumPy converts an unknown operand to an array of objects and computes with Python's operators: ``a * field`` with a
number `a` becomes ``field.__rmul__(float(a))``. Here that call is made with the active number itself.
"""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from ..errors import ActivityError
from ..memory.storages import TrackedArray
from ..tape import where_called

_OPERATORS: dict[np.ufunc, str] = {
    np.add: "add",
    np.subtract: "sub",
    np.multiply: "mul",
    np.matmul: "matmul",
    np.true_divide: "truediv",
    np.floor_divide: "floordiv",
    np.remainder: "mod",
    np.divmod: "divmod",
    np.power: "pow",
}

_NUMBERS: set[type] = {int, float, complex, bool, type(None), str, bytes, slice, list, tuple}


def is_object(x: Any) -> bool:
    """Return whether NumPy treats an operand as a Python object."""
    if isinstance(x, np.ndarray):
        return x.dtype.hasobject and x.dtype.kind == "O"
    kind = type(x)
    if kind in _NUMBERS:
        return False
    if issubclass(kind, (np.generic, int, float, complex)):
        _NUMBERS.add(kind)
        return False
    return hasattr(kind, "__cuda_array_interface__") or np.asarray(x).dtype.kind == "O"


def compute(ufunc: np.ufunc, method: str, inputs: tuple) -> Any:
    """``ufunc(*inputs)`` with one active operand and another one that is an object.

    Raises
    ------
    ActivityError
        Python would compute with the elements of the active array as plain numbers.
    """
    if method == "__call__" and len(inputs) == 2:
        for k, x in enumerate(inputs):
            other = inputs[1 - k]
            if not isinstance(x, np.ndarray) and isinstance(other, TrackedArray) and not other.ndim:
                if isinstance(x, numbers.Real):
                    return ufunc(*[float(x) if x is y else y for y in inputs])  # type: ignore[arg-type]
                found = _called(ufunc, x, other, reflected=k == 1)
                if found is not NotImplemented:
                    return found
    shown = next(x for x in inputs if is_object(x))
    if hasattr(type(shown), "__cuda_array_interface__"):
        package = type(shown).__module__.partition(".")[0]
        raise ActivityError(
            f"{where_called()}: numpy.{ufunc.__name__} of an active array and an array of {package} on a device; "
            "copy the first one there (ampi.cuda.to_device(x)), or the other one to the host"
        )
    what = "an array of objects" if isinstance(shown, np.ndarray) else f"an object of class {type(shown).__name__}"
    raise ActivityError(
        f"{where_called()}: numpy.{ufunc.__name__} of an active array and {what} computes with Python's own numbers, "
        "which drops the derivative; use an array of floating-point numbers, or write ampi.value(x) if a constant is "
        "meant"
    )


def _called(ufunc: np.ufunc, x: Any, number: Any, reflected: bool) -> Any:
    name = _OPERATORS.get(ufunc)
    method = None if name is None else getattr(type(x), f"__{'r' * reflected}{name}__", None)
    return NotImplemented if method is None else method(x, number)

"""Copies of Python functions with other globals, or with other parameters, for Numba."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np


def with_names(function: Any, change: Callable[[Any], Any]) -> Any:
    """The function, or a copy with changed globals and closure variables."""
    from ampi.kernel.runtime import cache

    cells = function.__closure__ or ()
    named = cache.names_in(function.__code__)
    used = {name: function.__globals__[name] for name in named if name in function.__globals__}
    new = {name: change(value) for name, value in used.items()}
    new_cells = tuple(CellType(change(c.cell_contents)) for c in cells)
    same = all(new[name] is used[name] for name in used)
    if same and all(n.cell_contents is c.cell_contents for n, c in zip(new_cells, cells)):
        return function
    names = {**function.__globals__, **new}
    copy = FunctionType(function.__code__, names, function.__name__, function.__defaults__, new_cells or None)
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
    vars(copy).update(vars(function))
    return copy


def original(value: Any) -> Any:
    """The NumPy module or function behind one of ``ampi.numpy`` or another stand-in, which Numba does not know."""
    if isinstance(value, ModuleType) and value.__name__ == "ampi":
        module = ModuleType("ampi")
        vars(module).update(with_prange(value), numpy=np)
        return module
    if isinstance(value, ModuleType):
        return vars(value).get("stands_for", value)
    return getattr(value, "numpy_function", value)


def with_prange(module: ModuleType) -> dict[str, Any]:
    """A module's namespace; ampi's with ``prange``, which is loaded on first use."""
    if module.__name__ in ("ampi", "ampi.kernel"):
        module.prange  # noqa: B018
    return vars(module)


def with_rest_as_tuple(function: Any) -> Any:
    """A function of ``*args`` as a function of a tuple ``args``."""
    code = function.__code__
    code = code.replace(co_flags=code.co_flags & ~inspect.CO_VARARGS, co_argcount=code.co_argcount + 1)
    made = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    made.__module__, made.__qualname__ = function.__module__, function.__qualname__
    return made

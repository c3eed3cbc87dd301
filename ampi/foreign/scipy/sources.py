"""Copies of functions of SciPy's Python source that compute with `ampi.numpy` instead of NumPy."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import numpy as np

import ampi.numpy as anp

from ...interception.hooks import hook_of


def with_ours(function: Any, **replaced: Any) -> Callable:
    """Copy a SciPy function so that it computes with `ampi.numpy`; ``replaced`` replaces other names in it.

    Functions that it calls are copied in the same way, unless they have a rule.
    """
    return _copied(function, replaced, {})


def _copied(function: Any, replaced: dict, copies: dict[int, Any]) -> Any:
    found = hook_of(function)
    source = found.original if found is not None else function
    while hasattr(source, "__wrapped__"):
        source = source.__wrapped__
    if id(function) in copies:
        return copies[id(function)]
    names = dict(source.__globals__)
    copy = types.FunctionType(source.__code__, names, source.__name__, source.__defaults__, source.__closure__)
    copy.__kwdefaults__ = source.__kwdefaults__
    copies[id(function)] = copy
    for name in _names(source.__code__):
        value = names.get(name)
        if name in replaced:
            names[name] = replaced[name]
        elif value is np or name == "np_compat":
            names[name] = anp
        elif name == "array_namespace":
            names[name] = lambda *arrays: anp
        elif name == "is_numpy":
            names[name] = lambda xp: xp is anp or xp is np
        elif (
            isinstance(value, types.FunctionType) and (value.__module__ or "").startswith("scipy.") and _is_open(value)
        ):
            names[name] = _copied(value, replaced, copies)
    return copy


def _is_open(function: Any) -> bool:
    """Return whether a function has no rule."""
    from .guards import refuse

    found = hook_of(function)
    return found is None or found.handle is refuse


def _names(code: types.CodeType) -> set[str]:
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found

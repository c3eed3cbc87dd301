"""NumPy's ufuncs on a device, by the table of partial derivatives that arrays on the host use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.elementwise import CONSTANT_FOR_REAL, CONSTANTS, RULES, unbroadcast
from ..base.missing_rules import no_rule
from ..memory.storages import carries_derivatives
from ..tape import recording
from .arrays import DeviceArray
from .memory import Memory
from .operations import active, any_active, compute, each, operands, record

CLIP = np._core.umath.clip
DECISIONS = {
    getattr(np, name)
    for name in (
        "equal not_equal less less_equal greater greater_equal logical_and logical_or logical_xor logical_not isfinite "
        "isinf isnan signbit"
    ).split()
}
"""Ufuncs whose results are true or false."""
ON_DEVICE = " for arrays on a device"


def call(ufunc: Any, inputs: tuple, keywords: dict[str, Any] | None = None, function: Callable | None = None) -> Any:
    """Call a ufunc, and record it; ``function`` is what is called, if not the ufunc itself."""
    function = ufunc if function is None else function
    inputs = operands(inputs, f"numpy.{ufunc.__name__}")
    keywords = keywords or {}
    tape = recording()
    found = tuple([k for k, x in enumerate(inputs) if active(tape, x)])
    if found and ufunc not in RULES and ufunc not in CONSTANTS and ufunc not in DECISIONS:
        raise no_rule(ufunc, ON_DEVICE)
    result = compute(function, *inputs, **keywords)
    if not found or not any([isinstance(r, DeviceArray) and carries_derivatives(r.dtype) for r in _several(result)]):
        return result
    is_complex = any([getattr(x, "dtype", np.dtype(type(x))).kind == "c" for x in inputs])
    if ufunc in CONSTANTS and not (is_complex and ufunc in CONSTANT_FOR_REAL):
        return result
    if keywords:
        raise no_rule(ufunc, f" with {', '.join(keywords)}{ON_DEVICE}")
    return _recorded(ufunc, inputs, found, result, is_complex)


def _several(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _recorded(ufunc: Any, inputs: tuple, found: tuple[int, ...], result: DeviceArray, is_complex: bool) -> DeviceArray:
    rule = RULES[ufunc]
    if is_complex and rule.of_complex is not None:
        rule = rule.of_complex
    unknown = [k for k in found if k in rule.unknown]
    if unknown:
        raise no_rule(ufunc, f" with respect to argument {unknown[0]}{ON_DEVICE}")
    found = tuple([k for k in found if rule.terms[k] is not None])
    if not found:
        return result
    values: list[Any] = [None] * (len(inputs) + 1)
    for n in rule.wants(found):
        values[n] = result if n < 0 else inputs[n]
    terms = rule.of_mixed(values, result.dtype)
    shapes = [np.shape(x) if not isinstance(x, Memory) else x.shape for x in inputs]
    sources = [x if k in found else None for k, x in enumerate(inputs)]

    def adjoint(k: int, g: Any, values: Any) -> Any:
        return unbroadcast(terms.terms[k](g, *[values[n] for n in terms.needs[k]]), shapes[k])

    def push(dots: dict[int, Any], values: Any) -> Any:
        parts = [terms.tangent(k, x_dot, [values[n] for n in terms.needs[k]]) for k, x_dot in dots.items()]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    return record(f"numpy.{ufunc.__name__}", sources, result, values, each(adjoint), push)


def outer(ufunc: Any, a: Any, b: Any) -> Any:
    """``ufunc.outer(a, b)``."""
    a, b = operands((a, b), f"numpy.{ufunc.__name__}.outer")
    if isinstance(a, DeviceArray) and not isinstance(b, (int, float, complex, np.generic)):
        a = a.reshape(a.shape + (1,) * b.ndim)
    return call(ufunc, (a, b))


def constant(function: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Call a function whose results carry no derivatives."""
    return compute(function, *operands(arguments, function.__name__), **operands(keywords, function.__name__))


def passively(function: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Call a function that has no rule: active arguments are an error."""
    if any_active((arguments, keywords)):
        raise no_rule(function, ON_DEVICE)
    return constant(function, arguments, keywords)

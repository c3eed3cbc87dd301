"""Replacements of ``float()``, ``isinstance()`` and `math` in a program's own modules, which keep derivatives.

NumPy's functions are used for tracked numbers that carry derivatives, and Python's for everything else.  Values and
errors are those of `math`.
"""

from __future__ import annotations

import functools
import importlib
import math
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..arrays import element_arithmetic
from ..arrays.array import ndarray
from ..arrays.losses import lose_exactly, would_be_lost
from ..base.missing_rules import no_rule
from ..derivatives.arguments import leaves_of
from ..memory.storages import TrackedArray, is_scalar, plain, tracked_copy


def is_active(x: Any) -> bool:
    """Return whether a value carries derivatives on the tape that records."""
    return isinstance(x, TrackedArray) and would_be_lost(x)


def convert(kind: Any, *arguments: Any, **parts: Any) -> Any:
    """``kind(x)`` in a program, where ``kind`` may be ``float``, ``numpy.float64`` or another class of numbers.

    The real and the imaginary part of a `complex` may be given by name.
    """
    if parts:
        if kind is not complex or (arguments and "real" in parts):
            return kind(*arguments, **parts)
        real = arguments[0] if arguments else parts.get("real", 0.0)
        arguments = (real, parts["imag"]) if "imag" in parts else (real,)
    if len(arguments) == 1 and is_scalar(x := arguments[0]):
        found = element_arithmetic.converted(x, np.float64 if kind is float else kind)
        if found is not None:
            return found
        if (decimal := sys.modules.get("decimal")) and kind in (decimal.Decimal, decimal.Decimal.from_float):
            lose_exactly("decimal.Decimal() of", x)
            return kind(plain(x).item())
    if len(arguments) == 1 and isinstance(x := arguments[0], TrackedArray) and isinstance(kind, type):
        dtype = _dtype_of(kind)
        if dtype is not None and is_active(x) and (x.size == 1 or kind not in (float, complex)):
            found = x.astype(dtype)
            return found.reshape(())[()] if kind in (float, complex) else found[()] if not found.ndim else found
    if kind is complex and len(arguments) == 2 and any(map(is_active, arguments)) and all(map(_is_real, arguments)):
        made: Any = tracked_copy(np.zeros((), np.complex128))
        made.real[...], made.imag[...] = arguments
        return made[()]
    return kind(*arguments)


def _is_real(x: Any) -> bool:
    return x.dtype.kind == "f" if is_scalar(x) else isinstance(x, (float, int))


def _dtype_of(kind: type) -> Any:
    if kind is float:
        return np.float64
    if kind is complex:
        return np.complex128
    return kind if issubclass(kind, (np.floating, np.complexfloating)) else None


def is_instance(x: Any, kinds: Any, /) -> bool:
    """``isinstance(x, kinds)`` in a program: tracked scalars count as NumPy's (a `numpy.float64` and `float`, not an
    array), and plain arrays from elsewhere count as the program's ``np.ndarray``."""
    if isinstance(x, TrackedArray) and is_scalar(x):
        return issubclass(x.dtype.type, kinds)
    return isinstance(x, kinds) or (type(x) is np.ndarray and issubclass(ndarray, kinds))


def has_attribute(x: Any, name: str, /) -> bool:
    """``hasattr(x, name)`` in a program: tracked scalars have the attributes of NumPy's (no ``__len__``,
    ``__iter__``)."""
    return hasattr(x, name) and (not (isinstance(x, TrackedArray) and is_scalar(x)) or hasattr(x.dtype.type, name))


def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
    """`functools.lru_cache` that stores no results for active arguments.

    A cache compares values only: a constant of equal value would get the result of an active number, or vice versa.
    """
    if callable(maxsize):
        return lru_cache(typed=typed)(maxsize)

    def decorate(function: Callable) -> Callable:
        cached = functools.lru_cache(maxsize, typed)(function)

        @functools.wraps(function)
        def call(*arguments: Any, **keywords: Any) -> Any:
            if any(map(is_active, leaves_of((arguments, keywords)))):
                return function(*arguments, **keywords)
            return cached(*arguments, **keywords)

        for name in ("cache_info", "cache_clear", "cache_parameters"):
            setattr(call, name, getattr(cached, name))
        return call

    return decorate


def _special(name: str) -> Callable:
    """A function of `scipy.special`, which is imported when it is first called."""
    return lambda x: getattr(importlib.import_module("scipy.special"), name)(x)


_UFUNCS: dict[str, Callable] = {
    **{
        name: getattr(np, name)
        for name in "sin cos tan sinh cosh tanh exp expm1 log2 log10 log1p sqrt cbrt fmod copysign degrees radians "
        "exp2 fabs".split()
    },
    **{f"a{name}": getattr(np, f"arc{name}") for name in "sin cos tan sinh cosh tanh".split()},
    **{name: _special(name) for name in ("erf", "erfc", "gamma")},
    "lgamma": _special("gammaln"),
    "atan2": np.arctan2,
    "pow": np.power,
    "log": lambda x, *base: np.log(x) / convert(float, _log(*base)) if base else np.log(x),
    "hypot": lambda *x: _norm(x) if len(x) != 2 else np.hypot(*x),
    "fsum": lambda x: functools.reduce(np.add, list(x), 0.0),
    "prod": lambda x, *, start=1: functools.reduce(np.multiply, list(x), start),
    "dist": lambda p, q: _norm([a - b for a, b in zip(p, q, strict=True)]),
    "sumprod": lambda p, q: functools.reduce(np.add, [a * b for a, b in zip(p, q, strict=True)]),
}
_STEPS = {"floor", "ceil", "trunc", "isnan", "isinf", "isfinite", "isclose"}


def _norm(x: Sequence[Any]) -> Any:
    """The Euclidean norm, of numbers whose squares may overflow as well."""
    largest = max(abs(_number(v)) for v in x)
    scale = math.ldexp(0.5, math.frexp(largest)[1]) if 0.0 < largest < math.inf else 1.0
    return np.sqrt(functools.reduce(np.add, [(v / scale) ** 2 for v in x])) * scale


def _log(x: Any) -> Any:
    return np.log(x) if is_active(x) else math.log(x)


def _any_active(arguments: tuple) -> bool:
    return any(is_active(x) or (isinstance(x, (list, tuple)) and any(map(is_active, x))) for x in arguments)


def _of_math(function: Callable) -> Callable:
    """A function of `math` that takes numbers with derivatives."""
    name = function.__name__
    ours = _UFUNCS.get(name)
    ufunc: Any = ours if isinstance(ours, np.ufunc) else {"log": np.log, "hypot": np.hypot}.get(name)

    @functools.wraps(function)
    def compute(*arguments: Any, **keywords: Any) -> Any:
        if ufunc is not None and not keywords:
            found = element_arithmetic.by_python(function, ufunc, arguments)
            if found is not None:
                return found
        if name in ("fsum", "prod", "sumprod", "dist"):
            arguments = tuple(list(x) if hasattr(x, "__iter__") else x for x in arguments)
        if not _any_active(arguments):
            return function(*arguments, **keywords)
        if name in _STEPS:
            return function(*map(_number, arguments), **keywords)
        if ours is None:
            raise no_rule(function)
        for x in arguments:
            if isinstance(x, np.ndarray) and x.size != 1:
                raise TypeError("only length-1 arrays can be converted to Python scalars")
        value = function(*map(_numbers, arguments), **{key: _numbers(x) for key, x in keywords.items()})
        with np.errstate(all="ignore"):  # it has raised Python's errors
            found = ours(*[x.reshape(())[()] if isinstance(x, TrackedArray) else x for x in arguments], **keywords)
            difference = value - _number(found)
            return found + difference if 0.0 < abs(difference) < math.inf else found

    made: Any = compute
    made.numpy_function = function  # its meaning in kernels
    return made


def _numbers(x: Any) -> Any:
    """Return the numbers that the program has without ampi, also in a list."""
    if isinstance(x, list):
        return [*map(_numbers, x)]
    return plain(x)[()] if isinstance(x, TrackedArray) and is_scalar(x) else _number(x)


def _number(x: Any) -> Any:
    if not isinstance(x, np.ndarray):
        return x
    return np.asarray(x.view(np.ndarray) if not isinstance(x, TrackedArray) else plain(x)).item()


def has_derivative(name: str) -> bool:
    """Return whether a function of `math` accepts active numbers, or takes integers only."""
    return name in _UFUNCS or name in _STEPS or name in {"factorial", "gcd", "lcm", "comb", "perm", "isqrt"}


def make_math() -> types.ModuleType:
    """The module `math`, with functions that take numbers with derivatives."""
    module = types.ModuleType("math", math.__doc__)
    for name, found in vars(math).items():
        if not name.startswith("__"):
            module.__dict__[name] = _of_math(found) if callable(found) else found
    module.__dict__["stands_for"] = math
    return module

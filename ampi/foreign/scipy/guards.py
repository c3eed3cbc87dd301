"""Errors for calls of SciPy's functions without a rule that get active arrays."""

from __future__ import annotations

import functools
import sys
import types
from typing import Any

import numpy as np

from ...arrays.activity import is_inexact, plain_of
from ...arrays.known_classes import mapped, parts
from ...interception.hooks import Hook, hook, hook_of, hook_public
from ...rules.definitions import any_active, refusal
from ...tape import Tape, current, passive

_CONDITIONS = (
    "differentiate the conditions that its result satisfies (implicit differentiation), as the adjoint of a function "
    "with ampi.custom_vjp"
)
_OPTIMISED = "outside any tape and without --wrt; to differentiate its result, " + _CONDITIONS
INSTEAD = {
    "scipy.optimize.minimize": "to give it a gradient, write minimize(ampi.value_and_grad(f), x0, jac=True), "
    + _OPTIMISED,
    "scipy.optimize.least_squares": "to give it a Jacobian, write least_squares(f, x0, jac=lambda x: "
    "ampi.jacrev(f, x)), " + _OPTIMISED,
    "scipy.optimize": _CONDITIONS,
    "scipy.integrate": "use scipy.integrate.solve_ivp with RK23, RK45 or DOP853, or a sum such as numpy.trapezoid; "
    "or give the derivative with ampi.custom_vjp",
    "scipy.stats": "write it with functions of ampi.numpy and scipy.special, or give the derivative with "
    "ampi.custom_vjp",
}
_FORTRAN = {"scipy.linalg.blas", "scipy.linalg.lapack"}  # functions that __all__ does not list
_NOT_GUARDED = {
    "__init_subclass__",
    "__class_getitem__",
    "__getattr__",
    "__getattribute__",
    "__repr__",
    "__str__",
    "__setstate__",
    "__getstate__",
    "__reduce__",
    "__dir__",
    "__len__",
    "__setattr__",
    "__del__",
}


def guard(part: str) -> None:
    """Make all public functions and methods of a part of SciPy refuse active arrays if they have no rule."""
    module = sys.modules[part]
    names = None if part in _FORTRAN else getattr(module, "__all__", None)
    names = names or [name for name in dir(module) if not name.startswith("_")]
    builtins = {}
    seen: set[type] = set()
    for name in names:
        found = getattr(module, name, None)
        if isinstance(found, types.FunctionType):
            if _is_scipys(found):
                hook(found, None if hook_of(found) else refuse, f"{part}.{name}")
        elif isinstance(found, type):
            _guard_class(found, f"{part}.{name}", seen)
        elif isinstance(found, (np.ufunc, types.ModuleType)) or not callable(found):
            continue
        elif type(found).__name__ in ("builtin_function_or_method", "cython_function_or_method", "fortran"):
            builtins[f"{part}.{name}"] = found
        elif _is_scipys(type(found)):
            _guard_class(type(found), f"{part}.{name}", seen)
    if builtins:
        hook_public(builtins, refuse)


def _is_scipys(x: Any) -> bool:
    return (getattr(x, "__module__", None) or "").partition(".")[0] == "scipy"


def _guard_class(cls: type, name: str, seen: set[type]) -> None:
    for base in cls.__mro__:
        if base in seen or not _is_scipys(base) or issubclass(base, BaseException):
            continue
        seen.add(base)
        for key, member in list(vars(base).items()):
            function = getattr(member, "__func__", member)
            if not isinstance(function, types.FunctionType) or key in _NOT_GUARDED or not _is_scipys(function):
                continue  # `dataclasses` uses one function for all classes
            if key.startswith("_") and not (key.startswith("__") and key.endswith("__")):
                continue
            method = hook(function, None if hook_of(function) else refuse, f"{name}.{key}")
            method.part = name.rpartition(".")[0]


def refuse(found: Hook, tape: Tape, arguments: tuple, keywords: dict) -> Any:
    """Handle a call of a function without a rule while a tape records."""
    if not any_active(tape, arguments, keywords):
        if any(_is_users(x) for x in (*arguments, *keywords.values())):
            errors: list = []
            late = errors if found.name.startswith("scipy.ndimage.") else None  # its C code continues after an error
            arguments = tuple([_checked_callback(found, x, late) for x in arguments])
            keywords = {name: _checked_callback(found, x, late) for name, x in keywords.items()}
            result = found.original(*arguments, **keywords)
            if errors:
                raise errors[0]
            return result
        return found.original(*arguments, **keywords)
    if not found.name.endswith(("__init__", "__new__", "__setitem__")) and not found.name.startswith("scipy.optimize."):
        # Results that carry no derivative in any case: indices, counts, booleans.
        with passive():
            result = found.original(*mapped(plain_of, arguments), **mapped(plain_of, keywords))
        if _is_discrete(result):
            return result
    why = without_rules.get(found.name.rpartition(".")[0], "") if without_rules else ""
    raise refusal(_called(found, arguments), why, instead(found))


without_rules: dict[str, str] = {}
"""Parts of SciPy whose rules could not be installed, and the reasons."""


def _called(found: Hook, arguments: tuple) -> str:
    """The public name of a function, or of a method with the class of its object."""
    part = getattr(found, "part", None)
    if part is None or not arguments or not _is_scipys(type(arguments[0])):
        return found.name
    own = getattr(arguments[0], "name", None) if part == "scipy.stats" else None
    return f"{part}.{own if isinstance(own, str) else type(arguments[0]).__name__}.{found.__name__}"


def instead(found: Hook) -> str:
    """Advice for an error message: what to write instead of calling a function."""
    return next((text for part, text in INSTEAD.items() if f"{found.name}.".startswith(f"{part}.")), "")


def _is_discrete(result: Any) -> bool:
    leaves = list(parts(result))
    return bool(leaves) and all(
        isinstance(x, (int, np.integer, np.bool_, str))
        or (isinstance(x, np.ndarray) and not is_inexact(x) and not x.dtype.hasobject)
        for x in leaves
    )


_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)


def _is_users(x: Any) -> bool:
    return isinstance(x, _CALLABLES) and (getattr(x, "__module__", None) or "").partition(".")[0] not in (
        "scipy",
        "numpy",
        "ampi",
    )


def _checked_callback(found: Hook, x: Any, late: list | None) -> Any:
    """Wrap one of the program's callbacks, which must not return active values."""
    if not _is_users(x):
        return x

    def watched(*arguments: Any, **keywords: Any) -> Any:
        result = x(*arguments, **keywords)
        tape = current()
        if tape is not None and any_active(tape, result):
            error = refusal(f"{found.name} (by the function that it calls)", "", instead(found))
            if late is None:
                raise error
            late.append(error)
            return mapped(plain_of, result)
        return result

    return functools.update_wrapper(watched, x) if hasattr(x, "__name__") else watched

"""Plain Python functions that Numba compiles by extensions: ``overload`` and ``register_jitable``.

For the types of a call's arguments the extension provides a function with the same parameters, whose calls are inlined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from numba import types
from numba.core.registry import cpu_target

KNOWN = ("numpy", "math", "cmath", "numba", "ampi")
_FOUND: dict[Any, Callable[..., Any]] = {}  # keeps functions alive, since the parser identifies them by id


def is_plain(function: Any) -> bool:
    """Return whether a value is a Python function of a package that is not in `KNOWN`."""
    return inspect.isfunction(function) and (function.__module__ or "").partition(".")[0] not in KNOWN


def declared_overloads(function: Any) -> Iterator[Callable[..., Any]]:
    """The functions that extensions have declared for a function with ``overload``; they take types."""
    context = cpu_target.typing_context
    context.refresh()
    known = context._lookup_global(function)
    for template in getattr(known, "templates", ()):
        overload = getattr(template, "_overload_func", None)
        if overload is not None:
            yield overload


def implementation(function: Any, positional: list[types.Type], keywords: dict[str, types.Type]) -> Any:
    """The overload for arguments of these types; None if none was declared."""
    key = (function, tuple(positional), tuple(sorted(keywords.items())))
    if key not in _FOUND:
        for overload in declared_overloads(function):
            for literal in (False, True):
                chosen = _chosen(overload, positional, keywords, literal)
                if inspect.isfunction(chosen):
                    _FOUND[key] = chosen
                    return chosen
    return _FOUND.get(key)


def _chosen(overload: Any, positional: list[types.Type], keywords: dict[str, types.Type], literal: bool) -> Any:
    adapted = (lambda t: t) if literal else types.unliteral
    try:
        inspect.signature(overload).bind(*positional, **keywords)
    except TypeError:
        return None
    return overload(*map(adapted, positional), **{name: adapted(t) for name, t in keywords.items()})

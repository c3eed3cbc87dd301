"""Calls of NumPy's functions that are not ufuncs, as `ampi.ndarray.__array_function__` sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .indexing import copied, is_active, is_inexact
from .memory import TrackedArray, plain, wrapped
from .tape import current
from .ufuncs import no_rule


def apply(function: Callable, arguments: tuple, keywords: dict) -> Any:
    """Run ``function(*arguments, **keywords)`` and record it if it has an active operand."""
    tape = current()
    active = tape is not None and any(is_active(tape, leaf) for leaf in leaves((arguments, keywords)))
    if not active:
        return wrapped(function(*plain_tree(arguments), **plain_tree(keywords)))
    result = function._implementation(*arguments, **keywords)
    for r in leaves(result):
        if is_inexact(r) and not is_active(tape, r):
            raise no_rule(function)
    return result


def leaves(x: Any) -> Iterator[Any]:
    """What tuples, lists and dictionaries hold."""
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from leaves(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from leaves(item)
    else:
        yield x


def plain_tree(x: Any) -> Any:
    """The same with plain views of the tracked arrays."""
    if isinstance(x, TrackedArray):
        return x.view(np.ndarray)
    if isinstance(x, dict):
        return {name: plain_tree(item) for name, item in x.items()}
    if isinstance(x, tuple) and hasattr(x, "_fields"):
        return type(x)(*(plain_tree(item) for item in x))
    if isinstance(x, (tuple, list)):
        return type(x)(plain_tree(item) for item in x)
    return x


def view_or_copy(array: TrackedArray, action: Callable[[np.ndarray], np.ndarray]) -> Any:
    """Apply a function that rearranges all elements: its result is a view, or a recorded copy in a new order."""
    source = plain(array)
    result = action(source)
    if np.may_share_memory(result, source):
        return wrapped(result)
    return _rearranged(array, result, action)


def _rearranged(array, result, action):
    return copied(array, result)

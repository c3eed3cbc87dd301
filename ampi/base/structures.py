"""Tuples, lists and dictionaries of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any


def leaves(x: Any) -> Iterator[Any]:
    """Iterate over the leaves of nested tuples, lists and dictionaries, in order."""
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from leaves(item)
    elif isinstance(x, dict):
        for item in x.values():
            yield from leaves(item)
    else:
        yield x


def mapped(function: Callable, x: Any) -> Any:
    """Return the same structure with a function applied to each leaf.

    An instance of a subclass of list or dict is returned itself if no leaf in it changes.
    """
    if isinstance(x, tuple):
        items = [mapped(function, item) for item in x]
        return type(x)(*items) if hasattr(x, "_fields") else tuple(items)
    if isinstance(x, list):
        new = [mapped(function, item) for item in x]
        return new if type(x) is list or any(a is not b for a, b in zip(new, x)) else x
    if isinstance(x, dict):
        found = {name: mapped(function, item) for name, item in x.items()}
        return found if type(x) is dict or any(found[name] is not x[name] for name in found) else x
    return function(x)


def bound(names: str, arguments: tuple, keywords: dict) -> dict[str, Any]:
    """Return arguments by name, for a function with the parameters ``names`` (separated by spaces)."""
    parameters = names.split()
    if len(arguments) > len(parameters):
        raise TypeError(f"takes {len(parameters)} arguments ({names}) but {len(arguments)} were given")
    found = dict(zip(parameters, arguments))
    for name, x in keywords.items():
        if name in found:
            raise TypeError(f"got two values for the argument {name!r}")
        found[name] = x
    return found

"""Tuples, lists and dictionaries of arrays."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
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


def like(x: Any, items: Iterable[Any]) -> Any:
    """Return a tuple, list or dictionary of the class of another one, and of its names, with other items.

    Objects of derived classes are copies of it (their constructors may take anything).
    """
    cls = type(x)
    if cls is tuple or cls is list:
        return cls(items)
    if cls is dict:
        return dict(zip(x, items))
    if not isinstance(x, tuple):
        made = copy.copy(x)
        if isinstance(x, dict):
            made.update(zip(x, items))
        else:
            made[:] = items
        return made
    made = new_tuple(cls, items)
    if hasattr(x, "__dict__"):
        vars(made).update(vars(x))
    return made


def new_tuple(cls: type, items: Iterable[Any]) -> Any:
    """Make an object of a class derived from tuple, without its constructor, which may take anything."""
    items = tuple(items)
    try:
        return tuple.__new__(cls, items)
    except TypeError:  # a class in C with an allocation of its own, as time.struct_time
        return cls(items)


def mapped(function: Callable, x: Any) -> Any:
    """Return the same structure with a function applied to each leaf.

    An instance of a subclass of list or dict is returned itself if no leaf in it changes.
    """
    if isinstance(x, tuple):
        return like(x, [mapped(function, item) for item in x])
    if isinstance(x, list):
        new = [mapped(function, item) for item in x]
        return like(x, new) if type(x) is list or any(a is not b for a, b in zip(new, x)) else x
    if isinstance(x, dict):
        found = {name: mapped(function, item) for name, item in x.items()}
        return like(x, found.values()) if type(x) is dict or any(found[name] is not x[name] for name in found) else x
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

"""Classes of other packages whose objects hold arrays, and how to take objects apart (`define_class`)."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..base.structures import like
from ..interception.hooks import when_imported


def member(found: Any, path: str) -> Any:
    """Return the attribute at a dotted path; of a class, as it is defined there, without binding."""
    for name in path.split("."):
        own = vars(found).get(name) if isinstance(found, type) else None
        found = getattr(found, name) if own is None else own
    return found


_classes: dict[type, tuple[Callable, Callable]] = {}


def define_class(cls: type | str, take_apart: Callable, put_together: Callable) -> None:
    """Declare the arrays that objects of a class hold, so that they can be active.

    ::

        ampi.rules.define_class("mylib:Field", lambda f: ((f.values,), f.grid), lambda v, grid: Field(*v, grid))

    Parameters
    ----------
    cls : type or str
        The class, or its name as for `define`; subclasses are included.
    take_apart : callable
        ``take_apart(x)`` returns a tuple of its arrays, and the rest of the object.
    put_together : callable
        ``put_together(arrays, rest)`` makes such an object of other arrays (plain ones or `ampi.ndarray`\\ s), which
        it must not convert.

    Examples
    --------
    >>> class Field:
    ...     def __init__(self, values, grid):
    ...         self.values, self.grid = values, grid
    >>> ampi.rules.define_class(Field, lambda f: ((f.values,), f.grid), lambda v, grid: Field(*v, grid))
    >>> with ampi.Tape() as tape:
    ...     field = Field(tape.watch(numpy.arange(3.0)), "a grid")
    ...     plain = ampi.value(field)
    >>> type(plain.values) is numpy.ndarray, plain.grid
    (True, 'a grid')
    """
    if isinstance(cls, str):
        module, _, path = cls.partition(":")
        when_imported(module, lambda: define_class(member(sys.modules[module], path), take_apart, put_together))
    else:
        _classes[cls] = take_apart, put_together
        _methods.clear()


_methods: dict[type, tuple | None] = {}


def _methods_of(x: Any) -> tuple | None:
    kind = type(x)
    try:
        return _methods[kind]
    except KeyError:
        found = next((_classes[base] for base in kind.__mro__ if base in _classes), None)
        _methods[kind] = found
        return found


def is_known(x: Any) -> bool:
    """Return whether an object is of a class that `define_class` has declared."""
    return bool(_classes) and not isinstance(x, np.ndarray) and _methods_of(x) is not None


def _is_dictionary(x: Any) -> bool:
    """Return whether an object is a dictionary, and not of a declared class that is derived from it."""
    return isinstance(x, dict) and (type(x) is dict or not _classes or _methods_of(x) is None)


def parts(x: Any) -> Iterator[Any]:
    """The leaves of tuples, lists, dictionaries and objects of declared classes, in order."""
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from parts(item)
    elif _is_dictionary(x):
        for item in x.values():
            yield from parts(item)
    else:
        way = None if isinstance(x, np.ndarray) or not _classes else _methods_of(x)
        if way is None:
            yield x
        else:
            yield from parts(way[0](x)[0])


def mapped(function: Callable, x: Any) -> Any:
    """The same structure with a function applied to each of its parts."""
    if isinstance(x, tuple):
        return like(x, [mapped(function, item) for item in x])
    if isinstance(x, list):
        return [mapped(function, item) for item in x]
    if _is_dictionary(x):
        return {name: mapped(function, item) for name, item in x.items()}
    way = None if isinstance(x, np.ndarray) or not _classes else _methods_of(x)
    if way is None:
        return function(x)
    arrays, rest = way[0](x)
    found = tuple([mapped(function, a) for a in arrays])
    return x if all(a is b for a, b in zip(arrays, found)) else way[1](found, rest)


def opened(function: Callable, x: Any) -> Any:
    """`mapped`, with a tuple of arrays instead of each object of a declared class."""
    if isinstance(x, (tuple, list)):
        return like(x, [opened(function, item) for item in x])
    if _is_dictionary(x):
        return {name: opened(function, item) for name, item in x.items()}
    way = None if isinstance(x, np.ndarray) or not _classes else _methods_of(x)
    return function(x) if way is None else tuple([opened(function, a) for a in way[0](x)[0]])

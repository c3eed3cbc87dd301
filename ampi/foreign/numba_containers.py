"""Numba's compiled functions, and its typed lists and dictionaries (``numba.typed``), with active arrays.

A function of ``numba.njit`` reads the memory of its arguments, and drops their derivatives: of arrays, and of those in
tuples, lists, typed containers and objects of ``numba.experimental.jitclass``. A typed container stores the address of
an array, so an item is active when Python reads it again.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arrays.array import ndarray
from ..arrays.callers import caller_of_numba
from ..arrays.losses import lend, lose_unheard, would_be_lost
from ..base.structures import leaves
from ..errors import ActivityError
from ..interception import entry_points
from ..interception.hooks import replace_method
from ..interception.redirection import Interception, arguments_at
from ..interception.trampolines import Place
from ..memory.storages import TrackedArray
from ..tape import current

_INSTEAD = "make it an ampi.kernel"


# ----------------------------------------------------------------------------------------------- functions


def guard_functions(redirected: Interception) -> None:
    """Guard calls of compiled functions, from the next one on, also by those that are derived from them later."""
    from numba import _dispatcher  # type: ignore[attr-defined]

    call = vars(_dispatcher.Dispatcher)["__call__"]
    address, original = entry_points.wrapped_by(call)
    slots = [a for cls in _family(_dispatcher.Dispatcher) for a in entry_points.slots_with(cls, original, False)]
    redirected.add([Place((address, *slots), original, "gate opaque", _call, permanent=True)])
    _guarded.append(redirected)


_guarded: list[Interception] = []
"""What redirects calls of compiled functions, once these are guarded."""


def _family(cls: type) -> Iterator[type]:
    yield cls
    derived: type
    for derived in type.__subclasses__(cls):
        yield from _family(derived)


_looking = threading.local()  # reading an item of a container or an object calls compiled functions


def _call(_: int, given: int, named: int) -> None:
    """Hook of calls of Numba's functions with anything but plain arrays and numbers."""
    if current() is None or getattr(_looking, "now", False):
        return
    if caller_of_numba(2).startswith(_KEEPING):
        return
    arguments, keywords = arguments_at("tuple", given, named)
    for x in (*arguments, *keywords.values()):
        _lend_all(x)


_KEEPING = "ampi.kernel.", "ampi.programs.", "ampi.foreign.", "numba.typed."
"""Callers that keep the derivatives of what they pass to compiled functions."""


def _lend_all(x: Any) -> None:
    """Prepare tracked arrays, also those inside of an argument, for code that reads and writes them."""
    if isinstance(x, TrackedArray):
        found = [(x, "")]
    else:
        _looking.now = True
        try:
            found = [(item, _kind_of(x)) for item in _items(x) if isinstance(item, TrackedArray)]
        finally:
            _looking.now = False
    for item, inside in found:
        if would_be_lost(item):
            lose_unheard(f"a function of numba.njit given{inside}", item, _INSTEAD)
        if type(item) is ndarray:
            lend(item)


def _kind_of(x: Any) -> str:
    name = type(x).__name__
    if isinstance(x, (tuple, list)):
        return f" a {'tuple' if isinstance(x, tuple) else 'list'} with"
    typed = type(x).__module__.startswith("numba.typed.")
    return f" a typed {name.lower()} with" if typed else f" an object of the class {name} with"


def _items(x: Any) -> Iterator[Any]:
    """The arrays in an argument, and anything else without parts."""
    kind = type(x)
    if isinstance(x, (tuple, list)):
        for item in x:
            yield from _items(item)
    elif isinstance(x, np.ndarray) or not hasattr(kind, "_numba_type_"):
        yield x
    elif kind.__module__.startswith("numba.typed."):
        if _may_hold(x._numba_type_):
            for item in x.values() if hasattr(x, "values") else x:
                yield from _items(item)
    else:
        fields = getattr(x._numba_type_, "struct", None) or dict(getattr(x._numba_type_, "_fields", ()))
        for name, part in fields.items():
            if _may_hold(part):
                yield from _items(getattr(x, name, None))


def _may_hold(kind: Any) -> bool:
    """Return whether values of a type of Numba may be or hold arrays."""
    parts = "dtype", "item_type", "value_type", "types"
    if hasattr(kind, "ndim"):
        return True
    if getattr(kind, "struct", None) or getattr(kind, "_fields", None):
        return True
    inside = [getattr(kind, name) for name in parts if hasattr(kind, name)]
    return any(_may_hold(part) for x in inside for part in (x if isinstance(x, (tuple, list)) else (x,)))


# ---------------------------------------------------------------------------------------------- containers


def guard_lists() -> None:
    """Guard the methods that add items to a typed list, and its use by functions of Numba's."""
    _guard(sys.modules["numba.typed.typedlist"].List, ("append", "extend", "insert", "__setitem__"))


def guard_dictionaries() -> None:
    """Guard the methods that add items to a typed dictionary, and its use by functions of Numba's."""
    _guard(sys.modules["numba.typed.typeddict"].Dict, ("__setitem__", "setdefault"))


def _guard(container: type, adding: tuple[str, ...]) -> None:
    for name in adding:
        replace_method(container, name, _refusing_numbers)
    of_dispatch: property = container._numba_type_  # type: ignore[attr-defined]

    def numba_type(self: Any) -> Any:
        found = of_dispatch.fget(self)  # type: ignore[misc]
        if not (_guarded and _guarded[-1].is_working) and current() is not None:  # calls are not redirected
            if not getattr(_looking, "now", False) and not caller_of_numba(2).startswith(_KEEPING):
                _lend_all(self)
        return found

    container._numba_type_ = property(numba_type, doc=of_dispatch.__doc__)  # type: ignore[attr-defined]


def _refusing_numbers(method: Callable) -> Callable:
    """Wrap a method that adds items to a container, which stores arrays unchanged but converts numbers."""
    adds_all = method.__name__ in ("extend", "__setitem__")

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if current() is not None:
            for x in leaves([arguments, keywords]):
                if isinstance(x, TrackedArray) and would_be_lost(x):
                    if not np.ndim(x) or (adds_all and any(x is y for y in arguments) and _adds_items(arguments)):
                        raise ActivityError(
                            f"a number that carries derivatives in numba.typed.{type(self).__name__}, which stores "
                            "plain numbers; use Python's own list or dict, or put arrays into it"
                        )
        return method(self, *arguments, **keywords)

    return call


def _adds_items(arguments: tuple) -> bool:
    """Return whether the items of an array are added: by ``extend(x)`` and ``list[a:b] = x``."""
    return len(arguments) == 1 or isinstance(arguments[0], slice)

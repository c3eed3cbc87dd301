"""Layers around methods of classes: wrappers that can be added and removed in any order.

The layers of a method are always in the order of `ORDER`, whenever they are added.  Once the last one is removed, the
class has its original method again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..base.locks import RLock

REPORT, OUTCOMES, DEVICE = "report", "outcomes", "device"
ORDER = REPORT, OUTCOMES, DEVICE
"""The users of layers, from the innermost to the outermost: inside the layer for devices all arrays are on the host."""

Make = Callable[[Callable[..., Any]], Callable[..., Any]]
_MISSING = object()
_lock = RLock()
_stacks: dict[tuple[Any, str], _Stack] = {}


class _Stack:
    """The layers around one method, and what the class had before."""

    def __init__(self, owner: Any, name: str) -> None:
        self.owner, self.name = owner, name
        self.before = vars(owner).get(name, _MISSING)
        static = isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod))
        self.is_static = static or getattr(getattr(owner, name), "__self__", None) is owner
        self.layers: dict[str, list[Make]] = {}

    def add(self, user: str, make: Make) -> None:
        self.layers.setdefault(user, []).append(make)
        if any(ORDER.index(other) > ORDER.index(user) for other in self.layers):
            self.build()
        else:
            self.put(make)

    def put(self, make: Make) -> None:
        method = make(getattr(self.owner, self.name))
        setattr(self.owner, self.name, staticmethod(method) if self.is_static else method)

    def build(self) -> None:
        """Put all layers around the original method again."""
        if self.before is not _MISSING:
            setattr(self.owner, self.name, self.before)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)
        for user in ORDER:
            for make in self.layers.get(user, ()):
                self.put(make)


def add(user: str, owner: Any, name: str, make: Make) -> None:
    """Put a layer around a method: ``make`` takes the method that is inside, and returns the one that calls it."""
    with _lock:
        stack = _stacks.get((owner, name))
        if stack is None:
            stack = _stacks[owner, name] = _Stack(owner, name)
        stack.add(user, make)


def remove(user: str) -> None:
    """Remove all layers of a user."""
    with _lock:
        for key, stack in list(_stacks.items()):
            if stack.layers.pop(user, None) is not None:
                stack.build()
                if not stack.layers:
                    del _stacks[key]

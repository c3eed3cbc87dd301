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
    """The layers around one method.

    Attributes
    ----------
    before : object
        What the class had before: its own method, or none.
    put : object
        What the class has now, unless other code has replaced the method since.
    under : _Stack or None
        The layers below a method that other code put into the class.
    """

    def __init__(self, owner: Any, name: str, under: _Stack | None) -> None:
        self.owner, self.name, self.under = owner, name, under
        self.before = self.put = vars(owner).get(name, _MISSING)
        static = isinstance(inspect.getattr_static(owner, name), (staticmethod, classmethod))
        self.is_static = static or getattr(getattr(owner, name), "__self__", None) is owner
        self.layers: dict[str, list[Make]] = {}
        self.made: dict[Any, Any] = {}  # so that the class has the same method again when an inner layer is gone

    def is_replaced(self) -> bool:
        """Return whether other code has replaced the method."""
        return vars(self.owner).get(self.name, _MISSING) is not self.put

    def add(self, user: str, make: Make) -> None:
        self.layers.setdefault(user, []).append(make)
        if any(ORDER.index(other) > ORDER.index(user) for other in self.layers):
            self.build()
        else:
            self.wrap(make)

    def wrap(self, make: Make) -> None:
        key = make, getattr(self.owner, self.name)
        if key not in self.made:
            method = make(key[1])
            self.made[key] = staticmethod(method) if self.is_static else method
        self.put = self.made[key]
        setattr(self.owner, self.name, self.put)

    def build(self) -> None:
        """Put all layers around the original method again."""
        if self.before is not _MISSING:
            setattr(self.owner, self.name, self.before)
        elif self.name in vars(self.owner):
            delattr(self.owner, self.name)
        self.put = self.before
        for user in ORDER:
            for make in self.layers.get(user, ()):
                self.wrap(make)


def add(user: str, owner: Any, name: str, make: Make) -> None:
    """Put a layer around a method: ``make`` takes the method that is inside, and returns the one that calls it.

    A method that other code has put around the layers stays, and the new layer is around it.
    """
    with _lock:
        stack = _stacks.get((owner, name))
        if stack is None or stack.is_replaced():
            stack = _stacks[owner, name] = _Stack(owner, name, stack)
        stack.add(user, make)


def remove(user: str) -> None:
    """Remove all layers of a user, except below a method that other code has put around them."""
    with _lock:
        for key, stack in list(_stacks.items()):
            gone = stack.layers.pop(user, None)
            if gone is not None:
                stack.made = {key: method for key, method in stack.made.items() if key[0] not in gone}
                if not stack.is_replaced():
                    stack.build()
                if stack.layers:
                    continue
                if stack.under is not None:
                    _stacks[key] = stack.under
                else:
                    del _stacks[key]

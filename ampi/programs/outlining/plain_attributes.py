"""Attributes that are plain data of an object: reading one has no side effect, and a loop may read it once."""

from __future__ import annotations

import functools
import types
from typing import Any

MISSING = object()

_PLAIN_DESCRIPTORS = (types.MemberDescriptorType, type(type("", (), {"__slots__": ("x",)}).x))  # type: ignore[attr-defined]


@functools.lru_cache(maxsize=4096)
def _is_plain(kind: type, name: str) -> bool:
    """Return whether objects of a class have an attribute as data."""
    if kind.__getattribute__ is not object.__getattribute__ and not issubclass(kind, tuple):
        return False
    for cls in kind.__mro__:
        if name in vars(cls):
            found = vars(cls)[name]
            if type(found).__name__ == "_tuplegetter" or isinstance(found, _PLAIN_DESCRIPTORS):
                return True
            return not hasattr(type(found), "__get__")
    return True


def plain_attribute(owner: Any, name: str) -> Any:
    """The attribute if it is plain data; otherwise `MISSING`."""
    if isinstance(owner, types.ModuleType):
        return getattr(owner, name, MISSING)
    if isinstance(owner, type) or not _is_plain(type(owner), name):
        return MISSING
    try:
        return object.__getattribute__(owner, name)
    except AttributeError:
        return MISSING

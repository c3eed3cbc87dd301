"""Parts of Numba that are replaced for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any


def exist(parts: dict[Any, str]) -> bool:
    """Return whether this version of Numba has all parts: names of attributes, by their modules or classes."""
    return all(hasattr(owner, name) for owner, names in parts.items() for name in names.split())


@contextlib.contextmanager
def replaced(parts: Iterable[tuple[Any, str, Any]]) -> Iterator[None]:
    """A context in which attributes of modules and classes have other values: owner, name and value of each."""
    with contextlib.ExitStack() as stack:
        for owner, name, ours in parts:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, ours)
        yield

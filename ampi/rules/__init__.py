"""Derivative rules, of NumPy's functions and, by `define`, of anybody's."""

from typing import Any

__all__ = ["define", "define_class", "transparent"]


def __getattr__(name: str) -> Any:
    if name == "transparent":
        from ..foreign.calls import transparent

        return transparent
    if name in __all__:
        from . import definitions

        return getattr(definitions, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

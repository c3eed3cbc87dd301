"""Derivative rules of NumPy's functions and, by `define`, of functions of any package."""

import importlib
from typing import Any

__all__ = ["define", "define_class", "transparent"]

_HOMES = {
    "define": "ampi.rules.definitions",
    "define_class": "ampi.arrays.known_classes",
    "transparent": "ampi.rules.known_packages",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

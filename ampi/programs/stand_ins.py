"""Stand-ins: the modules that a program's own modules get when they import ``numpy``, ``numba`` or ``math``."""

from __future__ import annotations

import functools
import importlib
import sys
import types
from collections.abc import Callable
from typing import Any

from . import numbers

MISSING = object()


class _Standing(types.ModuleType):
    """A module with some names replaced; all others are those of the original module."""

    def __init__(self, name: str, **replaced: Any) -> None:
        origin = importlib.import_module(name)
        super().__init__(name, origin.__doc__)
        self.__dict__.update(replaced, stands_for=origin, __path__=getattr(origin, "__path__", []))
        if hasattr(origin, "__all__"):
            self.__all__ = list(origin.__all__)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["stands_for"], name)

    def __dir__(self) -> list[str]:
        return dir(self.__dict__["stands_for"])


def _numba() -> types.ModuleType:
    from . import compiled  # imports Numba

    below = {name: top(f"numba.{name}") for name in ("experimental", "extending")}
    names = "cfunc guvectorize stencil vectorize"
    return _Standing(
        "numba",
        njit=compiled.njit,
        jit=compiled.jit,
        prange=importlib.import_module("numba").prange,
        **compiled.decorators("numba", names),
        **below,
    )


def _below_numba(name: str, names: str) -> Callable[[], types.ModuleType]:
    def make() -> types.ModuleType:
        from . import compiled

        return _Standing(name, **compiled.decorators(name, names))

    return make


def _functools() -> types.ModuleType:
    return _Standing("functools", lru_cache=numbers.lru_cache, cache=numbers.lru_cache(maxsize=None))


_MAKERS = {
    "functools": _functools,
    "numpy": lambda: importlib.import_module("ampi.numpy"),
    "numba": _numba,
    "numba.experimental": _below_numba("numba.experimental", "jitclass"),
    "numba.extending": _below_numba("numba.extending", "overload overload_method overload_attribute register_jitable"),
    "math": numbers.make_math,
}


def is_replaced(package: str) -> bool:
    """Return whether a program's own modules get a stand-in for a package."""
    return package in _MAKERS


@functools.cache
def top(name: str) -> Any:
    """The stand-in of a package; None if it has none."""
    maker = _MAKERS.get(name)
    return None if maker is None else maker()


def imported(name: str) -> Any:
    """The stand-in that ``import name`` returns in the program, for a dotted name the innermost module; or `MISSING`.

    Raises
    ------
    ImportError
        There is no such module.
    """
    package, _, rest = name.partition(".")
    found = top(package)
    if found is None:
        return MISSING
    if package == "numpy" and rest:
        return importlib.import_module(f"ampi.numpy.{rest}")
    if rest:
        return top(name) or importlib.import_module(name)
    sys.modules.setdefault(package, found.__dict__["stands_for"])
    return found

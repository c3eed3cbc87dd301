"""Functions composed of others that have rules: NumPy's own Python source, or the formula for arrays on the host.

Both are run with names that leave arrays on the device where they are: ``asarray`` and the like return them unchanged.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.missing_rules import no_rule
from ..rules import linear_algebra, rewritten, samples
from .arrays import DeviceArray
from .elementwise import ON_DEVICE


class _Numpy(types.ModuleType):
    """NumPy with an ``asarray`` that leaves arrays on a device where they are."""

    def __getattr__(self, name: str) -> Any:
        return _kept(getattr(np, name)) if name in _KEPT else getattr(np, name)


_KEPT = frozenset(
    "_array array as_array asanyarray asarray from_nested plain plain_of tracked wrapped ascontiguousarray".split()
)
"""Names of functions that would make arrays on the host."""


def _kept(function: Callable) -> Callable:
    def convert(a: Any, *arguments: Any, **keywords: Any) -> Any:
        return a if isinstance(a, DeviceArray) else function(a, *arguments, **keywords)

    return convert


_numpy = _Numpy("numpy")
_RULES = rewritten.__name__.rpartition(".")[0]
_copies: dict[str, dict[str, Any]] = {}  # the names of modules, whose functions keep arrays on the device


def _names_of(module: str) -> dict[str, Any]:
    names = _copies.get(module)
    if names is None:
        names = _copies[module] = dict(vars(sys.modules[module]))
        for name, found in list(names.items()):
            if found is np:
                names[name] = _numpy
            elif name in _KEPT and callable(found):
                names[name] = _kept(found)
            elif isinstance(found, types.FunctionType) and found.__module__ == module:
                names[name] = _copied(found, names)
            elif isinstance(found, types.FunctionType) and found.__module__.startswith(_RULES):
                names[name] = _names_of(found.__module__).get(found.__name__, found)
    return names


def _copied(function: Any, names: dict[str, Any]) -> Any:
    function = inspect.unwrap(function)  # a formula without the function that it stands for
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    made.__wrapped__ = made  # type: ignore[attr-defined]  # formulas that use another one write f.__wrapped__
    return made


def _composed(function: Any, source: Any) -> Callable:
    """Return the rule of a function whose source computes with functions that have rules."""
    made: list[Callable] = []

    def rule(*arguments: Any, **keywords: Any) -> Any:
        if not made:
            made.append(_copied(source, _names_of(source.__module__)))
        if keywords.get("out") is not None:
            raise no_rule(function, f" with the argument out{ON_DEVICE}")
        return made[0](*arguments, **keywords)

    return rule


_NUMPYS: dict[Any, str] = {
    np: "angle average cumulative_prod cumulative_sum diff gradient meshgrid ptp trapezoid",
    np.linalg: "cross matmul matrix_power multi_dot outer tensordot trace",
}
"""Functions whose source in NumPy is run, by namespace."""
_OURS: dict[Any, str] = {
    rewritten: "apply_over_axes interp nancumprod nancumsum nanmean nanstd nanvar sinc",
    linear_algebra: "cross matrix_norm vector_norm tensorsolve",
    samples: "cov corrcoef",
}
"""Functions for which ampi has a formula, by module."""


def _rules() -> dict[Callable, Callable]:
    found: dict[Callable, Callable] = {}
    for space, names in _NUMPYS.items():
        for function in [getattr(space, name) for name in names.split() if hasattr(space, name)]:
            found[function] = _composed(function, function._implementation)
    for module, names in _OURS.items():
        for function, rule in module.RULES.items():
            if function.__name__ in names.split():
                found[function] = _composed(function, rule)
    return found


RULES: dict[Callable, Callable] = _rules()

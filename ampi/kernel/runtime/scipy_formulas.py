"""The functions of `ampi.partials.special.FORMULAS`, compiled."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from ampi.kernel.runtime.special import digamma, tetragamma, trigamma
from ampi.partials.special import FORMULAS


@numba.njit(error_model="numpy")
def _rgamma(x):
    return 0.0 if x <= 0.0 and x == math.floor(x) else 1.0 / math.gamma(x)


_NAMES: dict[str, Any] = {
    **{name: getattr(math, name) for name in ("cos", "exp", "gamma", "log", "log1p", "sin", "sqrt")},
    "digamma": digamma,
    "rgamma": _rgamma,
    "round": np.rint,
    "tetragamma": tetragamma,
    "trigamma": trigamma,
}


def parameters_of(text: str) -> list[str]:
    """The arguments in an expression of the table."""
    named = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    return [x for x in "xyzw" if x in named]


def _compiled(name: str) -> Callable:
    """A compiled function of the table; functions that it calls come before it there."""
    text = FORMULAS[name]
    source = f"def {name}({', '.join(parameters_of(text))}):\n    return {text}\n"
    namespace = {**_NAMES, **FUNCTIONS}
    exec(compile(source, __file__, "exec"), namespace)
    return numba.njit(error_model="numpy")(namespace[name])


FUNCTIONS: dict[str, Callable] = {}
for _name in FORMULAS:
    FUNCTIONS[_name] = _compiled(_name)

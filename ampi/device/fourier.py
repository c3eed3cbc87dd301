"""`numpy.fft` on a device, by the adjoints of the rules of arrays on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..base.missing_rules import no_rule
from ..base.structures import bound
from ..rules import fourier
from .elementwise import ON_DEVICE
from .operations import compute, each, operand, record


def _rule(function: Callable, kind: str, inverse: bool) -> Callable:
    single = not function.__name__.endswith(("2", "n"))
    names = "a n axis norm" if single else "a s axes norm"
    default = {"n": None, "axis": -1} if single else {"s": None, "axes": (-2, -1) if "2" in function.__name__ else None}

    def rule(*arguments: Any, **keywords: Any) -> Any:
        given = {**default, "norm": None, **bound(names, arguments, keywords)}
        a = operand(given["a"], function.__name__)
        options = [given[name] for name in names.split()[1:]]
        result = compute(function, a, *options)
        wanted = (None if given["n"] is None else (given["n"],)) if single else given["s"]
        transform = fourier.Transform()
        transform.kind, transform.inverse, transform.norm = kind, inverse, given["norm"]
        transform.axes = fourier.axes_of((given["axis"],) if single else given["axes"], wanted, a.ndim)
        transform.lengths = fourier.lengths_of(wanted, transform.axes, a.shape, result.shape, kind)
        if len(set(transform.axes)) < len(transform.axes):
            raise no_rule(function, f" for repeated axes{ON_DEVICE}")
        shape = a.shape

        def adjoint(k: int, g: Any, values: Any) -> Any:
            return fourier.resized(fourier.ADJOINTS[kind](transform, g), transform.axes, shape)

        def push(dots: dict[int, Any], values: Any) -> Any:
            return function(dots[0], *options)

        return record(f"numpy.fft.{function.__name__}", [a], result, None, each(adjoint), push)

    return rule


RULES: dict[Callable, Callable] = {function: _rule(function, *kind) for function, kind in fourier.KINDS.items()}

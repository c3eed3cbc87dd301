"""Transposition: the tangent of an operation from its adjoint, which is recorded and swept."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from ..memory.storages import Region, plain
from .push import Push, no_tangent
from .recording import actively, passively
from .records import Adjoint
from .tape import Tape

LOSSY = 1e-2  # relative difference; iterative solvers and single precision leave less


_ANY = np.random.default_rng(0).uniform(0.5, 1.5, 4093)


def transposed(push: Push, adjoint: Adjoint, sources: Collection[Region], results: Sequence[Region]) -> None:
    """Push tangents through an operation that created its results, by transposing its adjoint.

    The adjoint is a linear function of ȳ, so that the gradient of ⟨Jᵀȳ, ẋ⟩ with respect to ȳ is Jẋ (Griewank and
    Walther, "Evaluating Derivatives", 2008, section 3.3, in reverse).  It is recorded on a separate tape.
    """
    scope = passively()
    try:
        with Tape() as inner:
            recorded = _Recorded(inner, results)
            adjoint(recorded)
        if any(not inner.is_active(value) and np.any(value) for _, value in recorded.added):
            # It is linear: a value that is not zero depends on ȳ, and is active unless ȳ was copied to a plain array.
            raise no_tangent(adjoint.name or "an operation whose adjoint uses plain arrays")
        pairs = [(value, push.get(source)) for source, value in recorded.added if inner.is_active(value)]
        found = inner.gradient([value for value, _ in pairs], recorded.given, [x_dot for _, x_dot in pairs])
        if _is_lossy(pairs, recorded.given, found):
            raise no_tangent(f"{adjoint.name or 'an operation'}, whose adjoint uses plain arrays,")
    finally:
        actively(scope)
    for region, y_dot in zip(results, found):
        push.put(region, y_dot)


def _is_lossy(pairs: list[tuple[Any, np.ndarray]], given: list[Any], found: Sequence[np.ndarray]) -> bool:
    """Return whether parts of an adjoint were not recorded: it is linear, so that ⟨Jᵀȳ, ẋ⟩ and ⟨ȳ, Jẋ⟩ are equal."""
    back = [np.real(np.conj(plain(value)) * x_dot) for value, x_dot in pairs]
    forth = [np.real(np.conj(plain(g)) * y_dot) for g, y_dot in zip(given, found)]
    difference = sum(np.sum(t) for t in back) - sum(np.sum(t) for t in forth)
    # Rounding errors, as of filters that give zeros, do not count, nor do values that are not finite.
    rounding = sum(float(np.finfo(t.dtype).eps) ** 0.6 * np.sum(abs(x_dot)) for t, (_, x_dot) in zip(back, pairs))
    return bool(abs(difference) > LOSSY * sum(np.sum(abs(t)) for t in back + forth) + rounding)


def _any_numbers(region: Region) -> np.ndarray:
    found = np.resize(_ANY, region.shape)
    return (found * (1 - 0.6j) if region.dtype.kind == "c" else found).astype(region.dtype, copy=False)


class _Recorded:
    """A stand-in for the sweep while an adjoint is recorded; its ȳ are watched arrays."""

    pairs = False

    def __init__(self, tape: Tape, results: Sequence[Region]) -> None:
        # Not zeros: some adjoints skip a ȳ of zero.  Not ones: filters cancel these.
        self.given = [tape.watch(_any_numbers(region)) for region in results]
        self._of = {id(region): g for region, g in zip(results, self.given)}
        self.added: list[tuple[Region, Any]] = []

    def has_shadow(self, region: Region) -> bool:
        return id(region) in self._of

    def shadow(self, region: Region) -> Any:
        return self._of[id(region)]

    def add(self, region: Region, value: Any) -> None:
        if value.shape != region.shape:
            value = np.broadcast_to(value, region.shape)
        self.added.append((region, value))

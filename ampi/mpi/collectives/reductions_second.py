"""Second order of reductions that are not linear, element by element: tangents of what `reductions` computes.

While the adjoint g of a result goes back, its tangent ġ follows one step later.  The contributions have tangents ẋ,
and partial results are pairs of a value and a tangent, arrays of shape (2, n):

- PROD: with the product p of the others, x̄ = conj(p) g has the tangent conj(p) ġ + conj(ṗ) g.  ṗ comes from products
  of pairs, (a, ȧ) (b, ḃ) = (a b, ȧ b + a ḃ), without a division.
- A custom operation: the kernel's tangent program combines pairs, and the tangent of its adjoint program takes ġ back.

MIN, MAX, MINLOC and MAXLOC select elements: ġ goes the same way as g.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI as mpi

from ...tape import Sweep
from ..log.reverse import Reverse
from .reductions import Combination, Reduction, Steps, accumulated, shifted

if TYPE_CHECKING:
    from .reduction_plans import Reducing


def is_nonlinear(rule: Reduction, x: Any) -> bool:
    """Return whether the adjoint of a reduction depends on its values; raises an error where it has no derivative."""
    pairs = None if rule.prefix is None else _pairs_of(rule)
    if pairs is not None:
        pairs.require(x.dtype)
    return pairs is not None


def rules_in_lanes(rule: Reduction, directions: int) -> tuple[Reduction, ...]:
    """Return rules that replace that of a nonlinear reduction: for adjoints, and for their tangents in each direction.

    They are used for a single adjoint, and in each step the first rule runs first.  The others are given ``(2, n)``
    arrays of values and tangents.
    """
    seen: list[np.ndarray] = []  # the adjoint; its tangents come later

    def share(comm: Any, x: np.ndarray, g: np.ndarray) -> Steps:
        seen[:] = [g]
        return (yield from rule.share(comm, x, g))

    def partials(prefix: Any, x: np.ndarray, g: np.ndarray) -> Any:
        seen[:] = [g]
        return rule.partials(prefix, x, g)  # type: ignore[misc]

    pairs = _pairs_of(rule)

    def share_tangent(comm: Any, x: np.ndarray, g_dot: np.ndarray) -> Steps:
        before = yield from pairs.prefix(comm, x)
        after = yield from shifted(comm, (yield from accumulated(comm, x, pairs.combine, 1)), 1)
        g = np.stack([seen[0], g_dot])
        if after is not None:
            up_to_here = x if before is None else pairs.combine(before, x)
            g = pairs.partials(up_to_here, after, g)[0]
        return g[1] if before is None else pairs.partials(before, x, g)[1][1]

    def partials_tangent(prefix: Any, x: np.ndarray, g_dot: np.ndarray) -> Any:
        return [bar[1] for bar in pairs.partials(prefix, x, np.stack([seen[0], g_dot]))]

    of_tangents = Reduction(share_tangent, pairs.prefix, partials_tangent)
    return Reduction(share, rule.prefix, partials), *[of_tangents] * directions


class WithTangents:
    """The flat contributions to a reduction that is not linear, and their tangents in each direction."""

    __slots__ = ("tangents", "value")

    def __init__(self, value: np.ndarray, tangents: list[np.ndarray]) -> None:
        self.value = value
        self.tangents = tangents


def steps_in_lanes(part: Reducing, sweep: Sweep, reverse: Reverse, x: WithTangents) -> list[Steps]:
    """Return the steps of the adjoint of a reduction that is not linear, and those of its tangents."""
    rules = rules_in_lanes(part.rule, len(x.tangents))
    values = x.value, *(np.stack([x.value, tangent]) for tangent in x.tangents)
    return [part.adjoint(lane, reverse, value, rule) for lane, value, rule in zip(sweep.lanes, values, rules)]


def partials_of_pairs(rule: Reduction, a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return adjoints and their tangents of two operands of a nonlinear reduction, as pairs like that of the result."""
    return _pairs_of(rule).partials(a, b, g)


class _Pairs:
    """An operation on pairs of values and tangents.

    Attributes
    ----------
    combine : callable
        ``combine(a, b)`` -> a ∘ b.
    partials : callable
        ``partials(a, b, g)`` -> adjoints of a and b with their tangents, for that of a ∘ b.
    require : callable
        ``require(dtype)`` raises if there is no second derivative for arrays of this dtype.
    """

    def __init__(self, combine: Callable, partials: Callable, require: Callable = lambda dtype: None) -> None:
        self.combine = combine
        self.partials = partials
        self.require = require

    def prefix(self, comm: Any, x: np.ndarray) -> Steps:
        """Compute x_0 ∘ … ∘ x_{r-1}; None on rank 0."""
        total = yield from accumulated(comm, x, lambda total, incoming: self.combine(incoming, total), -1)
        return (yield from shifted(comm, total, -1))


def _pairs_of(rule: Reduction) -> Any:
    found = getattr(rule.prefix, "__self__", None)
    if isinstance(found, Combination):
        if found.pairs is None:
            found.pairs = _of_kernel(found)
        return found.pairs
    return _PRODUCTS.get(rule.prefix)


def _times(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([a[0] * b[0], a[1] * b[0] + a[0] * b[1]])


def _partials_of_product(a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _times(np.conj(b), g), _times(np.conj(a), g)


def _of_kernel(combination: Combination) -> _Pairs:
    from ...kernel.case import Case
    from ...kernel.forward import make_tangent_contract
    from ...kernel.second import make_second_contract

    kernel = combination.kernel

    @cache
    def contracts(dtype: np.dtype) -> tuple[Any, Any, Any]:
        some = np.empty(1, dtype)
        case = Case(kernel.types_of((some, some.copy())), frozenset({0, 1}))
        return combination.contract(some, some), make_tangent_contract(kernel, case), make_second_contract(kernel, case)

    def combine(a: np.ndarray, b: np.ndarray) -> np.ndarray:
        a, b = a.copy(), b.copy()
        _, contract, _ = contracts(b.dtype)
        shadows = a[1], b[1]
        contract.tangent(a[0], b[0], *(shadows[k] for k in contract.shadows))
        return b

    def partials(a: np.ndarray, b: np.ndarray, g: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        first, _, second = contracts(b.dtype)
        bars = np.zeros_like(a), np.array(g, b.dtype)
        given = [x[0].copy() for x in (a, b)] + [bars[k][0] for k in first.shadows]
        dots = [x[1].copy() for x in (a, b)] + [bars[k][1] for k in first.shadows]
        second.program(*given, *(dots[k] for k in second.arrays))
        return bars

    return _Pairs(combine, partials, contracts)


_PRODUCTS: dict[Any, _Pairs] = {}


def _enter() -> None:
    from .reductions import known

    _PRODUCTS[known(mpi.PROD).prefix] = _Pairs(_times, _partials_of_product)  # type: ignore[union-attr]


_enter()

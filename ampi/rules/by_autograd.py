"""Records of a tape with autograd's derivative rules.

A rule takes the plain values of the arguments and the result, and returns a function for the adjoint. The closure of
that function shows which values it needs: the tape saves these and no others. autograd pairs complex numbers without
conjugation, so adjoints are conjugated before and after.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arrays.activity import is_active, is_inexact, plain_of
from ..arrays.elementwise import unbroadcast
from ..arrays.nested import from_nested
from ..base.missing_rules import no_rule
from ..base.structures import bound, leaves, mapped
from ..memory.storages import Region, plain, region_of, wrapped
from ..tape import BaseAdjoint, Push, Sweep, Tape, current, transposed


@functools.cache
def _vjp_maker(function: Callable) -> Callable | None:
    if function in OWN_MAKERS:
        return OWN_MAKERS[function]
    import autograd.numpy  # fills the tables
    from autograd.core import primitive_vjps
    from autograd.tracer import trace_primitives_map

    module = (getattr(function, "__module__", None) or "").partition(".")[0]
    if module != "numpy" and getattr(np, function.__name__, None) is not function:
        import autograd.scipy.special  # noqa: F401  (takes a second)

    primitive = trace_primitives_map.get(function)
    return primitive_vjps.get(primitive)


def has_rule(function: Callable) -> bool:
    """Return whether autograd has a rule for a function."""
    return _vjp_maker(function) is not None


OWN_MAKERS: dict[Callable, Callable] = {}
"""Rules that replace autograd's."""


def _kept_arrays(x: Any, seen: set[int]) -> Iterator[np.ndarray]:
    """Arrays in the closure of a function."""
    if id(x) in seen:
        return
    seen.add(id(x))
    if isinstance(x, np.ndarray):
        yield x
    elif isinstance(x, (tuple, list, set)):
        for item in x:
            yield from _kept_arrays(item, seen)
    elif isinstance(x, dict):
        yield from _kept_arrays(list(x.values()), seen)
    elif isinstance(x, functools.partial):
        yield from _kept_arrays((x.func, x.args, x.keywords), seen)
    elif isinstance(x, types.MethodType):
        yield from _kept_arrays((x.__func__, x.__self__), seen)
    elif isinstance(x, types.FunctionType):
        yield from _kept_arrays(x.__defaults__, seen)
        for cell in x.__closure__ or ():
            try:
                yield from _kept_arrays(cell.cell_contents, seen)
            except ValueError:
                continue


class _ByAutograd(BaseAdjoint):
    __slots__ = ("function", "make", "regions", "results", "vjp")
    second_order = "differentiated"

    def __init__(self, function: Callable, vjp: Callable, regions: list[Region], results: list[Region]) -> None:
        self.function = function
        self.make: Callable | None = None  # in second order: makes the rule for values that carry derivatives
        self.vjp = vjp
        self.regions = regions
        self.results = results

    def __call__(self, sweep: Sweep) -> None:
        if not any(sweep.has_shadow(result) for result in self.results):
            return
        g = [np.conj(sweep.shadow(result)) for result in self.results]
        vjp = self.vjp if self.make is None or not sweep.pairs else self.make()
        contributions = vjp(g[0] if len(g) == 1 else tuple(g)) if not sweep.pairs else _of_pairs(sweep, vjp, g)
        for region, contribution in zip(self.regions, contributions):
            contribution = np.asanyarray(contribution)
            if contribution.shape != region.shape:
                contribution = unbroadcast(contribution, region.shape)
            if contribution.shape != region.shape:
                raise no_rule(self.function, f" for an argument of shape {region.shape}")
            sweep.add(region, np.conj(contribution))

    def tangent(self, push: Push) -> None:
        """The transposed adjoint: autograd has no tangents for most of these functions."""
        transposed(push, self, self.regions, self.results)


def _of_pairs(sweep: Any, vjp: Callable, g: list) -> Any:
    """Apply a rule to adjoints that have tangents.

    Some rules skip arguments that a zero adjoint does not reach, and would skip its tangent as well: they get a nonzero
    adjoint in addition, and its contribution is subtracted from the result.
    """
    hidden = [not plain(a).any() and bool(np.any(sweep.tape.tangent_at(a))) for a in g]
    together = lambda some: vjp(some[0] if len(some) == 1 else tuple(some))
    if not any(hidden):
        return together(g)
    others = [np.full(a.shape, float(h), a.dtype) for a, h in zip(g, hidden)]
    both, extra = together([a + b for a, b in zip(g, others)]), together(others)
    return [a - b for a, b in zip(both, extra)]


def by_autograd(function: Callable, values: tuple, keywords: dict) -> Any:
    """Run a function for which autograd has a rule, and record it.

    Parameters
    ----------
    function : callable
    values : tuple
        Its array arguments, in its own order, some of them active.
    keywords : dict
        Other arguments, as autograd's rule takes them.
    """
    tape = current()
    assert tape is not None
    maker = _vjp_maker(function)
    if maker is None:
        raise no_rule(function)
    operands = [plain_of(x) for x in values]
    active = tuple(k for k, x in enumerate(values) if is_active(tape, x))
    answer = function(*operands, **keywords)
    result = wrapped(answer)
    results = [r for r in leaves(result) if is_inexact(r)]
    if not results:
        return result
    shown = wrapped_plain(result)
    make = lambda: maker(active, shown, tuple(operands), keywords)
    try:
        vjp = make()
        if _keep(tape, values, operands, vjp):
            vjp = make()
    except (NotImplementedError, AssertionError, TypeError, ValueError) as reason:
        raise no_rule(function, f" for these arguments ({reason})") from None
    kept = list(_kept_arrays(vjp, set()))
    for r in results:
        if any(np.may_share_memory(a, r) for a in kept):
            tape.need(r)
        tape.activate(r)
    regions = [region_of(values[k]) for k in active]
    record = _ByAutograd(function, vjp, regions, [region_of(r) for r in leaves(result)])
    if tape.tangents is not None:
        held = tuple([tape.need(x) if isinstance(x, np.ndarray) else x for x in values])
        answer = mapped(lambda r: tape.need(r) if isinstance(r, np.ndarray) else r, result)
        record.make = lambda: maker(active, answer, held, keywords)
    tape.append(record, created=results)
    return result


def wrapped_plain(result: Any) -> Any:
    """A result in the form that autograd's rules expect: plain views of the user's memory."""
    if isinstance(result, tuple):
        return tuple(plain_of(r) for r in result)
    return plain_of(result)


def _keep(tape: Tape, values: tuple, operands: list, vjp: Callable) -> bool:
    """Register the values that the rule keeps as needs of the tape; return whether one was replaced by a copy."""
    kept = list(_kept_arrays(vjp, set()))
    replaced = False
    for k, x in enumerate(values):
        if isinstance(x, np.ndarray) and any(np.may_share_memory(a, x) for a in kept):
            held = tape.need(x)
            if not np.may_share_memory(held, x):
                operands[k] = held
                replaced = True
    return replaced


def autograd_rule(function: Callable, parameters: str, arrays: int, complex_too: bool = True) -> Callable:
    """The rule of a function whose first ``arrays`` parameters are arrays."""

    def rule(*arguments: Any, **keywords: Any) -> Any:
        given = bound(parameters, arguments, keywords)
        unknown = set(given) - set(parameters.split())
        if unknown:
            raise no_rule(function, f" with the argument {', '.join(sorted(unknown))}")
        names = parameters.split()[:arrays]
        values = tuple(np.asanyarray(from_nested(given.pop(name))) for name in names)
        if not complex_too and any(x.dtype.kind == "c" for x in values):
            raise no_rule(function, " for complex arguments")
        return by_autograd(function, values, given)

    return rule

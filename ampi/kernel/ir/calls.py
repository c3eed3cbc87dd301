"""Large functions that a kernel calls: they are differentiated and compiled separately instead of being inlined.

Such a call is an ``ir.Fill``: its arguments are arrays (numbers are packed into arrays), and all results are elements
of one new array.  A derivative of such a function has the same form, so that it can be differentiated again:

==========  ===================================================================================================
derivative  arguments, and elements of the result
==========  ===================================================================================================
adjoint     the arguments, then the adjoint of the result; the increments of the adjoints of the active
            arguments, one after the other
tangent     the arguments, then the tangents of the active ones; the tangent of the result
==========  ===================================================================================================

The functions are known by their names, which contain a hash of their statements.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

from ampi.kernel import ir
from ampi.kernel.runtime.cache import fingerprint


class Derivatives(Protocol):
    """What differentiates separate functions: the pipeline."""

    def prepared(self, function: ir.Function) -> ir.Function | None:
        """A parsed function in the form that is differentiated; None if it has to be inlined."""

    def adjoint(self, function: ir.Function, active: tuple[int, ...], name: str) -> ir.Function:
        """The adjoint with respect to the arguments at these positions."""

    def tangent(self, function: ir.Function, active: tuple[int, ...], name: str) -> ir.Function:
        """The tangent with respect to the arguments at these positions."""

    def finished(self, function: ir.Function) -> ir.Function:
        """The function in the form that is emitted."""


@dataclass(frozen=True)
class Separate:
    """A function that is compiled separately, and what differentiates it."""

    function: ir.Function
    derivatives: Derivatives


_functions: dict[str, Separate] = {}
_finished: dict[str, ir.Function] = {}


def register(function: ir.Function, derivatives: Derivatives) -> str | None:
    """The name under which a parsed function is known; None if it has to be inlined."""
    leaves = [(a.name, str(a.type)) for a in function.arguments]
    name = f"{function.name}_{fingerprint(leaves, function.body)[:10]}"
    if name not in _functions:
        prepared = derivatives.prepared(function)
        if prepared is None:
            return None
        _functions[name] = Separate(replace(prepared, name=name), derivatives)
    return name


def is_separate(name: str) -> bool:
    """Return whether a ``Fill`` calls a separate function."""
    return name in _functions


def adjoint(name: str, active: tuple[int, ...]) -> str:
    """The name of the adjoint of a separate function."""
    return _derived(name, active, "adjoint")


def tangent(name: str, active: tuple[int, ...]) -> str:
    """The name of the tangent of a separate function."""
    return _derived(name, active, "tangent")


def _derived(name: str, active: tuple[int, ...], kind: str) -> str:
    derived = f"{name}_{kind}_{'_'.join(map(str, active))}"
    if derived not in _functions:
        known = _functions[name]
        make = known.derivatives.adjoint if kind == "adjoint" else known.derivatives.tangent
        _functions[derived] = Separate(make(known.function, active, derived), known.derivatives)
    return derived


def called(function: ir.Function) -> Iterator[str]:
    """The names of the separate functions that a function calls."""
    for s in ir.walk(function.body):
        if isinstance(s, ir.Fill) and is_separate(s.function):
            yield s.function
        elif isinstance(s, ir.Launch):
            for part in (s.part, s.atomic):
                yield from called(part) if part is not None else ()


def needed(functions: Iterable[ir.Function]) -> list[ir.Function]:
    """The separate functions that functions call, directly or not, in their final form, each before its callers."""
    found: dict[str, ir.Function] = {}

    def add(name: str) -> None:
        if name in found:
            return
        if name not in _finished:
            _finished[name] = _functions[name].derivatives.finished(_functions[name].function)
        for inner in called(_finished[name]):
            add(inner)
        found[name] = _finished[name]

    for function in functions:
        for name in called(function):
            add(name)
    return list(found.values())

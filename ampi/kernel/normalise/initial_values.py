"""Initial values of numbers that a branch of an iteration defines and a later branch of the same iteration reads.

Without one, the number would seem to come from the iteration before, so that iterations would depend on each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from ampi.kernel import ir
from ampi.kernel.ir.inference import is_array
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.liveness import live_before


def with_initial_values(function: ir.Function, apart: Callable[[ir.For], bool] = lambda loop: True) -> ir.Function:
    """The function with such numbers set to zero at the beginning of the loop's body that has all their uses.

    Only for loops (those that are ``apart``) in which iterations read what others have set only if it is also set
    before the loop, such as those of programs from single assignment form.
    """
    names = (*_names(function.body), *(a.name for a in function.arguments))
    return replace(function, body=_changed(function.body, Counter(names), apart))


def _names(body: tuple[ir.Stmt, ...]) -> list[str]:
    return [n.name for n in ir.walk(body) if isinstance(n, ir.Var)]


def _changed(body: tuple[ir.Stmt, ...], count: Counter[str], apart: Callable[[ir.For], bool]) -> tuple[ir.Stmt, ...]:
    return tuple(_statement(s, count, apart) for s in body)


def _statement(s: ir.Stmt, count: Counter[str], apart: Callable[[ir.For], bool]) -> ir.Stmt:
    if not isinstance(s, ir.For) or not apart(s):
        return ir.in_blocks(s, lambda block: _changed(block, count, apart))
    body = _changed(s.body, count, apart)
    inside = Counter(_names(s.body))
    types = {n.name: n.type for n in ir.walk(s.body) if isinstance(n, ir.Var) and not is_array(n.type)}
    live = live_before(body, set()) - {s.var.name}
    missing = [n for n in types if n in live and inside[n] == count[n]]
    first = (ir.Assign(ir.Var(n, types[n]), constant(0, types[n]), line=s.line) for n in missing)
    return replace(s, body=(*first, *body))

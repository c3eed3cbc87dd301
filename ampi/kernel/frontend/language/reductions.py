"""Reduction variables of parallel loops, and the check that iterations share nothing else."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

from ampi.kernel import ir

OPERATIONS = {"add": "add", "sub": "add", "mul": "mul", "min": "min", "max": "max"}


def find_reductions(function: ir.Function, fail: Any) -> ir.Function:
    """Set ``For.reductions`` of parallel loops; call ``fail(line, problem, advice)`` for other carried variables."""
    everywhere = names_in(function.body)
    return replace(function, body=_block(function.body, everywhere, fail))


def _block(body: tuple[ir.Stmt, ...], everywhere: Counter[str], fail: Any) -> tuple[ir.Stmt, ...]:
    result = []
    for statement in body:
        statement = ir.in_blocks(statement, lambda block: _block(block, everywhere, fail))
        if isinstance(statement, ir.For) and statement.parallel:
            of_arrays = _reduces_arrays(statement)
            statement = replace(
                statement, reductions=_reductions(statement, everywhere, fail), reduces_arrays=of_arrays
            )
        result.append(statement)
    return tuple(result)


def _reductions(loop: ir.For, everywhere: Counter[str], fail: Any) -> tuple[tuple[str, str], ...]:
    inside = names_in(loop.body)
    found: dict[str, str] = {}
    for statement in ir.walk(loop.body):
        if not isinstance(statement, ir.Assign):
            continue
        name = statement.target.name
        if inside[name] == everywhere[name]:
            continue  # a variable of one iteration
        operation = _operation(statement)
        if operation is None or found.setdefault(name, operation) != operation:
            fail(
                statement.line,
                f"'{name}' is carried from one iteration of prange to the next",
                "use range, or a reduction: s += x, s *= x, s = min(s, x), s = max(s, x)",
            )
    for name in found:
        updates = sum(isinstance(s, ir.Assign) and s.target.name == name for s in ir.walk(loop.body))
        if inside[name] != 2 * updates:
            fail(loop.line, f"'{name}' is reduced in prange and read there too", "read it after the loop")
    return tuple(found.items())


def _reduces_arrays(loop: ir.For) -> bool:
    """True if iterations update a whole array from before the loop, ``v += x``: Numba gives each thread its own."""
    nodes = list(ir.walk(loop.body))
    own = {n.target.name for n in nodes if isinstance(n, (ir.Alloc, ir.Alias, ir.View))}
    return any(isinstance(n, ir.Elementwise) and n.axes == n.index and n.array.name not in own for n in nodes)


def _operation(statement: ir.Assign) -> str | None:
    """``add`` for ``s = s + x`` and so on; None if the statement is not a reduction."""
    value, name = statement.value, statement.target.name
    if not isinstance(value, ir.Op) or value.name not in OPERATIONS:
        return None
    kind = OPERATIONS[value.name]
    while isinstance(value, ir.Op) and OPERATIONS.get(value.name) == kind:
        holding = [a for a in value.args if any(isinstance(n, ir.Var) and n.name == name for n in ir.walk(a))]
        if len(holding) != 1 or (value.name == "sub" and holding[0] is not value.args[0]):
            return None
        value = holding[0]
    return kind if isinstance(value, ir.Var) else None


def names_in(body: tuple[ir.Stmt, ...]) -> Counter[str]:
    """The number of occurrences of each variable, as a target or in an expression."""
    return Counter(n.name for n in ir.walk(body) if isinstance(n, ir.Var))

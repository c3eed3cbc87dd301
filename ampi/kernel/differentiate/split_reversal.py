"""Split reversal: the adjoint program is cut in two, and its forward part replaces the kernel's own run.

The second part takes *kept* values from the first: arrays of saved values, sizes, scalars (Griewank and Walther call
this split reversal, and a program that runs forward once more joint reversal).
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.operators import QUOTIENTS
from ampi.kernel.ir.ssa import Loop, definitions, every, reads, written


def names_from_outside(body: tuple[Stmt, ...], known: set[str]) -> dict[str, Var]:
    """The names that statements read and do not define, apart from those that are known."""
    defined = known | {v.name for s in every(body) for v in definitions(s)}
    found: dict[str, Var] = {}
    for s in every(body):
        target = written(s)
        for e in (*reads(s), *(() if target is None else (target,))):
            found |= {n.name: n for n in ir.walk(e) if isinstance(n, Var) and n.name not in defined}
    return found


def writes_into(body: tuple[Stmt, ...], names: dict[str, Var]) -> bool:
    """Return whether statements change the elements of these arrays."""
    return any((w := written(s)) is not None and w.name in names for s in every(body))


def has_loop(body: tuple[Stmt, ...]) -> bool:
    """Return whether statements contain a loop or an operation on whole arrays."""
    return any(isinstance(s, (Loop, ir.Fill)) for s in every(body))


def has_constant_size(s: ir.Alloc) -> bool:
    """Return whether an array is so small that its elements are computed again rather than kept."""
    return all(isinstance(n, Const) for n in s.shape)


def is_plain(result: Any) -> bool:
    """Return whether a result is None, a number, an array, or a tuple of these."""
    return not isinstance(result, tuple) or (result[1] is None and all(isinstance(r, str) for r in result[2]))


def without_exceptions(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
    """Statements without those that raise exceptions."""
    kept = (replace(s, raises=False) if isinstance(s, ir.Fill) else s for s in body if not isinstance(s, ir.Raise))
    return tuple(ir.in_blocks(s, without_exceptions) for s in kept)


def raises_exactly(body: tuple[Stmt, ...], written: bool) -> bool:
    """Return whether the exceptions of statements are those of the kernel, or the kernel can run again to raise its own
    ones: it has not ``written`` to its arguments."""
    return not written or all(s.exact for s in every(body) if isinstance(s, ir.Raise))


def divisions(body: tuple[Stmt, ...]) -> int:
    """The number of statements that may raise ``ZeroDivisionError``, under Python's error model."""
    values = (s.value for s in every(body) if isinstance(s, ir.Assign))
    return sum(isinstance(v, Op) and v.name in QUOTIENTS and not _is_nonzero_constant(v.args[1]) for v in values)


def _is_nonzero_constant(value: Expr) -> bool:
    return isinstance(value, Const) and value.value != 0


def are_new(results: tuple[Expr, ...], body: tuple[Stmt, ...], kept: Container[str]) -> bool:
    """Return whether the statements allocate the arrays among the results, each once, and keep none of them."""
    arrays = [v for v in results if isinstance(v.type, types.Array)]
    allocated = {s.target.name for s in every(body) if isinstance(s, ir.Alloc) and s.target.type.layout == "C"}
    names = {v.name for v in arrays if isinstance(v, Var) and v.name in allocated and v.name not in kept}
    return len(names) == len(arrays)


def defined_everywhere(function: ir.Function) -> ir.Function:
    """A function (about to be emitted) in which kept values are defined even if the branch or loop that sets them is
    not entered.

    The values set here are not used: the second part reads kept values in the same branches and iterations only.
    """
    *_, end = function.body
    known = {a.name for a in function.arguments} | _surely_defined(function.body)
    missing = {v.name: v for value in end.values for v in ir.walk(value) if isinstance(v, Var) and v.name not in known}
    return replace(function, body=(*(_empty(v, end.line) for v in missing.values()), *function.body))


def _surely_defined(body: tuple[Stmt, ...]) -> set[str]:
    """Names that statements define on every path."""
    found: set[str] = set()
    for s in body:
        if isinstance(s, ir.If):
            found |= _surely_defined(s.then) & _surely_defined(s.orelse)
        elif isinstance(s, (ir.Assign, ir.Alloc, ir.Fill, ir.Alias)):
            found.add(s.target.name)
    return found


def _empty(var: Var, line: int) -> Stmt:
    if not isinstance(var.type, types.Array):
        return ir.Assign(var, constant(0, var.type), line=line)
    size = constant(0, types.intp)
    return ir.Alloc(var, (size,) * var.type.ndim, None, line=line)

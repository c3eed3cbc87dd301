"""Bounds checks that name the array: calls that check an index, inserted before each subscript of Numba's IR.

::

    y[i] = x[i + 1]        check(x, i + 1, "x", 12); check(y, i, "y", 12); y[i] = x[i + 1]

Numba's own checks, which name neither array nor index, are also on, for accesses that are not subscripts.  Numba loses
exceptions that are raised on threads, so code with checks is compiled for one thread.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.core import config, ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.ir_utils import build_definitions, mk_unique_var
from numba.core.untyped_passes import IRProcessing
from numba.extending import overload

from ampi.base import checks
from ampi.kernel.runtime.noalias import keep_in_range


class OutOfBounds(IndexError):
    """An index of an array in a kernel is out of bounds."""

    def __init__(self, place: str, array: str, axis: int, index: int, size: int):
        super().__init__(f"{place}: index {index} is out of bounds for axis {axis} of '{array}', which has size {size}")


def are_checked(options: dict[str, Any]) -> bool:
    """Return whether kernels with these options of ``numba.njit`` check indices.

    The first of these that is set decides: ``AMPI_CHECK=full``, ``NUMBA_BOUNDSCHECK``, ``boundscheck=True``.
    """
    if checks.is_full():
        return True
    return bool(options.get("boundscheck") if config.BOUNDSCHECK is None else config.BOUNDSCHECK)


def checking(options: dict[str, Any]) -> dict[str, Any]:
    """Options of ``numba.njit`` for code that checks indices."""
    return {**options, "boundscheck": True, "parallel": False, "pipeline_class": CheckedBounds}


# --------------------------------------------------------------------------------------------------- the check


def check(array: Any, index: Any, name: str, place: str) -> None:
    """Raise `OutOfBounds` if an index is out of bounds; only in compiled code."""


@overload(check, prefer_literal=True)
def _check(array, index, name, place):  # type: ignore[no-untyped-def]  # Numba compares the signatures
    if not isinstance(array, types.Array) or not isinstance(name, types.StringLiteral):
        return lambda array, index, name, place: None
    lines = ["def found(array, index, name, place):", "    pass"]
    several = isinstance(index, types.BaseTuple)
    for k, axis, part in _axes(array, tuple(index) if several else (index,)):
        value, raised = f"index[{k}]" if several else "index", f"raise OutOfBounds(PLACE, NAME, {axis}, i, n)"
        unsigned = not part.signed if isinstance(part, types.Integer) else not part.dtype.signed
        outside = "i >= np.uint64(n)" if unsigned else "i < -n or i >= n"
        lines.append(f"    n = array.shape[{axis}]")
        if isinstance(part, types.Integer):
            lines += [f"    i = {value}", f"    if {outside}:", f"        {raised}"]
        else:
            lines += [f"    for i in {value}.flat:", f"        if {outside}:", f"            {raised}"]
    space = {"np": np, "OutOfBounds": OutOfBounds, "NAME": name.literal_value, "PLACE": place.literal_value}
    exec("\n".join(lines), space)
    return space["found"]


def _axes(array: types.Array, parts: tuple[types.Type, ...]) -> list[tuple[int, int, Any]]:
    """The position, axis and type of the parts of an index that are integers or arrays of integers."""
    taken = [_taken(part) for part in parts]
    found, axis = [], 0
    for k, part in enumerate(parts):
        if isinstance(part, types.EllipsisType):
            axis = array.ndim - sum(taken[k + 1 :])
            continue
        inner = part.dtype if isinstance(part, types.Array) else part
        if isinstance(inner, types.Integer) and axis < array.ndim:
            found.append((k, axis, part))
        axis += taken[k]
    return found


def _taken(part: types.Type) -> int:
    """The number of axes that a part of an index selects from."""
    if isinstance(part, (types.EllipsisType, types.NoneType)):
        return 0
    return part.ndim if isinstance(part, types.Array) and isinstance(part.dtype, types.Boolean) else 1


# --------------------------------------------------------------------------------------------- insertion of checks


@register_pass(mutates_CFG=False, analysis_only=False)
class InsertChecks(FunctionPass):
    """Insert a `check` before each subscript."""

    _name = "ampi_bounds_checks"

    def __init__(self) -> None:
        super().__init__()

    def run_pass(self, state: Any) -> bool:
        code = state.func_ir
        where = f"in kernel '{code.func_id.func_name}'"
        for block in code.blocks.values():
            body: list[Any] = []
            for statement in block.body:
                found = _subscript(statement)
                if found is not None:
                    place = f"{statement.loc.filename}:{statement.loc.line}: {where}"
                    body += _call(block.scope, statement.loc, *found, _spelling(code, found[0]), place)
                body.append(statement)
            block.body = body
        code._definitions = build_definitions(code.blocks)
        return True


def _subscript(statement: Any) -> tuple[Any, Any] | None:
    """The array and the index of the subscript in a statement; in Numba's IR there is at most one."""
    if isinstance(statement, ir.SetItem):
        return statement.target, statement.index
    value = statement.value if isinstance(statement, ir.Assign) else None
    return (value.value, value.index) if isinstance(value, ir.Expr) and value.op == "getitem" else None


def _spelling(code: Any, variable: Any) -> str:
    """The source text of an array."""
    if not variable.is_temp:
        return variable.unversioned_name
    try:
        made = code.get_definition(variable)
    except KeyError:
        return "an array"
    if isinstance(made, ir.Expr) and made.op == "getattr":
        return f"{_spelling(code, made.value)}.{made.attr}"
    if isinstance(made, ir.Expr) and made.op == "getitem":
        return f"{_spelling(code, made.value)}[...]"
    return made.name if isinstance(made, (ir.Global, ir.FreeVar)) else "an array"


def _call(scope: Any, loc: Any, array: Any, index: Any, name: str, place: str) -> list[Any]:
    """The statements of a call of `check`."""

    def variable() -> Any:
        return ir.Var(scope, mk_unique_var("$bounds"), loc)

    function, named, placed, result = (variable() for _ in range(4))
    call = ir.Expr.call(function, (array, index, named, placed), (), loc)
    return [
        ir.Assign(ir.Global("ampi_check_bounds", check, loc), function, loc),
        ir.Assign(ir.Const(name, loc), named, loc),
        ir.Assign(ir.Const(place, loc), placed, loc),
        ir.Assign(call, result, loc),
    ]


class CheckedBounds(CompilerBase):
    """Numba's compiler with checks that name array and index: ``njit(pipeline_class=CheckedBounds)``."""

    def define_pipelines(self) -> list[Any]:
        manager = DefaultPassBuilder.define_nopython_pipeline(self.state)
        manager.add_pass_after(InsertChecks, IRProcessing)
        manager.finalize()
        return [manager]


class CheckedInRange(CheckedBounds):
    """`CheckedBounds` for a derivative program (see `noalias`)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        keep_in_range(self.state)

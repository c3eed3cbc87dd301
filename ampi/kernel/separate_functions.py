"""Kernels whose large functions are differentiated separately: the primal, and derivatives of these functions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from numba import types

from ampi.kernel import ir, pipeline
from ampi.kernel.ir import calls
from ampi.kernel.ir.intrinsics import arithmetic, constant
from ampi.kernel.ir.ssa import INT
from ampi.kernel.options import Options

VECTOR = types.Array(types.float64, 1, "C")
OPTIONS = Options(without=pipeline.LAST | {"products", "strips", "stages"}, raising=True)


def primal(
    function: Any,
    argument_types: Iterable[types.Type],
    same: tuple[tuple[int, int], ...],
    single: frozenset[tuple[int, int]],
    without: frozenset[str],
) -> ir.Function:
    """A kernel ready to be differentiated (see `pipeline.primal`); large functions stay calls where that is correct."""
    argument_types = tuple(argument_types)
    if not same and not single and "calls" not in without:
        state = pipeline.State(Options(without=without), argument_types, derivatives=_DERIVATIVES)
        found = state.run("simplify", state.run("normalise", state.run("read", function)))
        if not any(calls.called(found)) or _is_steady(found):
            return found
    return pipeline.primal(function, argument_types, same, single, without)


def _is_steady(function: ir.Function) -> bool:
    """Return whether no loop is parallel, and all calls take arrays that do not change, or have constant sizes."""
    if any(isinstance(n, ir.For) and n.parallel for n in ir.walk(function.body)):
        return False
    changed = {n.array.name for n in ir.walk(function.body) if isinstance(n, (ir.Store, ir.Accumulate))}
    steady = {a.name for a in function.arguments} - changed
    steady |= {name for name, _ in function.constants}
    for n in ir.walk(function.body):
        if isinstance(n, ir.Alloc) and all(isinstance(size, ir.Const) for size in n.shape):
            steady.add(n.target.name)
    fills = (n for n in ir.walk(function.body) if isinstance(n, ir.Fill) and calls.is_separate(n.function))
    return all(a.name in steady for s in fills for a in s.arguments)


class _Derivatives:
    """Derivatives of functions of arrays, as functions of the same form (see ``ampi.kernel.ir.calls``)."""

    def prepared(self, function: ir.Function) -> ir.Function | None:
        state = pipeline.State()
        found = state.run("simplify", state.run("normalise", function))
        return None if found.agreeing or not _is_steady(found) else found

    def adjoint(self, function: ir.Function, active: tuple[int, ...], name: str) -> ir.Function:
        leaves = [function.arguments[k] for k in active]
        code = pipeline.build_adjoint(function, [a.name for a in leaves], OPTIONS)
        by_role = {a.role: a for a in code.function.arguments if a.role is not None}
        given = ir.Var("given@adjoint", VECTOR)
        body: list[ir.Stmt] = []
        shadows: list[tuple[ir.Argument, ir.Var]] = []
        for a in leaves:
            own = by_role.get(("shadow", a.name))
            shadow = ir.Var(f"{a.name}@increment" if own is None else own.name, _plain(a.type))
            body.append(ir.Alloc(shadow, _shape(ir.Var(a.name, a.type)), constant(0.0, types.float64)))
            shadows.append((a, shadow))
        for a in code.function.arguments:
            if a.is_a("seed"):
                body.append(ir.Alloc(ir.Var(a.name, VECTOR), _shape(given), given))
            elif a.is_a("distinct") or a.is_a("new"):
                body.append(ir.Assign(ir.Var(a.name, a.type), constant(False, types.boolean)))
        body += _without_return(code.function)
        body += _joined(shadows)
        arguments = (*function.arguments, ir.Argument(given.name, VECTOR, (given.name,)))
        made = replace(code.function, name=name, arguments=arguments, body=tuple(body), result="array")
        return pipeline.State().run("normalise", made, only=("hoist", "expand"))

    def tangent(self, function: ir.Function, active: tuple[int, ...], name: str) -> ir.Function:
        leaves = [function.arguments[k] for k in active]
        code = pipeline.build_tangent(function, [a.name for a in leaves], OPTIONS)
        by_role = {a.role: a for a in code.function.arguments if a.role is not None}
        arguments = list(function.arguments)
        for a in leaves:
            own = by_role.get(("shadow", a.name))
            dot = f"{a.name}@dot" if own is None else own.name
            arguments.append(ir.Argument(dot, _plain(a.type), (dot,)))
        body = list(_without_return(code.function))
        *_, end = code.function.body
        assert isinstance(end, ir.Return)
        if code.result_active[0]:
            body.append(replace(end, values=(end.values[1],)))
        else:
            zero = ir.Var("zero@tangent", VECTOR)
            body.append(ir.Alloc(zero, _shape(end.values[0]), constant(0.0, types.float64)))
            body.append(replace(end, values=(zero,)))
        made = replace(code.function, name=name, arguments=tuple(arguments), body=tuple(body), result="array")
        return pipeline.State().run("normalise", made, only=("hoist", "expand"))

    def finished(self, function: ir.Function) -> ir.Function:
        state = pipeline.State()
        program = state.run("prune", state.run("construct", function))
        state.names = pipeline.names_of(program)
        program = state.run("vectorise", program, only=("allocations",))
        return state.run("finish", program, only=("destruct", "room"))


_DERIVATIVES = _Derivatives()


def _plain(type_: Any) -> types.Type:
    return types.Array(type_.dtype, type_.ndim, "C")


def _shape(array: Any) -> tuple[ir.Expr, ...]:
    return tuple(ir.Size(array, axis, INT) for axis in range(array.type.ndim))


def _without_return(function: ir.Function) -> tuple[ir.Stmt, ...]:
    return function.body[:-1] if isinstance(function.body[-1], ir.Return) else function.body


def _joined(shadows: list[tuple[ir.Argument, ir.Var]]) -> list[ir.Stmt]:
    """Statements that return the elements of arrays in one vector."""
    total = ir.Var("increments@adjoint", VECTOR)
    end: ir.Expr = constant(0, INT)
    loops: list[ir.Stmt] = []
    for _, shadow in shadows:
        shape = _shape(shadow)
        index = tuple(ir.Var(f"{shadow.name}@{axis}", INT) for axis in range(len(shape)))
        place: ir.Expr = index[0]
        size: ir.Expr = shape[0]
        for i, n in zip(index[1:], shape[1:], strict=True):
            place = arithmetic("add", arithmetic("mul", place, n), i)
            size = arithmetic("mul", size, n)
        place = arithmetic("add", end, place)
        statement: ir.Stmt = ir.Store(total, (place,), ir.Load(shadow, index, types.float64))
        for i, n in reversed(list(zip(index, shape, strict=True))):
            statement = ir.For(i, constant(0, INT), n, constant(1, INT), (statement,))
        loops.append(statement)
        end = arithmetic("add", end, size)
    return [ir.Alloc(total, (end,), None), *loops, ir.Return((total,))]

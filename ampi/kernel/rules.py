"""Calls of functions whose derivatives their author writes (`ampi.custom_vjp`, `ampi.custom_jvp`) inside of kernels.

Such a call becomes one statement, ``ir.Custom``.  Its body is the author's forward function, or the function itself,
which no derivative looks into; what the adjoint takes of it is kept (arrays as copies, since the caller may overwrite
them).  In the reverse sweep the author's backward function stands in its place, or the transpose of the tangent that
the author gives; in a tangent program this tangent does.
"""

from __future__ import annotations

import ast
import functools
import inspect
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numba
from numba import types

from ampi.custom import custom_vjp
from ampi.errors import KernelError
from ampi.kernel import adjoint, array_values, inference, ir
from ampi.kernel.custom import custom_jvp
from ampi.kernel.expand import expand
from ampi.kernel.inline import inline
from ampi.kernel.intrinsics import constant, is_differentiable
from ampi.kernel.invocations import bound_values
from ampi.kernel.lasting import hoist, keep
from ampi.kernel.linear import departure
from ampi.kernel.names import Names, stem
from ampi.kernel.references import resolve
from ampi.kernel.simplify import mapped
from ampi.kernel.ssa import assigned, construct, stored
from ampi.kernel.values import Group, Static
from ampi.kernel.views import resolve_views

Given = custom_vjp | custom_jvp

ADVICE = "see ampi.custom_vjp"
SEE = "see ampi.custom_jvp"


@dataclass(frozen=True)
class Tangent:
    """The author's tangent, for arguments of certain types.

    ``function`` takes the leaves of the arguments (``primals``), then a tangent for each of those that can carry
    derivatives (``tangents``); it returns the leaves of the result, then their tangents.  ``values`` and ``dots`` say
    for each leaf of the result where it and its tangent are among what is returned (None: no tangent).
    """

    name: str
    function: ir.Function
    primals: tuple[ir.Argument, ...]
    tangents: tuple[ir.Argument, ...]
    values: tuple[int, ...]
    dots: tuple[int | None, ...]

    @property
    def results(self) -> tuple[ir.Expr, ...]:
        last = self.function.body[-1]
        return last.values if isinstance(last, ir.Return) else ()

    def error(self, line: int, problem: str) -> KernelError:
        return KernelError(
            f"{self.function.filename}:{line}: the tangent of '{self.name}' has no transpose, for it is not linear as "
            f"it is written: {stem(problem)}\n  write it with sums and products of tangents and other values, or make "
            f"'{self.name}' a custom_vjp, whose adjoint is given as well"
        )


@dataclass(frozen=True)
class Rule:
    """The author's derivatives, for arguments of certain types.

    ``backward`` takes the leaves of the residuals and of the adjoints of the results; ``positions`` says for every
    input which of its results is the input's adjoint (None: zero).
    """

    name: str
    backward: ir.Function
    positions: tuple[int | None, ...]
    tangent: Tangent | None = None


@dataclass(frozen=True)
class Transposed:
    """Derivatives that all follow from the author's tangent; the adjoint is made when it is asked for."""

    tangent: Tangent

    @property
    def name(self) -> str:
        return self.tangent.name

    @functools.cached_property
    def adjoint(self) -> Rule:
        return transpose(self.tangent)

    @property
    def backward(self) -> ir.Function:
        return self.adjoint.backward

    @property
    def positions(self) -> tuple[int | None, ...]:
        return self.adjoint.positions


def is_inside(rule: Given, callers: tuple[Any, ...]) -> bool:
    """Whether a call stands in the rule's own functions, where it is the plain function."""
    own = [_function(f).__code__ for f in _functions(rule) if f is not None]
    return any(code is known for code, _ in callers for known in own)


def _functions(rule: Given) -> tuple[Any, ...]:
    return (rule.tangent,) if isinstance(rule, custom_jvp) else (rule.forward, rule.backward, rule.tangent)


def call(builder: Any, rule: Given, node: ast.Call, hint: str | None) -> Any:
    """Emit the call of a function with a rule of its own, and give its result as a value."""
    name = rule.__name__
    if isinstance(rule, custom_jvp):
        if rule.tangent is None:
            builder.fail(node, f"'{name}' has no tangent yet", f"decorate its tangent with @{name}.defjvp before")
    elif rule.forward is None or rule.backward is None:
        builder.fail(node, f"'{name}' has no adjoint yet", f"call {name}.defvjp(forward, backward) before")
    arguments = bound_values(builder, node, _function(rule.f))
    given = tuple(builder.type_of(node, v) for v in arguments)
    callee = _as_loops(builder.callee(node, _function(rule.f if isinstance(rule, custom_jvp) else rule.forward), given))
    arguments = _steady_arguments(builder, callee, arguments)
    make = _plain if isinstance(rule, custom_jvp) else _forward
    body, (result, residuals) = builder.sub_block(lambda: make(builder, rule, node, callee, arguments))
    _require_results(builder, node, name, body, result)
    outputs = builder.map_leaves(result, lambda x: x if inference.is_array(x.type) else _new(builder, hint or name, x))
    tangent = None if rule.tangent is None else _tangent(builder, rule, node, arguments, result)
    if isinstance(rule, custom_jvp):
        made: Any = Transposed(tangent)
        kept = [*_leaves(residuals), *_constants(builder, tangent.function)]
    else:
        made, kept = _adjoint_rule(builder, rule, node, arguments, result, residuals, tangent)
    builder.emit(
        ir.Custom(
            body=body,
            arguments=tuple(x for v in arguments for x in _leaves(v)),
            results=tuple(_leaves(result)),
            outputs=tuple(_leaves(outputs)),
            residuals=tuple(kept),
            rule=made,
            line=node.lineno,
        )
    )
    return outputs


def _adjoint_rule(
    builder: Any, rule: custom_vjp, node: ast.Call, arguments: list[Any], result: Any, residuals: Any, tangent: Any
) -> tuple[Rule, list[ir.Expr]]:
    """The author's adjoint, and what it takes besides the adjoints of the results."""
    name = rule.__name__
    given = builder.type_of(node, residuals), builder.type_of(node, builder.map_leaves(result, _carrier))
    backward = _as_loops(builder.callee(node, _function(rule.backward), given))
    constants = _constant_arguments(backward)
    kept = [*_leaves(residuals), *_constants(builder, backward)]
    leaves = backward.arguments
    count = len(list(_leaves(residuals)))
    backward = replace(backward, arguments=(*leaves[:count], *constants, *leaves[count:]), constants=())
    positions = tuple(_positions(builder, node, name, backward.result, arguments))
    return Rule(name, backward, positions, tangent), kept


def _constant_arguments(function: ir.Function) -> tuple[ir.Argument, ...]:
    return tuple(ir.Argument(n, numba.typeof(array), role=("constant", n)) for n, array in function.constants)


def _constants(builder: Any, function: ir.Function) -> list[ir.Expr]:
    return [builder.constant_array(n, array) for n, array in function.constants]


def _function(value: Any) -> Any:
    return getattr(value, "py_func", value)


def _as_loops(function: ir.Function) -> ir.Function:
    """A function that does nothing but loop over elements, with the sizes that must agree checked in it."""
    for change in (keep, resolve_views, resolve, resolve_views, hoist, expand):
        function = change(function)
    checks = []
    for s in function.agreeing:
        differ = ir.Op("ne", (s.first, s.second), types.boolean)
        where = f"{function.filename}:{s.line}: in kernel '{function.name}'"
        text = f"raise ValueError({f'{where}: arrays of different sizes in one operation'!r})"
        checks.append(ir.If(differ, (ir.Raise(text, own=True, line=s.line),), line=s.line))
    return replace(function, body=(*checks, *function.body), agreeing=())


def _steady_arguments(builder: Any, callee: ir.Function, arguments: list[Any]) -> list[Any]:
    """The arguments as variables, constants and arrays: what they are computed from is none of the rule's business.

    A part of an array that is only read is copied.
    """
    written = stored(callee.body)
    names = iter([a.name for a in callee.arguments])

    def steady(value: ir.Expr) -> ir.Expr:
        is_read_only = next(names) not in written
        if inference.is_array(value.type):
            part = isinstance(value, ir.Var) and value.name in builder.extents and value.name not in builder.owned
            return array_values.copied(builder, value, f"{value.name}_given") if part and is_read_only else value
        return value if isinstance(value, (ir.Var, ir.Const)) else builder.temporary("value", value)

    return [builder.map_leaves(v, steady) for v in arguments]


def _new(builder: Any, hint: str, value: ir.Expr) -> ir.Var:
    return ir.Var(builder.names.fresh(hint), value.type)


def _forward(builder: Any, rule: Given, node: ast.Call, callee: ir.Function, arguments: list[Any]) -> tuple[Any, Any]:
    """The author's forward function, and copies of its residuals."""
    both = inline(builder, callee, arguments, node, None)
    if len(getattr(both, "items", ())) != 2:
        builder.fail(node, f"the forward function of '{rule.__name__}' must return (result, residuals)", ADVICE)
    result, residuals = both.items
    return result, builder.map_leaves(residuals, lambda x: _kept(builder, x))


def _plain(builder: Any, rule: Given, node: ast.Call, callee: ir.Function, arguments: list[Any]) -> tuple[Any, Any]:
    """The function itself, and copies of its arguments and its result."""
    keep = lambda v: builder.map_leaves(v, lambda x: _kept(builder, x))
    before = Group(tuple(map(keep, arguments)))
    result = inline(builder, callee, arguments, node, None)
    return result, Group((before, keep(result)))


def _kept(builder: Any, value: ir.Expr) -> ir.Expr:
    if not inference.is_array(value.type):
        return builder.temporary("kept", value)
    if isinstance(value, ir.Var) and value.name in builder.constants:
        return value
    target = ir.Var(builder.names.fresh(f"{value.name}_kept"), value.type.copy(layout="C", readonly=False))
    shape = tuple(ir.Size(value, axis, types.intp) for axis in range(value.type.ndim))
    builder.emit(ir.Alloc(target, shape, value))
    return target


def _carrier(value: ir.Expr) -> Any:
    """What stands for the derivative of a value where types are asked for."""
    if not is_differentiable(value.type):
        return Static(None)
    type_ = value.type.copy(layout="C", readonly=False) if inference.is_array(value.type) else value.type
    return ir.Var("derivative", type_)


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, ir.Expr):
        yield value
    items = getattr(value, "items", None)
    if isinstance(items, tuple):
        for item in items:
            yield from _leaves(item)


def _require_results(builder: Any, node: ast.Call, name: str, body: tuple[ir.Stmt, ...], result: Any) -> None:
    """Arrays of the caller that are overwritten must be results: otherwise their adjoint would be anybody's guess."""
    own = {s.target.name for s in ir.walk(body) if isinstance(s, ir.Alloc)}
    written = stored(body)
    views = {s.target.name: s.array.name for s in ir.walk(body) if isinstance(s, ir.Alias)}
    while any(n in views for n in written):
        written = {views.get(n, n) for n in written}
    lost = written - own - {x.name for x in _leaves(result) if isinstance(x, ir.Var)}
    if lost:
        builder.fail(node, f"'{name}' overwrites '{min(lost)}' without returning it", "return it in the result")


def _positions(builder: Any, node: ast.Call, name: str, result: Any, arguments: list[Any]) -> Iterator[int | None]:
    """Where the adjoint of every differentiable leaf of the arguments is among backward's results."""
    parts = result[2] if isinstance(result, tuple) else ()
    if len(parts) != len(arguments):
        problem = (
            f"the backward function of '{name}' must return a tuple of {len(arguments)} adjoints, one per argument"
        )
        builder.fail(node, problem, ADVICE)
    counter = iter(range(1_000_000))

    def pair(part: Any, value: Any) -> Iterator[int | None]:
        if isinstance(value, ir.Expr):
            wanted = None if part is None else "array" if inference.is_array(value.type) else "scalar"
            if part != wanted:
                builder.fail(node, f"the backward function of '{name}' returns a wrong kind of adjoint", ADVICE)
            position = None if part is None else next(counter)
            if is_differentiable(value.type):
                yield position
            return
        items = getattr(value, "items", None)
        if not isinstance(items, tuple):  # known when the kernel is compiled
            if part is not None:
                next(counter)
            return
        inside = (None,) * len(items) if part is None else part[2]
        for p, v in zip(inside, items, strict=True):
            yield from pair(p, v)

    for part, value in zip(parts, arguments):
        yield from pair(part, value)


# --------------------------------------------------------------------------------------------------- tangents


def _tangent(builder: Any, rule: Given, node: ast.Call, arguments: list[Any], result: Any) -> Tangent:
    """The author's tangent for these arguments, after checks of what it returns."""
    name = rule.__name__
    primals = Group(tuple(arguments))
    dots = Group(tuple(builder.map_leaves(v, _carrier) for v in arguments))
    given = builder.type_of(node, primals), builder.type_of(node, dots)
    if len(inspect.signature(_function(rule.tangent)).parameters) != 2:
        builder.fail(node, f"the tangent of '{name}' must take two tuples: arguments, and their tangents", SEE)
    function = _as_loops(builder.callee(node, _function(rule.tangent), given))
    both = function.result[2] if isinstance(function.result, tuple) else ()
    if len(both) != 2:
        builder.fail(node, f"the tangent of '{name}' must return (result, tangent of the result)", SEE)
    counter = iter(range(1_000_000))
    values = [next(counter) for _ in _paired(builder, node, name, result, both[0], whole=True)]
    positions = [
        None if kind is None else next(counter)
        for _, kind in _paired(builder, node, name, result, both[1], whole=False)
    ]
    parameters = list(inspect.signature(_function(rule.tangent)).parameters)
    primals, tangents = (tuple(a for a in function.arguments if a.path[0] == p) for p in parameters)
    found = Tangent(name, function, primals, tangents, tuple(values), tuple(positions))
    _require_places(builder, node, found, arguments, list(_leaves(result)))
    return found


def _paired(
    builder: Any, node: ast.Call, name: str, value: Any, kind: Any, whole: bool
) -> Iterator[tuple[ir.Expr, Any]]:
    """The leaves of a result, each with the kind of what the tangent returns in its place."""
    problem = f"the tangent of '{name}' returns {'a result' if whole else 'tangents'} of another structure"
    if isinstance(value, ir.Expr):
        wanted = "array" if inference.is_array(value.type) else "scalar"
        if kind != wanted and (whole or kind is not None):
            builder.fail(node, problem, SEE)
        yield value, kind
        return
    items = getattr(value, "items", None)
    if not isinstance(items, tuple):
        return
    inside = (None,) * len(items) if kind is None else kind[2] if isinstance(kind, tuple) else ()
    if len(inside) != len(items) or (kind is None and whole):
        builder.fail(node, problem, SEE)
    for v, k in zip(items, inside):
        yield from _paired(builder, node, name, v, k, whole)


def _require_places(builder: Any, node: ast.Call, found: Tangent, arguments: list[Any], results: list[ir.Expr]) -> None:
    """Where a result is one of the arguments, the tangent returns this argument and its tangent; otherwise new arrays,
    all different."""
    given = list(_leaves(Group(tuple(arguments))))
    moving = [k for k, x in enumerate(given) if is_differentiable(x.type)]
    place = {a.name: k for k, a in enumerate(found.primals)}
    dot_place = {a.name: moving[k] for k, a in enumerate(found.tangents)}
    returned, used = found.results, set()
    for leaf, at, dot in zip(results, found.values, found.dots, strict=True):
        if not inference.is_array(leaf.type):
            continue
        own = {k for k, x in enumerate(given) if isinstance(x, ir.Var) and x == leaf}
        pairs = [(returned[at].name, place)] + ([] if dot is None else [(returned[dot].name, dot_place)])
        for array, places in pairs:
            fits = places.get(array) in own if own else array not in place | dot_place and array not in used
            if not fits:
                what = "the argument that it is in the function itself, and its tangent" if own else "new arrays"
                builder.fail(node, f"the tangent of '{found.name}' must return {what} for '{leaf.name}'", SEE)
            used.add(array)
        if leaf.type.dtype != returned[at].type.dtype or leaf.type.ndim != returned[at].type.ndim:
            builder.fail(node, f"the tangent of '{found.name}' returns a result of another type", SEE)


SERIAL = adjoint.Options(strips=False, stages=False, gather=False, branches=False)


def transpose(tangent: Tangent) -> Rule:
    """The adjoint that follows from a tangent; its residuals are the arguments and the result.

    A linear function is its own tangent, so that its adjoint, wherever it is taken, is the transpose.
    """
    constants = _constant_arguments(tangent.function)
    names = [a.name for a in tangent.tangents]
    body, results = with_given_results(tangent)
    arguments = (*tangent.primals, *results, *tangent.tangents, *constants)
    function = replace(tangent.function, arguments=arguments, constants=(), body=body)
    problem = departure(construct(function), names)
    if problem is not None:
        raise tangent.error(*problem)
    made = adjoint.build(function, names, SERIAL)
    dots = [k for k in tangent.dots if k is not None]
    beyond = [k for k, is_active in enumerate(made.result_active) if is_active and k not in dots]
    if beyond or made.becomes_active:
        raise tangent.error(function.first_line, "the result itself depends on the tangents")
    *adjoint_body, last = made.function.body
    assert isinstance(last, ir.Return)
    like = dict(zip(names, (a for a in tangent.primals if is_differentiable(a.type))))
    shadow = {a.role[1]: ir.Var(a.name, a.type) for a in made.function.arguments if a.is_a("shadow")}
    seeds = {a.role[1]: a for a in made.function.arguments if a.is_a("seed")}
    fresh = Names.of(made.function).fresh
    begin = []
    for n, array in shadow.items():
        of = ir.Var(like[n].name, like[n].type)
        shape = tuple(ir.Size(of, axis, types.intp) for axis in range(of.type.ndim))
        begin.append(ir.Alloc(array, shape, constant(0, array.type.dtype)))
    scalars = dict(zip(made.scalars, last.values))
    bars = [shadow.get(n, scalars.get(n)) for n in names]
    counter = iter(range(len(bars)))
    positions = tuple(None if bar is None else next(counter) for bar in bars)
    values = tuple(bar for bar in bars if bar is not None)
    given = []
    for at, dot in zip(tangent.values, tangent.dots):
        type_ = tangent.results[at].type
        if is_differentiable(type_):
            plain = type_.copy(layout="C", readonly=False) if inference.is_array(type_) else type_
            given.append(seeds.get(dot, ir.Argument(fresh("unused"), plain, role=("unused", at))))
    sizes = {n: ir.Var(a.name, a.type) for n, a in like.items()}
    resized = lambda e: replace(e, array=sizes[e.array.name]) if isinstance(e, ir.Size) and e.array.name in sizes else e
    whole = tuple(mapped(s, resized) for s in (*begin, *adjoint_body, ir.Return(values)))
    assert not {n.name for n in ir.walk(whole) if isinstance(n, ir.Var)} & set(names)
    leaves = (*tangent.primals, *results, *constants, *given)
    backward = replace(function, arguments=leaves, body=whole, result=("tuple", len(values)))
    return Rule(tangent.name, backward, positions)


def with_given_results(tangent: Tangent) -> tuple[tuple[ir.Stmt, ...], tuple[ir.Argument, ...]]:
    """The body of a tangent in which results are not computed where they are known, and arguments for the results.

    A result is known if it is complete before the first statement that has to do with tangents.
    """
    function = tangent.function
    names = {a.name for a in tangent.tangents}
    body = function.body
    *body, last = body
    begin = next((k for k, s in enumerate(body) if _mentions(s, names)), len(body))
    before, after = tuple(body[:begin]), tuple(body[begin:])
    changed = assigned(after) | stored(after) | {s.array.name for s in ir.walk(after) if isinstance(s, ir.Alias)}
    complete = (assigned(before) | stored(before)) - changed
    fresh = Names.of(function).variable
    known: dict[str, ir.Expr] = {}
    given = []
    for at in tangent.values:
        value = tangent.results[at]
        name = value.name if isinstance(value, ir.Var) else None
        type_ = value.type.copy(layout="C", readonly=False) if inference.is_array(value.type) else value.type
        argument = fresh(f"{name or 'result'}_given", type_)
        given.append(ir.Argument(argument.name, type_, role=("result", at)))
        if name is not None and name in complete:
            known[name] = argument
    known_or_same = lambda e: known.get(e.name, e) if isinstance(e, ir.Var) else e
    put = lambda e: mapped(e, known_or_same)
    values = tuple(v if k in tangent.values else put(v) for k, v in enumerate(tangent.results))
    assert isinstance(last, ir.Return)
    return (*before, *map(put, after), replace(last, values=values)), tuple(given)


def _mentions(s: ir.Stmt, names: set[str]) -> bool:
    """Whether a statement has to do with more than the sizes of arrays."""
    nodes = list(ir.walk(s))
    count = Counter(n.name for n in nodes if isinstance(n, ir.Var))
    count.subtract(n.array.name for n in nodes if isinstance(n, ir.Size))
    return any(count[n] for n in names)

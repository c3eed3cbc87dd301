"""Stores instead of increments: a new shadow is assigned, so that it need not be zeroed first.

The pass applies where loops add to each element of a shadow once, before any other access to it.  For an array
argument, a further argument is True if the shadow is new; its elements are then undefined.  The shadow of a local array
is new when it is allocated.
"""

from __future__ import annotations

from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Stmt, Var
from ampi.kernel.ir.matrices import shape
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import Branch, Loop, every, reads, written

Shapes = tuple[tuple[Expr, ...], ...]


def with_new_shadows(
    function: ir.Function, names: Names, shadows: dict[str, Var]
) -> tuple[ir.Function, tuple[str, ...]]:
    """Add arguments that are True if a shadow is new, and assign new shadows, in a function in single assignment form.

    ``shadows`` has the shadows of the function's arguments by the names of the arguments.  The second result has the
    arrays whose shadows have such an argument.
    """
    known = _Known(function.body, function.agreeing)
    types_of = {a.name: a.type for a in function.arguments}
    body = list(function.body)
    arguments = list(function.arguments)
    first_uses = _first_uses(function.body)
    found = []
    for name, shadow in shadows.items():
        first = first_uses.get(shadow.name)
        shapes = shape(Var(name, types_of[name])), shape(shadow)
        if first is None or not _adds_to_each(body[first], shadow, shapes, known):
            continue
        flag = names.variable(f"{shadow.name}_is_new", types.boolean)
        body[first] = _setting(body[first], shadow, flag)
        arguments.append(ir.Argument(flag.name, flag.type, role=("new", name)))
        found.append(name)
    return replace(function, arguments=tuple(arguments), body=tuple(body)), tuple(found)


def with_local_shadows(function: ir.Function) -> ir.Function:
    """Assign new local arrays instead of adding to zeros, in a function in single assignment form."""
    return replace(function, body=_set_local(function.body, _Known(tuple(every(function.body)), function.agreeing)))


class _Known:
    """The values of integer names, and one representative for sizes that are equal in every accepted call."""

    def __init__(self, body: tuple[Stmt, ...], agreeing: tuple[ir.Agree, ...]) -> None:
        self.values = {s.target.name: s.value for s in body if isinstance(s, ir.Assign)}
        self.equal: dict[Expr, Expr] = {}
        for s in agreeing:
            first, second = self(s.first), self(s.second)
            self.equal |= {e: first for e, stands in (*self.equal.items(), (second, second)) if stands == second}

    def __call__(self, e: Expr) -> Expr:
        while isinstance(e, Var) and e.name in self.values:
            e = self.values[e.name]
        if isinstance(e, Op):
            return replace(e, args=tuple(map(self, e.args)))
        return self.equal.get(e, e)


def _set_local(body: tuple[Stmt, ...], known: _Known) -> tuple[Stmt, ...]:
    changed = list(body)
    first_uses = _first_uses(body)
    for k, s in enumerate(body):
        if isinstance(s, ir.Alloc) and isinstance(s.fill, Const) and s.fill.value == 0:
            first = first_uses.get(s.target.name)
            if first is not None and _adds_to_each(changed[first], s.target, (s.shape, shape(s.target)), known):
                changed[k] = replace(s, fill=None)
                changed[first] = _setting(changed[first], s.target)
    inside = lambda block: _set_local(block, known)
    return tuple(ir.in_blocks(s, inside) for s in changed)


def _first_uses(body: tuple[Stmt, ...]) -> dict[str, int]:
    """For each name, the index of the first statement that does more with it than allocate it or take its size."""
    found: dict[str, int] = {}
    for k, s in enumerate(body):
        for t in every((s,)):
            target = None if isinstance(t, ir.Alloc) else written(t)
            used = set().union(*map(_used, reads(t)), () if target is None else (target.name,))
            for name in used:
                found.setdefault(name, k)
    return found


def _adds_to_each(s: Stmt, array: Var, shapes: Shapes, known: _Known) -> bool:
    """Return whether a statement is a nest of loops whose only access to an array adds to each element once.

    Each of ``shapes`` is the shape of the array.
    """
    if not isinstance(s, Loop) or array.name not in _added_to_once((s,)):
        return False
    return _is_covered((s,), array, shapes, known)


def _setting(s: Stmt, array: Var, flag: Var | None = None) -> Stmt:
    """The statement with stores into an array instead of increments; with a flag, only if the flag is set."""
    if isinstance(s, ir.Accumulate) and s.array == array:
        setting = ir.Store(s.array, s.index, s.value, line=s.line)
        return setting if flag is None else Branch(flag, (setting,), (s,), (), line=s.line)
    return ir.in_blocks(s, lambda block: tuple(_setting(t, array, flag) for t in block))


def _added_to_once(body: tuple[Stmt, ...]) -> set[str]:
    """The arrays that occur in one statement only, an increment."""
    once: set[str] = set()
    otherwise: set[str] = set()
    for s in every(body):
        if isinstance(s, ir.Launch):
            return set()
        target = written(s)
        if isinstance(s, ir.Accumulate) and s.array.name not in once:
            once.add(s.array.name)
        elif target is not None:
            otherwise.add(target.name)
        for e in reads(s):
            otherwise |= _used(e)
    return once - otherwise


def _used(e: Expr) -> set[str]:
    """The names in an expression, except those of arrays of which it only takes the size."""
    match e:
        case Var(name=name):
            return {name}
        case ir.Load(array=array, index=index):
            return {array.name}.union(*map(_used, index))
        case Op(args=args):
            return set().union(*map(_used, args))
    return set()


def _is_covered(body: tuple[Stmt, ...], shadow: Var, shapes: Shapes, known: _Known) -> bool:
    """Return whether the statement that adds to a shadow runs for each element once."""
    counters: list[Expr] = []
    while True:
        (s,) = (s for s in body if any(written(t) == shadow for t in every((s,))))
        if isinstance(s, ir.Accumulate):
            return s.index == tuple(counters)
        axis = len(counters)
        sizes = [known(size) for of_all in shapes for size in of_all[axis : axis + 1]]
        if not isinstance(s, Loop) or s.condition is not None or not _is_whole(s, sizes, known):
            return False
        counters.append(s.var)
        body = s.body


def _is_whole(s: Loop, sizes: list[Expr], known: _Known) -> bool:
    """Return whether a loop runs over all indices of an axis that has one of these sizes."""
    start, stop = known(s.start), known(s.stop)
    if s.step == 1:
        return isinstance(start, Const) and start.value == 0 and stop in sizes
    last = isinstance(start, Op) and start.name == "sub" and start.args[0] in sizes and _is_number(start.args[1], 1)
    return s.step == -1 and last and _is_number(stop, -1)


def _is_number(e: Expr, number: int) -> bool:
    return isinstance(e, Const) and e.value == number

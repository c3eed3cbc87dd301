"""Array hoisting: arrays that are used after the iteration or the branch that allocates them.

``keep`` handles carried names: a name that stands, in the next iteration or after the loop, for an array that an
iteration allocates (``u = step(u)``, perhaps in some iterations only) gets a separate array, allocated before the loop,
to which each new array is copied.  The copy makes no difference unless the array is changed under one name while it is
used under another, which raises an error.

``hoist`` handles the arrays: one that is used after the loop or the branch that allocates it is allocated before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NoReturn

from numba import types

from ampi.errors import KernelError
from ampi.kernel import ir
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import INT, ZERO
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.liveness import live_before, used
from ampi.kernel.ir.names import Names, stem
from ampi.kernel.ir.rewrite import substitute
from ampi.kernel.normalise.array_phi import live_around, with_live
from ampi.kernel.normalise.separate_parts import SeparateParts

Block = tuple[ir.Stmt, ...]


def keep(function: ir.Function) -> ir.Function:
    """The function (lowered, its views not yet resolved) in which no name carries an array out of an iteration."""
    return _Keep(function).run()


def hoist(function: ir.Function) -> ir.Function:
    """The function (its views and references resolved) in which arrays are allocated in a block around all uses."""
    return _Hoist(function).run()


class _Pass:
    def __init__(self, function: ir.Function):
        self.function = function
        self.fresh = Names.of(function).variable
        self.line = function.first_line

    def fail(self, problem: str) -> NoReturn:
        raise KernelError(f"{self.function.where(self.line)}: {stem(problem)}")

    def fail_in_prange(self, name: str) -> NoReturn:
        self.fail(f"the array '{name}' is allocated in an iteration of prange and used after it; use range instead")

    def fail_without_size(self, name: str, where: str) -> NoReturn:
        self.fail(f"the size of '{name}' is not known before the {where} that allocates it; allocate it before")

    def assign(self, target: ir.Var, value: ir.Expr | None, line: int) -> Block:
        """The statement that sets all elements of an array to those of another one, or to a number."""
        if value is None:
            return ()
        axes = tuple(self.fresh("i", INT) for _ in range(target.type.ndim))
        shape = sizes_of(target)
        element = ir.Load(value, axes, value.type.dtype) if isinstance(value.type, types.Array) else value
        return (ir.Elementwise(target, axes, shape, axes, element, snapshot=False, line=line),)

    def shape_before(self, s: ir.Stmt, shape: tuple[ir.Expr, ...], at: ir.Stmt) -> tuple[ir.Expr, ...] | None:
        """The sizes that a statement ``at`` inside ``s`` computes, in terms of values known before ``s``; None if they
        depend on others."""
        known = _Path(s, at)
        try:
            return tuple(not_below_zero(known.before(e, 0)) for e in shape)
        except _Unknown:
            return None


class _Unknown(Exception):
    """A value depends on values that are not known before the statement."""


class _Path:
    """The computations on the way to a statement inside another one."""

    def __init__(self, s: ir.Stmt, at: ir.Stmt):
        self.loops: list[ir.Stmt] = []
        self.values: dict[str, list[ir.Expr | None]] = {}
        self.shapes: dict[str, tuple[ir.Expr, ...]] = {}
        for t in self.follow((s,), at):
            self.note(t)
        for loop in self.loops:
            names = Counter(name for n in ir.walk(loop) for name in _assigned(n))
            for name, count in names.items():
                if count != len(self.values.get(name, ())):
                    self.values.setdefault(name, []).append(None)

    def follow(self, body: Block, at: ir.Stmt) -> Iterator[ir.Stmt]:
        """The statements that are executed as a whole before ``at``."""
        for s in body:
            if s is at:
                return
            inside = next((b for b in _blocks(s) if any(n is at for n in ir.walk(b))), None)
            if inside is not None:
                if isinstance(s, (ir.For, ir.While)):
                    self.loops.append(s)
                yield from self.follow(inside, at)
                return
            yield s

    def note(self, s: ir.Stmt) -> None:
        """Note the values and shapes that a statement defines."""
        if isinstance(s, ir.Assign):
            self.values.setdefault(s.target.name, []).append(s.value)
            return
        for n in ir.walk(s):
            for name in _assigned(n):
                self.values.setdefault(name, []).append(None)
            match n:
                case ir.Alloc(target=target, shape=shape) | ir.View(target=target, shape=shape):
                    self.shapes[target.name] = shape
                case ir.Alias(target=target, array=array, index=index):
                    shape = self.shapes.get(array.name, sizes_of(array))[len(index) :]
                    self.shapes[target.name] = shape if self.shapes.get(target.name, shape) == shape else ()

    def before(self, e: ir.Expr, depth: int) -> ir.Expr:
        """A value in terms of the values known before the outer statement."""
        if depth > 50:
            raise _Unknown
        match e:
            case ir.Size(array=array, axis=axis) if array.name in self.shapes:
                if axis >= len(self.shapes[array.name]):
                    raise _Unknown
                return self.before(self.shapes[array.name][axis], depth + 1)
            case ir.Var(name=name) if name in self.values:
                (value, *others) = self.values[name]
                if value is None or others:
                    raise _Unknown
                return self.before(value, depth + 1)
            case ir.Op(args=args):
                return replace(e, args=tuple(self.before(a, depth + 1) for a in args))
            case ir.Load():
                raise _Unknown
        return e


def _assigned(n: ir.Expr | ir.Stmt) -> tuple[str, ...]:
    match n:
        case ir.Assign(target=target):
            return (target.name,)
        case ir.For(var=var):
            return (var.name,)
        case ir.Custom(outputs=outputs):
            return tuple(v.name for v in outputs)
    return ()


def _blocks(s: ir.Stmt) -> tuple[Block, ...]:
    match s:
        case ir.If():
            return (s.then, s.orelse)
        case ir.For() | ir.While() | ir.Custom():
            return (s.body,)
    return ()


def not_below_zero(size: ir.Expr) -> ir.Expr:
    below = index_algebra.lowest(size)
    return size if below is not None and below >= 0 else index_algebra.maximum(size, ZERO)


def sizes_of(array: ir.Var) -> tuple[ir.Expr, ...]:
    return tuple(ir.Size(array, axis, types.intp) for axis in range(array.type.ndim))


def parts_of(statements: list[Any]) -> set[str]:
    """The names that statements bind to a part of an array, or to such a name."""
    found = {n.target.name for n in statements if isinstance(n, ir.View) or (isinstance(n, ir.Alias) and n.index)}
    aliases = [n for n in statements if isinstance(n, ir.Alias)]
    while more := {n.target.name for n in aliases if n.array.name in found} - found:
        found |= more
    return found


def owned(target: ir.Var) -> ir.Var:
    """A variable for a contiguous array of the same elements."""
    return replace(target, type=target.type.copy(layout="C", readonly=False))


# --------------------------------------------------------------------------------------------------- names


class _Keep(_Pass):
    def __init__(self, function: ir.Function):
        super().__init__(function)
        self.of: dict[str, set[str]] = {}  # the arrays that a name may stand for
        arguments = {a.name for a in function.arguments} | {name for name, _ in function.constants}
        for name in arguments:
            self.of[name] = {name}
        self.bindings = []
        for n in ir.walk(function.body):
            if isinstance(n, ir.Alloc):
                self.of[n.target.name] = {n.target.name}
            elif isinstance(n, (ir.Alias, ir.View)):
                self.bindings.append((n.target.name, n.array.name))
        _spread(self.of, self.bindings)
        self.defined = arguments
        self.carried: set[str] = set()
        self.separate: set[str] = set()  # names of earlier arrays of a carried name

    def run(self) -> ir.Function:
        body = self.block(self.function.body, set())
        if not self.carried:
            return self.function
        self.require_no_other_name()
        return replace(self.function, body=body)

    def block(self, body: Block, live: set[str]) -> Block:
        out: list[ir.Stmt] = []
        for s, after in with_live(body, live):
            self.line = s.line or self.line
            match s:
                case ir.For() | ir.While():
                    out += self.loop(s, after)
                case ir.If():
                    out.append(replace(s, then=self.block(s.then, after), orelse=self.block(s.orelse, after)))
                case _:
                    out.append(s)
            if isinstance(s, (ir.Alloc, ir.Alias, ir.View)):
                self.defined.add(s.target.name)
        return tuple(out)

    def loop(self, s: ir.For | ir.While, after: set[str]) -> Block:
        around = live_around(s, after)
        inside = list(ir.walk(s.body))
        allocated = {n.target.name for n in inside if isinstance(n, ir.Alloc)}
        earlier = set() if isinstance(s, ir.For) and s.parallel else live_before(s.body, around)
        bindings: dict[str, list[ir.Alias | ir.View | ir.Alloc]] = {}
        for n in inside:
            bound = isinstance(n, (ir.Alias, ir.View)) and n.target.name in around
            if bound or (isinstance(n, ir.Alloc) and n.target.name in earlier):
                bindings.setdefault(n.target.name, []).append(n)
        parts = parts_of(inside)
        bindings = {name: found for name, found in bindings.items() if self.of[name] & allocated or name in parts}
        begin: list[ir.Stmt] = []
        end: list[ir.Stmt] = []
        own: dict[str, ir.Var] = {}
        for name, found in bindings.items():
            if isinstance(s, ir.For) and s.parallel:
                self.fail_in_prange(name)
            for n in found:
                self.separate |= self.left_behind(n, s, around)
            target = owned(found[0].target)
            own[name] = self.fresh(f"{name}_own", target.type)
            if name in self.defined:
                entry = found[0].target
                begin.append(ir.Alloc(own[name], sizes_of(entry), None, line=s.line))
                begin += self.assign(own[name], entry, s.line)
            else:
                shape = self.first_size(s, found)
                if shape is None:
                    self.fail_without_size(name, "loop")
                begin.append(ir.Alloc(own[name], shape, None, line=s.line))
            end.append(ir.Alias(found[0].target, own[name], (), line=s.line))
        if own:
            s = replace(s, body=self.copied(s.body, own))
        s = replace(s, body=self.block(s.body, around))
        self.defined |= set(bindings) | allocated
        self.carried |= set(bindings)
        return (*begin, s, *end)

    def first_size(self, s: ir.Stmt, found: list[ir.Alias | ir.View | ir.Alloc]) -> tuple[ir.Expr, ...] | None:
        """The size of the arrays that a name is bound to, as far as it is known before the loop (they agree)."""
        for n in found:
            shape = sizes_of(n.array)[len(n.index) :] if isinstance(n, ir.Alias) else n.shape
            known = self.shape_before(s, shape, n)
            if known is not None:
                return known
        return None

    def copied(self, body: Block, own: dict[str, ir.Var]) -> Block:
        """Statements in which names have their own arrays, into which others are copied."""
        out: list[ir.Stmt] = []
        for s in body:
            match s:
                case ir.Alias(target=target) | ir.View(target=target) if target.name in own:
                    out += self.copy(s, own)
                case ir.Alias(target=target) | ir.View(target=target) if target.name in self.separate:
                    out += self.copy_apart(s, own)
                case ir.Alloc(target=target) if target.name in own:
                    out += self.require_size(target.name, own[target.name], s.shape, s.line)
                    out += self.assign(own[target.name], s.fill, s.line)
                case ir.If():
                    s = replace(s, then=self.copied(s.then, own), orelse=self.copied(s.orelse, own))
                    out.append(replace(s, condition=substitute(s.condition, own)))
                case ir.For() | ir.While():
                    inner = self.copied(s.body, own)
                    heads = ("start", "stop", "step") if isinstance(s, ir.For) else ("condition",)
                    out.append(replace(s, body=inner, **{h: substitute(getattr(s, h), own) for h in heads}))
                case _:
                    out.append(substitute(s, own))
        return tuple(out)

    def copy(self, s: ir.Alias | ir.View, own: dict[str, ir.Var]) -> list[ir.Stmt]:
        """A name bound to an array: copy that array into the one of the name."""
        target = own[s.target.name]
        out, source = self.named(s, own)
        out += self.require_size(s.target.name, target, sizes_of(source), s.line)
        return [*out, *self.assign(target, source, s.line)]

    def copy_apart(self, s: ir.Alias | ir.View, own: dict[str, ir.Var]) -> list[ir.Stmt]:
        """A name for the previous array of a carried name: bind it to a copy, as that array is overwritten."""
        out, source = self.named(s, own)
        copied = owned(self.fresh(f"{s.target.name}_before", s.target.type))
        out.append(ir.Alloc(copied, sizes_of(source), None, line=s.line))
        return [*out, *self.assign(copied, source, s.line), ir.Alias(s.target, copied, (), line=s.line)]

    def named(self, s: ir.Alias | ir.View, own: dict[str, ir.Var]) -> tuple[list[ir.Stmt], ir.Var]:
        """The array to which a name is bound, under a separate name if it is a part of one."""
        source = own.get(s.array.name, s.array)
        if isinstance(s, ir.Alias) and not s.index:
            return [], source
        part = self.fresh(f"{s.target.name}_part", s.target.type)
        new = substitute(replace(s, target=part, array=source), own)
        assert isinstance(new, ir.Stmt)
        return [new], part

    def require_size(self, name: str, target: ir.Var, shape: tuple[ir.Expr, ...], line: int) -> list[ir.Stmt]:
        text = (
            f"the array '{stem(name)}' changes its size in a loop; allocate one of the largest size before the loop "
            "and use parts of it"
        )
        return [ir.Agree(a, b, text, line=line) for a, b in zip(sizes_of(target), shape, strict=True)]

    def left_behind(self, n: ir.Alias | ir.View | ir.Alloc, loop: ir.For | ir.While, around: set[str]) -> set[str]:
        """The names that stand for the previous array of a name and are used after the name is bound again."""
        derived, growing = {n.target.name}, True
        inside = [m for m in ir.walk(loop.body) if isinstance(m, (ir.Alias, ir.View))]
        while growing:
            more = {m.target.name for m in inside if m.array.name in derived} - derived
            derived |= more
            growing = bool(more)
        return (derived & self.live_after(n, loop.body, around)) - around - {n.target.name}

    def live_after(self, n: ir.Stmt, body: Block, live: set[str]) -> set[str]:
        """The names that are live after a statement inside a block."""
        for s, after in with_live(body, live):
            if s is n:
                return after
            for block, around in inner_blocks(s, after):
                if any(m is n for m in ir.walk(block)):
                    return self.live_after(n, block, around)
        raise AssertionError(n)

    # copies that must be indistinguishable from the array

    def require_no_other_name(self) -> None:
        """Raise an error if an array is changed under one name while another name of it is in use, and the two names
        may stand for different copies."""
        copied = self.carried | self.separate
        copies = {name: {name} for name in copied}  # the copies for which a name may stand
        _spread(copies, [(target, array) for target, array in self.bindings if target not in copied])
        separate = SeparateParts(self.function)
        paths = {a.name: a.shown for a in self.function.arguments}
        for s, environment, live in _Sharing(self.function).changes:
            name = s.array.name
            self.line = s.line or self.line
            arrays = environment.get(name, frozenset())
            for other in sorted(live - {name}):
                mine, others = copies.get(name, set()), copies.get(other, set())
                apart = copied & {name, other} or mine != others or len(mine) > 1
                if environment.get(other, frozenset()) & arrays and apart:
                    if not mine and separate.are_separate(s, other):
                        continue
                    part = separate.parts(other, name)
                    self.fail(
                        f"'{name}' and '{other}' may be one array here, which is changed, and one of them is carried "
                        "from one iteration to the next; copy the array before: "
                        + (f"{other} = {name}[...].copy()" if part else f"{other} = {name}.copy()")
                    )
            changed = sorted(array for kind, array in arrays if kind == "argument" and array in paths)
            if changed and copies.get(name):
                self.fail(
                    f"'{name}' may be the argument '{paths[changed[0]]}' here, which is changed, and names another "
                    f"array later; copy the argument first: {name} = {name}.copy()"
                )


def _spread(found: dict[str, set[str]], bindings: list[tuple[str, str]]) -> None:
    """Add to the facts about names the facts about those to which they are bound."""
    growing = True
    while growing:
        growing = False
        for target, array in bindings:
            known, more = found.setdefault(target, set()), found.get(array, set())
            growing = growing or not more <= known
            known |= more


Array = tuple[str, str]  # an argument, or the last ("new") or any earlier ("old") array that a statement has allocated
Environment = dict[str, frozenset[Array]]


MAX_ENVIRONMENTS = 8  # if there are more, they are joined into one
_SETS = ir.Assign, ir.For


class _Sharing:
    """The arrays for which names may stand at every statement that changes one, and the names used after it.

    Paths that enter a loop are distinguished from those that skip it.
    """

    def __init__(self, function: ir.Function):
        self.found: dict[int, tuple[ir.Store | ir.Accumulate | ir.Elementwise, list[Environment], set[str]]] = {}
        names = [a.name for a in function.arguments] + [name for name, _ in function.constants]
        self.block(function.body, [{n: frozenset({("argument", n)}) for n in names}], set())

    @property
    def changes(self) -> Iterator[tuple[ir.Store | ir.Accumulate | ir.Elementwise, Environment, set[str]]]:
        for s, environments, live in self.found.values():
            for environment in environments:
                yield s, environment, live

    def block(self, body: Block, environments: list[Environment], live: set[str]) -> list[Environment]:
        for s, after in with_live(body, live):
            environments = self.statement(s, environments, after)
        return environments

    def statement(self, s: ir.Stmt, environments: list[Environment], after: set[str]) -> list[Environment]:
        match s:
            case ir.Alloc(target=target):
                return [_with_new(e, target.name) for e in environments]
            case ir.Alias(target=target, array=array) | ir.View(target=target, array=array):
                return [{**e, target.name: e.get(array.name, frozenset())} for e in environments]
            case ir.Store() | ir.Accumulate() | ir.Elementwise():
                self.found[id(s)] = s, environments, after
            case ir.If():
                then, orelse = (self.block(b, environments, after) for b in (s.then, s.orelse))
                return _limited([*then, *orelse])
            case ir.For() | ir.While():
                around = live_around(s, after)
                head = _joined(environments)
                while True:
                    ends = self.block(s.body, [head], around)
                    more = _joined([head, *ends])
                    if more == head:
                        return _limited([*environments, *ends])
                    head = more
            case ir.Custom():
                return self.block(s.body, environments, after)
        return environments


def _with_new(environment: Environment, name: str) -> Environment:
    last, earlier = ("new", name), ("old", name)
    aged = {n: a - {last} | {earlier} if last in a else a for n, a in environment.items()}
    return {**aged, name: frozenset({last})}


def _joined(environments: list[Environment]) -> Environment:
    names = {n for e in environments for n in e}
    return {n: frozenset().union(*(e.get(n, frozenset()) for e in environments)) for n in names}


def _limited(environments: list[Environment]) -> list[Environment]:
    different = [e for k, e in enumerate(environments) if e not in environments[:k]]
    return different if len(different) <= MAX_ENVIRONMENTS else [_joined(different)]


def inner_blocks(s: ir.Stmt, after: set[str]) -> list[tuple[Block, set[str]]]:
    match s:
        case ir.If():
            return [(s.then, after), (s.orelse, after)]
        case ir.For() | ir.While():
            return [(s.body, live_around(s, after))]
        case ir.Custom():
            return [(s.body, after)]
    return []


# --------------------------------------------------------------------------------------------------- arrays


class _Hoist(_Pass):
    """Moves allocations out of loops and branches.

    ``outside`` are the names used outside of a block.  No iteration uses an array of an earlier one.
    """

    def run(self) -> ir.Function:
        return replace(self.function, body=self.block(self.function.body, set(), set()))

    def block(self, body: Block, live: set[str], outside: set[str]) -> Block:
        out: list[ir.Stmt] = []
        names = [used(s) for s in body]
        count = Counter(name for own in names for name in own)
        for (s, after), own in zip(with_live(body, live), names):
            self.line = s.line or self.line
            beyond = outside | {name for name, number in count.items() if number > (name in own)}
            match s:
                case ir.If():
                    then = self.block(s.then, after, beyond | used((s.condition, *s.orelse)))
                    orelse = self.block(s.orelse, after, beyond | used((s.condition, *s.then)))
                    out += self.out_of(replace(s, then=then, orelse=orelse), after & beyond)
                case ir.For() | ir.While():
                    s = replace(s, body=self.block(s.body, live_around(s, after), beyond))
                    out += self.out_of(s, after & beyond)
                case _:
                    out.append(s)
        return tuple(out)

    def out_of(self, s: ir.Stmt, after: set[str]) -> Block:
        """A statement, preceded by the allocations of arrays in it that are used after it."""
        moved = [n for n in ir.walk(s) if isinstance(n, ir.Alloc) and n.target.name in after]
        if not moved:
            return (s,)
        begin = []
        for n in moved:
            name = n.target.name
            if isinstance(s, ir.For) and s.parallel:
                self.fail_in_prange(name)
            shape = self.shape_before(s, n.shape, n)
            if shape is None:
                parted = self.parted(s, n, after) if isinstance(s, ir.If) else None
                if parted is not None:
                    return parted
                self.line = n.line or self.line
                self.fail_without_size(name, "branch" if isinstance(s, ir.If) else "loop")
            begin.append(ir.Alloc(n.target, shape, None, line=n.line))
        return (*begin, self.without(s, {n.target.name for n in moved}))

    def parted(self, s: ir.If, allocation: ir.Alloc, after: set[str]) -> Block | None:
        """Split a branch in two around the allocation of an array whose size the first part computes::

        if condition:                     size = 0
            n = ...                       if condition:
            a = np.empty(n)       ->          size = n = ...
            ...                           a = np.empty(size)
                                          if condition:
                                              ...
        """
        taken = any(t is allocation for t in s.then)
        body, other = (s.then, s.orelse) if taken else (s.orelse, s.then)
        place = next((k for k, t in enumerate(body) if t is allocation), None)
        if place is None:
            return None
        condition = self.fresh("taken", types.boolean)
        sizes = tuple(self.fresh("size", INT) for _ in allocation.shape)
        known = tuple(ir.Assign(v, size, line=allocation.line) for v, size in zip(sizes, allocation.shape, strict=True))
        first, rest = (
            (*body[:place], *known),
            (*self.assign(allocation.target, allocation.fill, allocation.line), *body[place + 1 :]),
        )
        before, behind = (
            replace(s, condition=condition, then=part if taken else rest_of, orelse=rest_of if taken else part)
            for part, rest_of in ((first, ()), (rest, other))
        )
        needed = live_before(rest, after) - live_before((s,), after)
        set_there = [t.target if isinstance(t, ir.Assign) else t.var for t in ir.walk(first) if isinstance(t, _SETS)]
        begin: list[ir.Stmt] = [ir.Assign(condition, s.condition, line=s.line)]
        for v in dict.fromkeys(set_there):
            if v.name in needed or v in sizes:
                begin.append(ir.Assign(v, constant(0, v.type), line=s.line))
        array = ir.Alloc(allocation.target, sizes, None, line=allocation.line)
        return (*begin, *self.out_of(before, after | used(behind)), array, *self.out_of(behind, after))

    def without(self, s: ir.Stmt, names: set[str]) -> ir.Stmt:
        return ir.in_blocks(s, lambda block: tuple(new for t in block for new in self.filled(t, names)))

    def filled(self, s: ir.Stmt, names: set[str]) -> Block:
        if isinstance(s, ir.Alloc) and s.target.name in names:
            return self.assign(s.target, s.fill, s.line)
        return (self.without(s, names),)

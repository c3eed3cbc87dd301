"""Batched products: products of matrices with vectors in the iterations of a loop become products of matrices.

The adjoint of ``for i: y[i, i:] = x[:, i] @ x[:, i:]`` multiplies a window of ``x`` with a vector in each iteration,
and adds an outer product to the same window of the adjoint of ``x``.  Each goes through all of the window for two
operations per element.  Here some dozens of iterations (a strip) wait for one another, so that level 2 of BLAS becomes
level 3:

* outer products are added, and products of which only sums of adjoints depend are made, after the strip (``late``);
* products of values from before the loop are made before it (``early``), unless they must be bitwise the kernel's own.

Whatever an iteration would read of an earlier one prevents this.  ``product_windows`` recognises the products,
``strip_products`` writes the strips.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis.exactness import exact_values
from ampi.kernel.ir import Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rebuild import rebuild
from ampi.kernel.ir.ssa import Branch, Custom, Loop, definitions, every, reads, written
from ampi.kernel.optimise.product_windows import Iteration, Outer, Product, outer, product
from ampi.kernel.optimise.strip_products import Plan, Strips


def with_batched_products(function: ir.Function, names: Names, shadows: set[str]) -> ir.Function:
    """Batch products in the loops of an adjoint in single assignment form; ``shadows`` (also new ones) are adjoints."""
    if not any(isinstance(s, Loop) for s in function.body):
        return function
    exact = exact_values(function, shadows, zero_stays=True)
    return replace(function, body=_block(function.body, names, shadows, exact))


def _block(body: tuple[Stmt, ...], names: Names, shadows: set[str], exact: set[str]) -> tuple[Stmt, ...]:
    out: list[Stmt] = []
    for s in body:
        within = s if isinstance(s, Custom) else ir.in_blocks(s, lambda block: _block(block, names, shadows, exact))
        found = plan(s, shadows, exact) if isinstance(s, Loop) and within is s else None
        out += [within] if found is None else Strips(names, found, shadows).run()
    return tuple(out)


def plan(loop: Loop, shadows: Collection[str], exact: Collection[str]) -> Plan | None:
    """What can be batched in a loop; None for nothing."""
    if loop.condition is not None or loop.parallel or loop.axis:
        return None
    iteration = Iteration(_with_known_sizes(loop))
    positions = range(len(iteration.loop.body))
    products = [p for k in positions if (p := product(k, iteration)) is not None]
    outers = [o for k in positions if (o := outer(k, iteration)) is not None and o.array.name in shadows]
    if not products and not outers:
        return None
    return _Choice(iteration, shadows, exact).plan(products, outers)


class _Choice:
    """The choice of what waits, by what the statements of an iteration read and write."""

    def __init__(self, iteration: Iteration, shadows: Collection[str], exact: Collection[str]) -> None:
        self.iteration, self.shadows, self.exact = iteration, shadows, exact
        self.body = iteration.loop.body
        self.names = [_names(s) for s in self.body]
        self.writes = [{w.name for t in every((s,)) if (w := written(t)) is not None} for s in self.body]

    def plan(self, products: list[Product], outers: list[Outer]) -> Plan | None:
        late = products
        if self.after(late) is None:
            late = [p for p in products if self.after([p]) is not None]
            late = late if self.after(late) is not None else late[:1]
        while True:
            after = self.after(late) or set()
            outers = [o for o in outers if o.position not in after]
            blocked = self.blocked(after, outers)
            if not blocked:
                break
            kept = [o for o in outers if o.array.name not in blocked]
            fewer = [p for p in late if not self.sinks(self.after([p]) or set()) & blocked]
            if (kept, fewer) == (outers, late):  # the sums of several products together
                fewer = []
            outers, late = kept, fewer
        early = [p for p in products if p not in late and p.position not in after and self.vector(p) is not None]
        early = [p for p in early if p.target.name not in self.exact]
        if not late and not early and not any(o.window is not None for o in outers):
            return None
        gone = after | {p.position for p in early} | {o.position for o in outers}
        needed = {p.vector.name for p in late} | {load.array.name for o in outers for load in o.factors}
        kept_positions = self.live([k for k in range(len(self.body)) if k not in gone], needed)
        vectors = tuple(tuple(sorted(self.vector(p) or ())) for p in early)
        return Plan(self.iteration, tuple(late), tuple(sorted(after)), tuple(early), vectors, tuple(outers),
                    tuple(kept_positions))  # fmt: skip

    def after(self, products: list[Product]) -> set[int] | None:
        """The positions of products and of all statements that use their results; None if these cannot wait."""
        positions = {p.position for p in products}
        late = {p.target.name for p in products}
        size = -1
        while size != len(positions) + len(late):
            size = len(positions) + len(late)
            for k, s in enumerate(self.body):
                if k in positions or not self.names[k] & late:
                    continue
                positions.add(k)
                late |= {v.name for t in every((s,)) for v in definitions(t)}
                late |= self.writes[k] & {*self.iteration.local}
        made = {p.position for p in products}
        if any(p.vector.name in late or p.matrix.name in late for p in products):
            return None
        if any({n.name for c in self.iteration.loop.carried for n in ir.walk(c.next) if isinstance(n, Var)} & late):
            return None
        return positions if all(k in made or self.can_wait(self.body[k], late) for k in positions) else None

    def can_wait(self, s: Stmt, late: set[str]) -> bool:
        """Return whether a statement only adds to adjoints, from late values and from those of before the loop."""
        for t in every((s,)):
            if isinstance(t, Custom) or not isinstance(
                t, ir.Alloc | ir.Assign | ir.Store | ir.Accumulate | Loop | Branch
            ):
                return False
            array = written(t)
            if array is not None and array.name not in late:
                if not isinstance(t, ir.Accumulate) or t.atomic or array.name not in self.shadows:
                    return False
        own = {v.name for t in every((s,)) for v in definitions(t)}
        changed = {t.array.name for t in every((s,)) if isinstance(t, ir.Accumulate)}
        for name, var in _variables(s).items():
            if name in late or name in own or (name in changed and name not in self.iteration.local):
                continue
            if isinstance(var.type, types.Array):
                if not self.iteration.is_steady(var):
                    return False
            elif name in self.iteration.assigned and self.iteration.form(var) is None:
                return False
        loads = {n.array.name for n in ir.walk(s) if isinstance(n, ir.Load)}
        return not loads & (changed - late)

    def sinks(self, positions: Iterable[int]) -> set[str]:
        return {name for k in positions for name in self.writes[k]} - {*self.iteration.local}

    def blocked(self, after: set[int], outers: list[Outer]) -> set[str]:
        """The adjoints to which waiting statements add, and that others use."""
        waiting = after | {o.position for o in outers}
        used = {name for k in range(len(self.body)) if k not in waiting for name in self.names[k]}
        return {name for name in self.sinks(waiting) & used if not self.is_apart(name, waiting)}

    def is_apart(self, name: str, waiting: set[int]) -> bool:
        """Return whether iterations use different elements of an adjoint, all before the waiting statements."""
        users = [k for k, names in enumerate(self.names) if name in names]
        if max(k for k in users if k not in waiting) > min(k for k in users if k in waiting):
            return False
        common: set[tuple[int, Expr]] | None = None
        for s in every(tuple(self.body[k] for k in users)):
            access = s.value if isinstance(s, ir.Assign) else s
            if isinstance(access, ir.Load | ir.Store | ir.Accumulate) and access.array.name == name:
                forms = {(axis, f) for axis, i in enumerate(access.index) if (f := self.iteration.form(i)) is not None}
                common = forms if common is None else common & forms
            elif not isinstance(s, Loop | Branch) and name in _variables(s):
                return False
        return any(self.is_counter(form) for _, form in common or ())

    def is_counter(self, form: Expr) -> bool:
        """Return whether a form has another value in each iteration: the loop's counter plus what does not vary."""
        match form:
            case Op(name="add" | "sub", args=(a, b)):
                return any(self.is_counter(x) and not self.iteration.varies(y) for x, y in ((a, b), (b, a)))
        return form == self.iteration.loop.var

    def vector(self, p: Product) -> set[int] | None:
        """The positions of the statements that compute the vector of a product from values of before the loop."""
        name = p.vector.name
        if name not in self.iteration.local:
            return set() if self.iteration.is_steady(p.vector) else None
        positions = {k for k, names in enumerate(self.writes) if name in names}
        if len(positions) != 2 or max(positions) > p.position:
            return None
        for k in positions:
            s = self.body[k]
            if self.writes[k] != {name} or not all(
                isinstance(t, ir.Alloc | ir.Assign | ir.Store | Loop) for t in every((s,))
            ):
                return None
            own = {v.name for t in every((s,)) for v in definitions(t)} | {name}
            for other, var in _variables(s).items():
                array = isinstance(var.type, types.Array)
                if other not in own and array and not self.iteration.is_steady(var):
                    return None
                if (
                    other not in own
                    and not array
                    and other in self.iteration.assigned
                    and self.iteration.form(var) is None
                ):
                    return None
        return positions

    def live(self, kept: list[int], needed: set[str]) -> list[int]:
        """Positions without those that only fill local arrays that nothing reads."""
        while True:
            read = needed | {n for k in kept for n in self.names[k] if n not in self.writes[k]}
            read |= {n for k in kept for s in every((self.body[k],)) for n in _loaded(s)}
            dead = {name for name in self.iteration.local if name not in read}
            fewer = [k for k in kept if not (self.writes[k] and self.writes[k] <= dead and self.is_filling(k))]
            if fewer == kept:
                return kept
            kept = fewer

    def is_filling(self, k: int) -> bool:
        """Return whether a statement defines no scalar that others read."""
        s = self.body[k]
        return isinstance(s, ir.Alloc | ir.Fill) or (isinstance(s, Loop) and not s.carried)


def _loaded(s: Stmt) -> set[str]:
    return {n.array.name for n in ir.walk(s) if isinstance(n, ir.Load)} if isinstance(s, ir.Assign) else set()


def _names(s: Stmt) -> set[str]:
    """The names in a statement, except those of arrays of which it only reads the size."""
    return {*_variables(s)}


def _variables(s: Stmt) -> dict[str, Var]:
    found: dict[str, Var] = {}
    for t in every((s,)):
        array = written(t)
        waiting: list[Expr] = [*reads(t), *definitions(t), *(() if array is None else (array,))]
        while waiting:
            node = waiting.pop()
            if isinstance(node, Var):
                found[node.name] = node
            if not isinstance(node, Size):
                waiting.extend(ir.children(node))
    return found


def _with_known_sizes(loop: Loop) -> Loop:
    """A loop in whose body the sizes of new arrays are the expressions that they are made with."""
    shapes = {s.target.name: s.shape for s in loop.body if isinstance(s, ir.Alloc)}

    def known(e: Expr) -> Expr:
        match e:
            case Size(array=array, axis=axis) if array.name in shapes:
                return known(shapes[array.name][axis])
            case Op(args=args):
                return replace(e, args=tuple(map(known, args)))
            case ir.Load(index=index):
                return replace(e, index=tuple(map(known, index)))
        return e

    def block(body: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return tuple(rebuild(s, known, lambda v: v, block) for s in body)

    return replace(loop, body=block(loop.body))

"""The adjoint of a kernel, by source transformation.

A *scope* is the function, or one iteration of a loop.  The adjoint of a scope computes the scope forward once more and
then walks back through its statements.  A loop in it is walked back through iteration by iteration, each of which is a
scope again: it is recomputed and reversed at once, so its values stay in registers.  What an iteration cannot recompute
from the outer scopes (carried scalars, elements that are overwritten) was saved when the outer scope ran forward.

All of this is written in full; ``slice`` then removes what no derivative depends on.  For a loop of independent
iterations no forward sweep remains and nothing is saved.

Scalars and their adjoints are in single assignment form: an adjoint is the sum of its contributions, kept in registers.
The adjoint of array memory is a second array, its shadow, updated in place.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from numba import types

from ampi.errors import KernelError
from ampi.kernel import activity, ir, matrices, parallel, tbr
from ampi.kernel.allocations import allocate_once
from ampi.kernel.branches import flatten_loops
from ampi.kernel.carried import Extreme, extreme, is_sum
from ampi.kernel.chains import with_short_chains
from ampi.kernel.counters import add_counters, irregular_nests
from ampi.kernel.destruct import destruct
from ampi.kernel.fresh import with_new_shadows
from ampi.kernel.gather import in_gather_form
from ampi.kernel.innermost import with_unsigned_indices
from ampi.kernel.intrinsics import adjoint_of, arithmetic, constant, convert, is_constant, is_differentiable, select
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.kept import find_kept
from ampi.kernel.loads import loads_before_branches
from ampi.kernel.names import Names, stem
from ampi.kernel.private import with_private_arrays
from ampi.kernel.reciprocals import with_reciprocals
from ampi.kernel.recomputed import sums_in_any_order
from ampi.kernel.slice import live_part
from ampi.kernel.snapshots import find_snapshots
from ampi.kernel.split import defined_everywhere, has_loop, raises, taken_from_before, writes_into
from ampi.kernel.ssa import (
    INT,
    ONE,
    ZERO,
    Branch,
    Builder,
    Carried,
    Custom,
    Join,
    Loop,
    at_line,
    construct,
    definitions,
    every,
    instance,
    reads,
    written,
)
from ampi.kernel.stages import in_stages
from ampi.kernel.stored import find_stored
from ampi.kernel.strips import in_strips
from ampi.kernel.sums import sum_in_registers
from ampi.kernel.tbr import Source


@dataclass(frozen=True)
class Derivative:
    """A derivative program of a kernel and what the tape has to know of it.

    ``function`` takes the kernel's own argument leaves, then one shadow array for each of ``shadows`` (names of array
    arguments, active on entry or made so by the kernel), then one seed per active result leaf, then for each array of
    indices in ``distinct`` whether all its elements differ and none is negative.  ``needs`` are the
    array arguments whose values before the call it reads; ``reads`` and ``writes`` are what the kernel itself reads and
    writes; ``becomes_active`` are array arguments that are passive on entry and active after the call;
    ``result_active`` says for each result leaf whether it depends on an active argument.  ``after`` are array
    arguments whose values after the call it reads besides: it takes them behind the seeds.  ``ends`` are array
    arguments whose shadow it only reads, where the values before the call have no adjoint.  ``new`` are those of which
    it is told last of all whether the shadow is new and holds anything.  ``saves`` says whether it runs forward and
    saves values first.
    """

    function: ir.Function
    needs: frozenset[str]
    reads: frozenset[str]
    writes: frozenset[str]
    becomes_active: frozenset[str]
    result_active: tuple[bool, ...]
    shadows: tuple[str, ...]
    scalars: tuple[str, ...]
    distinct: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    new: tuple[str, ...] = ()
    facts: tuple[str, ...] = ()
    saves: bool = False


@dataclass(frozen=True)
class Split:
    """A program that does what a kernel does and saves what the adjoint needs, and the adjoint that goes on from there.

    ``forward`` takes the kernel's argument leaves; it returns the kernel's results and then what it keeps.
    ``derivative`` is as of `build`, except that its function takes what was kept behind the values after the call.
    """

    forward: ir.Function
    derivative: Derivative


@dataclass(frozen=True)
class Options:
    """Analyses that can be switched off, each without effect on the results, and what the program is compiled for.

    ``activity`` finds what depends on active arguments and what results depend on; ``sources`` finds loads that need
    not be saved (TBR) and ``slice`` leaves out what no derivative needs; ``snapshots`` saves what several loads share
    once; ``stored`` reads values of carried scalars from arrays into which they were stored; ``private`` makes scratch
    arrays part of the iterations that fill them, and ``kept`` reads from such arrays what is costly to compute again;
    ``loads`` makes loads before branches; ``independence`` finds loops without ``prange`` whose iterations are
    independent; ``allocations`` takes allocations out of loops; ``gather`` puts adjoints of stencils in gather form
    and ``behind`` does what else they do row by row behind it;
    ``reciprocals`` divides by a number once where adjoints divide by it several times, and ``chains`` has an iteration
    wait for less of the one before; ``sums``, ``branches`` and ``strips`` make loops fit to be vectorised, and
    ``stages`` cuts long ones (``strips`` and ``stages`` need a program compiled for separate arrays).  ``split`` has
    the kernel's own run save what the adjoint needs.  ``threads`` says that the program is compiled with
    ``parallel=True``, ``deterministic`` that its results must not depend on the number of threads, ``reassociate`` that
    it is compiled with ``fastmath=True``, ``after`` that its caller can give it the arrays as they were after the call,
    ``ends`` that its caller has no use for the shadows of arrays that are passive before the call: they need not become
    zero where these are written, and ``new`` that its caller can say which shadows are new.
    """

    activity: bool = True
    sources: bool = True
    snapshots: bool = True
    stored: bool = True
    private: bool = True
    kept: bool = True
    slice: bool = True
    independence: bool = True
    sums: bool = True
    allocations: bool = True
    loads: bool = True
    branches: bool = True
    gather: bool = True
    behind: bool = True
    reciprocals: bool = True
    chains: bool = True
    strips: bool = True
    stages: bool = True
    split: bool = True
    threads: bool = False
    deterministic: bool = False
    reassociate: bool = False
    after: bool = False
    ends: bool = False
    new: bool = False


ALL_ON = Options()


def build(function: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> Derivative:
    """The adjoint of a kernel with respect to the arguments named in ``active``.

    The generated function is called as ``adjoint(*arguments, *shadows, *seeds)``.  On entry the arguments are as they
    were before the call of the kernel and the shadows hold the adjoints of the arrays' values after it; on exit the
    shadows hold the adjoints of the values before it, and the result is a tuple of the adjoints of the active scalar
    arguments.  The arguments themselves are not changed.
    """
    return _Adjoint(prepared(function, options), frozenset(active), options).run()


def build_split(function: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> Split | None:
    """The adjoint of a kernel in two parts, the first of which takes the place of the kernel's own run.

    None where that cannot be done, or where the adjoint has nothing to compute before it goes backwards.  The arguments
    are as of `build`; the caller must be able to give the arrays as they were after the call.
    """
    if not options.split or not options.after or options.threads or function.result not in (None, "scalar"):
        return None
    return _Adjoint(prepared(function, options), frozenset(active), options).run_split()


def prepared(function: ir.Function, options: Options) -> ir.Function:
    """A kernel in single assignment form, with what is done before it is differentiated."""
    primal = construct(function)
    if options.private:
        primal = with_private_arrays(primal)
    if options.loads:
        primal = loads_before_branches(primal)
    return primal


# --------------------------------------------------------------------------------------------- scopes


@dataclass
class Scope:
    """One run of the function or of an iteration: what the original names stand for in the generated code."""

    parent: Scope | None = None
    loop: Loop | None = None
    values: dict[str, Expr] = field(default_factory=dict)
    saved_scalars: dict[str, Var] = field(default_factory=dict)
    saved_loads: dict[str, tuple[Var, tuple[Loop, ...]]] = field(default_factory=dict)
    snapshots: dict[str, tuple[Var, Loop, tuple[Expr, ...]]] = field(default_factory=dict)

    def find(self, name: str) -> Expr | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            scope = scope.parent
        return None

    def find_snapshot(self, name: str) -> tuple[Var, Loop, tuple[Expr, ...]]:
        """The array of snapshots for a load, the loop that numbers them, and the index of the first element."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.snapshots:
                return scope.snapshots[name]
            scope = scope.parent
        raise AssertionError(name)

    def find_saved(self, name: str) -> tuple[Var, tuple[Loop, ...]]:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.saved_loads:
                return scope.saved_loads[name]
            scope = scope.parent
        raise AssertionError(name)


Adjoints = dict[str, Expr]


@dataclass(frozen=True)
class _Written:
    """What has been written of a derivative program: its arguments, the number of statements that compute forward, what
    names stand for behind these, what it returns, and what is to be known of it."""

    leaves: tuple[ir.Argument, ...]
    forward: int
    scope: Scope
    values: tuple[Expr, ...]
    shadowed: list[ir.Argument]
    scalars: list[ir.Argument]
    result_active: tuple[bool, ...]


class _Adjoint(Builder):
    def __init__(self, primal: ir.Function, active_arguments: frozenset[str], options: Options) -> None:
        taken = {a.name for a in primal.arguments}
        taken |= {v.name for s in every(primal.body) for v in definitions(s)}
        super().__init__(Names(taken))
        self.primal = primal
        self.options = options
        self.active_arguments = active_arguments
        self.activity = activity.analyse(primal, active_arguments, options.activity)
        self.accesses = tbr.collect(primal)
        tbr.require_steady(self.accesses)
        self.sources = tbr.find_sources(primal, self.accesses, options.sources)
        self.snapshots = find_snapshots(self.accesses, self.sources) if options.snapshots else []
        self.sources.update({name: Source.SNAPSHOT for snapshot in self.snapshots for name in snapshot.loads})
        nests = irregular_nests(self.accesses, self.sources)
        self.primal, self.before = add_counters(primal, nests, self.names)
        if nests:
            self.accesses = tbr.collect(self.primal)
        self.kept_values = find_kept(self.primal.body, self.accesses) if options.kept else {}
        self.stored_scalars = find_stored(self.primal.body, self.accesses) if options.stored else {}
        self.facts: list[str] = []
        self.tapes: dict[str, str] = {}  # what the arrays of saved values hold
        self.shadow: dict[str, Var] = {}
        self.after: dict[str, Var] = {}
        self.level.update({a.name: 0 for a in primal.arguments})
        self.grown = {s.target.name for s in every(primal.body) if isinstance(s, ir.Grow)}
        self.written = {w.name for s in every(primal.body) if (w := written(s)) is not None}
        self.ends = self.find_ends() if options.ends else frozenset()

    def find_ends(self) -> frozenset[str]:
        """The arguments, passive before the call, into each of whose elements the kernel writes at most once and which
        it does not read: their shadows are read once and need not become zero."""
        given = {v.name for v in self.results() if isinstance(v, Var)}
        for s in every(self.primal.body):
            if isinstance(s, ir.Fill):
                given |= {a.name for a in (s.target, *s.arguments)}
            elif isinstance(s, Custom):
                given |= {e.array.name for e in (*s.inputs, *s.results) if isinstance(e, ir.Load)}
        found = set()
        for a in self.primal.arguments:
            name = a.name
            if name in self.active_arguments or name not in self.activity.varied or name in given:
                continue
            accesses = self.accesses.of[name]
            stores = all(isinstance(access.statement, ir.Store) for access in accesses)
            if stores and not any(tbr.may_reach(x, y, 0, self.accesses) for x in accesses for y in accesses):
                found.add(name)
        return frozenset(found)

    # the whole

    def run(self) -> Derivative:
        written = self.write(in_place=False)
        generated = self.live(self.program("adjoint", written.leaves, tuple(self.block.statements), written.values))
        saves = any(isinstance(s, ir.Alloc) and self.is_saving(s) for s in generated.body)
        return replace(self.finished(generated, written), saves=saves)

    def run_split(self) -> Split | None:
        if raises(self.primal.body):
            return None
        written = self.write(in_place=True)
        statements = tuple(self.block.statements)
        before, after = statements[: written.forward], statements[written.forward :]
        backward = self.live(self.program("reverse", written.leaves, after, written.values))
        known = {a.name for a in written.leaves} | {var.name for var in self.after.values()}
        kept = taken_from_before(backward.body, known)
        forward = self.program("forward", self.primal.arguments, before, tuple(kept.values()))
        if writes_into(backward.body, kept) or not has_loop(live_part(replace(forward, arguments=())).body):
            return None
        results = self.atoms(self.results(), written.scope)
        forward = self.live(self.program("forward", self.primal.arguments, before, (*results, *kept.values())))
        self.facts += [fact for fact in self.kept(forward) if fact not in self.facts]
        if self.options.allocations:
            forward = allocate_once(forward, self.names)
        if self.options.branches:
            forward = replace(forward, body=flatten_loops(forward.body, self.names))
        given = tuple(ir.Argument(var.name, var.type, role=("kept", name)) for name, var in kept.items())
        return Split(defined_everywhere(destruct(forward)), self.finished(backward, written, given))

    def write(self, in_place: bool) -> _Written:
        """Write the statements that compute forward, on copies of the arrays that the kernel changes or in place, and
        those that go backward."""
        arguments = self.primal.arguments
        varied = self.activity.varied
        shadowed = [a for a in arguments if isinstance(a.type, types.Array) and a.name in varied]
        for a in shadowed:
            self.shadow[a.name] = self.fresh(f"{a.name}_bar", a.type)
        scope = Scope(values={a.name: Var(a.name, a.type) for a in arguments})
        changed = [a for a in arguments if isinstance(a.type, types.Array) and a.name in self.written]
        for a in changed:
            if not in_place:
                scope.values[a.name] = self.working_copy(a)
            if self.options.after:
                self.after[a.name] = self.fresh(f"{a.name}_after", a.type)
        results = self.results()
        result_active = tuple(self.is_varied(v) for v in results)
        adjoints: Adjoints = {}
        seeds = self.seeds(results, result_active)
        seed_arguments = [
            ir.Argument(s.name, s.type, role=("seed", k)) for k, s in enumerate(seeds) if s is not None
        ]  # fmt: skip
        body = tuple(s for s in self.primal.body if not isinstance(s, ir.Return))
        self.forward(body, scope, top=True)
        forward = len(self.block.statements)
        given = Scope(values=dict(scope.values))
        if in_place:
            for a in changed:  # the name now stands for the values before the call, as everywhere in an adjoint
                self.forget(a.name)
                scope.values[a.name] = self.after[a.name]
        self.allocate_shadows(body, scope)
        for v, seed in zip(results, seeds):
            if seed is not None:
                self.plant(v, seed, adjoints)
        self.backward(body, scope, adjoints)
        scalars = [a for a in arguments if a.name in self.active_arguments and not isinstance(a.type, types.Array)]
        values = tuple(self.value(adjoints.get(a.name, constant(0, a.type))) for a in scalars)
        shadows = (ir.Argument(self.shadow[a.name].name, a.type, role=("shadow", a.name)) for a in shadowed)
        leaves = (*arguments, *shadows, *seed_arguments)
        return _Written(leaves, forward, given, values, shadowed, scalars, result_active)

    def program(
        self, what: str, arguments: tuple[ir.Argument, ...], body: tuple[Stmt, ...], values: tuple[Expr, ...]
    ) -> ir.Function:
        end = ir.Return(values, line=self.primal.first_line)
        return replace(
            self.primal,
            name=f"{self.primal.name}_{what}",
            arguments=arguments,
            body=(*body, end),
            result=("tuple", len(values)),
        )

    def live(self, generated: ir.Function) -> ir.Function:
        return live_part(generated) if self.options.slice else generated

    def finished(self, generated: ir.Function, written: _Written, kept: tuple[ir.Argument, ...] = ()) -> Derivative:
        """The program that goes backward in the form that is compiled, and what is to be known of it."""
        needs = arrays_read(generated)
        mentioned = needs | set(taken_from_before(generated.body, set()))
        self.after = {name: var for name, var in self.after.items() if var.name in mentioned}
        read = (ir.Argument(var.name, var.type, role=("after", name)) for name, var in self.after.items())
        generated = replace(generated, arguments=(*generated.arguments, *read, *kept))
        self.facts += self.kept(generated)
        generated = self.vectorisable(generated)
        return self.describe(generated, needs, written.shadowed, written.scalars, written.result_active)

    def is_saving(self, s: ir.Alloc) -> bool:
        """Whether an allocation is for values from the way forward: saved ones, or all that an array holds."""
        return s.target.name in self.tapes or (isinstance(s.fill, Var) and isinstance(s.fill.type, types.Array))

    def kept(self, generated: ir.Function) -> list[str]:
        """What the program saves and copies, in words."""
        found = [f"{name} is read as it was after the call" for name in self.after]
        for s in every(generated.body):
            if isinstance(s, ir.Alloc) and s.target.name in self.tapes:
                found.append(f"line {s.line}: {self.tapes[s.target.name]} is saved in each iteration")
            elif isinstance(s, ir.Alloc) and isinstance(s.fill, Var) and isinstance(s.fill.type, types.Array):
                found.append(f"{s.fill.name} is copied: values which the kernel puts there are needed")
        return found

    def vectorisable(self, generated: ir.Function) -> ir.Function:
        """The program with its innermost loops in a form that compilers vectorise, and its parallel ones on threads."""
        shadows = {shadow.name for shadow in self.shadow.values()}
        if self.options.sums:
            generated = replace(generated, body=sum_in_registers(generated.body, self.names))
        if self.options.gather:
            generated, facts = in_gather_form(generated, self.names, self.options.behind, self.options.threads)
            self.facts += facts
        if self.options.reciprocals:
            generated = with_reciprocals(generated, self.names, shadows)
        if self.options.strips:
            generated = sums_in_any_order(generated, shadows)
        if self.options.chains:
            generated = with_short_chains(generated, self.names, shadows)
        generated, facts = parallel.decide(
            generated,
            self.names,
            self.options.threads,
            self.options.deterministic,
            lambda part: destruct(with_unsigned_indices(self.in_good_form(part), self.names)),
        )
        self.facts += facts
        return self.in_good_form(generated)

    def in_good_form(self, generated: ir.Function) -> ir.Function:
        if self.options.allocations:
            generated = allocate_once(generated, self.names)
        if self.options.branches:
            generated = replace(generated, body=flatten_loops(generated.body, self.names))
        if self.options.strips:
            generated, facts = in_strips(generated, self.names, self.options.reassociate)
            self.facts += [f for f in facts if f not in self.facts]
        if self.options.stages:
            generated, facts = in_stages(generated, self.names, self.options.reassociate)
            self.facts += [f for f in facts if f not in self.facts]
        return generated

    def describe(
        self,
        generated: ir.Function,
        needs: frozenset[str],
        shadowed: list[ir.Argument],
        scalars: list[ir.Argument],
        result_active: tuple[bool, ...],
    ) -> Derivative:
        names = frozenset(a.name for a in self.primal.arguments if isinstance(a.type, types.Array))
        new: tuple[str, ...] = ()
        if self.options.new:
            generated, new = with_new_shadows(generated, self.names, {a.name: self.shadow[a.name] for a in shadowed})
        return Derivative(
            function=destruct(generated),
            needs=needs & names,
            reads=arrays_read(self.primal) & names,
            writes=frozenset(self.written & names),
            becomes_active=frozenset(a.name for a in shadowed if a.name not in self.active_arguments),
            result_active=result_active,
            shadows=tuple(a.name for a in shadowed),
            scalars=tuple(a.name for a in scalars),
            distinct=tuple(a.role[1] for a in generated.arguments if a.is_a("distinct")),
            after=tuple(self.after),
            ends=tuple(a.name for a in shadowed if a.name in self.ends),
            new=new,
            facts=tuple(dict.fromkeys(map(stem, self.facts))),
        )

    def results(self) -> tuple[Expr, ...]:
        last = self.primal.body[-1] if self.primal.body else None
        return last.values if isinstance(last, ir.Return) else ()

    def is_varied(self, value: Expr) -> bool:
        return isinstance(value, Var) and value.name in self.activity.varied

    def is_active(self, value: Expr) -> bool:
        return isinstance(value, Var) and value.name in self.activity.active

    def seeds(self, results: tuple[Expr, ...], result_active: tuple[bool, ...]) -> list[Var | None]:
        return [
            self.fresh(_bar(value), value.type) if is_active else None
            for value, is_active in zip(results, result_active)
        ]

    def plant(self, value: Expr, seed: Var, adjoints: Adjoints) -> None:
        """Begin with the adjoint of a result."""
        if not isinstance(value.type, types.Array):
            self.contribute(adjoints, value, seed)
            return
        self.add_array(self.shadow[value.name], seed)

    def add_array(self, target: Var, source: Var) -> None:
        """``target += source``, element by element."""

        self.over(source, lambda i: self.accumulate(target, i, self.load(source, i)), {target.name})

    def working_copy(self, a: ir.Argument) -> Var:
        copied = self.fresh(f"{a.name}_now", a.type.copy(layout="C", readonly=False))
        argument = Var(a.name, a.type)
        shape = tuple(Size(argument, k, INT) for k in range(a.type.ndim))
        self.emit(ir.Alloc(copied, shape, argument, line=self.primal.first_line))
        return copied

    # forward

    def atom(self, e: Expr, scope: Scope) -> Expr:
        """What an atom of the primal stands for in a scope."""
        if isinstance(e, Var):
            found = scope.find(e.name)
            return e if found is None else found
        return e

    def atoms(self, es: Iterable[Expr], scope: Scope) -> tuple[Expr, ...]:
        return tuple(self.atom(e, scope) for e in es)

    def forward(self, body: tuple[Stmt, ...], scope: Scope, top: bool) -> None:
        """Compute statements again in a scope; ``top``: no loop lies between them and the scope."""
        for s in body:
            self.line = s.line or self.line
            match s:
                case ir.Assign(target=target, value=ir.Load()):
                    scope.values[target.name] = self.reload(s, scope, top)
                case ir.Assign(target=target, value=value):
                    found = self.kept_value(target.name, scope)
                    if found is None:
                        new = replace(value, args=self.atoms(value.args, scope)) if isinstance(value, Op) else value
                        found = self.value(new, target.name)
                    scope.values[target.name] = found
                case ir.Store(array=array, index=index, value=value):
                    if array.name in scope.values:
                        self.store(scope.values[array.name], self.atoms(index, scope), self.atom(value, scope))
                case ir.Accumulate(array=array, index=index, value=value):
                    if array.name in scope.values:
                        self.accumulate(scope.values[array.name], self.atoms(index, scope), self.atom(value, scope))
                case ir.Alloc():
                    self.allocate(s, scope)
                case Custom():
                    self.forward(s.then, scope, top)
                    scope.values.update({j.var.name: self.atom(j.then, scope) for j in s.joins})
                case Branch():
                    self.forward_branch(s, scope, top)
                case Loop():
                    self.forward_loop(s, scope, top)
                case ir.Grow(target=target, size=size):
                    if target.name in scope.values:
                        self.emit(ir.Grow(scope.values[target.name], self.atom(size, scope), line=s.line))
                        self.forget(scope.values[target.name].name)
                case ir.Fill(target=target, arguments=arguments):
                    if target.name in scope.values:
                        arrays = tuple(self.array_in(a, scope) for a in (target, *arguments))
                        self.emit(replace(s, target=arrays[0], arguments=arrays[1:]))
                        self.forget(arrays[0].name)
                case ir.Raise(own=own):
                    if own:
                        self.emit(s)
                case _:
                    raise AssertionError(s)

    def allocate(self, s: ir.Alloc, scope: Scope) -> None:
        target = self.fresh(s.target.name, s.target.type)
        fill = None if s.fill is None else self.atom(s.fill, scope)
        self.emit(ir.Alloc(target, self.atoms(s.shape, scope), fill, line=s.line))
        self.forget(target.name)
        scope.values[s.target.name] = target

    def reload(self, s: ir.Assign, scope: Scope, top: bool) -> Expr:
        """The value that a load had."""
        name, array = s.target.name, s.value.array
        index = self.atoms(s.value.index, scope)
        source = self.sources[name]
        if source is Source.ORIGINAL:
            return self.load(array, index, name)
        own = scope.values.get(array.name)
        if own is not None:
            value = self.load(own, index, name)
            if name in scope.saved_loads:
                tape, loops = scope.saved_loads[name]
                self.store(tape, self.slot(loops, scope), value)
            return value
        if source is Source.FINAL:
            return self.load(self.atom(array, scope), index, name)
        if source is Source.SNAPSHOT:
            tape, loop, first = scope.find_snapshot(name)
            places = (self.value(Op("sub", (i, begin), INT)) for i, begin in zip(index, first))
            return self.load(tape, (*self.trips((loop,), scope), *places), name)
        tape, loops = scope.find_saved(name)
        return self.load(tape, self.slot(loops, scope), name)

    def kept_value(self, name: str, scope: Scope) -> Expr | None:
        """A value that an iteration around the scope has put into one of its arrays."""
        if name not in self.kept_values:
            return None
        array, index = self.kept_values[name]
        filled = scope.find(array.name)
        known = all(scope.find(i.name) is not None for i in index if isinstance(i, Var))
        if array.name in scope.values or not isinstance(filled, Var) or not known:
            return None
        return self.load(filled, self.atoms(index, scope), name)

    def trips(self, loops: tuple[Loop, ...], scope: Scope) -> tuple[Expr, ...]:
        """The numbers, from zero, of the current iterations of loops."""
        numbers = []
        for loop in loops:
            start = self.atom(loop.start, scope)
            numbers.append(self.value(Op("sub", (self.atom(loop.var, scope), start), INT)))
        return tuple(numbers)

    def slot(self, loops: tuple[Loop, ...], scope: Scope) -> tuple[Expr, ...]:
        """Where the values saved in the current iterations of loops are."""
        before = self.before.get((loops[-1].name, loops[0].name))
        if before is None:
            return self.trips(loops, scope)
        (trip,) = self.trips(loops[-1:], scope)
        return (self.value(Op("add", (self.atom(before, scope), trip), INT)),)

    def forward_branch(self, s: Branch, scope: Scope, top: bool) -> None:
        condition = self.atom(s.condition, scope)
        with self.nested() as then:
            self.forward(s.then, scope, top)
        with self.nested() as orelse:
            self.forward(s.orelse, scope, top)
        joins = []
        for j in s.joins:
            var = self.fresh(j.var.name, j.var.type)
            joins.append(Join(var, self.atom(j.then, scope), self.atom(j.orelse, scope)))
            scope.values[j.var.name] = var
        self.emit(Branch(condition, tuple(then.statements), tuple(orelse.statements), tuple(joins), line=s.line))

    def forward_loop(self, s: Loop, scope: Scope, top: bool) -> None:
        start, stop = self.atom(s.start, scope), self.atom(s.stop, scope)
        kept: list[tuple[Var, Var, tuple[Expr, ...]]] = []
        if top:
            self.prepare_saved_loads(s, scope)
            kept = self.prepare_snapshots(s, scope)
        counted = s.condition is None
        inits = self.atoms((c.init for c in s.carried), scope)
        var = self.inner(s.var.name, INT)
        scope.values[s.var.name] = var
        phis = [var if c.var == s.var else self.inner(c.var.name, c.var.type) for c in s.carried]
        scope.values.update({c.var.name: phi for c, phi in zip(s.carried, phis)})
        tapes: dict[str, Var] = {}
        if top:
            length = self.count(start, stop) if counted else Const(16, INT)
            for c in s.carried:
                if c.var != s.var and c.var != s.condition:
                    tapes[c.var.name] = self.tape(stem(c.var.name), stem(c.var.name), c.var.type, 1)
                    self.emit(ir.Alloc(tapes[c.var.name], (length,), None, line=s.line))
            scope.saved_scalars.update(tapes)
        if counted:
            self.make_room(s, scope, self.count(start, stop))
        saved = {t.name for t in tapes.values()} | {tape.name for tape, _, _ in kept}
        with self.nested(self.overwritten(s, scope) | saved) as block:
            (trip,) = self.trips((s,), scope)
            for tape, array, first in kept:
                self.take_snapshot(tape, array, trip, first)
            following = self.value(Op("add", (trip, ONE), INT))
            if not counted:
                self.make_room(s, scope, following)
            for c, phi in zip(s.carried, phis):
                if c.var.name in tapes:
                    tape = tapes[c.var.name]
                    if not counted:
                        self.emit(ir.Grow(tape, following, line=s.line))
                        self.forget(tape.name)
                    self.store(tape, (trip,), phi)
            self.forward(s.body, scope, top=False)
            nexts = self.atoms((c.next for c in s.carried), scope)
        scope.values.update({c.var.name: phi for c, phi in zip(s.carried, phis)})
        carried = tuple(Carried(phi, i, n) for phi, i, n in zip(phis, inits, nexts))
        condition = None if s.condition is None else scope.values[s.condition.name]
        body, parallel = tuple(block.statements), self.is_shared(s)
        self.emit(Loop(var.name, var, start, stop, body, carried, s.step, condition, parallel, line=s.line))

    def tape(self, hint: str, what: str, ty: Any, dimensions: int) -> Var:
        """An array for saved values."""
        tape = self.fresh(f"{hint}_saved", types.Array(ty, dimensions, "C"))
        self.tapes[tape.name] = what
        return tape

    @functools.cached_property
    def primal_arrays(self) -> dict[str, str]:
        """For each loaded value, the array it comes from."""
        return {
            s.target.name: s.value.array.name
            for s in every(self.primal.body)
            if isinstance(s, ir.Assign) and isinstance(s.value, ir.Load)
        }

    def overwritten(self, s: Loop, scope: Scope) -> set[str]:
        """The generated arrays into which a forward copy of a loop writes."""
        found = set()
        for inner in every((s,)):
            array = written(inner)
            if array is not None and array.name in scope.values:
                found.add(scope.values[array.name].name)
        return found | {tape.name for tape, _ in scope.saved_loads.values()}

    def count(self, start: Expr, stop: Expr) -> Expr:
        """The number of iterations of a loop, not below zero."""
        trips = self.value(Op("sub", (stop, start), INT))
        return self.value(Op("max", (trips, ZERO), INT), "trips")

    def prepare_saved_loads(self, s: Loop, scope: Scope) -> None:
        """Make room for the values that the loop (standing directly in the scope) loads and that must be saved."""
        for name, ty, loops in self.loads_to_save(s, scope):
            if (loops[-1].name, loops[0].name) in self.before:
                extents = (Const(16, INT),)
            else:
                ranges = [(self.atom(loop.start, scope), self.atom(loop.stop, scope)) for loop in loops]
                extents = tuple(self.count(start, stop) for start, stop in ranges)
            array = self.primal_arrays[name]
            tape = self.tape(stem(name), f"an element of {array}", ty, len(extents))
            self.emit(ir.Alloc(tape, extents, None, line=s.line))
            scope.saved_loads[name] = (tape, loops)

    def prepare_snapshots(self, s: Loop, scope: Scope) -> list[tuple[Var, Var, tuple[Expr, ...]]]:
        """Make room for snapshots at the beginning of a loop's iterations: the room, the array, its first index."""
        found = []
        for snapshot in self.snapshots:
            if snapshot.loop != s.name or snapshot.array.name not in scope.values:
                continue
            array = scope.values[snapshot.array.name]
            assert isinstance(array, Var)
            first, extents = [], []
            for k, r in enumerate(snapshot.ranges):
                start = ZERO if r.loop is None else self.atom(r.loop.start, scope)
                stop = ONE if r.loop is None else self.atom(r.loop.stop, scope)
                first.append(self.value(Op("add", (start, Const(r.low, INT)), INT)))
                end = self.value(Op("add", (stop, Const(r.high, INT)), INT))
                end = self.value(Op("min", (end, Size(array, k, INT)), INT))  # where the loop does not run
                extents.append(self.count(first[-1], end))
            name = snapshot.array.name
            tape = self.tape(stem(name), f"what is read of {name}", array.type.dtype, 1 + len(extents))
            length = self.count(self.atom(s.start, scope), self.atom(s.stop, scope))
            self.emit(ir.Alloc(tape, (length, *extents), None, line=s.line))
            scope.snapshots.update({load: (tape, s, tuple(first)) for load in snapshot.loads})
            found.append((tape, array, tuple(first)))
        return found

    def take_snapshot(self, tape: Var, array: Var, trip: Expr, first: tuple[Expr, ...]) -> None:
        """``tape[trip] = array[first:]``, as much as there is room for."""

        def level(index: tuple[Expr, ...]) -> None:
            axis = len(index)
            if axis == len(first):
                here = (self.value(Op("add", (i, begin), INT)) for i, begin in zip(index, first))
                self.store(tape, (trip, *index), self.load(array, tuple(here)))
                return
            i = self.inner("i", INT)
            with self.nested({tape.name}) as block:
                level((*index, i))
            last = axis == len(first) - 1
            room = Size(tape, axis + 1, INT)
            self.emit(Loop(i.name, i, ZERO, room, tuple(block.statements), independent=last, line=self.line))

        level(())

    def make_room(self, s: Loop, scope: Scope, more: Expr) -> None:
        """Lengthen what is saved in a loop whose iterations are numbered through, for ``more`` of them."""
        for tape, loops in scope.saved_loads.values():
            before = self.before.get((loops[-1].name, loops[0].name))
            if loops[-1].name == s.name and before is not None:
                size = self.value(Op("add", (self.atom(before, scope), more), INT))
                self.emit(ir.Grow(tape, size, line=s.line))
                self.forget(tape.name)

    def loads_to_save(self, s: Loop, scope: Scope) -> list[tuple[str, Any, tuple[Loop, ...]]]:
        found = []

        def visit(body: tuple[Stmt, ...], loops: tuple[Loop, ...]) -> None:
            for t in body:
                match t:
                    case ir.Assign(target=target, value=ir.Load(array=array)):
                        if array.name in scope.values and self.sources[target.name] is Source.SAVED:
                            found.append((target.name, target.type, loops))
                    case Loop():
                        visit(t.body, (*loops, t))
                    case Branch():
                        visit(t.then, loops)
                        visit(t.orelse, loops)

        visit(s.body, (s,))
        return found

    def error(self, message: str) -> KernelError:
        return KernelError(f"{self.primal.filename}:{self.line}: {stem(message)}")

    # backward

    def contribute(self, adjoints: Adjoints, value: Expr, amount: Expr) -> None:
        """Add to the adjoint of a scalar."""
        if not self.is_active(value) or is_constant(amount, 0):
            return
        amount = convert(amount, value.type)
        known = adjoints.get(value.name)
        total = amount if known is None else arithmetic("add", known, amount)
        adjoints[value.name] = self.value(total, f"{stem(value.name)}_bar")

    def allocate_shadows(self, body: tuple[Stmt, ...], scope: Scope) -> None:
        """Zero shadows for the local arrays that a block allocates."""
        for s in body:
            if isinstance(s, Custom):
                results = {e.array.name for e in s.results if isinstance(e, ir.Load)}
                made = (t for t in s.then if isinstance(t, ir.Alloc) and t.target.name in results)
                self.allocate_shadows(tuple(made), scope)
            if isinstance(s, ir.Alloc) and s.target.name in self.activity.active:
                array = scope.values[s.target.name]
                shadow = self.fresh(f"{s.target.name}_bar", s.target.type)
                shape = self.atoms(s.shape, scope)
                if s.target.name in self.grown:
                    shape = (Size(array, 0, INT),)
                self.emit(ir.Alloc(shadow, shape, constant(0, shadow.type.dtype), line=s.line))
                self.forget(shadow.name)
                self.shadow[s.target.name] = shadow

    def backward(self, body: tuple[Stmt, ...], scope: Scope, adjoints: Adjoints) -> None:
        for s in reversed(body):
            self.line = s.line or self.line
            match s:
                case ir.Assign(target=target, value=value):
                    g = adjoints.pop(target.name, None)
                    if g is not None and not is_constant(g, 0):
                        self.backward_assign(target, value, g, scope, adjoints)
                case ir.Store(array=array, index=index, value=value):
                    self.backward_store(array, self.atoms(index, scope), value, adjoints)
                case ir.Accumulate(array=array, index=index, value=value):
                    if array.name in self.shadow and self.is_active(value):
                        g = self.load(self.shadow[array.name], self.atoms(index, scope), _bar(value))
                        self.contribute(adjoints, value, g)
                case Custom():
                    self.backward_custom(s, scope, adjoints)
                case ir.Fill():
                    self.backward_fill(s, scope)
                case Branch():
                    self.backward_branch(s, scope, adjoints)
                case Loop():
                    self.backward_loop(s, scope, adjoints)

    def backward_assign(self, target: Var, value: Expr, g: Expr, scope: Scope, adjoints: Adjoints) -> None:
        match value:
            case ir.Load(array=array, index=index):
                if array.name in self.shadow:
                    self.accumulate(self.shadow[array.name], self.atoms(index, scope), g)
            case Op(name=name, args=args):
                if name == "mul" and args[0] == args[1]:
                    value, args = replace(value, name="square", args=args[:1]), args[:1]
                op = replace(value, args=self.atoms(args, scope))
                result = self.atom(target, scope)
                for k, argument in enumerate(args):
                    if self.is_active(argument):
                        amount = adjoint_of(op, k, result, g)
                        if amount is not None:
                            self.contribute(adjoints, argument, self.value(amount))
            case Var():
                self.contribute(adjoints, value, g)

    def backward_store(self, array: Var, index: tuple[Expr, ...], value: Expr, adjoints: Adjoints) -> None:
        shadow = self.shadow.get(array.name)
        if shadow is None:
            return
        if self.is_active(value):
            self.contribute(adjoints, value, self.load(shadow, index, _bar(value)))
        if array.name not in self.ends:
            self.store(shadow, index, constant(0, shadow.type.dtype))

    def array_in(self, array: Var, scope: Scope) -> Var:
        """What an array of the primal is in a scope."""
        found = self.atom(array, scope)
        assert isinstance(found, Var)
        return found

    def backward_fill(self, s: ir.Fill, scope: Scope) -> None:
        bar = self.shadow.get(s.target.name)
        bars = [self.shadow.get(a.name) for a in s.arguments]
        if bar is None or all(b is None for b in bars):
            return
        target, *arguments = (self.array_in(a, scope) for a in (s.target, *s.arguments))
        matrices.adjoint(self, s, target, tuple(arguments), bar, bars)

    def backward_branch(self, s: Branch, scope: Scope, adjoints: Adjoints) -> None:
        condition = self.atom(s.condition, scope)
        ends = [(j, g) for j in s.joins if (g := adjoints.pop(j.var.name, None)) is not None]
        sides: list[tuple[tuple[Stmt, ...], Adjoints]] = []
        for body, side in ((s.then, "then"), (s.orelse, "orelse")):
            own = dict(adjoints)
            with self.nested() as block:
                self.allocate_shadows(body, scope)
                for j, g in ends:
                    self.contribute(own, getattr(j, side), g)
                self.backward(body, scope, own)
            sides.append((tuple(block.statements), own))
        (then, after_then), (orelse, after_else) = sides
        joins = []
        for name in {**after_then, **after_else}:
            ty = self.type_of(name)
            a, b = after_then.get(name, constant(0, ty)), after_else.get(name, constant(0, ty))
            if a == b:
                adjoints[name] = a
                continue
            var = self.fresh(f"{stem(name)}_bar", ty)
            joins.append(Join(var, a, b))
            adjoints[name] = var
        if then or orelse or joins:
            self.emit(Branch(condition, then, orelse, tuple(joins), line=s.line))

    def backward_custom(self, s: Custom, scope: Scope, adjoints: Adjoints) -> None:
        """Put the author's adjoint in the place of a call."""
        numbers = {j.var.name: adjoints.pop(j.var.name, None) for j in s.joins}
        shadows = [self.shadow.get(e.array.name) for e in s.results if isinstance(e, ir.Load)]
        if not any(shadows) and all(g is None for g in numbers.values()):
            return
        given = [self.whole(e, scope) for e in s.residuals]
        for e in s.results:
            if isinstance(e, ir.Load) and is_differentiable(e.type):
                given.append(self.taken(e, scope))
            elif isinstance(e, Var) and is_differentiable(e.type):
                g = numbers[e.name]
                given.append(constant(0, e.type) if g is None else convert(g, e.type))
        function = construct(s.rule.backward)
        named = {a.name: self.value(v) for a, v in zip(function.arguments, given, strict=True)}
        body, values = instance(function, named, self.names)
        for statement in body if function.filename == self.primal.filename else at_line(body, s.line):
            self.emit(statement)
        for e, position in zip(s.inputs, s.rule.positions, strict=True):
            if position is None:
                continue
            if isinstance(e, ir.Load):
                self.add_part(e, values[position], scope)
            else:
                self.contribute(adjoints, e, values[position])

    def whole(self, e: Expr, scope: Scope) -> Expr:
        """A number or a whole array."""
        return self.atom(e.array if isinstance(e, ir.Load) else e, scope)

    def taken(self, e: ir.Load, scope: Scope) -> Var:
        """The adjoint of an array, or of a part, as an array of its own; the shadow becomes zero."""
        shadow = self.shadow.get(e.array.name)
        like = self.whole(e, scope) if shadow is None else shadow
        index = self.atoms(e.index, scope)
        shape = tuple(Size(like, k, INT) for k in range(len(index), like.type.ndim))
        target = self.fresh(_bar(e.array), types.Array(e.type.dtype, e.type.ndim, "C"))
        self.emit(ir.Alloc(target, shape, constant(0, e.type.dtype) if shadow is None else None, line=self.line))

        def move(inner: tuple[Expr, ...]) -> None:
            self.store(target, inner, self.load(shadow, (*index, *inner)))
            self.store(shadow, (*index, *inner), constant(0, shadow.type.dtype))

        if shadow is not None:
            self.over(target, move, {target.name, shadow.name})
        return target

    def add_part(self, e: ir.Load, amount: Var, scope: Scope) -> None:
        """Add an array to the shadow of an array or of a part."""
        shadow = self.shadow.get(e.array.name)
        index = self.atoms(e.index, scope)
        if shadow is not None:
            add = lambda inner: self.accumulate(shadow, (*index, *inner), self.load(amount, inner))
            self.over(amount, add, {shadow.name})

    def type_of(self, name: str) -> Any:
        return self.types[name]

    @functools.cached_property
    def types(self) -> dict[str, Any]:
        """The type of every name of the primal."""
        known = {a.name: a.type for a in self.primal.arguments}
        return known | {v.name: v.type for s in every(self.primal.body) for v in definitions(s)}

    def backward_loop(self, s: Loop, scope: Scope, adjoints: Adjoints) -> None:
        """Reverse a loop, recomputing and reversing one iteration after the other."""
        if not self.has_work(s, adjoints):
            for c in s.carried:
                adjoints.pop(c.var.name, None)
            return
        active = [c for c in s.carried if self.is_active(c.var)]
        extremes = [x for c in active if (x := extreme(c, s)) is not None]
        chained = [c for c in active if not any(x.carried is c for x in extremes)]
        any_order = self.is_independent(s) and all(is_sum(c, s) for c in chained)
        found = self.search(s, scope, [(x, g) for x in extremes if (g := adjoints.pop(x.carried.var.name, None))])
        finals = [adjoints.pop(c.var.name, constant(0, c.var.type)) for c in chained]
        bars = [self.inner(f"{stem(c.var.name)}_bar", c.var.type) for c in chained]
        outer = self.outer_scalars(s)
        totals = [self.inner(f"{stem(v.name)}_bar", v.type) for v in outer]
        start, stop, step = self.reversed_range(s, scope, any_order)
        var = self.inner(s.var.name, INT)
        inner = Scope(scope, s, {s.var.name: var})
        with self.nested(self.shadows_touched(s)) as block:
            self.restore(s, inner)
            self.forward(s.body, inner, top=True)
            self.allocate_shadows(s.body, inner)
            own: Adjoints = {}
            for c, bar in zip(chained, bars):
                self.contribute(own, c.next, bar)
            for x, g, place in found:
                (trip,) = self.trips((s,), inner)
                here = Op("eq", (trip, place), types.boolean)
                self.contribute(own, x.value, self.value(select(here, g, constant(0, g.type))))
            self.backward(s.body, inner, own)
            carried_back = [own.get(c.var.name, constant(0, c.var.type)) for c in chained]
            sums = [self.add(total, own.get(v.name)) for v, total in zip(outer, totals)]
        carried = [Carried(bar, g, n) for bar, g, n in zip(bars, finals, carried_back)]
        begins = [adjoints.get(v.name, constant(0, v.type)) for v in outer]
        carried += [Carried(total, g, n) for total, g, n in zip(totals, begins, sums)]
        reversed_loop = Loop(
            var.name, var, start, stop, tuple(block.statements), tuple(carried), step, line=s.line,
            parallel=any_order and self.is_shared(s), independent=any_order,
        )  # fmt: skip
        self.emit(reversed_loop)
        for v, total in zip(outer, totals):
            adjoints[v.name] = total
        for c, bar in zip(chained, bars):
            self.contribute(adjoints, c.init, bar)
        for x, g, place in found:
            nowhere = Op("lt", (place, ZERO), types.boolean)
            self.contribute(adjoints, x.carried.init, self.value(select(nowhere, g, constant(0, g.type))))

    def is_independent(self, s: Loop) -> bool:
        """Whether the iterations of a loop, its carried scalars aside, may be reversed in any order."""
        if s.condition is not None:
            return False
        return s.parallel or (self.options.independence and tbr.are_independent(s, self.accesses))

    def is_shared(self, s: Loop) -> bool:
        """Whether threads share a loop: a ``prange``, or an operation on whole arrays with independent elements."""
        if s.parallel or not (s.whole and self.options.threads) or isinstance(s.stop, Const):
            return s.parallel
        return tbr.are_independent(s, self.accesses)

    def search(self, s: Loop, scope: Scope, wanted: list[tuple[Extreme, Expr]]) -> list[tuple[Extreme, Expr, Expr]]:
        """The iterations that extremes came from (minus one: from before the loop), looked for where an adjoint is
        not zero."""
        if not wanted:
            return []
        asked: Expr | None = None
        for _, g in wanted:
            nonzero = Op("ne", (g, constant(0, g.type)), types.boolean)
            asked = nonzero if asked is None else Op("or", (asked, nonzero), types.boolean)
        assert asked is not None
        condition = self.value(asked)
        nowhere = Const(-1, INT)
        with self.nested() as branch:
            var = self.inner(s.var.name, INT)
            inner = Scope(scope, s, {s.var.name: var})
            values = [self.inner(x.carried.var.name, x.carried.var.type) for x, _ in wanted]
            places = [self.inner(f"{stem(x.carried.var.name)}_from", INT) for x, _ in wanted]
            with self.nested() as block:
                self.restore(s, inner)
                inner.values.update({x.carried.var.name: v for (x, _), v in zip(wanted, values)})
                self.forward(s.body, inner, top=True)
                carried = []
                (trip,) = self.trips((s,), inner)
                for (x, _), value, place in zip(wanted, values, places):
                    carried.append(Carried(value, self.atom(x.carried.init, scope), self.atom(x.carried.next, inner)))
                    replaces = x.replaces
                    if isinstance(replaces, Op):
                        replaces = replace(replaces, args=self.atoms(replaces.args, inner))
                    options = (place, trip) if x.negated else (trip, place)
                    replaces = self.value(self.atom(replaces, inner))
                    carried.append(Carried(place, nowhere, self.value(Op("select", (replaces, *options), INT))))
            start, stop, step = self.reversed_range(s, scope, any_order=True)  # that is, forwards
            again, parallel = tuple(block.statements), self.is_shared(s)
            self.emit(Loop(var.name, var, start, stop, again, tuple(carried), step, parallel=parallel, line=s.line))
        joined = [self.fresh(p.name, INT) for p in places]
        joins = tuple(Join(j, p, nowhere) for j, p in zip(joined, places))
        self.emit(Branch(condition, tuple(branch.statements), (), joins, line=s.line))
        return [(x, g, j) for (x, g), j in zip(wanted, joined)]

    def add(self, total: Var, amount: Expr | None) -> Expr:
        return total if amount is None else self.value(arithmetic("add", total, amount), total.name)

    def has_work(self, s: Loop, adjoints: Adjoints) -> bool:
        """Whether anything active happens in a loop."""
        if any(c.var.name in adjoints for c in s.carried):
            return True
        return any((w := written(t)) is not None and w.name in self.activity.active for t in every(s.body))

    def reversed_range(self, s: Loop, scope: Scope, any_order: bool) -> tuple[Expr, Expr, int]:
        """The range in which a loop is walked back through; independent iterations keep their order."""
        if s.condition is not None:
            start, stop = ZERO, self.atom(s.var, scope)
        else:
            start, stop = self.atom(s.start, scope), self.atom(s.stop, scope)
        if any_order:
            return start, stop, s.step if s.condition is None else 1
        below = self.value(Op("sub", (start, ONE), INT))
        return self.value(Op("sub", (stop, ONE), INT)), below, -1

    def outer_scalars(self, s: Loop) -> list[Var]:
        """The active scalars from outside that a loop's body uses."""
        inside = {v.name for t in every((s,)) for v in definitions(t)}
        found: dict[str, Var] = {}
        nexts = [c.next for c in s.carried]
        for e in [e for t in every(s.body) for e in reads(t)] + nexts:
            for n in ir.walk(e):
                if isinstance(n, Var) and n.name not in inside and self.is_active(n):
                    if not isinstance(n.type, types.Array):
                        found[n.name] = n
        return list(found.values())

    def shadows_touched(self, s: Loop) -> set[str]:
        """The shadows that the reversed loop may change."""
        arrays = {
            t.value.array.name for t in every(s.body) if isinstance(t, ir.Assign) and isinstance(t.value, ir.Load)
        }
        arrays |= {w.name for t in every(s.body) if (w := written(t)) is not None}
        for t in every(s.body):
            if isinstance(t, Custom):
                arrays |= {e.array.name for e in t.inputs if isinstance(e, ir.Load)}
        arrays |= {a.name for t in every(s.body) if isinstance(t, ir.Fill) for a in t.arguments}
        return {self.shadow[name].name for name in arrays if name in self.shadow}

    def restore(self, s: Loop, scope: Scope) -> None:
        """Give the carried scalars the values they had at the beginning of the iteration."""
        (trip,) = self.trips((s,), scope)
        for c in s.carried:
            if c.var == s.var:
                continue
            if c.var == s.condition:
                scope.values[c.var.name] = Const(True, types.boolean)
                continue
            assert scope.parent is not None
            stored = self.stored_before(s, c, scope)
            if stored is None:
                tape = scope.parent.saved_scalars[c.var.name]
                stored = self.load(tape, (trip,), c.var.name)
            scope.values[c.var.name] = stored

    def stored_before(self, s: Loop, c: Carried, scope: Scope) -> Expr | None:
        """A carried scalar as the iteration before has stored it; as it was before the loop in the first iteration."""
        place = self.stored_scalars.get(c.var.name)
        assert scope.parent is not None
        if place is None:
            return None
        array: Expr | None = self.after.get(place.array.name)
        if array is None and not self.is_argument(place.array):  # whose working copy takes longer than what is saved
            array = scope.parent.find(place.array.name)
        if not isinstance(array, Var):
            return None
        (trip,) = self.trips((s,), scope)
        value = self.fresh(c.var.name, c.var.type)
        loaded: list[Expr] = []
        with self.nested() as block:
            index = tuple(
                self.atom(i, scope)
                if shift is None
                else self.value(Op("add", (self.atom(s.var, scope), constant(shift - 1, INT)), INT))
                for i, shift in zip(place.index, place.shifts)
            )
            loaded.append(self.load(array, index, c.var.name))
        first = self.value(Op("gt", (trip, ZERO), types.boolean))
        begin = self.atom(c.init, scope.parent)
        self.emit(Branch(first, tuple(block.statements), (), (Join(value, loaded[0], begin),), line=s.line))
        return value

    def is_argument(self, array: Var) -> bool:
        return any(a.name == array.name for a in self.primal.arguments)


def _bar(value: Expr) -> str:
    return f"{stem(value.name)}_bar" if isinstance(value, Var) else "g"


def arrays_read(function: ir.Function) -> frozenset[str]:
    """The arrays whose elements a function reads."""
    found = set()
    for s in every(function.body):
        if isinstance(s, ir.Assign) and isinstance(s.value, ir.Load):
            found.add(s.value.array.name)
        elif isinstance(s, ir.Accumulate):
            found.add(s.array.name)
        elif isinstance(s, ir.Fill):
            found |= {a.name for a in s.arguments}
        elif isinstance(s, ir.Alloc) and isinstance(s.fill, Var) and isinstance(s.fill.type, types.Array):
            found.add(s.fill.name)
        elif isinstance(s, ir.Return):
            found |= {v.name for v in s.values if isinstance(v, Var) and isinstance(v.type, types.Array)}
    return frozenset(found)

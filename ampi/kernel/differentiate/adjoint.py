"""The adjoint of a kernel, by source transformation.

A *scope* is the function, or one iteration of a loop.  The adjoint of a scope recomputes the scope forward and then
walks back through its statements.  A loop in it is walked backwards iteration by iteration, each of which is a scope
again: it is recomputed and reversed at once, so its values stay in registers.  Values that an iteration cannot
recompute from the outer scopes (carried scalars, elements that are overwritten) are saved when the outer scope runs
forward.

The adjoint is first written in full; ``dead_code`` then removes what no derivative depends on.  For a loop of
independent iterations no forward sweep remains and nothing is saved.

Scalars and their adjoints are in single assignment form: an adjoint is the sum of its contributions, kept in registers.
The adjoint of array memory is a second array, its shadow, updated in place.
"""

from __future__ import annotations

from numba import types

from ampi.kernel import ir
from ampi.kernel.differentiate.draft import Draft
from ampi.kernel.differentiate.facts import Facts
from ampi.kernel.differentiate.recompute import Forward
from ampi.kernel.differentiate.reverse import Adjoints, Backward, Transpose, bar_name
from ampi.kernel.differentiate.scopes import Scope
from ampi.kernel.ir import Size, Var
from ampi.kernel.ir.builder import Builder
from ampi.kernel.ir.intrinsics import constant
from ampi.kernel.ir.ssa import INT, every, results_of, written


def build(facts: Facts, in_place: bool, raising: bool, threads: bool, after: bool, transpose: Transpose) -> Draft:
    """The plain adjoint of a kernel.

    The generated function is called as ``adjoint(*arguments, *shadows, *seeds)``.  On entry the arguments are as they
    were before the call of the kernel and the shadows hold the adjoints of the arrays' values after it; on exit the
    shadows hold the adjoints of the values before it, and the result is a tuple of the adjoints of the active scalar
    arguments.  The arguments themselves are not changed.

    Parameters
    ----------
    facts : Facts
        The kernel and the facts about it.
    in_place : bool
        Whether the forward statements replace the run of the kernel, and change its arguments.
    raising : bool
        Whether these statements may raise (see `Builder`).
    threads : bool
        Whether the program is to run on several threads.
    after : bool
        Whether the values of arrays after the call are available.
    transpose : callable
        Makes a rule from a user's tangent (`transpose.transpose`).
    """
    primal, to = facts.primal, Builder(facts.names, in_place and raising)
    to.level.update({a.name: 0 for a in primal.arguments})
    arrays = [a for a in primal.arguments if isinstance(a.type, types.Array)]
    shadowed = tuple(a for a in arrays if a.name in facts.activity.varied)
    shadow = {a.name: to.fresh(f"{a.name}_bar", a.type.copy(readonly=False)) for a in shadowed}
    changes = frozenset(w.name for s in every(primal.body) if (w := written(s)) is not None)
    changed = [a for a in arrays if a.name in changes]
    scope = Scope(values={a.name: Var(a.name, a.type) for a in primal.arguments})
    as_after: dict[str, Var] = {}
    for a in changed:
        if not in_place:
            scope.values[a.name] = _working_copy(a, primal, to)
        if after:
            as_after[a.name] = to.fresh(f"{a.name}_after", a.type)
    results = results_of(primal)
    result_active = tuple(isinstance(v, Var) and v.name in facts.activity.varied for v in results)
    seeds = [to.fresh(bar_name(v), v.type) if active else None for v, active in zip(results, result_active)]
    body = tuple(s for s in primal.body if not isinstance(s, ir.Return))
    forward = Forward(to, facts, as_after, threads, in_place)
    forward.run(body, scope, top=True)
    before = len(to.block.statements)
    computed = scope.atoms(results)
    if in_place:
        for a in changed:  # the name now stands for the values before the call, as everywhere in an adjoint
            to.forget(a.name)
            scope.values[a.name] = as_after[a.name]
    backward = Backward(to, facts, forward, shadow, transpose)
    adjoints: Adjoints = {}
    seeded = [(v, seed) for v, seed in zip(results, seeds) if seed is not None]
    backward.shadow.update({v.name: seed for v, seed in seeded if v.name in facts.seeded})
    backward.allocate_shadows(body, scope)
    for v, seed in seeded:
        if v.name not in facts.seeded:
            backward.add_seed(v, seed, adjoints)
    backward.run(body, scope, adjoints)
    scalars = tuple(a for a in primal.arguments if a.name in facts.active and a not in arrays)
    values = tuple(to.value(adjoints.get(a.name, constant(0, a.type))) for a in scalars)
    shadows = (ir.Argument(shadow[a.name].name, shadow[a.name].type, role=("shadow", a.name)) for a in shadowed)
    seed_arguments = (ir.Argument(s.name, s.type, role=("seed", k)) for k, s in enumerate(seeds) if s is not None)
    return Draft(
        primal=primal,
        names=facts.names,
        leaves=(*primal.arguments, *shadows, *seed_arguments),
        before=tuple(to.block.statements[:before]),
        back=tuple(to.block.statements[before:]),
        results=computed,
        values=values,
        shadowed=shadowed,
        scalars=scalars,
        result_active=result_active,
        shadow=shadow,
        after=as_after,
        saved=forward.saving.tapes,
        active=facts.active,
        ends=facts.ends,
        written=changes,
    )


def _working_copy(a: ir.Argument, primal: ir.Function, to: Builder) -> Var:
    """A copy of an array that the kernel changes, for the statements that compute forward."""
    copied = to.fresh(f"{a.name}_now", a.type.copy(layout="C", readonly=False))
    argument = Var(a.name, a.type)
    shape = tuple(Size(argument, k, INT) for k in range(a.type.ndim))
    to.emit(ir.Alloc(copied, shape, argument, line=primal.first_line))
    return copied

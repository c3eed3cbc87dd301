"""Facts about a kernel when it is differentiated: the results of the analyses.

`begin` makes assumptions that are safe without any analysis.  Each analysis improves on them.  Without it, the adjoint
computes, saves or copies more, with the same results.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import activity, tbr
from ampi.kernel.analysis.activity import Activity
from ampi.kernel.analysis.outcomes import find_outcomes
from ampi.kernel.analysis.recover_carried import Place, find_stored
from ampi.kernel.analysis.reload_computed import Kept, find_kept
from ampi.kernel.analysis.singularities import Singularities, find_singularities
from ampi.kernel.analysis.snapshots import Snapshot, find_snapshots
from ampi.kernel.analysis.tbr import Accesses, Source
from ampi.kernel.differentiate.iteration_numbering import Nest, add_counters, irregular_nests
from ampi.kernel.ir import Const, Expr, Stmt, Var
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.ssa import Custom, definitions, every, results_of


@dataclass(frozen=True)
class Facts:
    """A kernel in single assignment form, and the facts about it.

    Attributes
    ----------
    primal : ir.Function
        The kernel.
    active : frozenset of str
        The arguments with respect to which it is differentiated.
    names : Names
        The source of new names for the kernel and its derivatives.
    accesses : Accesses
        Its accesses to arrays.
    activity : Activity
        The values that depend on active arguments, and those on which results depend.
    singularities : Singularities
        The values at which derivatives may be infinite.
    sources : dict
        For each load, where its value is found when the adjoint needs it (TBR).
    snapshots : list of Snapshot
        Loads whose values are saved together.
    outcomes : frozenset of str
        Comparisons whose outcomes are saved.
    before : dict
        For a nest of loops whose lengths vary, the number of innermost iterations before each run of the innermost
        loop.
    kept : dict
        Values that are read from an array in which they were stored, with their place there.
    stored : dict
        The same for carried scalars, stored by the previous iteration.
    independence : bool
        Whether to look for independent iterations in loops without ``prange``.
    ends : frozenset of str
        Arrays whose shadows need not become zero: new ones, and arguments that are passive before the call.
    seeded : frozenset of str
        New arrays that are returned and whose shadows are only read: the caller's seed serves as the shadow.
    """

    primal: ir.Function
    active: frozenset[str]
    names: Names
    accesses: Accesses
    activity: Activity
    singularities: Singularities
    sources: dict[str, Source]
    snapshots: list[Snapshot] = field(default_factory=list)
    outcomes: frozenset[str] = frozenset()
    before: dict[Nest, Expr] = field(default_factory=dict)
    kept: dict[str, Kept] = field(default_factory=dict)
    stored: dict[str, Place] = field(default_factory=dict)
    independence: bool = False
    ends: frozenset[str] = frozenset()
    seeded: frozenset[str] = frozenset()


def begin(primal: ir.Function, active: Iterable[str]) -> Facts:
    """The facts about a kernel in single assignment form that need no analysis."""
    taken = {a.name for a in primal.arguments}
    taken |= {v.name for s in every(primal.body) for v in definitions(s)}
    accesses = tbr.collect(primal)
    tbr.require_steady(accesses)
    return Facts(
        primal,
        frozenset(active),
        Names(taken),
        accesses,
        activity.analyse(primal, active, switched_on=False),
        find_singularities(primal.body),
        tbr.find_sources(primal, accesses, switched_on=False),
    )


def find_activity(facts: Facts) -> Facts:
    """Find the values that depend on the active arguments, and those on which the results depend."""
    return replace(facts, activity=activity.analyse(facts.primal, facts.active))


def find_sources(facts: Facts) -> Facts:
    """Find the loads that need not be saved: their elements keep the values, or can be recomputed."""
    return replace(facts, sources=tbr.find_sources(facts.primal, facts.accesses))


def share_snapshots(facts: Facts) -> Facts:
    """Save a part of an array once for several loads."""
    snapshots = find_snapshots(facts.accesses, facts.sources)
    sources = facts.sources | {name: Source.SNAPSHOT for snapshot in snapshots for name in snapshot.loads}
    return replace(facts, snapshots=snapshots, sources=sources)


def save_outcomes(facts: Facts) -> Facts:
    """Save the outcome of a comparison where the adjoint does not need the numbers themselves."""
    body, outcomes = find_outcomes(facts.primal.body, facts.accesses, facts.sources, facts.names)
    if not outcomes:
        return facts
    primal = replace(facts.primal, body=body)
    return replace(facts, primal=primal, outcomes=outcomes, accesses=tbr.collect(primal))


def number_iterations(facts: Facts) -> Facts:
    """Number the iterations in nests of loops whose lengths vary, where values are saved in these."""
    nests = irregular_nests(facts.accesses, facts.sources)
    if not nests:
        return facts
    primal, before = add_counters(facts.primal, nests, facts.names)
    return replace(facts, primal=primal, before=before, accesses=tbr.collect(primal))


def reload_computed(facts: Facts) -> Facts:
    """Find expensive values that can be read from an array that still holds them."""
    return replace(facts, kept=find_kept(facts.primal.body, facts.accesses))


def recover_carried(facts: Facts) -> Facts:
    """Find carried scalars that can be read from an array in which they were stored."""
    return replace(facts, stored=find_stored(facts.primal.body, facts.accesses))


def find_independence(facts: Facts) -> Facts:
    """Look for loops without ``prange`` whose iterations are independent."""
    return replace(facts, independence=True)


def find_ends(facts: Facts, plain: bool) -> Facts:
    """Find the arrays whose shadows need not become zero, since the kernel writes each element at most once.

    Arguments are among them only if the caller allows it (``plain``) and they are passive before the call and not read.
    """
    found = _arguments_written_once(facts) if plain else set()
    results = [v for v in results_of(facts.primal) if isinstance(v, Var) and isinstance(v.type, types.Array)]
    seeded = set()
    read, filled, otherwise = _used_as_a_whole(facts.primal.body)
    for s in every(facts.primal.body):
        if not isinstance(s, ir.Alloc) or s.target.name in otherwise or not isinstance(s.fill, Const | None):
            continue
        accesses = facts.accesses.of[s.target.name]
        stores = [access for access in accesses if isinstance(access.statement, ir.Store)]
        writes = facts.accesses.writes(s.target.name)
        depth = len(facts.accesses.home[s.target.name])
        if any(tbr.may_reach(write, store, depth, facts.accesses) for write in writes for store in stores):
            continue
        if s.target.name not in filled:
            found.add(s.target.name)
        if results.count(s.target) == 1 and len(stores) == len(accesses) and s.target.name not in read:
            seeded.add(s.target.name)
    return replace(facts, ends=frozenset(found), seeded=frozenset(seeded))


def _arguments_written_once(facts: Facts) -> set[str]:
    excluded = {v.name for v in results_of(facts.primal) if isinstance(v, Var)}.union(
        *_used_as_a_whole(facts.primal.body)
    )
    found = set()
    for a in facts.primal.arguments:
        name = a.name
        if name in facts.active or name not in facts.activity.varied or name in excluded:
            continue
        accesses = facts.accesses.of[name]
        stores = all(isinstance(access.statement, ir.Store) for access in accesses)
        if stores and not any(tbr.may_reach(x, y, 0, facts.accesses) for x in accesses for y in accesses):
            found.add(name)
    return found


def _used_as_a_whole(body: tuple[Stmt, ...]) -> tuple[set[str], set[str], set[str]]:
    """The arrays that are read as a whole, those that operations on whole arrays fill, and others that are written as a
    whole."""
    read: set[str] = set()
    filled: set[str] = set()
    otherwise: set[str] = set()
    for s in every(body):
        if isinstance(s, ir.Fill):
            filled.add(s.target.name)
            read |= {a.name for a in s.arguments}
        elif isinstance(s, Custom):
            otherwise |= {e.array.name for e in (*s.inputs, *s.results) if isinstance(e, ir.Load)}
        elif isinstance(s, ir.Grow):
            otherwise.add(s.target.name)
        elif isinstance(s, ir.Alloc) and isinstance(s.fill, Var):
            read.add(s.fill.name)
    return read, filled, otherwise

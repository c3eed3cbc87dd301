"""The compiler's pipeline: a table of passes, to be read from top to bottom.

A Python function is parsed into the intermediate representation (``ir``), reduced to loops over elements, converted to
single assignment form (``ssa``), analysed, differentiated, and optimised; ``emit`` writes the result as Python source,
for Numba.  Each row of `PASSES` is one step.  A pass maps a program to another one; those of the stage ``analyse`` map
facts about a kernel (`Facts`) to better ones.

The adjoint is plain and correct when it leaves the stage ``differentiate``.  Most other passes can be switched off, one
at a time, and no result changes: ``kernel(without="gather,strips")``, ``AMPI_WITHOUT``.

To watch passes:

* ``AMPI_VERIFY=1`` checks the program after each pass (see ``verifier``); tests set it;
* ``AMPI_PRINT_AFTER=gather,slice`` prints the program after these passes;
* ``kernel.explain(..., passes=True)`` reports the time of each pass and the length of the program after it.
"""

from __future__ import annotations

import functools
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.analysis import activity
from ampi.kernel.analysis.activity import Activity
from ampi.kernel.analysis.exactness import sums_in_any_order
from ampi.kernel.analysis.loop_independence import with_independent_loops
from ampi.kernel.codegen.destruct import destruct
from ampi.kernel.codegen.in_lanes import in_lanes
from ampi.kernel.differentiate import adjoint, facts, random_numbers, tangent, transpose
from ampi.kernel.differentiate.array_privatization import with_private_arrays
from ampi.kernel.differentiate.dead_code import live_part
from ampi.kernel.differentiate.derivative import Derivative, Split, arrays_read
from ampi.kernel.differentiate.draft import Draft
from ampi.kernel.differentiate.facts import Facts
from ampi.kernel.differentiate.load_hoisting import loads_before_branches
from ampi.kernel.differentiate.split_reversal import (
    are_new,
    defined_everywhere,
    divisions,
    has_constant_size,
    has_loop,
    is_plain,
    names_from_outside,
    raises_exactly,
    without_exceptions,
    writes_into,
)
from ampi.kernel.frontend.parse import parse
from ampi.kernel.ir import calls
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.custom_rules import Rule, Tangent
from ampi.kernel.ir.intrinsics import WITHOUT_DERIVATIVE
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.printer import printed
from ampi.kernel.ir.rebuild import names_of
from ampi.kernel.ir.remarks import Remark
from ampi.kernel.ir.rewrite import merged
from ampi.kernel.ir.ssa import definitions, every
from ampi.kernel.ir.verifier import verify
from ampi.kernel.normalise.array_phi import resolve
from ampi.kernel.normalise.carried_arrays import hoist, keep
from ampi.kernel.normalise.carried_parts import as_numbers
from ampi.kernel.normalise.copy_elision import without_copies
from ampi.kernel.normalise.expand import expand
from ampi.kernel.normalise.initial_values import with_initial_values
from ampi.kernel.normalise.lower import lower
from ampi.kernel.normalise.scalar_replacement import scalarise
from ampi.kernel.normalise.simplify import simplify
from ampi.kernel.normalise.unroll import unroll
from ampi.kernel.normalise.views import resolve_views
from ampi.kernel.observations import Observation, observed
from ampi.kernel.optimise import parallel
from ampi.kernel.optimise.allocations import allocate_once
from ampi.kernel.optimise.batched_products import with_batched_products
from ampi.kernel.optimise.destinations import with_destinations
from ampi.kernel.optimise.flat_indices import with_flat_indices
from ampi.kernel.optimise.gather import in_gather_form
from ampi.kernel.optimise.grown_outside import grown_outside
from ampi.kernel.optimise.if_conversion import flatten_loops
from ampi.kernel.optimise.loop_distribution import in_stages
from ampi.kernel.optimise.products_in_loops import with_products
from ampi.kernel.optimise.reciprocals import with_reciprocals
from ampi.kernel.optimise.recurrence_reassociation import with_short_chains
from ampi.kernel.optimise.scalar_promotion import sum_in_registers
from ampi.kernel.optimise.shadow_overwrite import with_local_shadows, with_new_shadows
from ampi.kernel.optimise.strip_mining import in_strips
from ampi.kernel.optimise.unsigned_indices import with_unsigned_indices
from ampi.kernel.options import ALL_ON, Options, names_among

STAGES = {
    "read": "Python source -> IR",
    "normalise": "IR -> IR with one array per name, and with loops over elements only",
    "simplify": "simpler IR, with less work",
    "construct": "IR -> single assignment form",
    "prepare": "the kernel in a form that is easier to differentiate",
    "analyse": "facts about the kernel",
    "differentiate": "the kernel -> its plain adjoint",
    "tangent": "the kernel -> its tangent",
    "order": "loops of a tangent",
    "prune": "the part of a derivative program on which its results depend",
    "optimise": "the loops of an adjoint",
    "vectorise": "innermost loops, of a whole program and of each part that runs on threads",
    "part": "functions that run on threads",
    "finish": "single assignment form -> readable statements",
    "compile": "options for the compiler",
}

PLAIN = {"read", "normalise", "simplify"}
"""The stages before single assignment form."""


@dataclass(frozen=True)
class Pass:
    """One step of the pipeline.

    Attributes
    ----------
    name : str
        Its name in ``without=`` and in printed output; a pass that runs twice has two rows.
    stage : str
        One of `STAGES`.
    run : callable or None
        ``run(program, state)`` is the program after it.  None if it only changes how another step works.
    default : str
        `ALWAYS` (it cannot be switched off), `ON`, or the option (see `Options`) that switches it on.
    doc : str
        A short description.
    """

    name: str
    stage: str
    run: Callable[[Any, State], Any] | None
    default: str
    doc: str


ALWAYS, ON = "always", "on"


@dataclass
class State:
    """The state of one run of the pipeline: options, and facts that passes need besides the program.

    Attributes
    ----------
    options : Options
        Options of the program, with the passes that are switched off.
    argument_types, single, same : tuple, frozenset, tuple
        The arguments' types, axes of size one that are broadcast, and equal arrays (see `primal`).
    active : frozenset of str
        The arguments with respect to which the kernel is differentiated.
    in_place : bool
        Whether the forward part of an adjoint replaces the kernel's own run.
    names : Names
        A generator of new names for derivative programs.
    shadows : dict
        The shadows of the arguments, by the arguments' names.
    shadow_names : set of str
        The names of all shadows, including those of local arrays.
    writable : set of str or None
        The arguments that the program may write; None: those whose types allow it.
    given : set of str
        Names that become arguments if they are used: arrays after the call, and values saved by the forward part.
    partial : bool
        Whether the program may return values that only some branches define.
    values : int
        The number of results of the kernel, which come first among the results of the program.
    in_order : bool
        Whether sums must keep their order, since they compute values of the kernel.
    remarks : list of Remark
        What passes report to the user.
    verified : tuple or None
        The last program that was verified, to skip it if no pass changes it.
    derivatives : calls.Derivatives or None
        For large functions that the kernel calls; None if all calls are inlined.
    """

    options: Options = ALL_ON
    argument_types: tuple[types.Type, ...] = ()
    single: frozenset[tuple[int, int]] = frozenset()
    same: tuple[tuple[int, int], ...] = ()
    active: frozenset[str] = frozenset()
    in_place: bool = False
    names: Names = field(default_factory=Names)
    shadows: dict[str, ir.Var] = field(default_factory=dict)
    shadow_names: set[str] = field(default_factory=set)
    writable: Collection[str] | None = None
    given: set[str] = field(default_factory=set)
    partial: bool = False
    values: int = 0
    in_order: bool = False
    remarks: list[Remark] = field(default_factory=list)
    verified: Any = None
    derivatives: Any = None

    def is_on(self, step: Pass) -> bool:
        """Return whether a pass is on."""
        if step.default == ALWAYS:
            return True
        return bool(step.default == ON or getattr(self.options, step.default)) and self.options.has(step.name)

    def run(self, stage: str, program: Any, only: Collection[str] | None = None) -> Any:
        """The program after a stage, or after some of its passes."""
        for step in PASSES:
            if step.stage == stage and step.run is not None and (only is None or step.name in only):
                if self.is_on(step):
                    program = self.observe(step, program)
        return program

    def observe(self, step: Pass, program: Any) -> Any:
        """The program after a pass, which is verified, printed and timed on request."""
        assert step.run is not None
        watching = observed.get()
        begin = time.perf_counter()
        program = step.run(program, self)
        if watching is not None:
            watching.append(
                Observation(step.name, step.stage, time.perf_counter() - begin, _length(_function(program)))
            )
        if step.name in _to_print(os.environ.get("AMPI_PRINT_AFTER", "")):
            print(f"--- after {step.name} ({step.stage})\n{printed(_function(program))}\n", file=sys.stderr)
        in_lanes = self.options.lanes and step.stage == "finish" and step.name not in ("new", "destinations")
        if os.environ.get("AMPI_VERIFY", "0") not in ("", "0") and not in_lanes:
            plain = step.stage in PLAIN or step.name in ("destruct", "room")
            self.verify(_function(program), plain, f"after {step.name}")
        return program

    def verify(self, function: ir.Function, plain: bool, when: str) -> None:
        """Raise an error if a program is malformed; an unchanged program is not checked again."""
        writable = None if self.writable is None else frozenset(self.writable)
        names = tuple(name for name, _ in function.constants)
        whole = function.body, function.arguments, names, plain, writable, frozenset(self.given), self.partial
        if whole != self.verified:
            verify(function, plain, when, self.writable, self.given, self.partial)
            self.verified = whole

    def remarking(self, changed: tuple[ir.Function, list[Remark]]) -> ir.Function:
        """Add the remarks of a pass to those of this run, and return its program."""
        self.remarks += changed[1]
        return changed[0]

    def activity_in(self, function: ir.Function) -> Activity:
        """The activity of a function's variables: which of them depend on the active arguments."""
        return activity.analyse(function, self.active, self.options.has("activity"))

    def part(self, function: ir.Function) -> ir.Function:
        """The function made from the body of a loop on threads, in its final form."""
        saved, self.writable = self.writable, None
        found = self.run("part", self.run("vectorise", function))
        self.writable = saved
        return found

    def transposed(self, rule: Tangent) -> Rule:
        """The adjoint that is the transpose of a custom tangent."""
        return transpose.transpose(rule, lambda function, active: build_adjoint(function, active, SERIAL))


@functools.cache
def _to_print(given: str) -> frozenset[str]:
    return names_among(given, [step.name for step in PASSES], "AMPI_PRINT_AFTER", "pass")


def listing() -> str:
    """All passes in their order, as text; those with a star can be switched off."""
    lines: list[str] = []
    for name, doc in STAGES.items():
        lines += ["", f"{name}: {doc}"]
        lines += [
            f"  {'*' if step.name in ANALYSES else ' '} {step.name:14}{step.doc}"
            for step in PASSES
            if step.stage == name
        ]
    return "\n".join(lines[1:])


def _function(program: Any) -> ir.Function:
    """The IR function of a program, a draft or facts."""
    match program:
        case Facts(primal=primal):
            return primal
        case Draft():
            after = (ir.Argument(var.name, var.type, role=("after", name)) for name, var in program.after.items())
            whole = program.whole()
            return replace(whole, arguments=(*whole.arguments, *after))
        case tangent.Draft(function=function):
            return function
    return program


def _length(function: ir.Function) -> int:
    return sum(isinstance(n, ir.Stmt) for n in ir.walk(function.body))


def _each(change: Callable[[Any], Any]) -> Callable[[Any, State], Any]:
    """A pass that needs only the program."""
    return lambda program, state: change(program)


def _blocks(change: Callable[[Any, Names], Any]) -> Callable[[Any, State], Any]:
    """A pass on the statements of a function."""
    return lambda program, state: replace(program, body=change(program.body, state.names))


PASSES = (
    Pass("parse", "read", lambda f, s: parse(f, s.argument_types, s.single, s.derivatives), ALWAYS,
         "Python source becomes typed IR; calls of other kernels are inlined"),
    Pass("calls", "read", None, ON, "large functions that are called are differentiated separately"),
    Pass("lower", "read", _each(lower), ALWAYS, "break, continue and early returns become conditions"),
    Pass("merge", "normalise", lambda f, s: merged(f, s.same), ALWAYS, "arguments that are one array have one name"),
    Pass("carry", "normalise", _each(as_numbers), ALWAYS, "names for parts of an array from one iteration to the next"),
    Pass("keep", "normalise", _each(keep), ALWAYS, "arrays that live from one iteration to the next"),
    Pass("views", "normalise", _each(resolve_views), ALWAYS, "indices of views become those of the arrays"),
    Pass("references", "normalise", _each(resolve), ALWAYS, "names that stand for one of several arrays"),
    Pass("views", "normalise", _each(resolve_views), ALWAYS, "the views that resolved references reveal"),
    Pass("hoist", "normalise", _each(hoist), ALWAYS, "arrays used after the block that allocates them"),
    Pass("copies", "normalise", _each(without_copies), ALWAYS, "unnecessary copies of arrays"),
    Pass("expand", "normalise", _each(expand), ALWAYS, "operations on whole arrays become loops over elements"),
    Pass("simplify", "simplify", _each(simplify), ON, "fold constants, remove unused code"),
    Pass("unroll", "simplify", _each(unroll), ON, "short loops of constant length are written out"),
    Pass("simplify", "simplify", _each(simplify), ON, "fold constant indices"),
    Pass("scalarise", "simplify", _each(scalarise), ON, "small local arrays with constant indices become scalars"),
    Pass("ssa", "construct", lambda f, s: construct(f, s.options.raising), ALWAYS, "static single assignment form"),
    Pass("private", "prepare", _each(with_private_arrays), ON, "scratch arrays move into iterations that fill them"),
    Pass("loads", "prepare", _each(loads_before_branches), ON, "loads on both sides of a branch are made before it"),
    Pass("begin", "analyse", lambda f, s: facts.begin(f, s.active), ALWAYS, "safe assumptions without any analysis"),
    Pass("activity", "analyse", _each(facts.find_activity), ON, "values between active arguments and results"),
    Pass("sources", "analyse", _each(facts.find_sources), ON, "loads that need not be saved (TBR)"),
    Pass("snapshots", "analyse", _each(facts.share_snapshots), ON, "arrays are saved once for several loads"),
    Pass("outcomes", "analyse", _each(facts.save_outcomes), ON, "which of two numbers that are overwritten is smaller"),
    Pass("counters", "analyse", _each(facts.number_iterations), ALWAYS, "iterations of irregular nests are numbered"),
    Pass("kept", "analyse", _each(facts.reload_computed), ON, "expensive values are read from arrays that hold them"),
    Pass("stored", "analyse", _each(facts.recover_carried), ON, "carried scalars are read from where they were stored"),
    Pass("independence", "analyse", _each(facts.find_independence), ON, "loops whose iterations are independent"),
    Pass("ends", "analyse", lambda f, s: facts.find_ends(f, s.options.plain), ON,
         "shadows of elements written once need not become zero"),
    Pass("adjoint", "differentiate",
         lambda f, s: adjoint.build(
             f, s.in_place, s.options.raising, s.options.threads, s.options.after, s.transposed
         ), ALWAYS, "the plain adjoint: recompute and reverse, scope by scope"),
    Pass("split", "differentiate", None, "after", "the kernel's own run saves what the adjoint needs"),
    Pass("tangent", "tangent", lambda f, s: tangent.build(f, s.active, s.activity_in(f)), ALWAYS,
         "a derivative beside every active value"),
    Pass("independence", "order", _each(with_independent_loops), ON, "loops whose iterations are independent"),
    Pass("slice", "prune", _each(live_part), ON, "dead code is removed"),
    Pass("products", "optimise", lambda f, s: with_products(f, s.names, s.shadow_names), ON,
         "several rank-one updates of a matrix become one product"),
    Pass("batched", "optimise",
         lambda f, s: f if s.options.lanes or s.options.threads else with_batched_products(f, s.names, s.shadow_names),
         ON, "products with vectors in a loop become products of matrices"),
    Pass("sums", "optimise", _blocks(sum_in_registers), ON, "elements that a loop adds to are summed up in registers"),
    Pass("gather", "optimise",
         lambda f, s: s.remarking(in_gather_form(f, s.names, s.options.has("behind"), s.options.threads)), ON,
         "adjoints of stencils gather where they would scatter"),
    Pass("behind", "optimise", None, ON, "other statements of an adjoint in gather form follow row by row"),
    Pass("reciprocals", "optimise", lambda f, s: with_reciprocals(f, s.names, s.shadow_names), ON,
         "several divisions by one number become one"),
    Pass("strips", "optimise", lambda f, s: sums_in_any_order(f, s.shadow_names), "separate",
         "loops with sums that need not be exact are independent"),
    Pass("chains", "optimise", lambda f, s: with_short_chains(f, s.names, s.shadow_names), ON,
         "shorter chains of operations between iterations"),
    Pass("parallel", "optimise",
         lambda f, s: s.remarking(
             parallel.decide(f, s.names, s.options.threads, s.options.deterministic, s.part)
         ), ALWAYS, "loops on threads, and their form; the others are serial"),
    Pass("local", "vectorise", _each(with_local_shadows), ON, "new local shadows are assigned instead of added to"),
    Pass("allocations", "vectorise", lambda f, s: allocate_once(f, s.names), ON, "allocations move out of loops"),
    Pass("branches", "vectorise", _blocks(flatten_loops), ON, "branches become selections (if-conversion)"),
    Pass("strips", "vectorise",
         lambda f, s: s.remarking(in_strips(f, s.names, s.options.reassociate, s.in_order)), "separate",
         "loops with indirect or carried parts are cut into strips (strip mining)"),
    Pass("stages", "vectorise", lambda f, s: s.remarking(in_stages(f, s.names, s.options.reassociate)), "separate",
         "long loops are cut in two (loop distribution)"),
    Pass("flat", "part", _each(with_flat_indices), "unchecked", "indices of contiguous arrays need no divisions"),
    Pass("unsigned", "part", _each(with_unsigned_indices), ALWAYS, "indices that are not negative are unsigned"),
    Pass("destruct", "part", _each(destruct), ALWAYS, "from single assignment form to plain statements"),
    Pass("new", "finish", lambda f, s: with_new_shadows(f, s.names, s.shadows)[0], "plain",
         "a new shadow is assigned instead of added to"),
    Pass("destinations", "finish", _each(with_destinations), ON,
         "operations on matrices write directly into the arrays to which their results go"),
    Pass("flat", "finish", _each(with_flat_indices), "unchecked", "indices of contiguous arrays need no divisions"),
    Pass("lanes", "finish", lambda f, s: in_lanes(f, s.options.lanes, s.values) if s.options.lanes else f, ALWAYS,
         "derivatives in several directions become vectors"),
    Pass("destruct", "finish", _each(destruct), ALWAYS, "from single assignment form to plain statements"),
    Pass("room", "finish", _each(grown_outside), ON, "arrays grow outside the loops that fill them"),
    Pass("separate", "compile", None, ON, "arrays that do not overlap are compiled as such"),
)  # fmt: skip

ANALYSES = tuple(dict.fromkeys(step.name for step in PASSES if step.default != ALWAYS))
"""The names of the passes that can be switched off."""

LAST = frozenset({"flat", "destinations"})
"""Passes after which a program cannot be differentiated again."""

SERIAL = Options(without=frozenset({"products", "batched", "strips", "stages", "gather", "branches"}) | LAST)
"""Options for adjoints that become part of others, which are optimised as a whole."""


# --------------------------------------------------------------------------------------------- programs


def parsed(
    function: Any, argument_types: Iterable[types.Type], single: frozenset[tuple[int, int]] = frozenset()
) -> ir.Function:
    """A Python function as IR."""
    return State(argument_types=tuple(argument_types), single=single).run("read", function)


def as_loops(function: ir.Function, same: tuple[tuple[int, int], ...] = ()) -> ir.Function:
    """A function with one array per name, and with loops over elements only."""
    return State(same=same).run("normalise", function)


def primal(
    function: Any,
    argument_types: Iterable[types.Type],
    same: tuple[tuple[int, int], ...] = (),
    single: frozenset[tuple[int, int]] = frozenset(),
    without: frozenset[str] = frozenset(),
) -> ir.Function:
    """A kernel for arguments of these types, ready to be differentiated.

    Parameters
    ----------
    function : callable
        The Python function.
    argument_types : iterable of numba types
        One per parameter.
    same : tuple of (int, int)
        Array leaves that are the same memory (later, first).
    single : frozenset of (int, int)
        Axes (leaf, axis) of size one that are broadcast.
    without : frozenset of str
        Passes that are switched off.
    """
    state = State(Options(without=without), tuple(argument_types), single, same)
    return state.run("simplify", state.run("normalise", state.run("read", function)))


class Adjoint:
    """The adjoint of a kernel, in two forms that are built on demand and share the analyses.

    Parameters are those of `build_adjoint`.
    """

    def __init__(self, function: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> None:
        self._function, self._active, self._options = function, frozenset(active), options

    @functools.cached_property
    def _known(self) -> Facts:
        state = self._state()
        return state.run("analyse", state.run("prepare", state.run("construct", self._function)))

    @functools.cached_property
    def _whole(self) -> tuple[ir.Function, Draft, State]:
        """The plain adjoint as one program, without dead code."""
        state = self._state()
        draft = _draft(self._known, state)
        return state.run("prune", draft.whole()), draft, state

    def _state(self, in_place: bool = False) -> State:
        return State(self._options, active=self._active, in_place=in_place)

    @functools.cached_property
    def saves(self) -> bool:
        """True if the adjoint runs forward first, and saves values or fills arrays."""
        generated, draft, _ = self._whole
        filled = {s.target.name for s in draft.before if isinstance(s, ir.Fill)}
        made = {s.target.name for s in draft.before if isinstance(s, ir.Alloc) and not has_constant_size(s)}
        return any(
            draft.is_saving(s) or s.target.name in made
            if isinstance(s, ir.Alloc)
            else isinstance(s, ir.Fill) and s.target.name in filled
            for s in generated.body
        )

    def whole(self) -> Derivative:
        """The adjoint as one program (see `build_adjoint`)."""
        saves, (generated, draft, state) = self.saves, self._whole
        del self._whole  # passes change its state
        return _finished(generated, draft, state, (), saves)

    def split(self) -> Split | None:
        """The adjoint in two parts (see `build_split`)."""
        state, function = self._state(in_place=True), self._function
        is_on = all(state.is_on(step) for step in PASSES if step.name == "split")
        if not is_on or self._options.threads or not is_plain(function.result):
            return None
        draft = _draft(self._known, state)
        if not raises_exactly(draft.primal.body, written=bool(draft.written)):
            return None
        state.given |= {v.name for s in every(draft.before) for v in definitions(s)}
        backward = state.run("prune", draft.reverse())
        known = {a.name for a in draft.leaves} | {var.name for var in draft.after.values()}
        kept = names_from_outside(backward.body, known)
        if not are_new(draft.results, draft.before, kept):
            return None
        saving = draft.forward(tuple(kept.values()))
        saving = live_part(replace(saving, arguments=(), body=without_exceptions(saving.body)))
        if writes_into(backward.body, kept) or not has_loop(saving.body):
            return None
        writable, state.writable, state.given, state.partial = state.writable, draft.written, set(), True
        forward = state.run("prune", draft.forward((*draft.results, *kept.values())))
        raising = self._options.raising
        if raising and (any(calls.called(forward)) or divisions(forward.body) < divisions(draft.primal.body)):
            return None
        state.remarks += draft.kept(forward, draft.after)
        forward = state.run("vectorise", forward, only=("allocations",) if raising else ("allocations", "branches"))
        forward = defined_everywhere(state.run("finish", forward, only=("flat", "destruct", "room")))
        state.writable, state.partial = writable, False
        given = tuple(ir.Argument(var.name, var.type, role=("kept", name)) for name, var in kept.items())
        return Split(forward, _finished(backward, draft, state, given, saves=False))


def build_adjoint(function: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> Derivative:
    """The adjoint of a kernel with respect to the arguments named in ``active`` (see `adjoint.build`)."""
    return Adjoint(function, active, options).whole()


def build_split(function: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> Split | None:
    """The adjoint of a kernel in two parts, the first of which replaces the kernel's own run.

    None if that is impossible, or if the adjoint has nothing to compute forward.  For parameters see `build_adjoint`;
    the caller must be able to pass the values of arrays after the call.  Where the kernel raises an exception, so does
    the first part, which therefore keeps all divisions if those by zero raise one.
    """
    return Adjoint(function, active, options).split()


def build_tangent(function: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> Derivative:
    """The tangent of a kernel with respect to the arguments named in ``active`` (see `tangent.build`)."""
    state = State(options, active=frozenset(active))
    draft = state.run("tangent", state.run("construct", function))
    generated = state.run("prune", draft.function)
    needs = arrays_read(generated)
    if not options.threads:
        state.names, state.in_order = names_of(generated), True
        generated = state.run("optimise", state.run("order", generated), only=("parallel",))
        generated = state.run("vectorise", generated)
    state.values = len(draft.result_active)
    return draft.derivative(state.run("finish", generated, only=("flat", "lanes", "destruct", "room")), needs)


def build_second(adjoint: ir.Function, active: Iterable[str], options: Options = ALL_ON) -> Derivative:
    """The tangent of an adjoint program; what one branch defines and a later one reads gets a value before both."""
    program = State(options).run("normalise", with_initial_values(adjoint), only=("hoist", "expand"))
    return build_tangent(program, active, options)


def build_drawing(function: ir.Function) -> ir.Function:
    """The part of a kernel on which its random numbers depend.

    It draws them into their arrays, as far as there is room, writes nothing else, and returns their number.
    """
    state = State()
    program = state.run("construct", random_numbers.counting(function))
    return state.run("finish", state.run("prune", random_numbers.with_copies(program)), only=("destruct", "room"))


def refuse_active_parameters(function: ir.Function, active: Iterable[str]) -> None:
    """Raise an error if a parameter of a random number, or of a function without derivatives, is active."""
    if function.drawn or any(isinstance(e, ir.Op) and e.name in WITHOUT_DERIVATIVE for e in ir.walk(function.body)):
        random_numbers.refuse_active_parameters(State().run("construct", function), frozenset(active))


def _draft(known: Facts, state: State) -> Draft:
    """The plain adjoint of a kernel."""
    draft = state.run("differentiate", replace(known, names=known.names.copy()))
    state.names = draft.names
    state.shadows = {a.name: draft.shadow[a.name] for a in draft.shadowed}
    state.shadow_names = {shadow.name for shadow in draft.shadow.values()}
    state.writable = {shadow.name for shadow in state.shadows.values()}
    state.given = {var.name for var in draft.after.values()}
    return draft


def _after(generated: ir.Function, draft: Draft) -> dict[str, ir.Var]:
    """The arrays whose values after the call a program reads."""
    mentioned = arrays_read(generated) | set(names_from_outside(generated.body, set()))
    return {name: var for name, var in draft.after.items() if var.name in mentioned}


def _finished(
    generated: ir.Function, draft: Draft, state: State, kept: tuple[ir.Argument, ...], saves: bool
) -> Derivative:
    """The backward program in its final form, with the facts about it."""
    needs, after = arrays_read(generated), _after(generated, draft)
    read = (ir.Argument(var.name, var.type, role=("after", name)) for name, var in after.items())
    generated = replace(generated, arguments=(*generated.arguments, *read, *kept))
    state.given = set()
    state.remarks += draft.kept(generated, after)
    generated = state.run("finish", state.run("vectorise", state.run("optimise", generated)))
    return draft.derivative(generated, needs, after, state.remarks, saves)

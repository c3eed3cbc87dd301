"""Faster replacements of parts of Numba's compiler, with the same results.

They matter for derivative programs, which are long and have many variables:

* Single assignment form.  Numba traverses the whole function twice for each variable that is assigned more than once, a
  third of the compilation time.  Here each variable has a list of the statements that mention it; the algorithm is
  Numba's (Rastello and Bouchez Tichadou, *SSA-based Compiler Design*, 4 and 5).
* Liveness.  Numba uses sets of names, computed again after each of its passes.  Here a set is an integer with a bit for
  each variable, and names are listed on demand.
* Scopes and labels.  Numba enters each variable in the scope of each block, although blocks share one scope; it
  searches all variables for the position of the next one, and all jumps for each position of the bytecode.
* Types.  Numba resolves the signature of each operation anew; here signatures are memoised.
* Passes.  Numba optimises each function by itself before it links them, and then optimises all of it twice; long
  derivative programs go without the first.  (Short ones need it: it finds that indices are not negative.)
* Functions.  Numba makes a new manager of LLVM's passes for each function and declaration; here one serves a module.
  It also makes machine code of functions that are only linked into others, and here only on demand; see `late_code`.
* Events.  Numba reports the beginning and end of each call of LLVM; here only if somebody listens.
* Statements.  See `quick_statements`.
* Complex numbers.  Numba calls a function for each product, which LLVM takes apart again; here it is computed in place.
* Numbers.  Numba asks Python for the parameters of the function that lowers an operation, and LLVM for the size of a
  variable, each time; here once.
* Elements.  For each access Numba copies the structure that describes an array, which LLVM then takes apart in more
  than linear time; here the address is computed directly.
"""

from __future__ import annotations

import contextlib
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Set
from functools import reduce
from operator import or_
from typing import Any

from llvmlite.ir import IRBuilder
from numba.core import analysis, base, bytecode, cgutils, event, ir, ir_utils, ssa, types, untyped_passes
from numba.core.analysis import compute_cfg_from_blocks
from numba.core.codegen import CPUCodegen, CPUCodeLibrary
from numba.core.lowering import Lower
from numba.core.typed_passes import PreLowerStripPhis
from numba.np import arrayobj
from numba.parfors import parfor

from ampi.kernel.runtime import numba_parts, quick_statements
from ampi.kernel.runtime.late_code import late_code

_PARTS: dict[Any, str] = {
    ssa: "_run_ssa _FixSSAVars _FreshVarHandler _CacheListVars _find_defs_violators _iterated_domfronts _get_scope "
    "_compute_phi_locations",
    untyped_passes: "fixup_var_define_in_scope",
    analysis: "compute_live_map compute_dead_maps compute_live_variables _dead_maps_result",
    bytecode: "_ByteCode",
    IRBuilder: "position_before",
    ir_utils: "compute_live_map",
    parfor: "compute_live_map",
    types.Function: "get_call_type",
    Lower: "lower_getitem lower_setitem",
    CPUCodegen: "_function_pass_manager",
    CPUCodeLibrary: "_optimize_functions",
    event: "start_event end_event _registered TimingListener",
    ir.Stmt: "list_vars _rec_list_vars",
    ir.Expr: "list_vars",
    PreLowerStripPhis: "_strip_phi_nodes",
    base: "_has_loc",
    base.BaseContext: "get_abi_sizeof compile_internal",
    arrayobj: "load_item store_item fix_integer_index",
    cgutils: "get_item_pointer2 unpack_tuple",
}
"""The parts of Numba that are replaced."""


@contextlib.contextmanager
def quick_compilation(long: bool = False) -> Iterator[None]:
    """A context in which Numba uses the functions below, unless this version of Numba lacks a replaced part.

    Enter it only while holding Numba's compiler lock.  A ``long`` program is optimised with fewer passes.
    """
    if not numba_parts.exist(_PARTS):
        yield
        return
    parts: tuple[tuple[Any, str, Any], ...] = (
        (ssa, "_run_ssa", reconstructed),
        (untyped_passes, "fixup_var_define_in_scope", _enter_in_scopes),
        (analysis, "compute_live_map", compute_live_map),
        (analysis, "compute_dead_maps", _dead_maps(analysis.compute_dead_maps)),
        (analysis, "compute_live_variables", live_variables),
        (bytecode._ByteCode, "__init__", _with_labels(bytecode._ByteCode.__init__)),
        (IRBuilder, "position_before", _before(IRBuilder.position_before)),
        (ir_utils, "compute_live_map", _as_sets(compute_live_map)),
        (parfor, "compute_live_map", _as_sets(compute_live_map)),
        (types.Function, "get_call_type", _typed_once(types.Function.get_call_type)),
        (Lower, "lower_getitem", _reading(Lower.lower_getitem)),
        (Lower, "lower_setitem", _writing(Lower.lower_setitem)),
        (CPUCodeLibrary, "_optimize_functions", _only_layout if long else _one_by_one),
        (ir.Stmt, "list_vars", quick_statements.variables_in_statement),
        (ir.Expr, "list_vars", quick_statements.variables_in_expression),
        (PreLowerStripPhis, "_strip_phi_nodes", quick_statements.without_phis(PreLowerStripPhis._strip_phi_nodes)),
        (base, "_has_loc", quick_statements.memoised(base._has_loc)),
        (base.BaseContext, "get_abi_sizeof", quick_statements.sizes_once(base.BaseContext.get_abi_sizeof)),
        (base.BaseContext, "compile_internal", quick_statements.products_in_place(base.BaseContext.compile_internal)),
        (event, "start_event", _if_heard(event.start_event)),
        (event, "end_event", _if_heard(event.end_event)),
    )
    with numba_parts.replaced(parts), late_code():
        yield


class _Variables(Set[str]):
    """A set of variables, stored as the bits of an integer."""

    def __init__(self, names: list[str], bits: int) -> None:
        self.names, self.bits = names, bits

    def __iter__(self) -> Iterator[str]:
        return itertools.compress(self.names, _bits(self.bits))

    def __len__(self) -> int:
        return self.bits.bit_count()

    def __contains__(self, name: object) -> bool:
        return name in set(self)

    _from_iterable = set  # type: ignore[assignment]


class _Alive(dict[int, _Variables]):
    """The variables that are live at the start of each block, and the bits of all variables."""

    bit: dict[str, int]


def compute_live_map(
    graph: Any, blocks: dict[int, Any], used: dict[int, set[str]], defined: dict[int, set[str]]
) -> Any:
    """The variables that are live at the start of each block; as `numba.core.analysis.compute_live_map`."""
    names = list(set().union(*used.values(), *defined.values()))
    bit = {name: 1 << k for k, name in enumerate(names)}
    uses, definitions = ({k: sum(map(bit.__getitem__, found)) for k, found in of.items()} for of in (used, defined))
    order = graph.topo_order()
    after = {k: [block for block, _ in graph.successors(k)] for k in order}
    reaching = {k: uses[k] | definitions[k] for k in order}
    alive = dict(uses)

    def forward() -> None:
        for k in order:
            for block in after[k]:
                reaching[block] |= reaching[k]

    def backward() -> None:
        for k in reversed(order):
            for block in after[k]:
                alive[k] |= alive[block] & reaching[k] & ~definitions[k]

    for change, values in ((forward, reaching), (backward, alive)):
        before = None
        while before != values:
            before = dict(values)
            change()
    found = _Alive((k, _Variables(names, alive[k])) for k in blocks)
    found.bit = bit
    return found


def _as_sets(alive: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: {k: set(found) for k, found in alive(*given).items()}


def _dead_maps(original: Callable[..., Any]) -> Callable[..., Any]:
    """The variables that die in or after each block; as `numba.core.analysis.compute_dead_maps`."""

    def dead_maps(graph: Any, blocks: dict[int, Any], alive: Any, defined: dict[int, set[str]]) -> Any:
        if not isinstance(alive, _Alive):
            return original(graph, blocks, alive, defined)
        bit, names = alive.bit, list(alive.bit)
        after = {k: [block for block, _ in graph.successors(k)] for k in blocks}
        own = {k: alive[k].bits | sum(map(bit.__getitem__, defined[k])) for k in blocks}
        inside, behind = dict.fromkeys(blocks, 0), dict.fromkeys(blocks, 0)
        seen = 0
        for k, block in blocks.items():
            at_end = reduce(or_, (bit.get(v.name, 0) for v in block.terminator.list_vars()), 0)
            later = reduce(or_, (alive[n].bits for n in after[k]), at_end)
            inside[k] = own[k] & ~later
            for n in after[k]:
                behind[n] |= own[k] & later & ~own[n]
            seen |= inside[k] | (0 if after[k] else at_end)
        if reduce(or_, (a.bits for a in alive.values()), 0) & ~reduce(or_, behind.values(), seen):
            return original(graph, blocks, {k: set(a) for k, a in alive.items()}, defined)  # raises the error
        names_of = lambda bits: {names[k] for k in _places(bits)}
        ends = defaultdict(set, {k: names_of(bits) for k, bits in inside.items()})
        escaping = defaultdict(set, {k: names_of(bits) for k, bits in behind.items()})
        return analysis._dead_maps_result(ends, escaping, {k: ends[k] | escaping[k] for k in blocks})

    return dead_maps


def live_variables(graph: Any, blocks: Any, defined: dict[int, set[str]], dead: dict[int, set[str]]) -> Any:
    """The variables that exist at the start of each block; as `numba.core.analysis.compute_live_variables`."""
    names = list(set().union(*defined.values()))
    bit = {name: 1 << k for k, name in enumerate(names)}
    order = graph.topo_order()
    made = {k: sum(map(bit.__getitem__, defined[k])) for k in order}
    gone = {k: sum(bit.get(name, 0) for name in dead[k]) for k in order}
    found = dict.fromkeys(order, 0)
    before = None
    while before != found:
        before = dict(found)
        for k in order:
            for block, _ in graph.successors(k):
                found[block] |= (found[k] | made[k]) & ~gone[k]
    return {k: _Variables(names, found.get(k, 0)) for k in blocks}


def _bits(number: int) -> bytes:
    """The bits of a number as bytes 0 and 1, the lowest one first."""
    return bin(number)[:1:-1].encode().translate(_DIGITS)


def _places(number: int) -> Iterator[int]:
    """The positions of the bits that are set; fast if these are few."""
    while number:
        place = number.bit_length() - 1
        yield place
        number ^= 1 << place


_DIGITS = bytes.maketrans(b"01", b"\0\1")


class _Labels(list[int]):
    """The targets of jumps in bytecode, as a list with fast membership tests."""

    def __init__(self, labels: Any) -> None:
        super().__init__(labels)
        self.known = frozenset(labels)

    def __contains__(self, place: object) -> bool:
        return place in self.known


def _with_labels(original: Callable[..., None]) -> Callable[..., None]:
    def __init__(code: Any, *given: Any, **options: Any) -> None:
        original(code, *given, **options)
        code.labels = _Labels(code.labels)

    return __init__


def _before(original: Callable[..., None]) -> Callable[..., None]:
    """Find the last instruction of a block, before which variables are entered, without a search from the start."""

    def position_before(builder: Any, instruction: Any) -> None:
        instructions = instruction.parent.instructions
        if instructions and instructions[-1] is instruction:
            builder._block, builder._anchor = instruction.parent, len(instructions) - 1
        else:
            original(builder, instruction)

    return position_before


def _typed_once(typed: Callable[..., Any]) -> Callable[..., Any]:
    """The signature of a function for types of arguments, memoised for numbers and arrays."""
    known: dict[Any, Any] = {}

    def get_call_type(function: Any, context: Any, args: Any, kws: Any) -> Any:
        if kws or not all(isinstance(a, (types.Number, types.Boolean, types.Array)) for a in args):
            return typed(function, context, args, kws)
        key = (id(context), function, tuple(args))
        if key not in known:
            known[key] = typed(function, context, args, kws)
        return known[key]

    return get_call_type


def _if_heard(function: Callable) -> Callable:
    """Have events made only if somebody listens; Numba's own timers do not count."""

    def make(kind: str, *given: Any, **more: Any) -> None:
        listeners = event._registered.get(kind)
        if listeners and any(type(found) is not event.TimingListener for found in listeners):
            function(kind, *given, **more)

    return make


def _only_layout(library: Any, module: Any) -> None:
    """Leave the functions of a module to the passes that run after it is linked."""
    module.data_layout = library._codegen._data_layout


def _one_by_one(library: Any, module: Any) -> None:
    """Optimise each function of a module by itself; as `CPUCodeLibrary._optimize_functions`."""
    module.data_layout = library._codegen._data_layout
    passes, builder = library._codegen._function_pass_manager()
    for function in module.functions:
        if not function.is_declaration:
            with library._recorded_timings.record(f"Function passes on {function.name!r}", builder):
                passes.run(function, builder)


def _reading(original: Callable[..., Any]) -> Callable[..., Any]:
    """Generate code that loads an element."""

    def lower_getitem(lower: Any, resty: Any, expr: Any, value: Any, index: Any, signature: Any) -> Any:
        array, kind = signature.args
        if not _is_element(lower, array, kind, lower.typeof(value.name)):
            return original(lower, resty, expr, value, index, signature)
        context, builder = lower.context, lower.builder
        at = context.cast(builder, lower.loadvar(index.name), lower.typeof(index.name), kind)
        place = _place(context, builder, array, lower.loadvar(value.name), kind, at)
        found = arrayobj.load_item(context, builder, array, place)
        return context.cast(builder, found, signature.return_type, resty)

    return lower_getitem


def _writing(original: Callable[..., Any]) -> Callable[..., Any]:
    """Generate code that stores an element."""

    def lower_setitem(lower: Any, target: Any, index: Any, value: Any, signature: Any) -> Any:
        array, kind, given = signature.args
        is_scalar = isinstance(given, (types.Number, types.Boolean))
        if not (is_scalar and _is_element(lower, array, kind, lower.typeof(target.name))):
            return original(lower, target, index, value, signature)
        context, builder = lower.context, lower.builder
        base, stored = lower.loadvar(target.name), lower.loadvar(value.name)
        at = context.cast(builder, lower.loadvar(index.name), lower.typeof(index.name), kind)
        stored = context.cast(builder, stored, lower.typeof(value.name), given)
        place = _place(context, builder, array, base, kind, at)
        stored = context.cast(builder, stored, given, array.dtype)
        return arrayobj.store_item(context, builder, array, stored, place)

    return lower_setitem


def _is_element(lower: Any, array: Any, kind: Any, given: Any) -> bool:
    """Return whether an index of this type selects one element, without further checks."""
    if type(array) is not types.Array or given != array or lower.context.enable_boundscheck:
        return False
    indices = tuple(kind) if isinstance(kind, types.BaseTuple) else (kind,)
    return (
        len(indices) == array.ndim
        and all(isinstance(k, types.Integer) for k in indices)
        and isinstance(array.dtype, (types.Number, types.Boolean))
    )


def _place(context: Any, builder: Any, array: Any, value: Any, kind: Any, index: Any) -> Any:
    """The address of an element; as `numba.np.arrayobj.basic_indexing` computes it."""
    model = context.data_model_manager[array]
    field = lambda name: model.get(builder, value, name)
    shape = cgutils.unpack_tuple(builder, field("shape"), array.ndim)
    strides = cgutils.unpack_tuple(builder, field("strides"), array.ndim) if array.layout == "A" else None
    if isinstance(kind, types.BaseTuple):
        kinds: tuple[Any, ...] = tuple(kind)
        indices = cgutils.unpack_tuple(builder, index, len(kind))
    else:
        kinds, indices = (kind,), [index]
    places = [
        arrayobj.fix_integer_index(context, builder, k, i, n) for k, i, n in zip(kinds, indices, shape, strict=True)
    ]
    return cgutils.get_item_pointer2(context, builder, field("data"), shape, strides, array.layout, places)


def _enter_in_scopes(blocks: dict[int, Any]) -> None:
    """Make each scope of a function's blocks know all variables of the function."""
    variables = {v.name: v for block in blocks.values() for statement in block.body for v in statement.list_vars()}
    for scope in {id(block.scope): block.scope for block in blocks.values()}.values():
        for name, variable in variables.items():
            if name not in scope.localvars:
                scope.localvars.define(name, variable)


def reconstructed(blocks: dict[int, Any]) -> dict[int, Any]:
    """The blocks in single assignment form; as `numba.core.ssa._run_ssa`."""
    if not blocks:
        return {}
    graph = compute_cfg_from_blocks(blocks)
    names = ssa._find_defs_violators(blocks, graph)
    if not names:
        return blocks
    function = _Function(blocks, graph, names)
    for name in names:
        function.separate(name)
    return function.blocks()


class _Function:
    """A function whose variables are split into single definitions, one after the other."""

    def __init__(self, blocks: dict[int, Any], graph: Any, names: Any) -> None:
        self.old = blocks
        self.graph = graph
        self.frontiers = ssa._iterated_domfronts(graph)
        self.scope = ssa._get_scope(blocks)
        self.bodies = {label: list(block.body) for label, block in blocks.items()}
        self.phis: dict[int, list[Any]] = defaultdict(list)
        self.places: dict[str, dict[int, list[int]]] = {name: {} for name in names}
        for label, body in self.bodies.items():
            for place, statement in enumerate(body):
                for name in {v.name for v in statement.list_vars()} | _assigned(statement):
                    if name in self.places:
                        self.places[name].setdefault(label, []).append(place)

    def separate(self, name: str) -> None:
        """Give each definition of a variable a separate name, and each use that of the definition that reaches it."""
        places = self.places[name]
        definitions: Any = defaultdict(list)
        states = {"scope": self.scope, "varname": name, "defmap": definitions}
        self._rewrite(places, states, ssa._FreshVarHandler())
        phis: Any = defaultdict(list)
        states |= {
            "phimap": phis,
            "cfg": self.graph,
            "phi_locations": ssa._compute_phi_locations(self.frontiers, definitions),
        }
        where = {id(self.bodies[label][p]): p for label, of_block in places.items() for p in of_block}
        self._rewrite(places, states, _Uses(where))
        for label, found in phis.items():
            self.phis[label] = found + self.phis[label]

    def _rewrite(self, places: dict[int, list[int]], states: dict[str, Any], handler: Any) -> None:
        before = []  # keeps replaced statements alive, so that others do not get their ids
        for label, of_block in places.items():
            states |= {"label": label, "block": self.old[label]}
            body = self.bodies[label]
            for place in of_block:
                statement = body[place]
                before.append(statement)
                on = handler.on_assign if isinstance(statement, ir.Assign) else handler.on_other
                body[place] = on(states, statement)

    def blocks(self) -> dict[int, Any]:
        found = {}
        for label, old in self.old.items():
            found[label] = ir.Block(scope=old.scope, loc=old.loc)
            found[label].body = self.phis[label] + self.bodies[label]
        return found


def _assigned(statement: Any) -> set[str]:
    return {statement.target.name} if isinstance(statement, ir.Assign) else set()


class _Uses(getattr(ssa, "_FixSSAVars", object)):  # type: ignore[misc]
    """Numba's search for the definitions that reach uses, with known positions of statements."""

    def __init__(self, places: dict[int, int]) -> None:
        super().__init__(ssa._CacheListVars())
        self.places = places

    def _stmt_index(self, defstmt: Any, block: Any, stop: int = -1) -> int:
        found = self.places.get(id(defstmt), _NOT_FOUND)
        return found if stop == -1 or found < stop else _NOT_FOUND


_NOT_FOUND = 1 << 60

"""Random functions have the same SSA reconstruction and live variables with ampi's implementation as with Numba's."""

import importlib
import io
import random
import sys

import numba
import numpy as np
import pytest
from numba.core import analysis, errors, event, ir, ssa, types, untyped_passes
from numba.core.compiler import run_frontend
from numba.core.compiler_lock import global_compiler_lock
from numba.core.typed_passes import PreLowerStripPhis

quick = importlib.import_module("ampi.kernel.runtime.quick_compilation")
statements = importlib.import_module("ampi.kernel.runtime.quick_statements")

NAMES = "abcdef"


class Writer:
    """Writes a function of four arguments whose variables are assigned in branches and loops, some only there."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = ["def drawn(n, a, b, x):", "    if n > 0:", "        c = d = e = f = 1.0"]
        self.block(1, 3)
        self.line(f"return {self.value()}", 1)

    def line(self, text, depth):
        self.lines.append("    " * depth + text)

    def value(self):
        left, right = self.random.choices([*NAMES, "1.5", "x[0]"], k=2)
        return f"{left} {self.random.choice('+-*')} {right}"

    def condition(self):
        return f"{self.random.choice(NAMES)} {self.random.choice('<>')} {self.random.choice(['0.0', 'n', *NAMES])}"

    def block(self, depth, nested, in_loop=False):
        for _ in range(self.random.randint(1, 4)):
            kind = self.random.choice(("assign", "assign", "store", "if", "else", "for", "while", "leave", "two"))
            if kind == "store":
                self.line(f"x[{self.random.randint(0, 2)}] = {self.value()}", depth)
            elif kind == "leave" and in_loop:
                self.line(f"if {self.condition()}:", depth)
                self.line(self.random.choice(("break", "continue", f"return {self.value()}")), depth + 1)
            elif kind == "two":
                self.line(
                    f"{', '.join(self.random.sample(NAMES, 2))} = {', '.join(self.random.sample(NAMES, 2))}", depth
                )
            elif kind in ("if", "else", "for", "while") and nested:
                head = f"for {self.random.choice('gh' + NAMES)} in range(n)" if kind == "for" else None
                self.line(f"{head or ('while ' if kind == 'while' else 'if ') + self.condition()}:", depth)
                self.block(depth + 1, nested - 1, in_loop or kind in ("for", "while"))
                if kind == "else":
                    self.line("else:", depth)
                    self.block(depth + 1, nested - 1, in_loop)
            else:
                self.line(f"{self.random.choice(NAMES)} = {self.value()}", depth)

    def function(self):
        space = {}
        exec("\n".join(self.lines), space)
        return space["drawn"]


def as_text(blocks):
    text = io.StringIO()
    for label, block in sorted(blocks.items()):
        print(label, file=text)
        block.dump(text)
    return text.getvalue()


def dumped(function, reconstruct):
    """The function after SSA reconstruction, as text; and the names given to each variable."""
    program = run_frontend(function)
    found = reconstruct(program.blocks)
    scope = next(iter(found.values())).scope
    return as_text(found), {name: sorted(names) for name, names in scope.var_redefinitions.items()}


@pytest.mark.parametrize("seed", range(60))
def test_as_numba_does(seed):
    writer = Writer(seed)
    ours, numbas = dumped(writer.function(), quick.reconstructed), dumped(writer.function(), ssa._run_ssa)
    assert ours == numbas, "\n".join(writer.lines)


@pytest.mark.parametrize("seed", range(60))
def test_live_variables_are_numbas(seed):
    writer = Writer(seed)
    blocks = quick.reconstructed(run_frontend(writer.function()).blocks)
    graph, found = analysis.compute_cfg_from_blocks(blocks), analysis.compute_use_defs(blocks)
    ours, numbas = (
        f(graph, blocks, found.usemap, found.defmap) for f in (quick.compute_live_map, analysis.compute_live_map)
    )
    assert ours == numbas, "\n".join(writer.lines)


@pytest.mark.parametrize("seed", range(60))
def test_where_variables_end(seed):
    writer = Writer(seed)
    blocks = quick.reconstructed(run_frontend(writer.function()).blocks)
    graph, found = analysis.compute_cfg_from_blocks(blocks), analysis.compute_use_defs(blocks)
    alive = quick.compute_live_map(graph, blocks, found.usemap, found.defmap)
    ours = quick._dead_maps(None)(graph, blocks, alive, found.defmap)
    sets = {k: set(names) for k, names in alive.items()}
    numbas = analysis.compute_dead_maps(graph, blocks, sets, found.defmap)
    assert ours.combined == numbas.combined, "\n".join(writer.lines)
    for mine, theirs in zip(ours[:2], numbas[:2], strict=True):
        assert {k: v for k, v in mine.items() if v} == {k: v for k, v in theirs.items() if v}
    there = quick.live_variables(graph, blocks, found.defmap, ours.combined)
    wanted = analysis.compute_live_variables(graph, blocks, found.defmap, numbas.combined)
    assert {k: set(names) for k, names in there.items()} == {k: wanted[k] for k in blocks}


@pytest.mark.parametrize("seed", range(60))
def test_phi_nodes_become_assignments(seed):
    """In the places that Numba chooses."""
    strip = PreLowerStripPhis._strip_phi_nodes
    drawn = [run_frontend(Writer(seed).function()) for _ in range(2)]
    for program in drawn:
        program.blocks = quick.reconstructed(program.blocks)

    def refuse(numbas, program):
        raise AssertionError("left to Numba")

    ours, numbas = statements.without_phis(refuse)(None, drawn[0]), strip(None, drawn[1])
    assert as_text(ours.blocks) == as_text(numbas.blocks)


def test_a_value_that_is_assigned_twice_is_left_to_numba():
    block = next(iter(run_frontend(Writer(0).function()).blocks.values()))
    scope, loc = block.scope, block.loc
    x, y = ir.Var(scope, "x", loc), ir.Var(scope, "y", loc)
    twice = [ir.Assign(ir.Const(k, loc), x, loc) for k in range(2)]
    assert statements._with_assignments(twice[:1], [(y, x)], loc) is not None
    assert statements._with_assignments(twice, [(y, x)], loc) is None


@pytest.mark.parametrize("seed", range(60))
def test_variables_of_statements(seed):
    function = Writer(seed).function()
    found = [s for block in run_frontend(function).blocks.values() for s in block.body]
    values = [s.value for s in found if isinstance(getattr(s, "value", None), ir.Expr)]
    assert [statements.variables_in_statement(s) for s in found] == [s.list_vars() for s in found]
    assert [statements.variables_in_expression(v) for v in values] == [v.list_vars() for v in values]


def test_what_does_not_end_anywhere_is_an_error_as_in_numba():
    """Liveness that is inconsistent with the blocks is an error; Numba's own check is kept."""
    blocks = quick.reconstructed(run_frontend(Writer(3).function()).blocks)
    graph, found = analysis.compute_cfg_from_blocks(blocks), analysis.compute_use_defs(blocks)
    found.usemap[min(blocks)].add("nowhere")
    alive = quick.compute_live_map(graph, blocks, found.usemap, found.defmap)
    alive[max(blocks)] = quick._Variables(alive[max(blocks)].names, alive.bit["nowhere"])
    sets = {k: set(names) for k, names in alive.items()}
    outcomes = []
    for dead_maps, given in ((quick._dead_maps(analysis.compute_dead_maps), alive), (analysis.compute_dead_maps, sets)):
        try:
            dead_maps(graph, blocks, given, found.defmap)
            outcomes.append(None)
        except RuntimeError as problem:
            outcomes.append(str(problem))
    assert outcomes[0] == outcomes[1]


def test_generators_are_compiled_as_by_numba():
    """They need the variables that live across a yield."""

    @numba.njit
    def numbers(n):
        before = 1
        for k in range(n):
            before = before + k
            yield before * 2

    with quick.quick_compilation():
        assert numba.njit(lambda n: sum([v for v in numbers(n)]))(5) == sum([2, 4, 8, 14, 22])


def test_nothing_is_left_behind():
    before = ssa._run_ssa, untyped_passes.fixup_var_define_in_scope, types.Function.get_call_type
    with pytest.raises(RuntimeError), quick.quick_compilation():
        assert ssa._run_ssa is quick.reconstructed
        raise RuntimeError
    assert before == (ssa._run_ssa, untyped_passes.fixup_var_define_in_scope, types.Function.get_call_type)


def test_what_has_no_type_is_refused_each_time():
    with quick.quick_compilation():
        for _ in range(2):
            with pytest.raises(errors.TypingError, match=r"No implementation of function|Invalid use"):
                numba.njit(lambda x: x + (1, 2))(np.ones(3))
            assert numba.njit(lambda x: x + 1 + x.sum())(np.ones(3))[0] == 5.0


DTYPES = [np.float64, np.float32, np.complex128, np.complex64, np.bool_, np.int8, np.uint16, np.int64, np.uint64]


@pytest.mark.parametrize("seed", range(24))
def test_elements(seed):
    """Elements of arrays of all layouts are read, stored and added to, by indices of all types, also from the end."""
    drawn = random.Random(seed)
    ndim = drawn.randint(1, 4)
    dtype = drawn.choice(DTYPES)
    shape = [drawn.randint(2, 4) for _ in range(ndim)]
    array = (np.random.default_rng(seed).uniform(0, 50, [2 * n for n in shape])).astype(dtype)
    layout = drawn.choice(["C", "F", "A", "transposed", "reversed", "packed"])
    if layout == "packed":  # not aligned
        record = np.zeros(shape, np.dtype([("before", np.int8), ("value", dtype)]))
        record["value"] = array[tuple(slice(n) for n in shape)]
        array = record["value"]
    else:
        array = array[tuple(slice(None, None, 2) for _ in shape)]
        array = np.array(array, order=layout) if layout in "CF" else array
        array = {"transposed": array.T, "reversed": array[::-1]}.get(layout, array)
    kinds = [drawn.choice([np.int64, np.int32, np.uint8, np.uint64, np.int8, int]) for _ in range(ndim)]
    index = tuple(
        kind(drawn.randrange(n) if np.dtype(kind).kind == "u" else drawn.randrange(-n, n))
        for kind, n in zip(kinds, array.shape, strict=True)
    )
    literal = drawn.choice(["", "0", "-1"])
    names = [f"i{k}" for k in range(ndim)]
    places = ", ".join([*names[:-1], literal or names[-1]])
    value = {"b": "True", "c": "2.5 + 1.5j"}.get(np.dtype(dtype).kind, "3")
    text = f"def element(a, {', '.join(names)}):\n    x = a[{places}]\n    a[{places}] = {value}\n"
    text += "" if np.dtype(dtype).kind == "b" else f"    a[{places}] += x\n"
    space = {}
    exec(text + "    return x\n", space)
    mine, expected = array.copy() if layout != "packed" else array, array.copy()
    with quick.quick_compilation():
        found = numba.njit(space["element"])(mine, *index)
    with np.errstate(over="ignore"):
        assert found == space["element"](expected, *index)
    np.testing.assert_array_equal(mine, expected)


def products(x, y, z):
    for i in range(x.size):
        for j in range(y.size):
            z[i, j] = x[i] * y[j]


@pytest.mark.parametrize("dtype", [np.complex128, np.complex64])
@pytest.mark.parametrize("fastmath", [False, True])
def test_products_of_complex_numbers(dtype, fastmath):
    """Bitwise identical to Numba's, which are not compiled with ``fastmath`` in any function."""
    parts = [0.0, -0.0, 1.5, -0.3, 1e38, 1e-40, np.inf, -np.inf, np.nan]
    numbers = np.array([complex(a, b) for a in parts for b in parts], dtype)
    ours, numbas = np.empty((2, numbers.size, numbers.size), dtype)
    numba.njit(fastmath=fastmath)(products)(numbers, numbers, numbas)
    with quick.quick_compilation():
        compiled = numba.njit(fastmath=fastmath)(products)
        compiled(numbers, numbers, ours)
    text = next(iter(compiled.inspect_llvm().values()))
    assert sys.version_info >= (3, 14) or "complex_mul" not in text
    for mine, other in ((ours.real, numbas.real), (ours.imag, numbas.imag)):
        np.testing.assert_array_equal(mine, other)
        there = ~np.isnan(other)
        np.testing.assert_array_equal(np.signbit(mine[there]), np.signbit(other[there]))


def test_events_reach_those_who_listen(monkeypatch):
    sent = []
    broadcast = event.broadcast
    monkeypatch.setattr(event, "broadcast", lambda found: (sent.append(found.kind), broadcast(found)))

    def compiled():
        sent.clear()
        with global_compiler_lock, quick.quick_compilation():
            numba.njit(lambda x: x + 1.0).compile((types.float64,))
        return sent.count("numba:run_pass")

    with event.install_recorder("numba:run_pass") as found:
        assert compiled() == len(found.buffer) > 20
    assert compiled() == 0

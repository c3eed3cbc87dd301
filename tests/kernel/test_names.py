"""Generated names are hygienic: whatever names the user chooses, generated programs are the same up to names."""

import ast
import builtins
import math
from collections import namedtuple
from pathlib import Path

import combined_cases
import function_cases
import kernel_checks
import numba
import numpy as np
import pytest
from hostile_names import Different, draw, names_in, programs, renamed, require_the_same, unlucky
from kernel_cases import random_array
from kernel_checks import copies, kernel_ir, load, run
from random_check import kernel_of
from random_kernels import Program
from test_corpus import CORPUS, points

import ampi
from ampi.base import structures
from ampi.kernel import pipeline
from ampi.kernel.codegen import emit
from ampi.kernel.frontend.base.source import read_source
from ampi.kernel.ir import matrices
from ampi.kernel.ir.intrinsics import ARGUMENTS, TABLE, is_differentiable
from ampi.kernel.ir.names import all_names
from ampi.kernel.programs import with_constants

NAMES = list(CORPUS)


def arguments_of(name):
    """Example arguments of a kernel of the corpus."""
    entry = CORPUS[name]
    kind, _, key = name.partition(": ")
    if not key:
        return kernel_checks.make_arguments(name)
    if kind == "language":
        return copies(entry.arguments)
    if kind == "functions":
        return function_cases.make_arguments(key, np.float64)
    if kind == "arrays":
        rng = np.random.default_rng(3)
        shapes = entry.arguments
        return [random_array(rng, entry.dtypes[0], a, 0.5, 1.5) if isinstance(a, tuple) else a for a in shapes]
    return combined_cases.make_arguments() if kind == "combined" else [points(), 0.7]


# ------------------------------------------------------------------------------------------- all kernels, other names


@pytest.mark.parametrize("name", NAMES[::13])
def test_names_do_not_matter(name):
    function = CORPUS[name].function
    require_the_same(function, arguments_of(name), draw(function, NAMES.index(name)), "other")


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_names_never_matter(name):
    function = CORPUS[name].function
    for seed in range(4):
        require_the_same(function, arguments_of(name), draw(function, f"{seed} {name}"), seed)


@pytest.mark.parametrize("seed", range(40_000, 40_006))
def test_names_in_random_kernels_do_not_matter(seed):
    function, arguments = kernel_of(Program(seed, wide=True).source(), seed)
    require_the_same(function, arguments, draw(function, seed), "other")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(41_000, 41_400))
def test_names_in_random_kernels_never_matter(seed):
    function, arguments = kernel_of(Program(seed, wide=seed % 2 == 0).source(), seed)
    try:
        programs(renamed(function, {}), arguments)
    except ampi.KernelError:
        with pytest.raises(ampi.KernelError):
            programs(renamed(function, draw(function, seed), "other"), arguments)
    else:
        require_the_same(function, arguments, draw(function, seed), "other")


def roles(function):
    """The names of a function by role."""
    definition = read_source(function).definition
    arguments = [n.arg for n in ast.walk(definition.args) if isinstance(n, ast.arg)]
    assigned = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    names = names_in(definition)
    yield "kernel", [function.__name__]
    yield "argument", arguments
    yield "variable", [n for n in names if n in assigned - set(arguments)]
    yield "global", [n for n in names if n not in assigned and n not in arguments and n != function.__name__]


@pytest.mark.timeout(1200)
@pytest.mark.slow
@pytest.mark.parametrize("role", ["kernel", "argument", "variable", "global"])
def test_every_unlucky_name_in_every_role(role):
    """Each unlucky name is swapped with the name of something in each role."""
    names = [n for n in NAMES[:: len(NAMES) // 12] if dict(roles(CORPUS[n].function))[role]]
    for number, word in enumerate(unlucky()):
        name = names[number % len(names)]
        function = CORPUS[name].function
        own = dict(roles(function))[role]
        old = own[number // len(names) % len(own)]
        try:
            require_the_same(function, arguments_of(name), {old: word, word: old}, word)
        except Different as problem:
            raise AssertionError(f"{name}: '{old}' called '{word}'") from problem


# ------------------------------------------------------------------------------------------- values


def gradients(function, arguments):
    """The results of the adjoint, as plain Python, for shadows and seeds of one."""
    code = with_constants(kernel_ir(function, arguments))
    active = [a.name for a in code.arguments if is_differentiable(a.type) and a.role is None]
    made = pipeline.build_adjoint(code, active)
    constants = dict(kernel_ir(function, arguments).constants)
    values = [*copies(arguments), *constants.values()]
    assert len(values) == len(code.arguments)
    seeds = [np.ones_like(v) for v, a in zip(values, code.arguments) if a.name in made.shadows]
    results = structures.leaves(run(function, arguments)[1])
    seeds += [np.ones_like(r) for r, active in zip(results, made.result_active) if active]
    return [*seeds, *load(made.function)(*values, *seeds)]


FLAT = [n for n in NAMES if not n.startswith(("language", "structured"))]


@pytest.mark.parametrize("name", FLAT[::25])
def test_gradients_are_the_same_bit_by_bit(name):
    function, arguments = CORPUS[name].function, arguments_of(name)
    expected = gradients(renamed(function, {}), arguments)
    for a, b in zip(gradients(renamed(function, draw(function, name)), arguments), expected, strict=True):
        np.testing.assert_array_equal(a, b)


WEIGHTS = np.array([0.3, 0.5, 0.7, 1.1])


def several(x, y, c):
    """A kernel with loops, a carried value, a local array and a global one."""
    s = c
    t = np.zeros(4)
    for i in range(len(x)):
        s = s * math.sin(x[i]) + y[i]
        t[i] = s * WEIGHTS[i]
    for j in range(len(x)):
        hit = x[j] > 0.6
        u = 0.0
        if hit:
            u = x[0]
        y[j] = u * t[j] + u
    return s * np.sum(t * y)


UNLUCKY = (
    "several 数 x math math y y max max x c __builtins__ s λ t _ i _1 hit print WEIGHTS CONTRACT u np np x_bar",
    "several COSTS x fused y match c len len s s range range np np choose t total u any WEIGHTS disagreement",
)


@pytest.mark.parametrize("names", UNLUCKY, ids=range(len(UNLUCKY)))
def test_compiled_gradients_are_the_same_bit_by_bit(names):
    """Through the whole pipeline: contracts, files in the cache, Numba."""
    words = names.split()
    names = dict(zip(words[::2], words[1::2]))
    found = []
    for function in (renamed(several, {}), renamed(several, names, "compiled")):
        kernel = ampi.kernel(function)
        with ampi.Tape() as tape:
            x = tape.watch(np.array([0.2, 0.7, 0.9, 0.65]))
            c = tape.watch(1.25)
            y = x * 1.5
            result = kernel(x, y, c)
        found.append([result, y, *tape.gradient((result, y), [x, c], seed=(1.0, np.ones(4)))])
    for a, b in zip(*found, strict=True):
        np.testing.assert_array_equal(a, b)


# ------------------------------------------------------------------------------------------- what names may look like


def product_called_dot(w1, w2, b, x, loss):
    dot = np.tanh(x @ w1)
    o = dot @ w2 + b
    loss[0] = np.sum(o * o) / x.shape[0]


def guard_called_any(x, w, y):
    for i in range(len(y)):
        any_hit = w[i] > 0.5
        total = 0.0
        if any_hit:
            total = x[0]
        y[i] = total * w[i] + total


def scalar_called_fused(x, y):
    fused = x[0]
    for i in range(1, len(x)):
        fused = 0.75 * fused - x[i] * x[i - 1]
        y[i] = fused
        y[i - 1] += 0.5 * fused


def test_a_variable_called_as_an_operation():
    rng = np.random.default_rng(0)
    values = [rng.normal(size=shape) for shape in ((3, 4), (4, 2), (2,), (5, 3), (1,))]
    w1, w2, b, x, _ = values
    hidden = np.tanh(x @ w1)
    o_bar = 2 * (hidden @ w2 + b) / len(x)
    expected = x.T @ ((o_bar @ w2.T) * (1 - hidden**2)), hidden.T @ o_bar, np.sum(o_bar, axis=0)
    for a, b in zip(gradients(product_called_dot, values), expected):
        np.testing.assert_allclose(a, b + 1.0, rtol=1e-12)


def test_a_condition_called_as_the_guards_of_sums():
    w = np.array([0.2, 0.7, 0.9])
    x_bar, w_bar, y_bar = gradients(guard_called_any, [np.array([1.0, 2.0, 3.0]), w, np.zeros(3)])
    np.testing.assert_allclose(x_bar, [4.6, 1.0, 1.0], rtol=1e-14)
    np.testing.assert_array_equal(w_bar, [1.0, 2.0, 2.0])
    np.testing.assert_array_equal(y_bar, [0.0, 0.0, 0.0])


def test_a_scalar_called_as_a_function_of_the_header():
    x, y = np.array([0.3, 0.5, 0.7, 1.1]), np.zeros(4)
    code = kernel_ir(scalar_called_fused, [x, y])
    assert " fused(" in emit.source(pipeline.build_adjoint(code, ["x", "y"]).function)
    x_bar, _ = gradients(scalar_called_fused, [x, y])
    for k in range(4):
        moved, out = x + 1e-20j * np.eye(4)[k], np.zeros(4, complex)
        scalar_called_fused(moved, out)
        assert x_bar[k] == pytest.approx(1.0 + np.sum(out.imag) / 1e-20, rel=1e-14)


State = namedtuple("State", "x x_0 shadow items value")


def leaves(state, state_x, shadow):
    state_x_0 = state.x * shadow[0]
    shadow = (shadow[1], state_x)
    return state.x_0 * state_x_0 + state.shadow * shadow[0] * state.items * shadow[1] * state.value


def test_parts_of_tuples_and_arguments_of_the_same_name():
    values = State(0.3, 0.5, 0.7, 0.9, 1.1), 1.3, (1.7, 1.9)
    text = ampi.kernel(leaves).adjoint_source(*values)
    (program,) = (n for n in ast.parse(text).body if isinstance(n, ast.FunctionDef))
    names = [a.arg for a in program.args.args]
    assert len(set(names)) == len(names) == 9
    space = {}
    exec(text, space)
    found = space["leaves_adjoint"](*values[0], values[1], *values[2], 1.0)
    (x, x_0, shadow, items, value), state_x, (s, t) = values
    more = t * items * state_x * value
    expected = [x_0 * s, x * s, more, *(shadow * more / v for v in (items, value, state_x)), x_0 * x, shadow * more / t]
    np.testing.assert_allclose(found, expected, rtol=1e-14)
    with pytest.raises(ValueError, match="several arguments"):
        ampi.kernel(leaves).adjoint_source(*values, active=["state_x"])
    assert "Active: state.x\n" in ampi.kernel(leaves).adjoint_source(*values, active=["state.x"])


@ampi.custom_jvp
@ampi.kernel
def scaled(x, c):
    return c * x


@scaled.defjvp
def scaled_tangent(shadow, seed):
    x, c = shadow
    x_dot, c_dot = seed
    result = 1.0
    result = c * x
    return result, c * x_dot + c_dot * x


def test_parameters_of_a_tangent_called_as_roles_of_arguments():
    @ampi.kernel
    def twice(x):
        return scaled(x, 3.0) * scaled(x, x)

    x = 0.7
    assert ampi.grad(lambda x: twice(x))(x) == pytest.approx(9 * x * x, rel=1e-14)


def test_prange_by_another_name():
    independent = numba.prange

    def sums(x):
        s = 0.0
        for i in independent(len(x)):
            s += x[i]
            s += x[i] * x[i]
        return s

    kernel = ampi.kernel(sums, parallel=True)
    assert kernel.has_parallel_loop and kernel.lower_ir(np.ones(3)).body[-2].parallel
    x = np.array([0.3, 0.5, 0.9])
    np.testing.assert_allclose(gradients(sums, [x])[0], 2 + 2 * x, rtol=1e-14)


# ------------------------------------------------------------------------------------------- by construction


def free_names(text):
    """The names that a text reads and does not define."""
    nodes = list(ast.walk(ast.parse(text)))
    bound = {n.id for n in nodes if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)} | {
        n.name for n in nodes if isinstance(n, ast.FunctionDef)
    }
    return {n.id for n in nodes if isinstance(n, ast.Name)} - bound


BUILTINS = set(dir(builtins))


def test_all_that_operations_are_written_with_is_reserved():
    for entry in TABLE.values():
        for text in filter(None, (entry.source, entry.source_int)):
            assert free_names(text) <= emit.reserved() | BUILTINS | set(ARGUMENTS), entry.name
    for text in matrices.SOURCES.values():
        assert free_names(text.format("x", "x")) <= emit.reserved() | BUILTINS | {"x"}


@pytest.mark.parametrize(
    "name", ["language: tuples_of_tuples", "combined: slice in prange", "structured: fields_in_time"]
)
def test_programs_name_nothing_else_than_what_is_reserved(name):
    for program in programs(CORPUS[name].function, arguments_of(name)):
        (spelled,) = emit.spelled(program)
        assert free_names(emit.source(program)) <= emit.reserved() | BUILTINS | {n for n, _ in spelled.constants}


def names_written(function):
    """All names in a function, including those of exceptions."""
    nodes = list(ast.walk(read_source(function).definition))
    return {n.id for n in nodes if isinstance(n, ast.Name)} | {n.arg for n in nodes if isinstance(n, ast.arg)}


def test_every_name_that_is_made_has_a_mark():
    for name in NAMES[::40]:
        function = CORPUS[name].function
        own = names_written(function)
        for program in programs(function, arguments_of(name)):
            assert {n for n in all_names(program) if "@" not in n} <= own


SPELLING = {"startswith", "endswith", "removeprefix", "removesuffix", "partition", "rpartition", "isdigit", "split"}


def test_nothing_is_recognised_by_how_its_name_is_spelled():
    """No string method that inspects spelling is called on the name of a node."""
    for path in Path(pipeline.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SPELLING:
                on = node.func.value
                is_name = isinstance(on, ast.Attribute) and on.attr == "name" and ast.unparse(on.value) != "path"
                assert not is_name, f"{path.name}:{node.lineno}"

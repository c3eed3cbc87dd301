"""All named kernels: what they cover, and each crossed with types, activity and threads.

`kernel_checks.Check` compares every tangent with finite differences and every adjoint with its tangent.  The full
cross product is marked slow; the other tests take one combination for each kernel.
"""

import ast
import inspect
import itertools
import textwrap
from collections import Counter, namedtuple

import combined_cases
import function_cases
import kernel_cases
import kernel_checks
import language_cases
import numba
import numpy as np
import pytest
import test_arrays
from kernel_cases import random_array
from kernel_checks import Check, activity_patterns, copies, float_arguments, load

from ampi.kernel import arguments
from ampi.kernel.options import Options

Entry = namedtuple("Entry", "function arguments dtypes differences", defaults=(True,))
REAL = (np.float64, np.float32)
ALL = (np.float64, np.complex128, np.float32, np.complex64)
COMPLEX = (np.complex128, np.complex64)

# ------------------------------------------------------------------------------------------- structured arrays

POINT = np.dtype([("x", "f8"), ("kind", "i4"), ("p", "f8", (2,)), ("q", [("a", "f8"), ("b", "f8")])])


def fields_in_a_loop(atoms, c):
    s = 0.0
    for i in range(len(atoms)):
        s += atoms[i]["x"] * atoms["p"][i, 0] * c
        atoms[i]["x"] = 0.5 * atoms["q"]["a"][i] + atoms["x"][i] * atoms[i]["x"]
    return s


def fields_in_whole_arrays(atoms, c):
    atoms["x"][:] = c * atoms["x"] * atoms["p"][:, 1]
    atoms["p"][1:, 0] += 0.1 * atoms["x"][:-1]
    return np.sum(atoms["q"]["b"] * atoms["x"])


def fields_in_time(atoms, c):
    for _ in range(3):
        for i in range(1, len(atoms)):
            if atoms["kind"][i] > 1:
                atoms["q"]["a"][i] = 0.5 * atoms["q"]["a"][i - 1] * atoms["x"][i] + c
            else:
                atoms["x"][i] *= 0.9 * atoms["q"]["a"][i]
    return atoms["x"][2] * atoms["q"]["a"][3]


def fields_in_parallel(atoms, c):
    s = 0.0
    for i in kernel_cases.prange(len(atoms)):
        local = np.empty(2)
        for k in range(2):
            local[k] = atoms["p"][i, k] * atoms["x"][i]
        s += local[0] * local[1] * c
        atoms["x"][i] = local[1]
    return s


STRUCTURED = {f.__name__: f for f in (fields_in_a_loop, fields_in_whole_arrays, fields_in_time, fields_in_parallel)}


def points():
    rng = np.random.default_rng(6)
    atoms = np.zeros(4, POINT)
    atoms["kind"] = [1, 2, 3, 1]
    for field in (atoms["x"], atoms["p"], atoms["q"]["a"], atoms["q"]["b"]):
        field[...] = rng.uniform(0.5, 1.2, field.shape)
    return atoms


def of_fields(function):
    """The kernel as a function of plain arrays, one for each field; with its IR and arguments."""
    atoms = points()
    code = kernel_checks.kernel_ir(function, (atoms, 0.7))
    names = ["_".join(map(str, a.path)) for a in code.arguments]

    def call(*leaves):
        made = points()
        for ours, theirs in zip(arguments.flatten(made), leaves):
            ours[...] = theirs
        result = function(made, leaves[-1])
        for ours, theirs in zip(arguments.flatten(made), leaves):
            theirs[...] = ours
        return result

    namespace = {"call": call}
    exec(f"def by_fields({', '.join(names)}): return call({', '.join(names)})", namespace)
    return namespace["by_fields"], code, [*(a.copy() for a in arguments.flatten(atoms)), 0.7]


# ------------------------------------------------------------------------------------------- all kernels


def corpus():
    for name, found in kernel_cases.CASES.items():
        yield name, Entry(found.function, found.arguments, ALL if found.complex_too else REAL)
    for name, (function, values) in language_cases.CASES.items():
        yield f"language: {name}", Entry(function, values, (np.float64,))
    for name, (function, shapes, options) in test_arrays.CASES.items():
        dtypes = REAL if "real" in options else COMPLEX if "complex_only" in options else ALL
        yield f"arrays: {name}", Entry(function, shapes, dtypes, "numpy_differs" not in options)
    for name, found in function_cases.CASES.items():
        # test_functions.py compares values, types and differences with Numba's
        yield f"functions: {name}", Entry(found.function, found.arguments, (np.float64,), False)
    for name, function in combined_cases.CASES.items():
        yield f"combined: {name}", Entry(function, None, ALL)
    for name, function in STRUCTURED.items():
        yield f"structured: {name}", Entry(function, None, (np.float64,))


CORPUS = dict(corpus())


def make_check(name, dtype, pattern=0, **how):
    """A check of one kernel for one type, with the activity pattern of this index (modulo their number)."""
    entry = CORPUS[name]
    kind, _, key = name.partition(": ")
    function, code = entry.function, None
    if not key:
        values = kernel_checks.make_arguments(name, dtype)
    elif kind == "language":
        values = copies(entry.arguments)
        function = flattened(function, values)
        code = kernel_checks.kernel_ir(entry.function, values)
    elif kind == "arrays":
        rng = np.random.default_rng(3)
        values = [random_array(rng, dtype, a, 0.5, 1.5) if isinstance(a, tuple) else a for a in entry.arguments]
    elif kind == "functions":
        values = function_cases.make_arguments(key, dtype)
        code, function = kernel_checks.kernel_ir(function, values), flattened(function, values)
    elif kind == "combined":
        values = combined_cases.make_arguments(dtype)
    else:
        function, code, values = of_fields(function)
    patterns = activity_patterns(function, values)
    return Check(function, values, patterns[pattern % len(patterns)], code=code, **how)


def flattened(function, values):
    """The function with nested tuples of its result flattened."""
    names = function.__code__.co_varnames[: len(values)]
    namespace = {"call": lambda *a: tuple(flat(function(*a)))}
    exec(f"def plain({', '.join(names)}): return call({', '.join(names)})", namespace)
    return namespace["plain"]


def flat(value):
    for v in value if isinstance(value, tuple) else () if value is None else (value,):
        yield from flat(v) if isinstance(v, tuple) else (v,)


def compare(name, dtype, check):
    """Compare adjoint and tangent, and the tangent with differences (always of the kernel in double precision)."""
    is_double = np.finfo(dtype).bits == 64
    check.compare(1e-11 if is_double else 2e-4, against_differences=is_double and CORPUS[name].differences)
    if not is_double and CORPUS[name].differences:
        compare_with_double(check)


def compare_with_double(check):
    """Compare the tangent in single precision with differences of the same kernel, given the same numbers in double.

    Both lose digits: the tangent by rounding in every operation, relative to the size of its terms.
    """
    direction = check.direction()
    found = check.tangents(direction)
    double = Widened(check)
    expected = double.differences({n: wider(d) for n, d in direction.items()})
    scale = 1.0 + max((float(np.max(np.abs(e), initial=0.0)) for e in expected), default=0.0)
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(wider(a), b, rtol=1e-3, atol=1e-4 * scale)


def wider(value):
    """A number or array of single precision in double precision."""
    wide = {"f": np.float64, "c": np.complex128}.get(np.asarray(value).dtype.kind)
    return value if wide is None else np.asarray(value, wide)[()]


class Widened:
    """The differences of a check, with its kernel in double precision."""

    def __init__(self, check):
        self.function, self.names, self.tangent = check.function, check.names, check.tangent
        self.arguments = [wider(a) for a in check.arguments]

    differences = Check.differences


# ------------------------------------------------------------------------------------------- what there is

CONSTRUCTS = {
    "for": lambda n: isinstance(n, ast.For),
    "while": lambda n: isinstance(n, ast.While),
    "if": lambda n: isinstance(n, ast.If),
    "conditional expression": lambda n: isinstance(n, ast.IfExp),
    "break": lambda n: isinstance(n, ast.Break),
    "continue": lambda n: isinstance(n, ast.Continue),
    "else of a loop": lambda n: isinstance(n, (ast.For, ast.While)) and bool(n.orelse),
    "parallel loop": lambda n: called(n) == "prange",
    "enumerate": lambda n: called(n) == "enumerate",
    "zip": lambda n: called(n) == "zip",
    "slice": lambda n: isinstance(n, ast.Slice),
    "whole array function": lambda n: called(n) in ("sum", "where", "mean", "dot", "concatenate", "solve", "max"),
    "matrix product": lambda n: isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult),
    "augmented assignment": lambda n: isinstance(n, ast.AugAssign),
    "swap": lambda n: isinstance(n, ast.Assign) and swapped(n),
    "tuple": lambda n: isinstance(n, ast.Tuple) and isinstance(n.ctx, ast.Load),
    "local array": lambda n: called(n) in ("empty", "zeros", "ones", "empty_like", "zeros_like", "full"),
    "index array": lambda n: isinstance(n, ast.Subscript) and isinstance(n.slice, ast.Subscript),
    "field": lambda n: isinstance(n, ast.Subscript) and isinstance(getattr(n.slice, "value", None), str),
    "function inside": lambda n: isinstance(n, (ast.FunctionDef, ast.Lambda)),
    "call": lambda n: called(n) in ("weighted", "smoothed", "smooth", "paired", "spread_out", "larger", "cubed"),
    "and, or": lambda n: isinstance(n, ast.BoolOp),
    "power": lambda n: isinstance(n, ast.BinOp) and isinstance(n.op, ast.Pow),
    "integer arithmetic": lambda n: isinstance(n, ast.BinOp) and isinstance(n.op, (ast.Mod, ast.FloorDiv, ast.BitAnd)),
    "raise, assert": lambda n: isinstance(n, (ast.Raise, ast.Assert)),
}
TOGETHER = ("for", "while", "if", "parallel loop", "slice", "local array", "index array", "augmented assignment",
            "break", "conditional expression", "call", "tuple", "function inside")  # fmt: skip


def called(node):
    if not isinstance(node, ast.Call):
        return None
    return getattr(node.func, "id", getattr(node.func, "attr", None))


def swapped(node):
    target, value = node.targets[0], node.value
    if not (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)):
        return False
    return {ast.unparse(e) for e in target.elts} == {ast.unparse(e) for e in value.elts}


def constructs(function):
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    definition = next(n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef))
    nodes = [n for statement in definition.body for n in ast.walk(statement)]
    return {name for name, is_there in CONSTRUCTS.items() if any(map(is_there, nodes))}


def test_the_corpus_is_large_enough():
    """At least 200 kernels; every construct in several, and every pair of the usual ones in one kernel."""
    assert len(CORPUS) >= 200
    found = [constructs(entry.function) for entry in CORPUS.values()]
    count = Counter(c for each in found for c in each)
    assert not {c for c in CONSTRUCTS if count[c] < (1 if c in ("raise, assert", "else of a loop") else 3)}, count
    together = {pair for each in found for pair in itertools.combinations(TOGETHER, 2) if set(pair) <= each}
    assert sorted(set(itertools.combinations(TOGETHER, 2)) - together) == []


# ------------------------------------------------------------------------------------------- checks

# The other kernels are compared with differences by the tests in their own files.
HERE = [n for n in CORPUS if n.startswith(("combined", "structured"))]
SINGLE = [n for n in CORPUS if np.float32 in CORPUS[n].dtypes]
LONG = {"arrays: other_products"}  # takes ten seconds to differentiate


def crossing():
    for name, entry in CORPUS.items():
        for dtype in entry.dtypes:
            yield pytest.param(name, dtype, id=f"{name}-{np.dtype(dtype)}")


@pytest.mark.parametrize("name", HERE)
def test_derivatives(name):
    for dtype in CORPUS[name].dtypes[:2]:
        compare(name, dtype, make_check(name, dtype))


@pytest.mark.parametrize("name", HERE[::5])
def test_one_argument_alone(name):
    check = make_check(name, CORPUS[name].dtypes[0], 1 + list(CORPUS).index(name))
    compare(name, CORPUS[name].dtypes[0], check)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in LONG else []) for n in SINGLE[::3]])
def test_single_precision(name):
    compare(name, np.float32, make_check(name, np.float32))


def on_threads(name, dtype, pattern=0):
    """Compare the compiled adjoint on threads with the serial one in plain Python."""
    serial = make_check(name, dtype, pattern)
    check = make_check(name, dtype, pattern, options=Options(threads=True))
    array_seeds, result_seeds = serial.seeds()
    expected = serial.adjoints(array_seeds, result_seeds)
    check.run_adjoint = load(check.adjoint.function, jit=True, parallel=True)
    before = numba.get_num_threads()
    numba.set_num_threads(min(2, before))
    try:
        found = check.adjoints(array_seeds, result_seeds)
    finally:
        numba.set_num_threads(before)
    tolerance = 1e-12 if np.finfo(dtype).bits == 64 else 1e-3
    for n in expected:
        np.testing.assert_allclose(found[n], expected[n], tolerance, tolerance)


PARALLEL = [n for n in CORPUS if "prange" in inspect.getsource(CORPUS[n].function)]


@pytest.mark.parametrize("name", [n for n in PARALLEL if n.startswith(("combined", "structured"))][::32])
def test_threads_give_the_same(name):
    on_threads(name, np.float64)


@pytest.mark.slow
@pytest.mark.parametrize("name", PARALLEL)
def test_threads_give_the_same_for_every_type(name):
    for pattern, dtype in enumerate(CORPUS[name].dtypes):
        on_threads(name, dtype, pattern)


@pytest.mark.slow
@pytest.mark.parametrize("name, dtype", list(crossing()))
def test_every_type_with_every_activity(name, dtype):
    check = make_check(name, dtype)
    compare(name, dtype, check)
    for pattern in range(1, len(activity_patterns(check.function, check.arguments))):
        compare(name, dtype, make_check(name, dtype, pattern))


@pytest.mark.slow
@pytest.mark.parametrize("name, make", list(combined_cases.pairs()))
def test_two_contents_in_a_time_loop(name, make):
    for dtype in (np.float64, np.complex128):
        values = combined_cases.make_arguments(dtype)
        function = make()
        Check(function, values, tuple(float_arguments(function, values))).compare(1e-11)

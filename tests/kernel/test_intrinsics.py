"""Every entry of the table of intrinsics: tangents compared with differences, adjoints with tangents, and kinks."""

import math

import numba
import numpy as np
import pytest
from numba import types

from ampi.kernel import ir
from ampi.kernel.codegen import emit
from ampi.kernel.ir.intrinsics import TABLE, is_differentiable, lookup
from ampi.kernel.ir.partials import adjoint_of, tangent_of

OF_THEIR_OWN = ("select", "cast", "real", "imag", "conj", "complex", "chosen", "tetragamma")
SMOOTH = [n for n, e in TABLE.items() if any(e.partials) and n not in OF_THEIR_OWN and not n.startswith("scipy_")]
"""Smooth intrinsics; test_scipy_in_kernels tests SciPy's."""
STEPS = ["floor", "ceil", "trunc", "round", "sign", "floordiv"]
HOLOMORPHIC = (
    "add sub mul truediv pow neg square reciprocal sqrt exp log log10 sin cos tan asin acos atan "
    "sinh cosh tanh asinh acosh atanh"
).split()
NAMES = "xyz"


def compiled(expressions, ty, extra=(), count=2):
    """A compiled function of ``count`` arguments and d that returns the values of expressions."""
    arguments = tuple(ir.Argument(n, ty) for n in (*NAMES[:count], "d", *extra))
    body = (ir.Return(tuple(expressions)),)
    namespace = {}
    exec(emit.HEADER + emit.source(ir.Function("f", arguments, body, result=("tuple", len(expressions)))), namespace)
    return numba.njit(namespace["f"], error_model="numpy")


def operation(name, ty):
    args = tuple(ir.Var(n, ty) for n in NAMES[: TABLE[name].arity])
    return ir.Op(name, args, ty)


def sample(name, rng):
    domain = TABLE[name].domain
    spans = domain if len(domain) == TABLE[name].arity else domain * TABLE[name].arity or ((-1.5, 1.5),) * 2
    return [rng.uniform(*spans[min(k, len(spans) - 1)]) for k in range(max(2, TABLE[name].arity))]


@pytest.mark.parametrize("name", SMOOTH)
def test_partials_against_differences(name):
    if name == "trigamma":
        pytest.skip("has no derivative here")
    op = operation(name, types.float64)
    d = ir.Var("d", types.float64)
    tangents = [tangent_of(op, k, op, d) or ir.Const(0.0, types.float64) for k in range(len(op.args))]
    adjoints = [adjoint_of(op, k, op, d) or ir.Const(0.0, types.float64) for k in range(len(op.args))]
    count = max(2, len(op.args))
    function = compiled([op, *tangents, *adjoints], types.float64, count=count)
    rng = np.random.default_rng(3)
    for _ in range(5):
        point = sample(name, rng)
        values = function(*point, 0.7)
        for k in range(len(op.args)):
            step = np.eye(count)[k] * 1e-3
            at = [function(*(np.array(point) + m * step), 0.7)[0] for m in (-2, -1, 1, 2)]
            expected = 0.7 * (8 * (at[2] - at[1]) - (at[3] - at[0])) / 12e-3
            assert values[1 + k] == pytest.approx(expected, rel=1e-7, abs=1e-7)
            assert values[1 + len(op.args) + k] == values[1 + k]


@pytest.mark.parametrize("name", SMOOTH)
def test_single_precision_stays_single(name):
    op = operation(name, types.float32)
    d = ir.Var("d", types.float32)
    for k in range(len(op.args)):
        change = tangent_of(op, k, op, d)
        if change is not None:
            assert change.type == types.float32
            compiled([change], types.float32).compile((types.float32,) * 3)
            function = compiled([change], types.float32)
            function.compile((types.float32,) * 3)
            assert function.nopython_signatures[0].return_type.dtype == types.float32


@pytest.mark.parametrize("name", HOLOMORPHIC)
def test_holomorphic(name):
    """Tangents equal differences along two directions; adjoint and tangent satisfy Re<g, t(d)> = Re<a(g), d>."""
    ty = types.complex128
    op = operation(name, ty)
    d = ir.Var("d", ty)
    tangents = [tangent_of(op, k, op, d) for k in range(len(op.args))]
    adjoints = [adjoint_of(op, k, op, d) for k in range(len(op.args))]
    function = compiled([op, *tangents, *adjoints], ty)
    rng = np.random.default_rng(3)
    n = len(op.args)
    for _ in range(3):
        point = [complex(*rng.uniform(0.2, 1.2, 2)) for _ in range(2)]
        change, g = complex(0.3, -0.8), complex(-0.4, 0.9)
        values = function(*point, change)
        back = function(*point, g)
        for k in range(n):
            at = [function(*(np.array(point) + m * 1e-3 * change * np.eye(2)[k]), change)[0] for m in (-2, -1, 1, 2)]
            expected = (8 * (at[2] - at[1]) - (at[3] - at[0])) / 12e-3
            assert values[1 + k] == pytest.approx(expected, rel=1e-7, abs=1e-7)
            assert (g.conjugate() * values[1 + k]).real == pytest.approx((back[1 + n + k].conjugate() * change).real)


@pytest.mark.parametrize("name", ["abs", "real", "imag", "conj"])
def test_not_holomorphic(name):
    ty = types.complex128
    x, d = ir.Var("x", ty), ir.Var("d", ty)
    result = ty if name == "conj" else types.float64
    op = ir.Op(name, (x,), result)
    g = ir.Var("y", ty) if name == "conj" else ir.Op("real", (ir.Var("y", ty),), types.float64)
    function = compiled([op, tangent_of(op, 0, op, d), adjoint_of(op, 0, op, g)], ty)
    point, change, seed = 0.6 - 0.3j, 0.2 + 0.9j, -0.7 + 0.4j
    value, tangent, adjoint = function(point, seed, change)
    h = 1e-6
    expected = (function(point + h * change, seed, change)[0] - function(point - h * change, seed, change)[0]) / (2 * h)
    assert tangent == pytest.approx(expected, rel=1e-8)
    g = seed if name == "conj" else seed.real
    assert (np.conj(g) * tangent).real == pytest.approx((np.conj(adjoint) * change).real)


@pytest.mark.parametrize("name", STEPS)
def test_steps_have_derivative_zero(name):
    assert TABLE[name].partials[0] is None


KINKS = {
    ("abs", (0.0, 0.0)): (1.0,),
    ("min", (2.0, 2.0)): (1.0, 0.0),
    ("max", (2.0, 2.0)): (1.0, 0.0),
    ("minimum", (2.0, 2.0)): (1.0, 0.0),
    ("hypot", (0.0, 0.0)): (1.0, 1.0),
    ("sqrt", (0.0, 0.0)): (math.inf,),
    ("cbrt", (0.0, 0.0)): (math.inf,),
    ("pow", (0.0, 2.0)): (0.0, 0.0),
    ("pow", (0.0, 0.0)): (0.0, -math.inf),
    ("copysign", (0.0, -1.0)): (-1.0, 0.0),
}


@pytest.mark.parametrize("name, point", KINKS)
def test_kinks(name, point):
    op = operation(name, types.float64)
    d = ir.Var("d", types.float64)
    changes = [tangent_of(op, k, op, d) or ir.Const(0.0, types.float64) for k in range(len(op.args))]
    function = compiled(changes, types.float64)
    assert function(*point, 1.0) == KINKS[name, point]
    assert not np.isnan(function(*point, 0.0)).any() or name == "pow"


def test_lookup():
    assert lookup(math.sqrt) == lookup(np.sqrt) == "sqrt"
    assert lookup(abs) == lookup(np.abs) == lookup(math.fabs) == "abs"
    assert lookup(np.arctan2) == "atan2"
    assert lookup([]) is None and lookup(print) is None


def test_every_entry_is_tested():
    """An entry with partial derivatives is tested as smooth, or has its own test."""
    for name, entry in TABLE.items():
        if name.startswith(("scipy_", "foreign_")):  # tested elsewhere; the latter come from kernels compiled earlier
            continue
        assert name in SMOOTH or not any(entry.partials) or name in OF_THEIR_OWN
    assert is_differentiable(types.float32) and not is_differentiable(types.int64)

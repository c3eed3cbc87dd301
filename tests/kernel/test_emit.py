"""Generated source: it reads like Python, names its origin, and keeps types."""

import inspect
import math

import numba
import numpy as np
import pytest
from kernel_cases import CASES
from kernel_checks import Check, activity_patterns, kernel_ir, load, make_arguments
from numba import types

import ampi
from ampi.kernel import ir, pipeline
from ampi.kernel.codegen import emit

X, Y = ir.Var("x", types.float64), ir.Var("y", types.float64)
LESS, LOADED = (
    ir.Op("lt", (X, y), types.boolean)
    for y in (Y, ir.Load(ir.Var("a", types.Array(types.float64, 1, "C")), (ir.Const(0, types.int64),), types.float64))
)


@pytest.mark.parametrize(
    "expression, text",
    [
        (ir.Op("mul", (ir.Op("add", (X, Y), types.float64), X), types.float64), "(x + y) * x"),
        (ir.Op("add", (ir.Op("mul", (X, Y), types.float64), X), types.float64), "x * y + x"),
        (ir.Op("sqrt", (X,), types.float64), "math.sqrt(x)"),
        (ir.Op("sqrt", (ir.Var("z", types.complex128),), types.complex128), "cmath.sqrt(z)"),
        (ir.Op("floor", (X,), types.int64), "math.floor(x)"),
        (ir.Op("floor", (X,), types.float64), "np.floor(x)"),
        (ir.Op("cast", (X,), types.float32), "np.float32(x)"),
        (ir.Op("select", (ir.Op("lt", (X, Y), types.boolean), X, Y), types.float64), "selected(x < y, x, y)"),
        (ir.Op("and", (LESS, ir.Op("not", (LESS,), types.boolean)), types.boolean), "(x < y) & (not x < y)"),
        (ir.Op("or", (ir.Op("and", (LESS, LESS), types.boolean), LESS), types.boolean), "(x < y) & (x < y) | (x < y)"),
        (ir.Op("and", (LESS, LOADED), types.boolean), "x < y and x < a[0]"),
        (ir.Const(2.0, types.float64), "2.0"),
        (ir.Const(2.0, types.float32), "np.float32(2.0)"),
        (ir.Const(math.inf, types.float64), "math.inf"),
        (ir.Const(-math.inf, types.float64), "-math.inf"),
        (ir.Const(math.nan, types.float64), "math.nan"),
        (ir.Const(3, types.int64), "3"),
        (ir.Const(3, types.uint8), "np.uint8(3)"),
        (ir.Const(True, types.boolean), "True"),
        (ir.Const(2j, types.complex128), "2j"),
    ],
)
def test_expression(expression, text):
    assert emit.expression(expression) == text


def roots(x, y):
    return math.sqrt(1.0 - math.cos(x)) * y


def test_a_masked_product_is_one_operation():
    """A factor that is zero makes the product zero, and one call tests and selects."""
    text = ampi.kernel(roots).adjoint_source(0.3, 0.5)
    assert "where_nonzero(" in text.split("def ")[1]
    assert " != 0.0" not in text and "selected(" not in text.split("def ")[1]
    assert ampi.grad(ampi.kernel(roots), argnums=(0, 1))(0.0, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize("value", [-0.0, 1e300, 1 / 3, complex(-0.0, 1), complex(1, -0.0), complex(math.inf, 0)])
def test_numbers_survive(value):
    ty = types.complex128 if isinstance(value, complex) else types.float64
    assert repr(eval(emit.expression(ir.Const(value, ty)), {"math": math})) == repr(value)


def test_adjoint_reads_well():
    arguments = make_arguments("cumulative_product")
    code = kernel_ir(CASES["cumulative_product"].function, arguments)
    text = emit.source(pipeline.build_adjoint(code, {"x"}).function)
    lines, first = inspect.getsourcelines(CASES["cumulative_product"].function)
    place = {line.strip(): first + k for k, line in enumerate(lines)}
    assert text.startswith("def cumulative_product_adjoint(x, out, x_bar, out_bar, s_bar):\n")
    assert f"s_saved[i] = s  # line {place['for i in range(x.shape[0]):']}" in text
    assert f"x_bar[i_1] += (s_bar_1 + s_bar_2) * s_saved[i_1]  # line {place['s = s * x[i]']}" in text
    for line in text.splitlines()[1:]:
        assert "# line" in line or line.strip() == "else:"


SINGLE = ["product", "reassigned", "axpy", "in_place", "gather", "scatter_add", "permuted", "recurrence_in_memory"]


@pytest.mark.parametrize("name", SINGLE)
def test_single_precision_stays_single(name):
    arguments = make_arguments(name, np.float32)
    function = CASES[name].function
    active = activity_patterns(function, arguments)[0]
    Check(function, arguments, active).compare(1e-4, against_differences=False)
    check = Check(function, arguments, active, jit=True)
    array_seeds, result_seeds = check.seeds()
    check.adjoints(array_seeds, [np.float32(s) for s in result_seeds])
    (compiled,) = check.run_adjoint.overloads.values()
    kinds = {t for name, t in compiled.type_annotation.typemap.items() if not name.startswith("$const")}
    assert not [t for t in kinds if getattr(t, "dtype", t) == numba.float64]


def test_options_do_not_change_the_primal_types():
    code = kernel_ir(CASES["powers"].function, make_arguments("powers"))
    assert load(code)(1.5, 3) == pytest.approx(CASES["powers"].function(1.5, 3))

"""Derivatives of every function at extreme arguments: zeros, subnormal, smallest, tiny, huge and infinite numbers.

If the value and the derivative are representable, the result must equal the derivative, computed here in extended
precision, in which squares do not overflow.  If a seed is zero, the result must be zero.
"""

import importlib.util
import itertools
import math

import numba
import numpy
import pytest
from scipy import special

import ampi
import ampi.numpy as np
from ampi.arrays.elementwise import ADJOINTS, CONSTANT, PARTIALS
from ampi.kernel import pipeline
from ampi.kernel.codegen import emit
from ampi.kernel.ir.intrinsics import TABLE, lookup

L = numpy.longdouble
LN2, LN10 = numpy.log(L(2)), numpy.log(L(10))
pytestmark = [
    pytest.mark.skipif(numpy.finfo(L).maxexp < 16000, reason="long double has the range of double here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]


def larger(x, y):
    """1.0 where x is larger; nan at ties, where kernels and arrays split derivatives differently."""
    return numpy.where((x == y) | numpy.isnan(x + y), numpy.nan, x > y)


def towards(x, y):
    return numpy.where(numpy.hypot(x, y) == 0, numpy.nan, x / numpy.hypot(x, y))


def gamma_slope(x):
    x = x.astype(float)
    return numpy.where(x > 0, special.gamma(x) * special.digamma(x), numpy.nan)


DERIVATIVES = {
    "add": (lambda x, y: x * 0 + 1, lambda x, y: x * 0 + 1),
    "subtract": (lambda x, y: x * 0 + 1, lambda x, y: x * 0 - 1),
    "multiply": (lambda x, y: y, lambda x, y: x),
    "divide": (lambda x, y: 1 / y, lambda x, y: -x / y / y),
    "power": (
        lambda x, y: numpy.where(y == 0, 0, y * x ** (y - 1)),
        lambda x, y: numpy.where((x == 0) & (y > 0), 0, numpy.where(x > 0, x**y * numpy.log(x), numpy.nan)),
    ),
    "remainder": (lambda x, y: x * 0 + 1, lambda x, y: -numpy.floor(x / y)),
    "fmod": (lambda x, y: x * 0 + 1, lambda x, y: -numpy.trunc(x / y)),
    "maximum": (lambda x, y: larger(x, y), lambda x, y: larger(y, x)),
    "minimum": (lambda x, y: larger(y, x), lambda x, y: larger(x, y)),
    "fmax": (lambda x, y: larger(x, y), lambda x, y: larger(y, x)),
    "fmin": (lambda x, y: larger(y, x), lambda x, y: larger(x, y)),
    "logaddexp": (lambda x, y: 1 / (1 + numpy.exp(y - x)), lambda x, y: 1 / (1 + numpy.exp(x - y))),
    "logaddexp2": (lambda x, y: 1 / (1 + numpy.exp2(y - x)), lambda x, y: 1 / (1 + numpy.exp2(x - y))),
    "arctan2": (
        lambda x, y: numpy.where(numpy.isinf(x) & numpy.isinf(y), 0, y / (x * x + y * y)),
        lambda x, y: numpy.where(numpy.isinf(x) & numpy.isinf(y), 0, -x / (x * x + y * y)),
    ),
    "hypot": (lambda x, y: towards(x, y), lambda x, y: towards(y, x)),
    "nextafter": (lambda x, y: numpy.ones_like(x), None),
    "copysign": (lambda x, y: numpy.where(x == 0, numpy.nan, numpy.sign(x) * numpy.copysign(L(1), y)), None),
    "negative": (lambda x: x * 0 - 1,),
    "positive": (lambda x: x * 0 + 1,),
    "fabs": (lambda x: numpy.where(x == 0, numpy.nan, numpy.sign(x)),),
    "absolute": (lambda x: numpy.where(x == 0, numpy.nan, numpy.sign(x)),),
    "sqrt": (lambda x: 1 / (2 * numpy.sqrt(x)),),
    "cbrt": (lambda x: 1 / (3 * numpy.cbrt(x) ** 2),),
    "square": (lambda x: 2 * x,),
    "reciprocal": (lambda x: -1 / (x * x),),
    "exp": (lambda x: numpy.exp(x),),
    "exp2": (lambda x: LN2 * numpy.exp2(x),),
    "expm1": (lambda x: numpy.exp(x),),
    "log": (lambda x: 1 / numpy.where(x < 0, numpy.nan, x),),
    "log2": (lambda x: 1 / (LN2 * numpy.where(x < 0, numpy.nan, x)),),
    "log10": (lambda x: 1 / (LN10 * numpy.where(x < 0, numpy.nan, x)),),
    "log1p": (lambda x: 1 / (1 + numpy.where(x < -1, numpy.nan, x)),),
    "sin": (lambda x: numpy.cos(x),),
    "cos": (lambda x: -numpy.sin(x),),
    "tan": (lambda x: 1 / numpy.cos(x) ** 2,),
    "arcsin": (lambda x: 1 / numpy.sqrt((1 - x) * (1 + x)),),
    "arccos": (lambda x: -1 / numpy.sqrt((1 - x) * (1 + x)),),
    "arctan": (lambda x: 1 / (1 + x * x),),
    "sinh": (lambda x: numpy.cosh(x),),
    "cosh": (lambda x: numpy.sinh(x),),
    "tanh": (lambda x: 1 / numpy.cosh(x) ** 2,),
    "arcsinh": (lambda x: 1 / numpy.sqrt(x * x + 1),),
    "arccosh": (lambda x: 1 / (numpy.sqrt(x - 1) * numpy.sqrt(x + 1)),),
    "arctanh": (lambda x: numpy.where(abs(x) > 1, numpy.nan, 1 / ((1 - x) * (1 + x))),),
    "degrees": (lambda x: x * 0 + 180 / L(math.pi),),
    "radians": (lambda x: x * 0 + L(math.pi) / 180,),
}
NOT_HERE = {
    "heaviside",
    "float_power",
    "rad2deg",
    "deg2rad",
    "ldexp",
    "conjugate",
    "clip",
}  # others' names, integers, three arguments
IN_KERNELS = {
    "erf": (lambda x: 2 / numpy.sqrt(L(math.pi)) * numpy.exp(-x * x),),
    "erfc": (lambda x: -2 / numpy.sqrt(L(math.pi)) * numpy.exp(-x * x),),
    "gamma": (gamma_slope,),
    "lgamma": (lambda x: numpy.where(x > 0, special.digamma(x.astype(float)), numpy.nan),),
}
WITHOUT_CASE = {
    "trigamma",  # derivatives of scipy.special functions, tested with them
    "tetragamma",
    "select",
    "cast",
    "chosen",
    "real",
    "imag",
    "conj",
    "complex",
    "fused",
    "where_nonzero",
    "digamma",
    "min",
    "max",
    "ldexp",
    "mantissa",
}
DTYPES = ["f4", "f8"]


def points(dtype, beyond=False):
    """Pairs of numbers of all magnitudes; ``beyond``: with infinities and nan."""
    info = numpy.finfo(dtype)
    sizes = [
        0,
        info.smallest_subnormal,
        info.tiny,
        info.tiny**0.6,
        1e-7,
        0.5,
        1.0,
        1.5,
        2.0,
        20.0,
        info.max**0.6,
        info.max,
    ]
    some = [s * float(size) for size in sizes for s in (1, -1)]
    some += [math.inf, -math.inf, math.nan] if beyond else []
    x, y = numpy.array(list(itertools.product(some, some)), dtype).T
    return numpy.ascontiguousarray(x), numpy.ascontiguousarray(y)


def excused(name, x, y, dtype):
    """Mask of points at which rounding (of the argument or a quotient) or a reciprocal outweighs the formula."""
    info = numpy.finfo(dtype)
    small = lambda a: (a != 0) & (abs(a) < info.tiny)
    if name in ("sin", "cos", "tan"):
        return abs(x) > 1e4
    if name in ("remainder", "fmod"):
        return (abs(x / y) > 1e5) | small(x) | small(y) | (y == 0) | numpy.isinf(x) | numpy.isinf(y)
    if name == "divide":
        return small(y)  # kernels multiply by its reciprocal, which is infinite
    if name == "hypot":
        return small(numpy.hypot(x, y))
    if name == "power":
        return small(x) & (abs(y) < 1)
    if name in ("gamma", "lgamma"):
        return (abs(x - 1.4616) < 0.1) | small(x)
    return numpy.zeros(x.shape, bool)


def check(name, k, found, derivative, value, x, y, dtype):
    """Compare with the derivative wherever a comparison makes sense."""
    info = numpy.finfo(dtype)
    arguments = (x.astype(L), y.astype(L))[: derivative.__code__.co_argcount]
    expected = derivative(*arguments).astype(L)
    finite = numpy.isfinite(x) & numpy.isfinite(y)
    overflown = finite & numpy.isinf(value) & numpy.isfinite(expected)
    compared = ~numpy.isnan(expected) & ~excused(name, x, y, dtype) & ~overflown
    outside = compared & (abs(expected) > info.max)
    assert (abs(found[outside]) >= info.max * 0.99).all(), (name, k, "beyond the range")
    inside = compared & ~outside
    scale = 1.0 if name in ("tanh", "logaddexp", "logaddexp2") else 0.0  # a number near one is rounded
    base = numpy.clip(numpy.nan_to_num(abs(x), nan=1.0), info.smallest_subnormal, info.max)
    with_rounded_exponent = 1 + abs(numpy.log(base)) if name == "power" else 1
    bound = 64 * info.eps * (abs(expected) + scale) * with_rounded_exponent + 4 * info.tiny
    wrong = inside & ~(abs(found - expected) <= bound)
    report = [
        (name, k, float(x[i]), float(y[i]), float(found[i]), float(expected[i])) for i in numpy.flatnonzero(wrong)
    ]
    assert not report, report[:12]


def test_every_function_has_a_case():
    assert set(PARTIALS) | set(ADJOINTS) == set(DERIVATIVES) | NOT_HERE
    tested = {lookup(getattr(numpy, name)) for name in DERIVATIVES} | set(IN_KERNELS) | WITHOUT_CASE
    of_numpy = {
        name for name, entry in TABLE.items() if any(entry.partials) and not name.startswith(("scipy_", "foreign_"))
    }
    assert of_numpy == tested - {None}
    assert not CONSTANT & set(DERIVATIVES)


# ------------------------------------------------------------------------------------------------------ on the tape


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_arrays(name, dtype):
    derivatives = DERIVATIVES[name]
    x, y = points(dtype, beyond=True)
    with ampi.Tape() as tape:
        watched = [tape.watch(a) for a in (x, y)[: len(derivatives)]]
        value = getattr(np, name)(*watched)
    gradients = tape.gradient(value, watched, numpy.ones(x.shape, dtype))
    for k, derivative in enumerate(derivatives):
        if derivative is not None:
            check(name, k, gradients[k], derivative, ampi.value(value), x, y, dtype)
    for bar in tape.gradient(value, watched, numpy.zeros(x.shape, dtype)):
        assert (bar == 0).all()


# ------------------------------------------------------------------------------------------------------- in kernels


def columns():
    named = {f"np.{name}": (name, d) for name, d in DERIVATIVES.items() if lookup(getattr(numpy, name)) is not None}
    return named | {f"math.{name}": (name, d) for name, d in IN_KERNELS.items()}


def kernel_of_all(folder, **options):
    """One kernel that computes all functions, so that functions with zero seeds accompany the one with another seed."""
    calls = [f"{f}({', '.join(('x[i]', 'y[i]')[: len(d)])})" for f, (_, d) in columns().items()]
    lines = ["import math", "import numpy as np", "def every_function(x, y, out):", "    for i in range(len(x)):"]
    lines += [f"        out[{k}, i] = {call}" for k, call in enumerate(calls)]
    path = folder / "every_function.py"
    path.write_text("\n".join(lines) + "\n")
    spec = importlib.util.spec_from_file_location("every_function", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return ampi.kernel(error_model="numpy", **options)(module.every_function)


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "dtype, fastmath",
    [
        pytest.param(dtype, fastmath, marks=[pytest.mark.slow] if (k + fastmath) % 2 else [])
        for k, dtype in enumerate(DTYPES)
        for fastmath in (False, True)
    ],
)
def test_kernels(tmp_path, dtype, fastmath):
    kernel = kernel_of_all(tmp_path, fastmath=fastmath)
    x, y = points(dtype)
    with ampi.Tape() as tape:
        x_in, y_in = tape.watch(x), tape.watch(y)
        out = np.zeros((len(columns()), len(x)), dtype)
        kernel(x_in, y_in, out)
    for row, (name, derivatives) in enumerate(columns().values()):
        seed = numpy.zeros(out.shape, dtype)
        seed[row] = 1
        bars = tape.gradient(out, [x_in, y_in], seed)
        for k, derivative in enumerate(derivatives):
            if derivative is not None:
                check(name, k, bars[k], derivative, ampi.value(out)[row], x, y, dtype)
    for bar in tape.gradient(out, [x_in, y_in], numpy.zeros(out.shape, dtype)):
        assert (bar == 0).all()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("dtype", DTYPES)
def test_tangents(tmp_path, dtype):
    kernel = kernel_of_all(tmp_path)
    x, y = points(dtype)
    out = numpy.zeros((len(columns()), len(x)), dtype)
    made = pipeline.build_tangent(kernel.ir_of(kernel.types_of((x, y, out))), {"x", "y"})
    (program,) = emit.spelled(made.function)
    namespace = {}
    exec(emit.HEADER + emit.source(program), namespace)
    push = numba.njit(namespace[program.name], error_model="numpy")
    for k, directions in enumerate(((1, 0), (0, 1), (0, 0))):
        dots = [numpy.full(x.shape, d, dtype) for d in directions]
        out_dot = numpy.zeros_like(out)
        push(x, y, out, *dots, out_dot)
        for row, (name, derivatives) in enumerate(columns().values()):
            if not any(directions):
                assert (out_dot[row] == 0).all(), name
            elif k < len(derivatives) and derivatives[k] is not None:
                check(name, k, out_dot[row], derivatives[k], out[row], x, y, dtype)

"""The table of scalar operations: source, callables and derivatives of each, in one entry.

An entry states how the operation is written in Numba's subset, which Python callables it stands for, and its
derivative: for each argument the partial derivative, an expression of `ampi.partials`, whose calls are names of this
table.  From this one statement follow

* the tangent: the sum over the arguments of the partial derivative times the argument's tangent;
* the adjoint: the partial derivative times the result's adjoint (``conj(partial * conj(adjoint))`` for complex types,
  since the pairing is the real inner product);
* the values that the derivative needs: those named in the expression.

``None`` instead of an expression means that the derivative is zero (comparisons, integers, steps such as ``floor``).
An expression with ``d``, the change of the argument, is the change of the result itself.
"""

from __future__ import annotations

import builtins
import cmath
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import types

from ampi.kernel.ir import Const, Expr, Op
from ampi.kernel.runtime import scipy_calls
from ampi.kernel.runtime.special import fused, where_nonzero
from ampi.partials import elementary, special
from ampi.partials.special import UNKNOWN, in_words

ARGUMENTS = ("x", "y", "z", "w")


@dataclass(frozen=True)
class Intrinsic:
    """One scalar operation.

    ``source`` is the operation as a Python expression of ``x``, ``y``, ``z``, ``w``; ``source_int`` that for integer
    results, if it differs.  ``partials`` has one expression per argument, ``of_complex`` those of complex numbers, if
    they differ.  ``adjoints`` replaces them in reverse mode for the few operations on complex numbers that are not
    holomorphic.  Where derivatives are ``unbounded``, a change of zero gives zero.  ``domain`` has, for the tests, the
    open interval of each argument in which the function is smooth; ``cost`` is in units of an addition.
    """

    name: str
    source: str
    partials: tuple[str | None, ...]
    callables: tuple[Callable[..., Any], ...] = ()
    adjoints: tuple[str | None, ...] | None = None
    source_int: str | None = None
    domain: tuple[tuple[float, float], ...] = ()
    cost: int = 1
    of_complex: tuple[str | None, ...] | None = None
    unbounded: bool = False
    is_special: bool = False

    @property
    def arity(self) -> int:
        return len(self.partials)


def _callables(*names: str) -> tuple[Callable[..., Any], ...]:
    """The callables of these dotted names that exist in this version of Python and NumPy."""
    modules = {"math": math, "np": np, "cmath": cmath, "builtins": builtins}
    found = []
    for name in names:
        module, _, attribute = name.partition(".")
        function = getattr(modules[module], attribute, None)
        if function is not None:
            found.append(function)
    return tuple(found)


def _function(name: str, source: str, *partials: str | None, also: str = "", **keywords: Any) -> Intrinsic:
    """An entry whose callables are ``math.name``, ``np.name`` and the further names in ``also``."""
    return _operator(name, source, *partials, also=f"math.{name} np.{name} cmath.{name} {also}", **keywords)


def _operator(name: str, source: str, *partials: str | None, also: str = "", **keywords: Any) -> Intrinsic:
    """An entry for the callables in ``also``; without ``partials``, with the derivatives of the ufunc among them."""
    callables = _callables(*also.split())
    if not partials:
        ufunc = next(f.__name__ for f in callables if isinstance(f, np.ufunc) and f.__name__ in elementary.PARTIALS)
        partials = elementary.PARTIALS[ufunc]
        keywords |= {"of_complex": elementary.COMPLEX.get(ufunc), "unbounded": ufunc in elementary.UNBOUNDED}
    return Intrinsic(name, source, partials, callables, **keywords)


_POSITIVE = ((0.1, 3.0),)

_ENTRIES = (
    # arithmetic
    _operator("add", "x + y", also="np.add"),
    _operator("sub", "x - y", also="np.subtract"),
    _operator("mul", "x * y", also="np.multiply"),
    _operator("truediv", "x / y", also="np.divide np.true_divide", cost=4),
    _operator("floordiv", "x // y", None, None, also="np.floor_divide", cost=10),
    _operator("mod", "x % y", also="np.mod np.remainder", domain=((0.1, 0.9), (1.1, 2.0)), cost=10),
    _operator("pow", "x ** y", also="math.pow np.power np.float_power", domain=((0.1, 3.0), (-2.0, 2.0)), cost=20),
    _operator("neg", "-x", also="np.negative"),
    _operator("pos", "+x", also="np.positive"),
    _operator("square", "x * x", also="np.square"),
    _operator("reciprocal", "np.reciprocal(x)", also="np.reciprocal", domain=_POSITIVE, cost=4),
    # comparisons and logic
    _operator("lt", "x < y", None, None, also="np.less"),
    _operator("le", "x <= y", None, None, also="np.less_equal"),
    _operator("gt", "x > y", None, None, also="np.greater"),
    _operator("ge", "x >= y", None, None, also="np.greater_equal"),
    _operator("eq", "x == y", None, None, also="np.equal"),
    _operator("ne", "x != y", None, None, also="np.not_equal"),
    _operator("and", "x and y", None, None, also="np.logical_and"),
    _operator("or", "x or y", None, None, also="np.logical_or"),
    _operator("not", "not x", None, also="np.logical_not"),
    _operator("bitand", "x & y", None, None, also="np.bitwise_and"),
    _operator("bitor", "x | y", None, None, also="np.bitwise_or"),
    _operator("bitxor", "x ^ y", None, None, also="np.bitwise_xor"),
    _operator("invert", "~x", None, also="np.invert"),
    _operator("lshift", "x << y", None, None, also="np.left_shift"),
    _operator("rshift", "x >> y", None, None, also="np.right_shift"),
    _function("signbit", "np.signbit(x)", None),
    _function("gcd", "math.gcd(x, y)", None, None),
    _function("isnan", "np.isnan(x)", None),
    _function("isinf", "np.isinf(x)", None),
    _function("isfinite", "np.isfinite(x)", None),
    _operator("select", "y if x else z", None, "1 if x else 0", "0 if x else 1"),
    _operator("cast", "x", "1"),
    _operator("chosen", "w", None, "1 if x else 0", "0 if x else 1", None),
    # powers, exponentials, logarithms
    _function("sqrt", "math.sqrt(x)", domain=_POSITIVE, cost=4),
    _function("cbrt", "np.cbrt(x)", domain=_POSITIVE, cost=20),
    _function("exp", "math.exp(x)", cost=20),
    _function("exp2", "np.exp2(x)", cost=20),
    _function("expm1", "math.expm1(x)", cost=20),
    _function("log", "math.log(x)", domain=_POSITIVE, cost=20),
    _function("log2", "np.log2(x)", domain=_POSITIVE, cost=20),
    _function("log10", "math.log10(x)", domain=_POSITIVE, cost=20),
    _function("log1p", "math.log1p(x)", domain=_POSITIVE, cost=20),
    _function("logaddexp", "np.logaddexp(x, y)", cost=40),
    _function("logaddexp2", "np.logaddexp2(x, y)", cost=40),
    # trigonometry
    _function("sin", "math.sin(x)", cost=20),
    _function("cos", "math.cos(x)", cost=20),
    _function("tan", "math.tan(x)", domain=((-1.4, 1.4),), cost=20),
    _function("asin", "math.asin(x)", also="np.arcsin", domain=((-0.9, 0.9),), cost=20),
    _function("acos", "math.acos(x)", also="np.arccos", domain=((-0.9, 0.9),), cost=20),
    _function("atan", "math.atan(x)", also="np.arctan", cost=20),
    _function("atan2", "math.atan2(x, y)", also="np.arctan2", domain=((0.1, 2.0), (-2.0, 2.0)), cost=20),
    _function("sinh", "math.sinh(x)", cost=20),
    _function("cosh", "math.cosh(x)", cost=20),
    _function("tanh", "math.tanh(x)", cost=20),
    _function("asinh", "math.asinh(x)", also="np.arcsinh", cost=20),
    _function("acosh", "math.acosh(x)", also="np.arccosh", domain=((1.1, 3.0),), cost=20),
    _function("atanh", "math.atanh(x)", also="np.arctanh", domain=((-0.9, 0.9),), cost=20),
    _function("degrees", "math.degrees(x)", also="np.rad2deg"),
    _function("radians", "math.radians(x)", also="np.deg2rad"),
    # kinks and steps
    _operator("abs", "abs(x)", also="builtins.abs math.fabs np.abs np.absolute np.fabs", domain=_POSITIVE),
    Intrinsic("min", "min(x, y)", ("0 if y < x else 1", "1 if y < x else 0"), (min,)),
    Intrinsic("max", "max(x, y)", ("0 if y > x else 1", "1 if y > x else 0"), (max,)),
    _operator("minimum", "np.minimum(x, y)", also="np.minimum"),
    _operator("maximum", "np.maximum(x, y)", also="np.maximum"),
    _operator("fmin", "np.fmin(x, y)", also="np.fmin"),
    _operator("fmax", "np.fmax(x, y)", also="np.fmax"),
    _function("sign", "np.sign(x)", None),
    _function("copysign", "math.copysign(x, y)"),
    _function("nextafter", "np.nextafter(x, y)"),
    _function("ldexp", "math.ldexp(x, y)"),
    _operator("mantissa", "math.frexp(x)[0]", "r / x if x != 0 else 1", domain=((0.51, 0.99),), cost=4),
    _operator("exponent", "math.frexp(x)[1]", None, cost=4),
    _function("hypot", "math.hypot(x, y)", cost=10),
    _function("fmod", "np.fmod(x, y)", domain=((0.1, 0.9), (1.1, 2.0)), cost=10),
    _function("floor", "np.floor(x)", None, source_int="math.floor(x)"),
    _function("ceil", "np.ceil(x)", None, source_int="math.ceil(x)"),
    _function("trunc", "np.trunc(x)", None, source_int="math.trunc(x)", also="np.fix"),
    Intrinsic("round", "np.rint(x)", (None,), (round, *_callables("np.rint")), source_int="round(x)"),
    # special functions
    _function("erf", "math.erf(x)", *special.PARTIALS["erf"], cost=20),
    _function("erfc", "math.erfc(x)", *special.PARTIALS["erfc"], cost=20),
    _function("gamma", "math.gamma(x)", *special.PARTIALS["gamma"], domain=_POSITIVE, cost=20, unbounded=True),
    _function("lgamma", "math.lgamma(x)", *special.PARTIALS["gammaln"], domain=_POSITIVE, cost=20, unbounded=True),
    _operator("digamma", "digamma(x)", *special.PARTIALS["psi"], domain=_POSITIVE, cost=40, unbounded=True),
    _operator("trigamma", "trigamma(x)", *special.PARTIALS["trigamma"], domain=_POSITIVE, cost=40, unbounded=True),
    _operator("tetragamma", "tetragamma(x)", UNKNOWN, cost=40),
    # only in derivatives
    Intrinsic("fused", "fused(x, y, z)", ("y", "x", "1"), (fused,)),
    Intrinsic("where_nonzero", "where_nonzero(x, y)", (None, "1 if x != 0 else 0"), (where_nonzero,)),
    # complex numbers
    Intrinsic("complex", "complex(x, y)", ("1", "1j"), (complex,)),
    _function("real", "np.real(x)", "real(d)", adjoints=("d",)),
    _function("imag", "np.imag(x)", "imag(d)", adjoints=("1j * d",)),
    _function("conj", "np.conj(x)", "conj(d)", adjoints=("conj(d)",), also="np.conjugate"),
)  # fmt: skip

# Operations with constant derivatives on each side of a kink.  ("chosen" has the value w, which is y if x, else z.)
LINEAR = {"add", "sub", "neg", "pos", "cast", "select", "chosen", "abs", "min", "max", "minimum", "maximum", "fmin",
          "fmax", "copysign", "degrees", "radians"}  # fmt: skip

# Random numbers: x is the number of earlier draws, which makes each draw a different operation.  The numbers are
# constant; an active parameter raises an error.
_RANDOM = (
    ("draw_random", "np.random.random()", 1),
    ("draw_normal", "np.random.standard_normal()", 1),
    ("draw_integer", "np.random.randint(y, z)", 3),
    ("draw_gamma", "np.random.gamma(y, 1.0)", 2),
    ("draw_beta", "np.random.beta(y, z)", 3),
    ("draw_vonmises", "np.random.vonmises(y, z)", 3),
    ("draw_wald", "np.random.wald(y, z)", 3),
    ("draw_standard_t", "np.random.standard_t(y)", 2),
    ("draw_poisson", "np.random.poisson(y)", 2),
    ("draw_binomial", "np.random.binomial(y, z)", 3),
    ("draw_geometric", "np.random.geometric(y)", 2),
    ("draw_negative_binomial", "np.random.negative_binomial(y, z)", 3),
    ("draw_zipf", "np.random.zipf(y)", 2),
    ("draw_logseries", "np.random.logseries(y)", 2),
    ("draw_seed", "seeded(y)", 2),
    # methods of a generator, y
    ("draw_by_random", "y.random()", 2),
    ("draw_by_normal", "y.standard_normal()", 2),
    ("draw_by_exponential", "y.standard_exponential()", 2),
    ("draw_by_gamma", "y.standard_gamma(z)", 3),
    ("draw_by_beta", "y.beta(z, w)", 4),
    ("draw_by_standard_t", "y.standard_t(z)", 3),
    ("draw_by_wald", "y.wald(z, w)", 4),
    ("draw_by_integer", "y.integers(z, w)", 4),
    ("draw_by_interval", "interval(y, z)", 3),
    ("draw_by_poisson", "y.poisson(z)", 3),
    ("draw_by_binomial", "y.binomial(z, w)", 4),
    ("draw_by_geometric", "y.geometric(z)", 3),
)
DRAWS = {name: source.partition("(")[0].replace("y.", "Generator.") for name, source, _ in _RANDOM}
"""The functions that draw random numbers, by the names of their operations."""
_ENTRIES += tuple(_operator(name, source, *[None] * arity, cost=20) for name, source, arity in _RANDOM)


def _of_scipy(name: str, partials: tuple[str, ...]) -> Intrinsic:
    arguments = ", ".join(ARGUMENTS[: len(partials)])
    function = scipy_calls.FUNCTIONS[name]
    return Intrinsic(f"scipy_{name}", f"scipy_{name}({arguments})", partials, (function,), cost=200, is_special=True)


_ENTRIES += tuple(_of_scipy(name, special.PARTIALS[name]) for name in scipy_calls.FUNCTIONS)

TABLE: dict[str, Intrinsic] = {entry.name: entry for entry in _ENTRIES}

WITHOUT_DERIVATIVE = {entry.name for entry in _ENTRIES if UNKNOWN in entry.partials}
"""Operations that lack a derivative."""

_NAME_OF: dict[Any, str] = {function: entry.name for entry in _ENTRIES for function in entry.callables}


def foreign(function: Any, arity: int, partials: tuple[str, ...] | None = None) -> str:
    """An operation that calls a function of another module; its result is constant without ``partials``."""
    name = f"foreign_{arity}_" + re.sub(r"\W", "_", f"{function.__module__}_{function.__name__}")
    text = f"{name}({', '.join(ARGUMENTS[:arity])})"
    TABLE[name] = Intrinsic(name, text, partials or (None,) * arity, (function,), cost=20)
    return name


def lookup(function: Callable[..., Any]) -> str | None:
    """The table's name for a Python callable such as ``math.sqrt``, or None."""
    try:
        return _NAME_OF.get(function)
    except TypeError:  # not hashable
        return None


# ------------------------------------------------------------------------------------------------- types


def real_type(ty: Any) -> Any:
    """The real floating type of a floating or complex type."""
    return ty.underlying_float if isinstance(ty, types.Complex) else ty


def is_differentiable(ty: Any) -> bool:
    """Return whether a scalar type (or an array's element type) can carry a derivative."""
    return isinstance(getattr(ty, "dtype", ty), (types.Float, types.Complex))


def join_types(a: Any, b: Any) -> Any:
    """Numba's type of an arithmetic operation on two scalars."""
    if a == b:
        return a
    if isinstance(a, types.Complex) or isinstance(b, types.Complex):
        single = {a, b} <= {types.complex64, types.float32}
        return types.complex64 if single else types.complex128
    if isinstance(a, types.Float) or isinstance(b, types.Float):
        return types.float64 if {a, b} != {types.float32} else types.float32
    if isinstance(a, types.Boolean):
        return b
    if isinstance(b, types.Boolean):
        return a
    return types.int64 if a.signed or b.signed else types.uint64


def convert(value: Expr, ty: Any) -> Expr:
    """A scalar in another type; from complex to real, the real part (its adjoint under the real inner product)."""
    if value.type == ty:
        return value
    if isinstance(value, Const):
        return constant(value.value.real if not isinstance(ty, types.Complex) else value.value, ty)
    if isinstance(value.type, types.Complex) and not isinstance(ty, types.Complex):
        return convert(Op("real", (value,), real_type(value.type)), ty)
    return Op("cast", (value,), ty)


def constant(value: Any, ty: Any) -> Const:
    """A literal of a type."""
    if isinstance(ty, types.Boolean):
        return Const(bool(value), ty)
    if isinstance(ty, types.Integer):
        return Const(int(value), ty)
    return Const(complex(value) if isinstance(ty, types.Complex) else float(value), ty)


# ------------------------------------------------------------------------------------------------- derivatives


def is_constant(value: Expr, number: complex) -> bool:
    return isinstance(value, Const) and not isinstance(value.value, bool) and value.value == number


def negate(value: Expr) -> Expr:
    """``-value``, with double negation and constants folded."""
    if isinstance(value, Op) and value.name == "neg":
        return value.args[0]
    if isinstance(value, Const):
        return constant(-value.value, value.type)
    return Op("neg", (value,), value.type)


def arithmetic(name: str, a: Expr, b: Expr) -> Expr:
    """An arithmetic operation on derivatives, without factors of one and terms of zero."""
    ty = join_types(a.type, b.type)
    if isinstance(a, Const) and isinstance(b, Const) and name in ("add", "sub", "mul"):
        x, y = a.value, b.value
        return constant({"add": x + y, "sub": x - y, "mul": x * y}[name], ty)
    if name == "mul":
        if is_constant(a, 1) and b.type == ty:
            return b
        if is_constant(b, 1) and a.type == ty:
            return a
    if name == "add":
        if is_constant(a, 0) and b.type == ty:
            return b
        if is_constant(b, 0) and a.type == ty:
            return a
        if isinstance(b, Op) and b.name == "neg":
            return Op("sub", (a, b.args[0]), ty)
        if isinstance(a, Op) and a.name == "neg":
            return Op("sub", (b, a.args[0]), ty)
    if name in ("sub", "truediv") and is_constant(b, 0 if name == "sub" else 1) and a.type == ty:
        return a
    if name == "sub" and isinstance(b, Op) and b.name == "neg":
        return Op("add", (a, b.args[0]), ty)
    return Op(name, (a, b), ty)


def select(condition: Expr, if_true: Expr, if_false: Expr) -> Expr:
    ty = join_types(if_true.type, if_false.type)
    if isinstance(condition, Const):
        return convert(if_true if condition.value else if_false, ty)
    return Op("select", (condition, convert(if_true, ty), convert(if_false, ty)), ty)


def is_nonzero(value: Expr) -> Expr:
    if isinstance(value, Const):
        return Const(value.value != 0, types.boolean)
    return Op("ne", (value, constant(0, value.type)), types.boolean)


def nonzero_only(factor: Expr, product: Expr) -> Expr:
    """A product with a factor; zero where the factor is zero, even if the product is not finite."""
    return select(is_nonzero(factor), product, constant(0, product.type))


def is_nonzero_test(value: Expr) -> bool:
    """Return whether a value is the condition that a number of type float64 is not zero."""
    match value:
        case Op(name="ne", args=(x, Const(value=0))):
            return x.type == types.float64
    return False


def without_factors(value: Expr) -> Expr:
    """An expression with the same zeros as ``value``, without its sign and constant factors."""
    match value:
        case (
            Op(name="neg", args=(inner,))
            | Op(name="mul", args=(Const(), inner))
            | Op(name="mul", args=(inner, Const()))
        ):
            return without_factors(inner)
    return value


def without_derivative(name: str, k: int) -> str:
    """The error message for an operation that has no derivative with respect to its k-th argument."""
    function = in_words(name.removeprefix("scipy_"))
    which = f"its argument {k + 1}" if function.startswith("scipy.") else "an argument"
    return (
        f"{function} has no derivative with respect to {which}, and that carries derivatives"
        "\n  make it a constant (argnums, ampi.constant), or give the function's derivative (ampi.custom_jvp)"
    )


def conjugate(value: Expr) -> Expr:
    """The complex conjugate, moved into sums and products where that saves operations."""
    if not isinstance(value.type, types.Complex):
        return value
    if isinstance(value, Const):
        return constant(value.value.conjugate(), value.type)
    if isinstance(value, Op) and value.name == "conj":
        return value.args[0]
    if isinstance(value, Op) and value.name in ("neg", "add", "sub", "mul", "truediv"):
        return Op(value.name, tuple(conjugate(a) for a in value.args), value.type)
    if isinstance(value, Op) and value.name == "select":
        c, a, b = value.args
        return Op("select", (c, conjugate(a), conjugate(b)), value.type)
    return Op("conj", (value,), value.type)


def cast(value: Expr, type_: types.Type) -> Expr:
    """A scalar in another type."""
    if value.type == type_:
        return value
    if isinstance(value, Const):
        if isinstance(type_, types.Boolean):
            return Const(bool(value.value), type_)
        if isinstance(type_, types.Complex):
            return Const(complex(value.value), type_)
        if isinstance(type_, types.Float):
            return Const(float(value.value), type_)
        if isinstance(value.value, int) and not isinstance(value.value, bool):
            return Const(value.value, type_)
    return Op("cast", (value,), type_)


def into_array(value: Expr, dtype: types.Type) -> Expr:
    """A scalar converted for an array of ``dtype``; floating point to integers takes a special conversion."""
    loses = isinstance(value.type, types.Float) and isinstance(dtype, (types.Integer, types.Boolean))
    return cast(value, dtype) if loses else value

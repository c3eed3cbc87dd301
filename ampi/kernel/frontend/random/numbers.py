"""NumPy's distributions in kernels, as functions of basic random numbers, so that derivatives follow.

They follow Numba's source: ``normal(loc, scale)`` is ``loc + scale * z`` with a standard normal ``z``, and numbers that
Numba draws by inverting a distribution function are functions of a uniform number.  Distributions sampled by rejection
have no derivatives with respect to the parameters that decide on acceptance: these must not be active.
"""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import emit_loops, is_none, rule
from ampi.kernel.frontend.base.draws import draw, refuse_on_threads
from ampi.kernel.frontend.base.values import Group, Static, Value
from ampi.kernel.frontend.language import invocations
from ampi.kernel.frontend.written.functions import Written, inlined, with_first
from ampi.kernel.ir.intrinsics import cast

# ----------------------------------------------------------------------------------------------- basic random numbers


def real(builder: Any, node: ast.Call, value: Value) -> ir.Expr:
    """A parameter that is a real number."""
    if not (isinstance(value, ir.Expr) and isinstance(value.type, (types.Integer, types.Float))):
        builder.fail(node, f"{ast.unparse(node.func)} takes real numbers here")
    return value if isinstance(value, ir.Const) else builder.temporary("parameter", value)


def whole(builder: Any, node: ast.Call, value: Value) -> ir.Expr:
    """A parameter that is an integer."""
    if not (isinstance(value, ir.Expr) and isinstance(value.type, types.Integer)):
        builder.fail(node, f"{ast.unparse(node.func)} takes integers here")
    return value if isinstance(value, ir.Const) else builder.temporary("parameter", value)


Parameter = Callable[[Any, ast.Call, Value], ir.Expr]


def single(name: str, dtype: types.Type, *parameters: Parameter) -> Callable[..., Any]:
    """A function with which the kernels below draw a basic random number; its parameters have no derivatives."""

    def stand_in(*_: Any) -> Any:
        raise NotImplementedError(name)

    @rule(stand_in, of_anything=True)
    def handler(builder: Any, node: ast.Call, *given: Value) -> ir.Expr:
        values = [make(builder, node, value) for make, value in zip(parameters, given, strict=True)]
        return draw(builder, node, name, dtype, *values)

    return stand_in


draw_random = single("draw_random", types.float64)
draw_normal = single("draw_normal", types.float64)
draw_integer = single("draw_integer", types.int64, whole, whole)
draw_gamma = single("draw_gamma", types.float64, real)
draw_beta = single("draw_beta", types.float64, real, real)
draw_vonmises = single("draw_vonmises", types.float64, real, real)
draw_wald = single("draw_wald", types.float64, real, real)
draw_standard_t = single("draw_standard_t", types.float64, real)
draw_poisson = single("draw_poisson", types.int64, real)
draw_binomial = single("draw_binomial", types.int64, whole, real)
draw_geometric = single("draw_geometric", types.int64, real)
draw_negative_binomial = single("draw_negative_binomial", types.int64, real, real)
draw_zipf = single("draw_zipf", types.int64, real)
draw_logseries = single("draw_logseries", types.int64, real)


@rule(np.random.seed, of_anything=True)
def seed_(builder: Any, node: ast.Call, seed: Value) -> Value:
    draw(builder, node, "draw_seed", types.float64, whole(builder, node, seed))
    return Static(None)


# ----------------------------------------------------------------------------------------------- distributions


def distribution(*functions: Any, dtype: types.Type = types.float64) -> Callable[[Any], Any]:
    """Register a kernel that draws a number from a distribution; with a ``size`` it draws an array."""

    def register(function: Any) -> Any:
        rule(*functions, of_anything=True)(handler_of(function, dtype))
        return Written(function)

    return register


def handler_of(function: Any, dtype: types.Type) -> Callable[..., Value]:
    """The rule of a distribution: one number, or an array of ``size``, the last parameter."""

    def handler(builder: Any, node: ast.Call, *positional: Value, **keywords: Value) -> Value:
        refuse_on_threads(builder, node)
        taken = inspect.signature(function).parameters
        size = keywords.pop("size", None)
        if len(positional) > len(taken):
            *positional, size = positional  # type: ignore[assignment]
        if is_none(size):
            return inlined(builder, node, function, positional, keywords)
        given = [settled(builder, v) for v in positional]
        named = {name: settled(builder, v) for name, v in keywords.items()}
        return several(builder, node, dtype, size, lambda: inlined(builder, node, function, given, named))

    first = with_first(function)
    size = inspect.Parameter("size", inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None)
    handler.__signature__ = first.replace(parameters=[*first.parameters.values(), size])  # type: ignore[attr-defined]
    return handler


def settled(builder: Any, value: Value) -> Value:
    """A parameter, evaluated once for many numbers."""
    if not isinstance(value, ir.Expr) or isinstance(value, ir.Const):
        return value
    return builder.temporary("parameter", value)


def several(builder: Any, node: ast.Call, dtype: types.Type, size: Value, make: Callable[[], Value]) -> ir.Var:
    """An array of numbers, each drawn by ``make``, the last axis fastest."""
    if isinstance(size, Group) and not size.items:
        builder.fail(node, "a random array with size=()", "leave the size out")
    shape = tuple(array_values.steady(builder, n) for n in invocations.shape_of_new(builder, node, size))
    target = array_values.new_array(builder, "drawn", dtype, shape)
    axes = array_values.axes_for(builder, len(shape))

    def fill() -> None:
        builder.emit(ir.Store(target, axes, cast(make(), dtype)))

    builder.loops.append("for")
    body, _ = builder.sub_block(fill)
    builder.loops.pop()
    emit_loops(builder, axes, shape, *body)
    return target


@distribution(np.random.random, np.random.random_sample, np.random.sample, np.random.ranf)
def random():
    return draw_random()


@distribution(np.random.standard_normal)
def standard_normal():
    return draw_normal()


@distribution(np.random.normal)
def normal(loc=0.0, scale=1.0):
    return loc + scale * draw_normal()


@distribution(np.random.uniform)
def uniform(low=0.0, high=1.0):
    return low + (float(high) - float(low)) * draw_random()


@distribution(np.random.lognormal)
def lognormal(mean=0.0, sigma=1.0):
    return math.exp(mean + sigma * draw_normal())


@distribution(np.random.standard_exponential)
def standard_exponential():
    return -math.log(1.0 - draw_random())


@distribution(np.random.exponential)
def exponential(scale=1.0):
    return -math.log(1.0 - draw_random()) * scale


@distribution(np.random.triangular)
def triangular(left, mode, right):
    if right == left:
        return left * 1.0
    u = draw_random()
    c = (mode - left) / (right - left)
    if u > c:
        return right + (left - right) * math.sqrt((1.0 - u) * (1.0 - c))
    return left + (right - left) * math.sqrt(u * c)


@distribution(np.random.standard_gamma)
def standard_gamma(shape):
    return draw_gamma(shape)


@distribution(np.random.gamma)
def gamma(shape, scale=1.0):
    if scale <= 0.0:
        raise ValueError("gammavariate: alpha and beta must be > 0.0")
    return draw_gamma(shape) * scale


@distribution(np.random.beta)
def beta(a, b):
    return draw_beta(a, b)


@distribution(np.random.chisquare)
def chisquare(df):
    return 2.0 * draw_gamma(df / 2.0)


@distribution(np.random.f)
def f(dfnum, dfden):
    above = 2.0 * draw_gamma(dfnum / 2.0) * dfden
    return above / (2.0 * draw_gamma(dfden / 2.0) * dfnum)


@distribution(np.random.gumbel)
def gumbel(loc, scale):
    return loc - scale * math.log(-math.log(1.0 - draw_random()))


@distribution(np.random.laplace)
def laplace(loc=0.0, scale=1.0):
    u = draw_random()
    if u < 0.5:
        return loc + scale * math.log(u + u)
    return loc - scale * math.log(2.0 - u - u)


@distribution(np.random.logistic)
def logistic(loc=0.0, scale=1.0):
    u = draw_random()
    return loc + scale * math.log(u / (1.0 - u))


@distribution(np.random.pareto)
def pareto(a):
    return 1.0 / (1.0 - draw_random()) ** (1.0 / a) - 1


@distribution(np.random.weibull)
def weibull(a):
    return (-math.log(1.0 - draw_random())) ** (1.0 / a)


@distribution(np.random.power)
def power(a):
    if a <= 0.0:
        raise ValueError("power(): a <= 0")
    return math.pow(1 - math.exp(math.log(1.0 - draw_random())), 1.0 / a)


@distribution(np.random.rayleigh)
def rayleigh(scale=1.0):
    if scale <= 0.0:
        raise ValueError("rayleigh(): scale <= 0")
    return scale * math.sqrt(-2.0 * math.log(1.0 - draw_random()))


@distribution(np.random.standard_cauchy)
def standard_cauchy():
    above = draw_normal()
    return above / draw_normal()


@distribution(np.random.standard_t)
def standard_t(df):
    return draw_standard_t(df)


@distribution(np.random.vonmises)
def vonmises(mu, kappa):
    return draw_vonmises(mu, kappa)


@distribution(np.random.wald)
def wald(mean, scale):
    return draw_wald(mean, scale)


@distribution(np.random.poisson, dtype=types.intp)
def poisson(lam=1.0):
    return draw_poisson(lam)


@distribution(np.random.binomial, dtype=types.intp)
def binomial(n, p):
    return draw_binomial(n, p)


@distribution(np.random.geometric, dtype=types.int64)
def geometric(p):
    return draw_geometric(p)


@distribution(np.random.negative_binomial, dtype=types.int64)
def negative_binomial(n, p):
    return draw_negative_binomial(n, p)


@distribution(np.random.zipf, dtype=types.intp)
def zipf(a):
    return draw_zipf(a)


@distribution(np.random.logseries, dtype=types.int64)
def logseries(p):
    return draw_logseries(p)


@rule(np.random.rand, of_anything=True)
def rand(builder: Any, node: ast.Call, *size: Value) -> Value:
    make = lambda: inlined(builder, node, random.py_func, [], {})
    return several(builder, node, types.float64, Group(size), make) if size else make()


@rule(np.random.randn, of_anything=True)
def randn(builder: Any, node: ast.Call, *size: Value) -> Value:
    make = lambda: inlined(builder, node, standard_normal.py_func, [], {})
    return several(builder, node, types.float64, Group(size), make) if size else make()


# ----------------------------------------------------------------------------------------------- integers and orders


@rule(np.random.randint, of_anything=True)
def randint(builder: Any, node: ast.Call, low: Value, high: Value = None, size: Value = None) -> Value:
    if is_none(high):
        low, high = ir.Const(0, types.int64), low
    low, high = whole(builder, node, low), whole(builder, node, high)
    dtype = types.Integer.from_bitwidth(max(low.type.bitwidth, high.type.bitwidth), True)
    if is_none(size):
        return cast(draw(builder, node, "draw_integer", types.int64, low, high), dtype)
    make = lambda: draw(builder, node, "draw_integer", types.int64, low, high)
    return several(builder, node, dtype, size, make)


@Written
def shuffle_vector(x):
    last = x.shape[0] - 1
    for k in range(last):
        i = last - k
        j = draw_integer(0, i + 1)
        x[i], x[j] = x[j], x[i]


@Written
def shuffle_rows(x):
    last = x.shape[0] - 1
    for k in range(last):
        i = last - k
        j = draw_integer(0, i + 1)
        row = x[i].copy()
        x[i] = x[j].copy()
        x[j] = row


@rule(np.random.shuffle)
def shuffle(builder: Any, node: ast.Call, x: Value) -> Value:
    function = shuffle_vector if x.type.ndim == 1 else shuffle_rows
    inlined(builder, node, function.py_func, [x], {})
    return Static(None)


@Written
def permuted_numbers(x):
    result = np.arange(x)
    np.random.shuffle(result)  # noqa: NPY002
    return result


@Written
def permuted(x):
    result = x.copy()
    np.random.shuffle(result)  # noqa: NPY002
    return result


@rule(np.random.permutation, of_anything=True)
def permutation(builder: Any, node: ast.Call, x: Value) -> Value:
    function = permuted if array_values.is_array(x) else permuted_numbers
    return inlined(builder, node, function.py_func, [x], {})


@Written
def one_number(a):
    return draw_integer(0, a)


@Written
def one_element(a):
    return a[draw_integer(0, len(a))]


@Written
def first_of(order, size):
    if size > len(order):
        raise ValueError("Cannot take a larger sample than population when 'replace=False'")
    return order[:size].copy()


@rule(np.random.choice, of_anything=True)
def choice(builder: Any, node: ast.Call, a: Value, size: Value = None, replace: Value = None) -> Value:
    is_array = array_values.is_array(a)
    a = array_values.computed(builder, a) if is_array else whole(builder, node, a)
    function = one_element if is_array else one_number
    make = lambda: inlined(builder, node, function.py_func, [a], {})
    if is_none(size):
        return make()
    if not is_none(replace) and not isinstance(replace, ir.Const):
        builder.fail(node, "np.random.choice with a 'replace' that is not constant", "write True or False")
    if replace is None or replace.value:
        return several(builder, node, a.type.dtype if is_array else types.intp, size, make)
    if isinstance(size, Group) and len(size.items) != 1:
        builder.fail(node, "np.random.choice without replacement of several dimensions", "reshape a vector of them")
    number = size.items[0] if isinstance(size, Group) else size
    order = permutation(builder, node, a)
    return inlined(builder, node, first_of.py_func, [order, number], {})

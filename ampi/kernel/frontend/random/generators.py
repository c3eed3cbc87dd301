"""Methods of random generators among a kernel's arguments, as functions of basic random numbers (see `numbers`)."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.arrays import values as array_values
from ampi.kernel.frontend.arrays.functions import is_none, rule
from ampi.kernel.frontend.base.draws import METHODS, draw
from ampi.kernel.frontend.base.values import Static, Value
from ampi.kernel.frontend.random.numbers import Parameter, handler_of, real, several, whole
from ampi.kernel.frontend.written.functions import Written, inlined


def single(name: str, dtype: types.Type, *parameters: Parameter) -> Callable[..., Any]:
    """A function with which the kernels below draw a basic random number from a generator, its first parameter."""

    def stand_in(*_: Any) -> Any:
        raise NotImplementedError(name)

    @rule(stand_in, of_anything=True)
    def handler(builder: Any, node: ast.Call, generator: Static, *given: Value) -> ir.Expr:
        values = [make(builder, node, value) for make, value in zip(parameters, given, strict=True)]
        return draw(builder, node, name, dtype, generator.value.var, *values)

    return stand_in


draw_random = single("draw_by_random", types.float64)
draw_normal = single("draw_by_normal", types.float64)
draw_exponential = single("draw_by_exponential", types.float64)
draw_gamma = single("draw_by_gamma", types.float64, real)
draw_beta = single("draw_by_beta", types.float64, real, real)
draw_standard_t = single("draw_by_standard_t", types.float64, real)
draw_wald = single("draw_by_wald", types.float64, real, real)
draw_integer = single("draw_by_integer", types.int64, whole, whole)
draw_interval = single("draw_by_interval", types.int64, whole)
draw_poisson = single("draw_by_poisson", types.int64, real)
draw_binomial = single("draw_by_binomial", types.int64, whole, real)
draw_geometric = single("draw_by_geometric", types.int64, real)


def method(dtype: types.Type = types.float64) -> Callable[[Any], Any]:
    """Register a kernel that draws a number by a generator's method; with a ``size`` it draws an array."""

    def register(function: Any) -> Any:
        METHODS[function.__name__] = handler_of(function, dtype)
        return Written(function)

    return register


@method()
def random(generator):
    return draw_random(generator)


@method()
def standard_normal(generator):
    return draw_normal(generator)


@method()
def normal(generator, loc=0.0, scale=1.0):
    return loc + scale * draw_normal(generator)


@method()
def uniform(generator, low=0.0, high=1.0):
    return low + (high - low) * draw_random(generator)


@method()
def standard_exponential(generator):
    return draw_exponential(generator)


@method()
def exponential(generator, scale=1.0):
    return scale * draw_exponential(generator)


@method()
def lognormal(generator, mean=0.0, sigma=1.0):
    return math.exp(mean + sigma * draw_normal(generator))


@method()
def standard_gamma(generator, shape):
    return draw_gamma(generator, shape)


@method()
def gamma(generator, shape, scale=1.0):
    return scale * draw_gamma(generator, shape)


@method()
def chisquare(generator, df):
    return 2.0 * draw_gamma(generator, df / 2.0)


@method()
def beta(generator, a, b):
    return draw_beta(generator, a, b)


@method()
def standard_t(generator, df):
    return draw_standard_t(generator, df)


@method()
def wald(generator, mean, scale):
    return draw_wald(generator, mean, scale)


@method()
def standard_cauchy(generator):
    above = draw_normal(generator)
    return above / draw_normal(generator)


@method()
def rayleigh(generator, scale=1.0):
    return scale * math.sqrt(2.0 * draw_exponential(generator))


@method()
def weibull(generator, a):
    return draw_exponential(generator) ** (1.0 / a)


@method()
def pareto(generator, a):
    return math.expm1(draw_exponential(generator) / a)


@method()
def laplace(generator, loc=0.0, scale=1.0):
    u = draw_random(generator)
    while u <= 0.0:
        u = draw_random(generator)
    if u >= 0.5:
        return loc - scale * math.log(2.0 - u - u)
    return loc + scale * math.log(u + u)


@method()
def logistic(generator, loc=0.0, scale=1.0):
    u = draw_random(generator)
    while u <= 0.0:
        u = draw_random(generator)
    return loc + scale * math.log(u / (1.0 - u))


@method(types.int64)
def poisson(generator, lam):
    return draw_poisson(generator, lam)


@method(types.int64)
def binomial(generator, n, p):
    return draw_binomial(generator, n, p)


@method(types.int64)
def geometric(generator, p):
    return draw_geometric(generator, p)


def integers(builder: Any, node: ast.Call, generator: Static, low: Value, high: Value, size: Value = None) -> Value:
    given = whole(builder, node, low), whole(builder, node, high)
    make = lambda: draw(builder, node, "draw_by_integer", types.int64, generator.value.var, *given)
    return make() if is_none(size) else several(builder, node, types.int64, size, make)


METHODS["integers"] = integers


@Written
def shuffle_vector(generator, x):
    last = x.shape[0] - 1
    for k in range(last):
        i = last - k
        j = draw_interval(generator, i)
        x[i], x[j] = x[j], x[i]


@Written
def shuffle_rows(generator, x):
    last = x.shape[0] - 1
    for k in range(last):
        i = last - k
        j = draw_interval(generator, i)
        row = x[i].copy()
        x[i] = x[j].copy()
        x[j] = row


def shuffle(builder: Any, node: ast.Call, generator: Static, x: Value) -> Value:
    if not array_values.is_array(x):
        builder.fail(node, f"{ast.unparse(node.func)} takes an array")
    function = shuffle_vector if x.type.ndim == 1 else shuffle_rows
    inlined(builder, node, function.py_func, [generator, x], {})
    return Static(None)


METHODS["shuffle"] = shuffle


@Written
def permuted_numbers(generator, x):
    result = np.arange(x)
    generator.shuffle(result)
    return result


@Written
def permuted(generator, x):
    result = x.copy()
    generator.shuffle(result)
    return result


def permutation(builder: Any, node: ast.Call, generator: Static, x: Value) -> Value:
    function = permuted if array_values.is_array(x) else permuted_numbers
    return inlined(builder, node, function.py_func, [generator, x], {})


METHODS["permutation"] = permutation

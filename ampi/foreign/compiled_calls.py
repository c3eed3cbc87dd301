"""Calls of Numba's stencils and generalized ufuncs (``@numba.guvectorize``) with active arrays, through kernels."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import numpy as anp
from ..arrays.activity import plain_of
from ..base.missing_rules import no_rule
from ..kernel import kernel
from ..memory.storages import carries_derivatives


def call_stencil(stencil: Any, plainly: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``stencil(*arguments, out=...)``.

    Raises
    ------
    ActivityError
        There are more than four arrays, or other keyword arguments.
    """
    out = keywords.get("out")
    made = (_WITH_OUT if out is not None else _CALLS).get(len(arguments))
    if made is None or keywords.keys() - {"out"}:
        raise no_rule(stencil.kernel_ir.func_id.func, " with these arguments")
    arguments = tuple(map(_given, arguments))
    return made(stencil)(*arguments) if out is None else made(stencil)(*arguments, out)


def call_generalized(ufunc: Any, plainly: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``ufunc(*arguments)``, with arrays for the results among them or not.

    Raises
    ------
    ActivityError
        There are keyword arguments, more than six arguments, or results that are no floating-point numbers.
    """
    builder = ufunc.gufunc_builder
    count, results = len(builder.sin), arguments[len(builder.sin) :]
    made = _CALLS.get(count + len(builder.sout))
    if made is None or keywords:
        raise no_rule(builder.py_func, " with these arguments")
    inputs = tuple(map(_given, arguments[:count]))
    if results:
        made(ufunc)(*inputs, *results)
        return results[0] if len(results) == 1 else tuple(results)
    exact = plainly(ufunc, *map(plain_of, inputs))
    exact = exact if isinstance(exact, tuple) else (exact,)
    if not all(carries_derivatives(np.asarray(x).dtype) for x in exact):
        raise no_rule(builder.py_func, f" with results of dtype {exact[0].dtype}")
    results = tuple(anp.empty(np.shape(x) or (1,), x.dtype) for x in exact)
    made(ufunc)(*inputs, *results)
    results = tuple(r if np.ndim(x) else r[0] for r, x in zip(results, exact))
    return results[0] if len(results) == 1 else results


def _given(x: Any) -> Any:
    return anp.asarray(x) if isinstance(x, (list, tuple)) else x


@functools.cache
def _call_1(f: Any) -> Any:
    @kernel
    def call(a):
        return f(a)

    return call


@functools.cache
def _call_2(f: Any) -> Any:
    @kernel
    def call(a, b):
        return f(a, b)

    return call


@functools.cache
def _call_3(f: Any) -> Any:
    @kernel
    def call(a, b, c):
        return f(a, b, c)

    return call


@functools.cache
def _call_4(f: Any) -> Any:
    @kernel
    def call(a, b, c, d):
        return f(a, b, c, d)

    return call


@functools.cache
def _call_5(f: Any) -> Any:
    @kernel
    def call(a, b, c, d, e):
        return f(a, b, c, d, e)

    return call


@functools.cache
def _call_6(f: Any) -> Any:
    @kernel
    def call(a, b, c, d, e, g):
        return f(a, b, c, d, e, g)

    return call


@functools.cache
def _out_1(f: Any) -> Any:
    @kernel
    def call(a, out):
        return f(a, out=out)

    return call


@functools.cache
def _out_2(f: Any) -> Any:
    @kernel
    def call(a, b, out):
        return f(a, b, out=out)

    return call


@functools.cache
def _out_3(f: Any) -> Any:
    @kernel
    def call(a, b, c, out):
        return f(a, b, c, out=out)

    return call


@functools.cache
def _out_4(f: Any) -> Any:
    @kernel
    def call(a, b, c, d, out):
        return f(a, b, c, d, out=out)

    return call


_CALLS: dict[int, Callable] = dict(enumerate((_call_1, _call_2, _call_3, _call_4, _call_5, _call_6), 1))
_WITH_OUT: dict[int, Callable] = dict(enumerate((_out_1, _out_2, _out_3, _out_4), 1))

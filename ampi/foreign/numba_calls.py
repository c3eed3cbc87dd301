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
from . import arities


def call_stencil(stencil: Any, plainly: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Call ``stencil(*arguments, out=...)`` through a kernel.

    Raises
    ------
    ActivityError
        There are more than six arrays (four with ``out=``), or other keyword arguments.
    """
    out = keywords.get("out")
    call = _kernel(f"call_{'of' if out is None else 'into'}_{len(arguments)}", stencil)
    if call is None or keywords.keys() - {"out"}:
        raise no_rule(stencil.kernel_ir.func_id.func, " with these arguments")
    arguments = tuple(map(_as_array, arguments))
    return call(*arguments) if out is None else call(*arguments, out)


def call_generalized(ufunc: Any, plainly: Callable, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Call ``ufunc(*arguments)`` through a kernel, with or without arrays for the results.

    Raises
    ------
    ActivityError
        There are keyword arguments, more than six arguments, or results that are not floating-point numbers.
    """
    builder = ufunc.gufunc_builder
    count, results = len(builder.sin), arguments[len(builder.sin) :]
    call = _kernel(f"call_of_{count + len(builder.sout)}", ufunc)
    if call is None or keywords:
        raise no_rule(builder.py_func, " with these arguments")
    inputs = tuple(map(_as_array, arguments[:count]))
    if results:
        call(*inputs, *results)
        return results[0] if len(results) == 1 else tuple(results)
    exact = plainly(ufunc, *map(plain_of, inputs))
    exact = exact if isinstance(exact, tuple) else (exact,)
    if not all(carries_derivatives(np.asarray(x).dtype) for x in exact):
        raise no_rule(builder.py_func, f" with results of dtype {exact[0].dtype}")
    results = tuple(anp.empty(np.shape(x) or (1,), x.dtype) for x in exact)
    call(*inputs, *results)
    results = tuple(r if np.ndim(x) else r[0] for r, x in zip(results, exact))
    return results[0] if len(results) == 1 else results


def _as_array(x: Any) -> Any:
    return anp.asarray(x) if isinstance(x, (list, tuple)) else x


@functools.cache
def _kernel(form: str, function: Any) -> Any:
    """A kernel that calls a compiled function, in one of the forms of `arities`; None if there is no such form."""
    make = getattr(arities, form, None)
    return None if make is None else kernel(make(function))

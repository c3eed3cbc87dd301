"""Calls of NumPy's functions that are not ufuncs (`ampi.ndarray.__array_function__`).

A function of NumPy belongs to exactly one of these groups:

- `CONSTANT`: its result carries no derivative (indices, counts, comparisons, text).
- `COMPOSITE`: NumPy's own Python source runs on the `ampi.ndarray`s and is differentiated operation by operation.
- `movement.RULES`: it moves elements; `rewritten.RULES`, `polynomials.RULES`, `samples.RULES`: it is written with
  functions that have rules; `linear_algebra.RULES`, `fourier.RULES`: it has a custom rule.
- `inplace.WRITERS`: it overwrites one of its arguments.

Any other function raises an error if it is given an active array.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays import extensions, few_elements
from ..arrays.activity import any_active, is_active, is_inexact, plain_of, require_arrays, run_plainly
from ..arrays.byte_views import movable
from ..arrays.losses import warn_filed
from ..arrays.texts import of_active
from ..arrays.writing import assign_as, write_constants
from ..base.missing_rules import no_rule
from ..base.structures import leaves, mapped
from ..memory.storages import is_numpys, is_scalar, plain, storage_of, wrapped
from ..tape import Tape, current
from . import fourier, inplace, linear_algebra, movement, polynomials, rewritten, samples
from .known_parameters import for_this_numpy, require_known


def _named(names: str, module: Any = np) -> set:
    # Names that the installed NumPy does not have are left out.
    return {getattr(module, name) for name in names.split() if hasattr(module, name)}


CONSTANT: set[Callable] = _named(
    "all allclose any argmax argmin argpartition argsort argwhere around array2string array_equal array_equiv "
    "array_repr array_str can_cast common_type count_nonzero diag_indices_from digitize einsum_path empty_like fix "
    "flatnonzero isclose iscomplex iscomplexobj isin isneginf isposinf isreal isrealobj lexsort may_share_memory "
    "min_scalar_type nanargmax nanargmin ndim nonzero ones_like result_type round save savetxt savez "
    "savez_compressed searchsorted shape shares_memory size tril_indices_from triu_indices_from zeros_like"
) | _named("matrix_rank", np.linalg)

FILED: set[Callable] = _named("save savetxt savez savez_compressed")
"""Constant functions that write files."""

TEXTS: set[Callable] = _named("array2string array_repr array_str")

COMPOSITE: set[Callable] = _named(
    "amax amin angle astype average clip cumprod cumsum cumulative_prod cumulative_sum diff ediff1d "
    "geomspace kron logspace max mean median meshgrid min percentile piecewise "
    "prod ptp quantile real sum take_along_axis trace trapezoid var"
) | _named("matrix_power multi_dot trace", np.linalg)

RULES: dict[Callable, Callable] = for_this_numpy(
    {
        **movement.RULES,
        **rewritten.RULES,
        **polynomials.RULES,
        **samples.RULES,
        **linear_algebra.RULES,
        **fourier.RULES,
    }
)


def apply(function: Callable, arguments: tuple, keywords: dict) -> Any:
    """Run ``function(*arguments, **keywords)`` and record it if it has an active operand."""
    if function in few_elements.OF_WHOLE and len(arguments) == 1 and not keywords:
        found = few_elements.OF_WHOLE[function](arguments[0])
        if found is not None:
            return found
    if function in inplace.WRITERS:
        if keywords and current() is not None:
            require_known(function, keywords)
        return inplace.WRITERS[function](*arguments, **keywords)
    if function in _OVERWRITING:
        arguments, keywords = _leaving_input(function, arguments, keywords)
    out = given_out(function, arguments, keywords)
    if out is not None:
        if not all(isinstance(x, np.ndarray) for x in (out if isinstance(out, tuple) else (out,))):
            return function(*mapped(plain_of, arguments), **mapped(plain_of, keywords))  # raises NumPy's error
        require_arrays(out)
        return _into(out, function, arguments, keywords)
    keywords = {name: x for name, x in keywords.items() if name != "out"}
    if function is np.nan_to_num and (keywords.get("copy") is False or (len(arguments) > 1 and not arguments[1])):
        return RULES[function](*arguments, **keywords)
    tape = current()
    if tape is not None and function in movement.RULES:
        arguments, keywords, moved = _with_movable_bytes(tape, arguments, keywords)
        if moved:
            return RULES[function](*arguments, **keywords)
    if tape is not None and function in CONSTANT:
        return _constant(function, arguments, keywords)
    if tape is None or not any_active(tape, (arguments, keywords)):
        return run_plainly(function, arguments, keywords)
    if function in COMPOSITE:
        result = function._implementation(*arguments, **keywords)
        if any(map(is_numpys, leaves(result))):  # it came from a method of NumPy's scalars
            given, named = mapped(_as_array, arguments), mapped(_as_array, keywords)
            result = function._implementation(*given, **named)
        return _checked(function, result)
    if function in RULES:
        if keywords:
            require_known(function, keywords)
        return RULES[function](*arguments, **keywords)
    result = wrapped(function(*mapped(plain_of, arguments), **mapped(plain_of, keywords)))
    if not any(is_inexact(r) for r in leaves(result)):
        return result
    raise no_rule(function)


def _constant(function: Callable, arguments: tuple, keywords: dict) -> Any:
    """Call one of `CONSTANT` while a tape records."""
    found = run_plainly(function, arguments, keywords)
    if function in FILED or function in TEXTS:
        tape = current()
        active = next((x for x in leaves((arguments, keywords)) if is_active(tape, x)), None)
        if active is not None and function in FILED:
            warn_filed(f"numpy.{function.__name__}() of", active)
        elif active is not None:
            return of_active(active, found)
    return found


def _as_array(x: Any) -> Any:
    """Convert NumPy's scalars to arrays: methods of scalars drop the class of their arguments."""
    return np.asarray(x) if issubclass(type(x), np.generic) else x


def _with_movable_bytes(tape: Tape, arguments: tuple, keywords: dict) -> tuple[tuple, dict, bool]:
    """The arguments with bytes of active numbers in movable form, and whether there are any."""
    if not any(isinstance(leaf, np.ndarray) and leaf.dtype.itemsize == 1 for leaf in leaves((arguments, keywords))):
        return arguments, keywords, False
    moved = False

    def replaced(x: Any) -> Any:
        nonlocal moved
        found = movable(tape, x)
        moved = moved or found is not None
        return x if found is None else found

    return mapped(replaced, arguments), mapped(replaced, keywords), moved


def _checked(function: Callable, result: Any) -> Any:
    """Check that NumPy's source has kept derivatives: a version may convert to plain arrays on the way.

    Some of several results may be inactive, as in ``np.meshgrid(active, passive)``.
    """
    tape = current()
    found = [r for r in leaves(result) if is_inexact(r)]
    if found and not any(is_active(tape, r) for r in found):
        raise no_rule(function)
    return result


# ------------------------------------------------------------------------------------------------------------ out=

_OVERWRITING: dict[Callable, int] = {
    **dict.fromkeys((np.median, np.nanmedian), 3),
    **dict.fromkeys((np.nanpercentile, np.nanquantile, np.percentile, np.quantile), 4),
}
"""Functions that may use their argument, which the tape may need, as workspace; with the position of the parameter that
allows it."""


def _leaving_input(function: Callable, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
    """The arguments without permission to overwrite the first one."""
    keywords = {name: x for name, x in keywords.items() if name != "overwrite_input"}
    k = _OVERWRITING[function]
    return (arguments[:k] + (False, *arguments[k + 1 :]) if len(arguments) > k else arguments), keywords


# Functions in C, which have no signature in older versions of NumPy.
_OUT = {np.concatenate: 2, np.dot: 2}


@functools.cache
def _out_position(function: Callable) -> int | None:
    if function in _OUT:
        return _OUT[function]
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return positional.index("out") if "out" in positional else None


def given_out(function: Callable, arguments: tuple, keywords: dict) -> Any:
    """Return the argument out of a call, or None."""
    if "out" in keywords:
        return None if function in _NOT_WRITING and _leaves_out_alone(function) else keywords["out"]
    k = _out_position(function) if len(arguments) > 1 else None
    return None if k is None or len(arguments) <= k else arguments[k]


_NOT_WRITING = {np.fft.hfft, np.fft.ifft2, np.fft.ihfft, np.fft.irfft2}


@functools.cache
def _leaves_out_alone(function: Callable) -> bool:
    """Return whether a function ignores its argument out, as some do before NumPy 2.5."""
    out = np.zeros((1, 2), complex if function in (np.fft.ifft2, np.fft.ihfft) else float)
    return function(np.ones((1, 2)), out=out) is not out


def without_out(function: Callable, arguments: tuple, keywords: dict) -> tuple[tuple, dict]:
    """Return the arguments of a call without out."""
    if "out" in keywords:
        return arguments, {name: x for name, x in keywords.items() if name != "out"}
    k: Any = _out_position(function)
    names = list(inspect.signature(function).parameters)[k + 1 : len(arguments)] if len(arguments) > k + 1 else ()
    return arguments[:k], {**dict(zip(names, arguments[k + 1 :])), **keywords}


def _into(out: Any, function: Callable, arguments: tuple, keywords: dict) -> Any:
    first = arguments[0] if arguments else None
    if out.ndim or not (is_scalar(first) or isinstance(first, np.generic)):
        return _into_array(out, function, arguments, keywords)
    # Methods of NumPy's scalars return a scalar despite out=; not all functions call them.
    given, named = without_out(function, arguments, keywords)
    found = function(*mapped(plain_of, given), **mapped(plain_of, named), out=plain(out).copy())
    _into_array(out, function, arguments, keywords)
    return out if isinstance(found, np.ndarray) else out[()]


def _into_array(out: Any, function: Callable, arguments: tuple, keywords: dict) -> Any:
    tape = current()
    given, named = without_out(function, arguments, keywords)
    active = any_active(tape, (given, named))
    if not active:
        run = lambda: function(*mapped(plain_of, arguments), **mapped(plain_of, keywords))
        if storage_of(out) is None:
            run()
        else:
            write_constants([out], run)
        return out
    if function in (np.concatenate, np.stack) and any(
        isinstance(leaf, np.ndarray) and np.may_share_memory(leaf, out) for leaf in leaves(arguments[0])
    ):
        raise no_rule(function, " with an argument out that overlaps what is joined")
    if function in COMPOSITE:
        function._implementation(*arguments, **keywords)
        if active and is_inexact(out) and not is_active(tape, out):
            raise no_rule(function, " with the argument out")
        return out
    return assign_as(
        out,
        f"{function.__name__}(..., out=...)",
        lambda scratch: function(*mapped(plain_of, given), **mapped(plain_of, named), out=scratch),
        lambda: apply(function, given, named),
    )


extensions.call_function = apply

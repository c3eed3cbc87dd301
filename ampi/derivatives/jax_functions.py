"""JAX functions in programs: values and derivatives by JAX, recorded as one operation."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..base.structures import leaves, mapped
from ..errors import ActivityError
from ..memory.storages import plain
from .custom import custom_vjp


def from_jax(function: Callable) -> Callable:
    """Make a JAX function a function of `ampi.numpy`'s arrays, with JAX's derivatives.

    Reverse mode, forward mode, second order and vector modes go through it.  It is recorded as one operation, whatever
    it computes inside.  It runs on one rank: messages between ranks stay outside it.

    Parameters
    ----------
    function : callable
        A function of arrays and numbers, or of tuples, lists and dictionaries of these (the parameters of a network,
        for example), that returns values of these kinds.  It must be pure, as JAX requires.  If it is compiled
        (``jax.jit``), its derivatives are, too.

    Returns
    -------
    callable
        Called with arrays of `ampi.numpy`, or with plain ones.  Arrays of integers have no derivative.  Python's
        integers and other objects are constants; JAX compiles again for each value of them.

    Raises
    ------
    ImportError
        JAX is not installed (``pip install 'ampi[jax]'``).
    ActivityError
        At a call with arrays in double precision, if JAX would compute in single precision:
        ``jax.config.update("jax_enable_x64", True)`` prevents that.

    Notes
    -----
    Adjoints of complex numbers are converted from JAX's convention (no conjugation) to that of the real inner product.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> closure = ampi.from_jax(lambda w, x: jnp.tanh(w @ x))
    >>> w, x = numpy.eye(2, dtype="f4"), numpy.zeros(2, "f4")
    >>> ampi.grad(lambda x: np.sum(closure(w, x)))(x)
    array([1., 1.], dtype=float32)
    """
    try:
        import jax
    except ImportError as error:
        raise ImportError("ampi.from_jax needs JAX: pip install 'ampi[jax]'", name="jax") from error
    name = getattr(function, "__name__", "a JAX function")
    compiles = jax.jit if hasattr(function, "lower") else _unchanged
    cases: dict[Any, tuple[Callable, list[Any]]] = {}

    @functools.wraps(function, updated=())
    def call(*arguments: Any) -> Any:
        given = list(leaves(arguments))
        _require_precision(jax, name, given)
        key = repr(mapped(_kind, arguments)), tuple(None if _is_array(x) else x for x in given)
        if key not in cases:
            if len(cases) >= MOST_CASES:
                cases.pop(next(iter(cases)))
            cases[key] = _case(jax, function, name, arguments, compiles)
        rule, results = cases[key]
        rest = iter(rule(*filter(_is_array, given)))
        return jax.tree_util.tree_map(lambda _: next(rest), results[0])

    return call


MOST_CASES = 64
"""The largest number of cached cases of a function, one for each set of constants among the arguments."""


def _unchanged(function: Callable) -> Callable:
    return function


def _is_array(x: Any) -> bool:
    """True for arrays and floating-point numbers; other arguments are constants to JAX."""
    return isinstance(x, (np.ndarray, np.generic, float, complex))


def _kind(x: Any) -> str:
    return "array" if _is_array(x) else type(x).__name__


def _carries(x: Any) -> bool:
    return np.issubdtype(x.dtype, np.inexact)


def _require_precision(jax: Any, name: str, given: Sequence[Any]) -> None:
    if jax.config.jax_enable_x64:
        return
    for x in given:
        if isinstance(x, (np.ndarray, np.generic)) and x.dtype in (np.float64, np.complex128):
            raise ActivityError(
                f"{name}, made by ampi.from_jax, got an array of dtype {x.dtype}, and JAX would compute in "
                'single precision: write jax.config.update("jax_enable_x64", True) at the beginning of the program, or '
                "convert the array to float32"
            )


def _case(jax: Any, function: Callable, name: str, arguments: tuple, compiles: Callable) -> tuple[Callable, list[Any]]:
    """The rule for calls with these constants, and a list that has the structure of the results once it has run."""
    constants = [None if _is_array(x) else x for x in leaves(arguments)]
    arrays = list(map(_is_array, leaves(arguments)))
    shape = mapped(lambda x: None, arguments)
    results: list[Any] = []

    def flat(*xs: Any) -> list[Any]:
        rest: Iterator[Any] = iter(xs)
        each = iter([next(rest) if is_array else x for x, is_array in zip(constants, arrays)])
        found = function(*mapped(lambda _: next(each), shape))
        listed, structure = jax.tree_util.tree_flatten(found)
        results[:] = [jax.tree_util.tree_unflatten(structure, [0] * len(listed))]
        return [jax.numpy.asarray(y) for y in listed]

    return _rule(jax, flat, name, compiles), results


def _rule(jax: Any, function: Callable, name: str, compiles: Callable) -> custom_vjp:
    """A function of arrays, which returns a tuple of arrays, with all derivatives of a JAX function.

    Its adjoint is a JAX function again, of the arguments and the results' adjoints, with a rule made in the same way
    for second order.
    """
    run = compiles(function)

    def value(*xs: Any) -> tuple[Any, ...]:
        return _given(run(*_taken(jax, xs)))

    value.__name__ = value.__qualname__ = name
    rule = custom_vjp(value)

    def of_varied(xs: Sequence[Any]) -> tuple[list[Any], Callable]:
        """The arguments that carry derivatives, and the function of these."""

        def inner(*varied: Any) -> list[Any]:
            rest = iter(varied)
            return function(*(next(rest) if _carries(x) else x for x in xs))

        return [x for x in xs if _carries(x)], inner

    def pull(count: int, *both: Any) -> list[Any]:
        xs, bars = both[:count], both[count:]
        varied, inner = of_varied(xs)
        ys, pullback = jax.vjp(lambda *varied: [y for y in inner(*varied) if _carries(y)], *varied)
        return [x_bar.conj() for x_bar in pullback([bar.conj().astype(y.dtype) for bar, y in zip(bars, ys)])]

    @functools.cache
    def adjoint(count: int) -> custom_vjp:
        return _rule(jax, functools.partial(pull, count), f"the adjoint of {name}", compiles)

    def forward(*xs: Any) -> tuple[Any, Any]:
        return value(*xs), xs

    def backward(xs: Any, bars: Any) -> Any:
        found = iter(adjoint(len(xs))(*xs, *(bar for bar in bars if bar is not None)))
        return tuple(next(found) if np.asarray(x).dtype.kind in "fc" else None for x in xs)

    @compiles
    def push(xs: Any, dots: Any) -> Any:
        varied, inner = of_varied(xs)
        return jax.jvp(inner, varied, dots)

    def tangent(xs: Any, dots: Any) -> Any:
        given = _taken(jax, xs)
        moved = [jax.numpy.asarray(x_dot, x.dtype) for x, x_dot in zip(given, dots) if _carries(x)]
        ys, y_dots = push(given, moved)
        return _given(ys), tuple(np.array(y_dot) if _carries(y) else None for y, y_dot in zip(ys, y_dots))

    rule.defvjp(forward, backward)
    rule.defjvp(tangent)
    return rule


def _taken(jax: Any, xs: Sequence[Any]) -> list[Any]:
    """Arrays of the program as JAX's, which may share their memory until the result has been computed."""
    return [jax.numpy.asarray(plain(x) if isinstance(x, np.ndarray) else x) for x in xs]


def _given(ys: Sequence[Any]) -> tuple[Any, ...]:
    """JAX's arrays as NumPy's, once they have been computed."""
    return tuple(np.array(y)[()] for y in ys)

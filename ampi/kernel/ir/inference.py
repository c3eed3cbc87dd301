"""Type inference of expressions, delegated to Numba."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from functools import cache
from typing import Any

from numba import config, types
from numba.core import errors as numba_errors
from numba.core.registry import cpu_target
from numba.core.typing.arraydecl import get_array_index_type


@cache
def context() -> Any:
    """Numba's typing context for CPU code."""
    cpu_target.target_context.refresh()  # finds new overloads
    typing_context = cpu_target.typing_context
    typing_context.refresh()
    return typing_context


@contextlib.contextmanager
def typed() -> Iterator[None]:
    """Let Numba type its functions written in Python (max, int, ...) even if NUMBA_DISABLE_JIT is set."""
    disabled, config.DISABLE_JIT = config.DISABLE_JIT, 0
    try:
        yield
    finally:
        config.DISABLE_JIT = disabled


@cache
def result_type(function: Any, arguments: tuple[types.Type, ...]) -> types.Type | None:
    """The type of ``function(*arguments)``, or None if Numba has no such call."""
    try:
        with warnings.catch_warnings(), typed():
            warnings.simplefilter("ignore")  # of slow code, which compilation reports again
            signature = context().resolve_function_type(function, arguments, {})
    except (numba_errors.NumbaError, NotImplementedError, KeyError, AttributeError, TypeError):
        return None
    return None if signature is None else plain(signature.return_type)


@cache
def unify(first: types.Type, second: types.Type) -> types.Type | None:
    """The type of a variable that can hold values of both types, or None."""
    if first == second:
        return first
    return context().unify_types(first, second)


def convertible(source: types.Type, target: types.Type) -> bool:
    """Return whether Numba converts a value of one scalar type to another implicitly."""
    if isinstance(source, types.Complex) and not isinstance(target, types.Complex):
        return False
    return source == target or context().can_convert(source, target) is not None


def element_view(array: types.Array, indices: int) -> types.Type:
    """The type of ``array[i, j, ...]`` with that many integer indices: an element, or a view of fewer dimensions."""
    if indices == array.ndim:
        return array.dtype
    index = types.UniTuple(types.intp, indices) if indices > 1 else types.intp
    return get_array_index_type(array, index).result


def plain(type: types.Type) -> types.Type:
    """A type without a literal value (``int64`` for ``Literal[int](3)``)."""
    return types.unliteral(type)


def is_scalar(type: types.Type) -> bool:
    return isinstance(type, (types.Number, types.Boolean))


def is_array(type: types.Type) -> bool:
    return isinstance(type, types.Array)


def default_constant(type: types.Type) -> bool:
    """Return whether a plain Python literal of this type has this type in Numba."""
    return type in (types.int64, types.float64, types.complex128, types.boolean)


@cache
def part(array: types.Array, items: tuple[types.Type, ...]) -> types.Type | None:
    """The type of ``array[items]`` with slices, None and arrays of integers among the items, or None."""
    index = items[0] if len(items) == 1 else types.Tuple(items)
    try:
        found = get_array_index_type(array, index)
    except (numba_errors.NumbaError, NotImplementedError):
        return None
    return None if found is None else plain(found.result)


def real(type: types.Type) -> types.Type:
    """The type of the real part."""
    return type.underlying_float if isinstance(type, types.Complex) else type

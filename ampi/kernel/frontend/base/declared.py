"""Types that a program declares for a compiled function: Numba's signatures, and ``locals=``.

A signature declares the types of arguments, to which numbers are converted, and of the result; ``locals`` declares the
types of variables.  Both can change values (``f4`` rounds), so derivatives must follow them, too.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numba import types


class Declared:
    """The declarations of one function: types of its arguments, results and variables.

    Attributes
    ----------
    locals : dict
        Numba's types of variables, by name.
    signatures : tuple
        Pairs of the arguments' types and the result's (None if not declared); empty if any arguments are accepted.
    """

    def __init__(self, given: tuple[Any, ...], locals: Mapping[str, Any]) -> None:
        self._given = given
        self._locals = dict(locals)

    @functools.cached_property
    def signatures(self) -> tuple[tuple[tuple[types.Type, ...], types.Type | None], ...]:
        from numba.core.sigutils import normalize_signature

        return tuple(map(normalize_signature, self._given))

    @functools.cached_property
    def locals(self) -> dict[str, types.Type]:
        from numba.core.sigutils import _parse_signature_string

        return {
            name: _parse_signature_string(type_) if isinstance(type_, str) else type_
            for name, type_ in self._locals.items()
        }

    def __repr__(self) -> str:
        return f"{self.signatures} {sorted(self.locals.items())}"

    def signature(
        self, name: str, argument_types: tuple[types.Type, ...]
    ) -> tuple[tuple[types.Type, ...], types.Type | None]:
        """The declared signature for arguments of these types; without declarations, these types and None.

        An optional argument has the type that it has in this call: None, or the declared one.  An argument that is a
        function is not converted.

        Raises
        ------
        TypeError
            No declared signature fits.
        """
        if not self.signatures:
            return argument_types, None
        ranked = [(rank, k) for k, (taken, _) in enumerate(self.signatures) if (rank := _rank(argument_types, taken))]
        if ranked:
            taken, result = self.signatures[min(ranked)[1]]
            return tuple(map(_present, argument_types, taken)), result
        given = ", ".join(map(str, argument_types))
        taken = "; ".join(f"({', '.join(map(str, t))})" for t, _ in self.signatures)
        raise TypeError(f"{name}(): no signature for arguments of types ({given}); declared are {taken}")

    def conversions(self, name: str, given: tuple[types.Type, ...]) -> tuple[np.dtype | None, ...]:
        """For each argument of a call, the dtype to which it is converted, or None."""
        from numba import types
        from numba.np.numpy_support import as_dtype

        taken, _ = self.signature(name, given)
        return tuple(
            as_dtype(t) if isinstance(t, (types.Number, types.Boolean)) and t != g else None
            for g, t in zip(given, taken)
        )


def present(types_: tuple[types.Type, ...]) -> tuple[types.Type, ...]:
    """The types of a signature for a call in which no argument is None."""
    from numba import types

    return tuple(t.type if isinstance(t, types.Optional) else t for t in types_)


def names_code(type_: types.Type) -> bool:
    """Return whether compiled code depends on an argument of this type by value (a string, a function)."""
    from numba import types

    return isinstance(type_, (types.UnicodeType, types.FunctionType))


def _present(given: types.Type, taken: types.Type) -> types.Type:
    from numba import types

    if isinstance(taken, types.FunctionType) and isinstance(given, types.Dispatcher):
        return given  # the function itself, which is to be differentiated
    if not isinstance(taken, types.Optional):
        return taken
    is_none = isinstance(given, types.NoneType) or (isinstance(given, types.Omitted) and given.value is None)
    return types.none if is_none else taken.type


def _rank(given: tuple[types.Type, ...], taken: tuple[types.Type, ...]) -> tuple[int, ...] | None:
    """The costs of the conversions, most expensive first, to rank signatures; None if one is impossible."""
    from numba.core.registry import cpu_target

    if len(given) != len(taken):
        return None
    found = [cpu_target.typing_context.can_convert(g, t) for g, t in zip(given, taken)]
    return None if None in found else tuple(sorted((int(c) for c in found), reverse=True))  # type: ignore[arg-type]


def is_signature(value: Any) -> bool:
    """Return whether a decorator is given types instead of a function."""
    if isinstance(value, (str, list, tuple)):
        return True
    module = type(value).__module__
    return module.startswith("numba.") and not hasattr(value, "py_func") and not isinstance(value, type)


def listed(signature: Any) -> tuple[Any, ...]:
    """One signature, or several in a list, as a tuple."""
    if signature is None:
        return ()
    return tuple(signature) if isinstance(signature, list) else (signature,)


def with_types(function: Callable[..., Any], signature: Any, locals: Mapping[str, Any] | None) -> Callable[..., Any]:
    """The function, or a copy with the declarations if there are any."""
    if signature is None and not locals:
        return function
    assert isinstance(function, FunctionType)
    copy = FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__kwdefaults__, copy.__qualname__ = function.__kwdefaults__, function.__qualname__
    copy.__module__, copy.__doc__ = function.__module__, function.__doc__
    vars(copy).update(vars(function), __ampi_types__=Declared(listed(signature), locals or {}))
    return copy


def declared(function: Any) -> Declared | None:
    """The declarations of a function made by `with_types`, or None."""
    return getattr(function, "__ampi_types__", None)


@functools.cache
def python_function_of(dispatcher: Any) -> Callable[..., Any]:
    """The Python function of a Numba dispatcher, with the dispatcher's declarations."""
    signatures = None if getattr(dispatcher, "_can_compile", True) else list(dispatcher.nopython_signatures)
    return with_types(dispatcher.py_func, signatures, getattr(dispatcher, "locals", None))


def converted(value: Any, dtype: np.dtype | None) -> Any:
    """A number converted to the dtype that a signature declares, if any."""
    if dtype is None:
        return value
    return value.astype(dtype) if isinstance(value, np.ndarray) else dtype.type(value)

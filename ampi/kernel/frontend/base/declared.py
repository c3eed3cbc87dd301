"""Types that a program declares for a compiled function: Numba's signatures, and ``locals=``.

A signature says which arguments are taken, to what numbers among them are converted, and of which type the result is;
``locals`` gives variables their types.  Both change values (``f4`` rounds), so kernels and their derivatives heed them.
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
        Variable -> Numba's type.
    signatures : tuple
        Pairs of the arguments' types and the result's (None if it is not said); empty if any arguments are taken.
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
        """The one for arguments of these types, or these types and None; TypeError if there is none.

        An argument that may be None is what it is here: None, or of the other type; a function is the one given.
        """
        if not self.signatures:
            return argument_types, None
        ranked = [(rank, k) for k, (taken, _) in enumerate(self.signatures) if (rank := _rank(argument_types, taken))]
        if ranked:
            taken, result = self.signatures[min(ranked)[1]]
            return tuple(map(_present, argument_types, taken)), result
        given = ", ".join(map(str, argument_types))
        taken = "; ".join(f"({', '.join(map(str, t))})" for t, _ in self.signatures)
        raise TypeError(f"{name}(): no signature for arguments of types ({given}); there are {taken}")

    def conversions(self, name: str, given: tuple[types.Type, ...]) -> tuple[np.dtype | None, ...]:
        """The types to which a call's numbers are converted; None without a conversion."""
        from numba import types
        from numba.np.numpy_support import as_dtype

        taken, _ = self.signature(name, given)
        return tuple(
            as_dtype(t) if isinstance(t, (types.Number, types.Boolean)) and t != g else None
            for g, t in zip(given, taken)
        )


def present(types_: tuple[types.Type, ...]) -> tuple[types.Type, ...]:
    """The types of a signature where no argument is None."""
    from numba import types

    return tuple(t.type if isinstance(t, types.Optional) else t for t in types_)


def names_code(type_: types.Type) -> bool:
    """Return whether compiled code depends on an argument of this type by value (a string, a function)."""
    from numba import types

    return isinstance(type_, (types.UnicodeType, types.FunctionType))


def _present(given: types.Type, taken: types.Type) -> types.Type:
    from numba import types

    if isinstance(taken, types.FunctionType) and isinstance(given, types.Dispatcher):
        return given  # one of those that are taken, and the one that is to be differentiated
    if not isinstance(taken, types.Optional):
        return taken
    is_none = isinstance(given, types.NoneType) or (isinstance(given, types.Omitted) and given.value is None)
    return types.none if is_none else taken.type


def _rank(given: tuple[types.Type, ...], taken: tuple[types.Type, ...]) -> tuple[int, ...] | None:
    """The cost of the conversions, most expensive first, for comparison; None if one is impossible."""
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
    """The function; if something is declared for it a copy that says so."""
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
    """The declaration that `with_types` made."""
    return getattr(function, "__ampi_types__", None)


@functools.cache
def numbas(dispatcher: Any) -> Callable[..., Any]:
    """The function of one of Numba's dispatchers, with what was declared for that."""
    signatures = None if getattr(dispatcher, "_can_compile", True) else list(dispatcher.nopython_signatures)
    return with_types(dispatcher.py_func, signatures, getattr(dispatcher, "locals", None))


def number(value: Any, dtype: np.dtype | None) -> Any:
    """An argument as a signature has it."""
    if dtype is None:
        return value
    return value.astype(dtype) if isinstance(value, np.ndarray) else dtype.type(value)

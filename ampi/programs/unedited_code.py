"""The code of functions before the edits to their module: compilers get this one."""

from __future__ import annotations

import types
from collections.abc import Iterable

unedited: dict[types.CodeType, types.CodeType] = {}
"""The code of functions as written, by the code after the edits."""


def remember(written: types.CodeType, edited: types.CodeType) -> None:
    """Note the written code of each function in a module whose code the edits have changed."""
    known = {_key(code): code for code in _functions(written)}
    for code in _functions(edited):
        found = known.get(_key(code))
        if found is not None and found != code and found.co_freevars == code.co_freevars:
            unedited[code] = found


def _key(code: types.CodeType) -> tuple[str, int]:
    return getattr(code, "co_qualname", code.co_name), code.co_firstlineno  # co_qualname from Python 3.11 on


def _functions(code: types.CodeType) -> Iterable[types.CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield constant
            yield from _functions(constant)

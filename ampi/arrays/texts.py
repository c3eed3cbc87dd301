"""Texts of active numbers: showing them is harmless, but reading numbers back from them loses derivatives.

``str(x)``, ``f"{x:.3e}"`` and ``repr(x)`` of an active array return a `Text`, which warns when it is converted to a
number. If it is a part of a longer text, the program's source is searched: for the call around the expression, as in
``float(f" {x} ")``, or for calls in the same function that take the variable.
"""

from __future__ import annotations

import ast
import functools
import linecache
import sys
import types
import weakref
from collections.abc import Iterator
from typing import Any

from ..base import arrivals, checks
from ..tape import current
from .callers import SHOWING, is_formatting, package_of
from .losses import KEEP, lose_number, say_lost, warn_filed, warn_lost, would_be_lost

READ, SHOWN, FILED = "read", "shown", "filed"
_READERS = set(
    "complex Decimal eval float float16 float32 float64 fromhex fromstring genfromtxt int literal_eval loadtxt loads "
    "Fraction longdouble complex64 complex128 clongdouble double half single number".split()
)
_SHOWERS = set(
    "annotate critical debug echo error exception fail figtext info legend log print set_description set_label "
    "set_postfix set_postfix_str set_title set_xlabel set_ylabel suptitle text title warn warning write writelines "
    "xlabel ylabel".split()
)
_WRITERS = {"writerow", "writerows"}
_MAKERS = {"array2string", "array_repr", "array_str", "format", "repr", "str", "str_", *_WRITERS}
_ROLES = {**dict.fromkeys(_READERS, READ), **dict.fromkeys(_SHOWERS, SHOWN), **dict.fromkeys(_WRITERS, FILED)}


class Text(str):
    """The text of an active array, and the tape on which it is active."""

    __slots__ = ("_tape",)
    _tape: Any

    def __float__(self) -> float:
        self._read("float()")
        return float(str.__str__(self))

    def __int__(self) -> int:
        self._read("int()")
        return int(str.__str__(self))

    def _read(self, what: str) -> None:
        tape = current()
        if tape is not None and self._tape() is tape:
            say_lost(f"{what} of the text of", KEEP)

    def __str__(self) -> str:
        return self

    def __reduce__(self) -> Any:
        return str, (str.__str__(self),)

    def __radd__(self, other: Any) -> Any:
        return _marked(other + str.__str__(self), self) if isinstance(other, str) else NotImplemented


def _marked(found: Any, text: Text) -> Any:
    """The result of a method of `str`, with each string as a `Text`."""
    if type(found) is str:
        made = Text(found)
        made._tape = text._tape
        return made
    return type(found)([_marked(part, text) for part in found]) if type(found) in (list, tuple) else found


def _by_str(name: str) -> Any:
    method = getattr(str, name)

    @functools.wraps(method)
    def call(self: Text, *arguments: Any, **keywords: Any) -> Any:
        return _marked(method(self, *arguments, **keywords), self)

    return call


for _name in (
    "__add__ __format__ __getitem__ __mul__ __rmul__ capitalize casefold center expandtabs ljust lower lstrip "
    "partition removeprefix removesuffix replace rjust rpartition rsplit rstrip split splitlines strip swapcase title "
    "translate upper zfill"
).split():
    setattr(Text, _name, _by_str(_name))


def of_active(array: Any, text: str) -> str:
    """The text of an array, marked if it may be read as a number again; a warning if it is."""
    tape = current()
    if tape is None or not would_be_lost(array):
        return text
    frame = _asking()
    if frame is None:
        return text
    role = _role(frame)
    if role == READ:
        say_lost("reading a number from the text of", KEEP)
    elif role == FILED:
        warn_filed("a table (csv) of", array)
    elif role != SHOWN:
        made = Text(text)
        made._tape = weakref.ref(tape)
        return made
    return text


def lose_float(array: Any) -> None:
    """Warn that ``float(x)`` drops a derivative, unless it only formats a text (``"%.3f" % x``)."""
    if not would_be_lost(array):
        return
    frame = sys._getframe(2)
    role = _role(frame) if is_formatting(frame) else None
    if role == SHOWN or (role is None and is_formatting(frame) and package_of(frame) in SHOWING):
        return
    if checks.whole and role != READ:
        lose_number("float() of", array, 4)
    else:
        warn_lost("float() of", array)


def warn_json(array: Any) -> None:
    """Warn that a number in JSON drops its derivative, unless the text is only shown."""
    if would_be_lost(array) and ((frame := _asking("json")) is None or _role(frame) != SHOWN or _writes(frame)):
        warn_filed("JSON of", array)


def _asking(also: str = "csv") -> types.FrameType | None:
    """The frame that makes the text; None if its code only shows texts."""
    frame: Any = sys._getframe(2)
    while frame is not None:
        package = package_of(frame)
        if package not in ("ampi", "numpy", also):
            return None if package in SHOWING else frame
        frame = frame.f_back
    return None


# ------------------------------------------------------------------------------------------- what a text is made for

_known: dict[tuple[types.CodeType, int], str | None] = {}
_MANY = 10_000


def _role(frame: types.FrameType) -> str | None:
    """The use of the text that a frame's instruction makes (`READ`, `SHOWN`, `FILED`), or None if not known."""
    key = frame.f_code, frame.f_lasti
    if key not in _known:
        if len(_known) > _MANY:
            _known.clear()
        _known[key] = _found_role(frame)
    return _known[key]


def _found_role(frame: types.FrameType) -> str | None:
    tree, place = _tree(frame.f_code.co_filename), _Place(frame)
    if tree is None:
        return None
    path = list(_around(tree, place))
    for k, node in reversed(list(enumerate(path))):
        if isinstance(node, ast.Call) and (place.is_known or _has_text(node)):
            role = _ROLES.get(_name_of(node.func))
            if role is not None:
                return role
        if isinstance(node, (ast.Raise, ast.Assert)):
            return SHOWN
        if isinstance(node, ast.Assign):
            scope = next(x for x in reversed(path[:k]) if isinstance(x, (*_FUNCTIONS, ast.Module)))
            names = {x.id for target in node.targets for x in ast.walk(target) if isinstance(x, ast.Name)}
            return READ if _reads(scope, names) else None
        if isinstance(node, (ast.stmt, ast.Lambda)) or (place.is_known and _is_index(path, k)):
            return None
    return None


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _is_index(path: list[ast.AST], k: int) -> bool:
    """Return whether a node is an index or a key, and so not a number that is read."""
    outer = path[k - 1] if k else None
    if isinstance(outer, ast.Dict):
        return path[k] in outer.keys
    return isinstance(outer, ast.Subscript) and outer.slice is path[k]


def _has_text(call: ast.AST) -> bool:
    """Return whether a call seems to make a text."""
    return (
        any(
            isinstance(x, ast.JoinedStr)
            or (isinstance(x, ast.BinOp) and isinstance(x.op, ast.Mod))
            or (isinstance(x, ast.Call) and _name_of(x.func) in _MAKERS)
            for x in ast.walk(call)
        )
        or _ROLES.get(_name_of(call.func)) == SHOWN
    )  # type: ignore[attr-defined]


def _reads(scope: ast.AST, names: set[str]) -> bool:
    """Return whether one of the names is read as a number in a scope."""
    return any(
        isinstance(inner, ast.Name) and inner.id in names
        for call in ast.walk(scope)
        if isinstance(call, ast.Call) and _ROLES.get(_name_of(call.func)) == READ
        for inner in ast.walk(call)
    )


def _writes(frame: types.FrameType) -> bool:
    """Return whether a statement writes its text to a file, not to the screen."""
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return ".write" in line and "stdout" not in line and "stderr" not in line


def _name_of(function: ast.AST) -> str:
    return getattr(function, "attr", getattr(function, "id", ""))


@functools.lru_cache(64)
def _tree(file: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(file)))
    except (SyntaxError, ValueError):
        return None


class _Place:
    """Position of an instruction in the source; Python 3.10 only knows the line.

    Attributes
    ----------
    begin, end : tuple of int
        Line and column.
    is_known : bool
        True if the columns are known.
    """

    def __init__(self, frame: types.FrameType) -> None:
        positions = getattr(frame.f_code, "co_positions", None)
        found = (None,) * 4 if positions is None else list(positions())[frame.f_lasti // 2]
        self.is_known = None not in found
        line, last, column, end = found if self.is_known else (frame.f_lineno, frame.f_lineno, 0, 0)
        self.begin, self.end = (line, column), (last, end)

    def is_in(self, node: ast.AST) -> bool:
        """Return whether a node of the syntax tree contains the position."""
        if getattr(node, "lineno", None) is None:
            return any(self.is_in(child) for child in ast.iter_child_nodes(node))
        n: Any = node
        if not self.is_known:
            return n.lineno <= self.begin[0] <= n.end_lineno
        return (n.lineno, n.col_offset) <= self.begin and self.end <= (n.end_lineno, n.end_col_offset)


def _around(node: ast.AST, place: _Place) -> Iterator[ast.AST]:
    """The nodes that contain a position, from the outermost on."""
    yield node
    for child in ast.iter_child_nodes(node):
        if place.is_in(child):
            yield from _around(child, place)


def _yaml() -> None:
    """Let PyYAML write a `Text` as a string: it writes classes derived from `str` as objects, or not at all."""
    module: Any = sys.modules["yaml"]
    for dumper in (module.Dumper, module.SafeDumper):
        dumper.add_representer(Text, lambda self, text: self.represent_str(str.__str__(text)))


arrivals.when_imported("yaml", _yaml)

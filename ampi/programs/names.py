"""Names of a program's variables, as written on the command line."""

from __future__ import annotations

import ast
import dataclasses
import re

from ..errors import ProgramError

_SCOPED = re.compile(r"(?:(?:(?P<module>[\w.]+):)?(?P<function>[\w.<>]*):)?(?P<path>[^:@]*?)(?:@(?P<line>\d+))?", re.S)
RESULT = "return"

FORMS = (
    "name (of the script's top level), function:name, module:function:name, Class.method:self.name, function:return, "
    "or any of them with the line of an assignment: name@LINE"
)


@dataclasses.dataclass(frozen=True)
class Name:
    """A variable of a program.

    Attributes
    ----------
    text : str
        The text as written.
    module : str
        The module's name; empty for the script.
    function : str
        The function or class, as ``Class.method``; empty for the top level.
    path : str
        The variable, with attributes and constant keys: ``self.u``, ``options["k"]``, or ``return``.
    line : int or None
        The line of its assignment.
    """

    text: str
    module: str
    function: str
    path: str
    line: int | None

    @property
    def root(self) -> str:
        """The first variable of the path; of the result of a function the path."""
        if self.is_result:
            return self.path
        node: ast.AST = ast.parse(self.path, mode="eval").body
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        return node.id  # type: ignore[attr-defined]

    @property
    def is_result(self) -> bool:
        """True if this is the result of a function."""
        return self.path == RESULT

    @property
    def where(self) -> str:
        """A description of its scope."""
        place = f"{self.function}()" if self.function else "the top level"
        return f"{place} of {f'module {self.module}' if self.module else 'the script'}"


def parse(text: str) -> Name:
    """The variable that a text names.

    Raises
    ------
    ProgramError
        The text names no variable.
    """
    found = _SCOPED.fullmatch(text.strip())
    if found is None or not found["path"].strip():
        raise ProgramError(f"{text!r} names no variable; write {FORMS}")
    path = found["path"].strip()
    if path != RESULT:
        path = _checked(text, path)
    elif not found["function"]:
        raise ProgramError(f"{text!r}: the top level returns nothing; write function:return")
    line = found["line"]
    if path == RESULT and line:
        raise ProgramError(f"{text!r}: what a function returns is meant in all its lines; write {text.split('@')[0]}")
    return Name(text.strip(), found["module"] or "", found["function"] or "", path, int(line) if line else None)


def _checked(text: str, path: str) -> str:
    """A path in Python's own spelling."""
    try:
        node = whole = ast.parse(path, mode="eval").body
    except SyntaxError:
        raise ProgramError(f"{text!r} names no variable; write {FORMS}") from None
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        if isinstance(node, ast.Subscript) and not _is_constant(node.slice):
            raise ProgramError(f"{text!r}: an element is named by a constant, as in options['k'] or k[0]")
        node = node.value
    if not isinstance(node, ast.Name):
        raise ProgramError(f"{text!r} names no variable; write {FORMS}")
    return ast.unparse(whole)


def _is_constant(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True

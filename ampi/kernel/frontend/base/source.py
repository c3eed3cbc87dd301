"""The source of a kernel, and errors that point into it."""

from __future__ import annotations

import ast
import copy
import inspect
import textwrap
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from ampi.errors import KernelError
from ampi.kernel.ir.names import stem


@dataclass(frozen=True)
class Source:
    """The source of a kernel: its place in a file, and its definition as ``ast`` with the file's line numbers."""

    name: str
    filename: str
    first_line: int
    lines: tuple[str, ...]
    definition: ast.FunctionDef

    def error(self, node: Any, problem: str, advice: str = "") -> KernelError:
        """A KernelError at ``node`` (an ``ast`` node or a line number): what was found and what to write instead."""
        line = node if isinstance(node, int) else getattr(node, "lineno", self.first_line)
        column = getattr(node, "col_offset", None)
        offset = line - self.first_line
        text = self.lines[offset].rstrip("\n") if 0 <= offset < len(self.lines) else ""
        place = f"{self.filename}:{line}" + (f":{column + 1}" if column is not None else "")
        parts = [f"{place}: in kernel '{self.name}': {stem(problem)}", f"    {text}"]
        if column is not None:
            parts.append("    " + "".join("\t" if c == "\t" else " " for c in text[:column]) + "^")
        if advice:
            parts.append(f"  {stem(advice)}")
        return KernelError("\n".join(parts))

    def fail(self, node: Any, problem: str, advice: str = "") -> NoReturn:
        raise self.error(node, problem, advice) from None


def read_source(function: Any) -> Source:
    """Find and parse the source of a Python function (decorators and nesting do not matter)."""
    known = getattr(function, "__ampi_source__", None)
    if known is not None:  # a function generated from part of another one's source
        return replace(known, definition=copy.deepcopy(known.definition))
    code = function.__code__
    name, filename = function.__name__, code.co_filename
    try:
        lines, first_line = inspect.getsourcelines(function)
    except (OSError, TypeError) as problem:
        raise KernelError(
            f"{filename}:{code.co_firstlineno}: in kernel '{name}': its source cannot be read ({problem})\n"
            "  define the kernel in a file (or a notebook cell), not in exec() or the interactive prompt"
        ) from None
    first_line = max(first_line, 1)
    text = textwrap.dedent("".join(lines))
    indent = len(lines[0]) - len(lines[0].lstrip())
    try:
        definition: Any = ast.parse(text).body[0]
    except SyntaxError:
        definition = None
    if code.co_name == "<lambda>" and definition is not None:
        definition = _only_lambda(definition)
    if not isinstance(definition, ast.FunctionDef):
        raise KernelError(
            f"{filename}:{first_line}: in kernel '{name}': not a function definition\n    {lines[0].rstrip()}\n"
            "  write it as `def name(...):`, not as a coroutine; a lambda must be the only one in its statement"
        )
    for node in ast.walk(definition):
        if hasattr(node, "lineno"):
            node.lineno += first_line - 1
            node.end_lineno += first_line - 1
            node.col_offset += indent
            node.end_col_offset += indent
    return Source(definition.name, filename, first_line, tuple(lines), definition)


def _only_lambda(statement: ast.stmt) -> ast.FunctionDef | None:
    """The only lambda of a statement, as a function."""
    found = [n for n in ast.walk(statement) if isinstance(n, ast.Lambda)]
    if len(found) != 1:
        return None
    (one,) = found
    body = ast.copy_location(ast.Return(one.body), one.body)
    return ast.copy_location(ast.FunctionDef("_lambda", one.args, [body], []), one)

"""`ampi.compiled_loops`: loops of functions are compiled in programs that are not run by ``python -m ampi.run``."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from typing import Any

from ...kernel.frontend.base.source import read_source
from .loops import Loop
from .rewriting import Guards, Objects, note_loops
from .running import UNSET, Running


def never() -> bool:
    """No decisions are held."""
    return False


def with_compiled_loops(function: types.FunctionType, loops: list[Running] | None = None) -> types.FunctionType:
    """Put guards before the loops of a function, in place."""
    source = read_source(function)
    definition: Any = source.definition
    definition.decorator_list = []
    objects = Objects()

    def make(loop: Loop) -> Running:
        running = Running(loop, never)
        if loops is not None:
            loops.append(running)
        return running

    free = function.__code__.co_freevars
    tree: Any = ast.Module([definition], [])
    if free:
        values: list[ast.stmt] = [ast.Assign([ast.Name(n, ast.Store())], ast.Constant(None)) for n in free]
        outer = ast.parse("def _(): pass").body[0]
        outer.body = [*values, definition]  # type: ignore[attr-defined]
        tree.body = [outer]
    note_loops(tree)
    guards = Guards(source.filename, objects, make, UNSET, lambda node: False, lambda node: False)
    guards.names = function.__qualname__.split(".")[:-1]
    changed = ast.fix_missing_locations(guards.visit(tree))
    code = objects.compiled(changed, source.filename)
    found = _code_of(code, definition.name, definition.lineno, free)
    if found is not None:
        function.__code__ = found.replace(co_qualname=function.__qualname__) if sys.version_info >= (3, 11) else found
    return function


def _code_of(code: types.CodeType, name: str, line: int, free: tuple[str, ...]) -> types.CodeType | None:
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            if constant.co_name == name and constant.co_freevars == free:
                return constant
            found = _code_of(constant, name, line, free)
            if found is not None:
                return found
    return None


def compiled_loops(function: Any = None) -> Any:
    """Compile the loops of a function that prove hot."""
    if function is None:
        return compiled_loops
    return with_compiled_loops(inspect.unwrap(function))

"""The loops of a program's modules, before which guards are inserted when a module is compiled."""

from __future__ import annotations

import ast
import types
from collections.abc import Callable
from typing import Any

from ..edits import KEPT, is_compiled
from .loops import Loop
from .rewriting import Guards, Objects, note_loops
from .running import UNSET, Running


class Loops:
    """The loops of a program.

    Parameters
    ----------
    holds : callable
        Returns whether decisions that depend on active values are being recorded or repeated.

    Attributes
    ----------
    running : list of Running
    """

    def __init__(self, holds: Callable[[], bool]) -> None:
        self.holds = holds
        self.running: list[Running] = []

    def compile(self, tree: ast.Module, filename: str, edit: Callable[[ast.Module], ast.Module]) -> types.CodeType:
        """The code of a module after its edits, with guards before its loops."""
        note_loops(tree)
        objects = Objects()
        guards = Guards(filename, objects, self.make, UNSET, is_compiled, _is_watched)
        guarded = ast.fix_missing_locations(guards.visit(edit(tree)))
        return objects.compiled(guarded, filename)

    def make(self, loop: Loop) -> Running:
        """The object that runs a loop."""
        running = Running(loop, self.holds)
        self.running.append(running)
        return running


def _is_watched(loop: Any) -> bool:
    """Return whether a variable is watched or read inside of a loop."""
    return any(isinstance(n, ast.Name) and n.id in KEPT for n in ast.walk(loop))

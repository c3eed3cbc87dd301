"""Guards before a module's loops: ``if`` a loop has been compiled, its kernel runs, ``else`` the loop as written.

A guard has the position of its loop, so that tracebacks show the program's lines.  The objects that it uses are
constants of the code (here ``<loop 3>``).  The loops inside of a loop have guards, too, for where that goes on in
Python::

    if <loop 3>.on:
        try:
            <outcome> = <loop 3>(n, range, x)
        except NameError:
            <outcome> = None
    else:
        <outcome> = None
    if <outcome> is None:
        for i in range(n): ...
    else:
        if <outcome>[1] is not <unset>: s = <outcome>[1]
"""

from __future__ import annotations

import ast
import copy
import types
import warnings
from collections.abc import Callable
from typing import Any

from .loops import LOOKS_AT_NAMES, Loop

OUTCOME = "<outcome>"
_MARK = "<object of ampi {}>"
_WRITTEN = "_written"


class Objects:
    """Objects that become constants of code, represented by texts until it has been compiled."""

    def __init__(self) -> None:
        self.by_text: dict[str, Any] = {}

    def text_of(self, value: Any) -> str:
        """Return the text that represents an object."""
        text = _MARK.format(len(self.by_text))
        self.by_text[text] = value
        return text

    def compiled(self, tree: Any, filename: str) -> types.CodeType:
        """The code of a tree with the objects among its constants."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # of the program: it has been compiled before
            return self.put_into(compile(tree, filename, "exec", dont_inherit=True))

    def put_into(self, code: types.CodeType) -> types.CodeType:
        """The code with the objects among its constants."""
        return code.replace(co_consts=tuple(map(self._constant, code.co_consts)))

    def _constant(self, value: Any) -> Any:
        if isinstance(value, types.CodeType):
            return self.put_into(value)
        return self.by_text.get(value, value) if type(value) is str else value


def note_loops(tree: ast.Module) -> None:
    """Keep each loop of a module as written, before other changes to its tree."""
    for node in ast.walk(tree):
        if isinstance(node, (ast.For, ast.While)):
            setattr(node, _WRITTEN, copy.deepcopy(node))


class Guards(ast.NodeTransformer):
    """Puts guards before loops.

    Parameters
    ----------
    filename : str
    objects : Objects
    make : callable
        Returns the object that runs a `Loop`.
    unset : object
        The value of a variable that a loop has not assigned.
    is_compiled : callable
        Returns whether Numba compiles a function definition.
    is_kept : callable
        Returns whether the changes to a loop require that it runs in Python.
    """

    def __init__(
        self, filename: str, objects: Objects, make: Callable[[Loop], Any], unset: Any, is_compiled: Any, is_kept: Any
    ) -> None:
        self.filename = filename
        self.objects = objects
        self.make = make
        self.unset = ast.Constant(objects.text_of(unset))
        self.error = ast.Constant(objects.text_of(NameError))
        self.is_compiled = is_compiled
        self.is_kept = is_kept
        self.scopes: list[Any] = []
        self.names: list[str] = []

    def visit_Module(self, node: ast.Module) -> Any:
        """The top level of a module."""
        self.scopes.append(node)
        node = self.generic_visit(node)  # type: ignore[assignment]
        self.scopes.pop()
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> Any:
        """The body of a class, whose names are its attributes: only its methods have guards."""
        self.names.append(node.name)
        self.scopes.append(node)
        node = self.generic_visit(node)  # type: ignore[assignment]
        self.scopes.pop()
        self.names.pop()
        return node

    def visit_FunctionDef(self, node: Any) -> Any:
        """Guard the loops of a function, unless it inspects its own variables or is compiled by Numba."""
        if self.is_compiled(node) or _looks_at_names(node):
            return node
        self.names.append(node.name)
        self.scopes.append(node)
        node.body = [part for s in node.body for part in _listed(self.visit(s))]
        self.scopes.pop()
        self.names.pop()
        return node

    def visit_AsyncFunctionDef(self, node: Any) -> Any:
        """Return a coroutine unmodified."""
        return node

    def visit_For(self, node: Any) -> Any:
        """A loop, and those in it."""
        return self._loop(node)

    def visit_While(self, node: Any) -> Any:
        """A loop, and those in it."""
        return self._loop(node)

    def _loop(self, node: Any) -> Any:
        written = getattr(node, _WRITTEN, None)
        scope = self.scopes[-1]
        if written is None or isinstance(scope, ast.ClassDef) or self.is_kept(node):
            return self.generic_visit(node)
        loop = Loop(written, self.filename, ".".join(self.names), scope, node)
        node = self.generic_visit(node)
        running = self.make(loop)
        if loop.refusal is not None:
            return node
        return self._guarded(node, loop, ast.Constant(self.objects.text_of(running)))

    def _guarded(self, node: Any, loop: Loop, running: ast.Constant) -> list[ast.stmt]:
        """A loop with its guard."""
        call = ast.Call(running, [ast.Name(x, ast.Load()) for x in loop.inputs], [])
        handler = ast.ExceptHandler(self.error, None, [_store(OUTCOME, ast.Constant(None))])
        guard = ast.If(
            ast.Attribute(running, "on", ast.Load()),
            [ast.Try([_store(OUTCOME, call)], [handler], [], [])],
            [_store(OUTCOME, ast.Constant(None))],
        )
        after: list[ast.stmt] = []
        if loop.has_return:
            result = ast.Subscript(_outcome(0), ast.Constant(0), ast.Load())
            after.append(
                ast.If(ast.Compare(_outcome(0), [ast.IsNot()], [ast.Constant(None)]), [ast.Return(result)], [])
            )
        for k, changed in enumerate(sorted(loop.live)):
            test = ast.Compare(_outcome(k + 1), [ast.IsNot()], [self.unset])
            after.append(ast.If(test, [_store(changed, _outcome(k + 1))], []))
        test = ast.Compare(ast.Name(OUTCOME, ast.Load()), [ast.Is()], [ast.Constant(None)])
        choice = ast.If(test, [node], after or [ast.Pass()])
        _place(node, guard, *[test], *choice.orelse)
        return [guard, ast.copy_location(choice, node)]


def _place(node: Any, *statements: Any) -> None:
    """Give inserted parts the position of a loop."""
    for statement in statements:
        for part in ast.walk(statement):
            if isinstance(part, (ast.expr, ast.stmt, ast.excepthandler)):
                part.lineno = part.end_lineno = node.lineno
                part.col_offset = part.end_col_offset = node.col_offset


def _store(name: str, value: ast.expr) -> ast.Assign:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _outcome(k: int) -> ast.Subscript:
    return ast.Subscript(ast.Name(OUTCOME, ast.Load()), ast.Constant(k), ast.Load())


def _listed(found: Any) -> list[Any]:
    return found if isinstance(found, list) else [] if found is None else [found]


def _looks_at_names(function: Any) -> bool:
    return any(isinstance(n, ast.Name) and n.id in LOOKS_AT_NAMES for n in ast.walk(function))

"""Changes to a module's syntax tree by which variables are watched and read as the program runs.

Line numbers do not change: an inserted statement has the position of the one before. Inserted statements call built-in
names that exist only in the program's own modules, and that cannot be written there (`hidden`):

========================================= ============================================================================
``x = __ampi_watch__(k, place, x)``       after an assignment of the independent; returns the value to continue with
``__ampi_has__(k, place, lambda: p.x)``   whether an attribute or element exists, to be watched
``__ampi_is_fixed__(p)``                  whether attributes or elements of an object cannot be assigned
``p = __ampi_with__(p, "x", value)``      such an object with another attribute or element
``__ampi_is_computed__(p, "x")``          whether it is a property without a setter
``__ampi_in_place__(k, place, find)``     watch the array that such a property returns, in place
``__ampi_read__(k, y)``                   read the dependent, after a line or at the end of a class; returns it
``with __ampi_end__(k, lambda: y):``      around a function at the end of which the dependent is read
``__ampi_number__(float, x)``             ``float(x)``, with the derivative of ``x``
``__ampi_caught__()``                     where the program catches an error: raises those of ampi again
``__ampi_compared__(place, "<", x, y)``   a comparison, or ``x // y``, that may be held (`decisions`)
``__ampi_discrete__(place, round, x)``    a call of a function that returns whole numbers, likewise
========================================= ============================================================================
"""

from __future__ import annotations

import ast
import dataclasses
import re
from typing import Any

from . import bindings
from .decisions import DISCRETE
from .names import Name

WATCH, READ = "watch", "read"
_COMPILED = re.compile(r"jit|kernel|vectorize|stencil|cfunc|cuda")
_NUMBERS = (
    {"float", "complex"}
    | set("float16 float32 float64 half single double longdouble float128 complex64 complex128 cdouble csingle".split())
    | {"Decimal", "from_float"}
)
_HEADS = (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)
_SYMBOLS = {ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!="}
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)


@dataclasses.dataclass(eq=False)
class Request:
    """A variable to be watched or read.

    Attributes
    ----------
    role : {"watch", "read"}
    number : int
        The index of the independent or dependent.
    name : Name
    placed : bool
        True if a module with the variable has been found.
    compiled : bool
        True if it is in a function that Numba compiles, where nothing is inserted.
    """

    role: str
    number: int
    name: Name
    placed: bool = False
    compiled: bool = False


def edit(tree: ast.Module, filename: str, requests: list[Request], decisions: bool = False) -> ast.Module:
    """Change the syntax tree of a module for the requested variables in it, and for decisions if these are to be
    held."""
    for request in requests:
        if request.role == READ and not request.name.function and request.name.line is None:
            request.placed = True  # is looked up at the end of the run
    return ast.fix_missing_locations(_Editor(filename, requests, tree, decisions).visit(tree))


def is_compiled(function: Any) -> bool:
    """Return whether the decorators of a function definition say that it is compiled."""
    return any(_COMPILED.search(ast.unparse(decorator)) for decorator in function.decorator_list)


def hidden(name: str) -> str:
    """The key among a module's built-in names; no identifier, so that it cannot collide with a program's names."""
    return f"<{name}>"


KEPT = frozenset(hidden(f"__ampi_{name}__") for name in "watch has is_fixed with is_computed in_place read end".split())
"""Names of what is inserted where a variable is watched or read."""


@dataclasses.dataclass
class _Scope:
    node: ast.AST
    name: str
    compiled: bool
    watched: list[tuple[Request, str]]  # with the target to look for: the path, or its first variable
    lines: list[Request]
    results: list[Request]
    chosen: dict[Request, list[ast.stmt]]  # the statements of a line after which an independent is watched


def _member_of(path: str) -> tuple[str, str]:
    """The object and the member in ``o.a.k`` or ``o[k]``, as source."""
    node: Any = ast.parse(path, mode="eval").body
    return ast.unparse(node.value), repr(node.attr) if isinstance(node, ast.Attribute) else ast.unparse(node.slice)


def _goes_on_below(node: Any) -> bool:
    """Return whether a line is only the head of a statement, or the statement is a scope."""
    body = getattr(node, "body", None)
    is_scope = isinstance(node, (*bindings.Function, ast.ClassDef))
    return is_scope or (isinstance(body, list) and body[-1].end_lineno > node.lineno)


class _Editor(ast.NodeTransformer):
    def __init__(self, filename: str, requests: list[Request], tree: ast.Module, decisions: bool) -> None:
        self.filename = filename
        self.decisions = decisions
        self.requests = requests
        self.names = bindings.assigned_in(tree, "") if requests else set()
        self.scopes = [self._scope(tree, "", False)]

    # --------------------------------------------------------------------------------------------------- scopes

    def _scope(self, node: ast.AST, name: str, compiled: bool) -> _Scope:
        if not self.requests:
            return _Scope(node, name, compiled, [], [], [], {})
        names = bindings.names_in(node)
        watched, lines, results = [], [], []
        for request in self.requests:
            wanted = request.name
            if wanted.line is not None:
                if wanted.function in ("", name) and (request.role == READ or self._may_assign(node, names, wanted)):
                    lines.append(request)
            elif wanted.is_result:
                if wanted.function == name:
                    results.append(request)
            elif request.role == READ:
                continue
            elif wanted.function == name:
                known = self.names if not name else names
                watched.append((request, wanted.path if wanted.path in known else wanted.root))
            elif not wanted.function and isinstance(node, bindings.Function):
                if wanted.root in bindings.declared_global(node):
                    watched.append((request, wanted.path if wanted.path in self.names else wanted.root))
        if compiled:
            for request in (*(request for request, _ in watched), *lines, *results):
                request.placed = request.compiled = True
            watched, lines, results = [], [], []
        chosen = {r: self._at_line_chosen(node, r.name) for r in lines if r.role == WATCH}
        return _Scope(node, name, compiled, watched, lines, results, chosen)

    @staticmethod
    def _may_assign(node: ast.AST, names: set[str], wanted: Name) -> bool:
        """Return whether an assignment in a scope would not create a local variable."""
        return not isinstance(node, bindings.Function) or wanted.path != wanted.root or wanted.root in names

    def _at_line_chosen(self, scope: ast.AST, wanted: Name) -> list[ast.stmt]:
        """The statement of a line after which a variable is watched: the last that changes it, or else the last one."""
        nodes = [node for node in bindings.inside(scope) if isinstance(node, (ast.stmt, ast.NamedExpr))]
        nodes = [node for node in nodes if self._is_at(node, wanted.line)]
        if any(isinstance(node, ast.NamedExpr) and node.target.id == wanted.path for node in nodes):
            return []
        heads: list[ast.stmt] = [
            node for node in nodes if isinstance(node, _HEADS) and wanted.path in bindings.changed(node)
        ]
        if heads:
            return heads
        whole = [node for node in nodes if isinstance(node, ast.stmt) and not _goes_on_below(node)]
        parts = {part for node in whole for part in ast.walk(node) if part is not node}
        whole = [node for node in whole if node not in parts]
        changing = [node for node in whole if any(bindings.changes(part, wanted.path) for part in ast.walk(node))]
        return (changing or whole)[-1:]

    @property
    def here(self) -> _Scope:
        return self.scopes[-1]

    def _inner(self, name: str) -> str:
        return f"{self.here.name}.{name}" if self.here.name else name

    # ----------------------------------------------------------------------------------------------- statements

    def visit(self, node: ast.AST) -> Any:
        """Visit a node; statements with those inserted around them."""
        if isinstance(node, bindings.Function):
            return [self._function(node), *self._after(node)]
        if isinstance(node, ast.ClassDef):
            return [self._class(node), *self._after(node)]
        if isinstance(node, (ast.For, ast.AsyncFor, ast.With, ast.AsyncWith, ast.match_case)):
            first = self._after(node, of_block=False)
            node = self.generic_visit(node)
            node.body[:0] = first
            return [node, *self._at_line(node)] if isinstance(node, ast.stmt) else node
        if isinstance(node, ast.stmt):
            after = self._after(node)
            changed = super().visit(node)
            return [*after, changed] if isinstance(node, _ENDS) else [changed, *after]
        return super().visit(node)

    def _after(self, node: Any, of_block: bool = True) -> list[ast.stmt]:
        """The statements to insert after one that assigns a variable, or is on the named line."""
        found: list[ast.stmt] = []
        targets = [ast.unparse(target) for target in bindings.stored(node)]
        star = isinstance(node, ast.ImportFrom) and node.names[0].name == "*"
        for request, looked_for in self.here.watched:
            if looked_for in targets:
                found += self._watch(node, request, certain=looked_for == request.name.path)
            elif star and not self.here.name and looked_for not in self.names:
                found += self._watch(node, request, certain=False)
        for request, chosen in self.here.chosen.items():
            if node in chosen:
                found += self._watch(node, request, certain=request.name.path in bindings.changed(node))
        return found + (self._at_line(node) if of_block else [])

    def _at_line(self, node: Any) -> list[ast.stmt]:
        """Statements that read dependents after a statement."""
        found = []
        for request in self.here.lines:
            if request.role == READ and self._is_at(node, request.name.line):
                request.placed = True
                found.append(self._statement(node, f"__ampi_read__({request.number}, {request.name.path})"))
        return found

    @staticmethod
    def _is_at(node: Any, line: Any) -> bool:
        body = getattr(node, "body", None)
        if isinstance(node, ast.match_case):
            return False
        end = body[0].lineno - 1 if isinstance(body, list) and body else node.end_lineno
        return node.lineno <= line <= max(end, node.lineno)

    def _watch(self, node: Any, request: Request, certain: bool) -> list[ast.stmt]:
        if isinstance(self.here.node, ast.ClassDef) and not certain:
            return []
        request.placed = True
        path, place = request.name.path, self._place(node)
        watched = f"__ampi_watch__({request.number}, {place!r}, {path})"
        text = f"{path} = {watched}"
        if not certain:
            if not path.isidentifier():
                whole, key = _member_of(path)
                changed = f"{whole} = __ampi_with__({whole}, {key}, {watched})"
                kept = f"__ampi_in_place__({request.number}, {place!r}, lambda: {path})"
                text = (
                    f"if __ampi_is_fixed__({whole}): {changed}\n"
                    f"  elif __ampi_is_computed__({whole}, {key}): {kept}\n  else: {text}"
                )
            text = f"if __ampi_has__({request.number}, {place!r}, lambda: {path}):\n  {text}"
        return [self._statement(node, text)]

    def _place(self, node: Any) -> str:
        node = getattr(node, "pattern", node)
        return f"{self.filename}:{node.lineno}:{node.col_offset}"

    @staticmethod
    def _statement(node: Any, text: str) -> ast.stmt:
        (made,) = ast.parse(text).body
        node = getattr(node, "pattern", node)
        line = node.lineno if isinstance(getattr(node, "body", None), list) else node.end_lineno
        for part in ast.walk(made):
            if isinstance(part, ast.Call):
                part.func.id = hidden(part.func.id)  # type: ignore[attr-defined]
            if hasattr(part, "lineno"):
                part.lineno = part.end_lineno = line  # type: ignore[attr-defined]
                part.col_offset, part.end_col_offset = node.col_offset, node.col_offset  # type: ignore[attr-defined]
        return made

    # ---------------------------------------------------------------------------------- functions and classes

    def _outside(self, node: Any, *fields: str) -> None:
        """Visit the parts of a definition that belong to the scope around it."""
        for field in fields:
            value = getattr(node, field)
            if isinstance(value, list):
                value[:] = [self.visit(item) for item in value]
            elif isinstance(value, ast.AST):
                setattr(node, field, self.visit(value))

    def _function(self, node: Any) -> Any:
        name = self._inner(node.name)
        compiled = self.here.compiled or is_compiled(node)
        self._outside(node, "decorator_list", "args")
        self.scopes.append(self._scope(node, name, compiled))
        documented = ast.get_docstring(node, clean=False) is not None
        head = node.body[:documented]
        first: list[ast.stmt] = []
        known = bindings.parameters(node)
        for request, looked_for in self.here.watched:
            if looked_for in known:
                first += self._watch(node, request, certain=looked_for == request.name.path)
        for request in self.here.lines:
            if request.role == WATCH and self._is_at(node, request.name.line) and request.name.path in known:
                first += self._watch(node, request, certain=True)
        body = first + self._block(node.body[documented:])
        for request in self.requests:
            wanted = request.name
            if request.role == READ and wanted.function == name and wanted.line is None:
                request.placed, request.compiled = True, compiled
                if not wanted.is_result and not compiled:
                    around = self._statement(node, f"with __ampi_end__({request.number}, lambda: {wanted.path}): pass")
                    around.body = body or [ast.Pass()]  # type: ignore[attr-defined]
                    body = [around]
        node.body = head + body
        self.scopes.pop()
        return node

    def _block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        made: list[ast.stmt] = []
        for statement in statements:
            found = self.visit(statement)
            made += found if isinstance(found, list) else [found]
        return made

    def _class(self, node: ast.ClassDef) -> ast.ClassDef:
        name = self._inner(node.name)
        self._outside(node, "decorator_list", "bases", "keywords")
        self.scopes.append(self._scope(node, name, self.here.compiled))
        documented = ast.get_docstring(node, clean=False) is not None
        body = node.body[:documented] + self._block(node.body[documented:])
        for request in self.requests:
            wanted = request.name
            if request.role == READ and wanted.function == name and wanted.line is None and not wanted.is_result:
                request.placed = True
                body.append(self._statement(node.body[-1], f"__ampi_read__({request.number}, {wanted.path})"))
        node.body = body
        self.scopes.pop()
        return node

    def visit_Lambda(self, node: ast.Lambda) -> Any:
        """A lambda is a scope in which nothing is watched."""
        self.scopes.append(_Scope(node, self._inner("<lambda>"), self.here.compiled, [], [], [], {}))
        node = self.generic_visit(node)  # type: ignore[assignment]
        self.scopes.pop()
        return node

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> Any:
        """``except Exception:`` must not catch ampi's errors about lost derivatives."""
        node = self.generic_visit(node)  # type: ignore[assignment]
        if not self.here.compiled and (node.type is None or "ampi" not in ast.unparse(node.type)):
            call = ast.copy_location(ast.Call(ast.Name(hidden("__ampi_caught__"), ast.Load()), [], []), node)
            node.body.insert(0, ast.copy_location(ast.Expr(call), node))
        return node

    # ---------------------------------------------------------------------------------------------- expressions

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Any:
        """``(x := value)``"""
        node = self.generic_visit(node)  # type: ignore[assignment]
        wanted = [r for r, looked_for in self.here.watched if looked_for == node.target.id == r.name.path]
        wanted += [
            r
            for r in self.here.lines
            if r.role == WATCH and r.name.path == node.target.id and self._is_at(node, r.name.line)
        ]
        for request in wanted:
            request.placed = True
            node.value = self._call(
                "__ampi_watch__", ast.Constant(request.number), ast.Constant(self._place(node)), node.value
            )
        return node

    def visit_Return(self, node: ast.Return) -> Any:
        """Watch or read the result of a function, if requested."""
        node = self.generic_visit(node)  # type: ignore[assignment]
        for request in self.here.results:
            request.placed = True
            value = node.value or ast.copy_location(ast.Constant(None), node)
            number, place = ast.Constant(request.number), ast.Constant(self._place(node))
            if request.role == WATCH:
                node.value = self._call("__ampi_watch__", number, place, value)
            else:
                node.value = self._call("__ampi_read__", number, value)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        """``float(x)`` and similar conversions, and functions that return whole numbers."""
        node = self.generic_visit(node)  # type: ignore[assignment]
        name = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
        if self.decisions and not self.here.compiled and name in DISCRETE:
            call = self._call("__ampi_discrete__", ast.Constant(self._place(node)), node.func, *node.args)
            call.keywords = node.keywords
            return ast.copy_location(call, node)
        if self.here.compiled or name not in _NUMBERS:
            return node
        most = 2 if name == "complex" else 1
        named = {k.arg for k in node.keywords}
        if not 0 < len(node.args) + len(named) <= most or any(isinstance(x, ast.Starred) for x in node.args):
            return node
        if named and not (name == "complex" and named <= {"real", "imag"}):
            return node
        call = self._call("__ampi_number__", node.func, *node.args)
        call.keywords = node.keywords
        return ast.copy_location(call, node)

    def visit_Compare(self, node: ast.Compare) -> Any:
        """``x < y``"""
        node = self.generic_visit(node)  # type: ignore[assignment]
        symbol = _SYMBOLS.get(type(node.ops[0])) if len(node.ops) == 1 else None
        return self._decision(node, symbol, node.left, node.comparators[0])

    def visit_BinOp(self, node: ast.BinOp) -> Any:
        """``x // y``"""
        node = self.generic_visit(node)  # type: ignore[assignment]
        return self._decision(node, "//" if isinstance(node.op, ast.FloorDiv) else None, node.left, node.right)

    def _decision(self, node: ast.expr, symbol: str | None, *operands: ast.expr) -> ast.expr:
        texts = any(isinstance(x, ast.Constant) and not isinstance(x.value, (int, float)) for x in operands)
        if symbol is None or texts or not self.decisions or self.here.compiled:
            return node
        place = ast.Constant(self._place(node))
        return ast.copy_location(self._call("__ampi_compared__", place, ast.Constant(symbol), *operands), node)

    @staticmethod
    def _call(name: str, *arguments: ast.expr) -> ast.Call:
        called = ast.copy_location(ast.Name(hidden(name), ast.Load()), arguments[-1])
        return ast.copy_location(ast.Call(called, list(arguments), []), arguments[-1])

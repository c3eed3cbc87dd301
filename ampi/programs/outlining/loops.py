"""Loops in a program's source: the names that one needs, those that it assigns, and those that are used after it."""

from __future__ import annotations

import ast
import copy
from typing import Any

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_NOT_IN_LOOPS = {
    ast.Yield: "yield", ast.YieldFrom: "yield", ast.Await: "await", ast.AsyncFor: "async for", ast.Try: "try",
    ast.With: "with", ast.AsyncWith: "with", ast.FunctionDef: "a function definition", ast.Lambda: "a lambda",
    ast.AsyncFunctionDef: "a function definition", ast.ClassDef: "a class definition", ast.Import: "import",
    ast.ImportFrom: "import", ast.Delete: "del", ast.Global: "global", ast.Nonlocal: "nonlocal", ast.Raise: "raise",
    ast.Assert: "assert", ast.Match: "match", ast.NamedExpr: ":=", ast.ListComp: "a list comprehension",
    ast.SetComp: "a set comprehension", ast.DictComp: "a dict comprehension", ast.GeneratorExp: "a generator",
    ast.JoinedStr: "an f-string", ast.Dict: "a dictionary", ast.Set: "a set", ast.List: "a list",
    ast.Starred: "*",
}  # fmt: skip
LOOKS_AT_NAMES = {"locals", "eval", "exec", "vars", "dir"}
"""Functions that see a function's variables."""


class Loop:
    """A loop of a program with all that is in it.

    Attributes
    ----------
    node : ast.For or ast.While
    filename : str
    function : str
        The qualified name of the function around it; empty at the top of a module.
    inputs : tuple of str
        Names whose values it may need.
    assigned : frozenset of str
        Names that it assigns.
    updated : frozenset of str
        Those among them that it only updates (``z += ...``), which may be arrays.
    live : frozenset of str
        Those among them that may be used after it.
    paths : tuple of tuple of str
        Its inputs with the attributes that it reads, ``("self", "dx")``.
    refusal : tuple of (int, str) or None
        Line and reason, if it cannot be compiled for any values.
    """

    def __init__(self, node: Any, filename: str, function: str, scope: Any, original: Any = None) -> None:
        outside = _used_outside(original or node, scope)
        node, own = _with_own_names(node)
        self.node = node
        self.filename = filename
        self.function = function
        self.refusal = refusal_of(node)
        self.has_return = any(isinstance(n, ast.Return) for n in ast.walk(node))
        stored = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        self.assigned = frozenset(stored)
        updated = [n.target for n in ast.walk(node) if isinstance(n, ast.AugAssign)]
        others = {
            n.id
            for n in ast.walk(node)
            if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store) and n not in updated
        }
        self.updated = frozenset(stored - others)
        self.inputs = tuple(sorted(_exposed(node) - own))
        self.live = frozenset(stored & (set(self.inputs) | outside) - own)
        self.paths = tuple(sorted(_paths(node, set(self.inputs), stored)))

    @property
    def place(self) -> str:
        return f"{self.filename}:{self.node.lineno}"


def comprehension_of(node: Any) -> Any:
    """The comprehension in ``sum(x[i] for i in range(n))``."""
    match node:
        case ast.Call(func=ast.Name(id="sum"), args=[ast.ListComp() | ast.GeneratorExp() as found], keywords=[]):
            return found
    return None


def listed_in(node: Any) -> Any:
    """The list or tuple in ``np.array([a, b, c])``."""
    match node:
        case ast.Call(func=ast.Attribute(attr="array"), args=[ast.List() | ast.Tuple() as found]):
            return found
    return None


def _with_own_names(node: Any) -> tuple[Any, set[str]]:
    """A loop in which the variables of comprehensions have names that are not those of others, and these names."""
    node = copy.deepcopy(node)
    taken = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    own: set[str] = set()
    for call in list(ast.walk(node)):
        found = comprehension_of(call)
        if found is None:
            continue
        new = {}
        for name in sorted({name for g in found.generators for name in _targets(g.target)}):
            new[name] = f"{name}_of_sum_{len(own) + 1}"
            while new[name] in taken:
                new[name] += "_"
            own.add(new[name])
        first = set(ast.walk(found.generators[0].iter))
        for n in ast.walk(found):
            if isinstance(n, ast.Name) and n.id in new and n not in first:
                n.id = new[n.id]
    return node, own


def refusal_of(node: Any) -> tuple[int, str] | None:
    allowed = {comprehension_of(n) for n in ast.walk(node)} | {listed_in(n) for n in ast.walk(node)}
    for inner in ast.walk(node):
        word = _NOT_IN_LOOPS.get(type(inner))
        if word is not None and inner not in allowed:
            return getattr(inner, "lineno", node.lineno), f"{word} in the loop"
        if isinstance(inner, ast.Call):
            reason = _of_call(inner)
            if reason:
                return inner.lineno, reason
        if isinstance(inner, ast.Constant) and isinstance(inner.value, (str, bytes, complex)):
            if not _is_docstring(node, inner):
                return inner.lineno, f"{'a text' if isinstance(inner.value, (str, bytes)) else 'a complex number'}"
    return None


def _is_docstring(node: Any, constant: ast.Constant) -> bool:
    return any(isinstance(n, ast.Expr) and n.value is constant for n in ast.walk(node))


def _of_call(node: ast.Call) -> str:
    if node.keywords:
        return f"keyword arguments in a call of {ast.unparse(node.func)}()"
    name = getattr(node.func, "id", None)
    if name in ("print", "open", "input", "isinstance", "getattr", "setattr", "list", "dict", "set", "str"):
        return f"a call of {name}()"
    return ""


def _used_outside(node: Any, scope: Any) -> set[str]:
    """Return the names that code after a loop may read: at the top of a module all, as other functions see them.

    Code after it is what follows in its function, what an enclosing loop repeats, and nested functions.
    """
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
    found: set[str] = set()
    reached = False

    def visit(n: Any, counts: bool) -> None:
        nonlocal reached
        if n is node:
            reached = True
            return
        if isinstance(n, (ast.For, ast.AsyncFor, ast.While)):
            counts = counts or any(inner is node for inner in ast.walk(n))
        counts = counts or isinstance(n, (*_SCOPES, ast.GeneratorExp))
        if isinstance(n, (ast.Global, ast.Nonlocal)):
            found.update(n.names)
        elif counts or reached:
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store):
                found.add(n.id)
            elif isinstance(n, ast.AugAssign) and isinstance(n.target, ast.Name):
                found.add(n.target.id)
        for child in ast.iter_child_nodes(n):
            visit(child, counts)

    for child in ast.iter_child_nodes(scope):
        visit(child, False)
    return found if reached else {n.id for n in ast.walk(scope) if isinstance(n, ast.Name)}


def _paths(node: Any, inputs: set[str], stored: set[str]) -> set[tuple[str, ...]]:
    found = set()
    below = set()
    for n in ast.walk(node):
        if isinstance(n, ast.Attribute):
            path: list[str] = []
            inner: Any = n
            while isinstance(inner, ast.Attribute):
                path.append(inner.attr)
                if inner is not n:
                    below.add(inner)
                inner = inner.value
            below.add(inner)
            if n not in below and isinstance(inner, ast.Name) and inner.id in inputs and inner.id not in stored:
                found.add((inner.id, *reversed(path)))
    for n in ast.walk(node):
        if isinstance(n, ast.Name) and n.id in inputs and n not in below:
            found.add((n.id,))
    for name in inputs & stored:
        found.add((name,))
    return found


# ----------------------------------------------------------------------------- names that are read before assigned


def _exposed(node: Any) -> set[str]:
    found: set[str] = set()
    _statements([node], set(), found)
    return found


def _reads(node: Any, known: set[str], found: set[str]) -> None:
    if node is not None:
        for n in ast.walk(node):
            if isinstance(n, ast.Name) and not isinstance(n.ctx, ast.Store) and n.id not in known:
                found.add(n.id)


def _targets(target: Any) -> set[str]:
    return {n.id for n in ast.walk(target) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}


def _statements(body: list[Any], known: set[str], found: set[str]) -> set[str]:
    """Add the names that statements may read before they are assigned; return those assigned after them."""
    known = set(known)
    for s in body:
        if isinstance(s, ast.For):
            _reads(s.iter, known, found)
            _reads(s.target, known | _targets(s.target), found)
            _statements(s.body, known | _targets(s.target), found)
            _statements(s.orelse, known, found)
        elif isinstance(s, ast.While):
            _reads(s.test, known, found)
            _statements(s.body, known, found)
            _statements(s.orelse, known, found)
        elif isinstance(s, ast.If):
            _reads(s.test, known, found)
            both = [_statements(part, known, found) for part in (s.body, s.orelse)]
            ends = [_ends(part) for part in (s.body, s.orelse)]
            ways = [k for k, end in zip(both, ends) if not end]
            known = set.intersection(*ways) if ways else known
        elif isinstance(s, ast.Assign):
            _reads(s.value, known, found)
            for target in s.targets:
                _reads(target, known, found)
                known |= _targets(target)
        elif isinstance(s, ast.AugAssign):
            _reads(s.value, known, found)
            _reads(s.target, known, found)
            if isinstance(s.target, ast.Name):
                if s.target.id not in known:
                    found.add(s.target.id)
                known = known | {s.target.id}
        elif isinstance(s, ast.AnnAssign):
            _reads(s.value, known, found)
            _reads(s.target, known, found)
            if s.value is not None:
                known |= _targets(s.target)
        else:
            _reads(s, known, found)
    return known


def _ends(body: list[Any]) -> bool:
    return bool(body) and isinstance(body[-1], (ast.Break, ast.Continue, ast.Return, ast.Raise))

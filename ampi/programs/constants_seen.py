"""Expressions in a program's source that have no derivative: integers, and results of `ampi.value`."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from typing import Any

INTEGER, PLAIN, LITERAL = "integer", "plain", "literal"
"""Integers, conditions and text; values computed from `ampi.value`; literal numbers, whose variable may be an
independent, so that the name itself is none of these."""

INTEGERS = re.compile(
    r"(np\.|numpy\.|['\"])?u?int(\d+|p|c)?_?['\"]?|bool|(np|numpy)\.bool_?|['\"]bool_?['\"]|['\"][<>=|]?([iu]\d*|[?bBhHlLqQ])['\"]"
)
"""A dtype of integers, in the source."""

_TYPE = re.compile(r"u?int(\d+|p|c)?_?|bool_?")

_COUNTS = {"len", "int", "ord", "hash", "id", "bool", "isinstance", "issubclass", "range", "any", "all", "str", "repr"}
_KEEPS = {"min", "max", "sum", "abs", "sorted", "list", "tuple", "set", "reversed", "enumerate", "zip", "divmod"}
_PLACES = set(
    "argsort argmax argmin nonzero flatnonzero argwhere searchsorted digitize count_nonzero lexsort isin in1d isfinite "
    "isnan isinf isclose allclose array_equal logical_and logical_or logical_not logical_xor greater less equal "
    "greater_equal less_equal not_equal signbit shape size ndim argpartition nanargmax nanargmin ravel_multi_index "
    "unravel_index indices triu_indices tril_indices diag_indices".split()
)
_PLACES_OF_METHODS = set(
    "argsort argmax argmin nonzero searchsorted any all Get_rank Get_size index count integers randint "
    "random_integers bit_length startswith endswith argpartition Get_count Get_source Get_tag".split()
)
_STAYS = set(
    "abs absolute minimum maximum add subtract multiply negative floor_divide mod remainder cumsum cumprod sum "
    "prod max min amax amin where sort unique concatenate stack hstack vstack append repeat tile reshape ravel "
    "transpose flip roll arange array asarray asanyarray ascontiguousarray copy diff sign square take choose "
    "clip split array_split meshgrid bincount broadcast_to full full_like zeros_like ones_like dot outer kron "
    "pad squeeze expand_dims swapaxes delete insert atleast_1d atleast_2d moveaxis ix_ setdiff1d union1d "
    "intersect1d flatten tolist item diagonal get pop".split()
)
"""Functions and methods that return integers for integers."""
_MAKES = {
    "array": 1,
    "asarray": 1,
    "zeros": 1,
    "ones": 1,
    "empty": 1,
    "full": 2,
    "asanyarray": 1,
    "ascontiguousarray": 1,
}
_ATTRIBUTES = {"shape", "size", "ndim", "itemsize", "nbytes", "strides", "rank"}


class Seen:
    """The expressions of a source file.

    Parameters
    ----------
    tree : ast.Module
    path_of : callable
        Returns ``numpy.linalg.norm`` for an expression that means it in the file; empty for others.
    """

    def __init__(self, tree: ast.Module, path_of: Callable[[ast.AST], str]) -> None:
        self._path_of = path_of
        self._scopes: dict[ast.AST, dict[str, list[ast.AST | None]]] = {}
        self._scope_of: dict[ast.AST, ast.AST] = {}
        self._outer: dict[ast.AST, ast.AST | None] = {}
        self._attributes: dict[str, list[ast.AST | None]] = {}
        self._enter(tree, None)
        # All names count as integers until one of their values is not.
        self._known: dict[tuple[ast.AST | None, str], str | None] = {
            **{(scope, name): INTEGER for scope, names in self._scopes.items() for name in names},
            **{(None, name): INTEGER for name in self._attributes},
        }
        while self._look_again():
            pass

    def _look_again(self) -> bool:
        """Determine the kinds of all names again, from those of the others; return whether one has changed."""
        before = dict(self._known)
        for (scope, name), known in before.items():
            if known is not None:
                values = self._attributes[name] if scope is None else self._scopes[scope][name]
                self._known[scope, name] = _bound({known, *(self._kind(value, scope) for value in values)})
        return self._known != before

    # ------------------------------------------------------------------------------------------------- names

    def _enter(self, scope: Any, outer: ast.AST | None) -> None:
        names = self._scopes[scope] = {}
        self._outer[scope] = outer
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            given = scope.args
            for one in [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]:
                if one is not None:
                    names.setdefault(one.arg, []).append(None)
        for node in _inside(scope):
            self._scope_of[node] = scope
            self._bind(node, names)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
                self._enter(node, scope)

    def _bind(self, node: Any, names: dict) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._target(target, node.value, names)
        elif isinstance(node, (ast.AugAssign, ast.NamedExpr)) or (isinstance(node, ast.AnnAssign) and node.value):
            self._target(node.target, node.value, names)
            if isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Div, ast.Pow)):
                self._target(node.target, None, names)
        elif isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
            self._loop(node.target, node.iter, names)
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            self._target(node.optional_vars, None, names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.setdefault(node.name, []).append(None)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            for alias in node.names:
                names.setdefault(alias.asname or alias.name.partition(".")[0], []).append(None)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            for name in node.names:
                names.setdefault(name, []).append(None)

    def _target(self, target: ast.AST, value: ast.AST | None, names: dict) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            several = isinstance(value, (ast.Tuple, ast.List)) and len(value.elts) == len(target.elts)
            for k, part in enumerate(target.elts):
                self._target(part, value.elts[k] if several else value, names)  # type: ignore[union-attr]
        elif isinstance(target, ast.Starred):
            self._target(target.value, value, names)
        elif isinstance(target, ast.Name):
            names.setdefault(target.id, []).append(value)
        elif isinstance(target, ast.Attribute):
            self._attributes.setdefault(target.attr, []).append(value)
        elif isinstance(target, ast.Subscript):  # an array converts its elements, a list does not
            self._target(target.value, value, names)

    def _loop(self, target: ast.AST, over: ast.AST, names: dict) -> None:
        called = over.func.id if isinstance(over, ast.Call) and isinstance(over.func, ast.Name) else ""
        if called in ("enumerate", "zip") and isinstance(target, ast.Tuple):
            values = [ast.Constant(0), *over.args[:1]] if called == "enumerate" else over.args  # type: ignore[attr-defined]
            for part, value in zip(target.elts, values):
                self._target(part, value, names)
            return
        self._target(target, over, names)

    def _name(self, name: str, scope: ast.AST | None) -> str | None:
        while scope is not None and (name not in self._scopes[scope] or isinstance(scope, ast.ClassDef)):
            scope = self._outer[scope]
        return None if scope is None else self._known[scope, name]

    # ------------------------------------------------------------------------------------------- expressions

    def kind(self, node: ast.AST) -> str | None:
        """The kind of an expression in the file; None if it may have a derivative."""
        return self._kind(node, self._scope_of.get(node))

    def _kind(self, node: Any, scope: ast.AST | None) -> str | None:
        scope = self._scope_of.get(node, scope)
        rule = getattr(self, f"_of_{type(node).__name__}", None)
        return None if rule is None else rule(node, scope)

    def _all(self, nodes: Any, scope: ast.AST | None) -> str | None:
        found = {self._kind(node, scope) for node in nodes}
        if None in found:
            return None
        return PLAIN if PLAIN in found else LITERAL if LITERAL in found else INTEGER

    def _of_Constant(self, node: ast.Constant, scope: Any) -> str:
        return LITERAL if isinstance(node.value, (float, complex)) else INTEGER

    def _of_Name(self, node: ast.Name, scope: Any) -> str | None:
        return self._name(node.id, scope)

    def _of_Attribute(self, node: ast.Attribute, scope: Any) -> str | None:
        if node.attr in _ATTRIBUTES and not self._attributes.get(node.attr):
            return INTEGER
        if node.attr in ("T", "flat", "real"):
            return self._kind(node.value, scope)
        is_own = isinstance(node.value, ast.Name) and node.value.id == "self"
        return self._known.get((None, node.attr)) if is_own else None

    def _of_Subscript(self, node: ast.Subscript, scope: Any) -> str | None:
        return self._kind(node.value, scope)

    def _of_Compare(self, node: Any, scope: Any) -> str:
        return INTEGER

    def _of_JoinedStr(self, node: Any, scope: Any) -> str:
        return INTEGER

    def _of_Slice(self, node: Any, scope: Any) -> str:
        return INTEGER

    def _of_UnaryOp(self, node: ast.UnaryOp, scope: Any) -> str | None:
        return INTEGER if isinstance(node.op, ast.Not) else self._kind(node.operand, scope)

    def _of_BinOp(self, node: ast.BinOp, scope: Any) -> str | None:
        found = self._all([node.left, node.right], scope)
        return LITERAL if found == INTEGER and isinstance(node.op, (ast.Div, ast.Pow)) else found

    def _of_BoolOp(self, node: ast.BoolOp, scope: Any) -> str | None:
        return self._all(node.values, scope)

    def _of_IfExp(self, node: ast.IfExp, scope: Any) -> str | None:
        return self._all([node.body, node.orelse], scope)

    def _of_Tuple(self, node: Any, scope: Any) -> str | None:
        return self._all(node.elts, scope)

    _of_List = _of_Set = _of_Tuple

    def _of_Starred(self, node: ast.Starred, scope: Any) -> str | None:
        return self._kind(node.value, scope)

    def _of_NamedExpr(self, node: ast.NamedExpr, scope: Any) -> str | None:
        return self._kind(node.value, scope)

    def _of_ListComp(self, node: Any, scope: Any) -> str | None:
        return self._kind(node.elt, scope)

    _of_GeneratorExp = _of_SetComp = _of_ListComp

    def _of_Call(self, node: ast.Call, scope: Any) -> str | None:
        name = self._path_of(node.func)
        package = name.partition(".")[0]
        values = [*node.args, *(k.value for k in node.keywords if k.arg not in ("dtype", "copy", "out"))]
        if name in ("ampi.value", "ampi.constant"):
            return PLAIN
        if package == "numpy" or name.startswith("ampi.numpy."):
            return self._of_numpy(node, name.removeprefix("ampi.").removeprefix("numpy."), values, scope)
        if isinstance(node.func, ast.Attribute) and not name:
            return self._of_method(node, node.func, values, scope)
        called = node.func.id if isinstance(node.func, ast.Name) and not name else ""
        if called in _COUNTS or (called == "round" and len(node.args) == 1):
            return INTEGER
        if called in _KEEPS:
            return self._all(values, scope)
        if called == "float":
            found = self._all(values, scope)
            return LITERAL if found == INTEGER else found
        return None

    def _of_method(self, node: ast.Call, function: ast.Attribute, values: list, scope: Any) -> str | None:
        method = function.attr
        if method in _PLACES_OF_METHODS or (method in ("astype", "view") and values and is_integer_dtype(values[0])):
            return INTEGER
        if method in ("astype", "view"):
            found = self._kind(function.value, scope)
            return LITERAL if found == INTEGER else found
        found = self._all([function.value, *values], scope)
        return LITERAL if found == INTEGER and method not in _STAYS else found

    def _of_numpy(self, node: ast.Call, last: str, values: list, scope: Any) -> str | None:
        if (
            last in _PLACES
            or (last == "where" and len(node.args) == 1)
            or re.fullmatch(r"u?int(\d+|p|c)?_?|bool_?", last)
        ):
            return INTEGER
        if last == "random.randint":
            return INTEGER
        if last == "random.permutation":
            return self._all(values, scope)
        if last.startswith("random."):
            return LITERAL
        dtype = next((k.value for k in node.keywords if k.arg == "dtype"), None)
        at = _MAKES.get(last)
        if dtype is None and at is not None and len(node.args) > at:
            dtype = node.args[at]
            values = [value for value in values if value is not dtype]
        if dtype is not None and is_integer_dtype(dtype):
            return INTEGER
        if last in ("zeros", "ones", "empty"):
            return LITERAL
        found = self._all(values[1:] if last == "where" else values, scope)
        return LITERAL if found == INTEGER and (last not in _STAYS or dtype is not None) else found


def is_integer_dtype(node: ast.AST) -> bool:
    """Return whether an expression names a dtype of integers."""
    return INTEGERS.fullmatch(ast.unparse(node)) is not None


def _bound(found: set[str | None]) -> str | None:
    """The kind of a name, from those of all its values."""
    if None in found or LITERAL in found:
        return None
    return PLAIN if PLAIN in found else INTEGER


def _inside(scope: ast.AST) -> Iterator[ast.AST]:
    """The nodes of a scope, without those of inner scopes."""
    waiting = list(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            waiting.extend(ast.iter_child_nodes(node))
        else:
            waiting.extend(getattr(node, "decorator_list", ()))

"""Inlining of a program's own functions in loops: their bodies replace the calls, with renamed variables."""

from __future__ import annotations

import ast
import builtins
import copy
import types
from typing import Any

from ...errors import KernelError
from ...kernel.frontend.base.source import read_source
from ..edits import KEPT
from .kinds import Constant, Number, Refused, Vector, kind_of
from .states import Restart, State
from .vectors import CHOSEN

DEEPEST = 6
MOST_STATEMENTS = 200
_LIBRARIES = {"numpy", "scipy", "ampi", "math", "mpi4py", "numba", "builtins"}


def is_library(function: Any) -> bool:
    """Return whether a Python function is one of a library."""
    return (getattr(function, "__module__", None) or "").partition(".")[0] in _LIBRARIES


class Body:
    """A function's body for one call.

    Attributes
    ----------
    parameters : list of str
        The new names of its parameters.
    statements : list of ast.stmt
    result : str
        The variable for its result.
    has_result : bool
    own : set of str
        The new names of its variables, and the variable for its result.
    code : types.CodeType
        The function's code.
    """

    def __init__(self, node: Any, function: types.FunctionType, number: int, lowering: Any) -> None:
        definition = self._definition(node, function)
        names = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name)}
        stored = {n.id for n in ast.walk(definition) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        given = [a.arg for a in definition.args.args]
        own = stored | set(given)
        taken = lowering.taken
        new = {}
        for name in sorted(names | own):
            wanted = f"{name}_in_{function.__name__}_{number}"
            while wanted in taken:
                wanted += "_"
            new[name] = wanted
        self.code = function.__code__
        self.result = f"result_of_{function.__name__}_{number}"
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or ()))
        for name in sorted(names - own):
            space: Any = function.__globals__
            if name in cells:
                raise Refused(node, f"{function.__name__}(), which uses variables of the function around it")
            if name not in space:
                space = vars(builtins)
            if name not in space:
                raise Refused(node, f"{function.__name__}(), in which '{name}' is not known")
            if name in lowering.loop.assigned and space is function.__globals__:
                raise Refused(node, f"{function.__name__}(), which uses '{name}', which the loop may assign")
            lowering.others[(new[name],)] = space, name, kind_of(space[name])
            lowering.note_attributes(definition, name, new[name], space[name])
        self.own = {new[name] for name in own} | {self.result}
        lowering.assigned |= self.own
        self.parameters = [new[name] for name in given]
        body = [_Renamed(new, node).visit(s) for s in copy.deepcopy(definition.body)]
        self.has_result = any(isinstance(n, ast.Return) and n.value is not None for s in body for n in ast.walk(s))
        self.count = 0
        self.statements = self._tail(body, node)

    @staticmethod
    def _definition(node: Any, function: types.FunctionType) -> Any:
        try:
            definition: Any = read_source(function).definition
        except KernelError:
            raise Refused(node, f"{function.__name__}(), whose source cannot be read") from None
        from .loops import refusal_of

        a = definition.args
        simple = not (a.posonlyargs or a.kwonlyargs or a.vararg or a.kwarg or definition.decorator_list)
        if not simple or hasattr(function, "__wrapped__") or definition.name != function.__name__:
            raise Refused(
                node, f"{function.__name__}(), which has decorators, or other parameters than positional ones"
            )
        if len(node.args) > len(a.args) or node.keywords:
            raise Refused(node, f"{function.__name__}() with other arguments than positional ones")
        if KEPT.intersection(function.__code__.co_names):
            raise Refused(node, f"{function.__name__}(), in which a variable is watched or read")
        for s in definition.body:
            reason = refusal_of(s)
            if reason is not None:
                raise Refused(node, f"{function.__name__}(), which has {reason[1].removesuffix(' in the loop')}")
        return definition

    def _tail(self, body: list[Any], node: Any) -> list[Any]:
        """Return statements that assign the result instead of returning it."""
        found: list[Any] = []
        for k, s in enumerate(body):
            self.count += 1
            if self.count > MOST_STATEMENTS:
                raise Refused(node, "a function with too many branches")
            if isinstance(s, ast.Return):
                if self.has_result:
                    value = s.value or ast.copy_location(ast.Constant(None), s)
                    target = ast.copy_location(ast.Name(self.result, ast.Store()), s)
                    found.append(ast.copy_location(ast.Assign([target], value), s))
                return found
            returns = any(isinstance(n, ast.Return) for n in ast.walk(s))
            if returns and not isinstance(s, ast.If):
                raise Refused(node, "a function that returns inside of a loop")
            if returns:
                rest = body[k + 1 :]
                one = self._tail([*s.body, *copy.deepcopy(rest)], node)
                other = self._tail([*s.orelse, *rest], node)
                found.append(ast.copy_location(ast.If(s.test, one or [_pass(s)], other), s))
                return found
            found.append(s)
        return found


def _defaults(node: Any, function: types.FunctionType, count: int) -> list[Any]:
    """The defaults of a function's last parameters, which a call does not give."""
    missing = count - len(node.args)
    values = (function.__defaults__ or ())[-missing:] if missing else ()
    if len(values) != missing or any(type(value) not in (int, float, bool) for value in values):
        raise Refused(node, f"{function.__name__}() with a default that is no number")
    return [ast.copy_location(ast.Constant(value), node) for value in values]


def _pass(s: Any) -> Any:
    return ast.copy_location(ast.Pass(), s)


class _Renamed(ast.NodeTransformer):
    def __init__(self, names: dict[str, str], call: Any) -> None:
        self.names = names
        self.call = call

    def visit_Name(self, node: ast.Name) -> Any:
        """A variable of the function."""
        return ast.copy_location(ast.Name(self.names[node.id], node.ctx), node)


class Inlining:
    """Lowering of calls of Python functions; a base of `lowering.Lowering`."""

    def inlined_statement(self, node: Any, function: types.FunctionType, state: State) -> State:
        """A call whose result is not used."""
        key = node.lineno, node.col_offset, function, len(self.bodies)
        body = self.inline.get(key)  # type: ignore[attr-defined]
        if body is None:
            body = self.inline[key] = Body(node, function, len(self.inline) + 1, self)  # type: ignore[attr-defined]
        if len(self.bodies) >= DEEPEST:
            raise Refused(node, "functions that call one another too deeply")
        given = [*node.args, *_defaults(node, function, len(body.parameters))]
        found = [self.anything(x, state) for x in given]  # type: ignore[attr-defined]
        kept = []
        for text, value in found:
            if isinstance(value, Number) and len(found) > 1 and not text.isidentifier():
                name = self.temporary("item")  # type: ignore[attr-defined]
                self.emit(f"{name} = {text}")  # type: ignore[attr-defined]
                text = name
            kept.append((text, value))
        for name, (text, value) in zip(body.parameters, kept):
            target = ast.copy_location(ast.Name(name, ast.Store()), node)
            state = state.copy()
            if not isinstance(value, Number):
                state.env.pop(name, None)
            if isinstance(value, Vector) and value.name:
                if value.name == CHOSEN:
                    raise Refused(node, f"{function.__name__}() of one array or another")
                state.env[name] = value
                state.sure, state.maybe = state.sure | {name}, state.maybe - {name}
                continue
            state = self.store(target, text, value, state)  # type: ignore[attr-defined]
        line = self.line  # type: ignore[has-type]
        self.bodies.append(body)
        try:
            after = self.block(body.statements, state)  # type: ignore[attr-defined]
        finally:
            self.bodies.pop()
        self.line = line
        if after is None:
            raise Refused(node, f"{function.__name__}(), which does not return")
        return after

    def inlined(self, node: Any, function: types.FunctionType, state: State) -> tuple[str, Any]:
        """A call whose result is a number or a vector."""
        stores = self.stores  # type: ignore[attr-defined]
        after = self.inlined_statement(node, function, state)
        if self.stores != stores:  # type: ignore[attr-defined]
            raise Refused(node, f"{function.__name__}(), which writes to an array and is called in an expression")
        body = self.inline[node.lineno, node.col_offset, function, len(self.bodies)]  # type: ignore[attr-defined]
        found = after.env.get(body.result)
        if not isinstance(found, (Number, Vector)) or body.result in after.maybe:
            raise Refused(node, f"the result of {function.__name__}(), which may be no number")
        state.env.update(after.env)  # the other variables of the call have unique names
        state.maybe, state.checked, state.same = after.maybe, after.checked, after.same
        if isinstance(found, Vector):
            own = found.name in body.own and found.name not in self.shared  # type: ignore[attr-defined]
            return "", Vector(found.elements) if own else found
        name = self.temporary("result")  # type: ignore[attr-defined]
        self.emit(f"{name} = {body.result}")  # type: ignore[attr-defined]
        return name, found.as_value()

    def note_attributes(self, definition: Any, name: str, new: str, value: Any) -> None:
        """Modules' members that a function uses: ``np.sin``."""
        if not isinstance(value, types.ModuleType):
            return
        for n in ast.walk(definition):
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id == name:
                members = vars(value)
                member = getattr(value, n.attr, None)
                if n.attr not in members:
                    members = vars(members.get("stands_for", value))
                if n.attr not in members:
                    continue
                if isinstance(member, types.ModuleType):
                    continue
                self.others[(new, n.attr)] = members, n.attr, kind_of(members[n.attr])  # type: ignore[attr-defined]


__all__ = ["Constant", "Inlining", "Restart", "is_library"]

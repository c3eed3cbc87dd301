"""Lambda lifting: active global variables of a program's compiled functions become arguments.

Numba treats the value of a global or closure variable at a function's first call as a constant.  If that value is
active, the function gets a parameter for it, and so do the functions that call it; the value at the first call is
passed.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any

import numpy as np

from ..arrays.losses import would_be_lost
from ..derivatives.arguments import leaves_of, map_leaves
from ..errors import ActivityError
from ..kernel.frontend.base.source import Source, read_source
from ..kernel.runtime.cache import names_in
from ..memory import storages as memory
from ..memory.storages import TrackedArray

_lifted: dict[tuple, set[tuple]] = {}
"""The variables that were active in the recorded run, by the function's place: the same ones are lifted in later runs
with displaced values."""


@dataclasses.dataclass(frozen=True)
class Variable:
    """A global or closure variable.

    Attributes
    ----------
    path : tuple of str
        Its name, preceded by that of the module for ``module.name``.
    value : object
    """

    path: tuple[str, ...]
    value: Any

    @property
    def key(self) -> int:
        """Its identity: several functions may use the same variable."""
        return id(self.value)


@dataclasses.dataclass
class Lifted:
    """A function with additional first parameters for variables.

    Attributes
    ----------
    kernel : object
        The compiled function.
    values : tuple
        The values to pass for them, copies of the variables'.
    """

    kernel: Any
    values: tuple[Any, ...]


def lift(kernel: Any, make: Callable[[Any, Any], Any]) -> Lifted | None:
    """Lift the active variables of a function, and of the functions that it calls.

    Parameters
    ----------
    kernel : object
        The compiled function.
    make : callable
        ``make(callee, function)`` compiles ``function`` with the options of ``callee``.

    Returns
    -------
    Lifted or None
        None if there is no such variable.
    """
    found = variables_of(kernel.py_func)
    if not found:
        return None
    return Lifted(_Lifting(make).lifted(kernel), tuple(_copied(v.value) for v in found))


def variables_of(function: Any, inside: tuple[Any, ...] = ()) -> list[Variable]:
    """The variables that carry derivatives, each once."""
    place = (function.__code__.co_filename, function.__code__.co_firstlineno, function.__qualname__)
    before = _lifted.get(place, set())
    found: dict[int, Variable] = {}
    for path, value in _free(function):
        if _has_numbers(value):
            if any(map(would_be_lost, leaves_of(value))) or path in before:
                found.setdefault(id(value), Variable(path, value))
                _lifted.setdefault(place, set()).add(path)
        elif (callee := _callee(value)) is not None and callee not in (function, *inside):
            for variable in variables_of(callee, (*inside, function)):
                found.setdefault(variable.key, variable)
    return list(found.values())


def _free(function: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The globals and closure variables of a function, with the members of modules that it uses."""
    named = names_in(function.__code__)
    space = {name: function.__globals__[name] for name in named if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            space[name] = cell.cell_contents
        except ValueError:  # a cell not assigned yet
            continue
    for name, value in space.items():
        yield (name,), value
        if isinstance(value, ModuleType) and "stands_for" not in vars(value):
            for attribute in named:
                if attribute in vars(value):
                    yield (name, attribute), vars(value)[attribute]


def _has_numbers(value: Any) -> bool:
    """Return whether a value is a tracked number or array, or a tuple that contains one."""
    if isinstance(value, tuple):
        return any(map(_has_numbers, value))
    return isinstance(value, TrackedArray) and value.dtype.kind in "fc"


def _callee(value: Any) -> Any:
    """The Python function of an object that a kernel may call."""
    function = getattr(value, "py_func", value)
    return function if isinstance(function, FunctionType) and hasattr(value, "py_func") else None


def _copied(value: Any) -> Any:
    return map_leaves(lambda x: x.copy() if isinstance(x, np.ndarray) and not memory.is_scalar(x) else x, value)


class _Lifting:
    """Makes the functions with additional parameters, each once."""

    def __init__(self, make: Callable[[Any, Any], Any]) -> None:
        self.make = make
        self.made: dict[Any, Any] = {}

    def lifted(self, kernel: Any) -> Any:
        """The compiled function with additional first parameters for its variables."""
        function = kernel.py_func
        if function not in self.made:
            self.made[function] = None
            self.made[function] = self._lifted(kernel, function)
        if self.made[function] is None:
            code = function.__code__
            raise ActivityError(
                f"{code.co_filename}:{code.co_firstlineno}: '{function.__name__}' is called by a function that it "
                "calls, and reads a global variable that carries derivatives: pass it as an argument"
            )
        return self.made[function]

    def _lifted(self, kernel: Any, function: Any) -> Any:
        source = read_source(function)
        definition = copy.deepcopy(source.definition)
        definition.decorator_list, definition.returns = [], None
        space = {**function.__globals__, **{path[0]: value for path, value in _free(function) if len(path) == 1}}
        passing = _Passing(self, function, dict(_free(function)), space)
        definition.body = [passing.visit(statement) for statement in definition.body]
        own = [ast.arg(passing.names[v.key]) for v in variables_of(function)]
        first = definition.args.posonlyargs or definition.args.args
        first[:0] = own
        tree = ast.fix_missing_locations(ast.copy_location(definition, source.definition))
        code = compile(ast.Module([tree], []), source.filename, "exec")
        names: dict[str, Any] = {}
        exec(code, space, names)
        made = names[definition.name]
        made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        made.__ampi_source__ = Source(source.name, source.filename, source.first_line, source.lines, tree)
        compiled = self.make(kernel, made)
        space.update(dict.fromkeys(passing.itself, compiled))
        return compiled


class _Passing(ast.NodeTransformer):
    """Replaces variables by parameters, and passes them in calls."""

    def __init__(self, lifting: _Lifting, function: Any, free: dict[tuple[str, ...], Any], space: dict) -> None:
        self.lifting = lifting
        self.function = function
        self.free = free
        self.local = set(function.__code__.co_varnames)
        self.space = space
        self.lifted = {variable.key for variable in variables_of(function)}
        self.names = _Names(self.local | space.keys(), free)
        self.itself: set[str] = set()  # names by which the function calls itself

    def _value(self, node: ast.AST) -> Any:
        """The value of a name or of an attribute of a module."""
        match node:
            case ast.Name(id=name) if name not in self.local:
                return self.free.get((name,))
            case ast.Attribute(value=ast.Name(id=module), attr=name) if module not in self.local:
                return self.free.get((module, name))
        return None

    def _passed(self, node: Any) -> Any:
        value = self._value(node)
        if id(value) in self.lifted:
            return ast.copy_location(ast.Name(self.names[id(value)], ast.Load()), node)
        return None

    def visit_Name(self, node: ast.Name) -> Any:
        """``k``"""
        return self._passed(node) or node

    def visit_Attribute(self, node: ast.Attribute) -> Any:
        """``constants.k``"""
        return self._passed(node) or self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> Any:
        """``f(x)`` of a function with such variables."""
        value = self._value(node.func)
        callee = _callee(value)
        variables = variables_of(callee) if callee is not None else []
        if not variables:
            return self.generic_visit(node)
        alias = self.names.alias(callee)
        if callee is self.function:
            self.itself.add(alias)
        else:
            self.space[alias] = self.lifting.lifted(value)
        passed = [ast.copy_location(ast.Name(self.names[v.key], ast.Load()), node) for v in variables]
        arguments = [self.visit(a) for a in node.args]
        keywords = [self.visit(k) for k in node.keywords]
        function = ast.copy_location(ast.Name(alias, ast.Load()), node.func)
        return ast.copy_location(ast.Call(function, [*passed, *arguments], keywords), node)


class _Names(dict):
    """Names of parameters, by their variables, that do not collide with other names."""

    def __init__(self, taken: set[str], free: dict[tuple[str, ...], Any]) -> None:
        super().__init__()
        self.taken = set(taken)
        for path, value in free.items():
            if len(path) == 1:  # shadows the global variable of this name
                self.setdefault(id(value), path[0])

    def __missing__(self, key: int) -> str:
        self[key] = self._new("lifted")
        return self[key]

    def alias(self, function: Any) -> str:
        """A name for a function that is called with more arguments."""
        return self.setdefault(id(function), self._new(f"{function.__name__.strip('<>')}_lifted"))

    def _new(self, stem: str) -> str:
        number = next(n for n in range(len(self.taken) + 1) if f"{stem}_{n}" not in self.taken)
        self.taken.add(f"{stem}_{number}")
        return f"{stem}_{number}"

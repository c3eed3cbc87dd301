"""Closure conversion by value: functions with the globals that they had when they were first compiled.

Numba makes constants of globals, of closure variables and of what is taken from modules, when it compiles a function
for arguments of some types; other types, called functions and derivatives are compiled later.  All of these are
compiled from one copy of the function, in which names have the values, and arrays the elements, of the first time.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.dispatcher import Dispatcher

from ampi.arrays.losses import would_be_lost
from ampi.kernel.runtime import cache
from ampi.kernel.runtime.overloads import KNOWN
from ampi.memory.storages import TrackedArray, is_scalar, plain

MOST_COPIED = 100_000
"""Elements of a global array; the parser refuses larger ones (``outside.MAX_CONSTANT_ARRAY``)."""

_copies: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""Of Numba's dispatchers: their copies, by what these compile to."""


def frozen(function: Any) -> Any:
    """The function as it is now; itself if nothing that it names could become something else."""
    return _Freezing().function(function)


def became_active(function: Any) -> Iterator[tuple[str, Any]]:
    """The tracked arrays which are constants in a frozen function, and carry derivatives now."""
    live = getattr(function, "__ampi_live__", None)
    for name, value in () if live is None else cache._Identity.free(live):
        if isinstance(value, TrackedArray) and would_be_lost(value):
            yield name, value


class _Freezing:
    """One function, and those that it calls, as they are now."""

    def __init__(self) -> None:
        self.made: dict[int, Any] = {}  # by the id of a function, module or dispatcher

    def function(self, function: Any) -> Any:
        if not self.is_to_copy(function):
            return function
        copy = self.made.get(id(function))
        return self.fill(self.shell(function), function) if copy is None else copy

    def is_to_copy(self, function: Any) -> bool:
        return any(self.may_change(value) for _, value in cache._Identity.free(function))

    def shell(self, function: Any) -> Any:
        """A copy without names, which those that it calls may call in turn."""
        space = {n: v for n, v in function.__globals__.items() if n.startswith("__") and n.endswith("__")}
        cells = tuple(CellType() for _ in function.__closure__ or ())
        copy = FunctionType(function.__code__, space, function.__name__, function.__defaults__, cells or None)
        copy.__kwdefaults__, copy.__doc__ = function.__kwdefaults__, function.__doc__
        copy.__qualname__, copy.__module__ = function.__qualname__, function.__module__
        vars(copy).update(vars(function), __ampi_live__=function)
        self.made[id(function)] = copy
        return copy

    def fill(self, copy: Any, function: Any) -> Any:
        names = cache.names_in(function.__code__)
        known = function.__globals__
        copy.__globals__.update((n, self.value(known[n], names)) for n in names if n in known)
        for new, old in zip(copy.__closure__ or (), function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                new.cell_contents = self.value(old.cell_contents, names)
        return copy

    @staticmethod
    def may_change(value: Any) -> bool:
        """True if a name that stands for this, or what it names itself, may stand for something else later."""
        if isinstance(value, ModuleType):
            return value.__name__.partition(".")[0] not in KNOWN
        module = getattr(value, "__module__", None)
        known = isinstance(module, str) and module.partition(".")[0] in (*KNOWN, "builtins")
        return not (
            isinstance(value, (type, np.ufunc)) or (known and callable(value) and not hasattr(value, "py_func"))
        )

    def value(self, value: Any, names: list[str]) -> Any:
        if isinstance(value, TrackedArray):
            return value if would_be_lost(value) else plain(value)[()] if is_scalar(value) else plain(value).copy("K")
        if type(value) is np.ndarray:
            return value.copy("K") if value.size <= MOST_COPIED else value
        if type(value) is list:
            return [self.value(v, names) for v in value]
        if isinstance(value, tuple):
            items = [self.value(v, names) for v in value]
            if all(new is old for new, old in zip(items, value)):
                return value
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        if isinstance(value, ModuleType):
            return self.module(value, names)
        return self.dispatcher(value) if isinstance(value, Dispatcher) else value

    def module(self, module: ModuleType, names: list[str]) -> ModuleType:
        if not self.may_change(module) or "stands_for" in vars(module):
            return module
        key = id(module)
        if key in self.made:
            return self.made[key]
        self.made[key] = copy = ModuleType(module.__name__)
        used = {n: vars(module)[n] for n in names if n in vars(module)}
        frozen = {n: self.value(v, names) for n, v in used.items()}
        del self.made[key]  # it has other names in other functions
        numbers = (bool, int, float, complex, np.generic, str, bytes, type(None))
        if not any(frozen[n] is not used[n] or isinstance(used[n], numbers) for n in used):
            return module
        vars(copy).update({**vars(module), **frozen})
        return copy

    def dispatcher(self, dispatcher: Any) -> Any:
        function, options = dispatcher.py_func, dispatcher.targetoptions
        if id(dispatcher) in self.made or not self.is_to_copy(function):
            return self.made.get(id(dispatcher), dispatcher)
        shell = self.shell(function)
        pipeline = dispatcher._compiler.pipeline_class
        copy = type(dispatcher)(shell, dispatcher.locals, dict(options), pipeline)
        self.made[id(dispatcher)] = copy
        self.fill(shell, function)
        known = _copies.setdefault(dispatcher, {})
        made = known.setdefault(cache.fingerprint(cache.identity(shell, options, True)), copy)
        if made is copy and not dispatcher._can_compile:
            for signature in dispatcher.nopython_signatures:
                copy.compile(signature)
            copy.disable_compile()
        self.made[id(dispatcher)] = made
        return made

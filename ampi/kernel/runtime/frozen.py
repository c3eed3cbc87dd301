"""Closure conversion by value: functions with the globals that they had when they were first compiled.

Numba makes constants of globals, closure variables and attributes of modules when it compiles a function for some types
of arguments; other types, called functions and derivatives are compiled later.  All of these are compiled from one copy
of the function, in which names and elements of arrays have the values of the first compilation.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterator
from types import CellType, FunctionType, ModuleType
from typing import Any

import numpy as np
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher
from numba.core.registry import CPUDispatcher

from ampi.arrays.losses import would_be_lost
from ampi.kernel.runtime import cache
from ampi.kernel.runtime.overloads import KNOWN
from ampi.memory.storages import TrackedArray, is_scalar, plain

MAX_COPIED = 100_000
"""The size up to which a global array is copied; the parser rejects larger ones (``outside.MAX_CONSTANT_ARRAY``)."""

_copies: weakref.WeakKeyDictionary[Any, dict[str, Any]] = weakref.WeakKeyDictionary()
"""The copies of Numba's dispatchers, by the identity of their code."""


class CompiledLater(CPUDispatcher):
    """A dispatcher for some signatures, which are compiled when it is first called or a caller is compiled.

    Many are not: where a kernel's run saves values for its adjoint, the program that does both has its callees inlined.
    """

    waiting: list[Any] = []

    def limit(self, signatures: list[Any]) -> None:
        """Have the dispatcher accept these signatures only."""
        self.waiting = list(signatures)
        self._can_compile = False

    def settle(self) -> None:
        """Compile the signatures that have not been."""
        if not self.waiting:
            return
        with global_compiler_lock:
            waiting, self.waiting = self.waiting, []
            self.disable_compile(False)
            try:
                for signature in waiting:
                    self.compile(signature)
            except BaseException:
                self.limit(waiting)
                raise
            self.disable_compile()

    @property
    def nopython_signatures(self) -> list[Any]:
        return list(self.waiting) or super().nopython_signatures

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.settle()
        return super().__call__(*args, **kwargs)

    def get_call_template(self, args: Any, kws: Any) -> Any:
        self.settle()
        return super().get_call_template(args, kws)

    def get_function_type(self) -> Any:
        self.settle()
        return super().get_function_type()

    def _reduce_states(self) -> Any:
        self.settle()
        return super()._reduce_states()


def frozen(function: Any) -> Any:
    """A copy of a function with its current globals; the function itself if none of them can change."""
    return _Freezing().function(function)


def became_active(function: Any) -> Iterator[tuple[str, Any]]:
    """The tracked arrays that are constants in a frozen function but carry derivatives now."""
    live = getattr(function, "__ampi_live__", None)
    for name, value in () if live is None else cache._Identity.free(live):
        if isinstance(value, TrackedArray) and would_be_lost(value):
            yield name, value


class _Freezing:
    """Copies of a function and of the functions that it calls."""

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
        """A copy without globals, to which functions that it calls may already refer."""
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
        """Return whether a value, or a value that it refers to, may be replaced later."""
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
            return value.copy("K") if value.size <= MAX_COPIED else value
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
        del self.made[key]  # other functions use other names of it
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
        limited = not dispatcher._can_compile
        kind = CompiledLater if limited and type(dispatcher) is CPUDispatcher else type(dispatcher)
        copy = kind(shell, dispatcher.locals, dict(options), pipeline)
        self.made[id(dispatcher)] = copy
        self.fill(shell, function)
        known = _copies.setdefault(dispatcher, {})
        made = known.setdefault(cache.fingerprint(cache.identity(shell, options, True)), copy)
        if made is copy and limited:
            if isinstance(copy, CompiledLater):
                copy.limit(dispatcher.nopython_signatures)
            else:
                for signature in dispatcher.nopython_signatures:
                    copy.compile(signature)
                copy.disable_compile()
        self.made[id(dispatcher)] = made
        return made

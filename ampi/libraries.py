"""Functions of other libraries: seen when they are called, whoever has imported them, whenever.

A function that is written in Python gets other *code* (its ``__code__``), so that names which the program has imported
before see it as well.  A built-in function is replaced wherever a module has it.  Nothing of a library is imported
here: what is to be done to a module is done when it is there and a tape records.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import inspect
import sys
import threading
import types
from collections.abc import Callable, Sequence
from typing import Any

from .recording import open_tapes
from .tape import Tape, at_opening, current

_lock = threading.RLock()
_waiting: dict[str, list[Callable[[], None]]] = {}


# ------------------------------------------------------------------------------------------------- when it is imported


def when_imported(module: str, action: Callable[[], None]) -> None:
    """Have an action done once a module has been imported and a tape records (at once, if both are so)."""
    with _lock:
        _waiting.setdefault(module, []).append(action)
    if open_tapes:
        _look()


def _look(tape: Tape | None = None) -> None:
    """Do what waits for modules that have been imported."""
    if tape is not None and not any(type(finder) is _Finder for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    for name in list(_waiting):
        if name in sys.modules and not getattr(sys.modules[name].__spec__, "_initializing", False):
            _arrived(name)


def _arrived(name: str) -> None:
    with _lock:
        for action in _waiting.pop(name, ()):
            action()


at_opening.append(_look)


class _Finder(importlib.abc.MetaPathFinder):
    """Sees modules that are imported while tapes record."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """The module's own, with a loader that goes on."""
        if name not in _waiting:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_go_on(module: Any) -> None:
            run(module)
            if open_tapes:
                _arrived(name)

        spec.loader.exec_module = run_and_go_on  # type: ignore[method-assign]
        return spec


# ---------------------------------------------------------------------------------------------- what a function becomes


class Hook:
    """A function as it was, and what is done with calls of it while a tape records.

    Attributes
    ----------
    original : callable
    name : str
        As the program knows it, with its module.
    handle : callable or None
        ``handle(hook, tape, arguments, keywords)``; None: nothing.
    """

    __slots__ = ("__dict__", "handle", "name", "original")

    def __init__(self, original: Callable, name: str, handle: Callable | None) -> None:
        self.original = original
        self.name = name
        self.handle = handle

    @property
    def __name__(self) -> str:
        return self.name.rpartition(".")[2]

    @functools.cached_property
    def signature(self) -> inspect.Signature:
        """The function's parameters."""
        return inspect.signature(self.original)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        if open_tapes and self.handle is not None:
            tape = current()
            if tape is not None:
                return self.handle(self, tape, arguments, keywords)
        return self.original(*arguments, **keywords)


_hooks: dict[int, Hook] = {}  # by the ids of functions, which the hooks keep alive


def hook_of(function: Any) -> Hook | None:
    """The hook of a function, if it has one."""
    function = getattr(function, "__func__", function)
    return _hooks.get(id(function))


def hook(function: Any, handle: Callable | None, name: str = "") -> Hook:
    """See the calls of a function while tapes record.

    Parameters
    ----------
    function : callable
        Function, method as a class has it, or built-in function.
    handle : callable or None
        What is done: see `Hook`.  Whoever comes last decides.
    name : str
        What the program calls it.
    """
    function = getattr(function, "__func__", function)
    with _lock:
        found = _hooks.get(id(function))
        if found is None:
            name = name or f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', function)}"
            found = Hook(function, name, handle)
            if isinstance(function, types.FunctionType):
                _change_code(function, found)
            else:
                _replace(function, found)
            found.function = function  # type: ignore[attr-defined]
            _hooks[id(function)] = found
        elif handle is not None:
            found.handle = handle
        return found


def _change_code(function: types.FunctionType, found: Hook) -> None:
    code = function.__code__
    original = types.FunctionType(
        code, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    original.__kwdefaults__ = function.__kwdefaults__
    original.__qualname__ = function.__qualname__
    original.__module__ = function.__module__
    original.__dict__.update(function.__dict__)
    found.original = original
    if not hasattr(function, "__wrapped__") and not hasattr(function, "__signature__"):
        function.__signature__ = inspect.signature(original)  # type: ignore[attr-defined]
    function.__code__ = _calling(len(code.co_freevars)).replace(
        co_consts=tuple(found if c == _PLACEHOLDER else c for c in _calling(len(code.co_freevars)).co_consts),
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
    )


_PLACEHOLDER = "ampi: the hook"


@functools.cache
def _calling(cells: int) -> types.CodeType:
    """Code that calls a constant in it; it has as many free variables as that of the function it is for."""
    names = ", ".join(f"cell_{k}" for k in range(cells))
    body = f"    if 0: {names}\n" if cells else ""
    source = (
        f"def make({names}):\n  def call(*arguments, **keywords):\n{body}"
        f"    hook = {_PLACEHOLDER!r}\n    return hook(*arguments, **keywords)\n  return call\n"
    )
    names_made: dict[str, Any] = {}
    exec(source, names_made)
    made = names_made["make"](*range(cells)).__code__
    assert len(made.co_freevars) == cells
    return made


def hook_public(functions: dict[str, Any], handle: Callable) -> None:
    """`hook` of built-in functions, by the names of public ones: as modules of other libraries have them."""
    made = {}
    for name, function in functions.items():
        with _lock:
            if id(function) not in _hooks:
                found = _hooks[id(function)] = Hook(function, name, handle)
                made[id(function)] = _standing_in(function, found)
    homes = {name.rpartition(".")[0] for name in functions}
    for key, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and (key in homes or key.partition(".")[0] != "scipy"):
            for name, x in list(names.items()):
                if id(x) in made:
                    names[name] = made[id(x)]


def _standing_in(function: Any, found: Hook) -> Callable:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return found(*arguments, **keywords)

    for name in ("__module__", "__name__", "__qualname__", "__doc__", "typecode", "module_name", "prefix", "dtype"):
        try:
            setattr(call, name, getattr(function, name))
        except (AttributeError, TypeError):
            continue
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def _replace(function: Any, found: Hook) -> None:
    """Put the hook in the place of a function in all modules that have it."""
    from .foreign import replace_method

    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        replace_method(function.__objclass__, function.__name__, lambda _: _method(found))
        return
    call = _standing_in(function, found)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            for name in [name for name, x in list(names.items()) if x is function]:
                names[name] = call


def _method(found: Hook) -> Callable:
    return lambda self, *arguments, **keywords: found(self, *arguments, **keywords)

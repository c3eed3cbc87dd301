"""Hooks on functions of other packages: ampi handles their calls while a tape records.

The ``__code__`` of a Python function is replaced, so that names that the program imported earlier are hooked as well.
A built-in function is replaced in all modules that have it.  No package is imported here: a module is changed once the
program has imported it and a tape records.
"""

from __future__ import annotations

import functools
import gc
import inspect
import re
import sys
import types
from collections.abc import Callable, Collection
from ctypes import py_object, pythonapi
from typing import Any

from ..base import arrivals
from ..base.locks import RLock
from ..base.missing_rules import public_name
from ..tape import Tape, at_opening, current
from ..tape.recording import open_tapes

_lock = RLock()
_waiting: list[Callable[[], None]] = []  # actions for imported modules, until a tape records


# -------------------------------------------------------------------------------------------------- modules to come


def when_imported(module: str, action: Callable[[], None]) -> None:
    """Run an action as soon as a module has been imported and a tape records."""
    arrivals.when_imported(module, functools.partial(_run_or_wait, action))


def _run_or_wait(action: Callable[[], None]) -> None:
    if open_tapes:
        action()
    else:
        with _lock:
            _waiting.append(action)


def _run_waiting(tape: Tape) -> None:
    """Run the waiting actions when a tape begins to record."""
    while _waiting:
        with _lock:
            action = _waiting.pop(0) if _waiting else None
        if action is not None:
            action()


at_opening.append(_run_waiting)


# ------------------------------------------------------------------------------------------------------------- hooks


class Hook:
    """An original function, and the handler of its calls while a tape records.

    Attributes
    ----------
    original : callable
    name : str
        The name that the program uses, with its module.
    handle : callable or None
        ``handle(hook, tape, arguments, keywords)``; None: the original is called.
    active : collection
        While it is empty, a method of a built-in class is called without its hook.
    """

    __slots__ = ("__dict__", "handle", "name", "original")
    active: Collection[Any] = open_tapes

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
        try:
            if type(self.original).__name__ == "fortran":
                return _documented(self.original)
            return inspect.signature(self.original)
        except (TypeError, ValueError):
            pass
        return _documented(self.original)

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        if open_tapes and self.handle is not None:
            tape = current()
            if tape is not None:
                return self.handle(self, tape, arguments, keywords)
        return self.original(*arguments, **keywords)


def _documented(function: Any) -> inspect.Signature:
    """Parse a compiled function's parameters from its docstring's first line (f2py: ``y = square(x,[n])``)."""
    found = re.match(r"[^(\n]*\(([^)\n]*)\)", function.__doc__ or "")
    if found is None:
        raise TypeError(f"{function.__name__} has no signature in its docstring")
    required, _, optional = found.group(1).partition("[")
    names = [
        [re.split("[:=]", name)[0].strip() for name in part.split(",")] for part in (required, optional.strip("]"))
    ]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    return inspect.Signature(
        [inspect.Parameter(name, kind) for name in names[0] if name.isidentifier()]
        + [inspect.Parameter(name, kind, default=None) for name in names[1] if name.isidentifier()]
    )


_hooks: dict[int, Hook] = {}  # by the ids of functions, which their hooks keep alive


def hook_of(function: Any) -> Hook | None:
    """The hook of a function, or None."""
    function = getattr(function, "__func__", function)
    return _hooks.get(id(function))


def all_hooks() -> list[Hook]:
    """The hooks of all functions, in the order of their creation."""
    return list(_hooks.values())


class AlwaysHook(Hook):
    """A hook that is called in every thread while any tape is open, including within `ampi.passive`.

    Its ``handle(hook, arguments, keywords)`` gets no tape.
    """

    __slots__ = ()

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        if open_tapes and self.handle is not None:
            return self.handle(self, arguments, keywords)
        return self.original(*arguments, **keywords)


class EverHook(Hook):
    """A hook that is called in every thread, whether or not a tape is open.

    Its ``handle(hook, arguments, keywords)`` gets no tape.
    """

    __slots__ = ()

    def __call__(self, /, *arguments: Any, **keywords: Any) -> Any:
        return self.handle(self, arguments, keywords)  # type: ignore[misc]


def hook(function: Any, handle: Callable | None, name: str = "", kind: type[Hook] = Hook) -> Hook:
    """Handle the calls of a function while tapes record.

    Parameters
    ----------
    function : callable
        A function, a method as an attribute of its class, or a built-in function.
    handle : callable or None
        The handler, see `Hook`; it replaces an earlier one.
    name : str
        The name that the program uses.
    kind : type
        Class of the hook, if the function has none yet.
    """
    function = getattr(function, "__func__", function)
    with _lock:
        found = _hooks.get(id(function))
        if found is None:
            own = getattr(function, "__qualname__", None) or getattr(function, "__name__", str(function))
            module = public_name(f"{getattr(function, '__module__', '')}.") if not name else ""
            name = name or f"{module}{own.removeprefix('function ')}".lstrip(".")
            found = kind(function, name, handle)
            if isinstance(function, types.FunctionType):
                _change_code(function, found)
            else:
                _stand_in_everywhere(function, found)
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
    calling = _calling_code(len(code.co_freevars), inspect.isgeneratorfunction(function))
    function.__code__ = calling.replace(
        co_consts=tuple(found if c == _PLACEHOLDER else c for c in calling.co_consts),
        co_filename=code.co_filename,
        co_firstlineno=code.co_firstlineno,
        co_name=code.co_name,
    )


_PLACEHOLDER = "ampi: the hook"


@functools.cache
def _calling_code(cells: int, generates: bool) -> types.CodeType:
    """Code that calls one of its constants.

    It has as many free variables as the code that it replaces, and is a generator's if that is.
    """
    names = ", ".join(f"cell_{k}" for k in range(cells))
    body = f"    if 0: {names}\n" if cells else ""
    call = "(yield from hook(*arguments, **keywords))" if generates else "hook(*arguments, **keywords)"
    source = (
        f"def make({names}):\n  def call(*arguments, **keywords):\n{body}"
        f"    hook = {_PLACEHOLDER!r}\n    return {call}\n  return call\n"
    )
    names_made: dict[str, Any] = {}
    exec(source, names_made)
    code = names_made["make"](*range(cells)).__code__
    assert len(code.co_freevars) == cells
    return code


def hook_public(functions: dict[str, Any], handle: Callable) -> None:
    """Hook built-in functions, given by their public names, in their public modules and all modules outside SciPy."""
    stand_ins = {}
    for name, function in functions.items():
        with _lock:
            if id(function) not in _hooks:
                found = _hooks[id(function)] = Hook(function, name, handle)
                stand_ins[id(function)] = _stand_in(function, found)
    homes = {name.rpartition(".")[0] for name in functions}
    for key, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and (key in homes or key.partition(".")[0] != "scipy"):
            for name, x in list(names.items()):
                if id(x) in stand_ins:
                    names[name] = stand_ins[id(x)]


def _stand_in(function: Any, found: Hook) -> Callable:
    def call(*arguments: Any, **keywords: Any) -> Any:
        return found(*arguments, **keywords)

    for name in ("__module__", "__name__", "__qualname__", "__doc__", "typecode", "module_name", "prefix", "dtype"):
        try:
            setattr(call, name, getattr(function, name))
        except (AttributeError, TypeError):
            continue
    call.__wrapped__ = function  # type: ignore[attr-defined]
    return call


def _stand_in_everywhere(function: Any, found: Hook) -> None:
    """Replace a function by its hook in all modules that have it."""
    if isinstance(function, (types.MethodDescriptorType, types.WrapperDescriptorType)):
        replace_method(function.__objclass__, function.__name__, lambda _: _method(found))
        return
    call = _stand_in(function, found)
    for module in list(sys.modules.values()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict:
            for name in [name for name, x in list(names.items()) if x is function]:
                names[name] = call


def _method(found: Hook) -> Callable:
    original, active = found.original, found.active

    def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
        return (found if active else original)(self, *arguments, **keywords)

    return call


def replace_method(cls: type, name: str, wrap: Callable[[Callable], Callable]) -> None:
    """Replace a method of a class whose attributes cannot be set.

    The class hides its dictionary behind a proxy, but the garbage collector finds it.
    """
    (members,) = [found for found in gc.get_referents(vars(cls)) if type(found) is dict]
    original = members[name]
    members[name] = functools.wraps(original)(wrap(original))
    pythonapi.PyType_Modified(py_object(cls))

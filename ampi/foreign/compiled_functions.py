"""Calls of other packages' compiled functions: active arguments are refused if there is no rule.

Code in C reads the memory of an `ampi.ndarray` through NumPy's C interface: functions made by f2py, Cython, pybind11 or
a C compiler would silently return numbers without derivatives. From the first tape on, their entry points (tables of
functions and methods, slots of types, the vectorcall pointers of Cython's functions) lead to `trampolines`. Without an
`ampi.ndarray` among the arguments, or without an open tape, a call continues after a few nanoseconds.

Functions that have a rule (`ampi.rules.define`) are differentiated; functions of packages in `KNOWN` are allowed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import types
from collections.abc import Callable, Iterable, Iterator
from importlib.machinery import ExtensionFileLoader
from typing import Any

import numpy as np

from ..arrays.array import ndarray
from ..arrays.callers import is_called_by_ampi
from ..arrays.losses import lend, would_be_lost
from ..base.live_objects import objects_of_types
from ..base.program_lines import line_outside, where_called
from ..base.structures import leaves
from ..errors import ActivityError
from ..interception import entry_points
from ..interception.entry_points import Unknown, object_at
from ..interception.hooks import hook_of
from ..interception.redirection import arguments_at
from ..interception.trampolines import NOTHING, Hook, Place
from ..memory.storages import TrackedArray
from ..rules.known_packages import KNOWN
from ..tape import Tape, at_opening, current
from .numpy_in_c import redirected

_lock = threading.RLock()
_examined: set[int] = set()  # ids of functions and types that have been examined; `_alive` holds the objects
_alive: list[Any] = []
_loaded: list[types.ModuleType] = []
_modules = [0]


# --------------------------------------------------------------------------------------------------- places to redirect


def is_foreign(name: Any) -> bool:
    """Return whether calls of objects with this ``__module__`` are intercepted."""
    package = name.partition(".")[0] if isinstance(name, str) else ""
    known = package in KNOWN or package in sys.stdlib_module_names or package.startswith("_cython_")
    return bool(package) and not known


def _redirect_new(tape: Tape) -> None:
    """When a tape begins to record, redirect the functions that were imported since the last one."""
    if redirected.is_working and (_loaded or len(sys.modules) != _modules[0]):
        _modules[0] = len(sys.modules)
        with _lock:
            modules = [m for name, m in list(sys.modules.items()) if is_foreign(name) and type(m) is types.ModuleType]
            modules += _loaded
            _loaded.clear()
            _redirect(_found_in(modules), is_new=False)


def _load(loader: Any, module: types.ModuleType) -> None:
    """Replacement of `ExtensionFileLoader.exec_module`: redirects at once if a tape records."""
    _execute(loader, module)
    if is_foreign(module.__name__):
        if current() is not None and redirected.is_working:
            with _lock:
                _redirect(_found_in([module]), is_new=True)
        else:
            _loaded.append(module)


def _redirect(places: Iterable[Place], is_new: bool) -> None:
    found = list(places)
    if not found:
        return
    held = [] if is_new else _holding({id(f) for f in _alive if type(f) is types.BuiltinFunctionType})
    contents = [list(x.items()) if isinstance(x, dict) else list(x) for x in held]
    for x in held:
        x.clear()
    with contextlib.suppress(RuntimeError):
        redirected.add(found)
    for x, items in zip(held, contents):
        x.update(items)


def _holding(functions: set[int]) -> list[Any]:
    """Return sets and dictionaries that have some of these functions as keys: entry points determine their hashes."""
    found = []
    for x in objects_of_types((set, dict)) if functions else ():
        if (type(x) is set or type(next(iter(x), "")) is not str) and any(id(key) in functions for key in list(x)):
            found.append(x)
    return found


def _found_in(modules: Iterable[types.ModuleType]) -> Iterator[Place]:
    """The places to redirect in modules."""
    pending = list(modules)
    visited: set[int] = set()
    while pending:
        module = pending.pop()
        names = getattr(module, "__dict__", None)
        if id(module) in visited or type(names) is not dict:
            continue
        visited.add(id(module))
        home = module.__name__
        for x in list(names.values()):
            # isinstance would ask a proxy for the class of its object, which may run any code
            if issubclass(type(x), types.ModuleType):
                if x.__name__.startswith(f"{home}.") and x.__name__ not in sys.modules:
                    pending.append(x)
            else:
                with contextlib.suppress(Unknown):
                    yield from _places_of(x, home)


def _places_of(x: Any, home: str) -> Iterator[Place]:
    """The places of an attribute of a module."""
    kind = type(x)
    if kind is types.FunctionType or kind in _PLAIN:
        return
    if kind is types.BuiltinFunctionType:
        own = _home_of(x, home)
        if is_foreign(own) and _is_new(x):
            yield _entry(x, f"{own}.{x.__name__}", x)
    elif kind.__name__ in _CYTHONS:
        if is_foreign(x.__module__ or home):
            yield from _callable(x, f"{x.__module__ or home}.{x.__qualname__}")
    elif issubclass(kind, type):
        if is_foreign(vars(x).get("__module__", x.__module__)):
            yield from _class(x)
    elif kind.__name__ == "fortran" and kind.__module__ == "builtins":
        yield from _fortran(kind)
    elif is_foreign(kind.__module__):
        yield from _class(kind)
        yield from _callable(x, f"{kind.__module__}.{_own_name(x)}")


def _own_name(x: Any) -> str:
    """Return the name of an object of a package without its own ``__getattr__``, which may run any code."""
    try:
        return str(object.__getattribute__(x, "__name__"))
    except Exception:
        return type(x).__name__


_PLAIN = {str, int, float, bool, bytes, tuple, list, dict, set, type(None), np.ufunc, np.ndarray}
_CYTHONS = ("cython_function_or_method", "fused_cython_function")


def _home_of(function: Any, home: str) -> str:
    """Return the module of a built-in function, or of the class of which it is a method."""
    own = function.__self__
    if function.__module__ is None and own is not None and not isinstance(own, types.ModuleType):
        own = own if isinstance(own, type) else type(own)
        return home if own.__name__ in _CAPSULES else own.__module__
    return function.__module__ or getattr(own, "__name__", home)


_CAPSULES = ("PyCapsule", "pybind11_detail_function_record_v1__gcc_libstdcpp_cxxabi1018")


def _is_new(x: Any) -> bool:
    if id(x) in _examined:
        return False
    _examined.add(id(x))
    _alive.append(x)
    return True


def _entry(function: Any, name: str, public: Any = None) -> Place:
    """The place of a built-in function, or of a method of a type."""
    address, original, signature = entry_points.entry_of_foreign(function)
    return Place(address, original, signature, _hook(signature, name, public), permanent=True)


def _callable(x: Any, name: str) -> Iterator[Place]:
    """The places of an object with a vectorcall pointer, such as functions of Cython and nanobind."""
    address, original = entry_points.call_slot(x)
    if original:
        if _is_new(x):
            yield Place(address, original, "gate fast", _hook("gate vector", name, x), permanent=True)
    elif type(x).__name__ in _CYTHONS and _is_new(x):
        yield _entry(x, name, x)


def _fortran(cls: type) -> Iterator[Place]:
    """The places of the type of f2py's functions and modules; each extension module has its own."""
    if _is_new(cls):
        descriptor = vars(cls)["__call__"]
        address, original = entry_points.wrapped_by(descriptor)
        yield Place(
            (address, *entry_points.slots_with(cls, original, False)), original, "gate calls", _call_fortran, True
        )
        with contextlib.suppress(Unknown):
            address, original = entry_points.other_slot(cls, "setattr")
            yield Place(address, original, "gate store", _hook("gate store", "a Fortran module"), True)


def _class(cls: type) -> Iterator[Place]:
    """The places of a class's methods and slots."""
    if not _is_new(cls):
        return
    name = f"{cls.__module__}.{cls.__qualname__}"
    for key, member in list(vars(cls).items()):
        with contextlib.suppress(Unknown):
            yield from _member(cls, key, member, f"{name}.{key}")
    new = vars(cls).get("__new__")
    if type(new) is types.BuiltinFunctionType and new.__self__ is cls:
        with contextlib.suppress(Unknown):
            address, original = entry_points.other_slot(cls, "new")
            found = [address]  # subclasses share it: CPython compares these
            for sub in _derived(cls):
                with contextlib.suppress(Unknown):
                    address, other = entry_points.other_slot(sub, "new")
                    found += [address] if other == original else []
            if original != entry_points.other_slot(object, "new")[1]:
                yield Place(tuple(found), original, "gate tuple", _hook("gate tuple", name), permanent=True)


def _member(cls: type, key: str, member: Any, name: str) -> Iterator[Place]:
    if isinstance(member, (staticmethod, classmethod)) or type(member).__name__ == "instancemethod":
        member = member.__func__
    if isinstance(member, property):  # pybind11's
        for part in (member.fset,):
            yield from _member(cls, key, part, name) if part is not None and part is not member else ()
    elif isinstance(member, (types.MethodDescriptorType, types.ClassMethodDescriptorType)):
        if member.__objclass__ is cls and _is_new(member):
            yield _entry(member, name)
    elif type(member) is types.BuiltinFunctionType:
        if key != "__new__" and is_foreign(_home_of(member, cls.__module__)) and _is_new(member):
            yield _entry(member, name)
    elif type(member).__name__ in _CYTHONS:
        yield from _callable(member, name)
    elif isinstance(member, types.WrapperDescriptorType) and key in _SLOTS and member.__objclass__ is cls:
        address, original = entry_points.wrapped_by(member)
        if original != entry_points.wrapped_by(vars(object).get(key, member))[1] or key not in vars(object):
            where = [a for c in (cls, *_derived(cls)) for a in entry_points.slots_with(c, original)]
            if where:
                yield Place((address, *where), original, _SLOTS[key], _hook(_SLOTS[key], name), permanent=True)


_SLOTS = {"__call__": "gate tuple", "__init__": "gate init", "__setitem__": "gate store", "__setattr__": "gate store"}


def _derived(cls: type) -> list[type]:
    found: list[type] = type.__subclasses__(cls)
    return found + [c for sub in found for c in _derived(sub)]


# ------------------------------------------------------------------------------------------------------------- hooks


def _hook(signature: str, name: str, function: Any = None) -> Hook:
    """The hook of a compiled function, called if an argument is an `ampi.ndarray` or a dictionary."""

    def hook(a: int, b: int, c: int = 0, d: int = 0, e: int = 0) -> Any:
        if current() is None or _is_let_through(2) or not is_foreign(name):
            return None
        arguments: tuple
        keywords: dict[str, Any]
        if signature == "gate object":
            arguments, keywords = (object_at(b),), {}
        elif signature == "gate store":
            arguments, keywords = (object_at(c),), {}
        elif signature == "gate fast, with class":
            arguments, keywords = arguments_at("fast", c, d & sys.maxsize, e)
        elif "tuple" in signature or signature == "gate init":
            arguments, keywords = arguments_at("tuple", b, c)
        else:
            arguments, keywords = arguments_at("fast", b, c & sys.maxsize, d)
        return _check_call(name, function, arguments, keywords)

    return hook


def _is_let_through(depth: int) -> bool:
    """Return whether a call is allowed because its caller is a rule, or a package that displays and stores arrays.

    Other callers in ampi run the program's functions, which may be compiled: ``ampi.grad(kern.energy)``.
    """
    name = sys._getframe(depth).f_globals.get("__name__", "")
    return name in _RULES or (not name.startswith("ampi.") and is_called_by_ampi(depth + 1))


_RULES = {__name__, "ampi.interception.hooks", "ampi.rules.definitions"}


def _check_call(name: str, function: Any, arguments: tuple, keywords: dict) -> Any:
    """Check the arguments of a call; return the result if there is a rule, None if the call may continue."""
    given = [x for x in leaves((arguments, keywords)) if isinstance(x, TrackedArray)]
    if not given:
        return None
    found = None if function is None else hook_of(function)
    if found is not None:
        result = found(*arguments, **keywords)
        return NOTHING if result is None else result
    for x in given:
        if would_be_lost(x):
            raise _refused(name, x)
    for x in given:
        if type(x) is ndarray:
            lend(x)  # the code may write to it
    return None


def _refused(name: str, x: np.ndarray) -> ActivityError:
    what = "is assigned" if name == "a Fortran module" else "is compiled code without a derivative rule and was given"
    kind = "a number" if not np.ndim(x) else f"an array of shape {np.shape(x)}"
    usual = "define its derivative with ampi.rules.define(...) or wrap it with ampi.custom_vjp"
    way = _WAYS.get(name.partition(".")[0], usual)
    return ActivityError(
        f"{line_outside(name)}: {name} {what} {kind} that carries derivatives, which it would drop; {way}, "
        "or pass ampi.value(x) if its result is a constant"
    )


_FUNCTION = "call it in a function f for ampi.{}(f), which has its derivatives"
_WAYS = {
    "torch": _FUNCTION.format("from_torch"),
    "jax": _FUNCTION.format("from_jax"),
    "jaxlib": _FUNCTION.format("from_jax"),
    "pandas": "convert objects of pandas to arrays with to_numpy()",
}
"""What to write instead of calls into some packages."""


def _call_fortran(routine: int, given: int, named: int) -> Any:
    """The hook of f2py's functions; the program's functions among the arguments must not return active values."""
    if current() is None or _is_let_through(2):
        return None
    function = object_at(routine)
    arguments, keywords = arguments_at("tuple", given, named)
    name = _name_of(function)
    found = _check_call(name, function, arguments, keywords)
    if found is not None or not any(map(_calls_back, (*arguments, *keywords.values()))):
        return found
    check = lambda x: _checked(name, x) if _calls_back(x) else x
    result = function(*map(check, arguments), **{key: check(x) for key, x in keywords.items()})
    return NOTHING if result is None else result


def _calls_back(x: Any) -> bool:
    return isinstance(x, (types.FunctionType, types.MethodType)) or (callable(x) and hasattr(type(x), "__code__"))


def _name_of(routine: Any) -> str:
    """The name that the program uses for a function of f2py."""
    short = getattr(routine, "__name__", "").removeprefix("function ") or "a function"
    for name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None)
        if type(names) is dict and is_foreign(name) and names.get(short) is routine:
            return f"{name}.{short}"
    return f"{short} (made by f2py)"


def _checked(name: str, function: Any) -> Callable:
    """Wrap a callback to check its results; it has the same number of parameters, which f2py counts."""

    def check(result: Any) -> Any:
        for x in leaves(result):
            if isinstance(x, TrackedArray) and current() is not None and would_be_lost(x):
                raise ActivityError(
                    f"{where_called()}: {getattr(function, '__name__', 'a function')}, which {name} calls, returns "
                    "a value that carries derivatives, which would be dropped; define the derivative with "
                    "ampi.rules.define(...) or ampi.custom_vjp, or return ampi.value(x) if a constant is meant"
                )
        return result

    code = function.__code__
    count = code.co_argcount - isinstance(function, types.MethodType)
    names = [f"a{k}" for k in range(count)]
    more = ["*rest"] if code.co_flags & 0x4 else []
    text = f"lambda {', '.join(names + more)}: check(function({', '.join(names + more)}))"
    wrapper = eval(text, {"check": check, "function": function})
    wrapper.__defaults__ = function.__defaults__
    return wrapper


_execute = ExtensionFileLoader.exec_module
if not getattr(_execute, "__module__", "").startswith("ampi"):
    ExtensionFileLoader.exec_module = _load  # type: ignore[method-assign]
at_opening.append(_redirect_new)

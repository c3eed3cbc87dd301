"""Active arrays that are given to other processes are an error where the program hands them over.

`concurrent.futures.ProcessPoolExecutor` and the pools, queues and connections of `multiprocessing` pickle them, often
in a thread of their own.  What other processes compute is recorded nowhere.
"""

from __future__ import annotations

import functools
import inspect
import io
import operator
import pickle
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arrays.losses import would_be_lost
from ..base.program_lines import calling_frame, is_code_of_a_library, where_called
from ..base.structures import bound
from ..errors import ActivityError
from ..interception.hooks import AlwaysHook, Hook, hook, when_imported
from ..memory.storages import TrackedArray
from ..mpi.memory.bundles import of_processes
from ..tape.recording import is_passive

_ELSEWHERE = " to threads (ampi.futures.ThreadPoolExecutor) or ranks (ampi.futures.MPICommExecutor)"


class _Found(Exception):
    """An active array has been found."""


class _Looking(pickle.Pickler):
    """A pickler that writes nothing: it looks for active arrays in all that could be pickled."""

    def reducer_override(self, x: Any) -> Any:
        """Return the parts of an object, as those of a number."""
        if isinstance(x, TrackedArray) and would_be_lost(x):
            raise _Found(x)
        if x is int:
            return NotImplemented
        if isinstance(x, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            return int, ()
        if isinstance(x, np.ndarray):
            return (int, (x.tolist(),)) if x.dtype.hasobject else (int, ())
        if isinstance(x, types.MethodType):
            return int, (x.__self__,)
        try:
            reduced = x.__reduce_ex__(4)
        except _Found:
            raise
        except Exception:  # the program's own pickling raises the error, if there is to be one
            return int, ()
        if isinstance(reduced, str):
            return int, ()
        _, arguments, *rest = reduced
        return int, (arguments, *(list(part) if isinstance(part, Iterator) else part for part in rest))


def active_array_in(x: Any) -> Any:
    """Return an active array in an object, or None."""
    try:
        _Looking(io.BytesIO(), 4).dump(x)
    except _Found as found:
        return found.args[0]
    except Exception:
        return None
    return None


def require_constant(what: str, parts: dict[str, Any], place: str = "") -> None:
    """Raise an error if a part that is given to another process contains an active array."""
    for name, part in parts.items():
        array = active_array_in(part)
        if array is not None:
            raise ActivityError(
                f"{place or where_called()}: {what} is given an active array ({name}, {_of(array)}): what another "
                "process computes carries no derivative; use threads (ampi.futures.ThreadPoolExecutor) or ranks "
                "(ampi.futures.MPICommExecutor), or write ampi.value(x) if a constant is meant"
            )


def require_constant_globals(what: str, function: Any, place: str = "", advice: str = _ELSEWHERE) -> None:
    """Raise an error if a function of the program reads a global that contains an active array."""
    for name, x in _globals_of(function, set()):
        array = active_array_in(x)
        if array is not None:
            raise ActivityError(
                f"{place or where_called()}: a task of {what} reads the global {name}, an active array "
                f"({_of(array)}), and another process has a global of its own, which is constant; pass it as an "
                f"argument{advice}"
            )


def _of(array: Any) -> str:
    return f"{array.dtype} of shape {array.shape}"


def _plain(function: Any) -> Any:
    while isinstance(function, (functools.partial, types.MethodType)):
        function = function.func if isinstance(function, functools.partial) else function.__func__
    return inspect.unwrap(function) if isinstance(function, types.FunctionType) else function


def _globals_of(function: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Iterate over the names and values of globals that a function of the program, or one that it calls, reads."""
    function = _plain(function)
    code = getattr(function, "__code__", None)
    names = getattr(function, "__globals__", {})
    if code is None or id(code) in seen or is_code_of_a_library(code, names):
        return
    seen.add(id(code))
    codes = [code]
    for code in codes:
        codes += [part for part in code.co_consts if isinstance(part, types.CodeType)]
        for name in code.co_names:
            x = names.get(name)
            if isinstance(x, (types.FunctionType, functools.partial)):
                yield from _globals_of(x, seen)
            elif x is not None and not isinstance(x, (type, types.ModuleType)):
                yield name, x


def _arguments_of(function: Any, arguments: tuple, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call, by what an error calls them."""
    function_name = getattr(_plain(function), "__name__", "the function")
    named = {f"argument {name} of {function_name}": x for name, x in keywords.items()}
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    for k, x in enumerate(arguments):
        named[f"argument {positional[k] if k < len(positional) else k + 1} of {function_name}"] = x
    return {f"the function {function_name}": function, **named}


def _require_constant_call(name: str, function: Any, arguments: tuple, keywords: dict[str, Any]) -> None:
    require_constant(name, _arguments_of(function, arguments, keywords))
    require_constant_globals(name, function)


def _is_watched() -> bool:
    """Return whether the program makes the present call (not a thread of a pool), and does not do so in `passive`."""
    return not is_passive() and calling_frame() is not None


def _submit(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    _, function, *rest = arguments
    if _is_watched():
        if getattr(getattr(function, "func", None), "__name__", "") == "_process_chunk":  # of `map`
            (function,), calls = function.args, [tuple(x) for chunk in rest for x in chunk]
        else:
            calls = [tuple(rest)]
        for given in calls:
            require_constant(found.name, _arguments_of(function, given, keywords))
        require_constant_globals(found.name, function)
    return found.original(*arguments, **keywords)


def _apply(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``apply_async`` of a pool."""
    if _is_watched() and not _has_threads(arguments[0]):
        given = bound("self func args kwds callback error_callback", arguments, keywords)
        _require_constant_call(found.name, given["func"], tuple(given.get("args", ())), dict(given.get("kwds", {})))
    return found.original(*arguments, **keywords)


def _map(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``map`` and its variants of a pool, whose iterable may have no end."""
    if not _is_watched() or _has_threads(arguments[0]):
        return found.original(*arguments, **keywords)
    pool, function, items, *rest = (*arguments, keywords.pop("iterable")) if len(arguments) == 2 else arguments
    place = where_called()
    check = functools.partial(_constant_item, found.name, function, place)
    _require_constant_call(found.name, function, (), {})
    if hasattr(items, "__len__"):
        for x in items:
            check(x)
    else:
        items = map(check, items)
    return found.original(pool, function, items, *rest, **keywords)


def _has_threads(pool: Any) -> bool:
    return any(kind.__name__ == "ThreadPool" for kind in type(pool).__mro__)


def _constant_item(name: str, function: Any, place: str, x: Any) -> Any:
    require_constant(name, {f"an item for {getattr(_plain(function), '__name__', 'the function')}": x}, place)
    return x


def _start(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``Process.start``: with ``fork`` nothing is pickled, and the child's arrays are copies."""
    if _is_watched():
        held = vars(arguments[0])
        if (target := held.get("_target")) is not None:
            _require_constant_call(found.name, target, tuple(held.get("_args", ())), dict(held.get("_kwargs", {})))
        require_constant(found.name, {f"attribute {name}": x for name, x in held.items() if not name.startswith("_")})
    return found.original(*arguments, **keywords)


def _put(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    if _is_watched():
        x = arguments[1] if len(arguments) > 1 else keywords.get("obj")
        require_constant(found.name, {"the object": x})
    return found.original(*arguments, **keywords)


def _see(module: str, methods: dict[str, Callable]) -> None:
    public = module.removesuffix(".process").removesuffix(".process_executor")
    for name, handle in methods.items():
        function = operator.attrgetter(name)(sys.modules[module])
        shown = name.replace("_map_async", "map").replace("Base", "").replace("_Connection", "connection.Connection")
        hook(function, handle, f"{public}.{shown}", AlwaysHook)
    of_processes.add(module.partition(".")[0])


for _package in ("multiprocessing", "multiprocess"):
    for _module, _methods in {
        "process": {"BaseProcess.start": _start},
        "queues": {"Queue.put": _put, "JoinableQueue.put": _put, "SimpleQueue.put": _put},
        "connection": {"_ConnectionBase.send": _put},
        "pool": {"Pool.apply_async": _apply, "Pool._map_async": _map, "Pool.imap": _map, "Pool.imap_unordered": _map},
    }.items():
        when_imported(f"{_package}.{_module}", functools.partial(_see, f"{_package}.{_module}", _methods))
for _module in ("concurrent.futures.process", "loky.process_executor", "joblib.externals.loky.process_executor"):
    when_imported(_module, functools.partial(_see, _module, {"ProcessPoolExecutor.submit": _submit}))

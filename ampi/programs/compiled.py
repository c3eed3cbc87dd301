"""``numba.njit`` and ``numba.jit`` in a program: kernels, which are differentiated where possible.

A function that cannot be differentiated is compiled by Numba alone, with a warning about the reason at its first call;
passing an active array to it is an error.
"""

from __future__ import annotations

import builtins
import functools
import importlib
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any

import numba
import numpy as np

from ..arrays.losses import would_be_lost
from ..arrays.writing import write_constants
from ..base.program_lines import warning_level
from ..errors import ActivityError, ActivityWarning, KernelError
from ..kernel.arguments import leaves_of, plain
from ..kernel.dispatcher import Kernel
from ..kernel.frontend.base.declared import with_types
from ..kernel.function_copies import original, with_names
from ..memory import storages as memory
from ..tape import where_called
from . import lifting
from .unedited_code import unedited

_OPTIONS = frozenset("parallel fastmath error_model boundscheck inline nogil debug forceinline locals".split())
_WITHOUT_MEANING = frozenset("cache nopython looplift no_cpython_wrapper no_cfunc_wrapper no_rewrites".split())


class Compiled(Kernel):
    """A function of a program that was written for Numba."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any], given: dict[str, Any]) -> None:
        super().__init__(function, options)
        self._given = given
        self.refusal: KernelError | None = None
        self._lifted: tuple[Compiled, tuple] | bool | None = None  # None: not determined yet

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._lifted is None:
            self._lifted = self._with_lifted_variables() or False
        if self._lifted:
            function, values = self._lifted  # type: ignore[misc]
            return function(*values, *args, **kwargs)
        if self.refusal is None:
            try:
                return tracked(super().__call__(*args, **kwargs))
            except KernelError as error:
                self.refusal = error
                warn(self.py_func, error)
        return run_plainly(self.py_func, self.refusal, self.numbas_own, args, kwargs)

    def _with_lifted_variables(self) -> tuple[Compiled, tuple] | None:
        """The function with parameters for active global variables, and the values to pass for them."""
        found = lifting.lift(self, _made_like)
        return None if found is None else (found.kernel, found.values)

    @functools.cached_property
    def numbas_own(self) -> Any:
        """Numba's own dispatcher of the function."""
        return compiled_by_numba(self.py_func, self._given, self)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_NUMBA:
            return getattr(self.numbas_own, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _made_like(callee: Any, function: Callable[..., Any]) -> Compiled:
    if not isinstance(callee, Kernel):
        raise ActivityError(
            f"{place(function)}: '{function.__name__}' reads a global variable that carries derivatives, and cannot be "
            "differentiated; pass it as an argument"
        )
    made = Compiled(function, dict(callee.options), getattr(callee, "_given", {"nopython": True}))
    made._lifted = False
    return made


_OF_NUMBA = frozenset(
    "signatures nopython_signatures compile overloads get_overload recompile stats inspect_types inspect_llvm "
    "inspect_asm inspect_cfg inspect_disasm_cfg get_annotation_info get_metadata parallel_diagnostics".split()
)
"""Attributes of Numba's functions that programs use."""


class Plain:
    """A function that only Numba can compile."""

    def __init__(self, function: Callable[..., Any], given: dict[str, Any], refusal: KernelError) -> None:
        functools.update_wrapper(self, function)
        self.py_func = function
        self.refusal = refusal
        self.numbas_own = compiled_by_numba(function, given, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run_plainly(self.py_func, self.refusal, self.numbas_own, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __getattr__(self, name: str) -> Any:
        if name in _OF_NUMBA:
            return getattr(self.numbas_own, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


@numba.extending.typeof_impl.register(Plain)
def _typeof_plain(value: Plain, context: Any) -> Any:
    return numba.typeof(value.numbas_own)


_in_work: list[Any] = []


def compiled_by_numba(function: Callable, given: dict[str, Any], owner: Any) -> Any:
    """Numba's own dispatcher, with the names of NumPy and with Numba's dispatchers for other functions of the
    program."""
    _in_work.append(owner)
    try:
        copy = with_names(function, _numbas)
    finally:
        _in_work.pop()
    made = numba.jit(**given)(copy)
    if copy is not function:
        for name, value in copy.__globals__.items():
            if value is _ITSELF:
                copy.__globals__[name] = made
    return made


_ITSELF = object()


def decorators(module: str, names: str) -> dict[str, Any]:
    """Decorators of a Numba module that compile a program's functions with the names that Numba knows."""
    found = importlib.import_module(module)
    made = {name: _decorator(getattr(found, name)) for name in names.split() if not name.startswith("overload")}
    made |= {name: _overload(getattr(found, name)) for name in names.split() if name.startswith("overload")}
    return {**made, "register_jitable": _register_jitable} if "register_jitable" in made else made


def _decorator(numbas: Callable) -> Callable:
    @functools.wraps(numbas)
    def decorate(*arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and not options and (inspect.isfunction(arguments[0]) or inspect.isclass(arguments[0])):
            return numbas(for_numba(arguments[0]))
        made = numbas(*arguments, **options)
        return lambda function: made(for_numba(function))

    return decorate


def _overload(numbas: Callable) -> Callable:
    """A decorator like `numba.extending.overload`, with arguments (the overloaded function)."""

    @functools.wraps(numbas)
    def decorate(*arguments: Any, **options: Any) -> Any:
        made = numbas(*arguments, **options)
        return lambda function: made(for_numba(function))

    return decorate


def _register_jitable(*function: Callable, **options: Any) -> Any:
    """`numba.extending.register_jitable`: Numba compiles a copy of the program's function."""

    def register(function: Callable) -> Callable:
        copy = for_numba(function)
        numba.extending.overload(
            function,
            jit_options={name: value for name, value in options.items() if name != "inline"},
            inline=options.get("inline", "never"),
            strict=False,
        )(lambda *arguments, **keywords: copy)
        return function

    return register(*function) if function else register


def for_numba(function: Any) -> Any:
    """A function as written, or a class with such methods, with the names that Numba knows instead of the stand-ins."""
    if inspect.isclass(function):
        for name, method in list(vars(function).items()):
            if inspect.isfunction(method):
                setattr(function, name, for_numba(method))
        return function
    if not inspect.isfunction(function):
        return function
    code = unedited.get(function.__code__, function.__code__)
    cells = tuple(CellType(_numbas(cell.cell_contents)) for cell in function.__closure__ or ())
    names = _Names(function.__globals__)
    copy = FunctionType(code, names, function.__name__, function.__defaults__, cells or None)
    copy.__kwdefaults__ = function.__kwdefaults__
    return functools.update_wrapper(copy, function)


class _Names(dict):
    """The global variables of a function for Numba, converted on access."""

    def __init__(self, names: dict[str, Any]) -> None:
        super().__init__(__name__=names.get("__name__"), __builtins__=builtins)
        self._names = names

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name) or name in self._names

    def __getitem__(self, name: str) -> Any:
        return super().__getitem__(name) if super().__contains__(name) else _numbas(self._names[name])

    def __iter__(self) -> Iterator[str]:
        return iter({**self._names, "__builtins__": None})

    def __len__(self) -> int:
        return len(list(iter(self)))

    def keys(self) -> Any:
        return list(iter(self))

    def get(self, name: str, default: Any = None) -> Any:
        return self[name] if name in self else default


class _Refused:
    """A placeholder for an active global variable, which Numba would treat as a constant."""

    def __init__(self, value: Any) -> None:
        self.value = value


@numba.extending.typeof_impl.register(_Refused)
def _typeof_refused(value: _Refused, context: Any) -> Any:
    raise ActivityError(
        f"{where_called()}: a function that Numba compiles reads a global variable that carries derivatives, which is "
        "a constant there; pass it as an argument"
    )


def _numbas(value: Any) -> Any:
    if isinstance(value, memory.TrackedArray):
        if would_be_lost(value):
            return _Refused(value)
        return memory.plain(value)[()] if memory.is_scalar(value) else memory.plain(value)
    if isinstance(value, (Plain, Compiled)):
        if _in_work and value is _in_work[-1]:
            return _ITSELF
        return value if value in _in_work else value.numbas_own
    return original(value)


def tracked(result: Any) -> Any:
    """A result of compiled code, with tracked arrays."""
    if type(result) is np.ndarray:
        return memory.tracked(result) if result.dtype.kind in "fc" else result
    if type(result) is tuple:
        return tuple(map(tracked, result))
    return result


def run_plainly(function: Callable, refusal: KernelError, compiled: Any, args: tuple, kwargs: dict) -> Any:
    """Call a function that only Numba has compiled, without derivatives."""
    leaves = [x for x in leaves_of((*args, *kwargs.values())) if isinstance(x, memory.TrackedArray)]
    if any(map(would_be_lost, leaves)):
        raise ActivityError(
            f"{place(function)}: '{function.__name__}' is given arrays that carry derivatives, and cannot be "
            f"differentiated: {refusal}"
        )
    written = [x for x in leaves if x.ndim and memory.plain(x).flags.writeable]
    given = tuple(map(plain, args))
    named = {name: plain(x) for name, x in kwargs.items()}
    return tracked(write_constants(written, lambda: compiled(*given, **named)))


def warn(function: Callable, problem: object) -> None:
    warnings.warn(
        f"{place(function)}: '{function.__name__}' is compiled by Numba and not differentiated (an error where it is "
        f"given arrays that carry derivatives): {problem}",
        ActivityWarning,
        stacklevel=warning_level(),
    )


def place(function: Any) -> str:
    """``file:line`` of a function."""
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def jit(signature_or_function: Any = None, *arguments: Any, **options: Any) -> Any:
    """`numba.jit`, for functions that can be differentiated."""
    function = getattr(signature_or_function, "py_func", signature_or_function)
    if not inspect.isfunction(function):
        if inspect.isclass(function) or (callable(function) and not isinstance(function, numba.core.typing.Signature)):
            return numba.jit(signature_or_function, *arguments, **options)  # raises Numba's error
        return lambda function: _make(function, options, signature_or_function)
    return _make(function, options)


def njit(*arguments: Any, **options: Any) -> Any:
    """`numba.njit`, for functions that can be differentiated."""
    options = {name: v for name, v in options.items() if name not in ("nopython", "forceobj")}
    return jit(*arguments, nopython=True, **options)


def _make(function: Any, options: dict[str, Any], signature: Any = None) -> Any:
    function = getattr(function, "py_func", function)
    if not inspect.isfunction(function):
        return numba.jit(signature, **options)(function)
    code = unedited.get(function.__code__)
    if code is not None:
        function.__code__ = code
    given = dict(options)
    kept = {name: v for name, v in options.items() if name not in _WITHOUT_MEANING}
    unknown = sorted(name for name in set(kept) - _OPTIONS if kept[name])
    if unknown:
        problem = KernelError(f"kernels have no option {', '.join(unknown)}")
        warn(function, problem)
        return Plain(function, given, problem)
    kept = {name: v for name, v in kept.items() if name in _OPTIONS}
    function = with_types(function, signature, kept.pop("locals", None))
    return Compiled(function, {"error_model": "python", **kept}, given)

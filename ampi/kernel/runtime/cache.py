"""Content-addressed cache of compiled kernels: one process compiles each, and all others load it.

A file's name is a hash of everything on which its content depends: the kernel's code and the values that it names, its
options, the types of its arguments, the settings of ampi and Numba, the versions of both and of Python, and the
processor.  So a file is never out of date, and is never overwritten with other contents.  See
`ampi.kernel.runtime.files` for how files are stored.
"""

from __future__ import annotations

import ast
import contextlib
import dis
import enum
import functools
import hashlib
import marshal
import pickle
import platform
import re
import sys
import types as python_types
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.cloudpickle import cloudpickle
from numba.core import caching, config
from numba.core.codegen import RuntimeLinker
from numba.core.environment import Environment, lookup_environment
from numba.core.errors import NumbaPerformanceWarning, NumbaWarning
from numba.core.extending import _Intrinsic
from numba.np.ufunc.dufunc import DUFunc
from numba.np.ufunc.gufunc import GUFunc
from numba.stencils.stencil import StencilFunc

from ampi.base import checks
from ampi.kernel.runtime.extremes import vectorised_extremes
from ampi.kernel.runtime.files import folder, locked, mark_used, read, write
from ampi.kernel.runtime.listed_arrays import whole_lists
from ampi.kernel.runtime.overloads import KNOWN, declared_overloads, is_plain
from ampi.kernel.runtime.progress import announced, counted
from ampi.kernel.runtime.quick_compilation import quick_compilation
from ampi.kernel.runtime.scipy_names import name_in_scipy
from ampi.tape.recording import had_tasks

_GENERATED = "ampi_generated_"
"""The prefix of the names of generated modules."""

# --------------------------------------------------------------------------------------------------- fingerprints


@functools.cache
def versions() -> str:
    """The versions in the cache key: this package's differentiator, Python, Numba, NumPy."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[2]
    for part in sorted([*(root / "kernel").rglob("*.py"), *(root / "partials").rglob("*.py")]):  # the differentiator
        digest.update(str(part.relative_to(root)).encode() + part.read_bytes())
    python = (sys.implementation.cache_tag, platform.python_version(), platform.machine())
    return repr((python, numba.__version__, np.__version__, digest.hexdigest()))


# Numba's settings (``NUMBA_...``, ``numba.config``) that do not change compiled code: about its output, its cache, the
# number and kind of its threads, and other devices.  All others, also those of later versions, are in the key.
WITHOUT_EFFECT = frozenset(
    """
    ALWAYS_WARN_UNINIT_VAR ANNOTATE CACHE_DIR CACHE_LOCATOR_CLASSES CHROME_TRACE COLOR_SCHEME DEBUG_CACHE
    DEBUG_FRONTEND DEBUG_PRINT_AFTER DEBUG_PRINT_BEFORE DEBUG_PRINT_WRAP DEBUG_TYPEINFER DEVELOPER_MODE DIFF_IR
    DISABLE_CUDA DISABLE_JIT DISABLE_PERFORMANCE_WARNINGS DUMP_ASSEMBLY DUMP_BYTECODE DUMP_CFG DUMP_FUNC_OPT DUMP_IR
    DUMP_LLVM DUMP_OPTIMIZED DUMP_SSA ENABLE_CUDASIM ENABLE_SYS_MONITORING FORCE_CUDA_CC FUNCTION_CACHE_SIZE GDB_BINARY
    HIGHLIGHT_DUMPS HTML LLVM_PASS_TIMINGS NUMBA_DEFAULT_NUM_THREADS NUMBA_NUM_THREADS PARALLEL_DIAGNOSTICS
    RUNNING_UNDER_PROFILER SHOW_HELP THREADING_LAYER THREADING_LAYER_PRIORITY TRACE
    """.split()
)


def settings() -> Any:
    """The settings of Numba and ampi that change compiled code, and the processor.

    Those of ``AMPI_WITHOUT`` are in the keys of kernels (`Kernel.identity`).
    """
    of_numba = [
        (name, repr(value))
        for name, value in sorted(vars(config).items())
        if name.isupper() and name not in WITHOUT_EFFECT and not name.startswith("CUDA_")
    ]
    return checks.is_full(), of_numba, processor()


def processor() -> Any:
    """The name and features of the processor that code is compiled for."""
    from numba.core.registry import cpu_target

    return cpu_target.target_context.codegen().magic_tuple()


def key(*parts: Any) -> str:
    """The hash in a file's name: of these parts, the versions and the settings."""
    return fingerprint(versions(), settings(), *parts)


def fingerprint(*parts: Any) -> str:
    """A hash of objects by their ``repr``, as twenty hexadecimal digits."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def identity(function: Any, options: Any = None, placed: bool | None = None) -> Any:
    """The part of the cache key for a function: its code, the constants and kernels it names, and their code.

    With ``placed`` it includes files and lines; by default (None) if the code can raise exceptions, which name them.
    Other compiled code does not depend on its place: it also serves copies of a script, cells of a notebook (which have
    a new file in each session), and code that was moved to other lines.
    """
    parts = _Identity(bool(placed))
    found = parts.of_function(function, options)
    return identity(function, options, True) if placed is None and any(map(_raises, parts.codes)) else found


def _raises(code: python_types.CodeType) -> bool:
    """Return whether code has a ``raise`` or ``assert`` statement (other exceptions of compiled code have no line)."""
    return dis.opmap["RAISE_VARARGS"] in code.co_code[::2]


class _Identity:
    def __init__(self, placed: bool) -> None:
        self.placed = placed
        self.inside: list[Any] = []
        self.codes: list[python_types.CodeType] = []

    def of_function(self, function: Any, options: Any) -> Any:
        if function in self.inside:
            return ("itself", self.inside.index(function))
        self.inside.append(function)
        try:
            code = function.__code__
            used = {name: self.of_value(value, code) for name, value in self.free(function)}
            defaults = [self.of_value(d, code) for d in function.__defaults__ or ()]
            named = [(name, self.of_value(d, code)) for name, d in sorted((function.__kwdefaults__ or {}).items())]
            return (
                function.__qualname__,
                self.of_code(code),
                sorted(used.items()),
                defaults,
                named,
                of_options(options or {}),
                repr(getattr(function, "__ampi_types__", None)),
            )
        finally:
            self.inside.pop()

    def of_code(self, code: python_types.CodeType) -> Any:
        self.codes.append(code)
        constants = [
            self.of_code(c) if isinstance(c, python_types.CodeType) else _of_constant(c) for c in code.co_consts
        ]
        place = (code.co_filename, list(code.co_lines())) if self.placed else ()
        return (code.co_code, constants, code.co_names, code.co_varnames, code.co_argcount, code.co_flags, place)

    @staticmethod
    def free(function: Any) -> Iterator[tuple[str, Any]]:
        for name in names_in(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                yield name, cell.cell_contents

    def of_value(self, value: Any, code: python_types.CodeType) -> Any:
        if hasattr(type(value), "identity_parts"):
            parts = value.identity_parts()
            return "rule", [f and self.of_function(function_of(f), getattr(f, "options", None)) for f in parts]
        if hasattr(value, "py_func"):
            given = getattr(value, "options", getattr(value, "targetoptions", None))
            return self.of_function(function_of(value), given), _declared(value)
        if isinstance(value, (StencilFunc, DUFunc, GUFunc)):
            return self.of_loops(value)
        if isinstance(value, _Intrinsic):
            return self.of_function(value._defn, None)
        if isinstance(value, python_types.ModuleType):
            return value.__name__, self.of_module(value, code)
        if isinstance(value, np.ndarray):
            return "array", value.dtype.str, value.dtype.descr, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
        if isinstance(value, (tuple, list)):
            return type(value).__qualname__, [self.of_value(v, code) for v in value]
        if isinstance(value, enum.Enum):
            return type(value).__qualname__, value.name, repr(value.value)
        if isinstance(value, enum.EnumMeta):
            members: Any = value.__members__
            return value.__qualname__, [(name, repr(member.value)) for name, member in members.items()]
        if is_plain(value):
            overloads = [self.of_function(f, None) for f in declared_overloads(value)]
            return value.__module__, value.__qualname__, overloads and (self.of_function(value, None), overloads)
        if issubclass(
            type(value), (bool, int, float, complex, str, bytes, np.generic, np.dtype, types.Type, type(None))
        ):
            return type(value).__qualname__, repr(value)
        if isinstance(value, type):
            return value.__module__, value.__qualname__, getattr(value, "_fields", ())
        if isinstance(value, np.ufunc):
            return "ufunc", name_in_scipy(value), value.__name__
        if hasattr(type(value), "__wrapper_address__"):  # the address differs from process to process
            return "function", name_in_scipy(value) or value.__wrapper_address__()
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__)

    def of_loops(self, value: Any) -> Any:
        """The cache key of an object made by ``@stencil``, ``@vectorize`` or ``@guvectorize``."""
        if isinstance(value, StencilFunc):
            return self.of_function(value.kernel_ir.func_id.func, None), sorted(map(repr, value.options.items()))
        if isinstance(value, DUFunc):
            return self.of_function(value._dispatcher.py_func, None), value.types if value._frozen else None
        made = value.gufunc_builder
        return self.of_function(made.py_func, None), made.signature, list(map(str, made._sigs))

    def of_module(self, module: python_types.ModuleType, code: python_types.CodeType) -> list[Any]:
        if module.__name__.split(".")[0] in KNOWN or module in self.inside:
            return []
        self.inside.append(module)
        try:
            named = [(name, getattr(module, name)) for name in names_in(code) if name in vars(module)]
            return [(name, self.of_value(v, code)) for name, v in named]
        finally:
            self.inside.pop()


def function_of(value: Any) -> Any:
    """The Python function of a kernel (with frozen globals) or of a Numba dispatcher; any other value unchanged."""
    function = getattr(value, "frozen_func", None)
    return getattr(value, "py_func", value) if function is None else function


def _declared(dispatcher: Any) -> Any:
    """The signatures to which a Numba dispatcher is limited, and the declared types of its variables."""
    signatures = () if getattr(dispatcher, "_can_compile", True) else dispatcher.nopython_signatures
    return [str(s) for s in signatures], sorted(
        (n, str(t)) for n, t in (getattr(dispatcher, "locals", None) or {}).items()
    )


def of_options(options: dict[str, Any]) -> Any:
    """Numba's options in a form that is the same in every process, as the order of sets is not."""
    return sorted((name, sorted(v) if isinstance(v, (set, frozenset)) else v) for name, v in options.items())


def names_in(code: python_types.CodeType) -> list[str]:
    """The names of globals and attributes in a function and its nested functions."""
    inside = [name for c in code.co_consts if isinstance(c, python_types.CodeType) for name in names_in(c)]
    return list(dict.fromkeys((*code.co_names, *inside)))


def _of_constant(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else (type(value).__name__, repr(value))


# --------------------------------------------------------------------------------------------------- compiled code


def describe(type_: types.Type) -> Any:
    """A description of a type that is the same in every process, and differs for different fields or functions."""
    if isinstance(type_, types.BaseTuple):
        return str(type_), getattr(type_, "fields", ()), tuple(map(describe, type_.types))
    if isinstance(type_, types.Dispatcher):
        return identity(type_.dispatcher.py_func, type_.dispatcher.targetoptions)
    return str(type_)


class _Locator(caching._CacheLocator):
    """The place of a function, for Numba's warnings."""

    def __init__(self, py_file: str):
        self._py_file = py_file

    def get_cache_path(self) -> str:
        return str(folder())

    def get_source_stamp(self) -> str:
        return ""

    def get_disambiguator(self) -> str:
        return ""


class _Implementation(caching.CompileResultCacheImpl):
    def __init__(self, name: str, function: Any):
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function.__code__.co_filename)
        self._filename_base = name

    def reduce(self, result: Any) -> Any:
        # Numba leaves out the environments of functions whose globals have no __name__ (functions made by exec), which
        # code that raises or prints in such a function needs.
        *parts, environments = result._reduce()
        named = (lookup_environment(v.name) for v in result.library._final_module.global_variables)
        return *parts, environments + tuple(_Nameless(e) for e in named if e is not None and not e.can_cache())


class _Nameless:
    """The environment of a function whose globals have no name, in a form that can be pickled."""

    def __init__(self, environment: Environment):
        self.environment = environment

    def __reduce__(self) -> Any:
        return _environment, (self.environment.env_name, list(self.environment.consts))


def _environment(name: str, constants: list[Any]) -> Environment:
    found = lookup_environment(name)
    if found is None:
        found = Environment._memo[name] = Environment({})
        found.env_name = name
        found.consts[:] = constants
    return found


class CompiledCache(caching.FunctionCache):
    """A cache of one function for Numba, which has a file for each signature.

    ``name`` must identify the code and everything that it depends on.  (Numba's own files, which share an index that
    any process may change, could give one signature the code of another.)
    """

    def __init__(self, name: str, function: Any):
        self._name = name
        self._py_func = function
        self._impl = _Implementation(name, function)
        self._cache_path = str(folder())
        self._enabled = True
        self._found: dict[Path, bytes] = {}
        self.each_its_own = calls_itself(function)  # Numba cannot load such code: see `_has_address_of_itself`

    def path(self, sig: Any) -> Path:
        # Not a hash of the types: a class of __main__ in a named tuple, or a function, differs from process to process.
        return folder() / f"{self.entry(sig)}.nbc"

    def entry(self, sig: Any) -> str:
        """A name for the function compiled for these types."""
        arguments = sig.args if hasattr(sig, "args") else sig
        return f"{self._name}.{fingerprint(*map(describe, arguments))}"

    def flush(self) -> None:
        for path in folder().glob(f"{self._name}.*.nbc"):
            path.unlink(missing_ok=True)

    def holds(self, sig: Any) -> bool:
        """Return whether the compiled code for a signature exists, undamaged."""
        path = self.path(sig)
        content = None if self.each_its_own else read(path)
        if content is None:
            return False
        self._found[path] = content
        return True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self.know_classes(sig)  # also for code that is compiled and saved now
        path = self.path(sig)
        content = self._found.pop(path, None) or read(path)
        if content is None or self.each_its_own:
            return None
        mark_used(path)
        target_context.refresh()
        try:
            return _of_these_functions(self._impl.rebuild(target_context, pickle.loads(content)), sig)
        except Exception:  # it names a class that no longer exists: compile again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        if self.each_its_own:
            return
        if _has_address_of_itself(data.library):
            write(self.path(sig).with_suffix(".own"), b"")
        elif self._impl.check_cachable(data):
            try:
                content = caching.dumps(self._impl.reduce(data))
            except Exception:  # a global of the function cannot be pickled, and its class may raise anything
                return
            write(self.path(sig), content)

    def is_own(self, sig: Any) -> bool:
        """Return whether each process has to compile this signature itself."""
        return self.each_its_own or read(self.path(sig).with_suffix(".own")) is not None

    def know_classes(self, sig: Any) -> None:
        """Make the named tuple classes of ``__main__`` and of functions known to unpickling in another process."""
        arguments = sig.args if hasattr(sig, "args") else sig
        for cls in (*(c for a in arguments for c in _named_tuples(a)), *_tuple_classes(self._py_func)):
            _know_class(cls)


def calls_itself(function: Any) -> bool:
    """Return whether a function refers to itself."""
    return any(
        getattr(getattr(value, "py_func", None), "__code__", None) is function.__code__
        for _, value in _Identity.free(function)
    )


def _has_address_of_itself(library: Any) -> bool:
    """Return whether a function in compiled code calls itself with arguments of other types.

    Numba then uses an address that it only sets after compilation: loaded code would crash.
    """
    return any(RuntimeLinker.PREFIX in v.name for v in library._final_module.global_variables)


def _of_these_functions(result: Any, sig: Any) -> Any:
    """Loaded code with the functions among its arguments, instead of their unpickled copies."""
    arguments = tuple(sig.args if hasattr(sig, "args") else sig)
    if not any(isinstance(a, types.Dispatcher) for a in arguments):
        return result
    result.fndesc.argtypes = arguments
    return result._replace(signature=result.signature.replace(args=arguments))


def _named_tuples(type_: types.Type) -> Iterator[type]:
    if isinstance(type_, types.BaseTuple):
        if hasattr(type_, "instance_class"):
            yield type_.instance_class
        for part in type_.types:
            yield from _named_tuples(part)


def _tuple_classes(function: Any) -> Iterator[type]:
    for _, value in _Identity.free(function):
        if isinstance(value, type) and issubclass(value, tuple) and hasattr(value, "_fields"):
            yield value


def _know_class(cls: type) -> None:
    # Compiled code pickles the class of a result: by name if it can be imported, otherwise by value under a random
    # number that a new process does not know.  This sets a number that is the same in every process.
    if cls not in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS:
        number = fingerprint(cls.__module__, cls.__qualname__, getattr(cls, "_fields", ()))
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = number
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number] = cls


def compiled(
    function: Any,
    name: str,
    options: dict[str, Any],
    check: Callable[[Any, Any], Any] | None = None,
    what: str = "",
) -> Any:
    """``numba.njit(**options)(function)``, with its compiled code in the cache folder as ``name``.

    ``check(dispatcher, signature)`` is a context in which it is compiled if it is not in the cache; ``what`` describes
    it to users who wait for it.  Code on one thread releases the interpreter's lock (GIL) once the program has run
    tasks in other threads, which costs 0.15 µs for each call.
    """
    if had_tasks[0] and not options.get("parallel") and "nogil" not in options:
        options, name = {**options, "nogil": True}, f"{name}_nogil"
    if _is_generated(function):
        options = {**options, "no_cfunc_wrapper": True}  # an entry for C code, which nobody calls
    dispatcher = numba.njit(**options)(function)
    if dispatcher is function:  # NUMBA_DISABLE_JIT
        return function
    dispatcher._cache = CompiledCache(name, function)
    waited = functools.partial(announced, what or function.__name__, function)
    dispatcher.compile = functools.partial(_compile_once, dispatcher, dispatcher.compile, check or _unchecked, waited)
    return dispatcher


@contextlib.contextmanager
def _unchecked(dispatcher: Any, sig: Any) -> Iterator[None]:
    yield


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Raise the recursion limit: Numba recurses over the blocks of a function, of which derivatives have many."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, 10_000))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def _is_generated(function: Any) -> bool:
    return (function.__globals__.get("__name__") or "").startswith(_GENERATED)


def _is_long(function: Any) -> bool:
    """Return whether a function is a derivative program of a thousand lines or more."""
    return _is_generated(function) and len(function.__code__.co_code) > 30_000


@contextlib.contextmanager
def _without_advice(function: Any) -> Iterator[None]:
    """Suppress Numba's warnings on performance of generated functions, and on functions that it cannot cache."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Cannot cache compiled function", NumbaWarning)
        if _is_generated(function):
            warnings.simplefilter("ignore", NumbaPerformanceWarning)
        yield


def _compile_once(
    dispatcher: Any,
    compile: Callable[[Any], Any],
    check: Callable[[Any, Any], Any],
    waited: Callable[[], Any],
    sig: Any,
) -> Any:
    """Compile or load one signature.

    Of several processes the first one compiles, and the others wait and load; a function that calls itself is compiled
    by all.
    """
    stored = dispatcher._cache
    if stored.holds(sig):
        with counted():
            return compile(sig)
    with waited(), contextlib.ExitStack() as inside:
        if not stored.is_own(sig):
            inside.enter_context(locked(stored.entry(sig)))
        if not stored.holds(sig):  # another process may have compiled it meanwhile
            inside.enter_context(check(dispatcher, sig))
            inside.enter_context(deep_recursion())
            inside.enter_context(_without_advice(dispatcher.py_func))
            inside.enter_context(vectorised_extremes())
            inside.enter_context(whole_lists())
            inside.enter_context(quick_compilation(_is_long(dispatcher.py_func)))
        return compile(sig)


# --------------------------------------------------------------------------------------------------- generated source


def load_or_make(name: str, make: Callable[[], str]) -> python_types.ModuleType:
    """The generated module of this name; its text is generated if the cache folder does not have it."""
    path = folder() / f"{name}.py"
    text = read(path)
    if text is None:
        with locked(name):
            text = read(path)
            if text is None:
                text = make().encode()
                write(path, text)
    mark_used(path)
    return load_module(path, text.decode())


def load_module(path: Path, text: str) -> python_types.ModuleType:
    """A generated file with this text as a module.

    Its code has the file and the lines of the kernel, so that exceptions point to these; with ``NUMBA_DISABLE_JIT`` it
    has those of the generated file, so that a debugger can step through it.
    """
    module = python_types.ModuleType(f"{_GENERATED}{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    if config.DISABLE_JIT:
        exec(compile(text, str(path), "exec"), vars(module))
        return module
    cached = path.with_suffix(".code")
    content = read(cached)
    if content is None:
        code = compiled_in_place(path, text)
        write(cached, marshal.dumps(code))
    else:
        code = marshal.loads(content)
    exec(code, vars(module))
    return module


def compiled_in_place(path: Path, text: str) -> python_types.CodeType:
    """The code of a generated file, with the file and lines of its kernel."""
    tree = ast.parse(text)
    found = re.search(r"^SOURCE = (.*)$", text, re.MULTILINE)
    if found is None:
        return compile(tree, str(path), "exec")
    filename, first_line = ast.literal_eval(found.group(1))
    comments = [re.search(r"# line (\d+)$", line) for line in text.splitlines()]
    for node in ast.walk(tree):
        if isinstance(node, (ast.stmt, ast.expr)):
            comment = comments[node.lineno - 1]
            node.lineno = node.end_lineno = first_line if comment is None else int(comment.group(1))
            node.col_offset = node.end_col_offset = 0
    return compile(tree, filename, "exec")

"""Compiled kernels on disk: compiled once, by one process, and loaded by all others.

The folder is ``$AMPI_CACHE_DIR``, else ``$XDG_CACHE_HOME/ampi``, else ``~/.cache/ampi``; where that cannot be written,
one in the folder for temporary files.  It belongs to the user alone (mode 0700); a folder of somebody else is refused,
since code is loaded from it.  Files are written under another name and then renamed, so none is ever seen half-written;
a lock per kernel makes concurrent ranks wait for the one that compiles.  What has not been used for `KEPT` seconds is
removed by the next process that compiles something.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import hashlib
import marshal
import os
import platform
import re
import stat
import sys
import tempfile
import time
import types as python_types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numba
import numpy as np
from numba import types
from numba.cloudpickle import cloudpickle
from numba.core import caching, config
from numba.core.compiler_lock import global_compiler_lock

from ampi.custom import custom_vjp
from ampi.errors import KernelError
from ampi.kernel.custom import custom_jvp
from ampi.kernel.extremes import vectorised_extremes

try:
    import fcntl
except ImportError:  # no locks on this system: files are still written whole, only perhaps twice
    fcntl = None  # type: ignore[assignment]


# --------------------------------------------------------------------------------------------------- the folder


@functools.cache
def folder() -> Path:
    """The cache folder of this user, made if need be.

    Raises
    ------
    KernelError
        ``AMPI_CACHE_DIR`` names a folder which cannot be used, or which other users can change.
    """
    named = os.environ.get("AMPI_CACHE_DIR")
    if named:
        try:
            return _private(Path(named).expanduser() / "kernels")
        except OSError as problem:
            raise KernelError(f"AMPI_CACHE_DIR={named} cannot be used: {problem}") from problem
    base = os.environ.get("XDG_CACHE_HOME")
    candidates = [Path(base) if base and os.path.isabs(base) else Path.home() / ".cache"] if _has_home() or base else []
    for root in candidates:
        with contextlib.suppress(OSError):
            return _private(root / "ampi" / "kernels")
    with contextlib.suppress(OSError):
        return _private(Path(tempfile.gettempdir()) / f"ampi-{_user()}")
    return Path(tempfile.mkdtemp(prefix="ampi-"))


def _has_home() -> bool:
    try:
        return Path.home() != Path("/")
    except RuntimeError:
        return False


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _private(path: Path) -> Path:
    """Make a folder that only this user can enter, and check that it is one."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    status = path.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(f"{path} is not a folder")
    if hasattr(os, "geteuid"):
        if status.st_uid != os.geteuid():
            raise PermissionError(f"{path} belongs to another user")
        if stat.S_IMODE(status.st_mode) != 0o700:
            path.chmod(0o700)
    with tempfile.TemporaryFile(dir=path):
        return path


def write(path: Path, content: str | bytes) -> None:
    """Write a file so that another process sees all of it or nothing."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=path.name + ".")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


# --------------------------------------------------------------------------------------------------- old files

DAY = 24 * 3600.0
KEPT = 60 * DAY


def mark_used(path: Path) -> None:
    """Make a file young again, at most once a day (it may belong to another kind of file system: never an error)."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > DAY:
            os.utime(path)


@functools.cache
def prune(root: Path) -> None:
    """Remove the files of kernels that nothing has used for long; at most once in a process and a day."""
    stamp = root / "pruned"
    with contextlib.suppress(OSError):
        if stamp.exists() and time.time() - stamp.stat().st_mtime < DAY:
            return
        stamp.touch()
        kernels: dict[str, list[Path]] = {}
        for path in (*root.glob("*.*"), *root.glob("__pycache__/*")):
            kernels.setdefault(path.name.split(".")[0], []).append(path)
        for paths in kernels.values():
            used = [_last_use(path) for path in paths]
            if max(used) < time.time() - KEPT:
                for path in paths:
                    path.unlink(missing_ok=True)


def _last_use(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:  # another process removes files, too
        return 0.0


# --------------------------------------------------------------------------------------------------- locks

_held: dict[str, int] = {}


@contextlib.contextmanager
def locked(name: str) -> Iterator[None]:
    """Hold this user's lock ``name`` among all processes; one process may take it again inside.

    Numba's own lock is taken first, so two threads that compile cannot wait for each other.
    """
    with global_compiler_lock:
        if _held.get(name):
            yield
            return
        _held[name] = 1
        prune(folder())
        try:
            with _file_lock(folder() / f"{name}.lock"):
                yield
        finally:
            del _held[name]


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    if fcntl is None:
        yield
        return
    with open(path, "a") as file:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


# --------------------------------------------------------------------------------------------------- fingerprints


@functools.cache
def versions() -> str:
    """What compiled code depends on besides its source: this package, Python, Numba, NumPy, the processor."""
    digest = hashlib.sha256()
    for part in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(part.name.encode() + part.read_bytes())
    python = (sys.implementation.cache_tag, platform.python_version(), platform.machine())
    return repr((python, numba.__version__, np.__version__, processor(), digest.hexdigest()))


def processor() -> Any:
    """The name and features of the processor that code is compiled for."""
    from numba.core.registry import cpu_target

    return cpu_target.target_context.codegen().magic_tuple()


def fingerprint(*parts: Any) -> str:
    """Twenty hexadecimal digits for anything whose ``repr`` says everything."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


def identity(function: Any, options: Any = None) -> Any:
    """What a function compiles to depends on: its code, the constants and kernels it names, and their code."""
    return _Identity().of_function(function, options)


class _Identity:
    def __init__(self) -> None:
        self.inside: list[Any] = []

    def of_function(self, function: Any, options: Any) -> Any:
        if function in self.inside:
            return ("itself", self.inside.index(function))
        self.inside.append(function)
        try:
            code = function.__code__
            used = {name: self.of_value(value, code) for name, value in self.free(function)}
            defaults = [self.of_value(d, code) for d in function.__defaults__ or ()]
            return (
                function.__qualname__,
                _of_code(code),
                sorted(used.items()),
                defaults,
                sorted((options or {}).items()),
            )
        finally:
            self.inside.pop()

    @staticmethod
    def free(function: Any) -> Iterator[tuple[str, Any]]:
        for name in names_in(function.__code__):
            if name in function.__globals__:
                yield name, function.__globals__[name]
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
            with contextlib.suppress(ValueError):  # not assigned yet
                yield name, cell.cell_contents

    def of_value(self, value: Any, code: python_types.CodeType) -> Any:
        if isinstance(value, (custom_vjp, custom_jvp)):
            own = (value.forward, value.backward) if isinstance(value, custom_vjp) else ()
            parts = (value.f, *own, value.tangent)
            return "rule", [
                f and self.of_function(getattr(f, "py_func", f), getattr(f, "options", None)) for f in parts
            ]
        if hasattr(value, "py_func"):
            return self.of_function(value.py_func, getattr(value, "options", getattr(value, "targetoptions", None)))
        if isinstance(value, python_types.ModuleType):
            return value.__name__, self.of_module(value, code)
        if isinstance(value, np.ndarray):
            return "array", value.dtype.str, value.shape, hashlib.sha256(value.tobytes()).hexdigest()
        if isinstance(value, (tuple, list)):
            return type(value).__qualname__, [self.of_value(v, code) for v in value]
        if isinstance(value, (bool, int, float, complex, str, bytes, np.generic, type(None))):
            return type(value).__qualname__, repr(value)
        return getattr(value, "__module__", ""), getattr(value, "__qualname__", type(value).__qualname__)

    def of_module(self, module: python_types.ModuleType, code: python_types.CodeType) -> list[Any]:
        if module.__name__.split(".")[0] in ("numpy", "math", "cmath", "numba"):
            return []
        named = [(name, getattr(module, name)) for name in names_in(code) if name in vars(module)]
        return [(name, self.of_value(v, code)) for name, v in named if not isinstance(v, python_types.ModuleType)]


def names_in(code: python_types.CodeType) -> list[str]:
    """The names of globals and attributes in a function and in functions defined inside of it."""
    inside = [name for c in code.co_consts if isinstance(c, python_types.CodeType) for name in names_in(c)]
    return list(dict.fromkeys((*code.co_names, *inside)))


def _of_code(code: python_types.CodeType) -> Any:
    constants = [_of_code(c) if isinstance(c, python_types.CodeType) else _of_constant(c) for c in code.co_consts]
    return (code.co_code, constants, code.co_names, code.co_varnames, code.co_argcount, code.co_flags)


def _of_constant(value: Any) -> Any:
    return sorted(map(repr, value)) if isinstance(value, frozenset) else (type(value).__name__, repr(value))


# --------------------------------------------------------------------------------------------------- compiled code


def describe(type_: types.Type) -> Any:
    """A type by what it says: the same in every process, and different for different fields or functions."""
    if isinstance(type_, types.BaseTuple):
        return str(type_), getattr(type_, "fields", ()), tuple(map(describe, type_.types))
    if isinstance(type_, types.Dispatcher):
        return identity(type_.dispatcher.py_func, type_.dispatcher.targetoptions)
    return str(type_)


class _Locator(caching._CacheLocator):
    """Tells Numba's cache where we keep its files."""

    def __init__(self, py_file: str):
        self._py_file = py_file

    def get_cache_path(self) -> str:
        return str(folder())

    def get_source_stamp(self) -> str:
        return ""  # the file's name says it all

    def get_disambiguator(self) -> str:
        return ""


class _Implementation(caching.CompileResultCacheImpl):
    def __init__(self, name: str, function: Any):
        self._lineno = function.__code__.co_firstlineno
        self._locator = _Locator(function.__code__.co_filename)
        self._filename_base = name


class CompiledCache(caching.FunctionCache):
    """Numba's cache of one function's compiled code, in our folder and under a name of ours.

    ``name`` must identify the code and everything that it depends on.
    """

    def __init__(self, name: str, function: Any):
        self._name = name
        self._py_func = function
        self._impl = _Implementation(name, function)
        self._cache_path = str(folder())
        self._cache_file = caching.IndexDataCacheFile(self._cache_path, name, "")
        self._enabled = True

    def _index_key(self, sig: Any, codegen: Any) -> Any:
        # Not the types themselves: a class of __main__ in a named tuple, or a function, is another in every process.
        arguments = sig.args if hasattr(sig, "args") else sig
        return fingerprint(*map(describe, arguments)), codegen.magic_tuple()

    def holds(self, sig: Any) -> bool:
        """Whether the compiled code for a signature is there."""
        from numba.core.registry import cpu_target

        data = self._cache_file._load_index().get(self._index_key(sig, cpu_target.target_context.codegen()))
        return data is not None and os.path.exists(self._cache_file._data_path(data))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        self.know_classes(sig)
        mark_used(Path(self._cache_path) / f"{self._name}.nbi")
        try:
            return super().load_overload(sig, target_context)
        except Exception:  # a damaged file, or one that names a class which is gone: compile again
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        with contextlib.suppress(OSError):  # a full disk: the code is only not kept
            super().save_overload(sig, data)

    def know_classes(self, sig: Any) -> None:
        """Let named tuple classes of ``__main__`` and of functions be found again in another process."""
        arguments = sig.args if hasattr(sig, "args") else sig
        for cls in (*(c for a in arguments for c in _named_tuples(a)), *_tuple_classes(self._py_func)):
            _know_class(cls)


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
    # Compiled code holds the class of a result as a pickle: by name if it can be imported, otherwise by value under a
    # random number that a new process does not know.  The number is given here instead, the same in every process.
    if cls not in cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS:
        number = fingerprint(cls.__module__, cls.__qualname__, getattr(cls, "_fields", ()))
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS[cls] = number
        cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[number] = cls


def compiled(function: Any, name: str, options: dict[str, Any]) -> Any:
    """``numba.njit(**options)(function)`` whose compiled code is kept in our folder as ``name``."""
    dispatcher = numba.njit(**options)(function)
    if dispatcher is function:  # NUMBA_DISABLE_JIT
        return function
    dispatcher._cache = CompiledCache(name, function)
    dispatcher.compile = functools.partial(_compile_once, dispatcher, dispatcher.compile, name)
    return dispatcher


def _compile_once(dispatcher: Any, compile: Callable[[Any], Any], name: str, sig: Any) -> Any:
    """Compile or load one signature; of several processes the first compiles and the others wait and load."""
    if dispatcher._cache.holds(sig):
        return compile(sig)
    with locked(name), vectorised_extremes():
        return compile(sig)


# --------------------------------------------------------------------------------------------------- generated source


def load_module(path: Path) -> python_types.ModuleType:
    """Import a generated file.

    Its functions are compiled as if they stood where they came from, so that exceptions point to lines of the kernel.
    With ``NUMBA_DISABLE_JIT``, where one steps through the file, they stand where they are.
    """
    mark_used(path)
    module = python_types.ModuleType(f"ampi_generated_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    if config.DISABLE_JIT:
        exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), vars(module))
        return module
    kept = path.with_suffix(".code")
    try:
        code = marshal.loads(kept.read_bytes())
    except (OSError, EOFError, ValueError, TypeError):
        code = compiled_in_place(path)
        with contextlib.suppress(OSError):  # a full disk: it is only not kept
            write(kept, marshal.dumps(code))
    exec(code, vars(module))
    return module


def compiled_in_place(path: Path) -> python_types.CodeType:
    """The code of a generated file, with the file and the lines of the kernel that it was made from."""
    text = path.read_text(encoding="utf-8")
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

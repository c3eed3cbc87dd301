"""A search of a program's source for places that will not be differentiated, without running it."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import errno
import importlib
import importlib.util
import math
import os
import pathlib
import re
import sys
import types
from typing import Any

import numpy as np

from ..arrays import elementwise
from ..foreign.scipy import guards
from ..interception.hooks import hook_of
from ..mpi.base.rules import TABLE, Treatment
from ..rules import functions, inplace
from ..tape import Tape
from .constants_seen import Seen, is_integer_dtype
from .numbers import has_derivative
from .outlining.uncompiled import refused_in
from .stand_ins import is_replaced


@dataclasses.dataclass(frozen=True, order=True)
class Finding:
    """A place in a program.

    Attributes
    ----------
    file, line : str, int
    what : str
        The expression or import.
    advice : str
        The consequence, and what to write instead.
    """

    file: str
    line: int
    what: str
    advice: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.what}: {self.advice}"


_ADVICE = {
    "foreign": "its code is not seen, and active arrays are an error there; wrap its calls with ampi.custom_vjp",
    "jax": "its code is not seen, and active arrays are an error there; wrap its functions with ampi.from_jax",
    "torch": "its code is not seen, and active arrays are an error there; wrap its modules with ampi.from_torch",
    "pandas": "it computes on memory of its own, and active arrays are an error there; take the columns as arrays",
    "petsc4py": "its code is not seen, and active arrays are an error there; a solve becomes differentiable by a rule "
    "(ampi.custom_vjp) whose adjoint is KSP.solveTranspose",
    "parallel": "what its threads and processes compute is not recorded (in a thread it is an error); use tasks "
    "(ThreadPoolExecutor of concurrent.futures, MPICommExecutor of mpi4py.futures), or make it one step with "
    "ampi.custom_vjp",
    "library": "it uses NumPy itself, and active arrays are an error there; name it with --also {} if it is Python, or "
    "wrap its calls with ampi.custom_vjp",
    "operation": "operations made of Python functions have no derivative; ampi.Op.Create takes a kernel",
    "integers": "integers carry no derivative: values computed from them have derivative zero",
    "numba": "it is compiled by Numba alone, and active arrays are an error; write it with numba.njit",
    "buffer": "its elements keep no derivatives, and active numbers are an error there; use numpy.array",
    "class": "it keeps numbers where ampi does not see them, and active arrays are an error; use plain arrays",
}
_OWN_RULES = "write it with functions that have a rule, or wrap it with ampi.custom_vjp"
_NO_NUMPY = set("h5py matplotlib pytest netCDF4 zarr tqdm rich tabulate psutil yaml mpl_toolkits".split())
_FOREIGN = {"ctypes", "cffi", "cython", "pythran", "pybind11", "rpy2", "cupy", "pycuda", "numexpr"}
_NEIGHBOURS = {"jax", "torch", "pandas", "petsc4py"}
"""Packages with advice of their own."""
_PARALLEL = {"multiprocessing", "subprocess", "_thread", "joblib", "dask"}
_PROCESSES = {f"concurrent.futures.{module}ProcessPoolExecutor" for module in ("", "process.")}
_WRITES = {
    *(f"numpy.{name}" for name in ("save", "savez", "savez_compressed", "savetxt", "memmap")),
    *("pickle.dump", "json.dump", "h5py.File"),
}
_READS = {f"numpy.{name}" for name in "load loadtxt genfromtxt fromfile fromstring frombuffer memmap".split()}
_GRADIENTS = {"jac", "fprime", "gradient", "hess", "hessp"}
"""Arguments by which optimisers are given derivatives."""
_NUMBA = {"cfunc", "cuda", "experimental.jitclass", "generated_jit"}
_LEAVES = {
    "tobytes": "bytes carry no derivative; send the array, or pack it with MPI.Datatype.Pack",
    "tofile": "what is written contributes nothing; ampi's File.Write has outputs that can carry a seed",
    "ctypes": "what C code does with the address is not seen; wrap the call with ampi.custom_vjp",
    "__array_interface__": "what is done with the address is not seen; wrap the call with ampi.custom_vjp",
}


def look(script: Any, packages: Any = (), loops: list[Finding] | None = None) -> list[Finding]:
    """Examine a script and its own modules.

    Parameters
    ----------
    script : path
    packages : iterable of str
        Further packages that belong to the program.
    loops : list, optional
        Receives the loops over elements that stay in Python.

    Returns
    -------
    list of Finding
        By file and line.

    Raises
    ------
    OSError, SyntaxError, ValueError
        The script cannot be read, or is not Python.  (For a module that it imports, that is a finding.)
    """
    start = pathlib.Path(script)
    if start.is_dir():
        start = start / "__main__.py"
        if not start.is_file():
            raise FileNotFoundError(errno.ENOENT, "the folder has no __main__.py", str(script))
    waiting, seen, found = [start], set(), []
    while waiting:
        path = waiting.pop()
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        file = _File(path, start.parent, frozenset(packages))
        try:
            found += file.findings()
            if loops is not None:
                loops += file.loops()
        except (OSError, SyntaxError, ValueError) as error:
            if path is start:
                raise
            line = getattr(error, "lineno", None) or 1
            found.append(Finding(os.path.relpath(path), line, "not Python", f"it is not examined: {error}"))
        waiting += file.imported
    return sorted(set(found))


def _at(line: int, other: int) -> str:
    return f" (line {other})" if other != line else ""


def unreadable(path: Any, error: Exception) -> str:
    """One line on a script that cannot be examined."""
    if isinstance(error, SyntaxError):
        where = f":{error.lineno}" if error.lineno else ""
        return f"{error.filename or path}{where}: {error.msg}"
    if isinstance(error, OSError):
        return f"{error.filename or path}: {error.strerror or error}"
    return f"{path}: {error}"


class _File(ast.NodeVisitor):
    """One source file: its imported names, and the findings in it."""

    def __init__(self, path: pathlib.Path, folder: pathlib.Path, packages: frozenset[str]) -> None:
        self.path = path
        self.folder = folder
        self.packages = packages
        self.names: dict[str, str] = {}
        self.paths = [folder]  # folders in which its imports are searched
        self.imported: list[pathlib.Path] = []
        self.found: list[Finding] = []

    def findings(self) -> list[Finding]:
        tree = ast.parse(self.path.read_bytes(), str(self.path))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("sys.path.insert", "sys.path.append"):
                self.paths += folder_named(node.args[-1], self.path)
        self.libraries: list[tuple[ast.AST, str, list[str]]] = []
        for node in ast.walk(tree):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(node)
        self.seen = Seen(tree, self._path_of)
        self.visit(tree)
        given = _given_to_gradients(tree)
        for node, name, bound in self.libraries:
            uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and n.id in bound]
            if not uses or any(use not in given for use in uses):
                self._say(node, f"import {name}", _ADVICE["library"].format(name.partition(".")[0]))
        return self.found

    def loops(self) -> list[Finding]:
        """The loops over elements that are not compiled."""
        name = os.path.relpath(self.path)
        found = refused_in(ast.parse(self.path.read_bytes(), str(self.path)), name)
        return [
            Finding(name, line, "this loop over elements stays in Python", reason + _at(line, at))
            for line, at, reason in found
        ]

    def _say(self, node: Any, what: str, advice: str) -> None:
        self.found.append(Finding(os.path.relpath(self.path), node.lineno, what, advice))

    # ------------------------------------------------------------------------------------------------- imports

    def _import(self, node: Any) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.names[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
                self._module(node, alias.name)
            return
        module = node.module or ""
        if node.level:
            base = self.path.resolve().parents[node.level - 1].joinpath(*module.split(".") if module else ())
            self._file(base)
            for alias in node.names:
                self._file(base / alias.name)
            return
        for alias in node.names:
            self.names[alias.asname or alias.name] = f"{module}.{alias.name}"
        if not self._module(node, module):
            return
        for alias in node.names:
            self._file(self.folder.joinpath(*module.split("."), alias.name))

    def _file(self, base: pathlib.Path) -> bool:
        """Examine the module in this file of the program, if it exists."""
        for path in (base.with_suffix(".py") if base.name else base, base / "__init__.py"):
            if path.is_file():
                self.imported.append(path)
                return True
        return False

    def _module(self, node: Any, name: str) -> bool:
        """Examine an import; return whether it is one of the program's own modules."""
        package = name.partition(".")[0]
        parts = name.split(".")
        if any([self._file(self.folder.joinpath(*parts[: n + 1])) for n in range(len(parts))]) or (
            self.folder.joinpath(parts[0]).is_dir() and package not in sys.stdlib_module_names
        ):
            return True
        if package in self.packages:
            return self._installed(name)
        if package in _FOREIGN | _NEIGHBOURS:
            self._say(node, f"import {name}", _ADVICE[package if package in _NEIGHBOURS else "foreign"])
        elif package in _PARALLEL:
            self._say(node, f"import {name}", _ADVICE["parallel"])
        elif not (
            is_replaced(package)
            or package in sys.stdlib_module_names
            or package in ("ampi", "mpi4py", "scipy", "xarray", *_NO_NUMPY)
        ):
            if not any(map(_uses_ampi, (path / parts[0] for path in self.paths[1:]))):
                bound = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
                self.libraries.append((node, name, bound))
        return False

    def _installed(self, name: str) -> bool:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            return True
        if spec is not None and spec.origin and spec.origin.endswith(".py"):
            self.imported.append(pathlib.Path(spec.origin))
        return True

    # ---------------------------------------------------------------------------------------------- expressions

    def _path_of(self, node: ast.AST) -> str:
        """The full name of what an expression means here, as ``numpy.linalg.norm``."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self.names:
            return ""
        return ".".join([self.names[node.id], *reversed(parts)])

    def visit_Attribute(self, node: ast.Attribute) -> None:
        """Addresses of arrays, and MPI methods without a rule."""
        if node.attr in ("ctypes", "__array_interface__") and not self._path_of(node):
            self._say(node, f".{node.attr}", _LEAVES[node.attr])
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """Calls of functions that are known."""
        name = self._path_of(node.func)
        package = name.partition(".")[0]
        if isinstance(node.func, ast.Attribute) and not name:
            self._method(node, node.func.attr)
        elif name in _WRITES:
            self._say(node, name, "what is written to files contributes nothing by itself")
        elif name in _READS:
            self._say(node, name, "what is read is a constant")
        elif package == "numpy":
            self._numpy(node, name)
        elif package == "scipy":
            self._scipy(node, name)
        elif package == "math" and callable(getattr(math, name[5:], None)) and not has_derivative(name[5:]):
            self._say(node, name, f"there is no derivative rule for it, active numbers are an error; {_OWN_RULES}")
        elif package == "cmath":
            self._say(node, name, "active numbers are an error there; write it with numpy's functions")
        elif name == "array.array" and node.args and ast.unparse(node.args[0])[1:-1] in ("d", "f"):
            self._say(node, name, _ADVICE["buffer"])
        elif name in _PROCESSES:
            self._say(node, name, _ADVICE["parallel"])
        elif name == "mpi4py.MPI.Op.Create":
            self._say(node, "MPI.Op.Create", _ADVICE["operation"])
        elif isinstance(node.func, ast.Name) and node.func.id == "open" and _opens_for_writing(node):
            self._say(node, "open(..., 'w')", "what is written to files contributes nothing")
        for keyword in node.keywords:
            if keyword.arg == "dtype" and ast.unparse(keyword.value) in ("object", "'O'", "np.object_"):
                self._say(node, "dtype=object", "arrays of objects carry no derivatives; use floating-point numbers")
        self.generic_visit(node)

    def _method(self, node: ast.Call, method: str) -> None:
        if method in ("astype", "view") and node.args and is_integer_dtype(node.args[0]):
            if self.seen.kind(node.func.value) is not None:  # type: ignore[attr-defined]
                return
            self._say(node, f".{method}({ast.unparse(node.args[0])})", _ADVICE["integers"])
        elif method in ("tobytes", "tofile"):
            self._say(node, f".{method}()", _LEAVES[method])
        elif method in _WITHOUT_RULE:
            self._say(node, f".{method}()", "this operation of MPI has no derivative rule: active buffers are an error")

    def _numpy(self, node: ast.Call, name: str) -> None:
        function: Any = np
        for part in name.split(".")[1:]:
            function = getattr(function, part, None)
        if function is None or name.startswith(("numpy.random", "numpy.testing")):
            return
        if isinstance(function, type):
            if issubclass(function, (np.matrix, np.ma.MaskedArray, np.poly1d, np.recarray, np.nditer)):
                self._say(
                    node, name, "it keeps numbers behind ampi's back, active arrays are an error; use plain arrays"
                )
            return
        if not takes_derivatives(function) and any(self.seen.kind(x) is None for x in node.args):
            self._say(node, name, f"there is no derivative rule for it, active arrays are an error; {_OWN_RULES}")

    def _scipy(self, node: ast.Call, name: str) -> None:
        found: Any = None
        for part in name.split("."):
            found = importlib.import_module(part) if found is None else _member(found, part)
            if found is None:
                return
        given = {keyword.arg for keyword in node.keywords}
        if name.startswith("scipy.optimize.") and given & _GRADIENTS:
            return  # it gets a gradient from ampi, and no active array
        advice = _refusal(found)
        if advice is not None:
            self._say(
                node, name, f"there is no derivative rule for it, active arrays are an error; {advice or _OWN_RULES}"
            )

    def visit_FunctionDef(self, node: Any) -> None:
        """Functions that are compiled by Numba in ways that cannot be differentiated."""
        for decorator in node.decorator_list:
            name = self._path_of(decorator.func if isinstance(decorator, ast.Call) else decorator)
            rest = name.removeprefix("numba.")
            if name.startswith("numba.") and (rest in _NUMBA or rest.startswith("cuda.")):
                self._say(node, f"@{name} of '{node.name}'", _ADVICE["numba"])
        self.generic_visit(node)


def _given_to_gradients(tree: ast.AST) -> set[ast.AST]:
    """Names in calls of optimisers that get gradients from ampi: these see no active arrays."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and {keyword.arg for keyword in node.keywords} & _GRADIENTS:
            found.update(inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
    return found


_OF_PATHS = set(
    "pathlib Path os path __file__ resolve parent parents absolute join dirname abspath realpath str".split()
)


def folder_named(node: ast.AST, path: pathlib.Path) -> list[pathlib.Path]:
    """The folder that an expression in a source file means, relative to the file; empty if it is anything else."""
    allowed = ast.Call, ast.Attribute, ast.Name, ast.Constant, ast.Subscript, ast.BinOp, ast.Div, ast.Load, ast.keyword
    for inner in ast.walk(node):
        name = getattr(inner, "attr", getattr(inner, "id", "str"))
        if not isinstance(inner, allowed) or name not in _OF_PATHS:
            return []
    names = {"pathlib": pathlib, "Path": pathlib.Path, "os": os, "str": str, "__file__": str(path)}
    with contextlib.suppress(Exception):
        return [pathlib.Path(eval(compile(ast.Expression(node), "", "eval"), {"__builtins__": {}}, names))]  # type: ignore[arg-type]
    return []


def _uses_ampi(package: pathlib.Path) -> bool:
    """Return whether a package uses ampi."""
    sources = [package.with_suffix(".py"), *package.glob("*.py")]
    return any(
        re.search(r"^\s*(import|from) ampi\b", path.read_text("utf-8", "replace"), re.M)
        for path in sources
        if path.is_file()
    )


def _opens_for_writing(node: ast.Call) -> bool:
    mode = node.args[1] if len(node.args) > 1 else next((k.value for k in node.keywords if k.arg == "mode"), None)
    return isinstance(mode, ast.Constant) and isinstance(mode.value, str) and bool(set(mode.value) & set("wax+"))


def _member(module: Any, name: str) -> Any:
    """A member of a SciPy module, which may not be loaded yet; None if there is none."""
    found = getattr(module, name, None)
    if found is None and isinstance(module, types.ModuleType):
        with contextlib.suppress(ImportError):
            found = importlib.import_module(f"{module.__name__}.{name}")
    return found


def _refusal(function: Any) -> str | None:
    """The advice for a SciPy function without a rule; None if it has one."""
    with Tape():
        pass  # SciPy's rules exist once a tape records
    if isinstance(function, np.ufunc):
        return None if takes_derivatives(function) else ""
    found = hook_of(getattr(function, "__init__", function) if isinstance(function, type) else function)
    return guards.instead(found) if found is not None and found.handle is guards.refuse else None


def _without_rule() -> set[str]:
    """Names of MPI methods that have no rule on any class."""
    names: dict[str, set[Treatment]] = {}
    for operation in TABLE.values():
        names.setdefault(operation.name, set()).add(operation.treatment)
    return {name for name, treatments in names.items() if treatments == {Treatment.ERROR}}


_WITHOUT_RULE = _without_rule()


def takes_derivatives(function: Any) -> bool:
    """Return whether a NumPy function accepts active arrays: it has a rule, or its result is a constant."""
    if isinstance(function, np.ufunc):
        known_ufuncs = elementwise.RULES.keys() | elementwise.CONSTANTS | elementwise.CONSTANT_FOR_REAL
        reals = [t for t in function.types if set(t.partition("->")[0]) == {"d"} and "d" in t.partition("->")[2]]
        return function in known_ufuncs or function in (np.divmod, np.modf, np.frexp) or not reals
    if isinstance(function, types.ModuleType) or not callable(function):
        return True
    known = (functions.CONSTANT, functions.COMPOSITE, functions.RULES, inplace.WRITERS)
    if any(function in table for table in known) or not hasattr(function, "_implementation"):
        return True
    return False

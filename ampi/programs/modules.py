"""A program's own modules: how they are recognised, changed and loaded.

They are the script, modules in files below its folder (but not packages installed there), and the packages that the
user names. Each has its own built-in names: an ``__import__`` that returns the stand-ins (other modules that import
``numpy`` get NumPy), and the functions that the changes to its syntax tree call. Files are only read.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import pathlib
import sys
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..errors import AmpiError, ProgramError
from . import numbers, stand_ins
from .edits import hidden
from .outlining.guarded import Loops
from .unedited_code import remember

_ELSEWHERE = {"site-packages", "dist-packages", "__pypackages__"}
_NEVER = {"ampi", "numpy", "numba", "llvmlite", "mpi4py"}

Edit = Callable[[ast.Module, str, str], ast.Module]
"""A function that changes the syntax tree of a module, given its file and its name (empty for the script)."""


class Modules(importlib.abc.MetaPathFinder):
    """The program's own modules.

    Parameters
    ----------
    folders : iterable of path
        Folders with the program's modules.
    packages : iterable of str
        Further packages of the program.
    edit : callable
        Changes the syntax tree of a module.
    hooks : dict
        Additional built-in names of the modules.
    loops : Loops, optional
        Compiles the modules' loops that prove hot.
    """

    def __init__(
        self,
        folders: Iterable[Any],
        packages: Iterable[str],
        edit: Edit,
        hooks: dict[str, Any],
        loops: Loops | None = None,
    ) -> None:
        self.loops = loops
        self.folders = [pathlib.Path(folder).resolve() for folder in folders]
        self.packages = frozenset(packages)
        for package in sorted(self.packages & _NEVER):
            raise ProgramError(f"--also {package}: {package} itself cannot be a part of the program")
        for package in sorted(self.packages & set(sys.modules)):
            raise ProgramError(f"--also {package}: ampi uses {package}, which is imported already")
        self.edit = edit
        self.builtins = {**vars(builtins), "__import__": _import, "isinstance": numbers.is_instance}
        self.builtins["hasattr"] = numbers.has_attribute
        self.builtins[hidden("__ampi_number__")] = numbers.convert
        self.builtins[hidden("__ampi_caught__")] = _caught
        self.builtins.update({hidden(hook): function for hook, function in hooks.items()})
        self.loaded: list[str] = []
        self._compiled: dict[tuple, types.CodeType] = {}

    def __enter__(self) -> Modules:
        self._import_module = importlib.import_module
        importlib.import_module = self._dynamically  # type: ignore[assignment]
        sys.meta_path.insert(0, self)
        return self

    def __exit__(self, *exception: Any) -> None:
        sys.meta_path.remove(self)
        importlib.import_module = self._import_module  # type: ignore[assignment]

    def forget(self) -> None:
        """Forget the loaded modules, so that the next import reads them again."""
        for name in self.loaded:
            module = sys.modules.pop(name, None)
            parent, _, last = name.rpartition(".")
            package = sys.modules.get(parent)
            if package is not None and vars(package).get(last) is module:
                delattr(package, last)
        self.loaded.clear()
        importlib.invalidate_caches()

    def owns(self, name: str, origin: Any) -> bool:
        """Return whether a module of this name, in this file, is the program's."""
        package = name.partition(".")[0]
        if package in _NEVER:
            return False
        if package in self.packages:
            return True
        path = pathlib.Path(origin).resolve()
        return any(
            folder in path.parents and not _ELSEWHERE.intersection(path.relative_to(folder).parts)
            and pathlib.Path(sys.prefix).resolve() not in (path, *path.parents)
            for folder in self.folders
        )  # fmt: skip

    # ------------------------------------------------------------------------------------------------ of importlib

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        """The spec of a module of the program, with our loader; None for all others."""
        if name.partition(".")[0] in _NEVER:
            return None
        for finder in sys.meta_path:
            if finder is self or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is None:
                continue
            if type(spec.loader) is importlib.machinery.SourceFileLoader and self.owns(name, spec.origin):
                spec.loader = Loader(self, spec.loader.name, spec.loader.path)
            return spec
        return None

    def _dynamically(self, name: str, package: str | None = None) -> Any:
        """`importlib.import_module`, for the program and for other callers."""
        if not name.startswith(".") and sys._getframe(1).f_builtins is self.builtins:
            found = stand_ins.imported(name)
            if found is not stand_ins.MISSING:
                return found
        return self._import_module(name, package)

    # -------------------------------------------------------------------------------------------------- what is run

    def compile(self, source: Any, filename: str, name: str) -> types.CodeType:
        """The changed code of a module; the same object for the same source in later runs."""
        key = filename, name, source
        if key not in self._compiled:
            tree = ast.parse(source, filename)
            pristine = compile(tree, filename, "exec", dont_inherit=True)
            if self.loops is None:
                code = compile(self.edit(tree, filename, name), filename, "exec", dont_inherit=True)
            else:
                code = self.loops.compile(tree, filename, lambda tree: self.edit(tree, filename, name))
            self._compiled[key] = code
            remember(pristine, code)
        return self._compiled[key]

    def prepare(self, module: types.ModuleType) -> None:
        """Set the built-in names of a new module."""
        module.__dict__["__builtins__"] = self.builtins


def _caught() -> None:
    """Raise an error of ampi's again, which a program written without ampi cannot mean to catch."""
    error = sys.exc_info()[1]
    if isinstance(error, AmpiError):
        raise error


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module of the program from its source, never from cached bytecode."""

    def __init__(self, modules: Modules, name: str, path: str) -> None:
        super().__init__(name, path)
        self.modules = modules

    def get_code(self, fullname: str) -> Any:
        path = self.get_filename(fullname)
        return self.modules.compile(self.get_data(path), path, fullname)

    def exec_module(self, module: types.ModuleType) -> None:
        self.modules.prepare(module)
        self.modules.loaded.append(module.__name__)
        super().exec_module(module)


def _import(
    name: str, globals: Any = None, locals: Any = None, fromlist: Sequence[str] | None = (), level: int = 0
) -> Any:
    """The ``__import__`` of a program's modules."""
    found = stand_ins.imported(name) if not level else stand_ins.MISSING
    if found is stand_ins.MISSING:
        return builtins.__import__(name, globals, locals, fromlist or (), level)
    for wanted in fromlist or ():
        if wanted != "*" and not hasattr(found, wanted):
            stand_ins.imported(f"{name}.{wanted}")  # a submodule
    return found if fromlist else stand_ins.top(name.partition(".")[0])

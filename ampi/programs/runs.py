"""Repeated runs of a program inside this process, each as if it were the first."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import importlib.util
import io
import os
import pathlib
import random
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..checkpoint.generators import generators_of_kernels
from ..errors import ActivityWarning, ProgramError
from . import verdicts
from .modules import Loader, Modules


@dataclasses.dataclass
class Program:
    """A program to run.

    Attributes
    ----------
    kind : {"file", "-m", "-c", "-"}
    what : str
        A path, the name of a module, or source.
    arguments : list of str
        The program's arguments.
    """

    kind: str
    what: str
    arguments: list[str]

    @property
    def folders(self) -> list[str]:
        """The folders with the program's own modules."""
        if self.kind == "file":
            path = pathlib.Path(self.what).resolve()
            return [str(path if path.is_dir() else path.parent)]
        return [os.getcwd()]

    @property
    def packages(self) -> list[str]:
        """Further packages of the program."""
        return [self.what.partition(".")[0]] if self.kind == "-m" else []

    def load(self, modules: Modules) -> tuple[types.ModuleType, types.CodeType]:
        """A new module ``__main__``, and its code; raises Python's errors."""
        module = types.ModuleType("__main__")
        modules.prepare(module)
        if self.kind == "-m":
            return module, self._of_module(modules, module)
        if self.kind == "file":
            path = self.what
            if os.path.isdir(path):
                path = os.path.join(path, "__main__.py")
            with open(path, "rb") as file:
                source: Any = file.read()
            module.__file__ = self.what
            module.__dict__["__loader__"] = Loader(modules, "__main__", path)
            return module, modules.compile(source, path, "")
        filename = "<string>" if self.kind == "-c" else "<stdin>"
        return module, modules.compile(self.what, filename, "")

    def _of_module(self, modules: Modules, module: types.ModuleType) -> types.CodeType:
        name = self.what
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{name}.__main__")
        if spec is None or spec.origin is None:
            raise ProgramError(f"-m {name}: there is no module of this name that can be run")
        module.__file__ = spec.origin
        module.__dict__.update(__spec__=spec, __package__=spec.parent, __loader__=spec.loader)
        return modules.compile(pathlib.Path(spec.origin).read_bytes(), spec.origin, "")

    def argv(self, module: types.ModuleType) -> list[str]:
        """The program's `sys.argv`."""
        first = {"file": self.what, "-m": getattr(module, "__file__", None) or "", "-c": "-c", "-": "-"}[self.kind]
        return [first, *self.arguments]

    @property
    def path(self) -> str:
        """The first entry of the program's `sys.path`."""
        if self.kind != "file":
            return ""
        path = os.path.realpath(self.what)
        return path if os.path.isdir(path) else os.path.dirname(path)


class Runner:
    """Runs a program several times.

    Parameters
    ----------
    program : Program
    modules : Modules
    final : bool
        True if this is the only run, and nothing follows.

    Attributes
    ----------
    namespace : dict or None
        The variables of the script's top level after the latest run.
    """

    def __init__(self, program: Program, modules: Modules, final: bool = False) -> None:
        self.final = final
        self.program = program
        self.modules = modules
        self.namespace: dict[str, Any] | None = None
        self._randomness = _Randomness()
        self._input = _StandardInput()

    def run(self, silent: bool = False) -> None:
        """Run the program from its beginning.

        A `SystemExit` that means success ends the program; any other exception is raised.
        """
        end = self._run(silent, contextlib.nullcontext(), ())
        if end is not None and (self.final or not verdicts.is_success(end)):
            raise end

    def run_displaced(self, anyhow: bool = False) -> BaseException | None:
        """Run the program with displaced values; returns the error by which it rejects its results, if any.

        ``anyhow``: returns any error, and suppresses warnings about displaced values.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ActivityWarning)  # the first run has shown them
            if anyhow:
                warnings.simplefilter("ignore")
            end = self._run(True, verdicts.aborting(), (Exception,) if anyhow else (AssertionError,))
        return None if end is None or verdicts.is_success(end) else end

    def _run(self, silent: bool, around: Any, ends: tuple) -> BaseException | None:
        self.forget()
        with contextlib.ExitStack() as stack:
            if not self.final:
                stack.enter_context(_restored())
                stack.enter_context(self._randomness)
                stack.enter_context(self._input)
                stack.enter_context(without_the_end_of_mpi())
            if silent:
                stack.enter_context(silence())
            stack.enter_context(around)
            stack.enter_context(self.modules)
            if self.program.path or self.program.kind != "file":
                sys.path.insert(0, self.program.path)
            module, code = self.program.load(self.modules)
            sys.modules["__main__"] = module
            sys.argv[:] = self.program.argv(module)
            self.namespace = module.__dict__
            try:
                exec(code, module.__dict__)
            except (SystemExit, *ends) as end:
                return end
        return None

    def forget(self) -> None:
        """Release the objects of the latest run."""
        if self.namespace is None:
            return
        self.namespace = None
        self.modules.forget()


class _Randomness:
    """Gives unseeded generators the same seeds in every run."""

    def __init__(self) -> None:
        self._drawn: list[int] = []
        self._states: Any = None
        self._of_kernels: Any = None

    def __enter__(self) -> None:
        bits: Any = np.random.bit_generator
        self._original = bits.randbits
        self._position = 0
        if self._states is None:
            self._states = np.random.get_state(), random.getstate()  # noqa: NPY002
            self._of_kernels = generators_of_kernels()
        np.random.set_state(self._states[0])  # noqa: NPY002
        random.setstate(self._states[1])
        if self._of_kernels is not None:
            self._of_kernels.put_back()
        bits.randbits = self._draw

    def __exit__(self, *exception: Any) -> None:
        np.random.bit_generator.randbits = self._original  # type: ignore[attr-defined]

    def _draw(self, count: int) -> int:
        if self._position == len(self._drawn):
            self._drawn.append(self._original(count))
        self._position += 1
        return self._drawn[self._position - 1]


class _StandardInput:
    """Gives a program the same standard input in every run."""

    def __init__(self) -> None:
        self._read = bytearray()

    def __enter__(self) -> None:
        self._original = sys.stdin
        binary = getattr(self._original, "buffer", None)
        if binary is not None:
            source = io.BufferedReader(_ReadAgain(self._read, binary))
            sys.stdin = io.TextIOWrapper(source, self._original.encoding, self._original.errors)

    def __exit__(self, *exception: Any) -> None:
        sys.stdin = self._original


class _ReadAgain(io.RawIOBase):
    """A file whose beginning has been read before.

    Parameters
    ----------
    known : bytearray
        The bytes read so far, which grow.
    file : io.BufferedIOBase
        The source of the rest.
    """

    def __init__(self, known: bytearray, file: Any) -> None:
        self._known = known
        self._file = file
        self._position = 0

    def readable(self) -> bool:
        return True

    def isatty(self) -> bool:
        return self._file.isatty()

    def readinto(self, into: Any) -> int:
        if self._position == len(self._known):
            self._known += self._file.read1(len(into))
        piece = self._known[self._position : self._position + len(into)]
        into[: len(piece)] = piece
        self._position += len(piece)
        return len(piece)


@contextlib.contextmanager
def _restored() -> Iterator[None]:
    """Restore the interpreter's state after a run."""
    argv, path, main = list(sys.argv), list(sys.path), sys.modules["__main__"]
    folder = os.getcwd()
    environment = dict(os.environ)
    errors = np.geterr()
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = argv, path
        sys.modules["__main__"] = main
        os.chdir(folder)
        if dict(os.environ) != environment:
            os.environ.clear()
            os.environ.update(environment)
        np.seterr(**errors)


@contextlib.contextmanager
def without_the_end_of_mpi() -> Iterator[None]:
    """Make ``MPI.Finalize()`` in the program do nothing, since the gradient still needs MPI."""
    original = mpi.Finalize
    mpi.Finalize = lambda: None  # type: ignore[assignment]
    try:
        yield
    finally:
        mpi.Finalize = original  # type: ignore[assignment]


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Discard everything that is written to the standard output."""
    sys.stdout.flush()
    try:
        kept: int | None = os.dup(1)
    except OSError:
        kept = None
    with open(os.devnull, "w") as nothing:
        if kept is not None:
            os.dup2(nothing.fileno(), 1)
        try:
            with contextlib.redirect_stdout(nothing):
                yield
        finally:
            if kept is not None:
                os.dup2(kept, 1)
                os.close(kept)

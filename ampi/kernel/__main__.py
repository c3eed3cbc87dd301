"""``python -m ampi.kernel script.py:function``: print the adjoint or tangent program of a kernel."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import runpy
import sys
from pathlib import Path
from typing import Any

from numba.core import sigutils, types

from ampi.base.arguments import ArgumentParser, add_version
from ampi.errors import KernelError
from ampi.kernel.dispatcher import Kernel
from ampi.kernel.pipeline import listing
from ampi.kernel.programs import adjoint_source, tangent_source

DESCRIPTION = """\
Print the adjoint program of a kernel as Python source; each line names the line of the script that it comes from.

--types gives the types of the arguments. Without it the script is run, and a program is printed for each combination of
types with which it called the kernel."""

PASSES = """\
The passes of a kernel, by stages. AMPI_WITHOUT=gather,strips switches off passes with a star,
AMPI_PRINT_AFTER=gather prints the program after one, AMPI_VERIFY=1 checks it after each."""


def fill(parser: argparse.ArgumentParser) -> None:
    """Add the arguments to a parser."""
    parser.add_argument("-h", "--help", action="help", help="show this help message and exit")
    parser.add_argument("kernel", metavar="script.py:function", help="or package.module:function")
    parser.add_argument("--types", metavar="TYPES", help='Numba\'s names, such as "float64[::1], float64"')
    parser.add_argument("--tangent", action="store_true", help="print the tangent program instead")
    parser.add_argument("--active", metavar="NAMES", help="the arguments to differentiate: x,y (default: all that can)")
    rest = parser.add_argument("arguments", nargs="*", metavar="argument", help="passed to the script if it is run")
    rest.required = False  # otherwise it is listed as missing together with the kernel
    add_version(parser)


def main(arguments: list[str] | None = None, prog: str = "python -m ampi.kernel") -> int:
    """Entry point; returns the exit status."""
    parser = ArgumentParser(
        prog=prog,
        description=DESCRIPTION,
        epilog=f"{PASSES}\n\n{listing()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    fill(parser)
    options = parser.parse_intermixed_args(arguments)
    try:
        text, status, stream = report(options), 0, sys.stdout
    except (KernelError, ValueError, OSError, ImportError, SyntaxError) as problem:
        text, status, stream = f"{prog}: {_described(problem)}\n", 1, sys.stderr
    if parser.prints:
        stream.write(text)
    return status


def _described(problem: Exception) -> str:
    if isinstance(problem, SyntaxError) and problem.filename:
        return f"{problem.filename}:{problem.lineno or 1}: {problem.msg}"
    if isinstance(problem, OSError) and problem.filename:
        return f"{problem.filename}: {problem.strerror}"
    return str(problem)


def report(options: argparse.Namespace) -> str:
    """The requested programs, as text."""
    script, _, name = options.kernel.rpartition(":")
    if not script or not name:
        raise ValueError(f"write script.py:function, not '{options.kernel}'")
    kernel = find(script, name, options.arguments, run=options.types is None)
    wanted = None if options.active is None else frozenset(n.strip() for n in options.active.split(","))
    source = tangent_source if options.tangent else adjoint_source
    signatures = [parsed(options.types)] if options.types is not None else called(kernel)
    if not signatures:
        raise ValueError(f"{script} has not called {name} from Python; give the types of its arguments with --types")
    return "\n\n".join(source(kernel, signature, wanted) for signature in signatures)


def _require_python(script: str) -> None:
    """Raise if a file is not Python, with its name."""
    try:
        compile(Path(script).read_bytes(), script, "exec")
    except (SyntaxError, ValueError) as problem:
        if getattr(problem, "filename", None):
            raise
        raise ValueError(f"{script} is not Python: {problem}") from None


def find(script: str, name: str, arguments: list[str], run: bool) -> Kernel:
    """The kernel in a script or module, which is run as a program or only imported."""
    if script.endswith(".py"):
        _require_python(script)
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).resolve().parent))
        # The output of the script is not part of the answer.
        with contextlib.redirect_stdout(sys.stderr):
            names: Any = runpy.run_path(script, run_name="__main__" if run else Path(script).stem)
    else:
        names = vars(importlib.import_module(script))
    first, *rest = name.split(".")
    if first not in names:
        raise ValueError(f"{script} has no '{first}'")
    value = names[first]
    for part in rest:
        if not hasattr(value, part):
            raise ValueError(f"{script} has no '{name}'")
        value = getattr(value, part)
    value = getattr(value, "f", value)  # the kernel of a custom rule
    if not isinstance(value, Kernel):
        raise ValueError(f"'{name}' of {script} is not an @ampi.kernel but {value!r}")
    return value


def parsed(text: str) -> tuple[types.Type, ...]:
    """The Numba types that a text lists."""
    try:
        signature, _ = sigutils.normalize_signature(f"({text},)" if text.strip() else "()")
    except Exception as problem:
        raise ValueError(f"--types {text!r}: {problem}") from problem
    return tuple(signature)


def called(kernel: Kernel) -> list[tuple[types.Type, ...]]:
    """The argument types with which a kernel has been called."""
    by_tapes = (primal.types for primal in kernel.primals.values())
    return list(dict.fromkeys(map(tuple, (*kernel.dispatcher.signatures, *by_tapes))))


if __name__ == "__main__":
    sys.exit(main())

"""Identification of the caller by Python's frames: the program, NumPy, ampi, or a package that displays arrays."""

from __future__ import annotations

import dis
import opcode
import sys
from typing import Any

SHOWING = set(
    "h5py matplotlib mpl_toolkits netCDF4 zarr unittest _pytest logging csv json pprint tqdm rich "
    "tabulate warnings reprlib".split()
)
"""Packages that read arrays to show, to store or to compare them; ``ampi.run --shown`` adds others."""


def package_of(frame: Any) -> str:
    """Name of the top-level package whose code runs in a frame."""
    return frame.f_globals.get("__name__", "").partition(".")[0]


def caller_of_numba(depth: int) -> str:
    """Name of the module that called Numba's dispatcher."""
    frame: Any = sys._getframe(depth)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(("numba.core.", "functools")):
        frame = frame.f_back
    return "" if frame is None else frame.f_globals.get("__name__", "")


def is_called_by_program(depth: int) -> bool:
    """True if the caller, `depth` frames above, is a module in which ampi's names replace NumPy's."""
    return is_of_program(sys._getframe(depth))


def is_of_program(frame: Any) -> bool:
    """True if a frame runs code that `programs.modules` has loaded."""
    imports = frame.f_builtins.get("__import__")
    return getattr(imports, "__module__", "") == "ampi.programs.modules"


def is_called_by_ampi(depth: int) -> bool:
    """True if the caller is ampi, or NumPy on its behalf, or a package that only looks at arrays to show them."""
    frame: Any = sys._getframe(depth)
    while frame is not None:
        package = package_of(frame)
        if package == "ampi" or package in SHOWING or frame.f_globals.get("__name__", "").startswith("numpy.testing"):
            return True
        if package != "numpy":
            return False
        frame = frame.f_back
    return False


def is_called_by_numpy(depth: int) -> bool:
    """True if the caller is NumPy's own Python code.

    NumPy computes in place in an array that it has just made, and a tracked scalar may be mistaken for one; and it
    converts arrays in functions that ampi differentiates through.
    """
    return package_of(sys._getframe(depth)) == "numpy"


def is_formatting(frame: Any) -> bool:
    """True if a frame executes the operator ``%``, which may format a string (``"%.3f" % x``)."""
    code, at = frame.f_code.co_code, frame.f_lasti
    name = dis.opname[code[at]]
    return name == "BINARY_MODULO" or (name == "BINARY_OP" and code[at + 1] in _MODULO)


_MODULO = [k for k, (name, _) in enumerate(getattr(opcode, "_nb_ops", ())) if "REMAINDER" in name]

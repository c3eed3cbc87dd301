"""The program's current line, for errors and warnings: that of the innermost frame outside ampi and other libraries."""

from __future__ import annotations

import os
import sys
from typing import Any

LIBRARIES = {"ampi", "numpy", "scipy", "numba", "llvmlite", "mpi4py"}
"""Packages whose lines do not count as the program's."""


_PYTHONS = f"{os.path.dirname(os.__file__)}{os.sep}"


def is_of_a_library(frame: Any) -> bool:
    """Return whether a frame is ampi's, a library's or Python's, and not the program's."""
    return is_code_of_a_library(frame.f_code, frame.f_globals)


def is_code_of_a_library(code: Any, names: dict[str, Any]) -> bool:
    """Return whether code with these globals is ampi's, a library's or Python's, and not the program's."""
    package = names.get("__name__", "").partition(".")[0]
    if package in LIBRARIES:
        return True
    return package in sys.stdlib_module_names and code.co_filename.startswith((_PYTHONS, "<frozen "))


def calling_frame() -> Any:
    """Return the frame of the program's current line; None if there is none."""
    frame: Any = sys._getframe(1)
    while frame is not None and is_of_a_library(frame):
        frame = frame.f_back
    return frame


def where_called() -> str:
    """Return ``file:line`` of the program's current line, for messages."""
    frame = calling_frame()
    return "an unknown line" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def line_outside(function: str) -> str:
    """Return ``file:line`` of the program's current line outside the package of a function with this dotted name."""
    own = function.partition(".")[0]
    frame: Any = sys._getframe(1)
    while frame is not None:
        if not is_of_a_library(frame) and frame.f_globals.get("__name__", "").partition(".")[0] != own:
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return where_called()


def warning_level() -> int:
    """Return the ``stacklevel`` with which a warning of the caller names the program's current line."""
    frame: Any = sys._getframe(1)
    level = 1
    while frame is not None and is_of_a_library(frame):
        frame, level = frame.f_back, level + 1
    return level

"""Compiled packages whose functions may be given active arrays (`ampi.rules.transparent`)."""

from __future__ import annotations

from ..arrays.callers import SHOWING
from ..base.program_lines import LIBRARIES

KNOWN = (
    LIBRARIES
    | SHOWING
    | {"llvmlite", "mpi4py_fft", "pyfftw", "autograd", "IPython", "zmq", "tornado", "psutil", "contourpy", "kiwisolver"}
    | {"fontTools", "pytest", "coverage", "line_profiler", "debugpy", "_pydevd_bundle", "_pydevd_frame_eval", "pydevd"}
    | {"greenlet", "gevent", "wrapt", "hypothesis", "builtins", "types"}
    | {"uarray", "_cyutility", "_ni_label", "View"}  # what SciPy's own compiled modules say that they are called
)
"""Packages whose functions are not looked at: they have rules, show, debug, or call Python code with what they get."""


def transparent(*packages: str) -> None:
    """Say of compiled packages that they hand arrays to Python code, or compute with their operators alone.

    Without it, an active array that is given to a function of C code which has no rule is an `ActivityError`.

    Parameters
    ----------
    *packages : str
        Names of top-level packages or modules.

    Examples
    --------
    >>> ampi.rules.transparent("cytoolz")  # pipe(x, f, g) calls f and g
    """
    KNOWN.update(packages)

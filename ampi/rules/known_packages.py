"""Compiled packages whose functions may be given active arrays (`ampi.rules.transparent`)."""

from __future__ import annotations

from ..arrays.callers import SHOWING
from ..base.program_lines import LIBRARIES

KNOWN = (
    LIBRARIES
    | SHOWING
    | {"llvmlite", "mpi4py_fft", "pyfftw", "IPython", "zmq", "tornado", "psutil", "contourpy", "kiwisolver"}
    | {"fontTools", "pytest", "coverage", "line_profiler", "debugpy", "_pydevd_bundle", "_pydevd_frame_eval", "pydevd"}
    | {"greenlet", "gevent", "wrapt", "hypothesis", "builtins", "types"}
    | {"uarray", "_cyutility", "_ni_label", "View"}  # module names inside SciPy's compiled code
)
"""Packages whose functions are not intercepted: they have rules, show, debug, or call Python code with arrays."""


def transparent(*packages: str) -> None:
    """Declare that compiled packages pass arrays on to Python code, or use only their operators.

    Otherwise passing an active array to a function in C that has no rule is an `ActivityError`.

    Parameters
    ----------
    *packages : str
        Names of top-level packages or modules.

    Examples
    --------
    >>> ampi.rules.transparent("cytoolz")  # pipe(x, f, g) calls f and g
    """
    KNOWN.update(packages)

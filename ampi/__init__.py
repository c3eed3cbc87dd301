"""ampi differentiates Python MPI programs as they stand."""

__version__ = "0.1.0"

from typing import TYPE_CHECKING, Any

from . import errors, numpy, rules, testing
from . import fftw as fftw
from . import foreign as foreign
from . import pictures as pictures
from . import scipy_rules as scipy_rules
from .array import ndarray, value
from .constants import constant
from .custom import custom_vjp
from .derivatives import grad, value_and_grad, vjp
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
from .programs.declared import dependent, independent
from .programs.tracing import trace
from .tape import Tape, passive

if TYPE_CHECKING:
    from numba import prange

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
    "Tape",
    "TapeError",
    "Win",
    "constant",
    "custom_jvp",
    "custom_vjp",
    "dependent",
    "errors",
    "grad",
    "independent",
    "kernel",
    "ndarray",
    "numpy",
    "passive",
    "prange",
    "rules",
    "testing",
    "trace",
    "value",
    "value_and_grad",
    "vjp",
]


def __getattr__(name: str) -> Any:
    """``prange`` is Numba's, which is imported when it is first needed."""
    if name == "prange":
        from numba import prange

        globals()["prange"] = prange
        return prange
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

"""ampi differentiates Python MPI programs as they stand."""

__version__ = "0.1.0"

from . import errors
from .array import ndarray, value
from .derivatives import grad, value_and_grad, vjp
from .errors import ActivityError, ActivityWarning, AmpiError, CommunicationError, KernelError, TapeError
from .mpi import COMM_SELF, COMM_WORLD, MPI
from .tape import Tape, passive

__all__ = [
    "COMM_SELF",
    "COMM_WORLD",
    "MPI",
    "ActivityError",
    "ActivityWarning",
    "AmpiError",
    "CommunicationError",
    "KernelError",
    "Tape",
    "TapeError",
    "errors",
    "grad",
    "ndarray",
    "passive",
    "value",
    "value_and_grad",
    "vjp",
]

"""Reduction operations: a subclass of mpi4py's that makes them of kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..kernel.pipeline import Kernel
from .datatypes import typemap_of
from .guards import guard
from .reductions import forget, learn
from .requests import AcceptsBase, Constant, Handles

_Op = mpi.Op  # mpi4py's own: the name in its module is rebound later


class Op(Constant, Handles, _Op, metaclass=AcceptsBase):
    """Reduction operation."""

    __slots__ = ()
    _base = _Op

    @classmethod
    def Create(cls, function: Callable[..., None], commute: bool = False) -> Op:
        """Create a user-defined reduction operation.

        Parameters
        ----------
        function : ampi.kernel or callable
            A kernel ``combine(a, b)`` puts a ∘ b into b, as MPI has it; both are one-dimensional arrays of the
            message's dtype, of any length.  The operation is differentiated by the kernel's adjoint.  Any other
            function is one of mpi4py's, ``function(inbuf, inoutbuf, datatype)``; active arrays are refused there.
        commute : bool
            Whether a ∘ b = b ∘ a.
        """
        kernel = function if isinstance(function, Kernel) else None
        op = super().Create(function if kernel is None else _combining(kernel), commute)
        learn(op, kernel)
        return op

    def Free(self) -> None:
        """Free a user-defined reduction operation.  A tape that recorded with it can still be swept."""
        handle = self.handle
        _Op.Free(self)
        forget(handle)


def _combining(kernel: Kernel) -> Callable[[Any, Any, Any], None]:
    """A kernel as the function that mpi4py calls."""

    def function(inbuf: Any, inoutbuf: Any, datatype: Any) -> None:
        typemap = typemap_of(datatype)
        if not typemap.contiguous:
            raise NotImplementedError(f"{kernel.__name__} combines arrays; the datatype has gaps or several dtypes")
        a, b = (np.asarray(memoryview(buffer)).view(typemap.dtype) for buffer in (inbuf, inoutbuf))
        kernel.dispatcher(a, b)

    return function


guard("Op", Op)

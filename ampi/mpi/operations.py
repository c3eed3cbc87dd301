"""Reduction operations: a subclass of mpi4py's that makes operations from kernels, and reductions of local buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import ActivityError
from ..kernel.dispatcher import Kernel
from ..memory.storages import plain
from ..tape import BaseAdjoint, Push, Sweep, current, lanes_of, living
from .base.handles import AcceptsBase, Constant, Handles
from .base.rules import Operation, Treatment, enter
from .collectives.reduction_plans import refusal, values_of
from .collectives.reductions import PREDEFINED, Reduction, forget, known, learn
from .collectives.reductions_forward import combination, elements_with_tangents, filled
from .collectives.reductions_second import is_nonlinear, rules_in_lanes
from .memory.arguments import parse
from .memory.buffers import Buffer
from .memory.datatypes import typemap_of
from .memory.tangents import set_tangent, tangent_in, tangents_in

_Op = mpi.Op  # mpi4py's own: the name in its module is rebound later


class Op(Constant, Handles, _Op, metaclass=AcceptsBase):
    """Reduction operation.

    Examples
    --------
    >>> def largest(x):
    ...     y = np.zeros(2)
    ...     ampi.COMM_SELF.Allreduce(x, y, op=ampi.MPI.MAX)
    ...     return np.sum(y * y)
    >>> ampi.grad(largest)(numpy.array([1.0, 2.0]))
    array([2., 4.])
    """

    __slots__ = ()
    _base = _Op

    @classmethod
    def Create(cls, function: Callable[..., None], commute: bool = False) -> Op:
        """Create a user-defined reduction operation.

        Parameters
        ----------
        function : ampi.kernel or callable
            A kernel ``combine(a, b)`` stores a ∘ b in b, as in MPI; both are one-dimensional arrays of the message's
            dtype, of any length.  The operation is differentiated by the kernel's adjoint.  Any other function has
            mpi4py's form, ``function(inbuf, inoutbuf, datatype)``, and refuses active arrays.
        commute : bool
            a ∘ b = b ∘ a.
        """
        kernel = function if isinstance(function, Kernel) else None
        op = super().Create(function if kernel is None else _combining(kernel), commute)
        learn(op, kernel)
        return op

    def Free(self) -> None:
        """Free a user-defined reduction operation.  A tape that recorded with it can still be swept."""
        if self.handle not in PREDEFINED:
            forget(self.handle)  # before another thread makes an operation that gets this handle
        _Op.Free(self)

    def Reduce_local(self, inbuf: Any, inoutbuf: Any) -> None:
        """Apply a reduction operation to local data."""
        if living:
            _reduce_local(self, inbuf, inoutbuf)
        else:
            _Op.Reduce_local(self, inbuf, inoutbuf)


class _Local(BaseAdjoint):
    """Adjoint of b = a ∘ b.

    ``dots`` are the tangents of both in each direction, in second order if the adjoint depends on them.
    """

    __slots__ = ("a", "b", "dots", "handle", "rule", "values")
    second_order = "joint"
    batched = True

    def __init__(self, handle: int, rule: Reduction, a: Buffer, b: Buffer, values: Any, dots: Any) -> None:
        self.handle = handle
        self.rule = rule
        self.a = a
        self.b = b
        self.values = values
        self.dots = dots

    def __call__(self, sweep: Sweep) -> None:
        if sweep.lanes is None:
            self._go_back(sweep, self.rule, self.values and [value() for value in self.values])
            return
        values = self.values and [plain(value()) for value in self.values]
        if not sweep.pairs or self.dots is None:
            for lane in sweep.lanes:
                self._go_back(lane, self.rule, values)
            return
        together = values, *([np.stack(pair) for pair in zip(values, dots)] for dots in self.dots)
        for lane, rule, given in zip(sweep.lanes, rules_in_lanes(self.rule, len(self.dots)), together):
            self._go_back(lane, rule, given)

    def _go_back(self, sweep: Any, rule: Reduction, values: Any) -> None:
        if rule.partials is None:  # a sum
            self.a.add(sweep, self.b.peek(sweep))
            return
        a_bar, b_bar = rule.partials(*values, self.b.take(sweep))
        self.a.add(sweep, a_bar)
        self.b.add(sweep, b_bar)

    def tangent(self, push: Push) -> None:
        """Combine the tangents as the values were combined."""
        for lane in lanes_of(push):
            self._go_forward(lane)

    def _go_forward(self, push: Push) -> None:
        a_dot, b_dot = tangent_in(push, self.a), tangent_in(push, self.b)
        if self.rule.partials is None:
            set_tangent(push, self.b, a_dot + b_dot)
            return
        elements = elements_with_tangents(b_dot.dtype, self.rule.located)
        made = [filled(elements, dot, value()) for value, dot in zip(self.values, (a_dot, b_dot))]
        combination(self.handle, self.rule)(*made)
        set_tangent(push, self.b, made[1]["tangent"].copy())


def _reduce_local(op: Any, inbuf: Any, inoutbuf: Any) -> None:
    """Reduce local data while some tape exists."""
    tape = current()
    a, b = parse(inbuf), parse(inoutbuf)
    if tape is None or not (a.active(tape) | b.active(tape)):
        undo = b.overwrite()
        _Op.Reduce_local(op, inbuf, inoutbuf)
        if tape is not None and undo:
            tape.append(None, undo)
        return
    rule = known(op)
    refused = refusal(op, rule, b)
    if not refused and not b.tracked:
        refused = "active values are combined into memory that is not tracked; make the array with ampi.numpy"
    if refused:
        raise ActivityError(f"Op.Reduce_local: {refused}")
    assert rule is not None
    values = [values_of(rule, x).need(tape) for x in (a, b)] if rule.partials is not None else None
    nonlinear = tape.tangents is not None and rule.partials is not None and is_nonlinear(rule, b)
    dots = list(zip(*(tangents_in(tape.tangents, x) for x in (a, b)))) if nonlinear else None
    undo = b.overwrite()
    _Op.Reduce_local(op, inbuf, inoutbuf)
    b.activate(tape)
    tape.append(_Local(op.handle, rule, a.detach(), b.detach(), values, dots), undo)


def _combining(kernel: Kernel) -> Callable[..., Any]:
    """A kernel as the function that mpi4py calls."""

    def function(inbuf: Any, inoutbuf: Any, datatype: Any = None) -> Any:
        if datatype is None:  # the operation is called, or objects are reduced
            from .. import numpy as anp

            result = anp.array(inoutbuf, ndmin=1)
            kernel(anp.array(inbuf, ndmin=1), result)
            return result.reshape(np.shape(inoutbuf))
        typemap = typemap_of(datatype)
        if not typemap.contiguous:
            raise NotImplementedError(f"{kernel.__name__} combines arrays; the datatype has gaps or several dtypes")
        a, b = (np.asarray(memoryview(buffer)).view(typemap.dtype) for buffer in (inbuf, inoutbuf))
        kernel.dispatcher(a, b)
        return None

    return function


enter(
    Operation(
        "Op",
        "Reduce_local",
        Treatment.DIFFERENTIATED,
        ("inbuf", "inoutbuf"),
        ("inoutbuf",),
        "the partial derivatives of one combination",
    )
)

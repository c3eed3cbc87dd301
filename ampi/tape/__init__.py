"""The tape: a log of operations, an undo log of overwritten memory, and the sweeps over both.

How to record an operation (a NumPy call, a kernel, an MPI operation)::

    tape = current()                      # None: nothing records, just do it (but see `overwrite`)
    x = tape.need(x)                      # the adjoint wants the value x has now
    undo = overwrite(y)                   # y is about to be overwritten: saves the old bytes if a record needs them
    ... the primal ...
    tape.append(adjoint, undo)

A record's ``adjoint(sweep)`` runs with the primal memory as it was when the operation ran: before any of its writes.
It takes the adjoints of what was overwritten with ``sweep.take(region)`` and adds to those of what was read with
``sweep.add(region, value)`` or in place through ``sweep.shadow(region)``.

The idea of saving only what is "to be recorded" (TBR) is that of Hascoët, Naumann and Pascual, "To be recorded analysis
in reverse-mode automatic differentiation" (2005), done here at run time by region.
"""

from ..base.program_lines import where_called
from ..memory.extents import may_change, place_of
from .budget import bytes_of
from .bystander import Bystander
from .forward import ForwardTape
from .push import Push, no_tangent, not_kept
from .recording import current, open_tapes, opened, passive, recording
from .records import AdjointRecord, BaseAdjoint, Output, Record, SecondOrder, Zero
from .second import PairSweep, SecondTape, no_second_derivative, second_order
from .sweep import Sweep, lanes_of
from .tape import Tape, at_closing, at_first_opening, at_opening, living
from .transposition import transposed
from .undo import Need, Undo, keep_needed, overwrite, require_seen, save
from .vector import VectorSweep
from .vector_push import VectorPush
from .walks import walk

__all__ = [
    "AdjointRecord",
    "BaseAdjoint",
    "Bystander",
    "ForwardTape",
    "Need",
    "Output",
    "PairSweep",
    "Push",
    "Record",
    "SecondOrder",
    "SecondTape",
    "Sweep",
    "Tape",
    "Undo",
    "VectorPush",
    "VectorSweep",
    "Zero",
    "at_closing",
    "at_first_opening",
    "at_opening",
    "bytes_of",
    "current",
    "keep_needed",
    "lanes_of",
    "living",
    "may_change",
    "no_second_derivative",
    "no_tangent",
    "not_kept",
    "open_tapes",
    "opened",
    "overwrite",
    "passive",
    "place_of",
    "recording",
    "require_seen",
    "save",
    "second_order",
    "transposed",
    "walk",
    "where_called",
]

"""The tapes of tasks' threads: of reverse mode, of forward mode, and of second order.

The active arrays are those of the program's tape.  A task in forward mode pushes tangents itself, through the blocks of
the program's tape: tasks that are not in a race access different parts of them.
"""

from __future__ import annotations

import threading
from _thread import get_ident
from collections.abc import Callable
from typing import Any

import numpy as np

from ..base.program_lines import where_called
from ..errors import ActivityError
from ..memory.blocks import spaced
from ..memory.extents import Extent
from ..memory.storages import Storage, region_of, storage_of
from ..tape import ForwardTape, Need, SecondTape, Sweep, Tape, Undo, living
from ..tape.recording import this_thread
from . import races
from .strands import Strand
from .task_pushes import can_be_shared, end_push, push_for


class OfTask(Tape):
    """Base class of the tapes of tasks.

    Attributes
    ----------
    root : Tape
        The tape of the program.
    strand : Strand
    """

    def become_part(self, root: Tape, strand: Strand) -> None:
        """Record for the tape of the program, in this thread."""
        living.discard(self.reference)
        self.reference = self.needer = root.reference
        self.root = root
        self.strand = self.accesses = strand
        self.pen = None
        self.notes, self.outputs, self.budget = root.notes, root.outputs, root.budget
        self.thread, self.owner = get_ident(), this_thread()
        self.thread_name = threading.current_thread().name

    def ends(self) -> None:
        """Note that the task has ended; break reference cycles."""
        root, self.at_message, self.append_record = self.root, None, self.records.append
        root.saved_bytes += self.saved_bytes
        root.kept_bytes += self.kept_bytes

    def need(self, array: np.ndarray) -> np.ndarray:
        """Record the read for `races`, and do as `Tape.need`."""
        return need_noted(self, self.strand, array, super().need)

    def need_again(self, need: Need) -> None:
        """Record the read for `races`, and do as `Tape.need_again`."""
        self.strand.read(need.storage, need.extent)
        super().need_again(need)

    def is_active(self, array: Any) -> bool:
        """Do as `Tape.is_active`, ignoring what concurrent strands have activated."""
        return super().is_active(array) and known_active(self.strand, array)

    def activate(self, array: np.ndarray) -> None:
        """Do as `Tape.activate`, and record the write for `races`."""
        super().activate(array)
        note_activated(self.strand, array)

    def at_sweep_start(self, key: Any, callback: Callable[[Sweep], None]) -> None:
        """Accept a log of messages of constants; messages with derivatives are refused when they are recorded."""
        if key != "communication":
            self.refuse_messages()
        super().at_sweep_start(key, callback)
        append = self.append_record

        def append_local(record: Any) -> None:
            if record.adjoint is not None and not record.adjoint.is_local:
                self.refuse_messages()
            append(record)

        self.append_record = append_local

    def refuse_messages(self) -> None:
        """Raise the error for messages in tasks."""
        raise ActivityError(
            f"{where_called()}: MPI is called in a task, in thread {self.thread_name!r}, with values that carry "
            f"derivatives or that others may have; communicate in thread {self.root.thread_name!r}, which has the "
            "tape, before the submit or after the result, or inside `with ampi.passive():` if the message is a "
            "constant"
        )


class UndoOfTask(Undo):
    """The undo of a task in reverse mode: saved values of arrays that are not contiguous are not so either, so that
    adjoints are compiled for one layout, and compute alike with saved values and with memory."""

    __slots__ = ()

    def _present(self) -> np.ndarray:
        return spaced(self.view) if self.key is None else super()._present()


class TaskTape(OfTask):
    """The tape of a task in reverse mode."""

    def __init__(self, root: Tape, strand: Strand) -> None:
        super().__init__()
        self.become_part(root, strand)
        self.walks = root.walks
        noting = self.append_record != self.records.append
        self.records = strand.records
        self.append_record = self._noting(self.records.append) if noting else self.records.append

    def undo_of(self, storage: Storage, array: np.ndarray, extent: Extent, key: Any) -> Undo:
        """Do as `Tape.undo_of`; values that may go to a file have no gaps."""
        return (UndoOfTask if self.budget is None else Undo)(storage, array, extent, key)


class ForwardTaskTape(OfTask, ForwardTape):
    """The tape of a task in forward mode."""

    def __init__(self, root: Tape, strand: Strand) -> None:
        super().__init__(lambda tape: push_for(tape, root.forward, strand))  # type: ignore[arg-type]
        own = self.reference
        self.become_part(root, strand)
        self.at_message = self.refuse_messages
        self.needer = own  # what an operation needs is forgotten after it, and only that

    def ends(self) -> None:
        """Note that the task has ended; break reference cycles."""
        super().ends()
        end_push(self.forward)


class SecondTaskTape(OfTask, SecondTape):
    """The tape of a task in second order."""

    def __init__(self, root: Tape, strand: Strand) -> None:
        super().__init__(lambda tape: push_for(tape, root.tangents, strand))  # type: ignore[arg-type]
        self.become_part(root, strand)
        self.at_message = self.refuse_messages
        self.records = strand.records

    def ends(self) -> None:
        """Note that the task has ended; break reference cycles."""
        super().ends()
        self.root.undone_bytes += self.undone_bytes  # type: ignore[attr-defined]
        end_push(self.tangents)

    def undo_of(self, storage: Storage, array: np.ndarray, extent: Extent, key: Any) -> Undo:
        """Do as `SecondTape.undo_of`; the sweep restores tangents of the program's tape."""
        new = super().undo_of(storage, array, extent, key)
        new.push = self.root.tangents  # type: ignore[attr-defined]
        return new


def tape_for(root: Tape, strand: Strand) -> OfTask:
    """Return the tape for a task of a program."""
    if root.tangents is not None:
        return SecondTaskTape(root, strand)
    return TaskTape(root, strand) if root.forward is None else ForwardTaskTape(root, strand)


def takes_tasks(root: Tape) -> bool:
    """Return whether tasks in other threads can record on a tape."""
    push = root.forward if root.tangents is None else root.tangents
    if not (push is None or can_be_shared(push)) or root.observer is not None:
        return False
    return type(root.records) is list or hasattr(root.records, "of_task")


def need_noted(tape: Any, strand: Strand, array: np.ndarray, need: Callable) -> np.ndarray:
    storage = storage_of(array)
    found = need(array)
    if storage is not None and found.size:
        strand.read(storage, races.extent_of(region_of(array)))
    return found


def known_active(strand: Strand, array: np.ndarray) -> bool:
    """Return whether an active array became active before the next operation of a strand.

    Otherwise its values are taken as constants, and recorded as read for `races`: another strand may compute them.
    """
    storage: Any = storage_of(array)
    if strand.knows_active(storage):
        return True
    strand.see(region_of(array))
    return False


def note_activated(strand: Strand, array: np.ndarray) -> None:
    storage = storage_of(array)
    if storage is not None:
        strand.write(storage, array)

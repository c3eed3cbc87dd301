"""The tangents of the program's tape in the threads of tasks: they are in the same memory, and reads are noted."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory.regions import Region
from ..tape import Push, Tape, VectorPush
from ..tape.vector_push import PushLane
from . import races
from .strands import Strand

Read = Callable[[Region], None]


def reads_of(strand: Strand) -> Read:
    """Return a function that records reads of regions by a strand."""
    return lambda region: strand.read(region.storage, races.extent_of(region))


class _Noting(Push):
    """A push that records the reads of a strand for `races`, and has no messages."""

    _read: Read

    def shadow(self, region: Region) -> np.ndarray:
        """Record the read, and do as `Push.shadow`."""
        self._read(region)
        return super().shadow(region)

    shadow_again = reading = shadow

    def get(self, region: Region) -> np.ndarray:
        """Record the read, and do as `Push.get`."""
        self._read(region)
        return super().get(region)

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Refuse: only messages and windows ask for it."""
        self.tape.refuse_messages()  # type: ignore[attr-defined]


class TaskPush(_Noting):
    """The tangents in one direction, in the thread of a task."""

    def __init__(self, tape: Any, whole: Push, strand: Strand) -> None:
        super().__init__(tape)
        self.share_blocks(whole)
        self._read = reads_of(strand)


class TaskLane(_Noting, PushLane):
    """The tangents in the first of several directions, in the thread of a task; a task reads the same in all."""

    def __init__(self, vector: TaskVectorPush, whole: PushLane, strand: Strand) -> None:
        super().__init__(vector)
        self.share_blocks(whole)
        self._read = reads_of(strand)


class OtherTaskLane(PushLane):
    """The tangents in another direction, in the thread of a task."""

    def __init__(self, vector: TaskVectorPush, whole: PushLane) -> None:
        super().__init__(vector)
        self.share_blocks(whole)


class TaskVectorPush(VectorPush):
    """The tangents in several directions, in the thread of a task."""

    def __init__(self, tape: Any, whole: VectorPush, strand: Strand) -> None:
        super().__init__(tape, 0)
        first, *others = whole.lanes
        self.share(whole, [TaskLane(self, first, strand), *(OtherTaskLane(self, lane) for lane in others)])

    def at_end(self, callback: Callable[[BaseException | None], None]) -> None:
        """Refuse: only messages and windows ask for it."""
        self.tape.refuse_messages()  # type: ignore[attr-defined]


_KINDS: dict[type, Any] = {Push: TaskPush, VectorPush: TaskVectorPush}


def can_be_shared(push: Push) -> bool:
    """Return whether tasks in other threads can push tangents."""
    return type(push) in _KINDS


def push_for(tape: Tape, whole: Push, strand: Strand) -> Push:
    """Return the push of the tape of a task."""
    return _KINDS[type(whole)](tape, whole, strand)


def end_push(push: Push) -> None:
    """Break reference cycles when the task has ended."""
    for each in (push, *(push.lanes or ())):
        each.tape = None
    if push.lanes is not None:
        push.lanes = ()


def note_reads(push: Push, strand: Strand) -> None:
    """Make a push record the reads of the tape's own thread while tasks run."""
    if push.lanes is not None:
        push.keep_in_rows(True)  # type: ignore[attr-defined]
    noting = push if push.lanes is None else push.lanes[0]
    read, kind = reads_of(strand), type(noting)
    reference = weakref.ref(noting)  # its own attributes must not keep it alive

    def shadow(region: Region) -> np.ndarray:
        read(region)
        return kind.shadow(reference(), region)

    def get(region: Region) -> np.ndarray:
        read(region)
        return kind.get(reference(), region)

    vars(noting).update(shadow=shadow, shadow_again=shadow, reading=shadow, get=get)


def note_no_reads(push: Push) -> None:
    """End what `note_reads` began."""
    if push.lanes is not None:
        push.keep_in_rows(False)  # type: ignore[attr-defined]
    noting = push if push.lanes is None else push.lanes[0]
    for name in ("shadow", "shadow_again", "reading", "get"):
        vars(noting).pop(name, None)

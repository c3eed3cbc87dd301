"""Lowercase collectives that move Python objects, with derivatives of the arrays in them moved as for buffers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...memory.storages import TrackedArray
from ...tape import Push, Sweep, Tape, lanes_of
from ...tape.recording import open_tapes, recording
from ..log.log import count_passive, log_collective, log_for, note_accesses
from ..log.messages import Collective, CollectiveAdjoint
from ..memory.bundles import EMPTY, Bundle, pack, refuse_others_in, unpack
from ..memory.plain_buffers import warn_of_plain_objects
from .movements import (
    ALLGATHER,
    ALLTOALL,
    BCAST,
    GATHER,
    OF_ROOTS_GROUP,
    SCATTER,
    Blocks,
    Movement,
    in_parts,
    is_root,
    partners,
)
from .neighborhoods import NOT_KNOWN, Edges, along, edges_of
from .replicated import look_for_replicated
from .reverse_schedule import in_step, run_reversed
from .tangents import begin_tangent

_Comm, _Topocomm = mpi.Comm, mpi.Topocomm  # mpi4py's own: its names may be rebound


class ObjectCollectives:
    """Methods of all communicators that distribute and collect Python objects."""

    __slots__ = ()

    _primal: Any = _Comm
    """The class whose methods move the pickled objects."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast an object."""
        tape = tape_or_passive(self, obj, is_root(self, root))
        if tape is None:
            return self._primal.bcast(self, obj, root)
        return broadcast(tape, self, obj, root, partial(self._primal.bcast, self))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather objects."""
        receives_only = root in OF_ROOTS_GROUP
        tape = tape_or_passive(self, sendobj, not receives_only)
        if tape is None:
            return self._primal.gather(self, sendobj, root)
        payload, sent = (None, EMPTY) if receives_only else pack(tape, sendobj)
        messages = self._primal.gather(self, payload, root)
        incoming, arrays = _unpacked_each(tape, messages or ())
        _record(tape, self, "gather", Movement(GATHER, in_parts([sent]), in_parts(incoming), root), arrays)
        return messages

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter objects."""
        sends = is_root(self, root)
        tape = tape_or_passive(self, sendobj, sends)
        if tape is None or (sends and sendobj is None):
            return self._primal.scatter(self, sendobj, root)
        payload, sent = _packed_each(tape, sendobj) if sends else (None, [])  # type: ignore[arg-type]
        message = self._primal.scatter(self, payload, root)
        incoming, arrays = unpack(tape, message)
        _record(tape, self, "scatter", Movement(SCATTER, in_parts(sent), in_parts([incoming]), root), arrays)
        return message

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects on all ranks."""
        tape = tape_or_passive(self, sendobj)
        if tape is None:
            return self._primal.allgather(self, sendobj)
        payload, sent = pack(tape, sendobj)
        messages = self._primal.allgather(self, payload)
        incoming, arrays = _unpacked_each(tape, messages)
        if self.Is_inter():  # type: ignore[attr-defined]
            movement = Movement(ALLTOALL, in_parts([sent] * partners(self)), in_parts(incoming))
        else:
            dtype = np.result_type(*(bundle.dtype for bundle in incoming))
            for bundle in (sent, *incoming):
                if bundle.count:
                    bundle.dtype = dtype  # in which adjoints of all ranks can be added up
            received = Blocks(incoming, [bundle.count for bundle in incoming], dtype)
            movement = Movement(ALLGATHER, Blocks([sent], [sent.count], dtype), received)
        _record(tape, self, "allgather", movement, arrays)
        return messages

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send an object from each rank to each."""
        tape = tape_or_passive(self, sendobj)
        if tape is None or sendobj is None:
            return self._primal.alltoall(self, sendobj)
        payload, sent = _packed_each(tape, sendobj)
        messages = self._primal.alltoall(self, payload)
        incoming, arrays = _unpacked_each(tape, messages)
        _record(tape, self, "alltoall", Movement(ALLTOALL, in_parts(sent), in_parts(incoming)), arrays)
        return messages


class TopocommObjects:
    """Methods of communicators with a topology that send and receive Python objects."""

    __slots__ = ()

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects from the neighbors."""
        tape = tape_or_passive(self, sendobj)
        if tape is None:
            return _Topocomm.neighbor_allgather(self, sendobj)
        edges = edges_of(self)
        payload, sent = pack(tape, sendobj)
        each = [sent] * len(edges.leaving)
        return _among_neighbors(tape, self, payload, edges, each, _Topocomm.neighbor_allgather)

    def neighbor_alltoall(self, sendobj: Any) -> list[Any]:
        """Send an object to each neighbor."""
        tape = tape_or_passive(self, sendobj)
        if tape is None:
            return _Topocomm.neighbor_alltoall(self, sendobj)
        edges = edges_of(self)
        payload, sent = _packed_each(tape, sendobj)
        each = [sent[slot] for slot, _ in edges.leaving]
        return _among_neighbors(tape, self, payload, edges, each, _Topocomm.neighbor_alltoall)


def _among_neighbors(
    tape: Tape,
    comm: mpi.Comm,
    payload: Any,
    edges: Edges,
    sent: Sequence[Bundle],
    primal: Callable[[Any, Any], list[Any]],
) -> list[Any]:
    """Run a neighborhood collective; ``sent`` has the arrays for each edge that leaves this rank."""
    name = primal.__name__
    if not edges.known and any(bundle.count for bundle in sent):
        raise ActivityError(f"{name}: {NOT_KNOWN}")
    messages = primal(comm, payload)
    incoming, arrays = _unpacked_each(tape, (messages[slot] for slot, _ in edges.arriving))
    _record(tape, comm, name, along(edges, sent, incoming), arrays)
    return messages


class MovedObjects(CollectiveAdjoint):
    """Adjoint of a collective that has moved objects."""

    __slots__ = ("movement",)
    second_order = "joint"
    batched = True
    propagates_tangents = True  # the parcels contain the tangents

    def __init__(self, token: Collective, movement: Movement) -> None:
        self.token = token
        self.movement = movement

    def tangent(self, push: Push) -> None:
        """Move tangents as the objects were moved, in a walk over the tape."""
        if self.token.happening:
            begin_tangent(self.movement, push, self.token.reverse, self.token.name, False)()

    def __call__(self, sweep: Sweep) -> None:
        token, movement = self.token, self.movement
        if token.happens(sweep):
            if sweep.tape.returned is not None:
                bundles: Any = movement.received.parts
                look_for_replicated(sweep, token, {r.storage for bundle in bundles for r in bundle.regions})
            steps = in_step([movement.adjoint(lane, token.reverse) for lane in lanes_of(sweep)])
            run_reversed(sweep, token, steps, self.waiting)

    def waiting(self) -> str:
        """Describe what this rank waits for, for error messages."""
        return f"the adjoint of {self.token.describe()}"


def _record(tape: Tape, comm: mpi.Comm, name: str, movement: Movement, arrays: Sequence[TrackedArray]) -> None:
    """Record a collective.  Active arrays always arrive in tracked memory."""
    active = any(bundle.count for bundle in movement.sent.parts)
    if tape.forward is not None:  # the parcels contained the tangents
        log_for(tape, name, comm, active)
        return
    token = log_collective(tape, comm, name, active, True, root=movement.root)
    tape.append(MovedObjects(token, movement), (), arrays)


def _packed_each(tape: Tape, objects: Iterable[Any]) -> tuple[list[Any], list[Bundle]]:
    """Return what to send for each of several objects, and the active arrays in it."""
    packed = [pack(tape, item) for item in objects]
    return [payload for payload, _ in packed], [bundle for _, bundle in packed]


def _unpacked_each(tape: Tape, messages: Iterable[Any]) -> tuple[list[Bundle], list[TrackedArray]]:
    """Return the active arrays in each of several objects that have arrived, and all of them in one list."""
    bundles, everything = [], []
    for message in messages:
        bundle, arrays = unpack(tape, message)
        bundles.append(bundle)
        everything += arrays
    return bundles, everything


def tape_or_passive(comm: mpi.Comm, obj: Any = None, sends: bool = True) -> Tape | None:
    """Return the tape that records a collective of an object; in `ampi.passive` the call is only counted."""
    tape = recording()
    note_accesses(tape)
    if tape is not None and sends:
        warn_of_plain_objects(obj)
    if tape is None and open_tapes:
        count_passive(comm)
        refuse_others_in(obj)
    return tape


def broadcast(tape: Tape, comm: mpi.Comm, obj: Any, root: int, primal: Callable[[Any, int], Any]) -> Any:
    """Broadcast an object by ``primal(payload, root)``, and record it."""
    sends = is_root(comm, root)
    payload, sent = pack(tape, obj) if sends else (None, EMPTY)
    message = primal(payload, root)
    incoming, arrays = unpack(tape, message)
    going, coming = (Blocks([bundle], [bundle.count], bundle.dtype) for bundle in (sent, incoming))
    _record(tape, comm, "bcast", Movement(BCAST, going, coming, root), arrays)
    return message

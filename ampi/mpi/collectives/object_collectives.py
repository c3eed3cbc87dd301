"""Lowercase collectives that move Python objects; their adjoints move the arrays' adjoints as bytes."""

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
from ..log.log import count_passive, log_collective, log_for
from ..log.messages import CollectiveAdjoint
from ..log.reverse import COLLECTIVE_TAG, reverse_of
from ..memory.bundles import EMPTY, Bundle, pack, refuse_others_in, unpack
from ..memory.plain_buffers import mind_objects
from ..memory.tangents import set_tangent, tangent_in
from ..waiting.waiting import wait
from .intercomm_p2p import exchanged, gathered, scattered, split
from .neighborhoods import Edges, edges_of, go_back
from .reductions import Steps
from .replicated import look_for_replicated
from .reverse_schedule import in_step, run_reversed

_Comm, _Topocomm = mpi.Comm, mpi.Topocomm  # mpi4py's own: its names may be rebound


class ObjectCollectives:
    """Methods of all communicators that distribute and collect Python objects."""

    __slots__ = ()

    _primal: Any = _Comm
    """Whose methods move the pickled objects."""

    def bcast(self, obj: Any, root: int = 0) -> Any:
        """Broadcast an object."""
        tape = tape_or_passive(self, obj, is_root(self, root))
        if tape is None:
            return self._primal.bcast(self, obj, root)
        return broadcast(tape, self, obj, root, partial(self._primal.bcast, self))

    def gather(self, sendobj: Any, root: int = 0) -> list[Any] | None:
        """Gather objects."""
        tape = tape_or_passive(self, sendobj, root not in OF_ROOTS_GROUP)
        if tape is None:
            return self._primal.gather(self, sendobj, root)
        receives_only = root in OF_ROOTS_GROUP
        payload, sent = (None, EMPTY) if receives_only else pack(tape, sendobj)
        messages = self._primal.gather(self, payload, root)
        came, arrays = _unpacked_each(tape, messages or ())

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            mine = np.empty(sent.nbytes, np.uint8)
            going = _in_bytes(sweep, came)
            if comm.Is_inter():
                yield scattered(comm, going, mine, root)
            else:
                yield [comm.Iscatterv(_joined(going), mine, root)]
            sent.add(sweep, mine.view(sent.dtype))

        _record(tape, self, "gather", [sent], adjoint, arrays, came, root)
        return messages

    def scatter(self, sendobj: Sequence[Any] | None, root: int = 0) -> Any:
        """Scatter objects."""
        sends = is_root(self, root)
        tape = tape_or_passive(self, sendobj, sends)
        if tape is None or (sends and sendobj is None):
            return self._primal.scatter(self, sendobj, root)
        packed = [pack(tape, item) for item in sendobj] if sends else []  # type: ignore[union-attr]
        sent = [bundle for _, bundle in packed]
        message = self._primal.scatter(self, [payload for payload, _ in packed] if sends else None, root)
        came, arrays = unpack(tape, message)

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            counts = [bundle.nbytes for bundle in sent]
            total = np.empty(sum(counts), np.uint8)
            mine = None if root in OF_ROOTS_GROUP else came.take(sweep).view(np.uint8)
            if comm.Is_inter():
                yield gathered(comm, mine, split(total, counts), root)
            else:
                yield [comm.Igatherv(mine, [total, counts] if counts else None, root)]
            _add_bytes(sweep, sent, total)

        _record(tape, self, "scatter", sent, adjoint, arrays, [came], root)
        return message

    def allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects on all ranks."""
        tape = tape_or_passive(self, sendobj)
        if tape is None:
            return self._primal.allgather(self, sendobj)
        payload, sent = pack(tape, sendobj)
        messages = self._primal.allgather(self, payload)
        came, arrays = _unpacked_each(tape, messages)

        def adjoint_between_groups(sweep: Sweep, comm: Any) -> Steps:
            total = np.empty((len(came), sent.nbytes), np.uint8)
            yield exchanged(comm, _in_bytes(sweep, came), total)
            for mine in total:
                sent.add(sweep, mine.view(sent.dtype))

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            dtype = np.result_type(*(bundle.dtype for bundle in came))
            total = np.concatenate([bundle.take(sweep).astype(dtype, copy=False) for bundle in came])
            mine = np.empty(sent.count, dtype)
            yield [comm.Ireduce_scatter(total, mine, [bundle.count for bundle in came], mpi.SUM)]
            sent.add(sweep, mine)

        _record(tape, self, "allgather", [sent], adjoint_between_groups if self.Is_inter() else adjoint, arrays, came)
        return messages

    def alltoall(self, sendobj: Sequence[Any]) -> list[Any]:
        """Send an object from each rank to each."""
        tape = tape_or_passive(self, sendobj)
        if tape is None or sendobj is None:
            return self._primal.alltoall(self, sendobj)
        packed = [pack(tape, item) for item in sendobj]
        sent = [bundle for _, bundle in packed]
        messages = self._primal.alltoall(self, [payload for payload, _ in packed])
        came, arrays = _unpacked_each(tape, messages)

        def adjoint(sweep: Sweep, comm: Any) -> Steps:
            counts = [bundle.nbytes for bundle in sent]
            total = np.empty(sum(counts), np.uint8)
            going = _in_bytes(sweep, came)
            if comm.Is_inter():
                yield exchanged(comm, going, split(total, counts))
            else:
                yield [comm.Ialltoallv(_joined(going), [total, counts])]
            _add_bytes(sweep, sent, total)

        _record(tape, self, "alltoall", sent, adjoint, arrays, came)
        return messages


class TopocommObjects:
    """Methods of communicators with a topology that send and receive Python objects."""

    __slots__ = ()

    def neighbor_allgather(self, sendobj: Any) -> list[Any]:
        """Gather objects from the neighbors."""
        tape = tape_or_passive(self, sendobj)
        if tape is None:
            return _Topocomm.neighbor_allgather(self, sendobj)
        payload, sent = pack(tape, sendobj)
        return _among_neighbors(
            tape,
            self,
            "neighbor_allgather",
            payload,
            lambda edges: [sent] * len(edges.leaving),
            _Topocomm.neighbor_allgather,
        )

    def neighbor_alltoall(self, sendobj: Any) -> list[Any]:
        """Send an object to each neighbor."""
        tape = tape_or_passive(self, sendobj)
        if tape is None:
            return _Topocomm.neighbor_alltoall(self, sendobj)
        packed = [pack(tape, item) for item in sendobj]
        payload = [item for item, _ in packed]
        return _among_neighbors(
            tape,
            self,
            "neighbor_alltoall",
            payload,
            lambda edges: [packed[slot][1] for slot, _ in edges.leaving],
            _Topocomm.neighbor_alltoall,
        )


def _among_neighbors(
    tape: Tape,
    comm: Any,
    name: str,
    payload: Any,
    sent_by: Callable[[Edges], list[Bundle]],
    primal: Callable[[Any, Any], list[Any]],
) -> list[Any]:
    """A neighborhood collective; ``sent_by`` gives what each edge that leaves has of the payload."""
    edges = edges_of(comm)
    sent = sent_by(edges)
    if not edges.known and any(bundle.count for bundle in sent):
        raise ActivityError(f"{name}: which edge is which in an asymmetric graph is not known; send ampi.value(...)")
    messages = primal(comm, payload)
    came, arrays = _unpacked_each(tape, (messages[slot] for slot, _ in edges.arriving))

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        going = [bundle.take(sweep).view(np.uint8) for bundle in came]
        coming = [np.empty(bundle.nbytes, np.uint8) for bundle in sent]
        yield go_back(comm, edges, going, coming)
        for bundle, array in zip(sent, coming, strict=True):
            bundle.add(sweep, array.view(bundle.dtype))

    def forward(push: Push, comm: Any) -> None:
        going = [tangent_in(push, bundle) for bundle in sent]
        coming = [np.empty(bundle.count * len(lanes_of(push)), bundle.dtype) for bundle in came]
        requests = [comm.Irecv(a, source, COLLECTIVE_TAG) for (_, source), a in zip(edges.arriving, coming)]
        requests += [comm.Isend(a, dest, COLLECTIVE_TAG) for (_, dest), a in zip(edges.leaving, going)]
        for request in requests:
            wait(request, lambda: f"the tangents of {name}", reverse)
        for bundle, flat in zip(came, coming):
            set_tangent(push, bundle, flat)

    reverse = reverse_of(comm)
    _record(tape, comm, name, sent, adjoint, arrays, came, forward=forward)
    return messages


class _Collective(CollectiveAdjoint):
    """Record of a collective: its adjoint."""

    __slots__ = ("adjoint", "came", "forward")
    second_order = "joint"
    batched = True
    propagates_tangents = True  # tangents are in the parcels

    def __init__(
        self,
        token: Any,
        adjoint: Callable[[Sweep, Any], Steps],
        forward: Callable[[Push, Any], None],
        came: Sequence[Bundle],
    ) -> None:
        self.token = token
        self.came = came
        self.adjoint = adjoint
        self.forward = forward

    def tangent(self, push: Push) -> None:
        """In a walk: the tangents go as the objects did."""
        if self.token.happening:
            self.forward(push, self.token.reverse.comm)

    def __call__(self, sweep: Sweep) -> None:
        if self.token.happens(sweep):
            if sweep.tape.returned is not None:
                look_for_replicated(sweep, self.token, {r.storage for bundle in self.came for r in bundle.regions})
            steps = in_step([self.adjoint(lane, self.token.reverse.comm) for lane in lanes_of(sweep)])
            run_reversed(sweep, self.token, steps, self.waiting)

    def waiting(self) -> str:
        """For the message of a wait that lasts too long."""
        return f"the adjoint of {self.token.describe()}"


def _record(
    tape: Tape,
    comm: Any,
    name: str,
    sent: Iterable[Bundle],
    adjoint: Callable[[Sweep, Any], Steps],
    arrays: Sequence[TrackedArray],
    came: Sequence[Bundle],
    root: int | None = None,
    forward: Callable[[Push, Any], None] | None = None,
) -> None:
    """Put a collective on the tape.  Active arrays always arrive in tracked memory.

    ``came`` are those in what each rank sent; ``forward`` is how tangents go in a walk, where it is not as objects do.
    """
    active = any(bundle.count for bundle in sent)
    if tape.forward is not None:  # their tangents were in the parcels
        log_for(tape, name, comm, active)
        return
    token = log_collective(tape, comm, name, active, True, root=root)
    sent = list(sent)

    def as_objects(push: Push, comm: Any) -> None:
        going: Any = [tangent_in(push, bundle) for bundle in sent]
        if name in ("bcast", "gather", "allgather"):
            going = going[0]
        elif name == "scatter" and not is_root(comm, root):  # type: ignore[arg-type]
            going = None
        arguments = () if root is None else (root,)
        found = getattr(comm, name)(going, *arguments)
        flats = [found] if name in ("bcast", "scatter") else found or ()
        for bundle, flat in zip(came, flats):
            set_tangent(push, bundle, flat)

    tape.append(_Collective(token, adjoint, forward or as_objects, came), (), arrays)


def _unpacked_each(tape: Tape, messages: Iterable[Any]) -> tuple[list[Bundle], list[TrackedArray]]:
    """The active arrays in each of several objects that have arrived, and all of them together."""
    bundles, everything = [], []
    for message in messages:
        bundle, arrays = unpack(tape, message)
        bundles.append(bundle)
        everything += arrays
    return bundles, everything


def _in_bytes(sweep: Sweep, came: Sequence[Bundle]) -> list[np.ndarray]:
    """Adjoints of what came from each rank."""
    return [bundle.take(sweep).view(np.uint8) for bundle in came]


def _joined(parts: Sequence[np.ndarray]) -> Any:
    """A vector message; None if there are no parts."""
    return [np.concatenate(parts), [part.size for part in parts]] if parts else None


def _add_bytes(sweep: Sweep, sent: Sequence[Bundle], total: np.ndarray) -> None:
    start = 0
    for bundle in sent:
        end = start + bundle.nbytes
        bundle.add(sweep, total[start:end].copy().view(bundle.dtype))
        start = end


def tape_or_passive(comm: Any, obj: Any = None, sends: bool = True) -> Tape | None:
    """The tape that records a collective, to which this rank gives an object; in `ampi.passive` it is counted only."""
    tape = recording()
    if tape is not None and sends:
        mind_objects(obj)
    if tape is None and open_tapes:
        count_passive(comm)
        refuse_others_in(obj)
    return tape


OF_ROOTS_GROUP = (mpi.ROOT, mpi.PROC_NULL)
"""What the members of the root's group say for the root of an operation on an intercommunicator."""


def is_root(comm: Any, root: int) -> bool:
    """Whether this rank is the root that a call names."""
    return root == mpi.ROOT if comm.Is_inter() else comm.Get_rank() == root


def broadcast(tape: Tape, comm: Any, obj: Any, root: int, primal: Callable[[Any, int], Any]) -> Any:
    """Broadcast an object by ``primal(payload, root)``, and record it."""
    sends = is_root(comm, root)
    payload, sent = pack(tape, obj) if sends else (None, EMPTY)
    message = primal(payload, root)
    came, arrays = unpack(tape, message)

    reverse = reverse_of(comm)

    def adjoint_between_groups(sweep: Sweep, comm: Any) -> Steps:
        if sends:
            total = np.zeros(sent.count, sent.dtype)
            yield [comm.Irecv(total, 0, COLLECTIVE_TAG)]
            sent.add(sweep, total)
        elif root not in OF_ROOTS_GROUP:
            mine = came.take(sweep)
            total = np.zeros_like(mine)
            yield [reverse.local.Ireduce(mine, total, mpi.SUM, 0)]  # type: ignore[union-attr]
            if reverse.rank == 0:  # type: ignore[union-attr]
                yield [comm.Isend(total, root, COLLECTIVE_TAG)]

    def adjoint(sweep: Sweep, comm: Any) -> Steps:
        total = came.take(sweep)
        yield [comm.Ireduce(mpi.IN_PLACE if sends else total, total if sends else None, mpi.SUM, root)]
        if sends:
            sent.add(sweep, total)

    _record(tape, comm, "bcast", [sent], adjoint_between_groups if comm.Is_inter() else adjoint, arrays, [came], root)
    return message

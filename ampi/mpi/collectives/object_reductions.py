"""Lowercase reductions: Python objects are combined with the Python operation, in mpi4py's order and messages.

The operation computes with active arrays like any other Python code; the messages are differentiated one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...tape import BaseAdjoint, Push, Sweep, Tape
from ...tape.recording import opened, recording
from ..log.log import log_collective
from ..log.reverse import reverse_of, set_reverse
from ..memory.bundles import Bundle, pack, unpack
from ..memory.tangents import set_tangent, tangent_in
from ..messages.object_messages import posted, received, send_object
from .movements import OF_ROOTS_GROUP
from .object_collectives import broadcast, tape_or_passive

_Comm, _Intracomm = mpi.Comm, mpi.Intracomm  # mpi4py's own: its names may be rebound


class ObjectReductions:
    """Methods of all communicators that combine Python objects."""

    __slots__ = ()

    _primal: Any = _Comm
    """The class whose methods move the pickled objects."""

    def reduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM, root: int = 0) -> Any:
        """Combine objects of all ranks on one, in the order of the ranks."""
        if _tape_for(self, "reduce", sendobj) is None:
            return self._primal.reduce(self, sendobj, op, root)
        if self.Is_inter():
            return _reduce_between(self, sendobj, op, root)
        if not 0 <= root < self.Get_size():
            return self._primal.reduce(self, sendobj, op, root)
        messages = _Messages(self, "reduce")
        result = _on_rank_0(messages, sendobj, op)
        if root != 0:
            if messages.rank == 0:
                messages.send(result, root)
            elif messages.rank == root:
                result = messages.receive(0)
        return result if messages.rank == root else None

    def allreduce(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
        """Combine objects of all ranks on all, in the order of the ranks."""
        tape = _tape_for(self, "allreduce", sendobj)
        if tape is None:
            return self._primal.allreduce(self, sendobj, op)
        if self.Is_inter():
            return _allreduce_between(tape, self, sendobj, op)
        messages = _Messages(self, "allreduce")
        return broadcast(tape, self, _on_rank_0(messages, sendobj, op), 0, partial(_Comm.bcast, messages.comm))


class IntracommObjects:
    """Methods of intracommunicators that combine Python objects."""

    __slots__ = ()

    def scan(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
        """Combine objects of the ranks up to this one."""
        if _tape_for(self, "scan", sendobj) is None:
            return _Intracomm.scan(self, sendobj, op)
        messages = _Messages(self, "scan")
        result = partial = _copied(sendobj)
        for partner in messages.partners():
            incoming = messages.exchange(partial, partner)
            if partner < messages.rank:
                partial = op(incoming, partial)
                result = op(incoming, result)
            else:
                partial = op(partial, incoming)
        return result

    def exscan(self, sendobj: Any, op: Callable[[Any, Any], Any] = mpi.SUM) -> Any:
        """Combine objects of the ranks before this one; None on rank 0."""
        if _tape_for(self, "exscan", sendobj) is None:
            return _Intracomm.exscan(self, sendobj, op)
        messages = _Messages(self, "exscan")
        partial = _copied(sendobj)
        result: tuple[Any] | None = None
        for partner in messages.partners():
            incoming = messages.exchange(partial, partner)
            if partner < messages.rank:
                partial = op(incoming, partial)
                result = (incoming if result is None else op(incoming, result[0]),)
            else:
                partial = op(partial, incoming)
        return None if result is None else result[0]


def _on_rank_0(messages: _Messages, sendobj: Any, op: Callable[[Any, Any], Any]) -> Any:
    """Combine objects along a binomial tree, in the order of the ranks; rank 0 has the result."""
    rank, size = messages.rank, messages.size
    result = _copied(sendobj)
    distance = 1
    while distance < size:
        if rank & distance:
            messages.send(result, rank - distance)
        elif rank + distance < size:
            result = op(result, messages.receive(rank + distance))
        distance *= 2
    return result


def _copied(obj: Any) -> Any:
    """Return the object that would arrive if this one were sent."""
    tape = opened()
    payload, sent = pack(tape, obj)
    copy = mpi.pickle.loads(mpi.pickle.dumps(payload))
    incoming, arrays = unpack(tape, copy)
    if sent.count and tape.forward is None:
        tape.append(_Copied(sent, incoming), (), arrays)
    return copy


class _Copied(BaseAdjoint):
    """Adjoint of the copy of an object."""

    __slots__ = ("incoming", "sent")
    second_order = "linear"
    propagates_tangents = True

    def __init__(self, sent: Bundle, incoming: Bundle) -> None:
        self.sent = sent
        self.incoming = incoming

    def __call__(self, sweep: Sweep) -> None:
        self.sent.add(sweep, self.incoming.take(sweep))

    def tangent(self, push: Push) -> None:
        """Copy the tangents."""
        set_tangent(push, self.incoming, tangent_in(push, self.sent))


class _Group(mpi.Intracomm):
    """One group of an intercommunicator: mpi4py's communicator of its ranks, with a reverse side."""


def _messages_between(comm: mpi.Comm, name: str) -> tuple[_Messages, _Messages]:
    """Return the messages of a reduction on an intercommunicator: to the other group, and inside this one."""
    between, tag, local, _ = mpi._commctx_inter(comm)
    group = _Group(local)
    set_reverse(group, reverse_of(comm).group)  # type: ignore[union-attr]
    return _Messages(comm, name, between, tag), _Messages(group, name, local, tag)


def _reduce_between(comm: mpi.Comm, sendobj: Any, op: Callable[[Any, Any], Any], root: int) -> Any:
    """Reduce between two groups: rank 0 of the group that contributes sends the result to the root."""
    if not (root in OF_ROOTS_GROUP or 0 <= root < comm.Get_remote_size()):
        return _Comm.reduce(comm, sendobj, op, root)
    between, local = _messages_between(comm, "reduce")
    if root == mpi.ROOT:
        return between.receive(0)
    if root != mpi.PROC_NULL:
        result = _on_rank_0(local, sendobj, op)
        if local.rank == 0:
            between.send(result, root)
    return None


def _allreduce_between(tape: Tape, comm: mpi.Comm, sendobj: Any, op: Callable[[Any, Any], Any]) -> Any:
    """Reduce between two groups: both ranks 0 exchange the results of their groups, and broadcast them."""
    between, local = _messages_between(comm, "allreduce")
    result = _on_rank_0(local, sendobj, op)
    if local.rank == 0:
        result = between.exchange(result, 0)
    return broadcast(tape, local.logged, result, 0, partial(_Comm.bcast, local.comm))


class _Messages:
    """The messages inside a reduction.

    They are sent as mpi4py sends its own, on the communicator that it uses for them, so that ranks without a tape can
    take part; in the log they are messages of the user's communicator, with a tag that users cannot choose.
    """

    __slots__ = ("comm", "logged", "name", "rank", "size", "tag")

    comm: mpi.Comm
    tag: int

    def __init__(self, comm: mpi.Comm, name: str, transport: Any = None, tag: int = 0) -> None:
        self.comm, self.tag = mpi._commctx_intra(comm) if transport is None else (transport, tag)
        self.logged = comm
        self.name = name
        self.rank = comm.Get_rank()
        self.size = comm.Get_size()

    def partners(self) -> list[int]:
        """Return the ranks with which a scan exchanges its partial results."""
        distances = [1 << k for k in range(self.size.bit_length())]
        return [self.rank ^ d for d in distances if d < self.size and self.rank ^ d < self.size]

    def send(self, obj: Any, dest: int) -> None:
        """Send an object."""
        send_object(self.name, self._send, self.logged, obj, dest, _INNER_TAG)

    def receive(self, source: int) -> Any:
        """Receive an object."""
        return self._receive(source, ())

    def exchange(self, obj: Any, partner: int) -> Any:
        """Send an object and receive one."""
        requests: list[mpi.Request] = []
        send_object(
            self.name, lambda *message: requests.extend(self._start(*message)), self.logged, obj, partner, _INNER_TAG
        )
        return self._receive(partner, requests)

    def _start(self, comm: mpi.Comm, payload: Any, dest: int, tag: int) -> list[mpi.Request]:
        data = mpi.pickle.dumps(payload)
        length = np.array([len(data)], np.int64)
        return [
            self.comm.Isend([length, 1, mpi.COUNT], dest, self.tag),
            self.comm.Isend([data, mpi.BYTE], dest, self.tag),
        ]

    def _send(self, *message: Any) -> None:
        for request in self._start(*message):
            request.Wait()

    def _receive(self, source: int, going: Iterable[mpi.Request]) -> Any:
        tape = opened()
        receive = posted(self.name, self.logged, source, _INNER_TAG)
        length = np.empty(1, np.int64)
        self.comm.Recv([length, 1, mpi.COUNT], source, self.tag)
        data = bytearray(int(length[0]))
        self.comm.Recv([data, mpi.BYTE], source, self.tag)
        for request in going:
            request.Wait()
        message = received(tape, receive, mpi.pickle.loads(data))
        receive.resolve(None)
        if receive.active and receive.buffer.count:
            tape.append(receive)
        return message


_INNER_TAG = -1000


def _tape_for(comm: mpi.Comm, name: str, obj: Any) -> Tape | None:
    """Return the tape that records a reduction of objects; None if mpi4py runs it alone.

    Its messages are logged one by one; as for other collectives, the ranks check that all of them take part.
    """
    tape = tape_or_passive(comm, obj)
    if tape is None:
        return None
    if comm.Is_inter() and reverse_of(comm) is None:
        _refuse(f"{name} on an intercommunicator that ampi did not see being made", obj)
        return None
    if tape.forward is None:
        log_collective(tape, comm, name, False, False)
    return tape


def _refuse(name: str, obj: Any) -> None:
    tape = recording()
    if tape is not None and pack(tape, obj)[1].count:
        raise ActivityError(
            f"{name} has no derivative rule, and the object contains active arrays; send ampi.value(...) or use Dup"
        )

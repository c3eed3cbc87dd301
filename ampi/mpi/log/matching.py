"""Message matching: the message of each receive, and the tag with which its adjoint is sent back.

Messages are matched as MPI matched them: two messages of one sender with one tag on one communicator are received in
the order in which they were sent, by the receives in the order in which those were posted (MPI 4.1, section 3.5).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from mpi4py import MPI as mpi

from ..memory.absolute_buffers import Composite
from ..memory.buffers import Buffer
from ..memory.message_memory import AdjointMemory
from ..memory.packed_adjoints import PackedAdjoints
from .early import Early
from .messages import ALL, Received, Sent
from .reverse import FIRST_TAG, Reverse

_ACTIVE = 1
_DROPPED = 2  # received inside ampi.passive: the derivative is dropped on purpose
_PACKED = 4  # a message of bytes: its adjoint has a number for each byte
_UNCERTAIN = 8  # bytes that may or may not hold active values
_EARLY = 16  # sent before the sender's tape had watched anything


def sent_row(sent: Sent, is_early: bool) -> tuple[int, int, int]:
    """Return what is sent to the receiver about a message: its tag, its length, and the form of its adjoint."""
    if not sent.active:
        return sent.route.tag, sent.nbytes, 0
    uncertain = _UNCERTAIN if sent.buffer.packed and sent.buffer.uncertain() else 0
    early = _EARLY if is_early else 0
    return sent.route.tag, sent.nbytes, _ACTIVE | uncertain | early | _form(sent.buffer)


def received_row(got: Received) -> tuple[int, int, int]:
    """Return what is sent to the sender about a receive: its tag, its number of partitions, the form of its adjoint."""
    if not got.active:
        return got.route.tag, 0, _DROPPED if got.dropped else 0
    return got.route.tag, getattr(got, "parts", 0), _ACTIVE | _form(got.buffer)


def _form(buffer: AdjointMemory) -> int:
    """Return the form of a message's adjoint: flag of a message of bytes, and size of a real number."""
    return (_PACKED if buffer.packed else 0) | _real(buffer.dtype) << 8


def _same_form(message: Sent | Received, theirs: int) -> bool:
    """Treat a message of elements as bytes if the partner does; return False if the partner has other elements."""
    if theirs & _PACKED and not message.buffer.packed:
        if not isinstance(message.buffer, Buffer):
            return False
        message.buffer = PackedAdjoints(message.buffer)
    return bool(message.buffer.packed) or theirs >> 8 == _real(message.buffer.dtype)


def _real(dtype: np.dtype) -> int:
    """Return the size of a real number of a dtype: a complex number may be received as two real ones."""
    return dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize


def _loses(receive: Received) -> bool:
    """Return whether some received values are in memory that is not tracked."""
    if not receive.active:
        return True
    return isinstance(receive.buffer, Composite) and receive.buffer.within(receive.nbytes).loses


def pair(sent: list[int], posted: list[int]) -> list[int]:
    """Match the messages of one sender to one receiver with its receives.

    Messages in the order of sending and receives in the order of posting are paired as MPI prescribes, whatever their
    timing: the first receive gets the first message that it accepts, and so on.

    Parameters
    ----------
    sent, posted : list of int
        Tags; a posted one may be ANY_TAG.

    Returns
    -------
    list of int
        For each receive the index of its message, or -1.
    """
    waiting: dict[int, list[int]] = {}
    for k in range(len(sent) - 1, -1, -1):
        waiting.setdefault(sent[k], []).append(k)
    gone = [False] * len(sent)
    first = 0
    pairs = []
    for tag in posted:
        queue = waiting.get(tag)
        if tag == mpi.ANY_TAG:
            while first < len(sent) and gone[first]:
                first += 1
            k = first if first < len(sent) else -1
            if k >= 0:
                waiting[sent[k]].pop()  # the first one left of its tag
        else:
            k = queue.pop() if queue else -1
        if k >= 0:
            gone[k] = True
        pairs.append(k)
    return pairs


def are_alike(sent: Sequence[Sequence[int]], posted: Sequence[Sequence[int]]) -> bool:
    """Return whether each receive certainly gets the message at its own position, and nothing is wrong with any.

    So it is in most steps of most programs; otherwise the rows (of `sent_row` and `received_row`) may still match.
    """
    if len(sent) != len(posted):
        return False
    for (tag, _, flags), (other, parts, others) in zip(sent, posted):
        if tag != other != mpi.ANY_TAG or parts or (flags and flags != others):
            return False
    return True


def match_sent(
    reverse: Reverse,
    partner: int,
    sent: list[Sent],
    mine: Sequence[Sequence[int]],
    theirs: list[list[int]],
    first: int,
    problems: list[str],
) -> None:
    """Determine which of the messages sent to a partner have an adjoint that comes back.

    ``first`` is the index of the first one, from which the tags of adjoints are counted. ``mine``: their rows.
    """
    if are_alike(mine, theirs):
        for position, message in enumerate(sent):
            message.back = FIRST_TAG + (first + position) % reverse.tags if message.active else None
        return
    here = f"rank {reverse.rank}"
    pairs = pair([message.route.tag for message in sent], [tag for tag, _, _ in theirs])
    flags_of = {k: flags for k, (_, _, flags) in zip(pairs, theirs) if k >= 0}
    parts_of = {k: parts for k, (_, parts, _) in zip(pairs, theirs) if k >= 0}
    for position, message in enumerate(sent):
        message.back = None
        if not message.active:
            continue
        flags = flags_of.get(position)
        if flags is None and message.buffer.packed and message.buffer.uncertain():
            continue
        if flags is None:
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} did not receive it while its "
                "tape recorded"
            )
        elif flags & _ACTIVE:
            if not _same_form(message, flags):
                problems.append(f"{here}: {message.describe()} of {message.buffer.dtype} is received as another dtype")
            message.back = FIRST_TAG + (first + position) % reverse.tags
            if parts_of[position]:
                message.parts_there = parts_of[position]  # type: ignore[attr-defined]
        elif not flags & _DROPPED and not (message.buffer.packed and message.buffer.uncertain()):
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} receives it into memory that "
                "is not tracked; make its receive buffer with ampi.numpy, or send ampi.value(...)"
            )
    active = {message.route.tag for message in sent if message.active}
    extra = [tag for k, (tag, _, _) in zip(pairs, theirs) if k < 0 and (tag in active or (active and tag < 0))]
    if extra:
        problems.append(
            f"{here}: rank {partner} received {len(extra)} messages more with tag {extra[0]} than this rank sent on "
            f"{reverse.name} while its tape recorded; which ones carry derivatives is not known"
        )
    wild = any(tag < 0 for tag, _, _ in theirs)
    more = [m for k, m in enumerate(sent) if k not in flags_of and not m.active and (wild or m.route.tag in active)]
    if active and more:
        problems.append(
            f"{here}: rank {partner} received {_fewer(len(more), more[0].route.tag, reverse)}; {more[-1].describe()} "
            "was the last one sent"
        )


def _fewer(count: int, tag: int, reverse: Reverse) -> str:
    return (
        f"{count} messages fewer with tag {tag} on {reverse.name} while its tape recorded than were sent while the "
        "sender's did, or received bytes as an object; which ones carry derivatives is not known: use another tag for "
        "messages that only one of the tapes records"
    )


def match_received(
    reverse: Reverse,
    partner: int,
    got: list[Received],
    mine: Sequence[Sequence[int]],
    theirs: list[list[int]],
    first: int,
    early: Early,
    problems: list[str],
) -> None:
    """Determine which of the messages received from a partner have an adjoint to be sent back, and its length.

    ``mine``: the rows of the receives.
    """
    if are_alike(theirs, mine) and not any(isinstance(receive.buffer, Composite) for receive in got):
        for position, (receive, (_, nbytes, flags)) in enumerate(zip(got, theirs)):
            receive.nbytes = nbytes
            receive.back = FIRST_TAG + (first + position) % reverse.tags if flags else None
            if flags:
                early.note_received(receive, False)
        return
    here = f"rank {reverse.rank}"
    pairs = pair([tag for tag, _, _ in theirs], [receive.route.tag for receive in got])
    active = {tag for tag, _, flags in theirs if flags & _ACTIVE}
    missing = dict(enumerate(theirs))
    for position, receive in zip(pairs, got):
        receive.back, receive.nbytes = None, ALL
        if position < 0:
            tag = receive.route.tag
            if tag in active or (active and tag < 0):
                problems.append(f"{here}: {receive.describe()} was not sent while rank {partner}'s tape recorded")
            continue
        tag, nbytes, flags = missing.pop(position)
        receive.nbytes = nbytes
        if not flags & _ACTIVE:
            continue
        if receive.active:
            if not _same_form(receive, flags):
                problems.append(f"{here}: {receive.describe()} as {receive.buffer.dtype} was sent as another dtype")
            receive.back = FIRST_TAG + (first + position) % reverse.tags
            early.note_received(receive, bool(flags & _EARLY))
        if not receive.dropped and not flags & _UNCERTAIN and _loses(receive):
            problems.append(
                f"{here}: {receive.describe()} brings a derivative, but into memory that is not tracked; make the "
                "receive buffer with ampi.numpy, or receive it inside `with ampi.passive():`"
            )
    for tag, _, flags in missing.values():
        if flags & _ACTIVE and not flags & _UNCERTAIN:
            problems.append(
                f"{here}: rank {partner} sent a message that carries a derivative with tag {tag} on {reverse.name}, "
                "which this rank did not receive while its tape recorded"
            )
    wild = any(receive.route.tag < 0 for receive in got)
    more = [tag for tag, _, flags in missing.values() if not flags & _ACTIVE and (wild or tag in active)]
    if active and more:
        problems.append(f"{here} received {_fewer(len(more), more[0], reverse)}; rank {partner} sent them")

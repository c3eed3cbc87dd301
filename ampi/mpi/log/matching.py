"""Message matching: the message of each receive, and the tag with which its adjoint is sent back.

Messages are matched as MPI matched them: two messages of one sender with one tag on one communicator are received in
the order in which they were sent, by the receives in the order in which those were posted (MPI 4.1, section 3.5).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

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


Columns = tuple[Sequence[int], Sequence[int], Sequence[int]]
"""What two ranks exchange about messages in one direction: the tag of each, its length (of a receive: its number of
partitions, 0 for an ordinary one), and the form of its adjoint."""


def sent_columns(sent: Sequence[Sent], early: Early) -> Columns:
    """Return what is sent to the receiver about messages."""
    forms = _forms(sent, _sent_form)
    if early.first:
        forms = [form | _EARLY if form and early.is_early(message) else form for form, message in zip(forms, sent)]
    return [message.route.tag for message in sent], [message.nbytes for message in sent], forms


def received_columns(got: Sequence[Received]) -> Columns:
    """Return what is sent to the sender about receives."""
    forms = _forms(got, _received_form)
    if 0 in forms:
        forms = [form or (_DROPPED if receive.dropped else 0) for form, receive in zip(forms, got)]
    parts = [0 if type(receive) is Received or not receive.active else getattr(receive, "parts", 0) for receive in got]
    return [receive.route.tag for receive in got], parts, forms


def _forms(messages: Sequence[Sent] | Sequence[Received], form_of: Callable[[AdjointMemory], int]) -> list[int]:
    """Return the forms of the adjoints of messages, 0 for those without; often many in a row are of one buffer."""
    forms = []
    latest, form = None, 0
    for message in messages:
        if message.buffer is not latest:
            latest = message.buffer
            form = 0 if latest is None else form_of(latest)
        forms.append(form)
    return forms


def _sent_form(buffer: AdjointMemory) -> int:
    return _ACTIVE | _form(buffer) | (_UNCERTAIN if buffer.packed and buffer.uncertain() else 0)  # type: ignore[attr-defined]


def _received_form(buffer: AdjointMemory) -> int:
    return _ACTIVE | _form(buffer)


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


def pair(sent: Sequence[int], posted: Sequence[int]) -> list[int]:
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


def are_alike(sent: Columns, posted: Columns) -> bool:
    """Return whether each receive certainly gets the message at its own position, and nothing is wrong with any.

    So it is in most steps of most programs; otherwise the messages may still match.
    """
    (tags, _, forms), (others, parts, wanted) = sent, posted
    if len(tags) != len(others) or any(parts):
        return False
    if tags == others and forms == wanted:
        return True
    for tag, form, other, want in zip(tags, forms, others, wanted):
        if tag != other != mpi.ANY_TAG or (form and form != want):
            return False
    return True


def _tags_of_adjoints(reverse: Reverse, first: int, count: int) -> Sequence[int]:
    """Return the tags of the adjoints of messages, the first of which has the index ``first``."""
    first %= reverse.tags
    if first + count <= reverse.tags:
        return range(FIRST_TAG + first, FIRST_TAG + first + count)
    return [FIRST_TAG + (first + position) % reverse.tags for position in range(count)]


def match_sent(
    reverse: Reverse,
    partner: int,
    sent: list[Sent],
    mine: Columns,
    theirs: Columns,
    first: int,
    problems: list[str],
) -> None:
    """Determine which of the messages sent to a partner have an adjoint that comes back.

    ``first`` is the index of the first one, from which the tags of adjoints are counted. ``mine``: their columns.
    """
    backs = _tags_of_adjoints(reverse, first, len(sent))
    if are_alike(mine, theirs):
        for message, form, back in zip(sent, mine[2], backs):
            message.back = back if form else None
        return
    here = f"rank {reverse.rank}"
    tags, parts, forms = theirs
    pairs = pair(mine[0], tags)
    flags_of = {k: flags for k, flags in zip(pairs, forms) if k >= 0}
    parts_of = {k: count for k, count in zip(pairs, parts) if k >= 0}
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
            message.back = backs[position]
            if parts_of[position]:
                message.parts_there = parts_of[position]  # type: ignore[attr-defined]
        elif not flags & _DROPPED and not (message.buffer.packed and message.buffer.uncertain()):
            problems.append(
                f"{here}: {message.describe()} carries a derivative, but rank {partner} receives it into memory that "
                "is not tracked; make its receive buffer with ampi.numpy, or send ampi.value(...)"
            )
    active = {message.route.tag for message in sent if message.active}
    extra = [tag for k, tag in zip(pairs, tags) if k < 0 and (tag in active or (active and tag < 0))]
    if extra:
        problems.append(
            f"{here}: rank {partner} received {len(extra)} messages more with tag {extra[0]} than this rank sent on "
            f"{reverse.name} while its tape recorded; which ones carry derivatives is not known"
        )
    wild = any(tag < 0 for tag in tags)
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
    mine: Columns,
    theirs: Columns,
    first: int,
    early: Early,
    problems: list[str],
) -> None:
    """Determine which of the messages received from a partner have an adjoint to be sent back, and its length.

    ``mine``: the columns of the receives.
    """
    tags, lengths, forms = theirs
    backs = _tags_of_adjoints(reverse, first, len(tags))
    if are_alike(theirs, mine) and not any(isinstance(receive.buffer, Composite) for receive in got):
        for receive, nbytes, form, back in zip(got, lengths, forms, backs):
            receive.nbytes = nbytes
            receive.back = back if form else None
        if early.first:
            for receive in got:
                if receive.back is not None:
                    early.note_received(receive, False)
        return
    here = f"rank {reverse.rank}"
    pairs = pair(tags, mine[0])
    active = {tag for tag, form in zip(tags, forms) if form & _ACTIVE}
    missing = dict(enumerate(zip(tags, lengths, forms)))
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
            receive.back = backs[position]
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

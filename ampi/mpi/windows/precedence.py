"""Precedence of accesses in a program with RMA: the order that the program imposes, without what is due to chance.

Tickets give the order in which accesses took place, and marks those that a target had seen at a position of its tape.
Some of that is due to chance: a rank that has left a reduction may access the memory of a rank that has not reached it
yet.  The program does not order the two, since MPI may let every collective wait for all ranks of its communicator.
The sweep does: the adjoint of a collective waits for all of them.

So an access after a collective on its rank follows all accesses before this collective on any rank.  At the start of a
sweep, tickets and marks that contradict this are reordered; the others keep their order.  If two accesses under locks
would have to be exchanged whose order matters, the sweep is refused.  Likewise an epoch of Start follows that of Post,
and Wait follows Complete.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

Counts = dict[Any, int]  # by kind: collectives of a communicator, or epochs between two ranks


class Moment(NamedTuple):
    """Moment of a ticket: the collectives of each kind that had started and ended on its rank."""

    started: Counts
    ended: Counts


READ, ADD, CHANGE = range(3)
"""Effects of an operation on the target's memory; two that only read, or only add, commute."""
Touched = tuple[int, int, int]


class Drawn(NamedTuple):
    """A ticket.

    ``takes_part`` are the kinds of collectives in which its rank takes part, ``ended`` the collectives that had ended
    before it, also known by way of other ranks, and ``touched`` the range of each operation and its effect.
    """

    ticket: int
    moment: Moment
    takes_part: frozenset[Any]
    ended: Counts
    touched: tuple[Touched, ...] = ()

    def precedes(self, what_ended: Counts) -> bool:
        """Return whether the access came before the start of a collective that had ended elsewhere."""
        started, takes_part = self.moment.started, self.takes_part
        return any(started.get(kind, 0) < number and kind in takes_part for kind, number in what_ended.items())

    def by_its_rank(self) -> Drawn:
        """Return the ticket without the ends of collectives that its rank had not reached, but had seen by chance."""
        if not self.precedes(self.ended):
            return self
        started, takes_part = self.moment.started, self.takes_part
        ended = {k: min(n, started.get(k, 0)) if k in takes_part else n for k, n in self.ended.items()}
        return self._replace(ended=ended)

    def minds(self, other: Drawn) -> bool:
        """Return whether the order of the two accesses matters."""
        return any(
            begin < end_of_other and begin_of_other < end and (does, does_other) not in ((READ, READ), (ADD, ADD))
            for begin, end, does in self.touched
            for begin_of_other, end_of_other, does_other in other.touched
        )


def in_order(tickets: Iterable[Drawn]) -> list[Drawn]:
    """Sort the tickets for one rank's memory: as they were drawn, except where a collective orders two otherwise."""
    order: list[Drawn] = []
    most: Counts = {}  # the highest counts so far
    for drawn in sorted(tickets, key=lambda drawn: drawn.ticket):
        place = len(order)
        if drawn.precedes(most):
            while place and drawn.precedes(order[place - 1].moment.ended):
                place -= 1
        order.insert(place, drawn)
        for kind, number in drawn.moment.ended.items():
            if most.get(kind, 0) < number:
                most[kind] = number
    return order


def is_contradicted(order: list[Drawn]) -> bool:
    """Return whether accesses whose order matters took place in a different order."""
    most = 0
    for k, drawn in enumerate(order):
        if drawn.ticket < most and any(other.ticket > drawn.ticket and other.minds(drawn) for other in order[:k]):
            return True
        most = max(most, drawn.ticket)
    return False


def higher(counts: Counts, others: Counts) -> Counts:
    """Return the higher counts of both; the first object itself, if it has all of them."""
    new = {kind: number for kind, number in others.items() if counts.get(kind, 0) < number}
    return {**counts, **new} if new else counts


def handed_on(order: list[Drawn]) -> list[Counts]:
    """Return, for each ticket, the collectives that had ended before it or any earlier one in the order."""
    return list(itertools.accumulate((drawn.ended for drawn in order), higher))


def counter(order: list[Drawn], follows: Callable[[Counts], int]) -> Callable[[int, int], int]:
    """Return a function that counts the tickets before a position of the target's tape.

    Parameters
    ----------
    follows : callable
        ``follows(ended)`` returns the last record that began before these collectives ended; -1 if there is none.

    Returns
    -------
    callable
        ``count(ticket, record)`` returns the index of the last one in the order that was drawn up to a ticket and does
        not follow that record or a later one.  It must be called with increasing arguments.
    """
    upcoming = sorted(((d.ticket, follows(d.ended), number) for number, d in enumerate(order, 1)), reverse=True)
    waiting: list[tuple[int, int]] = []
    most = 0

    def count(ticket: int, record: int) -> int:
        nonlocal most
        while upcoming and upcoming[-1][0] <= ticket:
            heapq.heappush(waiting, upcoming.pop()[1:])
        while waiting and waiting[0][0] < record:
            most = max(most, heapq.heappop(waiting)[1])
        return most

    return count

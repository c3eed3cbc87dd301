"""Traces of all ranks, gathered on rank 0, with aligned clocks."""

from __future__ import annotations

import os
from collections import Counter
from time import perf_counter_ns as now
from time import sleep
from typing import Any

from mpi4py import MPI as mpi

from .events import EVENT, MESSAGE, rows_of
from .tasks import EDGE, TASK
from .tracer import Tracer

ROUNDS = 8
"""Number of messages to compare two clocks; the fastest one counts."""
TURN = 1e-3
"""Seconds between two checks whether it is this rank's turn."""
POLLING = 2e-3
"""Seconds between two checks whether rank 0 has written the files."""
MOST_IN_ALL = 2_000_000
"""Maximum number of events that are gathered from all ranks together."""


class Clocks:
    """The clocks of all ranks, compared with that of rank 0 when tracing begins and when it ends.

    The constructor and `aligned` are collective.  Clocks are assumed to run evenly between the two.
    """

    def __init__(self) -> None:
        self.comm = mpi.Intracomm(mpi.COMM_WORLD).Dup()
        self.is_near = self.comm.bcast(mpi.Get_processor_name()) == mpi.Get_processor_name()
        self.first = self.compare()

    def compare(self) -> tuple[int, int]:
        """Return the time, and the offset of rank 0's clock from this one.

        Ranks are compared one after another.  The others wait without using a core, since messages between ranks that
        wait for a core take long.
        """
        found = self._compared()
        wait_for_all(self.comm)
        return found

    def _compared(self) -> tuple[int, int]:
        comm = self.comm
        rank, size = comm.Get_rank(), comm.Get_size()
        if rank:
            while not comm.Iprobe(0, 3):
                sleep(TURN)
            comm.recv(None, 0, 3)
            best, ahead = 0, 0
            for k in range(ROUNDS):
                asked = now()
                there = _exchange(comm, 0, None)
                answered = now()
                if not k or answered - asked < best:
                    best, ahead = answered - asked, there - (asked + answered) // 2
            if self.is_near and abs(ahead) <= best:  # processes on one machine share a clock
                ahead = 0
            return now(), ahead
        begin = [comm.isend(None, 1, 3)] if size > 1 else []
        for other in range(1, size):
            if other + 1 < size:
                begin.append(comm.isend(None, other + 1, 3))  # arrives in time
            for _ in range(ROUNDS):
                comm.recv(None, other, 1)
                comm.send(now(), other, 2)
        mpi.Request.waitall(begin)
        return now(), 0

    def aligned(self) -> tuple[int, int, float]:
        """Return time, offset, and growth of the offset per nanosecond."""
        time, ahead = self.first
        later, then = self.compare()
        return time, ahead, (then - ahead) / (later - time) if later > time else 0.0


def _exchange(comm: Any, dest: int, message: Any) -> int:
    comm.send(message, dest, 1)
    return comm.recv(None, dest, 2)


def wait_for_all(comm: Any) -> None:
    """Wait until all ranks call this, without taking the cores from the one that writes. Collective."""
    request = comm.Ibarrier()
    while not request.Test():
        sleep(POLLING)


def gather(tracer: Tracer, clocks: Clocks, tape: dict[str, Any]) -> list[dict[str, Any]] | None:
    """Return the traces of all ranks, in nanoseconds since the first event, on rank 0; None elsewhere. Collective.

    Parameters
    ----------
    tape : dict
        Further facts about this rank's tape.
    """
    comm = clocks.comm
    time, ahead, drift = clocks.aligned()
    most = MOST_IN_ALL // comm.Get_size()
    events = rows_of(tracer.events + tracer.passed, EVENT).tolist()
    several = len(events)
    if several > most:
        events = sorted(sorted(events, key=lambda e: e[0] - e[1])[:most])

    def at(t: int) -> int:
        return t + ahead + round((t - time) * drift) if t else 0

    mine = {
        "sites": tracer.sites,
        "events": [(at(begin), at(end), *rest) for begin, end, *rest in events],
        "dropped": tracer.dropped + several - len(events),
        "totals": _without(tracer.totals, tracer.compiled),
        "compiled": tracer.compiled,
        "adjoints": tracer.adjoints,
        "phases": [(at(t), phase) for t, phase in tracer.phases],
        "memory": [(at(t), *rest) for t, *rest in tracer.memory_of_all().tolist()],
        "shadows": [(at(t), size) for t, size in tracer.shadows],
        "checkpoints": [(at(t), size) for t, size in tracer.checkpoints],
        "messages": [
            *(
                (*found[:6], *map(at, found[6:10]), found[10])
                for messages in tracer.messages.values()
                for found in rows_of(messages, MESSAGE).tolist()
            ),
            *((*found[:6], *map(at, found[6:]), 0, 0, -1) for found in tracer.plain.messages(tracer.comms, True)),
        ],
        "unsaved": tracer.plain.left_out,
        "plain": [(*found[:6], *map(at, found[6:])) for found in tracer.plain.messages(tracer.comms, False)],
        "comms": {**tracer.comms, **tracer.named},
        "comm_uses": [(at(begin), identity) for begin, identity in rows_of(tracer.comm_uses, 2).tolist()],
        "lanes": tracer.tasks.lanes,
        "tasks": [(at(b), at(e), *rest) for b, e, *rest in rows_of(tracer.tasks.events, TASK).tolist()],
        "edges": [(at(a), k, at(b), *rest) for a, k, b, *rest in rows_of(tracer.tasks.edges, EDGE).tolist()],
        "unsaved_tasks": tracer.tasks.dropped,
        "compiling": tracer.compiling,
        "tape": tape,
        "host": mpi.Get_processor_name(),
        "process": os.getpid(),
    }
    everything = comm.gather(mine)
    if everything is None:
        return None
    _from_zero(everything)
    _number_alike(everything)
    return everything


def _without(totals: dict[tuple[int, int], list[int]], compiled: dict[tuple[int, int], int]) -> Any:
    """Return counts and nanoseconds by site and phase, without the time of compilation."""
    return {key: [count, max(spent - compiled.get(key, 0), 0)] for key, (count, spent) in totals.items()}


def _from_zero(ranks: list[dict[str, Any]]) -> None:
    """Set the origin of time to the first phase of any rank."""
    first = min(rank["phases"][0][0] for rank in ranks)
    move = lambda t: t - first if t else 0
    for rank in ranks:
        rank["events"] = [(begin - first, end - first, *rest) for begin, end, *rest in rank["events"]]
        rank["tasks"] = [(begin - first, end - first, *rest) for begin, end, *rest in rank["tasks"]]
        rank["edges"] = [(a - first, k, b - first, *rest) for a, k, b, *rest in rank["edges"]]
        for name in ("phases", "memory", "shadows", "checkpoints", "comm_uses"):
            rank[name] = [(t - first, *rest) for t, *rest in rank[name]]
        rank["messages"] = [(*found[:6], *map(move, found[6:10]), found[10]) for found in rank["messages"]]
        rank["plain"] = [(*found[:6], *map(move, found[6:])) for found in rank["plain"]]


def _number_alike(ranks: list[dict[str, Any]]) -> None:
    """Use the same numbers of sites (those of ``ranks[0]["sites"]``) and of communicators on all ranks."""
    sites: dict[tuple[str, str, int], int] = {}
    for rank in ranks:
        number = [sites.setdefault(tuple(site), len(sites)) for site in rank["sites"]]
        rank["events"] = [(b, e, number[site], phase, kind) for b, e, site, phase, kind in rank["events"]]
        rank["tasks"] = [(b, e, lane, number[site], phase) for b, e, lane, site, phase in rank["tasks"]]
        rank["totals"] = {(number[site], phase): value for (site, phase), value in rank["totals"].items()}
        rank["compiled"] = {(number[site], phase): spent for (site, phase), spent in rank["compiled"].items()}
        rank["adjoints"] = {number[site]: count for site, count in rank["adjoints"].items()}
        rank["memory"] = [(t, number[site], *rest) for t, site, *rest in rank["memory"]]
        rank["shadows"] = [(t, {number[site]: size for site, size in sizes.items()}) for t, sizes in rank["shadows"]]
        for name in ("messages", "plain"):
            rank[name] = [(*found[:5], number[found[5]], *found[6:]) for found in rank[name]]
    names: dict[int, str] = {}
    for rank in ranks:
        names.update(rank["comms"])
    places = {identity: "MPI_COMM_SELF" if name == "MPI_COMM_SELF" else identity for identity, name in names.items()}
    numbers = {place: k for k, place in enumerate(dict.fromkeys(places.values()))}  # each rank has a COMM_SELF
    comms = {identity: numbers[place] for identity, place in places.items()}
    texts = _made_unique(list({comms[identity]: name for identity, name in names.items()}.values()))
    for rank in ranks:
        rank["sites"] = list(sites)
        rank["comms"] = texts
        rank["comm_uses"] = [(begin, comms[identity]) for begin, identity in rank["comm_uses"]]
        for name in ("messages", "plain"):
            rank[name] = [(found[0], comms[found[1]], *found[2:]) for found in rank[name]]


def _made_unique(names: list[str]) -> list[str]:
    """Make names of communicators unique by appending numbers."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if names.count(name) == 1 else f"{name} ({seen[name]})")
    return found

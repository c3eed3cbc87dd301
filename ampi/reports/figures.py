"""Numbers that the page shows, computed from the traces of all ranks."""

from __future__ import annotations

import os
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from typing import Any

from mpi4py import MPI as mpi

from .events import COMMUNICATION, PRIMAL, RECORDING, SWEEP, WAITING
from .plain import COLLECTIVE, FETCHED, RECEIVED, SENT, WRITTEN

MOST_SHOWN = 60_000
"""Maximum number of events on the page."""
MOST_ARROWS = 20_000
"""Maximum number of arrows on the page."""
MOST_SAMPLES = 400
"""Maximum number of points in the curves of memory."""
MOST_AREAS = 16
"""Maximum number of lines with a separate area in the curves of memory; the page draws the first of them."""

OTHERS = -1
"""The site that stands for all other lines there."""

LONG, NOTABLE = 0.5, 0.05
"""Seconds, and fraction of the time, above which the time for compiling kernels is reported."""

Ranks = list[dict[str, Any]]


def figures_of(ranks: Ranks, title: str, check: Any = None) -> dict[str, Any]:
    """Compute all numbers of the page, for JSON: times in units of 0.1 µs, sizes in bytes."""
    notes: list[str] = []
    sites = ranks[0]["sites"]
    found = arrows(ranks)
    names = [_named(site) for site in sites]
    dropped = sum(rank["dropped"] for rank in ranks)
    if dropped:
        notes.append(
            f"{dropped} events were counted, but are not shown: {sum(len(r['events']) for r in ranks)} were saved"
        )
    if unsaved := sum(rank["unsaved"] for rank in ranks):
        notes.append(
            f"{unsaved} sends, receives and one-sided operations outside tapes are in no arrow, matrix or number of "
            "bytes, since a rank saves a limited number; the numbers of calls include them"
        )
    if compiling := compilation(ranks):
        notes.append(compiling)
    return {
        "title": title,
        "ranks": len(ranks),
        "hosts": [rank["host"] for rank in ranks],
        "sites": names,
        "end": max(_tenths(t) for rank in ranks for t, _ in rank["phases"]),
        "phases": [[[_tenths(t), phase] for t, phase in rank["phases"]] for rank in ranks],
        "events": _shown(ranks, notes),
        "arrows": _some(found, notes),
        "lanes": [rank["lanes"] for rank in ranks],
        "tasks": _tasks(ranks, notes),
        "edges": _edges(ranks, notes),
        "comms": ranks[0]["comms"],
        "matrix": matrix(ranks),
        "reverse": matrix(ranks, back=True),
        "collectives": collectives(ranks),
        "memory": [_memory(rank) for rank in ranks],
        "table": table(ranks),
        "total": {
            "phases": phase_times(ranks),
            "elsewhere": elsewhere(ranks),
            "parts": parts_elsewhere(ranks),
            "compiled": [sum(rank["compiled"].values()) * 1e-9 for rank in ranks],
        },
        "adjoints": adjoints_of_messages(ranks),
        "tape": [rank["tape"] for rank in ranks],
        "check": check,
        "compiling": compiling,
        "notes": notes,
    }


def compilation(ranks: Ranks) -> str:
    """Return a note on the time for compiling kernels; empty if it is negligible."""
    longest = max(rank["compiling"] for rank in ranks)
    if longest < max(LONG, NOTABLE * 1e-9 * max(rank["phases"][-1][0] for rank in ranks)):
        return ""
    return (
        f"{longest:.1f} s on a rank were spent compiling kernels, or loading them from the cache. This happens once; "
        "it has its own column and is excluded from all other times, but other ranks may have waited for it"
    )


def _tenths(t: int) -> int:
    return (t + 50) // 100


def _named(site: tuple[str, str, int]) -> dict[str, Any]:
    where, name, kind = site
    path, _, line = where.rpartition(":")
    return {"line": f"{os.path.basename(path)}:{line}" if path else "", "path": where, "name": name, "kind": kind}


# ------------------------------------------------------------------------------------------------- timeline


def _shown(ranks: Ranks, notes: list[str]) -> list[list[int]]:
    """Return events by rank, flat: begin, length, site, phase, kind, communicator (-1: none).

    If there are too many, only the longest are returned.
    """
    most = MOST_SHOWN // len(ranks)
    left_out = 0
    shown = []
    for rank in ranks:
        events = with_communicators(rank)
        if len(events) > most:
            left_out += len(events) - most
            events = sorted(events, key=lambda e: e[0] - e[1])[:most]
        flat: list[int] = []
        for begin, end, site, phase, kind, comm in sorted(events):
            flat += (_tenths(begin), _tenths(end) - _tenths(begin), site, phase, kind, comm)
        shown.append(flat)
    if left_out:
        notes.append(
            f"the timeline shows the {MOST_SHOWN} longest events; {left_out} shorter ones are in trace.json.gz and in "
            "the table"
        )
    return shown


def _tasks(ranks: Ranks, notes: list[str]) -> list[list[int]]:
    """Return tasks by rank, flat: begin, length, lane, site, phase."""
    if unsaved := sum(rank["unsaved_tasks"] for rank in ranks):
        notes.append(f"{unsaved} tasks are not shown, since a rank saves a limited number")
    shown = []
    for rank in ranks:
        flat: list[int] = []
        for begin, end, *rest in sorted(_longest(rank["tasks"], MOST_SHOWN // len(ranks))):
            flat += (_tenths(begin), _tenths(end) - _tenths(begin), *rest)
        shown.append(flat)
    return shown


def _longest(events: list[tuple], most: int) -> list[tuple]:
    return events if len(events) <= most else sorted(events, key=lambda event: event[0] - event[1])[:most]


def _edges(ranks: Ranks, notes: list[str]) -> list[list[int]]:
    """Return edges of the graphs of tasks: rank, time and lane of the beginning, time and lane of the end, phase."""
    found = []
    most = MOST_ARROWS // len(ranks)
    for k, rank in enumerate(ranks):
        if len(rank["edges"]) > most:
            notes.append(f"rank {k}: the timeline has the first {most} edges between tasks, of {len(rank['edges'])}")
        found += [[k, _tenths(a), i, _tenths(b), j, phase] for a, i, b, j, phase in rank["edges"][:most]]
    return found


def _some(found: list[list[int]], notes: list[str]) -> list[list[int]]:
    if len(found) > MOST_ARROWS:
        notes.append(
            f"the timeline has arrows for {MOST_ARROWS} messages, the largest ones, of {len(found)}; the matrices "
            "count all of these"
        )
        found = sorted(found, key=lambda arrow: -arrow[4])[:MOST_ARROWS]
    return sorted(found, key=lambda arrow: arrow[2])


def arrows(ranks: Ranks) -> list[list[Any]]:
    """Return messages of which both ends are known, one arrow for each.

    An arrow has source, destination, times of sending and arrival, bytes, site, communicator and phase.

    A receive gets the first message from its source with its tag that no earlier receive has taken (MPI's order).
    One-sided operations, and their adjoints, go from one rank to another during their call.
    """
    found = []
    for sent, received in _pairs(ranks, "messages"):
        source, dest = received[2], sent[2]
        _, comm, _, _, nbytes, site, departure, _, _, adjoint_arrival, back = sent
        _, _, _, _, _, site_there, _, arrival, adjoint_departure, _, _ = received
        if departure and arrival:
            found.append([source, dest, *_ordered(departure, arrival), nbytes, site, comm, RECORDING])
        if back >= 0 and adjoint_departure and adjoint_arrival:
            found.append([dest, source, *_ordered(adjoint_departure, adjoint_arrival), back, site_there, comm, SWEEP])
    for sent, received in _pairs(ranks, "plain"):
        found.append([received[2], sent[2], *_ordered(sent[6], received[7]), sent[4], sent[5], sent[1], PRIMAL])
    for name, phase in (("messages", RECORDING), ("plain", PRIMAL)):
        for rank, traced in enumerate(ranks):
            for kind, comm, partner, _, nbytes, site, begin, end, *swept in traced[name]:
                if kind not in (WRITTEN, FETCHED) or partner < 0:
                    continue
                there = (rank, partner) if kind == WRITTEN else (partner, rank)
                if begin:
                    found.append([*there, *_ordered(begin, end), nbytes, site, comm, phase])
                if swept and swept[0] and swept[2] >= 0:
                    found.append([*reversed(there), *_ordered(*swept[:2]), swept[2], site, comm, SWEEP])
    return found


def _pairs(ranks: Ranks, name: str) -> Iterable[tuple[tuple, tuple]]:
    """Iterate over pairs of a sent message and the received one."""
    waiting: defaultdict[tuple[int, int, int], deque[tuple]] = defaultdict(deque)
    for rank, traced in enumerate(ranks):
        for message in traced[name]:
            if message[0] == SENT:
                waiting[message[1], rank, message[2]].append(message)
    for rank, traced in enumerate(ranks):
        for message in traced[name]:
            if message[0] == RECEIVED:
                sent = _taken(waiting[message[1], message[2], rank], message[3])
                if sent is not None:
                    yield sent, message


def _taken(messages: deque[tuple], tag: int) -> tuple | None:
    for k, message in enumerate(messages):
        if tag in (mpi.ANY_TAG, message[3]):
            del messages[k]
            return message
    return None


def _ordered(departure: int, arrival: int) -> tuple[int, int]:
    """Return the times of sending and arrival, in this order even though clocks differ by some microseconds."""
    return _tenths(departure), _tenths(max(departure, arrival))


def with_communicators(rank: dict[str, Any]) -> list[tuple]:
    """Return the events of a rank, each with its communicator (-1: none).

    It is the first argument of a call, or the communicator of the message for which a wait waited or whose record a
    sweep passed; events inside these have the same communicator.
    """
    started = dict(rank["comm_uses"])
    ended: dict[int, int] = {}
    for _, comm, _, _, _, _, begin, end, *swept in (*rank["messages"], *rank["plain"]):
        started.setdefault(begin, comm)
        ended.setdefault(end, comm)
        if swept:
            started.setdefault(swept[0], comm)
    for times in (started, ended):
        times.pop(0, None)  # an unknown time
    found = []
    outer_end, outer = 0, -1
    for event in sorted(rank["events"], key=lambda e: (e[0], -e[1])):
        begin, end, _, _, kind = event
        comm = -1
        if kind in (COMMUNICATION, WAITING):
            comm = started.get(begin, ended.get(end, -1))
        if comm < 0 and end <= outer_end and kind == WAITING:
            comm = outer
        if end > outer_end and (begin in started or comm >= 0):
            outer_end, outer = end, started.get(begin, comm)
        found.append((*event, comm))
    return found


# ------------------------------------------------------------------------------------------------------ messages


def matrix(ranks: Ranks, back: bool = False) -> list[list[int]]:
    """Return source, destination, site, number and bytes of sent messages; ``back``: of their adjoints.

    These are the messages of tapes, or those of the program itself if no tape has logged any.
    """
    found: dict[tuple[int, int, int], list[int]] = {}
    name = _logged(ranks)
    for rank, traced in enumerate(ranks):
        for message in traced[name]:
            kind, _, partner, _, nbytes, site = message[:6]
            adjoint = message[-1] if name == "messages" else -1
            if kind not in (SENT, WRITTEN, FETCHED) or partner < 0 or (back and adjoint < 0):
                continue
            forward = (kind != FETCHED) != back
            entry = found.setdefault((rank, partner, site) if forward else (partner, rank, site), [0, 0])
            entry[0] += 1
            entry[1] += adjoint if back else max(nbytes, 0)
    return [[*key, *entry] for key, entry in sorted(found.items())]


def _logged(ranks: Ranks) -> str:
    """Return the name of the list of messages to count."""
    return "messages" if any(rank["messages"] for rank in ranks) else "plain"


def collectives(ranks: Ranks) -> list[list[int]]:
    """Return communicator, site, calls of all ranks, bytes that they contributed, calls with an adjoint."""
    found: dict[tuple[int, int], list[int]] = {}
    for rank in ranks:
        for kind, comm, _, _, nbytes, site, *_, adjoint in rank["messages"]:
            if kind == COLLECTIVE:
                entry = found.setdefault((comm, site), [0, 0, 0])
                entry[0] += 1
                entry[1] += nbytes
                entry[2] += adjoint >= 0
    return [[*key, *entry] for key, entry in sorted(found.items())]


# -------------------------------------------------------------------------------------------------------- memory


def _memory(traced: dict[str, Any]) -> dict[str, Any]:
    """Return the memory of one rank's tapes over time, and its maximum by site: undo log, kernels' values, shadows."""
    by_site: dict[int, list[int]] = {}
    running: dict[int, list[int]] = {}
    total, most, totals = [0, 0], [0, 0], []
    for _, site, *sizes in traced["memory"]:
        entry, here = by_site.setdefault(site, [0, 0, 0]), running.setdefault(site, [0, 0])
        for k in range(2):
            here[k] += sizes[k]
            total[k] += sizes[k]
            entry[k] = max(entry[k], here[k])
        totals.append(sum(total))
        most = max(most, list(total), key=sum)
    for _, sizes in traced["shadows"]:
        for site, size in sizes.items():
            entry = by_site.setdefault(site, [0, 0, 0])
            entry[2] = max(entry[2], size)
    largest = sorted(sorted(by_site), key=lambda site: -sum(by_site[site]))[:MOST_AREAS]
    areas = {site: site for site in largest}
    shown, curve = _turning_points(totals), []
    held_by: Counter = Counter()
    for k, (t, site, saved, kept) in enumerate(traced["memory"]):
        held_by[areas.get(site, OTHERS)] += saved + kept
        if k in shown:
            curve.append([_tenths(t), {site: size for site, size in held_by.items() if size}])
    checkpoints = [[_tenths(t), size] for t, size in traced["checkpoints"]]
    held, holding = [], 0
    for t, size in traced["checkpoints"]:
        holding += size
        held.append((t, holding))
    return {
        "sites": [[site, *sizes] for site, sizes in sorted(by_site.items())],
        "most": most,
        "curve": curve,
        "shadows": [[_tenths(t), _merged(sizes, areas)] for t, sizes in _thinned(traced["shadows"])],
        "checkpoints": checkpoints,
        "held": [[_tenths(t), size] for t, size in _thinned(held)],
    }


def _turning_points(totals: list[int]) -> set[int]:
    """Return points that represent a curve: the highest, the lowest and the last one of each piece."""
    every = max(3 * len(totals) // MOST_SAMPLES, 1)
    found: set[int] = set()
    for begin in range(0, len(totals), every):
        piece = range(begin, min(begin + every, len(totals)))
        found |= {max(piece, key=totals.__getitem__), min(piece, key=totals.__getitem__), piece[-1]}
    return found


def _merged(sizes: dict[int, int], areas: dict[int, int]) -> dict[int, int]:
    """Return sizes by site, with those without a separate area added up."""
    found: Counter = Counter()
    for site, size in sizes.items():
        found[areas.get(site, OTHERS)] += size
    return dict(found)


def _thinned(curve: list[tuple[int, int]]) -> Iterable[tuple[int, int]]:
    every = max(len(curve) // MOST_SAMPLES, 1)
    return [point for k, point in enumerate(curve) if not k % every or k == len(curve) - 1]


# --------------------------------------------------------------------------------------------------------- table


def table(ranks: Ranks) -> list[dict[str, Any]]:
    """Return a row for each source line: calls, bytes and seconds of primal, recording and sweep, by rank.

    Rows are ordered by the time of recording and sweep, then by that of the primal.  ``counted`` is True if the bytes
    are known: not for messages that no tape has logged if one has logged others, nor for collectives without a tape.
    """
    sites, name = ranks[0]["sites"], _logged(ranks)
    rows: dict[str, dict[str, Any]] = {}
    for rank, traced in enumerate(ranks):

        def row(site: int) -> dict[str, Any]:
            where, called, kind = sites[site]
            found = rows.setdefault(where, _new_row(where, len(ranks)))
            if called not in found["names"]:
                found["names"].append(called)
                found["communicates"] |= kind in (COMMUNICATION, WAITING)
            return found

        for (site, phase), (count, nanoseconds) in traced["totals"].items():
            if phase != SWEEP or site in traced["adjoints"]:
                found = row(site)
                found["seconds"][phase][rank] += nanoseconds * 1e-9
                if phase != SWEEP:
                    found["calls"][phase][rank] += count
        for site, count in traced["adjoints"].items():
            row(site)["calls"][SWEEP][rank] += count
        for message in traced[name]:
            found = row(message[5])
            found["bytes"][rank] += max(message[4], 0)
            found["counted"] = True
        for _, site, saved, kept in traced["memory"]:
            row(site)["tape"][rank] += max(saved, 0) + max(kept, 0)
        for begin, end, site, phase, kind in traced["events"]:
            if kind == WAITING:
                row(site)["waits"][phase][rank] += (end - begin) * 1e-9
        for (site, _), nanoseconds in traced["compiled"].items():
            if sites[site][0]:
                row(site)["compiled"][rank] += nanoseconds * 1e-9
    for found in rows.values():
        for phase in range(3):  # a call that waits may have waits inside
            found["waits"][phase] = list(map(min, found["waits"][phase], found["seconds"][phase]))
        worked = [[t - w for t, w in zip(*both)] for both in zip(found["seconds"], found["waits"])]
        found["ratio"] = ratio(worked, found["calls"])
        found["counted"] |= not found.pop("communicates")
    rows = {
        where: found
        for where, found in rows.items()
        if any(map(any, (*found["calls"], *found["seconds"], found["compiled"])))
    }
    return sorted(rows.values(), key=lambda found: [-sum(map(sum, found["seconds"][k:])) for k in (RECORDING, PRIMAL)])


def _new_row(where: str, count: int) -> dict[str, Any]:
    path, _, line = where.rpartition(":")
    zeros = lambda: [0] * count
    return {
        "line": f"{os.path.basename(path)}:{line}" if path else "(no line of the program)",
        "path": where,
        "names": [],
        "calls": [zeros() for _ in range(3)],
        "seconds": [zeros() for _ in range(3)],
        "bytes": zeros(),
        "counted": False,
        "communicates": False,
        "tape": zeros(),
        "waits": [zeros() for _ in range(3)],
        "compiled": zeros(),
    }


def ratio(seconds: list[list[float]], calls: list[list[int]]) -> float | None:
    """Return the cost of a recorded call, including its part of the sweep, relative to a call of the primal.

    Waiting and compiling are excluded.  None unless the line has worked both with a tape and without one.
    """
    primal, recording, sweep = map(sum, seconds)
    without, recorded, _ = map(sum, calls)
    # Rounding leaves less than the clock's resolution for a line that only waited.
    return (recording + sweep) / recorded * without / primal if primal > 1e-9 and without and recorded else None


def phase_times(ranks: Ranks) -> list[list[float]]:
    """Return the seconds of primal, recording and sweep, by rank."""
    found = [[0.0] * len(ranks) for _ in range(3)]
    for k, rank in enumerate(ranks):
        for (t, phase), (end, _) in zip(rank["phases"], rank["phases"][1:]):
            if phase >= PRIMAL:
                found[phase][k] += (end - t) * 1e-9
    return found


def elsewhere(ranks: Ranks) -> list[list[float]]:
    """Return the seconds of each phase that are in no row, and are not compilation, by rank."""
    found = phase_times(ranks)
    for k, rank in enumerate(ranks):
        for (site, phase), (_, nanoseconds) in rank["totals"].items():
            if phase != SWEEP or site in rank["adjoints"]:
                found[phase][k] = max(found[phase][k] - nanoseconds * 1e-9, 0.0)
        for (_, phase), nanoseconds in rank["compiled"].items():
            found[phase][k] = max(found[phase][k] - nanoseconds * 1e-9, 0.0)
    return found


BEFORE, BETWEEN, AFTER = (
    "before the first operation (imports, set-up)",
    "between operations (Python, NumPy without a tape)",
    "after the last operation",
)


def parts_elsewhere(ranks: Ranks) -> dict[str, list[list[float]]]:
    """Divide the seconds of `elsewhere` by their place in each phase: before, between and after its operations."""
    rest = elsewhere(ranks)
    found = {name: [[0.0] * len(ranks) for _ in range(3)] for name in (BEFORE, BETWEEN, AFTER)}
    for k, rank in enumerate(ranks):
        spans: list[list[tuple[int, int]]] = [[], [], []]
        for begin, end, _, phase, _ in rank["events"]:
            if end > begin:
                spans[phase].append((begin, end))
        for phase in range(3):
            stretches = [(t, end) for (t, p), (end, _) in zip(rank["phases"], rank["phases"][1:]) if p == phase]
            gaps = [0.0, 0.0]
            if stretches and spans[phase]:
                gaps[0] = (min(spans[phase])[0] - stretches[0][0]) * 1e-9
                gaps[1] = (stretches[-1][1] - max(end for _, end in spans[phase])) * 1e-9
            left = rest[phase][k]
            for name, gap in zip((BEFORE, AFTER), gaps):
                found[name][phase][k] = min(max(gap, 0.0), left)
                left -= found[name][phase][k]
            found[BETWEEN][phase][k] = left
    return found


def adjoints_of_messages(ranks: Ranks) -> str:
    """Explain why fewer adjoints than messages were sent; empty if that is not the case."""
    if _logged(ranks) != "messages":
        return ""
    sent, back = (sum(edge[3] for edge in matrix(ranks, k)) for k in (False, True))
    if not back or back == sent:
        return ""
    return (
        f"{back} of the {sent} messages that tapes have recorded have an adjoint. The others carry no derivative: the "
        "data do not depend on the inputs (constants, integers, values from before the inputs were used), or were "
        "received into memory without derivatives."
    )

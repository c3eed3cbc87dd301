"""Synthetic traces of ranks, as reports read them."""

from ampi.reports.events import COMMUNICATION, KERNEL, RECORDING, SWEEP, WAITING


def many(ranks, events=40, messages=6):
    """Traces of the given number of ranks: each sends to its neighbours in a ring, and there is a sweep."""
    sites = [("", "(elsewhere)", 0), ("/p/a.py:3", "Isend", COMMUNICATION), ("/p/a.py:9", "work " * 9, KERNEL)]
    found = []
    for rank in range(ranks):
        times = [(1000 * k, 1000 * k + 700, 1 + k % 2, SWEEP if 2 * k > events else RECORDING) for k in range(events)]
        sent = []
        for k in range(messages):
            right, left = (rank + 1) % ranks, (rank - 1) % ranks
            t, back = 2000 * k + 100, 1000 * events - 2000 * k
            sent.append((0, 0, right, k, 800, 1, t, t + 500, back, back + 700, 800))
            sent.append((1, 0, left, k, 800, 1, t, t + 900, back, back + 600, 800))
        found.append(
            {
                "sites": sites,
                "comms": ["MPI_COMM_WORLD"],
                "compiling": 0.0,
                "compiled": {(2, SWEEP): 50_000} if rank == 0 else {},
                "events": [(*span, COMMUNICATION if span[2] == 1 else KERNEL) for span in times]
                + [(100, 300, 1, RECORDING, WAITING)],
                "dropped": 0,
                "totals": {(1, RECORDING): [events, 700 * events], (2, SWEEP): [events, 700 * events]},
                "adjoints": {2: events},
                "phases": [(0, RECORDING), (500 * events, SWEEP), (1000 * events, -1)],
                "memory": [(1000 * k, 2, 64, 8) for k in range(events)],
                "shadows": [(1000 * k, {1: 40 * k, 2: 60 * k}) for k in range(events)],
                "checkpoints": [(1500, 4096), (2500, 1024), (9000, -4096)],
                "messages": sent,
                "plain": [],
                "unsaved": 0,
                "lanes": 1,
                "tasks": [],
                "edges": [],
                "unsaved_tasks": 0,
                "comm_uses": [],
                "tape": {"saved": 64 * events, "kept": 8 * events},
                "host": "here",
                "process": rank,
            }
        )
    return found

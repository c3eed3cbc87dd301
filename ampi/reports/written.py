"""Output of a report: the page, the trace, the graph, the table."""

from __future__ import annotations

import gzip
import html
import importlib.resources
import json
import os
from typing import Any

from ..base.whole_files import replacing, write
from ..errors import AmpiError
from .events import COMPILING, SWEEP, WAITING
from .figures import MOST_ARROWS, Ranks, arrows, matrix

PHASES = ("primal", "recording", "sweep")
KINDS = ("computed", "kernel", "communication", "waiting", "compiling")
MOST_IN_TRACE = 1_000_000
"""Maximum number of events in the trace."""


def write_page(path: str, figures: dict[str, Any]) -> None:
    """Write the page, which needs no other file."""
    folder = importlib.resources.files(__package__) / "page"
    text = (folder / "page.html").read_text(encoding="utf-8")
    parts = {
        "TITLE": html.escape(figures["title"]),
        "STYLE": (folder / "page.css").read_text(encoding="utf-8"),
        "DATA": json.dumps(figures, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c"),
        "SCRIPT": "\n".join(
            (folder / name).read_text(encoding="utf-8") for name in ("common.js", "timeline.js", "parts.js")
        ),
    }
    for name, part in parts.items():
        text = text.replace(f"<!--{name}-->", part)
    write(path, text)


def write_trace(path: str, ranks: Ranks) -> str:
    """Write the trace of all ranks in the Trace Event format; return a note on events left out."""
    sites = ranks[0]["sites"]
    most = MOST_IN_TRACE // len(ranks)
    left_out = sum(rank["dropped"] for rank in ranks)
    with replacing(path, "wb") as raw, gzip.open(raw, "wt", encoding="utf-8", compresslevel=4) as file:
        file.write('{"displayTimeUnit":"ns","traceEvents":[\n')
        lines = []
        for k, rank in enumerate(ranks):
            events = rank["events"]
            if len(events) > most:
                left_out += len(events) - most
                events = sorted(events, key=lambda e: e[0] - e[1])[:most]
            lines += _head(k, rank)
            for begin, end, site, phase, kind in sorted(events, key=lambda e: (e[0], -e[1])):
                where, name, _ = sites[site]
                lines.append(
                    {
                        "name": _name_of(name, phase, kind),
                        "cat": f"{PHASES[phase]},{KINDS[kind]}",
                        "ph": "X",
                        "pid": k,
                        "tid": 0,
                        "ts": begin / 1000,
                        "dur": (end - begin) / 1000,
                        "args": {"line": where},
                    }
                )
            lines += _tasks(k, rank, sites)
        lines += _flows(ranks)
        file.write(",\n".join(json.dumps(line, separators=(",", ":")) for line in lines))
        file.write("\n]}\n")
    return f"trace.json.gz holds the {MOST_IN_TRACE} longest events; {left_out} are left out" if left_out else ""


def _name_of(name: str, phase: int, kind: int) -> str:
    if kind == COMPILING:
        return f"compiling for {name}"
    return "wait" if kind == WAITING and phase == SWEEP else name


def _head(k: int, rank: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the entries for a rank's name, and for its phases in a separate lane."""
    named = lambda what, tid, name: {"name": what, "ph": "M", "pid": k, "tid": tid, "args": {"name": name}}
    found = [
        named("process_name", 0, f"rank {k} ({rank['host']}, process {rank['process']})"),
        named("thread_name", 0, "operations"),
        named("thread_name", 1, "phases"),
        {"name": "process_sort_index", "ph": "M", "pid": k, "tid": 0, "args": {"sort_index": k}},
    ]
    for (t, phase), (end, _) in zip(rank["phases"], rank["phases"][1:]):
        if phase >= 0:
            one = {"name": PHASES[phase], "cat": "phase", "ph": "X", "pid": k, "tid": 1}
            found.append({**one, "ts": t / 1000, "dur": (end - t) / 1000})
    return found


FIRST_LANE = 1
"""Offset of a worker's lane in the trace, relative to its lane among the rank's threads."""


def _tasks(k: int, rank: dict[str, Any], sites: list[tuple[str, str, int]]) -> list[dict[str, Any]]:
    """Return the entries for a rank's tasks, in the lanes of their threads, and for arrows between them."""
    found: list[dict[str, Any]] = []
    place = lambda lane: lane + FIRST_LANE if lane else 0
    for lane in range(1, rank["lanes"]):
        name = {"name": f"worker {lane}"}
        found.append({"name": "thread_name", "ph": "M", "pid": k, "tid": place(lane), "args": name})
    for begin, end, lane, site, phase in rank["tasks"]:
        where, name, _ = sites[site]
        one = {"name": name, "cat": f"{PHASES[phase]},task", "ph": "X", "pid": k, "tid": place(lane)}
        found.append({**one, "ts": begin / 1000, "dur": (end - begin) / 1000, "args": {"line": where}})
    for number, (begin, lane, end, there, phase) in enumerate(rank["edges"]):
        one = {"name": PHASES[phase], "cat": "task", "id": f"{k}.{number}", "pid": k}
        found.append({**one, "ph": "s", "tid": place(lane), "ts": begin / 1000})
        found.append({**one, "ph": "f", "bp": "e", "tid": place(there), "ts": end / 1000})
    return found


def _flows(ranks: Ranks) -> list[dict[str, Any]]:
    """Return the entries for arrows from calls that send to calls that receive."""
    found = []
    for number, (source, dest, departure, arrival, nbytes, _, _, phase) in enumerate(arrows(ranks)[:MOST_IN_TRACE]):
        name = "adjoint" if phase == SWEEP else "message"
        one = {"name": name, "cat": "message", "id": number, "tid": 0, "args": {"bytes": nbytes}}
        found.append({**one, "ph": "s", "pid": source, "ts": departure / 10})
        found.append({**one, "ph": "f", "bp": "e", "pid": dest, "ts": arrival / 10})
    return found


def write_graph(path: str, ranks: Ranks) -> None:
    """Write the graph of messages, and of their reversal, for Graphviz."""
    lines = ["digraph communication {", "  rankdir=LR;", "  node [shape=circle];"]
    for name, label, back in (("program", "program", False), ("sweep", "reverse sweep", True)):
        edges: dict[tuple[int, int], list[int]] = {}
        for source, dest, _, count, nbytes in matrix(ranks, back):
            entry = edges.setdefault((source, dest), [0, 0])
            entry[0] += count
            entry[1] += nbytes
        lines.append(f'  subgraph cluster_{name} {{\n    label="{label}";')
        lines += [f'    {name}{k} [label="{k}"];' for k in range(len(ranks))]
        for (source, dest), (count, nbytes) in sorted(edges.items()):
            lines.append(f'    {name}{source} -> {name}{dest} [label="{count} x, {size(nbytes)}"];')
        lines.append("  }")
    write(path, "\n".join([*lines, "}"]) + "\n")


def size(nbytes: float) -> str:
    """Return a number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024 or unit == "GiB":
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    raise AssertionError


def profile(figures: dict[str, Any], most: int = 30) -> str:
    """Return the table of source lines as text, with sums over ranks."""
    rows = figures["table"]
    total = figures["total"]
    rest = [(f"elsewhere: {name}", parts) for name, parts in total["parts"].items() if any(map(any, parts))]
    rest = rest or [("elsewhere", total["elsewhere"])]
    width = max(len(label) for label in ("line", *map(_label, rows[:most]), *(label for label, _ in rest)))
    ranks = figures["ranks"]
    lines = [
        f"Seconds on {ranks} rank(s) together, by source line",
        _columns(width, "", ("calls:", "", ""), "", "", ("seconds:", "", ""), "", ""),
        _columns(width, "line", PHASES, "bytes", "compiling", PHASES, "waiting", "gradient/primal"),
    ]
    for row in rows[:most]:
        nbytes = size(sum(row["bytes"])) if row["counted"] else ""
        times = [_seconds(sum(t)) for t in row["seconds"]]
        waits = _seconds(sum(map(sum, row["waits"])), "")
        shown = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
        calls = [f"{sum(count)}" for count in row["calls"]]
        lines.append(
            _columns(width, _label(row), calls, nbytes, _seconds(sum(row["compiled"]), ""), times, waits, shown)
        )
    if len(rows) > most:
        lines.append(f"({len(rows) - most} more lines, which take less)")
    apart = sum(total["compiled"]) - sum(sum(row["compiled"]) for row in rows)
    nothing = ("", "", "")
    if apart > 5e-5:
        lines.append(_columns(width, "elsewhere: compiling", nothing, "", _seconds(apart), nothing, "", ""))
    lines += [
        _columns(width, label, nothing, "", "", [_seconds(sum(t)) for t in parts], "", "") for label, parts in rest
    ]
    phases = [_seconds(sum(t)) for t in total["phases"]]
    compiled = _seconds(sum(total["compiled"]), "")
    lines.append(_columns(width, "total, compiling included", nothing, "", compiled, phases, "", ""))
    if any(row["ratio"] is not None for row in rows):
        lines.append(
            "(gradient/primal: a recorded call and its sweep, by a call without a tape; no waiting, no compiling)"
        )
    if figures["compiling"]:
        lines.append(f"({figures['compiling']})")
    return "\n".join(lines)


def _label(row: dict[str, Any]) -> str:
    text = f"{row['line']} {', '.join(row['names'])}"
    return text if len(text) <= 60 else text[:57] + "..."


def _seconds(spent: float, zero: str = "0.0000") -> str:
    return f"{spent:.4f}" if spent >= 5e-5 else zero


def _columns(
    width: int, label: str, calls: Any, nbytes: str, compiling: str, times: Any, waits: str, ratio: str
) -> str:
    """Format a line of the table for the terminal."""
    return "  ".join(
        (
            f"{label:{width}}",
            *(f"{text:>9}" for text in calls),
            *(f"{text:>9}" for text in (nbytes, compiling, *times, waits)),
            f"{ratio:>15}",
        )
    )


def in_folder(path: str, name: str) -> str:
    """Return the path of a file in a folder; make the folder if necessary."""
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise AmpiError(f"the folder {path} cannot be created: {error.strerror}") from error
    return os.path.join(path, name)


__all__ = ["MOST_ARROWS", "in_folder", "profile", "write_graph", "write_page", "write_trace"]

"""Costs of gradients: all rows of the table, or some of them. See ``--help``; start it with ``scripts/bench``."""

import argparse
import fnmatch
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

import breakdown
import budget
import forms
import local
import loops
import lulesh
import minibude
import modes
import npbench
import reproducible
import vector
import versions
from programs import PROGRAMS

ROOT = Path(__file__).resolve().parents[2]
MORE_IS_BETTER = "/"  # unit of rows that say how many times faster
SECTIONS = (
    "programs",
    "loops",
    "lulesh",
    "threads",
    "deterministic",
    "first",
    "minibude",
    "budget",
    "vector",
    "modes",
    "versions",
)
BY_NAME = {"versions"}
"""Sections that run only if they are named."""


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/bench", description="Time gradients against their primals, and both against the bars."
    )
    parser.add_argument(
        "sections",
        nargs="*",
        metavar="SECTION",
        help=f"what to measure: {', '.join(SECTIONS)}, or programs by name, e.g. 'heat_*' (default: all sections, "
        "without versions)",
    )
    parser.add_argument("-r", "--repeat", type=int, default=15, help="repetitions, of which the median counts (15)")
    parser.add_argument("--json", type=Path, default=ROOT / "bench.json", help="where to keep the rows (bench.json)")
    parser.add_argument(
        "--breakdown",
        nargs="+",
        type=int,
        metavar="RANKS",
        help="only where the processor time of LULESH's gradient goes, on these numbers of ranks (1 8 27)",
    )
    options = parser.parse_args()
    for name in options.sections:
        if name not in SECTIONS and not fnmatch.filter(PROGRAMS, name):
            parser.error(f"no section or program '{name}'; there are {', '.join((*SECTIONS, *PROGRAMS))}")
    return options


def calibration() -> dict[str, float]:
    """The factors by which this machine differs from the reference machine of the bars."""
    command = [sys.executable, Path(__file__).with_name("calibrate.py")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return {kind: float(factor) for kind, factor in re.findall(r"(\w+): .* ms, ([\d.]+) x", done.stdout)}


def measure(sections: list[str], repeat: int):
    """The rows, as they come."""
    wanted = sections or [name for name in SECTIONS if name not in BY_NAME]
    names = list(PROGRAMS) if "programs" in wanted else [n for s in wanted for n in fnmatch.filter(PROGRAMS, s)]
    for name in names:
        yield from local.measure([name], repeat)
    if "loops" in wanted:
        yield from loops.rows(repeat)
        yield from forms.rows(max(3, repeat // 5))
    if "lulesh" in wanted:
        yield from lulesh.rows(repeat)
    if "threads" in wanted:
        yield from lulesh.threads(repeat)
        yield from minibude.threads(max(3, repeat // 5))
    if "deterministic" in wanted:
        yield from reproducible.rows(repeat)
    if "first" in wanted:
        yield from lulesh.first_calls()
    if "minibude" in wanted:
        yield from minibude.rows(max(3, repeat // 5))
    if "budget" in wanted:
        yield from budget.rows(max(3, repeat // 5))
    if "vector" in wanted:
        yield from vector.rows(repeat)
    if "modes" in wanted:
        yield from modes.rows(repeat)
    if "versions" in wanted:
        yield from versions.rows(repeat)


def scaled(row: dict, factors: dict[str, float]) -> dict:
    """A row of times with its bars as they are on this machine."""
    factor = factors.get(row.get("scale", ""))
    return (
        row
        if factor is None or "bar" not in row
        else row | {key: row[key] * factor for key in ("bar", "stretch")} | {"factor": factor}
    )


def verdict(row: dict) -> str:
    if "bar" not in row:
        return ""
    more_is_better = row["unit"] == MORE_IS_BETTER
    value, bar, stretch = (-row[key] if more_is_better else row[key] for key in ("value", "bar", "stretch"))
    return "stretch" if value <= stretch else "bar" if value <= bar else "missed"


def line(row: dict) -> str:
    times = "".join(f"{row[key] * 1e3:11.3f}" if key in row else " " * 11 for key in ("primal", "gradient"))
    bars = f"{row['bar']:8.2f} {row['stretch']:8.2f}" if "bar" in row else " " * 17
    numbers = f"{row['value']:8.2f} {row['unit']:3} {bars}"
    return f"{row['what']:66}{times} {numbers}  {verdict(row):8} {row.get('note', '')}".rstrip()


def main() -> None:
    if sys.argv[1:2] == ["npbench"]:
        return npbench.main(sys.argv[2:])
    options = parse_arguments()
    if options.breakdown:
        return breakdown.rows(options.breakdown)
    factors = calibration()
    for kind, factor in factors.items():
        print(
            f"This machine takes {factor:.2f} x the reference machine's time for {kind}; bars of times are scaled so."
        )
    if not factors:
        print("No calibration: bars of times are those of the reference machine.")
    print(f"{'':66}{'primal ms':>11}{'gradient ms':>12}{'value':>8}{'bar':>12}{'stretch':>9}", flush=True)
    rows = []
    for row in measure(options.sections, options.repeat):
        row = scaled(row, factors)
        rows.append(row | {"verdict": verdict(row)})
        print(line(row), flush=True)
    kept = {
        "when": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "machine": platform.processor() or platform.machine(),
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "factors": factors,
        "repeat": options.repeat,
        "rows": rows,
    }
    options.json.write_text(json.dumps(kept, indent=1) + "\n")
    missed = [row["what"] for row in rows if row["verdict"] == "missed"]
    print(f"{len(rows) - len(missed)} of {len(rows)} rows within their bars; kept in {options.json}")


if __name__ == "__main__":
    main()

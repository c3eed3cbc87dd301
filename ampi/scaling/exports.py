"""Results for other programs: CSV, and the text format of Extra-P.

Extra-P's format (https://github.com/extra-p/extrap, ``docs/file-formats.md``): ``PARAMETER`` names a parameter,
``POINTS`` lists its values, ``METRIC`` names the measured quantity; below each ``REGION`` is a line ``DATA`` for each
point, with all repetitions.
"""

import csv
import io

import numpy as np

from ampi.scaling.medians import samples
from ampi.scaling.results import Results
from ampi.scaling.study import ScalingError

COLUMNS = (
    "run", "mode", "ranks", "threads", "size", "repetition", "status", "seconds", "wall", "started",
    "scaling", "session", "hosts", "commit", "dirty",
)  # fmt: skip


def to_csv(results: Results) -> str:
    """All measurements as CSV: a row for each time, and one without a time for each run that failed.

    Times are in seconds and have all their digits.
    """
    sessions = {session["session"]: session for session in results.sessions}
    file = io.StringIO()
    writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    for run in results.runs:
        session = sessions.get(run["session"], {})
        row = {**run, "scaling": session.get("scaling"), "hosts": " ".join(session.get("machine", {}).get("hosts", []))}
        row |= session.get("git") or {}
        for mode, seconds in run["seconds"].items() or [("", "")]:
            writer.writerow({**row, "mode": mode, "seconds": seconds})
    return file.getvalue()


def to_extrap(results: Results, name: str = "study") -> str:
    """The times of all configurations in Extra-P's text format.

    The parameters are ``p`` (ranks) and, where it was varied, ``t`` (threads); regions are the modes. Configurations
    without all modes are left out, with a comment.

    Raises
    ------
    ScalingError
        No configuration is left.
    """
    times = samples(results)
    modes = sorted({point.mode for point in times}, reverse=True)
    places = sorted({(point.ranks, point.threads) for point in times})
    by_place = {(point.mode, point.ranks, point.threads): list(values.values()) for point, values in times.items()}
    whole = [place for place in places if all((mode, *place) in by_place for mode in modes)]
    if not whole:
        raise ScalingError("there is no configuration with measurements of all modes: nothing to export")
    several = len({threads for _, threads in whole}) > 1
    lines = [f"# {' '.join(name.split())}"]
    lines += [f"# not measured in all modes: {ranks} ranks, {threads} threads" for ranks, threads in places
              if (ranks, threads) not in whole]  # fmt: skip
    lines.append("PARAMETER p t" if several else "PARAMETER p")
    lines.append("POINTS " + " ".join(f"({ranks} {threads})" if several else f"{ranks}" for ranks, threads in whole))
    lines += ["METRIC time", ""]
    for mode in modes:
        lines.append(f"REGION {mode}")
        lines += ["DATA " + " ".join(map(_decimal, by_place[mode, place[0], place[1]])) for place in whole]
    return "\n".join(lines) + "\n"


def _decimal(value: float) -> str:
    """A number with all digits and without an exponent, which the format does not allow."""
    return np.format_float_positional(value, trim="-")

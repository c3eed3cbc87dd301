"""Results of a study: append-only files of JSON Lines.

A line is an object with a ``kind``: ``"session"`` has the machine, versions and settings of the following measurements;
``"run"`` is a measurement, ``"warmup"`` a run that does not count. A session that was killed may leave an incomplete
line, which is skipped; the next session begins on a new line.
"""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import re
from collections.abc import Iterable
from typing import Any, BinaryIO

from ampi.scaling.study import Case, ScalingError, Study


@dataclasses.dataclass
class Results:
    """The contents of files of results.

    Attributes
    ----------
    sessions : list of dict
        Machine, versions, git commit, and settings of the study.
    runs : list of dict
        The measurements that count: for each case the first success, else the last failure.

    Examples
    --------
    >>> found = ampi.scaling.read_results([])
    >>> found.sessions, found.runs
    ([], [])
    """

    sessions: list[dict[str, Any]]
    runs: list[dict[str, Any]]

    @property
    def good(self) -> list[dict[str, Any]]:
        """The measurements that succeeded."""
        return [run for run in self.runs if run["status"] == "ok"]

    @property
    def seed(self) -> int | None:
        """The seed of the order, from the first session."""
        return self.sessions[0]["seed"] if self.sessions else None

    def done(self, failed: bool = False) -> set[Case]:
        """The cases that need not be measured; with `failed`, including those that failed."""
        return {case_of(run) for run in (self.runs if failed else self.good)}


def case_of(run: dict[str, Any]) -> Case:
    """The case of a measurement."""
    return Case(run["repetition"], run["run"], run["ranks"], run["threads"], run["size"])


def files_of(study: Study, results: pathlib.Path | None = None) -> list[pathlib.Path]:
    """The existing files of results of a study: its own, and those of its jobs beside it."""
    path = results or study.results
    pattern = re.compile(re.escape(path.stem) + r"(-\d+)?" + re.escape(path.suffix))
    try:
        return sorted(other for other in path.parent.iterdir() if pattern.fullmatch(other.name))
    except OSError as error:
        raise ScalingError(f"{path.parent} cannot be read: {error.strerror}") from None


def read(paths: Iterable[pathlib.Path], study: Study | None = None) -> Results:
    """The results in some files, for `study` if it is given.

    Raises
    ------
    ScalingError
        A line is not a result, or belongs to a study with other settings.

    Examples
    --------
    >>> study = ampi.scaling.read_study("study.toml")
    >>> _ = ampi.scaling.measure(study, ranks=1, say=lambda line: None)
    >>> found = ampi.scaling.read_results([pathlib.Path("study-results-1.jsonl")], study)
    >>> [run["status"] for run in found.good]
    ['ok', 'ok']
    """
    sessions: list[dict[str, Any]] = []
    best: dict[Case, dict[str, Any]] = {}
    for path in paths:
        for line in _lines(path):
            if line["kind"] == "session":
                sessions.append(line)
                if study is not None:
                    _compare(line["study"], study, path)
            elif line["kind"] == "run":
                case = case_of(line)
                if case not in best or best[case]["status"] != "ok":
                    best[case] = line
    return Results(sessions, list(best.values()))


def _lines(path: pathlib.Path) -> Iterable[dict[str, Any]]:
    """The complete lines of a file; incomplete ones of killed sessions come before a session, or at the end."""
    try:
        text = path.read_bytes().decode("utf-8", "replace")
    except OSError as error:
        raise ScalingError(f"{path} cannot be read: {error.strerror}") from None
    lines = [line for line in text.split("\n") if line.strip()]
    broken = 0
    for number, text in enumerate(lines, 1):
        try:
            line = json.loads(text)
            if not isinstance(line, dict) or line.get("kind") not in ("session", "run", "warmup"):
                raise ValueError
        except ValueError:
            broken = broken or number  # several sessions may have been killed
            continue
        if broken and line["kind"] != "session":
            raise _no_result(path, broken)
        broken = 0
        yield line


def _no_result(path: pathlib.Path, number: int) -> ScalingError:
    return ScalingError(f"{path}: line {number} is no result, and no session was stopped there; remove the line")


def _compare(before: dict[str, Any], study: Study, path: pathlib.Path) -> None:
    now = json.loads(json.dumps(study.identity()))
    if before == now:
        return
    other = [
        f"[{name}] {key}".strip()
        for name in ("study", "runs", "environment")
        for key in sorted({*before[name], *now[name]})
        if before[name].get(key) != now[name].get(key)
    ]
    raise ScalingError(
        f"{path} was measured with other settings than {study.path} has now: {', '.join(other)}. "
        "Put them back, or take another file with --results"
    )


class Writer:
    """Appends lines to a file of results; each is on disk when `add` returns."""

    def __init__(self, path: pathlib.Path):
        self.path = path
        try:
            self.file: BinaryIO = open(path, "ab+", buffering=0)
        except OSError as error:
            raise ScalingError(f"{path} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.file.close()
            raise ScalingError(f"{path}: another process measures into this file now") from None
        except OSError:  # a file system without locks
            pass
        end = self.file.seek(0, os.SEEK_END)
        if end:
            self.file.seek(end - 1)
            if self.file.read() != b"\n":  # a killed session
                self._write(b"\n")

    def add(self, line: dict[str, Any]) -> None:
        """Write one line.

        Raises
        ------
        ScalingError
            There is no room for it; earlier lines are unchanged.
        """
        self._write(json.dumps(line).encode() + b"\n")

    def _write(self, data: bytes) -> None:
        end = self.file.seek(0, os.SEEK_END)
        try:
            left = memoryview(data)
            while left:
                left = left[self.file.write(left) :]
            os.fsync(self.file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                self.file.truncate(end)
            raise ScalingError(
                f"cannot write {len(data):,} bytes of {self.path}: {error.strerror}; earlier measurements are kept"
            ) from None

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *exception: object) -> None:
        self.file.close()

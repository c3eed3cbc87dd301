"""A time loop's states and adjoints in a folder: what is there survives a kill at any moment.

Each rank has a folder of its own in it, with one HDF5 file for each state: a file is written under another name,
synced, and renamed, so that it is whole or not there.  What a point of the run needs is removed only when all ranks
have passed the next one (a barrier), so that they all have one in common.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI as plain_mpi

from ..errors import TapeError

_opened: Counter[str] = Counter()  # loops of this process by folder: the next process has them in the same order

FORWARD, FINAL, REVERSE = range(3)


class Folder:
    """The files of one time loop on this rank.

    Attributes
    ----------
    point : tuple or None
        Where to go on: (FORWARD, n), the state before step n; (FINAL, steps); (REVERSE, n), the adjoint of that state.
    peak_bytes : int
        The most that the files took at a time.
    """

    def __init__(self, storage: Any, comm: Any, where: str) -> None:
        base = Path(os.fspath(storage)).resolve()
        number = _opened[str(base)]
        _opened[str(base)] += 1
        self.comm = plain_mpi.Intracomm(comm)
        self.where = where
        self.path = base / f"loop-{number}" / f"rank-{comm.rank}"
        self.point: tuple[int, int] | None = None
        self.peak_bytes = 0
        self._sizes: dict[str, int] = {}

    def open(self, about: dict[str, Any], resume: bool) -> None:
        """Make the folder, or find where to go on; an error on all ranks if it is of another run on one."""
        problem, point = "", None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            for left in self.path.glob("*.part"):
                left.unlink()
            if resume:
                problem = self._differences(about)
            if not problem:
                if not resume or not (self.path / "about.h5").exists():
                    self.clear()
                    self.save("about", about, [])
                self._sizes = {path.stem: path.stat().st_size for path in self.path.glob("*.h5")}
                self.peak_bytes = sum(self._sizes.values())
                point = self._last()
        except OSError as error:
            problem = f"{self.path}: {error}"
        said = self.comm.allgather((problem, point))
        problems = [f"rank {rank}: {problem}" for rank, (problem, _) in enumerate(said) if problem]
        if problems:
            raise TapeError(
                f"{self.where}: ampi.timeloop: storage={str(self.path.parents[1])!r}: {'; '.join(problems)}; remove it "
                "or name another folder, or run what it is of"
            )
        points = [point for _, point in said]
        self.point = None if None in points else min(points, key=_order)  # type: ignore[type-var]

    def _differences(self, about: dict[str, Any]) -> str:
        others = {path.name for path in self.path.parent.glob("rank-*")} - {f"rank-{r}" for r in range(self.comm.size)}
        if others:
            return f"{self.path.parent} is of more ranks than the {self.comm.size} there are"
        if not (self.path / "about.h5").exists():
            return ""
        known = self.load("about")
        if known is None:
            return f"{self.path / 'about.h5'} is damaged"
        said = [
            f"{name} is {about.get(name)!r}, there {known[0].get(name)!r}"
            for name in about
            if known[0].get(name) != about[name]
        ]
        return f"{self.path} is of another run: {', '.join(said)}" if said else ""

    def _last(self) -> tuple[int, int] | None:
        """The last point of which all files are there and whole."""
        names = {path.stem for path in self.path.glob("*.h5")}
        for kind, prefix in ((REVERSE, "adjoint-"), (FINAL, "final-")):
            for n in sorted(int(name[len(prefix) :]) for name in names if name.startswith(prefix)):
                if self.load(f"{prefix}{n}") is not None:
                    return kind, n
        states = sorted(int(name[6:]) for name in names if name.startswith("state-"))
        good = [n for n in states if self.load(f"state-{n}") is not None]
        return (FORWARD, good[-1]) if good and good == states else None

    def clear(self) -> None:
        """Remove what is there."""
        for path in self.path.glob("*.h5"):
            path.unlink()
        self._sizes.clear()

    def states(self, below: int) -> list[int]:
        """The steps before which there are states."""
        found = (int(path.stem[6:]) for path in self.path.glob("state-*.h5"))
        return sorted(n for n in found if n < below)

    # --------------------------------------------------------------------------------------------------------- files

    def save(self, name: str, data: Any, arrays: Sequence[np.ndarray]) -> None:
        """Write a file, whole or not at all."""
        import h5py

        part, path = self.path / f"{name}.part", self.path / f"{name}.h5"
        told = pickle.dumps((data, [(a.shape, a.dtype) for a in arrays]))
        flat = [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays]
        with h5py.File(part, "w") as file:
            file["data"] = np.frombuffer(told, np.uint8)
            for k, values in enumerate(flat):
                file[f"array {k}"] = values
            file.attrs["checksum"] = _checksum(told, flat)
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        size = os.path.getsize(part)
        self.peak_bytes = max(self.peak_bytes, size + sum(self._sizes.values()))
        self._sizes[name] = size
        os.replace(part, path)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def load(self, name: str) -> tuple[Any, list[np.ndarray]] | None:
        """What a file holds; None if it is damaged."""
        import h5py

        with contextlib.suppress(OSError, KeyError):
            with h5py.File(self.path / f"{name}.h5", "r") as file:
                told = file["data"][...].tobytes()
                flat = [file[f"array {k}"][...] for k in range(len(file) - 1)]
                checksum = file.attrs["checksum"]
            if checksum == _checksum(told, flat):
                data, layouts = pickle.loads(told)
                return data, [a.view(dtype).reshape(shape) for a, (shape, dtype) in zip(flat, layouts)]
        return None

    def loaded(self, name: str) -> tuple[Any, list[np.ndarray]]:
        """The same; an error if it is damaged."""
        found = self.load(name)
        if found is None:
            raise TapeError(f"{self.where}: ampi.timeloop: {self.path / name}.h5 is damaged or has been removed")
        return found

    def agree(self, name: str, data: Any, arrays: Sequence[np.ndarray], *, removes: Sequence[str] = ()) -> None:
        """`save` on all ranks; then remove files that nobody needs any more."""
        self.save(name, data, arrays)
        self.comm.Barrier()
        for other in removes:
            self.remove(other)

    def remove(self, name: str) -> None:
        """Remove a file."""
        (self.path / f"{name}.h5").unlink(missing_ok=True)
        self._sizes.pop(name, None)


def _order(point: tuple[int, int]) -> tuple[int, int]:
    kind, n = point
    return kind, -n if kind == REVERSE else n


def _checksum(told: bytes, flat: Sequence[np.ndarray]) -> str:
    found = hashlib.blake2b(told, digest_size=16)
    for values in flat:
        found.update(values.data)
    return found.hexdigest()

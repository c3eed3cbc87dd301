"""The folder of a time loop: states and adjoints that survive a kill at any moment.

Each rank has a subfolder with one HDF5 file for each state.  A file is written under another name, synced, and renamed,
so that it is either complete or absent.  Files that are needed to resume from a point of the run are removed only after
all ranks have passed the next point (a barrier), so there is always a point from which all ranks can resume.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from mpi4py import MPI as plain_mpi

from ..base.whole_files import Guarded
from ..errors import TapeError
from ..mpi.namespace import BASE
from .plain_data import packed, unpacked
from .safety import Unread, check_alone, check_own, make, private, refused_file


@dataclasses.dataclass(frozen=True)
class Storage:
    """A folder for the states of a time loop (``ampi.timeloop(storage=...)``), and the form of its files.

    Parameters
    ----------
    folder : str or path
    per : str
        ``"rank"``: each rank has its own files.  ``"node"``: the ranks that share memory have common files, which one
        of them writes.  These are fewer, for parallel file systems that cannot handle many files.
    compression : str or int, optional
        h5py's: ``"gzip"``, ``"lzf"``, or a level of gzip from 0 to 9.

    Raises
    ------
    TapeError
        ``per`` or ``compression`` has another value.

    Examples
    --------
    >>> ampi.Storage("states", per="node", compression="gzip")
    Storage(folder='states', per='node', compression='gzip')
    """

    folder: Any
    per: str = "rank"
    compression: str | int | None = None

    def __post_init__(self) -> None:
        if self.per not in ("rank", "node"):
            raise TapeError(f"ampi.Storage: per={self.per!r}: files are per 'rank' or per 'node'")
        levels = range(10)
        if self.compression not in (None, "gzip", "lzf", *levels) or isinstance(self.compression, bool):
            raise TapeError(f"ampi.Storage: compression={self.compression!r}: give 'gzip', 'lzf', or a level, 0 to 9")


_opened: Counter[str] = Counter()  # number of loops of this process by folder; the next process runs the same ones

FORWARD, FINAL, REVERSE = range(3)
_TAG = 1


class Folder:
    """The files of one time loop on this rank.

    Attributes
    ----------
    point : tuple or None
        Where to resume: (FORWARD, n), the state before step n; (FINAL, steps); (REVERSE, n), the adjoint of that state.
    peak_bytes : int
        The largest total size of all files.
    """

    def __init__(self, storage: Any, comm: Any, where: str) -> None:
        how = storage if isinstance(storage, Storage) else Storage(storage)
        base = Path(os.fspath(how.folder)).resolve()
        number = _opened[str(base)]
        _opened[str(base)] += 1
        self.comm = plain_mpi.Intracomm(comm)
        self.where = where
        self.compression = how.compression
        self.per = how.per
        self.node = plain_mpi.COMM_SELF if self.per == "rank" else _node_of(self.comm)
        self.writes = not self.node.rank
        first = self.node.bcast(self.comm.rank)
        self.path = base / f"loop-{number}" / f"{self.per}-{first}"
        self.point: tuple[int, int] | None = None
        self.peak_bytes = 0
        self._sizes: dict[str, int] = {}
        self._distance = 1

    def open(self, about: dict[str, Any], resume: bool) -> None:
        """Make the folder, or find where to resume.

        Raises an error on all ranks if the folder belongs to another run on one of them.
        """
        about = {**about, "files": f"per {self.per}", "ranks of this file": self.node.allgather(self.comm.rank)}
        begins = not resume
        self._distance = about.get("steps between states", 1)

        def prepare() -> str:
            nonlocal begins
            for folder in (self.path.parents[0], self.path):
                make(folder)
            begins = begins or not (self.path / "about.h5").exists()
            if resume and not begins:
                check_own(self.path)
            return self._differences(about) if resume else ""

        def clean() -> None:
            if self.writes:
                for left in self.path.glob("*.part"):
                    left.unlink()
            if begins:
                self.clear()

        def find_point() -> tuple[int, int] | None:
            if self.writes:
                self._sizes = {path.stem: path.stat().st_size for path in self.path.glob("*.h5")}
                self.peak_bytes = sum(self._sizes.values())
            return self._last()

        problem, differences = self._tried(prepare)
        begins = any(begins for _, begins in self._agree(problem or differences, begins))
        self._agree(self._tried(clean)[0])
        if begins:  # on all ranks: if one has no state to resume from, none has
            self.save("about", about, [])
        points = [point for _, point in self._agree(*self._tried(find_point))]
        self.point = None if None in points else min(points, key=_order)  # type: ignore[type-var]

    def _tried(self, work: Callable[[], Any]) -> tuple[str, Any]:
        """Return the problem on this rank, if there is one, and the result of the work."""
        try:
            return "", work()
        except Unread as error:
            return str(error), None
        except OSError as error:
            return f"{self.path}: {error}", None

    def _agree(self, problem: str, point: Any = None) -> list[tuple[str, Any]]:
        """Return the points of all ranks; raise on all of them if there is a problem on one."""
        reports = self.comm.allgather((problem, point))
        problems = [f"rank {rank}: {problem}" for rank, (problem, _) in enumerate(reports) if problem]
        if problems:
            raise TapeError(
                f"{self.where}: ampi.timeloop: storage={str(self.path.parents[1])!r}: {'; '.join(problems)}; remove it "
                "or name another folder, or run the program that it belongs to"
            )
        return reports

    def _differences(self, about: dict[str, Any]) -> str:
        if any(self.path.parent.glob("node-*" if self.per == "rank" else "rank-*")):
            return f"{self.path.parent} has files per {'node' if self.per == 'rank' else 'rank'}, not per {self.per}"
        others = {path.name for path in self.path.parent.glob("*-*")} - {
            f"{self.per}-{r}" for r in range(self.comm.size)
        }
        if others:
            return f"{self.path.parent} belongs to a run on more ranks than the present {self.comm.size}"
        if not (self.path / "about.h5").exists():
            return ""
        known = self.load("about")
        if known is None:
            return f"{self.path / 'about.h5'} is damaged"
        reports = [
            f"{name} is {about.get(name)!r}, there {known[0].get(name)!r}"
            for name in about
            if known[0].get(name) != about[name]
        ]
        return f"{self.path} belongs to another run: {', '.join(reports)}" if reports else ""

    def _last(self) -> tuple[int, int] | None:
        """Return the last point whose files are all present and undamaged, and the states before it."""
        names = {path.stem for path in self.path.glob("*.h5")}
        states = sorted(int(name[6:]) for name in names if name.startswith("state-"))
        for kind, prefix in ((REVERSE, "adjoint-"), (FINAL, "final-")):
            for n in sorted(int(name[len(prefix) :]) for name in names if name.startswith(prefix)):
                if self.load(f"{prefix}{n}") is not None:
                    return (kind, n) if states[: -(-n // self._distance)] == [*range(0, n, self._distance)] else None
        good = [n for n in states if self.load(f"state-{n}") is not None]
        if not good or good != states or good != [*range(0, good[-1] + 1, self._distance)]:
            return None
        return FORWARD, good[-1]

    def clear(self) -> None:
        """Remove all files."""
        if self.writes:
            for path in self.path.glob("*.h5"):
                path.unlink()
            self._sizes.clear()

    def states(self, below: int) -> list[int]:
        """Return the steps whose initial states are stored."""
        found = (int(path.stem[6:]) for path in self.path.glob("state-*.h5"))
        return sorted(n for n in found if n < below)

    # --------------------------------------------------------------------------------------------------------- files

    def save(self, name: str, data: Any, arrays: Sequence[np.ndarray]) -> None:
        """Write a file, completely or not at all; several ranks may share it.  Collective.

        Raises
        ------
        TapeError
            On all ranks, if one of them has no room for it.  Earlier files remain, so that the run can be resumed.
        """
        problem, encoded = "", b""
        try:
            encoded = packed((data, [(a.shape, a.dtype) for a in arrays]))
        except Exception as error:  # of the program's own classes
            arrays = []
            problem = (
                f"cannot write {self.path / name}.h5: an object in the state cannot be stored in a file "
                f"({type(error).__name__}: {error}); are its classes at the top of a module?"
            )
        needed = sum(a.nbytes for a in arrays) or len(encoded)
        try:
            self._save(name, encoded, [np.ascontiguousarray(a).reshape(-1).view(np.uint8) for a in arrays])
        except OSError as error:
            problem = f"cannot write {needed} bytes of {self.path / name}.h5: {error.strerror or error}"
        if not self.comm.allreduce(bool(problem), plain_mpi.LOR):
            return
        problems = [f"rank {rank} {text}" for rank, text in enumerate(self.comm.allgather(problem)) if text]
        raise TapeError(
            f"{self.where}: ampi.timeloop: storage={str(self.path.parents[1])!r}: {'; '.join(problems)}; make room "
            "there and run again with resume=True, which continues from earlier states, or name another folder"
        )

    def _save(self, name: str, encoded: bytes, flat: list[np.ndarray]) -> None:
        import h5py

        if not self.writes:
            self.node.send((encoded, [a.nbytes for a in flat]), 0, _TAG)
            for values in flat:
                self.node.Send(values, 0, _TAG)
            return
        part, path = self.path / f"{name}.part", self.path / f"{name}.h5"
        is_whole = True
        parts = self._gathered(encoded, flat)
        try:
            with (
                open(part, "wb+", buffering=0, opener=private) as raw,
                Guarded(raw) as guarded,
                h5py.File(guarded, "w") as file,
            ):
                for rank, encoded, flat in parts:
                    is_whole = is_whole and encoded != b""
                    self._write(file.create_group(str(rank)), encoded, flat)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            if is_whole:
                self._put_in_place(part, path)
        finally:
            for _ in parts:  # receive from the ranks that still send
                pass
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)

    def _gathered(self, encoded: bytes, flat: list[np.ndarray]) -> Iterator[tuple[int, bytes, list[np.ndarray]]]:
        """Iterate over the data that the ranks of this file write into it."""
        yield 0, encoded, flat
        for rank in range(1, self.node.size):
            encoded, sizes = self.node.recv(None, rank, _TAG)
            received = [np.empty(size, np.uint8) for size in sizes]
            for values in received:
                self.node.Recv(values, rank, _TAG)
            yield rank, encoded, received

    def _put_in_place(self, part: Path, path: Path) -> None:
        size = os.path.getsize(part)
        self.peak_bytes = max(self.peak_bytes, size + sum(self._sizes.values()))
        self._sizes[path.stem] = size
        os.replace(part, path)
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _write(self, group: Any, encoded: bytes, flat: Sequence[np.ndarray]) -> None:
        import h5py

        group["data"] = np.frombuffer(encoded, np.uint8)
        for k, values in enumerate(flat):
            options = {} if self.compression is None or not values.size else {"compression": self.compression}
            made = group.create_dataset(f"array {k}", values.shape, np.uint8, shuffle=bool(options), **options)
            if values.size:  # by h5py's low-level function, which tapes do not see: the values stay in the program
                made.id.write(h5py.h5s.ALL, h5py.h5s.ALL, values)
        group.attrs["checksum"] = _checksum(encoded, flat)

    def load(self, name: str) -> tuple[Any, list[np.ndarray]] | None:
        """Return this rank's part of a file; None if it is damaged."""
        import h5py

        path = self.path / f"{name}.h5"
        why = refused_file(path)
        if why:
            raise Unread(why)
        try:
            with h5py.File(path, "r") as file:
                group = file[str(self.node.rank)]
                encoded = group["data"][...].tobytes()
                flat = [group[f"array {k}"][...] for k in range(len(group) - 1)]
                checksum = group.attrs["checksum"]
        except Exception:  # h5py raises many kinds of errors for damaged files
            return None
        if not isinstance(checksum, str) or checksum != _checksum(encoded, flat):
            return None
        try:
            data, layouts = unpacked(encoded, partial(check_alone, self.path))
        except PermissionError as error:
            raise Unread(f"{path} contains pickled objects, which can run any code, and {error}") from None
        except ValueError as error:
            raise Unread(f"{path} is of another program, or of another version of ampi: {error}") from None
        return data, [a.view(dtype).reshape(shape) for a, (shape, dtype) in zip(flat, layouts)]

    def loaded(self, name: str) -> tuple[Any, list[np.ndarray]]:
        """Return this rank's part of a file; raise an error if it is damaged."""
        try:
            found = self.load(name)
        except Unread as error:
            raise TapeError(f"{self.where}: ampi.timeloop: {error}") from None
        if found is None:
            raise TapeError(f"{self.where}: ampi.timeloop: {self.path / name}.h5 is damaged or has been removed")
        return found

    def agree(self, name: str, data: Any, arrays: Sequence[np.ndarray], *, removes: Sequence[str] = ()) -> None:
        """Call `save` on all ranks; then remove files that are no longer needed."""
        self.save(name, data, arrays)
        self.comm.Barrier()
        for other in self.node.bcast(removes):  # others see a folder in which some are already missing
            self.remove(other)

    def remove(self, name: str) -> None:
        """Remove a file that is no longer read."""
        self.node.Barrier()
        if self.writes:
            with contextlib.suppress(OSError):  # an extra file does no harm
                (self.path / f"{name}.h5").unlink(missing_ok=True)
            self._sizes.pop(name, None)


_nodes: dict[int, Any] = {}  # for COMM_WORLD, which most loops use


def _node_of(comm: plain_mpi.Intracomm) -> Any:
    """Return an mpi4py communicator, unseen by tapes, of the ranks that share memory with this one."""
    comm = BASE["Intracomm"](comm)
    if comm != plain_mpi.COMM_WORLD:
        return comm.Split_type(plain_mpi.COMM_TYPE_SHARED)
    if comm.handle not in _nodes:
        _nodes[comm.handle] = comm.Split_type(plain_mpi.COMM_TYPE_SHARED)
    return _nodes[comm.handle]


def _order(point: tuple[int, int]) -> tuple[int, int]:
    kind, n = point
    return kind, -n if kind == REVERSE else n


def _checksum(encoded: bytes, flat: Sequence[np.ndarray]) -> str:
    found = hashlib.blake2b(encoded, digest_size=16)
    for values in flat:
        found.update(values.data)
    return found.hexdigest()

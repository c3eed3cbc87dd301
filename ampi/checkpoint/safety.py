"""Files of a time loop: whose they are, and what becomes of HDF5 where a disk is full."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import Any

from ..kernel.runtime.files import check_parents, refused


class Unread(Exception):
    """A file is not read; the text says why."""


def make(folder: Path) -> None:
    """Make a folder, and those above it, which only its owner can change, whatever the process's umask."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o755)


def private(path: str, flags: int) -> int:
    """An opener for `open`: a new file can be changed by its owner only."""
    return os.open(path, flags, 0o644)


def check_own(folder: Path) -> None:
    """Raise if another user could have put states into a folder."""
    if not hasattr(os, "geteuid"):
        return
    status = folder.lstat()
    if status.st_uid != os.geteuid():
        raise PermissionError(f"the folder {folder} belongs to another user")
    if status.st_mode & 0o022:
        raise PermissionError(
            f"the folder {folder} can be changed by other users (chmod go-w {folder}, if you trust it)"
        )


def check_alone(folder: Path) -> None:
    """Raise if another user could have put this folder where it is: for objects that are unpickled, which can run
    anything."""
    if hasattr(os, "geteuid"):
        check_own(folder)
        check_parents(folder)


def refused_file(path: Path) -> str:
    """Why a file is not read; nothing if it is, or is not there."""
    try:
        why = refused(path.lstat())
        if not why:
            open(path, "rb").close()
    except FileNotFoundError:
        return ""
    except OSError as error:
        why = f"cannot be read: {error.strerror}"
    return why and f"{path} {why}"


class Guarded:
    """A file for HDF5, which crashes where it cannot write: the error is raised when HDF5 has closed it."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._error: OSError | None = None

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of the data, if nothing has gone wrong."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while self._error is None and len(left):
                left = left[self._raw.write(left) :]
        except OSError as error:
            self._error = error
        return size

    def read(self, size: int = -1) -> bytes:
        """Read; h5py knows by this method that it is a file."""
        return bytes(self._raw.read(size))

    def readinto(self, room: Any) -> int:
        """Read; zeros where nothing could be written."""
        view = memoryview(room).cast("B")
        count = self._raw.readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Make the file so long."""
        try:
            return int(self._raw.truncate(size))
        except OSError as error:
            self._error = self._error or error
        return size or 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a place."""
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        """Return the place."""
        return int(self._raw.tell())

    def flush(self) -> None:
        """Nothing is kept back."""

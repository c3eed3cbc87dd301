"""Files that are written completely or not at all: the old file stays until the new one is complete.

If the disk is full or the folder not writable, the error names the file, the number of bytes and the reason, and no
partial file is left behind.  Anything but an ordinary file (``/dev/stdout``, a pipe) is written to directly.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from typing import IO, Any

from ..errors import AmpiError


def size_of(nbytes: int) -> str:
    return f"{nbytes:,} bytes" if nbytes else "the bytes"


@contextlib.contextmanager
def replacing(
    path: Any, mode: str = "w", *, needed: int = 0, error: Callable[[str], Exception] = AmpiError, **how: Any
) -> Iterator[IO[Any]]:
    """Open a file for writing, which replaces the existing one when it is complete.

    Parameters
    ----------
    path : path
    mode : str
        As for `open`.
    needed : int
        The approximate number of bytes, for the error.
    error : callable
        Makes the error that is raised instead of an OSError.
    **how
        Further arguments of `open`.
    """
    target = os.path.realpath(os.fspath(path))  # a link remains a link
    in_place = os.path.exists(target) and not os.path.isfile(target)
    part = target if in_place else f"{target}.{os.getpid()}.part"
    try:
        with open(part, mode, **how) as file:
            yield file
        if not in_place:
            with contextlib.suppress(FileNotFoundError):
                os.chmod(part, os.stat(target).st_mode & 0o777)
            os.replace(part, target)
    except OSError as problem:
        raise error(f"cannot write {size_of(needed)} of {os.fspath(path)}: {problem.strerror or problem}") from problem
    finally:
        if not in_place:
            with contextlib.suppress(OSError):
                os.unlink(part)


def write(path: Any, content: str | bytes, error: Callable[[str], Exception] = AmpiError) -> None:
    """Write a file, completely or not at all."""
    data = content.encode() if isinstance(content, str) else content
    with replacing(path, "wb", needed=len(data), error=error) as file:
        file.write(data)


class Guarded:
    """A file for HDF5, which crashes if it cannot write: the error is raised after HDF5 has closed the file."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._error: OSError | None = None

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._error is not None:
            raise self._error

    def write(self, data: Any) -> int:
        """Write all of the data, unless an error has occurred."""
        left = memoryview(data).cast("B")
        size = len(left)
        try:
            while self._error is None and len(left):
                left = left[self._raw.write(left) :]
        except OSError as error:
            self._error = error
        return size

    def read(self, size: int = -1) -> bytes:
        """Read bytes; h5py recognises a file by this method."""
        return bytes(self._raw.read(size))

    def readinto(self, room: Any) -> int:
        """Read into a buffer; zeros where nothing could be written."""
        view = memoryview(room).cast("B")
        count = self._raw.readinto(view) or 0
        view[count:] = bytes(len(view) - count)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Set the size of the file."""
        try:
            return int(self._raw.truncate(size))
        except OSError as error:
            self._error = self._error or error
        return size or 0

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to an offset."""
        return int(self._raw.seek(offset, whence))

    def tell(self) -> int:
        """Return the offset."""
        return int(self._raw.tell())

    def flush(self) -> None:
        """Do nothing: no data is buffered."""

"""Memory that code outside ampi may write: needed values are saved before it is handed out, and checksums find changes.

What ampi computes, receives and assigns is announced (`tape.overwrite`).  Code that has the address of an array's
memory can write to it unannounced: through a buffer, a plain view, a pointer.  A sweep would then use wrong values for
earlier records, and add derivatives to values that are no longer in memory.

- When an array is **lent** (its address is handed out), the values that records need of it are saved, and values that
  are needed from then on are copied at once.
- A guarded storage that carries derivatives has a **baseline**: the checksum of its bytes after the last announced
  write.  It is compared whenever the storage is read on a tape.
- With ``AMPI_CHECK=full`` all storages are guarded, and a **note** of each needed array keeps a checksum, which the
  sweep compares before it uses the values.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..base.program_lines import LIBRARIES, where_called
from ..errors import ActivityError
from .storages import Storage, TrackedArray, address_of, memory_at, storage_of


def checksum(array: np.ndarray) -> int:
    """Return a checksum of the bytes of an array's elements."""
    if not array.flags.forc:
        array = array.copy(order="K")
    return _checksum_at(address_of(array), array.nbytes)


def _checksum_at(address: int, nbytes: int) -> int:
    return checksum_of_bytes(memory_at(address, nbytes)) if nbytes else 0


def checksum_of_bytes(flat: np.ndarray) -> int:
    """Return a checksum of bytes: their CRC or, of many bytes, the CRC of the row and column sums of a table of words.

    The latter is several times as fast.  It detects every change within a single row or column, and the change of sign
    of all numbers of a row (rows have an odd number of words).
    """
    rows = len(flat) // _ROW
    if rows < _FEW:
        return zlib.crc32(flat)  # type: ignore[arg-type]
    table = flat[: rows * _ROW].view(np.uint64).reshape(rows, -1)
    left = zlib.crc32(flat[rows * _ROW :])  # type: ignore[arg-type]
    return zlib.crc32(np.add.reduce(table, 0), zlib.crc32(np.add.reduce(table, 1), left))  # type: ignore[arg-type]


_ROW, _FEW = 2040, 8  # bytes of a row, and rows below which the CRC is that of the bytes


# ------------------------------------------------------------------------------------------------ announced writes


def unsettle(storage: Storage, array: np.ndarray | None) -> None:
    """Announce a write to all of an array (None: to some part) of a guarded storage."""
    if array is None or array.nbytes < storage.nbytes:
        if storage.tape is not None:
            look(storage, array)
    storage.baseline = None


def settle(storage: Storage) -> None:
    """Note the checksum of a guarded storage after an announced write."""
    if storage.tape is not None and not _is_foreign(storage):
        storage.baseline = storage.tape, _checksum_at(storage.address, storage.nbytes), where_called()


def settle_all(arrays: Sequence[Any]) -> None:
    """Note the checksums of arrays after an announced write."""
    for array in arrays:
        storage = storage_of(array) if isinstance(array, np.ndarray) else None
        if storage is not None and storage.guard:
            settle(storage)


def _is_foreign(storage: Storage) -> bool:
    return bool(storage.arriving or storage.volatile or storage.elsewhere)


def look(storage: Storage, array: np.ndarray | None) -> None:
    """Check a guarded storage that carries derivatives before it is read.

    Raises
    ------
    ActivityError
        Its bytes are not those of the last announced write.
    """
    baseline = storage.baseline
    if baseline is None or baseline[0] is not storage.tape or _is_foreign(storage):
        return
    if baseline[1] == _checksum_at(storage.address, storage.nbytes):
        return
    raise ActivityError(
        f"{describe(storage, array)}, which carries derivatives, has been changed by code that ampi does not see, "
        f"after {baseline[2]} and before {where_called()}; {INSTEAD}"
    )


INSTEAD = (
    "let that code write into a plain numpy array and assign it (x[...] = plain), wrap it with ampi.custom_vjp, or "
    "pass it a copy (ampi.value(x)) if it only reads"
)


class Note:
    """The checksum of an array whose values a record needs."""

    __slots__ = ("checksum", "view", "where")

    def __init__(self, view: np.ndarray) -> None:
        self.view = view
        self.checksum = checksum(view)
        self.where = where_called()

    def verify(self) -> None:
        """Raise an error if the array has been modified."""
        if checksum(self.view) != self.checksum:
            storage = storage_of(self.view)
            raise ActivityError(
                f"{describe(storage, self.view)} has been changed by code that ampi does not see, after "
                f"{self.where} used it and needed its value for the derivative; {INSTEAD}"
            )


# ---------------------------------------------------------------------------------------------------------- messages


def describe(storage: Storage | None, array: np.ndarray | None) -> str:
    """Describe an array in words, with the names of the callers' variables."""
    names: list[str] = []
    frame: Any = sys._getframe(1)
    while storage is not None and frame is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in LIBRARIES:
            names += [
                name
                for name, value in list(frame.f_locals.items())
                if isinstance(value, TrackedArray) and storage_of(value) is storage and name not in names
            ]
        frame = frame.f_back
    called = f" ({', '.join(names)})" if names else ""
    if array is None:
        return f"the memory of an array of {storage.nbytes} bytes{called}"  # type: ignore[union-attr]
    return f"an array of shape {array.shape} and dtype {array.dtype}{called}"

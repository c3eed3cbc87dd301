"""The file of a tape with a memory budget: blocks of arrays are written in the background, and read ahead in sweeps.

Checkpoints of whole states are in `ampi.checkpoint`.  Here the undo log itself goes to disk, in the order of a stack,
which suits disks best: written once forward, read once backward.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from ..errors import TapeError
from ..memory.extents import address_of, bounds_of
from ..memory.storages import memory_at

ALIGNMENT = 64  # bytes, of arrays in a block
PAGE = 4096  # bytes, to whose multiples blocks in the file are aligned
AHEAD = 2  # blocks that are read before they are requested
MAX_LOADED = 4  # blocks in memory at a time, those included
MAX_PIECES = 512  # in one system call


class PlainExecutor(ThreadPoolExecutor):
    """An executor of ampi's own, whose tasks no tape records."""


_pools: list[ThreadPoolExecutor] = []
os.register_at_fork(after_in_child=_pools.clear)


def _pool() -> ThreadPoolExecutor:
    """Return the reading and writing threads, which all tapes share."""
    if not _pools:
        _pools.append(PlainExecutor(2, "ampi-spill"))
    return _pools[0]


class Block:
    """The place of a block in the file, and the task that writes it."""

    __slots__ = ("nbytes", "offset", "writing")

    def __init__(self, offset: int, nbytes: int) -> None:
        self.offset = offset
        self.nbytes = nbytes
        self.writing: Future[None] | None = None


class SpillFile:
    """A file without a name, which disappears with the process, however that ends.

    Parameters
    ----------
    folder : str
    size : int
        Bytes of an ordinary block: the file grows by several of them at a time.
    """

    def __init__(self, folder: str, size: int) -> None:
        self.folder = folder
        self.size = size
        self.pid = os.getpid()
        self.blocks: list[Block] = []
        self.read_bytes = 0
        self._fd = -1
        try:
            self._fd, path = tempfile.mkstemp(".spill", f"ampi-{self.pid}-", folder)
            os.unlink(path)
        except OSError as error:
            raise TapeError(f"ampi.Tape: spill={folder!r}: cannot create a file there: {error}") from error
        self._end = self._room = 0
        self._loaded: dict[int, Future[np.ndarray]] = {}
        self._lowest = 0  # the block that a sweep has reached
        self._lock = threading.RLock()

    def __del__(self, close: Callable[[int], None] = os.close) -> None:  # modules may have been unloaded
        if self._fd >= 0:
            close(self._fd)

    @property
    def nbytes(self) -> int:
        """The size of the file in bytes."""
        return self._end

    # ------------------------------------------------------------------------------------------------------- writing

    def store(self, arrays: Sequence[np.ndarray]) -> tuple[int, list[Place]]:
        """Write arrays to a new block in the background; return its index and their places."""
        pieces: list[tuple[np.ndarray, int, int]] = []
        places = []
        nbytes = 0
        for array in arrays:
            low, high = bounds_of(array)
            pieces.append((array, low, nbytes))
            places.append(Place(self, len(self.blocks), nbytes, array, low, high - low))
            nbytes += -(-(high - low) // ALIGNMENT) * ALIGNMENT
        block = Block(self._end, nbytes)
        self._reserve(nbytes)
        self._end += -(-nbytes // PAGE) * PAGE
        self.blocks.append(block)
        block.writing = _pool().submit(self._write, block, pieces)
        return len(self.blocks) - 1, places

    def _reserve(self, nbytes: int) -> None:
        if self._end + nbytes <= self._room:
            return
        for room in (max(nbytes, 8 * self.size), nbytes):
            try:
                os.posix_fallocate(self._fd, self._end, -(-room // PAGE) * PAGE)
            except OSError as error:
                failed = error
            else:
                self._room = self._end + room
                return
        raise TapeError(
            f"ampi.Tape: spill={self.folder!r}: no room for {nbytes:,} more bytes after {self._end:,}: {failed}; name "
            "a folder on a larger disk, or run fewer steps"
        ) from failed

    def _write(self, block: Block, pieces: list[tuple[np.ndarray, int, int]]) -> None:
        for begin in range(0, len(pieces), MAX_PIECES // 2):
            some = pieces[begin : begin + MAX_PIECES // 2]
            position = some[0][2]
            views = []
            for array, low, offset in some:
                if offset > position:
                    views.append(memoryview(bytes(offset - position)))
                nbytes = _extent(array)
                views.append(memoryview(memory_at(low, nbytes)))
                position = offset + nbytes
            _write_all(self._fd, views, block.offset + some[0][2])

    def written(self, index: int) -> None:
        """Wait until a block is in the file."""
        writing = self.blocks[index].writing
        if writing is None:
            return
        if os.getpid() != self.pid and not writing.done():
            raise TapeError("ampi.Tape: a child process uses a tape whose file its parent was writing; sweep it there")
        try:
            writing.result()
        except OSError as error:
            raise self._cannot("write", self.blocks[index].nbytes, error) from error
        self.blocks[index].writing = None

    # ------------------------------------------------------------------------------------------------------- reading

    def rewind(self) -> None:
        """Begin a sweep: request the last blocks."""
        with self._lock:
            self._loaded.clear()
            self._lowest = len(self.blocks)
            self._read_ahead()

    def release(self) -> None:
        """End a sweep: release the blocks in memory."""
        with self._lock:
            self._loaded.clear()
            self._lowest = 0

    def _read_ahead(self) -> None:
        for index in range(self._lowest - 1, max(-1, self._lowest - 1 - AHEAD), -1):
            if index not in self._loaded:
                self._ask_for(index)
        while len(self._loaded) > MAX_LOADED:
            del self._loaded[max(self._loaded)]

    def _ask_for(self, index: int) -> Future[np.ndarray]:
        # This thread allocates the memory: the C library keeps what it frees for its next block.
        found = self._loaded[index] = _pool().submit(self._read_block, index, _room(self.blocks[index].nbytes))
        return found

    def _read_block(self, index: int, buffer: np.ndarray) -> np.ndarray:
        self.written(index)
        return self._read(self.blocks[index].offset, buffer)

    def _read(self, offset: int, buffer: np.ndarray) -> np.ndarray:
        nbytes = buffer.nbytes
        self.read_bytes += nbytes
        view, done = memoryview(buffer), 0
        while done < nbytes:
            try:
                count = os.preadv(self._fd, [view[done:]], offset + done)
            except OSError as error:
                raise self._cannot("read", nbytes, error) from error
            if not count:
                raise TapeError(f"ampi.Tape: spill={self.folder!r}: the file is shorter than the data written to it")
            done += count
        return buffer

    def get(self, place: Place) -> tuple[np.ndarray, int]:
        """Return bytes that contain an array, read-only, and its offset in them."""
        index = place.index
        with self._lock:
            found = self._loaded.get(index)
            if index < self._lowest:
                self._lowest = index
                if found is None:
                    found = self._ask_for(index)
                self._read_ahead()
        if found is not None:
            return found.result(), place.offset
        self.written(index)  # the block has been passed, or there is no sweep: read this array only
        return self._read(self.blocks[index].offset + place.offset, _room(place.nbytes)), 0

    def put(self, place: Place, array: np.ndarray) -> None:
        """Overwrite an array in the file."""
        if os.getpid() != self.pid:
            raise TapeError("ampi.Tape: a child process walks a tape whose file is its parent's; walk it there")
        self.written(place.index)
        low, high = bounds_of(array)
        offset = self.blocks[place.index].offset + place.offset
        with self._lock:
            try:
                _write_all(self._fd, [memoryview(memory_at(low, high - low))], offset)
            except OSError as error:
                raise self._cannot("write", high - low, error) from error
            self._loaded.pop(place.index, None)

    def _cannot(self, what: str, nbytes: int, error: OSError) -> TapeError:
        return TapeError(f"ampi.Tape: spill={self.folder!r}: cannot {what} {nbytes:,} bytes: {error.strerror or error}")


class Place:
    """The place of an array in a file, and its layout."""

    __slots__ = ("dtype", "file", "index", "nbytes", "offset", "shape", "start", "strides")

    def __init__(self, file: SpillFile, index: int, offset: int, array: np.ndarray, low: int, nbytes: int) -> None:
        self.file = file
        self.index = index
        self.offset = offset
        self.nbytes = nbytes
        self.start = address_of(array) - low
        self.shape = array.shape
        self.strides = array.strides
        self.dtype = array.dtype

    def array(self) -> np.ndarray:
        """Return the array, to be read at once."""
        buffer, offset = self.file.get(self)
        return np.ndarray(self.shape, self.dtype, buffer, offset + self.start, self.strides)


def may_go(array: Any) -> bool:
    """Return whether an array can be written as one block of memory, and is large enough to be worth it."""
    return (
        type(array) is np.ndarray
        and array.nbytes >= MIN_BYTES
        and not array.dtype.hasobject
        and _extent(array) == array.nbytes
    )


def _room(nbytes: int) -> np.ndarray:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    begin = -address_of(room) % ALIGNMENT
    return room[begin : begin + nbytes]


MIN_BYTES = 512  # as many as its `Place` takes


def _extent(array: np.ndarray) -> int:
    low, high = bounds_of(array)
    return high - low


def _write_all(fd: int, views: list[memoryview], offset: int) -> None:
    while views:
        count = os.pwritev(fd, views, offset)
        offset += count
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if views:
            views[0] = views[0][count:]


def folder_for(spill: Any) -> str:
    """Return the folder that ``spill=`` names; node-local by default."""
    if spill is True:
        return tempfile.gettempdir()
    with contextlib.suppress(TypeError):
        folder = os.fspath(spill)
        if isinstance(folder, str) and os.path.isdir(folder):
            return folder
    raise TapeError(f"ampi.Tape: spill={spill!r}: name a folder that exists, or give True for $TMPDIR")

"""The arguments of the tangent's part in a collective call: the memory of tangents in the place of that of values.

Tangents have the layout of the values, so the arguments stay what they are but for the memory.  Where that is not at
hand (MPI.BOTTOM, datatypes of several dtypes that have been freed) the tangents are copied into a flat message of the
same length; and messages of bytes, which may hold packed elements, have a number for each byte (`packed_adjoints`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from mpi4py import MPI as mpi
from mpi4py.util.dtlib import from_numpy_dtype

from ...errors import ActivityError
from ...memory.storages import carries_derivatives, region_of, storage_of
from ...tape import Push, where_called
from ..memory.argument_forms import as_array, is_bottom, is_in_place, lasting
from ..memory.arguments import parse, parse_moved, parse_types_moved, parse_vector_moved
from ..memory.buffers import NOTHING
from ..memory.packed_adjoints import SLOT_DTYPE
from ..memory.tangents import set_tangent, tangent_in
from ..memory.typemaps import Typemap
from .collective_calls import Call


class Arguments:
    """The arguments of a call whose memory is that of tangents.

    Attributes
    ----------
    of_tangents : dict
        By name.
    """

    __slots__ = ("_flat", "_push", "_scratch", "name", "of_tangents")

    def __init__(self, comm: Any, operation: Any, call: Call, given: dict[str, Any], push: Push) -> None:
        self.name = operation.name
        self._push = push
        self._scratch: list[np.ndarray] = []
        self._flat: list[tuple[np.ndarray, list[Any]]] = []
        reads, writes = operation.buffers
        of_bytes = any(map(_is_of_bytes, (*call.reads, *call.writes)))
        self.of_tangents: dict[str, Any] = {}
        for name, x in given.items():
            if name not in (reads, writes):
                self.of_tangents[name] = x
            elif not _counts_here(comm, operation.name, given.get("root"), name == writes and reads != writes):
                self.of_tangents[name] = None
            elif isinstance(x, Parsed):
                self.of_tangents[name] = self._flattened(x, name == writes, "op" in given)
            elif of_bytes or _is_far(x):
                x = Parsed(comm, operation, given, name, x)
                self.of_tangents[name] = self._flattened(x, name == writes, "op" in given)
            else:
                self.of_tangents[name] = _memory_of_tangents(push, x, name == writes, self._scratch)

    def _flattened(self, parsed: Parsed, written: bool, reduces: bool) -> Any:
        """An argument with its tangents, copied, as a flat message of bytes."""
        if parsed.absent is not False:
            return parsed.absent
        buffers, blocks = parsed.buffers, parsed.blocks
        pieces = [_flat(self._push, buffer) for buffer in buffers]
        flat = np.concatenate(pieces)
        if written:
            self._flat.append((flat, buffers))
        if reduces:
            return [flat.view(buffers[0].dtype), buffers[0].count // (blocks or 1)]
        if parsed.typed:
            counts = [piece.size for piece in pieces]
            return [flat, counts, np.cumsum([0, *counts[:-1]]).tolist(), [mpi.BYTE] * len(counts)]
        if parsed.vector:
            (buffer,) = buffers
            items = [n * (flat.size // buffer.count) for n in buffer.counts] if buffer.count else [0] * blocks
            return [flat, items, mpi.BYTE]
        return [flat, mpi.BYTE]

    def finish(self) -> None:
        """The operation has ended: tangents that were copied are put where they belong."""
        lost = any(a.any() for a in self._scratch)
        for flat, buffers in self._flat:
            start = 0
            for buffer in buffers:
                end = start + _length(buffer)
                found = _elements(buffer, flat[start:end])
                lost = lost or bool(buffer.loses and found is not None and _lost(buffer, found))
                set_tangent(self._push, buffer, found)
                start = end
        if lost:
            raise ActivityError(
                f"{self.name} at {where_called()}: an active array is received into memory that is not tracked, where "
                "its derivative would be lost; make the receive buffer with ampi.numpy, or send ampi.value(...)"
            )


class Parsed:
    """An argument as the buffers that it means.

    Attributes
    ----------
    absent : object
        What is passed on in the place of memory: MPI.IN_PLACE, or None where the argument means nothing; else False.
    buffers : list of Buffer
        One, or one for each rank where each has a datatype.
    blocks : int
        Number of blocks, 0 for one that is not divided.
    typed, vector : bool
        There is a datatype, or a count, for each block.
    """

    __slots__ = ("absent", "blocks", "buffers", "typed", "vector")

    def __init__(self, comm: Any, operation: Any, given: dict[str, Any], name: str, spec: Any) -> None:
        method, (reads, writes) = operation.name, operation.buffers
        written = name == writes
        self.absent: Any = False
        if is_in_place(spec):
            self.absent = spec
        elif not _counts_here(comm, method, given.get("root"), written and reads != writes):
            self.absent = None
        self.blocks = _blocks(comm, method, written)
        if method == "Reduce_scatter_block" and (is_in_place(given["sendbuf"]) or not written):
            self.blocks = comm.Get_size()
        self.typed = method.endswith("w")
        self.vector = bool(method.endswith("v") and self.blocks)
        self.buffers: list[Any] = []
        if self.absent is not False:
            return
        if self.typed:
            self.buffers = parse_types_moved(spec, self.blocks)
        elif self.vector:
            self.buffers = [parse_vector_moved(spec, self.blocks)]
        else:
            self.buffers = [(parse if "op" in given else parse_moved)(spec, self.blocks)]

    def detach(self) -> Parsed:
        """Keep no memory alive."""
        for buffer in self.buffers:
            buffer.detach()
        return self


def _is_of_bytes(buffer: Any) -> bool:
    return buffer is not NOTHING and (buffer.packed or (buffer.dtype is not None and buffer.dtype.itemsize == 1))


def _is_far(spec: Any) -> bool:
    """Whether the memory of an argument, or its datatype, is not at hand."""
    if is_in_place(spec):
        return False
    if not isinstance(spec, (list, tuple)):
        return is_bottom(spec)
    if is_bottom(spec[0]):
        return True
    return any(isinstance(item, Typemap) and (item.mixed or item.dtype is None) for item in spec)


_MANY = {  # what has a block for each rank
    **dict.fromkeys(("Gather", "Gatherv", "Allgather", "Allgatherv", "Neighbor_allgather"), (False, True)),
    **dict.fromkeys(("Neighbor_allgatherv",), (False, True)),
    **dict.fromkeys(("Scatter", "Scatterv"), (True, False)),
    **dict.fromkeys(("Alltoall", "Alltoallv", "Alltoallw"), (True, True)),
    **dict.fromkeys(("Neighbor_alltoall", "Neighbor_alltoallv", "Neighbor_alltoallw"), (True, True)),
}


def _blocks(comm: Any, name: str, written: bool) -> int:
    if not _MANY.get(name, (False, False))[written]:
        return 0
    if name.startswith("Neighbor"):
        return comm.indegree if written else comm.outdegree
    return comm.Get_remote_size() if comm.Is_inter() else comm.Get_size()


def _counts_here(comm: Any, name: str, root: int | None, written: bool) -> bool:
    """Whether this rank's argument means something, for operations with a root."""
    if root is None or name == "Bcast":
        return root != mpi.PROC_NULL
    gives = written == name.startswith("Scatter")  # the side that all ranks but the root have
    if comm.Is_inter():
        return root >= 0 if gives else root == mpi.ROOT
    return gives or comm.Get_rank() == root


def _length(buffer: Any) -> int:
    """Bytes of the flat message of a buffer's tangents."""
    if buffer is NOTHING:
        return 0
    if _is_of_bytes(buffer):
        return buffer.nbytes * SLOT_DTYPE.itemsize
    return buffer.nbytes


def _flat(push: Push, buffer: Any) -> np.ndarray:
    flat = np.zeros(_length(buffer), np.uint8)
    if not flat.size or not buffer.tracked or buffer.dtype is None:
        return flat
    tangents = tangent_in(push, buffer)
    if _is_of_bytes(buffer) or not buffer.mixed:
        flat[:] = tangents.view(np.uint8)
    else:
        flat[_bytes_of(buffer)] = tangents.view(np.uint8).reshape(buffer.count, -1)
    return flat


def _elements(buffer: Any, flat: np.ndarray) -> np.ndarray | None:
    """The tangents in a flat message; None if there are none."""
    if not flat.size or buffer.dtype is None:
        return None
    if _is_of_bytes(buffer):
        return flat.view(SLOT_DTYPE)
    if buffer.mixed:
        return flat[_bytes_of(buffer)].view(buffer.dtype).reshape(-1)
    return flat.view(buffer.dtype)


def _bytes_of(buffer: Any) -> np.ndarray:
    return buffer.places()[:, None] + np.arange(buffer.dtype.itemsize)


def _lost(buffer: Any, found: np.ndarray) -> bool:
    """Whether tangents came that are not zero, for memory that is not tracked."""
    lost = found.copy()
    for where, part in getattr(buffer, "parts", ()):
        if part.tracked:
            lost[where] = 0
    return bool(lost.any())


class Seen:
    """The memory of an argument that is not kept alive: what has to be known of it."""

    __slots__ = ("array_like", "region", "writeable")

    def __init__(self, array: np.ndarray) -> None:
        self.region = region_of(array) if storage_of(array) is not None else None
        self.writeable = array.flags.writeable
        order = "F" if array.flags.f_contiguous and not array.flags.c_contiguous else "C"
        self.array_like: tuple[Any, Any, Any] = array.shape, array.dtype, order


def seen(comm: Any, operation: Any, call: Call, given: dict[str, Any]) -> dict[str, Any]:
    """Arguments that a walk will be given, with what is known of memory in its place."""
    parsed = any(map(_is_of_bytes, (*call.reads, *call.writes)))
    parsed = parsed or any(_is_far(lasting(given[name])) for name in operation.buffers)
    return {
        name: x
        if name not in operation.buffers
        else Parsed(comm, operation, given, name, x).detach()
        if parsed
        else _seen(comm, operation, given, name)
        for name, x in given.items()
    }


def _seen(comm: Any, operation: Any, given: dict[str, Any], name: str) -> Any:
    written = name == operation.buffers[1] != operation.buffers[0]
    counts = _counts_here(comm, operation.name, given.get("root"), written)
    return _of_memory(given[name]) if counts else None


def _of_memory(spec: Any) -> Any:
    if is_in_place(spec):
        return spec
    if isinstance(spec, (list, tuple)):
        return [_of_memory(spec[0]), *(lasting(item) for item in spec[1:])]
    return Seen(as_array(spec))


def _memory_of_tangents(push: Push, spec: Any, written: bool, scratch: list[np.ndarray]) -> Any:
    """A message argument with the memory of tangents in the place of that of values."""
    if spec is None or is_in_place(spec):
        return spec
    if isinstance(spec, (list, tuple)):
        return [
            _memory_of_tangents(push, spec[0], written, scratch),
            *(_with_datatypes(push, item) for item in spec[1:]),
        ]
    found = spec if isinstance(spec, Seen) else Seen(as_array(spec))
    region = found.region
    if region is not None and (found.writeable if written else push.has_block(region.storage)):
        return np.ndarray(region.shape, region.dtype, push.block(region.storage), region.offset, region.strides)
    shape, dtype, order = found.array_like
    made = np.zeros(shape, dtype, order)
    if written and (carries_derivatives(dtype) or dtype.itemsize == 1):
        scratch.append(made)
    return made


def _with_datatypes(push: Push, item: Any) -> Any:
    """An item of a message argument with datatypes for what has been noted of them (`argument_forms.lasting`)."""
    if isinstance(item, (list, tuple)):
        return type(item)(_with_datatypes(push, part) for part in item)
    if not isinstance(item, Typemap):
        return item
    known_types = push.state.setdefault("datatypes", {})
    if item not in known_types:
        elements = from_numpy_dtype(item.dtype).Create_hindexed_block(1, item.offsets.tolist())
        known_types[item] = made = elements.Create_resized(0, item.extent).Commit()
        elements.Free()
        push.at_end(lambda error: made.Free())  # type: ignore[attr-defined]
    return known_types[item]

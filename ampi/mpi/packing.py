"""Packing: elements are copied into arrays of bytes and back, and so are their adjoints.

`Datatype` is a subclass of mpi4py's, of which the predefined datatypes become instances.  `packed_adjoints` describes
packed bytes and their adjoints.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from mpi4py import MPI as mpi

from ..base.program_lines import warning_level
from ..errors import ActivityError, ActivityWarning
from ..memory.storages import PACKED
from ..tape import BaseAdjoint, Push, Sweep, Tape, current, living
from .base.handles import AcceptsBase, Constant, Handles
from .base.rules import Operation, Treatment, enter
from .memory.argument_forms import as_array
from .memory.arguments import parse, parse_bytes
from .memory.buffers import Buffer, as_packed
from .memory.packed_adjoints import PackedAdjoints
from .memory.plain_buffers import warn_if_plain
from .memory.tangents import set_tangent, tangent_in

_Datatype = mpi.Datatype  # mpi4py's own: the name in its module is rebound later


class Datatype(Constant, Handles, _Datatype, metaclass=AcceptsBase):
    """Datatype object.

    Active arrays are packed into arrays of bytes made with ampi.numpy, ``np.empty(n, np.uint8)``, which may be sent
    and received as ``MPI.PACKED`` or ``MPI.BYTE``, broadcast, copied, and unpacked on any rank.
    """

    __slots__ = ()
    _base = _Datatype

    @classmethod
    def fromcode(cls, code: str) -> Any:
        """Get predefined MPI datatype from character code or type string."""
        return cls(_Datatype.fromcode(code))  # type: ignore[call-arg]

    def Pack(self, inbuf: Any, outbuf: Any, position: int, comm: Any) -> int:
        """Pack into contiguous memory according to datatype."""
        if not living:
            return _Datatype.Pack(self, inbuf, outbuf, position, comm)
        size = _items(self, inbuf) * self.size
        primal = lambda: _Datatype.Pack(self, inbuf, outbuf, position, comm)
        return _pack(self, inbuf, outbuf, position, size, primal)

    def Unpack(self, inbuf: Any, position: int, outbuf: Any, comm: Any) -> int:
        """Unpack from contiguous memory according to datatype."""
        if not living:
            return _Datatype.Unpack(self, inbuf, position, outbuf, comm)
        size = _items(self, outbuf) * self.size
        primal = lambda: _Datatype.Unpack(self, inbuf, position, outbuf, comm)
        return _unpack(self, inbuf, position, outbuf, size, primal)

    def Pack_external(self, datarep: str, inbuf: Any, outbuf: Any, position: int) -> int:
        """Pack into contiguous memory according to datatype, in the external format."""
        if not living:
            return _Datatype.Pack_external(self, datarep, inbuf, outbuf, position)
        size = self.Pack_external_size(datarep, _items(self, inbuf))
        primal = lambda: _Datatype.Pack_external(self, datarep, inbuf, outbuf, position)
        return _pack(self, inbuf, outbuf, position, size, primal)

    def Unpack_external(self, datarep: str, inbuf: Any, position: int, outbuf: Any) -> int:
        """Unpack from contiguous memory according to datatype, from the external format."""
        if not living:
            return _Datatype.Unpack_external(self, datarep, inbuf, position, outbuf)
        size = self.Pack_external_size(datarep, _items(self, outbuf))
        primal = lambda: _Datatype.Unpack_external(self, datarep, inbuf, position, outbuf)
        return _unpack(self, inbuf, position, outbuf, size, primal)


def _items(datatype: mpi.Datatype, memory: Any) -> int:
    """Return the number of items of a datatype that mpi4py finds in memory."""
    return as_array(memory).nbytes // datatype.extent if datatype.extent > 0 else 0


def _pack(datatype: Datatype, inbuf: Any, outbuf: Any, position: int, size: int, primal: Callable[[], int]) -> int:
    source = as_packed(parse([inbuf, _items(datatype, inbuf), datatype]))
    return _moved("Pack", source, _bytes_at(outbuf, position, size), size, primal)


def _unpack(datatype: Datatype, inbuf: Any, position: int, outbuf: Any, size: int, primal: Callable[[], int]) -> int:
    target = as_packed(parse([outbuf, _items(datatype, outbuf), datatype]))
    return _moved("Unpack", _bytes_at(inbuf, position, size), target, size, primal)


def _bytes_at(memory: Any, position: int, size: int) -> Buffer:
    """Return packed memory: up to ``size`` bytes from ``position`` on."""
    size = max(min(size, as_array(memory).nbytes - position), 0)
    return parse_bytes([memory, (size, position), mpi.BYTE])


class _Moved(BaseAdjoint):
    """Adjoint of moving elements from one buffer to another, one of them packed."""

    __slots__ = ("source", "target")
    reads_memory = False
    second_order = "linear"

    def __init__(self, source: Any, target: Any) -> None:
        self.source = source
        self.target = target

    def __call__(self, sweep: Sweep) -> None:
        if self.source is None:
            self.target.zero(sweep)
        else:
            self.source.add(sweep, self.target.take(sweep))

    def tangent(self, push: Push) -> None:
        """Move the tangents as the elements were moved."""
        set_tangent(push, self.target, None if self.source is None else tangent_in(push, self.source))


def _moved(name: str, source: Buffer, target: Buffer, size: int, primal: Callable[[], int]) -> int:
    """Pack or unpack while some tape exists."""
    tape = current()
    active = tape is not None and source.active(tape)
    if active:
        active = _carries(name, source, target, size)
    elif name == "Pack":
        warn_if_plain("Datatype.Pack", source, "packs", "into", "bytes")
    overwrites = tape is not None and target.storage is not None and tape.is_active(target.array)
    undo = target.overwrite()
    position = primal()
    if tape is None:
        return position
    if active:
        _activate(tape, name, source, target)
        tape.append(_Moved(_slots(source.detach()), _slots(target.detach())), undo)
    elif overwrites or undo:
        tape.append(_Moved(None, target.detach()) if overwrites else None, undo)
    return position


def _slots(buffer: Buffer) -> Any:
    return buffer if buffer.packed else PackedAdjoints(buffer)


def _activate(tape: Tape, name: str, source: Buffer, target: Buffer) -> None:
    target.activate(tape)
    if target.packed and not source.uncertain():
        target.storage.packed = PACKED  # type: ignore[union-attr]


def _carries(name: str, source: Buffer, target: Buffer, size: int) -> bool:
    """Return whether active elements keep their derivatives.

    Raises
    ------
    ActivityError
        Derivatives would be lost, or adjoints could not be assigned to elements.
    """
    packed, elements = (target, source) if name == "Pack" else (source, target)
    if elements.dtype is not None and elements.dtype.kind not in "fc":
        return False  # integers
    if not target.tracked:
        where = "bytes" if name == "Pack" else "an array"
        message = (
            f"Datatype.{name}: active values go into {where} where derivatives would be lost; make the memory with "
            "ampi.numpy (bytes: np.empty(n, np.uint8)), or pass ampi.value(...)"
        )
        if source.uncertain():
            warnings.warn(message, ActivityWarning, stacklevel=warning_level())
            return False
        raise ActivityError(message)
    if elements.nbytes != size or elements.dtype is None:
        raise ActivityError(
            f"Datatype.{name}: active values are packed in a format whose elements have other sizes than in memory, or "
            "with several floating-point dtypes; pack each dtype separately, or ampi.value(...)"
        )
    if not packed.packed and (packed.dtype != elements.dtype or packed.count != elements.count):
        raise ActivityError(
            f"Datatype.{name}: the packed bytes lie in a floating-point array and hold elements of another dtype; make "
            "it of bytes: np.empty(n, np.uint8)"
        )
    return True


for _name in ("Pack", "Pack_external"):
    enter(Operation("Datatype", _name, Treatment.DIFFERENTIATED, ("inbuf",), ("outbuf",), "x̄ += unpacked ȳ; ȳ = 0"))
for _name in ("Unpack", "Unpack_external"):
    enter(Operation("Datatype", _name, Treatment.DIFFERENTIATED, ("inbuf",), ("outbuf",), "x̄ += packed ȳ; ȳ = 0"))

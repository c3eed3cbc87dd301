"""Encoding of states as plain data and arrays, for files from which another process of the program restores them."""

from __future__ import annotations

import array
import collections
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI

from ..base.structures import new_tuple
from ..errors import TapeError
from ..memory.extents import address_of, bounds_of
from ..memory.storages import Region, Storage, TrackedArray, is_scalar, memory_at, plain, storage_of, tracked
from ..memory.storages import tracked_copy as as_number
from ..mpi.messages.requests import Request
from .states import owner_of
from .views import ATOMS, GENERATORS, attributes, further_attributes, has_state, refill, set_attributes, spelled


class Outside:
    """The memory that existed when a loop began, with names that are the same in another process of the program.

    The memory of the state comes first, then active memory in the order of its creation.  The rest is identified by its
    size and by its index among blocks of that size.
    """

    def __init__(self, owners: dict[Storage, np.ndarray], first: Sequence[Any], active: Iterable[Storage]) -> None:
        self.owners = owners
        known = [storage_of(x) for x in first if isinstance(x, np.ndarray)]
        in_order = dict.fromkeys((*known, *sorted(active, key=_serial)))
        self.named: list[Storage] = [s for s in in_order if s in owners]
        self.names: dict[Any, Any] = {storage: k for k, storage in enumerate(self.named)}
        rest: dict[int, list[Storage]] = {}
        for storage in sorted(owners.keys() - self.names.keys(), key=_serial):
            if not is_scalar(owners[storage]):
                rest.setdefault(storage.nbytes, []).append(storage)
        for nbytes, alike in rest.items():
            self.names.update((s, (nbytes, k, len(alike))) for k, s in enumerate(alike))
        self._storages = {name: storage for storage, name in self.names.items()}

    def storage(self, name: Any) -> Storage:
        """Return the memory with a name."""
        if name not in self._storages:
            raise TapeError(
                f"ampi.timeloop: resume=True: steps have written to an array of {name[0]} bytes beside the state, "
                "which cannot be identified now; add it to the state"
            )
        return self._storages[name]

    def encoded(self, array: np.ndarray) -> tuple[Any, ...]:
        """Return the position of an array in this memory, as data."""
        storage = storage_of(array)
        offset = address_of(array) - storage.address  # type: ignore[union-attr]
        return self.names[storage], offset, array.shape, array.strides, array.dtype

    def view(self, encoded: tuple[Any, ...]) -> np.ndarray:
        """Return the array for such data."""
        name, offset, shape, strides, dtype = encoded
        storage = self.storage(name)
        owner = self.owners[storage]
        if owner.flags.f_contiguous:
            owner = owner.T
        shift = storage.address - address_of(owner)
        return np.ndarray(shape, dtype, owner, offset + shift, strides)


def _serial(storage: Storage) -> int:
    return storage.serial


def objects_of(state: Any) -> list[Any]:
    """Return all objects in a state except numbers and text, each once, in the order of a traversal."""
    found: dict[int, Any] = {}

    def visit(x: Any) -> None:
        if type(x) in ATOMS or issubclass(type(x), np.generic) or id(x) in found:
            return
        found[id(x)] = x
        for part in (*_parts(x).values(), *further_attributes(x).values()):
            visit(part)

    visit(state)
    return list(found.values())


def _parts(x: Any) -> dict[Any, Any]:
    if isinstance(x, (np.ndarray, *GENERATORS)):
        return {}
    if isinstance(x, _SEQUENCES):
        return dict(enumerate(x))
    if isinstance(x, dict):
        return dict(x)
    return dict(attributes(x)) if has_state(x) else {}


_SEQUENCES = tuple, list, collections.deque


class Encoder:
    """Encoder of a state as plain data; ``arrays`` collects the arrays that are stored separately.

    Objects that the state contained when the loop began (``first``, from `objects_of`) are encoded by their index.
    """

    def __init__(self, outside: Outside, first: Sequence[Any]) -> None:
        self.outside = outside
        self.arrays: list[np.ndarray] = []
        self._first = {id(x): k for k, x in enumerate(first)}
        self._blocks: dict[int, int] = {}
        self._visited: dict[int, tuple[int, Any]] = {}

    def add(self, array: np.ndarray) -> int:
        """Store an array separately; return its index."""
        self.arrays.append(array)
        return len(self.arrays) - 1

    def encode(self, x: Any, path: tuple = ()) -> tuple:
        """Return the data of the part of the state at a path."""
        if type(x) in ATOMS or issubclass(type(x), np.generic):
            return "value", x
        if id(x) in self._visited:
            return "again", self._visited[id(x)][0]
        number = len(self._visited)
        self._visited[id(x)] = number, x
        encoded = self._encoded(x, path)
        if held := further_attributes(x):
            attributes_of = {name: self.encode(part, (*path, (".", name))) for name, part in held.items()}
            encoded = "with attributes", encoded, attributes_of
        return (*encoded, self._first.get(id(x)), number)

    def _encoded(self, x: Any, path: tuple) -> tuple:
        if isinstance(x, np.ndarray):
            return self._array(x)
        kind = "[" if isinstance(x, (*_SEQUENCES, dict)) else "."
        parts = {name: self.encode(part, (*path, (kind, name))) for name, part in _parts(x).items()}
        if isinstance(x, (tuple, list)):
            return ("tuple" if isinstance(x, tuple) else "list"), type(x), list(parts.values())
        if isinstance(x, dict):
            return "dict", type(x), parts
        if isinstance(x, collections.deque):
            return "deque", type(x), x.maxlen, list(parts.values())
        if isinstance(x, array.array):
            return "array", type(x), x.typecode, x.tobytes()
        if isinstance(x, bytearray):
            return "bytes", type(x), bytes(x)
        if isinstance(x, set):
            return "set", type(x), set(x)
        if isinstance(x, random.SystemRandom):
            return self._first_one("same", x, path)
        if isinstance(x, np.random.BitGenerator):
            return self._first_one("generator", x, path, x.state)
        if isinstance(x, np.random.RandomState):
            return self._first_one("generator", x, path, x.get_state())
        if isinstance(x, np.random.Generator):
            return self._first_one("generator", x, path, x.bit_generator.state)
        if isinstance(x, random.Random):
            return self._first_one("generator", x, path, x.getstate())
        if has_state(x):
            return "object", type(x), parts
        return self._first_one("same", x, path)

    def _first_one(self, kind: str, x: Any, path: tuple, *encoded: Any) -> tuple:
        if isinstance(x, MPI.Request) and x == MPI.REQUEST_NULL:
            return ("completed",)
        if isinstance(x, MPI.Request) and id(x) not in self._first:
            raise TapeError(
                f"ampi.timeloop: {spelled(path)} is a {type(x).__name__} of a message that has not completed at the "
                "end of a step, or will be started again, and the state did not contain it when the loop began; "
                "complete it in the step that starts it (a persistent one: make it before the loop)"
            )
        if id(x) not in self._first:
            raise TapeError(
                f"ampi.timeloop: {spelled(path)} is a {type(x).__name__}, which cannot be stored in a file, and the "
                "state did not contain it when the loop began; make it before the loop, or keep it out of the state"
            )
        return kind, *encoded

    def _array(self, x: np.ndarray) -> tuple:
        if storage_of(x) in self.outside.names:
            return "outside", self.outside.encoded(x)
        if is_scalar(x):
            return "number", plain(x)[()]
        if x.dtype.hasobject:
            return "objects", x
        if not isinstance(x, TrackedArray):
            return "plain", self.add(x.copy(order="K")), x.flags.writeable
        owner = owner_of(x)
        low, high = bounds_of(owner)
        if id(owner) not in self._blocks:
            self._blocks[id(owner)] = self.add(memory_at(low, high - low).copy())
        offset = address_of(x) - low if x.size else 0
        return "computed", self._blocks[id(owner)], offset, x.shape, x.strides, x.dtype


class Decoder:
    """Decoder of a state; it reuses the objects that the state contained when the loop began."""

    def __init__(self, outside: Outside, first: Sequence[Any], arrays: Sequence[np.ndarray]) -> None:
        self.outside = outside
        self.arrays = arrays
        self._first = first
        self._made: dict[int, Any] = {}
        self._blocks: dict[int, Any] = {}

    def decode(self, data: tuple) -> Any:
        """Return the part of a state that some data encodes."""
        if data[0] == "value":
            return data[1]
        if data[0] == "again":
            return self._made[data[1]]
        *encoded, first, number = data
        present = None if first is None else self._first[first]
        made = _MAKERS[encoded[0]](self, number, present, *encoded[1:])
        self._made[number] = made
        return made

    def _outside(self, _: int, present: Any, encoded: tuple) -> Any:
        return tracked(self.outside.view(encoded)) if present is None else present

    def _number(self, _: int, present: Any, value: Any) -> Any:
        return as_number(value)

    def _objects(self, _: int, present: Any, values: np.ndarray) -> Any:
        if present is None:
            return values
        present[...] = values
        return present

    def _plain(self, _: int, present: Any, number: int, writeable: bool) -> Any:
        values = self.arrays[number]
        if present is None or present.shape != values.shape:
            present = values.copy(order="K")
            present.flags.writeable = writeable
        elif writeable:
            present[...] = values
        return present

    def _computed(
        self, _: int, present: Any, number: int, offset: int, shape: tuple, strides: tuple, dtype: np.dtype
    ) -> Any:
        if number not in self._blocks:
            self._blocks[number] = tracked(self.arrays[number].copy())
        memory = self._blocks[number]
        return np.ndarray(shape, dtype, memory, offset, strides).view(type(memory))

    def _generator(self, _: int, present: Any, encoded: Any) -> Any:
        if isinstance(present, np.random.Generator):
            present.bit_generator.state = encoded
        elif isinstance(present, np.random.BitGenerator):
            present.state = encoded
        elif isinstance(present, random.Random):
            present.setstate(encoded)
        else:
            present.set_state(encoded)
        return present

    def _tuple(self, _: int, present: Any, cls: Any, parts: list) -> Any:
        items = [self.decode(part) for part in parts]
        if present is not None and all(a is b for a, b in zip(items, present)):
            return present
        return new_tuple(cls, items)

    def _list(self, number: int, present: Any, cls: Any, parts: list) -> Any:
        made = self._made[number] = cls() if present is None else present
        made[:] = [self.decode(part) for part in parts]
        return made

    def _deque(self, number: int, present: Any, cls: Any, maxlen: int | None, parts: list) -> Any:
        made = self._made[number] = cls((), maxlen) if present is None else present
        refill(made, [self.decode(part) for part in parts])
        return made

    def _array(self, _: int, present: Any, cls: Any, typecode: str, values: bytes) -> Any:
        if present is None:
            return cls(typecode, values)
        present[:] = array.array(typecode, values)
        return present

    def _items(self, _: int, present: Any, cls: Any, values: Any) -> Any:
        if present is None:
            return cls(values)
        refill(present, values)
        return present

    def _with_attributes(self, number: int, present: Any, encoded: tuple, parts: dict) -> Any:
        made = self._made[number] = _MAKERS[encoded[0]](self, number, present, *encoded[1:])
        set_attributes(made, {name: self.decode(part) for name, part in parts.items()})
        return made

    def _dict(self, number: int, present: Any, cls: Any, parts: dict) -> Any:
        made = self._made[number] = cls() if present is None else present
        items = {key: self.decode(part) for key, part in parts.items()}
        made.clear()
        made.update(items)
        return made

    def _object(self, number: int, present: Any, cls: Any, parts: dict) -> Any:
        made = self._made[number] = cls.__new__(cls) if present is None else present
        for name in attributes(made).keys() - parts.keys():
            object.__delattr__(made, name)
        for name, part in parts.items():
            object.__setattr__(made, name, self.decode(part))
        return made

    def _same(self, _: int, present: Any) -> Any:
        return present

    def _completed(self, _: int, present: Any) -> Any:
        return Request() if present is None else present


_MAKERS: dict[str, Callable[..., Any]] = {
    "outside": Decoder._outside,
    "number": Decoder._number,
    "objects": Decoder._objects,
    "plain": Decoder._plain,
    "computed": Decoder._computed,
    "generator": Decoder._generator,
    "tuple": Decoder._tuple,
    "list": Decoder._list,
    "deque": Decoder._deque,
    "array": Decoder._array,
    "bytes": Decoder._items,
    "set": Decoder._items,
    "with attributes": Decoder._with_attributes,
    "dict": Decoder._dict,
    "object": Decoder._object,
    "same": Decoder._same,
    "completed": Decoder._completed,
}


def region_again(storage: Storage, encoded: tuple[Any, ...]) -> Region:
    """Return a region of a storage from offset, shape, strides and dtype."""
    region = Region.__new__(Region)
    region.storage = storage
    region.offset, region.shape, region.strides, region.dtype = encoded
    return region

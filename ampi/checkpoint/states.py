"""Snapshots of a simulation's state, and their restoration."""

from __future__ import annotations

import array
import collections
import copy
import functools
import operator
import random
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..base.structures import new_tuple
from ..memory.blocks import same_bytes
from ..memory.extents import address_of, bounds_of
from ..memory.handouts import settle_all
from ..memory.storages import TrackedArray, is_scalar, memory_at, plain, storage_of, tracked, tracked_copy
from ..tape import overwrite
from ..tape.recording import open_tapes
from .views import ATOMS, OBJECT, View, attributes, further_attributes, kind_of, refill, set_attributes

PART, PLAIN, COMPUTED = 850, 200, 650
"""Bytes that a snapshot takes for each part of a state, in addition for plain arrays, and for arrays that steps have
created, without their elements; measured with `tracemalloc`."""


def _same(x: Any) -> Any:
    return x


def with_tracked_numbers(view: View) -> View:
    """Return the view of a state with tracked scalars instead of NumPy's numbers.

    They are equivalent where no tape records.
    """
    if not view.has_numbers:
        return view
    return View(Snapshot(view.state, lambda array: True, tracked_copy).restore(), view.paths)


def _put_back(items: Any, parts: Iterable[tuple[Any, Callable[[dict], Any]]], done: dict) -> Any:
    """Restore the parts of a container."""
    for name, restore in parts:
        items[name] = restore(done)
    return items


class Snapshot:
    """A snapshot of a state.

    Parameters
    ----------
    state
        The state now.
    is_saved : callable
        ``is_saved(array)``: True if the values of an array are saved elsewhere.
    number : callable
        Returns the replacement of a floating-point or complex number of NumPy's.
    earlier : dict, optional
        By their identity, plain arrays and their values in the latest snapshot, which are shared if unchanged.
    """

    def __init__(
        self,
        state: Any,
        is_saved: Callable[[np.ndarray], bool],
        number: Callable[[Any], Any] = _same,
        earlier: dict[int, tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        self.nbytes = 0
        self._earlier = {} if earlier is None else earlier
        self._number = number
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._is_saved = is_saved
        self._made: dict[int, tuple[Any, Callable[[dict], Any]]] = {}  # by object, which is kept alive
        self._state = state
        self._restore = self._of(state)

    def restore(self) -> Any:
        """Return the state, with everything in it restored."""
        return self._state if self._restore is None else self._restore({})

    def _parts(self, parts: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Callable[[dict], Any]]]:
        """Return the named parts that need restoring, with functions that restore them."""
        found = [(name, self._of(part)) for name, part in parts if type(part) not in ATOMS]
        return [(name, restore) for name, restore in found if restore is not None]

    def _of(self, x: Any) -> Callable[[dict], Any] | None:
        if id(x) in self._made:
            return self._made[id(x)][1]
        make = _maker_of(type(x))
        if make is None or (make is Snapshot._of_array and self._stays(x)):
            return None
        inside: list[Any] = [None]

        def restore(done: dict) -> Any:
            if id(x) not in done:
                done[id(x)] = x  # for an object that contains itself
                done[id(x)] = inside[0](done)
            return done[id(x)]

        self._made[id(x)] = x, restore
        self.nbytes += PART
        inside[0] = make(self, x)
        if held := further_attributes(x):
            inside[0] = self._with_attributes(dict(held), inside[0])
        return restore

    def _of_number(self, x: Any) -> Callable[[dict], Any]:
        return lambda done: self._number(x)

    def _stays(self, x: np.ndarray) -> bool:
        """Return whether an array needs no restoring."""
        return self._is_saved(x) or not (x.flags.writeable or is_scalar(x))

    def _of_array(self, x: np.ndarray) -> Callable[[dict], Any]:
        if is_scalar(x):
            number = plain(x)[()]
            return lambda done: tracked_copy(number)
        if isinstance(x, TrackedArray):
            return self._of_computed(x)
        values, nbytes = saved_values(x, self._earlier)
        self.nbytes += nbytes + PLAIN

        def restore(done: dict) -> np.ndarray:
            x[...] = values
            return x

        return restore

    def _of_computed(self, x: TrackedArray) -> Callable[[dict], Any]:
        """Restore an array that a step has created as a new one, which shares memory with others as before."""
        owner = owner_of(x)
        block = self._blocks.get(id(owner))
        if block is None:
            block = self._blocks[id(owner)] = owner, _bytes(owner).copy()
            self.nbytes += block[1].nbytes + COMPUTED
        low, _ = bounds_of(owner)
        offset, shape, dtype, strides, cls = address_of(x) - low, x.shape, x.dtype, x.strides, type(x)

        def restore(done: dict) -> np.ndarray:
            memory = done.get(("memory", id(owner)))
            if memory is None:
                memory = done["memory", id(owner)] = tracked(block[1].copy())
            return np.ndarray(shape, dtype, memory, offset if x.size else 0, strides).view(cls)

        return restore

    def _of_tuple(self, x: tuple) -> Callable[[dict], Any]:
        parts = self._parts(enumerate(x))

        def restore(done: dict) -> tuple:
            items = _put_back(list(x), parts, done)
            return x if all(map(operator.is_, items, x)) else new_tuple(type(x), items)

        return restore

    def _of_list(self, x: list | collections.deque) -> Callable[[dict], Any]:
        held, parts = list(x), self._parts(enumerate(x))

        def restore(done: dict) -> list | collections.deque:
            refill(x, _put_back(held.copy(), parts, done))
            return x

        return restore

    def _of_dict(self, x: dict) -> Callable[[dict], Any]:
        held, parts = dict(x), self._parts(x.items())

        def restore(done: dict) -> dict:
            items = _put_back(held.copy(), parts, done)
            x.clear()
            x.update(items)
            return x

        return restore

    def _with_attributes(self, held: dict, contents: Callable[[dict], Any]) -> Callable[[dict], Any]:
        """Restore the attributes of a container as well."""
        parts = self._parts(held.items())

        def restore(done: dict) -> Any:
            x = contents(done)
            set_attributes(x, _put_back(held.copy(), parts, done))
            return x

        return restore

    def _of_object(self, x: Any) -> Callable[[dict], Any]:
        held = dict(attributes(x))
        parts = self._parts(held.items())

        def restore(done: dict) -> Any:
            set_attributes(x, _put_back(held.copy(), parts, done))
            return x

        return restore


class InPlace:
    """A snapshot of a state whose tracked arrays are all in memory that is saved elsewhere.

    The objects in the state stay the same, only their values change.

    Parameters
    ----------
    view : View
        The view of the state now.
    earlier : dict
        See `Snapshot`.
    """

    def __init__(self, view: View, earlier: dict[int, tuple[np.ndarray, np.ndarray]]) -> None:
        self.nbytes = 0
        self._state = view.state
        self._inside = [(inside, inside.parts) for inside in view.inside]
        self._generators = [_maker_of(type(g))(None, g) for g in view.generators]  # type: ignore[misc, arg-type]
        self._plain = []
        for x in view.arrays.values():
            if not isinstance(x, TrackedArray) and x.flags.writeable and storage_of(x) is None:
                values, nbytes = saved_values(x, earlier)
                self._plain.append((x, values))
                self.nbytes += nbytes + PLAIN

    def restore(self) -> Any:
        for inside, parts in self._inside:
            inside.put_back(parts)
        for x, values in self._plain:
            x[...] = values
        for put_back in self._generators:
            put_back({})
        return self._state


def saved_values(x: np.ndarray, earlier: dict[int, tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, int]:
    """Return a copy of the values of a plain array, and the bytes that it takes beyond earlier copies."""
    _, values = earlier.get(id(x), (x, None))
    if values is not None and not x.dtype.hasobject:
        if same_bytes(values, x if x.flags.forc else x.copy(order="K")):
            return values, 0
    values = x.copy(order="K")
    earlier[id(x)] = x, values
    return values, values.nbytes


def _of_items(_: Any, x: Any) -> Callable[[dict], Any]:
    held = x.copy() if isinstance(x, set) else x[:]

    def restore(done: dict) -> Any:
        refill(x, held)
        return x

    return restore


def _of_generator(_: Any, generator: Any) -> Callable[[dict], Any]:
    bits = getattr(generator, "bit_generator", generator)
    state = copy.deepcopy(bits.state)

    def restore(done: dict) -> Any:
        bits.state = copy.deepcopy(state)
        return generator

    return restore


def _of_random_state(_: Any, generator: Any) -> Callable[[dict], Any]:
    state = generator.get_state()

    def restore(done: dict) -> Any:
        generator.set_state(state)
        return generator

    return restore


def _of_python_generator(_: Any, generator: random.Random) -> Callable[[dict], Any]:
    state = generator.getstate()

    def restore(done: dict) -> Any:
        generator.setstate(state)
        return generator

    return restore


@functools.cache
def _maker_of(cls: type) -> Callable[[Snapshot, Any], Callable[[dict], Any]] | None:
    """Return the method that restores objects of a class; None if they never change."""
    if issubclass(cls, random.SystemRandom):
        return None
    for kinds, make in _MAKERS:
        if issubclass(cls, kinds):
            return make
    return Snapshot._of_object if kind_of(cls) == OBJECT else None


_MAKERS: tuple[tuple[Any, Callable[[Snapshot, Any], Callable[[dict], Any]]], ...] = (
    (np.inexact, Snapshot._of_number),
    (np.ndarray, Snapshot._of_array),
    ((np.random.Generator, np.random.BitGenerator), _of_generator),
    (np.random.RandomState, _of_random_state),
    (random.Random, _of_python_generator),
    ((set, bytearray, array.array), _of_items),
    (tuple, Snapshot._of_tuple),
    ((list, collections.deque), Snapshot._of_list),
    (dict, Snapshot._of_dict),
)


def owner_of(x: np.ndarray) -> np.ndarray:
    """Return the array that owns the memory of an array."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def _bytes(owner: np.ndarray) -> np.ndarray:
    low, high = bounds_of(owner)
    return memory_at(low, high - low)


def write(array: np.ndarray, values: np.ndarray) -> None:
    """Restore earlier values of an array; the present ones are saved for tapes that need them."""
    storage = storage_of(array)
    if storage is None or not (storage.needs or storage.guard or storage.swapped_by or open_tapes):
        plain(array)[...] = values
        return
    overwrite(array)
    plain(array)[...] = values
    settle_all([array])

"""Checkpoints of a simulation's state: what it holds, and how it is put back to what it was.

A state is an array, a number, a list, tuple, dictionary, dataclass or another object whose attributes hold such; one
object may be met in several places.
"""

from __future__ import annotations

import copy
import functools
import operator
import sys
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from ..blocks import same_bytes
from ..extents import address_of, bounds_of
from ..handouts import LIBRARIES, settle_all
from ..memory import TrackedArray, carries_derivatives, is_scalar, memory_at, plain, storage_of, tracked, tracked_copy
from ..recording import open_tapes
from ..tape import overwrite


class View:
    """What a state holds at some time.

    Attributes
    ----------
    state : object
    arrays : dict
        All arrays, each once, by the way to them, in the order in which they are met.
    has_numbers : bool
        Whether there are floating-point or complex numbers of NumPy's.
    differentiable : dict
        The arrays that may carry derivatives.
    """

    __slots__ = ("_inside", "arrays", "differentiable", "has_numbers", "state")

    def __init__(self, state: Any) -> None:
        self.state = state
        self.arrays: dict[tuple, np.ndarray] = {}
        self._inside: list[_Inside] = []
        self.has_numbers = _visit(((None, state),), (), "", self.arrays, self._inside, set())
        self.differentiable: dict[tuple, TrackedArray] = {
            w: a for w, a in self.arrays.items() if isinstance(a, TrackedArray) and carries_derivatives(a.dtype)
        }

    def still_holds(self) -> bool:
        """Whether the state holds the same arrays at the same places as then."""
        return not self.has_numbers and all(inside.is_same(self._inside) for inside in self._inside.copy())


class _Inside:
    """The parts of a list, dictionary or object, to see whether it still has them."""

    __slots__ = ("_ids", "_kind", "_parts", "_x")

    def __init__(self, x: Any, kind: int) -> None:
        self._x = x
        self._kind = kind
        self._parts = _told(x, kind)  # keeps alive what is told by its identity
        self._ids = list(map(id, self._parts))

    def is_same(self, known: list[_Inside]) -> bool:
        """Whether it has the same parts, but for numbers and text, and for lists and the like of such; of these the
        new ones become known."""
        parts = _told(self._x, self._kind)
        ids = list(map(id, parts))
        if ids == self._ids:
            return True
        first = 0 if self._kind == _SEQUENCE else len(ids) // 2  # after the names
        if len(ids) != len(self._ids) or ids[:first] != self._ids[:first]:
            return False
        for part, before in zip(parts[first:], self._parts[first:]):
            if part is before:
                continue
            kind, kind_before = _kind_of(type(part)), _kind_of(type(before))
            if kind < _SEQUENCE or kind_before < _SEQUENCE:
                if kind != _LEAF or kind_before != _LEAF:
                    return False
            elif not _is_flat(_told(part, kind)) or not _forget_flat(before, kind_before, known):
                return False
            elif type(part) is not tuple:
                known.append(_Inside(part, kind))
        self._parts, self._ids = parts, ids
        return True


def _is_flat(parts: list[Any]) -> bool:
    return all(_kind_of(type(part)) == _LEAF for part in parts)


def _forget_flat(x: Any, kind: int, known: list[_Inside]) -> bool:
    """Drop something from what is known if there were no more than leaves in it."""
    if type(x) is tuple:
        return _is_flat(list(x))
    for n, inside in enumerate(known):
        if inside._x is x:
            del known[n]
            return _is_flat(inside._parts)
    return False


def _told(x: Any, kind: int) -> list[Any]:
    if kind == _SEQUENCE:
        return list(x)
    named = x if kind == _DICT else _attributes(x)
    return [*named, *named.values()]


def _visit(
    parts: Iterable[tuple[Any, Any]],
    way: tuple,
    mark: str,
    arrays: dict[tuple, np.ndarray],
    inside: list[_Inside],
    met: set[int],
) -> bool:
    """Enter the arrays in the parts of something to which there is a way; whether there are numbers of NumPy's."""
    found = False
    for key, part in parts:
        kind = _kind_of(type(part))
        if kind <= _NUMBER:
            found = found or kind == _NUMBER
        elif id(part) not in met:
            met.add(id(part))
            to_part = (*way, (mark, key)) if mark else way
            if kind == _ARRAY:
                arrays[to_part] = part
            else:
                if type(part) is not tuple:
                    inside.append(_Inside(part, kind))
                next_mark = "." if kind == _OBJECT else "["
                found |= _visit(_parts_of(part, kind), to_part, next_mark, arrays, inside, met)
    return found


def spelled(way: tuple) -> str:
    """A way to an array, as the program would write it."""
    return "state" + "".join(f".{part}" if kind == "." else f"[{part!r}]" for kind, part in way)


_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


_LEAF, _NUMBER, _ARRAY, _SEQUENCE, _DICT, _OBJECT = range(6)


@functools.cache
def _kind_of(cls: type) -> int:
    """What objects of a class are in a state; those with attributes are a part of it if the class is the program's."""
    if cls in _ATOMS:
        return _LEAF
    for kinds, found in ((np.inexact, _NUMBER), (np.ndarray, _ARRAY), ((tuple, list), _SEQUENCE), (dict, _DICT)):
        if issubclass(cls, kinds):  # type: ignore[arg-type]
            return found
    is_function = any("__call__" in vars(base) for base in cls.__mro__) and not cls.__dictoffset__
    return _OBJECT if _is_of_program(cls) and not is_function else _LEAF


def _parts_of(x: Any, kind: int) -> Iterable[tuple[Any, Any]]:
    if kind == _SEQUENCE:
        return enumerate(x)
    return x.items() if kind == _DICT else _attributes(x).items()


def has_state(x: Any) -> bool:
    """Whether the attributes of an object are a part of the state."""
    return _kind_of(type(x)) == _OBJECT


def _is_of_program(cls: type) -> bool:
    if issubclass(cls, (type, np.generic)):
        return False
    package = cls.__module__.partition(".")[0]
    return package not in LIBRARIES and (package not in sys.stdlib_module_names or package == "__main__")


def _slots(x: Any) -> list[str]:
    return [n for n in _slots_of(type(x)) if hasattr(x, n)]


@functools.cache
def _slots_of(cls: type) -> tuple[str, ...]:
    names = [n for base in cls.__mro__ for n in _listed(vars(base).get("__slots__", ()))]
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _listed(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _attributes(x: Any) -> dict[str, Any]:
    if not _slots_of(type(x)):
        return x.__dict__
    return {**{n: getattr(x, n) for n in _slots(x)}, **getattr(x, "__dict__", {})}


# ----------------------------------------------------------------------------------------------------- put back


def _same(x: Any) -> Any:
    return x


def with_tracked_numbers(view: View) -> View:
    """Of a state with tracked scalars in the place of NumPy's numbers, which stand for them where no tape records."""
    if not view.has_numbers:
        return view
    return View(Snapshot(view.state, lambda array: True, tracked_copy).restore())


def _put_back(items: Any, parts: Iterable[tuple[Any, Callable[[dict], Any]]], done: dict) -> Any:
    """Enter into what something held the parts of it that are put back."""
    for name, restore in parts:
        items[name] = restore(done)
    return items


class Snapshot:
    """What a state was at some time.

    Parameters
    ----------
    state
        The state now.
    is_kept : callable
        ``is_kept(array)``: whether somebody else takes care of what an array holds.
    number : callable
        What is put in the place of each floating-point or complex number of NumPy's.
    earlier : dict, optional
        By their identity, plain arrays and what they held in the latest snapshot: shared where they still hold it.
    """

    def __init__(
        self,
        state: Any,
        is_kept: Callable[[np.ndarray], bool],
        number: Callable[[Any], Any] = _same,
        earlier: dict[int, tuple[np.ndarray, np.ndarray]] | None = None,
    ) -> None:
        self.nbytes = 0
        self._earlier = {} if earlier is None else earlier
        self._number = number
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._is_kept = is_kept
        self._made: dict[int, tuple[Any, Callable[[dict], Any]]] = {}  # by object, which is kept alive
        self._state = state
        self._restore = self._of(state)

    def restore(self) -> Any:
        """The state, with everything in it as it was."""
        return self._state if self._restore is None else self._restore({})

    def _parts(self, parts: Iterable[tuple[Any, Any]]) -> list[tuple[Any, Callable[[dict], Any]]]:
        """Of the parts of something, by their names, how those are put back that are not what they are for ever."""
        found = [(name, self._of(part)) for name, part in parts if type(part) not in _ATOMS]
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
                done[id(x)] = x  # what holds itself finds itself
                done[id(x)] = inside[0](done)
            return done[id(x)]

        self._made[id(x)] = x, restore
        inside[0] = make(self, x)
        return restore

    def _of_number(self, x: Any) -> Callable[[dict], Any]:
        return lambda done: self._number(x)

    def _stays(self, x: np.ndarray) -> bool:
        """Whether there is nothing to put back of an array."""
        return self._is_kept(x) or not (x.flags.writeable or is_scalar(x))

    def _of_array(self, x: np.ndarray) -> Callable[[dict], Any]:
        if is_scalar(x):
            number = plain(x)[()]
            return lambda done: tracked_copy(number)
        if isinstance(x, TrackedArray):
            return self._of_computed(x)
        _, values = self._earlier.get(id(x), (x, None))
        if values is None or x.dtype.hasobject or not same_bytes(values, x if x.flags.forc else x.copy(order="K")):
            values = x.copy(order="K")
            self.nbytes += values.nbytes
            self._earlier[id(x)] = x, values

        def restore(done: dict) -> np.ndarray:
            x[...] = values
            return x

        return restore

    def _of_computed(self, x: TrackedArray) -> Callable[[dict], Any]:
        """Of an array that a step has made: put back as another one, on memory that is shared as it was."""
        owner = owner_of(x)
        block = self._blocks.get(id(owner))
        if block is None:
            block = self._blocks[id(owner)] = owner, _bytes(owner).copy()
            self.nbytes += block[1].nbytes
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
            if all(map(operator.is_, items, x)):
                return x
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)

        return restore

    def _of_list(self, x: list) -> Callable[[dict], Any]:
        held, parts = list(x), self._parts(enumerate(x))

        def restore(done: dict) -> list:
            x[:] = _put_back(held.copy(), parts, done)
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

    def _of_object(self, x: Any) -> Callable[[dict], Any]:
        held = dict(_attributes(x))
        parts = self._parts(held.items())
        slots = _slots_of(type(x))

        def restore(done: dict) -> Any:
            items = _put_back(held.copy(), parts, done)
            for name in _attributes(x).keys() - items.keys():
                object.__delattr__(x, name)
            for name in slots:
                if name in items:
                    object.__setattr__(x, name, items.pop(name))
            if items:
                x.__dict__.update(items)
            return x

        return restore


def _of_generator(_: Snapshot, generator: Any) -> Callable[[dict], Any]:
    bits = generator.bit_generator
    state = copy.deepcopy(bits.state)

    def restore(done: dict) -> Any:
        bits.state = copy.deepcopy(state)
        return generator

    return restore


def _of_random_state(_: Snapshot, generator: Any) -> Callable[[dict], Any]:
    state = generator.get_state()

    def restore(done: dict) -> Any:
        generator.set_state(state)
        return generator

    return restore


@functools.cache
def _maker_of(cls: type) -> Callable[[Snapshot, Any], Callable[[dict], Any]] | None:
    """How objects of a class are put back; None if they stay what they are."""
    for kinds, make in _MAKERS:
        if issubclass(cls, kinds):
            return make
    return Snapshot._of_object if _kind_of(cls) == _OBJECT else None


_MAKERS: tuple[tuple[type, Callable[[Snapshot, Any], Callable[[dict], Any]]], ...] = (
    (np.inexact, Snapshot._of_number),
    (np.ndarray, Snapshot._of_array),
    (np.random.Generator, _of_generator),
    (np.random.RandomState, _of_random_state),
    (tuple, Snapshot._of_tuple),
    (list, Snapshot._of_list),
    (dict, Snapshot._of_dict),
)


def owner_of(x: np.ndarray) -> np.ndarray:
    """The array whose memory an array looks at."""
    while isinstance(x.base, np.ndarray):
        x = x.base
    return x


def _bytes(owner: np.ndarray) -> np.ndarray:
    low, high = bounds_of(owner)
    return memory_at(low, high - low)


def write(array: np.ndarray, values: np.ndarray) -> None:
    """Give an array earlier values; tapes that need the present ones keep them."""
    storage = storage_of(array)
    if storage is None or not (storage.needs or storage.guard or storage.swapped_by or open_tapes):
        plain(array)[...] = values
        return
    overwrite(array)
    plain(array)[...] = values
    settle_all([array])

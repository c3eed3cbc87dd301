"""Checkpoints of a simulation's state: what it holds, and how it is put back to what it was.

A state is an array, a number, a list, tuple, dictionary, dataclass or another object whose attributes hold such; one
object may be met in several places.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from ..blocks import same_bytes
from ..extents import address_of, bounds_of
from ..handouts import LIBRARIES, settle_all
from ..memory import TrackedArray, carries_derivatives, is_scalar, memory_at, plain, tracked, tracked_copy
from ..tape import overwrite


def arrays_of(state: Any) -> dict[tuple, np.ndarray]:
    """All arrays that a state holds, each once, by the way to them, in the order in which they are met."""
    return dict(_walk(state, (), set()))


def differentiable(state: Any) -> dict[tuple, TrackedArray]:
    """Those that may carry derivatives."""
    return {
        way: a for way, a in arrays_of(state).items() if isinstance(a, TrackedArray) and carries_derivatives(a.dtype)
    }


def spelled(way: tuple) -> str:
    """A way to an array, as the program would write it."""
    return "state" + "".join(f".{part}" if kind == "." else f"[{part!r}]" for kind, part in way)


def has_numbers(state: Any) -> bool:
    """Whether a state holds floating-point or complex numbers of NumPy's."""
    return any(isinstance(x, np.inexact) for _, x in _walk(state, (), set(), np.inexact))


def _walk(x: Any, way: tuple, met: set[int], wanted: type = np.ndarray) -> Iterator[tuple[tuple, Any]]:
    kind = type(x)
    if isinstance(x, wanted):
        if id(x) not in met:
            met.add(id(x))
            yield way, x
    elif kind in _ATOMS or id(x) in met:
        return
    elif kind in (tuple, list, dict) or isinstance(x, (tuple, list, dict)):
        met.add(id(x))
        yield from _walk_parts(x.items() if isinstance(x, dict) else enumerate(x), "[", way, met, wanted)
    elif _has_state(x):
        met.add(id(x))
        yield from _walk_parts(_attributes(x).items(), ".", way, met, wanted)


def _walk_parts(
    parts: Iterable[tuple[Any, Any]], kind: str, way: tuple, met: set[int], wanted: type
) -> Iterator[tuple[tuple, Any]]:
    for key, part in parts:
        if isinstance(part, wanted):
            if id(part) not in met:
                met.add(id(part))
                yield (*way, (kind, key)), part
        elif type(part) not in _ATOMS and not isinstance(part, np.ndarray):
            yield from _walk(part, (*way, (kind, key)), met, wanted)


_ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


def _has_state(x: Any) -> bool:
    """Whether the attributes of an object are a part of the state: it is of a class of the program."""
    return _is_of_program(type(x)) and not (callable(x) and not hasattr(x, "__dict__"))


@functools.cache
def _is_of_program(cls: type) -> bool:
    if issubclass(cls, (type, np.ndarray, np.generic, tuple, list, dict)):
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
    found = getattr(x, "__dict__", {})
    return {**{n: getattr(x, n) for n in _slots(x)}, **found} if _slots_of(type(x)) else found


# ----------------------------------------------------------------------------------------------------- put back


def _same(x: Any) -> Any:
    return x


def with_tracked_numbers(state: Any) -> Any:
    """A state with tracked scalars in the place of NumPy's numbers, which stand for them where no tape records."""
    return Snapshot(state, lambda array: True, tracked_copy).restore() if has_numbers(state) else state


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
        self._restore = self._of(state)

    def restore(self) -> Any:
        """The state, with everything in it as it was."""
        return self._restore({})

    def _of(self, x: Any) -> Callable[[dict], Any]:
        if id(x) in self._made:
            return self._made[id(x)][1]
        if isinstance(x, np.inexact):
            return lambda done: self._number(x)
        make = next((make for kinds, make in _MAKERS if isinstance(x, kinds)), Snapshot._of_object)
        if make is Snapshot._of_object and not _has_state(x):
            return lambda done: x
        inside: list[Any] = [None]

        def restore(done: dict) -> Any:
            if id(x) not in done:
                done[id(x)] = x  # what holds itself finds itself
                done[id(x)] = inside[0](done)
            return done[id(x)]

        self._made[id(x)] = x, restore
        inside[0] = make(self, x)
        return restore

    def _of_array(self, x: np.ndarray) -> Callable[[dict], Any]:
        if is_scalar(x) and not self._is_kept(x):
            number = plain(x)[()]
            return lambda done: tracked_copy(number)
        if not x.flags.writeable or self._is_kept(x):
            return lambda done: x
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
        parts = [self._of(item) for item in x]

        def restore(done: dict) -> tuple:
            items = [part(done) for part in parts]
            if all(a is b for a, b in zip(items, x)):
                return x
            return type(x)(*items) if hasattr(x, "_fields") else tuple(items)

        return restore

    def _of_list(self, x: list) -> Callable[[dict], Any]:
        parts = [self._of(item) for item in x]

        def restore(done: dict) -> list:
            x[:] = [part(done) for part in parts]
            return x

        return restore

    def _of_dict(self, x: dict) -> Callable[[dict], Any]:
        parts = {key: self._of(item) for key, item in x.items()}

        def restore(done: dict) -> dict:
            items = {key: part(done) for key, part in parts.items()}
            x.clear()
            x.update(items)
            return x

        return restore

    def _of_object(self, x: Any) -> Callable[[dict], Any]:
        parts = {name: self._of(item) for name, item in _attributes(x).items()}
        slots = set(_slots(x))

        def restore(done: dict) -> Any:
            for name in _attributes(x).keys() - parts.keys():
                object.__delattr__(x, name)
            for name, part in parts.items():
                item = part(done)
                if name in slots:
                    object.__setattr__(x, name, item)
                else:
                    x.__dict__[name] = item
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


_MAKERS: tuple[tuple[type, Callable[[Snapshot, Any], Callable[[dict], Any]]], ...] = (
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
    overwrite(array)
    plain(array)[...] = values
    settle_all([array])

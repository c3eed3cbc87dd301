"""The arrays in a simulation's state, and the paths to them.

A state is an array, a number, a list, tuple, dictionary, dataclass or another object with such attributes.  An object
may occur in several places.
"""

from __future__ import annotations

import argparse
import array
import collections
import functools
import gc
import operator
import random
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from ..base.program_lines import LIBRARIES
from ..errors import TapeError
from ..memory.storages import TrackedArray, carries_derivatives


class Paths:
    """A cache of paths to the parts of states: most states of a loop have the same paths."""

    def __init__(self) -> None:
        self.known: dict[tuple, tuple] = {}
        self.visited = 0

    def __call__(self, path: tuple) -> tuple:
        self.visited += 1
        return self.known.setdefault(path, path)

    def begin(self) -> None:
        """Note that another state is viewed."""
        if len(self.known) > 4 * self.visited + 1000:
            self.known.clear()  # parts that no longer exist
        self.visited = 0


class Carried(list):
    """A state, and the list of copies on the host of its arrays on a device; see `device_states`."""


class View:
    """The contents of a state at some time.

    Parameters
    ----------
    state
    paths : Paths
        The cache of earlier states.

    Attributes
    ----------
    state : object
    arrays : dict
        All arrays, each once, by their paths, in the order in which they were found.
    has_numbers : bool
        True if there are floating-point or complex numbers of NumPy's.
    generators : list
        Random generators, and other objects with contents that are not arrays (`GENERATORS`).
    differentiable : dict
        The arrays that may carry derivatives.
    on_device : list
        In a `Carried` state: the arrays on a device.
    """

    __slots__ = (
        "_in_tuples",
        "arrays",
        "differentiable",
        "generators",
        "has_numbers",
        "inside",
        "on_device",
        "paths",
        "state",
    )

    def __init__(self, state: Any, paths: Paths | None = None) -> None:
        self.state = state
        self.paths = Paths() if paths is None else paths
        self.paths.begin()
        self.arrays: dict[tuple, np.ndarray] = {}
        self.generators: list[Any] = []
        self.has_numbers = False
        self.inside: list[Inside] = []
        self.on_device: list[Any] = []
        self._in_tuples: dict[tuple, Any] = {}  # numbers, which cannot change
        self._visit(((None, state),), (), "", set())
        self.differentiable: dict[tuple, TrackedArray] = {
            w: a for w, a in self.arrays.items() if isinstance(a, TrackedArray) and carries_derivatives(a.dtype)
        }

    def tracked(self) -> list[TrackedArray]:
        """Return the tracked arrays."""
        return [array for array in self.arrays.values() if isinstance(array, TrackedArray)]

    def numbers(self) -> dict[tuple, Any]:
        """Return its present numbers of Python and NumPy, by their paths."""
        found = dict(self._in_tuples)
        for part in self.inside:
            if part.to_numbers is None:
                part.find_numbers(self.paths)
            for k, path in part.to_numbers:
                found[path] = part.parts[k]
        return found

    def still_holds(self) -> bool:
        """Return whether the state still has the same arrays at the same paths."""
        return not self.has_numbers and all(part.is_same(self.inside) for part in self.inside.copy())

    def _visit(
        self, parts: Iterable[tuple[Any, Any]], path: tuple, mark: str, visited: set[int], within: type = tuple
    ) -> None:
        """Enter the parts of the object at a path."""
        for key, part in parts:
            kind = kind_of(type(part))
            if kind in (LEAF, NUMBER):
                self.has_numbers |= kind == NUMBER
                if within is tuple and is_number(type(part)):
                    self._in_tuples[self.paths((*path, (mark, key)) if mark else path)] = part
                if kind == LEAF and type(self.state) is Carried and type(part).__module__ == "ampi.device.arrays":
                    if id(part) not in visited:
                        visited.add(id(part))
                        self.on_device.append(part)
                elif kind == LEAF and may_hide(type(part)):
                    _refuse_hidden(part, (*path, (mark, key)) if mark else path)
                    if _is_iterator(type(part)):
                        _refuse_iterator(part, (*path, (mark, key)) if mark else path)
            elif id(part) not in visited:
                visited.add(id(part))
                to_part = self.paths((*path, (mark, key))) if mark else path
                if kind == ARRAY:
                    self.arrays[to_part] = part
                    if part.dtype.hasobject:
                        _refuse_hidden(part, to_part)
                elif kind == GENERATOR:
                    self.generators.append(part)
                    if isinstance(part, set):
                        _refuse_hidden(part, to_part)
                else:
                    mark_within = _mark_within(part, kind)
                    if kind == OBJECT and is_container(type(part)):
                        _refuse_hidden(part, to_part)
                    if not isinstance(part, tuple):
                        self.inside.append(Inside(part, kind, to_part, mark_within))
                    cls = tuple if isinstance(part, tuple) else type(part)
                    self._visit(_parts_of(part, kind), to_part, mark_within, visited, cls)
                if held := further_attributes(part):
                    self.inside.append(Inside(part, OBJECT, to_part, "."))
                    self._visit(held.items(), to_part, ".", visited, type(part))


class Inside:
    """The parts of a list, dictionary or object, to check whether they have changed.

    Attributes
    ----------
    x : object
    kind : int
    path : tuple
        The path to it; ``mark`` is the form of the paths to its parts.
    parts : list
        Its contents; except for lists, their names come first.
    to_numbers : list or None
        The indices of numbers in ``parts``, and the paths to them; None: not determined yet.
    """

    __slots__ = ("kind", "mark", "parts", "path", "to_numbers", "x")

    def __init__(self, x: Any, kind: int, path: tuple, mark: str) -> None:
        self.x = x
        self.kind = kind
        self.path = path
        self.mark = mark
        self.parts = contents_of(x, kind)  # keeps alive objects that are identified by their ids
        self.to_numbers: list[tuple[int, tuple]] | None = None

    def find_numbers(self, paths: Paths) -> None:
        """Find the numbers."""
        parts, count = self.parts, 0 if self.kind == SEQUENCE else len(self.parts) // 2
        self.to_numbers = [
            (k, paths((*self.path, (self.mark, parts[k - count] if count else k))))
            for k in range(count, len(parts))
            if is_number(type(parts[k]))
        ]

    def is_same(self, known: list[Inside]) -> bool:
        """Return whether the object has the same parts, except numbers, text and lists of these, which are updated."""
        parts = contents_of(self.x, self.kind)
        if _are_same(parts, self.parts):
            return True
        first = 0 if self.kind == SEQUENCE else len(parts) // 2  # after the names
        if len(parts) != len(self.parts):
            if not (self.kind == SEQUENCE and _is_flat(parts) and _is_flat(self.parts)):
                return False
        elif not _are_same(parts[:first], self.parts[:first]):
            return False
        if len(parts) != len(self.parts) or list(map(type, parts)) != list(map(type, self.parts)):
            self.to_numbers = None
        for k, (part, before) in enumerate(zip(parts[first:], self.parts[first:])):
            if part is before:
                continue
            kind, kind_before = kind_of(type(part)), kind_of(type(before))
            if kind < SEQUENCE or kind_before < SEQUENCE:
                if kind != LEAF or kind_before != LEAF:
                    return False
            elif not _is_flat(contents_of(part, kind)) or not _forget_flat(before, known):
                return False
            elif type(part) is not tuple:
                path = (*self.path, (self.mark, parts[k] if first else k))
                known.append(Inside(part, kind, path, _mark_within(part, kind)))
        self.parts = parts
        return True

    def put_back(self, parts: list[Any]) -> None:
        """Restore earlier parts."""
        x = self.x
        if _are_same(contents_of(x, self.kind), parts):
            return
        if self.kind == SEQUENCE:
            refill(x, parts)
            return
        count = len(parts) // 2
        held = dict(zip(parts[:count], parts[count:]))
        if self.kind == DICT:
            x.clear()
            x.update(held)
        else:
            set_attributes(x, held)


def refill(x: Any, parts: Iterable[Any]) -> None:
    """Replace the items of a list, deque, set, or array of Python's."""
    if isinstance(x, (list, bytearray, array.array)):
        x[:] = parts
        return
    x.clear()
    (x.update if isinstance(x, set) else x.extend)(parts)


def _are_same(parts: list[Any], others: list[Any]) -> bool:
    """Return whether these are the same objects in the same order."""
    return len(parts) == len(others) and all(map(operator.is_, parts, others))


def _is_flat(parts: list[Any]) -> bool:
    return all(kind_of(type(part)) == LEAF for part in parts)


def _forget_flat(x: Any, known: list[Inside]) -> bool:
    """Forget an object that contained only leaves."""
    if type(x) is tuple:
        return _is_flat(list(x))
    for n, inside in enumerate(known):
        if inside.x is x:
            del known[n]
            return _is_flat(inside.parts)
    return False


def contents_of(x: Any, kind: int) -> list[Any]:
    if kind == SEQUENCE:
        return list(x)
    named = x if kind == DICT else attributes(x)
    return [*named, *named.values()]


def spelled(path: tuple) -> str:
    """Return the path to an array as the program would write it."""
    return "state" + "".join(f".{part}" if kind == "." else f"[{part!r}]" for kind, part in path if kind != _CARRIED)


_CARRIED = "of carried"
"""The mark of the parts of a `Carried` state in paths, which are no parts of the program's state."""


def _mark_within(part: Any, kind: int) -> str:
    return "." if kind == OBJECT else _CARRIED if type(part) is Carried else "["


PLAIN_NUMBERS = frozenset((bool, int, float, complex))
ATOMS = frozenset((type(None), bool, int, float, complex, str, bytes))


LEAF, NUMBER, ARRAY, GENERATOR, SEQUENCE, DICT, OBJECT = range(7)
GENERATORS = (
    np.random.Generator,
    np.random.RandomState,
    np.random.BitGenerator,
    random.Random,
    set,
    bytearray,
    array.array,
)


@functools.cache
def kind_of(cls: type) -> int:
    """Return the kind of part of a state that objects of a class are.

    Attributes belong to the state if the class is the program's.
    """
    if cls in ATOMS or issubclass(cls, random.SystemRandom):
        return LEAF
    for kinds, found in _KINDS:
        if issubclass(cls, kinds):
            return found
    is_function = any("__call__" in vars(base) for base in cls.__mro__) and not cls.__dictoffset__
    return OBJECT if _is_of_program(cls) and not is_function else LEAF


@functools.cache
def is_number(cls: type) -> bool:
    """Return whether objects of a class are numbers of Python, or of NumPy, that may have a derivative."""
    return cls in PLAIN_NUMBERS or kind_of(cls) == NUMBER


_HOLDERS = types.SimpleNamespace, argparse.Namespace, collections.UserDict, collections.UserList, collections.ChainMap
"""Classes of Python whose objects store in attributes what programs assign to them."""


@functools.cache
def may_hide(cls: type) -> bool:
    """Return whether objects of a class may hide arrays: containers that are not among `_KINDS`, arrays on devices."""
    return hasattr(cls, "__cuda_array_interface__") or not (
        cls in ATOMS
        or issubclass(cls, (type, types.ModuleType, np.generic, *_FUNCTIONS))
        or cls.__module__.partition(".")[0] in LIBRARIES
    )


@functools.cache
def is_container(cls: type) -> bool:
    """Return whether objects of one of the program's classes have more data than their attributes.

    This is so if the class is derived from a class written in C.
    """
    return any(base is not object and base.__flags__ & (_HEAP_TYPE | _IMMUTABLE) != _HEAP_TYPE for base in cls.__mro__)


_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class of a class statement
_IMMUTABLE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: classes written in C may be heap types, as deque since Python 3.13


def _refuse_hidden(x: Any, path: tuple) -> None:
    """Raise an error if an object in a state hides tracked arrays, or is an array on a device."""
    if hasattr(type(x), "__cuda_array_interface__"):
        raise TapeError(
            f"ampi.timeloop: {spelled(path)} is an array on a device, whose values are not restored for the adjoint; "
            "let the state contain arrays of ampi.cuda (to_device, as_cuda_array) from the beginning, or keep it on "
            "the host: begin a step with ampi.cuda.to_device(x), and end it with d.copy_to_host()"
        )
    visited, inside = {id(x)}, [x]
    if kind_of(type(x)) == OBJECT:  # its attributes are looked at
        held = attributes(x)
        visited.update(map(id, (held, getattr(x, "__dict__", held), *held.values())))
    for _ in range(_DEPTH):
        inside = [part for part in _inside_of(inside) if not (id(part) in visited or visited.add(id(part)))]  # type: ignore[func-returns-value]
        if any(isinstance(part, TrackedArray) for part in inside):
            what = "an array of objects" if isinstance(x, np.ndarray) else f"a {type(x).__name__}"
            raise TapeError(
                f"ampi.timeloop: {spelled(path)} is {what} that contains ampi's arrays, which cannot be found there; "
                "keep them in a list, tuple, dictionary, or object with attributes"
            )


@functools.cache
def _is_iterator(cls: type) -> bool:
    return issubclass(cls, Iterator) and cls.__module__ in ("builtins", "itertools")


def _refuse_iterator(x: Any, path: tuple) -> None:
    raise TapeError(
        f"ampi.timeloop: {spelled(path)} is a {type(x).__name__}, which cannot be set back when steps run again; keep "
        "a list and an index in the state"
    )


_DEPTH = 3
_FUNCTIONS = types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial


def _inside_of(objects: list[Any]) -> list[Any]:
    found: list[Any] = []
    for x in objects:
        if isinstance(x, np.ndarray):
            found += x.ravel().tolist() if x.dtype == object else []
        elif not isinstance(x, (type, types.ModuleType, *_FUNCTIONS)):
            found += gc.get_referents(x)
    return found


_KINDS: tuple[tuple[Any, int], ...] = (
    (np.inexact, NUMBER),
    (np.ndarray, ARRAY),
    (GENERATORS, GENERATOR),
    ((tuple, list, collections.deque), SEQUENCE),
    (dict, DICT),
)


def _parts_of(x: Any, kind: int) -> Iterable[tuple[Any, Any]]:
    if kind == SEQUENCE:
        return enumerate(x)
    return x.items() if kind == DICT else attributes(x).items()


def has_state(x: Any) -> bool:
    """Return whether the attributes of an object are a part of the state."""
    return kind_of(type(x)) == OBJECT


def _is_of_program(cls: type) -> bool:
    if issubclass(cls, (type, np.generic)):
        return False
    if cls in _HOLDERS:
        return True
    package = cls.__module__.partition(".")[0]
    return package not in LIBRARIES and (package not in sys.stdlib_module_names or package == "__main__")


def _slots(x: Any) -> list[str]:
    return [n for n in slots_of(type(x)) if hasattr(x, n)]


@functools.cache
def slots_of(cls: type) -> tuple[str, ...]:
    names = [_mangled(n, base) for base in cls.__mro__ for n in _listed(vars(base).get("__slots__", ()))]
    return tuple(n for n in names if n not in ("__dict__", "__weakref__"))


def _mangled(name: str, cls: type) -> str:
    """Return the name of an attribute that a class names in its body."""
    owner = cls.__name__.lstrip("_")
    return f"_{owner}{name}" if owner and name.startswith("__") and not name.endswith("__") else name


def _listed(slots: Any) -> tuple[str, ...]:
    return (slots,) if isinstance(slots, str) else tuple(slots)


def attributes(x: Any) -> dict[str, Any]:
    if not slots_of(type(x)):
        return getattr(x, "__dict__", {})
    return {**{n: getattr(x, n) for n in _slots(x)}, **getattr(x, "__dict__", {})}


def further_attributes(x: Any) -> dict[str, Any]:
    """Return the attributes of an object whose class is derived from that of a container, beside its contents."""
    cls = type(x)
    return attributes(x) if kind_of(cls) in (GENERATOR, SEQUENCE, DICT) and _is_of_program(cls) else {}


def set_attributes(x: Any, held: dict[str, Any]) -> None:
    """Give an object these attributes and no others; the dictionary is consumed."""
    for name in attributes(x).keys() - held.keys():
        object.__delattr__(x, name)
    for name in slots_of(type(x)):
        if name in held:
            object.__setattr__(x, name, held.pop(name))
    if held:
        x.__dict__.update(held)

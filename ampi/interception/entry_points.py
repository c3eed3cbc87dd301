"""Addresses of the C functions of CPython and NumPy: slots of types, tables of methods.

They are found by the layout of CPython's objects. Before an address is used, its content is compared with what Python
itself reports; if they differ, `Unknown` is raised and nothing is redirected.
"""

from __future__ import annotations

import bisect
import ctypes
import struct
import types
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

WORD = struct.calcsize("P")
# Offsets in CPython's structs, in words.
_CALL, _NUMBER, _MAPPING, _BUFFER, _INIT, _NEW = 7, 12, 14, 20, 37, 39  # tables and slots of a type
_NUMBER_OF_NEW = 65  # the slot's number in CPython's stable interface (Py_tp_new)
_ASSIGN = 2  # in a type's table of mapping functions
# In a type's table of numeric functions.
_OPERATORS = {"add": 0, "sub": 1, "mul": 2, "mod": 3, "divmod": 4, "pow": 5, "floordiv": 29, "truediv": 30}
_METHOD_OF_FUNCTION, _PART_OF_DESCRIPTOR, _WRAPPED = 2, 5, 6
_ENTRY, _FLAGS, _SETTER = 1, 2, 2  # in the table entry of a method, and of a property
_VARARGS, _KEYWORDS, _FASTCALL = 0x1, 0x2, 0x80
TYPE_FLAGS = 21  # offset of a type's flags, in words
IS_LIST, IS_TUPLE, IS_DICTIONARY = 1 << 25, 1 << 26, 1 << 29  # flags of types and of all that are derived from them
ARRAY_BASE = 6  # offset of the base in NumPy's arrays, in words


def word_at(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def object_at(address: int) -> Any:
    """The Python object at an address that a hook has received."""
    return ctypes.cast(address, ctypes.py_object).value


class Unknown(Exception):
    """An object of CPython has an unknown layout."""


def slot_of_type(cls: type, table: int, index: int | None, special: str, owner: type) -> tuple[int, int]:
    """Address and content of a type's slot, checked against the function that the method ``owner.special`` calls."""
    address = id(cls) + table * WORD
    if index is not None:
        address = word_at(address) + index * WORD
    original = word_at(address)
    if original != word_at(id(vars(owner)[special]) + _WRAPPED * WORD):
        raise Unknown(f"{cls.__name__}.{special}")
    return address, original


def has_known_flags() -> bool:
    """Return whether types have their flags where they are expected."""
    kinds = {list: IS_LIST, tuple: IS_TUPLE, dict: IS_DICTIONARY, int: 0, np.ndarray: 0}
    sequences = IS_LIST | IS_TUPLE | IS_DICTIONARY
    return all(word_at(id(cls) + TYPE_FLAGS * WORD) & sequences == flag for cls, flag in kinds.items())


def buffer_slot(cls: type) -> tuple[int, int]:
    """Address and content of the buffer protocol's slot of a class that inherits it from `numpy.ndarray`."""
    table = word_at(id(cls) + _BUFFER * WORD)
    original = word_at(table) if 0 < table - id(cls) < 2 * type.__basicsize__ else 0
    if not original or original != word_at(word_at(id(np.ndarray) + _BUFFER * WORD)):
        raise Unknown("the buffer protocol")
    return table, original


def mapping_slot(cls: type, owner: type) -> tuple[tuple[int, ...], int]:
    """Addresses and content of the slot for ``cls[key] = value``, for the owner with its method ``__setitem__``."""
    address, original = slot_of_type(cls, _MAPPING, _ASSIGN, "__setitem__", owner)
    by_name = (id(vars(owner)["__setitem__"]) + _WRAPPED * WORD,) if cls is owner else ()
    return (address, *by_name), original


def setitem_slot(cls: type, original: int) -> int:
    """Address of a class's slot for ``cls[key] = value``, which must hold `original`."""
    address = word_at(id(cls) + _MAPPING * WORD) + _ASSIGN * WORD
    if word_at(address) != original:
        raise Unknown(f"{cls.__name__}.__setitem__")
    return address


def operator_slots(cls: type) -> dict[str, tuple[int, int]]:
    """Addresses and contents of a class's slots for arithmetic, by the operators' names."""
    found = {}
    for name, k in _OPERATORS.items():
        special = f"__{name}__"
        owner = next(base for base in cls.__mro__ if special in vars(base))
        found[name] = slot_of_type(cls, _NUMBER, k, special, owner)
    return found


def init_slot(cls: type) -> tuple[int, int]:
    """Address and content of a type's slot for ``__init__``."""
    return slot_of_type(cls, _INIT, None, "__init__", cls)


def constructor_slot(cls: type) -> tuple[int, int]:
    """Address and content of a type's slot for ``__new__``."""
    address = id(cls) + _NEW * WORD
    original = word_at(address)
    found = ctypes.pythonapi.PyType_GetSlot
    found.restype, found.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_int)
    if not original or original != found(cls, _NUMBER_OF_NEW):
        raise Unknown(f"{cls.__name__}.__new__")
    return address, original


def inheriting_slots(cls: type, original: int) -> tuple[int, ...]:
    """Addresses of the ``__new__`` slots of all subclasses that inherit `original`."""
    found: list[int] = []
    derived: type
    for derived in type.__subclasses__(cls):
        address = id(derived) + _NEW * WORD
        if word_at(address) == original:
            found += [address, *inheriting_slots(derived, original)]
    return tuple(found)


def entry_of_function(function: Any) -> tuple[int, int, str]:
    """Location of a built-in function's entry point, the entry point, and its calling convention."""
    return _entry(word_at(id(function) + _METHOD_OF_FUNCTION * WORD), function.__name__)


def entry_of_method(cls: type, name: str) -> tuple[int, int, str]:
    """`entry_of_function` for a method of a type."""
    return _entry(word_at(id(vars(cls)[name]) + _PART_OF_DESCRIPTOR * WORD), name)


def _entry(table: int, name: str) -> tuple[int, int, str]:
    _require_name(table, name)
    flags = ctypes.c_int.from_address(table + _FLAGS * WORD).value
    known = {
        _FASTCALL | _KEYWORDS: "fast",
        _FASTCALL: "fast, no names",
        _VARARGS | _KEYWORDS: "tuple",
        _VARARGS: "tuple, no names",
    }
    if flags not in known:
        raise Unknown(name)
    address = table + _ENTRY * WORD
    return address, word_at(address), known[flags]


def calls_of(cls: type, instances: Sequence[Any]) -> tuple[tuple[int, ...], int]:
    """Locations of the vectorcall pointers of several objects of one type, and the entry point that they share."""
    offset = ctypes.c_ssize_t.from_address(id(cls) + _CALL * WORD).value
    if not 0 < offset <= cls.__basicsize__ - WORD:
        raise Unknown(f"calls of {cls.__name__}")
    addresses = tuple(id(instance) + offset for instance in instances)
    found = {word_at(address) for address in addresses}
    if len(found) != 1 or 0 in found:
        raise Unknown(f"calls of {cls.__name__}")
    return addresses, found.pop()


def calls_by_entry(instances: Sequence[Any]) -> list[tuple[tuple[int, ...], int]]:
    """`calls_of` for objects of one type, grouped by their entry points."""
    cls = type(instances[0])
    offset = ctypes.c_ssize_t.from_address(id(cls) + _CALL * WORD).value
    if not 0 < offset <= cls.__basicsize__ - WORD:
        raise Unknown(f"calls of {cls.__name__}")
    groups: dict[int, list[Any]] = {}
    for instance in instances:
        if type(instance) is cls:
            groups.setdefault(word_at(id(instance) + offset), []).append(instance)
    return [calls_of(cls, group) for entry, group in groups.items() if entry]


def setter(cls: type, name: str) -> tuple[int, int]:
    """Location of the function that sets an attribute, and its address."""
    table = word_at(id(vars(cls)[name]) + _PART_OF_DESCRIPTOR * WORD)
    _require_name(table, name)
    address = table + _SETTER * WORD
    return address, word_at(address)


def _require_name(table: int, name: str) -> None:
    if ctypes.c_char_p.from_address(table).value != name.encode():
        raise Unknown(name)


def entry_of_foreign(function: Any) -> tuple[int, int, str]:
    """`entry_of_function` for functions and methods of other packages, in all calling conventions."""
    words = _PART_OF_DESCRIPTOR if isinstance(function, _DESCRIPTORS) else _METHOD_OF_FUNCTION
    table = word_at(id(function) + words * WORD)
    if not table:
        raise Unknown(str(function))
    if _text_at(table) != function.__name__.encode():
        raise Unknown(function.__name__)
    flags = ctypes.c_int.from_address(table + _FLAGS * WORD).value & ~_BINDING
    if flags not in _CONVENTIONS:
        raise Unknown(function.__name__)
    address = table + _ENTRY * WORD
    return address, word_at(address), _CONVENTIONS[flags]


_DESCRIPTORS = types.MethodDescriptorType, types.ClassMethodDescriptorType
_BINDING = 0x10 | 0x20 | 0x40  # METH_CLASS, METH_STATIC, METH_COEXIST
_CONVENTIONS = {
    _FASTCALL | _KEYWORDS: "gate fast",
    _FASTCALL: "gate fast, no names",
    _FASTCALL | _KEYWORDS | 0x200: "gate fast, with class",
    _VARARGS | _KEYWORDS: "gate tuple",
    _VARARGS: "gate tuple, no names",
    0x8: "gate object",
}


def _text_at(address: int) -> bytes | None:
    return ctypes.c_char_p.from_address(address).value


def slots_with(cls: type, original: int, tables: bool = True) -> list[int]:
    """Addresses of all slots of a type, and of its tables, that hold `original`."""
    found = [id(cls) + k * WORD for k in _FUNCTIONS_OF_TYPE if word_at(id(cls) + k * WORD) == original]
    for word, length in ((_NUMBER, 36), (_SEQUENCE, 10), (_MAPPING, 3)) if tables else ():
        table = word_at(id(cls) + word * WORD)
        if table:
            found += [table + k * WORD for k in range(length) if word_at(table + k * WORD) == original]
    return found


_SEQUENCE = 13
_FUNCTIONS_OF_TYPE = (16, 19, 37)  # __call__, __setattr__, __init__
_SETATTR, _NEW = 9, 39
_SLOT_IDS = {_SETATTR: 68, _NEW: 65}  # Py_tp_setattr, Py_tp_new


def wrapped_by(descriptor: Any) -> tuple[int, int]:
    """Location of the function that a slot wrapper (``cls.__call__``) calls, and its address."""
    address = id(descriptor) + _WRAPPED * WORD
    return address, word_at(address)


def other_slot(cls: type, which: str) -> tuple[int, int]:
    """Address and content of a type's slot for ``"new"`` or ``"setattr"``, checked against Python's interface."""
    word = {"new": _NEW, "setattr": _SETATTR}[which]
    get = ctypes.pythonapi.PyType_GetSlot
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_int)
    address = id(cls) + word * WORD
    if not word_at(address) or word_at(address) != get(cls, _SLOT_IDS[word]):
        raise Unknown(f"{cls.__name__}.{which}")
    return address, word_at(address)


def call_slot(function: Any) -> tuple[int, int]:
    """Location of an object's vectorcall pointer, and its content; zeros if it has none."""
    cls = type(function)
    offset = ctypes.c_ssize_t.from_address(id(cls) + _CALL * WORD).value
    if not cls.__flags__ & _HAS_CALL or not 0 < offset <= cls.__basicsize__ - WORD:
        return 0, 0
    return id(function) + offset, word_at(id(function) + offset)


_HAS_CALL = 1 << 11


def writeable(addresses: Iterable[int]) -> set[int]:
    """The addresses in writable memory, as far as the operating system tells."""
    found = set(addresses)
    try:
        with open("/proc/self/maps") as file:
            maps = [line.split()[:2] for line in file]
    except OSError:
        return found
    ranges = sorted([int(end, 16) for end in place.split("-")] for place, rights in maps if rights[1] == "w")
    starts = [low for low, _ in ranges]
    within = lambda address, k: k >= 0 and address < ranges[k][1]
    return {address for address in found if within(address, bisect.bisect_right(starts, address) - 1)}

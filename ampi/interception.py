"""Trampolines in NumPy's types: calls of its C code that no protocol of Python tells an array's class of.

``plain[...] = active`` and ``numpy.asarray(active)`` are carried out in C, which looks into our arrays as if they were
its own.  While a tape records, the entry points of this code (slots of types, tables of methods) lead to a few machine
instructions first: where none of our arrays is among the operands they go on as ever, after some nanoseconds, and
otherwise they ask a function in Python.

Which places there are is read from the layout of CPython's objects.  Each one is compared with what is known to lie
there in another way before it is touched; where that fails nothing is redirected.

Built-in functions hash and compare by their entry points, so tables keyed by functions do not find a redirected one.
Numba has such tables: nothing is redirected while it compiles, in any thread (its compiler lock tells when).
"""

from __future__ import annotations

import ctypes
import struct
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numba.core import event

from . import checks, memory
from .tape import Tape, at_closing, at_opening

_WORD = struct.calcsize("P")
# Offsets in CPython's structs, in words.
_MAPPING, _BUFFER, _INIT = 14, 20, 37  # of tables and slots in a type
_ASSIGN = 2  # in a type's table of mappings
_METHOD_OF_FUNCTION, _PART_OF_DESCRIPTOR, _WRAPPED = 2, 5, 6
_ENTRY, _FLAGS, _SETTER = 1, 2, 2  # in a method's and in a property's table entry
_VARARGS, _KEYWORDS, _FASTCALL = 0x1, 0x2, 0x80
_ARRAY_BASE = 6  # words before the base in NumPy's arrays

Hook = Callable[..., Any]
"""Is given what the C function is given; returns None to have that run, or what it is to return."""


def _word(address: int) -> int:
    return ctypes.c_void_p.from_address(address).value or 0


def object_at(address: int) -> Any:
    """The object that a hook has been given by its address."""
    return ctypes.cast(address, ctypes.py_object).value


class Place:
    """A pointer to a C function, and what is to stand there while tapes record.

    Attributes
    ----------
    address : int
        Of the pointer.
    original : int
        The function that it points to.
    signature : str
        ``store``, ``buffer``, ``set``, ``init``, ``fast`` or ``tuple``: what it is called with (see `_BODIES`).
    trampoline : int
        The machine code that takes its place.
    pointer : ctypes.c_void_p
        What lies at the address.
    hook : callable
        Asked where one of our arrays is an operand; it is given the C function's arguments as integers.
    """

    def __init__(self, address: int, original: int, signature: str, hook: Hook) -> None:
        self.address = address
        self.original = original
        self.signature = signature
        self.hook = hook
        self.trampoline = 0
        self.pointer = ctypes.c_void_p.from_address(address)


# ---------------------------------------------------------------------------------------------------- finding places


class Unknown(Exception):
    """Something is not where it is expected: another Python than those that are known."""


def slot_of_type(cls: type, table: int, index: int | None, special: str, owner: type) -> tuple[int, int]:
    """Address and content of a type's slot; compared with what the method ``owner.special`` calls."""
    address = id(cls) + table * _WORD
    if index is not None:
        address = _word(address) + index * _WORD
    original = _word(address)
    if original != _word(id(vars(owner)[special]) + _WRAPPED * _WORD):
        raise Unknown(f"{cls.__name__}.{special}")
    return address, original


def buffer_slot(cls: type) -> tuple[int, int]:
    """Address and content of a class's slot for the buffer protocol, which is that of NumPy's array."""
    table = _word(id(cls) + _BUFFER * _WORD)
    original = _word(table) if 0 < table - id(cls) < 2 * type.__basicsize__ else 0
    if not original or original != _word(_word(id(np.ndarray) + _BUFFER * _WORD)):
        raise Unknown("the buffer protocol")
    return table, original


def mapping_slot(cls: type, owner: type) -> tuple[int, int]:
    """Those of ``cls[key] = value``."""
    return slot_of_type(cls, _MAPPING, _ASSIGN, "__setitem__", owner)


def making_slot(cls: type) -> tuple[int, int]:
    """Those of what is called with the arguments that an instance is made of."""
    return slot_of_type(cls, _INIT, None, "__init__", cls)


def entry_of_function(function: Any) -> tuple[int, int, str]:
    """Where the address of a built-in function lies, the address, and how it is called."""
    return _entry(_word(id(function) + _METHOD_OF_FUNCTION * _WORD), function.__name__)


def entry_of_method(cls: type, name: str) -> tuple[int, int, str]:
    """The same for a method of a type."""
    return _entry(_word(id(vars(cls)[name]) + _PART_OF_DESCRIPTOR * _WORD), name)


def _entry(table: int, name: str) -> tuple[int, int, str]:
    _require_name(table, name)
    flags = ctypes.c_int.from_address(table + _FLAGS * _WORD).value
    known = {_FASTCALL | _KEYWORDS: "fast", _VARARGS | _KEYWORDS: "tuple", _VARARGS: "tuple", _FASTCALL: "fast"}
    if flags not in known:
        raise Unknown(name)
    address = table + _ENTRY * _WORD
    return address, _word(address), known[flags]


def setter(cls: type, name: str) -> tuple[int, int]:
    """Where the address of the function that sets an attribute lies, and the address."""
    table = _word(id(vars(cls)[name]) + _PART_OF_DESCRIPTOR * _WORD)
    _require_name(table, name)
    address = table + _SETTER * _WORD
    return address, _word(address)


def _require_name(table: int, name: str) -> None:
    if ctypes.c_char_p.from_address(table).value != name.encode():
        raise Unknown(name)


def is_writeable(addresses: Sequence[int]) -> bool:
    """Whether memory can be written to, as far as the system tells."""
    try:
        with open("/proc/self/maps") as file:
            maps = [line.split()[:2] for line in file]
    except OSError:
        return True
    ranges = [[int(end, 16) for end in place.split("-")] for place, rights in maps if rights[1] == "w"]
    return all(any(low <= address < high for low, high in ranges) for address in addresses)


# -------------------------------------------------------------------------------------------------------- trampolines

# is_own: whether Python code of ampi itself calls; is_ours: whether an operand is an array of ours, or a list or tuple
# that begins with one; views_ours: whether an array is a plain view of one.
_HEADER = """
define internal i1 @is_own() {{
  %module = call ptr {globals}()
  br label %next
next:
  %k = phi i64 [0, %0], [%after, %look]
  %more = icmp slt i64 %k, {modules}
  br i1 %more, label %look, label %no
look:
  %at = getelementptr ptr, ptr {own}, i64 %k
  %one = load ptr, ptr %at
  %same = icmp eq ptr %one, %module
  %after = add i64 %k, 1
  br i1 %same, label %yes, label %next
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @is_ours(ptr %x) {{
  %none = icmp eq ptr %x, null
  br i1 %none, label %no, label %look
look:
  %at = getelementptr i8, ptr %x, i64 8
  %type = load ptr, ptr %at
  %array = icmp eq ptr %type, {ours}
  %number = icmp eq ptr %type, {scalar}
  %ours = or i1 %array, %number
  br i1 %ours, label %yes, label %listed
listed:
  %list = icmp eq ptr %type, {list}
  %tuple = icmp eq ptr %type, {tuple}
  %either = or i1 %list, %tuple
  br i1 %either, label %count, label %no
count:
  %sizeat = getelementptr i8, ptr %x, i64 16
  %size = load i64, ptr %sizeat
  %any = icmp sgt i64 %size, 0
  br i1 %any, label %first, label %no
first:
  %itemsat = getelementptr i8, ptr %x, i64 24
  %outside = load ptr, ptr %itemsat
  %items = select i1 %list, ptr %outside, ptr %itemsat
  %item = load ptr, ptr %items
  %itemtypeat = getelementptr i8, ptr %item, i64 8
  %itemtype = load ptr, ptr %itemtypeat
  %inside = icmp eq ptr %itemtype, {ours}
  ret i1 %inside
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @are_ours(ptr %items, i64 %n) {{
  br label %next
next:
  %k = phi i64 [0, %0], [%after, %look]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %no
look:
  %at = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %at
  %ours = call i1 @is_ours(ptr %item)
  %after = add i64 %k, 1
  br i1 %ours, label %yes, label %next
yes:
  ret i1 true
no:
  ret i1 false
}}

define internal i1 @views_ours(ptr %array) {{
  br label %next
next:
  %x = phi ptr [%array, %0], [%base, %plain]
  %baseat = getelementptr i8, ptr %x, i64 {base}
  %base = load ptr, ptr %baseat
  %none = icmp eq ptr %base, null
  br i1 %none, label %no, label %look
look:
  %at = getelementptr i8, ptr %base, i64 8
  %type = load ptr, ptr %at
  %ours = icmp eq ptr %type, {ours}
  br i1 %ours, label %yes, label %plain
plain:
  %another = icmp eq ptr %type, {array}
  br i1 %another, label %next, label %no
yes:
  ret i1 true
no:
  ret i1 false
}}
"""

# What each kind of function is called with, and what tells that one of our arrays is among it.
_BODIES = {
    "store": (
        "i32",
        ("ptr %a", "ptr %b", "ptr %c"),
        "%gone = icmp eq ptr %c, null\n  br i1 %gone, label %original, label %value\n"
        "value:\n  %given = call i1 @is_ours(ptr %c)\n  %seen = call i1 @views_ours(ptr %a)\n"
        "  %found = or i1 %given, %seen",
    ),
    "store flat": ("i32", ("ptr %a", "ptr %b", "ptr %c"), "%found = call i1 @is_ours(ptr %c)"),
    "set": ("i32", ("ptr %a", "ptr %b", "ptr %c"), "%found = call i1 @is_ours(ptr %b)"),
    "buffer": ("i32", ("ptr %a", "ptr %b", "i32 %c"), "%found = or i1 true, true"),
    "init": ("i32", ("ptr %a", "ptr %b", "ptr %c"), "%found = or i1 true, true"),
    "fast": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        "%some = icmp eq ptr %d, null\n  br i1 %some, label %positional, label %named\n"
        "named:\n  %sizeat = getelementptr i8, ptr %d, i64 16\n  %size = load i64, ptr %sizeat\n"
        "  br label %positional\n"
        "positional:\n  %names = phi i64 [0, %entry], [%size, %named]\n  %n = add i64 %c, %names\n"
        "  %found = call i1 @are_ours(ptr %b, i64 %n)",
    ),
    "tuple": (
        "ptr",
        ("ptr %a", "ptr %b", "ptr %c"),
        "%sizeat = getelementptr i8, ptr %b, i64 16\n  %n = load i64, ptr %sizeat\n"
        "  %items = getelementptr i8, ptr %b, i64 24\n  %given = call i1 @are_ours(ptr %items, i64 %n)\n"
        "  %named = icmp ne ptr %c, null\n  %found = or i1 %given, %named",
    ),
}

_TRAMPOLINE = """
define {result} @trampoline_{k}({arguments}) {{
entry:
  {condition}
  br i1 %found, label %caller, label %original
caller:
  %own = call i1 @is_own()
  br i1 %own, label %original, label %ask
ask:
{numbers}
  %answer = call ptr (ptr, ptr, ...) {call}(ptr {hook}, ptr {format}, {given})
  %failed = icmp eq ptr %answer, null
  br i1 %failed, label %failure, label %answered
answered:
  %goes_on = icmp eq ptr %answer, {none}
  br i1 %goes_on, label %release, label %done
release:
  call void {release}(ptr %answer)
  br label %original
original:
  %result = tail call {result} {original}({names})
  ret {result} %result
done:
{done}
failure:
  ret {result} {wrong}
}}
"""


def _constant(address: int) -> str:
    return f"inttoptr (i64 {address} to ptr)"


def _api(name: str) -> str:
    return _constant(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)


def _source(places: Sequence[Place], cls: type) -> str:
    """LLVM's text of the trampolines."""
    modules = [id(vars(m)) for name, m in sys.modules.items() if name.partition(".")[0] == "ampi" and m is not None]
    own = (ctypes.c_size_t * len(modules))(*modules)
    _kept.append(own)
    parts = [
        _HEADER.format(
            globals=_api("PyEval_GetGlobals"),
            own=_constant(ctypes.addressof(own)),
            modules=len(modules),
            ours=_constant(id(cls)),
            scalar=_constant(id(memory._scalar_type)),
            list=_constant(id(list)),
            tuple=_constant(id(tuple)),
            array=_constant(id(np.ndarray)),
            base=_ARRAY_BASE * _WORD,
        )
    ]
    for k, place in enumerate(places):
        result, arguments, condition = _BODIES[place.signature]
        names = [argument.split()[1] for argument in arguments]
        numbers = [
            f"  %n{name[1]} = {'ptrtoint' if kind == 'ptr' else 'zext' if kind == 'i32' else 'add'} "
            f"{kind} {name}{', 0' if kind == 'i64' else ' to i64'}"
            for kind, name in (argument.split() for argument in arguments)
        ]
        done = "  ret ptr %answer" if result == "ptr" else f"  call void {_api('Py_DecRef')}(ptr %answer)\n  ret i32 0"
        parts.append(
            _TRAMPOLINE.format(
                k=k,
                result=result,
                arguments=", ".join(arguments),
                condition=condition,
                numbers="\n".join(numbers),
                call=_api("PyObject_CallFunction"),
                hook=_constant(id(place.hook)),
                format=_constant(ctypes.addressof(_FORMATS[len(names)])),
                given=", ".join(f"i64 %n{name[1]}" for name in names),
                none=_constant(id(None)),
                release=_api("Py_DecRef"),
                original=_constant(place.original),
                names=", ".join(arguments),
                done=done,
                wrong="null" if result == "ptr" else "-1",
            )
        )
    return "".join(parts)


_FORMATS = {n: ctypes.create_string_buffer(b"K" * n) for n in (3, 4)}
_kept: list[Any] = []  # the code may be called for as long as the process runs


def compile_trampolines(places: Sequence[Place], cls: type) -> None:
    """Make the machine code, and tell the places where it is."""
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly(_source(places, cls))
    module.verify()
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine(opt=0))
    engine.finalize_object()
    _kept.append((engine, [place.hook for place in places]))
    for k, place in enumerate(places):
        place.trampoline = engine.get_function_address(f"trampoline_{k}")


# ----------------------------------------------------------------------------------------- while tapes record


class Interception(event.Listener):
    """The places that are redirected while at least one tape of the process records, and Numba does not compile."""

    def __init__(self, find: Callable[[], list[Place]], cls: type) -> None:
        self._find = find
        self._cls = cls
        self._places: list[Place] | None = None
        self._users = 0
        self._compiling = 0
        self._lock = threading.RLock()  # a garbage collection inside may close the tape of a generator
        self.problem = ""

    def begin(self, tape: Tape) -> None:
        """A tape begins to record."""
        with self._lock:
            if self._places is None:
                self._places = self._prepared()
                event.register("numba:compiler_lock", self)
            self._count(users=1)

    def end(self, tape: Tape) -> None:
        """A tape ends to record."""
        self._count(users=-1)

    def on_start(self, _: Any) -> None:
        """Numba begins to compile."""
        self._count(compiling=1)

    def on_end(self, _: Any) -> None:
        """Numba ends to compile."""
        self._count(compiling=-1)

    def _count(self, users: int = 0, compiling: int = 0) -> None:
        with self._lock:
            was_on = self._is_on
            self._users += users
            self._compiling = max(self._compiling + compiling, 0)
            if self._is_on != was_on:
                for place in self._places or ():
                    place.pointer.value = place.original if was_on else place.trampoline

    @property
    def _is_on(self) -> bool:
        return self._users > 0 and not self._compiling

    def _prepared(self) -> list[Place]:
        if checks.level == checks.OFF:
            return []
        try:
            if _WORD != 8 or sys.implementation.name != "cpython" or np.ndarray.__basicsize__ < (_ARRAY_BASE + 1) * 8:
                raise Unknown("this Python")
            places = self._find()
            if object.__basicsize__ != 16 or not is_writeable([place.address for place in places]):
                raise Unknown("this Python")
            compile_trampolines(places, self._cls)
        except (Unknown, KeyError, AttributeError, ValueError, RuntimeError, ImportError) as error:
            self.problem = str(error)
            return []
        return places


def arguments_at(signature: str, items: int, n: int, names: int = 0) -> tuple[tuple, dict]:
    """Positional and keyword arguments, as a hook of a function has them (``n``: of the fast convention)."""
    if signature == "tuple":
        return object_at(items), object_at(n) if n else {}
    keywords = object_at(names) if names else ()
    found = [object_at(_word(items + k * _WORD)) for k in range(n + len(keywords))]
    return tuple(found[:n]), dict(zip(keywords, found[n:]))


def start(find: Callable[[], list[Place]], cls: type) -> Interception:
    """Redirect the places that are found whenever a tape records."""
    found = Interception(find, cls)
    at_opening.append(found.begin)
    at_closing.append(found.end)
    return found

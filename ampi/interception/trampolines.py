"""Machine code in front of C functions: it inspects the operands, and calls Python if one is an `ampi.ndarray`.

Otherwise it jumps to the original function, after some nanoseconds.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..memory import storages as memory
from ..tape.recording import open_tapes
from .entry_points import ARRAY_BASE, IS_DICTIONARY, IS_LIST, IS_TUPLE, TYPE_FLAGS, WORD

Hook = Callable[..., Any]
"""A function of the C function's arguments that returns the result, or None to run the C function."""

NOTHING = object()
"""What a hook returns to make the C function return None."""


class Place:
    """A C function, the pointers to it, and the trampoline that replaces it while tapes record.

    Attributes
    ----------
    addresses : tuple of int
        Addresses of the pointers.
    original : int
        Address of the C function.
    signature : str
        Calling convention, and which operands the trampoline inspects: a key of `_BODIES`.
    trampoline : int
        Address of the machine code.
    pointers : list of ctypes.c_void_p
        The pointers themselves.
    hook : callable
        Called if an operand is an `ampi.ndarray`, with the C function's arguments as integers.
    permanent : bool
        True if the trampoline remains in place when no tape records.
    only : tuple of type
        For a method: classes for whose instances the hook is called; empty: for all.
    """

    def __init__(
        self,
        addresses: int | tuple[int, ...],
        original: int,
        signature: str,
        hook: Hook,
        permanent: bool = False,
        only: tuple[type, ...] = (),
    ) -> None:
        self.addresses = addresses if isinstance(addresses, tuple) else (addresses,)
        self.original = original
        self.signature = signature
        self.hook = hook
        self.trampoline = 0
        self.permanent = permanent
        self.only = only
        self.pointers = [ctypes.c_void_p.from_address(address) for address in self.addresses]

    def add(self, addresses: tuple[int, ...], redirected: bool) -> None:
        """Add further pointers to the same function."""
        self.addresses += addresses
        pointers = [ctypes.c_void_p.from_address(address) for address in addresses]
        self.pointers += pointers
        if redirected:
            for pointer in pointers:
                pointer.value = self.trampoline

    def redirect(self, on: bool) -> None:
        """Set the pointers to the trampoline, or back to the original."""
        for pointer in self.pointers:
            pointer.value = self.trampoline if on else self.original


# some_open: a tape is open; is_own: ampi's own Python code calls; is_ours: an operand is an ampi.ndarray, or a list or
# tuple (or instance of a derived class, such as a named tuple) that holds one; list_ours: an operand is such a list or
# tuple; may_hold: is_ours, or a dictionary, which is not searched; views_ours: an array is a plain view of an
# ampi.ndarray; is_opaque: an operand, or an item of one, is neither a plain array nor a number of Python or NumPy, so
# that it may hold one of ours in a way that only Python finds.
_HEADER = """
define internal i1 @some_open() {{
  %sizeat = getelementptr i8, ptr {tapes}, i64 16
  %size = load i64, ptr %sizeat
  %some = icmp ne i64 %size, 0
  ret i1 %some
}}

define internal i1 @may_hold(ptr %x, i64 %depth) {{
  %none = icmp eq ptr %x, null
  br i1 %none, label %no, label %look
look:
  %at = getelementptr i8, ptr %x, i64 8
  %type = load ptr, ptr %at
  %flagsat = getelementptr i8, ptr %type, i64 {flags}
  %flags = load i64, ptr %flagsat
  %dictionaries = and i64 %flags, {is_dictionary}
  %dictionary = icmp ne i64 %dictionaries, 0
  br i1 %dictionary, label %yes, label %other
other:
  %ours = call i1 @is_ours(ptr %x, i64 %depth)
  ret i1 %ours
yes:
  ret i1 true
no:
  ret i1 false
}}

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

define internal i1 @is_ours(ptr %x, i64 %depth) {{
  %none = icmp eq ptr %x, null
  br i1 %none, label %no, label %look
look:
  %at = getelementptr i8, ptr %x, i64 8
  %type = load ptr, ptr %at
  %array = icmp eq ptr %type, {ours}
  %number = icmp eq ptr %type, {scalar}
  %either = or i1 %array, %number
  %record = icmp eq ptr %type, {record}
  %ours = or i1 %either, %record
  br i1 %ours, label %yes, label %listed
listed:
  %deep = icmp sgt i64 %depth, {deepest}
  br i1 %deep, label %no, label %shallow
shallow:
  %inside = add i64 %depth, 1
  %list = call i1 @list_ours(ptr %x, i64 %inside)
  ret i1 %list
yes:
  ret i1 true
no:
  ret i1 false
}}

{list_ours}
{list_opaque}
define internal i1 @is_opaque(ptr %x, i64 %depth) {{
  %none = icmp eq ptr %x, null
  br i1 %none, label %no, label %look
look:
  %at = getelementptr i8, ptr %x, i64 8
  %type = load ptr, ptr %at
  %number = ptrtoint ptr %type to i64
  switch i64 %number, label %inspect [{transparent}]
inspect:
  %deep = icmp sgt i64 %depth, {deepest}
  br i1 %deep, label %yes, label %shallow
shallow:
  %inside = add i64 %depth, 1
  %list = call i1 @list_opaque(ptr %x, i64 %inside)
  ret i1 %list
yes:
  ret i1 true
no:
  ret i1 false
}}

{are_ours}
{have_lists}
{may_hold_any}
{any_opaque}
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

# True for a list or tuple if a predicate holds for any of its items; a constant for other objects.
_LISTED = """
define internal i1 @{name}(ptr %x, i64 %depth) {{
  %at = getelementptr i8, ptr %x, i64 8
  %type = load ptr, ptr %at
  %flagsat = getelementptr i8, ptr %type, i64 {flags}
  %flags = load i64, ptr %flagsat
  %lists = and i64 %flags, {is_list}
  %list = icmp ne i64 %lists, 0
  %sequences = and i64 %flags, {is_sequence}
  %either = icmp ne i64 %sequences, 0
  br i1 %either, label %count, label %other
count:
  %sizeat = getelementptr i8, ptr %x, i64 16
  %size = load i64, ptr %sizeat
  %itemsat = getelementptr i8, ptr %x, i64 24
  br i1 %list, label %outside, label %next
outside:
  %moved = load ptr, ptr %itemsat
  br label %next
next:
  %items = phi ptr [%itemsat, %count], [%moved, %outside], [%items, %look]
  %k = phi i64 [0, %count], [0, %outside], [%after, %look]
  %more = icmp slt i64 %k, %size
  br i1 %more, label %look, label %no
look:
  %place = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %place
  %found = call i1 @{predicate}(ptr %item, i64 %depth)
  %after = add i64 %k, 1
  br i1 %found, label %yes, label %next
yes:
  ret i1 true
no:
  ret i1 false
other:
  ret i1 {otherwise}
}}
"""

# True if a predicate holds for any of several operands.
_ANY = """define internal i1 @{name}(ptr %items, i64 %n) {{
  br label %next
next:
  %k = phi i64 [0, %0], [%after, %look]
  %more = icmp slt i64 %k, %n
  br i1 %more, label %look, label %no
look:
  %at = getelementptr ptr, ptr %items, i64 %k
  %item = load ptr, ptr %at
  %ours = call i1 @{predicate}(ptr %item, i64 0)
  %after = add i64 %k, 1
  br i1 %ours, label %yes, label %next
yes:
  ret i1 true
no:
  ret i1 false
}}
"""

_EITHER_LIST = (
    "%left = call i1 @list_ours(ptr %a, i64 0)\n  %right = call i1 @list_ours(ptr %b, i64 0)\n"
    "  %found = or i1 %left, %right"
)

# The number of operands, keyword arguments included.
_ALL_GIVEN = (
    "%some = icmp eq ptr %d, null\n  br i1 %some, label %positional, label %named\n"
    "named:\n  %sizeat = getelementptr i8, ptr %d, i64 16\n  %size = load i64, ptr %sizeat\n"
    "  br label %positional\n"
    "positional:\n  %names = phi i64 [0, %entry], [%size, %named]\n  %n = add i64 %c, %names\n"
)

# The same where the highest bit of the number is a flag.
_ALL_CALLED = f"%count = and i64 %c, {sys.maxsize}\n  " + _ALL_GIVEN.replace("add i64 %c", "add i64 %count")

_IN_TUPLE = (
    "%sizeat = getelementptr i8, ptr %b, i64 16\n  %n = load i64, ptr %sizeat\n"
    "  %items = getelementptr i8, ptr %b, i64 24\n  %given = call i1 @are_ours(ptr %items, i64 %n)\n"
)

# For code outside NumPy, which must not become slower while no tape is open.
_IF_OPEN = "%recording = call i1 @some_open()\n  br i1 %recording, label %look, label %original\nlook:\n  "
_HELD_IN_TUPLE = (
    "%sizeat = getelementptr i8, ptr %b, i64 16\n  %n = load i64, ptr %sizeat\n"
    "  %items = getelementptr i8, ptr %b, i64 24\n  %given = call i1 @may_hold_any(ptr %items, i64 %n)\n"
    "  %named = icmp ne ptr %c, null\n  %found = or i1 %given, %named"
)


# True if the first argument is an instance of one of some classes, or such a class itself.
_OF_SOME = (
    f"%given = and i64 %c, {sys.maxsize}\n  %none = icmp eq i64 %given, 0\n"
    "  br i1 %none, label %original, label %first\n"
    "first:\n  %self = load ptr, ptr %b\n  %typeat = getelementptr i8, ptr %self, i64 8\n"
    "  %type = load ptr, ptr %typeat\n  %one = call i1 @is_one(ptr %self, ptr %type)\n"
    "  br i1 %one, label %held, label %original\n"
)


def _held(items: str, count: str, names: str, label: str = "look") -> str:
    """The same for the fast convention, from the arguments, the number of positional ones, and the others' names."""
    return (
        f"%plain = and i64 {count}, {sys.maxsize}\n  %unnamed = icmp eq ptr {names}, null\n"
        "  br i1 %unnamed, label %positional, label %named\n"
        f"named:\n  %sizeat = getelementptr i8, ptr {names}, i64 16\n  %size = load i64, ptr %sizeat\n"
        "  br label %positional\n"
        f"positional:\n  %more = phi i64 [0, %{label}], [%size, %named]\n  %n = add i64 %plain, %more\n"
        f"  %found = call i1 @may_hold_any(ptr {items}, i64 %n)"
    )


# For each signature: result type, arguments, and the condition under which the hook is called.
_BODIES = {
    "store": (
        "i32",
        ("ptr %a", "ptr %b", "ptr %c"),
        "%gone = icmp eq ptr %c, null\n  br i1 %gone, label %original, label %value\n"
        "value:\n  %given = call i1 @is_ours(ptr %c, i64 0)\n  %taker = call i1 @is_ours(ptr %a, i64 0)\n"
        "  %seen = call i1 @views_ours(ptr %a)\n  %either = or i1 %given, %taker\n  %found = or i1 %either, %seen",
    ),
    "store flat": ("i32", ("ptr %a", "ptr %b", "ptr %c"), "%found = call i1 @is_ours(ptr %c, i64 0)"),
    "set": ("i32", ("ptr %a", "ptr %b", "ptr %c"), "%found = call i1 @is_ours(ptr %b, i64 0)"),
    "buffer": ("i32", ("ptr %a", "ptr %b", "i32 %c"), "%found = or i1 true, true"),
    "init": ("i32", ("ptr %a", "ptr %b", "ptr %c"), "%found = or i1 true, true"),
    "fast": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        _ALL_GIVEN + "  %found = call i1 @are_ours(ptr %b, i64 %n)",
    ),
    "any fast": ("ptr", ("ptr %a", "ptr %b", "i64 %c", "ptr %d"), "%found = or i1 true, true"),
    "fast, no names": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c"),
        "%found = call i1 @are_ours(ptr %b, i64 %c)",
    ),
    # The highest bit of the number of arguments is a flag.
    "lists": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        f"%n = and i64 %c, {sys.maxsize}\n  %found = call i1 @have_lists(ptr %b, i64 %n)",
    ),
    # For an object that is called, not for an entry in a table of methods.
    "call": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        _ALL_CALLED + "  %found = call i1 @are_ours(ptr %b, i64 %n)",
    ),
    # NumPy itself handles one of ours as the first argument.
    "reduce": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        _ALL_GIVEN + "  %listed = call i1 @have_lists(ptr %b, i64 %n)\n"
        "  %rest = getelementptr ptr, ptr %b, i64 1\n  %others = sub i64 %n, 1\n"
        "  %given = call i1 @are_ours(ptr %rest, i64 %others)\n  %found = or i1 %listed, %given",
    ),
    "binary": ("ptr", ("ptr %a", "ptr %b"), _EITHER_LIST),
    "power": ("ptr", ("ptr %a", "ptr %b", "ptr %c"), _EITHER_LIST),
    "tuple": (
        "ptr",
        ("ptr %a", "ptr %b", "ptr %c"),
        _IN_TUPLE + "  %named = icmp ne ptr %c, null\n  %found = or i1 %given, %named",
    ),
    "tuple, no names": ("ptr", ("ptr %a", "ptr %b"), _IN_TUPLE + "  %found = or i1 %given, false"),
    "gate fast": ("ptr", ("ptr %a", "ptr %b", "i64 %c", "ptr %d"), _IF_OPEN + _held("%b", "%c", "%d")),
    "gate fast, no names": ("ptr", ("ptr %a", "ptr %b", "i64 %c"), _IF_OPEN + _held("%b", "%c", "null")),
    "gate fast, with class": (
        "ptr",
        ("ptr %a", "ptr %b", "ptr %c", "i64 %d", "ptr %e"),
        _IF_OPEN + _held("%c", "%d", "%e"),
    ),
    "gate tuple": ("ptr", ("ptr %a", "ptr %b", "ptr %c"), _IF_OPEN + _HELD_IN_TUPLE),
    "gate tuple, no names": (
        "ptr",
        ("ptr %a", "ptr %b"),
        _IF_OPEN + _HELD_IN_TUPLE.replace("icmp ne ptr %c, null", "or i1 false, false"),
    ),
    "gate opaque": (
        "ptr",
        ("ptr %a", "ptr %b", "ptr %c"),
        _IF_OPEN + _HELD_IN_TUPLE.replace("may_hold_any", "any_opaque"),
    ),
    "gate calls": ("ptr", ("ptr %a", "ptr %b", "ptr %c"), _IF_OPEN + "%found = or i1 true, true"),
    "gate object": ("ptr", ("ptr %a", "ptr %b"), _IF_OPEN + "%found = call i1 @may_hold(ptr %b, i64 0)"),
    "gate binary": (
        "ptr",
        ("ptr %a", "ptr %b"),
        _IF_OPEN + "%left = call i1 @may_hold(ptr %a, i64 0)\n  %right = call i1 @may_hold(ptr %b, i64 0)\n"
        "  %found = or i1 %left, %right",
    ),
    "gate store": ("i32", ("ptr %a", "ptr %b", "ptr %c"), _IF_OPEN + "%found = call i1 @may_hold(ptr %c, i64 0)"),
    "gate init": ("i32", ("ptr %a", "ptr %b", "ptr %c"), _IF_OPEN + _HELD_IN_TUPLE),
    "gate method": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        _IF_OPEN + _OF_SOME + "held:\n  " + _held("%b", "%c", "%d", "held"),
    ),
    "gate method, objects": (
        "ptr",
        ("ptr %a", "ptr %b", "i64 %c", "ptr %d"),
        _IF_OPEN + _OF_SOME + "held:\n  %found = or i1 true, true",
    ),
}

# True if a method is called on an instance of some classes, or on one of these classes.
_IS_ONE = """
define internal i1 @is_one(ptr %self, ptr %type) {{
  %isclass = icmp eq ptr %type, {metaclass}
  %key = select i1 %isclass, ptr %self, ptr %type
  %number = ptrtoint ptr %key to i64
  switch i64 %number, label %no [{cases}]
yes:
  ret i1 true
no:
  ret i1 false
}}
"""

_TRAMPOLINE = """
define {internal} {result} @{name}({arguments}{others}) {{
entry:
  {condition}
  br i1 %found, label %caller, label %original
caller:
  {caller}
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
_ASK_UNLESS_OWN = "%own = call i1 @is_own()\n  br i1 %own, label %original, label %ask"

# Return a hook's answer as the C function's result.
_ANSWER = """  %isnothing = icmp eq ptr %answer, {nothing}
  br i1 %isnothing, label %nothing, label %something
nothing:
{release}  call void {keep}(ptr {none})
  ret ptr {none}
something:
  ret ptr %answer"""

_STUB = """
define {result} @trampoline_{k}({arguments}) {{
  %result = tail call {result} @{name}({arguments}, ptr {hook}, ptr {original})
  ret {result} %result
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
            record=_constant(id(memory._record_type)),
            deepest=_DEEPEST,
            flags=_FLAGS["flags"],
            is_dictionary=IS_DICTIONARY,
            list_ours=_LISTED.format(name="list_ours", predicate="is_ours", otherwise="false", **_FLAGS),
            list_opaque=_LISTED.format(name="list_opaque", predicate="is_opaque", otherwise="true", **_FLAGS),
            tapes=_constant(id(open_tapes)),
            array=_constant(id(np.ndarray)),
            base=ARRAY_BASE * WORD,
            are_ours=_ANY.format(name="are_ours", predicate="is_ours"),
            have_lists=_ANY.format(name="have_lists", predicate="list_ours"),
            may_hold_any=_ANY.format(name="may_hold_any", predicate="may_hold"),
            any_opaque=_ANY.format(name="any_opaque", predicate="is_opaque"),
            transparent="".join(f"i64 {id(kind)}, label %no " for kind in _TRANSPARENT),
        )
    ]
    cases = "".join(f"i64 {id(cls)}, label %yes " for cls in dict.fromkeys(cls for p in places for cls in p.only))
    parts.append(_IS_ONE.format(metaclass=_constant(id(type)), cases=cases))
    shared: set[str] = set()
    for k, place in enumerate(places):
        hook, original = _constant(id(place.hook)), _constant(place.original)
        if not place.signature.startswith("gate"):
            parts.append(_body(f"trampoline_{k}", place.signature, hook, original))
            continue
        name = place.signature.replace(" ", "_").replace(",", "")  # there may be thousands of these
        if name not in shared:
            shared.add(name)
            parts.append(_body(name, place.signature, "%hook", "%function"))
        result, arguments, _ = _BODIES[place.signature]
        parts.append(
            _STUB.format(k=k, result=result, arguments=", ".join(arguments), name=name, hook=hook, original=original)
        )
    return "".join(parts)


def _body(name: str, signature: str, hook: str, original: str) -> str:
    """A function that calls a hook or the original; both are constants, or arguments of that name."""
    result, arguments, condition = _BODIES[signature]
    names = [argument.split()[1] for argument in arguments]
    numbers = [
        f"  %n{name[1]} = {'ptrtoint' if kind == 'ptr' else 'zext' if kind == 'i32' else 'add'} "
        f"{kind} {name}{', 0' if kind == 'i64' else ' to i64'}"
        for kind, name in (argument.split() for argument in arguments)
    ]
    release = f"  call void {_api('Py_DecRef')}(ptr %answer)\n"
    done = _ANSWER.format(
        nothing=_constant(id(NOTHING)), none=_constant(id(None)), keep=_api("Py_IncRef"), release=release
    )
    return _TRAMPOLINE.format(
        name=name,
        internal="" if original.startswith("inttoptr") else "internal",
        others="" if original.startswith("inttoptr") else f", ptr {hook}, ptr {original}",
        caller="br label %ask" if signature.startswith("gate") else _ASK_UNLESS_OWN,
        result=result,
        arguments=", ".join(arguments),
        condition=condition,
        numbers="\n".join(numbers),
        call=_api("PyObject_CallFunction"),
        hook=hook,
        format=_constant(ctypes.addressof(_FORMATS[len(names)])),
        given=", ".join(f"i64 %n{name[1]}" for name in names),
        none=_constant(id(None)),
        release=_api("Py_DecRef"),
        original=original,
        names=", ".join(arguments),
        done=done if result == "ptr" else f"{release}  ret i32 0",
        wrong="null" if result == "ptr" else "-1",
    )


_FLAGS = {"flags": TYPE_FLAGS * WORD, "is_list": IS_LIST, "is_sequence": IS_LIST | IS_TUPLE}
_TRANSPARENT = (
    np.ndarray,
    bool,
    int,
    float,
    complex,
    str,
    type(None),
    np.bool_,
    np.intp,
    np.int32,
    np.float64,
    np.float32,
)
_DEEPEST = 8  # depth of nested lists that is searched; a list may contain itself
_FORMATS = {n: ctypes.create_string_buffer(b"K" * n) for n in (2, 3, 4, 5)}
_kept: list[Any] = []  # the code may be called until the process ends


def compile_trampolines(places: Sequence[Place], cls: type) -> None:
    """Compile the trampolines, and set their addresses in the places."""
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

"""Single elements and numbers: the ways that a program's own loops take, as short as they can be.

While no tape is open, `ampi.ndarray` has no item access of its own: elements are what NumPy gives, at NumPy's price.
(Unless there are structured arrays, whose elements are views that may carry derivatives later.)
While one records, an element that carries derivatives, and what is computed of it, is a variable of the tape (see
`tape.elements`); whatever is not said here about it is done as for any other array, whose memory the variable is then
stored in.
"""

from __future__ import annotations

import math
import operator
import os
import sys
import threading
from _thread import get_ident
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import checks, indexing
from .activity import plain_of
from .memory import (
    Region,
    TrackedArray,
    at_first_structured,
    is_scalar,
    region_of,
    set_node,
    storage_of,
    variable,
    writable,
)
from .memory import set_class as _set_class
from .recording import scope_now
from .rules.elementwise import RULES
from .tape import Tape, at_opening, current, living, open_tapes
from .tape.elements import (
    ADD,
    BITS,
    CLEAR,
    LONGEST,
    READ,
    SCALE,
    STORE,
    SUBTRACT,
    SUM,
    Elements,
    set_compiled_sweep,
    steps_of,
)

_item = np.ndarray.__getitem__
_set_item = np.ndarray.__setitem__
_index = operator.index
_scalar: type = TrackedArray

NUMBERS = frozenset((float, int, bool, np.float64, np.float32, np.int64, np.int32, np.bool))
"""Types of constants in statements."""


# ------------------------------------------------------------------------------------------------------- item access


def getitem(self: Any, key: Any) -> Any:
    """``array[key]`` while a tape is open."""
    found = _item(self, key)
    if type(found) not in BITS:
        return indexing.selected(self, key, found)
    try:
        region = self._region
    except AttributeError:
        region = region_of(self)
    storage = region.storage
    reference = storage.tape
    if reference is None:
        return _constant(self, key, found)
    scope = scope_now()
    tape = scope.tape
    if tape is None or tape.reference is not reference or scope.thread != get_ident():
        return indexing.selected(self, key, found)
    pen = tape.pen
    if pen is None or storage.guard or storage.volatile:
        return indexing.selected(self, key, found)
    try:
        offset, strides, shape, code = region.steps
    except AttributeError:
        if not steps_of(region):
            return indexing.selected(self, key, found)
        offset, strides, shape, code = region.steps
    except ValueError:
        return indexing.selected(self, key, found)
    if type(key) is int:
        offset += (key if key >= 0 else key + shape[0]) * strides[0]
    else:
        try:
            i, j = key
            offset += (i if i >= 0 else i + shape[0]) * strides[0] + (j if j >= 0 else j + shape[1]) * strides[1]
            if type(offset) is not int:
                offset = int(offset)
        except (TypeError, ValueError):
            offset = _offset_of(key, region.steps)
    if pen.records[-1] is not pen.current:
        pen.open()
    try:
        place = pen.places[storage]
    except KeyError:
        if not pen.can_read(storage):
            return indexing.selected(self, key, found)
        place = pen.place(storage)
    integers = pen.integers
    integers += (offset, place | code)
    number = pen.count
    pen.count = number + 1
    if code:
        return variable(found, (found, number, reference))
    room = pen.room or pen.enlarge()
    pen.room = room = room - 1
    pen.pool[room] = found
    made = pen.shown[room, ...]
    _set_class(made, _scalar)
    set_node(made, (found, number, reference))
    return made


def _constant(self: Any, key: Any, found: Any) -> Any:
    """An element that carries no derivative."""
    if not open_tapes:
        _count_idle()
        return found
    scope = scope_now()
    tape = scope.tape
    if tape is None or (pen := tape.pen) is None or scope.thread != get_ident():
        return indexing.selected(self, key, found)
    if type(found) is not np.float64:
        return variable(found, (found, None, tape.reference))
    room = pen.room or pen.enlarge()
    pen.room = room = room - 1
    pen.pool[room] = found
    made = pen.shown[room, ...]
    _set_class(made, _scalar)
    set_node(made, (found, None, tape.reference))
    return made


def _offset_of(key: Any, steps: tuple) -> int:
    """Of the element that integers select, in its storage."""
    offset, strides, shape, _ = steps
    for k, stride, length in zip(key if type(key) is tuple else (key,), strides, shape):
        k = _index(k)
        offset += (k if k >= 0 else k + length) * stride
    return offset


def setitem(self: Any, key: Any, value: Any) -> None:
    """``array[key] = value`` while a tape is open, or exists."""
    scope = scope_now()
    tape = scope.tape
    if tape is None or (pen := tape.pen) is None or scope.thread != get_ident():
        _set_passively(self, key, value)
        return
    kind = type(value)
    if kind is _scalar:
        try:
            number, variable, known = value._node
        except AttributeError:
            known = None
        if known is not tape.reference:
            if (node := _node_of(value, tape, pen)) is None:
                indexing.setitem(self, key, value)
                return
            number, variable, known = node
    elif kind in NUMBERS:
        number, variable = value, None
    else:
        indexing.setitem(self, key, value)
        return
    try:
        region = self._region
    except AttributeError:
        region = region_of(self)
    storage = region.storage
    reference = storage.tape
    if reference is not tape.reference and (
        reference is not None or storage.swapped_by or storage.arriving or storage.packed
    ):
        indexing.setitem(self, key, value)
        return
    try:
        offset, strides, shape, code = region.steps
    except (AttributeError, ValueError):
        if not steps_of(region):
            indexing.setitem(self, key, value)
            return
        offset, strides, shape, code = region.steps
    if type(key) is tuple and len(key) == len(shape) == 2 and type(key[0]) is type(key[1]) is int:
        i, j = key
        offset += (i if i >= 0 else i + shape[0]) * strides[0] + (j if j >= 0 else j + shape[1]) * strides[1]
    elif type(key) is int and len(shape) == 1:
        offset += (key if key >= 0 else key + shape[0]) * strides[0]
    elif (offset := _place_of(key, region)) is None:  # type: ignore[assignment]
        indexing.setitem(self, key, value)
        return
    if (
        storage.guard
        or storage.volatile
        or storage.swapped_by
        or (storage.needs and not _saved(self, key, offset, pen))
    ):
        indexing.setitem(self, key, value)
        return
    integers = pen.integers
    if not pen.records or pen.records[-1] is not pen.current or len(integers) > LONGEST:
        integers = pen.open()
    try:
        code |= pen.places[storage]
    except KeyError:
        if not pen.can_read(storage):
            indexing.setitem(self, key, value)
            return
        code |= pen.place(storage)
    _set_item(self, key, number)
    if variable is not None:
        integers += (variable, offset, code + STORE)
        storage.tape = tape.reference
    elif reference is not None:
        integers += (offset, code + CLEAR)


def _saved(array: Any, key: Any, offset: int, pen: Elements) -> bool:
    """Whether what tapes need of an element has been saved before it is overwritten."""
    region = array._region if array.ndim else region_of(array)
    return _place_of(key, region) is not None and pen.save(region.storage, array, region, offset)


def _place_of(key: Any, region: Region) -> int | None:
    """The offset of the element that a key of integers selects, in its storage; None if it is another key."""
    try:
        offset, strides, shape, _ = region.steps
    except AttributeError:
        if not steps_of(region):
            return None
        offset, strides, shape, _ = region.steps
    except ValueError:
        return None
    if type(key) is int:
        key = (key,)
    elif type(key) is not tuple:
        return None
    if len(key) != len(shape):
        return None
    for k, stride, length in zip(key, strides, shape):
        if type(k) is not int:
            if not isinstance(k, np.integer):
                return None
            k = int(k)
        if k < 0:
            k += length
        if not 0 <= k < length:
            return None  # an error of NumPy's
        offset += k * stride
    return offset


def _set_passively(self: Any, key: Any, value: Any) -> None:
    """The same where no tape records statements."""
    if not open_tapes:
        storage: Any = storage_of(self)
        if not storage.needs and not storage.guard:
            _count_idle()
            _set_item(self, key, value)
            return
    indexing.setitem(self, key, value)


def iterated(self: Any) -> Iterator[Any]:
    """``iter(array)`` while a tape is open."""
    if self.ndim == 0:
        raise TypeError("iteration over a 0-d array")
    return (self[k] for k in range(len(self)))


# ------------------------------------------------------------------------------------------------ methods come and go

_arrays: list[type] = []
_lock = threading.RLock()
_idle = 0  # uses of item access of ours since the last tape was closed
_ENOUGH = 32
# From Python 3.13 on, a class that has changed a thousand times is looked at without any cache.
_changes_left = 400 if sys.version_info >= (3, 13) else sys.maxsize


def set_scalar_type(cls: type) -> None:
    """Tell this module which class variables have (`ampi.scalars.scalar`)."""
    global _scalar
    _scalar = cls


def leave_to_numpy(cls: type) -> None:
    """The class of arrays, which is to have item access of ours only while a tape needs it."""
    _arrays.append(cls)
    if checks.is_full():
        _take_over()
    else:
        at_opening.append(_take_over)


def _take_over(tape: Any = None) -> None:
    global _idle
    _idle = 0
    (cls,) = _arrays
    if "__getitem__" in vars(cls) and "__setitem__" in vars(cls):
        return
    with _lock:
        methods: dict[str, Callable] = {"__getitem__": getitem, "__setitem__": setitem, "__iter__": iterated}
        for name, method in methods.items():
            if name not in vars(cls):
                setattr(cls, name, method)


def _keep() -> None:
    """There are structured arrays: their elements are views that may carry derivatives later, and so are ours."""
    global _changes_left
    _changes_left = 0
    _take_over()


at_first_structured.append(_keep)


def _count_idle() -> None:
    """Item access of ours was asked though no tape is open: after some times NumPy's takes its place."""
    global _idle, _changes_left
    _idle += 1
    if _idle < _ENOUGH or checks.is_full() or not _changes_left:
        return
    with _lock:
        _idle = 0
        (cls,) = _arrays
        for name in ("__getitem__", "__iter__", *(() if living else ("__setitem__",))):
            if not open_tapes and name in vars(cls):
                delattr(cls, name)
                _changes_left -= 1


# --------------------------------------------------------------------------------------------------------- arithmetic


def _node_of(x: Any, tape: Tape, pen: Elements) -> tuple | None:
    """Value, variable and tape of a scalar; the variable None of a constant.  None: to be treated as an array."""
    try:
        node = x._node
        if node[2] is tape.reference:
            return node
    except AttributeError:
        pass
    storage: Any = storage_of(x)
    if x.dtype.type not in BITS or not x.dtype.isnative:
        return None
    value = _item(x, ())
    if storage.tape is None:
        return value, None, None
    if storage.tape is not tape.reference or storage.guard or storage.volatile or storage.packed or storage.elsewhere:
        return None
    if pen.records[-1] is not pen.current or len(pen.integers) > LONGEST:
        pen.open()
    place = pen.places.get(storage)
    if place is None:
        if not pen.can_read(storage):
            return None
        place = pen.place(storage)
    pen.current.read.add(storage)  # type: ignore[union-attr]
    pen.integers += (region_of(x).offset, place + BITS[x.dtype.type] + READ)
    number = pen.count
    pen.count = number + 1
    node = value, number, tape.reference
    set_node(x, node)
    return node


_METHOD = """
def {name}(self, other):
    scope = scope_now()
    tape = scope.tape
    if tape is None or scope.thread != get_ident() or (pen := tape.pen) is None:
        return base(self, other)
    reference = tape.reference
    try:
        x, a, known = self._node
    except AttributeError:
        known = None
    if known is not reference:
        if (node := node_of(self, tape, pen)) is None:
            return base(self, other)
        x, a, known = node
    kind = type(self)
    if type(other) in NUMBERS:
        y, b = other, None
    elif type(other) is kind:
        try:
            y, b, known = other._node
        except AttributeError:
            known = None
        if known is not reference:
            if (node := node_of(other, tape, pen)) is None:
                return base(self, other)
            y, b, known = node
    else:
        return base(self, other)
    z = {formula}
    if type(z) not in BITS:
        return base(self, other)
    if a is None and b is None:
        number = None
    elif not pen.records or pen.records[-1] is not pen.current:
        pen.open()
    integers = pen.integers
    if b is None:
        if a is not None:
            number = pen.count
            {first}
    elif a is None:
        number = pen.count
        {second}
    else:
        number = pen.count
        {both}
    if type(z) is not float64:
        return variable(z, (z, number, reference))
    room = pen.room or pen.enlarge()
    pen.room = room = room - 1
    pen.pool[room] = z
    made = pen.shown[room, ...]
    set_class(made, kind)
    set_node(made, (z, number, reference))
    return made
"""

_SAME = "number = {0}"
_ONE = "integers += ({0}, SCALE); pen.reals.append({1}); pen.count = number + 1"
_BOTH = "integers += (a, b, SUM); pen.reals += ({0}, {1}); pen.count = number + 1"
_TWO = "integers += (a, b, {0}); pen.count = number + 1"

_FORMULAS = {  # formula, and statements with only a, only b, and both
    "add": ("x + y", _SAME.format("a"), _SAME.format("b"), _TWO.format("ADD")),
    "sub": ("x - y", _SAME.format("a"), _ONE.format("b", "-1.0"), _TWO.format("SUBTRACT")),
    "mul": ("x * y", _ONE.format("a", "y"), _ONE.format("b", "x"), _BOTH.format("y", "x")),
    "truediv": (
        "x / y",
        _ONE.format("a", "over(1.0, y)"),
        _ONE.format("b", "over(-z, y)"),
        _BOTH.format("over(1.0, y)", "over(-z, y)"),
    ),
}
_NAMES = {
    "ADD": ADD,
    "BITS": BITS,
    "NUMBERS": NUMBERS,
    "SCALE": SCALE,
    "SUBTRACT": SUBTRACT,
    "SUM": SUM,
    "float64": np.float64,
    "get_ident": get_ident,
    "node_of": _node_of,
    "scope_now": scope_now,
    "set_class": _set_class,
    "set_node": set_node,
    "variable": variable,
}


def _comparison(name: str) -> Callable:
    base, compare = getattr(np.ndarray, name), getattr(operator, name.strip("_"))

    def method(self: Any, other: Any) -> Any:
        kind = type(other)
        if kind is type(self):
            return compare(_item(self, ()), _item(other, ()))
        if kind in NUMBERS:
            return compare(_item(self, ()), other)
        return base(self, other)

    method.__name__ = name
    return method


def _over(x: Any, y: Any) -> float:
    """A quotient, in silence."""
    try:
        return float(x) / float(y)
    except ZeroDivisionError:
        with np.errstate(all="ignore"):
            return float(np.float64(x) / np.float64(y))


def _refused(*operands: Any) -> Any:
    return NotImplemented


def _written(name: str, prefix: str, base: Callable) -> Callable:
    """`_METHOD` for an operator."""
    formula, first, second, both = _FORMULAS[name]
    full = f"{prefix}{name}__"
    text = _METHOD.format(name=full, formula=formula, first=first, second=second, both=both)
    if prefix == "__r":
        text = text.replace("    z = ", "    x, a, y, b = y, b, x, a\n    z = ")
    names = {**_NAMES, "base": base, "over": _over}
    exec(compile(text, __file__, "exec"), names)
    return names[full]


def _as_of_numbers(base: Callable, of_numbers: Callable, swapped: bool = False) -> Callable:
    """An operator of arrays that gives what NumPy's scalars give: of complex ones another rounding."""

    def method(self: Any, *others: Any) -> Any:
        made = base(self, *others)
        if is_scalar(made) and "c" in (made.dtype.kind, self.dtype.kind) and not storage_of(made).guard:  # type: ignore[union-attr]
            values = [plain_of(x) for x in (self, *others)]
            if all(isinstance(x, (int, float, complex, np.generic)) for x in values):
                wanted = of_numbers(*(reversed(values) if swapped else values))
                if getattr(wanted, "dtype", None) == made.dtype:
                    writable(made)[...] = wanted
        return made

    return method


def _power(base: Callable, swapped: bool) -> Callable:
    def method(self: Any, other: Any, *modulus: Any) -> Any:
        tape = current()
        if tape is not None and not modulus:
            if (
                type(other) in (int, float)
                and not swapped
                and (found := _constant_power(tape, self, other)) is not None
            ):
                return found
            operands = (other, self) if swapped else (self, other)
            found = call(tape, np.power, operands, operator.pow)
            if found is not NotImplemented:
                return found
        return base(self, other, *modulus)

    return method


def _constant_power(tape: Tape, base: Any, exponent: Any) -> Any:
    """The power of a variable to a constant; None: to be found in the general way."""
    node = None if tape.pen is None else _node_of(base, tape, tape.pen)
    if node is None or node[1] is None:
        return None
    try:
        partial = exponent * math.pow(node[0], exponent - 1) if exponent else 0.0
    except (OverflowError, ValueError):
        return None
    z = node[0] ** exponent
    if type(z) not in BITS:
        return None
    pen: Any = tape.pen
    if pen.records[-1] is not pen.current or len(pen.integers) > LONGEST:
        pen.open()
    number = pen.count
    pen.count = number + 1
    pen.integers += (node[1], SCALE)
    pen.reals.append(partial)
    return variable(z, (z, number, tape.reference))


def operators() -> dict[str, Callable]:
    """The methods of scalars that have a short way."""
    found: dict[str, Callable] = {}
    for name in (*_FORMULAS, "pow"):
        of_numbers = getattr(operator, name)
        for prefix in ("__", "__r", "__i"):
            swapped = prefix == "__r"
            base = getattr(np.ndarray, f"__{name}__" if prefix == "__i" else f"{prefix}{name}__")
            base = _as_of_numbers(base, of_numbers, swapped)
            full = f"{prefix}{name}__"
            found[full] = _power(base, swapped) if name == "pow" else _written(name, prefix, base)
    for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        found[name] = _comparison(name)
    found["__abs__"] = _as_of_numbers(np.ndarray.__abs__, abs)
    return found


_QUICK: dict[Any, tuple[Callable, Callable]] = {
    np.add: (_written("add", "__", _refused), _written("add", "__r", _refused)),
    np.subtract: (_written("sub", "__", _refused), _written("sub", "__r", _refused)),
    np.multiply: (_written("mul", "__", _refused), _written("mul", "__r", _refused)),
    np.divide: (_written("truediv", "__", _refused), _written("truediv", "__r", _refused)),
}


def of_two(ufunc: np.ufunc, x: Any, y: Any) -> Any:
    """A ufunc of two operands, one of them a scalar at least; NotImplemented: there is no short way."""
    methods = _QUICK.get(ufunc)
    if methods is None:
        return NotImplemented
    return methods[0](x, y) if type(x) is _scalar else methods[1](y, x)


# ------------------------------------------------------------------------------------------------- NumPy's functions


def call(tape: Tape, ufunc: np.ufunc, inputs: tuple, of_numbers: Callable | None = None) -> Any:
    """A ufunc of scalars and constants, or an operator; NotImplemented: to be recorded as one of arrays."""
    rule, pen = RULES.get(ufunc), tape.pen
    if rule is None or pen is None or len(inputs) > 2:
        return NotImplemented
    values: list[Any] = []
    variables: list[int | None] = []
    for x in inputs:
        if type(x) in NUMBERS:
            values.append(x)
            variables.append(None)
            continue
        node = _node_of(x, tape, pen) if is_scalar(x) else None
        if node is None:
            return NotImplemented
        values.append(node[0])
        variables.append(node[1])
    active = [k for k, a in enumerate(variables) if a is not None and rule.terms[k] is not None]
    if not active:
        return NotImplemented
    if of_numbers is None:
        z = ufunc(*values)
    else:
        z = of_numbers(*values)
    if type(z) not in BITS:
        return NotImplemented
    values.append(z)
    partials = rule.partials or ()
    with np.errstate(all="ignore"):
        if partials:
            pairs = [(variables[k], float(partials[k](*[values[n] for n in rule.needs[k]]))) for k in active]
        else:
            one = type(z)(1.0)
            pairs = [(variables[k], float(rule.terms[k](one, *[values[n] for n in rule.needs[k]]))) for k in active]
    pairs.append((None, 0.0))
    if pen.records[-1] is not pen.current or len(pen.integers) > LONGEST:
        pen.open()
    (a, p), (b, q) = pairs[:2]
    number = pen.count
    pen.count = number + 1
    if b is None:
        pen.integers += (a, SCALE)
        pen.reals.append(p)
    else:
        pen.integers += (a, b, SUM)
        pen.reals += (p, q)
    return variable(z, (z, number, tape.reference))


def _sweep_compiled(*arguments: Any) -> None:
    """The compiled sweep of statements, which is loaded when one is long enough."""
    from .kernel.runtime import element_sweep

    set_compiled_sweep(element_sweep.sweep)
    element_sweep.sweep(*arguments)


if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
    set_compiled_sweep(_sweep_compiled)

__all__ = ["call", "getitem", "leave_to_numpy", "operators", "set_scalar_type", "setitem"]

"""Arithmetic and NumPy's functions on numbers that are variables of a tape (see `elements` and `tape.elements`)."""

from __future__ import annotations

import math
import operator
from _thread import get_ident
from collections.abc import Callable
from sys import getrefcount
from typing import Any

import numpy as np

from ..memory.storages import is_scalar, storage_of, writable
from ..tape import Tape, current
from ..tape.element_places import BITS
from ..tape.elements import ADD, LONGEST, SCALE, SUBTRACT, SUM, UNUSED
from ..tape.recording import scope_now
from . import complex_numbers
from .activity import plain_of
from .elements import NUMBERS, node_of
from .elementwise import CONSTANTS, RULES, quietly

_item = np.ndarray.__getitem__
_scalar: type = np.ndarray


def set_scalar_type(cls: type) -> None:
    """Set the class of variables (`ampi.arrays.scalars.scalar`)."""
    global _scalar
    _scalar = cls


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
    if type(other) is kind:
        try:
            y, b, known = other._node
        except AttributeError:
            known = None
        if known is not reference:
            if (node := node_of(other, tape, pen)) is None:
                return base(self, other)
            y, b, known = node
    elif type(other) in NUMBERS:
        y, b = other, None
    else:
        return base(self, other)
    z = {formula}
    if type(z) is not float64 and type(z) not in BITS:
        return base(self, other)
    number = pen.count
    if b is None:
        if a is None:
            number = None
        else:
            {first}
    elif a is None:
        {second}
    else:
        {both}
    if type(z) is not float64:
        return pen.made(z, number)
    room = pen.room or pen.enlarge()
    pen.room = room = room - 1
    made = pen.ring[room]
    if getrefcount(made) > UNUSED:
        return pen.missing(z, (z, number, reference))
    pen.pool[room] = z
    made._node = z, number, reference
    return made
"""

# These statements access no memory: they may be added to the latest record of statements even if other records follow.
_SAME = "number = {0}"
_ONE = "pen.integers += ({0}, SCALE); pen.reals.append({1}); pen.count = number + 1"
_BOTH = "pen.integers += (a, b, SUM); pen.reals += ({0}, {1}); pen.count = number + 1"
_TWO = "pen.integers += (a, b, {0}); pen.count = number + 1"

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
    "__name__": __name__,  # marks frames as ampi's own
    "ADD": ADD,
    "BITS": BITS,
    "NUMBERS": NUMBERS,
    "SCALE": SCALE,
    "SUBTRACT": SUBTRACT,
    "SUM": SUM,
    "float64": np.float64,
    "get_ident": get_ident,
    "getrefcount": getrefcount,
    "node_of": node_of,
    "scope_now": scope_now,
    "UNUSED": UNUSED,
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
    """A quotient without warnings."""
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
    names: dict[str, Any] = {**_NAMES, "base": base, "over": _over}
    exec(compile(text, __file__, "exec"), names)
    return names[full]


_COMPLEX = (complex, np.complex128)
_REAL = np.dtype(np.float64)
_UFUNCS = {
    operator.add: np.add,
    operator.sub: np.subtract,
    operator.mul: np.multiply,
    operator.truediv: np.divide,
    operator.pow: np.power,
    operator.abs: np.absolute,
    operator.neg: np.negative,
    operator.pos: np.positive,
}


def _as_of_numbers(base: Callable, of_numbers: Callable, swapped: bool = False) -> Callable:
    """An operator of arrays with the results of NumPy's scalars, which round complex numbers and powers differently."""
    kinds = "cf" if of_numbers is operator.pow else "c"
    ufunc = _UFUNCS[of_numbers]

    def method(self: Any, *others: Any) -> Any:
        if self.dtype.kind == "c" or any(
            [type(x) in _COMPLEX or getattr(x, "dtype", _REAL).kind == "c" for x in others]
        ):
            made = complex_numbers.operate(ufunc, of_numbers, (*others, self) if swapped else (self, *others))
            if made is not None:
                return made
        made = base(self, *others)
        if is_scalar(made) and (made.dtype.kind in kinds or self.dtype.kind == "c") and not storage_of(made).guard:  # type: ignore[union-attr]
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
            if not swapped and (found := _variable_power(tape, self, other)) is not None:
                return found
            operands = (other, self) if swapped else (self, other)
            found = call(tape, np.power, operands, operator.pow)
            if found is not None:
                return found
            if all(isinstance(x, np.ndarray) for x in operands) and operands[1].ndim == 0:
                return np.power(*operands)  # before NumPy 2.4, ** makes an exponent a Python float
        return base(self, other, *modulus)

    return method


def _variable_power(tape: Tape, base: Any, exponent: Any) -> Any:
    """The power of a positive variable to another one, both of double precision; None: use the general method."""
    pen: Any = tape.pen
    if pen is None or type(exponent) is not _scalar:
        return None
    first, second = node_of(base, tape, pen), node_of(exponent, tape, pen)
    if first is None or second is None or first[1] is None or second[1] is None:
        return None
    x, y = first[0], second[0]
    if not type(x) is type(y) is np.float64 or not 0.0 < x < math.inf:
        return None
    z = x**y
    try:
        p = float(y) * float(x) ** (float(y) - 1.0) if y else 0.0
    except OverflowError:
        return None
    number = pen.count
    pen.count = number + 1
    pen.integers += (first[1], second[1], SUM)
    pen.reals += (p, float(z * np.log(x)) if z else 0.0)
    return pen.made(z, number)


def _constant_power(tape: Tape, base: Any, exponent: Any) -> Any:
    """The power of a variable to a constant; None: use the general method."""
    node = None if tape.pen is None else node_of(base, tape, tape.pen)
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
    return pen.made(z, number)


def operators() -> dict[str, Callable]:
    """The methods of scalars that have a fast path."""
    found: dict[str, Callable] = {}
    for name in (*_FORMULAS, "pow"):
        of_numbers = getattr(operator, name)
        for prefix in ("__", "__r", "__i"):
            swapped = prefix == "__r"
            base = getattr(np.ndarray, f"__{name}__" if prefix == "__i" else f"{prefix}{name}__")
            base = _as_of_numbers(base, of_numbers, swapped)
            full = f"{prefix}{name}__"
            found[full] = _power(base, swapped) if name == "pow" else _written(name, prefix, base)
    for name, ufunc in (("mod", np.remainder), ("floordiv", np.floor_divide)):
        for prefix, swapped in (("__", False), ("__r", True)):
            full = f"{prefix}{name}__"
            found[full] = _by_call(ufunc, getattr(np.ndarray, full), swapped)
    for name, swapped in (("__divmod__", False), ("__rdivmod__", True)):
        found[name] = _quotient_and_remainder(getattr(np.ndarray, name), swapped)
    for name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
        found[name] = _comparison(name)
    for name, ufunc in (("__abs__", np.absolute), ("__neg__", np.negative), ("__pos__", np.positive)):
        found[name] = _sign(ufunc, _as_of_numbers(getattr(np.ndarray, name), getattr(operator, name)))
    return found


def _by_call(ufunc: np.ufunc, base: Callable, swapped: bool) -> Callable:
    def method(self: Any, other: Any) -> Any:
        tape = current()
        if tape is not None:
            found = call(tape, ufunc, (other, self) if swapped else (self, other))
            if found is not None:
                return found
        return base(self, other)

    return method


def _quotient_and_remainder(base: Callable, swapped: bool) -> Callable:
    def method(self: Any, other: Any) -> Any:
        tape = current()
        if tape is not None:
            operands = (other, self) if swapped else (self, other)
            remainder = call(tape, np.remainder, operands, lambda x, y: divmod(x, y)[1])
            if remainder is not None:
                x, y = map(plain_of, operands)
                return tape.pen.made(divmod(x, y)[0], None), remainder  # type: ignore[union-attr]
        return base(self, other)

    return method


def _sign(ufunc: np.ufunc, base: Callable) -> Callable:
    def method(self: Any) -> Any:
        made = of_one(ufunc, self)
        return base(self) if made is NotImplemented else made

    return method


_QUICK: dict[Any, tuple[Callable, Callable]] = {
    np.add: (_written("add", "__", _refused), _written("add", "__r", _refused)),
    np.subtract: (_written("sub", "__", _refused), _written("sub", "__r", _refused)),
    np.multiply: (_written("mul", "__", _refused), _written("mul", "__r", _refused)),
    np.divide: (_written("truediv", "__", _refused), _written("truediv", "__r", _refused)),
}


def converted(x: Any, kind: type) -> Any:
    """A variable as a number of another precision; None: there is no fast path."""
    if kind not in BITS:
        return None
    tape = current()
    node = None if tape is None or tape.pen is None else node_of(x, tape, tape.pen)
    if node is None or node[1] is None:
        return None
    return x if type(node[0]) is kind else tape.pen.made(kind(node[0]), node[1])


def by_python(function: Callable, ufunc: np.ufunc, inputs: tuple) -> Any:
    """A function of `math` that agrees with a ufunc but for the last digit, of variables of double precision and
    constants; None: there is no fast path.

    The value is Python's; partial derivatives are computed from the ufunc's, as for any other code.
    """
    tape = current()
    if tape is None or (pen := tape.pen) is None or len(inputs) != ufunc.nin:
        return None
    rule = RULES.get(ufunc)
    if rule is None or not rule.partials:
        return None
    values: list[Any] = []
    variables: list[int | None] = []
    for x in inputs:
        kind = type(x)
        if kind is _scalar:
            node = node_of(x, tape, pen)
            if node is None or type(node[0]) is not np.float64:
                return None
            values.append(node[0])
            variables.append(node[1])
        elif kind is float or kind is int or kind is np.float64:
            values.append(x)
            variables.append(None)
        else:
            return None
    active = [k for k, a in enumerate(variables) if a is not None and rule.terms[k] is not None]
    if not active:
        return None
    z = np.float64(function(*values))
    found = quietly(
        _partials_of_python,
        (
            ufunc,
            rule,
            active,
            [x if type(x) is not int or n in rule.whole else np.float64(x) for n, x in enumerate(values)],
            variables,
        ),
    )
    number = pen.count
    pen.count = number + 1
    if len(found) == 1:
        pen.integers += (found[0][0], SCALE)
        pen.reals.append(found[0][1])
    else:
        (a, p), (b, q) = found
        pen.integers += (a, b, SUM)
        pen.reals += (p, q)
    return pen.made(z, number)


def _partials_of_python(ufunc: np.ufunc, rule: Any, active: list, values: list, variables: list) -> list:
    if any([-1 in rule.needs[k] for k in active]):
        values = [*values, ufunc(*values)]
    return _partials(rule.partials, rule.needs, active, values, variables)


def of_one(ufunc: np.ufunc, x: Any) -> Any:
    """A ufunc of one scalar; NotImplemented: there is no fast path."""
    scope = scope_now()
    tape = scope.tape
    if tape is None or scope.thread != get_ident() or (pen := tape.pen) is None or (rule := RULES.get(ufunc)) is None:
        return NotImplemented
    try:
        node = x._node
        if node[2] is not tape.reference:
            node = node_of(x, tape, pen)
    except AttributeError:
        node = node_of(x, tape, pen)
    if node is None or node[1] is None or rule.unknown or rule.terms[0] is None:
        return NotImplemented
    value = node[0]
    z = ufunc(value)
    if type(z) not in BITS:
        return NotImplemented
    needs = rule.needs[0]
    if ufunc is np.absolute:
        partial = math.copysign(1.0, value + 0.0)
    elif not rule.partials:
        return NotImplemented
    elif not needs:
        partial = rule.partials[0]()
    else:
        partial = float(quietly(rule.partials[0], [value if n == 0 else z for n in needs]))
    number = pen.count
    pen.count = number + 1
    pen.integers += (node[1], SCALE)
    pen.reals.append(partial)
    return pen.made(z, number)


def of_two(ufunc: np.ufunc, x: Any, y: Any) -> Any:
    """A ufunc of two operands, at least one of them a scalar; NotImplemented: there is no fast path."""
    methods = _QUICK.get(ufunc)
    if methods is None:
        return NotImplemented
    return methods[0](x, y) if type(x) is _scalar else methods[1](y, x)


# ------------------------------------------------------------------------------------------------- NumPy's functions


def _partials(partials: Any, needs: Any, active: list, values: list, variables: list) -> list:
    """The variables, and the partial derivatives with respect to them."""
    return [(variables[k], float(partials[k](*[values[n] for n in needs[k]]))) for k in active]


def _constant(tape: Tape, ufunc: np.ufunc, inputs: tuple) -> Any:
    """A ufunc of numbers whose derivative is zero wherever it exists; None: record it as one of arrays."""
    pen: Any = tape.pen
    values = []
    for x in inputs:
        if type(x) in NUMBERS:
            values.append(x)
        elif is_scalar(x) and (node := node_of(x, tape, pen)) is not None:
            values.append(node[0])
        else:
            return None
    z = ufunc(*values)
    return pen.made(z, None) if type(z) in BITS else None


def call(tape: Tape, ufunc: np.ufunc, inputs: tuple, of_numbers: Callable | None = None) -> Any:
    """A ufunc of scalars and constants, or an operator; None: record it as one of arrays."""
    rule, pen = RULES.get(ufunc), tape.pen
    if pen is None or len(inputs) > 3:
        return None
    if rule is None:
        return _constant(tape, ufunc, inputs) if ufunc in CONSTANTS else None
    values: list[Any] = []
    variables: list[int | None] = []
    for x in inputs:
        if type(x) in NUMBERS:
            values.append(x)
            variables.append(None)
            continue
        node = node_of(x, tape, pen) if is_scalar(x) else None
        if node is None:
            return complex_numbers.call(tape, ufunc, inputs, of_numbers)
        values.append(node[0])
        variables.append(node[1])
    active = [k for k, a in enumerate(variables) if a is not None and rule.terms[k] is not None]
    if not 0 < len(active) < 3 or (rule.unknown and any([variables[k] is not None for k in rule.unknown])):
        return None
    if of_numbers is None:
        z = ufunc(*values)
    else:
        z = of_numbers(*values)
    if type(z) not in BITS:
        return None
    if len(inputs) > 1:
        kind: Any = type(z)  # derivatives have the result's precision
        values = [
            x if type(x) is kind or type(x) is float else int(x) if n in rule.whole else kind(x)
            for n, x in enumerate(values)
        ]
    values.append(z)
    partials = rule.partials or ()
    if partials:
        pairs = quietly(_partials, (partials, rule.needs, active, values, variables))
    else:
        one = type(z)(1.0)
        pairs = [
            (variables[k], float(quietly(rule.terms[k], [one, *[values[n] for n in rule.needs[k]]]))) for k in active
        ]
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
    return pen.made(z, number)

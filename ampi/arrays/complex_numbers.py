"""Complex numbers: each is a pair of variables of a tape, its real and its imaginary part.

They are read, stored and computed by the statements on a few elements (`ampi.tape.flows`): an operation multiplies the
pair's adjoints by the conjugates of its partial derivatives.  The ``_node`` of such a number refers to the tape by
`Elements.pairs`, so that code for real numbers does not mistake it for one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..memory.storages import is_scalar, region_of, set_node, storage_of
from ..memory.storages import variable as new_variable
from ..tape import Tape, current
from ..tape.elements import FLOW, LONGEST, Elements
from ..tape.flows import COUNT, MAKES, NEGATIVE, OVERWRITES, ROTATES, SPREAD, STEP, WEIGHTED
from .elements import NUMBERS, node_of
from .elementwise import RULES, quietly
from .few_writes import OWN, is_ordinary, open_for, place_of

_complex = np.complex128
_CONSTANTS = NUMBERS | {complex, np.complex128}
_PAIR = FLOW + 2 * COUNT
_item = np.ndarray.__getitem__


def node_of_pair(x: Any, tape: Tape, pen: Elements) -> tuple | None:
    """Value, first variable and reference of a complex number; None: treat it as an array."""
    node = getattr(x, "_node", None)
    if node is not None and node[2] is pen.pairs:
        return node
    if x.dtype.type is not _complex or not x.dtype.isnative:
        return None
    storage: Any = storage_of(x)
    value = _item(x, ())
    if storage.tape is None:
        return value, None, pen.pairs
    if storage.tape is not tape.reference or not is_ordinary(storage):
        return None
    offset = region_of(x).offset
    if offset & 7:
        return None
    open_for(pen)
    number = pen.count
    pen.integers += (offset, place_of(pen, storage) + STEP, 8 * number, OWN, _PAIR + OVERWRITES)
    pen.count = number + 2
    node = value, number, pen.pairs
    set_node(x, node)
    return node


def call(tape: Tape, ufunc: np.ufunc, inputs: tuple, of_numbers: Callable | None = None) -> Any:
    """A ufunc of numbers, some of them complex, or an operator; None: record it as one of arrays."""
    pen, rule = tape.pen, RULES.get(ufunc)
    if pen is None or rule is None or len(inputs) > 2:
        return None
    values: list[Any] = []
    sources: list[tuple[int, bool] | None] = []  # variable, and whether it is the first of a pair
    for x in inputs:
        if type(x) in _CONSTANTS:
            values.append(x)
            sources.append(None)
            continue
        if not is_scalar(x):
            return None
        node = node_of_pair(x, tape, pen) if x.dtype.kind == "c" else node_of(x, tape, pen)
        if node is None or type(node[0]) not in (_complex, np.float64):
            return None
        values.append(node[0])
        sources.append(None if node[1] is None else (node[1], type(node[0]) is _complex))
    rule = rule.of_complex or rule
    active = [k for k, source in enumerate(sources) if source is not None and rule.terms[k] is not None]
    if not active or any([k in rule.unknown for k in active]):
        return None
    z = (of_numbers or ufunc)(*values)
    if type(z) is np.float64:
        return _absolute(pen, values[0], z, sources[0]) if ufunc is np.absolute else None
    if type(z) is not _complex:
        return None
    if ufunc is np.conjugate:
        return _conjugate(pen, z, sources[0])
    if not rule.partials:
        return None
    values = [x if type(x) is int and n in rule.whole else _numpys(x) for n, x in enumerate(values)]
    return _made(pen, z, quietly(_partials, (rule, active, [*values, z], sources)))


def _numpys(x: Any) -> Any:
    """A constant as NumPy's number, which may be divided by zero."""
    return x if isinstance(x, np.generic) else _complex(x) if type(x) is complex else np.float64(x)


def _partials(rule: Any, active: list, values: list, sources: list) -> list:
    """The variables, and the real and imaginary parts of the partial derivatives with respect to them."""
    found = []
    for k in active:
        p = complex(rule.partials[k](*[values[n] for n in rule.needs[k]]))
        found.append((sources[k], p.real, p.imag))
    return found


def _made(pen: Elements, z: Any, pairs: list) -> Any:
    """Return a complex result, given the variables and partial derivatives of its operands."""
    if len(pen.integers) > LONGEST:
        pen.open()
    first = pen.count
    form = _PAIR + OVERWRITES
    for (source, is_pair), p, q in pairs:
        head = form
        if not is_pair:
            pen.reals += (p, q)
            pen.integers += (source, 0, 8 * first, OWN, head + SPREAD + WEIGHTED)
        else:
            if q:
                pen.reals += (p, q)
                head += ROTATES
            elif p != 1.0:
                if p == -1.0:
                    head += NEGATIVE
                else:
                    pen.reals += (p, p)
                    head += WEIGHTED
            pen.integers += (8 * source, OWN, 8 * first, OWN, head)
        form = _PAIR
    pen.count = first + 2
    return new_variable(z, (z, first, pen.pairs))


def _conjugate(pen: Elements, z: Any, source: Any) -> Any:
    pen.reals += (1.0, -1.0)
    pen.integers += (8 * source[0], OWN, 8 * pen.count, OWN, _PAIR + OVERWRITES + WEIGHTED)
    pen.count += 2
    return new_variable(z, (z, pen.count - 2, pen.pairs))


def _absolute(pen: Elements, x: Any, z: Any, source: Any) -> Any:
    """|x|: its derivative is x / |x|, and one at zero."""
    unit = x / z if z else _complex(1.0)
    return _from_pair(pen, z, source[0], unit.real, unit.imag)


def _from_pair(pen: Elements, z: Any, source: int, p: float, q: float) -> Any:
    """Return a real number, given the partial derivatives with respect to a complex one."""
    pen.reals += (float(p), float(q))
    pen.integers += (8 * source, OWN, 0, 0, _PAIR + MAKES + WEIGHTED)
    number = pen.count
    pen.count = number + 1
    return pen.made(z, number)


def operate(ufunc: np.ufunc, of_numbers: Callable, operands: tuple) -> Any:
    """An operator with a complex operand, with the result of NumPy's numbers; None: there is no fast path."""
    tape = current()
    if tape is None or (pen := tape.pen) is None:
        return None
    if ufunc in _BILINEAR and (made := _bilinear(pen, ufunc, of_numbers, *operands)) is not None:
        return made
    return call(tape, ufunc, operands, of_numbers)


_BILINEAR = frozenset((np.add, np.subtract, np.multiply))


def _bilinear(pen: Elements, ufunc: np.ufunc, of_numbers: Callable, x: Any, y: Any) -> Any:
    """A sum, difference or product of a pair and another one, or a constant; None: see `call`."""
    pairs = pen.pairs
    values: list[Any] = []
    sources: list[int | None] = []
    for operand in (x, y):
        if type(operand) in _CONSTANTS:
            values.append(operand)
            sources.append(None)
            continue
        node = getattr(operand, "_node", None)
        if node is None or node[2] is not pairs:
            return None
        values.append(node[0])
        sources.append(node[1])
    x, y = values
    a, b = sources
    z = of_numbers(x, y)
    if type(z) is not _complex:
        return None
    if ufunc is np.multiply:
        found = [] if a is None else [((a, True), y.real, y.imag)]
        if b is not None:
            found.append(((b, True), x.real, x.imag))
    else:
        found = [] if a is None else [((a, True), 1.0, 0.0)]
        if b is not None:
            found.append(((b, True), 1.0 if ufunc is np.add else -1.0, 0.0))
    return _made(pen, z, found) if found else None


def part(x: Any, imaginary: bool) -> Any:
    """The real or imaginary part of a complex number; None: there is no fast path."""
    tape = current()
    if tape is None or tape.pen is None:
        return None
    node = node_of_pair(x, tape, tape.pen)
    if node is None or node[1] is None:
        return None
    value = node[0].imag if imaginary else node[0].real
    return _from_pair(tape.pen, value, node[1], float(not imaginary), float(imaginary))

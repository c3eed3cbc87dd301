"""Statements on a few elements at once, among those of `elements`: ``z[1:4] += x[0:3] * p``.

Such a statement, a *flow*, adds the values of a few elements, or a variable, times partial derivatives, to other
elements or to a variable.  An operation is one flow for each of its arguments.  Five integers give it, the last of
which begins with the kind of the statement::

    source      offset, place + step       or variable, 0
    target      offset, place + step       or variable, 0
    head        FLOW + form + number

Offsets are in bytes; steps, from one element to the next, in numbers, times `STEP`.  All numbers are of double
precision.  The elements of a new array are variables with successive numbers, in the place `VARIABLES`, until other
code than these statements sees the array.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

WORDS = 5
STEP = 1 << 32
"""The factor of steps in the words of places."""
VARIABLES = STEP - 16
"""The place of the tape's variables; offsets are eight times their numbers.  A flow that sets some makes them."""
OVERWRITES = 8
"""The elements of the target are set; without it, the flow is added to them."""
SPREAD, MAKES, ADDS = 16, 32, 48
"""Forms: from a variable to elements; from elements to a new variable; from elements to a variable that another flow
makes.  Without them: from elements to elements."""
FORM = 48
WEIGHTED = 64
"""The elements are multiplied by partial derivatives, one for each."""
NEGATIVE = 128
ROTATES = WEIGHTED + NEGATIVE
"""The two elements are a complex number, multiplied by another one."""
COUNT = 256
"""The factor of the number of elements."""
MOST = 7
"""The most elements of arrays whose operations are flows.  NumPy sums up so many one after the other."""


def partials(head: int) -> int:
    """Return how many reals a flow has."""
    return head // COUNT if head & WEIGHTED else 0


def reverse(head: int, integers: list, reals: list, elements: Callable, sums: Any, variable: int) -> int:
    """Apply the adjoint of a flow, whose statement is taken from the end of the lists; return the number of variables
    before it.

    ``elements(place)`` are the adjoints of a storage as a memoryview, None for zeros, and the bytes from one to the
    next; ``sums`` those of variables.
    """
    count, form = head // COUNT, head & FORM
    to, target, where, source = integers.pop(), integers.pop(), integers.pop(), integers.pop()
    p = None
    if head & WEIGHTED:
        p = reals[-count:]
        del reals[-count:]
    if form >= MAKES:
        if form == MAKES:
            variable -= 1
            target = variable
        g = [sums[target]] * count
        if form == MAKES:
            sums[target] = 0.0
        if not g[0]:
            return variable
    else:
        shadow, size = elements(to % STEP)
        if shadow is None:
            return variable
        places = _places(target, to, count, size)
        g = [shadow[k] for k in places]
        if head & OVERWRITES:
            for k in places:
                shadow[k] = 0.0
            if to % STEP == VARIABLES:
                variable -= count
    if p is not None:
        if head & NEGATIVE:
            g = _rotated(g, (p[0], -p[1]))
        else:
            g = [a * b if a and b else 0.0 for a, b in zip(g, p)]
    elif head & NEGATIVE:
        g = [-a for a in g]
    if form == SPREAD:
        sums[source] += _sum(g)
    else:
        shadow, size = elements(where % STEP)
        for k, a in zip(_places(source, where, count, size), g):
            shadow[k] += a
    return variable


def forward(statement: Any, reals: Any, r: int, elements: Callable, tangents: Any, variable: int) -> int:
    """Push tangents through a flow, whose partial derivatives begin at ``reals[r]``; return the next variable."""
    source, where, target, to, head = statement
    count, form = head // COUNT, head & FORM
    if form == SPREAD:
        x_dot = [tangents[source]] * count
    else:
        memory, size = elements(where % STEP)
        x_dot = [memory[k] for k in _places(source, where, count, size)]
    if head & ROTATES == ROTATES:
        x_dot = _rotated(x_dot, reals[r : r + count])
    elif head & WEIGHTED:
        x_dot = [a * b if a and b else 0.0 for a, b in zip(x_dot, reals[r : r + count])]
    elif head & NEGATIVE:
        x_dot = [-a for a in x_dot]
    if form == ADDS:
        tangents[target] += _sum(x_dot)
        return variable
    if form == MAKES:
        tangents[variable] = _sum(x_dot)
        return variable + 1
    memory, size = elements(to % STEP)
    for k, a in zip(_places(target, to, count, size), x_dot):
        memory[k] = a if head & OVERWRITES else memory[k] + a
    return variable + count if head & OVERWRITES and to % STEP == VARIABLES else variable


def _rotated(x: Any, p: Any) -> list:
    """A complex product, zero where one of its factors is."""
    (a, b), (c, d) = x, p
    return [a * c - b * d, a * d + b * c] if (a or b) and (c or d) else [0.0, 0.0]


def _places(offset: int, where: int, count: int, size: int) -> range:
    """The numbers of the elements."""
    first, step = offset // size, 8 * (where // STEP) // size
    return range(first, first + count * step, step)


def _sum(terms: list) -> float:
    """The sum in order, rounded after each step: that of Python is more precise than NumPy's."""
    total = 0.0
    for x in terms:
        total += x
    return total

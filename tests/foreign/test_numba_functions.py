"""Functions of `numba.njit` that are called unmodified with active arrays: a warning, or right derivatives.

Active arrays may be arguments or be inside of one: in tuples, lists, typed containers, objects of compiled classes.
"""

import collections
import warnings

import numba
import numpy
import pytest
from numba.experimental import jitclass, structref
from numba.typed import Dict, List

import ampi
import ampi.numpy as np
from ampi.arrays import losses
from ampi.base import checks

pytestmark = [
    pytest.mark.skipif(not checks.intercepts, reason="calls of Numba's functions are not redirected"),
    pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPendingDeprecationWarning"),
]

X0 = numpy.array([0.7, 1.3, 0.45])
Pair = collections.namedtuple("Pair", "a b")


@numba.njit
def first(t):
    return (t[0] * t[0]).sum()


@numba.njit
def double_first(t):
    t[0][:] = 2.0 * t[0]


@numba.njit
def of_many(*arrays):
    return (arrays[0] * arrays[1]).sum()


@numba.njit
def named(t):
    return (t.a * t.b).sum()


@numba.njit
def of_nested(t):
    return (t[0][0] * t[0][0]).sum()


@jitclass([("a", numba.float64[:])])
class Held:
    """An object that computes with an array."""

    def __init__(self, a):
        self.a = a

    def set(self, a):
        """Hold another array."""
        self.a = a

    def total(self):
        """The sum of squares."""
        return (self.a * self.a).sum()


@structref.register
class Structure(numba.types.StructRef):
    """The type of `Proxy`."""


class Proxy(structref.StructRefProxy):
    """A structure with an array."""


structref.define_proxy(Proxy, Structure, ["a"])


@numba.njit
def of_structure(s):
    return (s.a * s.a).sum()


def listed(*arrays):
    found = List()
    for x in arrays:
        found.append(x)
    return found


def in_dictionary(x, how=Dict.__setitem__):
    found = Dict.empty(numba.int64, numba.float64[::1])
    how(found, 0, x)
    return found


def extended(x):
    found = listed(numpy.ones(3))
    found.extend(listed(x))
    return found[1:]


def replaced(x):
    found = listed(numpy.ones(3))
    found[0:1] = listed(x)
    return found


def set_in_object(x):
    found = Held(numpy.zeros(3))
    found.set(x)
    return found.total()


def filled_later(make, total):
    def program(x):
        u = np.zeros(3)
        holder = make(u)
        u[...] = x
        return total(holder)

    return program


READERS = {
    "tuple": lambda x: first((x, x)),
    "named tuple": lambda x: named(Pair(x, x)),
    "list": lambda x: first([x]),
    "any number of arguments": lambda x: of_many(x, x),
    "typed list": lambda x: first(listed(x)),
    "slice of a typed list": lambda x: first(listed(x, x)[1:]),
    "copy of a typed list": lambda x: first(listed(x).copy()),
    "extended by a typed list": lambda x: first(extended(x)),
    "slice replaced by a typed list": lambda x: first(replaced(x)),
    "typed list of typed lists": lambda x: of_nested(listed(listed(x))),
    "item of a typed list of typed lists": lambda x: first(listed(listed(x))[0]),
    "typed list in a tuple": lambda x: of_nested((listed(x), 1)),
    "typed dictionary": lambda x: first(in_dictionary(x)),
    "typed dictionary's default": lambda x: first(in_dictionary(x, Dict.setdefault)),
    "copy of a typed dictionary": lambda x: first(in_dictionary(x).copy()),
    "object": lambda x: Held(x).total(),
    "method of an object": set_in_object,
    "object that holds an array that becomes active": filled_later(Held, lambda held: held.total()),
    "typed list of an array that becomes active": filled_later(listed, first),
    "structure": lambda x: of_structure(Proxy(x)),
}


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_functions_that_read_active_arrays_draw_a_warning(read):
    numpy.testing.assert_allclose(read(X0), numpy.sum(X0**2))
    losses._warned.clear()
    with ampi.Tape() as tape:
        x = tape.watch(X0)
        with pytest.warns(ampi.ActivityWarning, match="a function of numba.njit given .*make it an ampi.kernel"):
            read(x)


WRITERS = {
    "tuple": lambda u: double_first((u, u)),
    "list": lambda u: double_first([u]),
    "typed list": lambda u: double_first(listed(u)),
    "slice of a typed list": lambda u: double_first(listed(u)[:1]),
}


@pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)
def test_constants_that_functions_overwrite_have_right_derivatives(write):
    def program(x):
        u = np.ones(3)
        y = np.sum(u * x)
        write(u)
        y = y + np.sum(np.sin(u) * x)
        write(u)
        return y + np.sum(u * x)

    with warnings.catch_warnings():
        warnings.simplefilter("error", ampi.ActivityWarning)
        found = ampi.grad(program)(X0)
    numpy.testing.assert_allclose(found, 1.0 + numpy.sin(2.0) + 4.0)


def test_functions_that_are_differentiated_themselves():
    losses._warned.clear()
    with pytest.warns(ampi.ActivityWarning, match="njit given a tuple"), pytest.raises(ampi.ActivityError):
        ampi.grad(first)((X0, X0))


@pytest.mark.parametrize(
    "add",
    [
        lambda found, x: found.append(x[0]),
        lambda found, x: found.extend(x),
        lambda found, x: found.__setitem__(slice(0, 1), x[:1]),
        lambda found, x: Dict.empty(numba.int64, numba.float64).setdefault(0, x[0]),
    ],
    ids=["append", "extend", "slice", "default"],
)
def test_active_numbers_are_not_stored(add):
    found = listed(1.0)
    with ampi.Tape() as tape:
        x = tape.watch(X0)
        with pytest.raises(ampi.ActivityError, match=r"a number that carries derivatives in numba\.typed"):
            add(found, x)

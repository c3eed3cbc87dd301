"""Objects that may be a state of a time loop: what they hold is restored, or an error says that it cannot be found."""

import argparse
import array
import collections
import random
import threading
import time
import types

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

X = numpy.array([0.3, 0.7, 1.1, 0.9])


def nested(x):
    return types.SimpleNamespace(u=np.array(x), inner=types.SimpleNamespace(v=np.sin(x)))


def step_nested(s):
    s.u = s.u * s.inner.v
    s.inner.v = s.inner.v * 1.01


def step_named(s):
    s["u"] = s["u"] * s["k"]


def step_listed(s):
    s.append(s[-1] * (1.0 - 0.05 * s[-1]))
    del s[0]


def step_options(s):
    s.u = s.u * (1.0 - 0.05 * s.u)
    s.n += 1


def step_drawn(s):
    s["u"] = s["u"] * s["random"].uniform(0.9, 1.1)


class Table(dict):
    """A dictionary with further attributes."""


class Items(list):
    """A list with further attributes."""


class Window(collections.deque):
    """A deque with further attributes."""


class Pair(tuple):
    """A tuple with a further attribute."""


class Hidden:
    """An object with a private slot, whose name Python changes, and one that has nothing."""

    __slots__ = ("__u", "marker")

    def __init__(self, u):
        self.__u = u
        self.marker = Marker()

    def step(self):
        self.__u = self.__u * (1.0 - 0.05 * self.__u)

    def read(self):
        return self.__u


class Marker:
    __slots__ = ()


def with_attributes(cls, *contents, **held):
    made = cls(*contents)
    for name, value in held.items():
        setattr(made, name, value)
    return made


def step_attributes(s):
    s.u = s.u * s.k
    s.k *= 0.99


def step_pair(s):
    return with_attributes(Pair, [s[0] * s.k], k=s.k * 0.99)


def step_window(s):
    s.append(s[-1] * (1.0 - 0.05 * s[0]))


def step_counted(s):
    held = s["held"]
    s["u"] = s["u"] * (1.0 - 0.01 * sum(held))
    if isinstance(held, set):
        held.add(max(held) + 1)
    else:
        held.append(3)
        held[0] += 1


def counted(held):
    return lambda x: {"u": x * 1.0, "held": held()}


def step_bits(s):
    s["u"] = s["u"] * numpy.random.Generator(s["bits"]).uniform(0.9, 1.1)


def step_dated(s):
    s["u"] = s["u"] * (1.0 - 0.01 * s["at"].tm_mday)
    s["at"] = time.struct_time([*s["at"][:2], s["at"].tm_mday + 1, *s["at"][3:]])


HELD = {
    "dict with attributes": (lambda x: with_attributes(Table, u=x * 1.0, k=0.9), step_attributes, lambda s: s.u),
    "list with attributes": (lambda x: with_attributes(Items, u=x * 1.0, k=0.9), step_attributes, lambda s: s.u),
    "deque with attributes": (lambda x: with_attributes(Window, u=x * 1.0, k=0.9), step_attributes, lambda s: s.u),
    "tuple with attributes": (lambda x: with_attributes(Pair, [x * 1.0], k=0.9), step_pair, lambda s: s[0]),
    "private slot": (lambda x: Hidden(x * 1.0), lambda s: s.step(), lambda s: s.read()),
    "deque": (lambda x: collections.deque([x * 1.0, np.sin(x)], 3), step_window, lambda s: s[-1]),
    "tuple of a class in C": (
        lambda x: {"u": x * 1.0, "at": time.struct_time(range(1, 10))},
        step_dated,
        lambda s: s["u"],
    ),
    "set": (counted(lambda: {1, 2}), step_counted, lambda s: s["u"]),
    "bytearray": (counted(lambda: bytearray(b"12")), step_counted, lambda s: s["u"]),
    "array of Python's": (counted(lambda: array.array("i", [1, 2])), step_counted, lambda s: s["u"]),
    "bit generator": (lambda x: {"u": x * 1.0, "bits": numpy.random.PCG64(3)}, step_bits, lambda s: s["u"]),
    "generator of the system": (
        lambda x: {"u": x * 1.0, "k": np.cos(x), "random": SYSTEMS},
        step_named,
        lambda s: s["u"],
    ),
    "namespace": (nested, step_nested, lambda s: s.u),
    "options": (lambda x: argparse.Namespace(u=np.array(x), n=0), step_options, lambda s: s.u),
    "UserDict": (lambda x: collections.UserDict(u=x * 1.0, k=np.cos(x)), step_named, lambda s: s["u"]),
    "ChainMap": (lambda x: collections.ChainMap({"u": x * 1.0}, {"k": np.cos(x)}), step_named, lambda s: s["u"]),
    "UserList": (lambda x: collections.UserList([x * 1.0, np.sin(x)]), step_listed, lambda s: s[-1]),
    "Python's generator": (lambda x: {"u": x * 1.0, "random": random.Random(3)}, step_drawn, lambda s: s["u"]),
}


SYSTEMS = random.SystemRandom()


def gradients(make, step, read, **options):
    def by_loop(x):
        return np.sum(read(ampi.timeloop(step, make(x), 11, **options)))

    def plainly(x):
        state = make(x)
        for _ in range(11):
            result = step(state)
            state = state if result is None else result
        return np.sum(read(state))

    return ampi.grad(by_loop)(X), ampi.grad(plainly)(X)


@pytest.mark.mpi
@pytest.mark.parametrize(
    "options", [{"checkpoints": 1}, {"checkpoints": 3}, {"storage": True, "checkpoints": 2}], ids=str
)
@pytest.mark.parametrize("what", HELD)
def test_what_they_hold_is_put_back(what, options, tmp_path):
    options = {**options, **({"storage": COMM_WORLD.bcast(str(tmp_path))} if "storage" in options else {})}
    found, expected = gradients(*HELD[what], **options)
    numpy.testing.assert_array_equal(found, expected)


def of_objects(x):
    found = numpy.empty(2, object)
    found[:] = [np.array(x), 3]
    return found


class Wrapped(enumerate):
    """An object of the program's own, which holds more than its attributes."""


HIDING = {
    "of the program": (lambda x: {"a": Wrapped([np.array(x)])}, r"state\['a'\] is a Wrapped that contains"),
    "in a tuple": (lambda x: [({"u": np.array(x)}.values(),)], r"state\[0\]\[0\] is a dict_values that contains"),
    "array of objects": (lambda x: {"o": of_objects(x)}, r"state\['o'\] is an array of objects that contains"),
    "iterator": (lambda x: {"i": iter([np.array(x)])}, r"state\['i'\] is a list_iterator that contains"),
    "view": (lambda x: {"i": {"u": np.array(x)}.values()}, r"state\['i'\] is a dict_values that contains"),
}


@pytest.mark.parametrize("what", HIDING)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_what_cannot_be_found_is_named(what):
    """These gradients had been zero without a word, if a step computed with what is in there."""
    make, message = HIDING[what]
    with pytest.raises(ampi.TapeError, match=message):
        gradients(make, lambda s: None, lambda s: np.zeros(1), checkpoints=2)


def test_iterators_are_refused():
    """They cannot be set back."""
    with pytest.raises(ampi.TapeError, match=r"state\['i'\] is a list_iterator, which cannot be set back"):
        gradients(lambda x: {"u": np.array(x), "i": iter([1.0, 2.0])}, step_named, lambda s: s["u"], checkpoints=2)


def test_what_holds_no_arrays_may_be_anything():
    """Also what steps do not change, or do not read."""
    state = {"lock": threading.Lock(), "set": {1, 2}, "file": __file__, "deque": collections.deque([1])}

    def step(s):
        s["u"] = s["u"] * 0.9

    found, expected = gradients(lambda x: {**state, "u": np.array(x)}, step, lambda s: s["u"], checkpoints=2)
    numpy.testing.assert_array_equal(found, expected)

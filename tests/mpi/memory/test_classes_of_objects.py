"""Objects of classes whose code runs while they are pickled or unpickled: right derivatives, or a specific error."""

import copyreg
import dataclasses

import numpy
import pytest
from mpi4py.util import pkl5
from programs import WORLD

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

AFTER, BEFORE = (WORLD.rank + 1) % WORLD.size, (WORLD.rank - 1) % WORLD.size


class Plain:
    def __init__(self, v):
        self.v = v


class Slotted:
    __slots__ = ("v",)

    def __init__(self, v):
        self.v = v


@dataclasses.dataclass
class Data:
    v: object


class Moved(Plain):
    def __getstate__(self):
        return {"w": self.v}

    def __setstate__(self, state):
        self.v = state["w"]


class Viewed(Plain):
    def __getstate__(self):
        return self.v[::-1].reshape(-1)

    def __setstate__(self, state):
        self.v = state[::-1]


class Rebuilt(Plain):
    def __reduce__(self):
        return Rebuilt, (self.v,)


# Classes that compute while they are pickled: what arrives is twice what was held.


class StateOfProduct(Plain):
    def __getstate__(self):
        return {"v": self.v * 2.0}


class StateThatIsKept(Plain):
    def __getstate__(self):
        self.product = self.v * 2.0
        return {"v": self.product}


class ArgumentOfProduct(Plain):
    def __reduce__(self):
        return ArgumentOfProduct, (self.v * 2.0,)


class Registered(Plain):
    pass


copyreg.pickle(Registered, lambda held: (Registered, (held.v * 2.0,)))


class Items(list):
    def __init__(self, v=None):
        super().__init__([] if v is None else [v])

    def __reduce__(self):
        return Items, (), None, iter([v * 2.0 for v in self])

    @property
    def v(self):
        return self[0]


# Classes that compute while they are unpickled: the same.


class Doubled(Plain):
    def __setstate__(self, state):
        self.v = state["v"] * 2.0


class DoubledInPlace(Plain):
    def __setstate__(self, state):
        self.v = state["v"]
        self.v *= 2.0


class DoubledByItems(Plain):
    def __setstate__(self, state):
        self.v = state["v"]
        for k in range(len(self.v)):
            self.v[k] = self.v[k] * 2.0


class DoubledAnew(Plain):
    def __new__(cls, v=None):
        made = object.__new__(cls)
        made.twice = None if v is None else v * 2.0
        return made

    def __getnewargs__(self):
        return (self.v,)

    def __setstate__(self, state):
        self.v = self.twice


class DoubledByFunction(Plain):
    pass


copyreg.pickle(DoubledByFunction, lambda held: (doubled, (held.v,)))


def doubled(v):
    return DoubledByFunction(v * 2.0)


class DoubledItems(dict):
    def __init__(self, v=None):
        super().__init__({} if v is None else {"v": v})

    def __setitem__(self, key, v):
        super().__setitem__(key, v * 2.0)

    @property
    def v(self):
        return self["v"]


def sendrecv(comm, held):
    return [comm.sendrecv(held, AFTER, source=BEFORE)]


def irecv(comm, held):
    request = comm.irecv(None, BEFORE)
    comm.send(held, AFTER)
    return [request.wait()]


def mprobe(comm, held):
    request = comm.isend(held, AFTER)
    came = comm.mprobe(BEFORE).recv()
    request.wait()
    return [came]


def nested(comm, held):
    came = comm.sendrecv({"objects": [Plain((held, 3))]}, AFTER, source=BEFORE)
    return [came["objects"][0].v[0]]


def shared(comm, held):
    one, other = comm.sendrecv(Plain([held, held]), AFTER, source=BEFORE).v
    assert one is other
    return [one]


def separate_buffers(comm, held):
    comm = pkl5.Intracomm(comm)
    request = comm.isend(held, AFTER)
    came = comm.recv(None, BEFORE)
    request.wait()
    return [came]


def scatter(comm, held):
    return [comm.scatter([held] * WORLD.size if WORLD.rank == 0 else None)]


def last_of_all(comm, held):
    return [comm.allreduce(held, lambda _, last: last)]


WAYS = {
    "sendrecv": sendrecv,
    "irecv": irecv,
    "mprobe": mprobe,
    "nested": nested,
    "shared": shared,
    "pkl5": separate_buffers,
    "bcast": lambda comm, held: [comm.bcast(held)],
    "gather": lambda comm, held: comm.gather(held) or [],
    "scatter": scatter,
    "allgather": lambda comm, held: comm.allgather(held),
    "alltoall": lambda comm, held: comm.alltoall([held] * WORLD.size),
    "allreduce": last_of_all,
}
KEEP = [Plain, Slotted, Data, Moved, Viewed, Rebuilt]
PICKLED = [StateOfProduct, StateThatIsKept, ArgumentOfProduct, Registered, Items]
UNPICKLED = [Doubled, DoubledInPlace, DoubledByItems, DoubledAnew, DoubledByFunction, DoubledItems]
X, DIRECTION = numpy.array([1.0, 2.0, 3.0]) + WORLD.rank, numpy.array([0.5, -1.0, 2.0])


def of(kind, way, comm=COMM_WORLD):
    def f(x):
        return sum((np.sum(came.v**3) for came in WAYS[way](comm, kind(x * 1.0))), np.sum(x))

    return f


def along(f):
    """The first and second directional derivatives of the sum over ranks, which is a cubic polynomial."""
    values = [WORLD.allreduce(float(f(X + t * DIRECTION))) for t in (-2, -1, 1, 2)]
    return (values[0] - 8 * values[1] + 8 * values[2] - values[3]) / 12, _second(values, WORLD.allreduce(float(f(X))))


def _second(values, middle):
    return values[1] - 2 * middle + values[2]


def check(f, *, reverse=True):
    first, second = along(f)
    dot = WORLD.allreduce(float(ampi.jvp(f, X, DIRECTION)[1]))
    numpy.testing.assert_allclose(dot, first, rtol=1e-12)
    if reverse:
        found = WORLD.allreduce(float(numpy.dot(ampi.grad(f)(X), DIRECTION)))
        numpy.testing.assert_allclose(found, first, rtol=1e-12)
        found = WORLD.allreduce(float(numpy.dot(ampi.hvp(f, X, DIRECTION), DIRECTION)))
        numpy.testing.assert_allclose(found, second, rtol=1e-12)


@pytest.mark.parametrize("way", WAYS)
def test_classes_that_keep_arrays_or_compute_while_pickled(way):
    for kind in KEEP + PICKLED:
        check(of(kind, way))


@pytest.mark.parametrize("way", WAYS)
def test_classes_that_compute_while_unpickled_in_forward_mode(way):
    for kind in UNPICKLED:
        check(of(kind, way), reverse=False)


@pytest.mark.parametrize("kind", UNPICKLED)
def test_classes_that_compute_while_unpickled_are_refused(kind):
    """Only where all ranks receive; otherwise ranks wait for the sweep of the one that raises, as after any error."""
    everywhere = [way for way in WAYS if way not in ("gather", "allreduce")]
    for way in everywhere[:: 1 if kind is Doubled else 4]:
        for derivative in (lambda f: ampi.grad(f)(X), lambda f: ampi.hvp(f, X, DIRECTION)):
            comm = COMM_WORLD.Dup()  # what has been sent may never arrive
            with pytest.raises(ampi.ActivityError, match="while it is unpickled"):
                derivative(of(kind, way, comm))
            comm.Free()

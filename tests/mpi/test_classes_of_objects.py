"""Objects of classes whose own code runs while they are pickled: right derivatives, or an error by name."""

import dataclasses

import numpy
import pytest
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


class Rebuilt(Plain):
    def __reduce__(self):
        return Rebuilt, (self.v,)


class Halved(Plain):
    def __getstate__(self):
        return {"half": self.v * 0.5}

    def __setstate__(self, state):
        self.v = state["half"] * 2.0


class Doubled(Plain):
    def __getstate__(self):
        return {"w": self.v}

    def __setstate__(self, state):
        self.v = state["w"] * 2.0


class Squared(Plain):
    def __init__(self, v):
        self.v, self.w = v, v * v

    def __reduce__(self):
        return Squared, (self.v,)


def of(kind, way):
    def f(x):
        held = kind(x * 1.0)
        held = Plain({"nested": [held]}) if way == "nested" else held
        if way == "bcast":
            came = COMM_WORLD.bcast(held, 0)
        elif way == "irecv":
            request = COMM_WORLD.irecv(None, BEFORE)
            COMM_WORLD.send(held, AFTER)
            came = request.wait()
        else:
            came = COMM_WORLD.sendrecv(held, AFTER, source=BEFORE)
        came = came.v["nested"][0] if way == "nested" else came
        return np.sum(3.0 * came.v**2) + np.sum(x)

    return f


WAYS = ["sendrecv", "irecv", "bcast", "nested"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", [Plain, Slotted, Data, Moved, Rebuilt])
def test_classes_that_keep_arrays(kind, way):
    x, v = numpy.array([1.0, 2.0, 3.0]), numpy.array([0.5, -1.0, 2.0])
    copies = (WORLD.size if WORLD.rank == 0 else 0) if way == "bcast" else 1
    numpy.testing.assert_allclose(ampi.grad(of(kind, way))(x), 6 * copies * x + 1)
    numpy.testing.assert_allclose(ampi.jvp(of(kind, way), x, v)[1], numpy.dot(6 * x + 1, v))
    numpy.testing.assert_allclose(ampi.hvp(of(kind, way), x, v), 6 * copies * v)


@pytest.mark.parametrize("way", ["sendrecv", "nested"])
@pytest.mark.parametrize("kind", [Halved, Doubled, Squared])
def test_classes_that_compute(kind, way):
    """No derivative is lost in silence."""
    x, v = numpy.array([1.0, 2.0, 3.0]), numpy.array([0.5, -1.0, 2.0])
    with pytest.raises(ampi.ActivityError, match=r"while it is (un)?pickled"):
        ampi.grad(of(kind, way))(x)
    WORLD.Barrier()
    with pytest.raises(ampi.ActivityError, match=r"while it is (un)?pickled"):
        ampi.hvp(of(kind, way), x, v)
    WORLD.Barrier()
    factor = 4 if kind is Doubled else 1
    try:
        dot = ampi.jvp(of(kind, way), x, v)[1]
    except ampi.ActivityError:
        assert kind is Halved
    else:
        numpy.testing.assert_allclose(dot, numpy.dot(6 * factor * x + 1, v))

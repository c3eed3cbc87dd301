"""Layers around methods: reports, time loops and device arrays wrap MPI's methods, and unwrap them in any order."""

import functools
import itertools
import random

import guarded_device
import numpy as np
import pytest

import ampi.cuda as cuda
from ampi import MPI
from ampi.device import backends
from ampi.interception import layers
from ampi.mpi import device_buffers, outcomes
from ampi.reports import hooks


class Base:
    def method(self, x):
        return ["method", x]

    @classmethod
    def of_class(cls, x):
        return ["of_class", x]

    def inherited(self, x):
        return ["inherited", x]


class Owner(Base):
    def method(self, x):
        return ["own method", x]

    @staticmethod
    def static(x):
        return ["static", x]


def layer(user, count):
    return lambda inner: lambda *arguments: [f"{user}{count}", inner(*arguments)]


@pytest.mark.parametrize("seed", range(20))
def test_random_orders(seed, monkeypatch):
    monkeypatch.setattr(layers, "_stacks", {})  # those of MPI's methods stay
    draw, names = random.Random(seed), ("method", "of_class", "inherited", "static")
    before = dict(vars(Owner))
    present = {name: {} for name in names}
    try:
        for _ in range(40):
            user, name = draw.choice(layers.ORDER), draw.choice(names)
            if draw.random() < 0.6:
                count = len(present[name].get(user, ()))
                layers.add(user, Owner, name, layer(user, count))
                present[name].setdefault(user, []).append(count)
            else:
                layers.remove(user)
                for known in present.values():
                    known.pop(user, None)
            for name in names:
                expected = [f"own {name}" if name == "method" else name, 3]
                for user in layers.ORDER:
                    for count in present[name].get(user, ()):
                        expected = [f"{user}{count}", expected]
                assert getattr(Owner(), name)(3) == expected
                if name in ("of_class", "static"):
                    assert getattr(Owner, name)(3) == expected
    finally:
        for user in layers.ORDER:
            layers.remove(user)
    assert dict(vars(Owner)) == before


def same(_, inner):
    return sum


def test_a_method_that_other_code_replaces_stays(monkeypatch):
    """As in a program, or a test, that counts calls of a class's methods."""
    monkeypatch.setattr(layers, "_stacks", {})
    original = vars(Owner)["method"]
    outer, inner = layers.OUTCOMES, layers.REPORT
    layers.add(outer, Owner, "method", layer("time loop ", 0))
    alone = vars(Owner)["method"]
    try:
        layers.add(inner, Owner, "method", layer("report ", 0))
        layers.remove(inner)
        assert vars(Owner)["method"] is alone
        (stack,) = layers._stacks.values()
        methods = len(stack.made)
        for _ in range(5):  # as reports do, whose layers are the same function each time
            layers.add(inner, Owner, "method", functools.partial(same, None))
            layers.remove(inner)
        assert len(stack.made) <= methods + 1
        Owner.method = theirs = lambda self, x: ["theirs", alone(self, x)]
        layers.add(inner, Owner, "method", layer("report ", 1))
        assert Owner().method(3) == ["report 1", ["theirs", ["time loop 0", ["own method", 3]]]]
        layers.remove(inner)
        assert vars(Owner)["method"] is theirs
        Owner.method = alone
        layers.add(inner, Owner, "method", layer("report ", 2))
        assert Owner().method(3) == ["time loop 0", ["report 2", ["own method", 3]]]
        layers.remove(inner)
        layers.remove(outer)
        assert vars(Owner)["method"] is original and not layers._stacks
    finally:
        Owner.method = original


class Tracer:
    """A tracer that is already inside a call, and records nothing."""

    thread, plain, call = None, None, 0


USERS = {
    layers.REPORT: lambda: hooks.install(Tracer()),
    layers.OUTCOMES: outcomes.install.__wrapped__,
    layers.DEVICE: device_buffers.install,
}


def exchange():
    """A message of a device array to the rank itself."""
    x, y = cuda.to_device(np.arange(3.0)), cuda.to_device(np.zeros(3))
    comm = MPI.COMM_SELF
    requests = [comm.Irecv(y, 0), comm.Isend(x, 0)]
    MPI.Request.Waitall(requests)
    total = cuda.to_device(np.zeros(3))
    comm.Allreduce(y, total)
    return total.copy_to_host()


@pytest.mark.parametrize("order", list(itertools.permutations(USERS)), ids="-".join)
@pytest.mark.parametrize("leaves", layers.ORDER[:2])
def test_methods_of_mpi(order, leaves):
    """Device arrays are sent before, while and after others have layers; the methods are restored."""
    before = backends.choose(guarded_device.Guarded())
    cuda.to_device(np.zeros(1))  # the first one adds the layers
    present = {user for user in layers.ORDER if any(user in s.layers for s in layers._stacks.values())}
    for user in layers.ORDER:
        layers.remove(user)
    assert not layers._stacks
    methods = {(cls, name): vars(cls).get(name) for cls in (MPI.Comm, MPI.Intracomm, MPI.Request) for name in dir(cls)}
    try:
        for user in order:
            USERS[user]()
            if layers.DEVICE in order[: order.index(user) + 1]:
                np.testing.assert_array_equal(exchange(), np.arange(3.0))
        hooks._tracer = None
        layers.remove(leaves)
        np.testing.assert_array_equal(exchange(), np.arange(3.0))
        USERS[leaves]()
        np.testing.assert_array_equal(exchange(), np.arange(3.0))
    finally:
        hooks.remove()
        for user in layers.ORDER:
            layers.remove(user)
        after = {(cls, name): vars(cls).get(name) for cls, name in methods}
        for user in sorted(present - {layers.REPORT}, key=layers.ORDER.index):
            USERS[user]()
        backends.choose(before)
    assert after == methods

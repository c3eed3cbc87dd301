"""Drawn and simple steps, for the tests of time loops."""

import dataclasses

import numpy

import ampi
import ampi.numpy as np


@dataclasses.dataclass
class Fields:
    """What a program may have as its state."""

    u: object
    v: object
    work: object
    dt: object = 0.1
    cycle: int = 0
    history: list = dataclasses.field(default_factory=list)


# ---------------------------------------------------------------------------------------------- one thing at a time


def decayed(u):
    u *= 1.0 - 0.1 * u


def through(loop, x):
    """Value and gradient of the sum of squares of what a loop makes of x * 1."""
    return ampi.value_and_grad(lambda x: np.sum(loop(x * 1.0) ** 2))(x)


def same(a, b):
    numpy.testing.assert_allclose(a[0], b[0], rtol=1e-14)
    numpy.testing.assert_allclose(a[1], b[1], rtol=1e-12)


def plainly(step, n):
    def loop(u):
        for _ in range(n):
            result = step(u)
            u = u if result is None else result
        return u

    return loop


def counted():
    count = [0]

    def count_on():
        count[0] += 1
        return count[0]

    return count_on

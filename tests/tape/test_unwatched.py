"""Records made before the first independent of a tape without messages: sweeps skip them."""

import random

import numpy
import pytest

import ampi
import ampi.numpy
from ampi.tape import sweep as sweeps


@ampi.kernel
def smooth(u, v):
    for i in range(1, len(u) - 1):
        v[i] = 0.5 * u[i] + 0.25 * (u[i - 1] + u[i + 1])


def elements(np, u):
    w = u.copy()
    for i in range(len(u) - 1):
        w[i] = 0.5 * u[i + 1] + u[i] * u[i]
    return w


def in_place(np, u):
    u *= 0.9
    u[1:] += u[:-1] * 0.1
    return u


def in_kernel(np, u):
    v = np.zeros(len(u))
    (smooth if np is ampi.numpy else smooth.py_func)(u, v)
    return v


STEPS = (elements, in_place, in_kernel, lambda np, u: np.sin(u) + u[::-1], lambda np, u: np.concatenate([u[2:], u[:2]]))


def walked(monkeypatch):
    """The records that sweeps begin and end with, as they come."""
    found = []
    walk = sweeps.Sweep.walk

    def noted(self, records, position, begin=0):
        found.append((position, begin))
        walk(self, records, position, begin)

    monkeypatch.setattr(sweeps.Sweep, "walk", noted)
    return found


@pytest.mark.parametrize("seed", range(12))
def test_data_made_before(seed, monkeypatch):
    """Gradients are those of a tape that opens later; memory is as before; what is written later is put back."""
    draw = random.Random(seed)
    steps = [draw.choice(STEPS) for _ in range(draw.randint(1, 6))]
    later = [draw.choice(STEPS) for _ in range(draw.randint(0, 2))]
    begin = numpy.random.default_rng(seed).uniform(0.1, 0.5, 6)

    def made(np):
        u = np.array(begin)
        for step in steps:
            u = step(np, u)
        return u

    def used(x, u):
        for step in later:
            u = step(ampi.numpy, u)
        y = x * u
        u[2] = y[3] * x[0]
        for step in later:
            y = step(ampi.numpy, y)
        return (y * y).sum() + (u * u).sum()

    x0 = numpy.linspace(0.5, 1.5, 6)
    with ampi.Tape() as late:
        u = ampi.numpy.array(made(numpy))
        x = late.watch(x0)
        y = used(x, u)
    expected = late.gradient(y, x)
    found = walked(monkeypatch)
    with ampi.Tape() as early:
        u = made(ampi.numpy)
        count = len(early.records)
        x = early.watch(x0)
        y = used(x, u)
    before = u.copy()
    for _ in range(2):
        assert numpy.array_equal(early.gradient(y, x), expected)
        assert numpy.array_equal(u, before)
    assert [begin for _, begin in found] == [count, count]

"""Interval sets of needed bytes, against sets of bytes; and what programs need that overwrite what they have read."""

import itertools
import random

import numpy
import pytest

import ampi
from ampi.arrays import fast_calls
from ampi.memory.extents import Extent
from ampi.memory.filed_needs import Ranges
from ampi.memory.needs import FEW, Needs


def any_view(draw, base):
    """A part of an array: slices with steps of either sign, items, and other orders of axes."""
    key = []
    for n in base.shape:
        start, step = draw.randrange(n), draw.choice([1, 1, 2, 3])
        stop = min(n, start + 1 + draw.randrange(4))
        key.append(draw.choice([slice(start, stop, step), slice(start, start + 1), start, start]))
        if draw.random() < 0.15:
            key[-1] = slice(None)
        if draw.random() < 0.05:
            key[-1] = slice(None, None, -step)
    view = base[(*key, ...)]
    view = view.transpose(draw.sample(range(view.ndim), view.ndim))
    return view.view(numpy.int8) if draw.random() < 0.1 and view.flags.c_contiguous and view.ndim else view


def bytes_of(view):
    """Addresses of the bytes of all elements."""
    places = numpy.full(view.shape, view.__array_interface__["data"][0])
    for axis, stride in enumerate(view.strides):
        steps = numpy.arange(view.shape[axis]) * stride
        places = places + steps.reshape((-1,) + (1,) * (view.ndim - axis - 1))
    return {byte for place in places.ravel().tolist() for byte in range(place, place + view.itemsize)}


@pytest.mark.parametrize("shape", [(150,), (13, 12), (8, 9, 5), (4, 4, 5, 4)])
@pytest.mark.parametrize("seed", range(12))
def test_as_sets_of_bytes(shape, seed):
    """What is needed is met; what no need has a byte of, that has not been dropped as a whole, is not."""
    draw = random.Random(seed)
    base = numpy.zeros(shape, draw.choice([numpy.float64, numpy.float32]))
    needs, wanted, entered, saved = Needs(), set(), {}, {}
    for _ in range(300):
        view = any_view(draw, base)
        if not view.size:
            continue
        extent, touched = Extent(view), bytes_of(view)
        if draw.random() < 0.5:
            needs.enter(extent)
            wanted |= touched
            entered[extent.pattern] = extent, touched
            saved.clear()
            continue
        # What is needed as it is need not be asked for.
        met = (extent.pattern in needs and draw.random() < 0.5) or needs.meets(extent)
        assert met >= bool(wanted & touched)
        assert met <= any(need & touched for _, need in entered.values())
        if saved and draw.random() < 0.3:
            assert not needs.meets(draw.choice(list(saved.values())))  # nothing has been needed since
        if met and draw.random() < 0.7:
            needs.drop(extent)
            saved[extent.pattern] = extent
            wanted -= touched
            entered = {name: need for name, need in entered.items() if not extent.covers(need[0])}
    whole = Extent(base)
    if needs.meets(whole):
        needs.drop(whole)
    assert needs.is_empty() and not needs.meets(whole)


@pytest.mark.parametrize("seed", range(5))
def test_ranges(seed):
    draw = random.Random(seed)
    ranges, numbers = Ranges(), set()
    for _ in range(300):
        low = draw.randrange(60)
        high = low + draw.randrange(1, 12)
        what = draw.choice([ranges.add, ranges.remove])
        what(low, high)
        numbers = numbers | set(range(low, high)) if what == ranges.add else numbers - set(range(low, high))
        low = draw.randrange(70)
        high = low + draw.randrange(1, 12)
        assert ranges.meets(low, high) == bool(numbers & set(range(low, high)))
        found = list(ranges.between(low, high))
        assert found == sorted(found) and all(b < c for (_, b), (c, _) in itertools.pairwise(found))
        inside = {k for start, end in found for k in range(start, end)}
        assert inside & set(range(low, high)) == numbers & set(range(low, high)) and inside <= numbers
        assert ranges.is_empty() == (not numbers)


def test_few_needs_are_kept_as_they_are():
    base = numpy.zeros(4 * FEW)
    needs = Needs()
    for k in range(FEW):
        extent = Extent(base[2 * k : 2 * k + 1])
        needs[extent.pattern] = extent
    assert not needs.meets(Extent(base[1:2])) and needs.meets(Extent(base[:1]))
    needs.drop(Extent(base[:1]))
    assert len(needs) == FEW - 1


def overwriting(draw, shape, length):
    """Statements that read views of an array, and overwrite others: functions of the array and the terms of a sum."""
    found = []
    views = [any_key(draw, shape) for _ in range(40)] if draw.random() < 0.3 else [(k,) for k in range(shape[0])]
    for _ in range(length):
        read, written = draw.choices(views, k=2)
        factor = draw.uniform(0.5, 1.5)
        kind = draw.choices(["square", "constant", "multiply"], (8, 1, 1))[0]
        if kind == "square":
            found.append(lambda u, terms, read=read, factor=factor: terms.append(factor * (u[read] ** 2).sum()))
        elif kind == "constant":
            found.append(lambda u, terms, written=written, factor=factor: u.__setitem__(written, factor))
        else:
            found.append(lambda u, terms, written=written, factor=factor: u.__setitem__(written, u[written] * factor))
    return found


def any_key(draw, shape):
    """Of a view with one element or more."""
    key = []
    for n in shape:
        low = draw.randrange(n)
        key.append(slice(low, draw.randrange(low + 1, n + 1), draw.choice([1, 1, 2])))
    return tuple(key)


@pytest.mark.parametrize("seed", range(24))
def test_long_programs_with_many_views(seed, monkeypatch):
    """Gradients against the complex step: each old value is there for whoever has read it."""
    monkeypatch.setattr(fast_calls, "MOST_ELEMENTS", 0)  # which would copy what they read
    draw = random.Random(seed)
    shape = draw.choice([(40,), (40, 3), (30, 2), (6, 7)])
    statements = overwriting(draw, shape, draw.choice([100, 200, 300]))
    start = numpy.random.default_rng(seed).uniform(0.5, 1.5, shape)

    def total(x):
        u, terms = x * 1.0, []
        for statement in statements:
            statement(u, terms)
        return sum(terms, 0.0 * x.sum()) + (u * u).sum()

    gradient = ampi.grad(total)(start)
    expected = numpy.empty(shape)
    for place in numpy.ndindex(shape):
        moved = start.astype(complex)
        moved[place] += 1e-30j
        expected[place] = total(moved).imag / 1e-30
    numpy.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-10 * numpy.abs(expected).max())

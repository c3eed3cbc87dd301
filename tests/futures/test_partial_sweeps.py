"""Shadows that are initialised in part, and given away in boxes, against arrays that are kept as a whole."""

import random

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.futures import ThreadPoolExecutor, boxes
from ampi.futures.partial_sweep import PartialSweep
from ampi.futures.strands import Strand
from ampi.futures.sweeps import StrandSweep, merge
from ampi.memory.storages import region_of

SHAPES = (24,), (6, 4), (3, 4, 5)


def blocks(draw, x):
    """Boxes of an array: some are whole, halves or rows, most are any."""
    kind = draw.random()
    if kind < 0.1:
        return x
    axis = draw.randrange(x.ndim)
    if kind < 0.6:
        middle = draw.choice((x.shape[axis] // 2, x.shape[axis] // 3, 1))
        key = draw.choice((slice(None, middle), slice(middle, None)))
        return x[(slice(None),) * axis + (key,)]
    key = []
    for n in x.shape:
        a, b = sorted(draw.sample(range(n + 1), 2))
        key.append(draw.choice((slice(None), slice(a, b), slice(a, b, 2))))
    return x[tuple(key)]


def value_in(draw, region):
    values = numpy.random.default_rng(draw.randrange(1 << 30)).integers(-4, 5, region.shape).astype(float)
    return values * draw.choice((0.0, 1.0, 1.0)) + 0.0  # no -0.0


def sweeps(kind):
    whole = PartialSweep(ampi.Tape())
    return whole if kind == "tape" else StrandSweep(whole, Strand((0,), "here", [], {}, {}))


@pytest.mark.parametrize("kind", ["tape", "strand"])
@pytest.mark.parametrize("seed", range(4))
def test_boxes_are_added_used_and_given_away(kind, seed):
    draw = random.Random(seed)
    in_pieces = given = 0
    for _ in range(250):
        x = np.zeros(draw.choice(SHAPES))
        all_of_x = region_of(x)
        sweep, expected = sweeps(kind), numpy.zeros(x.nbytes, numpy.uint8)
        for _ in range(12):
            region = region_of(blocks(draw, x))
            there = region.view(expected)
            action = draw.choice(("receive", "receive", "receive", "add", "hand on", "hand on", "zeros", "again"))
            if action == "receive":
                values = value_in(draw, region)
                there += values
                if boxes.is_part(region):
                    sent = region.view(numpy.full(x.nbytes, 255, numpy.uint8))  # elsewhere: NaN
                    sent[...] = values
                    sweep.receive(region, sent)
                else:
                    sweep.add(region, values)
            elif action == "add":
                values = value_in(draw, region)
                there += values
                sweep.add(region, values)
            elif action == "again":
                numpy.testing.assert_array_equal(sweep.shadow_again(region), there)
            elif action == "zeros":
                sweep.forget_zeros()
                assert sweep.has_block(region.storage) == expected.any()
            elif sweep.has_block(region.storage):
                place, found = sweep.hand_on(region)
                had = numpy.array(there)
                there[...] = 0
                shown = numpy.zeros(x.nbytes, numpy.uint8)
                if found is not None:
                    given += 1
                    place.view(shown)[...] = found
                    found[...] = numpy.nan  # its memory belongs to another strand now
                numpy.testing.assert_array_equal(region.view(shown), had)
            in_pieces += bool(sweep.pieces)
        numpy.testing.assert_array_equal(sweep.shadow(all_of_x), all_of_x.view(expected))
    assert in_pieces > 10 and given > 30


@pytest.mark.parametrize("into", ["tape", "strand"])
def test_boxes_are_merged(into):
    draw = random.Random(7)
    for _ in range(80):
        x = np.zeros(draw.choice(SHAPES))
        expected, sweep = numpy.zeros(x.nbytes, numpy.uint8), sweeps(into)
        for _ in range(3):
            other = sweeps("strand")
            for _ in range(draw.randrange(3)):
                region = region_of(blocks(draw, x))
                values = value_in(draw, region)
                region.view(expected)[...] += values
                other.add(region, values)
            other.forget_zeros()
            merge(sweep, other)
        numpy.testing.assert_array_equal(sweep.shadow(region_of(x)), region_of(x).view(expected))


def test_a_sweep_inside_sees_whole_shadows():
    x = np.zeros(12)
    sweep = PartialSweep(ampi.Tape())
    sweep.add(region_of(x[:3]), numpy.ones(3))
    inside = sweep.inside(ampi.Tape())
    numpy.testing.assert_array_equal(inside.shadow(region_of(x)), [1, 1, 1] + 9 * [0])
    y = np.zeros(12)
    sweep.add(region_of(y[3:5]), numpy.ones(2))
    numpy.testing.assert_array_equal(inside.shadow(region_of(y)), 3 * [0] + [1, 1] + 7 * [0])


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_blocks_that_read_their_neighbours(workers):
    """Two halves, which are written in turns; the border is read by both, and the tape's own thread uses a part."""

    def cycles(x, submit):
        u, v = x * 1.0, np.zeros((2, 12))
        for k in range(3):
            for work, lanes in ((grow, ((0, 7, 0, 6), (5, 12, 6, 12))), (couple, ((0, 6, 0, 6), (6, 12, 6, 12)))):
                for future in [submit(work, u, v, *lane) for lane in lanes]:
                    future.result()
            u[:, 4:8] *= 1.0 + 0.1 * k
        return np.sum(u * v)

    def grow(u, v, a, b, c, d):
        v[:, c:d] = np.sin(u[:, a:b])[:, c - a : d - a] + np.sum(u[0, a:b] ** 2)

    def couple(u, v, a, b, c, d):
        u[:, c:d] = u[:, a:b] * v[:, c:d]

    class Now:
        def result(self):
            return None

    def at_once(function, *arguments):
        function(*arguments)
        return Now()

    def in_tasks(x):
        with ThreadPoolExecutor(workers) as pool:
            return cycles(x, pool.submit)

    x = numpy.linspace(0.1, 0.5, 24).reshape(2, 12)
    slope = ampi.grad(in_tasks)(x)
    numpy.testing.assert_allclose(slope, ampi.grad(lambda x: cycles(x, at_once))(x), rtol=1e-12)
    reference.setdefault("slope", slope)
    assert slope.tobytes() == reference["slope"].tobytes()
    step = 1e-30
    direction = numpy.cos(numpy.arange(24.0)).reshape(2, 12)
    from_numpy = numpy_cycles(x + 1j * step * direction).imag / step
    numpy.testing.assert_allclose(numpy.sum(slope * direction), from_numpy, rtol=1e-11)


reference = {}


def numpy_cycles(x):
    u, v = x * 1.0, numpy.zeros((2, 12), complex)
    for k in range(3):
        first, second = u[:, :7], u[:, 5:]
        v[:, :6] = numpy.sin(first)[:, :6] + numpy.sum(first[0] ** 2)
        v[:, 6:] = numpy.sin(second)[:, 1:] + numpy.sum(second[0] ** 2)
        u *= v
        u[:, 4:8] *= 1.0 + 0.1 * k
    return numpy.sum(u * v)

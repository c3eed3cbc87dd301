"""Kernels that run where no tape records: what tapes need of the memory that they write to is kept all the same."""

import random

import numpy
import pytest

import ampi
import ampi.numpy as np


def plain_mix(target, source, factor):
    for i in range(target.shape[0]):
        target[i] = 0.5 * target[i] + factor * source[i]


mix = ampi.kernel(plain_mix)


def run(seed, kernel):
    """A drawn course of recorded products and of calls that nobody records, of equal types and shared memory."""
    draw = random.Random(seed)
    arrays = [np.array(numpy.linspace(0.5, 1.5, 6) + k) for k in range(3)]
    plain = numpy.linspace(1.0, 2.0, 3)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.linspace(1.0, 2.0, 3))
        y = x * 1.0
        for _ in range(30):
            a, b = (draw.choice([*(v[s] for v in arrays for s in (slice(0, 3), slice(3, 6))), plain]) for _ in range(2))
            what, factor = draw.randrange(4), draw.uniform(0.1, 0.5)
            if what == 0 and a is not plain:
                y = y * a
            elif what == 1 and a is not plain:
                a[...] = a * 0.5 + x  # active from here on, until somebody overwrites it
            else:
                with ampi.passive():
                    kernel(a, b, factor)
        y = y + arrays[0][:3] * arrays[1][3:]
    return (
        numpy.array(ampi.value(y)),
        tape.gradient(y, x, seed=numpy.ones(3)),
        [numpy.array(ampi.value(v)) for v in arrays],
    )


@pytest.mark.parametrize("seed", range(40))
def test_drawn_courses(seed):
    (value, gradient, arrays), expected = run(seed, mix), run(seed, plain_mix)
    numpy.testing.assert_allclose(value, expected[0], rtol=1e-13)
    numpy.testing.assert_allclose(gradient, expected[1], rtol=1e-13)
    numpy.testing.assert_allclose(arrays, expected[2], rtol=1e-13)

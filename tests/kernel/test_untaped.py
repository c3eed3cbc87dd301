"""Unrecorded kernel calls: values that they overwrite are still saved for tapes."""

import random

import numba
import numpy
import pytest

import ampi
import ampi.numpy as np


def plain_mix(target, source, factor):
    for i in range(target.shape[0]):
        target[i] = 0.5 * target[i] + factor * source[i]


mix = ampi.kernel(plain_mix)


def run(seed, kernel):
    """Run a random sequence of recorded products and unrecorded calls, with equal types and shared memory."""
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
                a[...] = a * 0.5 + x  # active from here on, until overwritten
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


def plain_blend(target, source, factor, shift):
    for i in range(target.shape[0]):
        target[i] += source[i] * factor + shift
    return target[0] * factor


blend = ampi.kernel(plain_blend)
blend_by_numba = numba.njit(plain_blend)


def drawn_calls(seed, module, count=60):
    """A sequence of arguments: the same arrays again and again, of several dtypes, with numbers of several types."""
    draw, generator = random.Random(seed), numpy.random.default_rng(seed)
    kept = [
        block
        for kind in draw.sample(["f8", "f4", "c16", "i8"], 2)
        for block in generator.uniform(1, 2, (2, 4, 4)).astype(kind)
    ]
    kept = [*kept[::2], *map(module.array, kept)]
    kept = [part for block in kept for part in (block[0], block[1], block[:, 2])]
    kept[0].setflags(write=False)
    numbers = [draw.choice([2, True, numpy.int8(3)]), draw.choice([0.5, numpy.float32(0.5), 1j])]
    for _ in range(count):
        yield *(draw.choice(kept) for _ in range(2)), draw.choice(numbers), 2, draw.random() < 0.3


def outcomes(seed, module, kernel):
    """The results of calls, and the arrays after them."""
    for target, source, factor, shift, again in drawn_calls(seed, module):
        for _ in range(1 + 2 * again):
            try:
                result = kernel(target, source, factor, shift)
            except (TypeError, OverflowError, numba.TypingError, ampi.KernelError):
                yield "refused"
                continue
            yield numpy.asarray(ampi.value(result)).dtype, complex(ampi.value(result)), ampi.value(target).tobytes()


@pytest.mark.filterwarnings("ignore")  # overflows, and what is lost
@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
def test_calls_with_arguments_of_all_kinds(seed):
    """While a tape is alive but does not record: facts found for one call are not used for a different one."""
    expected = list(outcomes(seed, numpy, blend_by_numba))
    with ampi.Tape() as tape:
        tape.watch(numpy.ones(3))
        with ampi.passive():
            assert list(outcomes(seed, np, blend)) == expected
    assert list(outcomes(seed, np, blend)) == expected
    del tape

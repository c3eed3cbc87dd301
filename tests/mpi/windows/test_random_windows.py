"""Random programs of one-sided accesses (`random_windows`): values, sweeps, forward mode and walks."""

import numpy
import pytest
from random_windows import SIZE, draw, one_after_the_other, run

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi
PROGRAMS = 8


def check(seed, length, parts=False):
    """Compare values, gradient and tangents on this rank with complex steps of the events run one after another.

    ``parts``: with collectives of some ranks, for which sweeps and walks may give up, depending on timing.
    """
    rank, ranks = COMM_WORLD.rank, COMM_WORLD.size
    rng = numpy.random.default_rng(seed)
    x0, v = rng.uniform(0.2, 1.0, (ranks, SIZE)), rng.normal(size=(ranks, SIZE))
    weights = rng.normal(size=(ranks, 3, SIZE))
    events = draw(seed, ranks, length, parts)
    expected = one_after_the_other(events, x0)
    slopes = numpy.empty_like(x0)
    for place in numpy.ndindex(x0.shape):
        moved = x0.astype(complex)
        moved[place] += 1e-30j
        slopes[place] = numpy.sum(weights * one_after_the_other(events, moved).imag) * 1e30
    change = one_after_the_other(events, x0 + 1e-30j * v).imag * 1e30

    def f(x):
        return run(ampi.numpy, COMM_WORLD, ampi.Win, events, x)

    with ampi.Tape(tangents=True) as tape:
        x = tape.watch(x0[rank])
        outputs = f(x)
    close = lambda a, b, what: numpy.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11, err_msg=f"{what}, {seed=}")
    close([ampi.value(y) for y in outputs], expected[rank], "values")
    close(tape.gradient(outputs, x, seed=list(weights[rank])), slopes[rank], "gradient")
    close(tape.tangent(outputs, x, v[rank]), change[rank], "walk")
    both = tape.tangent(outputs, x, numpy.stack([v[rank], -v[rank]]), vectorised=True)
    close([part[1] for part in both], -change[rank], "walk in two directions")
    close(tape.gradient(outputs, x, seed=list(weights[rank])), slopes[rank], "gradient after it")
    close(ampi.jvp(f, x0[rank], v[rank])[1], change[rank], "forward mode")


@pytest.mark.parametrize("seed", range(PROGRAMS))
def test_order_follows_from_messages(seed):
    check(seed, 12 if seed % 2 else 20)

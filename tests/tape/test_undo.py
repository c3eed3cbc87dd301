"""Old values are read from where they were saved: every way in which they can lie there."""

import numpy
import pytest

import ampi
import ampi.numpy as np

N = 64

MOST_ELEMENTS = 0  # values of few elements are copied, and never put back


@ampi.kernel
def squares(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


@ampi.kernel
def double(x):
    for i in range(x.shape[0]):
        x[i] = 2.0 * x[i]


@pytest.mark.parametrize("shape", ["same", "part of it", "more than it", "strided", "two parts"])
@pytest.mark.parametrize("by_kernel", [True, False])
def test_old_values_are_found_however_they_were_saved(shape, by_kernel):
    """x² of a part, then x (or a part of it) is doubled, and all squared again."""
    read, written = {
        "same": (slice(None), [slice(None)]),
        "part of it": (slice(8, -8), [slice(None)]),
        "more than it": (slice(None), [slice(8, -8)]),
        "strided": (slice(None, None, 2), [slice(None), slice(None, None, 2)]),
        "two parts": (slice(None), [slice(0, N // 2), slice(N // 2 - 4, N), slice(None)]),
    }[shape]
    x0 = numpy.random.default_rng(0).uniform(0.5, 1.5, N)
    factor = numpy.ones(N)
    with ampi.Tape() as tape:
        watched = tape.watch(x0)
        x = watched.copy()
        first, last = np.empty(x[read].shape[0]), np.empty(N)
        squares(x[read], first)
        for part in written:
            if by_kernel:
                double(x[part])
            else:
                x[part] *= 2.0
            factor[part] *= 2.0
            squares(x, last)
        total = np.sum(first) + np.sum(last)
    after = numpy.array(ampi.value(x))
    expected = 2.0 * factor**2 * x0
    expected[read] += 2.0 * x0[read]
    for _ in range(2):
        numpy.testing.assert_allclose(tape.gradient(total, watched), expected, rtol=1e-14)
        numpy.testing.assert_array_equal(ampi.value(x), after)  # memory is as it was


def test_a_sweep_that_stops_leaves_memory_as_it_was():
    def fails(*_):
        raise RuntimeError("on purpose")

    @ampi.custom_vjp
    def identity(x):
        return x * 1.0

    identity.defvjp(lambda x: (x * 1.0, None), fails)
    with ampi.Tape() as tape:
        watched = tape.watch(numpy.ones(N))
        x, y = watched.copy(), np.empty(N)
        squares(x, y)
        z = identity(y)
        double(x)
        squares(x, y)
        total = np.sum(y) + np.sum(z)
    after = numpy.array(ampi.value(x))
    with pytest.raises(RuntimeError, match="on purpose"):
        tape.gradient(total, watched)
    numpy.testing.assert_array_equal(ampi.value(x), after)


SEVERAL = 200  # elements, which are not copied


@pytest.mark.parametrize(
    ("operation", "restores"),
    [
        (lambda x: x + 1.0, False),
        (lambda x: x.sum(axis=0) - x, False),
        (lambda x: x * x, True),
        (lambda x: np.where(x > 0, x, 0.0) * x, True),
        (lambda x: np.max(x) * x, True),
        (lambda x: np.add(x, x, where=x > 0.5, out=np.zeros(SEVERAL)), True),
    ],
)
def test_memory_is_not_restored_for_sums(operation, restores, monkeypatch):
    """Records that read no values do not have the sweep put back what was overwritten after them."""
    from ampi.tape.sweep import Sweep

    done = []
    original = Sweep._undo
    monkeypatch.setattr(Sweep, "_undo", lambda sweep, storage: (done.append(storage), original(sweep, storage)))

    def program(x):
        y, out = operation(x), np.zeros(SEVERAL)
        squares(y, out)  # needs y, which is overwritten
        double(y)
        return out.sum() + y.sum()

    x, v, h = numpy.linspace(0.2, 0.9, SEVERAL), numpy.cos(numpy.arange(SEVERAL)), 1e-6
    slope = numpy.sum(ampi.grad(program)(x) * v)
    assert bool(done) == restores
    numpy.testing.assert_allclose(slope, (program(x + h * v) - program(x - h * v)) / (2 * h), rtol=1e-6)

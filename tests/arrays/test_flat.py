"""`flat`: an iterator over the elements, which can be indexed and is an array where NumPy says so."""

import numpy
import pytest

import ampi
import ampi.numpy as np


def test_position():
    ours, theirs = np.arange(6.0).reshape(2, 3).flat, numpy.arange(6.0).reshape(2, 3).flat
    for _ in range(4):
        assert (ours.index, ours.coords, next(ours)) == (theirs.index, theirs.coords, next(theirs))
    assert list(ours) == list(theirs) == [4.0, 5.0]
    assert list(ours) == []
    with pytest.raises(AttributeError):
        ours.index = 1
    with pytest.raises(TypeError):
        del ours[1]


def test_derivatives_of_an_iteration():
    def program(x):
        elements = x.flat
        first = next(elements)
        return first + sum((k + 2) * v * v for k, v in enumerate(elements))

    x = numpy.arange(1.0, 7.0).reshape(2, 3)
    expected = [[1, 8, 18], [32, 50, 72]]
    numpy.testing.assert_array_equal(ampi.grad(program)(x), expected)


def test_an_array_on_the_same_memory():
    a = np.arange(6.0).reshape(2, 3)
    assert numpy.shares_memory(np.asarray(a.flat), a)
    b = np.asarray(a.T.flat)
    assert not numpy.shares_memory(b, a) and not b.flags.writeable
    x, w = numpy.arange(6.0).reshape(2, 3), numpy.array([1.0, 2.0, 4.0, 8.0, 16.0, 32.0])
    numpy.testing.assert_array_equal(ampi.grad(lambda x: (np.asarray(x.flat) * w).sum())(x), w.reshape(2, 3))
    numpy.testing.assert_array_equal(ampi.grad(lambda x: (np.asarray(x.T.flat) * w).sum())(x), w.reshape(3, 2).T)


def test_a_plain_array_of_it_draws_a_warning():
    with ampi.Tape() as tape, pytest.warns(ampi.ActivityWarning, match="plain numpy array"):
        numpy.asarray(tape.watch(numpy.ones(3)).flat)


@pytest.mark.parametrize("shape", [(3, 4), (1, 5), (5, 1)])
def test_single_elements_of_matrices(shape):
    values = np.arange(1.0, 1 + np.prod(shape)).reshape(shape)
    for layout in (lambda a: a, lambda a: a.T, lambda a: a[::-1]):
        with ampi.Tape() as tape:
            x = tape.watch(values)
            view = layout(x)
            taken = [view.flat[k] for k in (0, 2, -1, -view.size)] + [view.T.flat[1], view.T.T[0, 0]]
            for k in (view.size, -view.size - 1):
                with pytest.raises(IndexError, match="out of bounds"):
                    view.flat[k]
            y = sum((k + 1.0) * t for k, t in enumerate(taken))
        weights = np.zeros(values.size)
        order = np.arange(values.size).reshape(shape)
        plain = layout(order)
        places = [plain.flat[k] for k in (0, 2, -1, -view.size)] + [plain.T.flat[1], plain[0, 0]]
        np.add.at(weights, places, np.arange(1.0, 7.0))
        np.testing.assert_array_equal([ampi.value(t) for t in taken], values.reshape(-1)[places])
        np.testing.assert_array_equal(tape.gradient(y, x), weights.reshape(shape))

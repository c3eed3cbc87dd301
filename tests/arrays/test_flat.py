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

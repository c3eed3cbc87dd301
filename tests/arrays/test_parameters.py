"""Shapes, axes, counts and indices that are arrays of ampi's: what NumPy makes of them, with and without a tape."""

import numpy
import pytest

import ampi
import ampi.numpy as np

EXPRESSIONS = """\
np.reshape(x, I([4, 3]))
np.transpose(x, I([1, 0]))
x.transpose(I([1, 0]))
np.roll(x, I(1))
np.roll(x, I([1, 2]), axis=(0, 1))
np.take(x, I([1, 5]))
np.take(x, I([1, 0]), axis=I(0))
np.repeat(x, I([1, 2, 3]), axis=0)
np.split(x, I([1, 2]))
np.array_split(x, I([1]), axis=1)
np.tile(x, I([2, 1]))
np.pad(x, I([[1, 1], [0, 2]]))
np.moveaxis(x, I([0]), I([1]))
np.swapaxes(x, I(0), I(1))
np.broadcast_to(x, I([2, 3, 4]))
np.expand_dims(x, I(0))
np.sum(x, axis=I(0))
np.delete(x, I([0]), axis=0)
np.insert(x, I([0]), 1.0, axis=0)
np.compress(I([1, 0, 1]).astype(bool), x, axis=0)
np.choose(I([0, 1, 0]), [x[0, :3], x[1, :3]])
np.select([I([1, 0, 0, 1]).astype(bool)], [x[0]])
np.where(I([1, 0, 0, 1]), x[0], 0)
np.put_along_axis(x*1, I([[0], [1], [2]]), 0, 1)
np.take_along_axis(x, I([[0], [1], [2]]), 1)
np.einsum(x, I([0, 1]), I([1, 0]))
np.einsum(x, I([0, 1]))
np.bincount(I([0, 1, 2, 2]), x[0])
np.partition(x, I(1))
np.partition(x, I([1]))
np.rot90(x, I(1))
np.flip(x, I(0))
np.diff(x, I(1))
np.cumsum(x, axis=I(0))
np.tensordot(x, x, axes=I([[0], [0]]))
np.tensordot(x, x, axes=I(2))
np.diagonal(x, I(1))
np.trace(x, I(1))
np.tril(x, I(1))
np.full(I([2, 2]), x[0, 0])
np.zeros(I([2, 2]))*x[0, 0]
np.linalg.matrix_power(x[:, :3]+np.eye(3), I(2))
np.percentile(x, I(50))
np.quantile(x, I([0, 1]).astype(float))
np.clip(x, I(2), I(5))
np.interp(I([1, 2]), I([0, 3]), x[0, :2])
np.searchsorted(x[0], I([1, 2]))
np.fft.fft(x, n=I(5))
np.fft.fft2(x, s=I([4, 4]))
np.ravel_multi_index((I([0, 1]), I([1, 1])), (3, 4))
np.linspace(x[0, 0], x[0, 1], I(3))
np.resize(x, I([2, 2]))
np.stack([x, x], axis=I(0))
np.concatenate([x, x], axis=I(0))
np.apply_along_axis(lambda v: v*2, I(0), x)
np.logspace(x[0, 0], x[0, 1], I(3))
np.convolve(x[0], I([1, 2]))
np.unique(I([1, 1, 2]))
np.indices(I([2, 2]))*x[0, 0]
np.kron(I([1, 2]), x)
np.gradient(x, I(2))
np.average(x, axis=0, weights=I([1, 2, 3]))
np.squeeze(x[None], axis=I(0))
np.add.reduce(x, axis=I(0))
np.add.reduceat(x, I([0, 2]))
np.lib.stride_tricks.sliding_window_view(x, I([2, 2]))
x[I(1)]
x[I([0, 1]), I([1, 2])]
x.reshape(I([4, 3]))
x.repeat(I(2))
x.take(I([0, 1]))
x.sum(I(0))
np.var(x, axis=I(0), ddof=I(1))
""".splitlines()


def evaluated(expression, module, x):
    """The values of a result, or of its parts, as nested lists."""
    found = eval(expression, {"np": module, "x": x, "I": module.array})
    return [nested(part) for part in found] if isinstance(found, (list, tuple)) else nested(found)


def nested(x):
    return numpy.asarray(ampi.value(x)).tolist()


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_parameters_are_arrays(expression):
    x = numpy.arange(12.0).reshape(3, 4)
    expected = evaluated(expression, numpy, x)
    assert evaluated(expression, np, np.array(x)) == expected
    with ampi.Tape() as tape:
        assert evaluated(expression, np, tape.watch(x)) == expected


def test_lists_that_hold_themselves_are_objects():
    found, itself = np.empty(2, object), [1.0]
    itself.append(itself)
    with ampi.Tape():
        found[0] = itself
    assert found[0] is itself

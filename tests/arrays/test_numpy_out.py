"""Functions and methods that write into a given array: values, errors and the array itself as with NumPy.

NumPy casts differently in almost each of them; what is written, and whether it may be, is compared for dtypes that are
narrower, wider and of another kind.
"""

import numpy
import pytest

import ampi
import ampi.numpy

A = numpy.array([1.5, -2.5, 3.25])
EYE = numpy.eye(3)
FIRST = numpy.array([0, 0, 1])

CALLS = {
    "average": lambda np, a, o: np.mean(a[None], 0, None, o),
    "choose": lambda np, a, o: np.choose([0, 1, 0], [a, a], out=o),
    "choose, by position": lambda np, a, o: np.choose([0, 1, 3], [a, a], o, "clip"),
    "clip": lambda np, a, o: np.clip(a, -2, 3, out=o),
    "compress": lambda np, a, o: np.compress([1, 1, 1], a, out=o),
    "concatenate": lambda np, a, o: np.concatenate([a[:1], a[1:]], out=o),
    "cumsum": lambda np, a, o: np.cumsum(a, out=o),
    "dot": lambda np, a, o: np.dot(EYE, a, out=o),
    "dot, by position": lambda np, a, o: np.dot(EYE, a, o),
    "einsum": lambda np, a, o: np.einsum("i->i", a, out=o),
    "matmul": lambda np, a, o: np.matmul(EYE, a, out=o),
    "max": lambda np, a, o: np.max(a[None], axis=0, out=o),
    "median": lambda np, a, o: np.median(a[None], axis=0, out=o),
    "nancumsum": lambda np, a, o: np.nancumsum(a, 0, None, o),
    "nanmax": lambda np, a, o: np.nanmax(a[None], axis=0, out=o),
    "nanmean": lambda np, a, o: np.nanmean(a[None], axis=0, out=o),
    "nanstd": lambda np, a, o: np.nanstd(a[None], axis=0, out=o),
    "outer": lambda np, a, o: np.outer(a[:1], a, out=o[None]),
    "percentile": lambda np, a, o: np.percentile(a[None], 50, axis=0, out=o),
    "ptp": lambda np, a, o: np.ptp(a[None], axis=0, out=o),
    "round": lambda np, a, o: np.round(a, out=o),
    "stack": lambda np, a, o: np.stack([a], out=o[None]),
    "std": lambda np, a, o: np.std(a[None], axis=0, out=o),
    "take": lambda np, a, o: np.take(a, [0, 2, 2], out=o),
    "take, by position": lambda np, a, o: np.take(a, [0, 1, 9], 0, o, "clip"),
    "too large": lambda np, a, o: np.take(a, [0, 1, 2, 1], out=o),
    "vecdot": lambda np, a, o: np.vecdot(EYE, a, out=o),
    "add": lambda np, a, o: np.add(a, 1, out=o),
    "add.accumulate": lambda np, a, o: np.add.accumulate(a, out=o),
    "add.reduce": lambda np, a, o: np.add.reduce(a[None], axis=0, out=o),
    "add.reduceat": lambda np, a, o: np.add.reduceat(a, [0, 2, 1], out=o),
    "multiply.accumulate": lambda np, a, o: np.multiply.accumulate(a, 0, None, o),
    "multiply.outer": lambda np, a, o: np.multiply.outer(a, a[0], out=o),
    "a.choose": lambda np, a, o: FIRST.choose([a, a], out=o),
    "a.clip": lambda np, a, o: a.clip(-2, 3, out=o),
    "a.compress": lambda np, a, o: a.compress([1, 1, 1], out=o),
    "a.cumprod": lambda np, a, o: a.cumprod(out=o),
    "a.dot": lambda np, a, o: a.dot(EYE, out=o),
    "a.mean": lambda np, a, o: a[None].mean(0, out=o),
    "a.round": lambda np, a, o: a.round(out=o),
    "a.std": lambda np, a, o: a[None].std(0, out=o),
    "a.sum": lambda np, a, o: a[None].sum(axis=0, out=o),
    "a.take": lambda np, a, o: a.take([0, 1, 2], out=o),
    "a.trace": lambda np, a, o: (a[:, None, None] * numpy.eye(2)).trace(axis1=1, axis2=2, out=o),
}


def run(call, module, a, dtype):
    """What came out, or the kind of error, and the array that was to take it."""
    out = module.zeros(3, dtype)
    try:
        given = call(module, a, out)
    except ampi.AmpiError:
        raise
    except (TypeError, ValueError) as error:
        return TypeError if isinstance(error, TypeError) else ValueError, out
    return given is out or given.shape, out


@pytest.mark.filterwarnings("ignore:Implicit casting of output", "ignore:Casting complex values")  # NumPy's own
@pytest.mark.parametrize("dtype", ["int32", "float32", "float64", "complex128"])
@pytest.mark.parametrize("name", CALLS)
def test_given_arrays(name, dtype):
    call = CALLS[name]
    expected, values = run(call, numpy, A, dtype)
    idle, idle_values = run(call, ampi.numpy, ampi.numpy.array(A), dtype)
    with ampi.Tape() as tape:
        recorded, recorded_values = run(call, ampi.numpy, tape.watch(A), dtype)
    assert expected == idle == recorded
    assert values.tobytes() == ampi.value(idle_values).tobytes() == ampi.value(recorded_values).tobytes()

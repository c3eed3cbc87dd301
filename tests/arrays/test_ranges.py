"""Ranges whose ends or steps are active: values are NumPy's, derivatives agree with differences."""

import numpy
import pytest

import ampi
import ampi.numpy as anp

X = numpy.array([0.3, 2.1, 0.16])

RANGES = {
    "arange": lambda np, x: np.arange(x[0], x[1], x[2]),
    "arange from zero": lambda np, x: np.arange(0, 1.0, x[2]) + x[0],
    "arange, names": lambda np, x: np.arange(start=x[0], stop=x[1], step=x[2]),
    "arange, one step": lambda np, x: np.arange(x[0], 4.0),
    "arange, the end": lambda np, x: np.arange(x[1]) * x[0],
    "arange, single": lambda np, x: np.arange(x[0], 2, 0.25, dtype="f4").astype(float),
    "arange, backwards": lambda np, x: np.arange(x[1], x[0], -x[2]),
    "arange, integers": lambda np, x: np.arange(0, 5, 1) * x[0],
    "arange, empty": lambda np, x: np.sum(np.arange(x[1], x[0], x[2])) + x[:1],
    "mgrid": lambda np, x: np.mgrid[0 : x[1] : x[2]],
    "mgrid of two": lambda np, x: np.mgrid[x[0] : 2 : x[2], 0 : x[1] : 5j],
    "mgrid of one in a tuple": lambda np, x: np.mgrid[x[0] : 2 : x[2],],
    "mgrid, complex step": lambda np, x: np.mgrid[x[0] : x[1] : 4j],
    "ogrid": lambda np, x: sum(np.ogrid[x[0] : 2 : x[2], 0 : x[1] : 3j]),
    "r_": lambda np, x: np.r_[0 : x[1] : x[2]],
    "r_ of several": lambda np, x: np.r_[0 : x[1] : x[2], x[0], 3.0, x[0] : x[1] : 3j],
    "c_": lambda np, x: np.c_[x[0] : x[1] : 3j, 0:3],
    "linspace": lambda np, x: np.linspace(x[0], x[1], 5),
    "logspace": lambda np, x: np.logspace(x[0], x[1], 4, base=2 + x[2]),
    "geomspace": lambda np, x: np.geomspace(x[0], x[1], 4),
    "in a loop": lambda np, x: np.asarray([t * t for t in np.arange(0, 1.0, x[2])]),
}


def weighted(np, name, x):
    found = RANGES[name](np, x)
    return np.sum(found * np.sin(1.0 + numpy.arange(numpy.size(found)).reshape(numpy.shape(found))))


@pytest.mark.parametrize("name", RANGES)
def test_ranges_have_their_derivatives(name):
    values = []
    gradient = ampi.grad(lambda x: (values.append(ampi.value(RANGES[name](anp, x))), weighted(anp, name, x))[1])(X)
    assert numpy.array_equal(values[0], RANGES[name](numpy, X))
    assert values[0].dtype == RANGES[name](numpy, X).dtype
    steps = 1e-6 * numpy.eye(3)
    expected = [(weighted(numpy, name, X + e) - weighted(numpy, name, X - e)) / 2e-6 for e in steps]
    rough = 2e-1 if "single" in name else 1e-7  # differences of single precision
    numpy.testing.assert_allclose(gradient, expected, rtol=rough, atol=1e-8)
    _, tangent = ampi.jvp(lambda x: weighted(anp, name, x), X, numpy.array([1.0, -2.0, 0.5]))
    assert float(tangent) == pytest.approx(float(gradient @ [1.0, -2.0, 0.5]), rel=1e-6 if "single" in name else 1e-12)


def test_plain_arange_of_something_active():
    assert ampi.grad(lambda x: numpy.arange(0.0, 1.0, x[2])[3] * 1.0)(X)[2] == 3


@pytest.mark.mpi
@pytest.mark.parametrize("values", ["np.arange(0, 1.0, dt)", "np.mgrid[0:1.0:dt]", "np.r_[0:1.0:dt]"])
def test_times_of_a_program(values, tmp_path_factory):
    path = ampi.COMM_WORLD.bcast(str(tmp_path_factory.mktemp("range")) if not ampi.COMM_WORLD.rank else None)
    if not ampi.COMM_WORLD.rank:
        with open(f"{path}/prog.py", "w") as file:
            file.write(
                "import numpy as np\ndx = 0.25\ndt = 0.4 * dx\nJ = 0.0\n"
                f"for k, t in enumerate({values}):\n    J += t**2\n"
            )
    ampi.COMM_WORLD.Barrier()
    _, (found,) = ampi.trace(f"{path}/prog.py", wrt=("dt",), of="J")
    assert float(found) == pytest.approx(57.0, rel=1e-12)

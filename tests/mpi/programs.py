"""How a program's gradient is checked: entry by entry against the complex step.

A program is a function of ``np`` (ampi.numpy or NumPy), a communicator, and this rank's array; it returns this rank's
array, or None.  It must be analytic, so that the same program on plain mpi4py and complex arrays gives exact
derivatives (Squire and Trapp, "Using complex variables to estimate derivatives of real functions", 1998).
"""

import numpy
from mpi4py import MPI

import ampi
import ampi.numpy

WORLD = MPI.Intracomm(MPI.COMM_WORLD)  # mpi4py's own
TOLERANCES = {"float32": 1e-4, "float64": 1e-12, "complex64": 1e-4, "complex128": 1e-9}


def typeof(array):
    """The MPI datatype of an array's elements."""
    return MPI._typedict[array.dtype.char]


def random(shape, dtype="float64", salt=0):
    """Numbers near 1, different on each rank."""
    generator = numpy.random.default_rng([WORLD.rank, salt])
    values = generator.uniform(0.5, 1.5, shape)
    if numpy.dtype(dtype).kind == "c":
        values = values * numpy.exp(1j * generator.uniform(0, 6, shape))
    return values.astype(dtype)


def total(a, b):
    """Σ over ranks of the products of elements (without conjugation)."""
    return WORLD.allreduce(0.0 if b is None else numpy.sum(a * b))


def recorded(program, comm, x0):
    """Tape, independent and dependent of a program."""
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(ampi.numpy, comm, x)
    return tape, x, y


def check(program, comm, plain, n=3, dtype="float64"):
    """Check values and gradient of a program; collective over the world.

    Parameters
    ----------
    comm, plain : Comm
        The same ranks, ours and mpi4py's.
    n : int
        Size of each rank's array.
    """
    x0 = random(n, dtype)
    tape, x, y = recorded(program, comm, x0)
    seed = None if y is None else random(y.shape, dtype, salt=1)
    value = None if y is None else ampi.value(y).copy()
    x_bar = tape.gradient(y, x, seed=seed)
    again = tape.gradient(y, x, seed=seed)

    wide = x0.astype(complex)
    tolerance = TOLERANCES[dtype]
    expected_value = program(numpy, plain, wide.copy())
    if y is not None:
        numpy.testing.assert_allclose(value, expected_value, rtol=tolerance, atol=tolerance)
        assert numpy.array_equal(ampi.value(y), value)
    slope = holomorphic_derivative if numpy.dtype(dtype).kind == "c" else derivative
    expected = numpy.array(
        [slope(program, plain, wide, seed, rank, k) for rank in range(WORLD.size) for k in range(n)]
    ).reshape(WORLD.size, n)[WORLD.rank]
    scale = WORLD.allreduce(abs(expected).max(initial=0.0), MPI.MAX)
    assert x_bar.dtype == numpy.dtype(dtype)
    assert abs(x_bar - expected).max(initial=0.0) <= tolerance * scale
    assert numpy.array_equal(x_bar, again)
    return tape


def derivative(program, plain, x0, seed, rank, k):
    """Adjoint of one entry of one rank's array."""
    x = x0.copy()
    if WORLD.rank == rank:
        x[k] += 1e-30j
    y = program(numpy, plain, x)
    return total(seed, None if y is None else y.imag * 1e30)


def holomorphic_derivative(program, plain, x0, seed, rank, k):
    """The same for complex arrays, x̄ = conj(∂y/∂x) ȳ: central differences, extrapolated."""
    slopes = []
    for h in (2e-3, 1e-3):
        values = []
        for step in (h, -h):
            x = x0.copy()
            if WORLD.rank == rank:
                x[k] += step
            values.append(total(numpy.conj(seed), program(numpy, plain, x)))
        slopes.append((values[0] - values[1]) / (2 * h))
    return numpy.conj((4 * slopes[1] - slopes[0]) / 3)

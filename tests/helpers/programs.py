"""Checks of a program's gradient against the complex step, in several random directions.

A program is a function of ``np`` (ampi.numpy or NumPy), a communicator, and this rank's array; it returns this rank's
array, or None.  It must be analytic, so that the same program on plain mpi4py and complex arrays gives exact
derivatives (Squire and Trapp, "Using complex variables to estimate derivatives of real functions", 1998).
"""

import itertools

import numpy
import pytest
from forward_check import check_seeds, check_tangents, is_drawn
from mpi4py import MPI
from second_check import check_second, objective_of

import ampi
import ampi.numpy

WORLD = MPI.COMM_WORLD  # mpi4py's own
TOLERANCES = {"float32": 1e-4, "float64": 1e-12, "complex64": 1e-4, "complex128": 1e-9}


def broken_in(vendor, what, ranks=None):
    """Mark a test that a bug of an MPI implementation breaks (on this number of ranks), with plain mpi4py as well."""
    broken = MPI.get_vendor()[0] == vendor and ranks in (None, WORLD.size)
    return pytest.mark.skipif(broken, reason=f"{vendor}, with plain mpi4py as well: {what}")


def typeof(array):
    """The MPI datatype of an array's elements."""
    return MPI._typedict[array.dtype.char]


def random(shape, dtype="float64", salt=0):
    """Numbers of either sign and size about 1, different on each rank."""
    generator = numpy.random.default_rng([WORLD.rank, salt])
    values = generator.uniform(0.5, 1.5, shape) * generator.choice([-1, 1], shape)
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


def check(program, comm, plain, n=3, dtype="float64", second=True):
    """Check values and gradient of a program; collective over the world.

    Parameters
    ----------
    comm, plain : Comm
        Communicators of the same ranks, ampi's and mpi4py's.
    n : int
        Size of each rank's array.
    second : bool
        Also check second order.
    """
    x0 = random(n, dtype)
    tape, x, y = recorded(program, comm, x0)
    seed = None if y is None else random(y.shape, dtype, salt=1)
    value = None if y is None else ampi.value(y).copy()
    races = "windows" in tape.sweep_starts  # ranks add to one element in any order
    x_bar = tape.gradient(y, x, seed=seed)
    again = tape.gradient(y, x, seed=seed)

    wide = x0.astype(complex)
    tolerance = TOLERANCES[dtype]
    expected_value = program(numpy, plain, wide.copy())
    if y is not None:
        numpy.testing.assert_allclose(value, expected_value, rtol=tolerance, atol=tolerance)
        assert numpy.array_equal(ampi.value(y), value)
    assert x_bar.dtype == numpy.dtype(dtype) and x_bar.shape == x0.shape
    slope = extrapolated_slope if numpy.dtype(dtype).kind == "c" else complex_step_slope
    for salt in range(2, 5):
        direction = random(n, dtype, salt)
        expected = slope(program, plain, wide, direction, seed)
        scale = total(abs(x_bar), abs(direction))
        assert abs(total(x_bar.conj(), direction).real - expected) <= tolerance * scale
    check_forward(program, comm, x0, random(n, dtype, 2), seed, x_bar, (tape, x, y), second)
    assert numpy.array_equal(x_bar, again)
    check_seeds(tape, [] if y is None else [y], [x], 2, rounding=ROUNDING[dtype] if races else 0.0)
    return tape


ROUNDING = {"float32": 2e-5, "float64": 1e-12, "complex64": 2e-5, "complex128": 1e-12}


def check_forward(program, comm, x0, x_dot, seed, x_bar, tape=None, second=True):
    """⟨ȳ, Jẋ⟩ = ⟨x̄, ẋ⟩, summed over the ranks: by `ampi.jvp`, and by several walks over one tape."""
    f = lambda x: program(ampi.numpy, comm, x)
    found = [(1, ampi.jvp(f, x0, x_dot)[1])]
    _, push = ampi.linearize(f, x0)
    found += [(k, push(k * x_dot)) for k in (1, 2)]
    if tape is not None:
        found += walked(*tape, x_dot)
    reverse = total(x_bar.conj(), x_dot).real
    for factor, y_dot in found:
        forward = total(None if seed is None else seed.conj(), y_dot).real
        scale = total(abs(x_bar), abs(x_dot)) + total(
            abs(seed) if seed is not None else None, y_dot if y_dot is None else abs(y_dot)
        )
        assert abs(forward - factor * reverse) <= ROUNDING[str(x0.dtype)] * abs(factor) * scale
    if second and is_drawn(0):
        check_second_order(program, comm, x0)
    if is_drawn(1):
        check_tangents(f, [x0], 2, rounding=ROUNDING[str(x0.dtype)])  # each run may take messages in another order


def walked(tape, x, y, x_dot):
    """Pairs of a factor and ẏ from `tape.tangent`; none if all ranks refuse, since a tape made for sweeps does not keep
    what a walk needs."""
    try:
        y_dot, refused = tape.tangent(y, x, 2 * x_dot), False
        several = numpy.stack([3 * x_dot, -x_dot])
        both = tape.tangent(y, x, several, vectorised=True) if is_drawn(2) else []
    except ampi.ActivityError as error:
        assert "ampi.Tape(tangents=True)" in str(error)
        refused = True
    everywhere = WORLD.allgather(refused)
    assert all(everywhere) or not any(everywhere)
    if refused:
        return []
    return [(2, y_dot), *zip((3, -1), [None, None] if both is None else both)]  # None: a rank without output


def check_second_order(program, comm, x0):
    """Check the symmetry of the Hessian and, in double precision, compare it with differences of gradients."""
    double = x0.dtype.itemsize == (16 if x0.dtype.kind == "c" else 8)
    f = objective_of(lambda x: program(ampi.numpy, comm, x))
    options = {"rough": 1e-6} if double else {"rough": numpy.inf}
    check_second(f, [x0], 10 * ROUNDING[str(x0.dtype)], add=lambda v: WORLD.allreduce(v), **options)


def complex_step_slope(program, plain, x0, direction, seed):
    """Re⟨seed, ẏ⟩ for ẋ = direction, by the complex step."""
    y = program(numpy, plain, x0 + 1e-30j * direction)
    return total(seed, None if y is None else y.imag * 1e30)


def extrapolated_slope(program, plain, x0, direction, seed):
    """The same for complex arrays, by central differences, extrapolated twice."""
    slopes = []
    for h in (4e-3, 2e-3, 1e-3):
        forth = total(numpy.conj(seed), program(numpy, plain, x0 + h * direction)).real
        back = total(numpy.conj(seed), program(numpy, plain, x0 - h * direction)).real
        slopes.append((forth - back) / (2 * h))
    fourth_order = [(4 * fine - coarse) / 3 for coarse, fine in itertools.pairwise(slopes)]
    return (16 * fourth_order[1] - fourth_order[0]) / 15

"""Calls that NumPy accepts without a warning: each has the same values on a tape as without one, and derivatives."""

import itertools

import numpy
import pytest
from numpy_rule_cases import CASES

import ampi
import ampi.numpy as np
from ampi.base.structures import leaves

# ----------------------------------------------------------------------------------------------- arrays in nested lists


def _nested(generator, x, shape):
    """A nested list of a shape that holds rows and elements of x, numbers, and plain arrays; and its values."""
    if not shape:
        k = generator.integers(x.size)
        return (x.reshape(-1)[k], k) if generator.random() < 0.5 else (float(k), None)
    kind = generator.integers(4)
    if kind == 0 and x.shape == shape:
        return x, None
    if kind == 1:
        return generator.standard_normal(shape), None
    items = [_nested(generator, x, shape[1:])[0] for _ in range(shape[0])]
    if kind == 2 and len(shape) == 1 and x.ndim > 1 and x.shape[-1] == shape[0]:
        return x[0], None
    return (items if generator.random() < 0.5 else tuple(items)), None


@pytest.mark.parametrize("seed", range(60))
def test_lists_of_arrays_of_lists_and_of_numbers(seed):
    shape = [(2,), (2, 3), (3, 2), (2, 2, 3)][seed % 4]
    inner = [(2,), (2, 3), (3,), (2, 3)][seed % 4]
    x0 = numpy.random.default_rng(seed).standard_normal(inner)
    weights = 1.0 + numpy.arange(numpy.prod(shape)).reshape(shape)

    def program(x, np, way):
        given = [_nested(numpy.random.default_rng(seed + k), x, shape[1:])[0] for k in range(shape[0])]
        if way == "array":
            made = np.array(given)
        elif way == "assignment":
            made = np.zeros(shape)
            made[:] = given
        elif way == "sum":
            made = np.ones(shape) + given
        else:
            made = np.stack([np.asarray(part, float) for part in given])
        return (made * weights).sum() + (x * x).sum()

    for way in ("array", "assignment", "sum", "stack"):
        f, plainly = lambda x, way=way: program(x, np, way), lambda x, way=way: program(x, numpy, way)
        value, gradient = ampi.value_and_grad(f)(x0)
        assert float(value) == float(plainly(x0))
        expected = numpy.zeros(inner)
        for index in numpy.ndindex(inner):
            step = numpy.zeros(inner)
            step[index] = 0.5
            expected[index] = plainly(x0 + step) - plainly(x0 - step)
        numpy.testing.assert_allclose(gradient, expected, 1e-12, 1e-12)
        numpy.testing.assert_allclose(ampi.jvp(f, x0, x0)[1], (expected * x0).sum(), 1e-12)


# ----------------------------------------------------------------------------------------------- ways to ask for copies


@pytest.mark.parametrize("mode", numpy._CopyMode)
@pytest.mark.parametrize("of", [numpy, np])
def test_modes_of_copying(mode, of):
    def f(x):
        constant = np.arange(3.0)
        made = of.array(constant, copy=mode)
        assert numpy.shares_memory(made, constant) == (mode is not numpy._CopyMode.ALWAYS)
        mine = np.array(x, copy=mode)
        assert numpy.shares_memory(mine, x) == (mode is not numpy._CopyMode.ALWAYS)
        assert np.asarray(x, copy=mode is numpy._CopyMode.ALWAYS or None) is not None
        return np.sum(mine * made)

    assert (ampi.grad(f)(numpy.ones(3)) == numpy.arange(3.0)).all()


# --------------------------------------------------------------------------- operations that raise when they have begun


@pytest.mark.parametrize("indices", [[0, 7], [7, 0], [0, 1, -4, 2], [-3, 2, 5], [1, 2]])
@pytest.mark.parametrize("layout", ["C", "Fortran", "columns"])
@pytest.mark.parametrize("active", [False, True])
def test_put_with_an_index_out_of_bounds_writes_what_comes_before_it(indices, layout, active):
    shapes = {"C": (3,), "Fortran": (1, 3), "columns": (3,)}
    lay = {"C": lambda b: b, "Fortran": lambda b: b.T.copy().T, "columns": lambda b: b}[layout]

    def program(x, np):
        b = lay((x * 1.0).reshape(shapes[layout]))
        if layout == "columns":
            b = np.stack([b, b], 1)[:, 0]
        values = x * 10.0 if active else numpy.array([8.0, 9.0])
        try:
            np.put(b, indices, values)
        except IndexError:
            pass
        return np.sum(b * b * (1 + numpy.arange(3.0)))

    x = numpy.array([1.0, 2.0, 3.0])
    value, gradient = ampi.value_and_grad(lambda x: program(x, np))(x)
    assert float(value) == program(x, numpy)
    h = 1e-6
    expected = [(program(x + h * e, numpy) - program(x - h * e, numpy)) / (2 * h) for e in numpy.eye(3)]
    numpy.testing.assert_allclose(gradient, expected, 1e-6, 1e-6)


# --------------------------------------------------------------------------------------------------- tables of integers

TABLES = {
    "interp": lambda x, k: np.interp(x, np.arange(len(k)), k),
    "interp of places": lambda x, k: np.interp(x, np.cumsum(k + k.dtype.type(1), dtype=k.dtype), np.arange(4.0)),
    "interp of both": lambda x, k: np.interp(k, numpy.arange(4.0), x),
    "convolve": np.convolve,
    "correlate": lambda x, k: np.correlate(x, k, "full"),
    "dot": np.dot,
    "matmul": lambda x, k: x @ k,
    "einsum": lambda x, k: np.einsum("i,j->ij", x, k),
    "tensordot": lambda x, k: np.tensordot(x, k, 0),
    "outer": np.outer,
    "kron": np.kron,
    "multiply": np.multiply,
    "divide": lambda x, k: np.divide(k, x),
    "power": np.power,
    "power of a table": lambda x, k: np.power(k, x),
    "float_power": np.float_power,
    "arctan2": np.arctan2,
    "arctan2 swapped": lambda x, k: np.arctan2(k, x),
    "hypot": np.hypot,
    "logaddexp": np.logaddexp,
    "logaddexp2": np.logaddexp2,
    "remainder": lambda x, k: np.remainder(x, k + k),
    "remainder of a table": lambda x, k: np.remainder(k, x),
    "fmod": lambda x, k: np.fmod(k, x),
    "copysign": np.copysign,
    "maximum": np.maximum,
    "heaviside": lambda x, k: np.heaviside(k, x),
    "clip": lambda x, k: np.clip(x, 0, k),
    "where": lambda x, k: np.where(k > 1, x, k),
    "average": lambda x, k: np.average(x, weights=k),
    "trapezoid": lambda x, k: np.trapezoid(x, np.arange(4).astype(k.dtype) if k.dtype.kind != "b" else None),
    "gradient": lambda x, k: np.gradient(x, np.arange(4.0) + 0 * k),
    "polyval": lambda x, k: np.polyval(k, x),
    "cumprod": lambda x, k: np.cumprod(x * k),
    "sum where": lambda x, k: np.sum(x, where=k > 1),
    "prod": lambda x, k: np.prod(np.stack([x, k])),
    "concatenate": lambda x, k: np.concatenate([x, k]),
    "bincount": lambda x, k: np.bincount(k.astype(int), x),
    "solve": lambda x, k: np.linalg.solve(np.diag(k), x),
    "choose": lambda x, k: np.choose((k > 1).astype(int), [x, k]),
    "select": lambda x, k: np.select([k > 1], [x], k),
}


@pytest.mark.parametrize("dtype", [bool, numpy.uint8, numpy.int8, numpy.int64, numpy.uint64])
@pytest.mark.parametrize("name", TABLES)
def test_constant_tables_of_integers_give_the_derivatives_of_the_same_floats(name, dtype):
    x = numpy.array([0.81, 1.26, 0.39, 1.7])
    k = numpy.array([1, 3, 2, 1]).astype(dtype)
    f = TABLES[name]
    try:
        expected = f(x, k)
    except TypeError:
        pytest.skip("NumPy has no such function of these")
    weights = 1.0 + numpy.arange(expected.size).reshape(expected.shape)
    total = lambda x, k: np.sum(f(x, k) * weights)
    assert numpy.array_equal(ampi.value(f(np.asarray(x), k)), expected)
    floats = k.astype(float)
    rtol = 1e-9 if expected.dtype == numpy.float64 else 2e-3
    numpy.testing.assert_allclose(
        ampi.grad(lambda x: total(x, k))(x), ampi.grad(lambda x: total(x, floats))(x), rtol, 1e-12
    )
    numpy.testing.assert_allclose(
        ampi.hvp(lambda x: total(x, k), x, x), ampi.hvp(lambda x: total(x, floats), x, x), rtol, 1e-12
    )


# --------------------------------------------------------------------------------------------------------- determinants


@pytest.mark.parametrize("n, rank", [(1, 0), (2, 0), (2, 1), (3, 1), (3, 2), (4, 3), (7, 6), (8, 5), (3, 3)])
def test_determinants_of_singular_matrices(n, rank):
    generator = numpy.random.default_rng(10 * n + rank)
    a, v = generator.standard_normal((2, 3, n, n))
    a[1] = generator.integers(-2, 3, (n, rank)) @ generator.integers(-2, 3, (rank, n))  # one of a stack
    weights = generator.standard_normal(3)
    f = lambda a: np.sum(np.linalg.det(a) * weights)
    plainly = lambda a: (numpy.linalg.det(a) * weights).sum()
    h = 1e-3
    along = lambda g: (8 * (g(a + h * v) - g(a - h * v)) - (g(a + 2 * h * v) - g(a - 2 * h * v))) / (12 * h)
    gradient = ampi.grad(f)(a)
    numpy.testing.assert_allclose((gradient * v).sum(), along(plainly), 1e-6, 1e-8)
    numpy.testing.assert_allclose(ampi.jvp(f, a, v)[1], (gradient * v).sum(), 1e-9, 1e-12)
    numpy.testing.assert_allclose(ampi.hvp(f, a, v), along(ampi.grad(f)), 1e-5, 1e-7)


def test_determinants_beyond_the_range_of_numbers():
    gradient = ampi.grad(np.linalg.det)(numpy.diag([1e-200, 1e-200, 3.0]))
    numpy.testing.assert_allclose(gradient, numpy.diag([3e-200, 3e-200, 0.0]))


def test_the_logarithm_of_a_determinant_has_an_infinite_derivative_at_a_singular_matrix():
    f = lambda a: np.linalg.slogdet(a)[1]
    assert (ampi.grad(f)(numpy.array([[1.0, 2.0], [2.0, 4.0]])) == numpy.array([[1, -1], [-1, 1]]) * numpy.inf).all()
    numpy.testing.assert_allclose(ampi.grad(f)(numpy.array([[1.0, 2.0], [2.0, 5.0]])), [[5, -2], [-2, 1]])


# ------------------------------------------------------------------------------------------------ floating-point errors


def _quietly(f):
    """Whether NumPy itself raises nothing."""
    try:
        with numpy.errstate(all="raise"):
            return f()
    except (FloatingPointError, numpy.linalg.LinAlgError):
        return None


@pytest.mark.filterwarnings("ignore:what the function returned depends on nothing")  # x ** 0 before NumPy 2.3
@pytest.mark.parametrize("name", CASES)
def test_derivatives_raise_no_floating_point_errors_of_their_own(name):
    for case, scale in itertools.product(CASES[name], (1.0, 1e155, 1e-160, 0.0)):
        given = [x * scale for x in case.arguments(numpy.float64)] if "f" in case.kinds else []
        try:
            if not given or _quietly(lambda: case.f(*given)) is None:  # noqa: B023
                continue
        except (ArithmeticError, AttributeError, TypeError, ValueError):  # not of this version of NumPy
            continue

        def total(*given, f=case.f):
            parts = list(leaves(f(*given)))
            with numpy.errstate(all="ignore"):
                return sum([np.sum(np.real(part)) for part in parts], np.zeros(()))

        with numpy.errstate(all="raise"):
            ampi.grad(total, argnums=tuple(range(len(given))))(*given)
            ampi.jvp(total, tuple(given), tuple(map(numpy.ones_like, given)))
        if scale == 1.0 and not name.startswith(("linalg.eig", "linalg.svd")):
            with numpy.errstate(all="raise"):
                ampi.hvp(total, tuple(given), tuple(map(numpy.ones_like, given)))


def test_large_adjoints_are_no_floating_point_errors():
    with numpy.errstate(all="raise"):
        found = ampi.grad(lambda x: np.sum(np.sinh(300 * x)))(numpy.array([0.0, 1.0, 2.0]))
    numpy.testing.assert_allclose(found, 300 * numpy.cosh([0.0, 300.0, 600.0]))


# ---------------------------------------------------------------------------------------------------------- other tapes


def test_an_output_that_another_tape_recorded_draws_the_warning():
    with ampi.Tape() as first:
        x = first.watch(numpy.ones(2))
        y = x * x
    with ampi.Tape() as second:
        z = np.sum(second.watch(numpy.ones(2)) * y)
    with pytest.warns(ampi.ActivityWarning, match="carries no derivative on this tape.*another tape"):
        assert (first.gradient(z, x) == 0).all()


def test_the_second_argument_of_heaviside():
    assert ampi.grad(lambda x: np.sum(np.heaviside([0.0, 1.0], x[0])) + np.sum(x))(numpy.ones(2)).tolist() == [2, 1]
    assert ampi.grad(lambda x: np.sum(np.heaviside(x, 0.5)) + np.sum(x))(numpy.ones(2)).tolist() == [1, 1]


# ------------------------------------------------------------------------------- errors when something has been written

HALFWAY = {
    "out=": lambda b, x: np.multiply(x, 1e300, out=b),
    "in place": lambda b, x: b.__imul__(1e300),
    "sum in place": lambda b, x: b.__imul__(5.9e156).__iadd__(x * 5.9e156),
    "reduction": lambda b, x: np.sum(np.stack([x, x]) * 4e156, axis=0, out=b),
    "accumulation": lambda b, x: np.cumprod(x * 1e152, out=b),
    "part": lambda b, x: np.multiply(x[:2], 1e300, out=b[1:]),
}


@pytest.mark.filterwarnings("ignore:overflow")  # in the sums of what was written
@pytest.mark.parametrize("name", HALFWAY)
def test_what_was_written_before_an_error_is_not_used_with_another_derivative(name):
    x = numpy.array([1.0, 2.0, 3.0]) * 1e151

    def begun(x, again):
        b = x * 1.0
        try:
            with numpy.errstate(over="raise"):
                HALFWAY[name](b, x)
        except FloatingPointError:
            pass
        else:
            pytest.skip("no error")
        if again:
            b[:] = x * 2.0
        return b

    with pytest.raises(ampi.ActivityError, match="raised FloatingPointError"):
        ampi.grad(lambda x: np.sum(begun(x, False)))(x)
    assert (ampi.grad(lambda x: np.sum(begun(x, True)))(x) == 2).all()
    assert numpy.isnan(ampi.jvp(lambda x: np.sum(begun(x, False)), x, numpy.ones(3))[1])
    assert ampi.jvp(lambda x: np.sum(begun(x, True)), x, numpy.ones(3))[1] == 6


def test_constants_that_were_written_before_an_error_have_derivative_zero():
    def f(x):
        b = x * 1.0
        with pytest.raises(FloatingPointError), numpy.errstate(divide="raise"):
            np.divide(1.0, numpy.array([2.0, 0.0]), out=b[:2])
        b[1] = 1.0
        return np.sum(b * b)

    assert ampi.grad(f)(numpy.array([1.0, 2.0, 3.0])).tolist() == [0, 0, 6]


@pytest.mark.parametrize("write", [
    lambda b, x: b.__setitem__(slice(None), x[:2]), lambda b, x: b.__setitem__([0, 7], 1.0),
    lambda b, x: np.add(x, x[:2], out=b), lambda b, x: np.copyto(b, x * 1j), lambda b, x: np.add.at(b, [0, 9], x[:2]),
    lambda b, x: np.take(x, [0, 1, 9], out=b), lambda b, x: np.cumsum(x[:2], out=b),
])  # fmt: skip
def test_an_error_before_anything_was_written_changes_nothing(write):
    def f(x):
        b = x * 1.0
        with pytest.raises((ValueError, IndexError, TypeError)):
            write(b, x)
        return np.sum(b * b)

    assert ampi.grad(f)(numpy.array([1.0, 2.0, 3.0])).tolist() == [2, 4, 6]


@pytest.mark.parametrize(
    "write",
    [
        lambda v: v.put([0], 2.0),
        lambda v: np.put(v, [0, 2], [2.0, 3.0]),
        lambda v: np.putmask(v, [[False, True, False]], 2.0),
        lambda v: np.place(v, [[False, True, False]], [2.0]),
        lambda v: np.copyto(v, 2.0, where=[[True, False, False]]),
        lambda v: np.put_along_axis(v, numpy.zeros((1, 1), int), 2.0, 1),
    ],
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_constants_written_to_elements_that_share_memory(write):
    """NumPy writes to a copy and copies it back, so that the last of these elements decides: the error says so."""

    def program(x):
        v = np.broadcast_arrays(numpy.ones((1, 3)), np.sum(x))[1]
        write(v)
        return np.sum(v * numpy.arange(1.0, 4.0))

    with pytest.raises(ampi.ActivityError, match="share memory"):
        ampi.grad(program)(numpy.array([1.3, 2.2]))

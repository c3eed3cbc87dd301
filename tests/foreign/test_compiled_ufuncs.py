"""Functions that Numba made ufuncs of, on active arrays: as the same expression in NumPy's."""

import numba
import numpy as np
import pytest

import ampi
import ampi.numpy as anp


@numba.vectorize
def square(x):
    return x * x


@numba.vectorize(["f4(f4,f4)", "f8(f8,f8)"])
def hypotenuse(x, y):
    return (x * x + y * y) ** 0.5


@numba.vectorize
def chosen(a, x, y):
    if a > 0.5:
        return a * x
    return np.sin(y)


def in_numpy(a, x, y):
    return anp.where(a > 0.5, a * x, anp.sin(y))


x = np.linspace(0.2, 1.9, 12).reshape(3, 4)
CASES = {
    "one": (lambda a: square(a), lambda a: a * a),
    "a row": (lambda a: square(a[1]), lambda a: a[1] * a[1]),
    "backwards": (lambda a: square(a[::-1, ::2].T), lambda a: (a[::-1, ::2].T) ** 2),
    "nothing": (lambda a: square(a[2:2]), lambda a: a[2:2] ** 2),
    "a number": (lambda a: square(a[1, 1]), lambda a: a[1, 1] ** 2),
    "broadcast": (lambda a: hypotenuse(a[:, :1], a[0]), lambda a: anp.hypot(a[:, :1], a[0])),
    "with a number": (lambda a: hypotenuse(a, 2), lambda a: anp.hypot(a, 2)),
    "of two": (lambda a: hypotenuse(a, square(a)), lambda a: anp.hypot(a, a * a)),
    "passive first": (lambda a: chosen(x, a, a[0]), lambda a: in_numpy(x, a, a[0])),
    "branches": (lambda a: chosen(a, 2.0, a), lambda a: in_numpy(a, 2.0, a)),
    "out": (lambda a: hypotenuse(a, 1.5, out=anp.zeros((3, 4))), lambda a: anp.hypot(a, 1.5)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_as_in_numpy(name, dtype):
    tolerance = 1e-13 if dtype == np.float64 else 1e-5
    found = []
    for function in CASES[name]:
        with ampi.Tape() as tape:
            a = tape.watch(x.astype(dtype))
            y = function(a)
        found.append((ampi.value(y), tape.gradient(y, a, np.cos(np.arange(np.size(y)).reshape(np.shape(y))))))
    (values, gradient), (expected, exact) = found
    np.testing.assert_allclose(values, expected, rtol=tolerance)
    np.testing.assert_allclose(gradient, exact, rtol=tolerance, atol=tolerance)


def test_where_leaves_the_rest():
    mask = np.arange(12).reshape(3, 4) % 3 == 0
    with ampi.Tape() as tape:
        a = tape.watch(x)
        out = anp.ones((3, 4)) * a[0, 0]
        y = hypotenuse(a, 2.0, out=out, where=mask)
    assert y is out
    exact = np.where(mask, x / np.hypot(x, 2.0), 0.0)
    exact[0, 0] += np.sum(~mask)
    np.testing.assert_allclose(tape.gradient(y, a, np.ones((3, 4))), exact, rtol=1e-13)


@numba.guvectorize("(n)->()")
def first_product(a, result):
    result[0] = a[0] * a[1]


REFUSED = {
    "reduce": lambda a: hypotenuse.reduce(a),
    "accumulate": lambda a: hypotenuse.accumulate(a),
    "a generalized one with keywords": lambda a: first_product(a, anp.zeros(3), casting="unsafe"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_by_name(name):
    with ampi.Tape() as tape, pytest.raises(ampi.ActivityError, match=r"hypotenuse|first_product"):
        REFUSED[name](tape.watch(x))


@numba.stencil
def around(a):
    return a[-1] * a[1] + 2.0 * a[0]


@numba.guvectorize(["void(f8[:], f8, f8[:])"], "(n),()->(n)")
def scaled_squares(a, s, out):
    for i in range(a.shape[0]):
        out[i] = s * a[i] ** 2


def around_into(a):
    out = anp.full(a[0].shape, 7.0)
    around(a[0], out=out)
    return out


def products_into(a):
    out = anp.zeros(3)
    first_product(a, out)
    return out


CALLED = {  # from Python, with active arrays
    "a stencil": lambda a: around(a[1]),
    "a stencil into an array": around_into,
    "a generalized ufunc": lambda a: scaled_squares(a, 2.0),
    "with numbers that are active": lambda a: scaled_squares(a, a[:, 0]),
    "into an array": products_into,
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "a stencil")) for n in CALLED])
def test_functions_of_parts_of_arrays(name):
    f = lambda a: np.sum(np.sin(CALLED[name](a)))
    with ampi.Tape() as tape:
        a = tape.watch(anp.array(x))
        y = f(a)
    exact = np.zeros(x.shape)
    for index in np.ndindex(x.shape):
        ahead, behind = x.copy(), x.copy()
        ahead[index] += 1e-6
        behind[index] -= 1e-6
        exact[index] = (f(ahead) - f(behind)) / 2e-6
    assert float(y) == pytest.approx(float(f(x)), rel=1e-14)
    np.testing.assert_allclose(tape.gradient(y, a), exact, rtol=1e-7, atol=1e-8)


@pytest.mark.mpi(max_size=4)  # each rank compiles the functions above
def test_of_what_a_neighbour_sent():
    comm = ampi.COMM_WORLD
    rank, size = comm.Get_rank(), comm.Get_size()
    with ampi.Tape() as tape:
        a = tape.watch(x + rank)
        b = anp.empty_like(a)
        comm.Sendrecv(square(a), (rank + 1) % size, 0, b, (rank - 1) % size, 0)
        y = anp.sum(square(b))
    np.testing.assert_allclose(tape.gradient(y, a), 4 * (x + rank) ** 3, rtol=1e-12)

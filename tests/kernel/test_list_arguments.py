"""Lists among the arguments of kernels: of numbers, of vectors that differ in length, of matrices; typed lists."""

import math
import warnings

import numba
import numpy as np
import pytest
from numba.core.errors import NumbaPendingDeprecationWarning
from numba.typed import Dict, List

import ampi
from ampi import ActivityError, ActivityWarning, KernelError

pytestmark = pytest.mark.filterwarnings("ignore::numba.core.errors.NumbaPendingDeprecationWarning")
warnings.simplefilter("ignore", NumbaPendingDeprecationWarning)
U, V, W = np.array([0.3, 0.5, 0.2]), np.array([0.7, 1.2]), np.array([0.9, 0.4, 0.1, 0.6])
M, N = np.arange(1.0, 7.0).reshape(2, 3), np.cos(np.arange(6.0)).reshape(2, 3)


@ampi.kernel
def of_vectors(l, numbers):
    s = 0.0
    for i in range(len(l)):
        if i == 4:
            break
        for j in range(len(l[i])):
            s += l[i][j] * (i + 1.5) * l[i - 1][0]
    for k, (a, v) in enumerate(zip(l, numbers)):
        s += a[1:].sum() * math.sin(v * k)
    return s * l[-1][-1] + sum(numbers) * numbers[1] * len(numbers)


@ampi.kernel
def of_matrices(l):
    s = 0.0
    for m in l:
        s += m[0, 1] * m.sum()
    return s * l[1][0, 0] * l[0].shape[1]


def check(function, arguments, second=False):
    """Compare gradients with differences of Numba's values, and forward mode (and second order) with gradients."""
    h = 1e-5
    argnums = tuple(range(len(arguments)))
    gradient = ampi.grad(function, argnums=argnums)
    found = gradient(*arguments)
    rng = np.random.default_rng(3)
    d = tuple(rng.standard_normal(np.shape(a)) for a in arguments)
    moved = lambda t: [a + t * b for a, b in zip(arguments, d)]
    slope = (float(function(*moved(h))) - float(function(*moved(-h)))) / (2 * h)
    np.testing.assert_allclose(sum(np.sum(a * b) for a, b in zip(found, d)), slope, rtol=1e-7)
    np.testing.assert_allclose(ampi.jvp(function, tuple(arguments), d)[1], slope, rtol=1e-7)
    if second:
        ends = gradient(*moved(h)), gradient(*moved(-h))
        for a, there, back in zip(ampi.hvp(function, tuple(arguments), d), *ends):
            np.testing.assert_allclose(a, (there - back) / (2 * h), rtol=1e-6, atol=1e-8)


def test_lists_of_vectors_and_of_numbers():
    check(lambda u, v, w: of_vectors([u, v, w * 2.0, u], [v[0], 0.3, w[1] * u[0]]), (U, V, W))


def test_constant_lists():
    """The same programs with other active arguments."""
    check(lambda u: of_vectors([U, u], [0.4, 0.3]), (V,))


def test_lists_of_matrices():
    check(lambda m, n: of_matrices([m, n, m * 2.0]), (M, N), second=True)


def test_typed_lists():
    def loss(u, v, w):
        typed = List()
        for a in (u, v, w * 1.0):
            typed.append(a)
        return of_vectors(typed, List([0.2, 0.4]))

    check(loss, (U, V, W))


@pytest.mark.parametrize(
    "put", [lambda x: List().append(x), lambda x: List().insert(0, x), lambda x: Dict().__setitem__("a", x)]
)
def test_typed_containers_keep_no_derivatives_of_numbers(put):
    with pytest.raises(ActivityError, match=r"a number that carries derivatives in numba\.typed\..*Python's own"):
        ampi.grad(put)(0.7)


@numba.njit
def first_elements(arrays):
    total = 0.0
    for a in arrays:
        total += a[0]
    return total


def test_typed_lists_in_functions_of_numba():
    def loss(x):
        typed = List()
        typed.append(x * 2.0)
        typed.append(U)
        return ampi.numpy.sum(typed[0]) * first_elements(typed)

    with pytest.warns(ActivityWarning, match="numba.njit given a typed list with an active array drops its derivative"):
        gradient = ampi.grad(loss)(V)
    np.testing.assert_allclose(gradient, np.full(len(V), 2.0 * (2.0 * V[0] + U[0])))


def test_without_a_tape():
    expected = of_vectors.py_func([U, V], [0.2, 0.4])
    assert abs(of_vectors([U, V], [0.2, 0.4]) - expected) < 1e-15
    assert abs(of_vectors([ampi.numpy.array(U), V], [0.2, 0.4]) - expected) < 1e-15


# ------------------------------------------------------------------------------------------------ what is refused


@ampi.kernel
def writes(l):
    l[0][0] = 2.0


@ampi.kernel
def replaces(l):
    l[0] = l[1]


@ampi.kernel
def appends(l):
    l.append(l[0])


@ampi.kernel
def joins(l):
    s = 0.0
    for a in l + l:
        s += a[0]
    return s


@ampi.kernel
def returns(l):
    return l[0]


REFUSED = {
    writes: ("'l_part' is read-only", "in a tuple"),
    replaces: ("a list of arrays here", "in a tuple"),
    appends: ("a list of arrays here", "in a tuple"),
    joins: ("a list of arrays here", "in a tuple"),
    returns: ("returns a list among its arguments, or an array of one", "return a copy"),
}


@pytest.mark.parametrize("kernel", REFUSED, ids=lambda k: k.__name__)
def test_what_is_refused(kernel):
    problem, advice = REFUSED[kernel]
    with pytest.raises(KernelError, match=f"(?s)test_list_arguments.py:\\d+:\\d+: .*{problem}.*\n  .*{advice}"):
        kernel.lower_ir([U, V])


@ampi.kernel
def writes_beside(l, a):
    a[0] *= 3.0
    return l[0][0] * l[1][0]


def test_written_arrays_are_in_no_list():
    def loss(u):
        u = u * 1.0
        return writes_beside([u, U], u)

    for differentiated in (ampi.grad(loss), lambda u: ampi.jvp(loss, (u,), (u,))):
        with pytest.raises(ActivityError, match=r"an array in a list overlaps argument 'a'.*in a tuple, or a copy"):
            differentiated(W)


@pytest.mark.parametrize(
    ("made", "problem"),
    [
        (lambda u: [u, u * M], r"arrays of shapes \(3,\), \(2, 3\); pass them in a tuple"),
        (lambda u: [u * M, u * N[:1]], r"arrays of shapes \(2, 3\), \(1, 3\); pass them in a tuple"),
        (lambda u: [u, np.float32([1, 2])], "a list of float64, float32; give all items the same type"),
        (lambda u: [u[0], 1], "a list of float64, int64; give all items the same type"),
        (lambda u: [[u[0], 1.0]], "'l' is a reflected list"),
    ],
)
def test_items_that_differ(made, problem):
    with pytest.raises(KernelError, match=problem):
        ampi.grad(lambda u: of_matrices(made(u)))(U)

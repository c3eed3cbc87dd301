"""Lists converted to arrays: kernels keep all elements, with a tape and without, where Numba loses some."""

import numba
import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi.errors import KernelError

A = np.array([0.3, -0.7, 1.1, 0.9, 0.4])


def two_loops(a):
    found = []
    for v in a:
        found.append(v * v)
    for i in range(2):
        found.append(a[i] * found[1])
    return np.array(found)


def first_before_the_loop(a):
    found = []
    found.append(a[0] * a[1])
    for i in range(1, a.shape[0]):
        found.append(a[i] * a[i - 1])
    return np.array(found)


def read_in_the_loop(a):
    found = []
    for v in a:
        total = v
        for k in range(len(found)):
            total += found[k] * v
        found.append(total)
    return np.array(found)


def one_after_the_loop(a):
    found = []
    for v in a:
        found.append(v * v)
    found.append(a[0] * a[1])
    return np.array(found)


def rows(a):
    found = []
    for i in range(3):
        row = []
        row.append(a[i] * a[i])
        for v in a:
            row.append(v * a[i])
        found.append(np.array(row).sum())
    return np.array(found)


SHORT = [two_loops, first_before_the_loop, read_in_the_loop, one_after_the_loop, rows]


def filled(a):
    found = []
    for v in a:
        found.append(v * v)
    return np.array(found)


def comprehension(a):
    return np.array([v * a[0] for v in a])


def in_an_inner_loop(a):
    found = []
    for i in range(3):
        row = []
        for v in a:
            row.append(v * a[i])
        found.append(np.array(row).sum())
    return np.array(found)


WHOLE = [filled, comprehension, in_an_inner_loop]


@pytest.mark.parametrize("f", [*SHORT, *WHOLE], ids=lambda f: f.__name__)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_all_elements_are_there(f):
    """Values are Python's, without a tape and with one, and derivatives match."""
    kernel = ampi.kernel(f)
    np.testing.assert_array_equal(kernel(A), f(A))
    taken = []

    def loss(a):
        result = kernel(a)
        taken.append(np.array(ampi.numpy.asarray(result)))
        return anp.sum(result * result)

    gradient = ampi.grad(loss)(A)
    np.testing.assert_array_equal(taken[0], f(A))
    differences = [(np.sum(f(A + e) ** 2) - np.sum(f(A - e) ** 2)) / 2e-6 for e in 1e-6 * np.eye(A.size)]
    np.testing.assert_allclose(gradient, differences, rtol=1e-7, atol=1e-8)


@pytest.mark.parametrize("f", SHORT, ids=lambda f: f.__name__)
def test_functions_that_numba_cuts_short_are_refused(f):
    """Results of a Numba function are not ampi's to change: it may have been compiled before."""
    callee = numba.njit(f)

    @ampi.kernel
    def caller(a):
        return callee(a).sum()

    with pytest.raises(KernelError, match=f"'{f.__name__}', as Numba compiles it, converts only some elements"):
        caller(A)


@pytest.mark.parametrize("f", WHOLE, ids=lambda f: f.__name__)
def test_others_are_not(f):
    callee = numba.njit(f)

    @ampi.kernel
    def caller(a):
        return callee(a).sum()

    assert caller(A) == pytest.approx(f(A).sum())


def test_numba_itself_is_unchanged():
    """Code compiled outside kernels is Numba's; this test fails once Numba's bug is fixed."""
    ampi.kernel(two_loops)(A)
    lacking = numba.njit(two_loops)(A)
    assert lacking.size < A.size + 2

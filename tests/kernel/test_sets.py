"""Sets in kernels, and membership tests in lists: values are Numba's, gradients are compared with differences."""

import numba
import numpy as np
import pytest

import ampi
from ampi import KernelError

A = np.array([0.3, -0.8, 1.2, 0.5, 0.7])
INDEX = np.array([4, 0, 2, 2, 0])


def display(a, index):
    s = 0.0
    for i in index:
        if i in {0, 2, 3}:
            s += a[i] * a[i]
        if i not in {2}:
            s *= a[1]
    return s


def named_display(a, index):
    good = {0, 2, 2}  # noqa: B033
    s = 0.0
    for i in index:
        if i in good:
            s += a[i] * a[i]
    return s * len(good)


def of_an_array(a, index):
    allowed = set(index)
    s = 0.0
    for i in range(a.shape[0]):
        if i in allowed:
            s += a[i] ** 3
    return s * len(allowed)


def by_the_name_of_an_argument(a, index):
    index = set(index)
    s = 0.0
    for i in range(a.shape[0]):
        if i in index:
            s += a[i] ** 3
    index.add(7)
    return s * len(index)


def of_a_range(a, index):
    allowed = set(range(2, 5))
    return a[index[0]] ** 2 if index[0] in allowed else a[0]


def that_grows(a, index):
    seen = set()
    s = 0.0
    for i in index:
        if i not in seen:
            seen.add(i)
            s += a[i] * a[i] * len(seen)
    return s


def that_grows_behind_continue(a, index):
    seen = set()
    s = 0.0
    for i in index:
        if i in seen:
            continue
        seen.add(i)
        s = s * a[1] + a[i] * a[i]
    return s + len(seen)


def begun_with_something(a, index):
    seen = {2, 7}
    more = set(index[:2])
    for i in range(3):
        seen.add(i * i)
        more.add(i)
    s = a[0] * a[1]
    if 4 in seen and 9 not in seen:
        s *= a[2]
    return s * len(seen) * len(more)


def begun_anew_in_a_loop(a, index):
    s = 0.0
    for k in range(3):
        seen = set()
        for i in index:
            if i > k:
                seen.add(i)
        s += a[k] ** 2 * len(seen)
    return s


def of_numbers_with_derivatives(a, index):
    seen = set()
    s = 0.0
    for i in index:
        if a[i] in seen:
            s += a[i] ** 2
        seen.add(a[i])
    return s


def combined(a, index):
    allowed = set(index)
    first = index[0]
    seen = {0, first - 3}
    seen.add(2)
    both = allowed.intersection(seen)
    rest = seen - set(index[1:])
    apart = (allowed ^ seen) | {first + 3, first}
    apart.add(9)
    s = 0.0
    for i in range(3):
        if i in both and i not in rest:
            s += a[i] ** 3
        if i in apart:
            s *= a[1]
    return s * len(both) + a[2] * len(apart) + a[4] * len(rest)


def in_a_list(a, index):
    seen = [0]
    s = 0.0
    for i in index:
        if i not in seen:
            seen.append(i)
            s += a[i] * a[i] * seen[-1]
    return s * len(seen)


def in_a_list_that_is_complete(a, index):
    found = []
    for i in index:
        if a[i] > 0.4:
            found.append(i)
    return a[2] ** 2 if 2 in found else a[1]


KERNELS = [
    display,
    named_display,
    of_an_array,
    by_the_name_of_an_argument,
    of_a_range,
    that_grows,
    that_grows_behind_continue,
    begun_with_something,
    begun_anew_in_a_loop,
    of_numbers_with_derivatives,
    combined,
    in_a_list,
    in_a_list_that_is_complete,
]


@pytest.mark.parametrize("f", KERNELS, ids=lambda f: f.__name__)
def test_sets(f):
    kernel = ampi.kernel(f)
    assert kernel(A, INDEX) == pytest.approx(f(A, INDEX), rel=1e-14)
    values = []

    def program(a):
        values.append(kernel(a, INDEX))
        return values[-1]

    gradient = ampi.grad(program)(A)
    assert float(ampi.value(values[0])) == pytest.approx(f(A, INDEX), rel=1e-14)
    differences = [(f(A + e, INDEX) - f(A - e, INDEX)) / 2e-6 for e in 1e-6 * np.eye(A.size)]
    if f is of_numbers_with_derivatives:
        differences = [0.0, 0.0, 2 * A[2], 0.0, 0.0] + 2 * np.array([A[0], 0, 0, 0, 0])
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-8)


def looped_over(a, index):
    s = 0.0
    for i in set(index):
        s = s * 0.5 + a[i]
    return s


def looped_over_by_name(a, index):
    seen = set(index)
    s = 0.0
    for i in seen:
        s = s * 0.5 + a[i]
    return s


def taken_away(a, index):
    seen = {1, 2}
    seen.discard(1)
    return a[0] * (1 in seen)


def compared(a, index):
    return a[0] * ({1, 2} <= set(index))


@pytest.mark.parametrize("f", [looped_over, looped_over_by_name, taken_away, compared], ids=lambda f: f.__name__)
def test_what_else_sets_do_is_refused(f):
    assert np.isfinite(numba.njit(f)(A, INDEX))
    with pytest.raises(KernelError, match=r"(?s)set.*(tuple|looked in)"):
        ampi.kernel(f)(A, INDEX)

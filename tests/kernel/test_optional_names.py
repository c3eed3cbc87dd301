"""Names that are None on some paths: what is computed, what is raised, and what is refused."""

import numba
import numpy as np
import pytest

import ampi
from ampi import KernelError

X = np.array([0.7, 0.2, 1.3, 0.4])


@ampi.kernel
def smallest_above(a, s, low=None):
    best = None
    for x in a:
        if low is None or x < low:
            low = x
        best = x if best is None else max(best, x * s)
    return best - low * s


@ampi.kernel
def previous(a, s):
    last = before = None
    t = 0.0
    for i in range(len(a)):
        before = last
        last = a * s if i % 2 == 0 else a
        if before is not None:
            t += before[i] * last[0]
    return t


@ampi.kernel
def begun_late(a, s):
    found = a[1] if s > 5 else None
    while found is None or found < 1.0:
        found = 0.5 + (s if found is None else found * 1.5)
    return found * a[0]


@ampi.kernel
def limited(a, s, most=None):
    if not most:
        most = 0.8 * s
        if a[0] > 0.5:
            most = 0.7 * s * a[1]
    t = 0.0
    for x in a:
        t += min(x * x, most)
    return t * most


@pytest.mark.parametrize("kernel", [smallest_above, previous, begun_late, limited], ids=lambda k: k.__name__)
def test_values_and_gradients(kernel):
    plain = kernel.py_func
    value, gradients = ampi.value_and_grad(kernel, argnums=(0, 1))(X, 0.9)
    np.testing.assert_allclose(value, plain(X, 0.9), rtol=1e-14)
    np.testing.assert_allclose(value, numba.njit(plain)(X, 0.9), rtol=1e-14)
    h = 1e-6
    expected = [(plain(X + h * e, 0.9) - plain(X - h * e, 0.9)) / (2 * h) for e in np.eye(4)]
    np.testing.assert_allclose(gradients[0], expected, atol=1e-8)
    np.testing.assert_allclose(gradients[1], (plain(X, 0.9 + h) - plain(X, 0.9 - h)) / (2 * h), atol=1e-8)


@ampi.kernel
def scaled_if(a, s):
    factor = None
    if s > 0.5:
        factor = a[0]
    return factor * s + abs(factor)


def test_computing_with_none_is_a_type_error():
    assert float(ampi.grad(scaled_if, argnums=1)(X, 0.9)) == 0.7
    with pytest.raises(TypeError, match="None"):  # Numba itself
        scaled_if(X, 0.3)
    with pytest.raises(TypeError, match="None"):
        ampi.grad(scaled_if)(X, 0.3)


@ampi.kernel
def number_or_none(a, s):
    found = None
    for x in a:
        if x > s:
            found = x * s
    return found


def test_a_name_that_may_be_none_is_returned():
    assert number_or_none(X, 2.0) is None
    assert number_or_none(X, 1.0) == 1.3
    np.testing.assert_array_equal(ampi.grad(number_or_none)(X, 1.0), [0, 0, 1.0, 0])


@numba.njit
def callee(a, w):
    return a[0] if w is None else w


@ampi.kernel
def passed_on(a, s):
    w = None
    if s > 0.5:
        w = s
    return callee(a, w)


@ampi.kernel
def in_a_tuple(a, s):
    w = None
    if s > 0.5:
        w = s
    return a[0], w


@ampi.kernel
def as_a_truth(a, s):
    w = None
    if s > 0.5:
        w = s
    return a[0] if w else s


@pytest.mark.parametrize("kernel", [passed_on, in_a_tuple, as_a_truth], ids=lambda k: k.__name__)
def test_where_none_would_be_handed_on(kernel):
    with pytest.raises(KernelError, match=r"(?s)'w' may be None here.*test whether it is None before"):
        kernel.lower_ir(X, 0.9)

"""Indices of lists and tuples that are out of range, and ranges with a step of zero: an error in the kernel, in its
gradient and in its tangents."""

import functools

import numba
import numpy
import pytest

import ampi

X = numpy.arange(1.0, 6.0)


def appended(x, i):
    items = []
    for k in range(3):
        items.append(x[k] * x[k])
    return items[i]


def while_it_grows(x, i):
    items = [x[0]]
    for k in range(2):
        items.append(x[k] * items[i if k else 0])
    return items[0] * items[-1]


def display(x, i):
    items = [x[0], x[1] * x[1], x[2]]
    return items[i]


def pair(x, i):
    items = (x[0], x[1] * x[1], x[2])
    return items[i]


def comprehension(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    return items[i]


def stored(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    items[i] = 2.0 * x[0]
    return items[0] * items[1]


def added_to(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    items[i] += 2.0 * x[0]
    return items[0] * items[1]


def popped(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    return items.pop(i) * items[0]


def deleted(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    del items[i]
    return items[0] * items[1]


def of_tuples(x, i):
    items = [(x[k], x[k] * x[k]) for k in range(x.shape[0] - 2)]
    first, second = items[i]
    return first * second


def in_a_condition(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    return x[0] * 2.0 if items[i] > 2.0 else x[1]


def in_a_loop(x, i):
    items = [x[k] * x[k] for k in range(x.shape[0] - 2)]
    s = 0.0
    for k in range(-3, i + 1):
        s += items[k] * x[0]
    return s


KERNELS = [appended, while_it_grows, display, pair, comprehension, stored, added_to, popped, deleted, of_tuples]
KERNELS += [in_a_condition, in_a_loop]


@functools.cache
def compiled(function):
    return numba.njit(function), ampi.kernel(function)


def ways(function, x, *rest):
    """What a call in Numba, a call of the kernel, and its derivatives give, or the class of error that they raise."""
    by_numba, kernel = compiled(function)
    of_x = lambda a: kernel(a, *rest)
    calls = [
        lambda: by_numba(x, *rest),
        lambda: of_x(x),
        lambda: float(ampi.value_and_grad(of_x)(x)[0]),
        lambda: float(ampi.jvp(of_x, (x,), (x,))[0]),
        lambda: ampi.hvp(of_x, (x,), (x,)) and function(x, *rest),
    ]
    results = []
    for call in calls:
        try:
            results.append(call())
        except (IndexError, ValueError) as error:
            results.append(type(error))
    return results


@pytest.mark.parametrize("index", [0, 2, -1, -3, 3, -4, 1000])
@pytest.mark.parametrize("function", KERNELS)
def test_indices_out_of_range_raise_as_in_numba(function, index):
    expected, *others = ways(function, X, index)
    if function is not while_it_grows:  # it has fewer items
        assert (expected is IndexError) == (index in (3, -4, 1000)) or function is in_a_loop
    assert others == [expected if isinstance(expected, type) else pytest.approx(expected)] * 4


def first_of_none(x, n):
    items = [x[k] * x[k] for k in range(n)]
    return items[0]


def last_of_none(x, n):
    items = [x[0]]
    items.pop()
    for k in range(n):
        items.append(x[k])
    return items[-1]


@pytest.mark.parametrize("function", [first_of_none, last_of_none])
def test_constant_indices_of_empty_lists(function):
    assert ways(function, X, 0) == [IndexError] * 5
    assert ways(function, X, 1) == [1.0] * 5


def of_argument(x, i, numbers):
    return x[0] * numbers[i]


def of_arrays(x, i, arrays):
    return x[0] * arrays[i][0]


@pytest.mark.parametrize("index", [1, -2, 2, -3])
def test_lists_among_the_arguments(index):
    for function, items in ((of_argument, [2.0, 3.0]), (of_arrays, [numpy.ones(2), numpy.full(3, 2.0)])):
        lists = numba.typed.List(items)
        expected, *others = ways(function, X, index, lists)
        assert others == [expected] * 4
        assert (expected is IndexError) == (index in (2, -3))


def guarded(x, i):
    items = [x[k] * x[k] for k in range(3)]
    s = 0.0
    if i < len(items) and items[i] > 0.5:
        s += items[i]
    k = 0
    while k < len(items) and items[k] < 100.0:
        s += items[k] * (items[k + 1] if k + 1 < len(items) else 1.0)
        k += 1
    return s


def test_indices_behind_a_condition_are_checked_only_where_it_holds():
    for index in (1, 3):
        assert ways(guarded, X, index) == [pytest.approx(guarded(X, index))] * 5


def all_of_it(x, w):
    items = [x[k] * x[k] for k in range(x.shape[0])]
    s = 0.0
    for k in range(len(items)):
        s += items[k] * w[k]
    for k in range(1, len(items)):
        s += items[k] * items[k - 1] * (0.5, 2.0)[k % 2]
    for k in range(len(items) - 1, -1, -1):
        s += items[k]
    return s


def test_indices_that_are_known_to_be_in_range_are_not_checked():
    _, kernel = compiled(all_of_it)
    assert ways(all_of_it, X, X) == [pytest.approx(all_of_it(X, X))] * 5
    assert "raise" not in kernel.tangent_source(X, X)


def strided(x, step):
    s = 0.0
    for k in range(0, 5, step):
        s += x[k] * x[k]
    return s


def strided_inside(x, step):
    s = 0.0
    for i in range(5):
        for k in range(i, -1, step):
            s += x[k] * x[i]
    return s


@pytest.mark.parametrize("function", [strided, strided_inside])
def test_ranges_with_a_step_of_zero(function):
    assert ways(function, X, 0) == [ValueError] * 5
    for step in (2, -2):
        assert ways(function, X, step) == [pytest.approx(function(X, step))] * 5


def grows_in_two_loops(x):
    items = [x[0], x[1]]
    k = 0
    while items[-1] < 30.0 and k < 25:
        k += 1
        items.append(0.5 * items[-1] + x[2])
    while items[-1] > 1.0 and k < 60:
        k += 1
        items.append(0.9 * items[-1])
    return items[20] * items[-1]


def test_a_list_that_grows_in_two_loops():
    """The second loop continues with the items of the first, of which there are more than room was made for."""
    value, gradient = ampi.value_and_grad(ampi.kernel(grows_in_two_loops))(X)
    assert value == pytest.approx(grows_in_two_loops(X), rel=1e-13)
    step = 1e-200
    expected = numpy.array([grows_in_two_loops_complex(X + 1j * step * e) for e in numpy.eye(5)]) / step
    numpy.testing.assert_allclose(gradient, expected, rtol=1e-12)
    _, tangent = ampi.jvp(ampi.kernel(grows_in_two_loops), (X,), (X,))
    numpy.testing.assert_allclose(tangent, expected @ X, rtol=1e-12)


def grows_in_two_loops_complex(x):
    """The imaginary part of the function for complex numbers, whose comparisons look at the real parts."""

    class Number(complex):
        def __lt__(self, other):
            return self.real < other

        def __gt__(self, other):
            return self.real > other

        def __add__(self, other):
            return Number(complex(self) + other)

        def __mul__(self, other):
            return Number(complex(self) * other)

        __radd__, __rmul__ = __add__, __mul__

    return complex(grows_in_two_loops([Number(v) for v in x])).imag

"""Errors of the parser name the location and the remedy."""

import math

import numpy as np
import parsed
import pytest
from numba import types
from parsed import carried, flat, forever, reduced_and_read

from ampi.errors import KernelError
from ampi.kernel.frontend.parse import parse
from ampi.kernel.normalise.lower import lower

CORNERS = np.array([[0, 1], [1, 2], [2, 0]])


# ------------------------------------------------------------------------------------------------ errors


def mask_of_two_axes(x):
    return x[None, :][x[None, :] > 0.0]


def step_of_zero(x):
    x[::0] = 0.0


def parts_by_name(x):
    return abs(complex(real=x[0], imag=x[1]))


def counted_by_name(x):
    for i, v in enumerate(x, start=1):
        x[i - 1] = v


def two_shapes(x):
    return np.ones(3) + np.ones(2)


def unknown_function(x):
    return np.median(x[0])


def plain_python(x):
    return flat(x)


def mixed_results(x):
    if x[0] > 0:
        return 1.0
    return 1.0, 2.0


def recursion(x):
    return forever(x[0])


def undefined(x):
    y = z + x[0]  # noqa: F821
    z = y
    return z


def complex_into_real(x):
    x[0] = 1j


def read_only(x):
    CORNERS[0, 0] = 1


def float_index(x):
    return x[x[0]]


def string(x):
    return "a"


def with_block(x):
    with open("f"):
        pass


@pytest.mark.parametrize(
    ("function", "arguments", "problem", "advice"),
    [
        (mask_of_two_axes, 1, "mask", "np.where"),
        (step_of_zero, 1, "step", ""),
        (parts_by_name, 1, "complex with keywords (real, imag)", "complex(real, imag)"),
        (counted_by_name, 1, "enumerate with keywords (start)", "enumerate(x, start)"),
        (two_shapes, 1, "sizes 3 and 2", ""),
        (unknown_function, 1, "numpy.median", "loops"),
        (plain_python, 1, "plain Python function", "@ampi.kernel"),
        (mixed_results, 1, "different structure", "same"),
        (recursion, 1, "calls itself on every path", "without a call"),
        (undefined, 1, "used before", "assign"),
        (complex_into_real, 1, "complex128 cannot be stored", "convert"),
        (read_only, 1, "read-only", "copy"),
        (float_index, 1, "index must be an integer", "integers"),
        (string, 1, "returns 'a'", "scalars"),
        (with_block, 1, "with", "one kernel before it"),
        (carried, 1, "carried from one iteration", "reduction"),
        (reduced_and_read, 1, "read there too", "after the loop"),
    ],
)
def test_errors_name_the_place_and_the_remedy(function, arguments, problem, advice):
    array = types.float64[::1]
    given = {1: (array,), 3: (array, array, types.int64)}[arguments]
    with pytest.raises(KernelError) as raised:
        lower(parse(function, given))
    text = str(raised.value)
    place = text.split(":")
    (path,) = [file for file in (__file__, parsed.__file__) if file in place[0]]
    with open(path) as file:
        line = file.readlines()[int(place[1]) - 1].strip()
    assert line in text
    assert problem in text
    assert advice in text


def root_of_math(x):
    return math.cbrt(x[0])


@pytest.mark.skipif(not hasattr(math, "cbrt"), reason="math.cbrt is new in Python 3.11")
def test_what_numba_does_not_support_is_named():
    with pytest.raises(KernelError, match=r"Numba has no math\.cbrt\(float64\)[^$]*np\.cbrt"):
        parse(root_of_math, (types.float64[::1],))

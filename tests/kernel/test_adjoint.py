"""Adjoints and tangents of small kernels against differences and against each other."""

import functools
import math

import numpy as np
import pytest
from kernel_cases import CASES
from kernel_checks import Check, activity_patterns, make_arguments

PATTERNS = [
    pytest.param(name, active, id=f"{name}-{'.'.join(active)}")
    for name in CASES
    for active in activity_patterns(CASES[name].function, make_arguments(name))
]


@pytest.mark.parametrize("name, active", PATTERNS)
def test_double(name, active):
    Check(CASES[name].function, make_arguments(name), active).compare(1e-12)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].complex_too])
def test_complex(name):
    arguments = make_arguments(name, np.complex128)
    active = activity_patterns(CASES[name].function, arguments)[0]
    Check(CASES[name].function, arguments, active).compare(1e-12)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if k % 3 else []) for k, name in enumerate(CASES)]
)
def test_compiled(name):
    """For every second kernel, the others being marked slow. As plain Python all of them run."""
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[0]
    Check(CASES[name].function, arguments, active, jit=True).compare(1e-12)


LAYOUTS = {
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T.copy().T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["axpy", "two_dimensions", "rows", "matrix_product", "recurrence_in_memory"])
def test_layouts(name, layout):
    arguments = [LAYOUTS[layout](a) if isinstance(a, np.ndarray) else a for a in make_arguments(name)]
    active = activity_patterns(CASES[name].function, arguments)[0]
    Check(CASES[name].function, arguments, active, jit=True).compare(1e-12)


@pytest.mark.parametrize("size", [0, 1, 2, 3])
@pytest.mark.parametrize(
    "name", ["axpy", "guarded", "in_place", "stencil", "recurrence_in_memory", "recurrence_backwards"]
)
def test_tiny_arrays(name, size):
    arguments = [a[:size].copy() if isinstance(a, np.ndarray) else a for a in make_arguments(name)]
    compiled(name).at(arguments).compare(1e-12)


@functools.cache
def compiled(name):
    arguments = make_arguments(name)
    return Check(CASES[name].function, arguments, activity_patterns(CASES[name].function, arguments)[0], jit=True)


def roots_and_kinks(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += math.sqrt(x[i]) * x[i] + abs(x[i]) + math.hypot(x[i], 0.0) + max(x[i], 0.0)
    return s


def guarded_poles(x):
    s = 0.0
    for i in range(x.shape[0]):
        s += math.log(x[i]) if x[i] > 0.0 else 0.0
        if x[i] != 0.0:
            s += 1.0 / x[i]
    return s


@pytest.mark.parametrize("function, derivative", [(roots_and_kinks, 3.0), (guarded_poles, 0.0)])
def test_no_nan_at_kinks_and_guarded_poles(function, derivative):
    check = Check(function, [np.zeros(3)], ("x",), jit=True)
    np.testing.assert_array_equal(check.adjoints({"x": np.zeros(3)}, [1.0])["x"], derivative)

"""NumPy's and Python's functions in kernels: values as Numba compiles them, derivatives against differences of that."""

import warnings

import function_cases
import numba
import numpy as np
import pytest
from kernel_cases import Check, copies, float_arguments, kernel_ir, load

CASES = function_cases.CASES
COMPILED = {}
NUMBAS_OWN = ("partitions",)  # whose values depend on how Numba does it


def compiled(function):
    """The function as Numba compiles it, with the results in tuples as results of their own."""
    if function not in COMPILED:
        COMPILED[function] = numba.njit(function, error_model="numpy")
    return COMPILED[function]


TYPES = (np.float64, np.float32, np.complex128, np.complex64)
CROSSING = [
    pytest.param(name, dtype, id=f"{name}-{np.dtype(dtype)}")
    for name, found in CASES.items()
    for dtype in TYPES[: 4 if found.complex_too else 2]
    if name not in function_cases.DOUBLE or np.finfo(dtype).bits == 64
]


def flat(values):
    for v in values if isinstance(values, (tuple, list)) else (values,):
        yield from flat(v) if isinstance(v, (tuple, list)) else (v,)


def digits(value):
    return np.finfo(value.dtype).eps if value.dtype.kind in "fc" else 0


@pytest.mark.parametrize("name, dtype", CROSSING)
def test_values(name, dtype):
    """As Numba's, and of the same types, but for the last digits."""
    function, arguments = CASES[name].function, function_cases.make_arguments(name, dtype)
    mine, theirs = copies(arguments), copies(arguments)
    expected = compiled(function)(*theirs)
    with np.errstate(all="ignore"):
        found = load(kernel_ir(function, arguments), jit=name in NUMBAS_OWN)(*mine)
    pairs = [*zip(flat(found), flat(() if expected is None else expected), strict=True), *zip(mine, theirs)]
    for number, (a, b) in enumerate(pairs):
        a, b = np.asarray(a), np.asarray(b)
        if isinstance(b, np.ndarray) and b.ndim:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), number
        eps = 40 * max(digits(b), np.finfo(dtype).eps if b.dtype.kind in "fc" else 0)
        np.testing.assert_allclose(a, b, rtol=eps, atol=eps, err_msg=f"result {number}")


class Compiled(Check):
    """A check whose differences are those of what Numba compiles."""

    def __init__(self, function, arguments, active, **how):
        super().__init__(function, arguments, active, **how)
        self.function = lambda *values: tuple(flat(() if (r := compiled(function)(*values)) is None else r))

    def differences(self, direction, h=1e-3):
        """What is no number before stays so, and its change is what it was."""
        found = super().differences(direction, h)
        for k, n in enumerate(self.adjoint.shadows):
            missing = np.isnan(self.value[n]) & np.isnan(found[k])
            found[k] = np.where(missing, direction.get(n, 0.0), found[k])
        return found


@pytest.mark.parametrize("name", CASES)
def test_derivatives(name):
    for dtype in (np.float64, np.complex128)[: 2 if CASES[name].complex_too else 1]:
        function, arguments = CASES[name].function, function_cases.make_arguments(name, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            active = tuple(float_arguments(function, arguments))
            check = Compiled(function, arguments, active, jit=name in NUMBAS_OWN)
            check.compare(1e-11)

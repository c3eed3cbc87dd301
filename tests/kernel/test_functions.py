"""NumPy's and Python's functions in kernels: values equal Numba's, derivatives are compared with differences of these.

Numba's results are stored (see ``numbas``); a sample is compared with functions compiled now.
"""

import inspect
import itertools
import re
import warnings

import function_cases
import numba
import numpy as np
import pytest
from kernel_cases import random_array
from kernel_checks import Check, copies, float_arguments, kernel_ir, load
from numba.experimental import jitclass
from numbas import agree, anew, flat, is_old
from written import written

import ampi
from ampi import KernelError
from ampi.kernel.frontend.arrays.functions import FUNCTIONS
from ampi.kernel.frontend.parse import parse

CASES = function_cases.CASES
NUMBAS_OWN = ("partitions", "rows_in_parts")  # values depend on Numba's implementation
TYPES = (np.float64, np.float32, np.complex128, np.complex64)
CROSSING = {
    f"{name}-{np.dtype(dtype)}": (name, dtype)
    for name, found in CASES.items()
    for dtype in TYPES[: 4 if found.complex_too else 2]
    if name not in function_cases.DOUBLE or np.finfo(dtype).bits == 64
}
LONG = set("correlations covariances other_places partitions percentiles pieces rows_in_parts sets norms".split())
"""Cases that Numba compiles for half a minute."""
UNSTORED = {i for i, (name, dtype) in CROSSING.items() if name in LONG and np.finfo(dtype).bits < 64}
SAMPLE = {next(name for name in CROSSING if CROSSING[name][0] not in LONG)}


def digits(value):
    return np.finfo(value.dtype).eps if value.dtype.kind in "fc" else 0


def require_values(numbas, name, dtype):
    function, arguments = CASES[name].function, function_cases.make_arguments(name, dtype)
    mine, theirs = copies(arguments), copies(arguments)
    expected = numbas(function)(*theirs)
    with np.errstate(all="ignore"):
        found = load(kernel_ir(function, arguments), jit=name in NUMBAS_OWN)(*mine)
    pairs = [*zip(flat(found), expected, strict=True), *zip(mine, theirs)]
    for number, (a, b) in enumerate(pairs):
        a, b = np.asarray(a), np.asarray(b)
        if isinstance(b, np.ndarray) and b.ndim:
            assert (a.dtype, a.shape) == (b.dtype, b.shape), number
        eps = 40 * max(digits(b), np.finfo(dtype).eps if b.dtype.kind in "fc" else 0)
        np.testing.assert_allclose(a, b, rtol=eps, atol=eps, err_msg=f"result {number}")


def crossing(by_default):
    return [pytest.param(*of, id=i, marks=[] if by_default(i) else pytest.mark.slow) for i, of in CROSSING.items()]


@pytest.mark.parametrize("name, dtype", crossing(lambda i: i not in UNSTORED))
def test_values(name, dtype):
    """Values equal Numba's up to rounding, with the same types."""
    agree(lambda numbas: require_values(numbas, name, dtype))


@pytest.mark.parametrize("name, dtype", crossing(lambda i: i in SAMPLE))
def test_values_of_today(name, dtype):
    """Values equal those of functions compiled now: for the first case; the others are marked slow."""
    require_values(anew, name, dtype)


@pytest.mark.parametrize("name", CASES)
def test_stored_values_are_those_of_the_present_kernel(name):
    assert not is_old(CASES[name].function), "run scripts/test -n 1 --regenerate tests/kernel/test_functions.py"


class Compared(Check):
    """A check with differences of the kernel's generated loops, or of the function compiled by Numba."""

    def __init__(self, function, arguments, active, compiled, **how):
        super().__init__(function, arguments, active, **how)
        self.function = anew(function) if compiled else load(kernel_ir(function, arguments))

    def differences(self, direction, h=1e-3):
        """Differences of values; a missing value (nan) stays nan, and its tangent is the direction."""
        found = super().differences(direction, h)
        for k, n in enumerate(self.tangent.shadows):
            missing = np.isnan(self.value[n]) & np.isnan(found[k])
            found[k] = np.where(missing, direction.get(n, 0.0), found[k])
        return found


def require_derivatives(name, compiled):
    for dtype in (np.float64, np.complex128)[: 2 if CASES[name].complex_too else 1]:
        function, arguments = CASES[name].function, function_cases.make_arguments(name, dtype)
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore", RuntimeWarning)
            active = tuple(float_arguments(function, arguments))
            own = name in NUMBAS_OWN
            Compared(function, arguments, active, compiled or own, jit=own).compare(1e-11)


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (k % 3 > 1)) for k, n in enumerate(CASES)])
def test_derivatives(name):
    """Compared with differences of the generated loops, whose values are Numba's."""
    require_derivatives(name, compiled=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_derivatives_of_today(name):
    """Compared with differences of the function compiled by Numba."""
    require_derivatives(name, compiled=True)


# ------------------------------------------------------------------------------------------- while recording


@ampi.kernel
def by_name(a, mode, dtype):
    b = np.zeros(len(a), dtype=dtype)
    if mode == "double":
        b[:] = 2.0 * a
    elif mode == "square":
        b[:] = a * a
    return np.nanmean(b) * len(a)


@pytest.mark.parametrize("mode, slope", [("double", lambda a: 2 + 0 * a), ("square", lambda a: 2 * a)])
def test_strings_and_dtypes_are_arguments(mode, slope):
    a = np.array([0.5, 1.5, 2.0])
    for dtype in (np.float64, np.dtype(np.float32)):
        with ampi.Tape() as tape:
            x = tape.watch(a)
            y = by_name(x, mode, dtype)
        np.testing.assert_allclose(ampi.value(y), by_name(a, mode, dtype), rtol=1e-6)
        np.testing.assert_allclose(tape.gradient(y, x), slope(a), rtol=1e-6)


@ampi.kernel
def digits_kept(a):
    return round(a[0] * 1.23456, 2) * a[1] + np.fmin(a[0], a[2])


def test_digits_are_kept_while_recording():
    a = np.array([1.0, 2.0, np.nan])
    with ampi.Tape() as tape:
        x = tape.watch(a)
        y = digits_kept(x)
    assert ampi.value(y) == digits_kept(a) == 1.23 * 2.0 + 1.0
    np.testing.assert_array_equal(tape.gradient(y, x), [1.0, 1.23, 0.0])


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("name", ["convolve", "correlate"])
def test_convolutions_and_correlations_of_all_lengths(name, mode):
    """Values are those of NumPy, whichever argument is longer; so are tangents, as both functions are bilinear."""
    function, rng = getattr(np, name), np.random.default_rng(3)
    text = f"def kernel(a, v, out):\n    out[:] = np.{name}(a, v, '{mode}')\n"
    kernel = written(text, f"{name} {mode}", np=np)["kernel"]
    checks = {}
    for dtypes in [(float, float), (complex, complex), (float, complex), (complex, float)]:
        for m, n in itertools.product(range(1, 7), repeat=2):
            (a, v), (a_dot, v_dot) = (
                [random_array(rng, np.dtype(t), (size,), -1.0, 1.0) for t, size in zip(dtypes, (m, n))] for _ in "xd"
            )
            expected = function(a, v, mode)
            arguments = [a, v, np.zeros_like(expected)]
            if dtypes not in checks:
                checks[dtypes] = Check(kernel, arguments, ("a", "v"))
                loops = load(kernel_ir(kernel, arguments))
            check = checks[dtypes].at(arguments)
            loops(*arguments)
            np.testing.assert_allclose(arguments[2], expected, atol=1e-14)
            tangents = dict(zip(check.tangent.shadows, check.tangents({"a": a_dot, "v": v_dot})))
            tangent = tangents["out"]
            np.testing.assert_allclose(tangent, function(a_dot, v, mode) + function(a, v_dot, mode), atol=1e-14)
            check.compare(1e-12, against_differences=False, values=True)


# ------------------------------------------------------------------------------------------- names and refusals

NUMBAS_NAMES = {np.arange, np.argsort, np.bincount}


def test_parameters_have_numpys_names():
    """So that kernels accept the same keywords as NumPy."""
    for function, handler in FUNCTIONS.items():
        try:
            parameters = inspect.signature(function).parameters
        except ValueError:
            continue
        if any(p.kind == p.VAR_POSITIONAL for p in parameters.values()):  # another name of a function: np.random.sample
            continue
        theirs = list(parameters)
        mine = [p.name for p in inspect.signature(handler).parameters.values() if p.kind == p.POSITIONAL_OR_KEYWORD]
        mine = [name for name in mine if name not in ("builder", "node")]
        if function not in NUMBAS_NAMES:
            assert mine == theirs[: len(mine)], function


@jitclass([("v", numba.float64)])
class Held:
    def __init__(self, v):
        self.v = v


def of_a_transform(x):
    return np.fft.fft(x)[0].real


def of_any_eigenvalues(x):
    return np.linalg.eig(np.outer(x, x))


def generated(x):
    yield x[0]


def drawn(x):
    return np.random.hypergeometric(3, 4, 5) * x[0]  # noqa: NPY002


def of_a_dictionary(x):
    d = {1: x[0]}
    return d[1]


def of_a_typed_dictionary(x):
    return numba.typed.Dict()


def of_a_class(x):
    return Held(x[0]).v


def tried(x):
    try:
        return x[0]
    except Exception:
        return 0.0


def in_python(x):
    with numba.objmode(y="f8"):
        y = x[0]
    return y


def grown_while_it_is_read(x):
    values = [1.0]
    for value in values:
        if value < 10.0:
            values.append(value + x[0])
    return values[0]


def under_another_name(x):
    values = [v * 1.0 for v in x]
    others = values
    others.append(x[1])
    return values[-1]


def as_a_whole(x):
    values = [x[0]]
    others = values
    values.insert(0, x[1])
    return others[0]


def list_of_arrays(x):
    values = []
    for k in range(3):
        values.append(x * k)
    return values[1][0]


def list_of_tuples_as_a_tuple(x):
    values = []
    for k in range(2):
        values.append((x[k], k))
    first, last = values
    return first[0] * last[0]


def list_of_tuples_of_another_length(x):
    values = [(x[0], 1)]
    for k in range(2):
        values.append((x[k], k, k))
    return values[1][0]


def popped_behind_its_last(x):
    values = [x[0], x[1]]
    return values[-1] * values.pop()


def added_lists(x):
    values = [v * v for v in x]
    both = values + x
    return both[0]


def lengthened_under_two_names(x):
    values = [v for v in x]
    same = values
    same += [2.0]
    return len(values) * x[0]


def other_row_in_a_list(x):
    a = x.reshape(2, 2) * 1.0
    rows = list(a)
    rows[0] = rows[1]
    return a[0, 0] * x[1]


def array_or_none(x):
    if x[0] > 0.5:
        return x * 2.0
    return None


def digits_of_a_ufunc(x):
    return np.rint(x[0], 3)


@pytest.mark.parametrize(
    "function, problem, advice",
    [
        (of_a_transform, "numpy.fft.fft is not known", "ampi.numpy.fft"),
        (of_any_eigenvalues, "numpy.linalg.eig is not known", "outside of the kernel"),
        (generated, "yield is not supported", "array"),
        (drawn, "numpy.random.hypergeometric is not known", "draw the numbers outside"),
        (of_a_dictionary, "a dict is not supported", "named tuple"),
        (of_a_typed_dictionary, "Dict is not known", "named tuple"),
        (of_a_class, "the jitclass .*Held", "named tuple"),
        (tried, "try is not supported", "with if"),
        (in_python, "with is not supported", "one kernel before it"),
        (grown_while_it_is_read, "a loop over the list 'values', which changes it", "loop over a copy"),
        (under_another_name, r"'.append\(\)' of a list", "under the name"),
        (as_a_whole, "the list 'values' as a whole", "np.array"),
        (list_of_arrays, "an array in a list that grows", "rows of a matrix"),
        (list_of_tuples_as_a_tuple, "a list of tuples here", "loops over it"),
        (list_of_tuples_of_another_length, "items of different kinds in one list", "two lists"),
        (popped_behind_its_last, r"'values.pop\(\)' inside an expression", "a line of its own"),
        (added_lists, "a list plus something else", "add lists"),
        (lengthened_under_two_names, "arithmetic of a list", "np.array"),
        (other_row_in_a_list, "'rows' is read-only", "copy"),
        (array_or_none, "returns None on one path and an array or a tuple on another", "the same structure everywhere"),
        (digits_of_a_ufunc, "last argument of numpy.rint must be an output array", "name"),
    ],
)
def test_refusals_name_what_is_refused_and_what_serves_instead(function, problem, advice):
    with pytest.raises(KernelError, match=problem) as raised:
        parse(function, (numba.typeof(np.ones(4)),))
    assert re.search(advice, str(raised.value)), str(raised.value)

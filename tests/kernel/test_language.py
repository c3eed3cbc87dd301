"""The forms of Python in kernels: each computes what plain Python does, and has the right derivatives."""

import numba
import numpy as np
import pytest
from kernel_checks import Check, copies, float_arguments, kernel_ir, load
from language_cases import CASES, x
from numba import types
from reference_cases import larger

import ampi
from ampi import KernelError
from ampi.kernel import prange
from ampi.kernel.pipeline import as_loops, parsed


def flat(value):
    for v in value if isinstance(value, tuple) else (value,):
        if isinstance(v, tuple):
            yield from flat(v)
        else:
            yield v


def check(name, active):
    function, arguments = CASES[name]
    checked = Check(function, copies(arguments), active, code=kernel_ir(function, arguments))
    checked.function = lambda *a: tuple(flat(function(*a)))
    return checked


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning", "ignore::numba.NumbaTypeSafetyWarning")
def test_derivatives(name):
    function, arguments = CASES[name]
    check(name, float_arguments(function, arguments)).compare(1e-11)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning", "ignore::numba.NumbaTypeSafetyWarning")
def test_one_argument_alone(name):
    """The first of a kernel's arguments, another one of the next kernel's."""
    names = float_arguments(*CASES[name])
    check(name, [names[list(CASES).index(name) % len(names)]]).compare(1e-11)


@pytest.mark.parametrize("name", CASES)
def test_the_program_is_the_function(name):
    """The IR written out again computes what Python does."""
    function, arguments = CASES[name]
    mine, theirs = copies(arguments), copies(arguments)
    found = load(kernel_ir(function, arguments))(*mine)
    expected = function(*theirs)
    for a, b in zip((*flat(found), *mine), (*flat(expected), *theirs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-14)


# ------------------------------------------------------------------------------------------------ under a tape


@pytest.mark.parametrize("steps", [2, 3])
@pytest.mark.parametrize("name", ["swapped_local_buffers", "returned_early"])
def test_the_array_that_is_returned(name, steps):
    """It is an argument or a local array, depending on the number of steps."""
    function, arguments = CASES[name]
    compiled = ampi.kernel(function)
    direction = np.array([0.3, -0.2, 0.5, 0.1])
    with ampi.Tape() as tape:
        a = tape.watch(arguments[0])
        others = [ampi.numpy.array(b) for b in arguments[1:-1]]
        result = compiled(a, *others, steps)
    seed = np.array([1.0, 2.0, -1.0, 0.5])
    found = tape.gradient(result, a, seed=seed) @ direction

    def moved(t):
        return function(arguments[0] + t * direction, *copies(arguments[1:-1]), steps) @ seed

    h = 1e-4
    expected = (8 * (moved(h) - moved(-h)) - (moved(2 * h) - moved(-2 * h))) / (12 * h)
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize("name", ["stepped", "leapfrog"])
def test_arrays_of_a_loop_are_saved_once(name):
    """Arrays replaced in each step are saved for the reverse pass, but only once."""
    function, arguments = CASES[name]
    text = ampi.kernel(function, without="split").adjoint_source(*arguments)
    assert text.count("_saved = ") + text.count("_saved_1 = ") <= 2


@pytest.mark.parametrize("name", ["functions_inside", "zipped", "tuples_are_spread", "refused_values", "extended"])
def test_compiled(name):
    function, arguments = CASES[name]
    compiled = ampi.kernel(function)
    np.testing.assert_allclose(compiled(*arguments), function(*arguments), rtol=1e-14)
    h = 1e-5
    with ampi.Tape() as tape:
        a = tape.watch(arguments[0])
        result = compiled(a, *arguments[1:])
    found = tape.gradient(result, a)
    for k in range(len(a)):
        e = h * np.eye(len(a))[k]
        expected = (function(x + e, *arguments[1:]) - function(x - e, *arguments[1:])) / (2 * h)
        np.testing.assert_allclose(found[k], expected, rtol=1e-8, atol=1e-8)


@ampi.kernel
def powers(a, p=2.0, *, shift=0.0, largest=None):
    s = 0.0
    for v in a:
        s += (v + shift) ** p
    if largest is not None:
        s = min(s, largest)
    return s


@pytest.mark.parametrize("keywords", [{}, {"p": 3.0}, {"shift": 0.5, "p": 1.5}, {"largest": 1e3}, {"largest": 1e-3}])
def test_defaults_and_keywords(keywords):
    expected = powers.py_func(x, **keywords)
    np.testing.assert_allclose(powers(x, **keywords), expected, rtol=1e-14)
    with ampi.Tape() as tape:
        a = tape.watch(x)
        result = powers(a=a, **keywords)
    p, shift = keywords.get("p", 2.0), keywords.get("shift", 0.0)
    derivative = 0.0 if keywords.get("largest") == 1e-3 else p * (x + shift) ** (p - 1)
    np.testing.assert_allclose(tape.gradient(result, a), derivative * np.ones(4), rtol=1e-14)


def test_exceptions_are_raised_while_recording():
    function, _ = CASES["refused_values"]
    compiled = ampi.kernel(function)
    with ampi.Tape() as tape:
        a = tape.watch(np.array([1.0, -1.0, 1.0]))
        with pytest.raises(ValueError, match="negative"):
            compiled(a)
        a[0] = -1.0
        with pytest.raises(AssertionError, match="is not positive"):
            compiled(a)
        b = a * 2.0
    np.testing.assert_array_equal(tape.gradient(b, a, seed=np.ones(3)), [0.0, 2.0, 2.0])  # a[0] was overwritten


@ampi.kernel
def smaller_every_time(a, n):
    for _ in range(n):
        a = a[1:] * 2.0
    return a[0]


def test_a_size_that_changes_in_a_loop_is_refused():
    with ampi.Tape() as tape:
        a = tape.watch(x)
        result = smaller_every_time(a, 2)
    assert float(ampi.value(result)) == 4 * x[2]
    with pytest.raises(ValueError, match=r"'a' changes its size in a loop.*the largest size"):
        tape.gradient(result, a)


# ------------------------------------------------------------------------------------------------ dtypes, kinks, poles


@ampi.kernel
def norm_and_more(a, n):
    s = a[0] - a[0]
    for i in range(len(a)):
        s += a[i] * a[i]
    return s, len(a) * n, n > 2, (a[0] * n, s * 2)


@pytest.mark.parametrize("integer", [np.int8, np.int32, np.uint16, np.int64])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_results_have_the_dtype_of_the_kernel(dtype, integer):
    values = np.array([0.5, 1.25, -2.0]).astype(dtype)
    n = integer(3)
    compiled = numba.njit(norm_and_more.py_func)
    plain = compiled(values, n)
    numbers = compiled.nopython_signatures[0].return_type[3]
    assert [type(v) for v in flat(norm_and_more(values, n))] == [type(v) for v in flat(plain)]
    with ampi.Tape() as tape:
        a = tape.watch(values)
        s, count, large, (scaled, double) = norm_and_more(a, n)
    assert (count, large) == (9, True) and type(count) is int and type(large) is bool
    assert isinstance(s, ampi.ndarray) and s.dtype == dtype and s.shape == ()
    for value, expected, gradient in ((s, plain[0], 2 * values), (double, plain[3][1], 4 * values)):
        np.testing.assert_allclose(np.asarray(value), expected, rtol=1e-6)
        found = tape.gradient(value, a)
        assert found.dtype == dtype
        np.testing.assert_allclose(found, np.conj(gradient), rtol=1e-6)
    assert [scaled.dtype, double.dtype] == [numba.np.numpy_support.as_dtype(t) for t in numbers]


@ampi.kernel
def poles(v, which):
    if which == 0:
        return np.sqrt(v)
    if which == 1:
        return 1.0 / v
    if which == 2:
        return np.log(v)
    if which == 3:
        return v**0.5
    if which == 4:
        return np.cbrt(v)
    if which == 5:
        return v**-2.0
    return np.arccos(1.0 - v)


inf = np.inf
POLES = [(0.0, inf), (inf, -inf), (-inf, inf), (0.0, inf), (0.0, inf), (inf, -inf), (0.0, inf)]


@pytest.mark.parametrize("which, expected", list(enumerate(POLES)))
def test_poles_give_what_ieee_gives(which, expected):
    with ampi.Tape() as tape:
        v = tape.watch(0.0)
        result = poles(v, which)
        nothing = result * 0.0 if np.isfinite(result) else None
    assert (float(ampi.value(result)), float(tape.gradient(result, v))) == expected
    if nothing is not None:  # an unused value gives no nan
        assert tape.gradient(nothing, v) == 0.0


@ampi.kernel(error_model="python")
def root_and_quotient(v, w):
    return np.sqrt(v) + v / w


def test_only_the_kernel_itself_raises_on_division_by_zero():
    with ampi.Tape() as tape:
        v = tape.watch(0.0)
        result = root_and_quotient(v, 2.0)
        with pytest.raises(ZeroDivisionError):
            root_and_quotient(v, 0.0)
    assert tape.gradient(result, v) == inf


@ampi.kernel
def kinks(a, b):
    high = max(a[0], b[0])
    low = min(a[1], b[1])
    top = np.maximum(a[2], b[2])
    side = a[3] if a[3] >= b[3] else 5 * b[3]
    return high + 2 * low + 3 * top + 4 * side + abs(a[0] - b[0]) + np.sign(a[1]) + np.floor(a[2])


def test_ties_go_to_the_first_and_kinks_to_the_right():
    with ampi.Tape() as tape:
        a, b = tape.watch(x), tape.watch(x)
        result = kinks(a, b)
    a_bar, b_bar = tape.gradient(result, [a, b])
    np.testing.assert_array_equal(a_bar, [1.0 + 1.0, 2.0, 3.0, 4.0])
    np.testing.assert_array_equal(b_bar, [-1.0, 0.0, 0.0, 0.0])


LIMIT = 1.0


def test_globals_of_functions_inside_count(monkeypatch):
    """Compiled code is looked up by everything it depends on."""

    def make():
        def limited(a):
            def low(v):
                return min(v, LIMIT)

            return low(a[0]) + a[1]

        return ampi.kernel(limited)

    assert make()(np.array([2.0, 1.0])) == 2.0
    monkeypatch.setitem(globals(), "LIMIT", 1.5)
    assert make()(np.array([2.0, 1.0])) == 2.5


# ------------------------------------------------------------------------------------------------ what is refused


def changed_under_two_names(a, n):
    u = a * 2.0
    v = u
    for k in range(n):
        u = u * a
        v = u
        u[0] += 1.0
    return v[0] * u[1]


def an_argument_is_changed_first(a, n):
    for k in range(n):
        a[0] = 2.0
        a = a * a
    return a[0]


def of_a_size_known_inside(a, n):
    for k in range(1, n):
        w = a[:k] * 2.0
    return w[0]


def of_a_size_that_follows(a, n):
    m = n
    for k in range(n):
        w = a[:m] * 2.0
        m = 2
    return w[0]


def out_of_a_parallel_loop(a, n):
    for k in prange(n):
        w = np.zeros(2)
        w[0] = a[k]
    return w[0]


def swapped_in_parallel(a, b):
    u, v = a, b
    for i in prange(len(a)):
        u[i] = v[i]
        u, v = v, u
    return u[0]


def calls_itself_inside(a):
    def fall(v):
        return fall(v / 2)

    return fall(a[0])


def passed_inside(a):
    def half(v):
        return v / 2 + a[1]

    return larger(half, a)


def keywords_inside(a):
    def power(v, k=2):
        return v**k

    return power(a[0], k=3)


@pytest.mark.parametrize(
    "function, count, problem, advice",
    [
        (changed_under_two_names, 1, "may be one array here, which is changed", "u.copy()"),
        (an_argument_is_changed_first, 1, "may be the argument 'a' here", "a.copy()"),
        (of_a_size_known_inside, 1, "the size of 'w' is not known before the loop", "allocate it before"),
        (of_a_size_that_follows, 1, "the size of 'w' is not known before the loop", "allocate it before"),
        (out_of_a_parallel_loop, 1, "prange", "use range"),
        (swapped_in_parallel, 2, "prange", "use range"),
        (calls_itself_inside, 1, "calls itself on every path", "without a call"),
        (keywords_inside, 1, "keywords", "by position"),
        (passed_inside, 1, "is a nested function", "pass it 'a' as an argument"),
    ],
)
def test_refused(function, count, problem, advice):
    arguments = (types.float64[::1],) * count
    if "n" in function.__code__.co_varnames:
        arguments = (*arguments, types.int64)
    with pytest.raises(KernelError) as raised:
        as_loops(parsed(function, arguments))
    text = str(raised.value)
    assert text.startswith(f"{__file__}:")
    assert problem in text and advice in text


@ampi.kernel
def of_several(a, *args):
    s = a
    for v in args:
        s = s * v + 1.0
    return s * args[0]


@ampi.kernel
def passed_on(c, a, *rest):
    return of_several(c, *rest) + a[0] * of_several(a[1], c, 2.0)


def test_any_number_of_arguments_from_python():
    """Compare values with Python's, the gradient and a tangent with differences."""
    np.testing.assert_allclose(of_several(2.0, 3.0, 4.0), of_several.py_func(2.0, 3.0, 4.0))
    a, h = np.array([2.0, 3.0]), 1e-5

    def primal(t):
        return passed_on.py_func(1.5 + t, a, 1.5 + t, 3.0)

    with ampi.Tape() as tape:
        c = tape.watch(np.array(1.5))
        result = passed_on(c, a, c * 1.0, 3.0)
    assert float(result) == primal(0.0)
    expected = (primal(h) - primal(-h)) / (2 * h)
    np.testing.assert_allclose(tape.gradient(result, c), expected, rtol=1e-8)
    _, tangent = ampi.jvp(lambda c: passed_on(c, a, c * 1.0, 3.0), (np.array(1.5),), (np.array(1.0),))
    np.testing.assert_allclose(tangent, expected, rtol=1e-8)


def product(a):
    return np.asarray(a[0] * a[1] * a[1])


def copied(a):
    return product_of(a).copy(), a[2]


product_of = numba.njit(product)


@pytest.mark.parametrize("function", [product, copied])
def test_results_that_are_arrays_without_axes(function):
    """Not numbers; `numpy.cov` of a vector is such an array."""
    compiled = ampi.kernel(function)

    def value(a):
        result = compiled(a)
        return ampi.numpy.sum(result[0] if isinstance(result, tuple) else result)

    a, direction = np.array([2.0, 3.0, 5.0]), np.array([1.0, -2.0, 7.0])
    gradient = np.array([9.0, 12.0, 0.0])
    np.testing.assert_array_equal(ampi.grad(value)(a), gradient)
    assert ampi.jvp(value, a, direction)[1] == gradient @ direction
    np.testing.assert_array_equal(ampi.hvp(value, a, direction), [6 * -2.0, 6 * 1.0 + 4 * -2.0, 0.0])


def rounded_ranges(a, n, m, step, above):
    s = 0.0
    for i in range(n):
        s += a[i] * a[i] * (i + 1)
    for i in range(0.9, m, step):
        s *= a[i] + 0.1 * i
        for k, j in enumerate(range(a[i] > above)):
            s += a[k] * a[i] + j
    for i in range(-n):
        s += 1e9 * a[i]
    return s


@pytest.mark.parametrize("n", [3.7, np.float32(2.0), 0.4, True])
@pytest.mark.parametrize("step", [1.0, 2.9, 1])
def test_ends_of_ranges_are_cut_off_as_numba_does(n, step):
    a = np.array([0.7, 0.8, 1.3, 0.4])
    kernel, exact = ampi.kernel(rounded_ranges), numba.njit(rounded_ranges)
    value, gradient = ampi.value_and_grad(lambda a: kernel(a, n, 3.2, step, 0.75))(a)
    assert value == pytest.approx(exact(a, n, 3.2, step, 0.75), rel=1e-14)
    moved = [exact(a + h, n, 3.2, step, 0.75) - exact(a - h, n, 3.2, step, 0.75) for h in 1e-6 * np.eye(4)]
    np.testing.assert_allclose(gradient, np.array(moved) / 2e-6, rtol=1e-8, atol=1e-8)


def test_threads_need_integers():
    @ampi.kernel(parallel=True)
    def total(a, n):
        s = 0.0
        for i in prange(n):
            s += a[i]
        return s

    with pytest.raises(KernelError, match=r"(?s)range of a float64.*use integers"):
        ampi.grad(lambda a: total(a, 2.5))(np.ones(3))


def groups(a, lengths):
    s, begin = 0.0, 0.0
    for k in range(len(lengths)):
        end = begin + lengths[k]
        s += (k + 1) * (a[begin:end] * a[begin:end]).sum()
        begin = end
    return s + a[: a[0] > 0.5].sum()


def test_bounds_of_slices_are_cut_off_to_integers():
    """As Numba does; Python refuses numbers that are not integers."""
    a, lengths = np.linspace(0.6, 1.6, 6), np.array([2.5, 1.2, 2.0])
    kernel = ampi.kernel(groups)
    np.testing.assert_allclose(kernel(a, lengths), numba.njit(groups)(a, lengths), rtol=1e-14)
    expected = 2 * a * [1, 1, 2, 3, 3, 0] + [1, 0, 0, 0, 0, 0]
    np.testing.assert_allclose(ampi.grad(kernel)(a, lengths), expected, rtol=1e-14)

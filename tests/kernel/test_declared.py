"""Signatures and ``locals=`` of kernels work as for Numba's functions, and derivatives respect them."""

import itertools

import numba
import numpy as np
import pytest
from numba import types

import ampi

f4, f8, c16, i8 = numba.float32, numba.float64, numba.complex128, numba.int64


def mixed(a, n):
    s = 0.0
    for i in range(a.shape[0]):
        t = a[i] * a[i] / 3.0
        s += t * n
    return s + n / 2


def pair(a, n):
    t = np.sin(a[0]) * n
    return t, t * a[1]


SIGNATURES = [
    "f8(f8[:], f8)",
    "f4(f8[::1], i8)",
    "f4(f4[::1], f4)",
    ["f4(f4[:], f4)", "f8(f8[:], f8)"],
    [f8(f8[:], i8), f4(f4[:], i8)],
    "(f8[:], f4)",
    (f8[:], i8),
    c16(f8[:], c16),
]
LOCALS = [{}, {"s": f4}, {"t": f4, "i": types.uint16}, {"s": f8, "t": f4}]
ARGUMENTS = [
    (np.array([0.7, 1.3, 0.4]), 3.7),
    (np.array([0.7, 1.3, 0.4]), 2),
    (np.array([0.7, 1.3, 0.4], np.float32), np.float32(0.3)),
    (np.arange(6.0), True),
]


def outcome(function, arguments):
    try:
        return function(*arguments)
    except TypeError:
        return TypeError


PAIRS = [(None, 1), (None, 2), (0, 0), (0, 1), (1, 2), (2, 3), (3, 1), (4, 2), (5, 0), (6, 3), (7, 0)]


@pytest.mark.parametrize("case", PAIRS, ids=str)
def test_values_are_numbas(case):
    signature, locals = None if case[0] is None else SIGNATURES[case[0]], LOCALS[case[1]]
    made = numba.njit(signature, locals=locals, error_model="numpy")(mixed)
    kernel = ampi.kernel(signature, locals=locals)(mixed)
    for (array, number), step, recording in itertools.product(ARGUMENTS, (1, 2), (False, True)):
        expected = outcome(made, (array[::step], number))
        if recording:
            with ampi.Tape() as tape:
                found = outcome(kernel, (tape.watch(array)[::step], number))
        else:
            found = outcome(kernel, (array[::step], number))
        if expected is TypeError:
            assert found is TypeError
        else:
            np.testing.assert_array_equal(np.asarray(ampi.value(found)), expected)


@pytest.mark.parametrize("signature", [s for s in SIGNATURES[::2] if "complex" not in str(s)], ids=str)
def test_callers_convert(signature):
    """Both kernels and functions compiled by Numba convert arguments of the kernel they call."""
    kernel = ampi.kernel(signature)(mixed)
    numbas = numba.njit(signature, error_model="numpy")(mixed)

    for called, reference in itertools.product((kernel, numbas), (numbas,)):

        def calling(a, called=called):
            return called(a, 3.7) * a[0]

        def calling_numbas(a, called=reference):
            return called(a, 3.7) * a[0]

        array = np.array([0.7, 1.3, 0.4], np.float32 if "float32, 1d" in str(numbas.signatures[0][0]) else np.float64)
        expected = numba.njit(calling_numbas)(array)
        with ampi.Tape() as tape:
            x = tape.watch(array)
            y = ampi.kernel(calling)(x)
        assert ampi.value(y) == expected
        factor = numbas.overloads[numbas.nopython_signatures[-1].args].signature.args[1]
        n = int(3.7) if isinstance(factor, types.Integer) else 3.7
        size = 1 if array.dtype == np.float64 else 1e7
        s = np.sum(array.astype(float) ** 2) / 3 * n + n / 2
        exact = 2 * array / 3 * n * array[0] + np.array([s, 0, 0])
        np.testing.assert_allclose(tape.gradient(y, x), exact, rtol=max(1e-7, size * 1e-13))


@pytest.mark.parametrize("signature", [None, "UniTuple(f4, 2)(f8[:], f8)", "Tuple((f8, f4))(f8[:], f4)"])
def test_tuples(signature):
    kernel, made = ampi.kernel(signature)(pair), numba.njit(signature)(pair)
    array = np.array([0.7, 1.3])
    with ampi.Tape() as tape:
        x = tape.watch(array)
        y = kernel(x, 0.1)
    assert tuple(map(float, map(ampi.value, y))) == made(array, 0.1)
    gradient = tape.gradient(y[1], x)
    np.testing.assert_allclose(gradient, 0.1 * np.array([np.cos(0.7) * 1.3, np.sin(0.7)]), rtol=1e-6)


def test_active_numbers_are_converted():
    @ampi.kernel("f8(f4, f8)")
    def product(a, b):
        return a * b

    with ampi.Tape() as tape:
        x = tape.watch(np.array([0.1, 0.3]))
        y = product(x[0], x[1])
    assert ampi.value(y) == float(np.float32(0.1)) * 0.3
    np.testing.assert_allclose(tape.gradient(y, x), [0.3, 0.1], rtol=1e-7)


def test_errors_name_the_signatures():
    kernel = ampi.kernel(["f8(f8[:], f8)", "f4(f4[:], f4)"])(mixed)
    with pytest.raises(TypeError, match=r"mixed\(\): no signature .*int64, 1d.*float64, 1d.*; .*float32, 1d"):
        kernel(np.arange(3), 1.0)
    with pytest.raises(TypeError, match=r"mixed\(\)"):
        kernel(np.ones((2, 2)), 1.0)

    @ampi.kernel
    def caller(a):
        return kernel(a > 1.0, 1.0)

    with ampi.Tape() as tape, pytest.raises(ampi.KernelError, match="convert the arguments before the call"):
        caller(tape.watch(np.ones(3)))


def scaled_or_not(x, scale, power):
    y = x * x
    if scale is not None:
        y = y * scale
    if power is None:
        return y
    return y + x * power


def test_arguments_that_may_be_none():
    """They are None in some calls and numbers in others, in a kernel and in a function that a kernel calls."""
    array, number, whole = types.float64[::1], types.optional(types.float64), types.optional(types.int64)
    signature = array(array, number, whole)
    kernel, plain = ampi.kernel(signature)(scaled_or_not), numba.njit(signature)(scaled_or_not)
    both = ampi.kernel(lambda x, s: plain(x, s, None) * plain(x, None, 2))
    x = np.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(kernel(x, 2.5, None), plain(x, 2.5, None))
    np.testing.assert_array_equal(kernel(x, None, 2), plain(x, None, 2))
    apart = lambda x, s: ampi.numpy.sum(kernel(x, s, None) * kernel(x, None, 2))
    together = lambda x, s: ampi.numpy.sum(both(x, s))
    for f in (apart, together):
        found = ampi.grad(f, argnums=(0, 1))(x, 2.5)
        np.testing.assert_allclose(found[0], 2.5 * (4 * x**3 + 6 * x**2), rtol=1e-13)
        np.testing.assert_allclose(found[1], np.sum(x**2 * (x**2 + 2 * x)), rtol=1e-13)


@numba.njit("f8(f8, f8)")
def distance(x, y):
    return abs(x - y) * x


@numba.njit("f8(f8, f8)")
def product(x, y):
    return x * y


def of_pairs(x, y, of_two):
    result = np.empty((x.size, y.size))
    for i in range(x.size):
        for j in range(y.size):
            result[i, j] = of_two(x[i], y[j])
    return result


def test_functions_of_a_type():
    """Any function of the type is accepted, and the one that is passed is differentiated."""
    of_two = types.FunctionType(types.float64(types.float64, types.float64))
    kernel = ampi.kernel(types.float64[:, ::1](types.float64[::1], types.float64[::1], of_two))(of_pairs)
    x, y = np.array([1.0, 2.0, 3.0]), np.array([4.0, 0.5])
    for function in (distance, product):
        np.testing.assert_array_equal(kernel(x, y, function), of_pairs(x, y, function))
        found = ampi.grad(lambda x, f=function: ampi.numpy.sum(kernel(x, y, f)))(x)
        sign = np.sign(x[:, None] - y)
        expected = np.sum(np.abs(x[:, None] - y) + sign * x[:, None] if function is distance else y + 0 * sign, axis=1)
        np.testing.assert_allclose(found, expected, rtol=1e-14)


def normal_numbers(x, n, seed):
    np.random.seed(seed)  # noqa: NPY002
    if x < 1.0:
        return x * np.random.normal(0.0, 1.0, n)  # noqa: NPY002
    return x + np.random.normal(0.0, x, n)  # noqa: NPY002


@pytest.mark.parametrize("x", [0.5, 1.5])
def test_arrays_of_a_declared_unsigned_size(x):
    kernel = ampi.kernel("f8[:](f8, u8, u8)")(normal_numbers)
    loss = lambda x: ampi.numpy.sum(kernel(x, 3, 7) * np.arange(1.0, 4.0))
    np.testing.assert_allclose(ampi.grad(loss)(x), (loss(x + 1e-5) - loss(x - 1e-5)) / 2e-5, rtol=1e-8)


WRAPPED = [
    {},
    {"error_model": "numpy"},
    {"error_model": "python", "fastmath": True},
    {"parallel": True},
    {"boundscheck": True},
]


@pytest.mark.parametrize("options", WRAPPED, ids=str)
@pytest.mark.parametrize("declared", [None, {"t": types.int32}, {"t": f4, "s": f8}], ids=str)
@pytest.mark.filterwarnings("ignore::numba.NumbaPerformanceWarning")  # a loop that is not parallel
def test_what_numba_compiles_stays_what_it_is(declared, options):
    """A kernel made from a Numba function keeps its options and its variable types."""

    def quotients(a, b):
        s = 0.0
        for i in range(len(a)):
            t = a[i] * 7.0
            s += t / b[i]
        return s

    compiled = numba.njit(locals=declared or {}, **options)(quotients)
    a, b = np.array([0.7, 1.9, 2.6]), np.array([0.3, 0.9, -1.7])
    kernel = ampi.kernel(compiled)
    assert kernel(a, b) == compiled(a, b)
    value, gradient = ampi.value_and_grad(kernel, argnums=(0, 1))(a, b)
    assert value == compiled(a, b)
    t = {None: np.float64, types.int32: np.int32, f4: np.float32}[(declared or {}).get("t")](a * 7.0)
    np.testing.assert_allclose(gradient[1], -t / b**2, rtol=1e-6)
    np.testing.assert_allclose(gradient[0], 0.0 if t.dtype == np.int32 else 7.0 / b, rtol=1e-6)
    b[1] = 0.0
    if options.get("error_model") == "numpy":
        assert kernel(a, b) == compiled(a, b) == np.inf
    else:
        for f in (compiled, kernel):
            with pytest.raises(ZeroDivisionError):
                f(a, b)


def test_declarations_of_the_kernel_take_precedence():
    compiled = numba.njit(f8(f8, i8))(lambda x, n: x / 3 + n)
    assert ampi.kernel(compiled)(0.1, 2) == compiled(0.1, 2)
    with pytest.raises(TypeError, match=r"signature|argument"):
        ampi.kernel(compiled)(0.1, 2.5 + 1j)
    assert ampi.kernel(compiled, error_model="numpy").options["error_model"] == "numpy"
    assert ampi.kernel(ampi.kernel(compiled, fastmath=True)).options == {"error_model": "python", "fastmath": True}
    halved = ampi.kernel(f4(f4, i8))(compiled)
    assert halved(0.1, 2) == np.float32(np.float32(0.1) / 3 + 2)

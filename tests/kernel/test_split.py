"""Kernels whose own run saves what the adjoint needs, so that the adjoint need not repeat the forward run."""

import collections
import contextlib
import functools
import math

import numba
import numpy
import pytest

import ampi
import ampi.numpy
from ampi.kernel import repeated_calls, special
from ampi.kernel.__main__ import called
from ampi.kernel.observations import watched

RNG = numpy.random.default_rng(11)
X = RNG.uniform(0.5, 1.5, 12)


def upwind(x, new):
    for _ in range(5):
        for i in range(1, x.shape[0] - 1):
            slope = x[i] - x[i - 1] if x[i].real > 1.0 else x[i + 1] - x[i]
            new[i] = x[i] - 0.1 * x[i] * slope
        for i in range(1, x.shape[0] - 1):
            x[i] = new[i]


def oscillator(x, new):
    a, b = x[0], x[1]
    for _ in range(20):
        a, b = a + 0.05 * b, b + 0.05 * ((1.0 - a * a) * b - a)
    new[0] = a
    new[1] = b * x[2]


def with_a_result(x, new):
    s = x[0]
    for i in range(1, x.shape[0]):
        s = s * x[i] / (1.0 + s * s)
        if i % 3 == 0:
            new[i] = s
    return s * s


def until(x, new):
    s, n = x[0], 0
    while s.real < 40.0:
        s = s * 1.5 + x[n % x.shape[0]] * s
        n += 1
    new[0] = s
    new[1] = n * x[1]


def triangle(x, new):
    s = x[0]
    for i in range(x.shape[0]):
        for j in range(i):
            s = s * x[j] / (1.0 + 0.1 * s * s) + 0.2
            x[j] = x[j] * (1.0 + 0.01 * s)
        new[i] = s


def of_its_own(x, new):
    w = numpy.empty(x.shape[0], x.dtype)
    for i in range(x.shape[0]):
        w[i] = x[i] * x[i]
    for _ in range(3):
        for i in range(1, x.shape[0]):
            w[i] = w[i] / (1.0 + w[i - 1] * w[i - 1]) + x[i]
        x[0] = x[0] / (1.0 + w[2] * w[2])
    for i in range(x.shape[0]):
        new[i] = w[i] * x[0]


def in_branches(x, new):
    for i in range(1, x.shape[0]):
        x[i] = x[i] * (1.0 + 0.1 * x[i - 1])
    if x[0].real > x[1].real:
        s = x[2]
        for i in range(x.shape[0]):
            s = s * x[i] / (1.0 + s * s)
        new[0] = s
    if x[0].real <= x[1].real:
        t = x[3] * 2.0
        for i in range(x.shape[0]):
            t = t * x[i] / (2.0 + t * t)
        new[1] = t


def table(x, new):
    for k in range(2):
        for i in range(x.shape[0] - 1):
            x[i] = x[i] * x[i + 1] + TABLE[i % 4] * new[i]
            new[i] = x[i] * TABLE[k]


def returning(x, new):
    y = numpy.empty(x.shape[0], x.dtype)
    s = x[0]
    for i in range(x.shape[0]):
        s = s * x[i] / (1.0 + s * s)
        y[i] = s * x[i]
        new[i] = 2.0 * s * s
    return y


def returning_several(x, new):
    y = numpy.zeros(x.shape[0], x.dtype)
    s = x[0]
    for i in range(x.shape[0] - 1):
        s = s * x[i + 1] / (1.0 + s * s)
        y[i] = s * x[i]
        x[i] = s * new[i]
    return y, s


def of_matrices(x, new):
    n = len(x) // 3
    a = x.copy().reshape((len(x) // n, n))
    b = numpy.dot(a, a.T)
    c = numpy.dot(b, a)
    for i in range(a.shape[0]):
        for j in range(n):
            new[n * i + j] = c[i, j] * 0.05 * x[j]
    return numpy.dot(c.T, b).ravel() * 0.01


TABLE = numpy.array([0.5, 0.25, -1.0, 2.0])
KERNELS = {
    f.__name__: f
    for f in (upwind, oscillator, with_a_result, until, triangle, of_its_own, in_branches, table, returning,
              returning_several, of_matrices)
}  # fmt: skip


def program(np, call, x):
    """Two calls; results of the first one are overwritten between and after them."""
    y, new = x * 1.0, np.ones(x.shape, x.dtype)
    first = added(call(y, new))
    z = new * 0.5 + y + 0.25
    z += first
    y *= 0.5
    y += 0.75 + 0.1 * x
    total = added(call(y, z)) + z * y
    y[...] = 7.0
    z[:] = 3.0
    return total


def added(result):
    """The result of a call, as one array or number."""
    return sum(result) if isinstance(result, tuple) else 0.0 if result is None else result


def complex_step(function, x, seed):
    found = numpy.zeros(x.shape)
    for k in range(x.size):
        moved = x.astype(complex)
        moved[k] += 1e-30j
        found[k] = numpy.sum(seed * program(numpy, function, moved)).imag / 1e-30
    return found


def runs_forward(kernel):
    """Return whether the kernel's own runs have saved values."""
    return [contract.split is not None for contract in kernel.contracts.values()]


@pytest.mark.parametrize("without", ["", pytest.param("split", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", KERNELS)
def test_gradients(name, without):
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(KERNELS[name], without=without)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = program(ampi.numpy, kernel, x)
    assert any(runs_forward(kernel)) == (not without)
    assert (tape.kept_bytes > 0) == (not without)
    seed = rng.standard_normal(y.shape)
    expected = complex_step(KERNELS[name], X, seed)
    for _ in range(2):  # a sweep changes nothing, including saved values
        numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), expected, rtol=1e-10, atol=1e-12)
    numpy.testing.assert_array_equal(y, program(numpy, numba.njit(KERNELS[name], error_model="numpy"), X))


@pytest.mark.parametrize("name", [name for name in KERNELS if name != "of_matrices"])  # Numba compiles its np.dot
def test_as_plain_python(name, monkeypatch):
    monkeypatch.setattr(numba.core.config, "DISABLE_JIT", True)
    for name_there, value in list(vars(special).items()):  # plain functions if the setting had come before the import
        if hasattr(value, "py_func"):
            monkeypatch.setattr(special, name_there, value.py_func)
    kernel = ampi.kernel(KERNELS[name])
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = program(ampi.numpy, kernel, x)
    expected = complex_step(KERNELS[name], X, numpy.ones(X.shape))
    gradient = tape.gradient(y, x, seed=numpy.ones(X.shape))
    numpy.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)


def test_a_full_tape_runs_forward_once_more(monkeypatch):
    """From the first call for which there is no room, whether or not the arrays have been seen before."""
    rng = numpy.random.default_rng(11)
    kernel, gradients, kept = ampi.kernel(upwind), [], []
    seed = rng.standard_normal(X.shape)
    for room in (0, 1, repeated_calls.MAX_SAVED):
        monkeypatch.setattr(repeated_calls, "MAX_SAVED", room)
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y, new = x * 1.0, ampi.numpy.ones(X.shape)
            for _ in range(3):
                kernel(y, new)
        gradients.append(tape.gradient(y, x, seed=seed))
        kept.append(tape.kept_bytes)
    once = kept[1]
    assert kept == [0, once, 3 * once] and once > 0
    for found in gradients[1:]:
        numpy.testing.assert_allclose(found, gradients[0], rtol=1e-14)


class TooLarge(ValueError):
    pass


def refusing(x, y):
    s = x[0]
    for i in range(x.shape[0]):
        y[0] = s
        x[i] = 2.0 * x[i]
        if s > 1e3:
            raise ValueError("too large", 3)
        s = s * x[i] + s * s
    return s


def refusing_without_writing(x):
    s = x[0]
    for i in range(x.shape[0]):
        if s > 1e3:
            raise TooLarge("at", i)
        s = s * x[i] + s * s
    return s


def refusing_after_writing(x, y):
    s = x[0]
    for i in range(x.shape[0]):
        y[0] = s
        if s > 1e3:
            raise TooLarge("at", i)
        s = s * x[i] + s * s
    return s


@pytest.mark.parametrize(
    ("function", "kept"), [(refusing, True), (refusing_without_writing, True), (refusing_after_writing, False)]
)
def test_exceptions_are_those_of_the_kernel(function, kept):
    """With the same arguments, after the same writes; the kernel runs itself where its exception is no constant and it
    cannot be run once more, since it writes to its arguments."""
    count = function.__code__.co_argcount
    expected = (numpy.array([0.5, 0.25, 1.5]), numpy.zeros(2))[:count]
    value = numba.njit(function)(*expected)
    large = (X + 1.0, numpy.zeros(2))[:count]
    with pytest.raises(ValueError) as plain:
        numba.njit(function)(*large)
    kernel = ampi.kernel(function)
    for _ in range(3):  # a repeated call is recorded by other code
        with ampi.Tape() as tape:
            x, given = tape.watch(X), (ampi.numpy.array(X + 1.0), ampi.numpy.zeros(2))[:count]
            given[0][...] = x + 1.0
            with pytest.raises(ValueError) as caught:
                kernel(*given)
            small = (x[:3] * 0.0 + numpy.array([0.5, 0.25, 1.5]), ampi.numpy.zeros(2))[:count]
            assert kernel(*small) == value
        assert (caught.type, caught.value.args, caught.value.__context__) == (plain.type, plain.value.args, None)
        for a, b in zip((*given, *small), (*large, *expected), strict=True):
            numpy.testing.assert_array_equal(a, b)
    assert set(runs_forward(kernel)) == {kept}


def refusing_in_copies(x, y):
    s = x[0]
    for k in range(3):  # written out
        if x[k] > 2.0:
            raise ValueError("too large")
        if x[k] > 1.5:
            y[0] = 3.0
    for i in range(x.shape[0]):
        s = s * x[i] + s * s
    return s


@pytest.mark.parametrize("place", [0, 1, 2])
def test_exceptions_of_loops_that_are_written_out(place):
    kernel = ampi.kernel(refusing_in_copies, error_model="numpy")
    x = X.copy() * 0.5
    for value, mode in [(value, mode) for value in (1.75, 2.5) for mode in ("reverse", "forward")]:
        x[place] = value
        y, fails = ampi.numpy.zeros(1), pytest.raises(ValueError, match="too large")
        with fails if value > 2.0 else contextlib.nullcontext():
            if mode == "reverse":
                with ampi.Tape() as tape:
                    kernel(tape.watch(x), y)
            else:
                ampi.jvp(functools.partial(kernel, y=y), (x,), (x,))
        assert y[0] == (3.0 if value < 2.0 else 0.0)
    assert [c.split is not None for c in kernel.contracts.values() if hasattr(c, "split")] == [True]


def printing(x):
    s = x[0]
    for i in range(x.shape[0]):
        s = s * x[i] / (1.0 + s * s)
    print("at the end", x.shape[0])
    return s


def printing_in_a_callee(x):
    return called_that_prints(x) * x[0]


called_that_prints = numba.njit(printing)


@pytest.mark.parametrize("function", [printing, printing_in_a_callee])
def test_what_a_kernel_prints_is_printed_once(function, capfd):
    kernel = ampi.kernel(function, error_model="numpy")
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = kernel(x)
    assert capfd.readouterr().out == f"at the end {X.size}\n"
    assert runs_forward(kernel) == [False]
    tape.gradient(y, x)
    ampi.jvp(kernel, (X,), (X,))
    assert capfd.readouterr().out == f"at the end {X.size}\n"


def softmax(x):
    """Sizes that depend on the arguments' are compared in the course of the run."""
    tmp = numpy.exp(x - numpy.reshape(x[:, 0].copy(), (x.shape[0], 1)))
    for _ in range(3):
        tmp = tmp / numpy.reshape(numpy.sum(tmp, axis=1), (x.shape[0], 1)) + x * tmp
    return tmp


def test_checks_of_sizes_in_the_course_of_a_run():
    kernel = ampi.kernel(softmax)
    with ampi.Tape() as tape:
        x = tape.watch(X.reshape(4, 3))
        y = kernel(x)
    assert runs_forward(kernel) == [True]
    expected = ampi.kernel(softmax, without="split")
    with ampi.Tape() as other:
        x2 = other.watch(X.reshape(4, 3))
        y2 = expected(x2)
    assert runs_forward(expected) == [False]
    numpy.testing.assert_array_equal(y, y2)
    seed = numpy.random.default_rng(1).standard_normal(y.shape)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), other.gradient(y2, x2, seed=seed), rtol=1e-12)


def test_kernels_with_checks_run_themselves():
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(upwind, boundscheck=True)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = program(ampi.numpy, kernel, x)
    assert not any(runs_forward(kernel))
    seed = rng.standard_normal(X.shape)
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=seed), complex_step(upwind, X, seed), rtol=1e-10)


def independent(x, y):
    for i in range(x.shape[0]):
        y[i] = math.sin(x[i]) * x[i]


def test_where_nothing_is_saved_the_kernel_runs_itself():
    kernel = ampi.kernel(independent)
    with ampi.Tape() as tape:
        kernel(tape.watch(X), ampi.numpy.empty(X.shape))
    assert runs_forward(kernel) == [False] and tape.kept_bytes == 0


def largest(x):
    return numpy.max(x)


def smallest(x):
    return x[::2].min()


def extent(x):
    return numpy.ptp(x)


def place_of_largest(x):
    return numpy.argmax(x) + x[:1].sum()


def largest_by_python(x):
    return max(x)


def largest_but_for_nan(x):
    return numpy.nanmax(x)


def reshaped(x):
    return x.reshape((2, 5)).sum()


def in_steps(x):
    return x[:: x.size - 12].sum()


def repeated(x):
    return x.repeat(x.size - 13).sum()


def place_among_nan(x):
    return numpy.nanargmax(x * math.nan) + x[0]


def in_steps_of_numbers(x):
    return numpy.arange(0, 5, x.size - 12).sum() + x[0]


def of_evenly_spaced_numbers(x):
    return numpy.linspace(0.0, 1.0, x.size - 13).sum() + x[0]


def convolved(x):
    return numpy.convolve(x, x[::2]).sum()


def interpolated(x):
    return numpy.interp(0.5, x, x)


def percentile(x):
    return numpy.percentile(x, 10.0 * x.size)


def inverted_in_vain(x):
    numpy.linalg.inv(x[:4].copy().reshape((2, 2)))
    return x[0]


def taken(x):
    return numpy.take(x, x.size + numpy.arange(2)).sum()


@pytest.mark.parametrize(
    ("function", "size"),
    [(largest, 0), (smallest, 0), (extent, 0), (place_of_largest, 0), (largest_by_python, 0), (largest_but_for_nan, 0),
     (reshaped, 12), (in_steps, 12), (repeated, 12), (place_among_nan, 12),
     (in_steps_of_numbers, 12), (of_evenly_spaced_numbers, 12), (convolved, 0), (interpolated, 0), (percentile, 12),
     (inverted_in_vain, 12), (taken, 12)],
)  # fmt: skip
def test_exceptions_of_operations(function, size):
    """An operation that the kernel's forward part computes by loops raises what it raises in the kernel itself."""
    operation = numba.njit(function)

    def recurrence(x, y):
        s = x[0]
        for i in range(x.shape[0]):
            s = s * x[i] / (1.0 + s * s)
        return s + operation(y)

    with pytest.raises(Exception) as plain:
        numba.njit(recurrence)(X, numpy.ones(size))
    kernel = ampi.kernel(recurrence)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        with pytest.raises(plain.type) as caught:
            kernel(x, numpy.ones(size))
    assert caught.value.args == plain.value.args
    assert runs_forward(kernel) == [function is not taken]


def narrow_after_an_extreme(x, y):
    s = numpy.max(x) * 0.5
    for _ in range(3):
        x = numpy.tanh(x * s + y)
    return x


def test_an_argument_is_stretched_after_an_operation_that_may_raise():
    """Its size is known before the call."""
    y = numpy.array([[0.1], [0.2], [0.3], [0.4]])
    kernel = ampi.kernel(narrow_after_an_extreme)
    with ampi.Tape() as tape:
        x = tape.watch(X.reshape(4, 3))
        found = kernel(x, y)
    numpy.testing.assert_allclose(found, narrow_after_an_extreme(X.reshape(4, 3), y), rtol=1e-14)
    assert tape.gradient(found, x, seed=numpy.ones((4, 3))).shape == (4, 3)


def with_temporaries(x, y):
    """A stencil of a stencil, by whole arrays."""
    first = x[1:] * x[:-1]
    second = numpy.sin(first[1:] - first[:-1])
    y[1:-1] = second * second * x[1:-1]


def test_local_arrays_are_kept():
    """They are filled once: neither the gradient nor a second sweep computes them again."""
    seed = numpy.random.default_rng(11).standard_normal(X.shape)
    found = []
    for without in ("", "split"):
        kernel = ampi.kernel(with_temporaries, without=without)
        with ampi.Tape() as tape:
            x, y = tape.watch(X), ampi.numpy.zeros(X.shape)
            kernel(x, y)
        assert runs_forward(kernel) == [not without]
        assert (tape.kept_bytes >= 8 * (X.size - 2)) == (not without)
        found += [tape.gradient(y, x, seed=seed) for _ in range(2)]
    assert "sin" not in ampi.kernel(with_temporaries).adjoint_source(X, X).partition("_reverse(")[2]
    for gradient in found[1:]:
        numpy.testing.assert_allclose(gradient, found[0], rtol=1e-12)


def test_programs_are_shown_for_the_types_of_recorded_calls():
    kernel = ampi.kernel(upwind)
    with ampi.Tape() as tape:
        kernel(tape.watch(X), ampi.numpy.ones(X.shape))
    assert called(kernel) == [(numba.typeof(X), numba.typeof(X))]
    assert "def upwind_forward(x, new):" in kernel.adjoint_source(X, X)


def test_an_array_that_must_not_be_written_is_refused():
    kernel = ampi.kernel(upwind)
    with ampi.Tape() as tape:
        x, new = tape.watch(X), ampi.numpy.ones(X.shape)
        kernel(x, new)
        new.flags.writeable = False
        with pytest.raises(Exception, match=r"(?i)read-?only|writ"):
            kernel(x, new)


def test_explained(capsys):
    kernel = ampi.kernel(upwind)
    assert "while the kernel runs" in kernel.explain(X, X)
    assert "while the kernel runs" not in ampi.kernel(upwind, without="split").explain(X, X)
    capsys.readouterr()


def test_each_form_is_made_on_demand(cache_folder):
    """The first gradient parses and analyses once; the whole adjoint is made if a tape has no room for values."""
    kernel = ampi.kernel(upwind, without="kept")

    def runs():
        with watched() as seen, ampi.Tape() as tape:
            x = tape.watch(X)
            y = program(ampi.numpy, kernel, x)
        value = tape.gradient(y, x, seed=numpy.ones(y.shape))
        return collections.Counter(o.name for o in seen), value

    first, gradient = runs()
    count = len(kernel.contracts)
    assert first["parse"] == 1 and first["begin"] == first["gather"] == count
    assert runs()[0] == {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(repeated_calls, "MAX_SAVED", 0)
        again, other = runs()
    assert again["parse"] == 0 and again["gather"] == len(kernel.contracts) - count + sum(runs_forward(kernel)[:count])
    numpy.testing.assert_allclose(other, gradient, rtol=1e-12)

"""Functions and classes that NumPy does not dispatch to arrays' classes."""

import contextlib
import inspect
import itertools
import operator
import pickle
import warnings

import numpy as np
import pytest

import ampi

KINDS = [np.float64, np.complex128]


# ------------------------------------------------------------------------- what NumPy does not hand to arrays' classes


def _squares_by_ndenumerate(x):
    total = 0.0
    for (k,), element in ampi.numpy.ndenumerate(x):
        total = total + (k + 1) * element**2
    return total


def _products_by_broadcast(x):
    total = 0.0
    for a, b in ampi.numpy.broadcast(x, x[:1]):
        total = total + a * b
    return total


@pytest.mark.parametrize(
    "f",
    [
        _squares_by_ndenumerate,
        _products_by_broadcast,
        lambda x: ampi.numpy.polynomial.polynomial.polyval(1.3, x) ** 2,
        lambda x: ampi.numpy.polynomial.chebyshev.chebval(x, [1.0, 2.0, 3.0]).sum(),
        lambda x: ampi.numpy.polynomial.legendre.legval(0.3, x) ** 2,
        lambda x: ampi.numpy.polynomial.Polynomial([1.0, 2.0, 3.0])(x).sum(),
        lambda x: ampi.numpy.sum([x[0] ** 2, x[1], 3.0]) * ampi.numpy.mean((x[2], x[1])),
        lambda x: ampi.numpy.dot([x[0], x[1], x[2]], [x[1], 2.0, 3.0]),
    ],
)
def test_functions_that_numpy_does_not_dispatch(f):
    x = np.array([0.7, 1.9, 1.3])
    step = 1e-6
    numbers = [(f(ampi.numpy.asarray(x + d)) - f(ampi.numpy.asarray(x - d))) / (2 * step) for d in step * np.eye(3)]
    np.testing.assert_allclose(ampi.grad(f)(x), np.array(numbers, float), rtol=1e-8)


@pytest.mark.parametrize(
    "use",
    [
        lambda np, x: np.asmatrix(x),
        lambda np, x: np.matrix(x),
        lambda np, x: np.poly1d(x),
        lambda np, x: np.polynomial.Polynomial(x),
        lambda np, x: np.polynomial.polynomial.polymul(x, x),
        lambda np, x: np.ma.masked_array(x, x > 1),
        lambda np, x: np.ma.masked_less(x, 1.0),
        lambda np, x: np.rec.fromarrays([x, x], names="a,b"),
        lambda np, x: np.frompyfunc(lambda v: v * v, 1, 1)(x),
        lambda np, x: np.array([x, x], dtype=object),
        lambda np, x: np.nditer(x),
        lambda np, x: np.nditer([np.zeros(3), x], op_flags=[["readwrite"], ["readonly"]]),
    ],
)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning", "ignore::PendingDeprecationWarning")
def test_what_would_lose_derivatives_is_refused(use):
    anp = ampi.numpy
    use(anp, anp.arange(3.0))
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(3.0))
        with pytest.raises(ampi.ActivityError, match="has no derivative rule"):
            use(anp, x)
        use(anp, ampi.value(x))


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_classes_that_stand_for_numpys():
    anp = ampi.numpy
    masked = anp.ma.masked_array([1.0, 2.0], [True, False])
    assert type(masked) is np.ma.MaskedArray
    assert isinstance(masked, anp.ma.MaskedArray) and isinstance(np.ma.masked, anp.ma.MaskedArray)
    assert issubclass(np.matrix, anp.matrix) and not isinstance(np.ones(1), anp.matrix)
    assert anp.polynomial.Polynomial.fit([0.0, 1.0, 2.0], [1.0, 2.0, 3.0], 1)(5.0) == pytest.approx(6.0)

    assert issubclass(np.polynomial.Polynomial, anp.polynomial.Polynomial)
    assert not issubclass(float, np.polynomial.Polynomial) and not issubclass(float, anp.polynomial.Polynomial)

    class Column(anp.matrix):
        pass

    assert isinstance(Column([[1.0]]), np.matrix)
    assert anp.broadcast(np.ones((2, 1)), np.ones(3)).shape == (2, 3)
    assert [value.item() for value in anp.nditer(np.arange(2))] == [0, 1]


def test_the_namespace_stays_whole_after_any_and_all_were_used():
    anp = ampi.numpy
    assert anp.any([True]) and anp.all([True])
    assert isinstance(anp.vectorize(lambda a: a + 1)(anp.arange(2)), ampi.ndarray)
    with ampi.Tape() as tape:
        tape.watch(np.ones(1))
        assert anp.zeros(2).sum() == 0.0


@pytest.mark.parametrize("leave", [pickle.dumps, lambda x: x.tobytes(), lambda x: x.ctypes.data])
def test_bytes_and_addresses_of_active_arrays_draw_a_warning(leave):
    from ampi.arrays import losses as outside

    outside._warned.clear()
    with ampi.Tape() as tape, pytest.warns(ampi.ActivityWarning, match="drops its derivative"):
        leave(tape.watch(np.ones(2)))


def test_functions_that_are_attributes_of_classes_stay_functions():
    class Program:
        array, zeros, total = ampi.numpy.array, ampi.numpy.zeros, ampi.numpy.sum

    for program in (Program, Program()):
        assert program.array([1.0, 2.0]).shape == (2,)
        assert program.zeros((2, 3)).shape == (2, 3)
    assert inspect.signature(ampi.numpy.sum) and ampi.numpy.zeros.__name__ == "zeros"


def test_elements_of_arrays_of_objects_are_what_numpy_makes_of_them():
    with ampi.Tape():
        a, inner = ampi.numpy.empty(3, object), ampi.numpy.array([1, 2])
        a[0], a[1], a[2] = inner, ampi.numpy.array(3), ampi.numpy.array(None)
        a[1, ...] = ampi.numpy.array(3)
        assert a[0] is inner and type(a[1]) is int and a[2].dtype == object
    number = np.float64(2.5)
    a[0], a[1] = number, inner
    assert a[0] is number and a[1] is inner and next(iter(a)) is number


@pytest.mark.parametrize(
    "view",
    [
        lambda x: np.lib.stride_tricks.sliding_window_view(x, 2, writeable=True),
        lambda x: np.lib.stride_tricks.as_strided(x, (3, 2), (8, 0)),
        lambda x: np.lib.stride_tricks.as_strided(x, (2, 3), (16, 8)),
    ],
)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_active_values_into_elements_that_share_memory_are_refused(view):
    with ampi.Tape() as tape:
        y = tape.watch(np.ones(8))
        target = view(ampi.numpy.zeros(5))
        for write in (
            lambda: operator.setitem(target, ..., y[: target.size].reshape(target.shape)),
            lambda: np.multiply(y[: target.size].reshape(target.shape), 2, out=target),
            lambda: operator.iadd(target, y[0]),
        ):
            with pytest.raises(ampi.ActivityError, match="share memory"):
                write()
        target[:1, :1] = y[0]
        np.lib.stride_tricks.as_strided(target, (2, 1), (24, 16))[...] = y[1]


FILLED = {
    "a number": lambda np, x, a: x.fill(3),
    "a list": lambda np, x, a: x.fill([1, 2, 3]),
    "an empty list": lambda np, x, a: x.fill([]),
    "one element": lambda np, x, a: x.fill(a[1]),
    "an array of one": lambda np, x, a: x.fill(a[1:2]),
    "an array": lambda np, x, a: x.fill(a),
    "text": lambda np, x, a: x.fill("7"),
    "a part": lambda np, x, a: x[1:].fill(a[0] * 2),
    "a complex number": lambda np, x, a: x.fill(2 + 1j),
    "nothing": lambda np, x, a: x.fill(None),
}


@pytest.mark.parametrize("dtype", [float, complex, int, object, "f4"])
@pytest.mark.parametrize("what", FILLED)
def test_fill_is_numpys(what, dtype):
    """It accepts what NumPy accepts, and no lists that an assignment would broadcast."""

    def outcome(module, a):
        x = module.zeros(3, dtype)
        try:
            FILLED[what](module, x, a)
        except Exception as error:
            return type(error)
        return repr(ampi.value(x).tolist())

    expected = outcome(np, np.arange(1.0, 4.0))
    assert outcome(ampi.numpy, ampi.numpy.arange(1.0, 4.0)) == expected
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # integers drop derivatives
        with ampi.Tape() as tape:
            found = outcome(ampi.numpy, tape.watch(np.arange(1.0, 4.0)))
    if np.lib.NumpyVersion(np.__version__) < "2.4.0" and what == "an array of one":
        return  # NumPy did not take it, or said that it would not
    assert found == expected or (dtype is object and found is ampi.ActivityError)


ASSIGNED = {
    "an element": lambda np, x, v: x.__setitem__(0, v),
    "all of an array of one": lambda np, x, v: x[0, ...].__setitem__((), v),
    "the same by dots": lambda np, x, v: x[0, ...].__setitem__(..., v),
    "a part": lambda np, x, v: x.__setitem__(slice(1, 3), v),
    "a mask": lambda np, x, v: x.__setitem__(x == x, v),
    "an element of flat": lambda np, x, v: x.flat.__setitem__(1, v),
    "fill": lambda np, x, v: x.fill(v),
    "put": lambda np, x, v: np.put(x, [1], v),
    "copyto": lambda np, x, v: np.copyto(x, v, casting="unsafe"),
    "a list": lambda np, x, v: x.__setitem__(slice(0, 2), [v, v]),
    "a new array": lambda np, x, v: x.__setitem__(slice(0, 2), np.array([v, v], x.dtype)),
    "full": lambda np, x, v: x.__setitem__(slice(0, 3), np.full(3, v, x.dtype)),
}


@pytest.mark.parametrize("idle", [True, False], ids=["idle", "recording"])
@pytest.mark.parametrize("dtype", [float, "f4", int, bool, complex, "U8"], ids=str)
@pytest.mark.parametrize("given", ["array", "element", "number"])
@pytest.mark.parametrize("way", ASSIGNED)
def test_complex_values_are_assigned_to_real_elements_as_numpys(way, given, dtype, idle):
    """With NumPy's warning; arrays of both kinds accept values of both."""

    def outcome(module, values):
        z = values.array(1.5 + 2j)
        v = z if given == "array" else z[()] if given == "element" else complex(1.5, 2)
        x = module.zeros(3, dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                ASSIGNED[way](module, x, v)
            except Exception as error:
                return type(error)
        return repr(ampi.value(x).tolist())

    expected = outcome(np, np)
    with contextlib.nullcontext() if idle else ampi.Tape():
        found = [outcome(*modules) for modules in itertools.product((np, ampi.numpy), repeat=2)]
    assert found == [expected] * 4


def test_columns_of_records_keep_their_dtypes():
    """Lists of columns are not made into one array, whose dtype would be text here."""
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        for columns in (
            [ampi.numpy.array([1, 2]), ampi.numpy.array(["a", "b"]), x * 1],
            [ampi.numpy.array([1, 2]), x * 1],
        ):
            with pytest.raises(ampi.ActivityError, match="fromarrays has no derivative rule"):
                ampi.numpy.rec.fromarrays(columns)
            found = ampi.numpy.rec.fromarrays([ampi.value(column) for column in columns])
            assert [found.dtype[k].kind for k in range(len(columns))] == [c.dtype.kind for c in columns]

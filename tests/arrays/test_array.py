"""`ampi.ndarray` as NumPy users use arrays: types and values, copies, elements, scalars, printing."""

import copy
import pickle
import warnings

import numpy as np
import pytest

import ampi

# ------------------------------------------------------------------------------------------------ types and values


@pytest.mark.parametrize("exponent", [ampi.numpy.array(0.5), 0.5, np.array(0.5)], ids=["active", "number", "plain"])
def test_powers_of_plain_arrays_to_a_0_d_exponent(exponent):
    base = np.array([1.0, 3.0, 0.7])
    expected = np.sum(np.log(base) * base**0.5)
    np.testing.assert_allclose(ampi.grad(lambda x: np.sum(base**x))(exponent), expected, rtol=1e-14)


def test_zero_dimensional_arrays():
    with ampi.Tape() as tape:
        x = tape.watch(3.0)
        y = ampi.numpy.array(x * x)
        y += x
        y[...] = y * y
        z = y.copy()
        z[()] = x
        assert isinstance(y[()], ampi.ndarray) and y.shape == z.shape == x.shape == ()
        w = y[()] + z * x + y.reshape(1)[0]
    assert w == 2 * 144.0 + 9.0
    # y = (x² + x)², w = 2 y + x²
    assert tape.gradient(w, x) == 2 * 2 * 12.0 * 7.0 + 2 * 3.0


def test_everything_comes_back_as_ampi_arrays():
    x = ampi.numpy.linspace(0.0, 1.0, 5)
    for y in (
        x + 1,
        np.sin(x),
        x.sum(),
        x[2, ...],
        x[1:],
        x[[0, 1]],
        x > 0.5,
        x.T,
        np.stack([x, x]),
        np.sort(x),
        x.mean(),
    ):
        assert isinstance(y, ampi.ndarray)
    assert x.sum().shape == () and x[2].shape == ()
    assert type(x[2]) is np.float64  # a number that carries no derivative
    assert type(np.argmax(x)) is np.int64 and type(x.argmax()) is np.int64
    assert isinstance(x.sum() > 1.0, np.bool_)
    assert type(ampi.numpy.arange(3)[1]) is np.int64


def test_elements_are_copies():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        first = x[0]
        x[0] = 5.0
    assert first == 1.0
    np.testing.assert_array_equal(tape.gradient(first, x), [1.0, 0.0])


def test_value_and_passive():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        assert type(ampi.value(x)) is np.ndarray and type(ampi.value(x.sum())) is np.float64
        structure = ampi.value({"a": (x, [x[0], 3]), "b": None})
        assert type(structure["a"][0]) is np.ndarray and structure["a"][1][1] == 3
        y = x * ampi.value(x)
        with ampi.passive():
            z = x * x
            x_old = x * 1.0
        w = (y + z * x_old).sum()
    np.testing.assert_array_equal(tape.gradient(w, x), [1.0, 2.0])


def test_value_is_a_copy():
    x = ampi.numpy.zeros(2)
    v = ampi.value(x)
    v[0] = 1.0
    assert x[0] == 0.0


def test_pickling_and_copying():
    x = ampi.numpy.arange(4.0).reshape(2, 2)
    again = pickle.loads(pickle.dumps(x))
    assert type(again) is ampi.ndarray
    np.testing.assert_array_equal(again, x)
    with ampi.Tape() as tape:
        x = tape.watch(x)
        y = (copy.deepcopy([x])[0] * copy.copy(x)).sum()
    np.testing.assert_array_equal(tape.gradient(y, x), 2 * np.arange(4.0).reshape(2, 2))


def test_printing_does_not_warn():
    with ampi.Tape() as tape, warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tape.watch(np.array([1.25, 2.5]))
        assert str(x) == "[1.25 2.5 ]" and repr(x) == "array([1.25, 2.5 ])"
        assert f"{x[0]:.1f} {x.sum()}" == "1.2 3.75"
        assert repr(x.sum()) == "np.float64(3.75)"
        assert len(tape) > 0


def test_comparisons_and_truth_do_not_warn():
    with ampi.Tape() as tape, warnings.catch_warnings():
        warnings.simplefilter("error")
        x = tape.watch(np.array([1.0, 2.0]))
        assert x[0] < x[1] and bool(x.sum()) and x.max() == 2.0 and 2.0 in x
        assert np.array_equal(x, [1.0, 2.0]) and np.allclose(x, x) and len(tape)

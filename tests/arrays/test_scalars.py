"""What NumPy gives as scalars is immutable, and what NumPy gives as a view of the same memory is one, with and without
a tape; arrays without elements have no part in derivatives."""

import contextlib
import copy
import math
import numbers
import pickle
import warnings
from collections import abc

import numpy as np
import pytest

import ampi
import ampi.numpy as anp


@pytest.fixture(params=["idle", "recording"])
def x(request):
    """Three numbers, active or not."""
    with contextlib.ExitStack() as stack:
        if request.param == "idle":
            yield anp.array([1.0, 2.0, 3.0])
        else:
            yield stack.enter_context(ampi.Tape()).watch(np.array([1.0, 2.0, 3.0]))


MAKERS = {
    "sum": lambda x: np.sum(x),
    "method": lambda x: x.sum(),
    "mean": lambda x: x.mean(),
    "std": lambda x: np.std(x),
    "var": lambda x: np.var(x),
    "quantile": lambda x: np.quantile(x, 0.3),
    "median": lambda x: np.median(x),
    "element": lambda x: x[1],
    "flat": lambda x: next(iter(x.flat)) + 0 * x[0],
    "iteration": lambda x: next(iter(x)),
    "dot": lambda x: x @ x,
    "einsum": lambda x: np.einsum("i,i->", x, x),
    "norm": lambda x: np.linalg.norm(x),
    "vdot": lambda x: np.vdot(x, x),
    "interp": lambda x: np.interp(x[0], x, x),
    "nansum": lambda x: np.nansum(x),
    "arithmetic": lambda x: 2.0 * x[0] + 1.0,
    "of a 0-d array": lambda x: anp.array(x[0]) * 2.0,
    "item of a 0-d array": lambda x: anp.array(x[0])[()],
    "trace": lambda x: np.trace(np.outer(x, x)),
    "det": lambda x: np.linalg.det(np.outer(x, x) + np.eye(3)),
    "pickled": lambda x: pickle.loads(pickle.dumps(np.sum(x))),
    "copied": lambda x: copy.deepcopy(np.sum(x)),
}


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_a_scalar_never_changes(make, x):
    s = make(x)
    if type(s) is np.float64:  # an element that carries no derivative is what NumPy gives
        assert ampi.tape.recording() is None
        return
    before = ampi.value(s)
    assert isinstance(s, ampi.ndarray) and anp.isscalar(s)
    t = u = s
    t *= 0.5
    u += x[0]
    assert t == 0.5 * before and u == before + 1.0 and s == before
    assert hash(s) == hash(before) and {s: 1}[before] == 1
    with pytest.raises(TypeError, match="cannot be changed"):
        s[...] = 0.0
    with pytest.raises(TypeError):
        np.add(x[0], x[1], out=s)
    with pytest.raises(TypeError, match="out="):
        np.sum(x, out=s)
    for part in (anp.asarray(s), anp.array(s), np.atleast_1d(s), s.reshape(1), np.reshape(s, (1, 1)), s[None], s[...]):
        part += 1.0
        assert s == before and np.all(part == before + 1.0)
    with pytest.raises(TypeError, match="read-only"):
        memoryview(s)[()] = 0.0


ABSTRACT = (np.generic, np.number, np.inexact, np.floating, np.complexfloating, np.integer)
CONCRETE = (np.float64, np.float32, np.complex128, np.complex64, np.longdouble)
COLLECTIONS = (abc.Sized, abc.Iterable, abc.Container, abc.Hashable, abc.Sequence)
KINDS = (int, float, complex, *ABSTRACT, *CONCRETE, numbers.Number, numbers.Complex, numbers.Real, *COLLECTIONS)
DTYPES = [np.float64, np.float32, np.longdouble, np.complex128, np.complex64]


@pytest.mark.filterwarnings("ignore::ampi.ActivityWarning")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_isinstance_takes_a_scalar_for_numpys(make, dtype):
    values = np.array([1.0, 2.0, 3.0], dtype)
    try:
        expected = make(values)
    except TypeError:  # of complex numbers, or of long ones
        return
    with ampi.Tape() as tape:
        found = make(tape.watch(values))
    assert [k for k in KINDS if isinstance(found, k)] == [k for k in KINDS if isinstance(expected, k)]
    assert np.isscalar(found) and anp.isscalar(found) and not np.iterable(found)
    assert found == pytest.approx(expected) and expected == pytest.approx(found)


def test_a_history_of_totals_holds_each(x):
    total, history = np.sum(x), []
    for _ in range(3):
        history.append(total)
        total += x[0]
    assert [float(h) for h in map(ampi.value, history)] == [6.0, 7.0, 8.0]


def test_arrays_without_dimensions_are_arrays(x):
    for a in (anp.array(5.0), anp.zeros(()), anp.asarray(x[0]), x[0, ...], x[:1].reshape(())):
        b = a
        b += 1.0
        assert b is a and not anp.isscalar(a)


def test_scalars_in_sweeps():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([2.0, 3.0]))
        k = tape.watch(4.0)
        s = t = x[0] * x[1]
        t *= k
        e = x[1]
        e -= s
        y = t + s * e + np.atleast_1d(s)[0]
    x_bar, k_bar = tape.gradient(y, [x, k])
    # y = a b k + a b (b - a b) + a b
    np.testing.assert_allclose(x_bar, [3 * 4 + 9 - 2 * 2 * 9 + 3, 2 * 4 + 2 * 2 * 3 - 2 * 4 * 3 + 2])
    assert k_bar == 6.0


# ---------------------------------------------------------------------------------------------------- empty parts

EMPTY_VIEWS = {
    "ravel": lambda u: np.ravel(u[2:2]),
    "broadcast_to": lambda u: np.broadcast_to(u[2:2], (3, 0)),
    "moveaxis": lambda u: np.moveaxis(u[2:2, None], 0, 1),
    "swapaxes": lambda u: np.swapaxes(u[2:2, None], 0, 1),
    "split": lambda u: np.split(u, [0])[0],
    "array_split": lambda u: np.array_split(u, 9)[-1],
    "squeeze": lambda u: np.squeeze(u[2:2, None]),
    "expand_dims": lambda u: np.expand_dims(u[2:2], 0),
    "atleast_2d": lambda u: np.atleast_2d(u[2:2]),
    "diagonal": lambda u: np.diagonal(u.reshape(2, 3), 3),
    "flip": lambda u: np.flip(u[2:2]),
    "rot90": lambda u: np.rot90(u[2:2, None]),
    "tile": lambda u: np.tile(u[2:2], 2),
    "meshgrid": lambda u: np.meshgrid(u[2:2], u[:1], copy=False)[0],
    "sliding_window_view": lambda u: np.lib.stride_tricks.sliding_window_view(u[3:3], 0),
    "einsum": lambda u: np.einsum("ij->ji", u.reshape(2, 3)[:, 3:]),
    "at the end": lambda u: u[6:].reshape(0, 2).T[::-1],
    "steps": lambda u: u.reshape(2, 3)[::-1, 5::-2][:, :0],
    "imag": lambda u: ((u + 1j * u)[1:1] + 2).imag,
    "real": lambda u: (u + 1j * u)[6:].real,
}


@pytest.mark.parametrize("make", EMPTY_VIEWS.values(), ids=EMPTY_VIEWS)
def test_an_empty_view_is_nothing(make):
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(6.0))
        u = x * 2.0
        c = make(u)
        if c.flags.writeable:
            c[...] = c * x[0]
        y = np.sum(u * u) + np.sum(c**2 * 3.0)
        if c.flags.writeable:
            c[...] = 5.0
    assert c.size == 0
    np.testing.assert_array_equal(tape.gradient(y, x), 8.0 * np.arange(6.0))


# ------------------------------------------------------------------------------------------------ views and zeros


def test_what_einsum_gives_as_a_view_is_one(x):
    a = np.outer(x, x)
    np.einsum("ii->i", a)[:] = 0.0
    np.einsum("ij->ji", a)[0, 1] = 7.0
    np.testing.assert_array_equal(ampi.value(a), [[0, 2, 3], [7, 0, 6], [3, 6, 0]])


ROOTS = {
    "std of one": (lambda x: np.std(x[:1]), [0, 0, 0]),
    "std of equals": (lambda x: (x - x + 2.0 * x[1]).std(), [0, 0, 0]),
    "nanstd of one": (lambda x: np.nanstd(x[:1]), [0, 0, 0]),
    "norm": (lambda x: np.linalg.norm(x - ampi.value(x)), [0, 0, 0]),
    "3-norm": (lambda x: np.linalg.norm(x - ampi.value(x), 3), [0, 0, 0]),
    "norms of rows": (lambda x: np.linalg.norm(np.diag(x - [1.0, 2.0, 2.0]), axis=1).sum(), [0, 0, 1]),
    "complex norm": (lambda x: np.linalg.norm((x - ampi.value(x)) * 1j), [0, 0, 0]),
    "Frobenius": (lambda x: np.linalg.norm(np.diag(x - ampi.value(x))), [0, 0, 0]),
}


@pytest.mark.parametrize("function, expected", ROOTS.values(), ids=ROOTS)
def test_the_subgradient_of_a_norm_at_zero_is_zero(function, expected):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with ampi.Tape() as tape:
            x = tape.watch(np.array([1.0, 2.0, 3.0]))
            y = function(x)
        np.testing.assert_array_equal(tape.gradient(y, x), expected)


@pytest.mark.parametrize("recording", [False, True])
@pytest.mark.parametrize("value", [2.5, -3.0, 0.1])
def test_methods_of_numbers(value, recording):
    """Of NumPy's scalars, which float has as well; fractions and text carry no derivative, which is said."""
    exact = np.float64(value)
    with ampi.Tape() if recording else contextlib.nullcontext() as tape:
        x = np.array([value])
        s = anp.sum(tape.watch(x) if recording else anp.array(x))
        assert s.is_integer() == exact.is_integer()
        assert (math.floor(s), math.ceil(s), math.trunc(s)) == (math.floor(exact), math.ceil(exact), math.trunc(exact))
        assert repr(s) == repr(exact)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ampi.ActivityWarning)
            assert (s.as_integer_ratio(), s.hex()) == (exact.as_integer_ratio(), exact.hex())


def test_fractions_and_text_of_active_numbers_lose_derivatives():
    with ampi.Tape() as tape:
        s = anp.sum(tape.watch(np.array([2.5])))
        with pytest.warns(ampi.ActivityWarning, match="as_integer_ratio"):
            s.as_integer_ratio()
        with pytest.warns(ampi.ActivityWarning, match="hex"):
            s.hex()


def test_powers_of_numpys_numbers_round_as_numpys():
    bases, exponents = np.random.default_rng(0).uniform(0.1, 3.0, (2, 500))
    with ampi.Tape() as tape:
        e = tape.watch(exponents)
        found = [ampi.value(b ** e[k]) for k, b in enumerate(bases)]
        by_function = [ampi.value(np.power(b, e[k])) for k, b in enumerate(bases)]
    np.testing.assert_array_equal(found, [b**x for b, x in zip(bases, exponents)])
    np.testing.assert_array_equal(by_function, [np.power(b, x) for b, x in zip(bases, exponents)])

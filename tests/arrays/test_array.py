"""`ampi.ndarray` as NumPy users use arrays: views, assignment, in-place operators, masks, scalars."""

import contextlib
import copy
import inspect
import itertools
import operator
import pickle
import warnings

import numba
import numpy as np
import pytest
from derivative_check import check_adjoint, random

import ampi

KINDS = [np.float64, np.complex128]


def arguments(shapes, dtype):
    generator = np.random.default_rng(3)
    return [random(generator, shape, dtype) for shape in shapes]


def program(*shapes, kinds=KINDS):
    """A test case: a function that works on plain and on tracked arrays alike."""

    def decorate(f):
        return pytest.param(f, shapes, kinds, id=f.__name__)

    return decorate


@program((6,))
def write_through_views_of_views(x):
    y = x * 1.0
    inner = y[1:][::-1][1:4]
    inner *= y[0]
    inner[1] = y[5] * inner[0]
    return y * y


@program((3, 4))
def write_through_a_transpose(x):
    y = x.copy()
    y.T[1] = y.T[2] * y.T[0]
    y[::-1, ::2] += 2.0 * x[:, 1::2]
    return np.exp(y)


@program((4, 4))
def write_through_the_diagonal(x):
    y = x * 2.0
    y.reshape(-1)[::5] = x[0] * x[1]
    return y * y.T


@program((2, 3, 4))
def move_axes_and_squeeze(x):
    y = np.moveaxis(x, 0, -1)[None]
    z = np.squeeze(y * y, 0).swapaxes(0, 1)
    return z.reshape(-1)[3:9]


@program((5,))
def overlapping_shift(x):
    y = x * x
    y[1:] = y[:-1]
    y[:-1] += y[1:] * x[1:]
    np.multiply(y[2:], y[:-2], out=y[2:])
    return y


@program((5,), (5,))
def in_place_operators(x, y):
    z = x * y
    z += y
    z -= 0.5 * x
    z *= y
    z /= x
    z **= 2
    return z


@program((5,), (5,), kinds=[np.float64])
def in_place_remainders(x, y):
    z = 3.0 * x
    z %= 1.0 + y
    z //= 0.3
    return z + x


@program((5,))
def operator_with_itself(x):
    x = x * 1.0
    x *= x
    x += x
    x /= x + 1.0
    return x


@program((3, 3))
def in_place_matmul(x):
    y = x @ x.T
    y @= x
    return y


@program((6,))
def boolean_masks(x):
    y = x * 2.0
    mask = np.abs(x) > 0.6
    y[mask] = x[mask] ** 2
    y[~mask] *= 3.0
    y[mask] += y[mask][::-1]
    return y


@program((3, 4))
def mask_of_rows(x):
    y = x * 1.0
    y[[True, False, True]] = x[1]
    y[np.array([False, True, False]), 1:3] = 0.0
    return y * x


@program((5,))
def repeated_indices(x):
    y = x * 1.0
    y[[0, 0]] += x[[1, 2]]
    y[[3, 1, 3]] = x[[0, 4, 2]]
    y[np.array([[2, 2], [4, 2]])] *= x[:4].reshape(2, 2)
    return y


@program((4, 5))
def mixed_indices(x):
    y = x * 1.0
    y[1:, [0, 2, 0]] = x[:3, 1:4]
    y[[0, 3], ::2] *= 2.0
    y[[1, 2], [3, 3]] += x[0, :2]
    return y[:, [4, 0, 0]] * y[2, 3]


@program((4,))
def negative_and_new_axes(x):
    y = np.zeros_like(x)
    y[-1] = x[0] * x[1]
    y[None, -3:-1] = x[..., 2:]
    y[..., 0] = 3.0
    return y[:, None] * x[None, ::-1]


@program((4,))
def scalars_one_by_one(x):
    y = np.zeros_like(x)
    total = 0.0
    for k in range(len(x)):
        total = total + x[k] * x[k - 1]
        y[k] = total
    return y, total


@program((3,))
def lists_of_scalars(x):
    y = np.zeros_like(x)
    y[:] = [x[0] * x[1], 2.0, x[2]]
    y += [x[0], x[1], 1.0]
    return y


@program((3,))
def fill_and_flat(x):
    y = np.empty_like(x)
    y.fill(x[0] * x[2])
    z = (x[:, None] * y).T
    z.flat[1::3] = x
    z.flat[[0, 8]] = x[1]
    z.flat[2] *= 3.0
    return z, z.flat[3:7] * 1.0


@program((3,))
def flat_as_a_whole(x):
    y = x[:, None] * x
    y.flat = [x[0], x[1]]
    return y, sum(v * v for v in y.flat)


@program((6,), kinds=[np.float64])
def sort_in_place(x):
    y = x * x
    y.sort()
    z = x.reshape(2, 3) * 1.0
    z.sort(axis=0)
    z.partition(1)
    return y * x, z[:, 1]


@program((4,), kinds=[np.complex128])
def real_and_imaginary_parts(x):
    y = x * 1.0
    y.real = x.imag * x.real
    y.imag[1:] *= 2.0
    y.real[::2] += 1.0
    z = y.view(np.float64)
    z[3] = z[0] * z[1]
    return y * y, z


@program((4,), kinds=[np.complex128])
def complex_into_real(x):
    y = np.zeros(4) + 0.0 * x.real
    y += x.real
    y[1:] = (x * x).imag[1:]
    return y * x


@program((5,), (5,))
def outputs_and_masks(x, y):
    z = x + 1.0
    mask = np.abs(x) > 0.6
    np.multiply(x, y, out=z, where=mask)
    np.exp(z, out=z)
    np.divide(z, x, out=z, where=~mask)
    w = np.sqrt(y, where=mask, out=np.zeros_like(y))
    np.add.reduce(np.outer(w, z), axis=0, out=w)
    np.negative(w[::2], out=w[::2])
    return z, w


@program((3, 4))
def reductions_into(x):
    y = np.zeros_like(x[0]) + x[0]
    np.sum(x, axis=0, out=y)
    z = x * 2.0
    np.mean(z, axis=1, out=z[:, 0])
    np.prod(z, 0, None, y)
    np.cumsum(z, axis=1, out=z)
    np.dot(z, z.T, out=(w := np.zeros_like(z @ z.T)))
    return y, z, w


@program((3,))
def broadcast_views(x):
    wide = np.broadcast_to(x, (4, 3))
    windows = np.lib.stride_tricks.sliding_window_view(x * x, 2)
    return wide * wide[1], windows * windows[::-1], windows.sum(axis=1)


@program((4,))
def windows_after_an_overwrite(x):
    y = x * 1.0
    windows = np.lib.stride_tricks.sliding_window_view(y, 2)
    z = windows * windows
    y[1:3] = 7.0 * x[:2]
    return z, windows.sum(axis=0)


@program((5,))
def overwritten_by_constants(x):
    y = x * x
    z = y * y
    y[1:3] = 4.0
    y[[4, 4]] = [1.0, 2.0]
    w = y * x
    y[...] = 0.0
    return z, w, y


@program((5,))
def same_buffer_again_and_again(x):
    work = np.empty_like(x)
    total = 0.0
    for k in range(4):
        np.multiply(x, k + 1.0, out=work)
        work **= 2
        total = total + np.sin(work).sum()
    return total


@program((4,), (4,))
def mixed_with_plain_arrays(x, y):
    c = np.linspace(1.0, 2.0, 4)
    d = c[::-1].copy()
    z = c * x + y / c
    d += 0.0
    w = np.where(c > 1.5, z, d)
    c[:] = 0.0
    return z * w


@program((4,))
def constants_changed_later(x):
    c = np.ones(4)
    y = x * c
    z = np.zeros_like(x)
    for _ in range(3):
        c *= 2.0
        z += np.sin(x * c)
    return y, z


@program((3, 4))
def single_precision_inside(x):
    low = x.astype(np.complex64 if x.dtype.kind == "c" else np.float32)
    return low.astype(x.dtype) * x


@program((3, 4))
def methods(x):
    return (
        x.sum(axis=0, keepdims=True),
        x.dot(x.T),
        x.take([0, 5]),
        x.repeat(2, axis=1),
        x.trace(),
        x.compress([True, False, True], 0),
        x.flatten() * 2,
        x.diagonal() * 2,
        x.round(1) * x,
        x.conj() * x,
        x.ravel(order="F"),
        x[0].astype(int).choose([x[0], x[1]]) if x.dtype.kind == "f" else x[0],
        abs(x),
        +x,
        -x,
        x.cumprod(axis=0),
        x.squeeze(),
        x.T.copy(order="F"),
        x.mean(),
        x.std(),
        x.var(axis=1),
        x.__copy__() * x,
    )


PROGRAMS = [value for value in list(globals().values()) if type(value) is type(pytest.param())]


@pytest.mark.parametrize("dtype", KINDS, ids=lambda d: d.__name__)
@pytest.mark.parametrize(("f", "shapes", "kinds"), PROGRAMS)
def test_program_against_finite_differences(f, shapes, kinds, dtype):
    if dtype not in kinds:
        pytest.skip("the program is for the other kind of numbers")
    tolerance = 1e-2 if f.__name__ == "single_precision_inside" else 2e-8
    # NumPy multiplies complex scalars and complex arrays with different roundings.
    check_adjoint(f, arguments(shapes, dtype), tolerance, exact=dtype is np.float64)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("step", [1, -1, 2])
def test_programs_on_strided_arguments(order, step):
    def f(x):
        y = np.zeros_like(x)
        y[::-1] = x * x
        y.T[0] += x.T[1]
        return y

    base = random(np.random.default_rng(0), (8, 6), float)
    with ampi.Tape() as tape:
        whole = tape.watch(np.asarray(base, order=order))
        y = f(whole[::step, 1::2])
    bar = tape.gradient(y, whole, seed=np.ones_like(y))
    part = np.asarray(base, order=order)[::step, 1::2]
    expected = np.zeros_like(base)
    expected[::step, 1::2] = 2 * part
    expected[::step, 1::2].T[1] += 1.0
    np.testing.assert_allclose(bar, expected, rtol=1e-14)


# ---------------------------------------------------------------------------------------------- last write wins


def test_adjoint_of_repeated_assignment_goes_to_the_last_write():
    with ampi.Tape() as tape:
        x = tape.watch(np.zeros(3))
        v = tape.watch(np.array([1.0, 2.0, 3.0]))
        x[[0, 0, 2]] = v
    assert x.tolist() == [2.0, 0.0, 3.0]
    np.testing.assert_array_equal(tape.gradient(x, v, seed=[10.0, 20.0, 30.0]), [0.0, 10.0, 30.0])
    np.testing.assert_array_equal(tape.gradient(x, x, seed=[10.0, 20.0, 30.0]), [0.0, 20.0, 0.0])


def test_repeated_augmented_assignment_is_numpys():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        v = tape.watch(np.array([10.0, 20.0]))
        y = x * 1.0
        y[[0, 0]] += v
    np.testing.assert_array_equal(y, [21.0, 2.0])
    x_bar, v_bar = tape.gradient(y, [x, v], seed=[1.0, 1.0])
    np.testing.assert_array_equal(x_bar, [1.0, 1.0])
    np.testing.assert_array_equal(v_bar, [0.0, 1.0])


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


# --------------------------------------------------------------------------------------- nothing is lost in silence


@pytest.mark.parametrize(
    "convert", [float, int, complex, lambda x: x.item(), lambda x: x.tolist(), lambda x: np.array([x])]
)
def test_leaving_an_active_array_warns_once_per_line(convert):
    def run():
        with ampi.Tape() as tape:
            x = tape.watch(np.array([1.5]))
            for _ in range(3):
                convert(x[0])

    from ampi.arrays import losses as outside

    outside._warned.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    messages = [str(w.message) for w in caught if w.category is ampi.ActivityWarning]
    assert len(messages) == 1
    assert "ampi.value(x)" in messages[0] and "test_array.py" in messages[0]


def test_leaving_a_passive_array_does_not_warn():
    with ampi.Tape() as tape, warnings.catch_warnings():
        warnings.simplefilter("error")
        tape.watch(np.ones(1))
        assert float(ampi.numpy.ones(1)[0]) == 1.0
        with ampi.passive():
            assert tape.watch is not None and (2.0 * ampi.numpy.ones(2)).tolist() == [2.0, 2.0]


def test_plain_element_assignment_warns():
    plain = np.zeros(2)
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.5]))
        with pytest.warns(ampi.ActivityWarning, match="plain numpy array of shape"):
            plain[0] = x[0]


@pytest.mark.parametrize(
    "write",
    [
        lambda plain, x: np.add(x, 1.0, out=plain),
        lambda plain, x: np.sum(np.stack([x, x]), axis=0, out=plain),
        lambda plain, x: np.copyto(plain, x),
        lambda plain, x: np.add.at(plain, [0, 1, 2], x),
        lambda plain, x: np.multiply.at(plain, [0, 1, 2], x),
        lambda plain, x: np.dot(np.eye(3), x, out=plain),
        lambda plain, x: np.take(x, [0, 1, 2], out=plain),
        lambda plain, x: np.putmask(plain, plain == 0, x),
        lambda plain, x: np.put(plain, [0], x),
        lambda plain, x: np.exp(x, out=plain, where=x > 1),
        lambda plain, x: np.cumsum(x, out=plain),
        lambda plain, x: np.matmul(np.eye(3), x, out=plain),
        lambda plain, x: plain.__iadd__(x),
    ],
)
def test_active_values_do_not_enter_plain_arrays(write):
    plain = np.zeros(3)
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        with pytest.raises(ampi.ActivityError, match=r"ampi\.numpy"):
            write(plain, x)
    np.testing.assert_array_equal(plain, 0.0)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("unique", lambda x: np.unique(x)),
        ("spacing", lambda x: np.spacing(x)),
        ("cov", lambda x: np.cov(x)),
        ("lstsq", lambda x: np.linalg.lstsq(np.eye(3), x)),
        ("reduce", lambda x: np.subtract.reduce(x)),
        ("pad", lambda x: np.pad(x, 1, mode="linear_ramp")),
        ("slogdet", lambda x: np.linalg.slogdet((x[:, None] * x + np.eye(3)) * (1 + 1j))),
        ("svd", lambda x: np.linalg.svd(x[:2, None] * x)),
        ("byteswap", lambda x: x.byteswap()),
        ("resize", lambda x: x.resize(5)),
        ("sign", lambda x: np.sign(x * 1j)),
        ("histogram", lambda x: np.histogram(x, density=True)),
    ],
)
def test_functions_without_a_rule_say_so(name, call):
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 4.0]))
        with pytest.raises(ampi.ActivityError, match=name):
            call(x)
    if name != "resize":
        call(ampi.numpy.array([1.0, 2.0, 4.0]))


def test_constant_functions_pass():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.3, 2.6, 4.1]))
        y = (
            x * np.floor(x)
            + np.sign(x)
            + np.round(x)
            + x.argsort()
            + (x > 2)
            + np.isfinite(x)
            + np.searchsorted(x, 2.0)
        )
        y += np.rint(x) * np.heaviside(x, 0.5) + np.trunc(x) + x // 2 + np.zeros_like(x) + np.count_nonzero(x)
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(3)), [1.0, 2.0, 4.0])


def test_scipy_ufuncs_with_and_without_rules():
    special = pytest.importorskip("scipy.special")
    for f in (special.erf, special.gammaln, special.expit, special.j0, special.i1, special.psi):
        check_adjoint(lambda x, f=f: f(x), arguments([(5,)], float), 1e-7)
    check_adjoint(special.beta, arguments([(5,), (3, 1)], float), 1e-7)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(2))
        with pytest.raises(ampi.ActivityError, match="modstruve"):
            special.modstruve(1.0, 0.1 * x)


def test_active_values_do_not_become_objects():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        with pytest.raises(ampi.ActivityError, match="objects"):
            x.astype(object)
        with pytest.raises(ampi.ActivityError, match="objects"):
            ampi.numpy.empty(3, object)[...] = x
        with pytest.raises(ampi.ActivityError, match="objects"):
            ampi.numpy.empty(3, object)[[0, 1]] = x[0]


def test_fields_of_structured_arrays():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0, 3.0]))
        points = ampi.numpy.zeros(3, [("position", float, (2,)), ("kind", int), ("mass", np.float32)])
        points["position"][:, 1] = x * x
        points["mass"] = 2.0 * x
        points["kind"] = 7
        z = points["position"].sum() + points[["kind", "mass"]]["mass"].sum()
    np.testing.assert_array_equal(tape.gradient(z, x), [4.0, 6.0, 8.0])


def test_functions_that_work_in_their_argument_are_seen():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        c = ampi.numpy.array([3.0, np.nan, 1.0])
        d = ampi.numpy.array([3.0, 2.0, 1.0])
        y = x * c + x * d
        np.nan_to_num(c, copy=False)
        np.median(d, overwrite_input=True)
        np.copyto(dst=d, src=x)
        np.random.default_rng(0)
    np.testing.assert_array_equal(tape.gradient(y, x, seed=[1.0, 0.0, 1.0])[[0, 2]], [6.0, 2.0])
    np.testing.assert_array_equal(c, [3.0, 0.0, 1.0])


def test_random_generators_announce_their_shuffles():
    rng = ampi.numpy.random.default_rng(1)
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(4))
        c = rng.permutation(4) * 1.0
        before = ampi.value(c)
        y = x * c
        rng.shuffle(c)
        ampi.numpy.random.shuffle(c)
        with pytest.raises(ampi.ActivityError, match="shuffle"):
            rng.shuffle(x)
        for draw in (rng.normal, ampi.numpy.random.normal, rng.permutation, ampi.numpy.random.choice):
            with pytest.raises(ampi.ActivityError, match="random"):
                draw(x)
        assert rng.normal(c).shape == (4,) and rng.choice(c) in c
    np.testing.assert_array_equal(tape.gradient(y, x, seed=np.ones(4)), before)
    assert type(rng.random(3)) is ampi.ndarray and type(rng.random()) is float


def test_numpy_scalars_on_either_side():
    with ampi.Tape() as tape:
        x = tape.watch(np.array([1.0, 2.0]))
        y = np.float64(2.0) * x[0] + 3 * x[1] + np.sum(x, axis=0) * np.int64(2)
        quotient, rest = divmod(7.0 * x, 4.0)
        z = y + (quotient * rest).sum()
        assert isinstance(y, ampi.ndarray) and isinstance(z, ampi.ndarray)
    np.testing.assert_array_equal(tape.gradient(z, x), [4.0 + 7.0, 5.0 + 21.0])


def test_round_of_an_element():
    x = ampi.numpy.array([1.26, 2.5])
    assert round(x[0]) == 1 and type(round(x[0])) is int and round(x[0], 1) == 1.3
    with pytest.raises(TypeError, match="0-d"):
        round(x)


def test_numba_functions_given_active_arrays_are_named():
    @numba.njit
    def total(x):
        return x.sum()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        total(ampi.numpy.ones(3))
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        for _ in range(2):  # also when the function is compiled already
            with pytest.warns(ampi.ActivityWarning, match=r"test_array.py:\d+: .*numba.* ampi\.kernel"):
                total(x)
            ampi.arrays.losses._warned.clear()


def test_ampi_numpy_makes_tracked_arrays():
    anp = ampi.numpy
    assert all(hasattr(anp, name) for name in dir(np))
    assert anp.ndarray is ampi.ndarray and anp.sin is np.sin and anp.float64 is np.float64
    for made in (
        anp.array([1.0, 2.0]), anp.zeros(2), anp.ones((2, 2)), anp.empty(1), anp.full(2, 3.0), anp.arange(3.0),
        anp.linspace(0, 1, 3), anp.eye(2), anp.asarray(np.ones(2)), anp.zeros_like(np.ones(2)), anp.r_[0.0:1.0:3j],
        anp.mgrid[0:2, 0:2], anp.meshgrid([1.0], [2.0])[0], anp.fromfunction(lambda i: i * 1.0, (3,)),
        anp.where([True], 1.0, 2.0), anp.random.rand(2), anp.linalg.inv(np.eye(2)), anp.fft.fft(np.ones(2)),
        anp.stack([np.ones(2)]), anp.loadtxt(["1 2"]), anp.full_like(np.ones(2), 1.0), anp.tri(2), anp.sum([1.0, 2.0]),
        anp.lib.stride_tricks.as_strided(np.ones(3), (2,), (8,)),
    ):  # fmt: skip
        assert isinstance(made, ampi.ndarray)
        if made.ndim:
            made[...] = made
    a = np.ones(3)
    assert np.shares_memory(anp.asarray(a), a) and not np.shares_memory(anp.array(a), a)
    assert anp.zeros(3, order="F").dtype == float and anp.asfortranarray(np.ones((2, 2))).flags.f_contiguous
    assert anp.array([[1, 2]], ndmin=3).shape == (1, 1, 2) and anp.array(3.0).shape == ()


def test_ampi_numpy_with_active_values():
    anp = ampi.numpy

    def f(x):
        made = [
            anp.array([x[0], [x[1], 2.0][0], 3.0]),
            anp.array([[x[0], 1.0], [2.0, x[2]]]),
            anp.array([x, 2.0 * x]),
            anp.full(2, x[0]),
            anp.full_like(x, x[1]),
            anp.array(x),
            anp.array(x, copy=None, ndmin=2),
            anp.asarray(x.T, order="F"),
            anp.copy(x),
            anp.r_[x, x[0], 1.0],
            anp.c_[x, x],
            anp.vectorize(lambda a, b: a * b + a)(x, 3.0),
            anp.lib.stride_tricks.as_strided(x, (2,), (16,)),
            anp.stack([x, x]),
            anp.linalg.norm(x),
        ]
        return sum((m * m).sum() for m in made)

    x = np.array([1.0, 2.0, 3.0])
    step = 1e-6
    numbers = [(f(anp.asarray(x + d)) - f(anp.asarray(x - d))) / (2 * step) for d in step * np.eye(3)]
    np.testing.assert_allclose(ampi.grad(f)(x), numbers, rtol=1e-7)


def test_copies_of_structured_arrays():
    """Fields, nested fields and fields that are arrays; elements that a broadcast view names several times add up."""
    inner = np.dtype([("a", "f4"), ("b", "c16", (2,))])
    dtype = np.dtype([("x", "f8"), ("n", "i4"), ("inner", inner)])
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        s = ampi.numpy.zeros(3, dtype)
        s["x"] = x * x
        s["inner"]["a"] = x
        s["inner"]["b"][:, 1] = 1j * x
        t = s.copy()
        u = ampi.numpy.broadcast_to(s, (2, 3)).copy()
        s["x"] = 0
        y = t["x"] + 2 * t["inner"]["a"] + 3 * t["inner"]["b"][:, 1].imag + 10 * ampi.numpy.sum(u["x"], axis=0)
    assert np.allclose(tape.gradient(y, x, seed=np.ones(3)), 2 * np.arange(1.0, 4.0) * 21 + 5)


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
    """It takes what NumPy takes, and no lists that an assignment would spread out."""

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
    """With NumPy's warning; arrays of both kinds take such of both."""

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

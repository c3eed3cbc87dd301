"""Programs with views, in-place operators, masks and scalars: gradients against finite differences."""

import numpy as np
import pytest
from array_kinds import arguments, program
from derivative_check import check_adjoint, random

import ampi

KINDS = [np.float64, np.complex128]


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

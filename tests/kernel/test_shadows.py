"""Shadows that adjoints only read, which may be the user's seed, and shadows that they set rather than add to."""

import numpy
import pytest

import ampi
import ampi.numpy

RNG = numpy.random.default_rng(17)
X = RNG.uniform(0.5, 1.5, 12)


def squares(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]


def inside(x, y):
    for i in range(1, x.shape[0] - 1):
        y[i] = x[i - 1] * x[i + 1]


def one_side(x, y):
    for i in range(x.shape[0]):
        if x[i] > 1.0:
            y[i] = x[i] * x[i]
        else:
            y[i] = 3.0 * x[i]


def ends_apart(x, y):
    n = x.shape[0]
    y[0] = x[0] * x[1]
    for i in range(1, n):
        y[i] = x[i] * x[i - 1]


def twice(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
    for i in range(3):
        y[2 * i] = 2.0 * x[i]


def turned(x, y):
    n = x.shape[0]
    for i in range(n):
        y[i % 7] = x[i] * x[i]


def from_behind(x, y):
    n = x.shape[0]
    y[n - 1] = x[0] * x[0]
    y[-1] = x[1] * x[1]


def read_again(x, y):
    y[0] = x[0]
    for i in range(1, x.shape[0]):
        y[i] = y[i - 1] * x[i]


def added(x, y):
    for i in range(x.shape[0]):
        y[i] += x[i] * x[i]


def recurrence(x, y):
    s = 0.5
    for i in range(x.shape[0]):
        s = s * x[i] + 0.1
        y[i] = s


def in_a_branch(x, y):
    for i in range(x.shape[0]):
        if i != 3:
            y[i] = x[i] * x[i]


def for_others(x, y):
    for i in range(y.shape[0]):
        y[i] = x[i] * x[i]


def again_and_again(x, y):
    for k in range(2):
        for i in range(x.shape[0]):
            y[i] += x[i] * x[i] * (k + 1)


def a_part(x, y):
    for i in range(x.shape[0] - 1):
        y[i] = x[i] * x[i]


def downwards(x, y):
    for i in range(x.shape[0] - 1, -1, -1):
        y[i] = x[i] * x[i]


READ_ONLY = (squares, inside, one_side, ends_apart, recurrence, in_a_branch, for_others, a_part, downwards)
SET = (squares, one_side, added, recurrence, turned)
KERNELS = {f.__name__: f for f in (*READ_ONLY, twice, turned, from_behind, read_again, added, again_and_again)}


def seeded(np, call, x):
    """The array that the kernel writes is the result."""
    y = np.zeros(x.shape)
    call(x, y)
    return y


def parts(np, call, x):
    """Two calls write parts of one array; a third part is constant."""
    y = np.zeros((3, x.shape[0]))
    call(x, y[0])
    call(x, y[2])
    y[1] = 2.0
    return y


def anew(np, call, x):
    """An array is written, overwritten by constants, and written again."""
    y = np.zeros(x.shape)
    call(x, y)
    z = y * 2.0
    y[...] = 0.5
    call(x, y)
    return y * z


def used_besides(np, call, x):
    """The written array is used by another call and by NumPy, and changed afterwards."""
    y, z = np.zeros(x.shape), np.zeros(x.shape)
    call(x, y)
    call(y, z)
    z += y
    y *= x
    return z * y


def first_half(np, call, x):
    """The kernel gets a part of the watched array."""
    y = np.zeros(6)
    call(x[3:9], y)
    return y * x[:6]


def several_uses(np, call, x):
    """The kernel's argument is also read by another call and by NumPy."""
    y, z = np.zeros(x.shape), np.zeros(x.shape)
    w = x * x
    call(w, y)
    call(w, z)
    return y * z + w


PROGRAMS = (seeded, parts, anew, used_besides, first_half, several_uses)


def differences(program, function, x, seed):
    """Fourth-order central differences."""
    found = numpy.zeros(x.shape)
    for k in range(x.size):
        for weight, steps in ((8.0, 1), (-1.0, 2)):
            ends = []
            for sign in (1, -1):
                moved = x.copy()
                moved[k] += sign * steps * 1e-3
                ends.append(numpy.sum(seed * program(numpy, function, moved)))
            found[k] += weight * (ends[0] - ends[1]) / 12e-3
    return found


@pytest.mark.parametrize("without", ["", "ends,new"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_gradients(program, name, without):
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(KERNELS[name], without=without)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = program(ampi.numpy, kernel, x)
    first = next(iter(kernel.contracts.values()))
    assert bool(first.ends) == (not without and KERNELS[name] in READ_ONLY)
    assert set(first.new) == ({0} if not without and KERNELS[name] in SET else set())
    seed = rng.standard_normal(y.shape)
    given = seed.copy()
    expected = differences(program, KERNELS[name], X, seed)
    for _ in range(2):
        numpy.testing.assert_allclose(tape.gradient(y, x, seed=given), expected, rtol=1e-8, atol=1e-8)
        numpy.testing.assert_array_equal(given, seed)


def read_only(seed):
    seed.flags.writeable = False
    return seed


SEEDS = {
    "as it is": lambda seed: seed,
    "read-only": read_only,
    "reversed": lambda seed: seed[::-1],
    "every second": lambda seed: numpy.repeat(seed, 2)[::2],
    "single": lambda seed: seed.astype(numpy.float32),
    "integers": lambda seed: numpy.arange(seed.size),
    "of a subclass": lambda seed: seed.view(numpy.matrix).A1,
    "tracked": lambda seed: ampi.numpy.asarray(seed),
    "list": lambda seed: seed.tolist(),
    "number": lambda seed: 2.0,
}


@pytest.mark.parametrize("kind", SEEDS)
def test_seeds(kind):
    rng = numpy.random.default_rng(11)
    given = SEEDS[kind](rng.standard_normal(X.shape))
    kernel = ampi.kernel(squares)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = seeded(ampi.numpy, kernel, x)
    before = numpy.array(given)
    found = tape.gradient(y, x, seed=given)
    numpy.testing.assert_allclose(found, 2.0 * X * before, rtol=1e-6 if kind == "single" else 1e-14)
    numpy.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("program", [lambda y: y, numpy.asarray, lambda y: numpy.asarray(y)[:]])
def test_the_output_as_its_own_seed(program):
    """The sweep restores earlier values in memory, but the seed is the final value."""
    kernel = ampi.kernel(squares)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = ampi.numpy.zeros(X.shape)
        kernel(x, y)
        z = y * y
        kernel(x, y)
        z += y
        y *= z
    final = numpy.array(y)
    found = tape.gradient(y, x, seed=program(y))
    numpy.testing.assert_allclose(found, gradient_of(X) * final, rtol=1e-12)
    numpy.testing.assert_array_equal(y, final)


def gradient_of(x):
    """Of x² (x⁴ + x²)."""
    return 6.0 * x**5 + 4.0 * x**3


def test_a_seed_for_several_outputs():
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(squares)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y, z = seeded(ampi.numpy, kernel, x), seeded(ampi.numpy, kernel, x)
    seed = rng.standard_normal(X.shape)
    numpy.testing.assert_allclose(tape.gradient((y, z, y), x, seed=(seed, seed, seed)), 6.0 * X * seed, rtol=1e-14)


def test_the_seed_of_an_independent_is_not_its_gradient():
    rng = numpy.random.default_rng(11)
    with ampi.Tape() as tape:
        x = tape.watch(X)
    seed = rng.standard_normal(X.shape)
    found = tape.gradient(x, x, seed=seed)
    assert not numpy.shares_memory(found, seed)
    numpy.testing.assert_array_equal(found, seed)


def outer(x, w, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            y[i, j] = x[i, j] * w[j]


def across(x, w, y):
    for j in range(x.shape[1]):
        for i in range(x.shape[0]):
            y[i, j] = x[i, j] * w[j]


def rows_alone(x, w, y):
    for i in range(x.shape[0]):
        for j in range(x.shape[0]):
            y[i, j] = x[i, j] * w[j]


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("kernel, new", [(outer, (0,)), (across, ()), (rows_alone, ())])
def test_in_two_dimensions(kernel, new, order):
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(kernel)
    x0, w0 = numpy.asarray(rng.standard_normal((4, 4)), order=order), rng.standard_normal(4)
    seed = rng.standard_normal((4, 4))
    for _ in range(3):  # previous contents of memory must not affect the results
        with ampi.Tape() as tape:
            x, w = tape.watch(ampi.numpy.array(x0, order=order)), tape.watch(w0)
            y = ampi.numpy.empty((4, 4))
            kernel(x, w, y)
        x_bar, w_bar = tape.gradient(y, [x, w], seed=seed)
        numpy.testing.assert_allclose(x_bar, seed * w0, rtol=1e-14)
        numpy.testing.assert_allclose(w_bar, numpy.sum(seed * x0, axis=0), rtol=1e-13)
    assert {contract.new for contract in kernel.contracts.values()} == {new}


def with_its_part(x, first, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i]
    y[0] = y[0] + 3.0 * first[0]


def test_an_argument_and_a_part_of_it():
    kernel = ampi.kernel(with_its_part)
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = ampi.numpy.zeros(X.shape)
        kernel(x, x[:1], y)
    expected = 2.0 * X
    expected[0] += 3.0
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(X.shape)), expected, rtol=1e-14)


def test_nothing_at_all():
    kernel = ampi.kernel(squares)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.zeros(0))
        y = seeded(ampi.numpy, kernel, x)
    assert tape.gradient(y, x, seed=numpy.zeros(0)).shape == (0,)


def test_complex_numbers():
    rng = numpy.random.default_rng(11)
    kernel = ampi.kernel(squares)
    z0 = X + 1j * X[::-1]
    with ampi.Tape() as tape:
        z = tape.watch(z0)
        y = ampi.numpy.zeros(z0.shape, complex)
        kernel(z, y)
    seed = rng.standard_normal(X.shape) + 1j * rng.standard_normal(X.shape)
    numpy.testing.assert_allclose(tape.gradient(y, z, seed=seed), seed * numpy.conj(2.0 * z0), rtol=1e-14)

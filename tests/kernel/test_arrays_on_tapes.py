"""Array kernels on tapes: structured arrays, layouts, one array passed twice, returned parts of arguments."""

import numpy as np
import pytest
from kernel_checks import Check, float_arguments
from test_arrays import CASES, arguments_of

import ampi
from ampi.errors import ActivityError

# ------------------------------------------------------------------------------------------- on a tape


@ampi.kernel
def diffuse(u, v, a):
    v[1:-1] = u[1:-1] + 0.1 * a * (u[2:] - 2 * u[1:-1] + u[:-2])
    u[:] = v * v


@ampi.kernel
def weighted(u, w, out):
    out[:] = u * w + np.sin(u)


ATOM = np.dtype([("x", "f8"), ("kind", "i4"), ("label", "S3"), ("p", "f8", (2,)), ("q", [("a", "f4"), ("b", "f8")])])


@ampi.kernel
def forces(atoms, f, index):
    e = 0.0
    for i in range(len(atoms)):
        a = atoms[i]
        for j in range(atoms.shape[0]):
            if i != j:
                b = atoms[j]
                r = (a.x - b["x"]) ** 2 + a.p[1] * atoms["p"][j, 0] * b.q.b
                e += 1 / r
                f[i] += a.x / r
    atoms["x"][:] = 2 * atoms.x * atoms["p"][:, 1][index]
    for i, a in enumerate(atoms):
        a.x += e * a.kind
        atoms[i]["p"][0] = a.x * atoms[0].kind
        atoms.p[i] *= 2.0
    atoms[1] = atoms[2]
    return e


def test_structured_arrays():
    rng = np.random.default_rng(0)
    atoms, index, weights = np.zeros(4, ATOM), np.array([0, 1, 1, 3]), rng.normal(size=4)
    for name in ("x", "p"):
        atoms[name] = rng.uniform(0.5, 1.5, atoms[name].shape)
    atoms["q"]["b"], atoms["kind"] = rng.uniform(0.5, 1.5, 4), [1, 2, 3, 1]

    def value(atoms):
        atoms, f = atoms.copy(), np.zeros(4)
        e = forces(atoms, f, index)
        return e + (weights * f).sum() + (atoms["x"] ** 2).sum() + (atoms["p"] ** 3).sum()

    with ampi.Tape() as tape:
        watched, f = tape.watch(atoms), ampi.numpy.zeros(4)
        e = forces(watched, f, index)
        y = e + (weights * f).sum() + (watched["x"] ** 2).sum() + (watched["p"] ** 3).sum()
    bar = tape.gradient(y, watched)
    np.testing.assert_allclose(y, value(atoms), rtol=1e-14)
    for get in (lambda a: a["x"], lambda a: a["p"], lambda a: a["q"]["b"]):
        d, h = rng.normal(size=get(atoms).shape), 1e-5
        moved = []
        for step in (h, -h):
            there = atoms.copy()
            get(there)[...] += step * d
            moved.append(value(there))
        np.testing.assert_allclose(np.sum(get(bar) * d), (moved[0] - moved[1]) / (2 * h), rtol=1e-7)


def gradient(kernel, *arguments):
    """The gradient, with respect to all arguments, of the sum of the last one's squares after the call."""
    with ampi.Tape() as tape:
        watched = [tape.watch(a) for a in arguments]
        kernel(*watched)
        y = (watched[-1] * watched[-1]).sum()
    return tape.gradient(y, watched)


LAYOUTS = {
    "strided": lambda a: np.repeat(a, 2, axis=-1)[..., ::2],
    "reversed": lambda a: a[::-1].copy()[::-1],
    "fortran": np.asfortranarray,
    "transposed": lambda a: a.T.copy().T,
}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["heat_in_two_dimensions", "rows_and_columns"])
def test_layouts(name, layout):
    function, _, _ = CASES[name]
    arguments = [LAYOUTS[layout](a) if isinstance(a, np.ndarray) else a for a in arguments_of(name)]
    Check(function, arguments, tuple(float_arguments(function, arguments))).compare(1e-12)


def test_one_array_for_two_arguments():
    """Values are computed before they are stored, even if the source does not show that two arguments are one array."""
    rng = np.random.default_rng(0)
    u, a, d = (rng.uniform(0.5, 1.5, 9) for _ in range(3))

    def after(u, coefficient):
        u = u.copy()
        u[1:-1] = u[1:-1] + 0.1 * coefficient * (u[2:] - 2 * u[1:-1] + u[:-2])
        return np.sum((u * u) ** 2)

    with ampi.Tape() as tape:
        x, c = tape.watch(u), tape.watch(0.7)
        diffuse(x, x, c)
        y = (x * x).sum()
    np.testing.assert_allclose(y, after(u, 0.7), rtol=1e-14)
    h = 1e-5
    expected = (after(u + h * d, 0.7 + h) - after(u - h * d, 0.7 - h)) / (2 * h)
    u_bar, c_bar = tape.gradient(y, [x, c])
    np.testing.assert_allclose(u_bar @ d + c_bar, expected, rtol=1e-9)


@ampi.kernel
def scaled_parts(x, c):
    x[0] *= c
    return x[1:-1], x[::2] * c, [x[0], c], x[::-2]


def test_a_part_that_is_returned_is_part_of_the_argument():
    """As in NumPy, with and without a tape: writing into it changes the argument, and derivatives follow."""
    values, weights = np.linspace(0.5, 1.5, 6), np.linspace(1.0, 2.0, 4)

    def program(x, c, np):
        inner, new, (first, _), back = scaled_parts(x, c)
        inner[1] = inner[0] * 3.0
        return np.sum(weights * inner * x[2:]) + np.sum(new * back) * first

    plain = values.copy()
    expected = program(plain, 0.7, np)
    with ampi.Tape() as tape:
        x, c = tape.watch(values), tape.watch(0.7)
        y = program(x, c, ampi.numpy)
    np.testing.assert_allclose(ampi.value(y), expected, rtol=1e-14)
    np.testing.assert_allclose(ampi.value(x), plain, rtol=1e-14)
    x_bar, c_bar = tape.gradient(y, [x, c])
    tracked = ampi.numpy.array(values)
    inner = scaled_parts(tracked, 0.7)[0]
    assert isinstance(inner, ampi.ndarray)
    inner[0] = 5.0
    assert tracked[1] == 5.0
    d, h = np.linspace(-1.0, 1.0, 6), 1e-5
    moved = [program(values + t * d, 0.7 + t, np) for t in (h, -h)]
    np.testing.assert_allclose(x_bar @ d + c_bar, (moved[0] - moved[1]) / (2 * h), rtol=1e-8)


@ampi.kernel
def joined(a, b):
    return a * b + np.maximum(a, b)


@ampi.kernel
def stretched(x, y, out):
    out[:] = joined(x, y)
    out *= np.where(x > 1.0, x, y)
    out += y[:, :2].sum()


@pytest.mark.parametrize(
    ("shapes", "dtype"),
    [
        (((3, 4), (3, 4)), np.float64),
        (((3, 1), (3, 4)), np.float32),
        (((3, 1), (1, 4)), np.float64),
        (((1, 4), (1, 4)), np.float64),
    ],
)
def test_axes_of_size_one_of_arguments_stretch(shapes, dtype):
    """As in NumPy, also in called kernels; one kernel takes shapes that are broadcast and shapes that are not."""
    rng = np.random.default_rng(5)
    x, y = (rng.uniform(0.5, 1.5, shape) for shape in shapes)
    bars = gradient(stretched, *(a.astype(dtype) for a in (x, y, np.zeros((3, 4)))))

    def objective(*arrays):
        stretched.py_func(*arrays, out := np.zeros((3, 4)))
        return np.sum(out * out)

    for a, bar in zip((x, y), bars):
        d, differences = rng.uniform(-1.0, 1.0, a.shape), []
        for h in (1e-4, 5e-5):
            ends = [objective(*(b + t * d if b is a else b for b in (x, y))) for t in (h, -h)]
            differences.append((ends[0] - ends[1]) / (2 * h))
        best = (4 * differences[1] - differences[0]) / 3
        assert bar.shape == a.shape and bar.dtype == dtype
        np.testing.assert_allclose(np.sum(bar * d), best, rtol=2e-5 if dtype is np.float32 else 1e-8)


@ampi.kernel
def part_that_stretches(x, y, out):
    n = x.shape[0] // 2
    out[:] = x[n : n + 1] * y


def test_an_axis_of_size_one_that_stretches_unseen_is_refused():
    u, out = np.linspace(0.5, 1.5, 4), np.zeros(4)
    w_bar = gradient(weighted, u, u, out)[1]
    assert w_bar.shape == (4,)
    assert gradient(weighted, u, np.ones(1), out)[1].shape == (1,)
    with pytest.raises(ActivityError, match=r"test_arrays_on_tapes.py:\d+: in kernel 'part_that_stretches'.*x\[0\]"):
        gradient(part_that_stretches, u, u, out)

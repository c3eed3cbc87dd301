"""Random kernels that choose among numbers some of which are nan, compared with differences of Numba's values."""

import random

import numba
import numpy as np
import pytest
from kernel_checks import Check
from written import written

import ampi

CHOICES = [
    "max({a}, {b})",
    "min({a}, {b})",
    "max({a}, {b}, {c})",
    "min({a}, {b}, {c})",
    "np.fmax({a}, {b})",
    "np.fmin({a}, {b})",
    "max(min({a}, {b}), {c})",
    "({a} if {a} > {b} else {b})",
    "({b} if {a} < {b} else {a})",
    "(0.0 if np.isnan({a}) else {a} * {b})",
]
LOOPS = [
    "t = max(t, x[i])",
    "t = max(x[i], t)",
    "t = min(t, x[i] * y[i])",
    "t = min(x[i], y[i], t)",
    "t = np.fmax(x[i], t)",
    "t = np.fmin(t, y[i])",
    "if x[i] > t: t = x[i] * x[i]",
    "if not x[i] <= t: t = y[i]",
]


def with_gaps(seed):
    """A random kernel that chooses among numbers some of which are nan, and its arguments."""
    draw = random.Random(seed)
    names = ["x[0]", "x[1]", "x[2]", "y[0]", "y[1]", "s"]
    picked = lambda text: text.format(a=draw.choice(names), b=draw.choice(names), c=draw.choice(names))
    lines = [f"    t = {picked(draw.choice(CHOICES))}", f"    u = {picked(draw.choice(CHOICES))}"]
    for _ in range(2):
        kind = draw.choice(["range", "range", "numba.prange"])
        lines += [f"    for i in {kind}(len(x)):", "        " + draw.choice(LOOPS if kind == "range" else LOOPS[:3])]
        lines.append(f"    v{len(lines)} = {picked(draw.choice(CHOICES))} * 2.0")
        lines.append(f"    r[{len(lines) % 3}] = v{len(lines) - 1}")
    lines += [
        "    r[0] = t",
        "    r[3] = u",
        f"    return {draw.choice(['np.nanmax(x)', 'np.nanmin(y)', 'np.nansum(x)'])}",
    ]
    text = "\n".join(["def kernel(x, y, s, r):", *lines, ""])
    values = np.random.default_rng(seed).uniform(0.5, 2.0, 13)
    values[np.random.default_rng(seed + 1).random(13) < 0.3] = np.nan
    return text, (values[:6], values[6:12], 0.9 if draw.random() < 0.7 else np.nan)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s % 3 else []) for s in range(24)])
def test_what_is_chosen_where_something_is_not_a_number(seed):
    """If a result is not nan, its derivative equals differences, or is nan where zero was multiplied by nan."""
    text, (x, y, s) = with_gaps(seed)
    known = written(text, f"gaps {seed}", np=np, numba=numba)
    kernel, plain = ampi.kernel(known["kernel"]), numba.njit(known["kernel"])

    def results(x, y, s):
        r = np.zeros(4)
        return np.array([plain(x, y, s, r), *r])

    value, h, compared = results(x, y, s), 1e-6, 0
    for k in range(5):
        if not np.isfinite(value[k]):
            continue
        with ampi.Tape() as tape:
            given = tape.watch(x), tape.watch(y), tape.watch(np.array(s))
            r = ampi.numpy.zeros(4)
            first = kernel(*given, r)
            output = first if k == 0 else r[k - 1]
        if not tape.is_active(output):
            continue
        bars = tape.gradient(output, given)
        for n, (a, bar) in enumerate(zip((x, y, np.array(s)), bars)):
            for place in np.ndindex(a.shape):
                near = [np.array(v) for v in (x, y, s)]
                there = []
                for d in (h, -h):
                    near[n] = a.copy()
                    near[n][place] += d
                    there.append(results(near[0], near[1], float(near[2]))[k])
                difference = (there[0] - there[1]) / (2 * h) if np.isfinite(a[place]) else 0.0
                if np.isnan(bar[place]):
                    continue
                compared += 1
                np.testing.assert_allclose(
                    bar[place], difference, rtol=1e-6, atol=1e-8, err_msg=f"{text}\n{k} {n} {place}"
                )
    assert compared or not np.isfinite(value).any()


def places(a, m, b, w, out):
    out[0] = b[np.argmax(a)]
    out[1] = b[np.argmin(a)]
    out[2] = b[a.argmax()] * b[(a * 2.0).argmin()]
    rows, columns = np.argmax(m, axis=0), np.argmin(m, axis=1)
    out[3] = w[rows[0], 0] * w[rows[1], 1]
    out[4] = w[0, columns[0]] * w[1, columns[1]] * w[2, columns[2]]
    out[5] = w[np.argmax(m) // 2, np.argmax(m) % 2] * w[np.argmin(m) // 2, np.argmin(m) % 2]


def largest(a, m, b, w, out):
    out[0] = np.max(a)
    out[1] = np.min(a)
    out[2] = a.max() * 2.0 + b[0]
    out[3] = np.amin(m)
    out[4] = np.max(m)
    out[5] = np.min(a * b)


def slopes_of_places(a, m, b, w):
    """The derivatives of the outputs of `places` with respect to b and w."""
    up, down = np.argmax(a), np.argmin(a)
    b_bars, w_bars = np.zeros((6, *b.shape)), np.zeros((6, *w.shape))
    b_bars[0, up] = b_bars[1, down] = 1.0
    b_bars[2, up] += b[down]
    b_bars[2, down] += b[up]
    rows, columns = np.argmax(m, axis=0), np.argmin(m, axis=1)
    pairs = {3: [(rows[k], k) for k in range(2)], 4: [(k, columns[k]) for k in range(3)]}
    pairs[5] = [np.unravel_index(np.argmax(m), m.shape), np.unravel_index(np.argmin(m), m.shape)]
    for row, chosen in pairs.items():
        for k, place in enumerate(chosen):
            w_bars[(row, *place)] += np.prod([w[other] for j, other in enumerate(chosen) if j != k])
    return {"b": b_bars, "w": w_bars}


def slopes_of_largest(a, m, b, w):
    """The same of `largest`, with respect to a and m: NumPy's argmax and argmin are the first NaN, too."""
    a_bars, m_bars = np.zeros((6, *a.shape)), np.zeros((6, *m.shape))
    a_bars[0, np.argmax(a)] = a_bars[1, np.argmin(a)] = 1.0
    a_bars[2, np.argmax(a)] = 2.0
    m_bars[3].flat[np.argmin(m)] = m_bars[4].flat[np.argmax(m)] = 1.0
    a_bars[5, np.argmin(a * b)] = b[np.argmin(a * b)]
    return {"a": a_bars, "m": m_bars}


@pytest.mark.parametrize("kernel, slopes", [(places, slopes_of_places), (largest, slopes_of_largest)])
def test_the_first_nan_is_the_largest_and_the_smallest(kernel, slopes):
    """As in NumPy; otherwise the first of equal elements is."""
    draw, check = np.random.default_rng(4), None
    for _ in range(60):
        a, m = draw.integers(-2, 3, 4).astype(float), draw.integers(-2, 3, (3, 2)).astype(float)
        for x in (a, m):
            x[draw.random(x.shape) < draw.choice([0.0, 0.3, 0.9])] = np.nan
        b, w = draw.uniform(0.5, 1.5, 4), draw.uniform(0.5, 1.5, (3, 2))
        expected = slopes(a, m, b, w)
        arguments = [a, m, b, w, np.zeros(6)]
        active = tuple(expected)
        check = Check(kernel, arguments, active) if check is None else check.at(arguments)
        direction = {n: draw.standard_normal(check.value[n].shape) for n in active}
        rows = len(expected[active[0]])
        tangents = dict(zip(check.tangent.shadows, check.tangents(direction)))["out"][:rows]
        slope = sum(np.sum(expected[n] * direction[n], axis=tuple(range(1, expected[n].ndim))) for n in active)
        np.testing.assert_allclose(tangents, slope, atol=1e-14)
        for row in range(rows):
            seed = {n: np.zeros_like(check.value[n]) for n in check.adjoint.shadows}
            seed["out"][row] = 1.0
            bars = check.adjoints(seed, [])
            for n in active:
                np.testing.assert_allclose(
                    bars[n], expected[n][row], atol=1e-14, err_msg=f"{kernel.__name__} {row} {a} {m}"
                )


def pairs(x, y, r):
    r[:] = np.maximum(x, y[0]) + np.minimum(y[1], x)


def carried_through_elements(x, y, r):
    for k in range(3):
        for i in range(x.shape[0]):
            x[i] = np.maximum(x[i], y[k, i] * 2.0)
            x[i] = np.minimum(y[k, 2 - i], x[i] * 1.0)
    r[:] = x


def carried_largest(x, y, r):
    m = -1e9
    for i in range(x.shape[0]):
        m = np.maximum(m, x[i])
    r[0] = m


def carried_smallest(x, y, r):
    m = 1e9
    for i in range(x.shape[0]):
        m = np.minimum(x[i], m)
    r[0] = m


@pytest.mark.parametrize("kernel", [pairs, carried_through_elements, carried_largest, carried_smallest])
def test_what_is_nan_has_the_derivative_of_the_first_nan(kernel):
    """NumPy's maximum and minimum are NaN if an argument is; results are NaN, and derivatives say where from."""
    compiled = ampi.kernel(kernel)
    draw = np.random.default_rng(2)
    for _ in range(20):
        x, y = draw.integers(-2, 3, 3).astype(float), draw.integers(-2, 3, (3, 3)).astype(float)
        for a in (x, y):
            a[draw.random(a.shape) < 0.3] = np.nan
        found = []
        for call in (compiled, kernel):

            def total(x, y, call=call):
                u, r = x * 1.0, ampi.numpy.zeros(3)
                call(u, y, r)
                return ampi.numpy.sum(r)

            value, bars = ampi.value_and_grad(total, argnums=(0, 1))(x, y)
            found.append((float(value), *bars))
        for of_kernel, of_arrays in zip(*found):
            np.testing.assert_array_equal(of_kernel, of_arrays)
        if kernel is carried_largest:
            np.testing.assert_array_equal(found[0][1], np.arange(3) == np.argmax(x))
        if kernel is carried_smallest:  # of equal numbers the last is taken
            nan = np.isnan(x)
            last = 2 - np.argmax((nan if nan.any() else x == np.min(x))[::-1])
            np.testing.assert_array_equal(found[0][1], np.arange(3) == last)
        if kernel is pairs:
            at = lambda a, b: np.isnan(a) | (a >= b)
            np.testing.assert_array_equal(found[1][1], at(x, y[0]) * 1.0 + ~at(-y[1], -x))

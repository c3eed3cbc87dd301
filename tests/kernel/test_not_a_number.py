"""Random kernels that choose among numbers some of which are nan, compared with differences of Numba's values."""

import random

import numba
import numpy as np
import pytest
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

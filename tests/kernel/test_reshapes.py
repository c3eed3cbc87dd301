"""Reshaped views, and indices that are quotients and remainders: random programs, compared with Python and Numba."""

import itertools
import math
import random
import re

import numba
import numpy as np
import pytest
from derivative_check import difference
from second_check import check_second
from written import examined, written

import ampi

SIZES = {"a": (2, 3, 4), "x": (24,), "w": (4, 6), "f": (2, 12)}
WHOLE = [*SIZES, "(a * 1.5)", "np.sin(w)", "f.copy()", "np.ascontiguousarray(w.T)", "a.copy().reshape(n, 12)"]
SHAPES = [shape for k in (1, 2, 3, 4) for shape in itertools.product((1, 2, 3, 4, 6, 8, 12, 24), repeat=k)
          if math.prod(shape) == 24]  # fmt: skip
NAMED = {2: ["2", "n", "a.shape[0]", "f.shape[0]"], 3: ["3", "m", "a.shape[1]"], 4: ["4", "k", "w.shape[0]"],
         6: ["6", "w.shape[1]", "n * m"], 8: ["8", "n * k"], 12: ["12", "f.shape[1]", "m * k"], 24: ["24", "len(x)"],
         1: ["1"]}  # fmt: skip
COUNTED = [
    "w[{q} // 6, {q} % 6]",
    "w[{q} // w.shape[1], {q} % w.shape[1]]",
    "w[{q} // w.shape[1], {q} % w.shape[1]]",
    "a[{q} // k // m, {q} // k % m, {q} % k]",
    "a[{q} // (m * k), {q} // k % m, {q} % k]",
    "a[{q} % n, {q} // n % m, {q} // n // m % k]",
    "f[{q} // f.shape[1], {q} % f.shape[1]]",
    "f[{q} % n, {q} // n]",
    "x[{q} % 6 * 4 + {q} // 6]",
]
PLACES = ["q", "q", "q", "(q - 7)", "(i * k + j)", "(j * 4 + i)", "(p * 12 + i * k + j)"]
LOOPS = {
    "q": "for q in range(-24, 24):",
    "(q - 7)": "for q in range(24):",
    "(i * k + j)": "for i in range(m):\n        for j in range(k):",
    "(j * 4 + i)": "for i in range(k):\n        for j in range(m):",
    "(p * 12 + i * k + j)": "for p in range(n):\n      for i in range(m):\n        for j in range(k):",
}


def on_threads(seed):
    """Return whether to run on threads, where Numba's reshape takes no -1 and prange no negative numbers."""
    return seed % 5 == 3


def program(seed):
    """A kernel of arrays with 24 elements, whose five results depend on reshaped views."""
    draw = random.Random(seed)
    lines, names = ["n, m, k = a.shape", "r = np.zeros(5)"], []

    def shaped(shape):
        sizes = [draw.choice(NAMED[size]) for size in shape]
        if draw.random() < 0.3 and not on_threads(seed):
            sizes[draw.randrange(len(sizes))] = "-1"
        text = f"({', '.join(sizes)},)"
        source = draw.choice([*WHOLE, *names])
        return draw.choice([f"np.reshape({source}, {text})", f"{source}.reshape({text})"])

    for number in range(draw.randint(2, 4)):
        name, shape = f"v{number}", draw.choice(SHAPES)
        axes = range(len(shape))
        kind = draw.choice(["product", "sum", "elements", "counted", "written", "matrix"])
        at = f"r[{number}]"
        if kind in ("product", "sum"):
            other = [size if draw.random() < 0.6 else 1 for size in shape]
            lines.append(f"{name} = {shaped(shape)}")
            names.append(name)
            if kind == "product" and math.prod(other) == 24:
                lines.append(f"{at} += np.sum({name} * {shaped(other)} * {name})")
            else:
                lines.append(f"{at} += np.tanh(np.sum({name} * {name}, axis={draw.choice(axes)})).sum()")
        elif kind == "elements":
            lines.append(f"{name} = {shaped(shape)}")
            names.append(name)
            lines.append("t = 0.0")
            lines += [f"{'  ' * axis}for q{axis} in range({name}.shape[{axis}]):" for axis in axes]
            index = ", ".join(f"q{axis}" for axis in axes)
            lines.append(f"{'  ' * len(shape)}t += {name}[{index}] * {name}[{index}] * x[q{len(shape) - 1} % 5]")
            lines.append(f"{at} += t")
        elif kind == "counted":
            place = draw.choice(PLACES)
            one, two = (draw.choice(COUNTED).format(q=place) for _ in range(2))
            bound = "range(-6, 12):" if "a[" in one + two or "f[" in one + two else "range(-24, 24):"
            loop = LOOPS[place].replace("range(-24, 24):", bound).replace("range(24):", "range(12, 31):")
            lines.append(f"t = 0.0\n    {loop}\n            t += {one} * {two}\n    {at} += t")
        elif kind == "written":
            lines.append(f"{name} = {draw.choice(['a', 'w', 'f', 'x'])}.copy()")
            lines.append(f"u = {name}.reshape(({', '.join(draw.choice(NAMED[size]) for size in shape)},))")
            change = draw.choice(["u *= u", "u[0] += np.sin(u[0])", "u[-1] = x[3] * u[0]"])
            lines.append(f"{change}\n    {at} += np.sum({name} * {name})")
        else:
            left, inner = draw.choice([(2, 12), (4, 6), (3, 8), (12, 2)])
            lines.append(f"{at} += np.sin({shaped((left, inner))} @ {shaped((inner, left))}).sum()")
    return "\n".join(["def kernel(a, x, w, f):", *(f"    {line}" for line in lines), "    return r", ""])


def check(text, seed):
    parallel = on_threads(seed)
    if parallel:
        text = re.sub(r"for ([pq]) in range(?!\(-)", r"for \1 in prange", text)
    plain = written(text, f"reshapes {seed}", np=np, prange=numba.prange)["kernel"]
    kernel = ampi.kernel(plain, parallel=parallel)
    generator = np.random.default_rng(seed)
    point = [generator.uniform(0.3, 1.5, shape) for shape in SIZES.values()]
    value = numba.njit(plain)(*point)
    np.testing.assert_allclose([plain(*point), kernel(*point)], [value, value], rtol=1e-12)
    whole = np.concatenate([v.ravel() for v in point])
    at = lambda z: [z[24 * n : 24 * n + 24].reshape(shape) for n, shape in enumerate(SIZES.values())]
    h = 1e-3
    if seed % 4 == 2:
        jacobian = ampi.jacrev(lambda z: kernel(*at(z)), whole)
    else:
        weights = generator.normal(size=5)
        bar = ampi.grad(lambda z: (kernel(*at(z)) * weights).sum())(whole)
        jacobian, plain = bar[None], lambda *given, plain=plain: np.array([plain(*given) @ weights])
    for _ in range(3):
        d = generator.normal(size=whole.size)
        along = lambda t, d=d: plain(*at(whole + t * d))
        slope = difference(along, h)
        np.testing.assert_allclose(jacobian @ d, slope, rtol=1e-6, atol=1e-6)
    if seed % 5 == 1:
        check_second(lambda *given: kernel(*given).sum(), point, 1e-11, rough=1e-5)


QUICK = {1, 10, 50}  # second order, several directions, threads, negative numbers among them


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[] if s in QUICK else [pytest.mark.slow]) for s in range(60)])
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed}"):
        check(text, seed)

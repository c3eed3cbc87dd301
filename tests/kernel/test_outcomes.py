"""Outcomes of comparisons saved instead of the compared values: adjoints of random loops compared with tangents, which
save nothing, with the pass and without it; and values with nan."""

import random

import numpy as np
import pytest
from kernel_checks import Check, run
from of_the_day import of_the_day
from written import examined, in_loops, written

import ampi
from ampi.kernel.options import Options

N = 5
LOOPS = (
    ("for k in range(n):", "for i in range(n):", "for j in range(n):"),
    ("for k in range(n):", "for i in range(k, n):", "for j in range(i):"),
    ("for i in range(n):", "for k in range(n - 1, -1, -1):", "for j in range(1, n):"),
    ("k = 0", "while k < n - 1:", "k += 1", "for i in range(n):", "for j in range(k):"),
)
NUMBERS = (
    "d[i, j]", "d[i, k] + d[k, j]", "x[i]", "x[j] - d[j, i]", "0.5 * d[k, i]", "d[i, j] * x[k]", "c + d[i, j]", "t[j]",
    "abs(x[i] - d[k, j])",
)  # fmt: skip
PLACES = ("d[i, j]", "d[i, k]", "x[i]", "x[j]", "t[j]", "d[k, i]")
FORMS = (
    "{p} = min({a}, {b})",
    "{p} = max({a}, {b})",
    "{p} = np.minimum({a}, {b})",
    "{p} = np.maximum({a}, {b})",
    "{p} = {a} if {b} > {e} else {b}",
    "{p} = min(max({a}, {b}), {e})",
    "if {a} <= {b}:\n    {p} = 0.9 * {e}",
    "if {a} > {b} and {e} < 1.1:\n    {p} += 0.2 * {b}\nelse:\n    {p} = {e}",
    "d[i, :] = np.minimum(d[i, :], {a} + d[k, :])",
    "x[:] = np.where(x > {a}, x - 0.1 * {b}, d[k])",
    "s = max(s, {a})\n{p} = 0.5 * {p} + 0.1 * s",
    "t = d[i].copy()\nt[j] = min(t[j], {a})\n{p} = 0.9 * max(t[0], t[j])",
)


def program(seed):
    draw = random.Random(seed)
    loops, statements = draw.choice(LOOPS), []
    for _ in range(draw.randint(1, 3)):
        a, b, e = (draw.choice(NUMBERS) for _ in range(3))
        statements.append(draw.choice(FORMS).format(p=draw.choice(PLACES), a=a, b=b, e=e))
    head = "def kernel(d, x, c):", "n = len(x)", "s = 0.0", "t = 1.5 * d[1]"
    return in_loops(head, loops, statements, "return s + t[0] * t[n - 1]")


def check(text, seed):
    kernel = written(text, f"outcomes {seed}", np=np)["kernel"]
    generator = np.random.default_rng(seed)
    point = [generator.uniform(0.5, 1.5, (N, N)), generator.uniform(0.5, 1.5, N), 0.8]
    for options in (Options(reassociate=False), Options(frozenset({"outcomes"}), reassociate=False)):
        found = Check(kernel, point, ("d", "x", "c"), options)
        found.compare(1e-12, against_differences=False, values=True)  # they jump
    point[0][generator.integers(N), generator.integers(N)] = np.nan
    point[1][generator.integers(N)] = np.nan
    found = Check(kernel, point, ("d", "x", "c"))
    if found.split is not None:
        after = [np.copy(a) for a in point[:2]]
        results = found.run_forward(*after, point[2])
        expected, value = run(kernel, point)
        for a, b in zip((*after, results[0]), (*expected[:2], *value)):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("seed", of_the_day(range(200), 12))
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed}"):
        check(text, seed)


def shortest(d):
    for k in range(len(d)):
        for i in range(len(d)):
            d[i] = np.minimum(d[i], d[i, k] + d[k])


def test_a_byte_is_saved():
    """Shortest paths: each step saves only which path was shorter, and none of the three numbers."""
    text = str(ampi.kernel(shortest).explain(np.ones((3, 3))))
    assert "the outcome of a comparison is saved" in text and "an element of" not in text

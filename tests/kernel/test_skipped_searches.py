"""Nests of loops that search an extreme are not reversed where its adjoint is zero, and give the same otherwise."""

import random

import numpy as np
import pytest
from kernel_checks import Check
from of_the_day import of_the_day
from written import examined, in_loops, written

from ampi.kernel.codegen import emit

NESTS = (
    "m = np.max(x[:, :, l])",
    "m = np.min(x[:, :, l] * w[l])",
    "m = np.max(np.abs(x[:, :, l] - w[l]))",
    "m = w[l] * 0.1\nfor i in range(n):\n    for j in range(k):\n        m = max(m, x[i, j, l])",
    "m = x[0, 0, l]\nfor i in range(n):\n    for j in range(k):\n        if x[i, j, l] < m:\n"
    "            m = x[i, j, l]",
    "m = 0.1\nfor i in range(n):\n    for j in range(i, k):\n        m = max(m, x[i, j, l] * x[j % n, i % k, l])",
    "m, q = 0.0, 9.0\nfor i in range(n):\n    for j in range(k):\n        m = max(m, x[i, j, l])\n"
    "        q = min(q, x[i, j, l])\nm = m - q",
    "m = 0.0\nfor i in range(n):\n    m = max(m, w[i % len(w)])\n    for j in range(k):\n"
    "        m = max(m, x[i, j, l])",
)
USES = (
    "y[:] = m",
    "y[l] = m",
    "y[0] = m * w[l]",
    "s = m",
    "s += m * m",
    "if l % 2 == 0:\n    y[l] += m",
    "y[l] = m - s",
)


def program(seed):
    draw = random.Random(seed)
    statements = [draw.choice(NESTS), *draw.sample(USES, draw.choice((1, 1, 2)))]
    head = "def kernel(x, w, y):", "n, k = x.shape[0], x.shape[1]", "s = 0.0"
    return in_loops(head, ("for l in range(x.shape[2]):",), statements, "return s + np.sum(y)")


@pytest.mark.parametrize("seed", of_the_day(range(100), 8))
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed}"):
        generator = np.random.default_rng(seed)
        point = [generator.uniform(0.2, 1.5, (3, 4, 5)), generator.uniform(0.5, 1.5, 5), np.ones(5)]
        found = Check(written(text, f"search {seed}", np=np)["kernel"], point, ("x", "w", "y"))
        found.compare(1e-12, against_differences=False)  # two candidates may be closer than a step


def test_a_search_is_skipped():
    """An extreme that later iterations overwrite costs no search."""

    def kernel(x, y):
        for l in range(x.shape[2]):
            y[:] = np.max(x[:, :, l])

    point = [np.random.default_rng(1).uniform(0.2, 1.5, (3, 4, 5)), np.ones(5)]
    found = Check(kernel, point, ("x",))
    text = emit.source(found.adjoint.function)
    before, after = text.split("y_bar[", 1)[1].split("if maximum_bar", 1)
    assert "x_bar[" not in before.split("if t", 1)[0]
    assert "x_bar[" in after
    bar = found.adjoints({"x": np.zeros((3, 4, 5)), "y": np.ones(5)}, [])["x"]
    expected = np.zeros((3, 4, 5))
    expected[..., -1].flat[np.argmax(point[0][..., -1])] = 5.0
    np.testing.assert_array_equal(bar, expected)

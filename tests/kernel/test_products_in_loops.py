"""Rank-one updates of adjoints in loops as products: drawn loops over samples and steps, of lengths around those of
strips, against tangents, and by the public functions in second order and in several directions."""

import random

import numpy as np
import pytest
from kernel_cases import Check
from second_check import check_second
from written import examined, in_loops, written

import ampi
from ampi.kernel.codegen import emit
from ampi.kernel.options import Options

LENGTHS = (0, 1, 2, 63, 64, 65, 130)
ROWS, COLUMNS = 3, 4
LOOPS = (
    ("for b in range(n):",),
    ("for b in range(n - 1, -1, -1):",),
    ("for r in range(2):", "for b in range(r, n):"),
    ("for b in range(0, n, 2):",),
    ("for r in range(3):", "h = np.tanh(V @ h)", "for b in range(n):"),
    ("b = -1", "while b < n - 1:", "b += 1"),
)
LAYERS = (
    "y[b] = np.tanh(W @ x[b])",
    "y[b, :] = W @ x[b] + h[:3]",
    "h = np.tanh(V @ h) + 0.1 * x[b]",
    "h = 0.5 * h + x[b] * (W @ h)[0]",
    "x[b] = y[b] @ W",
    "x[b, 1:] = (V @ x[b])[1:] * 0.3",
    "s += np.sum((W @ x[b]) ** 2)",
    "s += np.sum(W * np.outer(y[b], x[b]))",
    "y[b] += W @ (V @ x[b])",
    "s += (y[b] @ W) @ h",
    "if x[b, 0] > 0.9:\n    y[b] = W @ x[b]\nelse:\n    s += x[b] @ (V @ h)",
    "W[0] += 0.01 * x[b]\ny[b] = W @ h",
)


def program(seed):
    draw = random.Random(seed)
    loops = draw.choice(LOOPS)
    layers = [draw.choice(LAYERS) for _ in range(draw.randint(1, 3))]
    head = "def kernel(W, V, x, y):", "n = len(x)", "s = 0.0", "h = V[0] * 0.5"
    return in_loops(head, loops, layers, "return s + np.sum(h)")


def arguments(seed):
    generator, n = np.random.default_rng(seed), LENGTHS[seed % len(LENGTHS)]
    shapes = (ROWS, COLUMNS), (COLUMNS, COLUMNS), (n, COLUMNS), (n, ROWS)
    return [generator.uniform(0.2, 0.6, shape) for shape in shapes]


def check(text, seed):
    kernel, point = written(text, f"products {seed}", np=np)["kernel"], arguments(seed)
    if seed % 3 == 1 and "if" not in text:
        point = [a * (1.0 + 0.3j) for a in point]
    found = Check(kernel, point, ("W", "V", "x", "y"), Options(reassociate=False))
    found.compare(1e-12, against_differences=False)
    if seed % 16 == 0 and len(point[2]) < 10 and not np.iscomplexobj(point[0]):
        compiled = ampi.kernel(kernel)

        def whole(W, V, x, y):
            x, y = x.copy(), y.copy()
            s = compiled(W.copy(), V, x, y)
            return s * s + (x * x).sum() + (y * y).sum()

        check_second(whole, point, 1e-10, rough=1e-5)


@pytest.mark.parametrize("seed", [pytest.param(k, marks=[pytest.mark.slow] if k > 20 else []) for k in range(150)])
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed}"):
        check(text, seed)


def test_loops_inside_of_loops():
    """Both with updates of their own."""

    def kernel(W, V, x, y):
        h = V[0] * 0.5
        for _ in range(3):
            h = np.tanh(V @ h)
            for b in range(len(x)):
                y[b] = np.tanh(W @ x[b]) + h[0] * y[b]
        return np.sum(h)

    found = Check(kernel, arguments(5), ("W", "V", "x", "y"))
    assert emit.source(found.adjoint.function).count("np.dot(left") == 2
    found.compare(1e-12, against_differences=False)


def test_a_product_is_made():
    """Of the weights of a layer that samples go through."""

    def kernel(W, x, y):
        for b in range(len(x)):
            y[b] = np.tanh(W @ x[b])

    found = Check(kernel, [np.ones((2, 3)), np.ones((70, 3)), np.ones((70, 2))], ("W",))
    assert "np.dot(left.T, right" in emit.source(found.adjoint.function)

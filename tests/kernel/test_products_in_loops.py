"""Rank-one updates of adjoints in loops, turned into products: random loops over samples and steps, with lengths around
that of a strip, compared with tangents; also in second order and in several directions by the public functions."""

import random

import numpy as np
import pytest
from kernel_checks import Check, copies, kernel_ir, load
from of_the_day import of_the_day
from second_check import check_second
from written import examined, in_loops, written

import ampi
from ampi.kernel import ir
from ampi.kernel.codegen import emit
from ampi.kernel.codegen.destruct import destruct
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.rebuild import names_of
from ampi.kernel.ir.ssa import every
from ampi.kernel.optimise.products_in_loops import with_products
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
    "y[b] = W[:, 1:] @ x[b, 1:]",
    "x[b] = y[b, b % 3 :] @ W[b % 3 :]",
    "s += np.sum(y[b] @ W[:, b % 4 :]) * h[0]",
    "y[b, : b % 3] = W[: b % 3, b % 2 :] @ x[b, b % 2 :]",
    "y[b] = (W * W) @ x[b]",
    "h = h + (2.0 * V + V.T) @ x[b]",
    "x[b, b % 4 :] = h @ V[:, b % 4 :] * 0.3",
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


@pytest.mark.parametrize("seed", of_the_day(range(150), 10))
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed}"):
        check(text, seed)


def test_loops_inside_of_loops():
    """Both loops have their own updates."""

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
    """For the weights of a layer that is applied to samples."""

    def kernel(W, x, y):
        for b in range(len(x)):
            y[b] = np.tanh(W @ x[b])

    found = Check(kernel, [np.ones((2, 3)), np.ones((70, 3)), np.ones((70, 2))], ("W",))
    assert "np.dot(left.T, right" in emit.source(found.adjoint.function)


STATEMENTS = (
    "x = W @ x",
    "z = z @ W",
    "y = V @ z + x",
    "s += x @ (W @ z)",
    "z = 0.5 * z + x @ V",
    "x = V @ (W @ x)",
    "s += np.sum(W * np.outer(z, x))",
    "if s > 0.4:\n    x = W @ z\nelse:\n    z = y @ W",
    "y = np.tanh(W @ y)",
    "s += np.sum(W @ y) * s",
)
CHANGES = (
    "W[0] += 0.1 * x",
    "W[:, 1] *= 0.9",
    "W[1, 2] = z[0]",
    "x = x + W[0]",
    "z = z * x",
    "W[:] = 0.5 * W + np.outer(x, z)",
)


@pytest.mark.parametrize("seed", of_the_day(range(300), 30))
def test_updates_of_one_matrix(seed):
    """Several products with one matrix, which may change between them, outside loops and inside."""
    draw, generator = random.Random(seed), np.random.default_rng(seed)
    statements = [draw.choice(draw.choice([STATEMENTS, CHANGES])) for _ in range(draw.randint(3, 7))]
    loops = draw.choice([(), (), ("for k in range(2):",)])
    head = "def kernel(W, V, x, z):", "s = 0.3", "y = x * z"
    text = in_loops(head, loops, statements, "return s + np.sum(x * x) + np.sum(z * y)")
    kernel = written(text, f"updates {seed}", np=np)["kernel"]
    point = [generator.uniform(0.1, 0.4, shape) for shape in ((3, 3), (3, 3), (3,), (3,))]
    with examined(text, seed):
        found = Check(kernel, point, ("W", "V", "x", "z"), Options(after=True, plain=True))
        found.compare(1e-11, against_differences=False, values=True)
        found.compare_with_complex_step()


NEST = "for i in range(c.shape[0]):\n    for j in range(c.shape[1]):\n        c[i, j] += {} * {}"
FACTORS = ("u[i]", "v[j]"), ("v[j]", "w[i]"), ("w[i]", "u[j]"), ("np.sin(u[i])", "w[j]"), ("v[i]", "v[j]")
BETWEEN = ("u[1] = c[0, 1]", "v[0] += 0.5", "w[2] = u[0]", "c[1, 0] = 0.3", "d[0] = u[2]", "d[1] += c[2, 2] * d[0]")


@pytest.mark.parametrize("seed", range(60))
def test_what_is_between(seed):
    """Updates are not moved if statements between them would notice."""
    draw = random.Random(seed)
    texts = [NEST.format(*draw.choice(FACTORS)) if draw.random() < 0.6 else draw.choice(BETWEEN) for _ in range(6)]
    text = in_loops(("def f(c, d, u, v, w):",), (), texts, "return None")
    f, point = written(text, f"between {seed}", np=np)["f"], list(np.random.default_rng(seed).uniform(-1, 1, (5, 3)))
    point[0] = np.outer(point[0], point[1])
    program = construct(kernel_ir(f, point))
    found = load(destruct(with_products(program, names_of(program), {"c"})))
    ours, expected = copies(point), copies(point)
    found(*ours)
    f(*expected)
    with examined(text, seed):
        for mine, theirs in zip(ours, expected):
            np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-13)


READS = (
    "for i in range(3):\n    for j in range(3):\n        c[i, j] += t[i, j]",
    "for i in range(3):\n    for j in range(i, 3):\n        c[j, i] -= t[i, j] * u[i]",
    "for k in range(2):\n    for i in range(3):\n        w[i] += t[k, i]",
    "for k in range(3):\n    for i in range(3):\n        for j in range(3):\n            c[i, j] += t[j, i] * d[k]",
    "for i in range(3):\n    if u[i] > 0.0:\n        d[i] += t[i, i]",
    "for i in range(2):\n    u[i + 1] = t[i, 0]",
    "for i in range(3):\n    t[i, 1] *= 2.0",
    "for i in range(3):\n    c[i, 0] += t[i, 1] * t[i, 2]",
    "v[0] = t[1, 2]",
    "c[:] = t * c",
)


def contracted_program(seed):
    draw = random.Random(seed)
    fill = draw.choice(["np.zeros((3, 3))", "np.zeros((3, 3))", "np.zeros((3, 3))", "np.ones((3, 3))"])
    texts = [f"t = {fill}", NEST.format(*draw.choice(FACTORS)).replace("c[", "t[").replace("c.", "t.")]
    texts += [draw.choice(BETWEEN) for _ in range(draw.randint(0, 1))]
    texts += [draw.choice(READS) for _ in range(draw.choice([1, 1, 1, 2]))]
    loops = draw.choice([(), ("for r in range(2):",)])
    return in_loops(("def f(c, d, u, v, w):",), loops, texts, "return None")


def contracted(seed):
    """Compare a program without its temporary matrix with the original; return whether the matrix was eliminated."""
    text = contracted_program(seed)
    f, point = written(text, f"contracted {seed}", np=np)["f"], list(np.random.default_rng(seed).uniform(-1, 1, (5, 3)))
    point[0] = np.outer(point[0], point[1])
    program = construct(kernel_ir(f, point))
    (matrix,) = {s.target.name for s in every(program.body) if isinstance(s, ir.Alloc) and s.target.type.ndim == 2}
    changed = with_products(program, names_of(program), {matrix})
    found = load(destruct(changed))
    ours, expected = copies(point), copies(point)
    found(*ours)
    f(*expected)
    with examined(text, seed):
        for mine, theirs in zip(ours, expected):
            np.testing.assert_allclose(mine, theirs, rtol=1e-13, atol=1e-13)
    return all(not isinstance(s, ir.Accumulate) or s.array.name != matrix for s in every(changed.body))


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(k, k + 40), marks=pytest.mark.slow if k else ()) for k in (0, 40, 80)]
)
def test_temporary_matrices(seeds):
    """A matrix of products that is read once is not stored, unless a factor changes before the read."""
    without = [contracted(seed) for seed in seeds]
    assert 5 < sum(without) < 35


def test_a_part_of_a_matrix_has_no_matrix_of_adjoints():
    def kernel(x, c):
        for i in range(len(c)):
            c[i:, i] = x[:, i] @ x[:, i:]

    point = [np.random.default_rng(0).uniform(0.5, 1.5, (4, 5)), np.zeros((5, 5))]
    found = Check(kernel, point, ("x", "c"), Options(without=frozenset({"batched"})))
    text = emit.source(found.adjoint.function)
    assert "x_bar[" in text and "matrix_bar_1" not in text
    found.compare(1e-12)

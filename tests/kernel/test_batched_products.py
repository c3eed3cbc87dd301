"""Products of matrices with vectors in loops, batched in adjoints: random loops over windows, compared with the
unbatched adjoint, tangents and differences; infinities outside of windows; the forms that must batch."""

import random

import numpy as np
import pytest
from kernel_checks import Check, kernel_ir
from of_the_day import of_the_day
from written import examined, in_loops, written

import ampi
from ampi.kernel import pipeline
from ampi.kernel.codegen import emit
from ampi.kernel.optimise import strip_products
from ampi.kernel.options import ALL_ON, Options

SIZE = 7
NAMES = ("x", "b", "c")
PLAIN = Options(without=frozenset({"batched"}))


@pytest.fixture(autouse=True)
def short_strips(monkeypatch):
    """Strips of three iterations, however small the products are."""
    for name, value in (("ROWS", 3), ("LEAST", 0), ("FEWEST", 0)):
        monkeypatch.setattr(strip_products, name, value)


LOOPS = (
    ("for i in range(n):",),
    ("for i in range(n):",),
    ("for i in range(n - 1):",),
    ("for i in range(1, n):",),
    ("for i in range(n - 1, -1, -1):",),
    ("for i in range(0, n, 2):",),
    ("for r in range(2):", "for i in range(r, n):"),
    ("i = -1", "while i < n - 1:", "i += 1"),
)
WINDOWS = ("i:n", "i + 1:n", "i:", ":i", ":", ":i + 1", "max(i - 2, 0):i + 2", "n - i:", "1:n - 1", "i // 2:n")
COLUMNS = (
    "x[:, i] @ x[:, {0}]",
    "np.dot(x[:, i], x[:, {0}])",
    "x[:, {0}].T @ x[:, i]",
    "b[:, i] @ x[:, {0}]",
    "h @ x[:, {0}]",
    "(x[:, i] * h) @ b[:, {0}]",
    "np.sin(b[:, i]) @ x[:, {0}]",
    "c[i] @ x[:, {0}]",
)
ROWS = (
    "x[{0}] @ x[i]",
    "np.dot(x[{0}, :], x[i, :])",
    "x[i] @ x[{0}].T",
    "b[{0}] @ x[i]",
    "x[{0}] @ h",
    "b[i] @ x[{0}].T",
    "x[{0}] @ c[i]",
)
USES = (
    "c[i, {0}] = {1}",
    "c[i, {0}] += {1}",
    "c[{0}, i] -= {1}",
    "c[{0}, i] = c[i, {0}] = {1}",
    "c[i, {0}] = {1} / s",
    "c[i, {0}] = np.sin({1}) * s",
    "c[i, {0}] = np.where({1} > 1.0, {1}, 0.5)",
    "t += np.sum({1})",
    "t += np.sum(({1}) ** 2)",
)
OTHERS = (
    "x[:, i] *= 1.1",
    "b[i] = 0.1 * c[i]",
    "h = h + 0.1 * x[i]",
    "h = 0.5 * (x @ h)",
    "c[i] = 0.3 * c[i] + x[:, i]",
    "s = s + 0.1 * c[0, 1]",
    "t += x[i, 0] * b[0, i]",
    "b[:, i] += x[:, i]",
    "b[i] = x[i] @ c",
    "b[i] = b[i] @ x",
    "b[:, i] = b @ c[i]",
    "c[:, i] *= 0.5",
)


def program(seed):
    draw = random.Random(seed)
    window = draw.choice(WINDOWS)
    use = lambda: draw.choice(USES).format(window, draw.choice(COLUMNS + ROWS).format(window))
    statements = [use() for _ in range(draw.choice((1, 1, 1, 2)))]
    if draw.random() < 0.4:
        statements.insert(draw.randint(0, len(statements)), draw.choice(OTHERS))
    if draw.random() < 0.1:
        statements = ["if x[i, 0] > 0.3:", *("    " + s for s in statements)]
    head = "def kernel(x, b, c, s):", "n = len(x)", "t = 0.0", "h = b[0] * 0.5"
    return in_loops(head, draw.choice(LOOPS), statements, "return t + np.sum(h)")


def arguments(seed, dtype=np.float64):
    generator = np.random.default_rng(seed)
    point = [generator.uniform(0.2, 0.6, (SIZE, SIZE)) for _ in NAMES]
    if seed % 4 == 1:
        point = [np.asfortranarray(a) for a in point]
    elif seed % 4 == 2:
        point = [np.repeat(a, 2, axis=1)[:, ::2] for a in point]
    return [*(a.astype(dtype) if seed % 4 != 2 else a for a in point), 1.3]


@pytest.mark.parametrize("seed", of_the_day(range(400), 12))
def test_programs(seed):
    """The batched adjoint differs from the plain one by rounding only."""
    text = program(seed)
    with examined(text, f"program {seed}"):
        kernel, point = written(text, f"batched {seed}", np=np)["kernel"], arguments(seed)
        names = (*NAMES, "s") if seed % 3 else ("x",)
        found, plain = (Check(kernel, point, names, options) for options in (ALL_ON, PLAIN))
        seeds = found.seeds()
        ours, expected = found.adjoints(*seeds), plain.adjoints(*seeds)
        for name, bar in expected.items():
            np.testing.assert_allclose(ours[name], bar, rtol=1e-12, atol=1e-12 * (1 + np.abs(bar).max()), err_msg=name)
        found.compare(1e-12, against_differences=seed % 8 == 0 and "where" not in text and "if" not in text)


def batches(kernel, point, names=("x",), **options):
    found = pipeline.build_adjoint(kernel_ir(kernel, point), names, Options(**options))
    return emit.source(found.function).count("np.dot(rows")


FORMS = (*(("c[i, {0}] = {1}", e) for e in COLUMNS + ROWS), *((use, COLUMNS[0]) for use in USES))


@pytest.mark.parametrize("dtype", [np.float64, pytest.param(np.float32, marks=pytest.mark.slow)])
@pytest.mark.parametrize(("use", "product"), FORMS)
def test_forms_that_batch(use, product, dtype):
    """Products with columns and with rows, by operators and functions, whatever is done with the results."""
    body = [use.format("i:n", product.format("i:n"))]
    text = in_loops(("def kernel(x, b, c, h, s):", "n = len(x)", "t = s"), LOOPS[:1][0], body, "return t")
    kernel = written(text, f"form {use} {product}", np=np)["kernel"]
    point = [np.ones((SIZE, SIZE), dtype) for _ in NAMES] + [np.ones(SIZE, dtype), dtype(1.0)]
    assert batches(kernel, point) >= 1, text
    assert batches(kernel, point, without=frozenset({"batched"})) == 0


OBSTACLES = ("x[:, i] *= 1.1", "x[i] = c[i]")


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_prevents_it(obstacle):
    """Iterations that overwrite what others read do not wait."""
    body = ["c[i, i:] = h @ x[:, i:]", obstacle]
    text = in_loops(("def kernel(x, c, h):",), ("for i in range(len(x)):",), body, "return np.sum(h)")
    kernel = written(text, f"prevented by {obstacle}", np=np)["kernel"]
    assert batches(kernel, [np.ones((4, 4)), np.ones((4, 4)), np.ones(4)]) == 0, text


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("place", [(2, 0), (3, 1), (5, 4), (0, 6)])
@pytest.mark.parametrize("product", ["x[:, i] @ x[:, i:n]", "b[:, i] @ x[:, i:n]", "x[i:n] @ x[i]", "x[i:n] @ b[i]"])
def test_infinities_outside_of_windows(product, place, value):
    """An element that an iteration does not read does not reach its adjoints."""
    text = in_loops(
        ("def kernel(x, b, c, s):", "n = len(x)"), ("for i in range(n):",), [f"c[i, i:n] = {product} * s"], "return s"
    )
    kernel, point = written(text, f"infinities {product}", np=np)["kernel"], arguments(8)
    (point[1] if "b[" in product and place[0] > 2 else point[0])[place] = value
    found, plain = (Check(kernel, point, ("x", "b", "s"), options) for options in (ALL_ON, PLAIN))
    seeds = found.seeds()
    with np.errstate(invalid="ignore"):
        ours, expected = found.adjoints(*seeds), plain.adjoints(*seeds)
    assert any(np.isfinite(bar).any() for bar in expected.values())
    for name, bar in expected.items():
        np.testing.assert_allclose(ours[name], bar, rtol=1e-12, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("product", ["x[i] @ b", "b @ x[i]", "np.dot(x[i], b[:, :])", "x[i] @ b + c[i]"])
def test_rows_that_are_overwritten(product):
    """Each iteration replaces a row by its product, and so does the adjoint."""
    text = in_loops(("def kernel(x, b, c):",), ("for i in range(len(x)):",), [f"x[i] = {product}"], "return None")
    kernel, point = written(text, f"overwritten {product}", np=np)["kernel"], arguments(8)[:3]
    assert batches(kernel, point, ("x", "b")) == 1, text
    found = Check(kernel, point, ("x", "b"))
    found.compare(1e-12)


def covariance(data, scale):
    m = data.shape[1]
    data -= np.sum(data, axis=0) / data.shape[0]
    c = np.zeros((m, m), dtype=data.dtype)
    for i in range(m):
        c[i:m, i] = c[i, i:m] = data[:, i] @ data[:, i:m] / scale
    return c


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("layout", ["C", "F", "strided"])
def test_compiled(dtype, layout, monkeypatch):
    """A covariance, compiled, with strips of their usual length, against the product of matrices."""
    monkeypatch.setattr(strip_products, "ROWS", 64)
    generator = np.random.default_rng(3)
    data, seed = generator.normal(size=(30, 150)).astype(dtype), generator.normal(size=(150, 150)).astype(dtype)
    given = np.asfortranarray(data) if layout == "F" else data
    given = np.repeat(data, 2, axis=1)[:, ::2] if layout == "strided" else given
    adjoint = ampi.kernel(covariance)
    with ampi.Tape() as tape:
        x, s = tape.watch(ampi.numpy.array(given)), tape.watch(ampi.numpy.array(dtype(29.0)))
        y = adjoint(x * 1 if layout != "F" else ampi.numpy.asfortranarray(x * 1), s)
    found = tape.gradient([y], [x, s], seed=[seed])
    centred = data - data.mean(axis=0)
    upper = np.triu(seed) + np.tril(seed, -1).T
    upper[np.diag_indices(150)] = np.diag(seed)
    bar = centred @ (upper + upper.T) / 29.0
    bar -= bar.mean(axis=0)
    rough = 1e-4 if dtype == np.float32 else 1e-12
    np.testing.assert_allclose(found[0], bar, rtol=rough, atol=rough * np.abs(bar).max())
    slope = -np.sum(upper * (centred.T @ centred)) / 29.0**2
    np.testing.assert_allclose(found[1], slope, rtol=rough * 100, atol=rough * 100)


def test_windows_with_little_in_common():
    """A loop over separate windows runs as it is written, which the program decides by the sizes of the windows."""

    def kernel(x, c):
        for i in range(len(x) // 2):
            c[i, 2 * i : 2 * i + 2] = x[i] @ x[:, 2 * i : 2 * i + 2]

    point = [*np.random.default_rng(2).uniform(0.2, 0.6, (2, 8, 8))]
    found, plain = (Check(kernel, point, ("x",), options) for options in (ALL_ON, PLAIN))
    assert "made <= asked * 2" in emit.source(found.adjoint.function)
    seeds = found.seeds()
    np.testing.assert_array_equal(found.adjoints(*seeds)["x"], plain.adjoints(*seeds)["x"])

"""Matrix products and solutions written directly to their destination: random programs of square matrices, which may be
the same one, in all layouts; compared with complex steps, also in second order and in several directions."""

import random

import numpy as np
import pytest
from written import examined, in_loops, written

import ampi

N = 4
HEADS = (("C = A @ B",), ("C = A @ B", "C[:] = B + 0.1 * A"), ("C = A @ B", "C[:] = np.linalg.solve(A, B)"))
LOOPS = ((), ("for k in range(2):",), ("for k in range(3):", "if k != 1:"))
STATEMENTS = (
    "C = A @ B",
    "C = C @ (0.5 * B)",
    "C[:] = A @ C",
    "C[:] = 0.3 * C + A @ B",
    "C += B.T @ A",
    "C[:2] = A[:2] @ C",
    "D[:] = C @ A",
    "D += A @ B",
    "D[:] = np.linalg.solve(A, C)",
    "D[:, 1:] = (np.linalg.inv(A) @ D)[:, 1:]",
    "v = A @ v",
    "v[:] = v @ C",
    "v += (D @ A)[0] * v",
    "s += np.sum(A @ A)",
    "s += np.sum((A @ C) * D)",
    "if v[0] > 0.2:\n    D[:] = C @ B\nelse:\n    D[:] = A @ B",
    "B[:] = 0.5 * (B @ A)",
)


def program(seed):
    draw = random.Random(seed)
    head = "def kernel(A, B, D, v):", "s = 0.0", *draw.choice(HEADS)
    statements = [draw.choice(STATEMENTS) for _ in range(draw.randint(1, 4))]
    return in_loops(head, draw.choice(LOOPS), statements, "return s + np.sum(C * C) + np.sum(D * D) + np.sum(v * v)")


def laid_out(a, layout, np):
    """A new array of the same numbers: in Fortran order, in C order, or as every second element of a larger one."""
    if layout == "F":
        return (a.T * 1.0).T
    if layout == "C":
        return a * 1.0
    wide = np.zeros((*a.shape, 2), dtype=a.dtype)
    wide[..., 1] = a
    return wide[..., 1]


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=() if s in (2, 40, 120) else pytest.mark.slow) for s in range(200)]
)
@pytest.mark.filterwarnings("ignore::numba.NumbaPerformanceWarning")  # products of columns
def test_programs(seed):
    text, generator, draw = program(seed), np.random.default_rng(seed), random.Random(-seed)
    point = [*(0.6 * np.eye(N) + generator.uniform(0.05, 0.15, (3, N, N))), generator.uniform(0.1, 0.4, N)]
    directions = [generator.uniform(-1, 1, a.shape) for a in point]
    layouts = [draw.choice(["C", "C", "C", "F", "strided"]) for _ in point]
    same, times = draw.random() < 0.2 and "B[:]" not in text, draw.choice([1, 1, 2])

    def loss(kernel, np):
        def of(*given):
            arrays = [laid_out(a, layout, np) for a, layout in zip(given, layouts)]
            if same:
                arrays[1] = arrays[0]
            return sum((kernel(*arrays) for _ in range(times)), 0.0)

        return of

    with examined(text, seed):
        plain = written(text, f"destinations {seed}", np=np)["kernel"]
        of, reference = loss(ampi.kernel(plain), ampi.numpy), loss(plain, np)
        value, gradient = ampi.value_and_grad(of, (0, 1, 2, 3))(*point)
        assert value == pytest.approx(reference(*point), rel=1e-11)
        expected = reference(*(a + 1e-30j * d for a, d in zip(point, directions))).imag / 1e-30
        along = [g * d for g, d in zip(gradient, directions)]
        assert sum(map(np.sum, along)) == pytest.approx(expected, abs=1e-11 * sum(np.abs(a).sum() for a in along))
        _, tangents = ampi.jvp(of, tuple(point), tuple(np.stack([d, -0.5 * d]) for d in directions), vectorised=True)
        assert list(tangents) == pytest.approx([expected, -0.5 * expected], rel=1e-9)
        if seed % 4 == 0:
            moved = lambda h: ampi.grad(of, (0, 1, 2, 3))(*(a + h * d for a, d in zip(point, directions)))
            curved = ampi.hvp(of, tuple(point), tuple(directions))
            for mine, ahead, behind in zip(curved, moved(1e-6), moved(-1e-6)):
                difference = (ahead - behind) / 2e-6
                np.testing.assert_allclose(mine, difference, rtol=1e-5, atol=1e-6 * np.abs(difference).max() + 1e-7)

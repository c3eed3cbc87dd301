"""Zero times what is infinite or not a number is zero in the adjoints of products as well.

They are compared with sums of products that are written out term by term.
"""

import itertools

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.rules.contractions import contracted

INF, NAN = numpy.inf, numpy.nan
VALUES = (0.0, 1.0, -2.0, INF, -INF, NAN)


def term_by_term(a, b):
    """The matrix product whose terms with a zero are zero."""
    total = numpy.zeros((a.shape[0], b.shape[1]))
    with numpy.errstate(all="ignore"):
        for i, j, k in numpy.ndindex(a.shape[0], b.shape[1], a.shape[1]):
            if a[i, k] != 0 and b[k, j] != 0:
                total[i, j] += a[i, k] * b[k, j]
    return total


@pytest.mark.parametrize("seed", range(40))
def test_products_of_matrices(seed):
    rng = numpy.random.default_rng(seed)
    a, b = rng.choice(VALUES, (3, 4), p=[0.4, 0.2, 0.2, 0.1, 0.05, 0.05]), rng.choice(VALUES[:4], (4, 5))
    for x, y in ((a, b), (b.T, a.T), (numpy.isfinite(a) * 1.0, b), (numpy.isfinite(a), b)):
        numpy.testing.assert_array_equal(contracted(numpy.matmul, x, y), term_by_term(x, y))
    for dtype in (numpy.float32, numpy.complex128):
        found = contracted(numpy.matmul, numpy.where(numpy.isfinite(a), a, 0).astype(dtype), b.astype(dtype))
        assert found.dtype == dtype
        assert numpy.isnan(found[~numpy.isfinite(term_by_term(numpy.where(numpy.isfinite(a), a, 0), b))]).all() or (
            dtype == numpy.float32
        )


@pytest.mark.parametrize("pair", [*itertools.product(VALUES, repeat=2)], ids=str)
def test_one_product(pair):
    a, b = numpy.array([[pair[0], 1.0]]), numpy.array([[pair[1]], [0.0]])
    numpy.testing.assert_array_equal(contracted(numpy.matmul, a, b), term_by_term(a, b))


# Each has x, in which there are infinite numbers, as one factor, and w as the other; only a finite part is returned.
PRODUCTS = {
    "@ of a matrix and a vector": lambda x, w: (x @ w[0])[1],
    "@ of a vector and a matrix": lambda x, w: (w[0] @ x)[1:],
    "@ of matrices": lambda x, w: (x @ w)[1],
    "@ of stacks": lambda x, w: (np.stack([x, x]) @ w)[1, 1],
    "dot of vectors": lambda x, w: np.dot(x[1], w[0]) + 0 * np.sum(w),
    "dot": lambda x, w: np.dot(x, w)[1],
    "dot of a stack": lambda x, w: np.dot(x, np.stack([w, w]))[1],
    "inner": lambda x, w: np.inner(x, w)[1],
    "tensordot": lambda x, w: np.tensordot(x, w, 1)[1],
    "einsum": lambda x, w: np.einsum("ij,jk->ik", x, w)[1],
    "einsum of three": lambda x, w: np.einsum("ij,jk,k->i", x, w, w[0])[1],
    "multi_dot": lambda x, w: np.linalg.multi_dot([x, w, w])[1],
    "vecdot": lambda x, w: np.vecdot(x, w)[1],
    "kron": lambda x, w: np.kron(x, w)[3:, :],
    "outer": lambda x, w: np.outer(x, w)[4:],
    "cross": lambda x, w: np.cross(x, w)[1],
    "convolve": lambda x, w: np.convolve(x[:, 1], w[0])[4],
    "correlate": lambda x, w: np.correlate(x[:, 1], w[0], "full")[4],
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("infinite", (INF, -INF, NAN))
def test_an_adjoint_of_zero_contributes_nothing(product, infinite):
    """What is not part of the result has an adjoint of zero, and infinite numbers there do no harm."""
    if product is PRODUCTS["@ of a vector and a matrix"]:
        x0 = numpy.array([[infinite, 2.0, 0.5], [1.5, -0.5, 1.0], [0.25, 3.0, -1.0]])
    else:
        x0 = numpy.array([[infinite, 2.0, 0.5], [1.5, -0.5, 1.0], [0.25, 3.0, -1.0]])
    w0 = numpy.array([[0.5, -1.0, 2.0], [1.0, 0.25, 0.75], [-0.5, 1.25, 1.5]])
    finite = numpy.where(numpy.isfinite(x0), x0, 7.0)

    def gradient(x):
        with numpy.errstate(all="ignore"):
            return ampi.grad(lambda x, w: np.sum(product(x, w)), argnums=(0, 1))(x, w0)

    for found, expected in zip(gradient(x0), gradient(finite)):
        numpy.testing.assert_allclose(found, expected, rtol=1e-14)

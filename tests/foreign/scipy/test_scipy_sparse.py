"""scipy.sparse: products and solutions of systems with active arrays and active data."""

import numpy as np
import pytest
import scipy.sparse as ss
import scipy.sparse.linalg as sl
from scipy.sparse.linalg import cg
from scipy_check import check

import ampi

FORMATS = ["csr", "csc", "coo", "dia", "bsr"]
N, M = 6, 4


def matrix(rng, format="csr", kind="array", complex=False, square=False):
    n, m = (N, N) if square else (N, M)
    a = rng.normal(size=(n, m)) * (rng.random((n, m)) < 0.5)
    if complex:
        a = a + 1j * rng.normal(size=(n, m)) * (a != 0)
    if square:
        a = a + 5 * np.eye(n)
    return getattr(ss, f"{format}_{kind}")(a)


@pytest.mark.parametrize("complex", [False, True])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@pytest.mark.parametrize("format", FORMATS)
def test_products(format, kind, complex):
    rng = np.random.default_rng(3)
    a = matrix(rng, format, kind, complex)
    for x in (rng.normal(size=M), rng.normal(size=(M, 1)), np.asfortranarray(rng.normal(size=(M, 3)))):
        check(lambda x: a @ x, x)
        check(lambda x: a.dot(x), x)
        check(lambda x: a * 2.0 @ (x * x), x)
    y = rng.normal(size=(2, N))[:, ::-1]
    check(lambda y: y @ a, y)
    check(lambda y: y[0] @ a, y)
    if kind == "matrix":
        check(lambda x: a * x, rng.normal(size=M))
    check(lambda s, x: (a * s[0]) @ x, np.ones(1), rng.normal(size=M))
    empty = getattr(ss, f"{format}_{kind}")((3, 4)) if format != "bsr" else ss.csr_array((3, 4))
    check(lambda x: empty @ x, rng.normal(size=4))


@pytest.mark.parametrize("complex", [False, True])
@pytest.mark.parametrize("format", FORMATS)
def test_products_with_active_data(format, complex):
    rng = np.random.default_rng(4)
    a = matrix(rng, format, complex=complex)
    x, y = rng.normal(size=M), rng.normal(size=(2, N))
    data = a.data.copy()
    given = {
        "csr": lambda d: ss.csr_array((d, a.indices, a.indptr), shape=a.shape),
        "csc": lambda d: ss.csc_array((d, a.indices, a.indptr), shape=a.shape),
        "bsr": lambda d: ss.bsr_array((d, a.indices, a.indptr), shape=a.shape),
        "coo": lambda d: ss.coo_array((d, a.coords), shape=a.shape),
        "dia": lambda d: ss.dia_array((d, a.offsets), shape=a.shape),
    }[format]
    check(lambda d, x: given(d) @ x, data, x)
    check(lambda d, x: given(d * d) @ np.stack([x, x * x], 1), data, x)
    check(lambda d, y: y @ given(d), data, y)
    check(lambda d, x: (2.0 * given(d)).tocsr() @ x, data, x)
    check(lambda d, x: given(d).tocsc().T @ x[:1].repeat(N), data, x)
    check(lambda d: given(d).toarray(), data)
    check(lambda d: given(d).tocsr().diagonal(), data)
    check(lambda d, x: -given(d) @ x, data, x)


def test_matrices_of_lists_of_elements_and_of_dense_ones():
    rng = np.random.default_rng(5)
    i, j, d, x = rng.integers(0, N, 12), rng.integers(0, M, 12), rng.normal(size=12), rng.normal(size=M)
    for make in (ss.csr_array, ss.csc_matrix, ss.coo_array):
        check(lambda d, x, make=make: make((d, (i, j)), shape=(N, M)) @ x, d, x)
    check(lambda d, x: ss.coo_array((d, (i, j)), shape=(N, M)) @ x, d, x)
    check(lambda a, x: ss.csr_array(a) @ x, rng.uniform(1, 2, (N, M)), x)


@pytest.mark.parametrize("complex", [False, True])
def test_direct_solutions(complex):
    rng = np.random.default_rng(6)
    a = matrix(rng, "csc", complex=complex, square=True)
    b = rng.normal(size=N) + (1j * rng.normal(size=N) if complex else 0)
    two = np.stack([b, b * b], 1)
    data = a.data.copy()
    make = lambda d: ss.csc_array((d, a.indices, a.indptr), shape=a.shape)
    check(lambda b: sl.spsolve(a, b), b)
    check(lambda b: sl.spsolve(a.tocsr(), b), two)
    check(lambda d, b: sl.spsolve(make(d), b), data, b)
    check(lambda d, b: sl.spsolve(make(d).tocsr(), b), data, two)
    lu = sl.splu(a)
    for trans in "NTH":
        check(lambda b, trans=trans: lu.solve(b, trans), b)
    check(lambda b: sl.factorized(a)(b), b)
    low = ss.csr_array(np.tril(a.toarray()))
    check(lambda d, b: sl.spsolve_triangular(ss.csr_array((d, low.indices, low.indptr)), b), low.data.copy(), b)


@pytest.mark.parametrize("name", ["cg", "bicg", "bicgstab", "gmres", "minres", "cgs", "lgmres", "gcrotmk"])
def test_iterative_solutions(name):
    rng = np.random.default_rng(7)
    solve = getattr(sl, name)
    a = matrix(rng, square=True)
    a = ss.csr_array(a + a.T) if name in ("cg", "minres") else a
    b = rng.normal(size=N)
    exact = {"rtol": 1e-11}
    # Differences see the tolerance; values are those of the same call.
    check(lambda b: solve(a, b, **exact)[0], b)
    check(lambda d, b: solve(ss.csr_array((d, a.indices, a.indptr)), b, **exact)[0], a.data.copy(), b)
    inverse = ss.diags_array(1 / a.diagonal())
    check(lambda b: solve(a, b, M=inverse, **exact)[0], b)
    operator = sl.LinearOperator((N, N), matvec=lambda x: a @ x, rmatvec=lambda x: a.T @ x)
    check(lambda b: solve(operator, b, **exact)[0], b)
    check(lambda a, b: solve(a, b, **exact)[0], a.toarray(), b)


def test_operators():
    rng = np.random.default_rng(8)
    a = matrix(rng)
    operator = sl.aslinearoperator(a)
    x = rng.normal(size=M)
    check(lambda x: operator @ x, x)
    check(lambda x: operator.matvec(x) + operator.T.rmatvec(x), x)
    check(lambda x: operator @ np.outer(x, x), x)
    check(lambda x: sl.expm_multiply(matrix(np.random.default_rng(1), square=True), np.concatenate([x, x[:2]])), x)


def said(f, x0):
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        with pytest.raises(ampi.ActivityError) as caught:
            f(x)
    assert "test_scipy_sparse.py:" in str(caught.value)
    return str(caught.value)


def test_what_is_not_supported_is_an_error():
    a = matrix(np.random.default_rng(1), square=True)
    b = np.ones(N)
    weak = lambda x: ss.csr_array((x, a.indices, a.indptr), shape=a.shape)
    assert "eigsh" in said(lambda x: sl.eigsh(weak(x), 2), a.data)
    assert "SuperLU.L" in said(lambda x: sl.splu(weak(x).tocsc()).L, a.data)
    assert "as a preconditioner" in said(lambda x: sl.spilu(weak(x).tocsc()).solve(b), a.data)
    assert "csr_array.sum" in said(lambda x: weak(x).sum(0, out=np.zeros(N)), a.data)
    assert "nan between" in said(lambda x: weak(x) / weak(x), a.data)
    assert "damping" in said(lambda x: sl.lsqr(weak(x), b, damp=0.1), a.data)
    assert "converged" in said(lambda x: cg(a, x, maxiter=1), b)
    shifted = lambda x: sl.LinearOperator((N, N), matvec=lambda v: a @ v + x * v, rmatvec=lambda v: a.T @ v + x * v)
    assert "scipy.sparse.linalg" in said(lambda x: sl.gmres(shifted(x), b)[0], b)
    assert "scipy.sparse.linalg" in said(lambda x: sl.gmres(shifted(x), x)[0], b)


@pytest.mark.parametrize("format", ["lil", "dok"])
def test_formats_that_keep_pythons_numbers_are_errors_with_advice(format):
    empty = getattr(ss, f"{format}_array")
    diagonal = lambda x: ss.diags_array([x], offsets=[0])
    for put in (
        lambda x: empty((2, 2)).__setitem__((0, 0), x[0]),
        lambda x: empty((2, 2)).setdiag(x[:2]),
        lambda x: empty(np.outer(x, x)),
        lambda x: empty(diagonal(x)),
        lambda x: diagonal(x).asformat(format),
        lambda x: ss.hstack([diagonal(x), diagonal(x)], format=format),
    ):
        assert "scipy.sparse.coo_array((data, (row, column))" in said(put, np.ones(N))


def test_preconditioners_without_an_adjoint_are_not_needed():
    import scipy.sparse
    import scipy.sparse.linalg

    rng = np.random.default_rng(0)
    a = scipy.sparse.csr_array(np.diag(np.arange(4.0, 10.0)) + 0.3 * rng.standard_normal((6, 6)))
    m = scipy.sparse.linalg.LinearOperator((6, 6), matvec=lambda x: x / np.arange(4.0, 10.0))
    b = rng.standard_normal(6)
    solved = lambda x: scipy.sparse.linalg.bicgstab(a, x, M=m, rtol=1e-12)[0]
    gradient = ampi.grad(lambda x: (solved(x) ** 2).sum())(b)
    expected = np.linalg.solve(a.toarray().T, 2 * np.linalg.solve(a.toarray(), b))
    np.testing.assert_allclose(gradient, expected, rtol=1e-9)

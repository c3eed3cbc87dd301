"""scipy.linalg: functions of active matrices, each with arguments that suit it, in several layouts and both kinds."""

import numpy as np
import pytest
import scipy
import scipy.linalg as sl
from scipy.linalg import solve
from scipy_check import check

import ampi


def full(rng, n, m=None, complex=False):
    a = rng.normal(size=(n, m or n)) + 1j * complex * rng.normal(size=(n, m or n))
    a = a if complex else a.real
    return np.asfortranarray(a) if rng.random() < 0.5 else a


def regular(rng, n, complex=False):
    return full(rng, n, complex=complex) + 3 * np.eye(n)


def definite(rng, n, complex=False):
    a = full(rng, n, complex=complex)
    return a @ a.conj().T + n * np.eye(n)


def stack(make, rng, *arguments):
    return np.stack([make(rng, *arguments) for _ in range(2)])


def right(rng, n, kind):
    return rng.normal(size=n) if kind == 0 else rng.normal(size=(n, 2))


OLD = tuple(map(int, scipy.__version__.split(".")[:2])) < (
    1,
    17,
)  # no stacks of matrices


def graded(rng, rows, complex):
    """A matrix whose singular values are about 3, 2 and 1."""
    return np.eye(rows, 3) * [3, 2, 1] + 0.1 * full(rng, rows, 3, complex)


CASES = {
    "solve": lambda rng, c, k: (sl.solve, regular(rng, 4, c), right(rng, 4, k)),
    "solve stacks": lambda rng, c, k: (sl.solve, stack(regular, rng, 3, c), right(rng, 3, k)),
    "solve sym": lambda rng, c, k: (
        lambda a, b: sl.solve(a, b, assume_a="sym", lower=bool(k)),
        regular(rng, 4, c),
        right(rng, 4, k),
    ),
    "solve pos": lambda rng, c, k: (
        lambda a, b: sl.solve(a, b, assume_a="pos", lower=bool(k)),
        definite(rng, 4, c),
        right(rng, 4, k),
    ),
    "solve upper": lambda rng, c, k: (
        lambda a, b: sl.solve(a, b, assume_a="upper triangular"),
        regular(rng, 4, c),
        right(rng, 4, k),
    ),
    "solve tridiagonal": lambda rng, c, k: (
        lambda a, b: sl.solve(a, b, assume_a="tridiagonal"),
        regular(rng, 4, c),
        right(rng, 4, k),
    ),
    "solve transposed": lambda rng, c, k: (
        lambda a, b: sl.solve(a, b, transposed=True),
        regular(rng, 4),
        right(rng, 4, k),
    ),
    "inv": lambda rng, c, k: (sl.inv, regular(rng, 4, c) if k else stack(regular, rng, 3, c)),
    "inv pos": lambda rng, c, k: (lambda a: sl.inv(a, assume_a="pos", lower=bool(k)), definite(rng, 3, c)),
    "det": lambda rng, c, k: (sl.det, regular(rng, 4, c) if k else stack(regular, rng, 3, c)),
    "det singular": lambda rng, c, k: (sl.det, np.outer([1.0, 2, 0], [3.0, 1, 0]) + np.diag([1.0, 0, 0])),
    "solve_triangular": lambda rng, c, k: (
        lambda a, b: sl.solve_triangular(a, b, k, lower=bool(k), unit_diagonal=c),
        regular(rng, 4, c),
        right(rng, 4, k),
    ),
    "solve_triangular H": lambda rng, c, k: (
        lambda a, b: sl.solve_triangular(a, b, "C", lower=bool(k)),
        regular(rng, 4, c),
        right(rng, 4, k),
    ),
    "solve_banded": lambda rng, c, k: (
        lambda ab, b: sl.solve_banded((2, 1), ab, b),
        full(rng, 4, 6, c) + 5 * (np.arange(4) == 1)[:, None],
        right(rng, 6, k),
    ),
    "solve_banded tridiagonal": lambda rng, c, k: (
        lambda ab, b: sl.solve_banded((1, 1), ab, b),
        full(rng, 3, 6, c) + 5 * (np.arange(3) == 1)[:, None],
        right(rng, 6, k),
    ),
    "solveh_banded": lambda rng, c, k: (
        lambda ab, b: sl.solveh_banded(ab, b, lower=bool(k)),
        full(rng, 3, 6, c) + 9 * (np.arange(3) == (0 if k else 2))[:, None],
        right(rng, 6, k),
    ),
    "solve_toeplitz": lambda rng, c, k: (
        lambda c, b: sl.solve_toeplitz(c, b),
        full(rng, 1, 4, c)[0] + 4 * (np.arange(4) == 0),
        right(rng, 4, k),
    ),
    "solve_toeplitz row": lambda rng, c, k: (
        lambda c, r, b: sl.solve_toeplitz((c, r), b),
        full(rng, 1, 4, c)[0] + 4 * (np.arange(4) == 0),
        full(rng, 1, 4, c)[0],
        right(rng, 4, k),
    ),
    "matmul_toeplitz": lambda rng, c, k: (
        lambda c, r, b: sl.matmul_toeplitz((c, r), b),
        full(rng, 1, 3, c)[0],
        full(rng, 1, 4, c)[0],
        right(rng, 4, k),
    ),
    "lu_factor, lu_solve": lambda rng, c, k: (
        lambda a, b: sl.lu_solve(sl.lu_factor(a), b, trans=k),
        full(rng, 4, complex=c),
        right(rng, 4, k),
    ),
    "lu_solve H": lambda rng, c, k: (
        lambda a, b: sl.lu_solve(sl.lu_factor(a), b, trans=2),
        full(rng, 4, complex=c),
        right(rng, 4, k),
    ),
    "lu": lambda rng, c, k: (lambda a: sl.lu(a, permute_l=bool(k))[-2:], full(rng, 4, complex=c)),
    "cholesky": lambda rng, c, k: (lambda a: sl.cholesky(a, lower=bool(k)), definite(rng, 4, c)),
    "cho_factor, cho_solve": lambda rng, c, k: (
        lambda a, b: sl.cho_solve(sl.cho_factor(a, lower=bool(k)), b),
        definite(rng, 4, c),
        right(rng, 4, k),
    ),
    "qr": lambda rng, c, k: (lambda a: sl.qr(a, mode="economic"), full(rng, 4 + k, 4, c)),
    "qr r": lambda rng, c, k: (lambda a: sl.qr(a, mode="r"), full(rng, 4, 4, c)),
    "eigh": lambda rng, c, k: (lambda a: np.abs(sl.eigh(a, lower=bool(k))[1]), definite(rng, 4, c)),
    "eigh values": lambda rng, c, k: (
        lambda a: sl.eigh(a, lower=bool(k), eigvals_only=True, subset_by_index=[1, 2]),
        definite(rng, 4, c),
    ),
    "eigvalsh": lambda rng, c, k: (lambda a: sl.eigvalsh(a, lower=bool(k)), definite(rng, 4, c)),
    "eigvals": lambda rng, c, k: (sl.eigvals, full(rng, 4, complex=c)),
    "svd": lambda rng, c, k: (
        lambda a: [np.abs(x) for x in sl.svd(a, full_matrices=False)],
        full(rng, 4 + k, 4, c) if c else full(rng, 4, 4 + k),
    ),
    "svdvals": lambda rng, c, k: (sl.svdvals, full(rng, 3, 4 + k, c)),
    "pinv": lambda rng, c, k: (sl.pinv, full(rng, 3 + 2 * k, 4, c)),
    "lstsq": lambda rng, c, k: (lambda a, b: sl.lstsq(a, b)[:2], full(rng, 5, 3), right(rng, 5, k)),
    "pinv of lower rank": lambda rng, c, k: (
        lambda a: [sl.pinv(a, rtol=0.5), sl.pinv(a[:2], atol=1.5), np.linalg.pinv(a, rcond=0.3)],
        graded(rng, 3 + k, c),
    ),
    "lstsq of lower rank": lambda rng, c, k: (
        lambda a, b: [sl.lstsq(a, b, 0.5, lapack_driver=["gelsd", "gelss"][k])[0], np.linalg.lstsq(a, b, 0.3)[0]],
        graded(rng, 3 + k, c),
        right(rng, 3 + k, k),
    ),
    "expm": lambda rng, c, k: (sl.expm, full(rng, 4, complex=c) if k else stack(full, rng, 3)),
    "expm_frechet": lambda rng, c, k: (
        lambda e: sl.expm_frechet(0.5 * full(np.random.default_rng(k), 3, complex=c), e, compute_expm=bool(k)),
        full(rng, 3, complex=c),
    ),
    "sqrtm": lambda rng, c, k: (sl.sqrtm, definite(rng, 4, c)),
    "solve_sylvester": lambda rng, c, k: (
        sl.solve_sylvester,
        definite(rng, 3, c),
        definite(rng, 2, c),
        full(rng, 3, 2, c),
    ),
    "norm": lambda rng, c, k: (lambda a: sl.norm(a, [None, 1][k]), full(rng, 3, 4, c)),
    "toeplitz": lambda rng, c, k: (sl.toeplitz, *[full(rng, 1, 3 + j, c)[0] for j in range(1 + k)]),
    "hankel": lambda rng, c, k: (sl.hankel, *[full(rng, 1, 3 + j, c)[0] for j in range(1 + k)]),
    "circulant": lambda rng, c, k: (sl.circulant, full(rng, 1, 4, c)[0]),
    "block_diag": lambda rng, c, k: (sl.block_diag, full(rng, 2, 3, c), full(rng, 1, 1 + k)),
    "a name of before, in lists": lambda rng, c, k: (
        lambda x: solve([[x[0], 1.0], [2.0, x[1]]], [x[2], 1.0]),
        np.array([3.0, 4.0, 5.0]),
    ),
}


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("complex", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradient(name, complex, kind):
    function, *arrays = CASES[name](np.random.default_rng(len(name)), complex, kind)
    if OLD:
        try:
            function(*arrays)
        except (TypeError, ValueError) as error:
            pytest.skip(f"SciPy {scipy.__version__} does not take this call: {error}")
    check(function, *arrays)


@pytest.mark.parametrize("order", [1, np.inf])
def test_norms_that_lapack_rounds_otherwise(order):
    """Its largest sum of magnitudes need not be one of those that NumPy computes."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        a = full(rng, 4, 4, True)
        sums = np.abs(a).sum(axis=0 if order == 1 else 1)
        holds = sums == sums.max()
        expected = np.where(holds if order == 1 else holds[:, None], a / np.abs(a), 0.0)
        np.testing.assert_allclose(ampi.grad(lambda a: sl.norm(a, order))(a), expected, rtol=1e-14, atol=1e-14)


def test_every_rule_has_a_case():
    from ampi.foreign.scipy.guards import refuse
    from ampi.interception.hooks import hook_of

    with ampi.Tape():
        pass
    ruled = [n for n in sl.__all__ if (found := hook_of(getattr(sl, n))) and found.handle is not refuse]
    missing = [n for n in ruled if not any(n in name for name in CASES)]
    assert missing == ["cho_solve_banded"], missing


@pytest.mark.parametrize(
    "f",
    [sl.logm, lambda a: sl.qr(a, pivoting=True), sl.schur, lambda a: sl.eigh(a, a @ a), sl.eig, lambda a: sl.lu(a[:2])],
)
def test_what_has_no_rule_is_an_error_with_name_and_line(f):
    with ampi.Tape() as tape:
        a = tape.watch(np.eye(3) + 0.1)
        with pytest.raises(ampi.ActivityError, match=r"test_scipy_linalg\.py:.*scipy\.linalg"):
            f(a)


@pytest.mark.parametrize("columns", [(), (2,)])
@pytest.mark.parametrize("kind", "dz")
def test_tridiagonal_systems_of_lapack(kind, columns):
    import scipy.linalg.lapack

    rng = np.random.default_rng(0)

    def drawn(*shape):
        real = rng.standard_normal(shape)
        return real if kind == "d" else real + 1j * rng.standard_normal(shape)

    def program(*arguments):
        return (abs(getattr(scipy.linalg.lapack, f"{kind}gtsv")(*arguments)[3]) ** 2).sum()

    given = [drawn(4), drawn(5) + 5, drawn(4), drawn(5, *columns)]
    gradients = ampi.grad(program, argnums=(0, 1, 2, 3))(*given)
    directions = [drawn(*x.shape) for x in given]
    found = sum(np.sum(np.real(np.conj(g) * d)) for g, d in zip(gradients, directions))
    at = lambda h: program(*[x + h * d for x, d in zip(given, directions)])
    assert float(found) == pytest.approx(float(at(1e-5) - at(-1e-5)) / 2e-5, rel=1e-7)
    with pytest.raises(ampi.ActivityError, match=rf"test_scipy_linalg\.py:.*lapack\.{kind}gtsv has no tangent"):
        ampi.jvp(program, tuple(given), tuple(directions))


def test_least_squares_by_pivoting_of_lower_rank_are_refused():
    a = graded(np.random.default_rng(0), 3, False)
    with pytest.raises(ampi.ActivityError, match="gelsy"):
        ampi.grad(lambda b: sl.lstsq(a, b, 0.5, lapack_driver="gelsy")[0].sum())(np.ones(3))


STACKS = {
    "solve": (sl.solve, (3, 3)),
    "solve_triangular": (lambda a, b: sl.solve_triangular(a, b, lower=True), (3, 3)),
    "solve_triangular transposed": (lambda a, b: sl.solve_triangular(a, b, trans=1, unit_diagonal=True), (3, 3)),
    "cho_solve": (lambda a, b: sl.cho_solve((a, True), b), (3, 3)),
    "lu_solve": (lambda a, b: sl.lu_solve(sl.lu_factor(a), b), (3, 3)),
    "solve_banded": (lambda a, b: sl.solve_banded((1, 1), a, b), (3, 3)),
    "solveh_banded": (lambda a, b: sl.solveh_banded(a, b), (2, 3)),
    "solve_toeplitz": (sl.solve_toeplitz, (3,)),
    "matmul_toeplitz": (sl.matmul_toeplitz, (3,)),
    "lstsq": (lambda a, b: _weighted(*sl.lstsq(a[..., :2], b)), (3, 3)),
}


def _weighted(x, residuals, rank, s):
    """Return a number that depends on all parts of a least-squares solution."""
    x, residuals, s = (np.sum(part * np.cos(np.arange(part.size)).reshape(part.shape)) for part in (x, residuals, s))
    return x + 0.5 * residuals + 0.3 * s


@pytest.mark.parametrize("name", STACKS)
@pytest.mark.parametrize("number", [(), (3,), (2,), (2, 3)], ids=str)
@pytest.mark.parametrize("right", [(3,), (3, 3), (3, 2), (3, 3, 3), (2, 3, 1)], ids=str)
def test_stacks_of_systems(name, number, right):
    """Vectors and stacks on the right of matrices and stacks, also where a stack of vectors looks like a matrix."""
    if tuple(map(int, scipy.__version__.split(".")[:2])) < (1, 17) and (number or len(right) > 2):
        pytest.skip("SciPy knows no stacks of all functions before 1.17")
    solve, shape = STACKS[name]
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((*number, *shape)), rng.standard_normal(right)
    if len(shape) == 1:
        a[..., 0] += 5.0
    elif "banded" in name:
        a[..., 1, :] += 5.0
    else:
        a += 5.0 * np.eye(3)
    try:
        expected = solve(a, b)
    except (ValueError, IndexError, TypeError, np.linalg.LinAlgError):
        pytest.skip("SciPy does not solve it")
    weights = rng.standard_normal(expected.shape)
    try:
        found = ampi.grad(lambda a, b: ampi.numpy.sum(weights * solve(a, b)), argnums=(0, 1))(a, b)
    except ampi.ActivityError as error:
        assert ("several matrices" in str(error)) == bool(number) == ("lu_" in name or "toeplitz" in name)
        return
    d, e, step = rng.standard_normal(a.shape), rng.standard_normal(b.shape), 1e-6
    moved = [np.sum(weights * solve(a + s * d, b + s * e)) for s in (step, -step)]
    slope = np.sum(found[0] * d) + np.sum(found[1] * e)
    np.testing.assert_allclose(slope, (moved[0] - moved[1]) / (2 * step), rtol=1e-6, atol=1e-7)

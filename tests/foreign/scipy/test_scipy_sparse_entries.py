"""scipy.sparse: matrices with active entries, and what is computed of them."""

import numpy
import numpy as np
import pytest
import scipy.sparse as ss
import scipy.sparse.linalg as sl
from scipy_check import check, check_twice, flat
from sparse_programs import Program

import ampi
import ampi.numpy as anp
from ampi.base import checks
from ampi.memory import storages as memory

N = 5
EXACT = {"rtol": 1e-13}
LEAST = {"atol": 1e-15, "btol": 1e-15, "conlim": 0}


def a(x):
    return ss.diags([x[:N] + 6, x[N : 2 * N - 1], x[2 * N - 1 :]], [0, 1, -1], format="csr")


def s(x):
    return a(x) + a(x).T


def aa(x):
    return ss.csr_array(a(x))


def changed(x, name, *arguments):
    matrix = x if ss.issparse(x) else a(x)
    getattr(matrix, name)(*arguments)
    return matrix


def one(x):
    return ss.coo_array((x[:N], (np.arange(N),)), shape=(N,))


def repeated(x):
    return ss.coo_matrix((x[:6], ([0, 1, 1, 0, 0, 3], [2, 1, 1, 2, 0, 3])), shape=(4, 4))


EYE = ss.eye(N)
LIL, DOK = ss.lil_matrix(np.eye(N)), ss.dok_matrix(np.eye(N))

CASES = {
    # how matrices are made
    "diagonals": lambda x: ss.diags([x[:N], x[0], 2.0], [0, 1, -2], shape=(N, N)),
    "one diagonal": lambda x: ss.diags(x[:N]),
    "diags_array": lambda x: ss.diags_array([x[:N], x[1:N]], offsets=[0, -1]),
    "spdiags": lambda x: ss.spdiags(x[: 2 * N].reshape(2, N), [0, 2], N, N),
    "dia_matrix": lambda x: ss.dia_matrix((x[:N], 0), shape=(N, N)),
    "dense with zeros": lambda x: ss.csr_matrix(x[:9].reshape(3, 3) * np.eye(3)),
    "of a matrix": lambda x: ss.csc_matrix(repeated(x)),
    "repeated": lambda x: repeated(x).tocsr(),
    "repeated, transposed": lambda x: repeated(x).T,
    "repeated, dense": lambda x: repeated(x).toarray(),
    # sums and numbers
    "identity": lambda x: ss.identity(N) + x[0] * a(x),
    "difference": lambda x: EYE - a(x) / x[1],
    "scaled": lambda x: changed(changed(x, "__imul__", x[0]), "__itruediv__", x[1]),
    "scaled constant": lambda x: changed(ss.csr_matrix(np.eye(N)), "__imul__", x[0]),
    "sum of a list": lambda x: sum([a(x), s(x)]),
    "with a dense one": lambda x: aa(x) + np.ones((N, N)),
    "minus dense": lambda x: aa(x) - x[:N],
    "dense minus": lambda x: x[:N] - aa(x),
    "lil": lambda x: LIL + x[0] * LIL - a(x),
    "dok": lambda x: DOK + a(x) + x[0] * DOK,
    # products
    "squared": lambda x: a(x) @ a(x),
    "congruence": lambda x: s(x).T @ ss.diags(x[:N]) @ s(x),
    "power of a matrix": lambda x: a(x) ** 3,
    "power of elements": lambda x: aa(x) ** 2,
    "active power": lambda x: a(x).power(x[0]),
    "with lil": lambda x: LIL @ a(x) @ DOK,
    "dok by a vector": lambda x: DOK @ x[:N],
    "vectors": lambda x: one(x) @ one(x),
    "vector by matrix": lambda x: one(x) @ aa(x),
    "multiply by rows": lambda x: a(x).multiply(x[:N]),
    "multiply by columns": lambda x: a(x).multiply(1 / x[:N, None]),
    "multiply by a list": lambda x: a(x).multiply([1.0, 2.0, 3.0, 4.0, 5.0]),
    "multiply matrices": lambda x: a(x).multiply(s(x)),
    "multiply by a sparse row": lambda x: aa(x).multiply(one(x)),
    "divided by columns": lambda x: a(x) / x[:N, None],
    "kron": lambda x: ss.kron(a(x), [[x[0], 1.0]]),
    "kronsum": lambda x: ss.kronsum(a(x), s(x)),
    # elements
    "functions": lambda x: abs(-a(x)).sqrt() + a(x).tanh() + a(x).sign(),
    "maximum": lambda x: a(x).maximum(EYE * 7) + a(x).minimum(s(x)),
    "extremes of numbers": lambda x: (aa(x).maximum(-0.5), aa(x).minimum(x[0]), (-aa(x)).maximum(-x[1] * 7)),
    "extremes of arrays": lambda x: (aa(x).maximum(np.full((N, N), 0.9)), aa(x).minimum(x[:N])),
    "conjugate": lambda x: a(x).conj() + a(x).getH(),
    "float32": lambda x: a(x).astype(np.float64),
    # blocks and parts
    "blocks": lambda x: ss.bmat([[a(x), None], [EYE, s(x)]]),
    "block_array": lambda x: ss.block_array([[aa(x), DOK], [None, aa(x)]]),
    "stacks": lambda x: ss.vstack([ss.hstack([a(x), EYE]), ss.hstack([s(x), a(x)])]),
    "block_diag": lambda x: ss.block_diag([a(x), x[:4].reshape(2, 2), x[0]]),
    "triangles": lambda x: ss.triu(a(x), 1) + ss.tril(s(x)),
    "rows": lambda x: [row @ x[:N] for row in a(x)],
    "parts": lambda x: (a(x)[1:3], a(x)[[0, 2, 2]], a(x)[:, 1:], a(x)[0, 1]),
    "find": lambda x: ss.find(s(x))[2],
    # in place
    "set": lambda x: changed(changed(x, "__setitem__", (0, 3), x[0]), "__setitem__", (slice(0, 2), 0), x[:2, None]),
    "set in a constant": lambda x: changed(ss.csr_matrix(np.eye(N)), "__setitem__", (0, 3), x[0]),
    "setdiag": lambda x: changed(ss.csr_matrix(np.eye(N)), "setdiag", x[:N]),
    "sum_duplicates": lambda x: changed(repeated(x), "sum_duplicates"),
    "resize": lambda x: changed(x, "resize", (3, 3)),
    "shape": lambda x: changed(x, "set_shape", (1, N * N)),
    # what is computed of matrices
    "sums": lambda x: (a(x).sum(), aa(x).sum(axis=0), aa(x).sum(axis=-1), repeated(x).sum(), a(x).mean()),
    "means": lambda x: (aa(x).mean(axis=0), aa(x).trace(), repeated(x).diagonal(), a(x).diagonal(1)),
    "norms": lambda x: (sl.norm(a(x)), sl.norm(a(x), 1), sl.norm(a(x), np.inf), sl.norm(a(x), axis=0)),
    "extremes": lambda x: (a(x).max(), aa(x).max(axis=0), (-a(x)).min()),
    # solutions
    "spsolve": lambda x: sl.spsolve(a(x).tocsc(), x[:N]),
    "spsolve of a matrix": lambda x: sl.spsolve(a(x).tocsc(), s(x).tocsc()),
    "inverse": lambda x: sl.inv(a(x).tocsc()),
    "factors": lambda x: [sl.splu(a(x).tocsc()).solve(x[: 2 * N].reshape(N, 2), trans) for trans in "NTH"],
    "factorized": lambda x: sl.factorized(a(x).tocsc())(x[:N]),
    "triangular": lambda x: sl.spsolve_triangular(ss.tril(a(x)).tocsr(), x[:N]),
    "cg": lambda x: sl.cg(s(x), x[:N], M=ss.diags(1 / s(x).diagonal()), **EXACT)[0],
    "minres": lambda x: sl.minres(s(x), x[:N], **EXACT)[0],
    "preconditioned": lambda x: sl.gmres(
        a(x), x[:N], M=sl.LinearOperator((N, N), sl.spilu(a(x).tocsc()).solve), **EXACT
    )[0],
    "square": lambda x: sl.lsqr(a(x), x[:N], **LEAST)[0],
    "overdetermined": lambda x: sl.lsqr(ss.vstack([a(x), a(x * x)]), x[: 2 * N], **LEAST)[0],
    "underdetermined": lambda x: sl.lsmr(ss.hstack([a(x), a(x * x)]), x[:N], **LEAST)[0],
    "operators": lambda x: (
        sl.aslinearoperator(a(x)).T @ x[:N] + (sl.aslinearoperator(a(x)) * sl.aslinearoperator(s(x))).matvec(x[:N])
    ),
    "operator's system": lambda x: sl.gmres(sl.aslinearoperator(a(x)).H, x[:N], **EXACT)[0],
}


def dense(result):
    if isinstance(result, (list, tuple)):
        return [dense(item) for item in result]
    return result.toarray() if ss.issparse(result) else result


@pytest.mark.parametrize("name", CASES)
@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_case(name):
    x = numpy.random.default_rng(0).uniform(0.5, 1.5, 3 * N - 2)
    check(lambda x: dense(CASES[name](x)), x, rounding=1e-12)
    check_twice(lambda x: dense(CASES[name](x)), x)


@pytest.mark.parametrize("seed", range(60))
def test_programs(seed):
    program = Program(seed)
    size = max(numpy.abs(y).max(initial=1) for y in flat(program(program.start)))
    assert size < 1e4
    check(program, program.start, rounding=1e-12 * size)
    if not seed % 3:
        check_twice(program, program.start)


@pytest.mark.parametrize("seed", [13, 18, 20, 49, 94])  # of which SciPy rounds sums in another way
def test_programs_under_full_checks(seed, monkeypatch):
    monkeypatch.setattr(checks, "level", checks.FULL)
    monkeypatch.setattr(memory, "first_guard", memory.CHECKED)
    program = Program(seed)
    check(program, program.start, rounding=1e-9)


def upper(x):
    return ss.diags([x[:4], x[1:4]], [0, 1], format="csr")


MATRICES = {
    "A1": lambda x, np: upper(x).sum(1).A1,
    "asarray": lambda x, np: np.asarray(upper(x).sum(0)) * x[:4],
    "array": lambda x, np: np.array(upper(x).sum(0))[0],
    "product": lambda x, np: (upper(x).todense() + 1) * x[:4, None],
    "product from the left": lambda x, np: x[:4] * upper(x).todense(),
    "with a sparse one": lambda x, np: upper(x).todense() * upper(x) + upper(x) * upper(x).todense(),
    "with a constant one": lambda x, np: upper(x) @ numpy.asmatrix(numpy.ones((4, 2))) * x[:2, None],
    "number": lambda x, np: x[0] * upper(x).todense() * 2.0 / x[1],
    "column": lambda x, np: upper(x).todense()[:, 0],
    "row": lambda x, np: upper(x).todense()[1],
    "element": lambda x, np: upper(x).todense()[1, 1],
    "reduced": lambda x, np: (upper(x).todense().sum(0), upper(x).todense().max(), upper(x).sum(1).flatten()),
    "sum": lambda x, np: (upper(x) + numpy.ones((4, 4))) * x[:4, None],
    "function": lambda x, np: np.sqrt(upper(x).sum(0) * upper(x).sum(0).T)[0, 0],
    "scaling": lambda x, np: upper(x).multiply(1 / upper(x).sum(1)).toarray(),
    "lumped": lambda x, np: ss.diags(upper(x).sum(1).A1).toarray(),
}


@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_what_scipy_gives_as_matrices_computes_as_these(name):
    def case(x):
        np = numpy if type(x) is numpy.ndarray else anp
        found = MATRICES[name](x, np)
        return [np.asarray(y) for y in found] if isinstance(found, tuple) else np.asarray(found)

    check(case, numpy.random.default_rng(2).uniform(0.5, 1.5, 5), rounding=1e-13)


def test_entries_that_are_zero_keep_their_derivatives():
    x = numpy.array([2.0, 3.0])
    at = lambda x: ss.csr_array((x, ([0, 1], [1, 0])))
    with ampi.Tape() as tape:
        y = tape.watch(x)
        difference = at(y) - at(x)
        assert difference.nnz == 2 and not ampi.value(difference.data).any()
        assert (at(x) - at(x)).nnz == 0
        difference.eliminate_zeros()
        result = (difference @ np.ones(2)).sum()
    np.testing.assert_array_equal(tape.gradient(result, y), [1.0, 1.0])
    np.testing.assert_array_equal(ampi.grad(lambda x: ss.csr_array(anp.diag(x - 2.0)).sum())(x), [1.0, 1.0])


def test_values_of_matrices_are_plain():
    x = numpy.random.default_rng(1).uniform(0.5, 1.5, 3 * N - 2)
    with ampi.Tape() as tape:
        y = tape.watch(x)
        matrix, constant, dictionary = a(y), ampi.value(a(y)), ampi.value(DOK)
        product = (matrix @ np.ones(N) + constant @ y[:N]).sum()
    assert type(constant) is type(matrix) and type(constant.data) is numpy.ndarray and dictionary is DOK
    expected = np.r_[np.ones(3 * N - 2)]
    expected[:N] += np.asarray(a(x).sum(axis=0))[0]
    np.testing.assert_allclose(tape.gradient(product, y), expected)


@pytest.mark.filterwarnings("ignore::scipy.sparse.SparseEfficiencyWarning")
def test_results_have_the_classes_and_structures_of_scipys():
    x = numpy.random.default_rng(1).uniform(0.5, 1.5, 3 * N - 2)
    for name, case in CASES.items():
        expected = case(x)
        with ampi.Tape() as tape:
            found = case(tape.watch(x))
        if ss.issparse(expected):
            assert type(found) is type(expected) or expected.format == "dok", name
            assert found.shape == expected.shape and found.dtype == expected.dtype, name
            if not name.startswith(("repeated", "dense", "spsolve", "inverse", "dok")):
                assert found.nnz == expected.nnz, name


def test_indices_of_the_program_are_not_sorted_with_a_copy_of_its_data():
    order = numpy.array([2, 0, 1])
    x = numpy.array([1.0, 5.0, 2.0, 1.0, 6.0])
    with ampi.Tape() as tape:
        y = tape.watch(x)
        matrix = ss.csc_array((y, order[[0, 1, 2, 0, 2]], [0, 3, 4, 5]), shape=(3, 3))
        before = ampi.value(matrix.toarray())
        for solve in (sl.spsolve, lambda a, b: sl.splu(a).solve(b)):
            solve(matrix + ss.eye_array(3, format="csc") * 0, np.ones(3))
            solve(matrix, np.ones(3))
            np.testing.assert_array_equal(ampi.value(matrix.toarray()), before)


CONSTANT = ss.csr_array(np.eye(3))


def refilled(x):
    matrix = CONSTANT.copy()
    y = matrix @ x
    matrix.data[:] = x
    matrix.data[1:] *= x[1:]
    return ((matrix @ np.ones(3)) * y).sum()


def filled(x):
    places = np.arange(3)
    matrix = ss.coo_array(((anp if isinstance(x, ampi.ndarray) else np).zeros(3), (places, places))).tocsc()
    matrix.data += x
    return (matrix @ x).sum()


def replaced(x):
    matrix = CONSTANT.copy()
    matrix.data = x * 1.0
    return (matrix @ x).sum()


@pytest.mark.parametrize("case", [refilled, filled, replaced])
def test_data_that_is_assigned(case):
    check(case, numpy.array([1.0, 2.0, 3.0]))


def test_data_of_others_is_assigned_with_a_warning():
    matrix = CONSTANT.copy()

    def parts(x):
        matrix.data[:] = x
        return (matrix @ np.ones(3)).sum() + x.sum()

    with pytest.warns(ampi.errors.ActivityWarning, match=r"test_scipy_sparse_entries.py.*plain numpy array"):
        ampi.grad(parts)(numpy.array([1.0, 2.0, 3.0]))


@pytest.mark.parametrize(
    "name", ["sort_indices", "sum_duplicates", "eliminate_zeros", "setdiag", "__setitem__", "spsolve"]
)
def test_what_scipy_writes_in_place_leaves_what_a_tape_needs(name):
    values = numpy.array([3.0, 0.0, 4.0, 5.0, 6.0])
    x = numpy.array([1.0, 2.0, 3.0])
    with ampi.Tape() as tape:
        y = tape.watch(x)
        matrix = ss.csr_array((values, [2, 1, 0, 1, 2], [0, 3, 4, 5]), shape=(3, 3)).copy()
        before = matrix.toarray()
        product = (matrix @ y) @ np.array([1.0, 2.0, 3.0])
        arguments = {"setdiag": (7.0,), "__setitem__": ((0, 0), 7.0)}.get(name, ())
        if name == "spsolve":
            sl.spsolve(matrix, np.ones(3))
        else:
            getattr(matrix, name)(*arguments)
    np.testing.assert_array_equal(tape.gradient(product, y), before.T @ [1.0, 2.0, 3.0])


DIFFUSION = """
import numpy as np, scipy.sparse as sp, scipy.sparse.linalg as spla
from mpi4py import MPI

comm = MPI.COMM_WORLD
n, h = 12, 1 / 13
k = 1.0 + 0.5 * np.sin(np.arange(n + 1))
A = sp.diags([(k[:-1] + k[1:]) / h**2, -k[1:-1] / h**2, -k[1:-1] / h**2], [0, 1, -1], shape=(n, n), format="csc")
found = {}
for source in range(comm.rank, 4, comm.size):
    f = np.zeros(n)
    f[1 + 3 * source] = 1.0
    lu = spla.splu(sp.identity(n, format="csc") + 0.01 * A)
    found[source] = lu.solve(lu.solve(spla.spsolve(A, f)))[::3]
loss = 0.0
everything = comm.gather(found, root=0)
if comm.rank == 0:
    loss = sum((u**2).sum() for part in everything for u in part.values())
"""


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_program_that_assembles_and_solves(ranks, tmp_path, mpiexec):
    path = tmp_path / "diffusion.py"
    path.write_text(DIFFUSION)
    options = ("--wrt", "k", "--of", "loss", "--objective", "root", "--check")
    result = mpiexec(ranks, "-m", "ampi.run", *options, path)
    assert result.returncode == 0 and "PASS" in result.stdout, result.stdout + result.stderr


@pytest.mark.mpi
def test_matrices_are_sent_as_objects():
    comm = ampi.COMM_WORLD
    x = numpy.random.default_rng(comm.rank).uniform(0.5, 1.5, 3 * N - 2)

    def program(x):
        matrices = comm.allgather(a(x))
        return ((matrices[0] @ matrices[-1] + comm.bcast(matrices[0], root=0)) @ x[:N]).sum()

    gradient = ampi.grad(program)(x)
    move = numpy.random.default_rng(10 + comm.rank).uniform(-1, 1, x.shape)
    along = lambda h: comm.allreduce(ampi.value(program(x + h * move)))
    expected = (along(1e-5) - along(-1e-5)) / 2e-5
    np.testing.assert_allclose(comm.allreduce(gradient @ move), expected, rtol=1e-7)

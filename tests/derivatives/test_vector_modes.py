"""Vector modes: seeds and tangents with a leading axis, and what is made of them: Jacobians, dense and sparse."""

import numpy as np
import pytest
from forward_check import check_seeds, check_tangents
from mpi4py import MPI
from scipy import sparse

import ampi
import ampi.numpy as anp

WORLD = MPI.COMM_WORLD
N = 5


def ring(x):
    """Five numbers of each rank and one of each neighbor's; the Jacobian has three diagonals, which close to a ring."""
    comm = ampi.COMM_WORLD
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    wide = anp.zeros(N + 2)
    wide[1:-1] = x
    comm.Sendrecv(x[-1:], after, 0, wide[:1], before, 0)
    comm.Sendrecv(x[:1], before, 1, wide[-1:], after, 1)
    return wide[1:-1] ** 2 * wide[:-2] - anp.sin(wide[2:])


def start():
    return np.arange(1.0, N + 1) / 3 + WORLD.rank


def jacobian_of_ring():
    """Of all ranks, by formula."""
    x = np.concatenate(WORLD.allgather(start()))
    n = len(x)
    found = np.zeros((n, n))
    for i in range(n):
        found[i, i] += 2 * x[i] * x[i - 1]
        found[i, i - 1] += x[i] ** 2
        found[i, (i + 1) % n] -= np.cos(x[(i + 1) % n])
    return found


def mine(k=slice(None)):
    """This rank's numbers among those of all ranks."""
    return slice(WORLD.rank * N, WORLD.rank * N + N)


# --------------------------------------------------------------------------------------------------- seeds and tangents


@ampi.kernel
def turned(a, b, s):
    for i in range(a.size):
        b[i] = a[i] * np.exp(-s * a[i]) + b[i] * a[i - 1]
    return b.sum()


def local(x, s):
    a = anp.sin(x)
    b = a * s
    t = turned(a, b, s)
    a[1:] = b[:-1] * t
    return [a, b, (a @ b)]


def test_seeds_give_what_single_sweeps_give():
    with ampi.Tape() as tape:
        x = [tape.watch(np.linspace(0.3, 1.4, 7)), tape.watch(0.7)]
        y = local(*x)
    check_seeds(tape, y, x, 3)
    check_seeds(tape, y, x, 4, rounding=1e-13)  # from four on kernels have vectors


@ampi.kernel
def relaxed(u, v):
    for i in range(1, u.size - 1):
        v[i - 1] = u[i] + 0.1 * np.sin(u[i - 1] - u[i + 1])


@pytest.mark.parametrize("k", [4, 9])
def test_kernels_between_messages(k):
    """Shadows that kernels have side by side are sent, received, reduced and put as those of each direction."""
    comm = ampi.COMM_WORLD
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = anp.zeros(1)
    with ampi.Tape() as tape:
        x = tape.watch(start())
        u = x * 1.0
        wide = anp.zeros(N + 2)
        window = ampi.MPI.Win.Create(u, comm=comm)
        for _ in range(3):
            wide[1:-1] = u
            requests = [comm.Irecv(wide[:1], before, 0), comm.Irecv(wide[-1:], after, 1)]
            requests += [comm.Isend(u[-1:], after, 0), comm.Isend(u[:1], before, 1)]
            ampi.MPI.Request.Waitall(requests)
            relaxed(wide, u)
            comm.Allreduce(u[2:3], total)
            u *= total / (total + 1.0)
        window.Fence()
        window.Put(wide[2:3], after, target=1)
        window.Fence()
        relaxed(wide, u)
        window.Free()
    check_seeds(tape, [u, total], [x], k, seed=WORLD.rank, rounding=1e-12)


def test_tangents_give_what_single_ones_give():
    check_tangents(local, [np.linspace(0.3, 1.4, 7), 0.7], 4)


def test_walks_forward_in_several_directions():
    x0, directions = np.linspace(0.3, 1.4, 7), np.random.default_rng(0).normal(size=(3, 7))
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = anp.cumsum(x * x[::-1])
    together = tape.tangent(y, x, directions, vectorised=True)
    for k, x_dot in enumerate(directions):
        np.testing.assert_array_equal(together[k], tape.tangent(y, x, x_dot))


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_shapes_follow_the_structure():
    with ampi.Tape() as tape:
        x, s = tape.watch(np.ones((2, 3))), tape.watch(2.0)
        y = x * s
    (a, [b]) = tape.gradient((y, y.sum()), (x, [s]), seeds=(np.ones((4, 2, 3)), np.arange(4.0)))
    assert a.shape == (4, 2, 3) and b.shape == (4,) and a.flags.c_contiguous
    y, (y_dot, none) = ampi.jvp(lambda x, n: (x * n, "text"), (np.ones(2), 3), (np.eye(2), None), vectorised=True)
    np.testing.assert_array_equal(y_dot, 3 * np.eye(2))
    assert none is None


@ampi.kernel
def products(x, y):
    total = 1.0
    for i in range(x.size):
        total *= x[i]
        y[i] = total


def test_values_that_a_kernel_left():
    """Its adjoint reads what was in its argument after the call, and is overwritten later."""
    x0 = np.linspace(0.3, 1.4, 7)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = anp.zeros(7)
        products(x, y)
        z = 3.0 * y
        y[:] = 5.0
    assert any(record.adjoint.arrays_after for record in tape.records if record.adjoint is not None)
    expected = np.tril(3.0 * np.cumprod(x0)[:, None] / x0)
    np.testing.assert_allclose(tape.gradient(z, x, seeds=np.eye(7)), expected, rtol=1e-13)
    check_seeds(tape, [z], [x], 3)


def test_values_that_an_operation_left():
    """The same where an adjoint sees one direction at a time."""

    class Exponential(ampi.tape.BaseAdjoint):
        reads_memory = False

        def __init__(self, array):
            self.region = ampi.memory.storages.region_of(array)

        def __call__(self, sweep):
            (after,) = sweep.after
            sweep.add(self.region, sweep.take(self.region) * after)

    x0 = np.linspace(0.3, 1.4, 4)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = x * 1.0
        for _ in range(2):
            adjoint = Exponential(y)
            undo = ampi.tape.overwrite(y)
            np.exp(ampi.value(y), out=ampi.memory.storages.plain(y))
            adjoint.arrays_after = [tape.need(y)]
            tape.append(adjoint, undo)
        z = y * 3.0
        y[:] = 5.0
    e = np.exp(x0)
    np.testing.assert_allclose(tape.gradient(z, x, seeds=np.eye(4)), np.diag(3.0 * e * np.exp(e)), rtol=1e-13)


@ampi.kernel
def squares(x, y):
    for i in range(x.size):
        y[i] = x[i] * x[i]


@pytest.mark.parametrize("used", ["nowhere else", "before", "after", "halves"])
def test_adjoints_that_set_their_shadows(used):
    """Whether or not they are the first to access these shadows."""
    x0 = np.linspace(0.3, 1.4, 8)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        both = anp.zeros((2, 8))
        u, v = both if used == "halves" else (anp.zeros(8), anp.zeros(8))
        u[:] = x
        w = 3.0 * u if used == "before" else 0.0
        squares(u, v)
        w = 3.0 * u if used == "after" else w
        y = anp.zeros(8)
        squares(v, y)
        y += w
    if used != "halves":
        assert all(contract.new for contract in squares.contracts.values())
    expected = np.diag(4.0 * x0**3 + (3.0 if used in ("before", "after") else 0.0))
    for _ in range(3):  # what memory held before is not in the results
        np.testing.assert_allclose(tape.gradient(y, x, seeds=np.eye(8)), expected, rtol=1e-14)
    check_seeds(tape, [y], [x], 3)


def test_a_time_loop():
    def program(x):
        return ampi.timeloop(lambda state: anp.sin(state) * 1.1 + x, x * 0.5, steps=9, checkpoints=2)

    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(0.1, 0.9, 5))
        y = program(x)
    check_seeds(tape, [y], [x], 3)


def test_a_rule_of_the_user():
    @ampi.custom_vjp
    def halved(x):
        x[...] = x / 2
        return x * 3.0

    def forward(x):
        return halved.f(x), None

    halved.defvjp(forward, lambda residuals, g: (g * 3.0,))

    def tangent(arguments, tangents):
        (x,), (x_dot,) = arguments, tangents
        x[...] = x / 2
        return x * 3.0, 1.5 * x_dot

    halved.defjvp(tangent)
    check_tangents(lambda x: halved(x * 1.0) * x, [np.arange(1.0, 4.0)], 3)


def test_sweeps_leave_the_program_as_it_was():
    with ampi.Tape() as tape:
        x = tape.watch(np.linspace(0.3, 1.4, 6))
        y = anp.exp(x)
        for _ in range(4):
            y *= y
            y[1:] -= x[:-1]
    before = ampi.value(y).copy()
    first = tape.gradient(y, x, seeds=np.eye(6))
    np.testing.assert_array_equal(ampi.value(y), before)
    np.testing.assert_array_equal(tape.gradient(y, x, seeds=np.eye(6)), first)


@pytest.mark.parametrize(
    "seeds, what",
    [
        (np.ones((3, 4)), r"seed 0 has shape \(3, 4\); its output has shape \(5,\).*must have shape \(k, 5\)"),
        (np.ones(5), r"seed 0 has shape \(5,\)"),
        ((np.ones((3, 5)), np.ones((2, 5))), "seed 1 has shape .* of 2 directions, and those before it have 3"),
        ((np.ones((3, 5)),), "2 outputs but 1 seeds"),
        (np.ones((0, 5)), "of 0 directions"),
        (3, "only a rank without output"),
    ],
)
def test_seeds_that_do_not_fit(seeds, what):
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(5))
        y = x * x
    with pytest.raises(ampi.TapeError, match=what):
        tape.gradient((y, y) if isinstance(seeds, tuple) else y, x, seeds=seeds)


def test_seed_and_seeds():
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(5))
    with pytest.raises(ampi.TapeError, match="not both"):
        tape.gradient(x, x, seed=np.ones(5), seeds=np.ones((1, 5)))
    with pytest.raises(ampi.TapeError, match="seeds=k"):
        tape.gradient(None, x, seeds=np.ones((1, 5)))


@pytest.mark.parametrize(
    "tangent, how, what",
    [
        (np.ones((2, 4)), True, r"shape \(5,\), its tangent \(2, 4\), which has to be \(2, 5\)"),
        (np.ones((2, 5)), 3, r"which has to be \(3, 5\)"),
        (None, True, "vectorised=k"),
        (1.0, True, "leading axis"),
        (np.ones((0, 5)), True, "0 directions"),
    ],
)
def test_tangents_that_do_not_fit(tangent, how, what):
    with pytest.raises(ampi.TapeError, match=what):
        ampi.jvp(lambda x: x * x, np.ones(5), tangent, vectorised=how)


# ------------------------------------------------------------------------------------------------------------ on ranks


@pytest.mark.mpi
def test_ranks_without_output_or_tangent():
    comm = ampi.COMM_WORLD

    def program(x):
        total = anp.zeros(N)
        comm.Reduce(x * x, total, root=0)
        return total if comm.rank == 0 else None

    with ampi.Tape() as tape:
        x = tape.watch(start())
        y = program(x)
    found = tape.gradient(y, x, seeds=3 if y is None else np.arange(3.0 * N).reshape(3, N))
    np.testing.assert_allclose(found, np.arange(3.0 * N).reshape(3, N) * 2 * start(), rtol=1e-15)
    given = np.eye(N) if comm.rank == comm.size - 1 else None
    y, y_dot = ampi.jvp(program, start(), given, vectorised=N)
    if comm.rank == 0:
        np.testing.assert_allclose(y_dot, np.diag(2 * (np.arange(1.0, N + 1) / 3 + comm.size - 1)), rtol=1e-15)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("swept", [False, True])
@pytest.mark.parametrize("reduced", [False, True])
def test_ranks_that_disagree(swept, reduced):
    comm = ampi.COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(start())
        y = anp.zeros(N)
        comm.Sendrecv(x * x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size, 0)
        total = anp.zeros(N)
        if reduced:
            comm.Allreduce(y, total)
        else:
            total[...] = y
    if swept:
        tape.gradient(total, x, seeds=np.ones((2, N)))
    k = 2 + (comm.rank % 2 == 0 and comm.rank < comm.size - 1)  # each rank has a partner that has another one
    with pytest.raises(
        ampi.CommunicationError, match="directions: the leading axis of seeds= must have the same length"
    ):
        tape.gradient(total, x, seeds=np.ones((k, N)))


@pytest.mark.mpi(min_size=2)
def test_one_rank_sweeps_without_seeds():
    comm = ampi.COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(start())
        total = anp.zeros(N)
        comm.Allreduce(x, total)
    how = {"seed": np.ones(N)} if comm.rank else {"seeds": np.ones((2, N))}
    with pytest.raises(ampi.CommunicationError, match="in one direction, without seeds="):
        tape.gradient(total, x, **how)


@pytest.mark.mpi(min_size=2)
def test_tangents_of_ranks_that_disagree():
    comm = ampi.COMM_WORLD.Dup()

    def program(x):
        total = anp.zeros(N)
        comm.Allreduce(x, total)
        return total

    k = 2 + (comm.rank == 0)
    with pytest.raises(ampi.CommunicationError, match=f"has {k} directions here, but 2 to 3 on the ranks"):
        ampi.jvp(program, start(), np.ones((k, N)), vectorised=True)


# ----------------------------------------------------------------------------------------------------------- Jacobians


@pytest.mark.mpi
@pytest.mark.parametrize("options", [{}, {"chunk": 1}, {"chunk": 3}, {"memory": "1 MiB"}, {"memory": 1}])
def test_jacobians_of_a_ring(options):
    expected = jacobian_of_ring()
    columns, rows = ampi.jacrev(ring, start(), **options), ampi.jacfwd(ring, start(), **options)
    assert columns.shape == (N * WORLD.size, N) and rows.shape == (N, N * WORLD.size)
    np.testing.assert_allclose(columns, expected[:, mine()], rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(rows, expected[mine()], rtol=1e-14, atol=1e-14)


def pattern_of_ring():
    return sparse.csr_array(jacobian_of_ring() != 0)


@pytest.mark.mpi
@pytest.mark.parametrize("options", [{}, {"chunk": 2}, {"memory": 5000}])
def test_sparse_jacobians_of_a_ring(options):
    expected, pattern = jacobian_of_ring(), pattern_of_ring()
    columns = ampi.jacrev(ring, start(), pattern=pattern[:, mine()], **options)
    rows = ampi.jacfwd(ring, start(), pattern=pattern[mine()].tocoo(), **options)
    assert sparse.issparse(columns) and columns.format == "csr" and columns.nnz == pattern[:, mine()].nnz
    np.testing.assert_allclose(columns.toarray(), expected[:, mine()], rtol=1e-14, atol=1e-14)
    np.testing.assert_allclose(rows.toarray(), expected[mine()], rtol=1e-14, atol=1e-14)


@pytest.mark.mpi
def test_a_pattern_saves_directions(monkeypatch):
    counts = []
    sweep = ampi.Tape.gradient
    monkeypatch.setattr(ampi.Tape, "gradient", lambda *a, **k: counts.append(k["seeds"]) or sweep(*a, **k))
    ampi.jacrev(ring, start(), pattern=pattern_of_ring()[:, mine()], chunk=100)
    ((seeds,),) = counts
    assert len(seeds) <= 5 + 1  # a chain takes three colours; a cycle two more where it closes


@pytest.mark.mpi
@pytest.mark.parametrize("mode", [ampi.jacrev, ampi.jacfwd])
def test_patterns_that_do_not_fit(mode):
    pattern = pattern_of_ring().toarray()
    block = lambda p: p[:, mine()] if mode is ampi.jacrev else p[mine()]
    pattern[2, 1] = False
    which = "columns 1" if mode is ampi.jacrev else "rows 2"
    with pytest.raises(ampi.TapeError, match=f"rank 0: the pattern leaves out entries that are not zero in .*{which}"):
        mode(ring, start(), pattern=sparse.csr_array(block(pattern)))
    wrong = block(pattern)[:, :-1] if WORLD.rank == WORLD.size - 1 else block(pattern)
    with pytest.raises(ampi.TapeError, match=rf"rank {WORLD.size - 1}: pattern has shape"):
        mode(ring, start(), pattern=sparse.csr_array(wrong))
    with pytest.raises(ampi.TapeError, match="pass a SciPy sparse array"):
        mode(ring, start(), pattern=block(pattern))


@pytest.mark.mpi
def test_a_sparse_hessian():
    def energy(x):
        """Of neighbors on a ring, each pair on one rank."""
        comm = ampi.COMM_WORLD
        other = anp.zeros(1)
        comm.Sendrecv(x[:1], (comm.rank - 1) % comm.size, 0, other, (comm.rank + 1) % comm.size, 0)
        return (x**3).sum() + (x[1:] * x[:-1]).sum() + (x[-1] * other[0] if comm.size > 1 else 0.0)

    expected = ampi.hessian(energy, start())
    found = ampi.hessian(energy, start(), pattern=sparse.csr_array(expected != 0))
    np.testing.assert_array_equal(found.toarray(), expected)


@pytest.mark.mpi
def test_ranks_with_parts_of_different_lengths_or_none():
    def program(x):
        comm = ampi.COMM_WORLD
        total = anp.zeros(1)
        comm.Allreduce(anp.asarray((x * x).sum()).reshape(1), total)
        return {"a": x[1:] * total[0], "n": 3, "b": total[0] if comm.rank == 0 else 1.5}

    x = np.arange(1.0, 1 + 2 * WORLD.rank)
    rows, columns = ampi.jacfwd(program, x), ampi.jacrev(program, x)
    sizes = WORLD.allgather(x.size)
    outputs = [max(n - 1, 0) + 1 for n in sizes]
    assert rows.shape == (outputs[WORLD.rank], sum(sizes)) and columns.shape == (sum(outputs), x.size)
    both = np.concatenate(WORLD.allgather(rows)), np.concatenate(WORLD.allgather(columns), axis=1)
    np.testing.assert_allclose(*both, rtol=1e-14)


def test_shapes_and_dtypes_of_one_rank():
    x = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    for mode in (ampi.jacrev, ampi.jacfwd):
        found = mode(lambda x: (x.sum(axis=0), x[0, 0] * x[1, 2]), x, comm=ampi.COMM_SELF)
        assert found.shape == (4, 6) and found.dtype == np.float32
        np.testing.assert_array_equal(found[:3], np.tile(np.eye(3), 2))
        np.testing.assert_array_equal(found[3], [5, 0, 0, 0, 0, 0])
    assert ampi.jacrev(lambda x: x * 2.0, 3.0, comm=ampi.COMM_SELF).tolist() == [[2.0]]
    for mode in (ampi.jacrev, ampi.jacfwd):
        with pytest.raises(ampi.ActivityError, match="dtype int"):
            mode(lambda x: x, [1, 2], comm=ampi.COMM_SELF)
        with pytest.raises(ampi.ActivityError, match="complex"):
            mode(lambda x: x * 1j, [1.0, 2.0], comm=ampi.COMM_SELF)
        with pytest.raises(ampi.TapeError, match="not both"):
            mode(lambda x: x, [1.0], comm=ampi.COMM_SELF, chunk=1, memory=1)
        with pytest.raises(ampi.TapeError, match="one direction at least"):
            mode(lambda x: x, [1.0], comm=ampi.COMM_SELF, chunk=0)
    with pytest.raises(ampi.TapeError, match="memory"):
        ampi.jacrev(lambda x: x, [1.0], comm=ampi.COMM_SELF, memory="many")


@pytest.mark.parametrize("mode", [ampi.jacrev, ampi.jacfwd])
def test_memory_determines_the_number_of_directions(mode, monkeypatch):
    counts = []
    for kind in ("VectorSweep", "VectorPush"):
        cls = getattr(ampi.tape, kind)
        begin = cls.__init__

        def noted(self, tape, count, *rest, begin=begin):
            counts.append(count)
            begin(self, tape, count, *rest)

        monkeypatch.setattr(cls, "__init__", noted)
    mode(lambda x: anp.exp(x) * x, np.ones(100), comm=ampi.COMM_SELF, memory=100 * 8 * 3 * 10)
    assert counts[0] == 1 and 5 <= counts[1] <= 20 and sum(counts) == 100 and len(set(counts[1:-1])) <= 1

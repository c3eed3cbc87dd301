"""Collective operations: each is part of a small nonlinear program on all ranks, whose gradient must agree with finite
differences of the same program on plain mpi4py and NumPy in double precision.
"""

import inspect
import re
import warnings

import numpy
import pytest
from mpi4py import MPI
from programs import check_forward

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.base.rules import TABLE, Treatment

pytestmark = pytest.mark.mpi

WORLD = MPI.COMM_WORLD
OPS = {"sum": MPI.SUM, "prod": MPI.PROD, "min": MPI.MIN, "max": MPI.MAX}
DTYPES = ["float32", "float64", "complex64", "complex128"]
TOLERANCES = {"float32": 2e-4, "complex64": 2e-4, "float64": 1e-7, "complex128": 1e-7}


# ---------------------------------------------------------------------------------------------- communicators


def world(comm):
    return comm.Dup()


def backwards(comm):
    return comm.Split(0, -comm.Get_rank())


def halves(comm):
    return comm.Split(comm.Get_rank() % 2, comm.Get_rank())


def cartesian(comm):
    return comm.Create_cart([comm.Get_size()], [True])


COMMUNICATORS = [world, backwards, halves, cartesian]


# --------------------------------------------------------------------------------------------------- the programs
#
# A case gets the array module, the communicator and an array of 4 elements for each rank of it, and returns an array.


def last(comm):
    return comm.Get_size() - 1


def bcast(np, comm, u):
    v = u if comm.Get_rank() == last(comm) else np.zeros(u.shape, u.dtype)
    comm.Bcast(v, root=last(comm))
    return v


def bcast_over(np, comm, u):
    """The overwritten values were used before."""
    v = u * u
    w = v * v
    comm.Bcast([v, 3, typeof(v)], root=0)
    return v + w


def gather(np, comm, u):
    root = last(comm)
    if comm.Get_rank() != root:
        comm.Gather(u, None, root)
        return u * 2
    v = np.zeros(u.size * comm.Get_size(), u.dtype)
    comm.Gather(u, v, root)
    return v


def gather_in_place(np, comm, u):
    if comm.Get_rank():
        comm.Gather([u, 4, typeof(u)], None)
        return u * 2
    v = u * u
    comm.Gather(MPI.IN_PLACE, [v, 4, typeof(v)])
    return v


def counts_of(comm):
    """Rank 1 has nothing; the others a little more each."""
    return [0 if r == 1 else r % 3 + 1 for r in range(comm.Get_size())]


def gatherv(np, comm, u):
    counts = counts_of(comm)
    mine = u[: counts[comm.Get_rank()]]
    if comm.Get_rank():
        comm.Gatherv(mine, None)
        return u * 2
    v = np.ones(5 * len(counts), u.dtype) * u[0]
    comm.Gatherv(mine, [v, (counts, [5 * r for r in range(len(counts))]), typeof(v)])
    return v


def gatherv_in_place(np, comm, u):
    counts = counts_of(comm)
    root = last(comm)
    if comm.Get_rank() != root:
        comm.Gatherv(u[: counts[comm.Get_rank()]], None, root)
        return u * 2
    v = u * u
    comm.Gatherv(MPI.IN_PLACE, [v, counts], root)
    return v


def scatter(np, comm, u):
    root = last(comm)
    v = np.zeros(4, u.dtype)
    comm.Scatter(u if comm.Get_rank() == root else None, v, root)
    return v


def scatter_in_place(np, comm, u):
    if comm.Get_rank() == 0:
        comm.Scatter(u, MPI.IN_PLACE)
        return u * 2
    v = u * u
    comm.Scatter(None, [v, 4, typeof(v)])
    return v


def scatterv(np, comm, u):
    counts = counts_of(comm)
    v = u * u
    n = counts[comm.Get_rank()]
    spec = [u, (counts, [1] * len(counts)), typeof(u)] if comm.Get_rank() == 0 else None  # blocks overlap
    comm.Scatterv(spec, [v, n])
    return v


def scatterv_in_place(np, comm, u):
    counts = counts_of(comm)
    root = last(comm)
    if comm.Get_rank() == root:
        comm.Scatterv([u, counts], MPI.IN_PLACE, root)
        return u * 2
    v = u * u
    comm.Scatterv(None, [v, counts[comm.Get_rank()]], root)
    return v


def allgather(np, comm, u):
    v = np.zeros(u.size * comm.Get_size(), u.dtype)
    comm.Allgather(u, v)
    return v * (1 + comm.Get_rank())


def allgather_in_place(np, comm, u):
    v = u * u
    comm.Allgather(MPI.IN_PLACE, v)
    return v * (1 + comm.Get_rank())


def allgatherv(np, comm, u):
    counts = counts_of(comm)
    v = np.ones(5 * len(counts), u.dtype) * u[0]
    comm.Allgatherv(u[: counts[comm.Get_rank()]], [v, (counts, 5), typeof(v)])
    return v * (1 + comm.Get_rank())


def allgatherv_in_place(np, comm, u):
    v = u * u
    comm.Allgatherv(None, [v, counts_of(comm)])
    return v * (1 + comm.Get_rank())


def alltoall(np, comm, u):
    v = np.zeros(u.shape, u.dtype)
    comm.Alltoall(u, v)
    return v


def alltoall_in_place(np, comm, u):
    v = u * u
    comm.Alltoall(MPI.IN_PLACE, v)
    return v


def pair_counts(rank, size):
    """Elements that a rank sends to each."""
    return [(rank + 2 * r) % 4 for r in range(size)]


def alltoallv(np, comm, u):
    rank, size = comm.Get_rank(), comm.Get_size()
    sent = pair_counts(rank, size)
    came = [pair_counts(r, size)[rank] for r in range(size)]
    v = u * u
    comm.Alltoallv([u, (sent, [4 * r for r in range(size)]), typeof(u)], [v, came])
    return v


def alltoallv_in_place(np, comm, u):
    rank, size = comm.Get_rank(), comm.Get_size()
    v = u * u
    comm.Alltoallv(MPI.IN_PLACE, [v, ([(rank + r) % 4 for r in range(size)], 4)])
    return v


def alltoallw(np, comm, u):
    size = comm.Get_size()
    v = u * u
    one, item = typeof(u), u.itemsize
    every_other = one.Create_vector(2, 1, 2).Commit()
    displs = [4 * r * item for r in range(size)]
    comm.Alltoallw([u, ([1] * size, displs), [every_other] * size], [v, [2] * size, displs, [one] * size])
    every_other.Free()
    return v


def reduce(np, comm, u, op):
    root = last(comm)
    v = np.zeros(u.shape, u.dtype) if comm.Get_rank() == root else None
    comm.Reduce(u, v, op, root)
    return u if v is None else v


def reduce_in_place(np, comm, u, op):
    if comm.Get_rank():
        comm.Reduce(u, None, op)
        return u * 2
    v = u * u
    comm.Reduce(MPI.IN_PLACE, v, op)
    return v


def allreduce(np, comm, u, op):
    v = np.zeros(u.shape, u.dtype)
    comm.Allreduce(u, v, op)
    return v * (1 + comm.Get_rank())


def allreduce_in_place(np, comm, u, op):
    v = u * u
    comm.Allreduce(None, [v, typeof(v)], op)
    return v * (1 + comm.Get_rank())


def reduce_scatter_block(np, comm, u, op):
    v = np.zeros(4, u.dtype)
    comm.Reduce_scatter_block(u, v, op)
    return v


def reduce_scatter_block_in_place(np, comm, u, op):
    v = u * u
    comm.Reduce_scatter_block(MPI.IN_PLACE, v, op)
    return v[:4]


def reduce_scatter(np, comm, u, op):
    counts = counts_of(comm)
    v = np.zeros(counts[comm.Get_rank()], u.dtype)
    comm.Reduce_scatter(u[: sum(counts)], v, counts, op)
    return v


def reduce_scatter_in_place(np, comm, u, op):
    counts = counts_of(comm)
    v = (u * u)[: sum(counts)]
    comm.Reduce_scatter(MPI.IN_PLACE, v, counts, op)
    return v[: counts[comm.Get_rank()]]


def reduce_scatter_without_counts(np, comm, u, op):
    v = np.zeros(4, u.dtype)
    comm.Reduce_scatter(u, v, None, op)
    return v


def scan(np, comm, u, op):
    v = np.zeros(u.shape, u.dtype)
    comm.Scan(u, v, op)
    return v


def scan_in_place(np, comm, u, op):
    v = u * u
    comm.Scan(MPI.IN_PLACE, v, op)
    return v


def exscan(np, comm, u, op):
    v = np.ones(u.shape, u.dtype) * u[1]
    comm.Exscan(u, v, op)
    return v


def exscan_in_place(np, comm, u, op):
    v = u * u
    comm.Exscan(MPI.IN_PLACE, v, op)
    return v


MOVES = [
    bcast,
    bcast_over,
    gather,
    gather_in_place,
    gatherv,
    gatherv_in_place,
    scatter,
    scatter_in_place,
    scatterv,
    scatterv_in_place,
    allgather,
    allgather_in_place,
    allgatherv,
    allgatherv_in_place,
    alltoall,
    alltoall_in_place,
    alltoallv,
    alltoallv_in_place,
    alltoallw,
]
REDUCTIONS = [
    reduce,
    reduce_in_place,
    allreduce,
    allreduce_in_place,
    reduce_scatter_block,
    reduce_scatter_block_in_place,
    reduce_scatter,
    reduce_scatter_in_place,
    reduce_scatter_without_counts,
    scan,
    scan_in_place,
    exscan,
    exscan_in_place,
]


def typeof(array):
    """The MPI datatype of an array's elements."""
    return MPI._typedict[array.dtype.char]


def program(np, comm, x, case, *arguments):
    """A case between nonlinear local steps; what it sent is overwritten afterwards."""
    u = x * (x + 1)
    w = case(np, comm, u, *arguments)
    w = w * w
    u[...] = 0
    return w


# ------------------------------------------------------------------------------------------------- the comparison


def inner(a, b):
    """Σ over ranks of the real inner product."""
    return WORLD.allreduce(float(numpy.sum(numpy.real(numpy.conj(a) * b))))


def random(generator, shape, dtype):
    values = generator.uniform(0.5, 1.5, shape) * generator.choice([-1, 1], shape)
    if numpy.dtype(dtype).kind == "c":
        values = values * numpy.exp(1j * generator.uniform(0, 6, shape))
    return values.astype(dtype)


def check(make_comm, dtype, case, *arguments):
    comm, plain = make_comm(COMM_WORLD), make_comm(WORLD)
    generator = numpy.random.default_rng([WORLD.rank, 5])
    x0 = random(generator, 4 * comm.Get_size(), dtype)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(ampi.numpy, comm, x, case, *arguments)
    seed = random(generator, y.shape, dtype)
    direction = random(generator, x0.shape, dtype)
    after = ampi.value(y).copy()
    x_bar = tape.gradient(y, x, seed=seed)
    again = tape.gradient(y, x, seed=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ampi.ActivityWarning)
        f = lambda np, comm, x: program(np, comm, x, case, *arguments)
        check_forward(f, comm, x0, direction, seed, x_bar, (tape, x, y))

    wide = numpy.complex128 if numpy.dtype(dtype).kind == "c" else numpy.float64
    x0, seed, direction = x0.astype(wide), seed.astype(wide), direction.astype(wide)

    def objective(step):
        return inner(seed, program(numpy, plain, x0 + step * direction, case, *arguments))

    def slope(h):
        return (objective(h) - objective(-h)) / (2 * h)

    coarse, fine = slope(2e-4), slope(1e-4)
    expected = (4 * fine - coarse) / 3
    scale = max(abs(expected), WORLD.allreduce(float(numpy.abs(x_bar).sum())))
    comm.Free()
    plain.Free()
    assert abs(fine - coarse) < 1e-5 * scale
    assert abs(inner(x_bar, direction) - expected) < TOLERANCES[dtype] * scale
    assert numpy.array_equal(x_bar, again)
    assert numpy.array_equal(ampi.value(y), after)
    assert x_bar.dtype == numpy.dtype(dtype)


@pytest.mark.parametrize("make_comm", COMMUNICATORS)
@pytest.mark.parametrize("case", MOVES)
def test_moving_data_on_every_communicator(case, make_comm):
    check(make_comm, "float64", case)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("case", MOVES)
def test_moving_data_of_every_dtype(case, dtype):
    check(world, dtype, case)


@pytest.mark.parametrize("make_comm", COMMUNICATORS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_on_every_communicator(case, op, make_comm):
    check(make_comm, "float64", case, OPS[op])


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions_of_every_dtype(case, op, dtype):
    if dtype.startswith("complex") and op in ("min", "max"):
        pytest.skip("MPI has no order of complex numbers")
    check(world, dtype, case, OPS[op])


def blocking_collectives():
    """Names of the differentiated operations on buffers of a whole communicator, without those of neighborhoods."""
    point_to_point = re.compile("I?[sbr]?(send|recv)|M?probe|P(send|recv)", re.IGNORECASE)
    for operation in TABLE.values():
        if operation.treatment is Treatment.DIFFERENTIATED and not operation.objects:
            if operation.owner in ("Comm", "Intracomm") and not point_to_point.match(operation.name):
                if operation.name[0] != "I" and not operation.name.endswith("_init"):
                    yield operation.name


@pytest.mark.parametrize("name", list(blocking_collectives()))
def test_has_a_case(name):
    """An entry of the table without a case here fails by name; test_nonblocking_collectives runs the other forms."""
    assert any(f"comm.{name}(" in inspect.getsource(case) for case in (*MOVES, *REDUCTIONS))
    assert {f"I{name[0].lower()}{name[1:]}", f"{name}_init"} <= {operation.name for operation in TABLE.values()}

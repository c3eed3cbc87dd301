"""Collectives on intercommunicators, blocking and not, compared with finite differences on plain mpi4py."""

import inspect
import time

import numpy
import pytest
import test_collectives as blocking
from mpi4py import MPI
from test_collectives import OPS, typeof
from test_nonblocking_collectives import FORMS, Other

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.collectives.table import COLLECTIVES

pytestmark = pytest.mark.mpi(min_size=2)

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size


# ------------------------------------------------------------------------------------------------- communicators


def between(comm, low):
    half = comm.Split(low, comm.Get_rank())
    leader = comm.allreduce(comm.Get_rank() if not low else SIZE, MPI.MIN)
    inter = half.Create_intercomm(0, comm, leader if low else 0)
    half.Free()
    return inter


def uneven(comm):
    """Rank 0 alone on one side."""
    return between(comm, comm.Get_rank() == 0)


def halves(comm):
    return between(comm, comm.Get_rank() < SIZE // 2)


def duplicate(comm):
    return halves(comm).Dup()


def is_first(comm):
    """Return whether this group contains rank 0 of the world."""
    return MPI.Group.Translate_ranks(comm.Get_group(), [0], MPI.COMM_WORLD.Get_group())[0] == 0


def rooted(comm, of_first):
    """The root argument that this rank passes if the last rank of a group is the root."""
    if is_first(comm) != of_first:
        return comm.Get_remote_size() - 1
    return MPI.ROOT if comm.Get_rank() == comm.Get_size() - 1 else MPI.PROC_NULL


# ---------------------------------------------------------------------------------------------------------- cases


def bcast(np, comm, u):
    v, w = u * u, u[:2] * u[0]
    for x, of_first in ((v[:3], True), (w, False)):
        root = rooted(comm, of_first)
        comm.Bcast(None if root == MPI.PROC_NULL else x, root)
    return np.concatenate([v, w])


def gather(np, comm, u):
    v = np.ones(2 * comm.Get_remote_size(), u.dtype) * u[0]
    root = rooted(comm, True)
    comm.Gather(None if root < 0 else u[:2], v if root == MPI.ROOT else None, root)
    return v


def gatherv(np, comm, u):
    size = comm.Get_remote_size()
    v = np.ones(4 * size, u.dtype) * u[0]
    root = rooted(comm, False)
    counts = [r % 3 for r in range(size)]
    spec = [v, (counts, [4 * r for r in range(size)]), typeof(v)] if root == MPI.ROOT else None
    comm.Gatherv(None if root < 0 else u[: comm.Get_rank() % 3], spec, root)
    return v


def scatter(np, comm, u):
    v = u * u
    root = rooted(comm, True)
    x = np.concatenate([u[:1] * k for k in range(2 * comm.Get_remote_size())])
    comm.Scatter(x if root == MPI.ROOT else None, None if root < 0 else v[:2], root)
    return v


def scatterv(np, comm, u):
    v = u * u
    root = rooted(comm, False)
    size = comm.Get_remote_size()
    spec = [u, ([r % 3 for r in range(size)], [r % 2 for r in range(size)]), typeof(u)] if root == MPI.ROOT else None
    comm.Scatterv(spec, None if root < 0 else v[: comm.Get_rank() % 3], root)
    return v


def allgather(np, comm, u):
    v = np.ones(2 * comm.Get_remote_size(), u.dtype) * u[0]
    comm.Allgather(u[:2], v)
    return v * (1 + comm.Get_rank())


def allgatherv(np, comm, u):
    size = comm.Get_remote_size()
    v = np.ones(4 * size, u.dtype) * u[0]
    comm.Allgatherv(u[: comm.Get_rank() % 3], [v, ([r % 3 for r in range(size)], 4), typeof(v)])
    return v * (1 + comm.Get_rank())


def alltoall(np, comm, u):
    size = comm.Get_remote_size()
    v = np.ones(size, u.dtype) * u[0]
    comm.Alltoall(np.concatenate([u[k % 4 : k % 4 + 1] * (k + 1) for k in range(size)]), v)
    return v


def alltoallv(np, comm, u):
    rank, size = comm.Get_rank(), comm.Get_remote_size()
    v = np.ones(4 * size, u.dtype) * u[0]
    counts = [(rank + r) % 3 for r in range(size)]
    comm.Alltoallv([u, (counts, [r % 2 for r in range(size)]), typeof(u)], [v, (counts, 4), typeof(v)])
    return v


def alltoallw(np, comm, u):
    size, item, one = comm.Get_remote_size(), u.itemsize, typeof(u)
    v = np.ones(4 * size, u.dtype) * u[0]
    comm.Alltoallw(
        [u, ([2] * size, [r % 2 * item for r in range(size)]), [one] * size],
        [v, ([2] * size, [4 * r * item for r in range(size)]), [one] * size],
    )
    return v


MOVES = [bcast, gather, gatherv, scatter, scatterv, allgather, allgatherv, alltoall, alltoallv, alltoallw]


def reduce(np, comm, u, op):
    v = np.ones(4, u.dtype) * u[0]
    root = rooted(comm, True)
    comm.Reduce(None if root < 0 else u[:4], v if root == MPI.ROOT else None, op, root)
    return v


def allreduce(np, comm, u, op):
    v = np.zeros(4, u.dtype)
    comm.Allreduce(u[:4], v, op)
    return v * (1 + comm.Get_rank())


def scattered(np, comm, u):
    """As many elements from one group as from the other."""
    n = comm.Get_size() * comm.Get_remote_size()
    return np.concatenate([u[k % 4 : k % 4 + 1] * (k + 1) for k in range(n)])


def reduce_scatter_block(np, comm, u, op):
    v = np.zeros(comm.Get_remote_size(), u.dtype)
    comm.Reduce_scatter_block(scattered(np, comm, u), v, op)
    return v


def reduce_scatter(np, comm, u, op):
    counts = [comm.Get_remote_size()] * comm.Get_size()
    if len(counts) > 1:
        counts[0] += 1
        counts[1] -= 1
    v = np.zeros(counts[comm.Get_rank()], u.dtype)
    comm.Reduce_scatter(scattered(np, comm, u), v, counts, op)
    return np.concatenate([v, u[:1]])


REDUCTIONS = [reduce, allreduce, reduce_scatter_block, reduce_scatter]


@pytest.mark.parametrize("name", [operation.name for operation in COLLECTIVES])
def test_has_a_case(name):
    """An entry of the table without a case between two groups fails by name."""
    assert any(f"comm.{name}(" in inspect.getsource(case) for case in (*MOVES, *REDUCTIONS))


def started(comm, name, arguments, keywords):
    getattr(comm, f"I{name[0].lower()}{name[1:]}")(*arguments, **keywords).Wait()


@pytest.mark.parametrize("make_comm", [uneven, halves, duplicate])
@pytest.mark.parametrize("case", MOVES)
def test_moving_data(case, make_comm):
    blocking.check(make_comm, "float64", case)


@pytest.mark.parametrize("make_comm", [uneven, halves])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions(case, op, make_comm):
    blocking.check(make_comm, "float64", case, OPS[op])


@pytest.mark.parametrize("case", [*MOVES, *REDUCTIONS])
def test_nonblocking(case):
    if case is bcast and SIZE > 2:
        pytest.skip("plain Ibcasts between groups of which one has several ranks hang or go wrong in each MPI")

    def make_comm(comm):
        return Other(halves(comm), started, FORMS) if comm is COMM_WORLD else halves(comm)

    blocking.check(make_comm, "float64", case, *([MPI.PROD] if case in REDUCTIONS else []))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("case", [allgather, scatterv, allreduce])
def test_dtypes(case, dtype):
    blocking.check(halves, dtype, case, *([MPI.SUM] if case in REDUCTIONS else []))


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_passive_data_passes():
    inter = halves(COMM_WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = ampi.numpy.zeros(2)
        inter.Allreduce(numpy.ones(2), y)
        assert numpy.array_equal(ampi.value(y), numpy.full(2, inter.Get_remote_size()))
        z = x * 3
    assert numpy.array_equal(tape.gradient(z, x, seed=numpy.ones(2)), [3.0, 3.0])
    inter.Free()


# ------------------------------------------------------------------------------------------------------- objects


def objects_bcast(np, comm, u):
    came = comm.bcast({"u": u}, rooted(comm, True))
    return u if came is None else came["u"][:4] * u[0]


def objects_gather(np, comm, u):
    came = comm.gather([u[:4], 2], rooted(comm, False))
    w = u[:4]
    for k, (array, factor) in enumerate(came or ()):
        w = w + array * factor * (k + 1) * u[0]
    return w


def objects_scatter(np, comm, u):
    root = rooted(comm, True)
    came = comm.scatter([u[:4] * (k + 1) for k in range(comm.Get_remote_size())] if root == MPI.ROOT else None, root)
    return u if came is None else came * u[:4]


def objects_allgather(np, comm, u):
    w = u[:4]
    for k, item in enumerate(comm.allgather((u[:3], u[0]) if comm.Get_rank() != 1 else "text")):
        if item != "text":
            w = w + (k + 1) * np.sum(item[0]) * item[1]
    return w


def objects_alltoall(np, comm, u):
    w = u[:4]
    for k, item in enumerate(comm.alltoall([u[:4] * (k + 1) for k in range(comm.Get_remote_size())])):
        w = w + (k + 1) * item * u[:4]
    return w


def objects_reduce(np, comm, u):
    total = comm.reduce(u[:4] * u[1], MPI.PROD, rooted(comm, False))
    return u[:4] if total is None else total * u[:4]


def objects_allreduce(np, comm, u):
    last = comm.allreduce((u[:4], u[0]), lambda a, b: (a[0] * b[1] + b[0], b[1]))
    return last[0] * u[1] + comm.allreduce(u[0] * u[1]) * u[:4] * comm.allreduce(2)


OBJECTS = [
    *(objects_bcast, objects_gather, objects_scatter, objects_allgather, objects_alltoall),
    *(objects_reduce, objects_allreduce),
]


@pytest.mark.parametrize("make_comm", [uneven, halves])
@pytest.mark.parametrize("case", OBJECTS)
def test_objects(case, make_comm):
    blocking.check(make_comm, "float64", case)


def duplicate_begun(comm):
    """A duplicate by Idup of a communicator made by Idup."""
    halved = halves(comm)
    first, request = halved.Idup()
    request.Wait()
    second, request = first.Idup()
    request.Wait()
    return second


@pytest.mark.parametrize("case", [bcast, gather, alltoall, allreduce, *OBJECTS])
def test_duplicates_by_idup(case):
    blocking.check(duplicate_begun, "float64", case, *([MPI.PROD] if case in REDUCTIONS else []))


def test_several_at_once():
    """Adjoints of collectives in flight, in one step and in several, do not mix."""

    def program(np, comm, u):
        v, w, z = (np.zeros(4, u.dtype) for _ in range(3))
        root = rooted(comm, True)
        requests = [
            comm.Ibcast(u[:4] if root == MPI.ROOT else v, root) if SIZE < 4 else comm.Iallreduce(u[-4:], v),
            comm.Iallreduce(u[:4], w, MPI.PROD),
            comm.Iallreduce(u[:4] * u[:4], z),
        ]
        MPI.Request.Waitall(requests[::-1])
        return v * 3 + w * z

    blocking.check(halves, "float64", program)


# ------------------------------------------------------------------------------------------------- late partners


@ampi.custom_vjp
def late_in_sweeps(x):
    return x * 1.0


def _late(_, g):
    time.sleep(1.0)
    return (g,)


late_in_sweeps.defvjp(lambda x: (x * 1.0, None), _late)


@pytest.mark.parametrize("make", [uneven, halves], ids=lambda f: f.__name__)
@pytest.mark.parametrize("first_is_late", [False, True])
@pytest.mark.parametrize("kind", ["message", "collective"])
def test_ranks_wait_for_late_partners(make, first_is_late, kind):
    """Even if they are later than the time after which a rank checks which others can still come."""
    comm = make(COMM_WORLD)
    late = is_first(comm) == first_is_late
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 4.0) + RANK)
        y = x * x
        received = ampi.numpy.zeros(3)
        if kind == "collective":
            comm.Allreduce(y, received)
        elif comm.Get_rank() == 0:
            comm.Sendrecv(y, 0, 0, received, 0, 0)
        received = late_in_sweeps(received) if late else received * 1.0
        s = ampi.numpy.sum(received) + ampi.numpy.sum(y)
    gradient = tape.gradient(s, x)
    takers = comm.Get_remote_size() if kind == "collective" else int(comm.Get_rank() == 0)
    numpy.testing.assert_allclose(gradient, 2 * (numpy.arange(1.0, 4.0) + RANK) * (1 + takers))
    comm.Free()

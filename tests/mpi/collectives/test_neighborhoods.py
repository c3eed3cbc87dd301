"""Neighborhood collectives on every topology, blocking and not, compared with finite differences on plain mpi4py."""

import inspect

import numpy
import pytest
import test_collectives as blocking
from mpi4py import MPI
from test_nonblocking_collectives import Other, with_wait

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.base.rules import TABLE, Treatment
from ampi.mpi.collectives import forward_collectives
from ampi.mpi.log.reverse import reverse_of

pytestmark = pytest.mark.mpi

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size
typeof = blocking.typeof


# ----------------------------------------------------------------------------------------------------- topologies


def ring(comm):
    return comm.Create_cart([comm.Get_size()], [True])


def chain(comm):
    return comm.Create_cart([comm.Get_size()], [False])


def grid(comm):
    """Mixed: periodic and not, with a dimension of one rank."""
    dims = [2, comm.Get_size() // 2, 1] if comm.Get_size() % 2 == 0 else [comm.Get_size(), 1, 1]
    return comm.Create_cart(dims, [True, False, True])


def row(comm):
    return grid(comm).Sub([True, False, True])


def duplicate(comm):
    return ring(comm).Dup()


def star(comm):
    """Rank 0 is a neighbor of all ranks, including itself."""
    size = comm.Get_size()
    others = list(range(1, size))
    return comm.Create_graph(numpy.cumsum([size + 1, *[1] * (size - 1)]).tolist(), [*others, 0, 0, *[0] * (size - 1)])


def directed(comm):
    """Edges to the next rank, twice, and to the one after it; rank 0 has only an edge to itself."""
    size, rank = comm.Get_size(), comm.Get_rank()

    def targets(r):
        return [0] if r == 0 else [(r + 1) % size, (r + 2) % size, (r + 1) % size]

    sources = [r for r in range(size) for t in targets(r) if t == rank]
    return comm.Create_dist_graph_adjacent(sources, targets(rank))


def distributed(comm):
    size, rank = comm.Get_size(), comm.Get_rank()
    if rank == 0:
        edges = [(r + step) % size for r in range(size) for step in (1, 3)]
        return comm.Create_dist_graph(list(range(size)), [2] * size, edges)
    return comm.Create_dist_graph([], [], [])


TOPOLOGIES = [ring, chain, grid, row, duplicate, star, directed, distributed]


# ---------------------------------------------------------------------------------------------------------- cases


def neighbor_allgather(np, comm, u):
    v = np.ones(2 * comm.indegree, u.dtype) * u[0]
    comm.Neighbor_allgather(u[:2], v)
    return v


def counts_in(comm):
    """Counts to receive: each rank sends as many elements as its number modulo 3."""
    return [0 if r == MPI.PROC_NULL else r % 3 for r in comm.inoutedges[0]]


def neighbor_allgatherv(np, comm, u):
    counts = counts_in(comm)
    v = np.ones(4 * len(counts) + 1, u.dtype) * u[0]
    places = [4 * k for k in range(len(counts))]
    comm.Neighbor_allgatherv(u[: comm.Get_rank() % 3], [v, (counts, places), typeof(u)])
    return v


def expanded(np, comm, u):
    """Two elements for each outgoing edge."""
    return np.concatenate([u[k % u.size : k % u.size + 1] * (k + 1) for k in range(2 * comm.outdegree)] or [u[:0]])


def neighbor_alltoall(np, comm, u):
    v = np.ones(2 * comm.indegree, u.dtype) * u[0]
    comm.Neighbor_alltoall(expanded(np, comm, u), v)
    return v


def neighbor_alltoallv(np, comm, u):
    n = comm.Get_rank() % 3
    counts = counts_in(comm)
    w = u * 1
    v = np.ones(4 * len(counts) + 1, u.dtype) * u[0]
    places = [4 * k for k in range(len(counts))]
    leaving = comm.outdegree
    comm.Neighbor_alltoallv(
        [w, ([n] * leaving, [k % 3 for k in range(leaving)]), typeof(u)], [v, (counts, places), typeof(u)]
    )
    w *= 0
    return v


def neighbor_alltoallw(np, comm, u):
    one = typeof(u)
    two = one.Create_vector(2, 1, 2).Commit()
    entering, leaving, item = comm.indegree, comm.outdegree, u.itemsize
    v = np.ones(3 * entering + 1, u.dtype) * u[0]
    comm.Neighbor_alltoallw(
        [u, ([1] * leaving, [k % 2 * item for k in range(leaving)]), [two] * leaving],
        [v, ([2] * entering, [3 * k * item for k in range(entering)]), [one] * entering],
    )
    two.Free()
    return v


CASES = [neighbor_allgather, neighbor_allgatherv, neighbor_alltoall, neighbor_alltoallv, neighbor_alltoallw]


def weighted(case):
    """Elements of the result have different weights, so that mixed-up blocks are noticed."""

    def run(np, comm, u):
        v = case(np, comm, u)
        return np.concatenate([v * numpy.arange(1, v.size + 1), u[:1]])

    return run


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("case", CASES)
def test_topologies(case, topology):
    blocking.check(topology, "float64", weighted(case))


@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("case", CASES)
def test_dtypes(case, dtype):
    blocking.check(grid, dtype, weighted(case))


def started(comm, name, arguments, keywords):
    request = getattr(comm, f"I{name[0].lower()}{name[1:]}")(*arguments, **keywords)
    if name == "Neighbor_allgather":
        MPI.Request.Waitall([request])
    else:
        with_wait(request)


def persistent(comm, name, arguments, keywords):
    request = getattr(comm, f"{name}_init")(*arguments, **keywords)
    request.Start()
    with_wait(request)
    request.Free()


@pytest.mark.parametrize("form", [started, persistent])
@pytest.mark.parametrize("topology", [grid, directed])
@pytest.mark.parametrize("case", CASES)
def test_forms_with_requests(case, topology, form):
    def make_comm(comm):
        return Other(topology(comm), form, NAMES)  # with other forms some implementations reorder the blocks

    blocking.check(make_comm, "float64", weighted(case))


NAMES = [
    o.name
    for o in TABLE.values()
    if o.owner == "Topocomm" and o.treatment is Treatment.DIFFERENTIATED and o.name.startswith("Neighbor")
]
NAMES = [name for name in NAMES if not name.endswith("_init")]


@pytest.mark.parametrize("name", NAMES)
def test_has_a_case(name):
    """An entry of the table without a case here fails by name."""
    assert any(f"comm.{name}(" in inspect.getsource(case) for case in CASES)


@pytest.mark.parametrize("directions", [0, 3])
@pytest.mark.parametrize("case", CASES)
def test_tangents_are_under_way_with_the_values(case, directions, monkeypatch):
    """Forward mode sends tangents before it waits for the values, which avoids a second latency."""
    comm, order = ring(COMM_WORLD), []
    reverse, begin = reverse_of(comm), forward_collectives.begin

    class Spy(type(reverse.comm)):
        def Isend(self, *arguments):
            order.append("tangents")
            return super().Isend(*arguments)

    def before_the_values(*arguments):
        finish = begin(*arguments)
        order.append("values")
        return finish

    monkeypatch.setattr(reverse, "comm", Spy(reverse.comm))
    monkeypatch.setattr(forward_collectives, "begin", before_the_values)
    u, u_dot = numpy.arange(1.0, 7.0), numpy.ones((directions, 6) if directions else 6)
    ampi.jvp(lambda u: case(ampi.numpy, comm, u), (u,), (u_dot,), vectorised=bool(directions))
    assert order == ["tangents"] * (directions or 1) * comm.outdegree + ["values"]
    comm.Free()


def test_what_lies_beyond_the_edge_of_a_grid_keeps_its_adjoint():
    comm = chain(COMM_WORLD)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        v = ampi.numpy.ones(2)
        v[...] = x
        comm.Neighbor_alltoall(x * x, v)
        y = v * 1
    x_bar = tape.gradient(y, x, seed=numpy.array([1.0, 10.0]))
    # The block for the lower neighbor arrives as that neighbor's upper one; at the ends x is unchanged.
    expected = [1.0 if RANK == 0 else 2 * 2.0 * 10, 10.0 if RANK == SIZE - 1 else 2 * 3.0 * 1]
    assert numpy.array_equal(x_bar, expected)
    comm.Free()


def test_asymmetric_graphs_refuse_active_arrays():
    graph = COMM_WORLD.Create_graph([1] * SIZE, [SIZE - 1]) if SIZE > 1 else ring(COMM_WORLD)
    assert SIZE == 1 or graph._reverse.slots is None
    graph.Free()


# ------------------------------------------------------------------------------------------------------- objects


def objects_allgather(np, comm, u):
    w = u
    for k, item in enumerate(comm.neighbor_allgather({"u": u, "k": 3})):
        if item is not None:
            w = w + (k + 1) * item["u"] * u
    return w


def objects_alltoall(np, comm, u):
    w = u
    sent = [(u * (k + 1), None) if k % 3 else "text" for k in range(comm.outdegree)]
    for k, item in enumerate(comm.neighbor_alltoall(sent)):
        if isinstance(item, tuple):
            w = w + (k + 1) * item[0] * u
    return w


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("case", [objects_allgather, objects_alltoall])
def test_objects(case, topology):
    blocking.check(topology, "float64", case)

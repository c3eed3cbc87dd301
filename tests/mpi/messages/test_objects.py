"""Lowercase methods: small programs on all ranks whose messages are Python objects, compared with finite differences of
the same program on plain mpi4py and NumPy; and kinds of objects in which active arrays are found.
"""

import collections
import dataclasses
import inspect

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


@dataclasses.dataclass
class Particle:
    """An object that a program might send."""

    name: str
    position: object
    mass: object = 1.0


Pair = collections.namedtuple("Pair", "first second")


class Node:
    """An object that refers to itself."""

    def __init__(self, value):
        self.value = value
        self.itself = self


# --------------------------------------------------------------------------------------------------- the programs
#
# A case gets the array module, the communicator and an array of 6 elements, and returns an array.


def neighbors(comm):
    rank, size = comm.Get_rank(), comm.Get_size()
    return (rank + 1) % size, (rank - 1) % size


def ring(np, comm, u):
    right, left = neighbors(comm)
    request = comm.isend({"u": u, "n": 3}, right, 7)
    came = comm.recv(source=left, tag=7)
    request.wait()
    return came["u"] * came["n"]


def ring_of_wildcards(np, comm, u):
    right, left = neighbors(comm)
    first = comm.irecv(source=left)
    second = comm.irecv(source=left)
    comm.isend([u[:2], "text", (u[2], u[3:])], right, 1).wait()
    comm.isend(Particle("p", u[1:], u[0] * u[0]), right, 2).wait()
    b = MPI.Request.waitall([second, first])
    a, b = b[1], b[0]
    return np.sum(a[0]) * a[2][1] + a[2][0] * b.position[2:] * b.mass


def sends_of_all_modes(np, comm, u):
    right, left = neighbors(comm)
    requests = [comm.irecv(source=left, tag=t) for t in range(3)]
    going = [comm.issend(u, right, 0), comm.isend(2 * u, right, 1), comm.isend(u * u, right, 2)]
    came = [request.wait() for request in requests]
    MPI.Request.waitall(going)
    room = bytearray(1 << 14)
    MPI.Attach_buffer(room)
    comm.bsend([u[0]], right, 4)
    request = comm.ibsend(u[1], right, 5)
    buffered = comm.recv(source=left, tag=4)[0] * comm.recv(source=left, tag=5)
    request.wait()
    MPI.Detach_buffer()
    return came[0] * came[1] + came[2] * buffered


def blocking_sends(np, comm, u):
    if comm.Get_size() == 1:
        return u * u
    rank, size = comm.Get_rank(), comm.Get_size()
    if rank == 0:
        for r in range(1, size):
            comm.send(u * r, r)
        w = u
        for _ in range(1, size):
            w = w * comm.recv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG)
        return w
    came = comm.recv()
    comm.ssend(came * u, 0, rank)
    return came + u


def exchange(np, comm, u):
    right, left = neighbors(comm)
    came = comm.sendrecv(Pair(u, [u * u]), right, 3, source=left, recvtag=3)
    return came.first * came.second[0]


def matched_probes(np, comm, u):
    right, left = neighbors(comm)
    going = [comm.isend([u], right, 5), comm.isend((u * u, "b"), right, 6)]
    second = comm.mprobe(source=MPI.ANY_SOURCE, tag=6)
    first = None
    while first is None:
        first = comm.improbe(left, MPI.ANY_TAG)
    request = second.irecv()
    a = first.recv()[0]
    b = request.wait()[0]
    MPI.Request.Waitall(going)
    return a * a + b


def bcast(np, comm, u):
    root = comm.Get_size() - 1
    came = comm.bcast([u, {"square": u * u}] if comm.Get_rank() == root else None, root)
    return came[0] * came[1]["square"] * u


def gather(np, comm, u):
    root = comm.Get_size() - 1
    sent = (comm.Get_rank(), u[comm.Get_rank() :]) if comm.Get_rank() != 1 else "nothing"
    came = comm.gather(sent, root)
    if came is None:
        return u * u
    w = u * u
    for item in came:
        if item != "nothing":
            w = w + np.sum(item[1]) * item[0] * u
    return w


def scatter(np, comm, u):
    parts = [u[k % len(u)] if k % 2 else [u, k] for k in range(comm.Get_size())]
    items = parts if comm.Get_rank() == 0 else None
    came = comm.scatter(items)
    return u * (came[0] if isinstance(came, list) else came)


def scatter_rows(np, comm, u):
    root = comm.Get_size() - 1
    came = comm.scatter(np.concatenate([u, u])[: comm.Get_size()] if comm.Get_rank() == root else None, root)
    return u * came


def allgather(np, comm, u):
    came = comm.allgather(Particle("p", u, np.sum(u)) if comm.Get_rank() != 1 else 2.0)
    w = u * (1 + comm.Get_rank())
    for item in came:
        w = w * item if isinstance(item, float) else w + item.position * item.mass
    return w


def alltoall(np, comm, u):
    rank = comm.Get_rank()
    came = comm.alltoall([u * (rank + r) if r != 2 else r for r in range(comm.Get_size())])
    w = u
    for item in came:
        w = w + u * item
    return w


def reduce(np, comm, u):
    root = comm.Get_size() - 1
    total = comm.reduce(u * u, MPI.SUM, root)
    assert (total is None) == (comm.Get_rank() != root)
    return u if total is None else total * u


def allreduce(np, comm, u):
    return comm.allreduce(u) * u + comm.allreduce(np.sum(u), MPI.PROD) * comm.allreduce(3)


def allreduce_extremes(np, comm, u):
    return u * comm.allreduce(u[0], MPI.MIN) + comm.allreduce(u[1], MPI.MAX)


def allreduce_function(np, comm, u):
    """A reduction that is not commutative: the order of the ranks matters."""
    return comm.allreduce((u, u * u), lambda a, b: (a[0] * b[0] + a[1], b[1]))[0]


def scan(np, comm, u):
    return comm.scan(u, lambda a, b: a + a * b) * u


def exscan(np, comm, u):
    came = comm.exscan(u, MPI.PROD)
    return u if came is None else came * u


CASES = [
    ring,
    ring_of_wildcards,
    sends_of_all_modes,
    blocking_sends,
    exchange,
    matched_probes,
    bcast,
    gather,
    scatter,
    scatter_rows,
    allgather,
    alltoall,
    reduce,
    allreduce,
    allreduce_extremes,
    allreduce_function,
    scan,
    exscan,
]


def world(comm):
    return comm.Dup()


def backwards(comm):
    return comm.Split(0, -comm.Get_rank())


def halves(comm):
    return comm.Split(comm.Get_rank() % 2, comm.Get_rank())


def program(np, comm, x, case):
    u = x * (x + 1)
    w = case(np, comm, u)
    w = w * w
    u[...] = 0
    return w


def inner(a, b):
    """Σ over ranks of the real inner product."""
    return WORLD.allreduce(float(numpy.sum(numpy.real(numpy.conj(a) * b))))


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("make_comm", [world, backwards, halves])
@pytest.mark.parametrize("case", CASES)
def test_against_finite_differences(case, make_comm, dtype):
    if dtype == "complex128" and case is allreduce_extremes:
        pytest.skip("complex numbers have no order")
    comm, plain = make_comm(COMM_WORLD), make_comm(WORLD)
    generator = numpy.random.default_rng([WORLD.rank, 7])
    x0, direction = (generator.uniform(0.3, 0.9, 6).astype(dtype) for _ in range(2))
    if dtype == "complex128":
        x0 = x0 * numpy.exp(1j * generator.uniform(0, 6, 6))
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = program(ampi.numpy, comm, x, case)
    assert isinstance(y, ampi.ndarray)
    seed = generator.uniform(-1, 1, y.shape)
    x_bar = tape.gradient(y, x, seed=seed)
    again = tape.gradient(y, x, seed=seed)

    def slope(h):
        high, low = (program(numpy, plain, x0 + step * direction, case) for step in (h, -h))
        return (inner(seed, high) - inner(seed, low)) / (2 * h)

    coarse, fine = slope(2e-4), slope(1e-4)
    expected = (4 * fine - coarse) / 3
    check_forward(lambda np, comm, x: program(np, comm, x, case), comm, x0, direction, seed, x_bar)
    scale = max(abs(expected), WORLD.allreduce(float(numpy.abs(x_bar).sum())))
    comm.Free()
    plain.Free()
    assert abs(fine - coarse) < 1e-5 * scale
    assert abs(inner(x_bar, direction) - expected) < 1e-7 * scale
    assert numpy.array_equal(x_bar, again)


OBJECT_METHODS = [
    o.name for o in TABLE.values() if o.objects and o.treatment is Treatment.DIFFERENTIATED and o.owner != "Topocomm"
]


@pytest.mark.parametrize("name", OBJECT_METHODS)
def test_has_a_case(name):
    """An entry of the table without a case here fails by name."""
    assert any(f".{name}(" in inspect.getsource(case) for case in CASES)


# ------------------------------------------------------------------------------------------------------- objects


OBJECTS = {
    "array": (lambda u: u, lambda o: o),
    "scalar": (lambda u: u[2], lambda o: o),
    "list": (lambda u: [1, [u], "x"], lambda o: o[1][0]),
    "tuple": (lambda u: (u, None), lambda o: o[0]),
    "named tuple": (lambda u: Pair(2, u), lambda o: o.second),
    "dict": (lambda u: {"a": {"b": u}}, lambda o: o["a"]["b"]),
    "dataclass": (lambda u: Particle("p", u), lambda o: o.position),
    "attributes and a cycle": (lambda u: Node([u]), lambda o: o.itself.value[0]),
    "strided view": (lambda u: {"v": u[::-2]}, lambda o: o["v"]),
    "deque": (lambda u: collections.deque([u]), lambda o: o[0]),
    "array of objects": (lambda u: numpy.array([u, None], object), lambda o: o[0]),
}


PARTS = {"scalar": 2, "strided view": slice(None, None, -2)}


@pytest.mark.parametrize("kind", OBJECTS)
def test_active_arrays_are_found_in(kind):
    wrap, unwrap = OBJECTS[kind]
    comm = COMM_WORLD
    right, left = neighbors(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 6.0) + comm.rank)
        came = comm.sendrecv(wrap(x * x), right, source=left)
        y = unwrap(came) * 3
    assert isinstance(unwrap(came), ampi.ndarray)
    x_bar = tape.gradient(y, x, seed=numpy.ones(y.shape))
    arrived = numpy.zeros(5)
    arrived[PARTS.get(kind, slice(None))] = 1
    assert numpy.array_equal(x_bar, 6 * ampi.value(x) * arrived)


def test_one_array_twice_in_an_object_stays_one():
    comm = COMM_WORLD
    right, left = neighbors(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        a, b = comm.sendrecv([x, x], right, source=left)
        assert a is b
        a *= 2
        y = a * b
    assert numpy.array_equal(tape.gradient(y, x, seed=numpy.ones(2)), [16.0, 24.0])


def test_float32_and_float64_in_one_object():
    comm = COMM_WORLD
    right, left = neighbors(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0], numpy.float32))
        z = tape.watch(numpy.array([1 + 1j]))
        a, b = comm.sendrecv((x, z), right, source=left)
        assert a.dtype == numpy.float32 and b.dtype == numpy.complex128
        y = a * 5
        w = b * 2j
    x_bar, z_bar = tape.gradient((y, w), [x, z], seed=(numpy.ones(2), numpy.ones(1)))
    assert x_bar.dtype == numpy.float32 and numpy.array_equal(x_bar, [5.0, 5.0])
    assert numpy.array_equal(z_bar, [-2j])


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_passive_objects_pass_through_a_recording_tape():
    comm = COMM_WORLD
    right, left = neighbors(comm)
    with ampi.Tape():
        assert comm.allreduce(2) == 2 * comm.size and type(comm.allreduce(2)) is int
        assert comm.bcast({"a": [1, 2]}) == {"a": [1, 2]}
        assert comm.allgather(comm.rank) == list(range(comm.size))
        assert comm.alltoall(list(range(comm.size))) == [comm.rank] * comm.size
        assert comm.scatter(list("abcdefgh")[: comm.size] if comm.rank == 0 else None) == "abcdefgh"[comm.rank]
        assert comm.reduce([comm.rank], MPI.SUM) == (list(range(comm.size)) if comm.rank == 0 else None)
        assert comm.scan(1) == comm.rank + 1
        assert comm.exscan(1) == (comm.rank or None)
        assert comm.sendrecv(comm.rank, right, source=left) == left
        assert type(comm.sendrecv(numpy.ones(2), right, source=left)) is numpy.ndarray
        assert comm.allreduce(2.5, lambda a, b: max(a, b)) == 2.5


def test_only_one_rank_contributes_active_values():
    comm = COMM_WORLD
    last = comm.size - 1
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array(3.0))
        y = comm.allreduce(x * x if comm.rank == last else 1.0)
        y = y * (comm.rank + 1)
    x_bar = tape.gradient(y, x)
    expected = 6 * sum(range(1, comm.size + 1)) if comm.rank == last else 0
    assert x_bar == expected


def test_no_derivative_inside_passive():
    comm = COMM_WORLD
    right, left = neighbors(comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([3.0]))
        with ampi.passive():
            a = comm.sendrecv(x, right, source=left)
            b = comm.allreduce(x)
        y = x * a * ampi.value(b)
    assert numpy.allclose(tape.gradient(y, x), 9 * comm.size)


def test_without_a_tape_arrays_arrive_as_arrays_of_ours():
    came = COMM_WORLD.bcast(ampi.numpy.ones(2))
    assert type(came) is ampi.ndarray


def test_a_pickler_written_in_python(recwarn):
    """As with dill, pickling still belongs to the message, and no derivative is lost."""
    import pickle

    MPI.pickle.__init__(pickle._dumps, pickle._loads)
    try:
        f = lambda x: ampi.numpy.sum(COMM_WORLD.bcast([x**2, {"x": x}], root=0)[0] ** 2)
        x_bar = ampi.grad(f)(numpy.arange(3.0))
    finally:
        MPI.pickle.__init__()
    expected = 4 * COMM_WORLD.size * numpy.arange(3.0) ** 3 if COMM_WORLD.rank == 0 else numpy.zeros(3)
    numpy.testing.assert_allclose(x_bar, expected)
    assert not [w for w in recwarn if "pickle" in str(w.message)]

"""Communicators: any that is made from one of ampi's is one of ampi's, on which messages are differentiated."""

import gc
import pickle
import time
import weakref

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in, check

import ampi

pytestmark = pytest.mark.mpi

COMM_WORLD = ampi.COMM_WORLD


def ring(np, comm, x):
    """A program for any intracommunicator."""
    if comm == MPI.COMM_NULL:
        return x * x
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    u, v = x * x, np.zeros(x.shape, x.dtype)
    comm.Sendrecv(u, after, comm.rank, v, before, before)
    request = comm.Irecv(u, MPI.ANY_SOURCE, 50)
    comm.Isend(v * (1.0 + comm.rank), after, 50).Wait()
    request.Wait()
    return u * v


def free(*comms):
    """Free communicators: Intel MPI loses messages between groups whose ranks have different numbers of them."""
    for comm in comms:
        if comm != MPI.COMM_NULL:
            comm.Free()


def dup(comm):
    return comm.Dup()


def dup_with_info(comm):
    return comm.Dup_with_info(MPI.INFO_NULL)


def clone(comm):
    return comm.Clone()


def idup(comm):
    new, request = comm.Idup()
    request.Wait()
    return new


def another_object_for_an_idup(comm):
    return type(comm)(idup(comm))


def backwards(comm):
    return comm.Split(0, -comm.rank)


def odd_and_even(comm):
    return comm.Split(comm.rank % 2)


def without_rank_0(comm):
    return comm.Split(MPI.UNDEFINED if comm.rank == 0 else 1)


def same_node(comm):
    return comm.Split_type(MPI.COMM_TYPE_SHARED)


def create(comm):
    return comm.Create(comm.group.Incl(range(comm.size)[::-1]))


def create_some(comm):
    return comm.Create(comm.group.Excl([0]))


def create_group(comm):
    group = comm.group.Excl([comm.size - 1])
    return comm.Create_group(group) if comm.rank < comm.size - 1 else MPI.COMM_NULL


def create_from_group(comm):
    return type(comm).Create_from_group(comm.group.Incl(range(comm.size)[::-1]), "ampi-test")


def idup_with_info(comm):
    new, request = comm.Idup_with_info(MPI.INFO_NULL)
    request.Wait()
    return new


def cartesian(comm):
    return comm.Create_cart(MPI.Compute_dims(comm.size, 2), [True, False], reorder=True)


def cartesian_part(comm):
    whole = cartesian(comm)
    part = whole.Sub([False, True])
    whole.Free()
    return part


def graph(comm):
    return comm.Create_graph(range(1, comm.size + 1), [(r + 1) % comm.size for r in range(comm.size)])


def distributed_graph(comm):
    return comm.Create_dist_graph_adjacent([(comm.rank - 1) % comm.size], [(comm.rank + 1) % comm.size])


def distributed_graph_of_edges(comm):
    return comm.Create_dist_graph([comm.rank], [1], [(comm.rank + 1) % comm.size])


def part_of_a_duplicate(comm):
    whole = comm.Dup()
    part = whole.Split(comm.rank // 2)
    made = part.Dup()
    part.Free()
    whole.Free()
    return made


FROM_GROUP = broken_in("Open MPI", "a program that mpiexec did not start has no Create_from_group", ranks=1)
MADE = [
    dup,
    dup_with_info,
    clone,
    idup,
    another_object_for_an_idup,
    backwards,
    odd_and_even,
    without_rank_0,
    same_node,
    create,
    create_some,
    create_group,
    pytest.param(create_from_group, marks=FROM_GROUP),
    idup_with_info,
    cartesian,
    cartesian_part,
    graph,
    distributed_graph,
    distributed_graph_of_edges,
    part_of_a_duplicate,
]


@pytest.mark.parametrize("make", MADE)
def test_made(make):
    comm, plain = make(COMM_WORLD), make(WORLD)
    if comm != MPI.COMM_NULL:
        assert type(comm).__module__ == "ampi.MPI"
    check(ring, comm, plain)
    free(comm, plain)


@FROM_GROUP
def test_session():
    """A communicator is freed before its session ends."""
    session = MPI.Session.Init()
    group = session.Create_group("mpi://WORLD")
    comm = ampi.MPI.Intracomm.Create_from_group(group, "ampi-session")
    group.Free()
    assert type(comm) is ampi.Intracomm
    check(ring, comm, WORLD)
    comm.Free()
    gc.collect()
    COMM_WORLD.Dup().Free()  # frees what is left of it
    session.Finalize()


@pytest.mark.mpi(min_size=2)
def test_accept_and_connect():
    """The halves of the world connect through a port."""
    server = WORLD.rank < WORLD.size // 2
    part = COMM_WORLD.Split(server)
    plain = WORLD.Split(server)

    def meet(part):
        port = MPI.Open_port() if WORLD.rank == 0 else None
        port = WORLD.bcast(port)
        inter = part.Accept(port) if server else part.Connect(port)
        if WORLD.rank == 0:
            MPI.Close_port(port)
        return inter

    try:
        ours, theirs = meet(part), meet(plain)
    except MPI.Exception as error:
        pytest.skip(f"cannot connect here: {error}")
    assert type(ours) is ampi.MPI.Intercomm
    both, same = ours.Dup(), theirs.Dup()

    def program(np, comm, x):
        merged = comm.Merge(not server)
        y = ring(np, merged, x)
        merged.Free()
        return y

    check(program, both, same)
    free(both, same, part, plain)
    for comm in (ours, theirs):
        comm.Disconnect()


@pytest.mark.mpi(min_size=2)
def test_intercommunicator_from_groups():
    groups = [WORLD.group.Incl(range(WORLD.size // 2)), WORLD.group.Excl(range(WORLD.size // 2))]
    mine = int(WORLD.rank >= WORLD.size // 2)
    inter = ampi.MPI.Intercomm.Create_from_groups(groups[mine], 0, groups[1 - mine], 0, "ampi-groups")
    plain = MPI.Intercomm.Create_from_groups(groups[mine], 0, groups[1 - mine], 0, "ampi-groups")
    assert type(inter) is ampi.MPI.Intercomm

    def program(np, comm, x):
        merged = comm.Merge(bool(mine))
        y = ring(np, merged, x)
        merged.Free()
        return y

    check(program, inter, plain)
    free(inter, plain)


@pytest.mark.mpi(min_size=2)
def test_sweep_that_waits_until_a_duplicate_is_made():
    comm = idup(COMM_WORLD)
    if WORLD.rank == 0:
        time.sleep(0.3)  # the others look for notices meanwhile
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0))
        y = x * x
        comm.Sendrecv_replace(y, comm.rank, 0, comm.rank, 0)
    numpy.testing.assert_array_equal(tape.gradient(y, x, seed=numpy.ones(3)), 2 * numpy.arange(3.0))
    comm.Free()


def test_constants():
    check(ring, COMM_WORLD, WORLD)
    check(ring, ampi.COMM_SELF, MPI.Intracomm(MPI.COMM_SELF))
    assert COMM_WORLD == WORLD and COMM_WORLD is ampi.MPI.COMM_WORLD
    assert isinstance(COMM_WORLD, MPI.Intracomm) and isinstance(COMM_WORLD, ampi.MPI.Comm)
    assert isinstance(WORLD, ampi.MPI.Intracomm) and not isinstance(WORLD, ampi.MPI.Cartcomm)
    assert not issubclass(ampi.MPI.Cartcomm, ampi.MPI.Intercomm)


def test_copies_of_a_handle():
    check(ring, ampi.MPI.Intracomm(COMM_WORLD), WORLD)


def test_freed_before_the_sweep():
    def program(np, comm, x):
        part = comm.Split(comm.rank % 2, -comm.rank)
        y = ring(np, part, x)
        other = part.Dup()
        part.Free()
        again = comm.Dup()  # gets the freed handle
        y = ring(np, other, y)
        other.Free()
        y = ring(np, again, y)
        again.free()
        return y

    check(program, COMM_WORLD, WORLD)


def test_arrays_of_messages_keep_no_communicator_alive():
    comm = COMM_WORLD.Dup()
    reverse = weakref.ref(comm._reverse)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = ampi.numpy.zeros(2)
        for _ in range(2):
            comm.Sendrecv(x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size)
            comm.Allreduce(x, y)
    assert (tape.gradient(y, x, seed=numpy.ones(2)) == comm.size).all()
    comm.Free()
    del tape, comm
    assert reverse() is None


def test_freed_communicators_do_not_pile_up():
    if WORLD.size > 2:
        pytest.skip("each rank does the same by itself")
    for _ in range(1100):  # with the reverse side two contexts each, of which MPICH has 2048
        comm = ampi.COMM_SELF.Dup()
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(1))
            comm.Sendrecv_replace(x, 0, 0, 0)
        tape.gradient(x, x)
        comm.Free()
        del tape, x, comm
        gc.collect(0)


def test_free_of_a_constant_does_nothing():
    COMM_WORLD.free()
    ampi.COMM_SELF.free()
    assert COMM_WORLD.size == WORLD.size
    check(ring, COMM_WORLD, WORLD)


def test_shift_on_a_cartesian_grid():
    """A field on a grid of ranks with open and closed boundaries: rows and columns are exchanged with neighbours."""

    def program(np, comm, x):
        cart = comm.Create_cart(MPI.Compute_dims(comm.size, 2), [True, False])
        field = np.zeros((4, 4), x.dtype)
        field[1:3, 1:3] = x.reshape(2, 2)
        column = MPI._typedict[x.dtype.char].Create_vector(4, 1, 4).Commit()
        for _ in range(2):
            up, down = cart.Shift(0, 1)
            cart.Sendrecv(field[2], down, 0, field[0], up, 0)
            cart.Sendrecv(field[1], up, 0, field[3], down, 0)
            left, right = cart.Shift(1, 1)
            flat = field.reshape(-1)
            requests = [cart.Irecv([flat[3:], 1, column], right, 1), cart.Isend([flat[1:], 1, column], left, 1)]
            MPI.Request.Waitall(requests)
            field[1:3, 1:3] = field[1:3, 1:3] * (field[:2, 1:3] + field[2:, 1:3] + field[1:3, 2:])
        column.Free()
        cart.Free()
        return field[1:3, 1:3] * 1.0

    check(program, COMM_WORLD, WORLD, n=4)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("merged", [False, True])
def test_intercommunicators(merged):
    def program(np, comm, x):
        odd = comm.rank % 2
        part = comm.Split(odd)
        inter = part.Create_intercomm(0, comm, 1 - odd, 7)
        y, v = x * x, np.zeros(x.shape, x.dtype)
        part.Free()
        if merged:
            both = inter.Merge(bool(odd))
            y = ring(np, both, y)
            free(inter, both)
            return y
        remote = inter.Get_remote_size()
        requests = [inter.Isend(y * (r + 1.0), r, inter.rank) for r in range(remote)]
        for r in range(remote):
            inter.Recv(v, r, r)
            y = y * v
        MPI.Request.Waitall(requests)
        inter.Free()
        return y

    check(program, COMM_WORLD, WORLD)


def test_neighbours_in_two_communicators_at_once():
    """The same ranks and tags on two communicators are different messages."""

    def program(np, comm, x):
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        other = comm.Dup()
        v, w = np.zeros(x.shape, x.dtype), np.zeros(x.shape, x.dtype)
        requests = [comm.Isend(x, after), other.Isend(x * x, after)]
        other.Recv(w, before)
        comm.Recv(v, before)
        MPI.Request.Waitall(requests)
        other.Free()
        return v * w * w

    check(program, COMM_WORLD, WORLD)


def test_communicator_that_ampi_did_not_see_made():
    stranger = MPI.COMM_WORLD.Dup()
    comm = ampi.MPI.Intracomm(stranger)
    k = numpy.zeros(1, int)
    comm.Sendrecv_replace(k, comm.rank, 0, comm.rank)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        comm.Sendrecv_replace(k, comm.rank, 0, comm.rank)
        with pytest.raises(ampi.CommunicationError, match="no reverse communicator"):
            comm.Isend(x, comm.rank)
    check(ring, comm.Dup(), WORLD)
    stranger.Free()


def test_pickling():
    for comm in (COMM_WORLD, ampi.COMM_SELF, MPI.COMM_WORLD):
        assert pickle.loads(pickle.dumps(comm)) is comm


def test_attributes_are_copied_once():
    copies = []
    key = MPI.Comm.Create_keyval(copy_fn=lambda comm, keyval, value: copies.append(value) or value)
    comm = COMM_WORLD.Dup()
    comm.Set_attr(key, 5)
    other = comm.Dup()
    part = comm.Split(0)
    assert copies == [5] and other.Get_attr(key) == 5 and part.Get_attr(key) is None
    for each in (comm, other, part):
        each.Free()
    MPI.Comm.Free_keyval(key)

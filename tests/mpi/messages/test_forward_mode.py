"""Forward mode on ranks: messages of several forms, windows and messages from before, and refusals."""

import contextlib
import math

import numpy
import pytest
from mpi4py import MPI
from programs import WORLD, broken_in

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD
from ampi.mpi.log.reverse import reverse_of

pytestmark = pytest.mark.mpi

RANK, SIZE = WORLD.rank, WORLD.size
AFTER, BEFORE = (RANK + 1) % SIZE, (RANK - 1) % SIZE
X = numpy.arange(1.0, 4.0) + RANK
V = numpy.array([1.0, -2.0, 0.5]) * (RANK + 1)


def of(rank, values):
    """Another rank's value of ``values``, a function of its X and V."""
    return values(numpy.arange(1.0, 4.0) + rank, numpy.array([1.0, -2.0, 0.5]) * (rank + 1))


def test_addresses_of_several_arrays_in_collectives():
    def f(x):
        a, b = x * x, 3.0 * x[:1]
        both = MPI.Datatype.Create_struct([3, 1], [MPI.Get_address(a), MPI.Get_address(b)], [MPI.DOUBLE] * 2).Commit()
        everything = np.zeros(4 * SIZE)
        COMM_WORLD.Allgather([MPI.BOTTOM, 1, both], everything)
        COMM_WORLD.Bcast([MPI.BOTTOM, 1, both], 0)
        both.Free()
        return everything, a * b

    expected = [of(r, lambda x, v: [*(2 * x * v), 3 * v[0]]) for r in range(SIZE)]
    first = of(0, lambda x, v: x * x * 3 * v[0] + 2 * x * v * 3 * x[0])
    for everything, product in (ampi.jvp(f, X, V)[1], ampi.linearize(f, X)[1](V)):
        numpy.testing.assert_allclose(everything, numpy.concatenate(expected))
        numpy.testing.assert_allclose(product, first)


@pytest.mark.parametrize("dtype", ["f", "d", "F", "D"])
def test_packed_on_one_side(dtype):
    """Elements are received as bytes, and bytes as elements, in messages with one tag."""

    def f(x):
        x = x.astype(dtype)
        room, typed, came = (np.zeros(n, t) for n, t in ((x.nbytes, np.uint8), (3, dtype), (x.nbytes, np.uint8)))
        kind = MPI._typedict[dtype]
        kind.Pack(x * x, room, 0, WORLD)
        requests = [COMM_WORLD.Irecv(typed, BEFORE, 1), COMM_WORLD.Irecv([came, MPI.BYTE], BEFORE, 1)]
        requests += [COMM_WORLD.Isend([room, MPI.PACKED], AFTER, 1), COMM_WORLD.Isend(x * 2, AFTER, 1)]
        MPI.Request.Waitall(requests)
        y = np.zeros(3, dtype)
        kind.Unpack(came, 0, y, WORLD)
        return typed * y

    expected = of(BEFORE, lambda x, v: 6 * x * x * v)
    numpy.testing.assert_allclose(ampi.jvp(f, X, V)[1], expected, 1e-5)


def spelt(a, how):
    """A message of a whole array, in one of the forms that mpi4py accepts."""
    kind = MPI._typedict[a.dtype.char]
    return (a, [a, kind], [a, a.size, kind], [a, (a.size, 0), kind])[how]


def moved(name, x, how):
    """Exchange x between ranks, viewed as integers, by one of the collectives."""
    sent, received = np.zeros(3 * SIZE, x.dtype), np.zeros(3 * SIZE, x.dtype)
    sent[...] = np.concatenate([(k + 1) * x for k in range(SIZE)])
    a, b = (memory.view(f"i{x.dtype.itemsize}") for memory in (sent, received))
    if name == "Bcast":
        COMM_WORLD.Bcast(spelt(a, how), SIZE - 1)
        return sent
    if name == "Scatter":
        COMM_WORLD.Scatter(spelt(a, how), spelt(b[:3], how), 0) if RANK == 0 else COMM_WORLD.Scatter(None, b[:3], 0)
    elif name == "Gather":
        COMM_WORLD.Gather(spelt(a[:3], how), b if RANK == 0 else None, 0)
    elif name == "Allgather":
        COMM_WORLD.Iallgather(spelt(a[:3], how), b).Wait()
    else:
        COMM_WORLD.Alltoall(a, b)
    return received


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", ["Bcast", "Scatter", "Gather", "Allgather", "Alltoall"])
def test_numbers_that_are_sent_as_integers(name, dtype):
    """Views of floating-point memory keep their tangents, whichever form of the message each rank writes."""
    x, v = X.astype(dtype), V.astype(dtype)
    f = lambda x: moved(name, x * x, RANK % 4) * 1
    y_dot = ampi.jvp(f, x, v)[1]
    with ampi.Tape() as tape:
        u = tape.watch(x)
        y = f(u)
    numpy.testing.assert_array_equal(tape.tangent(y, u, v), y_dot)
    there = WORLD.allreduce(float(y_dot @ y_dot))
    assert there > 0
    assert WORLD.allreduce(float(tape.gradient(y, u, seed=y_dot) @ v)) == pytest.approx(there, rel=1e-5)


def test_ranks_give_messages_of_integers_in_different_forms():
    """No rank waits for tangents that the others do not send, because they know that there are none."""

    def f(x):
        a, b = numpy.arange(SIZE) + RANK, numpy.zeros(SIZE, int)
        for how in range(4):
            COMM_WORLD.Alltoall(spelt(a, (how + RANK) % 2), b)
            COMM_WORLD.Allgather(spelt(a[:1], (how + RANK) % 4), b)
            COMM_WORLD.Bcast(spelt(b, (how + RANK) % 4), how % SIZE)
        total = np.zeros(3)
        COMM_WORLD.Allreduce(x * x * (b[-1] + 1), total)
        return total

    expected = sum(of(r, lambda x, v: 2 * x * v) for r in range(SIZE)) * SIZE
    numpy.testing.assert_allclose(ampi.jvp(f, X, V)[1], expected)


def test_a_window_from_before_opens_at_its_first_fence():
    memory = np.zeros(3)
    win = ampi.Win.Create(memory, 8, comm=COMM_WORLD)

    def f(x):
        win.Fence()
        win.Put(x * x, AFTER)
        win.Fence()
        return memory * x

    for _ in range(2):
        y_dot = ampi.jvp(f, X, V)[1]
        came, came_dot = of(BEFORE, lambda x, v: x * x), of(BEFORE, lambda x, v: 2 * x * v)
        numpy.testing.assert_allclose(y_dot, came_dot * X + came * V)

    def locked(x):
        win.Lock(RANK)
        try:
            win.Put(x, RANK)
        finally:
            win.Unlock(RANK)

    with pytest.raises(ampi.ActivityError, match=r"made before ampi\.jvp"):
        ampi.jvp(locked, X, V)
    win.Free()


def test_what_would_be_lost_is_an_error_where_it_arrives():
    comm = COMM_WORLD.Dup()
    plain = numpy.zeros(3)

    def got(x):
        memory = np.zeros(3)
        win = ampi.Win.Create(memory, 8, comm=comm)
        memory[:] = x
        win.Fence()
        try:
            win.Get(plain, AFTER)
        finally:
            win.Fence()
            win.Free()

    def parts(x):
        send, receive = comm.Psend_init(x, 1, AFTER), comm.Precv_init(plain, 1, BEFORE, 0)
        MPI.Prequest.Startall([receive, send])
        send.Pready(0)
        try:
            MPI.Request.Waitall([send, receive])
        finally:
            send.Free()
            receive.Free()

    for program in (got, parts):
        with pytest.raises(ampi.ActivityError, match="not tracked"):
            ampi.jvp(program, X, V)
        comm = COMM_WORLD.Dup()  # one without errors so far


def test_a_walk_goes_through_a_window_that_has_been_freed():
    def f(x):
        memory = np.zeros(3)
        win = ampi.Win.Create(memory, 8, comm=COMM_WORLD)
        win.Fence()
        win.Put(x, AFTER)
        win.Fence()
        win.Free()
        return memory * 1.0

    _, push = ampi.linearize(f, X)
    for _ in range(2):
        numpy.testing.assert_array_equal(push(V), of(BEFORE, lambda x, v: v))


def test_gauss_newton_from_one_tape():
    with ampi.Tape() as tape:
        x = tape.watch(X)
        left, total = np.zeros(3), np.zeros(3)
        COMM_WORLD.Sendrecv(x * x, AFTER, 0, left, BEFORE)
        COMM_WORLD.Allreduce(np.sin(left) * x, total)
        scaled = COMM_WORLD.bcast(total * x, 0)
        y = scaled * left
    products = [tape.gradient(y, x, seed=tape.tangent(y, x, v)) for v in (V, V[::-1].copy(), V)]
    numpy.testing.assert_array_equal(products[0], products[2])
    one, other = (WORLD.allreduce(float(a @ b)) for a, b in ((products[0], V[::-1]), (products[1], V)))
    assert one == pytest.approx(other, rel=1e-12)  # JᵀJ is symmetric


@ampi.kernel
def carried(a, b):
    """A kernel whose adjoint needs the value carried by its loop."""
    s = 1.0
    for i in range(a.size):
        s = math.sin(s * a[i]) + s
        b[i] = s * b[i]


def around(x, ring):
    """A kernel, and neighborhood collectives."""
    y, both, further = x * x, np.zeros((2, 3)), np.zeros((2, 3))
    carried(x, y)
    ring.Neighbor_allgather(y, both)
    ring.Ineighbor_alltoall(both * x, further).Wait()
    return further[0] * y + np.sin(both[1])


@pytest.mark.parametrize("directions", [None, 2])
def test_gauss_newton_from_a_tape_that_is_made_for_it(directions):
    ring = COMM_WORLD.Create_cart([SIZE], [True])
    with ampi.Tape(tangents=True) as tape:
        x = tape.watch(X)
        y = around(x, ring)
    x_dot, y_bar = (V, numpy.cos(X)) if directions is None else (numpy.array([V, X]), numpy.array([X, V]))
    y_dot = tape.tangent(y, x, x_dot, vectorised=directions is not None)
    x_bar = tape.gradient(y, x, seed=y_bar) if directions is None else tape.gradient(y, x, seeds=y_bar)
    there, back = (WORLD.allreduce(numpy.sum(a * b)) for a, b in ((y_dot, y_bar), (x_dot, x_bar)))
    assert there == pytest.approx(back, rel=1e-12)
    ring.Free()
    y_dot = tape.tangent(y, x, V)
    assert WORLD.allreduce(V @ tape.gradient(y, x, seed=y_dot)) == pytest.approx(WORLD.allreduce(y_dot @ y_dot))


def test_a_walk_refuses_on_all_ranks_what_a_tape_for_sweeps_has_not_kept():
    comm = COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(X)
        y = x * x
        if RANK == SIZE - 1:
            carried(x, y)
        total = np.zeros(3)
        comm.Allreduce(y, total)
    with pytest.raises((ampi.ActivityError, ampi.CommunicationError), match=r"ampi\.Tape\(tangents=True\)"):
        tape.tangent(total, x, V)
    comm.Free()


@pytest.mark.parametrize("mode", ["jvp", "hvp", "walk"])
def test_an_error_at_the_end_of_one_part_is_passed_to_the_others(mode):
    """A rank that stops there may leave messages pending: the communicator reports this at its next use."""
    comm = COMM_WORLD.Dup()
    told = []

    def fail(error):
        told.append(error)
        raise ZeroDivisionError("in the end")

    def f(x):
        y = np.zeros(3)
        comm.Sendrecv(x * x, AFTER, 0, y, BEFORE)
        tape = ampi.tape.current()
        push = tape.forward or tape.tangents
        if push is not None and RANK == 0:
            push.at_end(fail)
        return np.sum(y * x)

    def walked():
        with ampi.Tape() as tape:
            x = tape.watch(X)
            y = f(x)
            if RANK == 0:
                tape.at_sweep_start("an end", lambda push: push.at_end(fail))
        return tape.tangent(y, x, V)

    run = {"jvp": lambda: ampi.jvp(f, X, V), "hvp": lambda: ampi.hvp(f, X, V), "walk": walked}[mode]
    if RANK == 0:
        with pytest.raises(ZeroDivisionError):
            run()
        assert told == [None]
        assert "in the end" in reverse_of(comm).broken
    elif mode == "hvp":  # there is no sweep on rank 0; ranks without a partner that stops may come through
        told_so = pytest.raises(ampi.CommunicationError, match="ZeroDivisionError: in the end")
        with told_so if 0 in (AFTER, BEFORE) else contextlib.suppress(ampi.CommunicationError):
            run()
    else:
        run()
    comm.Free()


SHORT = broken_in("Open MPI", "a nonblocking read beyond the end of the file never completes")


@pytest.mark.parametrize("nonblocking", [False, pytest.param(True, marks=SHORT)])
def test_what_is_read_from_a_file_is_constant(tmp_path, nonblocking):
    """A short read leaves the rest unchanged; written values are not differentiated."""
    name = str(tmp_path / f"rank{RANK}")
    numpy.array([5.0, 6.0]).tofile(name)

    def f(x):
        y = x * x
        file = ampi.MPI.File.Open(WORLD.Split(RANK), name, MPI.MODE_RDWR)
        if nonblocking:
            file.Iread(y).Wait()
        else:
            file.Read(y)
        file.Write(x)
        file.Close()
        return y * x

    expected = [5.0 * V[0], 6.0 * V[1], 3 * X[2] ** 2 * V[2]]
    numpy.testing.assert_allclose(ampi.jvp(f, X, V)[1], expected)
    numpy.array([5.0, 6.0]).tofile(name)
    numpy.testing.assert_allclose(ampi.linearize(f, X)[1](V), expected)

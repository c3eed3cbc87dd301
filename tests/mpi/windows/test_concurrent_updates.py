"""Atomic operations of several ranks on the same elements."""

import numpy
import pytest
from mpi4py import MPI
from programs import broken_in, check, typeof
from window_cases import attached, created, windows_of

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

LOCKS = (MPI.LOCK_EXCLUSIVE, MPI.LOCK_SHARED)
WORLD = MPI.COMM_WORLD


# Updates of one element by several ranks in one epoch

OPERATIONS = {
    "SUM": lambda old, x: old + x,
    "PROD": lambda old, x: old * x,
    "MIN": lambda old, x: numpy.where(x.real < old.real, x, old),
    "MAX": lambda old, x: numpy.where(x.real > old.real, x, old),
    "REPLACE": lambda old, x: x,
    "NO_OP": lambda old, x: old,
}


def in_rank_order(comm, operation, first, terms):
    """Rank 0's memory after updates by one rank after another, and the values that this rank's updates find."""
    memory, found = comm.bcast(first), []
    for rank, theirs in enumerate(comm.allgather(terms)):
        for term in theirs:
            if rank == comm.rank:
                found.append(memory)
            memory = operation(memory, term)
    return memory, found


def update(win, term, got, op, datatype):
    """Update elements 1, 3 and 5 of rank 0's memory; the datatype is freed before the epoch ends."""
    spread = datatype.Create_vector(3, 1, 2).Commit()
    target = (1, 1, spread)
    if got is None:
        win.Accumulate([term, 3, datatype], 0, target, op)
    else:
        win.Get_accumulate([term, 3, datatype], got, 0, target, op)
    spread.Free()


def fence(win, comm, updates):
    win.Fence()
    updates()
    win.Fence(MPI.MODE_NOSUCCEED | MPI.MODE_NOPUT)


def post(win, comm, updates):
    """All ranks are origins; they complete their epochs in the order of the ranks, without knowing it from MPI."""
    group = comm.Get_group()
    first = group.Incl([0])
    if comm.rank == 0:
        win.Post(group)
    win.Start(first)
    updates()
    for rank in range(comm.size):
        if rank == comm.rank:
            win.Complete()
        WORLD.Barrier()
    if comm.rank == 0:
        win.Wait()
    first.Free()
    group.Free()


def concurrent(name, fetches, epoch):
    """A program in which all ranks update the same elements, twice each."""

    def program(np, comm, x):
        terms = [x * 1.5, x * x - 0.25]
        if np is not ampi.numpy:
            memory, found = in_rank_order(comm, OPERATIONS[name], x * 2, terms)
            found = found if fetches else [x, x]
        else:
            win, whole = created(np, comm, 6, x.dtype)
            whole[1::2] = x * 2
            found = [np.zeros(3, x.dtype) + x for _ in terms]

            def updates():
                for term, got in zip(terms, found):
                    update(win, term, got if fetches else None, getattr(MPI, name), typeof(x))

            epoch(win, comm, updates)
            memory = whole[1::2]
            win.Free()
        mine = memory * memory if comm.rank == 0 else x
        return np.concatenate([found[0] * x, found[1], mine])

    return program


@pytest.mark.parametrize(
    ("epoch", "name", "fetches"),
    [
        *((fence, name, False) for name in ("PROD", "MIN", "MAX", "REPLACE")),
        *((fence, name, True) for name in OPERATIONS),
        *((post, name, False) for name in ("PROD", "MAX", "REPLACE")),
        *((post, name, True) for name in ("SUM", "PROD", "MIN", "NO_OP")),
    ],
)
def test_concurrent_updates(epoch, name, fetches):
    check(concurrent(name, fetches, epoch), COMM_WORLD, WORLD)


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
@pytest.mark.parametrize("epoch", [fence, post], ids=lambda epoch: epoch.__name__)
def test_concurrent_products_of_dtypes(dtype, epoch):
    check(concurrent("PROD", True, epoch), COMM_WORLD, WORLD, dtype=dtype)


def sums_and_fetches(np, comm, x):
    """Additions with and without a fetch, in each rank's own order; in bytes, and in a dynamic window."""
    terms = [x, x * x, x * 3]
    if np is not ampi.numpy:
        everybody = comm.allgather(terms)
        first = comm.bcast(x * 2) + sum(theirs[0] for theirs in everybody)
        before = sum((theirs[1] + theirs[2] for theirs in everybody[: comm.rank]), 0 * x)
        got = first + before
        memory = first + sum(theirs[1] + theirs[2] for theirs in everybody)
    else:
        memory, got = np.zeros(3, x.dtype), np.zeros(3, x.dtype)
        memory[...] = x * 2
        win = windows_of(np).Create_dynamic(comm=comm)
        where = attached(np, comm, win, memory)[0]
        win.Fence(MPI.MODE_NOPRECEDE)
        win.Accumulate(x, 0, where)
        win.Get_accumulate(terms[1], got, 0, where)
        win.Accumulate(terms[2], 0, where)
        win.Fence()
        win.Detach(memory)
        win.Free()
    return np.concatenate([got * x, memory * memory if comm.rank == 0 else x])


def test_sums_and_fetches():
    check(sums_and_fetches, COMM_WORLD, WORLD)


@pytest.mark.parametrize("in_epoch", [fence, post], ids=lambda epoch: epoch.__name__)
def test_ties_and_zeros(in_epoch):
    """Among equal values the one before the epoch wins, then the lowest rank; products may have several zeros."""
    size, rank = WORLD.size, WORLD.rank
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 2.0, 0.0, 3.0 if rank else 0.0]))
        win, memory = created(ampi.numpy, COMM_WORLD, 4, "d")
        first = tape.watch(numpy.array([1.0, 2.0, 5.0, 5.0]))
        memory[...] = first

        def updates():
            win.Accumulate(x[:2], 0, op=MPI.MAX)
            win.Accumulate(x[2:], 0, 2, op=MPI.PROD)

        in_epoch(win, COMM_WORLD, updates)
        y = memory * 1.0
        win.Free()
    x_bar, first_bar = tape.gradient(y, (x, first), seed=numpy.ones(4) * (rank == 0))
    others = 3.0 ** (size - 1)
    expected = [rank == 0, 0, 0 if size > 1 else 5.0, 5 * others if rank == 0 else 0]
    numpy.testing.assert_allclose(x_bar, expected)
    numpy.testing.assert_allclose(first_bar, [0, 1, 0, 0] if rank == 0 else [1, 1, 1, 1] * 0 + [0] * 4)


@broken_in("Open MPI", "the heap is damaged")
@broken_in("Intel MPI", "Fetch_and_op leaves wrong locations")
@pytest.mark.parametrize("name", ["MINLOC", "MAXLOC"])
@pytest.mark.parametrize(
    "form, lock",
    [
        *((form, lock) for form in ("Accumulate", "Get_accumulate", "Fetch_and_op") for lock in (None, *LOCKS)),
        *((form, lock) for form in ("Raccumulate", "Rget_accumulate") for lock in LOCKS),
    ],
)
def test_locations(name, form, lock):
    """Pairs of a value and a location: the winner gets the adjoint, the lower location if values are equal."""
    pair = numpy.dtype([("value", "d"), ("location", "i4")], align=True)
    size, rank, op = WORLD.size, WORLD.rank, getattr(MPI, name)
    sign = 1 if name == "MAXLOC" else -1

    def pairs(values, locations):
        made = ampi.numpy.zeros(len(values), pair)
        made["value"], made["location"] = values, locations
        return made

    with ampi.Tape() as tape:
        x = tape.watch(sign * numpy.array([1.0 + rank, 1.0, 4.0])[: 1 if form == "Fetch_and_op" else 3])
        n = x.size
        memory = pairs(sign * numpy.array([0.5, 1.0, 9.0])[:n], 100)
        win = ampi.Win.Create(memory, 16, comm=COMM_WORLD)
        mine, got = pairs(x, size - rank), pairs(numpy.zeros(n), 0)
        given, spec = [mine, MPI.DOUBLE_INT], (0, n, MPI.DOUBLE_INT)
        there = (0, 0) if form == "Fetch_and_op" else (0, spec)
        fetches = form not in ("Accumulate", "Raccumulate")
        arguments = (given, [got, MPI.DOUBLE_INT], *there) if fetches else (given, *there)
        if lock is None:
            win.Fence()
            getattr(win, form)(*arguments, op)
            win.Fence()
        else:
            COMM_WORLD.Barrier()
            for turn in range(size):
                if turn == rank:
                    win.Lock(0, lock)
                    request = getattr(win, form)(*arguments, op)
                    if request is not None:
                        request.Wait()
                    win.Unlock(0)
                WORLD.Barrier()
        y = memory["value"] * 1.0
        z = got["value"] * 1.0
        win.Free()
    outputs, seed = [y], [numpy.ones(n) * (rank == 0)]
    if fetches:
        outputs, seed = [y, z], [*seed, numpy.full(n, 10.0**rank)]
    x_bar = tape.gradient(outputs, x, seed=seed)
    if rank == 0:
        assert ampi.value(memory["value"]).tolist() == (sign * numpy.array([size, 1.0, 9.0])[:n]).tolist()
        assert memory["location"].tolist() == [1, 1, 100][:n]
    if fetches:
        assert ampi.value(z).tolist()[:1] == [sign * max(0.5, rank)]
    fetched = 10.0 ** (rank + 1) * (fetches and rank + 1 < size)
    expected = [(rank == size - 1) + fetched, (rank == size - 1) + fetched, 0.0]
    assert x_bar.tolist() == expected[:n]


@broken_in("Open MPI", "the heap is damaged")
@broken_in("Intel MPI", "the second pair is garbage")
@pytest.mark.parametrize("epoch", [fence, post], ids=lambda epoch: epoch.__name__)
def test_pairs_are_fetched_and_replaced(epoch):
    pair = numpy.dtype([("value", "d"), ("location", "i4")], align=True)
    size, rank = WORLD.size, WORLD.rank
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1.0, 2.0]) + rank)
        memory, mine, got = (ampi.numpy.zeros(2, pair) for _ in range(3))
        memory["value"], memory["location"] = 3 * x, rank
        mine["value"], mine["location"] = x * x, 10 + rank
        win = ampi.Win.Create(memory, 1, comm=COMM_WORLD)
        spec = (0, 2, MPI.DOUBLE_INT)
        epoch(
            win,
            COMM_WORLD,
            lambda: win.Get_accumulate([mine, MPI.DOUBLE_INT], [got, MPI.DOUBLE_INT], 0, spec, MPI.REPLACE),
        )
        y, z = memory["value"] * 1.0, got["value"] * 1.0
        win.Free()
    values = ampi.value(x)
    last = numpy.arange(1.0, 3.0) + size - 1
    before = numpy.arange(1.0, 3.0) * 3 if rank == 0 else (values - 1) ** 2
    assert ampi.value(z).tolist() == before.tolist()
    assert got["location"].tolist() == [10 + rank - 1 if rank else 0] * 2
    assert ampi.value(y).tolist() == ((3 * values) if rank else last**2).tolist()
    assert memory["location"].tolist() == [rank if rank else 10 + size - 1] * 2
    x_bar = tape.gradient((y, z), x, seed=(numpy.ones(2), numpy.full(2, 10.0**rank)))
    weight = 10.0 ** (rank + 1) if rank + 1 < size else 1.0
    assert x_bar.tolist() == (2 * values * weight + 3).tolist()


@pytest.mark.mpi(min_size=4)
def test_handshakes_that_depend_on_one_another():
    """Ranks 0 and 1 both fetch from rank 2; rank 0 waits for rank 3 as well, which waits for rank 1."""
    rank, group = WORLD.rank, WORLD.Get_group()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(1, 2.0 + rank))
        win, memory = created(ampi.numpy, COMM_WORLD, 1, "d")
        memory[...] = x
        got, other = ampi.numpy.zeros(1), ampi.numpy.zeros(1)
        if rank == 0:
            win.Start(group.Incl([2, 3]))
            win.Get_accumulate(x, got, 2, op=MPI.PROD)
            win.Fetch_and_op(x, other, 3, op=MPI.REPLACE)
            win.Complete()
        elif rank == 1:
            win.Start(group.Incl([2]))
            win.Get_accumulate(x, got, 2, op=MPI.PROD)
            win.Complete()
            COMM_WORLD.Send(got, 3)
        elif rank == 2:
            win.Post(group.Incl([0, 1]))
            win.Wait()
        elif rank == 3:
            COMM_WORLD.Recv(got, 1)
            win.Post(group.Incl([0]))
            win.Wait()
        y = got + other + memory * 10
        win.Free()
    x_bar = WORLD.allgather(tape.gradient(y, x).tolist())
    found = WORLD.allgather(float(got[0]))
    if found[0] < found[1]:  # rank 0 was first
        assert found == [4, 8, 0, 8, *found[4:]]
        assert x_bar[:4] == [[8 + 140.0], [90.0], [65.0], [1.0]]
    else:
        assert found == [12, 4, 0, 4, *found[4:]]
        assert x_bar[:4] == [[140.0], [4 + 90.0], [65.0], [1.0]]
    group.Free()

"""Accesses to window memory by ranks that are ahead of others: accidental orders must not block the sweep.

MPI may let a collective wait for all ranks, but need not.  Here a rank has left a collective, and accesses the memory
of a rank that has not yet reached it, or memory that such a rank accesses later.
"""

import random as randomness
import time

import numpy
import pytest
from mpi4py import MPI

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.windows.precedence import Drawn, Moment, counter, in_order


@ampi.kernel
def hypot(a, b):
    for i in range(b.size):
        b[i] = (a[i] * a[i] + b[i] * b[i]) ** 0.5


def be_late(times=1):
    """Fall behind the others while a tape records, letting MPI serve their requests meanwhile."""
    end = time.monotonic() + (0.15 * times if ampi.tape.current() else 0.0)
    while time.monotonic() < end:
        COMM_WORLD.Iprobe()


# Collectives that all ranks but the root may leave at once; every rank returns a result.


def reduce_with(op):
    def program(np, comm, a):
        y = np.zeros(3)
        comm.Reduce(a, y, op(), 0)
        return y

    return program


def ireduce(np, comm, a):
    y = np.zeros(3)
    comm.Ireduce(a, y, MPI.PROD, 0).Wait()
    return y


def bcast(np, comm, a):
    y = a * 1
    comm.Bcast(y, comm.size - 1)
    return y


def gather(np, comm, a):
    y = np.zeros((comm.size, 3))
    comm.Gather(a, y, 0)
    return np.sum(y**2, axis=0)


def scan(np, comm, a):
    y = np.zeros(3)
    comm.Scan(a, y, MPI.PROD)
    return y


def objects(np, comm, a):
    came = comm.gather(a, 0)
    return a if came is None else np.sum(np.array([np.sum(c * c) for c in came])) * a


def persistent(np, comm, a):
    y = np.zeros(3)
    request = comm.Reduce_init(a, y, MPI.MAX, 0)
    request.Start()
    request.Wait()
    request.Free()
    return y


COLLECTIVES = {
    "Reduce SUM": reduce_with(lambda: MPI.SUM),
    "Reduce MAX": reduce_with(lambda: MPI.MAX),
    "Reduce PROD": reduce_with(lambda: MPI.PROD),
    "Reduce of ours": reduce_with(lambda: ampi.Op.Create(hypot, True)),
    "Ireduce": ireduce,
    "Reduce_init": persistent,
    "Bcast": bcast,
    "Gather": gather,
    "gather": objects,
    "Scan": scan,
}


def load(np, comm, win, rank, k):
    """Elements of a rank's memory, as loads."""
    memory = np.frombuffer(win.Shared_query(rank)[0], "d")
    return memory[k : k + 3] * 1


def get(np, comm, win, rank, k):
    """The same in a lock epoch."""
    found = np.zeros(3)
    win.Lock(rank, MPI.LOCK_SHARED)
    win.Get(found, rank, (k, 3))
    win.Unlock(rank)
    return found


def window(np, comm, x):
    win = ampi.MPI.Win.Allocate_shared(72, 8, comm=comm)
    memory = np.frombuffer(win.Shared_query(comm.rank)[0], "d")
    memory[0:3] = x * 2
    memory[3:6] = x * x
    memory[6:9] = 0
    win.Fence()
    return win, memory


def others_memory(np, comm, x, collective, access, late):
    """The last rank, ahead of the late one, accesses its memory and that of rank 0; then the late one does its work."""
    win, memory = window(np, comm, x)
    last = comm.size - 1
    if comm.rank == late:
        be_late()
        memory[6:9] = np.sin(memory[0:3])
        a = x + memory[6:9] + access(np, comm, win, (late + 1) % comm.size, 3)
    else:
        a = np.cos(x)
    y = collective(np, comm, a)
    if comm.rank == last:
        for rank in (late, 0):
            y = y * 1.5 + access(np, comm, win, rank, 0) * access(np, comm, win, rank, 3)
    win.Fence()
    y = y + memory[6:9] * memory[0:3]
    return win, y


def directional(program, comm, x, v, seed):
    """A directional derivative by high-order differences, without a tape."""

    def value(h):
        win, y = program(comm, ampi.numpy.array(x + h * v))
        found = comm.allreduce(float(numpy.sum(seed * numpy.asarray(ampi.value(y)))))
        win.Free()
        return found

    differences = [(value(h) - value(-h)) / (2 * h) for h in (2e-3, 1e-3)]
    return (4 * differences[1] - differences[0]) / 3


def check_gradient(program, comm):
    rank = comm.Get_rank()
    generator = numpy.random.default_rng(rank)
    x0, v, seed = generator.uniform(0.5, 1.5, (3, 3))
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        win, y = program(comm, x)
    gradient = tape.gradient(y, x, seed=seed)
    again = tape.gradient(y, x, seed=seed)
    win.Free()
    found = comm.allreduce(float(gradient @ v))
    assert gradient.tobytes() == again.tobytes()
    assert found == pytest.approx(directional(program, comm, x0, v, seed), rel=1e-7)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("access", [load, get])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_has_left_a_collective_accesses_memory_of_one_that_has_not_come_to_it(name, access):
    check_gradient(lambda comm, x: others_memory(ampi.numpy, comm, x, COLLECTIVES[name], access, 0), ampi.COMM_WORLD)


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("access", [load, get])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_two_ranks_access_the_memory_of_a_third_before_and_after_a_collective_the_other_way_round(name, access):
    check_gradient(lambda comm, x: others_memory(ampi.numpy, comm, x, COLLECTIVES[name], access, 1), ampi.COMM_WORLD)


def chain(np, comm, x, collective, access):
    """The last rank leaves a collective of all but rank 0, and accesses rank 0's memory; then rank 0 does, and that of
    rank 1, which then comes to the collective."""
    win, memory = window(np, comm, x)
    last = comm.size - 1
    some = comm.Split(min(comm.rank, 1), comm.rank)
    y = np.cos(x)
    if comm.rank == 1:
        be_late(2)
        y = y + np.sin(memory[0:3])  # by now it sees rank 0's access
    if comm.rank > 0:
        y = collective(np, some, y)
    if comm.rank == last:
        y = y * 1.5 + access(np, comm, win, 0, 0)
    elif comm.rank == 0:
        be_late(1)
        y = y + access(np, comm, win, 0, 3) * access(np, comm, win, 1, 3)
    win.Fence()
    some.Free()
    return win, y + memory[6:9] * memory[0:3]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("access", [load, get])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_that_an_access_came_after_a_collective_is_known_by_a_chain(name, access):
    check_gradient(lambda comm, x: chain(ampi.numpy, comm, x, COLLECTIVES[name], access), ampi.COMM_WORLD)


def put(win, y, k):
    win.Put(y, 0, (k, 2))


def accumulate(win, y, k):
    win.Accumulate(y, 0, (k, 2))


def fetch(win, y, k):
    found = ampi.numpy.zeros(2)
    win.Get(found, 0, (k, 2))
    return found


CONTRADICTIONS = [(put, fetch, 1), (accumulate, fetch, 1), (put, accumulate, 1), (fetch, put, 1)]
HARMLESS = [(put, fetch, 3), (fetch, fetch, 1), (accumulate, accumulate, 1), (put, put, 4), (accumulate, put, 3)]


def against_a_collective(np, comm, x, first, second, k):
    """The last rank has left a collective and accesses rank 0's memory; rank 0 accesses it before the collective."""
    memory = np.zeros(6)
    win = ampi.MPI.Win.Create(memory, 8, comm=comm)
    memory[:3] = x * x
    win.Fence()
    y = np.zeros(3)
    if comm.rank == 0:
        be_late(2)
        win.Lock(0)
        found = second(win, 3.0 * x[:2], k)
        win.Unlock(0)
        comm.Reduce(x * x, y, MPI.SUM, 0)
    else:
        comm.Reduce(x * x, y, MPI.SUM, 0)
        found = None
        if comm.rank == comm.size - 1:
            win.Lock(0)
            found = first(win, x[1:] * x[:2], 1)
            win.Unlock(0)
    win.Fence()
    came = 0.0 if found is None else np.sum(found * found)
    return win, (y + memory[:3] * memory[3:]) * x + came


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("first", "second", "k"), CONTRADICTIONS)
def test_accesses_that_contradict_a_collective_are_refused(first, second, k):
    comm = ampi.COMM_WORLD.Dup()  # it cannot be swept afterwards
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(1.0, 4.0))
        win, y = against_a_collective(ampi.numpy, comm, x, first, second, k)
    with pytest.raises(ampi.CommunicationError, match=r"rank 0: two ranks accessed .* before the call, or both"):
        tape.gradient(y, x, seed=numpy.ones(3))
    win.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("first", "second", "k"), HARMLESS)
def test_where_the_order_does_not_matter_they_are_not(first, second, k):
    check_gradient(lambda comm, x: against_a_collective(ampi.numpy, comm, x, first, second, k), ampi.COMM_WORLD)


def started_epoch(comm, x):
    """An epoch of Start begins before that of Post does, and another window is used meanwhile."""
    np, rank = ampi.numpy, comm.Get_rank()
    win, memory = window(np, comm, x)
    other = ampi.MPI.Win.Allocate(24, 8, comm=comm)
    mine = np.frombuffer(other.tomemory(), "d")
    mine[...] = 0.0
    comm.Barrier()
    y = x * 1
    group = comm.Get_group()
    if rank == 1:
        partner = group.Incl([0])
        other.Start(partner)
        y = load(np, comm, win, 0, 0) * x
        other.Put(y, 0)
        other.Complete()
    elif rank == 0:
        be_late()
        memory[6:9] = np.sin(memory[0:3])
        partner = group.Incl([1])
        other.Post(partner)
        other.Wait()
        y = mine * memory[6:9]
    win.Fence()
    other.Free()
    return win, y * 2


@pytest.mark.mpi(min_size=2)
def test_an_epoch_of_start_begins_before_that_of_post():
    check_gradient(started_epoch, ampi.COMM_WORLD)


@pytest.mark.mpi
@pytest.mark.parametrize("trial", range(40))
def test_tickets_in_any_order_are_ordered_by_collectives(trial):
    """Ranks run at any pace, and no collective synchronises them."""
    draw = randomness.Random(trial)
    ranks = draw.randint(2, 4)
    calls = draw.randint(1, 5)
    events = [[*range(calls), *(draw.uniform(-1, calls) for _ in range(draw.randint(0, 6)))] for _ in range(ranks)]
    programs = [sorted(those) for those in events]
    part = frozenset(["world"])
    places, drawn, counts, seen = [0] * ranks, [], [0] * ranks, []
    while any(place < len(program) for place, program in zip(places, programs, strict=True)):
        rank = draw.choice([r for r in range(ranks) if places[r] < len(programs[r])])
        event = programs[rank][places[rank]]
        places[rank] += 1
        if isinstance(event, int):
            counts[rank] += 1
            if rank == 0:
                seen.append(len(drawn))  # by the target, before it began the collective
        else:
            moment = Moment({"world": counts[rank]}, {"world": counts[rank]})
            drawn.append(Drawn(len(drawn) + 1, moment, part, moment.ended))
    order = in_order(draw.sample(drawn, len(drawn)))
    assert order == sorted(drawn, key=lambda d: (d.moment.ended["world"], d.ticket))
    # The target's tape is its collectives, as records 0, 1, ...; what is left to precede each came before it elsewhere.
    count = counter(order, lambda ended: ended["world"] - 1)
    for record, ticket in enumerate(seen):
        expected = [k for k, d in enumerate(order, 1) if d.ticket <= ticket and d.moment.ended["world"] <= record]
        assert count(ticket, record) == max(expected, default=0)

"""Windows and several tapes: tapes that use them or do not, tapes on one rank, loops, sweeps in any order.

Random programs, the same on all ranks: tapes are recorded one after another, and then swept in another order, or while
they are open, or never. Results are linear in squares of the inputs, so that the derivatives are known.
"""

import time

import numpy
import pytest
from patience import patience

import ampi
import ampi.numpy
from ampi import MPI

pytestmark = pytest.mark.mpi(min_size=2)

INSIDE = ["nothing", "local", "local", "loop", "own loop"]
"""What inner tapes do: they must not use windows of an outer tape."""
KINDS = ["lock", "lock", "all", "fence", "start", "nothing", "local", "local", "loop", "own loop"]


def weight(origin, target):
    return 1.0 + 0.25 * origin + 0.5 * target


def draw(number, size):
    """For each random tape its kind, the puts and their window, and when it is swept; and the order of sweeps."""
    generator = numpy.random.default_rng([number, size])
    tapes = []
    for _ in range(6):
        puts = [tuple(map(int, generator.choice(size, 2, replace=False))) for _ in range(generator.integers(1, 3))]
        when = ["once", "twice", "never", "while open"][generator.choice(4, p=[0.5, 0.15, 0.15, 0.2])]
        kind = KINDS[generator.integers(len(KINDS))]
        inner = INSIDE[generator.integers(len(INSIDE))] if generator.random() < 0.4 and kind != "local" else None
        tapes.append((kind, inner, sorted(set(puts)), int(generator.integers(2)), when))
    return tapes, [int(k) for k in generator.permutation(len(tapes))]


def put(win, y, kind, puts):
    """Put the values of origins into their targets, each at its own offset."""
    rank = win.group.rank
    targets = [target for origin, target in puts if origin == rank]
    origins = [origin for origin, target in puts if target == rank]
    if kind == "fence":
        win.Fence()
    elif kind == "all":
        win.Lock_all()
    elif kind == "start":
        group = win.group
        exposed, accessed = group.Incl(origins), group.Incl(targets)
        win.Post(exposed)
        win.Start(accessed)
    for target in targets:
        if kind == "lock":
            win.Lock(target, MPI.LOCK_SHARED)
        win.Put(y, target, 2 * rank)
        if kind == "lock":
            win.Unlock(target)
    if kind == "fence":
        win.Fence()
    elif kind == "all":
        win.Unlock_all()
    elif kind == "start":
        win.Complete()
        win.Wait()


def objective(comm, x, mem, puts):
    """A weighted sum of the received values, and of the rank's own ones."""
    z = 0.5 * ampi.numpy.sum(x)
    for origin, target in puts:
        if target == comm.rank:
            z = z + weight(origin, target) * ampi.numpy.sum(mem[2 * origin : 2 * origin + 2])
    return z


def expected(comm, x, puts):
    return 0.5 + sum(2 * x * weight(origin, target) for origin, target in puts if origin == comm.rank)


def local(x0):
    """Check a gradient on one rank."""
    numpy.testing.assert_allclose(ampi.grad(lambda x: ampi.numpy.sum(x**3))(x0), 3 * x0**2)


def recorded(comm, windows, kind, inner, puts, which, when, k):
    """A tape, its independent, its dependent and the derivative; None if this rank has none."""
    win, mem = windows[which]
    x0 = numpy.array([0.3, -0.2]) * (1 + comm.rank) + 0.1 * k
    if kind == "local":
        if comm.rank == puts[0][0]:
            local(x0)
        return None
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        if when == "while open":
            numpy.testing.assert_allclose(tape.gradient(ampi.numpy.sum(x * x), x), 2 * x0)
        if inner is not None:
            swept(recorded(comm, windows, inner, None, puts, 1 - which, "once", k), "an inner tape")
        if kind == "nothing":
            return tape, x, 0.5 * ampi.numpy.sum(x), numpy.full(2, 0.5)
        if kind == "loop":
            u = ampi.timeloop(lambda u: 1.5 * u, x * 1.0, 4, checkpoints=2)
            return tape, x, ampi.numpy.sum(u), numpy.full(2, 1.5**4)
        if kind == "own loop":
            u = ampi.timeloop(lambda u: in_own_window(comm, u), x * 1.0, 4, checkpoints=2)
            return tape, x, ampi.numpy.sum(u), numpy.full(2, 0.5**4)
        put(win, x * x, kind, puts)
        comm.Barrier()
        return tape, x, objective(comm, x, mem, puts), expected(comm, x0, puts)


def swept(made, what, times=1):
    """Check the gradient of a tape, if this rank has one."""
    if made is not None:
        tape, x, z, x_bar = made
        for _ in range(times):
            numpy.testing.assert_allclose(tape.gradient(z, x), x_bar, 1e-12, err_msg=what)


def in_own_window(comm, u):
    """Half of the previous rank's value, by a window made here."""
    mem = ampi.numpy.zeros(2)
    win = MPI.Win.Create(mem, 8, comm=comm)
    after = (comm.rank + 1) % comm.size
    win.Lock(after)
    win.Put(u, after)
    win.Unlock(after)
    comm.Barrier()
    win.Free()
    return 0.5 * mem


@pytest.mark.parametrize("number", range(12))
def test_drawn(number, monkeypatch):
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(20)))
    comm = ampi.COMM_WORLD.Dup()
    memories = [ampi.numpy.zeros(2 * comm.size) for _ in range(2)]
    windows = [(MPI.Win.Create(mem, 8, comm=comm), mem) for mem in memories]
    tapes, order = draw(number, comm.size)
    swept(recorded(comm, windows, "nothing", None, [], 0, "once", 0), "the first tape")
    made = []
    for k, (kind, inner, puts, which, when) in enumerate(tapes):
        made.append(recorded(comm, windows, kind, inner, puts, which, when, k))
        if kind != "local":  # then the others go on
            comm.Barrier()
    for k in order:
        when = tapes[k][-1]
        if when != "never":
            swept(made[k], f"tape {k}: {tapes[k]}", 2 if when == "twice" else 1)
    for win, _ in windows:
        win.Free()
    comm.Free()


def quiet_or_put(comm, win, mem, puts, kind, k):
    """A tape that puts into the window or does not use it; opened on the same line in both cases."""
    x0 = numpy.array([0.3, -0.2]) * (1 + comm.rank) + 0.1 * k
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        if kind == "nothing":
            return tape, x, 0.5 * ampi.numpy.sum(x), numpy.full(2, 0.5)
        put(win, x * x, kind, puts)
        comm.Barrier()
        return tape, x, objective(comm, x, mem, puts), expected(comm, x0, puts)


@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize("own", [0, 1, 2])
def test_a_rank_that_is_ahead(places, own, monkeypatch):
    """It alone sweeps a tape that does not use the window, and puts on the next one before others reach the sweep of
    the first; before, it had its own tapes, opened on the same line by another caller."""
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(20)))
    comm = ampi.COMM_WORLD.Dup()
    mem = ampi.numpy.zeros(2 * comm.size)
    win = MPI.Win.Create(mem, 8, comm=comm)
    puts = [(0, comm.size - 1)]
    for k in range(own if comm.rank == 0 else 0):
        swept(quiet_or_put(comm, win, mem, puts, "nothing", k), "a tape of its own")
    for k in range(3):
        made = []
        if places == 2:
            made.append(quiet_or_put(comm, win, mem, puts, "nothing", k))
        for kind in ["lock"] if places == 2 else ["nothing", "lock"]:
            if kind == "lock":
                time.sleep(0.1 * (comm.rank > 0))
                swept(made[0], "the tape without puts")
            made.append(quiet_or_put(comm, win, mem, puts, kind, k))
        swept(made[1], "the tape with puts")
    win.Free()
    comm.Free()


def test_a_window_of_an_outer_tape_is_not_used_inside_of_an_inner_one():
    comm = ampi.COMM_WORLD.Dup()
    mem = ampi.numpy.zeros(2)
    win = MPI.Win.Create(mem, 8, comm=comm)
    after = (comm.rank + 1) % comm.size
    for data in (ampi.numpy.ones(2), numpy.ones(2)):
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(2) + comm.rank)
            win.Lock(after)
            with ampi.Tape() as inner:
                inner.watch(data)
                for operation in (win.Put, win.Get, win.Accumulate):
                    with pytest.raises(ampi.ActivityError, match="make the window inside the inner tape"):
                        operation(data, after)
            with pytest.raises(ampi.ActivityError, match="make it inside the function"):
                ampi.jvp(lambda u: win.Put(u, after), (data,), (numpy.ones(2),))
            win.Put(x * x, after)
            win.Unlock(after)
            comm.Barrier()
            z = ampi.numpy.sum(mem)
        numpy.testing.assert_allclose(tape.gradient(z, x), 2.0 * (1 + comm.rank) * numpy.ones(2))
    win.Free()
    comm.Free()


@pytest.mark.mpi(min_size=3)
def test_sweeps_in_another_order_are_refused(monkeypatch):
    """One rank sweeps two tapes with window accesses of other ranks in the wrong order."""
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(20)))
    comm = ampi.COMM_WORLD.Dup()
    mem = ampi.numpy.zeros(2 * comm.size)
    win = MPI.Win.Create(mem, 8, comm=comm)
    puts = [(1, 0)]
    tapes = [recorded(comm, [(win, mem)], "lock", None, puts, 0, "once", k) for k in range(2)]
    with pytest.raises(ampi.CommunicationError):
        for tape, x, z, _ in tapes[:: -1 if comm.rank == 1 else 1]:
            tape.gradient(z, x)
    win.Free()
    comm.Free()

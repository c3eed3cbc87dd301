"""Failures of one rank are reported on every rank that can tell, with the operation and its source line."""

import contextlib
import gc
import os
import subprocess
import time

import numpy
import pytest
from mpi4py import MPI
from patience import patience
from programs import WORLD

import ampi
import ampi.numpy
from ampi.mpi.waiting import notices, waiting

pytestmark = pytest.mark.mpi(min_size=2)

ONES = numpy.ones(2)
LINE = r"test_nothing_hangs.py:\d+"


@pytest.fixture
def comm():
    """A communicator that a test may leave broken."""
    return ampi.COMM_WORLD.Dup()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("AMPI_TIMEOUT", "2")


@pytest.fixture
def at_once(monkeypatch):
    """Fail the test if a rank waits until its time limit."""
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(60)))
    start = time.monotonic()
    yield
    assert time.monotonic() - start < patience(40)


def ring(comm, x):
    y = ampi.numpy.zeros(2)
    comm.Sendrecv(x * x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size)
    return y


def collective(comm, x):
    y = ampi.numpy.zeros(2)
    comm.Allreduce(x * x, y)
    return y


def window(comm, x):
    memory = ampi.numpy.zeros(2)
    win = ampi.Win.Create(memory, 8, comm=comm)
    win.Fence()
    win.Put(x * x, (comm.rank + 1) % comm.size)
    win.Fence()
    y = memory * 2
    win.Free()
    return y


PROGRAMS = [ring, collective, window]


@contextlib.contextmanager
def stopped(comm, program, match):
    """The sweep raises an error on ranks that wait for rank 1, and may do so on those that wait for its partners."""
    try:
        with pytest.raises(ampi.CommunicationError, match=match):
            yield
    except pytest.fail.Exception:
        if program is not ring or comm.rank in (0, 2):
            raise


@pytest.mark.parametrize("text", ["soon", "", "-1", "nan", "0"])
def test_an_invalid_time_is_an_error_that_names_the_variable(monkeypatch, text):
    monkeypatch.setenv("AMPI_TIMEOUT", text)
    with pytest.raises(ampi.CommunicationError, match="AMPI_TIMEOUT"):
        waiting.timeout()


@pytest.mark.parametrize("program", PROGRAMS)
def test_rank_that_skips_the_sweep(comm, impatient, program):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = program(comm, x)
    if comm.rank == 1:
        return
    with stopped(comm, program, LINE):
        tape.gradient(y, x, seed=ONES)


def test_a_rank_that_is_suspended_while_it_waits_has_not_waited(comm, monkeypatch):
    """As in a suspended job, or on a laptop that sleeps."""
    if comm.size > 2:
        pytest.skip("the same on two ranks")
    limit = patience(1.5)
    monkeypatch.setenv("AMPI_TIMEOUT", str(limit))
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ring(comm, x)
    comm.Barrier()
    if comm.rank == 1:
        time.sleep(limit + 2)
        tape.gradient(y, x, seed=ONES)
        return
    me = os.getpid()
    other = subprocess.Popen(["sh", "-c", f"sleep 0.5; kill -STOP {me}; sleep {limit + 1}; kill -CONT {me}"])
    start = time.monotonic()
    assert tape.gradient(y, x, seed=ONES) is not None
    assert time.monotonic() - start > limit
    assert other.wait() == 0


@pytest.mark.parametrize("program", PROGRAMS)
def test_seed_that_does_not_fit_on_one_rank(comm, at_once, program):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = program(comm, x)
    if comm.rank == 1:
        with pytest.raises(ampi.TapeError, match="the seed has shape"):
            tape.gradient(y, x, seed=numpy.ones(3))
    else:
        with stopped(comm, program, r"rank 1 of the world stopped .*the seed has shape"):
            tape.gradient(y, x, seed=ONES)


@pytest.mark.parametrize("program", PROGRAMS)
def test_seed_that_fits_on_no_rank(comm, program):
    """No rank has waited for another: the tape can be swept with another seed, and again."""
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = program(comm, x)
    for _ in range(2):
        with pytest.raises(ampi.TapeError, match="the seed has shape"):
            tape.gradient(y, x, seed=numpy.ones(3))
        x_bar = tape.gradient(y, x, seed=ONES)
    assert (x_bar == {"ring": 2, "collective": 2 * comm.size, "window": 4}[program.__name__]).all()


@pytest.mark.mpi(min_size=3)
def test_next_sweep_is_refused_before_this_one_has_ended(comm, at_once):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ring(comm, x)
    tape.gradient(y, x, seed=ONES)  # from now on only neighbors wait for each other
    if comm.rank == 1:
        time.sleep(0.5)  # meanwhile rank 0 waits for it, and the last rank is done
    x_bar = tape.gradient(y, x, seed=ONES)
    with pytest.raises(ampi.TapeError, match="the seed has shape"):
        tape.gradient(y, x, seed=numpy.ones(3))
    assert (x_bar == 2).all()


def test_pullback_of_another_structure_on_one_rank(comm, at_once):
    _, pullback = ampi.vjp(lambda x: collective(comm, x), ONES)
    if comm.rank == 1:
        with pytest.raises(ampi.TapeError, match="y_bar"):
            pullback((ONES, ONES))
    else:
        with pytest.raises(ampi.CommunicationError, match=r"rank 1 of the world stopped .*y_bar"):
            pullback(ONES)


@pytest.mark.parametrize("objective", ["sum", "replicated"])
def test_objective_that_one_rank_does_not_return(comm, at_once, objective):
    def program(x):
        y = ampi.numpy.sum(collective(comm, x))
        return "nothing" if comm.rank == 1 else y

    with pytest.raises((ampi.TapeError, ampi.CommunicationError), match=r"rank 1|must return one real number"):
        ampi.grad(program, objective=objective, comm=comm)(ONES)


def test_send_that_is_never_completed_and_not_received(comm, impatient):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        if comm.rank == 0:
            request = comm.Isend(x * x, 1, 9)
    y = numpy.zeros(2)
    if comm.rank == 0:
        with pytest.raises(ampi.CommunicationError, match=rf"rank 1.*Isend to rank 1 with tag 9 .*{LINE}"):
            tape.gradient(None, x)
        request.Wait()
    elif comm.rank == 1:
        comm.Recv(y, 0, 9)


def test_window_freed_too_early(comm, at_once):
    """Its memory lives as long as the tape."""
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = window(comm, x)
    assert (tape.gradient(y, x, seed=ONES) == 4).all()


def test_buffer_that_goes_away_while_a_request_is_open(comm, at_once):
    """The request and the tape keep it."""
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        requests = [comm.Irecv(y, (comm.rank - 1) % comm.size), comm.Isend(x * x, (comm.rank + 1) % comm.size)]
        z = y * 1
        del y
        MPI.Request.Waitall(requests)
    tape.gradient(z, x, seed=ONES)


def test_buffer_cannot_be_resized(comm):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = x * x
        request = comm.Isend(y, comm.rank)
        with pytest.raises(ampi.ActivityError, match="resize"):
            y.resize(100)
        comm.Recv(ampi.numpy.zeros(2), comm.rank)
        request.Wait()
    tape.gradient(y, x, seed=ONES)


def allreduced(comm, x):
    y = ampi.numpy.zeros(2)
    comm.Allreduce(x, y)
    return y


def started(comm, x):
    y = ampi.numpy.zeros(2)
    comm.Iallreduce(x, y).Wait()
    return y


COLLECTIVES = {
    "Allreduce": allreduced,
    "Iallreduce": started,
    "bcast": lambda comm, x: comm.bcast(x),
    "allgather": lambda comm, x: comm.allgather(x)[0],
    "alltoall": lambda comm, x: comm.alltoall([x] * comm.size)[0],
    "reduce": lambda comm, x: comm.reduce(x) if comm.rank == 0 else (comm.reduce(x), x)[1],
    "allreduce": lambda comm, x: comm.allreduce(x),
    "scan": lambda comm, x: comm.scan(x),
    "exscan": lambda comm, x: (x, comm.exscan(x))[comm.rank > 0],
}


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("call", ["first", "second", "both"])
def test_passive_on_one_rank_only(comm, at_once, call, name):
    """Even if the numbers of calls agree."""
    collective = COLLECTIVES[name]
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        for position in ("first", "second"):
            other = {"first": "second", "second": "first", "both": None}[call]
            if position == call or call == "both" if comm.rank == 0 else position == other:
                with ampi.passive():
                    collective(comm, x)
            else:
                collective(comm, x)
    with pytest.raises(ampi.CommunicationError, match=rf"inside ampi.passive\(\).*|{LINE}"):
        tape.gradient(x, x, seed=ONES)


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_passive_on_all_ranks(comm, at_once, name):
    collective = COLLECTIVES[name]
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        with ampi.passive():
            y = collective(comm, x)
        y = y * x + collective(comm, ONES)
        with ampi.passive():
            y = y * collective(comm, x)
    assert tape.gradient(y, x, seed=ONES).shape == (2,)


def test_message_received_in_passive_only_drops_its_derivative(comm, at_once):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        request = comm.Isend(x, (comm.rank + 1) % comm.size)
        with ampi.passive():
            comm.Recv(y, (comm.rank - 1) % comm.size)
        request.Wait()
        y = y + x
    assert (tape.gradient(y, x, seed=ONES) == 1).all()


@pytest.mark.parametrize("program", PROGRAMS)
def test_exception_in_the_sweep_of_one_rank(comm, at_once, program):
    def fail(sweep):
        if comm.rank == 1:
            raise ZeroDivisionError("the reason")

    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = program(comm, x) * 2
        tape.append(fail)
    if program is ring and comm.rank > 1:  # its adjoint comes from a rank that goes on, but the notice may be quicker
        try:
            tape.gradient(y, x, seed=ONES)
        except ampi.CommunicationError as error:
            assert "the reason" in str(error)
        return
    with pytest.raises(ZeroDivisionError if comm.rank == 1 else ampi.CommunicationError, match="the reason"):
        tape.gradient(y, x, seed=ONES)


@pytest.mark.skipif(
    MPI.get_vendor()[0] == "Intel MPI", reason="it crashes in a later Rget where communicators wait for all ranks"
)
@pytest.mark.mpi(min_size=3)
def test_ranks_that_leave_a_communicator_before_another_sweeps(impatient):
    """Its notices must not reach the others' new communicators, which get the same context."""
    part = WORLD.Split(WORLD.rank == 0)
    comm = ampi.COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        comm.Allreduce(x, y)
        comm.Sendrecv_replace(y, (comm.rank + 1) % comm.size, 0, (comm.rank - 1) % comm.size)
    comm.Free()
    if WORLD.rank:
        del tape, comm
        gc.collect()
        ampi.COMM_SELF.Dup().Free()
    WORLD.Barrier()
    if WORLD.rank == 0:
        with pytest.raises(ampi.CommunicationError, match="no progress"):
            tape.gradient(y, x, seed=ONES)
    WORLD.Barrier()
    if WORLD.rank:
        for new in [part.Dup() for _ in range(8)]:
            v = numpy.zeros(1)
            for tag in range(4):
                new.Sendrecv(ONES[:1], (new.rank + 1) % new.size, tag, v, (new.rank - 1) % new.size, tag)
                assert v == 1
            new.Free()
    part.Free()


def test_messages_of_a_sweep_that_took_place_on_one_rank_only(impatient):
    """They stay pending for ever, and MPI gives the context of their communicator to a new one."""
    first = WORLD.rank < WORLD.size // 2
    part = ampi.COMM_WORLD.Split(first)
    leaders = (0, WORLD, WORLD.size // 2 if first else 0)
    before = MPI.Intracomm(part).Create_intercomm(*leaders)  # the new one gets its context, its reverse side the other
    comm = ampi.COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        for _ in range(3):
            comm.Allreduce(x, y)
            comm.Sendrecv_replace(y, (comm.rank + 1) % comm.size, 0, (comm.rank - 1) % comm.size)
    if comm.rank == 0:
        with pytest.raises(ampi.CommunicationError, match="no progress"):
            tape.gradient(y, x, seed=ONES)
    WORLD.Barrier()
    comm.Free()
    del tape, x, y, comm
    gc.collect()
    ampi.COMM_SELF.Dup().Free()
    WORLD.Barrier()
    before.Free()
    inters = [part.Create_intercomm(*leaders) for _ in range(3)]
    for inter in inters:
        with ampi.Tape() as tape:
            x = tape.watch(ONES)
            y, z = ampi.numpy.zeros(2), ampi.numpy.zeros(2)
            inter.Allreduce(x * x, y)
            if inter.rank == 0:
                inter.Sendrecv(x, 0, 0, z, 0, 0)
        seeds = ONES, ONES * (inter.rank == 0)
        expected = 2 * inter.Get_remote_size() + (inter.rank == 0)
        assert (tape.gradient((y, z), x, seed=seeds) == expected).all()
        inter.Free()
    part.Free()


def split_world():
    first = WORLD.rank < WORLD.size // 2
    part = ampi.COMM_WORLD.Split(first)
    return part, part.Create_intercomm(0, WORLD, WORLD.size // 2 if first else 0), not first


STOPPING = ["Allreduce", "Bcast", "Scatter", "Reduce", "Gather", "bcast", "scatter", "gather", "Ibcast", "fence"]


def communicate(comm, operation, x, root):
    """A collective in which all ranks depend on one rank, or on all."""
    y = ampi.numpy.zeros(x.shape)
    if operation == "Allreduce":
        comm.Allreduce(x, y)
    elif operation == "Bcast":
        comm.Bcast(x, root)
    elif operation == "Ibcast":
        comm.Ibcast(x, root).Wait()
    elif operation == "Scatter":
        comm.Scatter(x, y[:1], root)
    elif operation == "Gather":
        comm.Gather(x[:1], y, root)
    elif operation == "Reduce":
        comm.Reduce(x, y, root=root)
    elif operation == "bcast":
        comm.bcast(x, root)
    elif operation == "scatter":
        comm.scatter([x] * comm.size, root)
    elif operation == "gather":
        comm.gather(x, root)
    else:
        win = ampi.Win.Create(y, 8, comm=comm)
        win.Fence()
        win.Put(x, (comm.rank + 1) % comm.size)
        win.Fence()
        win.Free()


@pytest.mark.parametrize("failing", ["first", "last", "all"])
@pytest.mark.parametrize("operation", STOPPING)
def test_few_are_notified_directly_and_all_learn_of_it(comm, at_once, monkeypatch, operation, failing):
    """Only the root for which all others wait, or which waits for them, notifies every rank."""
    told = []

    def tell(reverse, ranks, error):
        told.append(ranks)
        spoken(reverse, ranks, error)

    spoken = notices.tell
    monkeypatch.setattr(notices, "tell", tell)
    for root in {0, comm.size // 2}:
        other = comm.Dup()
        fails = {"first": comm.rank == 0, "last": comm.rank == comm.size - 1, "all": True}[failing]
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(comm.size))
            for _ in range(2):
                communicate(other, operation, x * 1.0, root)
            if fails:
                tape.append(lambda sweep: 1 / 0)
        told.clear()
        if fails:
            with pytest.raises((ZeroDivisionError, ampi.CommunicationError), match=r"ZeroDivision|division by zero"):
                tape.gradient(None, x)
        else:
            with contextlib.suppress(ampi.CommunicationError):  # it may be done before the error
                tape.gradient(None, x)
        most = comm.size - 1 if comm.rank == root else 2 * comm.size.bit_length() + 1
        assert all(len(ranks) <= most for ranks in told), told
        WORLD.Barrier()


@pytest.mark.parametrize("operation", ["Allreduce", "Bcast", "Reduce", "bcast"])
def test_few_are_notified_in_the_other_group(at_once, operation):
    part, inter, second = split_world()
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        if operation == "Allreduce":
            inter.Allreduce(x, y)
        else:
            root = 0 if second else MPI.ROOT if inter.rank == 0 else MPI.PROC_NULL
            arguments = (x, y) if operation == "Reduce" else (x * 1.0,)
            getattr(inter, operation)(*arguments, root=root)
        if WORLD.rank == WORLD.size - 1:
            tape.append(lambda sweep: 1 / 0)
    with contextlib.suppress(ampi.CommunicationError, ZeroDivisionError):
        tape.gradient(None, x)
    WORLD.Barrier()
    inter.Free()
    part.Free()


@pytest.mark.parametrize("size", [1, 2, 3, 5, 8, 13, 64, 100, 1000])
def test_notices_reach_all_in_few_steps(size):
    """Notices need as many steps as the number of ranks has binary digits; each rank notifies few others."""
    steps = size.bit_length()
    reached = {size // 2}
    for _ in range(steps):
        reached = reached.union(*(notices.neighbours(rank, size) for rank in reached))
    assert reached == set(range(size))
    assert all(len(notices.neighbours(rank, size)) <= 2 * steps for rank in range(size))


@pytest.mark.parametrize("others", [1, 2, 7, 64])
@pytest.mark.parametrize("size", [1, 3, 8, 100])
def test_notices_reach_both_groups_in_few_steps(size, others):
    here, there = {size // 2}, set()
    for _ in range(1 + max(size, others).bit_length()):
        there = there.union(*(notices.across(rank, size, others) for rank in here))
        here = here.union(*(notices.across(rank, others, size) for rank in there))
    assert (here, there) == (set(range(size)), set(range(others)))
    for rank in range(size):
        assert len(notices.across(rank, size, others)) <= 2 + 2 * others.bit_length() + others // size

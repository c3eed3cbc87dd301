"""Threads with MPI_THREAD_MULTIPLE, each with its own communicator and tape, in any order."""

import contextlib
import random
import threading
import time

import numpy
import pytest
from mpi4py import MPI
from patience import patience
from programs import WORLD

import ampi
import ampi.numpy as np

pytestmark = [
    pytest.mark.mpi(min_size=1),
    pytest.mark.skipif(MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="this MPI gives no MPI_THREAD_MULTIPLE"),
]

SIZE = 3  # elements of a rank's state


@pytest.fixture(autouse=True)
def limit(monkeypatch):
    """Let threads that hang end before the test's own time limit."""
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(40)))


# ------------------------------------------------------------------------- programs, and what they are compared with


def steps_of(seed):
    """A random program: steps that all ranks take, each with a coefficient."""
    draw = random.Random(seed)
    kinds = ("local", "ring", "exchange", "sum", "object", "overwrite", "broadcast")
    return [(draw.choice(kinds), draw.uniform(0.2, 0.9)) for _ in range(draw.randint(3, 8))]


def serially(steps, states):
    """The program of all ranks at once, in NumPy."""
    ranks = len(states)
    for kind, a in steps:
        total = sum(states)
        if kind in ("ring", "exchange", "object"):
            states = [numpy.sin(s) + a * states[(r - 1) % ranks] * s for r, s in enumerate(states)]
        elif kind == "sum":
            states = [s + a * total * s for s in states]
        elif kind == "broadcast":
            states = [s + a * states[0] ** 2 for s in states]
        elif kind == "overwrite":
            states = [s * s * a for s in states]
        else:
            states = [numpy.cos(a * s) for s in states]
    return states


def complex_step(steps, starts, rank):
    """Derivative of the sum of all ranks' states with respect to one rank's start."""
    found = numpy.empty(SIZE)
    for k in range(SIZE):
        moved = [start.astype(complex) for start in starts]
        moved[rank][k] += 1e-30j
        found[k] = sum(s.sum() for s in serially(steps, moved)).imag / 1e-30
    return found


def run(comm, steps, x, pause):
    """The program of one rank, with MPI."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    state = x.copy()
    for number, (kind, a) in enumerate(steps):
        pause()
        came = np.empty(SIZE)
        if kind == "ring":
            comm.Sendrecv(state, after, number, came, before, number)
        elif kind == "exchange":
            requests = [comm.Irecv(came, before, number), comm.Isend(state, after, number)]
            pause()
            MPI.Request.Waitall(requests)
        elif kind == "object":
            going = comm.isend({"state": state}, after, number)
            came = comm.recv(source=before, tag=number)["state"]
            going.wait()
        elif kind == "sum":
            comm.Allreduce(state, came)
        elif kind == "broadcast":
            came[:] = state
            comm.Bcast(came, 0)
        if kind in ("ring", "exchange", "object"):
            state = np.sin(state) + a * came * state
        elif kind == "sum":
            state = state + a * came * state
        elif kind == "broadcast":
            state = state + a * came**2
        elif kind == "overwrite":
            came[:] = state * state
            state[:] = came * a
        else:
            state = np.cos(a * state)
    return state


def starts_of(seed, ranks):
    draw = numpy.random.default_rng(seed)
    return [draw.uniform(0.3, 0.8, SIZE) for _ in range(ranks)]


def jitter(*seed):
    """Pauses whose lengths differ between ranks, threads and calls."""
    draw = random.Random(repr(seed))
    return lambda: time.sleep(draw.choice((0, 0, 0.0005, 0.003)))


def in_threads(*functions):
    """Run each function in its own thread; returns what they raised, or None."""
    errors = [None] * len(functions)

    def guarded(k):
        try:
            functions[k]()
        except BaseException as error:
            errors[k] = error

    threads = [threading.Thread(target=guarded, args=(k,), name=f"worker {k}") for k in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(patience(90))
        assert not thread.is_alive()
    return errors


def raise_first(errors):
    for error in errors:
        if error is not None:
            raise error


@contextlib.contextmanager
def duplicates(n):
    comms = [ampi.COMM_WORLD.Dup() for _ in range(n)]
    yield comms
    for comm in comms:
        comm.Free()


# ------------------------------------------------------------------------------------------------ tapes of threads


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("seed", range(8))
def test_each_thread_records_and_sweeps_its_own_tape(seed, count):
    programs = [steps_of((seed, k).__repr__()) for k in range(count)]
    found = [None] * count
    with duplicates(count) as comms:

        def worker(k):
            pause = jitter(seed, k, WORLD.rank)
            pause()
            with ampi.Tape() as tape:
                x = tape.watch(starts_of(seed + k, WORLD.size)[WORLD.rank])
                y = np.sum(run(comms[k], programs[k], x, pause))
            pause()
            found[k] = [tape.gradient(y, x, seed=s) for s in (1.0, 2.0)]

        order = list(range(count))
        random.Random(f"{seed} {WORLD.rank}").shuffle(order)  # a different order on each rank
        raise_first(in_threads(*[lambda k=k: worker(k) for k in order]))
    for k in range(count):
        expected = complex_step(programs[k], starts_of(seed + k, WORLD.size), WORLD.rank)
        numpy.testing.assert_allclose(found[k][0], expected, rtol=1e-11, atol=1e-13)
        numpy.testing.assert_allclose(found[k][1], 2 * expected, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("seed", range(4))
def test_threads_inside_a_tape_are_joined_with_custom_vjp(seed):
    """Parts that threads compute and communicate belong to an outer tape, and are recorded and swept concurrently."""
    programs = [steps_of((seed, k, "joined").__repr__()) for k in range(2)]
    with duplicates(2) as comms:

        def part(k, x):
            return run(comms[k], programs[k], x, jitter(seed, k, WORLD.rank))

        def each(function, *arguments):
            results = [None, None]

            def call(k):
                results[k] = function(k, *(argument[k] for argument in arguments))

            raise_first(in_threads(lambda: call(0), lambda: call(1)))
            return results

        @ampi.custom_vjp
        def parts(x, z):
            return tuple(each(part, (x, z)))

        def forward(x, z):
            found = each(lambda k, start: ampi.vjp(lambda s: part(k, s), start), (ampi.value(x), ampi.value(z)))
            return tuple(y for y, _ in found), [pullback for _, pullback in found]

        def backward(pullbacks, bars):
            return tuple(each(lambda k, pullback, bar: pullback(bar)[0], pullbacks, bars))

        parts.defvjp(forward, backward)
        starts = [starts_of(seed + k, WORLD.size) for k in range(2)]
        with ampi.Tape() as tape:
            x, z = (tape.watch(starts[k][WORLD.rank]) for k in range(2))
            first, second = parts(x * 1.0, z * 1.0)
            y = np.sum(first) + 3.0 * np.sum(second)
        found = tape.gradient(y, [x, z])
    for k, weight in enumerate((1.0, 3.0)):
        expected = weight * complex_step(programs[k], starts[k], WORLD.rank)
        numpy.testing.assert_allclose(found[k], expected, rtol=1e-11, atol=1e-13)


@pytest.mark.mpi(min_size=2)
def test_a_sweep_is_of_its_communicators_alone():
    """One thread sweeps while another one records, at different times on different ranks."""
    steps = [("ring", 0.5), ("sum", 0.4), ("exchange", 0.3)]
    found = {}
    with duplicates(2) as comms:
        swept = threading.Event()

        def first():
            with ampi.Tape() as tape:
                x = tape.watch(starts_of(1, WORLD.size)[WORLD.rank])
                y = np.sum(run(comms[0], steps, x, time.perf_counter))
            if WORLD.rank % 2:
                time.sleep(0.05)
            found[0] = tape.gradient(y, x)
            swept.set()

        def second():
            with ampi.Tape() as tape:
                x = tape.watch(starts_of(2, WORLD.size)[WORLD.rank])
                y = run(comms[1], steps, x, time.perf_counter)
                assert swept.wait(patience(80))
                y = np.sum(run(comms[1], steps, y, time.perf_counter))
            found[1] = tape.gradient(y, x)

        raise_first(in_threads(second, first))
    numpy.testing.assert_allclose(found[0], complex_step(steps, starts_of(1, WORLD.size), WORLD.rank), rtol=1e-11)
    numpy.testing.assert_allclose(found[1], complex_step(2 * steps, starts_of(2, WORLD.size), WORLD.rank), rtol=1e-11)


# ---------------------------------------------------------------------------------------------------- what is refused


def test_two_threads_on_one_communicator_are_refused_when_they_record():
    with duplicates(1) as (comm,):
        recorded, done = threading.Event(), threading.Event()

        def first():
            with ampi.Tape() as tape:
                x = tape.watch(numpy.ones(2))
                run_once(comm, x)
                recorded.set()
                done.wait(patience(80))

        def second():
            assert recorded.wait(patience(80))
            try:
                with ampi.Tape() as tape:
                    run_once(comm, tape.watch(numpy.ones(2)))
            finally:
                done.set()

        errors = in_threads(first, second)
    assert errors[0] is None
    assert isinstance(errors[1], ampi.CommunicationError)
    assert "'worker 1' communicates on a communicator of" in str(errors[1]) or "a duplicate of" in str(errors[1])
    assert "comm.Dup()" in str(errors[1]) and "test_threads_on_ranks.py" in str(errors[1])


def run_once(comm, x):
    y = np.empty(2)
    comm.Sendrecv(x * x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size)
    return y


def test_two_sweeps_at_once_on_one_communicator_are_refused():
    with duplicates(1) as (comm,):
        tapes = []
        for _ in range(2):
            with ampi.Tape() as tape:
                x = tape.watch(numpy.ones(2))
                y = np.sum(within_the_sweep(run_once(comm, x)))
            tapes.append((tape, y, x))
        HOLD.clear()
        REACHED.clear()
        first = threading.Thread(target=lambda: tapes[0][0].gradient(tapes[0][1], tapes[0][2]))
        first.start()
        assert REACHED.wait(patience(80))
        with pytest.raises(ampi.CommunicationError, match="two threads sweep"):
            tapes[1][0].gradient(tapes[1][1], tapes[1][2])
        with pytest.raises(ampi.TapeError, match="being swept already"):
            tapes[0][0].gradient(tapes[0][1], tapes[0][2])
        WORLD.Barrier()
        HOLD.set()
        first.join(patience(80))
        assert not first.is_alive()


HOLD, REACHED = threading.Event(), threading.Event()


@ampi.custom_vjp
def within_the_sweep(x):
    return x * 1.0


def _hold(_, g):
    REACHED.set()
    HOLD.wait(patience(80))
    return (g,)


within_the_sweep.defvjp(lambda x: (x * 1.0, None), _hold)

MESSAGES = {
    "Send": lambda comm, x: comm.Send(x, MPI.PROC_NULL) or comm.Bsend(x, 0),
    "Isend": lambda comm, x: comm.Isend(x, 0),
    "Recv": lambda comm, x: comm.Recv(x, 0),
    "Irecv": lambda comm, x: comm.Irecv(x, 0),
    "Sendrecv": lambda comm, x: comm.Sendrecv(x, 0, 0, numpy.empty(2), 0),
    "send": lambda comm, x: comm.send({"x": [x]}, 0),
    "isend": lambda comm, x: comm.isend(x, 0),
    "allreduce": lambda comm, x: comm.allreduce(x),
    "bcast": lambda comm, x: comm.bcast(x),
    "gather": lambda comm, x: comm.gather(x),
    "alltoall": lambda comm, x: comm.alltoall([x]),
    "Allreduce": lambda comm, x: comm.Allreduce(x, np.empty(2)),
    "Bcast": lambda comm, x: comm.Bcast(x),
    "Ibcast": lambda comm, x: comm.Ibcast(x),
    "Allgather": lambda comm, x: comm.Allgather(x, numpy.empty(2)),
    "Send_init": lambda comm, x: comm.Send_init(x, 0).Start(),
    "Reduce_local": lambda comm, x: ampi.MPI.SUM.Reduce_local(x, numpy.zeros(2)),
}


@pytest.mark.parametrize("name", MESSAGES)
def test_messages_of_another_threads_active_arrays_are_refused(name):
    comm = ampi.COMM_SELF
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        (error,) = in_threads(lambda: MESSAGES[name](comm, x))
        assert isinstance(error, ampi.ActivityError)
        if name in ("Allgather", "Reduce_local"):
            assert "make the receive buffer with ampi.numpy" in str(error) or "make the array with" in str(error)
        else:
            assert "thread 'MainThread'" in str(error) and "thread 'worker 0'" in str(error)
        y = np.sum(x * x)
    numpy.testing.assert_array_equal(x, numpy.ones(2))
    numpy.testing.assert_array_equal(tape.gradient(y, x), 2 * numpy.ones(2))


def test_messages_of_other_arrays_pass_beside_a_tape():
    """A passive thread communicates as without ampi; values that it overwrites are saved for the tape."""
    with duplicates(1) as (comm,), ampi.Tape() as tape:
        x = tape.watch(numpy.full(2, 3.0))
        c = np.full(2, 5.0)
        y = x * c  # which the tape needs
        came = []

        def worker():
            with ampi.passive():
                comm.Sendrecv(numpy.full(2, 7.0), (comm.rank + 1) % comm.size, 0, c, (comm.rank - 1) % comm.size)
                came.append(comm.allreduce({"k": 1}["k"]))

        raise_first(in_threads(worker))
        assert came == [WORLD.size]
        z = np.sum(y * c)
    numpy.testing.assert_array_equal(tape.gradient(z, x), [35.0, 35.0])
    numpy.testing.assert_array_equal(c, [7.0, 7.0])


@pytest.mark.mpi(min_size=2)
def test_windows_belong_to_the_thread_that_made_them():
    def program(comm, x):
        win = ampi.Win.Allocate(16, 8, comm=comm)
        memory = np.asarray(memoryview(win.tomemory())).view(float)
        memory[:] = 0
        win.Fence()
        win.Put(x * x, (comm.rank + 1) % comm.size)
        win.Fence()
        y = np.sum(memory * memory)
        return win, y

    found, windows = {}, [None, None]
    with duplicates(2) as comms:

        def worker(k):
            jitter(k, WORLD.rank)()
            with ampi.Tape() as tape:
                x = tape.watch(numpy.full(2, 2.0 + k))
                win, y = program(comms[k], x)
            found[k] = tape.gradient(y, x)
            windows[k] = win

        raise_first(in_threads(lambda: worker(0), lambda: worker(1)))
        for k in range(2):
            numpy.testing.assert_allclose(found[k], 4 * (2.0 + k) ** 3)

        def stranger():
            with ampi.Tape() as tape:
                windows[0].Put(tape.watch(numpy.ones(2)), 0)

        (error,) = in_threads(stranger)
        assert isinstance(error, ampi.CommunicationError) and "the thread that made it" in str(error)
        for win in windows:
            win.Free()

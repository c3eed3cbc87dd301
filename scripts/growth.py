"""Programs whose cost must be proportional to their length, for ``scripts/bench_mpi`` and
``tests/tape/test_growth.py``.

A program is a generator that yields the name of each phase before its work.  Each runs at several lengths; time, bytes
and work per item must stay the same.  They run between any two ranks, or on one rank that is its own partner.
"""

import gc
import pathlib
import sys
import time
import tracemalloc

import numpy
from mpi4py import MPI

import ampi
import ampi.numpy as np

PROGRAMS = {}
"""For each name the program and the shortest length at which its time is measured."""


def program(length):
    """Register a program."""

    def register(make):
        PROGRAMS[make.__name__.replace("_", " ")] = make, length
        return make

    return register


# ------------------------------------------------------------------------------------------------------- messages


@program(1000)
def requests(comm, partner, n):
    """Receives to parts of one array, and sends of parts of another, all at the same time."""
    with ampi.Tape() as tape:
        x, y = tape.watch(numpy.ones(n)), np.zeros(n)
        yield "record"
        receives = [comm.Irecv(y[i : i + 1], partner) for i in range(n)]
        sends = [comm.Isend(x[i : i + 1], partner) for i in range(n)]
        MPI.Request.Waitall(receives + sends)
        z = np.sum(y * y)
    yield "sweep"
    tape.gradient(z, x)


@program(500)
def requests_one_by_one(comm, partner, n):
    """Messages are computed while all receives are outstanding, and used one by one."""
    with ampi.Tape() as tape:
        x, y, z = tape.watch(numpy.ones(n)), np.zeros(n), np.zeros(1)
        yield "record"
        receives = [comm.Irecv(y[i : i + 1], partner) for i in range(n)]
        sends = [comm.Isend(x[i : i + 1] * 2.0, partner) for i in range(n)]
        for i, receive in enumerate(receives):
            receive.Wait()
            z += y[i : i + 1] ** 2
        MPI.Request.Waitall(sends)
    yield "sweep"
    tape.gradient(z, x)


@program(250)
def persistent_requests(comm, partner, n):
    """Persistent requests on parts of one array, all started at the same time."""
    with ampi.Tape() as tape:
        x, y = tape.watch(numpy.ones(n)), np.zeros(n)
        yield "record"
        persistent = [comm.Recv_init(y[i : i + 1], partner) for i in range(n)]
        persistent += [comm.Send_init(x[i : i + 1], partner) for i in range(n)]
        MPI.Prequest.Startall(persistent)
        w = x[:1] * 1.0
        for _ in range(n):
            w = w * x[:1]
        MPI.Request.Waitall(persistent)
        z = np.sum(y * y) + w[0]
    yield "sweep"
    tape.gradient(z, x)
    for request in persistent:
        request.Free()


@program(250)
def collectives_at_a_time(comm, partner, n):
    """Nonblocking reductions to parts of one array."""
    with ampi.Tape() as tape:
        x, y = tape.watch(numpy.ones(n)), np.zeros(n)
        yield "record"
        MPI.Request.Waitall([comm.Iallreduce(x[i : i + 1], y[i : i + 1]) for i in range(n)])
        z = np.sum(y * y)
    yield "sweep"
    tape.gradient(z, x)


@program(1000)
def messages(comm, partner, n):
    """One message after the other."""
    with ampi.Tape() as tape:
        x, y = tape.watch(numpy.ones(1)), np.zeros(1)
        yield "record"
        for _ in range(n):
            comm.Sendrecv(x, partner, 0, y, partner, 0)
            x *= y
    yield "sweep"
    tape.gradient(y, x)


@program(250)
def partitions(comm, partner, n):
    """One message with many partitions."""
    with ampi.Tape() as tape:
        x, y = tape.watch(numpy.ones(n)), np.zeros(n)
        yield "record"
        send = comm.Psend_init(x, n, partner, 0)
        receive = comm.Precv_init(y, n, partner, 0)
        MPI.Prequest.Startall([send, receive])
        for i in range(n):
            send.Pready(i)
        for i in range(n):
            receive.Parrived(i)
        MPI.Request.Waitall([send, receive])
        z = np.sum(y * y)
    yield "sweep"
    tape.gradient(z, x)
    send.Free()
    receive.Free()


@program(40)
def communicators_held(comm, partner, n):
    """A message on each of many communicators, which are freed at the end."""
    with ampi.Tape() as tape:
        x, y = tape.watch(numpy.ones(n)), np.zeros(n)
        yield "make"
        made = [comm.Dup() for _ in range(n)]
        yield "record"
        for i, other in enumerate(made):
            other.Sendrecv(x[i : i + 1], partner, 0, y[i : i + 1], partner, 0)
        z = np.sum(y * y)
    yield "sweep"
    tape.gradient(z, x)
    yield "free"
    for other in made:
        other.Free()


@program(60)
def communicators_freed(comm, partner, n):
    """Communicators that are made, used, swept and freed one after the other."""
    yield "all"
    for _ in range(n):
        other = comm.Dup()
        with ampi.Tape() as tape:
            x, y = tape.watch(numpy.ones(1)), np.zeros(1)
            other.Sendrecv(x, partner, 0, y, partner, 0)
        tape.gradient(y, x)
        other.Free()


@program(250)
def fences(comm, partner, n):
    """A window with many epochs, one access each."""
    window = ampi.Win.Allocate(8, 8, comm=comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        y = np.zeros(1)
        window.Fence()
        yield "record"
        for _ in range(n):
            window.Put(x, partner)
            window.Fence()
        window.Get(y, partner)
        window.Fence()
    yield "sweep"
    tape.gradient(y, x)
    window.Free()


@program(250)
def locks(comm, partner, n):
    """A window with many lock epochs, one access each."""
    window = ampi.Win.Allocate(8, 8, comm=comm)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        y = np.zeros(1)
        yield "record"
        for _ in range(n):
            window.Lock(partner)
            window.Accumulate(x, partner)
            window.Unlock(partner)
        comm.Barrier()
        window.Lock(partner)
        window.Get(y, partner)
        window.Unlock(partner)
        comm.Barrier()
    yield "sweep"
    tape.gradient(y, x)
    window.Free()


# --------------------------------------------------------------------------------------------------- local work


@program(2000)
def records(comm, partner, n):
    """One operation after the other."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        yield "record"
        y = x * 1.0
        for _ in range(n):
            y = y * x
    yield "sweep"
    tape.gradient(y, x)


@program(500)
def elements(comm, partner, n):
    """Elements of one array are read and written in turn."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(n + 1))
        u = x * 1.0
        yield "record"
        for i in range(n):
            u[i + 1 : i + 2] *= u[i : i + 1] * u[i + 1 : i + 2]
    yield "sweep"
    tape.gradient(u[-1:], x)


@program(500)
def elements_anywhere(comm, partner, n):
    """The same in no order, half of the elements."""
    order = numpy.random.default_rng(0).permutation(n) * 2
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2 * n))
        u = x * 1.0
        yield "record"
        for i in order.tolist():
            u[i : i + 1] *= u[i : i + 1] * u[i + 1 : i + 2]
    yield "sweep"
    tape.gradient(u[-1:], x)


@program(500)
def columns(comm, partner, n):
    """A history in the columns of one array: each is computed from the one before."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        u = np.zeros((2, n + 1))
        u[:, 0] = x
        yield "record"
        for i in range(n):
            u[:, i + 1] = u[:, i] * u[:, i]
    yield "sweep"
    tape.gradient(u[:, -1], x, seed=numpy.ones(2))


@program(500)
def substitution(comm, partner, n):
    """Each element of one array is computed from all that come before it, of which eight matter."""
    row = numpy.full(8, 0.1)
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(n + 8))
        u = x * 1.0
        yield "record"
        for i in range(8, n + 8):
            u[i : i + 1] = np.sin(u[i - 8 : i]) @ row
            tape.need(u[:i])
    yield "sweep"
    tape.gradient(u[-1:], x)


@program(1000)
def overwrites(comm, partner, n):
    """One array is overwritten again and again."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        u = x * 1.0
        yield "record"
        for _ in range(n):
            u *= u
    yield "sweep"
    tape.gradient(u, x)


@program(1000)
def views(comm, partner, n):
    """A view of a view of a view, each of another class than the one behind it."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        view = x * 1.0
        yield "record"
        for _ in range(n):
            view = view.view(numpy.ndarray).view(ampi.ndarray)
        y = view * view
    yield "sweep"
    tape.gradient(y, x)


@program(500)
def independents(comm, partner, n):
    """Many independents and outputs."""
    with ampi.Tape() as tape:
        yield "record"
        xs = [tape.watch(np.ones(1)) for _ in range(n)]
        ys = [x * x for x in xs]
    yield "sweep"
    tape.gradient(ys, xs, seed=[numpy.ones(1)] * n)


@program(250)
def tapes(comm, partner, n):
    """One tape after the other needs the values of an array that is never overwritten."""
    parameters = np.ones(4)
    yield "all"
    for _ in range(n):
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(4))
            y = np.sum(x * parameters)
        tape.gradient(y, x)


@program(250)
def tapes_kept(comm, partner, n):
    """The same, and all tapes are kept."""
    kept = []
    parameters = np.ones(4)
    yield "all"
    for _ in range(n):
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(4))
            y = np.sum(x * parameters)
        kept.append(tape)
        tape.gradient(y, x)


@program(1000)
def blocks(comm, partner, n):
    """Arrays on memory that no array owns."""
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(1))
        memory = [bytearray(8) for _ in range(n)]
        yield "record"
        arrays = [np.frombuffer(block) for block in memory]
        for array in arrays:
            array[...] = x
    yield "sweep"
    tape.gradient(arrays, x, seed=[numpy.ones(1)] * n)


# ------------------------------------------------------------------------------------------------------- measuring


def timed(make, comm, partner, n):
    """Seconds per item of each phase."""
    return _measured(make, comm, partner, n, time.perf_counter)


def held(make, comm, partner, n):
    """Bytes per item that each phase leaves behind."""
    gc.collect()
    tracemalloc.start()
    try:
        return _measured(make, comm, partner, n, lambda: tracemalloc.get_traced_memory()[0])
    finally:
        tracemalloc.stop()


def worked(make, comm, partner, n):
    """Python instructions per item in each phase, without waits."""
    count = 0

    def of_frame(frame, event, argument):
        nonlocal count
        count += event == "opcode"
        return of_frame

    def of_call(frame, event, argument):
        code = frame.f_code
        if _waits(code):
            return None
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return of_frame

    gc.collect()
    gc.disable()
    before = sys.gettrace()
    sys.settrace(of_call)
    try:
        return _measured(make, comm, partner, n, lambda: count)
    finally:
        sys.settrace(before)
        gc.enable()


WAITING = {"__init__", "__enter__", "__exit__", "pause", "wait", "timeout", "waited", "_consider"}


def _waits(code):
    """Return whether the number of calls of a function depends on timing."""
    place = pathlib.Path(code.co_filename)
    if place.parent.name != "mpi" or place.parents[1].name != "ampi":
        return False
    return place.stem in ("judging", "board", "notices") or (place.stem == "waiting" and code.co_name in WAITING)


def _measured(make, comm, partner, n, read):
    found = {}
    phases = make(comm, partner, n)
    phase = next(phases)
    while phase is not None:
        start = read()
        following = next(phases, None)
        found[phase] = (read() - start) / n
        phase = following
    return found


# ------------------------------------------------------------------------------------------------------- reporting

FACTORS = 1, 4, 16


def report(comm, partner):
    """Run all of them on two ranks and print what an item costs at three lengths: a list of rows."""
    rows = []
    if comm.rank == 0:
        print(f"\n{'growth':24}{'phase':8}{'items':>8}{'µs per item, ×1, ×4, ×16':>30}{'bytes per item':>30}")
    for name, (make, length) in PROGRAMS.items():
        timed(make, comm, partner, 10)
        lengths = [factor * length for factor in FACTORS]
        took = [timed(make, comm, partner, n) for n in lengths]
        kept = [held(make, comm, partner, n) for n in lengths]
        for phase in took[0]:
            times, sizes = [[found[phase] for found in runs] for runs in (took, kept)]
            rows.append({"name": name, "phase": phase, "items": lengths, "seconds": times, "bytes": sizes})
            if comm.rank == 0:
                text = "".join(f"{seconds * 1e6:10.1f}" for seconds in times) + "".join(f"{n:10.0f}" for n in sizes)
                print(f"{name:24}{phase:8}{length:8}{text}", flush=True)
    return rows

"""Ranks whose tapes open at different points, or not at all: passive messages do not couple their sweeps.

Random programs, the same on all ranks, are lists of events. A serial run of the events on complex numbers gives the
derivatives by the complex step.
"""

import numpy
import pytest
from patience import patience
from programs import WORLD

import ampi
import ampi.numpy
from ampi import MPI

pytestmark = pytest.mark.mpi(min_size=2)

STEP = 1e-30
ROUNDS, EVENTS = 4, 14
ONES = numpy.ones(2)


def draw(number, size):
    """Random rounds of events; in each round every rank has at most one tape, which it sweeps at the end."""
    generator = numpy.random.default_rng([number, size])
    rounds = []
    for _ in range(ROUNDS):
        opens = {rank: int(generator.integers(EVENTS)) for rank in range(size) if generator.random() < 0.8}
        events = []
        for position in range(EVENTS):
            events += [("open", rank) for rank, when in opens.items() if when == position]
            source, dest = map(int, generator.choice(size, 2, replace=False))
            kind = ["message", "message", "message", "cancelled", "local"][generator.integers(5)]
            if kind == "message":
                inside = [opens.get(rank, EVENTS) <= position for rank in (source, dest)]
                active = all(inside) and generator.random() < 0.6
                forms = ["object", "irecv", "mprobe", "wild", "dropped", "buffer", "Irecv"]
                form = forms[generator.integers(7 if inside[0] == inside[1] else 5)]
                events.append(("message", source, dest, form, active and form != "dropped", int(generator.integers(3))))
            else:
                persistent = bool(generator.integers(2))
                events.append((kind, source, ["object", "buffer", "started"][generator.integers(3)], persistent))
        rounds.append((events, sorted(opens), int(generator.integers(1, 3))))
    return rounds


def start(k, rank):
    return numpy.array([0.3, -0.2]) * (1 + rank) + 0.1 * k


def serial(events, ranks, xs):
    """The sum of the values of all ranks with tapes at the end."""
    y = {}
    for event in events:
        if event[0] == "open":
            y[event[1]] = xs[event[1]] * 1.5
        elif event[0] == "message" and event[2] in y:
            _, source, dest, _, active, _ = event
            z = y[source] * 0.5 if active else numpy.full(2, source + 2.0)
            y[dest] = y[dest] * z + 0.25 * z
    return sum(numpy.sum(y[rank]) for rank in ranks)


def expected(k, events, ranks, rank):
    x_bar = numpy.zeros(2)
    for i in range(2):
        xs = {r: start(k, r) + 0j for r in ranks}
        xs[rank][i] += STEP * 1j
        x_bar[i] = serial(events, ranks, xs).imag / STEP
    return x_bar


def sent(comm, content, dest, form, tag):
    if form == "buffer":
        comm.Send(content, dest, tag)
    elif form == "Irecv":
        comm.Isend(content, dest, tag).Wait()
    elif form == "irecv":
        comm.isend({"content": content}, dest, tag).wait()
    else:
        comm.send({"content": content}, dest, tag)


def received(comm, source, form, tag):
    if form in ("buffer", "Irecv"):
        z = ampi.numpy.zeros(2)
        if form == "buffer":
            comm.Recv(z, source, tag)
        else:
            comm.Irecv(z, source, tag).Wait()
        return z
    if form == "irecv":
        return comm.irecv(source=source, tag=tag).wait()["content"]
    if form == "mprobe":
        return comm.mprobe(source, tag).recv()["content"]
    if form == "dropped":
        with ampi.passive():
            return comm.recv(source=source, tag=tag)["content"]
    return comm.recv(source=source, tag=MPI.ANY_TAG if form == "wild" else tag)["content"]


def message(comm, y, source, dest, form, active, tag):
    """The rank's value after a message, in which it may take part."""
    if comm.rank == source:
        sent(comm, y * 0.5 if active else numpy.full(2, source + 2.0), dest, form, tag)
    elif comm.rank == dest:
        z = received(comm, source, form, tag)
        if y is not None:
            return y * z + 0.25 * z
        assert (z == source + 2.0).all()
    return y


def cancelled(comm, form):
    """A receive of a message that no rank sends, cancelled."""
    partner = (comm.rank + 1) % comm.size
    if form == "object":
        request = comm.irecv(source=partner, tag=99)
    elif form == "buffer":
        request = comm.Irecv(ampi.numpy.zeros(2), partner, 99)
    else:
        request = comm.Recv_init(ampi.numpy.zeros(2), partner, 99)
        request.Start()
    request.Cancel()
    request.Wait()
    if form == "started":
        request.Free()


def local():
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = x * x
    assert (tape.gradient(y, x, seed=ONES) == 2).all()


def run(k, comm, events):
    """This rank's tape, independent and dependent; None if it has no tape."""
    tape = x = y = None
    for kind, *arguments in events:
        if kind == "message":
            y = message(comm, y, *arguments)
        elif arguments[0] != comm.rank:
            continue
        elif kind == "open":
            tape = ampi.Tape().__enter__()
            x = tape.watch(start(k, comm.rank))
            y = x * 1.5
        elif kind == "cancelled":
            cancelled(comm, arguments[1])
        elif tape is None:
            local()
    if tape is not None:
        tape.__exit__(None, None, None)
    return tape, x, y


@pytest.mark.parametrize("number", range(12))
def test_drawn(number, monkeypatch):
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(20)))
    comm = ampi.COMM_WORLD.Dup()
    for k, (events, ranks, sweeps) in enumerate(draw(number, comm.size)):
        tape, x, y = run(k, comm, events)
        for _ in range(sweeps if tape is not None else 0):
            x_bar = tape.gradient(y, x, seed=ONES)
            numpy.testing.assert_allclose(x_bar, expected(k, events, ranks, comm.rank), 1e-12, 1e-14)


def test_a_cancelled_receive_and_the_next_gradient(monkeypatch):
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(20)))
    comm = ampi.COMM_WORLD.Dup()
    for k in range(3):
        with ampi.Tape() as tape:
            x, y = tape.watch(ONES), ampi.numpy.zeros(2)
            if comm.rank == 0:
                cancelled(comm, ["buffer", "object", "started"][k])
            if k:
                comm.Sendrecv(x * x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size)
            y = y + x
        assert (tape.gradient(y, x, seed=ONES) == (3 if k else 1)).all()


def test_an_object_received_before_the_tape_was_opened(monkeypatch):
    """The sender does not wait for a rank without adjoints for it, nor the other way round."""
    monkeypatch.setenv("AMPI_TIMEOUT", str(patience(20)))
    comm = ampi.COMM_WORLD.Dup()
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    early = comm.rank % 2 == 0
    if not early:
        comm.send({"content": ONES}, after)
        assert (comm.recv(source=before)["content"] == 1).all()
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        if early:
            comm.send({"content": ONES}, after)
            assert (comm.recv(source=before)["content"] == 1).all()
        y = x * x
    if early:
        assert (tape.gradient(y, x, seed=ONES) == 2).all()
    WORLD.Barrier()
    if not early:
        assert (tape.gradient(y, x, seed=ONES) == 2).all()

"""Disagreements between ranks are found and named on every rank that can tell, and nothing hangs."""

import pickle
import time

import numpy
import pytest
from mpi4py import MPI
from patience import patience
from programs import WORLD

import ampi
import ampi.numpy as np
from ampi.mpi.log.matching import pair

pytestmark = [pytest.mark.mpi(min_size=2), pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")]

ONES = numpy.ones(2)


@pytest.fixture
def comm():
    """A communicator that a test may leave broken."""
    return ampi.COMM_WORLD.Dup()


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setenv("AMPI_TIMEOUT", "1")


def test_active_message_into_plain_memory(comm):
    """Named at once on the sender and on the receiver; the other ranks are not disturbed."""
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        if comm.rank == 0:
            comm.Send(x * x, 1, 5)
        elif comm.rank == 1:
            comm.Recv(numpy.zeros(2), 0, 5)
    if comm.rank == 0:
        with pytest.raises(
            ampi.CommunicationError, match=r"rank 0: Send to rank 1 with tag 5 .*test_agreement.py:\d+ c"
        ):
            tape.gradient(None, x)
    elif comm.rank == 1:
        with pytest.raises(
            ampi.CommunicationError, match=r"rank 1: Recv from rank 0 with tag 5 .*test_agreement.py:\d+ b"
        ):
            tape.gradient(None, x)
    else:
        assert (tape.gradient(x, x, seed=ONES) == ONES).all()


def test_plain_message_into_plain_memory(comm):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        v = numpy.zeros(2)
        comm.Sendrecv(ONES * comm.rank, (comm.rank + 1) % comm.size, 0, v, MPI.ANY_SOURCE)
        y = x * v
    assert (tape.gradient(y, x, seed=ONES) == (comm.rank - 1) % comm.size).all()


def test_message_that_is_not_received_while_the_tape_records(comm):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        if comm.rank == 0:
            for tag in (1, 2, 1):
                comm.Send(x, 1, tag)
        elif comm.rank == 1:
            comm.Recv(y, 0, 1)
            comm.Recv(y, 0, 2)
    if comm.rank == 1:
        comm.Recv(y, 0, 1)
    if comm.rank < 2:
        with pytest.raises(ampi.CommunicationError, match=r"tag 1 .*did not receive"):
            tape.gradient(None, x)


@pytest.mark.parametrize("first", ["received before the tape", "bytes received as an object"])
def test_constant_that_only_the_senders_tape_sees(comm, first):
    """A constant message has the tag of an active one, so that it is not known which of them is active."""
    pickled = numpy.frombuffer(pickle.dumps({"steps": 3}), "u1")
    before = comm.rank == 1 and first == "received before the tape"
    v, w = np.zeros(2), np.zeros(2)
    if before:
        comm.Recv(numpy.zeros(2), 0, 5)
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        if comm.rank == 0:
            comm.Send(pickled if first.startswith("bytes") else ONES, 1, 5)
            comm.Send(x * x, 1, 5)
            comm.Send(ONES, 1, 5)
        elif comm.rank == 1:
            if not before:
                assert comm.recv(source=0, tag=5) == {"steps": 3}
            comm.Recv(v, 0, 5)
            comm.Recv(w, 0, 5)
        y = v * v + 5 * w + x
    if comm.rank < 2:
        with pytest.raises(ampi.CommunicationError, match=r"rank 1 received 1 messages fewer with tag 5"):
            tape.gradient(y, x, seed=ONES)
    else:
        assert (tape.gradient(y, x, seed=ONES) == ONES).all()


def test_message_that_was_sent_before_the_tape(comm):
    """Harmless if it is clear that no message of its tag carries a derivative."""
    for active in (False, True):
        y = ampi.numpy.zeros(2)
        if comm.rank == 0:
            comm.Send(3 * ONES, 1, 1)
        with ampi.Tape() as tape:
            x = tape.watch(ONES)
            if comm.rank == 0:
                comm.Send(x if active else ONES, 1, 1)
            elif comm.rank == 1:
                comm.Recv(y, 0, 1)
                z = y * x
                comm.Recv(y, 0, 1)
        if comm.rank >= 2:
            continue
        if active:
            with pytest.raises(ampi.CommunicationError, match="tag 1"):
                tape.gradient(None, x)
        elif comm.rank == 1:
            assert (tape.gradient(z, x, seed=ONES) == 3).all()
        else:
            tape.gradient(None, x)


def test_partner_that_does_not_sweep(comm, impatient):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        if comm.rank == 0:
            comm.Isend(x, 1, 7).Wait()
        elif comm.rank == 1:
            comm.Recv(x, 0, 7)
    if comm.rank == 0:
        with pytest.raises(
            ampi.CommunicationError,
            match=r"no progress for 1 s .*rank 1 .*Isend to rank 1 with tag 7 .*test_agreement.py",
        ):
            tape.gradient(None, x)
        with pytest.raises(ampi.CommunicationError, match="cannot be swept any more"):
            tape.gradient(None, x)


def test_partner_that_recorded_nothing(comm, impatient):
    if comm.rank == 0:
        with ampi.Tape() as tape:
            x = tape.watch(ONES)
            comm.Send(x, 1, 7)
        with pytest.raises(ampi.CommunicationError, match=r"no progress .*Send to rank 1 with tag 7"):
            tape.gradient(None, x)
    elif comm.rank == 1:
        comm.Recv(numpy.zeros(2), 0, 7)


def test_rank_that_stops_in_its_sweep(comm):
    """The others, which wait for it or for each other, report why."""
    after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size

    def fail(sweep):
        raise ZeroDivisionError("the reason")

    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = x * x
        for turn in range(2 * comm.size):  # so that each rank depends on all others
            comm.Sendrecv_replace(y, after, 0, before)
            if turn == 2 * comm.size - 2 and comm.rank == 0:
                tape.append(fail)
    start = time.monotonic()
    with pytest.raises(ZeroDivisionError if comm.rank == 0 else ampi.CommunicationError, match="the reason"):
        tape.gradient(y, x, seed=ONES)
    assert time.monotonic() - start < patience(10)


def test_rank_that_stops_in_the_agreement(comm):
    """One rank has an incomplete receive: the collective agreement of the others does not wait for it."""
    after = (comm.rank + 1) % comm.size
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = ampi.numpy.zeros(2)
        comm.Allreduce(x, y)
        z = ampi.numpy.zeros(2)
        requests = [comm.Irecv(z), comm.Isend(x, after)]
        if comm.rank:
            MPI.Request.Waitall(requests)
    with pytest.raises(ampi.CommunicationError, match=r"rank 0: Irecv .*never completed"):
        tape.gradient(y, x, seed=ONES)
    if comm.rank == 0:
        MPI.Request.Waitall(requests)


def test_another_number_of_gradients(comm):
    """An adjoint left over from a sweep would be taken for one of the next tape."""

    def message():
        y = ampi.numpy.zeros(2)
        with ampi.Tape() as tape:
            x = tape.watch(ONES)
            if comm.rank == 0:
                comm.Recv(y, 1)
            elif comm.rank == 1:
                comm.Send(x * x, 0)
        return tape, x, y if comm.rank == 0 else None

    tape, x, y = message()
    for k in range(2 if comm.rank == 0 else 1):
        tape.gradient(y, x, seed=ONES * k if comm.rank == 0 else None)
    tape, x, y = message()
    if comm.rank < 2:
        with pytest.raises(ampi.CommunicationError, match=rf"rank {comm.rank}: .*begun {3 - comm.rank} sweeps, rank"):
            tape.gradient(y, x, seed=ONES if comm.rank == 0 else None)


@pytest.mark.parametrize("more", ["Bcast", "Allreduce"])
def test_different_collectives(comm, impatient, more):
    """An error in plain MPI, too, which implementations do not notice for such short messages to and from one rank."""
    part = comm.Split(comm.rank)
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        part.Allreduce(MPI.IN_PLACE, x)
    log = tape.sweep_starts["communication"].log(part._reverse)
    assert [call.name for call in log.collectives] == ["Allreduce"]
    # Only the logs matter: pretend that the communicator was a larger one.
    log.reverse = comm._reverse
    if comm.rank == 0:
        log.collectives[0].name = "Bcast"
        if more == "Allreduce":
            log.collectives[0].name = "Allreduce"
            log.collectives.append(log.collectives[0])
    with pytest.raises(ampi.CommunicationError, match=r"another called|collective calls were recorded"):
        tape.gradient(x, x, seed=ONES)


def test_another_dtype(comm):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        if comm.rank == 0:
            comm.Send([x, 2, MPI.DOUBLE], 1)
        elif comm.rank == 1:
            comm.Recv([ampi.numpy.zeros(4, "f4"), MPI.BYTE], 0)
    if comm.rank < 2:
        with pytest.raises(ampi.CommunicationError, match="another dtype"):
            tape.gradient(None, x)


def test_complex_numbers_received_as_pairs(comm):
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([1 + 2j, 3 - 1j]))
        y = ampi.numpy.zeros(4)
        request = comm.Irecv(y, (comm.rank - 1) % comm.size)
        comm.Send([x, MPI.DOUBLE], (comm.rank + 1) % comm.size)
        request.Wait()
    assert (tape.gradient(y, x, seed=numpy.arange(4.0)) == [1j, 2 + 3j]).all()


@pytest.mark.parametrize(
    "sent, posted, pairs",
    [
        ([], [], []),
        ([1, 2], [2, 1], [1, 0]),
        ([1, 1, 1], [1, 1], [0, 1]),
        ([1, 1], [1, 1, 1], [0, 1, -1]),
        ([1, 2, 1], [-1, -1, -1], [0, 1, 2]),
        ([1, 2, 1, 2], [2, -1, -1, 2], [1, 0, 2, 3]),
        ([3, 1, 3], [1, 3, -1], [1, 0, 2]),
        ([3], [1, -1, -1], [-1, 0, -1]),
    ],
)
def test_pairing(sent, posted, pairs):
    assert pair(sent, posted) == pairs


def test_tags_do_not_run_out(comm):
    """There are more messages than different tags."""
    comm._reverse.tags = 3
    with ampi.Tape() as tape:
        x = tape.watch(ONES + comm.rank)
        y = x * 1.0
        v = ampi.numpy.zeros((10, 2))
        after, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        requests = [comm.Irecv(v[k], before, k) for k in range(10)]
        requests += [comm.Isend(x * float(k), after, k) for k in range(10)]
        MPI.Request.Waitall(requests)
        y = v * numpy.arange(10.0)[:, None]
    assert (tape.gradient(y, x, seed=numpy.ones((10, 2))) == 285).all()
    assert WORLD.size == comm.size

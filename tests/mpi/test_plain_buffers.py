"""Plain arrays in messages while a tape records: a warning by name where a derivative may be lost, and no other."""

import warnings

import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi import checks
from ampi.mpi import plain_buffers

MPI = ampi.MPI
comm = ampi.COMM_WORLD
RIGHT, LEFT = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size


def sent_to_the_right(start):
    def exchange(buf):
        request = comm.Irecv(anp.zeros(np.size(buf), getattr(buf, "dtype", float)), LEFT)
        started = start(buf)
        if started is not None:
            started.Wait()
        request.Wait()

    return exchange


def persistent(buf):
    request = comm.Send_init(buf, RIGHT)
    request.Start()
    request.Wait()
    request.Free()


def put(method):
    def call(buf):
        window = ampi.Win.Allocate(16 * np.size(buf), 8, comm=comm)
        window.Fence()
        getattr(window, method)(buf, RIGHT)
        window.Fence()
        window.Free()

    return call


GIVEN = {
    "Send": sent_to_the_right(lambda buf: comm.Send(buf, RIGHT)),
    "Isend": sent_to_the_right(lambda buf: comm.Isend(buf, RIGHT)),
    "Issend": sent_to_the_right(lambda buf: comm.Issend(buf, RIGHT)),
    "Send_init": sent_to_the_right(persistent),
    "Sendrecv": lambda buf: comm.Sendrecv(buf, RIGHT, recvbuf=anp.zeros(np.size(buf), buf.dtype), source=LEFT),
    "Bcast": lambda buf: comm.Bcast(buf, root=0),
    "Allreduce": lambda buf: comm.Allreduce(buf, anp.zeros(np.shape(buf), buf.dtype)),
    "Allreduce in place": lambda buf: comm.Allreduce(MPI.IN_PLACE, buf),
    "Iallreduce": lambda buf: comm.Iallreduce(buf, anp.zeros(np.shape(buf), buf.dtype)).Wait(),
    "Allgather": lambda buf: comm.Allgather(buf, anp.zeros((comm.size, np.size(buf)), buf.dtype)),
    "Gatherv": lambda buf: comm.Gatherv(buf, anp.zeros((comm.size, np.size(buf)), buf.dtype), root=0),
    "Put": put("Put"),
    "Accumulate": put("Accumulate"),
}


def said(call, *arguments):
    """The warnings of a call, in a program that has not said any yet."""
    plain_buffers._warned.clear()
    plain_buffers._sites.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(*arguments)
    return [w for w in caught if w.category is ampi.ActivityWarning]


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["f8", "f4", "c16"])
@pytest.mark.parametrize("name", GIVEN)
def test_a_plain_array_is_named(name, dtype):
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))
        halo = np.ones(3, dtype)
        caught = said(GIVEN[name], halo)
    if name == "Bcast" and comm.rank:
        assert not caught
        return
    (warning,) = caught
    text = str(warning.message)
    assert warning.filename == __file__ and text.startswith(f"{__file__}:{warning.lineno}: ")
    assert f"of shape (3,) and dtype {halo.dtype}" in text and "ampi.constant" in text and "ampi.numpy" in text
    assert "'buf'" in text
    partner = f"rank {RIGHT}" if "end" in name or name in ("Put", "Accumulate") else "on MPI_COMM_WORLD"
    assert partner in text


CONSTANTS = {
    "integers": lambda: np.arange(3),
    "bytes": lambda: np.zeros(3, np.uint8),
    "said": lambda: ampi.constant(np.ones(3)),
    "part of what was said": lambda: ampi.constant(np.ones(6))[:3],
    "value": lambda: ampi.value(anp.ones(3)),
    "part of a value": lambda: ampi.value(anp.ones(6))[:3],
    "ampi's": lambda: anp.ones(3),
    "nothing": lambda: np.ones(0),
}


@pytest.mark.mpi
@pytest.mark.parametrize("made", CONSTANTS)
@pytest.mark.parametrize("name", ["Isend", "Sendrecv", "Allreduce", "Put"])
def test_what_is_constant_is_not(name, made):
    if name == "Put" and made in ("nothing", "integers", "bytes"):
        pytest.skip("another size")
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))
        assert not said(GIVEN[name], CONSTANTS[made]())


@pytest.mark.mpi
def test_nor_is_what_is_sent_before_anything_is_watched_or_passively():
    buf = np.ones(3)
    assert not said(GIVEN["Sendrecv"], buf)
    with ampi.Tape() as tape:
        assert not said(GIVEN["Sendrecv"], buf)
        assert not said(GIVEN["Allreduce"], buf)
        x = tape.watch(np.ones(2))
        with ampi.passive():
            assert not said(GIVEN["Sendrecv"], buf)
            assert not said(GIVEN["Allreduce"], buf)
        assert not said(lambda: comm.Send(buf, MPI.PROC_NULL))
        y = x.sum()
    assert not said(GIVEN["Sendrecv"], buf)
    np.testing.assert_array_equal(tape.gradient(y, x), 1.0)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("use", [lambda b: b[0] * b[1], lambda b: b * b], ids=["elements", "few"])
def test_what_was_computed_of_what_came_counts(use):
    """Where nothing is watched."""
    with ampi.Tape() as tape:
        if comm.rank == 0:
            comm.Send(tape.watch(np.ones(3)), 1)
        elif comm.rank == 1:
            came = anp.zeros(3)
            comm.Recv(came, 0)
            use(came)
            assert said(lambda: comm.Send(np.ones(3), MPI.PROC_NULL)) == []
            assert plain_buffers._has_active(tape)


@pytest.mark.mpi
def test_once_per_line():
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))

        def twice():
            for _ in range(2):
                comm.Sendrecv(np.ones(3), RIGHT, recvbuf=anp.zeros(3), source=LEFT)
            comm.Sendrecv(np.ones(3), RIGHT, recvbuf=anp.zeros(3), source=LEFT)

        assert len(said(twice)) == 2


@pytest.mark.mpi
@pytest.mark.parametrize("name", ["Send", "Allreduce", "Put"])
def test_in_full_it_is_an_error(name, monkeypatch):
    monkeypatch.setattr(checks, "strict", True)
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))
        with pytest.raises(ampi.ActivityError, match=f"{name} .* plain numpy array 'buf' of shape"):
            buf = np.ones(3)
            if name == "Send":
                comm.Send(buf, RIGHT)
            elif name == "Allreduce":
                comm.Allreduce(buf, anp.zeros(3))
            else:
                window = ampi.Win.Allocate(24, 8, comm=comm)
                window.Lock(RIGHT)
                try:
                    window.Put(buf, RIGHT)
                finally:
                    window.Unlock(RIGHT)


@pytest.mark.mpi(min_size=2)
def test_a_halo_through_plain_arrays_is_no_longer_a_plausible_number():
    """Both ends are plain; where only the receiver's is, the sweep says it on both ranks."""
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        halo = np.empty(1)

        def program():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "assignment into a plain|.*assignment into a plain")
                out = np.empty(1)
                out[:] = ampi.value(x)[-1:]
            comm.Sendrecv(out, RIGHT, recvbuf=halo, source=LEFT)

        (warning,) = said(program)
        assert f"'out' of shape (1,) and dtype float64 to rank {RIGHT}" in str(warning.message)
    with ampi.Tape() as tape:
        x = tape.watch(np.arange(1.0, 4.0))
        comm.Dup().Sendrecv(x[-1:], RIGHT, recvbuf=halo, source=LEFT)  # which cannot be swept afterwards
        y = np.sum(x * halo)
    with pytest.raises(ampi.CommunicationError, match=r"into memory that is not tracked; make .* ampi.numpy"):
        tape.gradient(y, x)


def test_constant():
    a = np.ones(3)
    assert ampi.constant(a) is a
    b = ampi.constant(anp.ones(3))
    assert type(b) is np.ndarray and type(ampi.constant([1, 2])) is np.ndarray

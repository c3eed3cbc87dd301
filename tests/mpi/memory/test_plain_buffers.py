"""Plain arrays in messages while a tape records: a specific warning if a derivative may be lost, and no others."""

import collections
import contextlib
import dataclasses
import re
import tempfile
import warnings

import numpy as np
import pytest

import ampi
import ampi.numpy as anp
from ampi.base import checks
from ampi.mpi.memory import plain_buffers

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
    """The warnings of a call, as if there had been none before."""
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


@dataclasses.dataclass
class Field:
    name: str
    values: object


class Slotted:
    __slots__ = ("values", "without")

    def __init__(self, values):
        self.values = values


HOLDING = {
    "itself": lambda buf: buf,
    "a list": lambda buf: [0, buf],
    "a tuple in a dictionary": lambda buf: {"a": 1, "b": ("c", buf)},
    "a dataclass": lambda buf: Field("x", buf),
    "slots": lambda buf: [Slotted(buf)],
    "a deque": lambda buf: collections.deque([buf]),
    "an array of objects": lambda buf: np.array([None, buf], object),
    "beside active ones": lambda buf: [anp.ones(2), Field("x", {"y": buf}), buf],
}


def first(a, b):
    return a


OBJECTS = {
    "send": lambda x: (comm.isend(x, RIGHT), comm.recv(source=LEFT))[0].wait(),
    "ssend": lambda x: comm.sendrecv(x, RIGHT, source=LEFT),
    "bcast": lambda x: comm.bcast(x, root=0),
    "gather": lambda x: comm.gather(x, root=0),
    "scatter": lambda x: comm.scatter([x] * comm.size, root=0),
    "allgather": lambda x: comm.allgather(x),
    "alltoall": lambda x: comm.alltoall([x] * comm.size),
    "reduce": lambda x: comm.reduce(x, first, root=0),
    "allreduce": lambda x: comm.allreduce(x, first),
    "scan": lambda x: comm.scan(x, first),
}
ONLY_FROM_0 = ("bcast", "scatter")


@pytest.mark.mpi
@pytest.mark.parametrize("dtype", ["f4", [("a", "f8"), ("n", "i4")], "i8"], ids=str)
@pytest.mark.parametrize("holds", HOLDING)
@pytest.mark.parametrize("name", OBJECTS)
def test_a_plain_array_in_an_object_is_named(name, holds, dtype):
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))
        halo = np.ones(3, dtype)
        given = HOLDING[holds](halo)
        caught = said(OBJECTS[name], given)
        assert not said(OBJECTS[name], HOLDING[holds](ampi.constant(np.ones(3))))
        with ampi.passive():
            assert not said(OBJECTS[name], given)
    if dtype == "i8" or (name in ONLY_FROM_0 and comm.rank) or (name in ("reduce", "scan") and comm.size == 1):
        assert not caught or dtype != "i8"
        return
    assert caught and all("an object is sent that holds a plain numpy array" in str(w.message) for w in caught)
    text = str(caught[0].message)
    assert caught[0].filename == __file__ and text.startswith(f"{__file__}:{caught[0].lineno}: ")
    assert f"of shape (3,) and dtype {halo.dtype}" in text and "ampi.constant" in text


@pytest.mark.mpi
@pytest.mark.parametrize("holds", HOLDING)
@pytest.mark.parametrize("name", [name for name in OBJECTS if name not in (*ONLY_FROM_0, "reduce", "scan")])
def test_in_full_such_an_object_is_an_error(name, holds, monkeypatch):
    monkeypatch.setattr(checks, "strict", True)
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))
        given = HOLDING[holds](np.ones(3))
        if name == "allreduce" and comm.size == 1:
            return
        with pytest.raises(ampi.ActivityError, match=r"holds a plain numpy array .*of shape \(3,\)"):
            OBJECTS[name](given)


@contextlib.contextmanager
def committed(datatype):
    """A derived datatype, until it is freed."""
    datatype.Commit()
    try:
        yield datatype
    finally:
        datatype.Free()


def at_addresses(use):
    """A message from MPI.BOTTOM, by the address of an array."""

    def call(buf):
        with committed(MPI.Datatype.Create_hindexed(MPI.DOUBLE, [buf.size], [MPI.Get_address(buf)])) as datatype:
            use([MPI.BOTTOM, 1, datatype], 3)

    return call


def beside_active(use):
    """A message from MPI.BOTTOM of an active array and of another."""

    def call(buf):
        active = anp.array([1.0, 2.0])
        addresses = [MPI.Get_address(active), MPI.Get_address(buf)]
        ampi.tape.current().watch(active)
        with committed(MPI.Datatype.Create_hindexed(MPI.DOUBLE, [2, buf.size], addresses)) as datatype:
            use([MPI.BOTTOM, 1, datatype], 5)

    return call


def typed(use):
    """A message of every other element."""

    def call(buf):
        with committed(MPI.DOUBLE.Create_vector(2, 1, 2)) as datatype:
            use([buf, 1, datatype], 2)

    return call


def partitioned(buf):
    request = comm.Psend_init(buf, 1, RIGHT, 4)
    other = comm.Precv_init(anp.zeros(3), 1, LEFT, 4)
    MPI.Prequest.Startall([request, other])
    request.Pready(0)
    MPI.Request.Waitall([request, other])
    request.Free()
    other.Free()


def written(form):
    def call(buf):
        with tempfile.TemporaryDirectory() as folder:
            file = ampi.File.Open(MPI.COMM_SELF, f"{folder}/f", MPI.MODE_CREATE | MPI.MODE_WRONLY)
            try:
                request = getattr(file, form)(*([0] if "at" in form else []), buf)
                if request is not None:
                    request.Wait()
            finally:
                file.Close()

    return call


def packed(buf):
    MPI.DOUBLE.Pack(buf, anp.zeros(100, np.uint8), 0, comm)


def at_an_address(buf):
    datatype = MPI.Datatype.Create_hindexed(MPI.DOUBLE, [3], [MPI.Get_address(buf)])
    datatype.Commit()
    comm.Allgather([MPI.BOTTOM, 1, datatype], anp.zeros(3 * comm.size))
    datatype.Free()


MORE = {
    "Allgather at an address": (at_an_address, "Allgather"),
    **{
        f"{name} {how.__name__}": (how(use), name)
        for how in (at_addresses, beside_active, typed)
        for name, use in {
            "Send": lambda buf, n: (comm.Irecv(anp.zeros(n), LEFT), comm.Send(buf, RIGHT))[0].Wait(),
            "Isend": lambda buf, n: MPI.Request.Waitall([comm.Irecv(anp.zeros(n), LEFT), comm.Isend(buf, RIGHT)]),
            "Allgather": lambda buf, n: comm.Allgather(buf, anp.zeros(n * comm.size)),
        }.items()
    },
    "Pready": (partitioned, "Pready"),
    "Pack": (packed, "Datatype.Pack"),
    **{f"File.{form}": (written(form), f"File.{form}") for form in ("Write", "Write_at", "Iwrite", "Write_all")},
}


@pytest.mark.mpi
@pytest.mark.parametrize("level", ["", "strict"])
@pytest.mark.parametrize("name", MORE)
def test_other_ways_of_a_plain_array(name, level, monkeypatch):
    call, operation = MORE[name]
    called = "" if name.split()[-1] in ("at_addresses", "beside_active", "typed") else ".*'buf'"
    with ampi.Tape() as tape:
        tape.watch(np.ones(2))
        assert not said(call, ampi.constant(np.ones(3)))
        assert not said(call, anp.ones(3))
        buf = np.ones(3)
        if level:
            monkeypatch.setattr(checks, "strict", True)
            if operation in ("Send", "Isend", "Pready"):
                return  # the receive would be left behind
            with pytest.raises(ampi.ActivityError, match=f"{operation} .* plain numpy array{called}"):
                call(buf)
            return
        (warning,) = said(call, buf)
    text = str(warning.message)
    assert text.startswith(f"{__file__}:{warning.lineno}: {operation} "), text
    assert re.search(f"a plain numpy array{called}.*of shape \\([23],\\)", text), text


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
def test_what_is_sent_before_anything_is_watched_or_passively_is_not():
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
    """On ranks where nothing is watched."""
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
                    window.Free()


@pytest.mark.mpi(min_size=2)
def test_a_halo_through_plain_arrays_is_no_longer_a_plausible_number():
    """Both ends are plain; if only the receiver's is, the sweep raises on both ranks."""
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
        comm.Dup().Sendrecv(x[-1:], RIGHT, recvbuf=halo, source=LEFT)  # a communicator that cannot be swept afterwards
        y = np.sum(x * halo)
    with pytest.raises(ampi.CommunicationError, match=r"into memory that is not tracked; make .* ampi.numpy"):
        tape.gradient(y, x)


def test_constant():
    a = np.ones(3)
    assert ampi.constant(a) is a
    b = ampi.constant(anp.ones(3))
    assert type(b) is np.ndarray and type(ampi.constant([1, 2])) is np.ndarray

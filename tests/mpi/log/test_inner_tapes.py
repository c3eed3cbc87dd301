"""Memory that carries derivatives on an outer tape is not overwritten inside an inner tape, unseen by the outer one."""

import tempfile

import numpy
import pytest
from test_held_buffers import N, blocks_of, spec, started

import ampi
import ampi.numpy as np
from ampi import MPI

pytestmark = pytest.mark.mpi


@ampi.kernel
def fill(v):
    for i in range(v.size):
        v[i] = 7.0


def of_received(form):
    """A form with a request, and the blocking form if there is one; empty for operations that receive nothing."""
    receives = blocks_of(form)[1]
    if (receives is None and "replace" not in form) or "exscan" in form.lower():  # the first rank gets nothing
        return []
    blocking = form[1:].capitalize() if not form.endswith("_init") else ""
    return [form, blocking] if hasattr(ampi.MPI.Cartcomm, blocking) else [form]


FORMS = sorted({name for form in started() for name in of_received(form)})


def blocks_alone(form):
    """`blocks_of` on one rank, with two neighbours."""
    form = form if form.endswith("_init") or form in started() else f"I{form.lower()}"
    most = 2 if "neighbor" in form.lower() else 1
    return [n and min(n, most) for n in blocks_of(form)]


def received(form, comm, buffer, u):
    """Receive into a buffer, or start to."""
    name, blocks = form.lower(), blocks_alone(form)
    method = getattr(comm, form)
    if "sendrecv_replace" in name:
        request = method(buffer, 0, 0, 0, 0)
    elif "sendrecv" in name:
        request = method(u, 0, 0, buffer, 0, 0)
    elif "precv" in name:
        request = method(buffer, 1, 0, 0)
    elif name.lstrip("i").startswith("recv"):
        request = method(buffer, 0)
    else:
        sent = None if blocks[0] is None else np.concatenate([u] * blocks[0])
        request = method(
            *(spec(name.removesuffix("_init"), a, n) for a, n in zip((sent, buffer), blocks) if a is not None)
        )
    if form.endswith("_init"):
        request.Start()


def matched(comm, buffer, u):
    request, message = comm.Isend(numpy.ones(N), 0), comm.Mprobe(0)
    try:
        message.Recv(buffer)
    finally:
        if message != MPI.MESSAGE_NULL:
            message.Recv(np.zeros(N))
        request.Wait()


def unpacked(comm, buffer, u):
    room = np.zeros(8 * N, "u1")
    MPI.DOUBLE.Pack(numpy.ones(N), room, 0, comm)
    MPI.DOUBLE.Unpack(room, 0, buffer, comm)


def read(comm, buffer, u):
    with tempfile.NamedTemporaryFile() as file:
        file.write(numpy.ones(N).tobytes())
        file.flush()
        opened = MPI.File.Open(comm, file.name)
        try:
            opened.Read_at(0, buffer)
        finally:
            opened.Close()


def put(comm, buffer, u):
    win = MPI.Win.Create(buffer, 8, comm=comm)
    win.Fence()
    win.Put(u, 0)
    win.Fence()
    win.Free()


def got(comm, buffer, u):
    win = MPI.Win.Create(np.ones(N), 8, comm=comm)
    win.Lock(0)
    try:
        win.Get(buffer, 0)
    finally:
        win.Unlock(0)
        win.Free()


def attached(comm, buffer, u):
    win = MPI.Win.Create_dynamic(comm=comm)
    try:
        win.Attach(buffer)
    finally:
        win.Free()


LOCAL = {
    "assign": lambda b, u: b.__setitem__(slice(2), u[:2]),
    "assign constants": lambda b, u: b.__setitem__(slice(2), 1.0),
    "assign an element": lambda b, u: b.__setitem__(1, u[0]),
    "assign by indices": lambda b, u: b.__setitem__([1, 2], u[:2]),
    "assign nothing known": lambda b, u: b.__setitem__(b > 1.0, 0.0),
    "add": lambda b, u: b.__iadd__(1.0),
    "out": lambda b, u: np.multiply(u, u, out=b),
    "copyto": lambda b, u: np.copyto(b, u),
    "fill": lambda b, u: b.fill(1.0),
    "sort": lambda b, u: b.sort(),
    "put": lambda b, u: np.put(b, [0, 1], u[:2]),
    "place": lambda b, u: np.place(b, [True] + [False] * (N - 1), [1.0]),
    "at": lambda b, u: np.add.at(b, [0, 0], u[:2]),
    "flat": lambda b, u: b.flat.__setitem__(0, 1.0),
    "kernel": lambda b, u: fill(b),
    "plain": lambda b, u: numpy.copyto(b, numpy.ones(N)),
    "a view": lambda b, u: b[::2].fill(1.0),
}
WAYS = [matched, unpacked, read, put, got, attached]


def refused(way):
    """Check that this is refused, whether or not the inner tape watches the written values."""
    for watched in (True, False):
        with ampi.Tape() as tape:
            x = tape.watch(numpy.arange(1.0, N + 1))
            buffer = np.concatenate([x * 2.0] * 2)
            with ampi.Tape() as inner:
                u = inner.watch(numpy.ones(N)) if watched else np.ones(N)
                with pytest.raises(ampi.TapeError, match="outer tape"):
                    way(buffer, u)
            z = np.sum(buffer * buffer)
        numpy.testing.assert_allclose(tape.gradient(z, x), 16.0 * numpy.arange(1.0, N + 1))


@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_received_into_what_an_outer_tape_has(form):
    comm = ampi.COMM_SELF.Create_cart([1], [True])
    refused(lambda buffer, u: received(form, comm, buffer[: N * max(n or 1 for n in blocks_alone(form)[1:])], u))
    comm.Free()


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_nothing_comes_by_other_ways(way):
    comm = ampi.COMM_SELF.Dup()
    refused(lambda buffer, u: way(comm, buffer[:N], u))
    comm.Free()


@pytest.mark.parametrize("way", LOCAL)
def test_nothing_is_written_into_it(way):
    refused(lambda buffer, u: LOCAL[way](buffer[:N], u))

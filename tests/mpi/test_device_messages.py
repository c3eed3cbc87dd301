"""Messages of device arrays: derivatives are those of host arrays, on a device whose memory MPI cannot access."""

import subprocess
import sys

import guarded_device
import numpy as np
import pytest
from patience import patience

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import MPI
from ampi.device import backends


@pytest.fixture(autouse=True)
def device():
    """A device whose memory crashes the process if the host touches it."""
    before = backends.choose(guarded_device.Guarded())
    yield
    backends.choose(before)


def ring(comm, x, y):
    comm.Sendrecv(x, (comm.rank + 1) % comm.size, recvbuf=y, source=(comm.rank - 1) % comm.size)


def pair(comm, x, y):
    requests = [comm.Irecv([y, MPI.DOUBLE], MPI.ANY_SOURCE), comm.Isend([x, x.size], (comm.rank + 1) % comm.size)]
    MPI.Request.Waitall(requests)


def polled(comm, x, y):
    received = comm.Irecv(y[2:], (comm.rank - 1) % comm.size)
    sent = comm.Isend(x[2:], (comm.rank + 1) % comm.size)
    while not received.Test():
        pass
    sent.Wait()


def one_after_the_other(comm, x, y):
    requests = [comm.Irecv(y[k : k + 1], (comm.rank - 1) % comm.size, tag=k) for k in range(3)]
    sends = [comm.Isend(x[k : k + 1], (comm.rank + 1) % comm.size, tag=k) for k in range(3)]
    for _ in range(3):
        requests.pop(MPI.Request.Waitany(requests))
    MPI.Request.Waitall(sends)


def summed(comm, x, y):
    comm.Allreduce(x, y)


def summed_in_place(comm, x, y):
    comm.Allreduce(MPI.IN_PLACE, y)


def summed_later(comm, x, y):
    comm.Iallreduce(x, y, op=MPI.SUM).Wait()


def largest(comm, x, y):
    comm.Reduce(x, y, op=MPI.MAX, root=comm.size - 1)


def broadcast(comm, x, y):
    comm.Bcast(x, root=comm.size - 1)
    y[:] = x


def gathered(comm, x, y):
    comm.Allgather(x[:1], y[: comm.size])


def replaced(comm, x, y):
    comm.Sendrecv_replace(y, (comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)


def short(comm, x, y):
    """A message that is shorter than the buffer."""
    comm.Sendrecv(x[:2], (comm.rank + 1) % comm.size, recvbuf=y, source=(comm.rank - 1) % comm.size)


CALLS = ring, pair, polled, one_after_the_other, summed, summed_in_place, summed_later, largest, broadcast, gathered
CALLS += replaced, short


def program(call, comm, on_device):
    def loss(x):
        x = x * x
        start = anp.sin(x)
        if on_device:
            d, y = cuda.to_device(x), cuda.to_device(start)
            call(comm, d, y)
            d, y = d.copy_to_host(), y.copy_to_host()
        else:
            d, y = x.copy(), start.copy()
            call(comm, d, y)
        return anp.sum(y * y * anp.cos(d))

    return loss


@pytest.mark.mpi
@pytest.mark.parametrize("call", CALLS, ids=lambda call: call.__name__)
def test_messages(call):
    comm = ampi.COMM_WORLD
    x = np.linspace(0.2, 1.3, 9) + 0.1 * comm.rank
    host, found = (program(call, comm, where) for where in (False, True))
    assert host(x) == found(x)
    np.testing.assert_allclose(ampi.grad(found)(x), ampi.grad(host)(x), rtol=1e-13)
    v = np.cos(x)
    np.testing.assert_allclose(ampi.jvp(found, x, v)[1], ampi.jvp(host, x, v)[1], rtol=1e-13)


@pytest.mark.mpi
def test_order_of_elements():
    """Arrays in Fortran order are sent as they lie in memory, as MPI does."""
    comm = ampi.COMM_WORLD
    x = np.asfortranarray(np.arange(6.0).reshape(2, 3) + comm.rank)
    d, y = cuda.to_device(x), cuda.device_array(6)
    comm.Sendrecv(d, (comm.rank + 1) % comm.size, recvbuf=y, source=(comm.rank - 1) % comm.size)
    np.testing.assert_array_equal(
        ampi.value(y.copy_to_host()), np.array([0, 3, 1, 4, 2, 5.0]) + (comm.rank - 1) % comm.size
    )
    with pytest.raises(BufferError, match="not contiguous"):
        comm.Send(d[:, ::2], MPI.PROC_NULL)


@pytest.mark.mpi
def test_device_for():
    comm = ampi.COMM_WORLD
    found = ampi.device_for(comm)
    assert found.number == -1 and found.gpus == 0 and found.shared_by == comm.size


IN_A_TIME_LOOP = """
import numpy as np
import ampi
import ampi.cuda as cuda
import ampi.numpy as anp

comm = ampi.COMM_WORLD

def step(u):
    v = anp.zeros(3)
    requests = [comm.Irecv(v, (comm.rank - 1) % comm.size), comm.Isend(u, (comm.rank + 1) % comm.size)]
    ampi.MPI.Request.Waitall(requests)
    return v * 1.5

def loss(x):
    u = ampi.timeloop(step, x, 3, checkpoints=2)  # gives requests methods of their own
    d, y = cuda.to_device(u), cuda.to_device(anp.zeros(3))
    requests = [comm.Irecv(y, (comm.rank - 1) % comm.size), comm.Isend(d, (comm.rank + 1) % comm.size)]
    ampi.MPI.Request.Waitall(requests)
    return anp.sum(y.copy_to_host() ** 2)

x = np.arange(3.0) + 1.0
np.testing.assert_allclose(ampi.grad(loss)(x), 2 * 1.5**6 * x)
"""


def test_messages_after_a_time_loop(tmp_path):
    path = tmp_path / "loop.py"
    path.write_text(IN_A_TIME_LOOP)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=patience(100))
    assert done.returncode == 0, done.stderr

"""Messages of the thread of a tape while tasks run: what they overwrite is noted as writes of tasks are."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy
import pytest
from patience import patience

import ampi
import ampi.numpy as np

comm = ampi.COMM_WORLD
X = numpy.array([0.4, 0.7, 1.1]) + 0.1 * comm.rank


def receive(x, buffer):
    request = comm.Isend(x, (comm.rank + 1) % comm.size)
    comm.Recv(buffer, (comm.rank - 1) % comm.size)
    return request


def receive_by_request(x, buffer):
    return comm.Irecv(buffer, (comm.rank - 1) % comm.size), comm.Isend(x, (comm.rank + 1) % comm.size)


def receive_by_persistent_request(x, buffer):
    request = comm.Recv_init(buffer, (comm.rank - 1) % comm.size)
    request.Start()
    return request, comm.Isend(x, (comm.rank + 1) % comm.size)


def reduce(x, buffer):
    comm.Allreduce(x, buffer)


def reduce_by_request(x, buffer):
    return comm.Iallreduce(x, buffer)


def exchange(x, buffer):
    comm.Sendrecv(x, (comm.rank + 1) % comm.size, recvbuf=buffer, source=(comm.rank - 1) % comm.size)


def finish(requests):
    if requests is not None:
        requests = requests if isinstance(requests, tuple) else (requests,)
        ampi.Request.Waitall(requests)
        for request in requests:
            if isinstance(request, ampi.Prequest):
                request.Free()


MESSAGES = [receive, receive_by_request, receive_by_persistent_request, reduce, reduce_by_request, exchange]


@pytest.mark.mpi
@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("message", MESSAGES)
def test_a_task_waits_for_messages(message, early):
    """The buffer is the same each time; the task that reads it is submitted before the message has come."""

    def f(x, by_tasks):
        y, buffer, total = x * 1.0, np.zeros(3), 0.0
        with ThreadPoolExecutor(1) as pool:
            for _ in range(4):
                came = threading.Event()

                def read(came=came):
                    assert came.wait(patience(60))
                    return np.sum(buffer * buffer * x)

                future = pool.submit(read) if by_tasks and early else None
                requests = message(y, buffer)
                future = pool.submit(read) if by_tasks and not early else future
                finish(requests)
                came.set()
                total = total + (future.result() if by_tasks else read())
                y *= x
        return total

    found = ampi.grad(lambda x: f(x, True))(X)
    numpy.testing.assert_allclose(found, ampi.grad(lambda x: f(x, False))(X), rtol=1e-13)
    tangent = ampi.jvp(lambda x: f(x, True), (X,), (X,))[1]
    assert comm.allreduce(float(tangent)) == pytest.approx(comm.allreduce(float(found @ X)), rel=1e-13)


@pytest.mark.mpi
@pytest.mark.parametrize("message", MESSAGES)
def test_a_task_that_writes_to_what_is_sent(message):
    def f(x):
        y, buffer, total = x * 1.0, np.zeros(3), 0.0
        with ThreadPoolExecutor(1) as pool:
            for k in range(3):
                future = pool.submit(y.__imul__, 0.5) if k == 2 else pool.submit(np.sum, x)
                finish(message(y, buffer))
                total = total + np.sum(buffer)
                future.result()
        return total

    with pytest.raises(ampi.ActivityError, match="at the same time"):
        ampi.grad(f)(X)


@pytest.mark.mpi
@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_and_a_task_in_a_race(message):
    def f(x):
        buffer, total = np.zeros(3), 0.0
        with ThreadPoolExecutor(1) as pool:
            for k in range(3):
                future = pool.submit(lambda: np.sum(buffer * x)) if k == 2 else pool.submit(np.sum, x)
                finish(message(x, buffer))
                total = total + future.result()
        return total

    with pytest.raises(ampi.ActivityError, match="at the same time"):
        ampi.grad(f)(X)

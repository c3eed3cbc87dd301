"""Nonblocking and persistent collectives: the programs of the blocking ones with each call replaced by a start and
its completion, and what only these forms can get wrong: orders of waits, operations in between, and unseen
completions.
"""

import numpy
import pytest
import test_collectives as blocking
from mpi4py import MPI
from test_collectives import MOVES, OPS, REDUCTIONS

import ampi
import ampi.numpy
from ampi.mpi import COMM_WORLD
from ampi.mpi.namespace import BASE

pytestmark = pytest.mark.mpi

RANK, SIZE = COMM_WORLD.rank, COMM_WORLD.size


# ------------------------------------------------------------------------------------------------------- the forms


def with_wait(request):
    request.Wait()


def with_test(request):
    while not request.Test():
        pass


def with_waitall(request):
    MPI.Request.Waitall([MPI.REQUEST_NULL, request])


def with_testall(request):
    while not MPI.Request.Testall([request]):
        pass


def with_waitany(request):
    assert MPI.Request.Waitany([MPI.REQUEST_NULL, request]) == 1


def with_testany(request):
    while not MPI.Request.Testany([request])[1]:
        pass


def with_waitsome(request):
    assert MPI.Request.Waitsome([request]) == [0]


def with_testsome(request):
    while not MPI.Request.Testsome([request]):
        pass


def with_lowercase(request):
    request.wait()


def with_original(request):
    """Complete by mpi4py's own class, which ampi does not see."""
    BASE["Request"].Waitall([request])


COMPLETIONS = [
    with_wait,
    with_test,
    with_waitall,
    with_testall,
    with_waitany,
    with_testany,
    with_waitsome,
    with_testsome,
    with_lowercase,
    with_original,
]


class Other:
    """A communicator whose blocking collectives are calls of another form."""

    def __init__(self, comm, call, names):
        self.comm = comm
        self.call = call
        self.names = names

    def __getattr__(self, name):
        if name in self.names:
            return lambda *arguments, **keywords: self.call(self.comm, name, arguments, keywords)
        return getattr(self.comm, name)


FORMS = set(blocking.blocking_collectives())


def nonblocking(complete):
    def call(comm, name, arguments, keywords):
        complete(getattr(comm, f"I{name[0].lower()}{name[1:]}")(*arguments, **keywords))

    return lambda make_comm: lambda comm: Other(make_comm(comm), call, FORMS) if comm is COMM_WORLD else make_comm(comm)


def persistent(complete):
    def call(comm, name, arguments, keywords):
        request = getattr(comm, f"{name}_init")(*arguments, **keywords)
        if complete is with_waitall:
            MPI.Prequest.Startall([request])
        else:
            request.Start()
        complete(request)
        request.Free()

    return lambda make_comm: lambda comm: Other(make_comm(comm), call, FORMS) if comm is COMM_WORLD else make_comm(comm)


@pytest.mark.parametrize("make_comm", [blocking.world, blocking.backwards])
@pytest.mark.parametrize("form", [nonblocking, persistent])
@pytest.mark.parametrize("case", MOVES)
def test_moving_data(case, form, make_comm):
    blocking.check(form(with_wait)(make_comm), "float64", case)


@pytest.mark.parametrize("form", [nonblocking, persistent])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("case", REDUCTIONS)
def test_reductions(case, op, form):
    blocking.check(form(with_wait)(blocking.world), "float64", case, OPS[op])


# MPICH 5.0 itself fails with the other methods on persistent collectives.
PERSISTENT = [with_wait, with_test, with_waitall, with_lowercase, with_original]


@pytest.mark.parametrize(
    ("complete", "form"),
    [*((complete, nonblocking) for complete in COMPLETIONS), *((complete, persistent) for complete in PERSISTENT)],
)
def test_every_completion(complete, form):
    blocking.check(form(complete)(blocking.world), "float64", blocking.allgather_in_place)
    blocking.check(form(complete)(blocking.world), "complex128", blocking.allreduce_in_place, MPI.PROD)


# -------------------------------------------------------------------------------------------------- orders of waits


def several(np, comm, u):
    """Collectives with one and with several reverse steps in flight at once; each rank waits in a different order."""
    v = [np.zeros(u.shape, u.dtype) for _ in range(4)]
    requests = [
        comm.Iallreduce(u, v[0], MPI.SUM),
        comm.Iallreduce(u, v[1], MPI.PROD),
        comm.Iscan(u, v[2], MPI.SUM),
        comm.Ialltoall(u, v[3]),
    ]
    k = comm.Get_rank() % 4
    for request in requests[k:] + requests[:k][::-1]:
        request.Wait()
    return v[0] * v[1] + v[2] * v[3]


def blocking_between(np, comm, u):
    """Some ranks wait before a blocking collective, others after it."""
    v, w = np.zeros(u.shape, u.dtype), np.zeros(u.shape, u.dtype)
    request = comm.Iallreduce(u, v, MPI.MAX if u.dtype.kind == "f" else MPI.PROD)
    other = comm.Ibcast(w, 0) if comm.Get_rank() else comm.Ibcast(u, 0)
    if comm.Get_rank() % 2:
        request.Wait()
    x = u * u
    comm.Allreduce(MPI.IN_PLACE, x, MPI.SUM)
    if not comm.Get_rank() % 2:
        other.Wait()
        request.Wait()
    else:
        other.Wait()
    return v * x + w


def messages_between(np, comm, u):
    """A rank sends between start and wait a message that another receives before its own start."""
    size, rank = comm.Get_size(), comm.Get_rank()
    v, w = np.zeros(u.shape, u.dtype), np.zeros(u.shape, u.dtype)
    if rank == 0:
        requests = [comm.Iallreduce(u, v, MPI.PROD), comm.Iallreduce(u, w, MPI.SUM)]
        for r in range(1, size):
            comm.Ssend(u, r)
    else:
        z = np.zeros(u.shape, u.dtype)
        comm.Recv(z, 0)
        z = z * u
        requests = [comm.Iallreduce(z, v, MPI.PROD), comm.Iallreduce(z, w, MPI.SUM)]
    MPI.Request.Waitall(requests)
    return v * w


def objects_between(np, comm, u):
    v = np.zeros(u.shape, u.dtype)
    request = comm.Iallreduce(u, v)
    w = comm.bcast(u)
    request.Wait()
    return v * w


def overlapped_in_place(np, comm, u):
    """Persistent collectives on one buffer, again and again."""
    v = u * 1
    init = comm.Allreduce_init(MPI.IN_PLACE, v, MPI.PROD)
    w = v * v
    for _ in range(3):
        init.Start()
        init.Wait()
        w = w + v * v
        v *= u
        v /= 1 + np.sum(v * v)
    init.Free()
    return w


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.parametrize("make_comm", [blocking.world, blocking.backwards])
@pytest.mark.parametrize("case", [several, blocking_between, messages_between, objects_between, overlapped_in_place])
def test_orders(case, make_comm, dtype):
    if case is objects_between and dtype == "complex128":
        pytest.skip("one dtype is enough")
    blocking.check(make_comm, dtype, case)


def test_unseen_completion_beside_messages():
    """mpi4py's own class completes the request; the result is used and sent on before ampi learns of it."""

    def run(np, comm, u):
        v = np.zeros(u.shape, u.dtype)
        if comm.Get_rank() == 0:
            request = comm.Iallreduce(u, v, MPI.PROD)
            for r in range(1, comm.Get_size()):
                comm.Send(u, r)
        else:
            w = np.zeros(u.shape, u.dtype)
            comm.Recv(w, 0)
            request = comm.Iallreduce(w * u, v, MPI.PROD)
        BASE["Request"].Wait(request)
        x = np.zeros(u.shape, u.dtype)
        comm.Sendrecv(v, (comm.Get_rank() + 1) % comm.Get_size(), 3, x, (comm.Get_rank() - 1) % comm.Get_size(), 3)
        return x

    blocking.check(blocking.world, "float64", run)


# ------------------------------------------------------------------------------------------------------- mistakes


def test_never_completed(monkeypatch):
    monkeypatch.setenv("AMPI_TIMEOUT", "5")
    comm = COMM_WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        y = ampi.numpy.zeros(2)
        request = comm.Iallreduce(x, y)
    with pytest.raises(ampi.CommunicationError, match=r"Iallreduce.*test_nonblocking_collectives.py:\d+.*completed"):
        tape.gradient(y, x, seed=numpy.ones(2))
    request.Wait()


def test_completed_after_the_tape():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.array([2.0, 3.0]))
        y = ampi.numpy.zeros(2)
        request = COMM_WORLD.Iallreduce(x, y)
    request.Wait()
    assert numpy.array_equal(tape.gradient(y, x, seed=numpy.ones(2)), numpy.full(2, SIZE))


def test_active_values_into_untracked_memory():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        with pytest.raises(ampi.ActivityError, match=r"Iallreduce: .*not tracked"):
            COMM_WORLD.Iallreduce(x, numpy.zeros(2))
        init = COMM_WORLD.Allreduce_init(x, numpy.zeros(2))
        with pytest.raises(ampi.ActivityError, match=r"Allreduce_init: .*not tracked"):
            init.Start()
        init.Free()


def test_passive_collectives_pass():
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        n = numpy.zeros(2, int)
        requests = [COMM_WORLD.Iallreduce(numpy.array([1, RANK]), n), COMM_WORLD.Ibarrier()]
        MPI.Request.Waitall(requests)
        with ampi.passive():
            y = ampi.numpy.zeros(2)
            COMM_WORLD.Iallreduce(x, y).Wait()
        z = x * y * n[0]
    assert numpy.array_equal(tape.gradient(z, x, seed=numpy.ones(2)), numpy.full(2, SIZE**2))

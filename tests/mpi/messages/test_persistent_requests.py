"""Persistent requests compared with nonblocking ones: random halo exchanges in forward mode, second order and walks.

All ranks generate the same random plan; `exchange` executes it with requests of one kind or the other, and the results
must be the same. The derivatives are compared with the reverse sweep by dot products.
"""

import numpy
import pytest
from forward_check import pairing
from mpi4py import MPI
from programs import WORLD

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

pytestmark = pytest.mark.mpi

RANK, SIZE = WORLD.rank, WORLD.size
WIDTH = 4


class Plan:
    """Messages around the ring, and the orders and methods of their starts and completions."""

    def __init__(self, number):
        rng = numpy.random.default_rng([number, SIZE])
        self.sweeps = int(rng.integers(1, 4))
        count = int(rng.integers(1, 5))
        self.messages = []  # distance around the ring, tag, elements, where they are in the field, where they come to
        for k in range(count):
            n = int(rng.integers(0 if rng.random() < 0.1 else 1, 4))
            start = int(rng.integers(0, WIDTH - n + 1))
            step = int(rng.integers(1, max(SIZE, 2)))
            alone = step not in {m[0] for m in self.messages}
            self.messages.append((step, 5 if alone and rng.random() < 0.3 else 10 + k, n, start))
        self.joint = rng.random() < 0.7  # all messages are received into one array
        self.wild = rng.random() < 0.15 and count == 1
        self.any_tag = rng.random() < 0.2 and len({m[0] for m in self.messages}) == count
        self.starts = [rng.choice(["Startall", "Start", "two", "receives first"]) for _ in range(self.sweeps)]
        self.ends = [
            rng.choice(["Waitall", "Wait", "Waitany", "Waitsome", "Test", "Testall", "Testany", "Testsome", "statuses"])
            for _ in range(self.sweeps)
        ]
        self.between = rng.random(self.sweeps) < 0.5
        self.orders = [rng.permutation(2 * count) for _ in range(2 * self.sweeps)]
        self.mode = rng.choice(["Send", "Ssend"])
        self.collective = rng.choice(
            ["", "Allreduce", "Bcast", "Allgather", "Neighbor_alltoall"], p=[0.5] + [0.125] * 4
        )
        self.partitions = int(rng.choice([0, 0, 0, 1, 2]))
        self.early = rng.random() < 0.5  # partitions are tested one by one
        self.dtype = rng.choice(["d", "d", "D", "f"])


def complete(how, requests, order):
    """Complete all requests by one of their methods."""
    some = list(requests)
    if how == "Waitall":
        MPI.Request.Waitall(some)
    elif how == "statuses":
        MPI.Request.Waitall(some, [MPI.Status() for _ in some])
    elif how == "Testall":
        while not MPI.Request.Testall(some):
            pass
    elif how in ("Wait", "Test"):
        for k in order:
            if k < len(some):
                while not getattr(some[k], how)():
                    pass
        for request in some[len(order) :]:
            request.Wait()
    else:
        left = list(some)
        while left:
            if how == "Waitany":
                ended = [MPI.Request.Waitany(left)]
            elif how == "Testany":
                index, flag = MPI.Request.Testany(left)
                ended = [index] if flag else []
            else:
                ended = getattr(MPI.Request, how)(left) or []
            left = [request for k, request in enumerate(left) if k not in ended]


def exchange(plan, comm, ring, x, persistent):
    """Repeated halo exchanges of a field."""
    u = x.astype(plan.dtype)
    total = sum(m[2] for m in plan.messages)
    joint = np.zeros(total, plan.dtype)
    rooms, at = [], 0
    for _, _, n, _ in plan.messages:
        rooms.append(joint[at : at + n] if plan.joint else np.zeros(n, plan.dtype))
        at += n
    kind = MPI._typedict[plan.dtype]
    going = np.zeros(WIDTH, plan.dtype)
    block = np.zeros(2 * SIZE, plan.dtype)
    given = {
        "Allreduce": (going, block[:WIDTH] if SIZE > 1 else np.zeros(WIDTH, plan.dtype)),
        "Bcast": (going, SIZE - 1),
        "Allgather": (going[:2], block),
        "Neighbor_alltoall": (going, np.zeros(WIDTH, plan.dtype)),
    }
    make = []
    for (step, tag, n, start), room in zip(plan.messages, rooms):
        source = MPI.ANY_SOURCE if plan.wild else (RANK - step) % SIZE
        there = MPI.ANY_TAG if plan.any_tag else tag
        make.append(("Irecv", "Recv_init", (room, source, there)))
        make.append(
            (f"I{plan.mode.lower()}", f"{plan.mode}_init", (going[start : start + n], (RANK + step) % SIZE, tag))
        )
    ps = []
    halves, came = np.zeros(WIDTH, plan.dtype), np.zeros(WIDTH, plan.dtype)
    if plan.partitions:
        parts = plan.partitions
        ps = [
            comm.Psend_init([halves, WIDTH // parts, kind], parts, (RANK + 1) % SIZE, 99),
            comm.Precv_init([came, WIDTH // parts, kind], parts, (RANK - 1) % SIZE, 99),
        ]
    if plan.collective:
        name = plan.collective
        where = ring if name.startswith("Neighbor") else comm
        started = f"I{name[0].lower()}{name[1:]}"
        make.append((started, f"{name}_init", (*given[name], where)))

    def methods(which):
        for blocking, init, arguments in make:
            name, where = (init if persistent else blocking), comm
            if init.split("_init")[0] == plan.collective:
                *arguments, where = arguments
            if which(init):
                yield getattr(where, name)(*arguments)

    kept = list(methods(lambda init: True)) if persistent else []
    for k in range(plan.sweeps):
        going[...] = np.sin(u) * (1.0 + 0.1 * k)
        halves[...] = u * u
        order = plan.orders[2 * k]
        if persistent:
            several = [kept[int(i)] for i in order]
            several += kept[len(order) :]
            if plan.starts[k] == "Startall":
                MPI.Prequest.Startall(several)
            elif plan.starts[k] == "two":
                MPI.Prequest.Startall(several[:1])
                MPI.Prequest.Startall(several[1:])
            elif plan.starts[k] == "receives first":
                MPI.Prequest.Startall(kept[0 : len(order) : 2])
                MPI.Prequest.Startall([*kept[1 : len(order) : 2], *kept[len(order) :]])
            else:
                for request in several:
                    request.Start()
            requests = kept
        else:
            requests = list(methods(lambda init: True))
        if ps:
            MPI.Prequest.Startall(ps)
            for part in range(plan.partitions):
                ps[0].Pready(part)
        if plan.between[k]:
            u = u + 0.1 * np.cos(u)
        if ps and plan.early:
            for part in range(plan.partitions):
                while not ps[1].Parrived(part):
                    pass
        how = plan.ends[k]
        if plan.collective and persistent and how.startswith("Test"):
            how = "Waitall"  # MPICH's tests of persistent collectives are wrong
        complete(how, requests, plan.orders[2 * k + 1])
        if ps:
            MPI.Request.Waitall(ps)
        for room in rooms:
            u = u + 0.3 * np.sum(room * room)
        if plan.partitions:
            u = u * (1.0 + 0.1 * came)
        if plan.collective == "Bcast":
            u = u + going
        elif plan.collective:
            u = u + 0.2 * np.sum(np.sin(given[plan.collective][1]))
    result = np.sum((u * np.conj(u)).real * numpy.arange(1.0, WIDTH + 1)) / 10
    for request in [*kept, *ps]:
        request.Free()
    return result


def check(number):
    """One plan in every mode."""
    plan = Plan(number)
    rng = numpy.random.default_rng([number, RANK])
    x, v, w = (rng.uniform(-1, 1, WIDTH) for _ in range(3))
    if plan.dtype == "D":
        x, v, w = (a + 1j * rng.uniform(-1, 1, WIDTH) for a in (x, v, w))
    tolerance = 2e-4 if plan.dtype == "f" else 1e-11

    ring = COMM_WORLD.Create_cart([SIZE], [True])

    def f(x):
        return exchange(plan, COMM_WORLD, ring, x, True)

    def plainly(x):
        return exchange(plan, COMM_WORLD, ring, x, False)

    def same(a, b, what):
        numpy.testing.assert_allclose(a, b, tolerance, tolerance, err_msg=f"{what} of plan {number}")

    y, y_dot = ampi.jvp(f, x, v)
    same((y, y_dot), ampi.jvp(plainly, x, v), "jvp")
    same(WORLD.allreduce(float(y_dot)), WORLD.allreduce(pairing([ampi.grad(f)(x)], [v])), "dot product")
    _, both = ampi.jvp(f, (x,), (numpy.stack([v, w]),), vectorised=True)
    same(both[0], y_dot, "vector mode")
    same(both[1], ampi.jvp(plainly, x, w)[1], "vector mode")
    _, push = ampi.linearize(f, x)
    same(push(v), y_dot, "walk")
    same(ampi.hvp(f, x, v), ampi.hvp(plainly, x, v), "hvp")
    ring.Free()


@pytest.mark.parametrize("number", range(6))
def test_persistent_halo(number):
    check(number)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(100, 110))
def test_many_persistent_halos(number):
    for k in range(20):
        check(20 * number + k)


@pytest.mark.parametrize("together", [True, False])
def test_halo_of_a_textbook(together):
    """Two receives into parts of one array."""
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE

    def f(x):
        u = np.zeros(5)
        u[1:4] = x
        requests = [COMM_WORLD.Recv_init(u[:1], before, 1), COMM_WORLD.Recv_init(u[4:], after, 2)]
        requests += [COMM_WORLD.Send_init(u[3:4], after, 1), COMM_WORLD.Send_init(u[1:2], before, 2)]
        for _ in range(3):
            if together:
                MPI.Prequest.Startall(requests)
            else:
                for request in requests:
                    request.Start()
            MPI.Request.Waitall(requests)
            u[1:4] = np.sin(u[1:4] + u[:3] - u[2:])
        for request in requests:
            request.Free()
        return np.sum(u)

    x, v = numpy.arange(3.0) + RANK, numpy.ones(3)
    expected = WORLD.allreduce(float(numpy.dot(ampi.grad(f)(x), v)))
    assert abs(WORLD.allreduce(float(ampi.jvp(f, x, v)[1])) - expected) < 1e-12
    assert abs(WORLD.allreduce(float(ampi.linearize(f, x)[1](v))) - expected) < 1e-12
    step = lambda h: ampi.grad(f)(x + h * v)
    numpy.testing.assert_allclose(ampi.hvp(f, x, v), (step(1e-5) - step(-1e-5)) / 2e-5, 1e-6, 1e-8)

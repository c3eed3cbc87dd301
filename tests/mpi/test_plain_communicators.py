"""mpi4py's own communicators beside ampi: active values raise an error that names the remedy, others pass."""

import inspect

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.mpi.namespace import BASE

pytestmark = pytest.mark.mpi

WORLD = BASE["COMM_WORLD"]
MPI = ampi.MPI
FORMS = {
    "array": lambda x: x * 1.0,
    "view": lambda x: x[:-1],
    "0-d": lambda x: np.sum(x * x),
    "element": lambda x: x[0],
    "list": lambda x: [x, x.size, MPI.DOUBLE],
    "vector": lambda x: [x, ([x.size], [0]), MPI.DOUBLE],
}
OBJECTS = {
    "array": lambda x: x,
    "number": lambda x: x[1],
    "dictionary": lambda x: {"a": [x]},
    "object": lambda x: Thing(x),
}
CLASSES = "Comm Intracomm Topocomm Message".split()


class Thing:
    def __init__(self, x):
        self.x = x


def methods(*names):
    """Methods of mpi4py's classes that have a parameter with one of these names, or that take buffers."""
    for owner in CLASSES:
        for name, method in vars(BASE[owner]).items():
            if name[0] == "_" or not callable(method) or name in ("recv", "irecv"):
                continue
            found = [
                p.name
                for p in inspect.signature(method).parameters.values()
                if p.name in names or (not names and "BufSpec" in str(p.annotation))
            ]
            for parameter in found:
                yield f"{owner}.{name}", parameter


def instance(owner):
    if owner == "Topocomm":
        return WORLD.Create_cart([WORLD.size], [True])
    if owner == "Message":
        requests = [WORLD.Isend(numpy.zeros(3), WORLD.rank)]
        message = WORLD.Mprobe(WORLD.rank)
        instance.kept = requests
        return message
    return WORLD


def others(method, given):
    """The other arguments of a call that must be refused before any of them is used."""
    found = {}
    for p in inspect.signature(method).parameters.values():
        if p.default is p.empty and p.name not in ("self", given):
            buffer = "BufSpec" in str(p.annotation)
            found[p.name] = numpy.zeros(4 * WORLD.size) if buffer else WORLD.rank if p.name == "dest" else 1
    return found


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("call", list(methods()), ids="-".join)
def test_active_buffers_are_refused(call, form):
    (owner, name), parameter = call[0].split("."), call[1]
    self = instance(owner)
    method = vars(BASE[owner])[name]
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0))
        arguments = {**others(method, parameter), parameter: FORMS[form](x)}
        with pytest.raises(ampi.ActivityError, match=r"test_plain_communicators\.py:\d+: .*use ampi\.COMM_WORLD"):
            getattr(self, name)(**arguments)
        with pytest.raises(ampi.ActivityError, match=r"ampi\.COMM_WORLD"):
            method(self, **arguments)
    finish(self)


def finish(self):
    if isinstance(self, BASE["Message"]):
        self.Recv(numpy.zeros(3))
        instance.kept[0].Wait()
    elif self is not WORLD:
        self.Free()


@pytest.mark.parametrize("form", OBJECTS)
@pytest.mark.parametrize("call", list(methods("obj", "sendobj")), ids="-".join)
def test_active_objects_are_refused(call, form):
    (owner, name), parameter = call[0].split("."), call[1]
    self = instance(owner)
    method = vars(BASE[owner])[name]
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0))
        given = OBJECTS[form](x)
        many = name in ("scatter", "alltoall", "neighbor_alltoall")
        count = 2 if owner == "Topocomm" else WORLD.size
        arguments = {**others(method, parameter), parameter: [given] * count if many else given}
        if name in ("bcast", "scatter"):  # with a root, each rank for itself: others would wait
            self = BASE["COMM_SELF"]
            arguments = {parameter: [given] if many else given}
        with pytest.raises(ampi.ActivityError, match=r"ampi\.COMM_WORLD"):
            getattr(self, name)(**arguments)


def test_inactive_data_pass():
    rank, size = WORLD.rank, WORLD.size
    with ampi.Tape() as tape:
        x = tape.watch(numpy.arange(3.0))
        total = np.zeros(3)
        WORLD.Allreduce(np.ones(3), total)
        WORLD.Allreduce(ampi.value(x), received := numpy.zeros(3))
        assert WORLD.allreduce(rank) == sum(range(size))
        assert WORLD.bcast({"a": [Thing(2.0)]})["a"][0].x == 2.0
        assert WORLD.bcast(None) is None
        requests = [WORLD.isend({"x": numpy.ones(2)}, (rank + 1) % size, 5)]
        assert WORLD.recv(source=(rank - 1) % size, tag=5)["x"][1] == 1.0
        requests[0].wait()
        y = np.sum(x * total)
    assert numpy.allclose(tape.gradient(y, x), size) and numpy.allclose(received, size * numpy.arange(3.0))
    WORLD.Allreduce(x, received)  # no tape is open
    with ampi.Tape() as tape, ampi.passive():
        WORLD.Allreduce(tape_x := np.array(x), received)
        assert tape_x.size == 3


def test_what_is_needed_is_saved_before_a_receive():
    def program(x):
        w = np.arange(1.0, 4.0)
        y = np.sum(x * w)
        WORLD.Allreduce(numpy.ones(3), w)
        return y + np.sum(x * w)

    assert numpy.allclose(ampi.grad(program)(numpy.ones(3)), numpy.arange(1.0, 4.0) + WORLD.size)


def test_a_method_that_was_bound_before_and_duplicates():
    send, duplicate = WORLD.Isend, WORLD.Dup()
    with ampi.Tape() as tape:
        x = tape.watch(numpy.ones(2))
        for call in (send, duplicate.Isend, duplicate.Issend):
            with pytest.raises(ampi.ActivityError, match=r"ampi\.COMM_WORLD"):
                call(x, WORLD.rank)
    duplicate.Free()


@pytest.mark.parametrize("together", [False, True])
def test_persistent_requests_from_before_the_tape(together):
    sent, received = np.zeros(2), np.zeros(2)
    requests = [WORLD.Send_init(sent, WORLD.rank, 3), WORLD.Recv_init(received, WORLD.rank, 3)]
    with ampi.Tape() as tape:
        sent[...] = tape.watch(numpy.ones(2)) * 2.0
        with pytest.raises(ampi.ActivityError, match=r"ampi\.COMM_WORLD"):
            MPI.Prequest.Startall(requests) if together else requests[0].Start()
    MPI.Prequest.Startall(requests)
    MPI.Request.Waitall(requests)
    assert numpy.allclose(received, 2.0)
    for request in requests:
        request.Free()


def test_forward_mode_is_refused_as_well():
    with pytest.raises(ampi.ActivityError, match=r"ampi\.COMM_WORLD"):
        ampi.jvp(lambda x: WORLD.allreduce(x), (numpy.ones(2),), (numpy.ones(2),))


def test_windows_files_and_packing_of_mpi4pys_communicator_are_differentiated():
    def program(x):
        memory = np.zeros(2)
        window = MPI.Win.Create(memory, 8, comm=WORLD)
        window.Fence()
        window.Put(x, WORLD.rank)
        window.Fence()
        packed, unpacked = np.zeros(16, numpy.uint8), np.zeros(2)
        MPI.DOUBLE.Pack(x, packed, 0, WORLD)
        MPI.DOUBLE.Unpack(packed, 0, unpacked, WORLD)
        windows.append(window)
        return np.sum(memory**2) + np.sum(unpacked)

    windows = []
    assert numpy.allclose(ampi.grad(program)(numpy.array([1.0, 2.0])), [3.0, 5.0])
    windows[0].Free()

"""The census of a tape's sweep, compared with the MPI calls of the sweep."""

import collections

import numpy
import pytest
from mpi4py import MPI as mpi

import ampi
import ampi.numpy as np
from ampi.mpi.log.reverse import COLLECTIVE_TAG, FIRST_TAG
from ampi.mpi.windows.shadow import Shadow
from ampi.scaling.census import PRIMAL, SWEEP, Census, Count

pytestmark = [pytest.mark.mpi, pytest.mark.filterwarnings("ignore:.*carries no derivative")]

OPS = {"sum": mpi.SUM, "max": mpi.MAX}


class Counting(mpi.Intracomm):
    """A reverse communicator that counts its calls, except for those of the agreement before a sweep."""

    def __new__(cls, comm):
        self = super().__new__(cls, comm)
        self.seen = collections.Counter()
        return self


def _counted(name, plain):
    method = getattr(mpi.Intracomm, name)

    def call(self, *arguments, **keywords):
        if not plain.endswith("end") and not plain.endswith("ceive"):
            self.seen[plain, 0] += 1
        elif arguments[2] >= FIRST_TAG or arguments[2] == COLLECTIVE_TAG:
            self.seen[plain, numpy.asarray(arguments[0]).nbytes] += 1
        return method(self, *arguments, **keywords)

    return call


NAMES = {
    "Isend": "send", "Irecv": "receive", "Ireduce": "Reduce", "Ibcast": "Bcast", "Iallreduce": "Allreduce",
    "Iscatterv": "Scatter", "Igatherv": "Gather", "Ireduce_scatter": "Reduce_scatter", "Iallgatherv": "Allgather",
    "Ialltoallv": "Alltoall", "Iexscan": "Exscan",
}  # fmt: skip
for _name, _plain in NAMES.items():
    setattr(Counting, _name, _counted(_name, _plain))


def ring(comm, x):
    y = np.zeros(x.size)
    comm.Sendrecv(x, (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size, 0)
    return y


def halo(comm, x):
    y = np.zeros(x.size)
    requests = []
    for k, other in enumerate((comm.rank - 1, comm.rank + 1)):
        if 0 <= other < comm.size:
            requests += [comm.Irecv(y[2 * k : 2 * k + 1], other), comm.Isend(x[k : k + 1].copy(), other)]
    ampi.MPI.Request.Waitall(requests)
    return y


def passive(comm, x):
    """Messages without derivatives have no adjoint."""
    y = numpy.zeros(2, int)
    comm.Sendrecv(numpy.ones(2, int), (comm.rank + 1) % comm.size, 0, y, (comm.rank - 1) % comm.size, 0)
    return x * float(y[0])


def bcast(comm, x):
    y = x.copy()
    comm.Bcast(y, comm.size - 1)
    return y


def reduced(op):
    def program(comm, x):
        y = np.zeros(x.size)
        comm.Allreduce(x * (1 + comm.rank), y, OPS[op])
        return y

    return program


def reduce(comm, x):
    y = np.zeros(x.size)
    comm.Reduce(x, y, root=0)
    return y


def gather(comm, x):
    every, y = np.zeros(comm.size * x.size), np.zeros(x.size)
    comm.Gather(x, every)
    comm.Scatter(every, y)
    return y


def allgather(comm, x):
    every = np.zeros(comm.size * x.size)
    comm.Allgather(x, every)
    return every


def alltoall(comm, x):
    every = np.zeros(comm.size * x.size)
    for k in range(comm.size):
        every[k * x.size : (k + 1) * x.size] = x * k
    there = np.zeros(every.size)
    comm.Alltoall(every, there)
    return there


def reduce_scatter(comm, x):
    y = np.zeros(1)
    comm.Reduce_scatter_block(np.ones(comm.size) * x[0], y)
    return y


def located(comm, x):
    pairs, best = (np.zeros(x.size, PAIR) for _ in range(2))
    pairs["value"] = x * (1 + comm.rank)
    pairs["location"] = comm.rank
    comm.Allreduce([pairs, mpi.DOUBLE_INT], [best, mpi.DOUBLE_INT], mpi.MAXLOC)
    return best["value"]


def neighbours(form):
    """Neighborhood collectives on a ring, in the forms in which MPI describes block sizes."""

    def program(comm, x):
        ring = comm.Create_cart([comm.size], periods=[True])
        count = 2 * x.size
        every = np.zeros(count)
        away = x if "gather" in form else np.concatenate([x, 2 * x])
        blocks = ([3, 3], [0, 3])
        if form.endswith("w"):
            types = [mpi.DOUBLE] * 2
            ring.Neighbor_alltoallw([away, ([3, 3], [0, 24]), types], [every, ([3, 3], [0, 24]), types])
        elif form.endswith("v"):
            getattr(ring, form)(away if "gather" in form else [away, blocks], [every, blocks])
        else:
            getattr(ring, form)(away, every)
        ring.Free()
        return every

    return program


PAIR = numpy.dtype([("value", float), ("location", "i4")], align=True)
NEIGHBOURS = [
    "Neighbor_allgather",
    "Neighbor_allgatherv",
    "Neighbor_alltoall",
    "Neighbor_alltoallv",
    "Neighbor_alltoallw",
]
PROGRAMS = {
    "ring": ring, "halo": halo, "passive": passive, "bcast": bcast, "sum": reduced("sum"), "max": reduced("max"),
    "reduce": reduce, "gather": gather, "allgather": allgather, "alltoall": alltoall, "reduce_scatter": reduce_scatter,
    "located": located,
}  # fmt: skip


def swept(program):
    """The census of a program's sweep, by operation and bytes (of messages); the MPI calls of the sweep; and the whole
    census."""
    comm = ampi.COMM_WORLD.Dup()
    census = Census()
    census.start()
    try:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.arange(1.0, 4.0))
            loss = np.sum(program(comm, x) ** 2)
    finally:
        census.stop()
    logs = tape.sweep_starts["communication"].logs.values() if "communication" in tape.sweep_starts else ()
    seen = collections.Counter()
    for log in logs:
        log.reverse.comm = Counting(log.reverse.comm)
        log.reverse.comm.seen = seen
    tape.gradient(loss, x)
    expected = collections.Counter()
    for key, count in census.counts.items():
        if key.phase == SWEEP:
            message = key.operation in ("send", "receive")
            nbytes = (count.sent + count.received) // count.calls if message else 0
            expected[key.operation, nbytes] += count.calls
    while MADE:
        MADE.pop().Free()
    comm.Free()
    return expected, +seen, census


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_sweep_sends_what_the_census_counts(name):
    expected, seen, census = swept(PROGRAMS[name])
    counts = census.counts
    assert not census.left_out
    if ampi.COMM_WORLD.size > 1 and name != "passive":
        assert expected
    assert seen == expected
    sizes = {(key.line, key.phase): (count.sent, count.received) for key, count in counts.items()}
    for (line, phase), (sent, received) in sizes.items():
        if phase == PRIMAL and (line, SWEEP) in sizes and name in ("bcast", "sum", "allgather", "alltoall", "gather"):
            assert sizes[line, SWEEP] == (received, sent)


@pytest.mark.parametrize("form", NEIGHBOURS)
def test_neighbourhoods(form):
    """Their adjoints are messages along the edges, of which the ring has two at each end."""
    expected, seen, census = swept(neighbours(form))
    assert seen == expected == {("send", 24): 2, ("receive", 24): 2}
    plain = form.rstrip("vw")
    (found,) = [(key, count) for key, count in census.counts.items() if key.phase == PRIMAL]
    size, rank = ampi.COMM_WORLD.size, ampi.COMM_WORLD.rank
    assert (found[0].operation, found[0].size) == (plain, size)
    assert (found[1].sent, found[1].received) == (48, 48)
    assert found[1].partners == {(rank - 1) % size, (rank + 1) % size}


SCANNED = {"sum": mpi.SUM, "prod": mpi.PROD, "max": mpi.MAX, "min": mpi.MIN}


@pytest.mark.parametrize("op", [*SCANNED, "minloc", "maxloc"])
@pytest.mark.parametrize("form", ["Scan", "Iscan", "Scan_init", "Exscan", "Iexscan", "Exscan_init"])
def test_scans(form, op):
    """For SUM the sweep sends a logarithmic number of messages, which the census reports as one entry."""

    def program(comm, x):
        if op in SCANNED:
            y = np.zeros(x.size)
            arguments = x * (1 + comm.rank), y, SCANNED[op]
        else:
            pairs, best = (np.zeros(x.size, PAIR) for _ in range(2))
            pairs["value"], y = x * (1 + comm.rank), best["value"]
            arguments = [pairs, mpi.DOUBLE_INT], [best, mpi.DOUBLE_INT], getattr(mpi, op.upper())
        request = getattr(comm, form)(*arguments)
        if form.endswith("_init"):
            request.Start()
        if request is not None:
            request.Wait()
        return y

    expected, seen, _ = swept(program)
    if ampi.COMM_WORLD.size == 1 and "xscan" in form.lower():
        assert not expected and not seen  # nothing is received
    elif op == "sum":
        assert set(expected) == {("suffix sums", 0)} and {what for what, _ in seen} <= {"send", "receive"}
        assert set(expected.values()) == {1}
    else:
        assert seen == expected and expected["Exscan", 0] == 1


# ----------------------------------------------------------------------------------------------- what logs do not have


MADE = []  # windows, freed before their communicator: else MPICH may wait for ever in Start of a later one


def fence(comm, x, do):
    win = ampi.MPI.Win.Allocate(24 * comm.size, 8, comm=comm)
    MADE.append(win)
    mine = np.array(win)
    win.Fence()
    y = do(win, x, (comm.rank + 1) % comm.size)
    win.Fence()
    result = (np.sum(mine) if y is None else np.sum(y)) * x
    return result


def start(comm, x, do):
    win = ampi.MPI.Win.Allocate(24 * comm.size, 8, comm=comm)
    MADE.append(win)
    mine = np.array(win)
    group = comm.Get_group()
    win.Post(group.Incl([(comm.rank - 1) % comm.size]))
    win.Start(group.Incl([(comm.rank + 1) % comm.size]))
    y = do(win, x, (comm.rank + 1) % comm.size)
    win.Complete()
    win.Wait()
    return (np.sum(mine) if y is None else np.sum(y)) * x


def lock(comm, x, do):
    win = ampi.MPI.Win.Allocate(24 * comm.size, 8, comm=comm)
    MADE.append(win)
    mine = np.array(win)
    comm.Barrier()
    win.Lock((comm.rank + 1) % comm.size)
    y = do(win, x, (comm.rank + 1) % comm.size)
    win.Unlock((comm.rank + 1) % comm.size)
    comm.Barrier()
    return (np.sum(mine) if y is None else np.sum(y)) * x


def fetching(name, op=mpi.SUM):
    def do(win, x, there):
        y = np.zeros(1 if name == "Fetch_and_op" else 3)
        if name == "Get":
            win.Get(y, there)
        elif name == "Fetch_and_op":
            win.Fetch_and_op(x[:1].copy(), y, there, 0, op)
        else:
            win.Get_accumulate(x, y, there, None, op)
        return y

    return do


ACCESSES = {
    "Put": lambda win, x, there: win.Put(x, there),
    "Get": fetching("Get"),
    "Accumulate": lambda win, x, there: win.Accumulate(x, there),
    "Accumulate of PROD": lambda win, x, there: win.Accumulate(x, there, None, mpi.PROD),
    "Get_accumulate": fetching("Get_accumulate"),
    "Get_accumulate of NO_OP": fetching("Get_accumulate", mpi.NO_OP),
    "Fetch_and_op": fetching("Fetch_and_op"),
}
EPOCHS = {"fence": fence, "start": start, "lock": lock}


@pytest.mark.parametrize("epoch", EPOCHS)
@pytest.mark.parametrize("name", ACCESSES)
def test_one_sided(name, epoch, monkeypatch):
    """Put, Get and the others, and what their adjoints do to the shadows of windows."""
    done = collections.Counter()
    exchange, taken = Shadow.exchange, Shadow.taken_later

    def exchanging(self, target, going, op, describe):
        if self.window.reverse.rank != target.rank or ampi.COMM_WORLD.size == 1:
            nbytes = target.count * target.dtype.itemsize
            done["Win.Get" if going is None else "Win.Get_accumulate", 0 if going is None else nbytes, nbytes] += 1
        return exchange(self, target, going, op, describe)

    def taking(self):
        entries = taken(self)
        done.update(("Win.Accumulate", going.nbytes, 0) for _, going in entries)
        return entries

    fences, deliver = [], Shadow.deliver
    monkeypatch.setattr(Shadow, "deliver", lambda *arguments: fences.append(1) or deliver(*arguments))
    monkeypatch.setattr(Shadow, "exchange", exchanging)
    monkeypatch.setattr(Shadow, "taken_later", taking)
    _, _, census = swept(lambda comm, x: EPOCHS[epoch](comm, x, ACCESSES[name]))
    plain = name.partition(" ")[0]
    primal, sweep = {}, {}
    for key, count in census.counts.items():
        (primal if key.phase == PRIMAL else sweep).setdefault(key.operation, Count()).add(count)
    nbytes = 8 if plain == "Fetch_and_op" else 24
    sent, came = 0 if plain == "Get" or "NO_OP" in name else nbytes, nbytes if plain[0] in "GF" else 0
    count = primal[f"Win.{plain}"]
    assert (count.calls, count.sent, count.received) == (1, sent, came)
    assert count.partners == {(ampi.COMM_WORLD.rank + 1) % ampi.COMM_WORLD.size}
    wanted = {"fence": {"Win.Fence"}, "start": {f"Win.{n}" for n in ("Post", "Start", "Complete", "Wait")}}
    assert primal.keys() - {f"Win.{plain}"} == wanted.get(epoch, {"Win.Lock", "Win.Unlock", "Barrier"})
    counted = collections.Counter()
    for operation, count in sweep.items():
        if operation.startswith("Win."):
            counted[operation, count.sent // count.calls, count.received // count.calls] += count.calls
    assert counted == done and done
    assert {what.partition(",")[0] for what, _ in census.left_out} == {"the set-up of a window by a sweep"}
    assert epoch != "lock" or all("turns" in what for what, _ in census.left_out)
    if epoch == "fence":
        assert sweep["Alltoall"].calls == sweep["Barrier"].calls == len(fences)


def test_what_is_not_counted_is_named(tmp_path):
    comm = ampi.COMM_WORLD
    path = comm.bcast(str(tmp_path / "file"))
    census = Census()
    census.start()
    try:
        with ampi.Tape() as tape:
            x = tape.watch(numpy.ones(2))
            file = ampi.MPI.File.Open(comm, path, mpi.MODE_CREATE | mpi.MODE_WRONLY)
            file.Write_at(16 * comm.rank, x)
            file.Close()
            comm.allgather(comm.rank)
            comm.allreduce(1)
            win = ampi.MPI.Win.Allocate(8, 8, comm=comm)
            win.Lock_all()
            win.Unlock_all()
        comm.allgather(0)  # outside of the tape
    finally:
        census.stop()
    win.Free()
    assert {what for what, _ in census.left_out} == {
        "File.Write_at", "allgather of objects", "allreduce of objects", "Win.Lock_all", "Win.Unlock_all"
    }  # fmt: skip
    assert all("test_census.py:" in line for _, line in census.left_out)


def test_classes_are_as_they_were():
    before = {name: dict(vars(getattr(ampi.MPI, name))) for name in ("Intracomm", "Cartcomm", "Win", "File")}
    census = Census()
    census.start()
    assert dict(vars(ampi.MPI.Win)) != before["Win"]
    census.stop()
    assert {name: dict(vars(getattr(ampi.MPI, name))) for name in before} == before

"""Reports of generated programs: their numbers are those of the tapes, and viewers can read the trace."""

import collections
import contextlib
import gzip
import json
import pathlib
import re
import tempfile

import numpy
import pytest
from generated_check import NARROW, WIDE, WORLD, free, inputs
from generated_programs import drawn, function, source

import ampi
import ampi.numpy
from ampi import reports
from ampi.mpi.collectives.collective_calls import Performed
from ampi.mpi.log.messages import Sent

pytestmark = pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")  # plain arrays go to files
NUMBER = 8


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as mine:
        yield pathlib.Path(WORLD.bcast(mine))
        WORLD.Barrier()


ONE_SIDED = {
    **dict.fromkeys(("Put", "Rput", "Accumulate", "Raccumulate"), (True,)),
    **dict.fromkeys(("Get", "Rget"), (False,)),
    **dict.fromkeys(("Get_accumulate", "Rget_accumulate", "Fetch_and_op", "Compare_and_swap"), (True, False)),
}
"""Operations on windows, and whether they send data to the target; both for those that also fetch."""


@contextlib.contextmanager
def watched_windows():
    """Count one-sided operations between ranks of the world, by origin and target."""
    found = collections.Counter()
    originals = {name: getattr(ampi.MPI.Win, name) for name in ONE_SIDED}

    def counting(name):
        def method(win, *arguments, **keywords):
            values = [*arguments, *keywords.values()]
            target = next(value for value in values if isinstance(value, int))
            if target != ampi.MPI.PROC_NULL:
                group = win.Get_group()
                (there,) = ampi.MPI.Group.Translate_ranks(group, [target], WORLD.Get_group())
                parts = (False,) if any(value is ampi.MPI.NO_OP for value in values) else ONE_SIDED[name]
                for brings in parts:
                    found[(WORLD.rank, there) if brings else (there, WORLD.rank)] += 1
            return originals[name](win, *arguments, **keywords)

        return method

    for name in ONE_SIDED:
        setattr(ampi.MPI.Win, name, counting(name))
    try:
        yield found
    finally:
        for name, method in originals.items():
            setattr(ampi.MPI.Win, name, method)


def run(program, plainly=False, rounds=1, swept=True):
    """Trace a program and its gradient; returns the numbers of all ranks' tapes, on rank 0.

    ``plainly``: first run it once without a tape.  ``rounds``: number of runs on the tape.  ``swept``: also sweep.
    """
    ours = ampi.COMM_WORLD.Dup()
    x0 = inputs(NARROW if program.narrow else WIDE, 0)
    call = function(source(program))
    leftover = []
    with watched_windows() as windows, ampi.tracing():
        if plainly:
            leftover += call(ampi.numpy, ampi.MPI, ours, [ampi.numpy.array(leaf) for leaf in x0])[2]
            windows.clear()
        with ampi.Tape() as tape:
            x = [tape.watch(leaf) for leaf in x0]
            for _ in range(rounds):
                arrays, written, later = call(ampi.numpy, ampi.MPI, ours, x)
                leftover += later
        recorded = collections.Counter(windows)
        if swept:
            values = [numpy.array(ampi.value(leaf)) for leaf in arrays] + written
            seed = inputs([leaf.dtype for leaf in values], 1, [leaf.shape for leaf in values])
            tape.gradient([*arrays, *tape.outputs], x, seed=seed)
    said = WORLD.gather((*expected(tape), recorded))
    return tape, said, [*leftover, ours]


def reported(program, folder, **how):
    """The numbers of all ranks' tapes (`run`), and the page's data, on rank 0; None elsewhere."""
    tape, said, leftover = run(program, **how)
    ampi.report(tape, folder)
    del tape
    free(leftover)
    return said, None if WORLD.rank else read(folder)[0]


def expected(tape):
    """Messages by source and destination, their bytes and adjoints, collective calls, bytes of memory, and records."""
    sent, nbytes, back = collections.Counter(), collections.Counter(), collections.Counter()
    calls = 0
    communication = tape.sweep_starts.get("communication")
    for log in communication.logs.values() if communication else ():
        for message in log.messages:
            if isinstance(message, Sent) and not message.void and log.reverse is not None:
                (dest,) = log.reverse.in_world(message.route.partner)
                sent[WORLD.rank, dest] += 1
                nbytes[WORLD.rank, dest] += message.nbytes
                back[dest, WORLD.rank] += getattr(message, "back", None) is not None
        calls += sum(isinstance(call, Performed) for call in log.collectives)
    return sent, nbytes, back, calls, (tape.saved_bytes, tape.kept_bytes), len(tape.records)


def read(folder):
    page = (folder / "index.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        return data, json.load(file)["traceEvents"]


def edges(data, name, one_sided):
    """Numbers and bytes in a matrix by source and destination, of messages or of one-sided operations."""
    number, nbytes = collections.Counter(), collections.Counter()
    for source_, dest, site, count, size in data[name]:
        if (data["sites"][site]["name"] in ONE_SIDED) == one_sided:
            number[source_, dest] += count
            nbytes[source_, dest] += size
    return number, nbytes


def added(parts):
    return sum(parts, collections.Counter())


def check_trace(events, ranks):
    lanes = collections.defaultdict(list)
    flows = collections.defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            assert event["dur"] >= 0
            lanes[event["pid"], event["tid"]].append((round(event["ts"] * 1000), round(event["dur"] * 1000)))
        elif event["ph"] in "sf":
            flows[event["id"]].append(event)
    assert {pid for pid, _ in lanes} == set(range(ranks))
    for lane in lanes.values():
        around = []
        for begin, length in sorted(lane, key=lambda span: (span[0], -span[1])):
            while around and around[-1] <= begin:
                around.pop()
            assert not around or begin + length <= around[-1], "two events of a lane overlap"
            around.append(begin + length)
    for ends in flows.values():
        assert sorted(event["ph"] for event in ends) == ["f", "s"]
        assert len({event["ts"] for event in sorted(ends, key=lambda e: e["ph"] == "f")}) <= 2
        start, end = sorted(ends, key=lambda event: event["ph"] == "f")
        assert start["ts"] <= end["ts"]
    return len(flows)


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(WORLD.size > 4, reason="programs are for up to 4 ranks")
@pytest.mark.parametrize("number", range(NUMBER))
def test_numbers_are_those_of_the_tape(number, buffered_sends, folder):
    tape, said, leftover = run(drawn(number, least=12, most=25))
    notes = ampi.report(tape, folder, title='<generated> & "quoted"')
    del tape
    free(leftover)
    usual = "the timeline shows", "compiling kernels"  # where a program asks again and again; on a busy machine
    assert all(any(words in note for words in usual) for note in notes)
    if WORLD.rank:
        return
    data, events = read(folder)
    assert data["ranks"] == WORLD.size
    sent, nbytes, back, _, _, _, windows = map(list, zip(*said))
    assert edges(data, "matrix", False) == (added(sent), added(nbytes))
    assert edges(data, "reverse", False)[0] == +added(back)
    assert edges(data, "matrix", True)[0] == added(windows)
    for rank, (_, _, _, _, memory, records, _) in enumerate(said):
        sites = data["memory"][rank]["sites"]
        assert (sum(s[1] for s in sites), sum(s[2] for s in sites)) == memory
        assert sum(row["tape"][rank] for row in data["table"]) == sum(memory)
        assert sum(row["calls"][2][rank] for row in data["table"]) == records
    assert sum(entry[2] for entry in data["collectives"]) == sum(calls for _, _, _, calls, *_ in said)
    arrows = check_trace(events, WORLD.size)
    assert arrows == len(data["arrows"])
    forward = collections.Counter((source_, dest) for source_, dest, *_, phase in data["arrows"] if phase == 1)
    backward = collections.Counter((source_, dest) for source_, dest, *_, phase in data["arrows"] if phase == 2)
    assert forward == added(sent) + added(windows)
    assert backward == edges(data, "reverse", False)[0] + edges(data, "reverse", True)[0]
    assert not any(phase == 0 for *_, phase in data["arrows"])


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(WORLD.size > 4, reason="programs are for up to 4 ranks")
@pytest.mark.parametrize("number", range(100, 100 + NUMBER))
def test_messages_before_a_tape_records_are_those_that_it_records(number, buffered_sends, folder):
    """The same program without a tape and with one; only a tape sees messages matched by Mprobe."""
    program = drawn(number, least=12, most=25)
    probed = [number for number, line in enumerate(source(program).splitlines()) if "probe(" in line]
    _, data = reported(program, folder, plainly=True)
    if WORLD.rank:
        return
    found = [collections.Counter(), collections.Counter()]
    for source_, dest, left, came, _, site, _, phase in data["arrows"]:
        if phase < 2 and not data["sites"][site]["name"].islower():  # objects: what has no active array is not shown
            assert left <= came
            found[phase][source_, dest, data["sites"][site]["name"]] += 1
    assert not found[0] - found[1] and (probed or found[0] == found[1])


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(WORLD.size > 4, reason="programs are for up to 4 ranks")
@pytest.mark.parametrize("number", range(200, 200 + NUMBER))
def test_no_gradient_is_computed(number, buffered_sends, folder):
    """Numbers of a tape that was not swept, for arrays sent once and repeatedly."""
    said, data = reported(drawn(number, least=12, most=25), folder, rounds=2, swept=False)
    if WORLD.rank:
        return
    sent, nbytes, back, *_ = map(list, zip(*said))
    assert edges(data, "matrix", False) == (added(sent), added(nbytes))
    assert not data["reverse"] and not +added(back)


@pytest.mark.mpi
@pytest.mark.parametrize("kind", ["Send", "Isend", "Ssend", "Issend", "Rsend", "Sendrecv"])
def test_one_array_sent_again_and_again_without_a_gradient(kind, folder):
    comm, rounds = ampi.COMM_WORLD, 3
    there, here = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with ampi.tracing():
        with ampi.Tape() as tape:
            x, y = tape.watch(numpy.arange(4.0)), ampi.numpy.zeros(4)
            for _ in range(rounds):
                if kind == "Sendrecv":
                    comm.Sendrecv(x, there, 1, y, here, 1)
                    continue
                request = comm.Irecv(y, here, 1)
                comm.Barrier()
                sent = getattr(comm, kind)(x, there, 1)
                ampi.MPI.Request.Waitall([request, sent] if sent else [request])
        ampi.report(tape, folder)
    if WORLD.rank == 0:
        data, _ = read(folder)
        assert edges(data, "matrix", False)[0] == {(r, (r + 1) % WORLD.size): rounds for r in range(WORLD.size)}
        assert not data["reverse"]


@pytest.mark.mpi
def test_messages_to_oneself_and_a_tape_that_was_not_traced(folder):
    comm = ampi.COMM_WORLD
    x0 = numpy.arange(4.0)
    with ampi.Tape() as tape:
        x = tape.watch(x0)
        y = ampi.numpy.zeros(4)
        requests = [comm.Irecv(y, comm.rank, 7), comm.Isend(x * x, comm.rank, 7)]
        ampi.MPI.Request.Waitall(requests)
        y *= y
    tape.gradient(y, x, seed=numpy.ones(4))
    ampi.report(tape, folder)
    if WORLD.rank == 0:
        data, events = read(folder)
        assert [entry[:2] + entry[3:] for entry in data["matrix"]] == [[r, r, 1, 32] for r in range(WORLD.size)]
        assert [entry[:2] + entry[3:] for entry in data["reverse"]] == [[r, r, 1, 32] for r in range(WORLD.size)]
        assert not any(data["events"]) and not data["arrows"] and not check_trace(events, WORLD.size)


@pytest.mark.mpi
def test_many_tapes_one_after_the_other(folder):
    """Numbers of one tape are not attributed to another tape at the same address."""
    comm, steps = ampi.COMM_WORLD, 12
    with ampi.tracing():
        for _ in range(steps):
            with ampi.Tape() as tape:
                x = tape.watch(numpy.arange(4.0))
                y = ampi.numpy.zeros(4)
                request = comm.Irecv(y, (comm.rank - 1) % comm.size)
                comm.Send(x * x, (comm.rank + 1) % comm.size)
                request.Wait()
            tape.gradient(y, x, seed=numpy.ones(4))
            del x, y, request
        ampi.report(tape, folder)
    if WORLD.rank == 0:
        data, _ = read(folder)
        expected = collections.Counter({(r, (r + 1) % WORLD.size): steps for r in range(WORLD.size)})
        assert edges(data, "matrix", False)[0] == expected
        assert edges(data, "reverse", False)[0] == {(dest, here): n for (here, dest), n in expected.items()}


@pytest.mark.mpi
def test_classes_are_as_they_were():
    """Nothing of a trace is left after its end."""
    before = {name: dict(vars(getattr(ampi.MPI, name))) for name in ("Intracomm", "Request", "Win")}
    with ampi.tracing():
        assert dict(vars(ampi.MPI.Intracomm)) != before["Intracomm"]
        with pytest.raises(RuntimeError, match="already"), ampi.tracing():
            pass
    assert {name: dict(vars(getattr(ampi.MPI, name))) for name in before} == before
    assert not reports.tracer.running
    with ampi.Tape() as tape:
        pass
    assert type(tape.records) is list

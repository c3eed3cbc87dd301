"""Reports of generated programs: the numbers are those of the tapes, and the trace is one that viewers take."""

import collections
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
from ampi.mpi.collective_calls import Performed
from ampi.mpi.messages import Sent

NUMBER = 8


@pytest.fixture
def folder():
    with tempfile.TemporaryDirectory() as mine:
        yield pathlib.Path(WORLD.bcast(mine))
        WORLD.Barrier()


def run(program):
    """Trace a program and its gradient; what the tapes of all ranks say themselves, on rank 0."""
    ours = ampi.COMM_WORLD.Dup()
    x0 = inputs(NARROW if program.narrow else WIDE, 0)
    with ampi.tracing():
        with ampi.Tape() as tape:
            x = [tape.watch(leaf) for leaf in x0]
            arrays, written, leftover = function(source(program))(ampi.numpy, ampi.MPI, ours, x)
        values = [numpy.array(ampi.value(leaf)) for leaf in arrays] + written
        seed = inputs([leaf.dtype for leaf in values], 1, [leaf.shape for leaf in values])
        tape.gradient([*arrays, *tape.outputs], x, seed=seed)
    said = WORLD.gather(expected(tape))
    return tape, said, [*leftover, ours]


def expected(tape):
    """Messages by destination with bytes, their adjoints, collective calls, bytes of memory, and records."""
    sent, back = collections.Counter(), collections.Counter()
    calls = 0
    communication = tape.sweep_starts.get("communication")
    for log in communication.logs.values() if communication else ():
        for message in log.messages:
            if isinstance(message, Sent) and not message.void and log.reverse is not None:
                (dest,) = log.reverse.in_world(message.route.partner)
                sent[dest, "count"] += 1
                sent[dest, "bytes"] += message.nbytes
                back[dest, "count"] += message.back is not None
        calls += sum(isinstance(call, Performed) for call in log.collectives)
    return dict(+sent), dict(+back), calls, (tape.saved_bytes, tape.kept_bytes), len(tape.records)


def read(folder):
    page = (folder / "index.html").read_text(encoding="utf-8")
    data = json.loads(re.search(r'<script id="data" type="application/json">(.*?)</script>', page, re.S)[1])
    with gzip.open(folder / "trace.json.gz", "rt") as file:
        return data, json.load(file)["traceEvents"]


def by_partner(entries, rank, back):
    """A rank's entries of a matrix, as `expected` has them."""
    found = collections.Counter()
    for source_, dest, _, count, nbytes in entries:
        here, there = (dest, source_) if back else (source_, dest)
        if here == rank:
            found[there, "count"] += count
            if not back:
                found[there, "bytes"] += nbytes
    return dict(+found)


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
    assert all("the timeline shows" in note for note in notes)  # where a program asks again and again
    if WORLD.rank:
        return
    data, events = read(folder)
    assert data["ranks"] == WORLD.size
    for rank, (sent, back, _, memory, records) in enumerate(said):
        assert by_partner(data["matrix"], rank, False) == sent
        assert by_partner(data["reverse"], rank, True) == back
        sites = data["memory"][rank]["sites"]
        assert (sum(s[1] for s in sites), sum(s[2] for s in sites)) == memory
        assert sum(row["tape"][rank] for row in data["table"]) == sum(memory)
        assert sum(row["calls"][2][rank] for row in data["table"]) == records
    assert sum(entry[2] for entry in data["collectives"]) == sum(calls for _, _, calls, _, _ in said)
    arrows = check_trace(events, WORLD.size)
    assert arrows == len(data["arrows"])
    forward = [arrow for arrow in data["arrows"] if arrow[7] == 1]
    assert len(forward) == sum(sent.get((rank, "count"), 0) for sent, *_ in said for rank in range(WORLD.size))
    assert len(data["arrows"]) - len(forward) == sum(n for _, back, *_ in said for n in back.values())


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
def test_classes_are_as_they_were():
    """Nothing of a trace is left when it has ended."""
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

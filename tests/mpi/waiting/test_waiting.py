"""Sweeps wait for slow ranks without a limit, and not at all for ranks that cannot come."""

import os
import re
import subprocess
import textwrap
import threading

import numpy
import pytest
from chessboard import alternate
from patience import patience

from ampi.mpi.waiting.board import DIED, ENDED, MEETS, RUNS, WAITS, Board, width

START = """
import os, random, sys, time
{before}
os.environ.pop("AMPI_TIMEOUT", None)
os.environ.update({environment})
import numpy
import ampi, ampi.numpy as np
import ampi.mpi.waiting.board, ampi.mpi.waiting.deadlocks
comm = ampi.COMM_WORLD
rank, size = comm.rank, comm.size
ONES = numpy.ones(2)
after, before = (rank + 1) % size, (rank - 1) % size
{board}

def recorded(comm=comm, rounds=1):
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = x * x
        for _ in range(rounds):
            comm.Sendrecv_replace(y, after, 0, before)
    return tape, x, y

def allreduced(comm=comm):
    with ampi.Tape() as tape:
        x, y = tape.watch(ONES), np.zeros(2)
        comm.Allreduce(x * x, y)
    return tape, x, y

def swept(tape, x, y):
    start = time.monotonic()
    try:
        x_bar = tape.gradient(y, x, seed=ONES)
    except ampi.CommunicationError as error:
        return f"{{time.monotonic() - start:.0f}} s {{error}}"
    return x_bar.tolist()

def busy(seconds):
    import ctypes
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # with Python's lock: nothing else of this process runs
"""
NO_BOARD = "ampi.mpi.waiting.board.board = ampi.mpi.waiting.board.alone(rank)"
TWO_NODES = """
class World:
    Get_rank, Get_size = comm.Get_rank, comm.Get_size
    Split_type = lambda self, kind: ampi.MPI.COMM_WORLD.Split(rank // 2)
ampi.mpi.waiting.board._WORLD = World()
ampi.mpi.waiting.board.board = ampi.mpi.waiting.board.make()
"""
SEEN = ["", NO_BOARD, TWO_NODES]
QUICKLY = "ampi.mpi.waiting.deadlocks.QUIET = 1.0\n"  # where an error is to come


@pytest.fixture
def run(mpiexec, tmp_path):
    """``run(source)``: status, output and errors of a program that starts as above."""

    def run(source, *, ranks=2, before="", board="", environment=None):
        path = tmp_path / "program.py"
        path.write_text(START.format(before=before, board=board, environment=environment or {}) + source)
        result = mpiexec(ranks, path)
        return result.returncode, result.stdout, result.stderr

    return run


@pytest.mark.parametrize("program, board", alternate(["recorded", "allreduced"], SEEN))
def test_ranks_wait_for_a_slow_one(run, program, board):
    """It computes before and during its sweep; the others report that they wait, and no more often than necessary."""
    source = f"""
ampi.mpi.waiting.deadlocks.NOTICE = 1.0
ampi.mpi.waiting.deadlocks.QUIET = 0.5
tape, x, y = {program}()
if rank == 1:
    tape.append(lambda sweep: busy(2.5))
    busy(2.5)
print(swept(tape, x, y), flush=True)
"""
    status, out, err = run(source, ranks=3, board=board)
    assert status == 0, err
    assert out.split("\n")[:3] == [str([2.0 if program == "recorded" else 6.0] * 2)] * 3
    assert "rank 0 of the world has waited for" in err
    assert "program.py:" in err and "AMPI_TIMEOUT" in err
    if not board:
        assert re.search("rank 1 of the world (computes|goes on)|ranks 1", err)
    assert err.count("has waited for") <= 12


ALONE = {
    "a tape on rank 0 only, messages": """
        with ampi.Tape() if rank == 0 else contextlib.nullcontext() as tape:
            x = tape.watch(ONES) if rank == 0 else np.ones(2)
            if rank == 0:
                comm.Send(x, 1)
            elif rank == 1:
                comm.Recv(x, 0)
        if rank == 0:
            tape.gradient(x, x, seed=ONES)
    """,
    "a tape on rank 0 only, a collective": """
        with ampi.Tape() if rank == 0 else contextlib.nullcontext() as tape:
            x, y = tape.watch(ONES) if rank == 0 else np.ones(2), np.zeros(2)
            comm.Allreduce(x, y)
        if rank == 0:
            tape.gradient(y, x, seed=ONES)
    """,
    "tape.gradient on rank 0 only": """
        tape, x, y = recorded()
        if rank == 0:
            tape.gradient(y, x, seed=ONES)
    """,
    "ampi.grad on rank 0 only": """
        def f(x):
            y = np.zeros(2)
            comm.Allreduce(x, y)
            return y.sum()
        ampi.grad(f)(ONES) if rank == 0 else f(np.ones(2))
    """,
    "two pullbacks on rank 0, one on the others": """
        def f(x):
            y = np.zeros(2)
            comm.Allreduce(x, y)
            return y.sum()
        _, pullback = ampi.vjp(f, ONES)
        pullback(1.0)
        if rank == 0:
            pullback(1.0)
        else:
            del pullback
    """,
}
WHAT = {
    "a tape on rank 0 only, messages": "has opened no tape",
    "a tape on rank 0 only, a collective": "has opened no tape",
    "tape.gradient on rank 0 only": "goes on without asking for this gradient",
    "ampi.grad on rank 0 only": "has opened no tape",
    "two pullbacks on rank 0, one on the others": "has no tape any more",
}


MEETINGS = [
    "comm.Barrier()",
    "comm.allreduce(1.0)",
    "comm.Allreduce(ONES, ONES.copy())",
    "comm.bcast(None)",
    "comm.gather(rank)",
    "comm.Dup().Split(rank).Free()",
    "with ampi.Tape(): comm.Allgather(ONES, numpy.empty((size, 2)))",
]


MET = [(what, MEETINGS[(k + n) % len(MEETINGS)]) for n in (0, 3) for k, what in enumerate(ALONE)]


@pytest.mark.parametrize("what, meeting, ranks", alternate(MET, [2, 3]))
def test_a_gradient_on_one_rank_is_an_error_once_the_others_wait_for_it(run, what, meeting, ranks):
    source = f"import contextlib\n{QUICKLY}{textwrap.dedent(ALONE[what])}\n{meeting}\ncomm.Barrier()\n"
    status, _, err = run(source, ranks=ranks, environment={"AMPI_TIMEOUT": str(patience(60))})
    assert status != 0
    how = "" if "Tape" in meeting else f", and {WHAT[what]}"
    assert re.search(f"rank 0 of the world: gave up.*program.py:.*rank 1 .*is in a collective.*{how}", err), err
    assert "on all ranks" in err and "has waited for" not in err


LEFT = [
    "comm.gather(rank)",
    "comm.reduce(1.0)",
    "comm.Reduce(ONES, ONES.copy())",
    "comm.Dup().Gather(ONES, np.empty((3, 2)))",
    "comm.gather(rank, 1); comm.gather(rank)",
]


@pytest.mark.parametrize("what", [pytest.param(w, marks=[pytest.mark.slow] * (k % 3 > 0)) for k, w in enumerate(LEFT)])
def test_ranks_in_an_operation_that_this_one_has_left_are_waited_for(run, what):
    """Rank 0 waits there for rank 2, not for rank 1, which proceeds to the sweep: the program is right."""
    source = f"""
ampi.mpi.waiting.deadlocks.QUIET = 0.5
tape, x, y = recorded()
comm.Barrier()
if rank == 2:
    busy(2)
{what}
print(swept(tape, x, y), flush=True)
"""
    status, out, err = run(source, ranks=3)
    assert status == 0 and out.split("\n")[:3] == ["[2.0, 2.0]"] * 3, err


def test_ranks_that_meet_without_the_one_that_waits_are_waited_for(run):
    source = """
ampi.mpi.waiting.deadlocks.QUIET = 0.5
team = comm.Split(rank > 0)
tape, x, y = allreduced()
if rank > 0:
    if rank == 2:
        busy(2)
    assert team.allreduce(1) == 2
    team.Barrier()
print(swept(tape, x, y), flush=True)
"""
    status, out, err = run(source, ranks=3)
    assert status == 0 and out.split("\n")[:3] == ["[6.0, 6.0]"] * 3, err


@pytest.mark.parametrize("what, ranks", alternate(ALONE, [2, 3]))
def test_a_gradient_on_one_rank_is_named_while_the_others_wait_inside_of_mpi(run, what, ranks):
    source = f"""
import contextlib
ampi.mpi.waiting.deadlocks.SUSPICIOUS = 2.0
{textwrap.dedent(ALONE[what])}
ampi.mpi.namespace.BASE['Comm'].Barrier(comm)
"""
    _, _, err = run(source, ranks=ranks, environment={"AMPI_TIMEOUT": "5"})
    (line,) = [line for line in err.splitlines() if line.startswith("ampi: rank 0 of the world has waited for")]
    assert re.search(f"has waited for [2-4] s .*program.py:.*; rank 1 of the world {WHAT[what]}", line), err
    assert "on all ranks alike" in line
    assert "no progress for 5 s" in err  # and ends then, as the user has asked for


@pytest.mark.parametrize("notice", [60, 2])
def test_a_rank_that_compiles_does_not_count_as_missing(run, notice):
    """It is not reported as having forgotten the gradient; ranks that wait for long report what it does."""
    source = f"""
from ampi.kernel.runtime import progress
ampi.mpi.waiting.deadlocks.SUSPICIOUS, ampi.mpi.waiting.deadlocks.NOTICE = 1, {notice}
tape, x, y = recorded()
if rank == 1:
    with progress.counted():
        busy(3.5)
print(swept(tape, x, y), flush=True)
"""
    status, _, err = run(source)
    assert status == 0 and "without asking" not in err
    assert ("; rank 1 of the world compiles a kernel (with" in err) == (notice == 2), err


def test_a_time_limit_that_the_user_sets_holds(run):
    source = """
tape, x, y = recorded()
if rank == 1:
    busy(4)
print(swept(tape, x, y), flush=True)
comm.Barrier()
"""
    _, out, err = run(source, environment={"AMPI_TIMEOUT": "2"})
    assert "no progress for 2 s" in out and "AMPI_TIMEOUT sets the time" in out, out + err


@pytest.mark.parametrize("program", ["recorded", "allreduced"])
def test_a_rank_that_has_ended_without_its_sweep(run, program):
    source = f"""
{QUICKLY}
tape, x, y = {program}()
if rank == 1:
    sys.exit()
print(swept(tape, x, y), flush=True)
"""
    _, out, err = run(source, ranks=2)
    assert re.search(r"program.py:\d+.*rank 1 .*has ended its program", out), out + err
    assert int(out.split()[0]) < patience(20)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_ranks_that_wait_for_each_other_in_different_sweeps(run, ranks):
    source = f"""
{QUICKLY}
tapes = [recorded(comm.Dup()), allreduced(comm.Dup())]
print(swept(*tapes[rank % 2]), flush=True)
"""
    _, out, err = run(source, ranks=ranks)
    assert "no rank can do anything but wait" in out, out + err
    for line in out.splitlines():
        assert "gave up waiting" in line and int(line.split()[0]) < patience(20)


def test_ranks_that_wait_for_each_other_go_on_when_one_that_computes_joins(run):
    """Two wait, while the third one computes for longer than ``QUIET``."""
    source = """
ampi.mpi.waiting.deadlocks.QUIET = 0.5
tape, x, y = recorded(rounds=2 * size)
if rank == 2:
    busy(2)
print(swept(tape, x, y), flush=True)
"""
    status, out, err = run(source, ranks=3)
    assert status == 0, err
    assert out.splitlines() == ["[2.0, 2.0]"] * 3


@pytest.mark.parametrize(
    "ranks, last",
    [
        *alternate([2, 3], ["end", "skip"]),
        *(pytest.param(4, last, marks=pytest.mark.slow) for last in ("end", "skip")),
    ],
)
def test_drawn(run, ranks, last):
    """Random exchanges and collectives; ranks sleep at random places, raise at random places, and one ends.

    Every rank ends, with the right gradient or a clear error.
    """
    source = f"""
ampi.mpi.waiting.deadlocks.QUIET = 1.5

def program(number, ending):
    same, own = random.Random(f"{{number}} {{size}} {last}"), random.Random(f"{{number}} {{size}} {{rank}} {last}")
    other = comm.Dup()
    fails, where = same.randrange(size) == rank, same.randrange(8)
    with ampi.Tape() as tape:
        x = tape.watch(ONES)
        y = x * 1.0
        for k in range(8):
            kind = same.choice(["ring", "sum", "bcast", "objects"])
            if kind == "ring":
                other.Sendrecv_replace(y, after, k, before, k)
            elif kind == "sum":
                z = np.zeros(2)
                other.Allreduce(y, z)
                y = z / size
            elif kind == "bcast":
                other.Bcast(y, same.randrange(size))
            else:
                y = other.sendrecv(y, after, k, None, before, k)
            y = y * 1.5
            if k == where and fails and ending == "raise":
                tape.append(lambda sweep: 1 / 0)
            if k == where and fails and ending == "end":
                tape.append(lambda sweep: sys.exit(0))
            nap = own.choice([0.0, 0.0, 0.1, 0.5])
            tape.append(lambda sweep, nap=nap: time.sleep(nap))
    if ending == "skip" and fails:
        sys.exit(0)
    try:
        x_bar = tape.gradient(y, x, seed=ONES)
    except (ampi.CommunicationError, ZeroDivisionError) as error:
        return "error " + str(error).replace("\\n", " ")
    if ending is None:
        total = comm.allreduce(x_bar[0])
        return "right" if abs(total - size * 1.5**8) < 1e-9 else f"wrong {{total}}"
    return "right"

for number, ending in enumerate([None, "raise", None, "raise", "{last}"]):
    print(number, program(number, ending), flush=True)
"""
    status, out, err = run(source, ranks=ranks)
    said = sorted(line.split(" ", 1) for line in out.splitlines())
    assert all(text.startswith(("right", "error")) for _, text in said), out + err
    for number in "0", "2":
        assert [text for n, text in said if n == number] == ["right"] * ranks, out + err
    for number in "1", "3":
        assert len([text for n, text in said if n == number]) == ranks, out + err
    assert any(n == "4" and text.startswith("error") for n, text in said) or status, out + err


def boards(n):
    """The boards of ``n`` ranks of one node, in shared memory."""
    memory = bytearray(8 * n * width(n))
    return [Board(rank, {rank: rank for rank in range(n)}, memory, False) for rank in range(n)]


@pytest.fixture
def one_thread(monkeypatch):
    """Hide the threads of pytest's plugins."""
    others = threading.active_count() - 1
    monkeypatch.setattr(threading, "active_count", lambda count=threading.active_count: count() - others)


@pytest.mark.parametrize("number", range(30))
def test_who_is_involved(number, one_thread):
    """Compared with powers of the matrix of which rank waits for which."""
    generator = numpy.random.default_rng(number)
    n = int(generator.integers(1, 80))
    ours = boards(n)
    states = generator.choice([WAITS, WAITS, WAITS, WAITS, ENDED, MEETS, RUNS], n)
    if number % 2:
        states[states == RUNS] = WAITS
    waits = generator.random((n, n)) < generator.choice([0.3, 1.5]) / n
    afar = generator.random(n) < 0.05
    for rank, board in enumerate(ours):
        if states[rank] == WAITS:
            board.waits([*numpy.flatnonzero(waits[rank]).tolist(), *([n] if afar[rank] else [])])
        elif states[rank] == ENDED:
            board.ends()
        elif states[rank] == MEETS:
            board.meeting[0] = rank + 1
    waits[states != WAITS] = False
    reached = numpy.linalg.matrix_power((waits | numpy.eye(n, dtype=bool)).astype(float), n) > 0
    for rank, board in enumerate(ours):
        there = numpy.flatnonzero(reached[rank])
        hopeless = (states[there] != RUNS).all() and not afar[there[states[there] == WAITS]].any()
        found = board.involved()
        assert (set(there.tolist()) if hopeless else None) == (None if found is None else set(found))


def test_what_a_rank_reports_about_itself(one_thread):
    first, second = boards(2)
    assert second.state(0) == RUNS and second.involved() is None
    first.waits([1])
    second.waits([0])
    before = first.involved()
    assert before == second.involved() and not second.first_to_wait() and first.most_bytes([0, 1]) > 1 << 20
    first.looks()
    assert first.involved() == before and first.looked(before) == {0: 1, 1: 0}
    second.moves()
    assert first.involved() not in (before, None)
    first.goes_on()
    assert second.involved() is None and second.first_to_wait()
    thread = threading.Thread(target=(done := threading.Event()).wait)
    thread.start()
    first.waits([1])
    assert first.state(0) == RUNS  # the thread may do what others wait for
    done.set()
    thread.join()
    if os.fork() == 0:
        first.ends()
        os._exit(0)
    os.wait()
    assert second.state(0) == RUNS
    first.ends()
    assert second.state(0) == ENDED


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="processes are not seen here")
def test_a_process_that_has_gone():
    first, second = boards(2)
    other = subprocess.Popen(["sleep", "100"])
    second.mine[4] = other.pid
    assert first.state(1) == RUNS
    other.kill()
    other.wait()
    assert first.state(1) == DIED

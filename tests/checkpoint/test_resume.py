"""Time loops with a folder: a killed run continues, with the same gradient to the last bit."""

import contextlib
import os
import random as randomness
import signal
import subprocess
import sys

import numpy
import pytest
from new_processes import as_new_process
from test_timeloop import Drawn

import ampi
import ampi.numpy as np
from ampi.checkpoint import folder, resuming
from ampi.mpi import COMM_WORLD


class Killed(Exception):
    """Raised instead of a signal."""


STOPPED = Killed, ampi.CommunicationError
"""A rank that still waits for one which has stopped hears of that."""


def gradient(drawn, storage, resume):
    rng = numpy.random.default_rng(COMM_WORLD.rank + 17)
    x = rng.uniform(0.5, 1.0, drawn.size).astype(drawn.dtype)
    drawn.comm = COMM_WORLD.Dup()  # what a sweep has left in the middle is not swept again
    drawn.options = {} if storage is None else {"storage": storage, "resume": resume, "comm": drawn.comm}
    as_new_process()
    value, back = ampi.vjp(lambda k, x: drawn.run(k, x, True), 0.9, x)
    return [numpy.asarray(ampi.value(value)), *map(numpy.asarray, back(1.0))]


def same(found, expected, drawn):
    for a, b in zip(found, expected, strict=True):
        assert a.tobytes() == b.tobytes(), f"{drawn}: {a} {b}"


def killing(monkeypatch, n, after):
    """The ranks stop at their n-th file: before it is there, or when it is."""
    save, left = folder.Folder._save, [n]

    def save_or_stop(self, *arguments):
        left[0] -= 1
        if left[0] == 0 and not after:
            raise Killed
        save(self, *arguments)
        if left[0] == 0:
            raise Killed

    monkeypatch.setattr(folder.Folder, "_save", save_or_stop)


@pytest.mark.mpi
@pytest.mark.parametrize("seed", [2000, *(pytest.param(n, marks=pytest.mark.slow) for n in range(2001, 2012))])
def test_what_was_stopped_at_any_file_goes_on(seed, shared, monkeypatch):
    """Drawn steps and states, stopped once at each file in turn, on some ranks before and on others after it."""
    drawn = Drawn(seed, COMM_WORLD)
    drawn.checkpoints = min(drawn.checkpoints, 2)
    without = gradient(drawn, None, False)
    expected = gradient(drawn, shared / "whole", False)
    for a, b in zip(without, expected, strict=True):
        numpy.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13, err_msg=str(drawn))
    draw = randomness.Random(seed)
    for n in sorted(draw.sample(range(2, 20), 2)):
        late = draw.randrange(3)
        with monkeypatch.context() as patch:
            killing(patch, n, after=late == 1 or (late == 2 and COMM_WORLD.rank % 2 == 0))
            with contextlib.suppress(*STOPPED):
                gradient(drawn, shared / f"stopped-{n}", True)
        same(gradient(drawn, shared / f"stopped-{n}", True), expected, drawn)
        same(gradient(drawn, shared / f"stopped-{n}", True), expected, drawn)  # what is complete is complete


SAVED = [
    {"per": "node", "compression": 3},
    *(pytest.param(how, marks=pytest.mark.slow) for how in ({"per": "node"}, {"compression": "gzip"})),
]


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("how", SAVED, ids=str)
def test_files_per_node_and_compressed(how, shared, monkeypatch):
    """Stopped on all ranks at a file, and started again."""
    drawn = Drawn(2001, COMM_WORLD)
    drawn.checkpoints = 2
    expected = gradient(drawn, shared / "whole", False)
    for n, after in ((2, True), (5, False), (9, True)):
        storage = ampi.Storage(shared / f"stopped-{n}", **how)
        with monkeypatch.context() as patch:
            killing(patch, n, after=after)
            with contextlib.suppress(*STOPPED):
                gradient(drawn, storage, True)
        same(gradient(drawn, storage, True), expected, drawn)
    COMM_WORLD.Barrier()
    files = {path.parent.name for path in shared.glob("stopped-9/loop-0/*/*.h5")}
    assert files == {f"{how.get('per', 'rank')}-{k}" for k in range(1 if "per" in how else COMM_WORLD.size)}
    as_new_process()
    other = ampi.Storage(shared / "stopped-9", per="rank" if "per" in how else "node")
    with pytest.raises(ampi.TapeError, match="has files per"):
        gradient(drawn, other, True)


@pytest.mark.mpi
def test_files_per_node_of_a_loop_on_all_ranks(shared):
    """What the ranks of a node tell each other is no part of the program."""

    def step(u):
        came = np.zeros(4)
        COMM_WORLD.Sendrecv(u, (COMM_WORLD.rank + 1) % COMM_WORLD.size, recvbuf=came)
        u += 0.1 * came * u

    def final(u0, **options):
        return np.sum(ampi.timeloop(step, np.array(u0), steps=9, checkpoints=2, **options) ** 2)

    as_new_process()
    u0 = numpy.linspace(0.2, 0.5, 4) + 0.1 * COMM_WORLD.rank
    found = ampi.grad(final)(u0, storage=ampi.Storage(shared, per="node"), resume=True)
    assert found.tobytes() == ampi.grad(final)(u0).tobytes()


def test_compressed_files_are_smaller(tmp_path):
    def same_again(u):
        u *= 1.0

    def final(u0, storage):
        u = ampi.timeloop(same_again, np.array(u0), steps=9, checkpoints=2, storage=storage)
        return np.sum(u)

    for name, how in (("plain", {}), ("small", {"compression": "gzip"})):
        as_new_process()
        ampi.grad(lambda u0: final(u0, ampi.Storage(tmp_path / name, **how)))(numpy.ones(20_000))  # noqa: B023
    plain, small = (sum(f.stat().st_size for f in (tmp_path / n).glob("*/*/*.h5")) for n in ("plain", "small"))
    assert small < 0.2 * plain


@pytest.mark.parametrize(
    "how, message", [({"per": "host"}, "per 'rank' or per 'node'"), ({"compression": "zip"}, "gzip")]
)
def test_storages_that_do_not_exist(how, message):
    with pytest.raises(ampi.TapeError, match=message):
        ampi.Storage("folder", **how)


@pytest.mark.mpi
@pytest.mark.parametrize("n", [8, *(pytest.param(n, marks=pytest.mark.slow) for n in (3, 5, 11))])
def test_a_run_is_stopped_again_and_again(n, shared, monkeypatch):
    """By ``until``, with a generator in the state; each run gets on by a few files."""
    executed = []

    def final(u0, **options):
        def step(state):
            executed.append(1)
            state["u"] *= 1.0 - 0.05 * state["u"] * state["noise"].uniform(0.5, 1.0)
            state["n"] += 1

        options["comm"] = COMM_WORLD.Dup()
        state = {"u": np.array(u0), "n": 0, "noise": numpy.random.default_rng(3)}
        state = ampi.timeloop(step, state, until=lambda s: s["n"] >= 40, checkpoints=3, **options)
        return np.sum(state["u"] ** 2) * state["noise"].uniform()

    u0 = numpy.linspace(0.5, 1.0, 6) + COMM_WORLD.rank
    expected = ampi.grad(final)(u0)
    runs = 0
    found = None
    while found is None:
        runs += 1
        as_new_process()
        executed.clear()
        with monkeypatch.context() as patch:
            killing(patch, n, after=True)
            try:
                found = ampi.grad(final)(u0, storage=shared, resume=True)
            except STOPPED:
                pass
        assert runs < 30
    assert runs > 18 // n and found.tobytes() == expected.tobytes()


@pytest.mark.mpi
def test_little_is_lost(shared, monkeypatch):
    """Steps that are run by the second of two runs: those of one part, forward and back."""
    executed = []

    def step(u):
        executed.append(1)
        u *= 1.0 - 0.05 * u

    def final(u0, **options):
        return np.sum(ampi.timeloop(step, np.array(u0), steps=60, checkpoints=4, comm=COMM_WORLD.Dup(), **options) ** 2)

    u0 = numpy.linspace(0.5, 1.0, 6)
    expected = ampi.grad(final)(u0, storage=shared / "whole")
    whole = len(executed)
    for n in range(2, 12, 3):
        as_new_process()
        executed.clear()
        with monkeypatch.context() as patch:
            killing(patch, n, after=True)
            with pytest.raises(STOPPED):
                ampi.grad(final)(u0, storage=shared / str(n), resume=True)
        as_new_process()
        assert ampi.grad(final)(u0, storage=shared / str(n), resume=True).tobytes() == expected.tobytes()
        assert len(executed) <= whole + 30


@pytest.mark.mpi
@pytest.mark.parametrize("what", "steps input step constant variable version ampi checkpoints seed".split())
def test_folders_of_other_runs_are_refused_by_name(what, shared, monkeypatch):
    rate = 0.05

    def growth(u):
        return 1.0 - rate * u

    def step(u):
        u *= growth(u)

    def same_but_for_a_constant(u):
        u *= 2.0 - rate * u

    def other(u):
        u *= 1.0 - 0.06 * u * u

    def final(u0, step=step, steps=20, checkpoints=3, factor=1.0):
        comm, kept = COMM_WORLD.Dup(), {"storage": shared, "resume": True}
        u = ampi.timeloop(step, np.array(u0), steps=steps, checkpoints=checkpoints, comm=comm, **kept)
        return factor * np.sum(u**2)

    u0 = numpy.linspace(0.5, 1.0, 6)
    as_new_process()
    ampi.grad(final)(u0)
    as_new_process()
    options, message = {}, "belongs to another run"
    if what == "input":
        u0, message = u0 * (1.0 + (COMM_WORLD.rank == 0)), "rank 0: .*what the loop begins with"
    elif what == "version":
        monkeypatch.setattr(ampi, "__version__", "0.0.7")
        message = "ampi is '0.0.7', there"
    elif what == "ampi":
        monkeypatch.setattr(resuming, "_code_of_ampi", lambda: "another")
        message = "ampi's code is 'another', there"
    elif what == "steps":
        options, message = {"steps": 21}, "number of steps is 21, there 20"
    elif what == "checkpoints":
        options, message = {"checkpoints": 4}, "steps between states is 10, there 6"
    elif what == "step":
        options, message = {"step": other}, "other"
    elif what == "constant":
        same_but_for_a_constant.__qualname__ = step.__qualname__
        options, message = {"step": same_but_for_a_constant}, "its code"
    elif what == "variable":
        rate, message = 0.06, r"rate in .*growth is '0.06', there '0.05'"
    else:
        options, message = {"factor": 2.0}, "another seed"
    errors = (ampi.TapeError, ampi.CommunicationError) if what == "seed" else ampi.TapeError  # another rank's, quoted
    with pytest.raises(errors, match=message):
        ampi.grad(lambda u0: final(u0, **options))(u0)


@pytest.mark.mpi
def test_requests_in_the_state(shared, monkeypatch):
    """Completed ones are nothing, in whatever process."""

    def run(u0, **options):
        comm = COMM_WORLD.Dup()

        def step(state):
            u = state["u"]
            halo = np.zeros(1)
            ends = [
                comm.Irecv(halo, (comm.rank - 1) % comm.size),
                comm.Isend(u[-1:] * 1.0, (comm.rank + 1) % comm.size),
            ]
            state["requests"] = ends
            ampi.MPI.Request.Waitall(ends)
            u[0] += 0.1 * halo[0] * u[0]
            u *= 1.0 - 0.05 * u

        state = ampi.timeloop(step, {"u": np.array(u0)}, steps=12, checkpoints=2, comm=comm, **options)
        assert all(request == ampi.MPI.REQUEST_NULL for request in state["requests"])
        return np.sum(state["u"] ** 2)

    u0 = numpy.linspace(0.5, 1.0, 4) + COMM_WORLD.rank
    expected = ampi.grad(run)(u0)
    for n in (3, 5, 8):
        as_new_process()
        with monkeypatch.context() as patch:
            killing(patch, n, after=True)
            with contextlib.suppress(*STOPPED):
                ampi.grad(run)(u0, storage=shared / str(n), resume=True)
        as_new_process()
        numpy.testing.assert_array_equal(ampi.grad(run)(u0, storage=shared / str(n), resume=True), expected)


@pytest.mark.slow
@pytest.mark.mpi
@pytest.mark.parametrize("n", [4, 9, 13, 17, 22, 26])
def test_a_descent_of_several_gradients(n, shared, monkeypatch):
    """Each gradient of a program has a loop of its own in the folder; those that are complete are not run again."""
    executed = []

    def run(folder):
        comm = COMM_WORLD.Dup()

        def step(u):
            executed.append(1)
            u *= 1.0 - 0.05 * u

        def final(u0):
            options = {} if folder is None else {"storage": folder, "resume": True}
            return np.sum(ampi.timeloop(step, np.array(u0), steps=20, checkpoints=2, comm=comm, **options) ** 2)

        as_new_process()
        u = numpy.linspace(0.5, 1.0, 4) + COMM_WORLD.rank
        for _ in range(3):
            u = u - 0.1 * ampi.grad(final)(u)
        return u

    expected = run(None)
    executed.clear()
    run(shared / "whole")
    whole = len(executed)
    with monkeypatch.context() as patch:
        killing(patch, n, after=COMM_WORLD.rank % 2 == 0)
        with contextlib.suppress(*STOPPED):
            run(shared / "killed")
    executed.clear()
    assert run(shared / "killed").tobytes() == expected.tobytes()
    assert len(executed) < whole or n < 6
    executed.clear()
    assert run(shared / "killed").tobytes() == expected.tobytes()
    assert not executed


@pytest.mark.mpi
@pytest.mark.parametrize("n", [14, *(pytest.param(n, marks=pytest.mark.slow) for n in (4, 7, 9, 11))])
def test_later_sweeps_of_a_tape(n, shared, monkeypatch):
    """With other seeds, in a process that has run all steps, and in one that goes on."""

    def run(folder):
        comm = COMM_WORLD.Dup()

        def step(u):
            u *= 1.0 - 0.05 * u * k

        as_new_process()
        options = {} if folder is None else {"storage": folder, "resume": True}
        with ampi.Tape() as tape:
            u0 = tape.watch(numpy.linspace(0.5, 1.0, 4) + COMM_WORLD.rank)
            k = tape.watch(numpy.linspace(1.0, 1.1, 4))
            u = ampi.timeloop(step, u0 * 1.0, steps=20, checkpoints=2, comm=comm, **options)
            y = u * u
        seeds = numpy.ones(4), numpy.arange(4.0), numpy.ones(4)
        return [numpy.array(g) for seed in seeds for g in tape.gradient(y, [u0, k], seed=seed)]

    expected = run(None)
    with monkeypatch.context() as patch:
        killing(patch, n, after=COMM_WORLD.rank % 2 == 0)
        with contextlib.suppress(*STOPPED):
            run(shared)
    for _ in range(2):
        for a, b in zip(run(shared), expected, strict=True):
            assert a.tobytes() == b.tobytes()


def test_a_loop_in_a_step_has_no_folder_of_its_own(tmp_path):
    def step(u):
        return ampi.timeloop(lambda u: u * u, u, steps=2, checkpoints=1, storage=tmp_path)

    with pytest.raises(ampi.TapeError, match="outer one"):
        ampi.grad(lambda u: np.sum(ampi.timeloop(step, u, steps=2, checkpoints=1)))(numpy.ones(2))


def test_a_process_that_kills_itself(tmp_path):
    """One real process, with a signal that nobody can catch."""
    program = tmp_path / "program.py"
    program.write_text(
        """
import os, signal, sys, numpy, ampi, ampi.numpy as np
left = [int(sys.argv[1])]
def step(u):
    left[0] -= 1
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    u *= 1.0 - 0.05 * u
def final(k):
    u = np.ones(5) * k
    return np.sum(ampi.timeloop(step, u, steps=30, checkpoints=2, storage=sys.argv[2], resume=True) ** 2)
print(ampi.grad(final)(numpy.linspace(0.5, 1.0, 5)).tobytes().hex())
"""
    )
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "HYDRA", "OMPI"))}

    def run(n, name):
        command = [sys.executable, program, str(n), tmp_path / name]
        return subprocess.run(command, capture_output=True, text=True, env=alone, check=False)

    expected = run(0, "whole")
    assert expected.returncode == 0, expected.stderr
    runs = 0
    while (done := run(25, "killed")).returncode:
        assert done.returncode == -signal.SIGKILL and runs < 10, done.stderr
        runs += 1
    assert runs > 1 and done.stdout == expected.stdout

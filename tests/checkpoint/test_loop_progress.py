"""Progress of time loops: bars on rank 0 only, a closing line, and the same as numbers."""

import io
import random as randomness
import sys

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.checkpoint import folder
from ampi.mpi import COMM_WORLD

X = numpy.linspace(0.3, 1.1, 9)  # longer than vectors whose operations save no arrays


class Terminal(io.StringIO):
    """Standard error, as a terminal or not."""

    def __init__(self, is_one):
        super().__init__()
        self.isatty = lambda: is_one


@pytest.fixture
def err(monkeypatch):
    def be(is_terminal):
        monkeypatch.setattr(sys, "stderr", Terminal(is_terminal))
        return sys.stderr

    return be


class Loop:
    """A loop, drawn at random, that counts how often its steps run, and measures its folder after each."""

    def __init__(self, seed, storage):
        draw = randomness.Random(seed)
        self.steps = draw.choice([1, 2, 7, 20, 33])
        self.options = {"comm": COMM_WORLD.Dup()}
        if draw.random() < 0.8:
            self.options["checkpoints"] = draw.choice([1, 2, 3, 5, 40])
        else:
            self.options["memory"] = draw.choice(["80KiB", "1MiB"])
        if draw.random() < 0.4:
            self.options["storage"] = storage
        self.until = draw.random() < 0.4
        self.parts = draw.randint(1, 4)
        self.run = 0
        folder._opened.clear()

    def step(self, state):
        self.run += 1
        for _ in range(self.parts):
            state["u"] *= 1.0 - 0.1 * state["u"]
        state["n"] += 1

    def final(self, x, **options):
        how = {"until": lambda state: state["n"] >= self.steps} if self.until else {"steps": self.steps}
        return np.sum(ampi.timeloop(self.step, {"u": x * 1.0, "n": 0}, **how, **self.options, **options)["u"])


@pytest.mark.mpi
@pytest.mark.parametrize("seed", range(24))
def test_figures_are_what_happens(seed, tmp_path):
    """After each step: the number of calls of the step, what a phase has done of what it has to do, files' bytes."""
    storage = tmp_path / "rank"
    loop = Loop(seed, COMM_WORLD.bcast(str(storage)))
    seen, phases, on_disk = [], {}, 0

    def look(figures):
        nonlocal on_disk
        seen.append(figures)
        assert figures.executed == loop.run
        phases.setdefault(figures.phase, []).append((figures.done, figures.total))
        mine = storage.glob(f"loop-0/rank-{COMM_WORLD.rank}/*.h5")
        if COMM_WORLD.rank == 0:
            on_disk = max(on_disk, sum(path.stat().st_size for path in mine))

    _, back = ampi.vjp(lambda x: loop.final(x, progress=look), X)
    assert "reverse" not in phases and [done for done, _ in phases["forward"]] == list(range(1, loop.steps + 1))
    assert {total for _, total in phases["forward"]} == {None if loop.until else loop.steps}
    back(1.0)
    assert list(phases) == ["forward", "reverse", "end"]
    swept = phases["reverse"]
    assert swept[-1] == (len(swept), len(swept)) and {total for _, total in swept} == {len(swept)}
    figures = seen[-1]
    assert all(one is figures for one in seen) and figures.steps == loop.steps
    assert (
        len(swept) == loop.run - loop.steps * (1 + (0 if "memory" not in loop.options else 1 / loop.steps)) + loop.steps
    )
    assert figures.disk_peak >= on_disk and (figures.disk_peak > 0) == ("storage" in loop.options)
    assert figures.memory_peak >= X.nbytes * (loop.steps > 1)
    run, loop.run = loop.run, 0
    back(1.0)
    assert run >= loop.run == figures.executed >= loop.steps


@pytest.mark.parametrize("kept", [1, 2, 5, 10])
def test_memory_grows_with_checkpoints_and_not_with_steps(kept):
    """A state is an array of 1000 numbers, and so is what a recorded step saves."""

    def step(u):
        u *= 1.0 - 0.1 * u

    peaks = []
    for steps in (40, 200):
        seen = []
        x = numpy.linspace(0.1, 0.9, 1000)
        for _ in range(2):
            ampi.grad(lambda x: np.sum(ampi.timeloop(step, x * 1.0, steps, checkpoints=kept, progress=seen.append)))(x)  # noqa: B023
        peaks.append(seen[-1].memory_peak)
    assert kept * 8000 <= peaks[1] <= 1.1 * peaks[0] <= (kept + 1) * 1.1 * 3 * 8000


@pytest.mark.mpi
@pytest.mark.parametrize(
    "progress, terminal", [(True, False), (True, True), (None, True), (None, False), (False, True)]
)
def test_bars_are_on_rank_0_where_they_are_wanted(progress, terminal, err):
    text = err(terminal)

    def step(u):
        u *= 1.0 - 0.1 * u

    ampi.grad(lambda x: np.sum(ampi.timeloop(step, x * 1.0, 50, checkpoints=3, progress=progress)))(X)
    shown = text.getvalue()
    if COMM_WORLD.rank or not (progress or (progress is None and terminal)):
        assert shown == ""
        return
    assert "steps run:" in shown and "run again and swept: 100%" in shown and "50/50" in shown
    closing = shown.strip().splitlines()[-1]
    assert closing.startswith("ampi.timeloop: 50 steps, ") and closing.endswith(" B of disk")
    assert "times each), " in closing and " snapshots, at most " in closing


def test_loops_in_steps_have_no_bars_of_their_own(err):
    text = err(True)

    def inner(u):
        u *= 0.9

    def outer(u):
        return ampi.timeloop(inner, u * 1.1, 3, checkpoints=2)

    ampi.grad(lambda x: np.sum(ampi.timeloop(outer, x * 1.0, 4, checkpoints=1)))(X)
    assert text.getvalue().count("ampi.timeloop: 4 steps") == 1 and "3 steps" not in text.getvalue()
    assert "/3 " not in text.getvalue()


def test_a_plain_loop_and_one_that_stops_in_an_error(err):
    text = err(True)

    def step(state):
        state["n"] += 1
        if state["n"] == 7:
            raise ValueError("here")

    ampi.timeloop(step, {"n": 0}, 5)
    assert "5/5" in text.getvalue()
    for record in (False, True):
        text.truncate(0)
        with pytest.raises(ValueError, match="here") as held:
            with ampi.Tape() if record else ampi.passive():
                ampi.timeloop(step, {"n": 0}, 9)
        assert held and text.getvalue().endswith("\n")  # the bar has ended


def test_invalid_values_of_progress_are_refused():
    with pytest.raises(ampi.TapeError, match="progress is 'yes'; it must be True, False, None"):
        ampi.timeloop(lambda u: u, 1.0, 3, progress="yes")

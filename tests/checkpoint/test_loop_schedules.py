"""Time loops by schedules of the package, by name or made by the program, with states in memory and on disk."""

import math
import pathlib

import numpy
import pytest
from checkpoint_schedules import (
    Forward,
    HRevolve,
    MixedCheckpointSchedule,
    MultistageCheckpointSchedule,
    NoneCheckpointSchedule,
    SingleDiskStorageSchedule,
    SingleMemoryStorageSchedule,
    TwoLevelCheckpointSchedule,
)

import ampi
import ampi.numpy as np
from ampi.checkpoint.schedules import Online
from ampi.checkpoint.states import COMPUTED, PART
from ampi.mpi import COMM_WORLD

X = numpy.array([0.3, 0.7, 1.1])


def in_place(s):
    s["u"] *= 1.0 - 0.05 * s["v"]
    s["v"] += 0.1 * s["u"]


def functional(s):
    return {"u": s["u"] * (1.0 - 0.05 * s["v"]), "v": s["v"] + 0.1 * s["u"]}


def final(step, steps, x, loop):
    s = loop(step, {"u": np.array(x), "v": np.sin(x) + COMM_WORLD.rank}, steps)
    return np.sum(s["u"] * s["v"])


def plainly(step, state, steps):
    for _ in range(steps):
        result = step(state)
        state = state if result is None else result
    return state


MADE = {
    "all in memory": (lambda n, k: SingleMemoryStorageSchedule(), 0),
    "multistage in memory": (lambda n, k: MultistageCheckpointSchedule(n, k, 0), 0),
    "multistage": (lambda n, k: MultistageCheckpointSchedule(n, k, 2), 2),
    "two levels, all on disk": (lambda n, k: TwoLevelCheckpointSchedule(4, k), 20),
    "hrevolve": (lambda n, k: HRevolve(n, k, 3) if n > 1 else MultistageCheckpointSchedule(n, k, 0), 3),
}


@pytest.mark.mpi
@pytest.mark.parametrize("steps", [1, 9])
@pytest.mark.parametrize("step", [in_place, functional])
@pytest.mark.parametrize(
    "schedule, on_disk",
    [
        ("Revolve", 0),
        ("MixedCheckpoint", 0),
        ("Multistage", 0),
        ("HRevolve", 20),
        ("DiskRevolve", 20),
        ("Multistage", 20),
        ("TwoLevel", 20),
        *MADE.values(),
    ],
    ids=lambda x: x if isinstance(x, str) else None,
)
def test_gradient_is_that_of_the_plain_loop(schedule, on_disk, step, steps, tmp_path):
    """In two sweeps; with no more states on disk in the end than were asked for."""
    folder, seen = COMM_WORLD.bcast(str(tmp_path)), []
    options = {"schedule": schedule, "checkpoints": 3, "progress": seen.append}
    options.update({"storage": folder} if on_disk else {})
    y, back = ampi.vjp(lambda x: final(step, steps, x, lambda *a: ampi.timeloop(*a, **options)), X)
    assert y == final(step, steps, np.array(X), plainly)
    expected = ampi.grad(lambda x: final(step, steps, x, plainly))(X)
    for _ in range(2):
        numpy.testing.assert_array_equal(back(1.0)[0], expected)
    assert seen[-1].executed >= steps
    state = 400 + 3 * PART + 2 * COMPUTED  # a dictionary of two arrays
    assert seen[-1].memory_peak <= 3 * state or schedule is MADE["all in memory"][0]
    assert len(list(pathlib.Path(folder).glob(f"*/rank-{COMM_WORLD.rank}/state-*"))) <= on_disk


REFUSED = {
    "none": ("Foo", {}, "is not a known schedule; there are 'MixedCheckpoint', 'Revolve'"),
    "no folder": ("HRevolve", {}, "'HRevolve' needs storage=..., a folder; without it there are"),
    "no disk": (
        "Revolve",
        {"storage": "s"},
        "'Revolve' stores no states on disk; with storage=... there are 'HRevolve'",
    ),
    "resumed": ("HRevolve", {"storage": "s", "resume": True}, "continues with its own schedule"),
    "states": (lambda n, k: TwoLevelCheckpointSchedule(4, k), {}, "stores states on disk; give storage="),
    "recorded steps": (lambda n, k: SingleDiskStorageSchedule(), {"storage": "s"}, "stores recorded steps on disk"),
    "mixed on disk": (MixedCheckpointSchedule, {}, r"stores states on disk.*storage=StorageType\.RAM"),
    "nothing kept": (lambda n, k: NoneCheckpointSchedule(), {}, "stores nothing"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_impossible_schedules_are_refused_before_the_sweep(what, tmp_path):
    schedule, options, message = REFUSED[what]
    options = {name: str(tmp_path) if name == "storage" else value for name, value in options.items()}
    with ampi.Tape() as tape:
        x = tape.watch(X)
        with pytest.raises(ampi.TapeError, match=message):
            final(in_place, 9, x, lambda *a: ampi.timeloop(*a, schedule=schedule, checkpoints=3, **options))


def test_a_schedule_that_ends_too_early_is_an_error():
    def schedule(n, k):
        actions = list(MultistageCheckpointSchedule(n, k, 0))
        return actions[: len(actions) // 2]

    comm = COMM_WORLD.Dup()

    def program(x):
        return final(in_place, 9, x, lambda *a: ampi.timeloop(*a, schedule=schedule, checkpoints=3, comm=comm))

    with pytest.raises(ampi.TapeError, match="the schedule ends before all steps are reversed"):
        ampi.grad(program)(X)


def executed(steps, checkpoints):
    """The number of steps that are run if the length of the loop is known only at its end."""
    schedule, count = Online(checkpoints), 0
    for action in schedule:
        if isinstance(action, Forward):
            count += action.n1 - action.n0
            if action.n1 == steps and schedule.steps is None:
                schedule.finish(steps)
    return count


def revolve(steps, checkpoints):
    """The number of steps that Revolve runs in addition (Griewank and Walther 2000)."""
    r = 0
    while math.comb(checkpoints + r, checkpoints) < steps:
        r += 1
    return r * steps - math.comb(checkpoints + r, checkpoints + 1)


@pytest.mark.parametrize("checkpoints", [1, 2, 3, 5, 8, 10])
def test_an_unknown_number_of_steps_is_run_as_often_as_is_proven(checkpoints):
    for steps in [*range(1, 40), 63, 64, 65, 100, 127, 200, 257]:
        distance = 1
        while distance * checkpoints < steps:
            distance *= 2
        parts = -(-steps // distance)
        most = 2 * steps + sum(revolve(distance, c) for c in range(checkpoints - parts + 1, checkpoints + 1))
        assert steps <= executed(steps, checkpoints) <= most

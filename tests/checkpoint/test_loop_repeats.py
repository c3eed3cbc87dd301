"""Time loops whose steps do not reproduce themselves."""

import random as randomness

import numpy
import pytest
from timeloop_programs import Fields, counted, decayed, plainly, same, through

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

X = numpy.array([0.3, 0.7, 1.1])


CAPRICIOUS = {  # what a step finds beside its state, which is another thing each time
    "a generator": lambda: numpy.random.default_rng(2).normal,
    "the global generator": lambda: numpy.random.rand,
    "random": lambda: randomness.random,
    "a counter": counted,
    "a clock": lambda: __import__("time").perf_counter_ns,
}
PLACES = {  # where that goes: into all of an array, last bits of an element, an array beside the state, its numbers
    "all": lambda s, value: s["u"].__imul__(1.0 + 1e-3 * (value % 7.1)),
    "a bit": lambda s, value: s["u"].__setitem__(1, s["u"][1] * (1.0 + 2.3e-16 * (value * 12345.678 % 1e4))),
    "beside": lambda s, value: s["beside"].__setitem__(0, 1e-3 * (value % 7.1)),
    "a number": lambda s, value: s.__setitem__("dt", numpy.float64(1e-3 * (value % 7.1))),
}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("what", CAPRICIOUS)
def test_what_does_not_reproduce_itself_is_named(what, where):
    """However often steps are run again: no gradient is made of steps that do not fit together."""
    for steps, kept in [(n, k) for n in (2, 3, 5, 8) for k in (1, 2, 3)]:
        value, figures = CAPRICIOUS[what](), []
        beside = np.zeros(2)

        def step(s):
            s["u"] += 0.1 * s["u"] * (s["dt"] + s["beside"][0])
            PLACES[where]({**s, "beside": beside} if where == "beside" else s, value())  # noqa: B023

        def loop(u):
            state = {"u": u, "dt": numpy.float64(0.1), "beside": beside}  # noqa: B023
            return ampi.timeloop(step, state, steps, checkpoints=kept, progress=figures.append)["u"]  # noqa: B023

        try:
            through(loop, X)
        except ampi.TapeError as error:
            assert "test_loop_repeats.py:" in str(error) and "does not reproduce itself" in str(error)
            assert "state['" in str(error)
        else:
            assert figures[-1].executed == steps, (kept, steps)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kept", [1, 3])
def test_a_step_that_one_rank_does_not_reproduce_ends_all_ranks(kept):
    comm = COMM_WORLD.Dup()

    def step(s):
        total = np.zeros(3)
        comm.Allreduce(s["u"], total)
        s["u"] = s["u"] * 0.9 + 0.01 * total
        if comm.rank == 1:
            s["v"] = s["v"] * (1.0 + randomness.random())

    def loop(u):
        state = ampi.timeloop(step, {"u": u, "v": u * 2.0}, 6, checkpoints=kept)
        return state["u"] + state["v"]

    expected = "step . does not reproduce itself"
    error = ampi.TapeError if COMM_WORLD.rank == 1 else ampi.CommunicationError
    with pytest.raises(error, match=expected if COMM_WORLD.rank == 1 else f"because rank 1 .*{expected}"):
        through(loop, X)
    comm.Free()


@pytest.mark.parametrize("begins", [0, 4, 8])
def test_a_kernel_that_is_called_late(mpiexec, tmp_path, begins):
    """The comparison does not depend on what the program has imported."""
    program = tmp_path / "program.py"
    program.write_text(f"""
import numpy, ampi, ampi.numpy as np
@ampi.kernel
def halve(u):
    for i in range(u.shape[0]):
        u[i] *= 0.5
def step(s):
    s["u"] *= 0.9
    if s["n"] == {begins}:
        halve(s["u"])
    s["n"] += 1
with ampi.Tape() as tape:
    x = tape.watch(numpy.ones(3))
    y = ampi.timeloop(step, {{"u": x * 1.0, "n": 0}}, 8, checkpoints=2)["u"]
w = np.ones(1)
with ampi.Tape() as other:
    halve(other.watch(w) * 1.0)
for _ in range(2):
    numpy.testing.assert_allclose(tape.gradient(y, x, seed=numpy.ones(3)), 0.9**8 * {0.5 if begins < 8 else 1.0})
""")
    done = mpiexec(1, str(program))
    assert done.returncode == 0, done.stderr


def test_other_numbers_of_python_draw_a_warning():
    def step(s):
        s["u"] *= 0.9
        s["seconds"] = randomness.random()
        s["n"] += 1

    def loop(u):
        return ampi.timeloop(step, {"u": u, "seconds": 0.0, "n": 0}, 9, checkpoints=2)["u"]

    with pytest.warns(ampi.ActivityWarning, match=r"step \d gives other numbers in state\['seconds'\] when") as said:
        through(loop, X)
    assert len(said) == 1


def test_what_is_carried_outside_the_state_is_named():
    hidden = []

    def step(u):
        hidden.append(u * 2.0)
        return u * (1.0 + 0.1 * hidden[-2] if len(hidden) > 1 else 1.0)

    with pytest.raises(ampi.ActivityError, match="an earlier step has computed, and that is not in its state"):
        through(lambda u: ampi.timeloop(step, u, 5, checkpoints=10), X)


def test_the_state_is_as_it_was_after_a_sweep():
    state = Fields(None, None, None)

    def step(f):
        f.u = f.u * 0.9
        f.v *= f.u
        f.cycle += 1
        f.history.append(f.cycle)

    with ampi.Tape() as tape:
        x = tape.watch(X)
        state.u, state.v = x * 1.0, x * 2.0
        ampi.timeloop(step, state, 7, checkpoints=2)
        y = np.sum(state.u * state.v)
    before = state.u, state.v, ampi.value(state.u).copy(), ampi.value(state.v).copy()
    for _ in range(2):
        tape.gradient(y, x)
        assert state.cycle == 7 and state.history == [1, 2, 3, 4, 5, 6, 7]
        assert state.u is before[0] and state.v is before[1]
        numpy.testing.assert_array_equal(state.u, before[2])
        numpy.testing.assert_array_equal(state.v, before[3])


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({}, "give steps=..., a number, or until="),
        ({"steps": -1}, "steps is -1; it must be an integer of at least 0"),
        ({"steps": 2.5}, "steps is 2.5"),
        ({"steps": 3, "checkpoints": 0}, "checkpoints is 0"),
        ({"steps": 3, "checkpoints": 2, "memory": 100}, "not both"),
        ({"steps": 3, "memory": "much"}, "memory is 'much'"),
    ],
)
def test_arguments_that_do_not_fit(arguments, message):
    with pytest.raises(ampi.TapeError, match=message):
        ampi.timeloop(decayed, np.array(X), **arguments)


@pytest.mark.mpi
@pytest.mark.mpi(min_size=2)
def test_windows_of_steps_leave_what_was_recorded_before_the_loop():
    """What is known of others' accesses when a message comes in which no step's adjoint has a part."""
    comm = COMM_WORLD.Dup()

    def step(u):
        requests = [comm.Isend(u[0:1], r, 8) for r in range(comm.size)]
        total = u * 0.5
        for r in range(comm.size):
            came = np.zeros(1)
            comm.Recv(came, r, 8)
            total += 0.1 * np.sin(came)
        ampi.MPI.Request.Waitall(requests)
        win = ampi.MPI.Win.Allocate_shared(24, 8, comm=comm)
        mine = np.frombuffer(win.Shared_query(comm.rank)[0], "d")
        mine[...] = 0.0
        win.Fence()
        near = np.frombuffer(win.Shared_query((comm.rank + 1) % comm.size)[0], "d")
        mine += np.sin(u)
        win.Fence()
        near[0:1] *= np.cos(u[0:1])
        win.Fence()
        total[0:1] += 0.3 * np.sin(mine[0:1])
        del near
        win.Free()
        return total

    expected = through(plainly(step, 5), X)
    for kept in (1, 2, 3):
        same(through(lambda u: ampi.timeloop(step, u, 5, checkpoints=kept), X), expected)  # noqa: B023
    comm.Free()

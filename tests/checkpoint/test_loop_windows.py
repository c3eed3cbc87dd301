"""Windows of one-sided communication in time loops."""

import numpy
import pytest
from timeloop_programs import decayed, plainly, same, through

import ampi
import ampi.numpy as np
from ampi.mpi import COMM_WORLD

X = numpy.array([0.3, 0.7, 1.1])


def test_windows_of_before_the_loop_are_refused():
    win = ampi.MPI.Win.Allocate(24, 8, comm=COMM_WORLD)
    memory = np.frombuffer(win.tomemory(), "d")

    def step(u):
        memory[...] = u
        win.Fence()

    try:
        with pytest.raises(ampi.ActivityError, match="memory of a window"):
            through(lambda u: ampi.timeloop(step, u, 2), X)
    finally:
        COMM_WORLD.Barrier()
        win.Free()


@pytest.mark.mpi
@pytest.mark.parametrize("checkpoints", [1, 4])
def test_windows_that_no_step_uses_stay_as_they_are(checkpoints):
    comm = COMM_WORLD.Dup()
    wins = [ampi.MPI.Win.Allocate(24, 8, comm=comm), ampi.MPI.Win.Create_dynamic(comm=comm)]
    wins[1].Attach(mine := np.zeros(3))
    try:
        expected = through(plainly(decayed, 4), X)
        same(through(lambda u: ampi.timeloop(decayed, u, 4, checkpoints=checkpoints), X), expected)
    finally:
        wins[1].Detach(mine)
        for win in wins:
            win.Free()
        comm.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("way", ["put", "get"])
def test_windows_of_before_the_loop_that_other_ranks_use_in_steps_are_refused_everywhere(way):
    """By one rank, in an epoch of Lock: the others make no call."""
    comm = COMM_WORLD.Dup()
    win = ampi.MPI.Win.Allocate(24, 8, comm=comm)

    def step(u):
        if comm.rank == 0:
            win.Lock(1)
            (win.Put if way == "put" else win.Get)(u, 1)
            win.Unlock(1)
        comm.Barrier()
        return u * 2.0

    try:
        with pytest.raises((ampi.ActivityError, ampi.CommunicationError), match="memory of a window"):
            through(lambda u: ampi.timeloop(step, u, 2, checkpoints=1, comm=comm), X)
    finally:
        COMM_WORLD.Barrier()
        win.Free()
        comm.Free()

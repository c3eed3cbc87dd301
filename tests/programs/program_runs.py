"""Runs of scripts, for the tests of programs."""

import ampi
from ampi.programs.differences import compare
from ampi.programs.gradients import Differentiation
from ampi.programs.results import describe
from ampi.programs.runs import Program

WORLD = ampi.COMM_WORLD


def check(path, wrt, of, objective="sum", arguments=(), also=()):
    """The gradients of a script, after they were compared with finite differences."""
    problem = Differentiation(Program("file", str(path), list(arguments)), wrt, of, also, objective)
    with ampi.mpi.installed():
        found = problem.gradients()
        described = describe(problem, found)
        compared = compare(problem, found)
        problem.runner.forget()
    assert all(f"{name} = " in described for name in of) and "it is zero" not in described
    for one in compared:
        assert one.passed, str(one)
        assert one.exact != 0, str(one)
    return found

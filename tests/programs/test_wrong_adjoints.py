"""``--check`` and `ampi.testing` find adjoints that are wrong on purpose, whatever the fields begin with.

Programs are drawn from communication patterns, of which the adjoint is right, or has a share on the wrong rank, lacks
a reduction, counts twice, or is permuted; from fields that are alike on all ranks, or zero in places, or neither; and
from what the program decides by values that all ranks have. Whether a gradient is wrong is told by ampi's own adjoint
of the same program.
"""

import random

import numpy
import pytest

import ampi
from ampi.programs.differences import compare
from ampi.programs.gradients import Differentiation
from ampi.programs.runs import Program

pytestmark = pytest.mark.mpi
WORLD = ampi.COMM_WORLD

PATTERNS = {  # a linear map of all ranks' fields, and its transpose
    "halo": ("shift(u, 1)", "shift(bar, -1)"),
    "far halo": ("shift(u, comm.size // 2)", "shift(bar, -(comm.size // 2))"),
    "sum": ("total(u)", "total(bar)"),
    "root": ("comm.bcast(value(u), root=0) * 1.0", "total(bar) * (comm.rank == 0)"),
    "gather": ("numpy.sum(comm.allgather(value(u) * (comm.rank + 1.0)), axis=0)", "total(bar) * (comm.rank + 1.0)"),
    "local": ("numpy.cumsum(value(u))", "numpy.cumsum(bar[::-1])[::-1].copy()"),
}
FAULTS = {
    "none": "{adjoint}",
    "left on the wrong rank": "bar",
    "without a reduction": "bar * (comm.rank + 1.0)",
    "doubled": "2 * ({adjoint})",
    "permuted": "numpy.roll({adjoint}, 1)",
    "from the wrong side": "shift({adjoint}, 1)",
    "zero": "0 * bar",
    "right on the first rank": "({adjoint}) * (comm.rank == 0)",
    "right in sums": "total({adjoint}) / comm.size",
    "zero where the field is": "({adjoint}) * (value(u) != 0)",
}
FIELDS = {
    "uniform": "numpy.full(3, 1.0)",
    "zero": "numpy.zeros(3)",
    "alike": "numpy.arange(1.0, 4.0)",
    "different": "numpy.arange(1.0, 4.0) + 0.3 * comm.rank",
    "a point": "numpy.eye(3)[1] * (comm.rank == 0)",
    "a point on each rank": "numpy.eye(3)[1]",
    "in a list": "[numpy.full(3, 1.0), 0.5]",
    "by bcast": "comm.bcast(numpy.full(3, 0.7), root=0)",
}
LOOPS = {
    "": "w = step(w)",
    "counted": "for _ in range(int(round(2.0 * k / k))):\n    w = step(w) * k",
    "timed": "t = 0.0\nwhile t < 2.5 * k:\n    t += k\n    w = step(w) * k",
    "converging": "while comm.allreduce(float(abs(w).sum())) > 1e3 * k:\n    w = step(w) * 0.1\nw = step(w)",
    "of equal values": "assert comm.allgather(float(k)) == [float(k)] * comm.size\nw = step(w) * k",
}
SOURCE = """\
import numpy
import ampi
from ampi import value
from mpi4py import MPI
comm = MPI.COMM_WORLD

def shift(u, by):
    out = numpy.empty_like(u)
    comm.Sendrecv(u, (comm.rank + by) % comm.size, recvbuf=out, source=(comm.rank - by) % comm.size)
    return out

def total(u):
    out = numpy.empty_like(u)
    comm.Allreduce(u, out)
    return out

def forward(u):
    return {forward}

step = ampi.custom_vjp(forward)
step.defvjp(lambda u: (forward(u), numpy.array(value(u))), lambda u, bar: ({adjoint},))
k = 0.25
u = {field}
w = u[0] * u[1] if isinstance(u, list) else u
{loop}
J = float(numpy.sum(w**2 + w * numpy.arange(1.0, 4.0)) * 3.0**comm.rank)
"""


def draw(seed):
    """A program, the same with a right adjoint, and what it is made of."""
    rng = random.Random(seed)
    names = [rng.choice(list(table)) for table in (PATTERNS, FAULTS, FIELDS, LOOPS)]
    forward, adjoint = PATTERNS[names[0]]
    filled = {"forward": forward, "field": FIELDS[names[2]], "loop": LOOPS[names[3]]}
    sources = [SOURCE.format(adjoint=FAULTS[fault].format(adjoint=adjoint), **filled) for fault in (names[1], "none")]
    return *sources, names


def differentiated(path, wrt):
    problem = Differentiation(Program("file", str(path), []), wrt, ["J"])
    return problem, problem.gradients()


def is_wrong(found, right):
    """Whether two gradients differ on a rank."""
    leaves = (
        [found.leaves(0, n) for n in range(len(found.parts[0]))],
        [right.leaves(0, n) for n in range(len(right.parts[0]))],
    )
    pairs = [(numpy.asarray(a), numpy.asarray(b)) for one, other in zip(*leaves) for a, b in zip(one, other)]
    scale = WORLD.allreduce(max(float(abs(b).max()) for _, b in pairs), op=ampi.MPI.MAX)
    error = WORLD.allreduce(max(float(abs(a - b).max()) for a, b in pairs), op=ampi.MPI.MAX)
    return error > 1e-4 * scale


def check_drawn(seed, program):
    source, right_source, names = draw(seed)
    wrt = ["u", "k"] if "k" in LOOPS[names[3]] and names[3] != "converging" else ["u"]
    with ampi.mpi.installed():
        problem, found = differentiated(program(source), wrt)
        other, right = differentiated(program(right_source), wrt)
        wrong = is_wrong(found, right)
        (compared,) = compare(problem, found)
        for one in (problem, other):
            one.runner.forget()
    assert compared.passed == (not wrong), f"{names}, {wrong=}\n{compared}"
    return wrong


@pytest.mark.timeout(300)
def test_check_finds_wrong_adjoints_of_drawn_programs(program):
    """A few in each run."""
    found = [check_drawn(seed, program) for seed in range(10)]
    assert any(found) and not all(found)


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("start", range(0, 400, 50))
def test_check_finds_wrong_adjoints_of_many_programs(start, program):
    for seed in range(1000 + start, 1050 + start):
        check_drawn(seed, program)

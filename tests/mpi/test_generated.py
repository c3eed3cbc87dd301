"""Generated MPI programs, whose sweeps are compared with differences; `scripts/fuzz` runs more of them."""

import dataclasses

import pytest
from forward_check import is_drawn
from generated_check import WORLD, check
from generated_programs import Program, drawn, function, source
from generated_steps import KINDS

from ampi.mpi.namespace import BASE

NUMBER = 12
pytestmark = pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")  # plain arrays go to files


BROKEN_IN_INTEL = ("Raccumulate(", "Scatter_init(")  # the latter when restarted


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(WORLD.size > 4, reason="programs are for 2 to 4 ranks")
@pytest.mark.parametrize("number", range(NUMBER))
def test_generated(number, buffered_sends):
    program = drawn(number, least=20)
    text = source(program)
    if any(call in text for call in BROKEN_IN_INTEL) and BASE["get_vendor"]()[0] == "Intel MPI":
        pytest.skip("Intel MPI crashes or hangs in mpi4py as it is")
    problems = check(function(text), program.narrow, every_mode=is_drawn(0, of=4))
    assert not problems, "\n".join([*problems, f"narrow: {program.narrow}", text])


@pytest.mark.mpi(min_size=2)
@pytest.mark.skipif(WORLD.size > 4, reason="programs are for 2 to 4 ranks")
@pytest.mark.parametrize("number", range(100, 100 + NUMBER // 2))
def test_generated_as_steps_of_a_time_loop(number, buffered_sends):
    program = dataclasses.replace(drawn(number, least=8, most=16), kept=1 + number % 4)
    text = source(program)
    if any(call in text for call in BROKEN_IN_INTEL) and BASE["get_vendor"]()[0] == "Intel MPI":
        pytest.skip("Intel MPI crashes or hangs in mpi4py as it is")
    problems = check(function(text), program.narrow, program.kept)
    assert not problems, "\n".join([*problems, f"narrow: {program.narrow}, kept: {program.kept}", text])


def test_any_numbers_make_a_program():
    """Each kind of step compiles by itself, with any choices and with none."""
    for kind in KINDS:
        for choices in ((), *((k,) * 14 for k in range(1, 30))):
            compile(source(Program(3, ((kind, choices),) * 2)), "program", "exec")

"""No program's cost per item grows with its length: instructions of Python's are counted, so no clock is needed."""

import importlib.util
import pathlib

import pytest

import ampi

FILE = pathlib.Path(__file__).parents[2] / "scripts" / "growth.py"
SPEC = importlib.util.spec_from_file_location("growth", FILE)
growth = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(growth)

pytestmark = pytest.mark.skipif(ampi.COMM_WORLD.size > 1, reason="the ranks would only do the same")
SHORT, LONG = 100, 300
TOLERANCE = 1.25  # some collections are looked through up to 64 items


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
@pytest.mark.parametrize("name", growth.PROGRAMS)
def test_work_per_item_is_the_same(name):
    make, _ = growth.PROGRAMS[name]
    growth.worked(make, ampi.COMM_SELF, 0, 3)  # what is done once
    short, long = (growth.worked(make, ampi.COMM_SELF, 0, n) for n in (SHORT, LONG))
    assert all(long[phase] <= TOLERANCE * short[phase] + 20 for phase in short), (short, long)


def test_a_quadratic_program_is_found():
    """The instrument: a loop over all items for each."""

    def quadratic(comm, partner, n):
        yield "all"
        for _ in range(n):
            for _ in range(n):
                pass

    short, long = (growth.worked(quadratic, None, 0, n) for n in (SHORT, LONG))
    assert long["all"] > 2 * short["all"]

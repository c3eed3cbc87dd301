"""Drawn programs of which a test tries some today and others tomorrow, so that after some days all have been tried.

A case that fails is named by its seed. ``AMPI_TEST_DAY`` is the number of the day (of the Gregorian calendar, 1 being
its first): a run with the number of another run tries the same. ``conftest.py`` sets it for all processes of a run.
"""

import datetime
import os

import pytest

DAY = int(os.environ.setdefault("AMPI_TEST_DAY", str(datetime.date.today().toordinal())))


def of_the_day(cases, count, day=DAY):
    """Parameters: ``count`` of the cases in a row, which move on by as many each day; the others are marked slow."""
    cases = list(cases)
    first = day * count % len(cases)
    today = {k % len(cases) for k in range(first, first + count)}
    return [pytest.param(case, marks=[] if k in today else pytest.mark.slow) for k, case in enumerate(cases)]

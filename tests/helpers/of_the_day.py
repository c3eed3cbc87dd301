"""Drawn programs of which a test tries some today and others tomorrow, so that after some days all have been tried.

A case that fails is named by its seed. ``AMPI_TEST_DAY=2026-11-30`` tries the cases of that day again.
"""

import datetime
import os

import pytest

DAY = os.environ.setdefault("AMPI_TEST_DAY", datetime.date.today().isoformat())  # processes of a run inherit it

_NUMBER = datetime.date.fromisoformat(DAY).toordinal()


def of_the_day(cases, count, day=_NUMBER):
    """Parameters: ``count`` of the cases in a row, which move on by as many each day; the others are marked slow."""
    cases = list(cases)
    first = day * count % len(cases)
    today = {k % len(cases) for k in range(first, first + count)}
    return [pytest.param(case, marks=[] if k in today else pytest.mark.slow) for k, case in enumerate(cases)]

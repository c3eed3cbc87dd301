"""Pairs of parameters, of which half are slow tests."""

import itertools

import pytest


def alternate(first, second):
    """All pairs, of which every other one is slow, so that each value of both is in one that is not: as on a
    chessboard. Programs that wait cost their time whatever the machine."""
    for (i, one), (k, other) in itertools.product(enumerate(first), enumerate(second)):
        values = [*(one if isinstance(one, tuple) else (one,)), other]
        yield pytest.param(*values, marks=[pytest.mark.slow] if (i + k) % 2 else [])

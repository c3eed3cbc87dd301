"""Pairs of parameters, half of them in slow tests."""

import itertools

import pytest


def alternate(first, second):
    """All pairs, of which every other one is slow, so that each value of both is in one that is not: as on a
    chessboard. Programs that wait cost their time whatever the machine."""
    pairs = itertools.product(enumerate(first), enumerate(second))
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), other, marks=[pytest.mark.slow] * ((i + k) % 2))
        for (i, one), (k, other) in pairs
    ]

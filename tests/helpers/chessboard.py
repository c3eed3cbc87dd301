"""Pairs of parameters, half of them in slow tests."""

import itertools

import pytest


def alternate(first, second):
    """All pairs, every other one marked slow as on a chessboard: each value of both still occurs in a pair that is not.

    For programs that wait: they take their time on any machine."""
    pairs = itertools.product(enumerate(first), enumerate(second))
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), other, marks=[pytest.mark.slow] * ((i + k) % 2))
        for (i, one), (k, other) in pairs
    ]

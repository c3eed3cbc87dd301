"""Bounds checks: errors of kernel and adjoint name array, axis, index and line."""

from collections import namedtuple

import numpy as np
import pytest
from numba import prange
from numba.core import config

import ampi
from ampi.base import checks

State = namedtuple("State", "x v")


def reads_beyond(x, y):
    for i in range(y.shape[0]):
        y[i] = x[i + 1] * x[i + 1]


def reads_before(x, y):
    for i in range(y.shape[0]):
        y[i] = x[i - 6] * x[i]


def writes_beyond(x, y):
    for i in prange(x.shape[0]):
        y[i + 4] = x[i] * x[i]


def by_table(x, y):
    table = np.array([0, 7, 1])
    for i in range(3):
        y[i] = x[table[i]] * 2.0


def of_a_matrix(x, y):
    z = np.zeros((2, 3))
    for i in range(3):
        z[1, i] = x[i]
    y[0] = z[0, 1] * z[1, 3 * x.shape[0] // 5]


CASES = {
    reads_beyond: "index 5 is out of bounds for axis 0 of 'x', which has size 5",
    reads_before: "index -6 is out of bounds for axis 0 of 'x', which has size 5",
    writes_beyond: "index 5 is out of bounds for axis 0 of 'y', which has size 5",
    by_table: "index 7 is out of bounds for axis 0 of 'x', which has size 5",
    of_a_matrix: "index 3 is out of bounds for axis 1 of 'z', which has size 3",
}


def asked_for(how, monkeypatch):
    """Request checks in one of three ways; returns options for the kernel."""
    if how == "NUMBA_BOUNDSCHECK":
        monkeypatch.setattr(config, "BOUNDSCHECK", 1)
    elif how == "AMPI_CHECK":
        monkeypatch.setattr(checks, "level", checks.FULL)
    return {"boundscheck": True} if how == "boundscheck" else {}


@pytest.mark.parametrize("function", CASES, ids=lambda f: f.__name__)
def test_kernel_and_adjoint_raise(function):
    kernel = ampi.kernel(boundscheck=True, parallel=True)(function)
    first = function.__code__.co_firstlineno
    line = "|".join(str(first + k) for k in range(1, 6))
    found = f"test_bounds.py:({line}): in kernel '{function.__name__}.*{CASES[function]}"
    with pytest.raises(IndexError, match=found):
        kernel(np.ones(5), np.ones(5))
    with ampi.Tape() as tape, pytest.raises(IndexError, match=found):
        kernel(tape.watch(np.ones(5)), ampi.numpy.ones(5))
    x = np.ones(5)
    contract = kernel.contract(kernel.types_of((x, x)), frozenset("x"))
    with pytest.raises(IndexError, match="out of bounds for axis"):
        contract.adjoint(x, x, *(np.ones(5) for _ in contract.shadows))


@pytest.mark.parametrize("how", ["boundscheck", "NUMBA_BOUNDSCHECK", "AMPI_CHECK"])
def test_checks_are_requested(how, monkeypatch):
    kernel = ampi.kernel(**asked_for(how, monkeypatch))(reads_beyond)
    with pytest.raises(IndexError, match=CASES[reads_beyond]):
        kernel(np.ones(5), np.ones(5))
    x = np.arange(6.0)
    value, gradient = ampi.value_and_grad(lambda x: total(kernel, x))(x)
    assert float(value) == 55.0
    np.testing.assert_array_equal(gradient, [0.0, 2.0, 4.0, 6.0, 8.0, 10.0])


def total(kernel, x):
    y = ampi.numpy.zeros(5)
    kernel(x, y)
    return ampi.numpy.sum(y)

"""Loops with long arithmetic, split into several: the same derivatives for any number of iterations and of splits."""

import math
from dataclasses import replace

import numpy as np
import pytest
from kernel_checks import Check
from numba import prange

from ampi.kernel.ir.remarks import Kind
from ampi.kernel.optimise import loop_distribution
from ampi.kernel.options import Options

OPTIONS = Options(reassociate=True)
DIVIDED = {"of pairs", "of a chain", "in parallel"}


def of_pairs(points, at, radius, energy):
    """Energies of points in the field of a few centres: sums over the centres, stored in elements."""
    for b in range(at.shape[1]):
        for k in range(points.shape[1]):
            dx = points[0, k] - at[0, b]
            dy = points[1, k] - at[1, b]
            gap = math.sqrt(dx * dx + dy * dy) - radius[b]
            energy[k] += 2.0 * max(gap, 0.0) - gap + 0.5 / (1.0 + gap * gap)


def of_a_chain(x, y):
    """A long chain of operations that overwrites values it needs."""
    for i in range(1, x.shape[0]):
        a = math.sqrt(1.0 + x[i] * x[i])
        b = math.sqrt(1.0 + a * a * y[i])
        c = math.sqrt(1.0 + b * b)
        y[i] = a / c + x[i] * b


def in_parallel(x, y):
    for i in prange(x.shape[0]):
        a = math.sqrt(1.0 + x[i] * x[i])
        b = 1.0 / (1.0 + a * x[i])
        y[i] = math.sqrt(1.0 + b * a) / (2.0 + a * b)


def of_little(x, y):
    for i in range(x.shape[0]):
        y[i] = x[i] * x[i] + 2.0 * y[i]


def arguments(name, size):
    rng = np.random.default_rng(1)
    if name == "of pairs":
        return rng.normal(size=(2, size)), rng.normal(size=(2, 2)), np.array([0.5, 0.7]), np.zeros(size)
    return rng.uniform(0.5, 1.5, size), rng.uniform(0.5, 1.5, size)


KERNELS = {"of pairs": of_pairs, "of a chain": of_a_chain, "in parallel": in_parallel, "of little": of_little}


@pytest.fixture(autouse=True)
def quick_divisions(monkeypatch):
    """Make short loops count as long arithmetic."""
    monkeypatch.setattr(loop_distribution, "CYCLES_OF_A_DIVISION", 1)
    monkeypatch.setattr(loop_distribution, "MAX_TAKEN", 100)


def check(name, size, options=OPTIONS):
    function = KERNELS[name]
    args = arguments(name, size)
    return Check(function, args, function.__code__.co_varnames[: len(args)], options)


def number_of_loops(made):
    return [dict(r.data)["loops"] for r in made.adjoint.remarks if r.kind is Kind.DISTRIBUTED]


@pytest.mark.parametrize("name", KERNELS)
def test_long_arithmetic_is_divided(name):
    assert bool(number_of_loops(check(name, 3))) == (name in DIVIDED)
    assert not number_of_loops(check(name, 3, replace(OPTIONS, without=frozenset({"stages"}))))


@pytest.mark.parametrize("threads", [False, True])
@pytest.mark.parametrize("size", [0, 1, 7, 260])
@pytest.mark.parametrize("name", sorted(DIVIDED))
def test_derivatives_are_the_same(name, size, threads, monkeypatch):
    monkeypatch.setattr(loop_distribution, "LONGEST", 128)  # several strips
    made = check(name, size, replace(OPTIONS, threads=threads))
    assert number_of_loops(made)
    made.compare(1e-13, against_differences=size == 7)


@pytest.mark.parametrize("most", [1, 2, 5])
def test_any_number_of_cuts_will_do(most, monkeypatch):
    monkeypatch.setattr(loop_distribution, "MAX_STAGES", most)
    monkeypatch.setattr(loop_distribution, "WORTH_IT", 1.1)
    made = check("of pairs", 9)
    assert number_of_loops(made) == ([most] if most > 1 else [])
    made.compare(1e-13)


def test_sums_are_left_whole_unless_they_may_be_added_in_another_order():
    assert not number_of_loops(check("of pairs", 3, replace(OPTIONS, reassociate=False)))

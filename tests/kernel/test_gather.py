"""Remaining statements of adjoints in gather form, executed row by row after the gather loop or in it."""

import math

import numpy as np
import pytest
from kernel_checks import Check, without

from ampi.kernel import prange
from ampi.kernel.ir.remarks import Kind
from ampi.kernel.optimise import gather_nests


def both_sides(u, new, c):
    for i in range(1, u.shape[0] - 1):
        new[i] = u[i] + c * (u[i - 1] - 2.0 * u[i] + u[i + 1])


def ahead(u, new, c):
    for i in range(u.shape[0] - 3):
        new[i + 1] = u[i + 1] * c + u[i + 3]


def behind(u, new, c):
    for i in range(3, u.shape[0]):
        new[i] = u[i - 3] - c * u[i - 1]


def coefficients(u, new, k):
    for i in range(2, u.shape[0] - 2):
        new[i] = k[i] * (u[i - 2] + u[i + 1]) + u[i]


def added(u, new, k):
    for i in range(1, u.shape[0] - 1):
        new[i] += k[i] * (u[i - 1] + u[i + 1])


def in_rows(u, new, c):
    for i in range(u.shape[0]):
        for j in range(1, u.shape[1] - 1):
            new[i, j] = c * (u[i, j - 1] - u[i, j + 1])


def in_columns(u, new, c):
    for i in range(2, u.shape[0] - 1):
        for j in range(u.shape[1]):
            new[i, j] = c * (u[i - 2, j] - u[i + 1, j])


def skew(u, new, k):
    for i in range(1, u.shape[0]):
        for j in range(u.shape[1] - 2):
            new[i, j] = k[i, j] * u[i - 1, j + 2] + u[i, j]


def waves(u, new, k, old):
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            around = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + u[i, j + 1]
            new[i, j] = 2.0 * u[i, j] - old[i, j] + k[i, j] * k[i, j] * (around - 4.0 * u[i, j])


def one_row_of_coefficients(u, new, k):
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            new[i, j] = u[i - 1, j] + u[i + 1, j] + u[i, j - 1] + k[0, j] * u[i, j + 1]


def boxes(u, new, k):
    for i in range(1, u.shape[0] - 1):
        for j in range(1, u.shape[1] - 1):
            for m in range(1, u.shape[2] - 1):
                around = u[i - 1, j, m] + u[i + 1, j, m] + u[i, j - 1, m] + u[i, j, m + 1]
                new[i, j, m] = u[i, j, m] + k[i, j, m] * around


ONE = [both_sides, ahead, behind, coefficients, added]
TWO = [in_rows, in_columns, skew, waves, one_row_of_coefficients]


def kinds(derivative):
    return {remark.kind for remark in derivative.remarks}


def dimensions(kernel):
    return 1 if kernel in ONE else 2 if kernel in TWO else 3


def names_of(kernel):
    return kernel.__code__.co_varnames[: kernel.__code__.co_argcount]


def arguments_of(kernel, shape):
    rng = np.random.default_rng(3)
    return [0.3 if n == "c" else rng.uniform(0.5, 1.5, shape) for n in names_of(kernel)]


def made(kernel, shape, *switched_off, **options):
    active = [n for n in names_of(kernel) if n != "c"]
    return Check(kernel, arguments_of(kernel, shape), active, without(*switched_off, **options))


@pytest.fixture(autouse=True)
def short_strips(monkeypatch):
    monkeypatch.setattr(gather_nests, "STRIP_SHIFT", 2)
    monkeypatch.setattr(gather_nests, "STRIP", 4)


SHAPES = [(n,) for n in (1, 2, 3, 4, 5, 6, 7, 9, 10, 11, 14, 21)]
PLANES = [(m, n) for m in (1, 2, 3, 5) for n in (1, 2, 4, 5, 7)]
CASES = [(k, s) for k in ONE for s in SHAPES] + [(k, s) for k in TWO for s in PLANES]
CASES += [(boxes, s) for s in [(3, 3, 3), (2, 5, 5), (4, 3, 5), (5, 5, 4), (6, 5, 5), (4, 4, 2)]]


@pytest.mark.parametrize("kernel", [*ONE, *TWO, boxes], ids=lambda k: k.__name__)
def test_bits_are_the_same_as_in_two_passes(kernel):
    shapes = [s for k, s in CASES if k is kernel]
    together, apart = made(kernel, shapes[0]), made(kernel, shapes[0], "behind")
    assert Kind.BEHIND not in kinds(apart.adjoint)
    for shape in shapes:
        checks = [check.at(arguments_of(kernel, shape)) for check in (together, apart)]
        seeds = checks[0].seeds()
        found, wanted = (check.adjoints(*seeds) for check in checks)
        for name, value in wanted.items():
            np.testing.assert_array_equal(found[name], value, err_msg=f"{name} of shape {shape}")


@pytest.mark.parametrize("kernel", [*ONE, *TWO, boxes], ids=lambda k: k.__name__)
def test_against_differences(kernel):
    check = made(kernel, (9, 8, 7)[: dimensions(kernel)])
    if kernel is not added:  # it overwrites nothing
        assert Kind.BEHIND in kinds(check.adjoint), check.adjoint.remarks
    check.compare(1e-10)


@pytest.mark.parametrize("kernel, names", [(coefficients, "k"), (waves, "old"), (waves, "k"), (boxes, "k")])
def test_increments_side_by_side_are_in_the_same_loop(kernel, names):
    remarks = made(kernel, (7, 7, 7)[: dimensions(kernel)]).adjoint.remarks
    beside = [dict(remark.data)["arrays"] for remark in remarks if remark.kind is Kind.BESIDE]
    assert any(f"{names}_bar" in arrays for arrays in beside), remarks


def test_functions_stay_in_a_loop_of_their_own():
    def exponents(u, new, k):
        for i in range(1, u.shape[0] - 1):
            new[i] = u[i - 1] + u[i + 1] + math.exp(k[i])

    check = made(exponents, (11,))
    found = kinds(check.adjoint)
    assert Kind.BEHIND in found and Kind.BESIDE not in found
    check.compare(1e-10)


def test_threads_take_two_passes():
    def columns(u, new, c):
        for i in prange(1, u.shape[0] - 1):
            new[i] = c * (u[i - 1] - u[i + 1])

    found = kinds(made(columns, (30,), threads=True).adjoint)
    assert Kind.GATHERED in found and Kind.BEHIND not in found

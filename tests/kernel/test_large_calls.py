"""Calls of large functions, which are differentiated and compiled separately."""

import numba
import numpy as np
import pytest
import random_calls

import ampi
from ampi.kernel import separate_functions
from ampi.kernel.frontend.language import large_calls
from ampi.kernel.ir import calls


@pytest.fixture
def all_are_large(monkeypatch):
    monkeypatch.setattr(large_calls, "LARGE", 1)
    monkeypatch.setattr(large_calls, "PLACES", 1)


@numba.njit
def step(p, n, u, w):
    s = 0.0
    for i in range(len(u)):
        s += np.sin(p * u[i]) / n
    for j in range(3):
        w[j] = w[j] * p + s
    return s + w[1], n + 1, p > 1.0


def steps(p, u, w0):
    w = w0.copy()
    total = 0.0
    for k in range(1, 4):
        s, m, big = step(p * k, k, u, w)
        total = total + s * m if big else total - s * s * m
    return total + w[2]


U, W = np.array([0.3, 0.5, 0.7]), np.array([0.1, 0.2, 0.3])


def called_in(function, *arguments):
    types = tuple(map(numba.typeof, arguments))
    return set(calls.called(separate_functions.primal(function, types, (), frozenset(), frozenset())))


@pytest.mark.usefixtures("all_are_large")
def test_derivatives_are_those_of_inlined_calls():
    separate, inlined = ampi.kernel(steps), ampi.kernel(steps, without="calls")
    assert called_in(steps, 0.8, U, W)
    assert separate(0.8, U, W) == inlined(0.8, U, W)
    expected = ampi.grad(inlined, argnums=(0, 1, 2))(0.8, U, W)
    for found, other in zip(ampi.grad(separate, argnums=(0, 1, 2))(0.8, U, W), expected, strict=True):
        np.testing.assert_allclose(found, other, rtol=1e-12)
    direction = (0.3, U[::-1].copy(), W * W)
    _, tangent = ampi.jvp(separate, (0.8, U, W), direction)
    slope = sum(np.sum(np.multiply(g, d)) for g, d in zip(expected, direction))
    np.testing.assert_allclose(tangent, slope, rtol=1e-12)


def changing(p, u):
    s = 0.0
    u = u.copy()
    for _ in range(2):
        s += step(p, 2, u, u)[0]
    return s


def in_parts(p, a):
    w = np.zeros(3)
    s = 0.0
    for i in range(a.shape[0]):
        s += step(p, 2, a[i], w)[0]
    return s


def growing(p, u):
    local = np.empty(2 * len(u))
    for i in range(local.shape[0]):
        local[i] = p * u[i // 2]
    return step(p, 2, local, np.zeros(3))[0]


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize(("function", "argument"), [(changing, U), (in_parts, np.ones((2, 3))), (growing, U)])
def test_calls_with_arrays_that_would_be_copied_are_inlined(function, argument):
    assert not called_in(function, 0.8, argument)


@numba.njit
def guarded(p):
    if p < 0.0:
        raise ValueError("negative")
    return p * p


def with_guard(p):
    return guarded(p) + guarded(2.0 * p)


@pytest.mark.usefixtures("all_are_large")
def test_calls_of_functions_that_raise_are_inlined():
    assert not called_in(with_guard, 0.8)


def test_small_functions_are_inlined():
    assert not called_in(steps, 0.8, U, W)


@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("seed", range(3))
def test_random_programs(seed):
    random_calls.examine(seed)


@pytest.mark.slow
@pytest.mark.usefixtures("all_are_large")
@pytest.mark.parametrize("seed", range(3, 400))
def test_more_random_programs(seed):
    random_calls.examine(seed)

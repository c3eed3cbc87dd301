"""Adjoints on several threads: the same results, and only loops that no two threads can meet in."""

import warnings

import numba
import numpy as np
import pytest
from kernel_cases import CASES, Check, activity_patterns, kernel_ir, load, make_arguments

import ampi
from ampi.kernel import adjoint, cache, emit

LOOPS = ["axpy", "guarded", "gather", "scatter_add", "permuted", "two_dimensions", "dot", "norm_then_scale",
         "local_array", "sparse_product", "n_body", "while_in_loop"]  # fmt: skip
SAFE = {"axpy", "guarded", "scatter_add", "dot", "norm_then_scale", "local_array", "permuted", "while_in_loop"}


def threaded(name):
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[0]
    return Check(CASES[name].function, arguments, active, adjoint.Options(threads=True))


@pytest.mark.parametrize("name", LOOPS)
def test_only_private_elements_are_written_by_threads(name):
    check = threaded(name)
    facts = [f for f in check.adjoint.facts if "thread" in f or "parallel" in f]
    assert facts and all(("own" in f) != (name in SAFE) for f in facts), facts
    assert "prange" in emit.source(check.adjoint.function)
    check.compare(1e-12)


@pytest.mark.parametrize("name", LOOPS)
def test_threads_give_the_same(name):
    check = threaded(name)
    array_seeds, result_seeds = check.seeds()
    expected = check.adjoints(array_seeds, result_seeds)
    check.run_adjoint = load(check.adjoint.function, jit=True, parallel=True)
    before = numba.get_num_threads()
    numba.set_num_threads(min(2, before))
    try:
        found = check.adjoints(array_seeds, result_seeds)
    finally:
        numba.set_num_threads(before)
    for n in expected:
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-13, atol=1e-13)


def test_without_threads_nothing_is_parallel():
    arguments = make_arguments("axpy")
    derivative = adjoint.build(kernel_ir(CASES["axpy"].function, arguments), {"x"})
    assert "prange" not in emit.source(derivative.function)


@ampi.kernel(parallel=True)
def smoothed(x):
    s = 0.0
    for i in numba.prange(1, x.shape[0] - 1):
        s += x[i - 1] * x[i + 1]
    return s


def test_adjoints_with_arrays_of_each_threads_own_are_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", numba.NumbaWarning)
        ampi.grad(smoothed)(np.arange(9.0))
    assert list(tmp_path.glob("smoothed_adjoint_*.nbc"))

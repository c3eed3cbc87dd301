"""Every analysis can be switched off: generated programs change, derivatives do not."""

import functools

import numpy as np
import pytest
from switch_cases import CHANGED, check_without, programs

from ampi.kernel import ANALYSES
from ampi.kernel.frontend.language import large_calls
from ampi.kernel.optimise import loop_distribution

PAIRS = [(name, switch) for switch, names in CHANGED.items() for name in names.split()]


@pytest.fixture(autouse=True)
def quick_divisions(monkeypatch):
    """Distribute even short loops, and treat even small functions as large."""
    monkeypatch.setattr(large_calls, "LARGE", 10)
    monkeypatch.setattr(loop_distribution, "CYCLES_OF_A_DIVISION", 1)
    monkeypatch.setattr(loop_distribution, "MAX_TAKEN", 100)


@functools.cache
def with_all(name):
    """A check of a kernel, the texts of its programs, seeds of arrays and of results, and the adjoints."""
    check = check_without(name, "")
    arrays, results = check.seeds()
    return check, programs(check), arrays, results, check.adjoints(arrays, results)


@pytest.mark.parametrize("name, switch", PAIRS)
def test_another_program_gives_the_same(name, switch):
    check, texts, arrays, results, expected = with_all(name)
    without = check_without(name, switch)
    assert programs(without) != texts, "this switch does not change this kernel"
    # Without the activity analysis more values are active; those have zero adjoints.
    zeros = {n: np.zeros_like(without.value[n]) for n in without.adjoint.shadows}
    given = iter(results)
    seeds = [
        next(given) if is_active else 0.0
        for is_active, in_other in zip(check.adjoint.result_active, without.adjoint.result_active)
        if in_other
    ]
    found = without.adjoints({**zeros, **arrays}, seeds)
    unused = {*check.adjoint.ends, *without.adjoint.ends}
    compared = [n for n in expected if n not in unused]
    assert compared
    for n in compared:
        size = 1.0 + np.max(np.abs(expected[n]), initial=0.0)
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-12, atol=1e-13 * size, err_msg=n)
    if check.split is not None and without.split is not None and switch != "activity":
        parts = without.adjoints_of_parts({**zeros, **arrays}, seeds, 1e-12)
        for n in compared:
            size = 1.0 + np.max(np.abs(expected[n]), initial=0.0)
            np.testing.assert_allclose(parts[n], expected[n], rtol=1e-12, atol=1e-13 * size, err_msg=n)


def test_every_switch_changes_a_kernel():
    assert set(CHANGED) == set(ANALYSES)
    assert all(CHANGED.values())

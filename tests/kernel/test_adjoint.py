"""Adjoints and tangents of small kernels against differences and against each other."""

import numpy as np
import pytest
from kernel_cases import CASES, Check, activity_patterns, make_arguments

from ampi.kernel.adjoint import Options

PATTERNS = [
    pytest.param(name, active, id=f"{name}-{'.'.join(active)}")
    for name in CASES
    for active in activity_patterns(CASES[name].function, make_arguments(name))
]


@pytest.mark.parametrize("name, active", PATTERNS)
def test_double(name, active):
    Check(CASES[name].function, make_arguments(name), active).compare(1e-12)


@pytest.mark.parametrize("name", [n for n in CASES if CASES[n].complex_too])
def test_complex(name):
    arguments = make_arguments(name, np.complex128)
    active = activity_patterns(CASES[name].function, arguments)[0]
    Check(CASES[name].function, arguments, active).compare(1e-12)


@pytest.mark.parametrize("name", CASES)
def test_compiled(name):
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[0]
    Check(CASES[name].function, arguments, active, jit=True).compare(1e-12)


SWITCHES = [name for name in Options.__dataclass_fields__ if name not in ("threads", "reassociate")]


@pytest.mark.parametrize("switched_off", SWITCHES)
@pytest.mark.parametrize("name", CASES)
def test_each_analysis_can_be_switched_off(name, switched_off):
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[-1]
    with_all = Check(CASES[name].function, arguments, active)
    without = Check(CASES[name].function, arguments, active, Options(**{switched_off: False}))
    array_seeds, result_seeds = with_all.seeds()
    expected = with_all.adjoints(array_seeds, result_seeds)
    if without.adjoint.shadows != with_all.adjoint.shadows or sum(without.adjoint.result_active) != len(result_seeds):
        pytest.skip("more is active")
    found = without.adjoints(array_seeds, result_seeds)
    for n in expected:
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-13, atol=1e-13)

"""Properties of generated tangents; ``test_adjoint`` compares their derivatives with differences."""

import numpy as np
import pytest
from kernel_cases import CASES
from kernel_checks import Check, activity_patterns, make_arguments, run


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_itself_is_done(name):
    """Arguments after the call, and leading results, are those of the kernel."""
    arguments = make_arguments(name)
    function = CASES[name].function
    check = Check(function, arguments, activity_patterns(function, arguments)[0])
    expected, results = run(function, arguments)
    direction = check.direction()
    shadows = [np.array(direction.get(n, np.zeros_like(check.value[n]))) for n in check.tangent.shadows]
    found = [a.copy() if isinstance(a, np.ndarray) else a for a in arguments]
    values = check.run_tangent(*found, *shadows, *(direction[n] for n in check.tangent.scalars))
    for a, b in zip([*found, *values[: len(results)]], [*expected, *results]):
        np.testing.assert_array_equal(a, b)
    assert len(values) == len(results) + sum(check.tangent.result_active)


@pytest.mark.parametrize("name", CASES)
def test_tangents_are_linear(name):
    arguments = make_arguments(name)
    function = CASES[name].function
    check = Check(function, arguments, activity_patterns(function, arguments)[0])
    d, e = check.direction(), check.direction()
    both = {n: 2.0 * d[n] - e[n] for n in d}
    for x, y, z in zip(check.tangents(d), check.tangents(e), check.tangents(both)):
        np.testing.assert_allclose(z, 2.0 * x - y, rtol=1e-9, atol=1e-9 * (1 + np.max(np.abs(x))))

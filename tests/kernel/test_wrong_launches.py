"""Launches of CUDA kernels that do not fit: each is a KernelError that names the argument."""

import numpy as np
import pytest
import random_launches
from uncompiled import compiled, in_python, run_in_python

from ampi import KernelError


@compiled
def test_in_python(request):
    """Run these tests in a separate process without compilation."""
    run_in_python(__file__, request)


@in_python
def test_right_ones():
    for kernel, (configuration, given) in random_launches.LAUNCHES.items():
        values = given()
        kernel[configuration](**values)
        assert np.any(values["b"])


@in_python
def test_a_number_that_equals_a_right_one():
    for _ in range(2):
        for configuration in ((3, 8, 0, 64.0), (3.0, 8), ((3.0, 1), 8), (3, 8, 0.0)):
            with pytest.raises(KernelError):
                random_launches.plain[configuration]
            random_launches.plain[tuple(int(n) if isinstance(n, float) else (3, 1) if n == (3.0, 1) else n
                                        for n in configuration)]  # fmt: skip


@in_python
@pytest.mark.parametrize("first", [0, *(pytest.param(100 * k, marks=pytest.mark.slow) for k in range(1, 6))])
def test_wrong_ones(first):
    for seed in range(first, first + 100):
        random_launches.examine(seed)

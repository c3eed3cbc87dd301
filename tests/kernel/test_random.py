"""Random kernels: adjoint against tangent, tangent against differences, with every analysis on and off."""

import linecache

import numpy as np
import pytest
from kernel_cases import Check
from random_kernels import SIZE, Program

from ampi.kernel.adjoint import Options

PATTERNS = [("a", "b", "c", "u", "v"), ("a",), ("u", "c")]
SWITCHES = [Options(), *(Options(**{n: False}) for n in Options.__dataclass_fields__ if n != "threads")]


def make(seed):
    """A random kernel, with source that the parser finds, and its arguments."""
    text = "import math\nimport numpy as np\nfrom numba import prange\n" + Program(seed).source()
    name = f"<random kernel {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = {"__name__": __name__}
    exec(compile(text, name, "exec"), namespace)
    rng = np.random.default_rng(seed)
    vectors = [rng.uniform(-1, 1, SIZE) for _ in range(3)]
    return namespace["kernel"], [*vectors, rng.integers(0, SIZE, SIZE), *rng.uniform(-1, 1, 2), SIZE]


@pytest.mark.parametrize("seed", range(10_000, 10_100))
def test_random(seed):
    kernel, arguments = make(seed)
    for k, active in enumerate(PATTERNS):
        check = Check(kernel, arguments, active, SWITCHES[(seed + k) % len(SWITCHES)])
        check.compare(1e-10, against_differences=False)
    check = Check(kernel, arguments, PATTERNS[0])
    direction = check.direction()
    tangents = check.tangents(direction)
    near, far = check.differences(direction, 1e-4), check.differences(direction, 2e-4)
    for computed, a, b in zip(tangents, near, far):
        if np.allclose(a, b, rtol=1e-5, atol=1e-6):  # no kink nearby
            np.testing.assert_allclose(computed, a, rtol=1e-4, atol=1e-5)

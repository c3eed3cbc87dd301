"""How random kernels are checked: adjoint against tangent, tangent against differences, with analyses switched off."""

import linecache

import numba
import numpy as np
from kernel_cases import Check
from random_kernels import SIZE

from ampi.kernel.adjoint import Options

PATTERNS = [("a", "b", "c", "u", "v"), ("a",), ("u", "c")]
SWITCHES = [Options(), *(Options(**{n: False}) for n in Options.__dataclass_fields__ if n != "threads")]
HEADER = "import math\nimport numpy as np\nfrom numba import prange\n"


@numba.njit
def total(x, c):
    s = 0.0
    for i in range(x.shape[0]):
        s += math_free(x[i], c) * x[-1 - i]
    return s


@numba.njit
def math_free(x, c):
    return 0.5 * x / (1.0 + c * c)


@numba.njit
def spread(x, out, c):
    for i in range(1, x.shape[0]):
        out[i] = 0.5 * x[i] * x[i - 1] + 0.25 * c * out[i - 1]


@numba.njit
def renewal(x, c):
    new = np.empty_like(x)
    for i in range(x.shape[0]):
        new[i] = 0.5 * x[i] + 0.25 * c * x[i - 1] * x[i]
    return new


def kernel_of(text, seed):
    """The kernel of a program's text, with source that the parser finds, and its arguments."""
    text = HEADER + text
    name = f"<random kernel {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    namespace = {"__name__": __name__, "total": total, "spread": spread, "renewal": renewal}
    exec(compile(text, name, "exec"), namespace)
    rng = np.random.default_rng(seed)
    vectors = [rng.uniform(-1, 1, SIZE) for _ in range(3)]
    return namespace["kernel"], [*vectors, rng.integers(0, SIZE, SIZE), *rng.uniform(-1, 1, 2), SIZE]


def examine(text, seed):
    """Raise what is wrong with the derivatives of a program."""
    kernel, arguments = kernel_of(text, seed)
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

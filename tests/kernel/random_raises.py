"""Random kernels that raise exceptions under some conditions, also after they have written to their arguments."""

import numpy as np
from random_check import BY_TAPES, kernel_of, recorded
from random_kernels import Program

import ampi

REFUSALS = (
    'if {x} > {bound}:\n    raise ValueError("too large", 3)',
    "if {condition} and {x} < -{bound}:\n    raise ArithmeticError",
    'assert {x} < {bound}, "not below"',
    "assert {x} < {bound} or {condition}",
    'if {x} > {bound}:\n    raise IndexError(f"{{n}} too large")',
)


class Refusing(Program):
    """The source of one random kernel ``kernel(a, b, c, index, u, v, n)``."""

    def __init__(self, seed):
        super().__init__(seed, wide=seed % 2 == 1)

    def statement(self):
        if self.independent is None and self.random.random() < 0.35:
            texts = REFUSALS if self.random.random() < 0.3 else REFUSALS[:-1]
            bound = self.random.choice(["0.1", "0.4", "0.7", "1.5"])
            text = self.random.choice(texts)
            text = text.format(x=self.expression(), condition=self.condition(), bound=bound)
            for line in text.splitlines():
                self.line(line)
        super().statement()


def examine_refusing(text, seed):
    """Raise unless recorded calls, whose exceptions are caught, have the same values, exceptions and gradients with a
    split adjoint as with the kernel's own run; return whether something was saved, and whether a call failed."""
    function, arguments = kernel_of(text, seed)
    found, errors = [], ([], [])
    for without, caught in zip(("", BY_TAPES), errors):
        kernel = ampi.kernel(function, without=without)

        def call(*given, kernel=kernel, caught=caught):
            try:
                return kernel(*given)
            except Exception as error:
                caught.append((type(error), error.args, error.__context__))
                for array in given[:3]:
                    array[...] = ampi.value(array)  # what a failed kernel has written has no derivative
                return None

        found.append(recorded(call, arguments, seed))
    (values, gradients, kept), (expected_values, expected_gradients, _) = found
    assert errors[0] == errors[1], errors
    for value, expected in zip(values, expected_values, strict=True):
        np.testing.assert_array_equal(value, expected)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        size = np.max(np.abs(expected), initial=0.0)
        if np.isfinite(size):
            np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9 * max(size, 1e-3))
    return kept > 0, bool(errors[0])

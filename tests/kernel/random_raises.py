"""Random kernels that raise exceptions under some conditions, also after they have written to their arguments."""

from random_check import BY_TAPES, kernel_of, recorded, require_alike
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
    assert errors[0] == errors[1], errors
    require_alike(*found)
    return found[0][2] > 0, bool(errors[0])

"""Random kernels with lists among their arguments: two of vectors of different lengths, and one of numbers."""

import itertools

import numba
import numpy as np
from random_kernels import SIZE, Program

LENGTHS = (SIZE, SIZE + 2, SIZE)  # of the vectors
VECTORS = numba.types.List(numba.types.Array(numba.float64, 1, "C"), reflected=True)
NUMBERS = numba.types.List(numba.float64, reflected=True)
ARRAY = numba.types.Array(numba.float64, 1, "C")
TYPES = (VECTORS, VECTORS, NUMBERS, ARRAY, numba.float64, numba.int64)


class OfLists(Program):
    """The source of one random kernel ``kernel(l, m, s, a, u, n)``, where ``n`` is the length of the lists."""

    def __init__(self, seed):
        super().__init__(seed)
        self.budget = self.random.randint(3, 9)
        self.arrays = ["a", *(f"{name}[{k}]" for name in "lm" for k in (0, 1, -1))]
        self.unchanged = set(self.arrays[1:])
        self.scalars = ["u", "s[0]", "s[-1]"]

    def source(self):
        self.block(first=True)
        self.over_lists()
        self.line(f"return {self.expression()}, u")
        return "def kernel(l, m, s, a, u, n):\n" + "\n".join(self.lines) + "\n"

    def assign(self):
        self.line(f"u = {self.expression()}")

    conditional = new_scalar = assign

    def while_loop(self):
        k = self.fresh("k")
        self.line(f"{k} = 0")
        self.line(f"while {k} < len(l):")
        self.line(f"    {k} += {self.random.choice(['1', '2'])}")
        self.line(f"    u = 0.5 * u + l[{k} % n][0] * s[-({k} % n)]")

    def function(self):
        x = self.random.choice(["l[1]", "m[0]", "l[n - 1]", "m[-2]"])
        forms = ["np.sum({x})", "sum(s)", "{x}[1:-1].mean()", "max(s) * len(s)", "len(l) * len({x}) * u"]
        self.line(f"u = math.tanh({self.random.choice(forms).format(x=x)} * {self.atom()})")

    def statement(self):
        self.budget -= 1
        if self.budget > 0 and self.depth < 4 and self.random.random() < 0.5:
            return self.random.choice([self.over_lists, self.over_lists, self.branch, self.loop, self.while_loop])()
        return self.random.choice([self.assign, self.store, self.augment, self.function])()

    def over_lists(self):
        """A loop over lists, sometimes left early."""
        k, x, y = self.fresh("i"), self.fresh("r"), self.fresh("r")
        head, arrays, numbers, counters = self.random.choice(
            [
                (f"for {x} in l:", [x], [], []),
                (f"for {x} in s:", [], [x], []),
                (f"for {k}, {x} in enumerate(m):", [x, f"l[{k}]"], [f"s[{k}]"], [k]),
                (f"for {x}, {y} in zip(l, m):", [x, y], [], []),
                (f"for {x}, {y} in zip(m, s):", [x], [y], []),
                (f"for {k}, ({x}, {y}) in enumerate(zip(s, l)):", [y, f"m[{k} - 1]"], [x], [k]),
                (f"for {k} in range(len(l)):", [f"l[{k}]", f"m[-1 - {k}]"], [f"s[{k}]"], [k]),
                (f"for {k} in range(n - 1, -1, -1):", [f"l[{k}]", f"m[{k}]"], [f"s[{k} - 1]"], [k]),
            ]
        )
        before = self.arrays, self.scalars, self.unchanged
        self.arrays, self.scalars = [*self.arrays, *arrays, *arrays], [*self.scalars, *numbers]
        self.unchanged = self.unchanged | set(arrays)
        self.line(head)
        self.depth += 1
        self.counters += counters
        self.block()
        if self.random.random() < 0.3:
            self.line(f"if {self.condition()}:")
            self.line(f"    {self.random.choice(['break', 'continue'])}")
        self.line(f"u = 0.5 * u + {self.expression()}")
        self.depth -= 1
        self.counters = self.counters[: len(self.counters) - len(counters)]
        self.arrays, self.scalars, self.unchanged = before

    def expression(self, depth=2):
        return super().expression(depth) if self.random.random() < 0.9 else "math.tanh(sum(s))"

    def index(self):
        choices = [str(self.random.randrange(SIZE)), "n - 1", "-1"]
        for i in self.counters:
            choices += [i, f"{i} - 1", f"({i} + 1) % n"]
        return self.random.choice(choices)


def arguments_of(seed):
    """Arrays to which lists are converted (see `ampi.kernel.list_arguments`), and the other arguments."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum([0, *LENGTHS])
    vectors = [rng.uniform(-1, 1, starts[-1]) for _ in range(2)]
    numbers, a, u = rng.uniform(-1, 1, len(LENGTHS)), rng.uniform(-1, 1, SIZE), rng.uniform(-1, 1)
    return [vectors[0], starts, vectors[1], starts, numbers, a, u, len(LENGTHS)]


def with_lists(function):
    """The kernel as a function of these."""

    def call(first, starts, second, _, numbers, a, u, n):
        lists = [[x[i:j] for i, j in itertools.pairwise(starts)] for x in (first, second)]
        return function(*lists, list(numbers), a, u, n)

    return call

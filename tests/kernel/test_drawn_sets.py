"""Sets in kernels: random programs that make, combine, fill, count and search sets, compared with the same programs in
Python; gradients with complex steps."""

import random

import numpy as np
import pytest
from written import examined, written

import ampi

X = np.array([0.7, -1.2, 0.4])
CONTENTS = [np.array(v) for v in ([3, 1, 3, 0, 7, 1], [7, 2, 2, 9], [1, 0], [])]  # of i, j, k and e
NAMES = "ijke"
OPERATORS = {"&": "intersection", "|": "union", "-": "difference", "^": "symmetric_difference"}


class Writer:
    """Writes ``kernel(x, i, j, k, e)``, whose sets have elements of a single dtype, as Numba requires."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.dtype = self.random.choice([int, int, float])
        self.lines = []
        self.sets = []
        self.count = 0

    def fresh(self):
        self.count += 1
        return f"s{self.count}"

    def number(self, *names):
        return self.random.choice(["i[0]", "j[1]", "k[-1]", *names])

    def looked_for(self, *names):
        literals = ["7", "2"] if self.dtype is int else ["7.0", "2.0"]
        return self.random.choice([*literals, *names]) if self.random.random() < 0.5 else self.number(*names)

    def made(self, *names, nested=False):
        """A new set: from an array, from numbers, or from two other sets."""
        kind = self.random.choice(["array", "array", "numbers"] if nested else ["array", "numbers", "two", "method"])
        if kind == "array":
            return f"set({self.random.choice(list(NAMES))})"
        if kind == "numbers":
            return f"{{{', '.join(self.number(*names) for _ in range(self.random.randint(1, 3)))}}}"
        left, right = self.operand(*names), self.operand(*names)
        sign = self.random.choice(list(OPERATORS))
        return f"{left}.{OPERATORS[sign]}({right})" if kind == "method" else f"({left} {sign} {right})"

    def operand(self, *names):
        if self.sets and self.random.random() < 0.7:
            return self.random.choice(self.sets)
        return self.made(*names, nested=self.random.random() < 0.8)

    def line(self, depth, text):
        self.lines.append("    " * depth + text)

    def statement(self, depth, *names):
        kind = self.random.choice(["make", "make", "grow", "look", "look", "count", "branch", "loop", "again", "write"])
        looked_for = self.looked_for(*names)
        if kind == "make":
            name = self.fresh()
            self.line(depth, f"{name} = {self.made(*names)}")
            self.sets.append(name)
        elif kind == "grow":
            name = self.fresh()
            self.line(depth, f"{name} = set()")
            self.line(depth, f"for v in {self.random.choice('ijk')}:")
            self.line(
                depth + 1,
                f"if v {self.random.choice(['not in', 'in'])} {self.operand()}:" if self.sets else "if v > 1:",
            )
            self.line(depth + 2, f"{name}.add({self.random.choice(['v', 'v % 2', 'v + 1'])})")
            self.sets.append(name)
        elif kind == "look" and self.sets:
            word = self.random.choice(["in", "not in"])
            self.line(depth, f"if {looked_for} {word} {self.random.choice(self.sets)}:")
            self.line(depth + 1, "r = r * x[0] + np.sin(x[1])")
        elif kind == "count" and self.sets:
            self.line(depth, f"r += len({self.random.choice(self.sets)}) * x[2] * r")
        elif kind == "again" and self.sets and depth == 1:
            name = self.random.choice(self.sets)
            self.line(depth, f"{name} = {name} {self.random.choice(list(OPERATORS))} {self.operand(*names)}")
        elif kind == "branch":
            name, before = self.fresh(), list(self.sets)
            self.line(depth, f"if {looked_for} > 1:")
            self.line(depth + 1, f"{name} = {self.made(*names)}")
            self.line(depth, "else:")
            self.sets = before
            self.line(depth + 1, f"{name} = {self.made(*names)}")
            self.sets.append(name)
        elif kind == "write":
            self.line(depth, f"{self.random.choice('ijk')}[0] = {looked_for}")
        elif kind == "loop" and depth == 1:
            v, before = f"v{self.fresh()}", list(self.sets)
            self.line(depth, f"for {v} in {self.random.choice(NAMES)}:")
            for _ in range(3):
                self.statement(depth + 1, v)
            self.line(depth + 1, "r += x[0] * x[1]")
            self.sets = before

    def program(self):
        self.lines = ["def kernel(x, i, j, k, e):", "    r = x[0] + 0.3"]
        for _ in range(7):
            self.statement(1)
        for name in self.sets:
            self.line(1, f"r = r * 0.8 + len({name}) * x[1] * x[2]")
        return "\n".join([*self.lines, "    return r", ""])


SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed % 40 else ()) for seed in range(160)]


@pytest.mark.parametrize("seed", SEEDS)
def test_programs(seed):
    writer = Writer(seed)
    text = writer.program()
    with examined(text, seed):
        plain = written(text, f"sets {seed}", np=np)["kernel"]
        contents = lambda: [content.astype(writer.dtype) for content in CONTENTS]
        kernel = ampi.kernel(plain)
        value, gradient = ampi.value_and_grad(lambda x: kernel(x, *contents()))(X)
        assert value == pytest.approx(plain(X, *contents()), rel=1e-13)
        assert kernel(X, *contents()) == pytest.approx(value, rel=1e-13)
        expected = [plain(X + 1e-30j * e, *contents()).imag / 1e-30 for e in np.eye(X.size)]
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-14)

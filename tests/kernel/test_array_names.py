"""Names of whole arrays: random programs that bind names to new arrays, to arrays of other names and to arguments, and
change arrays in place, in loops, branches and called functions; compared with complex steps of the same programs in
Python.

Changing an array that has another name as well may be refused, but must not give wrong results.
"""

import random

import numba
import numpy as np
import pytest
from kernel_checks import Check
from written import examined, in_loops, written

from ampi import KernelError

LOOPS = (
    ("for k in range(n):",),
    ("for k in range(n):", "for j in range(2):"),
    ("k = 0", "while k < n:", "k += 1"),
    ("for k in range(n):", "if k != 1:"),
    ("for k in range(n - 1, -1, -1):",),
)


@numba.njit
def changed(x, y):
    x += 0.3 * y
    return x


@numba.njit
def changed_and_new(x, y):
    x[1:] -= 0.2 * y[:-1]
    x = np.sin(x)
    x += y
    return x


@numba.njit
def either(x, y, k):
    if k > 1:
        return x
    y = 0.6 * y
    y *= x
    return y


@numba.njit
def two(x, y):
    x = 0.5 * x - y
    return y, x


@numba.njit
def repeated(x, y, n):
    for k in range(n):
        x = 0.4 * np.tanh(x) * y
        x += y
        if k == 1:
            y = x
    return x


FUNCTIONS = {f.__name__: f for f in (changed, changed_and_new, either, two, repeated)}


class Writer:
    """``kernel(a, b, m, n)``: names ``p``, ``q`` and ``r`` for arrays of the length of ``a``."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.calls = seed % 2
        self.parts = seed % 4 > 1

    def name(self):
        return self.random.choice("pqr")

    def new(self):
        p, q = self.name(), self.random.choice("pqrab")
        forms = [f"{p} * 0.5 + {q}", f"np.sin({p})", f"0.4 * (m @ {p})", f"np.tanh({p}) * {q}", f"{q}.copy()"]
        return self.random.choice([*forms, f"0.3 * {p} - 0.2 * {q}[::-1]"])

    def in_place(self, other):
        number, new = self.random.choice(["0.7", "-0.6"]), self.new()
        return self.random.choice([f"+= {other}", f"-= {new}", f"+= {number}", f"*= {number}", f"*= np.cos({other})"])

    def statement(self, depth=0):
        p, q, other = self.name(), self.name(), self.random.choice("pqrab")
        kinds = ["new"] * 5 + ["in place"] * 5 + ["whole", "part", "element", "swap", "other", "sum"]
        kinds += ["called"] * 3 * self.calls + ["other", "matrix"] * self.parts
        kinds += ["branch"] * 2 if depth < 2 else []
        kind = self.random.choice(kinds)
        if kind == "branch":
            condition = self.random.choice(["k % 2 == 0", "k > 0", "n > 2", "k == n - 1"])
            text = self.nested(f"if {condition}:", depth)
            return text + (self.nested("\nelse:", depth) if self.random.random() < 0.5 else "")
        return {
            "new": f"{p} = {self.new()}",
            "in place": f"{p} {self.in_place(other)}",
            "whole": f"{p}[:] = {self.new()}",
            "part": f"{p}[1:] += 0.5 * {other}[:-1]",
            "element": f"{p}[0] = s * {other}[-1]",
            "swap": f"{p}, {q} = {q}, {p}",
            "other": f"{p} = {other if self.random.random() < 0.6 or not self.parts else self.part()}",
            "matrix": f"{self.part()} {self.random.choice(['=', '+='])} {self.new()}",
            "called": self.called(p, q, other),
            "sum": f"s = 0.6 * s + np.sin(np.sum({p} * {other}))",
        }[kind]

    def part(self):
        row = self.random.choice(["0", "k % 4", "1", "-1"])
        return self.random.choice([f"m[{row}]", f"m[{row}]", f"m[{row}, ::-1]", f"m[:, {row}]"])

    def called(self, p, q, other):
        r = self.random.choice("pqr")
        new = [f"changed({q}, {other})", f"changed_and_new({q}, {other})", f"either({q}, {other}, k)"]
        return self.random.choice(
            [
                f"{p} = {self.random.choice(new)}",
                f"changed({p}, {other})",
                f"{p}, {r} = two({q}, {other})",
                f"{p} = repeated({q}, {other}, n)",
                f"{p} = either({self.new()}, {other}, n)",
            ]
        )

    def nested(self, head, depth):
        lines = [line for _ in range(self.random.randint(1, 2)) for line in self.statement(depth + 1).splitlines()]
        return "\n".join([head, *(f"    {line}" for line in lines)])

    def program(self):
        first = [f"{p} = {self.random.choice(['0.5 * a', 'b + a', 'np.cos(b)', 'a', 'b'])}" for p in "pqr"]
        body = [self.statement() for _ in range(self.random.randint(2, 5))]
        head = "def kernel(a, b, m, n):", "s = 0.4", *first
        return in_loops(head, self.random.choice(LOOPS), body, "return s + np.sum(p * q) + np.sum(r * r)")


def refused(seed):
    """Return whether a program is refused; raise if its derivatives are wrong."""
    text, generator = Writer(seed).program(), np.random.default_rng(seed)
    point = [generator.uniform(0.1, 0.5, 4), generator.uniform(0.1, 0.5, 4), generator.uniform(0.1, 0.4, (4, 4)), 3]
    kernel = written(text, f"array names {seed}", np=np, **FUNCTIONS)["kernel"]
    with examined(text, seed):
        try:
            check = Check(kernel, point, ("a", "b", "m"))
        except KernelError:
            return True
        with np.errstate(all="ignore"):
            check.compare(1e-10, against_differences=False, values=True)
            check.compare_with_complex_step()
    return False


SIZE = 50


@pytest.mark.parametrize("block", [pytest.param(b, marks=pytest.mark.slow if b else ()) for b in range(20)])
def test_programs(block):
    assert sum(map(refused, range(block * SIZE, (block + 1) * SIZE))) < SIZE / 2

"""Names bound to several values at once, and loops over names that are rebound inside: random programs with tuples
(nested, named, of arrays), simultaneous assignments, calls, branches and loops, compared with complex steps of the same
programs in Python.

Changing an array that has another name as well may be refused, but must not give wrong results.
"""

import random
from collections import namedtuple

import numba
import numpy as np
import pytest
from kernel_checks import Check
from written import examined, in_loops, written

import ampi
from ampi import KernelError

Pair = namedtuple("Pair", "x y")


@numba.njit
def turned(t, c):
    for _ in range(2):
        t = (t[1], t[0] - c * t[1])
    return t


@numba.njit
def exchanged(t, c):
    if c > 0:
        t = (t[1], t[0])
    return t


@numba.njit
def two(p, q, n):
    while n > 0:
        p, q = q, 0.5 * p - q
        n -= 1
    return q, p


KNOWN = {"np": np, "Pair": Pair, "turned": turned, "exchanged": exchanged, "two": two}
LOOPS = (
    ("for k in range(n):",),
    ("for k in range(n):", "for j in range(2):"),
    ("k = -1", "while k < n - 1:", "k += 1"),
    ("k = 1", "if n > 2:"),
    ("for k in range(n):", "if k != 1:"),
    ("for k in (0, 1, 2):",),
)


class Writer:
    """Writes ``kernel(a, b, n)`` with numbers ``p q r``, tuples ``t v w``, arrays ``c d``, tuples of arrays ``u``."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def number(self):
        simple = ["p", "q", "r", "t[0]", "t[1]", "v[0]", "v[1][0]", "v[1][1]", "w.x", "w.y", "a[k]", "b[k]", "u[1][0]"]
        x, y = self.random.choice(simple), self.random.choice(simple)
        return self.random.choice([x, x, x, f"0.5 * {x} - 0.3 * {y}", f"np.sin({x} + {y})", f"{x} * {y} * 0.6"])

    def array(self):
        x, y = self.random.choice(["c", "d", "u[0]", "u[1]"]), self.random.choice("abcd")
        return self.random.choice([x, x, f"0.5 * {x} + {y}", f"np.cos({x}) * {y}"])

    def items(self):
        parts = [
            "c[1:]",
            "u[0]",
            "u[1][::-1]",
            "c",
            "d",
            "a",
            "b",
            "(p, q, r)",
            "t",
            "range(n)",
            "range(len(c))",
            "c.flat",
        ]
        return self.random.choice(parts)

    def loop(self):
        x, y = self.items(), self.items()
        head, used = self.random.choice(
            [
                (f"for x in {x}:", "x"),
                (f"for x, y in zip({x}, {y}):", "x * y"),
                (f"for i, x in enumerate({x}):", "i * x"),
                (f"for i, (x, y) in enumerate(zip({x}, {y}), n):", "i * x - y"),
                (f"for x, (i, y) in zip({x}, enumerate({y})):", "x * y + i"),
            ]
        )
        body = [f"s = 0.7 * s + np.sin(0.3 * ({used}))", *(self.simple() for _ in range(self.random.randint(1, 2)))]
        return "\n".join([head, *(f"    {line}" for line in body)])

    def simple(self):
        n, arrays = self.number, self.array
        return self.random.choice(
            [
                f"t = ({n()}, {n()})",
                f"v = ({n()}, ({n()}, {n()}))",
                f"v = (v[0], (v[1][1], {n()}))",
                f"w = Pair({n()}, {n()})",
                f"p, q = {n()}, {n()}",
                f"(p, q), r = ({n()}, {n()}), {n()}",
                f"p, t, q = {n()}, ({n()}, {n()}), {n()}",
                "t, w = (w.y, t[0]), Pair(t[1], w.x)",
                f"p, v = v[1][0], ({n()}, (v[0], p))",
                f"t = turned(t, {n()})",
                "t = exchanged(t, k - 1)",
                f"p, q = two({n()}, {n()}, k)",
                f"t = ({n()}, {n()}) if k > 0 else (t[1], t[0])",
                f"u = ({arrays()}, {arrays()})",
                f"c, d = {arrays()}, {arrays()}",
                "c, d = d, c",
                "u, c = (u[1], c), u[0]",
                f"c, p, d = d, {n()}, {arrays()}",
            ]
        )

    def statement(self, depth=0):
        kind = self.random.random()
        if kind < 0.2:
            return self.loop()
        if kind < 0.35 and depth < 2:
            inside = [line for _ in range(2) for line in self.statement(depth + 1).splitlines()]
            head = self.random.choice(["if k % 2 == 0:", "if n > 2:", "if k == 0:"])
            return "\n".join([head, *(f"    {line}" for line in inside)])
        return self.simple()

    def program(self):
        head = (
            "def kernel(a, b, n):",
            "s, p, q, r = 0.4, a[0], b[1], a[2] * b[0]",
            "t, w = (a[1], b[2]), Pair(b[0], a[3])",
        )
        head += "v = (a[0], (b[1], a[2]))", "c, d = 0.5 * a, np.cos(b)", "u = (a + b, np.sin(a))"
        body = [self.statement() for _ in range(self.random.randint(2, 4))]
        numbers = "s + p - q * r + t[0] - 2 * t[1] + v[0] * v[1][0] - v[1][1] + w.x - 3 * w.y"
        end = f"{numbers} + np.sum(c * d) + u[0][0] * u[1][1]"
        return in_loops(head, self.random.choice(LOOPS), body, f"return {end}")


def refused(seed):
    """Return whether a program is refused; raise if its derivatives are wrong."""
    text, generator = Writer(seed).program(), np.random.default_rng(seed)
    point = [generator.uniform(0.1, 0.5, 4), generator.uniform(0.1, 0.5, 4), 3]
    kernel = written(text, f"rebound names {seed}", **KNOWN)["kernel"]
    with examined(text, seed):
        try:
            check = Check(kernel, point, ("a", "b"))
            with np.errstate(all="ignore"):
                check.compare(1e-10, against_differences=False, values=True)
                check.compare_with_complex_step()
        except KernelError:
            return True
        except ValueError as problem:
            assert "changes its size in a loop" in str(problem)
            return True
    return False


SIZE = 25


@pytest.mark.parametrize("block", [pytest.param(b, marks=pytest.mark.slow if b else ()) for b in range(40)])
def test_programs(block):
    assert sum(map(refused, range(block * SIZE, (block + 1) * SIZE))) < SIZE / 2


def test_a_growing_list_that_a_loop_over_it_rebinds_is_refused():
    def kernel(a):
        found = [a[0]]
        found.append(a[1])
        total = 0.0
        for i, x in enumerate(found):
            found = [a[2]]
            found.append(x)
            total += i * x * found[0]
        return total

    with pytest.raises(KernelError, match="loop over the list 'found'"):
        ampi.kernel(kernel)(np.ones(3))


def fibonacci(a, b):
    t = (a[0], a[1])
    for _ in range(3):
        t = (t[1], t[0] + t[1] * b[2])
    return t[0]


def swapped_while_zipped(a, b):
    s = 0.0
    for x, y in zip(a, b):
        s += x - 2 * y
        a, b = b, a
    return s


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [(fibonacci, ([0.8, 1.64, 0], [0, 0, 0.02])), (swapped_while_zipped, ([1, 1, 1], [-2, -2, -2]))],
)
def test_simultaneous_assignments_and_loops(kernel, expected):
    a = np.array([0.5, -0.3, 0.8])
    found = ampi.grad(ampi.kernel(kernel), argnums=(0, 1))(a, a.copy())
    np.testing.assert_allclose(found, expected, atol=1e-14)

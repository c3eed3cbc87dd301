"""Lists whose final length is not known beforehand: random programs, whose loops end depending on the contents of their
lists.

Values are compared with those of the program in Python, gradients with its differences.
"""

import random

import numba
import numpy as np
import pytest
from derivative_check import difference
from written import examined, written

import ampi

X = np.array([0.37, -0.62, 0.81])


class Writer:
    """Writes ``kernel(x, n)``, with at most two lists of numbers and one of pairs at a time."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = ["def kernel(x, n):", "    s = 0.0", "    t = x[0] * x[1]"]
        self.names = 0

    def line(self, depth, *texts):
        self.lines += ["    " * depth + text for text in texts]

    def fresh(self, word):
        self.names += 1
        return f"{word}{self.names}"

    def number(self, *lists):
        atoms = ["x[0]", "x[1] * x[2]", "t", "0.4", *(f"{name}[{k}]" for name in lists for k in (0, -1))]
        first, second = self.random.choices(atoms, k=2)
        form = self.random.choice(["{0} * {1} + 0.2", "math.sin({0}) - {1}", "math.tanh({0} + {1})", "0.9 * {0}"])
        return form.format(first, second)

    def program(self):
        kind = self.random.choice(["alone", "in a loop", "in a loop", "called", "threads"])
        if kind == "alone":
            self.lists(1)
        elif kind in ("called", "threads"):
            word = "numba.prange" if kind == "threads" else "range"
            self.line(1, f"for k in {word}(2):", "    s += part(x * (k + 0.5), n)")
            whole, self.lines = self.lines, ["def part(x, n):", "    s = 0.0", "    t = x[0] * x[1]"]
            self.lists(1)
            self.line(1, "return s * t", "")
            self.lines += whole
        else:
            self.line(1, "for k in range(3):", "    t = x[k] * 0.7")
            self.lists(2)
        self.line(1, "return s + t")
        return "\n".join(self.lines) + "\n", kind == "threads"

    def lists(self, depth):
        name = self.fresh("l")
        self.line(depth, f"{name} = [{', '.join(self.number() for _ in range(self.random.randint(1, 3)))}]")
        if self.random.random() < 0.5:
            self.loop(depth, name, None)
            if self.random.random() < 0.3:
                self.loop(depth, name, None)
            self.results(depth, name)
            return
        other = self.fresh("m")
        pairs = self.random.random() < 0.4
        self.line(depth, f"{other} = [(0, {self.number(name)})]" if pairs else f"{other} = [{self.number(name)}]")
        self.loop(depth, name, (other, pairs))
        self.results(depth, name)
        if pairs:
            i, v = self.fresh("i"), self.fresh("v")
            self.line(depth, f"for {i}, {v} in {other}:", f"    s += {v} * {v} * ({i} + 1)")
        else:
            self.results(depth, other)

    def loop(self, depth, name, other):
        """A loop that ends depending on the contents of its lists."""
        count, most = self.fresh("c"), self.random.choice((3, 20, 45))
        self.line(depth, f"{count} = 0")
        condition = self.random.choice(
            [
                f"{name}[-1] < 3.0 and {count} < {most}",
                f"len({name}) < {most} and {name}[0] + {count} < {most}.25",
                f"{count} < {most} + int({name}[-1] > 0.3)",
            ]
        )
        self.line(depth, f"while {condition}:", f"    {count} += 1")
        depth += 1
        other_name, pairs = other or (None, False)
        readable = [name] if pairs or other is None else [name, other_name]
        if self.random.random() < 0.3:
            self.line(depth, f"if {name}[-1] * {name}[-1] > 30.0:", f"    {self.random.choice(['break', 'continue'])}")
        for _ in range(self.random.randint(1, 2)):
            self.change(depth, name, readable)
        if other is not None:
            value = self.number(*readable)
            item = f"({self.random.choice([count, f'len({name})'])}, {value})" if pairs else value
            condition = self.random.choice([f"{count} % 3 != 1", f"{name}[-1] > -0.5", "True"])
            self.line(depth, f"if {condition}:", f"    {other_name}.append({item})")
        if self.random.random() < 0.5:
            self.line(depth, f"s = 0.8 * s + {self.number(*readable)}")

    def change(self, depth, name, readable):
        grow = f"{name}.append(0.7 * {name}[-1] + {self.number(*readable)} + 0.1)"
        last = f"{name}[-1] = {self.number(*readable)} + 0.1"
        self.line(depth, grow)
        kind = self.random.choice(["no", "no", "pop", "first", "taken", "extend", "insert", "store", "more"])
        if kind == "pop":
            self.line(depth, f"if len({name}) > 4 and {name}[-2] > 0.2:", f"    {name}.pop()", f"    {last}")
        elif kind == "first":
            self.line(depth, f"if len({name}) > 5:", f"    {name}.pop(0)")
        elif kind == "taken":
            taken = self.fresh("v")
            self.line(depth, f"if len({name}) > 6:", f"    {taken} = {name}.pop()", f"    s += {taken} * t")
        elif kind == "extend":
            self.line(depth, f"{name}.extend([{self.number(name)}, {self.number(name)}])")
        elif kind == "insert":
            self.line(depth, f"{name}.insert(1, {self.number(name)})")
        elif kind == "store":
            self.line(depth, last)
        elif kind == "more":
            k = self.fresh("k")
            self.line(depth, f"for {k} in range(n):", f"    {name}.append({name}[-1] * 0.5 + {self.number(name)})")

    def results(self, depth, name):
        v = self.fresh("v")
        forms = [
            [f"for {v} in {name}:", f"    s += {v} * {v}"],
            [f"s += np.array({name}).sum() * t"],
            [f"for {v} in range(len({name})):", f"    s = 0.9 * s + {name}[{v}] ** 2"],
            [f"s += max({name}) * len({name})"],
        ]
        self.line(depth, *self.random.choice(forms), f"s += {name}[0] * {name}[-1] * 0.3")


SEEDS = [pytest.param(seed, marks=pytest.mark.slow if seed % 50 else ()) for seed in range(150)]


@pytest.mark.parametrize("seed", SEEDS)
def test_programs(seed):
    text, on_threads = Writer(seed).program()
    with examined(text, seed):
        space = written(text, f"growing lists {seed}", np=np, numba=numba, math=__import__("math"))
        if "part" in space:
            space["part"] = numba.njit(space["part"])
        plain = space["kernel"]
        kernel = ampi.kernel(plain, parallel=on_threads)
        program = lambda x: kernel(x, 3)
        value, gradient = ampi.value_and_grad(program)(X)
        assert value == pytest.approx(plain(X, 3), rel=1e-12)
        assert kernel(X, 3) == pytest.approx(value, rel=1e-12)
        along = lambda e: difference(lambda h: plain(X + h * e, 3), 1e-6)
        expected = np.array([along(e) for e in np.eye(3)])
        np.testing.assert_allclose(gradient, expected, rtol=1e-6, atol=1e-7 * (1 + np.abs(expected).max()))
        d = np.array([0.7, -0.4, 0.9])
        _, tangent = ampi.jvp(program, (X,), (d,))
        assert tangent == pytest.approx(gradient @ d, rel=1e-10, abs=1e-10 * np.abs(gradient).max())
        if seed % 3 == 0:
            slope = difference(lambda h: ampi.grad(program)(X + h * d), 1e-6)
            found = ampi.hvp(program, X, d)
            np.testing.assert_allclose(found, slope, rtol=1e-5, atol=1e-6 * (1 + np.abs(slope).max()))


def integrated(y, end):
    times, states = [0.0], [y]
    while times[-1] < end:
        step = 0.1 / (1.0 + states[-1] ** 2)
        states.append(states[-1] + step * np.sin(states[-1]))
        times.append(times[-1] + step)
    return np.array(times), np.array(states)


def test_lists_that_are_results():
    kernel = ampi.kernel(integrated)
    loss = lambda y: sum(a.sum() for a in kernel(y, 3.0))
    plain = lambda y: sum(a.sum() for a in integrated(y, 3.0))
    assert ampi.grad(loss)(0.7) == pytest.approx(difference(lambda h: plain(0.7 + h), 1e-4), rel=1e-7)

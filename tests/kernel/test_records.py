"""New structured arrays in kernels: random programs, as kernels and in Python, in all modes."""

import functools
import random

import numba
import numpy as np
import pytest
from second_check import check_second, objective_of
from written import examined, written

import ampi
import ampi.numpy as anp

POINT = np.dtype([("id", "i8"), ("x", "f8"), ("p", "f8", (2,)), ("q", [("a", "f8"), ("b", "f4"), ("n", "i4")])])
SMALL = np.dtype([("on", "?"), ("x", "f8")])


class Program:
    """A random program with structured arrays that are made, filled, sliced, copied, passed on and returned."""

    FIELDS = {"POINT": ["['x']", "['q']['a']", "['p'][:, 0]", "['p'][:, 1]"], "SMALL": ["['x']"]}

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.records = {}  # name -> (dtype, minimum length)
        self.lines, self.depth, self.count = [], 1, 0
        for _ in range(2):
            self.new()
        for _ in range(self.random.randint(4, 9)):
            self.random.choice(
                [self.new, self.fill, self.one, self.one, self.cut, self.chosen, self.copied, self.looped, self.handed]
                + [self.whole, self.branch, self.like, self.record, self.made, self.rebound, self.squared]
            )()
        self.ending()

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def fresh(self):
        self.count += 1
        return f"r{self.count}"

    def some(self, dtype=None):
        """One of the arrays."""
        return self.random.choice([n for n, (d, _) in self.records.items() if dtype in (None, d)])

    def pair(self):
        a = self.some()
        return a, self.some(self.records[a][0])

    def index(self, name):
        return self.random.choice([*range(self.records[name][1]), "-1", "len(w) % 2"])

    def number(self):
        a = self.some()
        field = self.random.choice(["['x']"] if self.records[a][0] == "SMALL" else ["['x']", "['q']['a']", "['p'][0]"])
        element = f"{a}[{self.index(a)}]{field}"
        return self.random.choice(
            [f"np.sin({element})", f"w[{self.random.randrange(3)}] * {element} + s", f"s * {element}"]
        )

    def new(self):
        name, dtype, size = self.fresh(), self.random.choice(["POINT", "POINT", "SMALL"]), self.random.randint(2, 4)
        length = self.random.choice([str(size), f"len(w) - {3 - size}" if size <= 3 else "len(w) + 1"])
        self.line(f"{name} = np.zeros({length}, dtype={dtype})")
        self.records[name] = dtype, size
        self.line(f"{name}['x'][:] = w[0] * {0.3 + 0.1 * self.count}")

    def made(self):
        """An array made by another function."""
        name = self.fresh()
        self.line(f"{name} = made({self.random.randint(2, 4)}, w[1] * s)")
        self.records[name] = "POINT", 2

    def like(self):
        old, name = self.some(), self.fresh()
        self.line(f"{name} = np.zeros_like({old})")
        self.line(f"{name}['x'][:] = {old}['x'] * {old}['x']")
        self.records[name] = self.records[old]

    def fill(self):
        a, b = self.pair()
        size = min(self.records[a][1], self.records[b][1])
        field, other = (self.random.choice(self.FIELDS[self.records[a][0]]) for _ in range(2))
        self.line(f"{a}{field}[:{size}] {self.random.choice(['=', '+='])} {b}{other}[:{size}] * s")

    def one(self):
        a = self.some()
        target = self.random.choice(
            [f"{a}[{self.index(a)}]['x']", f"{a}['x'][{self.index(a)}]"]
            + (
                [f"{a}[{self.index(a)}]['q']['a']", f"{a}['p'][{self.index(a)}, 1]", f"{a}[0]['p'][1]"]
                * (self.records[a][0] == "POINT")
            )
        )
        self.line(f"{target} {self.random.choice(['=', '=', '+=', '*='])} {self.number()}")

    def cut(self):
        old, name = self.some(), self.fresh()
        dtype, size = self.records[old]
        part = self.random.choice([":2", "::-1", "-2:", f"{self.random.randrange(max(size - 1, 1))}:"])
        self.line(f"{name} = {old}[{part}]")
        self.records[name] = dtype, 1

    def chosen(self):
        old, name = self.some(), self.fresh()
        which = self.random.choice(["np.array([1, 0, 1])", f"{old}['x'] > -9.0", "np.array([0])"])
        if self.records[old][1] < 2:
            which = "np.array([0, 0])"
        self.line(f"{name} = {old}[{which}]")
        self.records[name] = self.records[old][0], 1

    def copied(self):
        old, name = self.some(), self.fresh()
        self.line(f"{name} = {old}.copy()")
        self.records[name] = self.records[old]

    def whole(self):
        a, b = self.pair()
        self.line(f"{a}[{self.index(a)}] = {b}[{self.index(b)}]")

    def record(self):
        a, name = self.some(), self.fresh()
        self.line(f"{name} = {a}[{self.index(a)}]")
        self.line(f"{name}['x'] = {self.number()}")

    def looped(self):
        a = self.some()
        self.line(f"for i in range(len({a})):")
        self.line(f"    {a}[i]['x'] = {a}['x'][i] * {a}[i - 1]['x'] + s")
        if self.random.random() < 0.5:
            self.line(f"for item in {a}:")
            self.line("    s += 0.1 * item['x']")

    def handed(self):
        points = [n for n, (dtype, _) in self.records.items() if dtype == "POINT"]
        if points:
            self.line(f"s += scaled({self.random.choice(points)}, {self.number()})")

    def branch(self):
        name, dtype = self.fresh(), self.random.choice(["POINT", "SMALL"])
        self.line(f"if {self.random.choice(['s > 0.0', 'len(w) > 5', 'w[0] > w[1]'])}:")
        self.line(f"    {name} = np.zeros(3, {dtype})")
        self.line("else:")
        self.line(f"    {name} = np.zeros(2, {dtype})")
        self.line(f"    {name}['x'][1] = w[2]")
        self.line(f"{name}[0]['x'] = {self.number()}")
        self.records[name] = dtype, 2

    def rebound(self):
        """A name rebound to a new array in each iteration of a loop."""
        name, old = self.fresh(), self.some()
        self.line(f"{name} = np.zeros(2, {self.records[old][0]})")
        self.line("for k in range(2):")
        self.line(f"    own = np.zeros(2, {self.records[old][0]})")
        self.line(f"    own['x'][k] = {old}[0]['x'] * w[k]")
        self.line(f"    {name}[k] = own[k]")
        self.records[name] = self.records[old][0], 2

    def squared(self):
        name = self.fresh()
        self.line(f"{name} = np.zeros((2, 3), POINT)")
        self.line(f"{name}['x'][1, :] = w[:3]")
        self.line(f"{name}[0, 2]['q']['a'] = {self.number()}")
        self.line(f"{name} = {name}[{self.random.choice(['1', ':, 2', '0'])}]")
        self.records[name] = "POINT", 2

    def ending(self):
        names = self.random.sample(list(self.records), min(2, len(self.records)))
        parts = [self.random.choice([n, n, f"{n}[:1]", f"{n}[::-1]"]) for n in names]
        self.line(self.random.choice([f"return {parts[0]}", f"return {parts[0]}, {self.number()}, {parts[-1]}"]))

    def source(self):
        return "\n".join(["def program(w, s):", *self.lines, ""])


def made(n, v):
    r = np.zeros(n, POINT)
    for i in range(n):
        r[i]["x"] = v * (i + 1)
        r[i]["id"] = i
        r["p"][i, 1] = v * v
    return r


def scaled(r, v):
    total = 0.0
    for i in range(len(r)):
        r["q"]["a"][i] += v * r["x"][i]
        total += r[i]["q"]["a"] * r[i]["p"][1]
    return total


def compiled(text, name, compile_):
    """A program and the functions it calls, compiled by ``compile_``."""
    known = {"POINT": POINT, "SMALL": SMALL, "made": compile_(made), "scaled": compile_(scaled)}
    return compile_(written(text, name, np=np, **known)["program"])


def numbers_of(found):
    """The floating-point numbers of a result, as arrays."""
    for value in found if isinstance(found, tuple) else (found,):
        if getattr(value, "dtype", None) is not None and value.dtype.names:
            for name in value.dtype.names:
                yield from numbers_of(value[name])
        elif not isinstance(value, (np.ndarray, np.generic)) or value.dtype.kind == "f":
            yield value


W, S = np.array([0.7, 0.4, 1.1]), 0.6


def check(text, seed):
    program = compiled(text, f"records {seed}", ampi.kernel)
    plain = compiled(text, f"records {seed}", lambda f: f)
    by_numba = compiled(text, f"records {seed}", numba.njit)
    for value, expected, other in zip(*(numbers_of(f(W.copy(), S)) for f in (program, plain, by_numba)), strict=True):
        np.testing.assert_allclose(value, expected, rtol=1e-5 if np.asarray(value).dtype == np.float32 else 1e-12)
        np.testing.assert_allclose(other, expected, rtol=1e-5 if np.asarray(value).dtype == np.float32 else 1e-12)
    f = objective_of(
        lambda w, s: [y for y in numbers_of(program(w, s)) if np.asarray(ampi.value(y)).dtype == np.float64]
    )
    moved = objective_of(lambda w, s: [y for y in numbers_of(plain(w, s)) if np.asarray(y).dtype == np.float64])
    bars = ampi.grad(f, (0, 1))(W, S)
    for k in range(4):
        d = np.eye(4)[k]
        there = lambda h, d=d: float(moved(W + h * d[:3], S + h * d[3]))
        h = 1e-4
        expected = (8 * (there(h) - there(-h)) - (there(2 * h) - there(-2 * h))) / (12 * h)
        np.testing.assert_allclose([*bars[0], bars[1]][k], expected, rtol=1e-8, atol=1e-8)
    v = np.array([0.3, -0.2, 0.9]), 0.4
    np.testing.assert_allclose(ampi.jvp(f, (W, S), v)[1], bars[0] @ v[0] + bars[1] * v[1], rtol=1e-12, atol=1e-12)
    _, several = ampi.jvp(f, (W, S), (np.stack([v[0]] * 5), np.full(5, 0.4)), vectorised=True)
    np.testing.assert_allclose(several, [bars[0] @ v[0] + bars[1] * v[1]] * 5, rtol=1e-12, atol=1e-12)
    check_second(f, [W, np.array(S)], 1e-11, rough=1e-6)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s % 10 else []) for s in range(25)])
def test_programs(seed):
    text = Program(seed).source()
    with examined(text, f"program {seed}"):
        check(text, seed)


@functools.cache
def kernel(f):
    return ampi.kernel(f)


def scaled_first(r, s):
    r[0]["x"] *= s
    return r


def rest_of(r, s):
    r["x"][1] *= s
    return r[1:], r["x"][0] * s


@pytest.mark.parametrize("function", [scaled_first, rest_of])
def test_arguments_that_are_results(function):
    """Returned arguments, and parts of them, share memory with the arguments."""

    def f(call, make, x, s):
        r = make(3, POINT)
        r["x"][:] = x
        y = call(r, s)
        y, t = y if isinstance(y, tuple) else (y, 0.0)
        y["x"][:] *= 2.0 * s
        return (y["x"] ** 2).sum() + (r["x"] ** 3).sum() + t

    x, h = np.array([1.0, 2.0, 3.0]), 1e-5
    mine = lambda x, s: f(kernel(function), anp.zeros, x, s)
    bars = ampi.grad(mine, (0, 1))(x, 0.7)
    plain = lambda x, s: float(f(function, np.zeros, x, s))
    expected = [(plain(x + h * e, 0.7) - plain(x - h * e, 0.7)) / (2 * h) for e in np.eye(3)]
    np.testing.assert_allclose(bars[0], expected, rtol=1e-7)
    np.testing.assert_allclose(bars[1], (plain(x, 0.7 + h) - plain(x, 0.7 - h)) / (2 * h), rtol=1e-7)
    check_second(mine, [x, np.array(0.7)], rough=1e-6)


def of_integers(w):
    out = np.empty(w.size, SMALL)
    k = 0
    for i in range(w.size):
        if w[i] > 0.5:
            out[k]["on"] = True
            out[k]["x"] = i
            k += 1
    return out[:k]


def test_results_without_derivatives():
    with ampi.Tape() as tape:
        w = tape.watch(W)
        found = kernel(of_integers)(w)
        assert not tape.is_active(found)
    assert found.dtype == SMALL and isinstance(found, ampi.ndarray)
    np.testing.assert_array_equal(found["x"], [0.0, 2.0])


def a_record(w):
    r = np.zeros(2, SMALL)
    r[0]["x"] = w
    return r[0]


def by_ellipsis(w):
    r = np.zeros(2, SMALL)
    r["x"][:] = w
    return r[None]["x"].sum()


@pytest.mark.parametrize(
    ("function", "what"), [(a_record, "returns a record"), (by_ellipsis, "with None or an ellipsis")]
)
def test_what_is_refused(function, what):
    with pytest.raises(ampi.KernelError, match=what):
        kernel(function).ir_of((numba.float64,))

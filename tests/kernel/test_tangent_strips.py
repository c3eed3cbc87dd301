"""Tangents split into strips, compared with the same tangents unsplit: random loops that gather, scatter, store to many
rows, accumulate, and carry scalars from one iteration to the next."""

import linecache
import math
import random

import numpy as np
import pytest
from kernel_checks import Check, run
from of_the_day import of_the_day

import ampi
from ampi.kernel.codegen import emit
from ampi.kernel.options import Options

PLAIN = Options(without=frozenset({"independence", "branches", "strips", "stages", "allocations"}))
N = 37  # more than two strips of sixteen
FORMS = (
    "{} * {} + {}",
    "math.sin({}) * {} - {}",
    "min({}, {}) * {}",
    "{} / (2.0 + {} * {})",
    "math.exp(-{} * {}) + {}",
)
KINDS = "extreme", "recurrence", "chosen", "total", "scattered", "rows", "place", "condition"


class Loop:
    """The source of a random kernel with one loop, or two nested ones."""

    def __init__(self, seed):
        self.random = random.Random(str(seed))
        self.names = ["a[i]", "b[index[i]]", "c", "m[1, i]", "a[index[i]] * b[i]"]
        self.lines = []
        self.carried = []

    def value(self):
        pick = lambda: self.random.choice(self.names)
        return self.random.choice(FORMS).format(pick(), pick(), pick())

    def statements(self):
        for k in range(self.random.randint(3, 6)):
            self.lines.append(f"t{k} = {self.value()}")
            self.names.append(f"t{k}")
        for k in range(self.random.randint(1, 4)):
            getattr(self, self.random.choice(KINDS))(k)
        return self.lines

    def extreme(self, k):
        word = self.random.choice(["min", "max"])
        self.carry(f"s{k}", f"{word}(s{k}, {self.value()})")

    def recurrence(self, k):
        self.carry(f"s{k}", f"0.5 * s{k} * math.cos(s{k}) + {self.value()}")

    def chosen(self, k):
        self.carry(f"s{k}", f"{self.value()} if {self.value()} > s{k} else s{k}")

    def condition(self, k):
        """A condition on which a carried scalar and other arithmetic depend."""
        self.lines.append(f"q{k} = {self.value()} > {self.value()}")
        self.lines.append(f"t{k} = {self.value()} if q{k} else {self.value()}")
        self.names.append(f"t{k}")
        self.carry(f"s{k}", f"{self.value()} if q{k} else s{k}")

    def total(self, k):
        self.carry(f"s{k}", f"s{k} + {self.value()}")

    def place(self, k):
        self.lines.append(f"v{k} = {self.value()}")
        self.lines.append(f"if v{k} < s{k}:")
        self.lines.append(f"    s{k} = v{k}")
        self.lines.append(f"    p{k} = i")
        self.carried += [f"s{k}", f"p{k}"]

    def scattered(self, k):
        self.lines.append(f"y[index[i]] += {self.value()}")

    def rows(self, k):
        for row in self.random.sample(range(5), 4):
            place = self.random.choice([f"out[{row}, i]", f"out[{row}, 2 * i + 1]", f"out[{row}, order[i]]"])
            self.lines.append(f"{place} = {self.value()}")

    def carry(self, name, value):
        self.lines.append(f"{name} = {value}")
        self.carried.append(name)

    def source(self):
        body = self.statements()
        text = ["def kernel(a, b, c, m, index, order, y, out):"]
        for name in dict.fromkeys(self.carried):
            text.append(f"    {name} = {-1 if name[0] == 'p' else 0.3}")
        text.append("    for i in range(a.size):")
        text += [f"        {line}" for line in body]
        results = [n for n in dict.fromkeys(self.carried) if n[0] == "s"]
        results += [f"b[{n}] * 1.0" for n in dict.fromkeys(self.carried) if n[0] == "p"]
        text.append(f"    return {', '.join(results or ['c * 1.0'])}")
        return "\n".join(text) + "\n"


def kernel_of(source, name):
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    namespace = {"np": np, "math": math}
    exec(compile(source, name, "exec"), namespace)
    return namespace["kernel"]


def arguments():
    rng = np.random.default_rng(4)
    a, b = rng.uniform(0.2, 1.0, (2, N))
    index, order = rng.integers(0, N, N), rng.permutation(N)
    return [a, b, 0.7, rng.uniform(0.2, 1.0, (3, N)), index, order, np.zeros(N), np.zeros((5, 2 * N + 1))]


@pytest.mark.parametrize("seed", of_the_day(range(300), 15))
def test_strips_change_nothing(seed):
    source = Loop(seed).source()
    function = kernel_of(source, f"<tangent in strips {seed}>")
    active = ("a", "b", "c", "m", "y")
    check, plain = (Check(function, arguments(), active, options) for options in (Options(), PLAIN))
    direction = check.direction()
    for found, expected in zip(check.tangents(direction), plain.tangents(direction), strict=True):
        np.testing.assert_array_equal(found, expected, err_msg=source)
    values = arguments()
    shadows = [np.array(direction.get(n, np.zeros_like(check.value[n]))) for n in check.tangent.shadows]
    out = check.run_tangent(*values, *shadows, *(direction[n] for n in check.tangent.scalars))
    after, results = run(function, arguments())
    for found, expected in zip([*values, *out], [*after, *results]):
        np.testing.assert_array_equal(found, expected, err_msg=source)


def test_many_are_cut():
    """Most of these loops are split into strips, with a chain or deferred stores."""
    found = []
    for seed in range(20):
        function = kernel_of(Loop(seed).source(), f"<tangent in strips {seed}>")
        check = Check(function, arguments(), ("a", "b", "c", "m", "y"))
        found.append("strip" in emit.source(check.tangent.function))
    assert sum(found) > 10


@pytest.mark.parametrize("seed", range(4))
def test_compiled(seed):
    """Compiled tangents give the kernel's values, and agree with adjoints."""
    function = kernel_of(Loop(seed).source(), f"<tangent in strips {seed}>")
    Check(function, arguments(), ("a", "b", "c", "m", "y"), jit=True).compare(1e-11, against_differences=False)


def test_little_of_the_stack_is_taken():
    """Buffers too large for the stack of a thread are elsewhere."""
    lines = ["def kernel(a, b, index, y):"]
    for k in range(40):
        lines += ["    for i in range(a.size):"]
        lines += [f"        t = np.sin(a[index[i]] * {k + 1.5}) * np.exp(b[i] * a[i] + 1.0)"]
        lines += [f"        y[index[i]] += np.cos(t * t) * t + b[i] * t * {k}.0"]
    function = kernel_of("\n".join(lines) + "\n", "<many strips>")
    rng = np.random.default_rng(3)
    given = [rng.uniform(0, 1, N), rng.uniform(0, 1, N), rng.integers(0, N, N), np.zeros(N)]
    kernel = ampi.kernel(function)
    text = kernel.tangent_source(*given) + kernel.adjoint_source(*given)
    taken = [line.partition("scratch(")[2].partition(",")[0] for line in text.splitlines() if "= scratch(" in line]
    assert taken and "np.zeros(" in text
    assert 8 * sum(map(int, taken)) <= 4 * 2**17

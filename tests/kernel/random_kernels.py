"""Random kernels: programs made of the statements that the differentiator knows, nested and mixed at random."""

import random

ARRAYS = ("a", "b", "c")
SCALARS = ("u", "v", "w")
SIZE = 5  # of all arrays


class Program:
    """The source of one random kernel ``kernel(a, b, c, index, u, v, n)``."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.lines = []
        self.depth = 1
        self.counters = []
        self.arrays = list(ARRAYS)
        self.scalars = ["u", "v"]
        self.number = 0
        self.budget = self.random.randint(4, 14)
        self.independent = None  # the array that a prange iteration may write, at its own counter

    def source(self):
        self.block(first=True)
        results = self.random.sample(self.scalars, self.random.randint(0, 2))
        if results:
            self.line(f"return {', '.join(results)}")
        return "def kernel(a, b, c, index, u, v, n):\n" + "\n".join(self.lines) + "\n"

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem):
        self.number += 1
        return f"{stem}{self.number}"

    # statements

    def block(self, first=False):
        before = list(self.scalars), list(self.arrays)
        count = self.random.randint(2, 4) if first else self.random.randint(1, 3)
        for _ in range(count):
            self.statement()
        if not first:
            self.scalars, self.arrays = before

    def statement(self):
        self.budget -= 1
        simple = [self.assign, self.assign, self.store, self.store, self.augment, self.new_scalar]
        nested = [self.loop, self.loop, self.branch, self.while_loop, self.local_array, self.conditional, self.parallel]
        if self.budget > 0 and self.depth < 5 and self.random.random() < 0.5:
            self.random.choice(nested)()
        else:
            self.random.choice(simple)()

    def nest(self, head):
        self.line(head)
        self.depth += 1
        self.block()
        self.depth -= 1

    def new_scalar(self):
        value = self.expression()
        name = self.fresh("s")
        self.line(f"{name} = {value}")
        self.scalars.append(name)

    def assign(self):
        self.line(f"{self.random.choice(self.scalars)} = {self.expression()}")

    def target(self):
        if self.independent is not None:
            return f"{self.independent[0]}[{self.independent[1]}]"
        return f"{self.random.choice(self.arrays)}[{self.index()}]"

    def store(self):
        self.line(f"{self.target()} = {self.expression()}")

    def augment(self):
        op = self.random.choice(["+=", "-=", "*="])
        value = f"math.tanh({self.expression()})" if op == "*=" else self.expression()
        self.line(f"{self.target()} {op} {value}")

    def loop(self):
        i = self.fresh("i")
        ranges = ["range(n)", "range(1, n)", "range(n - 1)", "range(n - 1, -1, -1)", "range(0, n, 2)", "range(2)"]
        if self.counters:
            ranges += [f"range({self.counters[-1]})", f"range({self.counters[-1]}, n)"]
        head = f"for {i} in {self.random.choice(ranges)}:"
        self.counters.append(i)
        self.nest(head)
        self.counters.pop()

    def parallel(self):
        """Iterations that write one array at their own place, and otherwise only what they make."""
        if self.independent is not None or len(self.arrays) < 2:
            return self.assign()
        i = self.fresh("i")
        array = self.random.choice(self.arrays)
        before = list(self.scalars), list(self.arrays), self.counters
        self.line(f"for {i} in prange(n):")
        self.depth += 1
        own = self.fresh("s")
        self.line(f"{own} = {array}[{i}] * {self.random.choice(self.scalars)}")
        self.independent = array, i
        self.arrays = [x for x in self.arrays if x != array]
        readable, self.scalars = self.scalars, [own]
        self.counters = [*self.counters, i]
        extra = self.fresh("s")
        self.line(f"{extra} = {own} + {self.random.choice(readable)}")
        self.scalars.append(extra)
        self.block()
        self.line(f"{array}[{i}] = {self.expression()}")
        self.depth -= 1
        self.independent = None
        self.scalars, self.arrays, self.counters = before

    def while_loop(self):
        k = self.fresh("k")
        self.line(f"{k} = 0")
        s = self.random.choice(self.scalars)
        self.nest(f"while {k} < 3 and {s} < 2.0:")
        self.depth += 1
        self.line(f"{k} += 1")
        if self.random.random() < 0.3:
            self.line(f"if {self.expression()} > 1.5:")
            self.line("    break")
        self.depth -= 1

    def branch(self):
        self.nest(f"if {self.condition()}:")
        if self.random.random() < 0.5:
            self.nest("else:")

    def conditional(self):
        self.line(
            f"{self.random.choice(self.scalars)} = {self.expression()} if {self.condition()} else {self.expression()}"
        )

    def local_array(self):
        name = self.fresh("t")
        self.line(f"{name} = np.{self.random.choice(['zeros', 'ones'])}({SIZE})")
        self.arrays.append(name)

    # expressions

    def condition(self):
        if self.counters and self.random.random() < 0.4:
            return f"{self.random.choice(self.counters)} {self.random.choice(['<', '>', '=='])} 2"
        return f"{self.atom()} {self.random.choice(['<', '>'])} {self.random.choice(['0.3', self.atom()])}"

    def expression(self, depth=2):
        if depth == 0 or self.random.random() < 0.2:
            return self.atom()
        a, b = self.expression(depth - 1), self.expression(depth - 1)
        form = self.random.choice(
            ["{a} + {b}", "{a} - {b}", "0.5 * {a} * {b}", "math.sin({a})", "math.tanh({a} * {b})",
             "{a} / (2.0 + {b} * {b})",
             "math.sqrt(1.0 + {a} * {a})", "min({a}, {b})", "max({a}, {b})", "-{a}", "abs({a})", "math.tanh({a}) ** 2"]
        )  # fmt: skip
        return "(" + form.format(a=a, b=b) + ")"

    def atom(self):
        kind = self.random.random()
        if kind < 0.4:
            return self.random.choice(self.scalars)
        if kind < 0.9:
            return f"{self.random.choice(self.arrays)}[{self.index()}]"
        return self.random.choice(["0.7", "1.3", "2"])

    def index(self):
        choices = [str(self.random.randrange(SIZE)), "n - 1"]
        for i in self.counters:
            choices += [i, i, f"index[{i}]", f"{i} - 1", f"({i} + 1) % n"]
        return self.random.choice(choices)

"""Random kernels: statements that the differentiator supports, nested and mixed at random."""

import random

ARRAYS = ("a", "b", "c")
SCALARS = ("u", "v", "w")
SIZE = 5  # of all arrays


class Program:
    """The source of one random kernel ``kernel(a, b, c, index, u, v, n)``."""

    def __init__(self, seed, wide=False, functions=False):
        """``wide``: with parts of arrays and whole arrays, swaps, tuples, calls and exits from loops; ``functions``:
        with lists and functions of whole arrays as well."""
        self.wide, self.functions = wide, functions
        self.own = []  # local arrays of a prange iteration
        self.random = random.Random(seed)
        self.lines = []
        self.depth = 1
        self.counters = []
        self.arrays = list(ARRAYS)
        self.scalars = ["u", "v"]
        self.number = 0
        self.budget = self.random.randint(4, 14)
        self.unchanged = set()  # arrays that may not be written here
        self.independent = None  # the array that a prange iteration may write, at its own counter

    def source(self):
        self.block(first=True)
        results = self.results()
        if results:
            self.line(f"return {', '.join(results)}")
        return "def kernel(a, b, c, index, u, v, n):\n" + "\n".join(self.lines) + "\n"

    def results(self):
        return self.random.sample(self.scalars, self.random.randint(0, 2))

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def fresh(self, stem):
        self.number += 1
        return f"{stem}{self.number}"

    # statements

    def block(self, first=False):
        before = list(self.scalars), list(self.arrays), list(self.own)
        count = self.random.randint(2, 4) if first else self.random.randint(1, 3)
        for _ in range(count):
            self.statement()
        if not first:
            self.scalars, self.arrays, self.own = before

    def statement(self):
        self.budget -= 1
        simple = [self.assign, self.assign, self.store, self.store, self.augment, self.new_scalar]
        nested = [self.loop, self.loop, self.branch, self.while_loop, self.local_array, self.conditional, self.parallel]
        if self.wide:
            simple += [self.part, self.whole, self.pair, self.total, self.call]
            nested += [self.swap, self.time_loop, self.exit, self.part, self.named_array]
            simple += [self.masked, self.any_step, self.either_array]
            nested += [self.renewed, self.renewed, self.made_inside]
        if self.functions:
            simple += [self.function, self.list] * 4
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
        return f"{self.random.choice(self.changeable())}[{self.index()}]"

    def changeable(self):
        return [x for x in self.arrays if x not in self.unchanged]

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
        """A parallel loop whose iterations write one array at their own index, and otherwise only new arrays."""
        if self.independent is not None or len(self.arrays) < 2:
            return self.assign()
        i = self.fresh("i")
        array = self.random.choice(self.changeable())
        before = list(self.scalars), list(self.arrays), self.counters
        self.own = []
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
        if self.independent is not None:
            self.own.append(name)

    # statements of whole arrays and of several values

    def writable(self):
        """An array that may be written as a whole here; None if there is none."""
        if self.independent is None:
            return self.random.choice(self.changeable())
        return self.random.choice(self.own) if self.own else None

    def extent(self):
        """Bounds of parts of arrays with the same number of elements."""
        return self.random.choice(
            [
                ("1:", ":-1", "-1:0:-1"),
                (":", "::-1", ":"),
                ("1:-1", "2:", ":-2"),
                ("::2", "2:", ":3"),
                (":2", "-2:", "::3"),
            ]
        )

    def part(self):
        array = self.writable()
        if array is None:
            return self.assign()
        bounds = list(self.extent())
        self.random.shuffle(bounds)
        op = self.random.choice(["=", "=", "+=", "-="])
        before = self.arrays
        if op != "=":  # adding an array to itself, Numba goes element by element, NumPy computes all sums first
            self.arrays = [x for x in before if x != array]
        if self.arrays:
            self.line(f"{array}[{bounds[0]}] {op} {self.array_expression(bounds)}")
        self.arrays = before

    def whole(self):
        array = self.writable()
        if array is None:
            return self.assign()
        self.line(
            f"{array}[{self.random.choice([':', ':', 'index'])}] = {self.array_expression((':', ':', '::-1', 'index'))}"
        )

    def array_expression(self, bounds, depth=2):
        if depth == 0 or self.random.random() < 0.25:
            if self.random.random() < 0.2:
                return self.atom()
            return f"{self.random.choice(self.arrays)}[{self.random.choice(bounds)}]"
        a, b = (self.array_expression(bounds, depth - 1) for _ in range(2))
        x = f"{self.random.choice(self.arrays)}[{self.random.choice(bounds)}]"
        form = self.random.choice(
            ["{a} + {b}", "{a} - {b}", "0.5 * {a} * {b}", "np.sin({a})", "np.tanh({a} * {b})",
             "{a} / (2.0 + {b} * {b})", "-{a}", "np.where({x} > 0.3, {a}, {b})", "np.maximum({a}, {b})", "np.abs({a})"]
        )  # fmt: skip
        return "(" + form.format(a=a, b=b, x=x) + ")"

    def named_array(self):
        """A local array that is the value of an expression."""
        name = self.fresh("t")
        first = self.random.choice(self.arrays)
        self.line(f"{name} = {first} + {self.array_expression((':', '::-1', 'index'))}")
        self.arrays.append(name)
        if self.independent is not None:
            self.own.append(name)

    def total(self):
        value = self.array_expression((":", "::-1", "index"))
        function = self.random.choice(["np.sum", "np.mean", "np.max"])
        array = self.random.choice(self.arrays)
        self.line(f"{self.random.choice(self.scalars)} = np.tanh({function}({array} * {value}))")

    def pair(self):
        a, b = self.random.choice(self.scalars), self.random.choice(self.scalars)
        if self.random.random() < 0.5:
            b = b if b != a else self.fresh("s")  # CPython 3.11.0 to 3.11.2 take the first of two values for one name
            return self.line(f"{a}, {b} = {self.expression()}, {self.expression()}")
        name, first, second = self.fresh("p"), self.fresh("s"), self.fresh("s")
        self.line(f"{name} = ({self.expression()}, {self.expression()})")
        self.line(f"{first}, {second} = {name}")
        self.scalars += [first, second]
        self.line(f"{a} = {name}[{self.random.randrange(2)}] * {second}")

    def call(self):
        array = self.writable()
        if array is None or self.random.random() < 0.5:
            return self.line(
                f"{self.random.choice(self.scalars)} = total({self.random.choice(self.arrays)}, {self.atom()})"
            )
        others = [x for x in self.arrays if x != array]
        if not others:
            return self.assign()
        self.line(f"spread({self.random.choice(others)}, {array}, {self.atom()})")

    def swap(self):
        """Two arrays swapped in a time loop that writes one of them."""
        if self.independent is not None or len(self.changeable()) < 2:
            return self.assign()
        t = self.fresh("i")
        x, y = self.random.sample(self.changeable(), 2)
        self.line(f"for {t} in range({self.random.choice(['2', '3', 'n'])}):")
        self.depth += 1
        self.counters.append(t)
        self.block()
        self.counters.pop()
        self.line(
            self.random.choice(
                [f"{x}, {y} = {y}, {x}", f"if {t} != 1:\n{'    ' * (self.depth + 1)}{x}, {y} = {y}, {x}"]
            )
        )
        self.depth -= 1

    def renewed(self):
        """A name rebound to a new array in each iteration; sometimes the previous array is kept, too."""
        if self.independent is not None:
            return self.named_array()
        name, old = self.fresh("t"), self.fresh("t")
        self.line(f"{name} = {self.random.choice(self.arrays)} * {self.random.choice(['1.0', '0.5'])}")
        keeps = self.random.random() < 0.4
        if keeps:
            self.line(f"{old} = {self.random.choice(self.arrays)} * 1.0")
        t = self.fresh("i")
        self.line(f"for {t} in range({self.random.choice(['2', '3', 'n'])}):")
        self.depth += 1
        self.counters.append(t)
        before = list(self.arrays), list(self.scalars)
        self.arrays += [name, old] if keeps else [name]
        written, self.unchanged = self.unchanged, self.unchanged | {name, old}
        value = self.array_expression((":", "::-1", "index"))
        if keeps:
            self.line(f"{old}, {name} = {name}, {name} * 0.5 + {old} * {value}")
        elif self.random.random() < 0.4:
            self.line(f"{name} = renewal({name}, {self.atom()})")
        else:
            self.line(f"{name} = 0.5 * {name} + {value}")
        self.block()
        if self.random.random() < 0.3:
            self.line(f"if {self.condition()}:")
            self.line(f"    {name} = {name} * 0.7")
        self.unchanged = written
        self.arrays, self.scalars = before
        self.counters.pop()
        self.depth -= 1
        self.arrays += [name, old] if keeps else [name]

    def made_inside(self):
        """An array that a loop or a branch makes, used after it."""
        if self.independent is not None:
            return self.named_array()
        name = self.fresh("t")
        first = self.random.choice(self.arrays)
        if self.random.random() < 0.5:
            t = self.fresh("i")
            self.line(f"for {t} in range({self.random.choice(['2', '3', 'n'])}):")
            self.line(f"    {name} = {first} * ({t} + {self.atom()})")
        else:
            self.line(f"if {self.condition()}:")
            self.line(f"    {name} = {first} * {self.atom()}")
            self.line("else:")
            self.line(f"    {name} = np.sin({first} + {self.array_expression((':', '::-1'))})")
        self.arrays.append(name)

    def masked(self):
        """Elements where a condition holds: their sum, or new values."""
        a, b, c = (self.random.choice(self.arrays) for _ in range(3))
        mask = f"{b} > {self.random.choice(['0.3', '-0.2', f'{c}[::-1]'])}"
        array = self.writable()
        if array is None or self.random.random() < 0.5:
            return self.line(f"{self.random.choice(self.scalars)} = np.tanh(np.sum({a}[{mask}] * {c}[{mask}]))")
        name = self.fresh("m")
        self.line(f"{name} = {mask}")
        self.line(f"{array}[{name}] = np.tanh({a}[{name}] * {self.atom()})")

    def any_step(self):
        """A slice whose step is a variable."""
        step = self.fresh("k")
        self.line(f"{step} = {self.random.choice(['1', '2', '-1', '-2', 'n - 3', '1 - n'])}")
        a, array = self.random.choice(self.arrays), self.writable()
        if array is None or self.random.random() < 0.5:
            return self.line(f"{self.random.choice(self.scalars)} = np.tanh(np.sum({a}[::{step}] * {self.atom()}))")
        self.line(f"{array}[::{step}] *= np.tanh({self.atom()})")

    def either_array(self):
        """One array or another, depending on a condition, used as a whole or in part."""
        a, b = self.random.choice(self.arrays), self.random.choice(self.arrays)
        value = f"({a} if {self.condition()} else {b} * {self.atom()})"
        self.line(f"{self.random.choice(self.scalars)} = np.tanh(np.sum({value} * {self.random.choice(self.arrays)}))")

    def function(self):
        """A function of whole arrays that Numba has."""
        a, b = self.random.choice(self.arrays), self.random.choice(self.arrays)
        value = self.random.choice(
            [
                f"np.nanmean(np.where({a} > 0.2, {b}, np.nan))",
                f"np.nansum(np.where({a} > 0.2, {b}, np.nan))",
                f"np.nanvar({a} + {b})",
                f"np.percentile({a}, 30.0)",
                f"np.median({a} - {b}[::-1])",
                f"np.cov({a}, {b})[0, 1]",
                f"np.cross([0, 0, 1], {a}[:3])[1]",
                f"sum({a}) * max({b})",
                f"np.triu(np.outer({a}, {b}), 1).sum()",
                f"np.take({a}, index).sum()",
                f"np.append({a}, {b}).mean()",
                f"np.average({a}, weights=np.exp({b}))",
                f"np.asarray({a})[1] * np.asarray({self.atom()}).item()",
            ]
        )
        self.line(f"{self.random.choice(self.scalars)} = np.tanh({value})")

    def list(self):
        """A list or an unpacked array, and a use of it."""
        name, k, a = self.fresh("l"), self.fresh("k"), self.random.choice(self.arrays)
        form = self.random.randrange(4)
        if form == 0:
            chosen = self.random.choice(["", f" if {k} > 0.1"])
            self.line(f"{name} = np.array([np.sin({k}) * {self.atom()} for {k} in {a}{chosen}])")
            return self.line(f"{self.random.choice(self.scalars)} = np.tanh({name}.sum())")
        if form == 1:
            self.line(f"{name} = [{self.atom()} * 1.0]")
            self.line(f"for {k} in range(n):")
            self.line(f"    {name}.append(np.tanh({name}[-1] * {a}[{k}]))")
            return self.line(f"{self.random.choice(self.scalars)} = {name}[-1] * len({name}) + np.array({name}).sum()")
        if form == 2:
            self.line(f"{name} = [{self.atom()} * 1.0, 0.5, {self.atom()} * 1.0]")
            self.line(f"{name}[1] = {name}[0] * {self.expression()}")
            return self.line(f"{self.random.choice(self.scalars)} = np.tanh({name}[1] * {name}[2])")
        first, second = self.fresh("s"), self.fresh("s")
        self.line(f"{first}, {second} = {a}[{self.random.choice(['1:3', '::3', ':2'])}]")
        self.scalars += [first, second]

    def time_loop(self):
        t = self.fresh("i")
        self.counters.append(t)
        self.nest(f"for {t} in range(4):")
        self.counters.pop()

    def exit(self):
        """A loop with a conditional break or continue."""
        i = self.fresh("i")
        self.line(f"for {i} in range(n):")
        self.depth += 1
        self.counters.append(i)
        self.block()
        self.line(f"if {self.condition()}:")
        self.line(f"    {self.random.choice(['break', 'continue'])}")
        self.block()
        self.counters.pop()
        self.depth -= 1

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

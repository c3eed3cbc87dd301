"""Random kernels with control flow: nested loops with several exits, and carried values that are permuted."""

from random_kernels import Program

CARRIED = ("p", "q", "r", "s")


class Flow(Program):
    """The source of a random kernel ``kernel(a, b, c, index, u, v, n)``, after those of the functions it calls."""

    def __init__(self, seed):
        super().__init__(seed)
        self.texts = []  # of functions
        self.calls = []
        self.loops = 0  # around the statement that is written
        self.count = 1  # of the results
        self.budget = self.random.randint(4, 9)

    def source(self):
        for _ in range(self.random.choice([0, 0, 0, 1, 1, 2])):
            self.function()
        return "".join(self.texts) + self.definition("kernel", "a, b, c, index, u, v, n", self.random.randint(1, 2))

    def function(self):
        """A function with its own returns, which later functions may call."""
        budget, self.budget = self.budget, self.random.randint(2, 4)
        arrays, self.arrays = self.arrays, ["a"]
        name = f"part{len(self.texts)}"
        count = self.random.randint(1, 2)
        self.texts.append("@njit\n" + self.definition(name, "a, index, u, v, n", count) + "\n")
        self.calls.append((name, count))
        self.budget, self.arrays = budget, arrays

    def definition(self, name, arguments, count):
        self.lines, self.depth, self.counters, self.count = [], 1, [], count
        self.scalars = ["u", "v"]
        for carried in CARRIED[: self.random.randint(2, 4)]:
            self.line(f"{carried} = {self.expression(1)}")
            self.scalars.append(carried)
        while self.budget > 0:
            self.statement()
        self.leave("return")
        return f"def {name}({arguments}):\n" + "\n".join(self.lines) + "\n"

    # statements

    def statement(self):
        self.budget -= 1
        simple = [self.assign, self.assign, self.shift, self.shift, self.permute, self.store, self.exit, self.call]
        nested = [self.loop, self.loop, self.while_loop, self.branch]
        if self.budget > 0 and self.depth < 6 and self.random.random() < 0.4:
            self.random.choice(nested)()
        else:
            self.random.choice(simple)()

    def block(self, first=False):
        for _ in range(self.random.randint(1, 3)):
            self.statement()

    def shift(self):
        """``q = p; p = ...``: what was current becomes previous."""
        names = self.random.sample(self.carried(), 2)
        self.line(f"{names[0]} = {names[1]}")
        self.line(f"{names[1]} = {self.expression()}")

    def permute(self):
        names = self.random.sample(self.carried(), self.random.randint(2, len(self.carried())))
        self.line(f"{', '.join(names)} = {', '.join([*names[1:], names[0]])}")

    def carried(self):
        return [s for s in self.scalars if s in CARRIED]

    def loop(self):
        i = self.fresh("i")
        range_ = self.random.choice(["range(3)", "range(2)", "range(n)", "range(1, n)", "range(n - 1, -1, -1)"])
        self.around(f"for {i} in {range_}:", i)

    def while_loop(self):
        k = self.fresh("k")
        self.line(f"{k} = {self.random.choice(['0', '1'])}")
        condition = self.random.choice([f"{k} < 4", f"{k} < 4 and {self.condition()}", f"{k} < 3 or {k} < n - 1"])
        self.around(f"while {condition}:", k, f"{k} += 1")

    def around(self, head, counter, *first):
        self.line(head)
        self.depth += 1
        self.loops += 1
        for text in first:
            self.line(text)
        self.counters.append(counter)
        self.block()
        if self.random.random() < 0.5:
            self.exit()
            self.block()
        self.counters.pop()
        self.loops -= 1
        self.depth -= 1

    def exit(self):
        """A condition that ends a loop, an iteration or the function, perhaps after more statements."""
        self.line(f"if {self.condition()}:")
        self.depth += 1
        for _ in range(self.random.choice([0, 0, 1, 2])):
            self.random.choice([self.assign, self.shift, self.permute])()
        self.leave(self.random.choice(["break", "break", "continue", "return"] if self.loops else ["return"]))
        self.depth -= 1

    def leave(self, how):
        results = f" {', '.join(self.random.choice(self.scalars) for _ in range(self.count))}"
        self.line(how + (results if how == "return" else ""))

    def call(self):
        if not self.calls:
            return self.assign()
        name, count = self.random.choice(self.calls)
        arguments = f"{self.random.choice(self.arrays)}, index, {self.atom()}, {self.atom()}, n"
        self.line(f"{', '.join(self.random.sample(self.carried(), count))} = {name}({arguments})")

    def store(self):
        if self.arrays == ["a"]:
            return self.assign()
        super().store()

    # expressions

    def condition(self):
        if self.counters and self.random.random() < 0.4:
            bound = self.random.choice("123")
            return f"{self.random.choice(self.counters)} {self.random.choice(['<', '>', '=='])} {bound}"
        if self.random.random() < 0.4:  # that is rarely met
            return f"{self.random.choice(self.scalars)} > {self.random.choice(['2.0', '9.0'])}"
        return super().condition()

    def expression(self, depth=1):
        return super().expression(depth)

    def atom(self):
        if self.random.random() < 0.4:
            return self.random.choice(self.scalars)
        found = super().atom()
        return "2.0" if found == "2" else found

"""Random kernels with a function that calls itself, wherever a call can stand."""

from random_kernels import Program

RESULTS = ("number", "number", "pair", "nothing")


class Recursion(Program):
    """The source of a random function ``down``, which calls itself at most ``level`` deep, and of a kernel that calls
    it."""

    def __init__(self, seed):
        super().__init__(seed, wide=False)
        self.result = self.random.choice(RESULTS)
        self.budget = self.random.randint(4, 10)
        self.calls = self.random.randint(1, 3)
        self.looping = 0

    def source(self):
        text = self.definitions()
        self.scalars = ["u", "v"]
        level = self.random.randint(2, 3)
        call = f"down(a, b, c, index, {self.expression(1)}, v, n, {level})"
        text += "def kernel(a, b, c, index, u, v, n):\n"
        if self.result == "nothing":
            return f"{text}    {call}\n    u = 0.5 * u * a[1]\n    down(a, b, c, index, u, v, n, 1)\n    return u\n"
        return f"{text}    return {call}\n"

    def definitions(self):
        return self.definition("down")

    def definition(self, name):
        self.lines, self.scalars = [], ["u", "v"]
        self.leave("if level <= 0:")
        self.block(first=True)
        while self.calls:
            self.again()
        self.finish()
        body = "\n".join(self.lines)
        return f"@recursive\ndef {name}(a, b, c, index, u, v, n, level):\n{body}\n\n\n"

    def called(self):
        return "down"

    # how it returns

    def returned(self):
        if self.result == "number":
            return f"return math.tanh({self.expression(1)})"
        if self.result == "pair":
            return f"return math.sin({self.expression(1)}), math.tanh({self.expression(1)})"
        return "return"

    def finish(self):
        if self.result != "nothing":
            self.line(self.returned())

    def leave(self, head):
        self.line(head)
        self.depth += 1
        if self.random.random() < 0.4:
            self.store()
        self.line(self.returned())
        self.depth -= 1

    # statements

    def statement(self):
        if self.calls and self.looping < 2 and self.random.random() < 0.4:
            return self.again()
        self.budget -= 1
        simple = [self.assign, self.store, self.augment, self.new_scalar, self.total, self.pair, self.call, self.masked]
        nested = [self.loop, self.branch, self.while_loop, self.conditional, self.exit_early, self.over_items]
        chosen = nested if self.budget > 0 and self.depth < 4 and self.random.random() < 0.5 else simple
        self.random.choice(chosen)()

    def nest(self, head):
        loops = head.startswith(("for", "while"))
        self.looping += loops
        super().nest(head)
        self.looping -= loops

    def loop(self):
        i = self.fresh("i")
        head = (
            f"for {i} in {self.random.choice(['range(2)', 'range(n - 2, n)', 'range(1, -1, -1)', 'range(0, 4, 3)'])}:"
        )
        self.counters.append(i)
        self.nest(head)
        self.counters.pop()

    def over_items(self):
        """A loop over the items of an array with a conditional break or continue."""
        k, x = self.fresh("k"), self.fresh("s")
        self.line(f"for {k}, {x} in enumerate({self.random.choice(['a', 'b', 'c'])}):")
        self.scalars.append(x)
        self.depth += 1
        self.line(f"if {k} > {self.random.randint(0, 1)}:")
        self.line(f"    {self.random.choice(['break', 'continue'])}")
        self.depth -= 1
        self.looping += 1
        self.depth += 1
        self.block()
        self.depth -= 1
        self.looping -= 1
        self.scalars.remove(x)

    def exit_early(self):
        self.leave(f"if {self.condition()}:")

    def of_itself(self):
        self.calls -= 1
        u, v = f"math.sin({self.expression(1)})", self.random.choice(["v", "u", "0.7", f"math.tanh({self.atom()})"])
        n, level = self.random.choice(["n", "n", "max(n - 1, 3)"]), "level - 1"
        return f"{self.called()}(a, b, c, index, {u}, {v}, {n}, {level})"

    def again(self):
        """A recursive call."""
        call = self.of_itself()
        x = self.random.choice(self.scalars)
        if self.result == "nothing":
            return self.line(self.random.choice([call, f"if {self.condition()}:\n{'    ' * (self.depth + 1)}{call}"]))
        if self.result == "pair":
            first, second = self.fresh("s"), self.fresh("s")
            pair = self.fresh("p")
            forms = [f"{first}, {second} = {call}", f"{pair} = {call}\n{'    ' * self.depth}{first}, {second} = {pair}"]
            self.line(self.random.choice(forms))
            self.scalars += [first, second]
            return None
        form = self.random.choice(
            [
                "{x} = {call}",
                "{x} = {e} + {call} * {e}",
                "{target} += {call}",
                "{target} = {call}",
                "{target} -= {e} * {call}",
                "{x} = {call} if {condition} else {e}",
                "{x} = {e} if {condition} else {call} - {e}",
                "if {condition} and {call} > {e}:\n{indent}    {x} = {e}",
                "if {condition} or {call} < {x}:\n{indent}    {target} = {e}",
                "if {condition}:\n{indent}    return {call}",
                "if {condition}:\n{indent}    return {e} if {condition} else {call}",
                "{x} = max({call}, {e}, {x})",
                "{x} = {atom} * (math.atan2({call}, {atom}) + {atom})",
                "while {call} < 0.1 and {condition}:\n{indent}    {target} = {e}\n{indent}    break",
            ]
        )
        indent = "    " * self.depth
        fields = {"x": x, "call": call, "indent": indent, "target": self.target()}
        self.line(form.format(e=self.expression(1), condition=self.condition(), atom=self.atom(), **fields))
        return None


class MutualRecursion(Recursion):
    """The same with a second function: ``down`` calls it as well as itself, and it calls ``down``."""

    def definitions(self):
        self.inside, calls = "down", self.calls
        text = self.definition("down")
        self.inside, self.budget, self.calls = "other", self.random.randint(2, 6), calls
        return text + self.definition("other")

    def called(self):
        return "down" if self.inside == "other" else self.random.choice(["down", "other", "other"])

    def exit_early(self):
        if self.inside == "other" and self.looping:  # it may return from no loop
            return self.assign()
        return super().exit_early()

    def line(self, text):
        if self.inside == "other" and self.looping and "return" in text:
            text = text.replace("return", "u =")
        super().line(text)


class DiscardedResults(Recursion):
    """The same with a return right after each call, of what the call returned, of something else or of a constant."""

    def again(self):
        call, x, other = self.of_itself(), self.fresh("s"), self.fresh("s")
        pair = "0.5, u" if self.random.random() < 0.3 else f"{self.constant()}, {self.constant()}"
        forms = {
            "nothing": ["{call}\nreturn", "{call}"],
            "number": [
                "{call}\nreturn {constant}",
                "{call}\nreturn math.tanh({e})",
                "{call}\nreturn u",
                "{x} = {call}\nreturn {constant}",
                "{x} = {call}\nreturn {x}",
                "{x} = {call}\nreturn v",
                "{x} = {call}\nreturn 0.5 * {x}",
                "return {call}",
            ],
            "pair": [
                "{call}\nreturn {pair}",
                "{x} = {call}\nreturn {x}",
                "{x} = {call}\nreturn {pair}",
                "{x}, {other} = {call}\nreturn {x}, {other}",
                "{x}, {other} = {call}\nreturn {other}, {x}",
                "return {call}",
            ],
        }
        text = self.random.choice(forms[self.result])
        fields = {"call": call, "x": x, "other": other, "pair": pair, "constant": self.constant()}
        inside = self.looping or self.calls or self.random.random() < 0.7
        if inside:
            self.line(f"if {self.condition()}:")
        self.depth += bool(inside)
        for line in text.format(e=self.expression(1), **fields).split("\n"):
            self.line(line)
        self.depth -= bool(inside)

    def constant(self):
        return self.random.choice(["0.25", "1.0", "-2.0"])

"""Random kernels in which names are None on some paths and numbers or arrays on others."""

import random


class Optional:
    """The source of a random kernel ``kernel(a, b, c, index, u, v, n)``.

    Names that may be None are tested before they are used, in all ways in which programs do so.
    """

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.kinds = {
            f"w{k}": self.random.choice(["number", "number", "array"]) for k in range(self.random.randint(1, 3))
        }
        self.lines, self.depth, self.budget = [], 1, self.random.randint(4, 8)
        self.count = 0

    def source(self):
        text = ""
        names = list(self.kinds)
        if len(names) > 1 and self.random.random() < 0.2:
            self.line(f"{', '.join(names)} = {', '.join(['None'] * len(names))}")
        else:
            for name in names:
                self.begin(name)
        for name in names:  # else it is no Optional to Numba
            self.under(f"if {self.test()}:", f"{name} = {self.value(name)}")
        self.line("t = u")
        while self.budget > 0:
            self.statement()
        for name in names:
            self.use(name)
        number = next((n for n, kind in self.kinds.items() if kind == "number"), None)
        self.line(f"c[1] = t * {self.number()}")
        if number and self.random.random() < 0.3:
            self.under(f"if {number} is not None:", f"return {number}")
        self.line("return t")
        text += "def kernel(a, b, c, index, u, v, n):\n"
        return text + "\n".join(self.lines) + "\n"

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def under(self, head, *body):
        self.line(head)
        self.depth += 1
        for make in body:
            self.line(make) if isinstance(make, str) else make()
        self.depth -= 1

    def begin(self, name):
        form = self.random.choice(["{w} = None", "{w} = None", "{w} = {value} if {test} else None", "{w} = {value}"])
        self.line(form.format(w=name, value=self.value(name), test=self.test()))
        if "None" not in form:
            self.under(f"if {self.test()}:", f"{name} = None")

    # expressions

    def number(self):
        return self.random.choice(["u", "v", "a[1]", "b[2]", "0.7", "u * v", "math.sin(a[3])", "a[0] * b[1]", "b[0]"])

    def value(self, name):
        if self.kinds[name] == "number":
            return f"{self.number()} * {self.number()}"
        return self.random.choice(["a * {x}", "a + b * {x}", "np.sin(b) * {x}", "b * 1.0"]).format(x=self.number())

    def test(self):
        return self.random.choice(["u > v", "a[0] < b[0]", "v > 0.1", "a[1] * b[1] > 0.0", "b[3] > u", "n > 2"])

    def of(self, name):
        """A number made of a name that is not None."""
        forms = [
            "{w} * {x}",
            "math.tanh({w}) + {x}",
            "{w} - v",
            "max({w}, {x})",
            "abs({w} - {x})",
            "({w} if {w} > {x} else {x})",
        ]
        if self.kinds[name] == "array":
            forms = ["{w}[1] * {x}", "np.sum({w}) * {x}", "{w}[-1] - {w}[0]", "len({w}) * {x}", "({w} * b).sum()"]
        return self.random.choice(forms).format(w=name, x=self.number())

    # statements

    def statement(self):
        self.budget -= 1
        name = self.random.choice(list(self.kinds))
        simple = [self.assign, self.reset, self.use, self.copy, self.default]
        if self.depth < 3 and self.random.random() < 0.5:
            return self.random.choice([self.loop, self.branch])()
        return self.random.choice(simple)(name)

    def loop(self):
        i = f"i{self.count}"
        self.count += 1
        self.line(f"for {i} in range({self.random.choice(['3', 'n', '2'])}):")
        self.depth += 1
        number = [n for n, kind in self.kinds.items() if kind == "number"]
        if number and self.random.random() < 0.6:
            w, sign = self.random.choice(number), self.random.choice("<>")
            forms = [
                f"if {w} is None or a[{i}] * b[{i}] {sign} {w}:\n{{}}    {w} = a[{i}] * b[{i}]",
                f"{w} = a[{i}] if {w} is None else max(a[{i}] * v, {w})",
                f"if {w} is not None and {w} {sign} u:\n{{}}    t += {w} * u\n{{}}else:\n{{}}    {w} = b[{i}] * u",
                f"if not ({w} is None):\n{{}}    t += {w}\n{{}}    {w} = None\n{{}}else:\n{{}}    {w} = a[{i}]",
                f"if {w} is None:\n{{}}    {w} = a[{i}] * u\n{{}}    continue\n{{}}t = t * 0.5 + {w}",
                f"if a[{i}] > b[{i}]:\n{{}}    {w} = a[{i}] * 1.5\n{{}}    break",
            ]
            self.line(self.random.choice(forms).format(*["    " * self.depth] * 9))
        self.statement()
        self.line(f"t = 0.8 * t + 0.1 * a[{i}]")
        self.depth -= 1

    def branch(self):
        self.under(f"if {self.test()}:", self.statement)
        if self.random.random() < 0.5:
            self.under("else:", self.statement)

    def assign(self, name):
        self.line(f"{name} = {self.value(name)}")

    def reset(self, name):
        self.line(f"{name} = None")

    def default(self, name):
        self.under(f"if {name} is None:", f"{name} = {self.value(name)}")

    def copy(self, name):
        same = [n for n, kind in self.kinds.items() if kind == self.kinds[name] == "number" and n != name]
        self.line(f"{name} = {self.random.choice(same)}") if same else self.use(name)

    def use(self, name):
        form = self.random.randrange(5)
        if form == 0:
            self.under(f"if {name} is not None:", f"t = t * 0.5 + {self.of(name)}")
        elif form == 1:
            self.line(f"t = 0.5 * t + ({self.number()} if {name} is None else {self.of(name)})")
        elif form == 2:
            self.under(f"if {name} is None:", f"t -= {self.number()}")
            self.under("else:", f"t = 0.3 * t + {self.of(name)}")
        elif form == 3:
            self.under(f"if {self.test()} and {name} is not None and {self.of(name)} > 0.0:", f"t += {self.of(name)}")
        else:
            self.under(f"if {name} is None or {self.of(name)} > {self.number()}:", f"t = t * {self.number()}")

"""Random kernels whose names refer to parts of arrays, from one iteration to the next and after loops."""

from random_kernels import Program

ALONG = (
    ("{m}[{i}]", "{m}[{i}]", "{m}[{i}, 1:]", "{m}[{i}][::-1]", "{m}[{i}, :3]", "{m}[{i}, ::2][::-1]"),
    ("{m}[:, {i}]", "{m}[:, {i}]", "{m}[1:, {i}]", "{m}[::2, {i}]", "{m}[::-1, {i}]", "{m}[1:][:, {i}]"),
)
ELEMENTS = ("0", "1", "2", "-1", "-3")  # indices into parts, which have at least three elements


class Carried(Program):
    """The source of a kernel with matrices ``m`` and ``o``, and names for parts of these and of the other arrays."""

    def __init__(self, seed):
        super().__init__(seed)
        self.parts, self.matrices = [], []
        self.budget = self.random.randint(6, 14)
        self.several = self.random.random() < 0.15  # one name may refer to parts of several arrays
        self.both = self.random.random() < 0.15  # and for rows and columns
        self.homes, self.ways = {}, {}

    def source(self):
        make = ["np.outer(a, b)", "np.outer(b, c) * u", "np.zeros((n, n))", "np.ones((n, n + 1)) * v"]
        for m in ("m", "o")[: self.random.randint(1, 2)]:
            self.line(f"{m} = {self.random.choice(make)}")
            self.matrices.append(m)
        for p in ("p", "q", "r")[: self.random.randint(1, 3)]:
            home = self.homes[p] = self.random.choice([*self.matrices, *self.matrices, "a"])
            way = self.ways[p] = self.random.choice([0, 0, 1])
            self.line(f"{p} = {self.part_of(home, way)}")
            self.parts.append(p)
        return super().source()

    def results(self):
        return super().results() or ["u"]

    def statement(self):
        self.budget -= 1
        simple = [self.assign, self.store, self.augment, self.new_scalar, self.rebind, self.rebind, self.summed]
        simple += [self.handed_on]
        nested = [self.loop, self.loop, self.branch, self.while_loop, self.over, self.chosen, self.left]
        chosen = nested if self.budget > 0 and self.depth < 5 and self.random.random() < 0.55 else simple
        self.random.choice(chosen)()

    # parts

    def part_of(self, home, way):
        if home not in self.matrices:
            return home + self.random.choice(["", "[1:]", "[::-1]", "[:3]", "[::2]"])
        way = self.random.choice([0, 1]) if self.both else way
        return self.random.choice(ALONG[way]).format(m=home, i=self.row())

    def row(self):
        rows = [str(self.random.randrange(5)), "n - 1", "-1"]
        for i in self.counters:
            rows += [i, i, f"index[{i}]", f"({i} + 1) % n", f"n - 1 - {i}"]
        return self.random.choice(rows)

    def another(self, p):
        """A part for a name: usually of its own array, otherwise of what another name refers to."""
        homes = [h for h in (*self.matrices, "a") if self.several or h == self.homes[p]]
        names = [q for q in self.parts if self.are_alike(p, q)]
        kind = self.random.random()
        if kind < 0.6:
            return self.part_of(self.random.choice(homes), self.ways[p])
        return self.random.choice(names) + self.random.choice(["", "[::-1]", "[:3]", "[-3:]"])

    def are_alike(self, p, q):
        """Return whether one name may replace another."""
        return (self.several or self.homes[p] == self.homes[q]) and (self.both or self.ways[p] == self.ways[q])

    def rebind(self):
        p = self.random.choice(self.parts)
        self.line(f"{p} = {self.another(p)}")

    def handed_on(self):
        """Two names are swapped, or one takes over the value of the other."""
        p, q = self.random.choice(self.parts), self.random.choice(self.parts)
        if p == q or not self.are_alike(p, q):
            return self.rebind()
        form = self.random.choice(
            ["{p}, {q} = {q}, {p}", "{q} = {p}\n{indent}{p} = {other}", "{p}, {q} = {other}, {p}"]
        )
        self.line(form.format(p=p, q=q, other=self.another(p), indent="    " * self.depth))
        return None

    def chosen(self):
        """One part or another, by a condition."""
        p = self.random.choice(self.parts)
        if self.random.random() < 0.5:
            return self.line(f"{p} = {self.another(p)} if {self.condition()} else {p}")
        self.line(f"if {self.condition()}:")
        self.line(f"    {p} = {self.another(p)}")
        if self.random.random() < 0.5:
            self.line("else:")
            self.line(f"    {p} = {self.another(p)}")
        return None

    def left(self):
        """A conditional break or continue."""
        if not self.counters:
            return self.rebind()
        self.line(f"if {self.condition()}:")
        if self.random.random() < 0.5:
            self.line(f"    {self.random.choice(self.scalars)} = {self.expression(1)}")
        self.line(f"    {self.random.choice(['break', 'continue'])}")
        return None

    def over(self):
        """A loop that binds a name in each iteration."""
        i = self.fresh("i")
        p = self.random.choice(self.parts)
        self.line(f"for {i} in range({self.random.choice(['n', '1, n', '3', 'n - 1, 0, -1'])}):")
        self.depth += 1
        self.counters.append(i)
        first = self.random.random() < 0.5
        if first:
            self.line(f"{p} = {self.another(p)}")
        self.block()
        if not first:
            self.line(f"{p} = {self.another(p)}")
        self.counters.pop()
        self.depth -= 1

    def summed(self):
        p, x = self.random.choice(self.parts), self.random.choice(self.scalars)
        form = self.random.choice(
            ["np.sum({p} * {p})", "({p} * {e}).sum()", "np.tanh({p}[:3] * {q}[-3:]).sum()", "len({p})"]
        )
        self.line(f"{x} = np.tanh({form.format(p=p, q=self.random.choice(self.parts), e=self.atom())})")

    # elements

    def element(self):
        if self.random.random() < 0.3:
            return f"{self.random.choice(self.matrices)}[{self.row()}, {self.row()}]"
        return f"{self.random.choice(self.parts)}[{self.random.choice(ELEMENTS)}]"

    def atom(self):
        return self.element() if self.random.random() < 0.5 else super().atom()

    def target(self):
        return self.element() if self.random.random() < 0.6 else super().target()

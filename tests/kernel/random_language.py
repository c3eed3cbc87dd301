"""Random kernels in the many forms of Python and NumPy: loops over several iterables, lists, comprehensions, assignment
expressions, nested functions, matrices and their decompositions, sorting; nested and mixed with other statements."""

from random_kernels import Program
from random_pieces import BINS, MATRICES, OF_MATRICES, ORDERS, WHOLE


class Language(Program):
    """The source of a random kernel ``kernel(a, b, c, index, u, v, n)``; it may call functions of `random_check`."""

    def __init__(self, seed):
        super().__init__(seed, wide=True, functions=True)
        self.inside = []  # nested functions of two numbers
        self.closed = []  # those of them without closure variables

    def source(self):
        self.line("assert a.shape == b.shape")
        if self.random.random() < 0.3:
            self.function_inside()
        return super().source()

    def results(self):
        """Numbers, some of them as 0-d arrays."""
        return [f"np.asarray({x} * 1.0)" if self.random.random() < 0.3 else x for x in super().results()]

    def statement(self):
        if self.random.random() < 0.45:
            return super().statement()
        self.budget -= 1
        simple = [self.unpack, self.comprehension, self.decomposition, self.matrix, self.order, self.whole_function]
        simple += [
            self.growing_list,
            self.changing_list,
            self.list_of_a_type,
            self.list_of_tuples,
            self.merged_lists,
            self.truth_of_an_array,
            self.other_sizes,
            self.comprehension_of_two_loops,
            self.sized_in_a_branch,
            self.passed_function,
            self.declared_function,
            self.without_axes,
            self.choice_of_tuples,
            self.several_names,
            self.integer,
            self.elements_in_list,
        ]
        nested = [self.over_several, self.over_matrix, self.over_indices, self.assigned_condition, self.over_list]
        nested += [self.countdown, self.found_or_not]
        if self.budget > 0 and self.depth < 5 and self.random.random() < 0.4:
            self.random.choice(nested)()
        else:
            self.random.choice(simple)()

    # names

    def array(self):
        return self.random.choice(self.arrays)

    def bind(self, value):
        """Assign to a new scalar or an existing one."""
        if self.random.random() < 0.5:
            return self.line(f"{self.random.choice(self.scalars)} = {value}")
        name = self.fresh("s")
        self.line(f"{name} = {value}")
        self.scalars.append(name)

    def around(self, head, scalars=(), counters=()):
        """A nested block whose head binds numbers and counters."""
        before = list(self.scalars)
        self.scalars += scalars
        self.counters += counters
        self.nest(head)
        del self.counters[len(self.counters) - len(counters) :]
        self.scalars = before

    # loops

    def over_several(self):
        k, x, y = self.fresh("i"), self.fresh("s"), self.fresh("s")
        a, b = self.array(), self.array()
        form = self.random.randrange(5)
        if form == 0:
            return self.around(f"for {k}, ({x}, {y}) in enumerate(zip({a} * 1.0, {b} * 1.0)):", [x, y], [k])
        if form == 1:
            return self.around(f"for {k}, {x} in enumerate({a} * {self.atom()}):", [x], [k])
        if form == 2:
            return self.around(
                f"for {x}, {k} in zip(({self.atom()} * 1.0, 0.5, {self.atom()} * 1.0), index):", [x], [k]
            )
        if form == 3:
            return self.around(f"for {x} in ({self.atom()} * 1.0, 0.7, {self.atom()} * 1.0):", [x])
        self.around(f"for {k} in index[{self.random.choice(['::-1', '1:', '::2'])}]:", (), [k])

    def over_matrix(self):
        i, j, x, m = self.fresh("i"), self.fresh("i"), self.fresh("s"), self.fresh("m")
        self.line(f"{m} = {self.matrix_value()}")
        form = self.random.randrange(4)
        if form == 0:
            return self.around(f"for ({i}, {j}), {x} in np.ndenumerate({m}):", [x], [i])
        if form == 1:
            return self.around(f"for {x} in {m}.flat:", [x])
        if form == 2:
            row = self.fresh("t")
            before, self.arrays = self.arrays, [*self.arrays, row]
            written, self.unchanged = self.unchanged, self.unchanged | {row}
            self.around(f"for {i}, {row} in enumerate({m}[:, :{m}.shape[0]]):", (), [i])
            self.arrays, self.unchanged = before, written
            return None
        first, second = self.fresh("s"), self.fresh("s")
        self.around(f"for {first}, {second} in {m}[:, 1:3]:", [first, second])

    def over_indices(self):
        i, j = self.fresh("i"), self.fresh("i")
        self.around(f"for {i}, {j} in np.ndindex({self.random.choice(['n, 2', '2, 3', '(2, n)'])}):", (), [i])

    def countdown(self):
        k, x = self.fresh("k"), self.fresh("s")
        self.line(f"{k} = {self.random.choice(['3', '4'])}")
        test = self.random.choice(
            [f"({k} := {k} - 1) > 0", f"({k} := {k} - 1) > 0 and ({x} := {self.atom()} * 1.0) < 2.0"]
        )
        self.around(f"while {test}:", [x] if x in test else [], [])

    def assigned_condition(self):
        x = self.fresh("s")
        self.around(f"if ({x} := {self.expression()}) {self.random.choice('<>')} 0.2:", [x])
        if self.random.random() < 0.4:
            y = self.fresh("s")
            self.around(f"elif {x} < 1.0 and ({y} := {x} * {self.atom()}) > -0.5:", [x, y])
        self.scalars.append(x)

    def found_or_not(self):
        i, x = self.fresh("i"), self.fresh("s")
        self.line(f"{x} = {self.atom()} * 1.0")
        self.line(f"for {i} in range(n):")
        self.line(
            f"    if {self.array()}[{i}] > {self.random.choice(['0.2', '0.8', self.random.choice(self.scalars)])}:"
        )
        self.line(f"        {x} = {self.array()}[{i}] * {self.atom()}")
        self.line("        break")
        self.line("else:")
        self.line(f"    {x} = {self.expression()}")
        self.scalars.append(x)

    # lists and tuples

    def unpack(self):
        names = [self.fresh("s") for _ in range(3)]
        a = self.array()
        x, y, z = names
        form = self.random.randrange(4)
        if form == 0:
            self.line(f"{x}, {y}, {z} = {a}[{self.random.choice([':3', '-3:', '::2'])}]")
        elif form == 1:
            self.line(f"({x}, {y}), {z} = {a}[1:3], {self.expression()}")
        elif form == 2:
            self.line(f"({x}, {y}), {z} = {self.matrix_value()}[1, :2], {a}[0] * 1.0")
        else:
            self.line(f"{x}, ({y}, {z}) = {self.atom()} * 1.0, ({self.atom()} * 1.0, {self.expression()} * 0.5)")
        self.scalars += names

    def several_names(self):
        x, y = self.fresh("s"), self.fresh("s")
        self.line(f"{x} = {y} = {self.expression()}")
        self.scalars += [x, y]
        self.bind(f"several({self.atom()} * 1.0, {x}, {self.random.choice([y, f'*({x}, {y} * 0.5)'])})")

    def choice_of_tuples(self):
        x, y = self.fresh("s"), self.fresh("s")
        first, second = (f"({self.expression()}, {self.atom()} * 1.0)" for _ in range(2))
        self.line(f"{x}, {y} = {first} if {self.condition()} else {second}")
        self.scalars += [x, y]

    def comprehension(self):
        k, x, w, name = self.fresh("k"), self.fresh("x"), self.fresh("w"), self.fresh("l")
        a, b = self.array(), self.array()
        test = self.random.choice(["", f" if {x} > 0.1", f" if ({w} := {x} * 0.5) < 0.3 or {x} > 0.1"])
        items = self.random.choice(
            [f"{x} in {a}", f"{k}, {x} in enumerate({a})", f"{x}, {k} in zip({a}, index)", f"{k} in range(n)"]
        )
        if items.endswith("range(n)"):
            test = self.random.choice(["", f" if {k} % 2 == 0", f" if {b}[{k}] > 0.0"])
            value = f"np.sin({a}[{k}] * {self.atom()})"
        elif items.startswith(k) or "zip" in items:
            value = f"np.tanh({x} * {b}[{k}]) + {self.atom()}"
        else:
            value = f"np.tanh({x}) * {self.random.choice(self.scalars)}"
        self.line(f"{name} = [{value} for {items}{test}]")
        use = self.random.choice(
            ["sum({0})", "np.array({0}).sum()", "np.sum(np.array({0}) * 0.5)", "({0}[-1] if len({0}) > 0 else 0.5)",
             "np.array({0})[::2].sum() * len({0})"]
        )  # fmt: skip
        self.bind(f"np.tanh({use.format(name)})")

    def growing_list(self):
        name, i, x = self.fresh("l"), self.fresh("i"), self.fresh("s")
        self.line(f"{name} = {self.random.choice(['[0.5 * u]', '[u * 1.0, v * 1.0]', '[0.1]'])}")
        self.line(f"for {i} in range({self.random.choice(['n', '3', '1, n'])}):")
        form = self.random.choice(["always", "guarded", "twice", "either"])
        inside = "    " if form != "guarded" else "        "
        if form == "guarded":
            self.line(f"    if {self.condition()}:")
        self.counters.append(i)
        self.line(f"{inside}{name}.append(np.tanh({name}[-1] * {self.expression()}))")
        if form == "twice":
            self.line(f"    {name}.append({self.atom()} * 0.5)")
        if form == "either":
            self.line(f"    if {self.condition()}:")
            self.line(f"        {name}.append({self.expression()})")
            self.line("    else:")
            self.line(f"        {name}.append(0.5 * {name}[0])")
        self.counters.pop()
        self.line(f"{x} = np.tanh(np.array({name}).sum() + {name}[-1] * len({name}))")
        self.scalars.append(x)

    def changing_list(self):
        """A list that grows and shrinks, in several statements and loops."""
        name, x = self.fresh("l"), self.fresh("s")
        begin = ["[{0} * 1.0, {1}]", "[0.3, {0} * 1.0]", "[np.tanh(v) for v in {2}]", "[{0} * 1.0] * 2"]
        self.line(f"{name} = {self.random.choice(begin).format(self.atom(), self.expression(), self.array())}")
        for _ in range(self.random.randint(1, 3)):
            form = self.random.choice(["loop", "loop", "counted", "drained", "here"])
            if form == "here":
                self.change(name)
                continue
            i = self.fresh("i")
            if form == "drained":
                self.line(f"while len({name}) > 2:")
            elif form == "counted":
                self.line(f"{i} = 0")
                self.line(f"while {i} < {self.random.choice(['3', 'n'])}:")
                self.line(f"    {i} += {self.random.choice(['1', '2', f'1 if {self.array()}[{i}] > 0.1 else 2'])}")
            else:
                self.line(f"for {i} in range({self.random.choice(['n', '3', '1, n'])}):")
            self.depth += 1
            if form == "drained":
                self.line(f"{name}[0] = {name}.pop() * {self.atom()} + 0.5 * {name}[0]")
            else:
                if form == "loop":
                    self.counters.append(i)
                if self.random.random() < 0.3:
                    j = self.fresh("i")
                    self.line(f"for {j} in range({i}):")
                    self.line(f"    {name}.append({name}[0] * 0.5 + {self.atom()} * 0.1)")
                for _ in range(self.random.randint(1, 2)):
                    self.change(name)
                if form == "loop":
                    self.counters.pop()
            self.depth -= 1
        self.line(f"{x} = np.tanh(np.sum(np.array({name})) + {name}[-1] * len({name}) + {name}[0])")
        self.scalars.append(x)

    def list_of_a_type(self):
        """A typed list of Numba with a declared element type."""
        name, x, i = self.fresh("l"), self.fresh("s"), self.fresh("i")
        self.line(f"{name} = List.empty_list(numba.float64)")
        self.line(f"{name}.append({self.random.choice(['2', self.atom(), self.expression()])})")
        self.line(f"for {i} in range({self.random.choice(['n', '1, n'])}):")
        self.counters.append(i)
        if self.random.random() < 0.5:
            self.line(f"    if {self.condition()}:")
            self.line(f"        {name}.append({self.atom()} * 0.5)")
        self.line(f"    {name}.append({self.expression()} * 0.3 + {name}[-1])")
        self.counters.pop()
        if self.random.random() < 0.5:
            self.line(f"{name}[0] = {name}.pop() * {self.atom()}")
        self.line(f"{x} = np.tanh({name}[0] * {name}[-1] + len({name}))")
        self.scalars.append(x)

    def change(self, name):
        """A statement that changes a list of at least one number, and leaves at least one."""
        value = self.expression()
        form = self.random.randrange(8)
        if form == 0:
            self.line(f"{name}.insert({self.random.choice(['0', '1', '-1', '100'])}, {value})")
        elif form == 1:
            self.line(f"{name}.extend([{value}, {self.atom()} * 0.5])")
        elif form == 2:
            items = self.random.choice([f"{self.array()}", f"[v * 0.5 for v in {self.array()}]", f"({value}, 0.5)"])
            self.line(f"{name} += {items}" if items[0] == "[" else f"{name}.extend({items})")
        elif form == 3:
            self.line(f"if len({name}) > 1:")
            popped = self.fresh("s")
            self.line(f"    {popped} = {name}.pop({self.random.choice(['', '', '0', '-2'])})")
            self.line(f"    {name}[-1] = np.tanh({popped} * {value})")
        elif form == 4:
            self.line(f"{name}.{self.random.choice(['reverse', 'sort'])}()")
        elif form == 5:
            self.line(f"{name}[{self.random.choice(['0', '-1', f'len({name}) - 1'])}] = {value}")
        else:
            self.line(f"{name}.append(np.tanh({name}[{self.random.choice(['0', '-1'])}] * {value}))")

    def list_of_tuples(self):
        """A list of tuples that grows and shrinks, and a read of it."""
        name, i, k, v, x = (self.fresh(letter) for letter in "likss")
        self.line(
            f"{name} = {self.random.choice(['[(1, {0} * 1.0)]', '[(0, 0.5), (2, {0} * 1.0)]']).format(self.atom())}"
        )
        self.line(f"for {i} in range({self.random.choice(['n', '3', '1, n'])}):")
        self.depth += 1
        self.counters.append(i)
        if self.random.random() < 0.4:
            self.line(f"if {self.condition()}:")
            self.line(f"    {name}.append(({i} + 1, {self.atom()} * {name}[0][1]))")
        self.line(f"{name}.append(({i}, np.tanh({name}[-1][1] * {self.expression()})))")
        if self.random.random() < 0.4:
            self.line(self.random.choice([f"{name}.insert(1, (2, {self.atom()} * 0.5))", f"{name}.reverse()"]))
        self.counters.pop()
        self.depth -= 1
        if self.random.random() < 0.4:
            self.line(f"{k}, {v} = {name}.pop({self.random.choice(['', '0'])})")
            self.line(f"{v} = {v} * {k}")
            self.scalars.append(v)
        self.line(f"{x} = 0.1 * len({name})")
        part = self.random.choice(["", "[1:]", "[::-1]"])
        k, v = self.fresh("k"), self.fresh("s")
        form = self.random.randrange(3)
        if form == 0:
            self.line(f"for {k}, {v} in {name}{part}:")
            self.line(f"    {x} = np.tanh({x} + {v} * ({k} + 1))")
        elif form == 1:
            self.line(f"for {i}, ({k}, {v}) in enumerate({name}):")
            self.line(f"    {x} = np.tanh({x} * {i} + {v} * {self.array()}[{k} % n])")
        else:
            self.line(f"{x} += np.tanh(np.array({name}{part})[:, 1].sum()) + {name}[-1][1]")
        self.scalars.append(x)

    def merged_lists(self):
        """Two lists filled by a loop that merges two arrays; concatenated and copied."""
        one, two, both, i, j, x = (self.fresh(letter) for letter in "lllkks")
        a, b, value = self.array(), self.array(), self.atom()
        self.line(f"{one} = {self.random.choice(['[]', 'List.empty_list(numba.float64)', '[0.5]'])}")
        self.line(f"{two} = []")
        self.line(f"{i} = {j} = 0")
        self.line(f"while {i} < n and {j} < n:")
        self.line(f"    if {a}[{i}] < {b}[{j}]:")
        self.line(f"        {one}.append({a}[{i}] * {value})")
        self.line(f"        {i} += {self.random.choice(['1', '2'])}")
        self.line("    else:")
        self.line(f"        {two}.append(np.tanh({b}[{j}] + {value}))")
        if self.random.random() < 0.5:
            self.line(f"        {one}.append({b}[{j}] * 0.5)")
        self.line(f"        {j} += 1")
        copied = self.random.choice(["list({0})", "[v * 0.5 for v in {0}]", "{0}[:2]", "{0}"]).format(two)
        added = self.random.choice(["[{0} * 1.0, 0.5]", "[0.5] + {1}", "{1}", "[v for v in {1} if v > 0.1]"])
        self.line(f"{both} = {copied} + {added.format(value, two)}")
        self.line(f"{x} = np.tanh(sum({one}) + sum({both}) * len({one})) + 0.1 * len({both})")
        self.scalars.append(x)

    def truth_of_an_array(self):
        a, k, x = self.array(), self.random.randrange(3), self.fresh("s")
        array = self.random.choice([f"{a}[{k}:{k + 1}] > {self.atom()}", f"{a}[:1]", f"index[{k}:{k + 1}] - {k}"])
        self.line(f"{x} = {self.atom()} * 1.0")
        self.line(f"if {self.random.choice(['', 'not '])}({array}):")
        self.line(f"    {x} = {self.expression()}")
        self.scalars.append(x)

    def other_sizes(self):
        """Arrays of different sizes in an operation that does not run; not in parallel loops, before which sizes are
        always compared."""
        if self.independent is not None:
            return self.assign()
        a, b, x = self.array(), self.array(), self.fresh("s")
        part = self.random.choice([f"{b}[1:n]", f"{b}[:2]", f"{b}[::2]"])
        self.line(f"{x} = {self.atom()} * 1.0")
        self.line(f"if {self.random.choice([f'{a}.shape[0] == {part}.shape[0]', 'n > 100', f'{a}[0] > 50.0'])}:")
        self.line(f"    {x} += ({a} * {part}).sum()")
        if self.random.random() < 0.5:
            self.line(f"    for {self.fresh('k')} in range(2):")
            self.line(f"        {x} += ({a} - {part})[0] * {self.atom()}")
        self.scalars.append(x)

    def comprehension_of_two_loops(self):
        name, i, j = self.fresh("l"), self.fresh("i"), self.fresh("i")
        a, b, x = self.array(), self.array(), self.atom()
        form = self.random.randrange(3)
        if form == 0:
            self.line(f"{name} = [({i}, {j}) for {i} in range(n) for {j} in range({i})]")
            self.bind(f"np.tanh({a}[{name}[-1][1]] * {b}[{name}[1][0]] * len({name}))")
        elif form == 1:
            self.line(f"{name} = [{i} * {j} + {x} for {i} in {a} if {i} > -0.2 for {j} in {b}[:2]]")
            self.bind(f"np.tanh(sum({name})) + 0.1 * len({name})")
        else:
            self.line(f"{name} = np.array([{a}[{j}] * {x} for {i} in range(3) for {j} in range({i} + 1)])")
            self.bind(f"np.tanh(({name} * {name}).sum())")

    def sized_in_a_branch(self):
        """An array whose size is known in the branch that makes it."""
        w, c, k, x, s = (self.fresh(letter) for letter in "wckxs")
        a, b, u = self.array(), self.array(), self.atom()
        self.line(f"if {self.condition()}:")
        form = self.random.randrange(3)
        if form == 0:
            self.line(f"    {w} = {a}[{a} > {u}] * 0.5")
        elif form == 1:
            self.line(f"    {c} = 1")
            self.line(f"    for {x} in {a}:")
            self.line(f"        if {x} > 0.1:")
            self.line(f"            {c} += 1")
            self.line(f"    {w} = np.zeros({c})")
            self.line(f"    for {k} in range({c} - 1):")
            self.line(f"        {w}[{k} + 1] = np.tanh({w}[{k}] + {b}[{k}] * {u})")
        else:
            self.line(f"    {c} = np.unique({a} + {b})")
            self.line(f"    {w} = {c}[{c} > 0.0] * {c}[0]")
        self.line("else:")
        self.line(f"    {w} = {self.random.choice([b, f'{b} * {u}', f'{b}[1:] * 1.0'])}")
        self.line(f"{s} = np.tanh(({w} * {w}).sum()) + 0.1 * {w}.shape[0]")
        self.scalars.append(s)

    def passed_function(self):
        if self.closed:
            name, a, b = self.random.choice(self.closed), self.array(), self.array()
            self.bind(f"applied({name}, {a}, {b}, {self.atom()} * 1.0)")

    def elements_in_list(self):
        name, x = self.fresh("l"), self.fresh("s")
        self.line(f"{name} = [{self.atom()} * 1.0] * {self.random.choice(['3', 'n'])}")
        self.line(f"{name}[1] = {self.expression()}")
        self.line(
            f"{name}[{self.random.choice(['0', '2', '-1'])}] {self.random.choice(['=', '+=', '*='])} np.sin({name}[1])"
        )
        self.line(f"{x} = np.tanh({name}[0] * {name}[2] + {name}[1])")
        self.scalars.append(x)

    def over_list(self):
        name, x = self.fresh("l"), self.fresh("s")
        self.line(f"{name} = [np.tanh({x} * {self.atom()}) for {x} in {self.array()}]")
        self.around(f"for {x} in {name}:", [x])

    # matrices

    def matrix_value(self):
        a, b, x = self.array(), self.array(), self.atom()
        return self.random.choice(MATRICES).format(a=a, b=b, x=x, bins=BINS)

    def matrix(self):
        name = self.fresh("m")
        self.line(f"{name} = {self.matrix_value()}")
        value = self.random.choice(OF_MATRICES).format(m=name, a=self.array())
        self.bind(f"np.tanh(np.sum(({value}) * {self.array()}))")

    def decomposition(self):
        m, x = self.fresh("m"), self.fresh("s")
        a, b = self.array(), self.array()
        shift = "np.diag(np.array([-6.0, -2.0, 1.0, 5.0, 10.0]))"
        self.line(f"{m} = np.outer(np.tanh({a}), np.tanh({b}))")
        form = self.random.randrange(8)
        if form == 0:
            w, v = self.fresh("w"), self.fresh("w")
            self.line(f"{w}, {v} = np.linalg.eigh({m} + {m}.T + {shift})")
            self.line(f"{x} = 0.1 * {w}[1] + {v}[0, 0] ** 2 * {w}[0]")
        elif form == 1:
            p, s, q = self.fresh("w"), self.fresh("w"), self.fresh("w")
            self.line(f"{p}, {s}, {q} = np.linalg.svd({m} + {shift})")
            self.line(f"{x} = 0.1 * {s}[1] * {s}[3] + {p}[0, 0] * {q}[0, 0]")
        else:
            value = [
                f"np.linalg.solve({m} + {shift}, {a} * 1.0)[1]",
                f"np.linalg.inv({m} + {shift})[0, 1]",
                f"np.linalg.det({m} + {shift}) * 0.01",
                f"np.linalg.pinv({m} + {shift})[1].sum()",
                f"np.linalg.lstsq({m} + {shift}, {b} * 1.0)[0][2]",
                f"np.linalg.matrix_power({m}, 2).sum()",
            ]
            self.line(f"{x} = {value[form - 2]}")
        self.scalars.append(x)

    # functions

    def order(self):
        a, b, x = self.array(), self.array(), self.atom()
        value = self.random.choice(ORDERS).format(a=a, b=b, x=x, bins=BINS)
        self.bind(f"np.tanh({value})")

    def whole_function(self):
        a, b, x = self.array(), self.array(), self.random.choice(self.scalars)
        value = self.random.choice(WHOLE).format(a=a, b=b, x=x, bins=BINS)
        if self.independent is None and self.random.random() < 0.5:
            name = self.fresh("t")
            self.line(f"{name} = np.tanh({value})")
            self.arrays.append(name)
        else:
            self.bind(f"np.tanh(np.sum({value} * {a}))")

    def function_inside(self):
        name, x, y = self.fresh("f"), self.fresh("x"), self.fresh("x")
        value = self.random.choice([f"np.sin({x}) * {y}", f"{x} * {y} + u", f"({x} if {x} > 0.2 else {y}) * v"])
        if self.random.random() < 0.5:
            self.line(f"{name} = lambda {x}, {y}: {value}")
        else:
            self.line(f"def {name}({x}, {y}):")
            self.line(f"    return {value}")
        self.inside.append(name)
        if value.startswith("np.sin"):
            self.closed.append(name)

    def declared_function(self):
        """A call of a function that extensions declare for Numba, or of a lambda."""
        x, y = self.atom(), self.expression()
        forms = ["registered({a} * 1.0, {x} * 1.0)", "declared({x} * 1.0, {y} * 1.0)", "shifted({x} * 1.0)",
                 "shifted({y} * 1.0, {x} * 1.0)", "declared({a} * 1.0, {x})[1]"]  # fmt: skip
        self.bind(self.random.choice(forms).format(a=self.array(), x=x, y=y))

    def without_axes(self):
        """A 0-d array, and a read of it."""
        name = self.fresh("z")
        self.line(f"{name} = {self.random.choice(['np.asarray', 'np.array'])}({self.expression()} * 1.0)")
        if self.random.random() < 0.4:
            self.line(f"{name}[()] {self.random.choice(['=', '+=', '*='])} np.tanh({self.atom()} * 1.0)")
        uses = ["{0}[()]", "{0}.item()", "np.sum({0})", "(np.sin({0}) * {2}).sum()"]
        self.bind(self.random.choice(uses).format(name, self.atom(), self.array()))

    def integer(self):
        k = self.fresh("k")
        counter = self.random.choice([*self.counters, "n", "len(a)"])
        value = self.random.choice(
            ["({0} * 3) % n", "abs({0} - 3) // 2", "index[{0} % n]", "int({0} > 1) + 1", "min({0}, n - 1)"]
        )
        self.line(f"{k} = {value.format(counter)}")
        self.bind(f"{self.array()}[{k}] * {self.expression()}")

    def expression(self, depth=2):
        if depth == 2 and self.inside and self.random.random() < 0.2:
            return f"{self.random.choice(self.inside)}({self.atom()} * 1.0, {super().expression(1)} * 1.0)"
        return super().expression(depth)

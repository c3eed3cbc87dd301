# ruff: noqa: E501 (a line for each kind of statement)
"""Random programs whose loops compute with single elements: nested, with branches, aliases, numbers used after loops,
whole arrays in between, and messages of elements.

As in `numpy_programs`, anything that NumPy runs is a program.  A line is a whole block here.
"""

import contextlib

import numpy as np
from numpy_programs import BINARY, WIDE, Program, run, starts

ROWS = ("{n}[{k}]", "{n}[{k}, :]", "{n}[..., {k}]", "{n}.T[{k}]")
CONSTANTS = (
    "2.0",
    "0.5",
    "-1",
    "3",
    "0",
    "np.float64(1.5)",
    "F4(0.25)",
    "True",
    "np.int64(2)",
    "F4(0.75)",
    "np.int8(2)",
    "F2(0.5)",
)
HELPERS = """
def swap(a, i, j):
    a[i], a[j] = a[j], a[i]

def total(numbers, first=0.0):
    for number in numbers:
        first = first + number
    return first

def moved(a, i, s):
    a[i] = old = a[i] * 0.5 + s
    return old - s
"""


def slope(row):
    """The sum of the derivatives of row[0] s + row[-1] t with respect to s and t."""
    return float(np.real(row[0])) + float(np.real(row[-1]))


def twice(s):
    return s * 2.0


class Box:
    """An object with numbers and arrays."""

    def __init__(self, **parts):
        vars(self).update(parts)


def helpers():
    names = {}
    exec(HELPERS, names)
    return {"Box": Box, **{n: names[n] for n in ("swap", "total", "moved")}}


class ElementProgram(Program):
    """A random program, with its blocks in ``lines``.  With a communicator (of this rank alone) it communicates."""

    def __init__(self, seed, length=7, comm=None, passes=False):
        self.comm = comm
        self.passes = passes  # whether some values are treated as constants, which NumPy cannot express
        self.scope = []  # the variables of loops around the statement
        self.numbers = []
        self.found = []
        super().__init__(seed, length)

    def executed(self, lines, dtypes):
        """The variables after NumPy has run the program, which must run in double precision as well."""
        more = {
            **helpers(),
            "comm": self.comm,
            "passive": contextlib.nullcontext,
            "value": lambda x: x,
            "slope": slope,
            "twice": twice,
        }
        run(lines, np, {**WIDE, **more}, starts())
        return run(lines, np, {**dtypes, **more}, starts())

    def line(self):
        kinds = [
            self.block,
            self.viewing,
            self.making,
            self.copying,
            self.elementwise,
            self.updating,
            self.writing,
            self.product,
        ]
        return self.random.choices(kinds, [30, 6, 4, 4, 4, 3, 4, 1])[0]()

    # ----------------------------------------------------------------------------------------------------- what there is

    def block(self):
        usable = self.arrays(lambda a: a.size and a.dtype.names is None and a.ndim < 4)
        late = sorted(usable, key=lambda n: self.random.random() * (2 + list(self.names).index(n)))
        self.found = late[-self.int(1, 4) :]
        known = [n for n, v in self.names.items() if isinstance(v, np.generic)]
        new = [f"s{len(self.lines)}", f"t{len(self.lines)}"]
        self.scope, self.numbers, self.certain = [], [*known[-2:]], True
        statements = []
        for n in new:
            statements.append(f"{n} = {self.value(1)}")
            self.numbers.append(n)
        self.inner = 0
        statements += self.loop(0)
        if self.int(0, 3) == 0:
            statements += self.statement(0)
        names = sorted({f"k{k}" for k in range(self.inner)} | {f"p{k}" for k in range(self.inner)})
        text = "\n".join(statements)
        bound = [n for n in names if f"{n} " in text or f"{n}," in text]
        for n in new:
            if self.int(0, 2) == 0:
                bound.append(n)
        return text + "".join(f"\n{n} = 0\ndel {n}" for n in bound)

    def place(self, n):
        """An index into an axis of length n."""
        fixed = str(self.int(-n, n - 1))
        if not self.scope or self.int(0, 4) == 0:
            return fixed
        v = self.pick(*self.scope[-2:], *self.scope)
        return self.pick(
            f"{v} % {n}", f"{v} % {n}", f"({v} + {self.int(-3, 3)}) % {n}", f"({v} + {self.int(-3, 3)}) % {n}", f"{v} % {n} - {n}", f"-({v} % {n})",
            f"np.int64({v} % {n})", f"np.array({v} % {n})", f"{n - 1} - {v} % {n}", f"({v} * {v}) % {n}", f"np.int32({v} % {n})", f"np.int8({v} % {n})", fixed,
        )  # fmt: skip

    def at(self, wanted=lambda a: True):
        """An element."""
        found = [n for n in self.found if wanted(self.names[n])] or self.found
        n = self.pick(*found)
        shape = self.names[n].shape
        places = [self.place(m) for m in shape]
        if not shape:
            return f"{n}[()]"
        whole = f"{n}[{', '.join(places)}]"
        if len(shape) == 1:
            return self.pick(whole, whole, whole, whole, f"{n}[({places[0]},)]", f"{n}[::-1][{places[0]}]")
        first, *others = places
        return self.pick(
            whole, whole, whole, whole, f"{n}[{first}][{', '.join(others)}]", f"{n}.T[{', '.join(places[::-1])}]",
            f"{n}.flat[{self.place(self.names[n].size)}]" if self.int(0, 3) == 0 else whole,
        )  # fmt: skip

    def row(self):
        found = [n for n in self.found if self.names[n].ndim in (1, 2)] or ["f"]
        n = self.pick(*found)
        shape = self.names[n].shape
        if len(shape) == 1:
            return self.pick(n, f"{n}[{self.slice(shape[0])}]", f"{n}[{self.slice(shape[0])}]")
        form = self.pick(*ROWS)
        return form.format(n=n, k=self.place(shape[1] if ".T" in form or "..." in form else shape[0]))

    # ----------------------------------------------------------------------------------------------------------- values

    def leaf(self):
        return self.random.choices(
            [self.at, lambda: self.pick(*self.numbers) if self.numbers else self.at(), lambda: self.pick(*CONSTANTS), self.element, lambda: f"np.sum({self.row()})"],
            [10, 5, 4, 1, 1],
        )[0]()  # fmt: skip

    def value(self, depth=2):
        if depth == 0 or self.int(0, 3) == 0:
            return self.leaf()
        a, b = self.value(depth - 1), self.value(depth - 1)
        return self.pick(
            f"{a} + {b}", f"{a} - {b}", f"({a}) * ({b})", f"({a}) * 0.5 - {b}", f"({a}) / (2.0 + abs({b}))", f"-({a})", f"abs({a})", f"({a}) ** 2", f"({a} + 0.25) ** 3",
            f"({a}) / 3", f"1.5 / (abs({a}) + 1)", f"2 ** ({a})", f"(abs({a}) + 0.5) ** ({b})", f"np.sin({a})", f"np.hypot({a}, {b} + 1.0)", f"np.sqrt(abs({a}) + 1.0)",
            f"np.maximum({a}, {b})", f"np.minimum({a}, {b})", f"max({a}, {b}, key=abs)", f"np.multiply({a}, {b})", f"np.tanh({a})", f"np.exp(-abs({a}))", f"np.where({a} > 0.1, {a}, {b})[()]",
            f"({a} if {self.condition()} else {b})", f"np.array([{a}, {b}]).sum()", f"total([{a}, {b}, 1.0])", f"np.dot([{a}, 2.0], [{b}, {a}])", f"({a}).real", f"np.square({a})", f"+({a})",
            f"({a}) {self.pick(*BINARY)} ({b})", f"np.sum(({a}) * {self.row()})", f"np.arctan2({a}, 1.5)", f"np.add({a}, {b})", f"np.float64(0.5) * ({a})", f"F4(0.75) - ({a})",
            f"np.log({a} * {a} + 0.5)", f"np.clip({a}, -0.5, {b})", f"({a}).astype(F4)", f"np.real({a})", f"np.conj({a}).real", f"({a}).copy()", f"np.mean([{a}, {b}])",
        )  # fmt: skip

    def condition(self):
        a, b = self.leaf(), self.leaf()
        tests = [
            f"{a} > {b}",
            f"{a} <= 0.2171",
            f"abs({a}) < 0.7",
            f"{a} == {b}",
            f"{a} != {b}",
            f"not {a} > 0.3",
            f"bool({a} > 0)",
        ]
        if self.scope:
            v = self.pick(*self.scope)
            tests += [f"{v} % 2", f"{v} % 3 == 1", f"{v} > 1 and {a} > 0"]
        return self.pick(*tests)

    # ------------------------------------------------------------------------------------------------------- statements

    def loop(self, depth):
        v, p = f"k{self.inner}", f"p{self.inner}"
        self.inner += 1
        n = self.int(2, 4)
        kind = self.int(0, 9)
        numbers = list(self.numbers)
        if kind < 5:
            head = [f"for {v} in range({self.int(0, 1)}, {n}):"]
        elif kind == 5:
            head = [f"for {v} in range({n}, -1, -1):"]
        elif kind == 6:
            head = [f"for {v} in np.arange({n}):"]
        elif kind == 7:
            head = [f"for {v}, {p} in enumerate({self.row()}):"]
            self.numbers.append(p)
        elif kind == 8:
            head = [f"{v} = 0", f"for {p} in {self.row()}:", f"    {v} += 1"]
            self.numbers.append(p)
        else:
            head = [f"{v} = 0", f"while {v} < {n}:", f"    {v} += 1"]
        self.scope.append(v)
        body = []
        for _ in range(self.int(1, 4)):
            body += self.statement(depth + 1)
        self.scope.pop()
        self.numbers = numbers
        return [*head, *indented(body)]

    def statement(self, depth):
        kinds = [
            self.assigning,
            self.updating_one,
            self.keeping,
            self.swapping,
            self.whole,
            self.holding,
            self.helping,
            self.failing,
            self.leaving,
        ]
        weights = [20, 7, 8, 2, 4, 5, 2, 1, 1]
        if depth < 3:
            kinds += [lambda: self.loop(depth), lambda: self.branching(depth)]
            weights += [5, 4]
        if self.comm is not None and self.certain:
            kinds.append(self.message)
            weights.append(5)
        if self.passes:
            kinds.append(lambda: self.passing(depth))
            weights.append(8)
        made = self.random.choices(kinds, weights)[0]()
        return made if isinstance(made, list) else [made]

    def assigning(self):
        return self.pick(
            f"{self.at()} = {self.value()}",
            f"{self.at()} = {self.value()}",
            f"{self.at()} = {self.at()} = {self.value(1)}",
        )

    def updating_one(self):
        return f"{self.at()} {self.pick('+=', '-=', '*=', '/=', '+=', '**=')} {self.value(1)}"

    def keeping(self):
        if not self.numbers:
            return self.assigning()
        s = self.pick(*self.numbers)
        return self.pick(
            f"{s} = {self.value()}",
            f"{s} += {self.value(1)}",
            f"{s} *= {self.value(1)}",
            f"{s} = {s} * 0.5 + {self.at()}",
            f"{s} = {self.at()} = {self.value(1)}",
        )

    def swapping(self):
        return self.pick(f"{self.at()}, {self.at()} = {self.at()}, {self.at()}", f"swap({self.row()}, 0, -1)")

    def whole(self):
        n = self.pick(*self.found)
        return self.pick(
            f"{n} *= 0.75", f"{self.row()}[:] = {self.row()}", f"{self.row()}[:2] += {self.value(1)}", f"{n}[...] = np.sin({n})", f"{n} += {self.value(1)}", f"{self.fresh()} = {n} * {n}",
            f"{self.fresh()} = {self.row()} * {self.value(1)}", f"{self.fresh()} = np.cumsum({self.row()})", f"{n}[{n} > 0.5] = {self.value(1)}", f"{n}.fill({self.value(1)})",
            f"{n}[[0, -1]] = {self.value(1)}", f"{n}.sort()", f"{self.fresh()} = {n}", f"{self.fresh()} = {n}.copy()", f"{self.row()}[...] = {self.leaf()}", f"np.add.at({n}, [0, 0], {self.leaf()})",
        )  # fmt: skip

    def helping(self):
        target = self.pick(*self.numbers) if self.numbers else self.at()
        return self.pick(
            f"{target} = moved({self.row()}, 0, {self.leaf()})",
            f"{target} = total({self.row()})",
            f"{target} = total([{self.at()} * 0.5 for _ in range(3)], {self.leaf()})",
        )

    def holding(self):
        """Numbers in objects, lists, dictionaries and one-element arrays; short slices; rows side by side."""
        s = self.pick(*self.numbers) if self.numbers else self.at()
        a, b, n = self.leaf(), self.value(1), self.pick("0", "-1")
        update = lambda: self.pick("+=", "-=", "*=", "+=")
        one = self.pick("np.zeros(1)", f"np.ones_like({self.row()}[:1])", "np.ones((1, 1))[0]")
        none = self.pick("np.zeros(())", "np.ones((), F4)", f"np.array({a})")
        few = self.pick("[:2]", "[1:3]", "[:1]", "[::-1]")
        return self.pick(
            [f"o = Box(a={a}, v={self.row()})", f"o.a {update()} {b}", f"o.v[{n}] {update()} {self.leaf()}", f"{self.at()} = o.a * 0.5 + o.v[{n}]", "del o"],
            [f"d = {{'a': {a}, 'b': [{self.leaf()}, 1.5]}}", f"d['a'] {update()} {b}", f"d['b'][{n}] {update()} {self.leaf()}", f"{s} = d['a'] - d['b'][0] * 0.5", "del d"],
            [f"one = {one}", f"one[{n}] {update()} {b}", f"one[0] {update()} {a}", f"{self.at()} = one[{n}] * 0.5", self.pick("one[0] = 0.5", f"one[0] = {self.leaf()}"), f"{self.at()} = one[0] * {a}", "del one"],
            [f"none = {none}", f"none[()] {update()} {b}", f"none {update()} {a}", f"{self.at()} = none[()] * 0.5", f"none[...] = {self.leaf()}", f"{s} = none * {a}", "del none"],
            [f"for p, q in zip({self.row()}, {self.row()}):", f"    {s} {update()} p * q", "p = q = 0", "del p, q"],
            [f"held = [{self.at()} * 0.5 + m for m in range(150)]", f"more = [h * {a} for h in held[::3]]", f"{self.at()} = held[3] + held[140] * more[2]", f"{s} = more[-1] - held[0]", "del held, more"],
            [f"few = {self.row()}{few} * {a}", f"few {update()} {self.row()}{few}", f"{self.at()} = few[{n}]", f"{self.row()}{few} = few", "del few"],
            [f"few = {self.row()}{few} {self.pick('*', '+', '-')} {self.row()}{few}", f"few {update()} {self.leaf()}", f"few[{n}] = {a}", f"{self.row()}{few} {update()} few * {self.leaf()}", "del few"],
            [f"{s} = np.float64({a}) * {self.at()}"],
            [f"{s} = F4({a}) - {self.at()}"],
            [f"{s} = max({a}, {self.leaf()}) + min({b}, {self.leaf()})"],
            [f"{s} = sum([m * {a} for m in {self.row()}])"],
        )  # fmt: skip

    def failing(self):
        """An access that NumPy refuses and that has no effect."""
        n = self.pick(*self.found)
        shape = self.names[n].shape
        much = ", ".join([*("0" for _ in shape[1:]), "9"]) or "0"
        return [
            "try:",
            f"    {self.pick(f'{n}[{much}] = {self.leaf()}', f'{self.at()} = {n}[{much}]', f'{n}[{much}] += 1.0', f'{n}[-99] = 2')}",
            "except IndexError:",
            f"    {self.assigning()}",
        ]

    def leaving(self):
        if not self.scope or not self.certain:
            return self.assigning()
        v = self.scope[-1]
        return [f"if {v} {self.pick('>', '==')} {self.int(1, 3)}:", f"    {self.pick('break', 'continue')}"]

    def branching(self, depth):
        certain, self.certain = self.certain, False
        text = [f"if {self.condition()}:", *indented(self.statement(depth + 1))]
        if self.int(0, 1):
            text += ["else:", *indented(self.statement(depth + 1))]
        self.certain = certain
        return text

    def passing(self, depth):
        s = self.pick(*self.numbers) if self.numbers else self.at()
        return self.pick(
            ["with passive():", *indented(self.statement(depth + 1))], f"{self.at()} = value({self.value(1)})", f"{s} = value({self.at()}) * {self.at()}",
            f"{self.at()} = slope({self.row()}) * {self.at()}", f"{s} = twice({self.at()}) + {self.leaf()}", f"{self.at()} = twice({self.leaf()})",
        )  # fmt: skip

    def message(self):
        """A message with an element; the same statement on all ranks."""
        s = self.pick(*self.numbers) if self.numbers else self.at()
        ring = "(comm.rank + 1) % comm.size", "(comm.rank - 1) % comm.size"
        new = "np.zeros(1)", "np.zeros(3)"
        return self.pick(
            [f"{s} = comm.sendrecv({self.value(1)}, {ring[0]}, source={ring[1]})"],
            [f"{s} = comm.allreduce({self.value(1)}) / comm.size"],
            [f"{self.at()} = comm.bcast({self.at()}, root=comm.size - 1)"],
            [f"{s} = comm.allgather({self.at()})[(comm.rank + 1) % comm.size]"],
            [f"here, there = np.array([{self.value(1)}, 1.0, {self.at()}], dtype=float), {new[1]}", f"comm.Sendrecv(here, {ring[0]}, recvbuf=there, source={ring[1]})", f"{self.at()} = there[2] * there[0]", "del here, there"],
            [f"here, there = {new[0]}, {new[0]}", f"here[0] = {self.value(1)}", "comm.Allreduce(here, there)", f"{self.at()} = there[0] / comm.size", "del here, there"],
            [f"here, there = {new[1]}, {new[1]}", f"here[1] = {self.at()}", f"waiting = [comm.Irecv(there, {ring[1]}), comm.Isend(here, {ring[0]})]", self.assigning(), f"{s} = here[1] * 2", "[w.Wait() for w in waiting]", f"here[1] = {self.at()}", f"{self.at()} = there[1] * here[1]", "del here, there, waiting"],
            [f"here = {new[1]}", f"here[:] = {self.value(1)}", "comm.Bcast(here, 0)", "here[0] *= here[1]", "comm.Bcast(here[:1], comm.size - 1)", f"{s} = total(here)", "del here"],
        )  # fmt: skip


def indented(lines):
    return ["    " + line for line in lines]

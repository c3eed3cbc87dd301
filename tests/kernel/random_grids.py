"""Random CUDA kernels without barriers that treat each thread as a point of a grid, independent of its block.

Stencils with borders in many notations, early returns, loops over the grid, atomic additions to one element or several,
local arrays; grids larger or smaller than the arrays, and arrays of one point or none.
"""

import numpy as np
from random_cuda import HEADER, Kernel

INDICES = "ijl"


class GridKernel(Kernel):
    """One kernel, its launch, and its arguments."""

    def write(self):
        draw, d = self.draw, len(self.block)
        self.grid = (*self.grid, 1, 1)[:d]
        self.names = INDICES[:d]
        counts = [g * b for g, b in zip(self.grid, self.block)]
        self.extents = tuple(max(c - draw.choice([0, 0, 0, 1, 2, c - 1, c, -2]), 0) for c in counts)
        self.own = f"[{', '.join(self.names)}]"
        self.around = {}  # how far a neighbour may be along each axis, where this is known
        self.atomics = draw.random() < 0.5
        self.strided = d == 1 and draw.random() < 0.3
        ends = [f"a.shape[{k}]" for k in range(d)]
        self.head = ["r0", "r1"]
        if self.strided:
            self.line("for i in range(cuda.grid(1), n, cuda.gridsize(1)):")
            self.depth += 1
        else:
            self.line(f"{', '.join(self.names)} = cuda.grid({d})" if d > 1 else draw.choice(
                ["i = cuda.grid(1)", "i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x"]))  # fmt: skip
            if draw.random() < 0.5:
                self.line(f"if {' or '.join(f'{i} >= {e}' for i, e in zip(self.names, ends))}:")
                self.line("    return")
            else:
                self.line(f"if {' and '.join(f'{i} < {e}' for i, e in zip(self.names, ends))}:")
                self.depth += 1
        self.line(f"r0 = a{self.own}")
        self.line("r1 = 0.5")
        if draw.random() < 0.4:
            self.local = True
            self.line("s = cuda.local.array(3, float64)")
            self.line("for m in range(3):")
            self.line("    s[m] = r0 * (m + 1)")
        for _ in range(draw.randint(1, 4)):
            self.statement(2)
        if draw.random() < 0.7:
            self.line(f"b{self.own} = {self.value()}")
        self.line(f"u{self.own} = u{self.own} * {self.value()}")
        body = "\n".join(self.lines)
        return f"{HEADER}\n@cuda.jit\ndef kernel(a, b, u, out, top, n, k):\n{body}\n"

    def value(self, depth=2):
        draw = self.draw
        if depth == 0 or draw.random() < 0.2:
            kinds = [draw.choice(self.registers), f"{draw.uniform(-1, 1):.2f}", self.neighbour(), self.neighbour()]
            kinds += [f"s[{draw.choice(['0', '1', '2', f'{self.names[0]} % 3'])}]"] if self.local else []
            kinds.append(f"TABLE[{self.names[-1]} % {draw.randint(2, 5)}]")
            return draw.choice(kinds)
        x, y = self.value(depth - 1), self.value(depth - 1)
        return draw.choice([f"(0.5 * {x} + {y})", f"({x} - 0.25 * {y})", f"(0.5 * {x} * {y})", f"math.sin({x})",
                            f"curve({x}, {draw.choice(['0.5', '0.9', y])})",
                            f"(({x}) if {self.condition()} else ({y}))"])  # fmt: skip

    def neighbour(self):
        """An element near the point; indices may wrap around where no distance from borders is known."""
        draw, items = self.draw, []
        if draw.random() < 0.15:  # the same for all threads
            return f"a[{', '.join(draw.choice(['0', '-1']) for _ in self.names)}]"
        for k, i in enumerate(self.names):
            low, high = self.around.get(i, (0, 0))
            step = draw.choice([0, 0, *range(-low, high + 1)])
            if not (low or high) and draw.random() < 0.3:
                items.append(f"({i} + {draw.randint(1, 3)}) % a.shape[{k}]")
            else:
                items.append(i if not step else f"{i} + {step}" if step > 0 else f"{i} - {-step}")
        return f"a[{', '.join(items)}]"

    def condition(self):
        i, k = self.draw.choice(list(zip(self.names, range(3))))
        return self.draw.choice([f"{i} > 0", f"{i} % 2 == 0", f"{i} < a.shape[{k}] - 1", "k > 1", "r0 > 0.1",
                                 f"{i} == a.shape[{k}] - 1"])  # fmt: skip

    def inside(self, depth, jumps=False):
        raise NotImplementedError

    def inner(self):
        """A condition on the distance from borders, and the distances that it guarantees."""
        draw, terms, known = self.draw, [], {}
        for k, i in enumerate(self.names):
            low, high = draw.choice([0, 1, 1, 2]), draw.choice([0, 1, 1, 2])
            end = draw.choice([f"a.shape[{k}]", "n"]) if k == 0 else f"a.shape[{k}]"
            if low:
                terms.append(draw.choice([f"{i} > {low - 1}", f"{i} >= {low}", f"{low} <= {i}", f"not {i} < {low}"]))
            if high:
                terms.append(draw.choice([f"{i} < {end} - {high}", f"{i} + {high} < {end}", f"{end} - {high} > {i}",
                                          f"{i} <= {end} - {high + 1}"]))  # fmt: skip
            known[i] = low, high
        if draw.random() < 0.2:
            terms.insert(draw.randint(0, len(terms)), draw.choice(["k > 1", "r0 > 0.0"]))
        return " and ".join(terms) or "k > 0", known

    def statement(self, depth):
        draw = self.draw
        kinds = ["assign", "increment", "inner", "inner", "branch", "loop"] + ["atomic", "sums"] * self.atomics
        match draw.choice(kinds if depth else kinds[:2]):
            case "assign":
                self.line(f"{draw.choice(self.registers)} = {self.value()}")
            case "increment":
                self.line(f"{draw.choice(self.registers)} += {self.value()}")
            case "inner" if not self.around:
                condition, known = self.inner()
                self.line(f"if {condition}:")
                self.nested(depth, known)
                if draw.random() < 0.4:
                    self.line("else:")
                    self.nested(depth, {})
            case "branch" | "inner":
                self.line(f"if {self.condition()}:")
                self.nested(depth, self.around)
            case "loop":
                self.line(f"for m in range({draw.choice(['k', f'{self.names[0]} % 3', '2'])}):")
                self.line(f"    r1 = 0.5 * r1 + {self.value(1)}")
                if self.atomics and draw.random() < 0.5:
                    self.line(f"    {self.sum()}")
            case "atomic":
                what = self.sum()
                if draw.random() < 0.5:
                    self.line(f"if {self.condition()}:")
                    what = "    " + what
                self.line(what)
            case "sums":
                self.line(f"cuda.atomic.add(out, 0, {self.value(1)})")
                self.line(f"cuda.atomic.{draw.choice(['add', 'sub'])}(out, {draw.choice('0123')}, {self.value(1)})")

    def sum(self):
        place = self.draw.choice(["0", "3", "k", f"{self.names[-1]} % 4", f"{self.names[0]} % 3", "k % 2", "-1"])
        return f"cuda.atomic.{self.draw.choice(['add', 'sub'])}(out, {place}, {self.value(1)})"

    def nested(self, depth, known):
        before, self.around = self.around, known
        self.depth += 1
        for _ in range(self.draw.randint(1, 2)):
            self.statement(depth - 1)
        self.depth -= 1
        self.around = before

    def arguments(self):
        values = np.random.default_rng(7)
        shape = self.extents
        arrays = [values.normal(size=shape), np.zeros(shape), values.normal(size=shape), values.normal(size=4)]
        return (*arrays, np.zeros(2), shape[0], self.draw.choice([0, 1, 2, 3]))

"""Random CUDA kernels: shared memory, barriers in loops and uniform branches, registers and local arrays that live
across them, atomics, warp operations, in-place updates, early returns; and checks of them.

They have no races by construction: between two barriers a shared array is either read anywhere, or each thread reads
and writes its own element.
"""

import linecache
import random

import complex_step
import numpy as np
from random_dresses import Dressed

import ampi
from ampi.kernel.cuda.interpreter import interpret

HEADER = """import math
import numpy as np
import ampi.cuda as cuda
from numba import float32, float64, int64

TABLE = np.array([0.5, -0.25, 0.75, 1.25, -0.5])

@cuda.jit(device=True)
def curve(x, c):
    if c > 0.75:
        return math.sin(x) * c
    return 0.5 * x + c * x * x

@cuda.jit(device=True)
def neighbour(s, t, size):
    cuda.syncthreads()
    x = s[(t + 1) % size]
    cuda.syncthreads()
    return x
"""
BLOCKS = [(8,), (7,), (1,), (33,), (64,), (4, 2), (3, 5), (2, 2, 2)]
GRIDS = [(1,), (3,), (5,), (2, 3), (1, 2, 2)]
SMALL = [(8,), (7,), (1,), (3,), (5,), (2, 2), (3, 2), (2, 1, 2)], [(1,), (3,), (2,), (1, 2), (1, 2, 1)]


class Kernel:
    """One kernel, its launch, and its arguments; a small launch has 24 threads at most."""

    tolerance = 1e-9
    by_step = True

    def __init__(self, seed, small=False):
        self.seed = seed
        self.draw = random.Random(seed)
        blocks, grids = SMALL if small else (BLOCKS, GRIDS)
        self.block = self.draw.choice(blocks)
        self.grid = self.draw.choice(grids)
        self.threads = int(np.prod(self.block))
        self.total = self.threads * int(np.prod(self.grid))
        self.n = max(1, self.total - self.draw.choice([0, 0, 1, 2, self.threads + 1]))
        self.lines = []
        self.depth = 1
        self.registers = ["r0", "r1"]
        self.counters = 0
        self.shared = {}  # name -> "own" or "read"
        self.dynamic = 0
        self.local = False
        self.extremes = self.draw.choice([["max"], ["min"], ["max"], ["min"], ["max", "min"]])
        self.alone = True  # whether all threads of the block are still running
        self.source = self.write()

    # ------------------------------------------------------------------------------------------- text

    def line(self, text):
        self.lines.append("    " * self.depth + text)

    def write(self):
        self.line(self.draw.choice(self.ranks()))
        self.line(f"i = t + {self.threads} * ({self.block_number()})")
        self.line("r0 = a[i % n]")
        self.line("r1 = 0.5")
        for k in range(self.draw.randint(1, 2)):
            name = f"s{k}"
            dynamic = k == 0 and self.draw.random() < 0.2
            self.dynamic = self.dynamic or (8 * self.threads if dynamic else 0)
            self.line(f"{name} = cuda.shared.array({0 if dynamic else self.threads}, float64)")
            self.line(f"{name}[t] = {self.value()}")
            self.shared[name] = "own"
        if self.draw.random() < 0.4:
            self.local = True
            self.line("l = cuda.local.array(3, float64)")
            self.line("for j in range(3):")
            self.line("    l[j] = r0 * (j + 1)")
        if self.draw.random() < 0.4:
            kind = self.draw.randrange(3)
            self.alone = False
            if kind == 0:
                self.line("if i >= n:")
                self.line("    return")
            elif kind == 1:
                self.line("if i < n:")
                self.line(f"    r1 += {self.value()}")
                self.line("else:")
                self.line("    if t % 2 == 0:")
                self.line("        return")
            else:
                self.line("if a[i % n] < -1.5 or i >= n:")
                self.line("    out[0] = out[0]" if False else "    return")
        for _ in range(self.draw.randint(2, 5)):
            self.statement(2)
        self.line("if i < n:")
        self.line(f"    b[i] = {self.value()}")
        self.line(f"    u[i] = u[i] * {self.value()}")
        body = "\n".join(self.lines)
        return f"{HEADER}\n@cuda.jit\ndef kernel(a, b, u, out, top, n, k):\n{body}\n"

    def ranks(self):
        x, y, z = (*self.block, 1, 1)[:3]
        if len(self.block) == 1:
            return ["t = cuda.threadIdx.x", "t = cuda.grid(1) - cuda.blockIdx.x * cuda.blockDim.x"]
        if len(self.block) == 2:
            return [
                "t = cuda.threadIdx.x + cuda.blockDim.x * cuda.threadIdx.y",
                f"t = cuda.threadIdx.y + {y} * cuda.threadIdx.x",
            ]
        return ["t = cuda.threadIdx.x + cuda.blockDim.x * (cuda.threadIdx.y + cuda.blockDim.y * cuda.threadIdx.z)"]

    def block_number(self):
        if len(self.grid) == 1:
            return "cuda.blockIdx.x"
        if len(self.grid) == 2:
            return "cuda.blockIdx.x + cuda.gridDim.x * cuda.blockIdx.y"
        return "cuda.blockIdx.x + cuda.gridDim.x * (cuda.blockIdx.y + cuda.gridDim.y * cuda.blockIdx.z)"

    def value(self, depth=2):
        draw = self.draw
        if depth == 0 or draw.random() < 0.2:
            kinds = [
                draw.choice(self.registers),
                f"{draw.uniform(-1, 1):.2f}",
                f"a[(i * {draw.randint(1, 5)} + {draw.randint(0, 3)}) % n]",
                draw.choice(["a[0]", "a[k % n]", f"a[i % n] * {draw.uniform(-1, 1):.2f}"]),
            ]
            for name, mode in self.shared.items():
                kinds.append(f"{name}[t]")
                if mode == "read":
                    kinds += [f"{name}[{self.other()}]"] * 3
            if self.local:
                kinds.append(f"l[{draw.choice(['0', '1', '2', 't % 3'])}]")
            kinds.append(f"TABLE[t % {draw.randint(2, 5)}]")
            return draw.choice(kinds)
        x, y = self.value(depth - 1), self.value(depth - 1)
        return draw.choice([f"(0.5 * {x} + {y})", f"({x} - 0.25 * {y})", f"(0.5 * {x} * {y})", f"math.sin({x})",
                            f"curve({x}, {draw.choice(['0.5', '0.9', y])})",
                            f"math.exp(-0.1 * ({x}) ** 2)"])  # fmt: skip

    def other(self):
        """The index of another thread's element."""
        size = self.threads
        return self.draw.choice([f"{size} - 1 - t", f"(t + 1) % {size}", f"(t * 3 + k) % {size}", "0", "t // 2"])

    def agreed(self):
        """A condition on which the threads of a block agree."""
        counter = "m > 0" if self.counters else "k > 0"
        return self.draw.choice(["k > 1", "k % 2 == 0", "cuda.blockIdx.x % 2 == 0", counter,
                                 "n > 5 and k < 4"])  # fmt: skip

    def differing(self):
        return self.draw.choice(["t % 2 == 0", "t < 3", "i < n - 1", f"t == {self.threads // 2}", "t > k"])

    def barrier(self):
        self.line("cuda.syncthreads()")
        for name in self.shared:
            self.shared[name] = self.draw.choice(["own", "read"])

    def settle(self):
        """A barrier after which each thread has its own elements."""
        self.line("cuda.syncthreads()")
        for name in self.shared:
            self.shared[name] = "own"

    def statement(self, depth):
        draw = self.draw
        own = [name for name, mode in self.shared.items() if mode == "own"]
        kinds = ["assign", "assign", "increment", "branch", "loop", "atomic", "barrier", "barrier", "barrier"]
        kinds += ["element", "element", "update"] if own else []
        kinds += ["rounds", "rounds", "agreed", "while", "tree"] if depth else []
        kinds += ["local"] if self.local else []
        kinds += ["count"]
        kinds += ["shuffle", "vote", "device", "first warp"] if self.alone else []
        kind = draw.choice(kinds)
        match kind:
            case "assign":
                self.line(f"{draw.choice(self.registers)} = {self.value()}")
            case "increment":
                self.line(f"{draw.choice(self.registers)} += {self.value()}")
            case "branch":
                self.line(f"if {self.differing()}:")
                self.line(f"    {draw.choice(self.registers)} = {self.value()}")
                if own and draw.random() < 0.5:
                    self.line("else:")
                    self.line(f"    {draw.choice(own)}[t] = {self.value()}")
            case "loop":
                self.line(f"for j in range({draw.choice(['k', 't % 3', '2'])}):")
                self.line(f"    r1 = 0.5 * r1 + {self.value(1)}")
                if draw.random() < 0.3:
                    self.line("    if j > t:")
                    self.line("        break")
            case "atomic":
                what = draw.choice([f"cuda.atomic.add(out, {draw.choice(['t % 4', '0', 'i % 3'])}, {self.value()})",
                                    f"cuda.atomic.sub(out, i % 4, {self.value()})",
                                    f"cuda.atomic.{draw.choice(self.extremes)}(top, i % 2, "
                                    f"{self.value()})"])  # fmt: skip
                if draw.random() < 0.5:
                    self.line(f"if {self.differing()}:")
                    what = "    " + what
                self.line(what)
            case "barrier":
                self.barrier()
            case "element":
                self.line(f"{draw.choice(own)}[t] = {self.value()}")
            case "update":
                self.line(f"{draw.choice(own)}[t] {draw.choice(['+=', '*=', '-='])} {self.value(1)}")
            case "local":
                self.line(f"l[{draw.choice(['0', 't % 3', 'k % 3'])}] = {self.value()}")
            case "rounds":
                self.counters += 1
                self.settle()
                self.line(f"for m in range({draw.choice(['k', '2', 'k + 1'])}):")
                self.inside(depth, jumps=True)
            case "agreed":
                condition = self.agreed() if "m" not in self.lines[-1] else "k > 1"
                condition = "k > 1" if "m >" in condition else condition
                self.settle()
                self.line(f"if {condition}:")
                self.inside(depth)
                if draw.random() < 0.4:
                    self.line("else:")
                    self.inside(depth)
            case "while":
                self.settle()
                name = f"w{len(self.lines)}"
                self.line(f"{name} = {draw.choice(['k', '3'])}")
                self.line(f"while {name} > 0:")
                self.inside(depth)
                self.line(f"    {name} -= 1")
            case "tree":
                self.settle()
                name, half = draw.choice(list(self.shared)), f"h{len(self.lines)}"
                self.line(f"{half} = {max(self.threads // 2, 0)}")
                self.line(f"while {half} > 0:")
                self.line(f"    if t < {half}:")
                self.line(f"        {name}[t] += 0.5 * {name}[t + {half}]")
                self.line("    cuda.syncthreads()")
                self.line(f"    {half} //= 2")
            case "count":
                function = draw.choice(["count", "and", "or"])
                self.line(f"r1 += 0.1 * cuda.syncthreads_{function}({self.differing()}) * r0")
                for name in self.shared:
                    self.shared[name] = "own"
            case "device":
                self.line(
                    f"{draw.choice(self.registers)} = neighbour({draw.choice(list(self.shared))}, t, {self.threads})"
                )
                for name in self.shared:
                    self.shared[name] = "own"
            case "shuffle":
                name, lane = draw.choice(
                    [("shfl_sync", "t % 5"), ("shfl_down_sync", "1"), ("shfl_up_sync", "2"), ("shfl_xor_sync", "1")]
                )
                self.line(f"r1 = 0.5 * cuda.{name}(0xffffffff, {self.value(1)}, {lane}) + r0")
            case "vote":
                name = draw.choice(["any_sync", "all_sync", "ballot_sync", "eq_sync"])
                self.line(f"if cuda.{name}(0xffffffff, {self.differing()}):")
                self.line(f"    r1 = {self.value(1)}")
            case "first warp":
                self.line("if t < 32:")
                self.line("    d = 2")
                self.line("    while d > 0:")
                self.line("        r0 += 0.5 * cuda.shfl_down_sync(0xffffffff, r0, d)")
                self.line("        d //= 2")

    def inside(self, depth, jumps=False):
        """The body of a loop or branch on which threads agree: each thread owns its elements at its start and end."""
        self.depth += 1
        if jumps and self.draw.random() < 0.3:
            self.line("if m == 2:")
            self.line(f"    {self.draw.choice(['break', 'continue'])}")
        for _ in range(self.draw.randint(1, 3)):
            self.statement(depth - 1)
        self.settle()
        self.depth -= 1

    # ------------------------------------------------------------------------------------------- running

    def load(self, name, source=None):
        source = source or self.source
        linecache.cache[name] = (len(source), None, source.splitlines(True), name)
        space = {"__name__": "random_cuda_kernel"}
        exec(compile(source, name, "exec"), space)
        return space["kernel"]

    def arguments(self):
        values = np.random.default_rng(7)
        n = self.n
        arrays = [values.normal(size=n), np.zeros(n), values.normal(size=n), values.normal(size=4), np.zeros(2)]
        return (*arrays, n, self.draw.choice([0, 1, 2, 3]))


def examine(seed):
    """Compare the lowered kernel, on its arrays or on other layouts, with the interpreted one, its gradient with its
    tangent and with differences."""
    kernel = drawn(seed)
    run = kernel.load(f"<cuda kernel {seed}>")
    given = kernel.arguments()
    launch = run[kernel.grid, kernel.block, 0, kernel.dynamic]
    text = f"seed {seed}\n{kernel.source}"
    if kernel.draw.random() < 0.5:
        launch = Dressed(kernel, launch, kernel.draw)
        text += f"\non {launch.name}"
    compare(launch, given, (0, 2, 3), kernel.tolerance, text=text, order=seed, by_step=kernel.by_step)


def drawn(seed, small=False):
    """A random kernel: without barriers if the seed is a multiple of three (`random_grids`), or of patterns
    (`random_patterns`)."""
    from random_grids import GridKernel
    from random_patterns import PatternKernel

    return (GridKernel, PatternKernel, Kernel)[seed % 3](seed, small)


def compare(launch, given, active, tolerance=1e-9, text="", order=None, by_step=False):
    """Check a launch as `examine` does, for given active arguments; ``by_step``: also against complex steps."""
    expected = [copied(v) for v in given]
    interpret(launch.kernel.py_func, launch.grid, launch.block, launch.shared, tuple(expected), order)
    lowered = [copied(v) for v in given]
    launch(*lowered)
    for x, y in zip(lowered, expected):
        np.testing.assert_allclose(x, y, rtol=tolerance, atol=tolerance, err_msg=text)
    written = [k for k, v in enumerate(given) if isinstance(v, np.ndarray) and v.dtype.kind == "f"]
    weights = {k: np.random.default_rng(k).normal(size=given[k].shape) for k in written}

    def objective(*x):
        values = [ampi.numpy.zeros(v.shape) + v if k in written else copied(v) for k, v in enumerate(given)]
        for k, v in zip(active, x):
            values[k] = v + 0
        launch(*values)
        return sum(ampi.numpy.sum(weights[k] * values[k]) for k in written)

    x = tuple(given[k] for k in active)
    directions = tuple(np.random.default_rng(10 + k).normal(size=v.shape) for k, v in enumerate(x))
    tangent = float(ampi.jvp(objective, x, directions)[1])
    gradient = ampi.grad(objective, argnums=tuple(range(len(x))))(*x)
    products = [np.asarray(g) * d for g, d in zip(gradient, directions)]
    slope, scale = sum(float(np.sum(p)) for p in products), 1 + sum(float(np.sum(abs(p))) for p in products)
    assert abs(slope - tangent) <= tolerance * scale, (slope, tangent, text)
    if by_step:
        expected = complex_step.slope(launch, given, active, directions, weights, order)
        assert abs(expected - tangent) <= tolerance * scale, (expected, tangent, text)
        return
    quotients = []
    for h in (1e-3, 1e-4, 1e-5, 1e-6):
        up, down = (float(objective(*(v + s * h * d for v, d in zip(x, directions)))) for s in (1, -1))
        quotients.append((up - down) / (2 * h))
    assert min(abs(q - tangent) for q in quotients) <= max(1e-5, 10 * tolerance) * scale, (quotients, tangent, text)


def copied(value):
    return np.copy(value) if isinstance(value, np.ndarray) else value

"""Random CUDA kernels made of the patterns that people write: reduction trees, scans, histograms, transposes through
padded shared memory, products of tiles, halos, loops over the grid, warp reductions, sorting in local arrays.

Each takes any number of threads, and mixes with the statements of `random_cuda`.
"""

from random_cuda import HEADER, Kernel

MORE = """
from numba import complex64, complex128, int32

@cuda.jit(device=True)
def both(x, y):
    if x > y:
        return x * y, x - y
    return 0.5 * x, y

@cuda.jit(device=True)
def settled(x):
    for m in range(4):
        if x * x < 0.5:
            return x
        x = 0.5 * x + 0.1 * m
    return 2.0 * x
"""


class PatternKernel(Kernel):
    """One kernel, its launch, and its arguments."""

    def write(self):
        draw = self.draw
        self.line(draw.choice(self.ranks()))
        self.line(f"i = t + {self.threads} * ({self.block_number()})")
        self.line("r0 = a[i % n]")
        self.line("r1 = 0.25")
        self.number = 0
        self.is_single = False
        if draw.random() < 0.2:
            self.dynamic = 16 * self.threads
            self.line("memory = cuda.shared.array(0, float64)")
            self.line(f"low, high = memory[:{self.threads}], memory[{self.threads}:]")
            self.line(f"low[t] = {self.value(1)}")
            self.line(f"high[{self.threads - 1} - t] = {self.value(1)}")
            self.line("cuda.syncthreads()")
            self.line(f"r1 = low[(t + 1) % {self.threads}] * high[t]")
            self.line("cuda.syncthreads()")
        for _ in range(draw.randint(1, 3)):
            getattr(self, draw.choice(PATTERNS))()
            if draw.random() < 0.4:
                self.line(f"{draw.choice(self.registers)} += {self.value(1)}")
        self.line("if i < n:")
        self.line(f"    b[i] = {self.value()}")
        self.line(f"    u[i] = u[i] * {self.value()}")
        body = "\n".join(self.lines)
        return f"{HEADER}{MORE}\n@cuda.jit\ndef kernel(a, b, u, out, top, n, k):\n{body}\n"

    def new(self, shape, dtype="float64"):
        """A new shared array."""
        self.number += 1
        name = f"p{self.number}"
        if dtype == "float64" and self.draw.random() < 0.15:
            dtype, self.is_single = "float32", True
        self.line(f"{name} = cuda.shared.array({shape}, {dtype})")
        return name

    def filled(self):
        name = self.new(self.threads)
        self.line(f"{name}[t] = {self.value(1)}")
        self.line("cuda.syncthreads()")
        return name

    def lines_of(self, text):
        for line in text.strip("\n").splitlines():
            self.line(line)

    def tree(self):
        s, n = self.filled(), self.threads
        kind = self.draw.randrange(3)
        if kind == 0:
            self.lines_of(f"""
d = 1
while d < {n}:
    if t % (2 * d) == 0 and t + d < {n}:
        {s}[t] += {s}[t + d]
    cuda.syncthreads()
    d *= 2
""")
        elif kind == 1:
            self.lines_of(f"""
d = 1
while d < {n}:
    index = 2 * d * t
    if index + d < {n}:
        {s}[index] += 0.5 * {s}[index + d]
    cuda.syncthreads()
    d *= 2
""")
        else:
            self.lines_of(f"""
for m in range({max(n - 1, 1).bit_length()}):
    d = 1 << m
    if t % (2 * d) == 0 and t + d < {n}:
        {s}[t] = {self.draw.choice([f"max({s}[t], {s}[t + d])", f"{s}[t] * (1.0 + 0.1 * {s}[t + d])"])}
    cuda.syncthreads()
""")
        self.line("if t == 0:")
        self.line(f"    cuda.atomic.add(out, {self.draw.choice('013')}, {s}[0])")
        self.line(f"r0 = 0.5 * r0 + 0.1 * {s}[0]")

    def scan(self):
        n = self.threads
        if self.draw.random() < 0.5:
            s = self.filled()
            self.lines_of(f"""
d = 1
while d < {n}:
    x = {s}[t - d] if t >= d else 0.0
    cuda.syncthreads()
    {s}[t] += x
    cuda.syncthreads()
    d *= 2
r1 = {s}[t]
""")
            return
        s = self.new(f"(2, {n})")
        self.lines_of(f"""
now = 0
{s}[0, t] = r0 * r1
cuda.syncthreads()
d = 1
while d < {n}:
    {s}[1 - now, t] = {s}[now, t] + (0.5 * {s}[now, t - d] if t >= d else 0.0)
    now = 1 - now
    cuda.syncthreads()
    d *= 2
r1 = {s}[now, t]
""")

    def sweeps(self):
        """A scan of Blelloch's over a power of two."""
        size = 1 << (self.threads.bit_length() - 1)
        s = self.new(size)
        self.lines_of(f"""
if t < {size}:
    {s}[t] = r0
cuda.syncthreads()
d = 1
while d < {size}:
    j = (t + 1) * 2 * d - 1
    if j < {size}:
        {s}[j] += {s}[j - d]
    cuda.syncthreads()
    d *= 2
if t == 0:
    {s}[{size - 1}] = 0.0
cuda.syncthreads()
d = {size // 2}
while d > 0:
    j = (t + 1) * 2 * d - 1
    if j < {size}:
        x = {s}[j - d]
        {s}[j - d] = {s}[j]
        {s}[j] += x
    cuda.syncthreads()
    d //= 2
r1 = {s}[t % {size}]
""")

    def histogram(self):
        bins, value = self.draw.randint(1, 6), self.value(1)
        is_count = self.draw.random() < 0.3
        s = self.new(bins, "int32" if is_count else "float64")
        place = self.draw.choice([f"i % {bins}", f"(t * 3 + k) % {bins}", "0", f"int(abs(10.0 * r0)) % {bins}"])
        self.lines_of(f"""
for j in range(t, {bins}, {self.threads}):
    {s}[j] = 0
cuda.syncthreads()
cuda.atomic.add({s}, {place}, {1 if is_count else value})
cuda.syncthreads()
for j in range(t, {bins}, {self.threads}):
    cuda.atomic.add(out, j % 4, r1 * {s}[j])
r0 += 0.1 * {s}[{place}]
""")

    def transpose(self):
        n = self.threads
        width = max(w for w in range(1, n + 1) if n % w == 0 and w * w <= n)
        high, pad = n // width, self.draw.randint(0, 1)
        s = self.new(f"({high}, {width + pad})")
        self.lines_of(f"""
{s}[t // {width}, t % {width}] = {self.value(1)}
cuda.syncthreads()
r1 = 0.5 * {s}[t % {high}, t // {high}] + r0
""")

    def tiles(self):
        side = max(m for m in range(1, 9) if m * m <= self.threads)
        x, y = self.new(f"({side}, {side})"), self.new(f"({side}, {side})")
        self.lines_of(f"""
row, col = t // {side}, t % {side}
x = 0.0
for m in range({self.draw.choice(["k", "2", "k + 1"])}):
    if row < {side}:
        {x}[row, col] = a[(row * 7 + col + m * {side}) % n]
        {y}[row, col] = a[(col * 5 + row + m) % n]
    cuda.syncthreads()
    if row < {side}:
        for j in range({side}):
            x += {x}[row, j] * {y}[j, col]
    cuda.syncthreads()
r0 = 0.5 * r0 + 0.1 * x
""")

    def halo(self):
        n = self.threads
        s = self.new(n + 2)
        self.lines_of(f"""
{s}[t + 1] = {self.value(1)}
if t == 0:
    {s}[0] = a[(i - 1 + n) % n]
if t == {n - 1}:
    {s}[{n + 1}] = a[(i + 1) % n]
cuda.syncthreads()
r1 = {s}[t] - 2.0 * {s}[t + 1] + {s}[t + 2]
""")

    def over_grid(self):
        kind = self.draw.randrange(3)
        if kind == 0:
            self.lines_of(f"""
j = i
x = 0.0
while j < n:
    x += a[j] * a[j] * r1
    j += {self.total}
cuda.atomic.add(out, {self.draw.choice("012")}, x)
""")
        elif kind == 1:
            self.lines_of(f"""
x = a[(i + k) % n]
while x < 2.0:
    x = x * x + {self.draw.uniform(1.1, 1.4):.2f}
r0 = math.sin(x) + r1
""")
        else:
            self.lines_of("""
x = r0
m = 0
while m < k + t % 2 and x < 3.0:
    j = 0
    while j * j < m + t % 3:
        x += 0.1 * x * x
        j += 1
    m += 1
r1 = x
""")

    def extreme(self):
        place = self.draw.choice(["i % 2", "0", "1", "t % 2"])
        value = self.draw.choice([self.value(1), "max(r0, 0.0)", "r0 * r0"])
        lines = [f"cuda.atomic.{self.extremes[0]}(top, {place}, {value})"]
        if self.draw.random() < 0.3:
            lines = [f"if {self.differing()}:", f"    {lines[0]}"]
        elif self.draw.random() < 0.3:
            lines = ["for j in range(2):", f"    cuda.atomic.{self.extremes[0]}(top, (i + j) % 2, a[(i + j) % n] * r1)"]
        self.lines_of("\n".join(lines))

    def warps(self):
        warps = -(-self.threads // 32)
        s = self.new(warps)
        self.lines_of(f"""
x = r0
d = 16
while d > 0:
    x += cuda.shfl_down_sync(0xffffffff, x, d)
    d //= 2
if t % 32 == 0:
    {s}[t // 32] = x
cuda.syncthreads()
x = 0.0
for j in range({warps}):
    x += {s}[j]
cuda.syncthreads()
r0 = 0.1 * x + r1
""")

    def ranked(self):
        """Numbers of lanes before a thread for which a condition holds."""
        self.lines_of(f"""
votes = cuda.ballot_sync(0xffffffff, {self.differing()})
r1 += 0.1 * r0 * cuda.popc(votes & ((1 << (t % 32)) - 1))
""")

    def results(self):
        self.lines_of(f"""
x, y = both({self.value(1)}, {self.value(1)})
r0 = settled(x)
r1 += 0.5 * y
""")

    def sorted(self):
        self.number += 1
        l = f"q{self.number}"
        self.lines_of(f"""
{l} = cuda.local.array(4, float64)
for j in range(4):
    {l}[j] = a[(i + j) % n] * r1
for j in range(1, 4):
    x = {l}[j]
    m = j - 1
    while m >= 0 and {l}[m] > x:
        {l}[m + 1] = {l}[m]
        m -= 1
    {l}[m + 1] = x
r0 = {l}[0] - 0.5 * {l}[2]
""")

    def turned(self):
        self.lines_of("""
z = complex(r0, 0.5 * r1)
z = z * z + 0.1 * z.conjugate()
r0, r1 = z.real, 0.1 * z.imag
""")

    def rounded(self):
        self.is_single = True
        self.line("r0 = float32(r0) * float32(0.7)")

    # ------------------------------------------------------------------------------------------- checks

    @property
    def tolerance(self):
        return 2e-4 if self.is_single else 1e-9

    @property
    def by_step(self):
        return not self.is_single and "complex(" not in self.source


PATTERNS = [
    "tree", "scan", "sweeps", "histogram", "transpose", "tiles", "halo", "over_grid", "extreme", "warps", "ranked",
    "results", "sorted", "turned", "rounded",
]  # fmt: skip

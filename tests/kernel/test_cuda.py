"""CUDA kernels on the CPU: lowered kernels compared with the interpreter, gradients, races, and refusals."""

import math

import numba
import numpy as np
import pytest
import random_cuda
from numba import float32, float64, int32
from random_cuda import compare
from uncompiled import compiled, in_python, run_in_python

import ampi
import ampi.cuda as cuda
from ampi import KernelError
from ampi.kernel.cuda import launch as launches
from ampi.kernel.cuda.interpreter import interpret

RANDOM = np.random.default_rng(5)
SIZE = 24


@compiled
def test_in_python(request):
    """Run most of these tests in a separate process without compilation, which would take far longer."""
    run_in_python(__file__, request)


@cuda.jit(device=True)
def square(x):
    return x * x


@cuda.jit
def elements(a, b):
    i = cuda.threadIdx.x + cuda.blockIdx.x * cuda.blockDim.x
    if i < a.shape[0]:
        b[i] = square(a[i])


@cuda.jit
def strided(a, b):
    start, step = cuda.grid(1), cuda.gridsize(1)
    for i in range(start, a.size, step):
        b[i] = a[i] * a[i - 1]


@cuda.jit
def carried(a, b):
    total = 0.0
    for i in range(cuda.grid(1), a.size, cuda.gridsize(1)):
        total += a[i] * a[i]
    cuda.atomic.add(b, 0, total)


@cuda.jit
def planar(a, b):
    x, y = cuda.grid(2)
    if x < 1 or y < 1 or x >= 5 or y >= 3:
        return
    b[6 * y + x] = a[6 * y + x] * (a[6 * y + x - 1] + a[6 * y + x + 1] - a[6 * (y - 1) + x])


@cuda.jit
def tile(a, b):
    shared = cuda.shared.array(shape=(4, 3), dtype=float32)
    x, y = cuda.threadIdx.x, cuda.threadIdx.y
    i = 3 * (4 * cuda.blockIdx.x + x) + y
    shared[x, y] = a[i % a.size]
    cuda.syncthreads()
    if i < a.size:
        b[i] = shared[3 - x, 2 - y] * shared[x, y]


@cuda.jit
def dynamic(a, b):
    memory = cuda.shared.array(0, float64)
    n = cuda.blockDim.x
    low, high = memory[:n], memory[n:]
    t, i = cuda.threadIdx.x, cuda.grid(1)
    low[t] = a[i]
    high[n - 1 - t] = a[i] * a[i]
    cuda.syncthreads()
    b[i] = low[(t + 1) % n] * high[t]


@cuda.jit
def tree(a, b):
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = a[i] * a[i] if i < a.size else 0.0
    cuda.syncthreads()
    half = cuda.blockDim.x // 2
    while half > 0:
        if t < half:
            shared[t] += shared[t + half]
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.add(b, 0, shared[0])


@cuda.jit
def registers(a, b):
    shared = cuda.shared.array(8, float64)
    own = cuda.local.array(2, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i >= a.size - 3:
        return
    r = math.sin(a[i])
    own[0], own[1] = r, 2.0
    shared[t] = r * a[i]
    for k in range(3):
        cuda.syncthreads()
        left = a.size - 3 - 8 * cuda.blockIdx.x
        other = shared[(t + 1) % (left if left < 8 else 8)]
        cuda.syncthreads()
        shared[t] += 0.1 * other * r * own[k % 2]
        own[1] *= 0.5 * r
    b[i] = shared[t] * own[1]


@cuda.jit
def warps(a, b):
    t, i = cuda.threadIdx.x, cuda.grid(1)
    x = a[i]
    step = 4
    while step > 0:
        x += 0.5 * cuda.shfl_down_sync(0xFFFFFFFF, x, step)
        step //= 2
    votes = cuda.ballot_sync(0xFFFFFFFF, t % 3 == 0)
    if cuda.laneid == 0:
        b[i] = x * votes
    else:
        b[i] = cuda.fma(x, x, 1.0)


@cuda.jit
def largest(a, b):
    i = cuda.grid(1)
    cuda.atomic.max(b, 0, a[i])
    cuda.atomic.min(b, 1, a[i] * a[i])


@cuda.jit
def counted(a, b):
    count = cuda.shared.array(1, int32)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t == 0:
        count[0] = 0
    cuda.syncthreads()
    if t % 3 == 0:
        cuda.atomic.add(count, 0, 1)
    cuda.syncthreads()
    if cuda.syncthreads_or(a[i] > 1e9):
        return
    b[i] = a[i] * count[0] + cuda.syncthreads_count(t < 5)


@cuda.jit
def in_place(a, b):
    i = cuda.grid(1)
    a[i] = a[i] * a[i]
    a[i] *= a[i]
    b[i] = a[i]


@cuda.jit
def jumping(a, b):
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if i < a.size:
        if a[i] > 2.0:
            return
        shared[t] = a[i]
    cuda.syncthreads()
    total = 0.0
    for j in range(8):
        if j == t:
            continue
        if j > t + 3:
            break
        total += j * a[j]
    part = shared[t : t + 1]
    cuda.syncthreads()
    b[i] = total * part[0]


@cuda.jit
def compacted(a, b, count):
    i = cuda.grid(1)
    if i < a.size and a[i] > 0:
        k = cuda.atomic.add(count, 0, 1)
        b[k] = a[i] * a[i]


@cuda.jit
def product(a, b, c):
    of_a = cuda.shared.array((4, 4), float64)
    of_b = cuda.shared.array((4, 4), float64)
    x, y = cuda.grid(2)
    s, t = cuda.threadIdx.x, cuda.threadIdx.y
    total = float64(0.0)
    for k in range(cuda.gridDim.x):
        of_a[t, s] = 0
        of_b[t, s] = 0
        if y < a.shape[0] and s + 4 * k < a.shape[1]:
            of_a[t, s] = a[y, s + 4 * k]
        if x < b.shape[1] and t + 4 * k < b.shape[0]:
            of_b[t, s] = b[t + 4 * k, x]
        cuda.syncthreads()
        for j in range(4):
            total += of_a[t, j] * of_b[j, s]
        cuda.syncthreads()
    if y < c.shape[0] and x < c.shape[1]:
        c[y, x] = total


@cuda.jit
def updated(a, b):
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = a[i]
    cuda.syncthreads()
    j = (5 * i + 3) % b.size
    if i > 2:
        b[j] = b[j] * shared[7 - t] * b[j]


LAUNCHES = {
    elements: (5, 7),
    strided: (2, 4),
    carried: (2, 3),
    planar: ((2, 2), (4, 2)),
    tile: (2, (4, 3)),
    dynamic: (3, 8, 0, 128),
    tree: (4, 8),
    registers: (3, 8),
    warps: (3, 8),
    largest: (3, 8),
    counted: (3, 8),
    in_place: (3, 8),
    updated: (3, 8),
    jumping: (3, 8),
}


@in_python
@pytest.mark.parametrize("kernel", LAUNCHES, ids=lambda kernel: kernel.__name__)
def test_kernels(kernel):
    tolerance = 1e-4 if kernel is tile else 1e-9
    compare(kernel[LAUNCHES[kernel]], (RANDOM.normal(size=SIZE), np.zeros(SIZE)), (0,), tolerance)


@compiled
@pytest.mark.parametrize(
    "kernel", [tree, *(pytest.param(k, marks=pytest.mark.slow) for k in (planar, registers))], ids=lambda k: k.__name__
)
def test_compiled(kernel):
    compare(kernel[LAUNCHES[kernel]], (RANDOM.normal(size=SIZE), np.zeros(SIZE)), (0,))


@in_python
def test_numbers_of_places():
    """The old value of a counter selects where a thread stores: blocks run one after another."""
    given = RANDOM.normal(size=SIZE), np.zeros(SIZE), np.zeros(1, np.int64)
    compare(compacted[3, 8], given, (0,))


@in_python
def test_matrix_product():
    given = RANDOM.normal(size=(7, 6)), RANDOM.normal(size=(6, 8)), np.zeros((7, 8))
    compare(product[(2, 2), (4, 4)], given, (0, 1))


@in_python
def test_forall():
    a, b = RANDOM.normal(size=300), np.zeros(300)
    elements.forall(a.size)(a, b)
    np.testing.assert_array_equal(b, a * a)
    elements[1, 1](a, b[::-1])
    assert b[-1] == a[0] ** 2


@in_python
def test_second_order():
    def objective(a):
        b = ampi.numpy.zeros(SIZE)
        dynamic[3, 8, 0, 128](a, b)
        return ampi.numpy.sum(b * b)

    a, v = RANDOM.normal(size=SIZE), RANDOM.normal(size=SIZE)
    product = ampi.hvp(objective, a, v)
    up, down = (ampi.grad(objective)(a + h * v) for h in (1e-5, -1e-5))
    np.testing.assert_allclose(product, (up - down) / 2e-5, rtol=1e-6, atol=1e-6)


def test_loops_over_the_grid_stop_where_a_condition_does():
    text = elements.source(elements[5, 7], np.zeros(SIZE), np.zeros(SIZE))
    assert "prange(min(7 * blocks_x, a.shape[0]))" in text and "if" not in text
    assert "prange(a.size)" in strided.source(strided[2, 4], np.zeros(3), np.zeros(3)).replace("a.shape[0]", "a.size")


@compiled
def test_elements_that_a_thread_stores_are_its_own_in_the_adjoint(capsys):
    """Even if stored under a condition: the blocks of the adjoint run on threads."""
    text = updated.explain(updated[64, 8], np.ones(512), np.ones(512))
    assert "on threads: no two iterations touch an element that is written" in text


@in_python
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_numba_itself():
    of_numba = pytest.importorskip("numba.cuda")

    @of_numba.jit(device=True)
    def double(x):
        return 2.0 * x

    threadIdx = of_numba.threadIdx

    @ampi.kernel(target="cuda")
    def kernel(a, b):
        shared = of_numba.shared.array(8, numba.float64)
        i = of_numba.grid(1)
        shared[threadIdx.x] = double(a[i])
        of_numba.syncthreads()
        b[i] = shared[7 - threadIdx.x] * a[i]

    compare(kernel[3, 8], (RANDOM.normal(size=SIZE), np.zeros(SIZE)), (0,))


# --------------------------------------------------------------------------------------------- faster loops


@cuda.jit
def sums(a, total):
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        cuda.atomic.add(total, 0, a[i, j] ** 3)
        if a[i, j] > 0.5:
            cuda.atomic.sub(total, 1, a[i, j])


@in_python
def test_sums_in_registers():
    """A row of threads adds to an element once, and not at all if no thread does: then the element need not exist."""
    a = RANDOM.random((9, 7))
    launch = sums[(3, 2), (4, 4)]
    text = sums.source(launch, a, np.zeros(2))
    assert text.count("atomic_add") == 2
    assert all(line.startswith(8 * " ") and not line.startswith(16 * " ") for line in text.splitlines()
               if "atomic_add" in line)  # fmt: skip
    compare(launch, (a, np.ones(2)), (0, 1))
    launch(np.zeros((0, 7)), np.zeros(0))
    launch(np.full((3, 3), -1.0), np.zeros(1))


@in_python
def test_sums_into_memory_that_threads_read():
    """If the array shares memory with another argument, its elements are added to one by one."""

    @cuda.jit
    def growing(a, total):
        for i in range(a.size):
            cuda.atomic.add(total, 0, a[i])

    a = np.ones(4)
    growing[1, 1](a, a[:1])
    assert a[0] == 1 + 1 + 1 + 1 + 1 and list(a[1:]) == [1, 1, 1]
    a = np.array([1.0, 2.0])
    growing[1, 1](a[::-1], a[1:])  # 2 + 2 = 4, then 4 + 1
    assert list(a) == [1, 5]


@cuda.jit
def bordered(a, b):
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        value = a[i, j]
        if i > 0 and i < a.shape[0] - 1 and 2 <= j and j + 1 < a.shape[1]:
            value += a[i - 1, j] * a[i, j - 2] + a[i + 1, j] * a[i, j + 1]
        b[i, j] = value * value


@in_python
@pytest.mark.parametrize("shape", [(7, 9), (1, 1), (2, 3), (3, 4), (0, 5), (30, 2)])
def test_borders(shape):
    """Inner points have loops without conditions."""
    launch = bordered[(2, 3), (4, 4)]
    a = RANDOM.normal(size=shape)
    compare(launch, (a, np.zeros(shape)), (0,))
    text = bordered.source(launch, a, np.zeros(shape))
    assert text.count("if ") == 4 and text.count("b[") == 5
    adjoint = bordered.adjoint_source(launch, a, np.zeros(shape))
    assert "increments" in adjoint  # that of the inner points is in strips


@cuda.jit
def components(a, m, b):
    n, c = cuda.grid(2)
    if n < m.size and c < a.shape[0]:
        b[c, n] += a[c, n] * m[n] * m[n]


@in_python
@pytest.mark.parametrize("block", [(8, 1), (8, 3)])
def test_the_long_axis_is_distributed_to_threads(block):
    """The first axis of ``a`` has a few blocks only; the threads of both axes read ``m``."""
    launch = components[(70, 3 // block[1]), block]
    a, m, b = RANDOM.normal(size=(3, 550)), RANDOM.normal(size=550), RANDOM.normal(size=(3, 550))
    compare(launch, (a, m, b), (0, 1, 2))
    loops = [line.split("#")[0].split() for line in components.source(launch, a, m, b).splitlines() if " for " in line]
    assert [line[3][:6] for line in loops] == ["range(", "prange"]


@in_python
def test_local_arrays_are_allocated_once():
    @cuda.jit
    def local(a, b):
        i = cuda.grid(1)
        if i < a.size:
            x = cuda.local.array(5, float64)
            for k in range(5):
                x[k] = a[i] * k
            b[i] = x[i % 5]

    launch = local[3, 8]
    text = local.source(launch, np.ones(SIZE), np.zeros(SIZE))
    assert text.index("np.empty") < text.index("for i") or "prange" in text
    compare(launch, (RANDOM.normal(size=SIZE), np.zeros(SIZE)), (0,))


# --------------------------------------------------------------------------------------------- what is found


@cuda.jit
def racing(a, b):
    shared = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    shared[t] = a[t]
    b[t] = shared[7 - t]


@cuda.jit
def racing_blocks(a, b):
    b[cuda.threadIdx.x] = a[cuda.grid(1)]


@cuda.jit
def without_value(a, b):
    shared = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    if t < 7:
        shared[t] = a[t]
    cuda.syncthreads()
    b[t] = shared[t]


@cuda.jit
def outside(a, b):
    b[cuda.grid(1) + 20] = a[0]


FOUND = {
    racing: r"a race: thread \d of block 0 \w+ shared\[\d\], which thread \d \w+ in line \d+, and no barrier",
    racing_blocks: r"a race: thread 0 of block 1 writes b\[0\], which thread 0 of block 0 writes in line",
    without_value: r"thread 7 reads shared\[7\], which has no value yet\n +b\[t\] = shared\[t\]",
    outside: r"b\[24\]: index 24 is out of bounds",
}


@pytest.mark.parametrize("kernel", FOUND, ids=lambda kernel: kernel.__name__)
def test_full_checks(kernel, monkeypatch):
    monkeypatch.setattr(launches, "is_full", lambda: True)
    with pytest.raises(KernelError, match=FOUND[kernel]):
        kernel[2, 8](np.ones(SIZE), np.zeros(SIZE))


def diverging(a, b):
    if cuda.threadIdx.x < 3:
        cuda.syncthreads()
    b[cuda.threadIdx.x] = a[0]


def test_divergent_barriers_are_found():
    with pytest.raises(KernelError, match="not all threads of block 0 reach this barrier: thread 0 waits, thread 3"):
        interpret(diverging, (1, 1, 1), (8, 1, 1), 0, (np.ones(8), np.ones(8)))


# --------------------------------------------------------------------------------------------- what is refused


def loop_of_threads(a, b):
    for _ in range(cuda.threadIdx.x):
        cuda.syncthreads()


def swapped(a, b):
    b[0] = cuda.atomic.exch(a, 0, 1.0)


def compared(a, b):
    cuda.atomic.cas(a, 0, 1.0, 2.0)


def unknown(a, b):
    b[0] = cuda.match_any_sync(0xFFFFFFFF, 3)


def unheard_of(a, b):
    b[0] = cuda.foo(3)


def whole_grid(a, b):
    cuda.cg.this_grid()


def of_four(a, b):
    b[0] = cuda.grid(4)


def no_constant(a, b):
    s = cuda.shared.array(a.size, float64)
    s[0] = 1


def returning(a, b):
    return a[0]


def without_size(a, b):
    s = cuda.shared.array(0, float64)
    s[0] = a[0]


def too_large(a, b):
    s = cuda.shared.array((4, 1000), float64)
    t = cuda.shared.array(2200, float64)
    s[0, 0], t[0] = a[0], b[0]


REFUSED = {
    diverging: "not all threads of a block reach this barrier: they differ in the branch of line",
    loop_of_threads: "they differ in the loop of line",
    swapped: "cuda.atomic.exch on 'a', an array of float64: which thread comes first",
    compared: "cuda.atomic.cas on 'a'",
    unknown: "cuda.match_any_sync is not known to the differentiator",
    unheard_of: "has no attribute 'foo'",
    whole_grid: "split it into two launches",
    of_four: "cuda.grid takes 1, 2 or 3",
    no_constant: "the shape of cuda.shared.array is not a constant",
    returning: "a CUDA kernel returns nothing",
    without_size: r"gives it 0 bytes\n(.*\n)*  write the number of bytes: kernel\[blocks, threads, stream, bytes\]",
    too_large: r"49600 bytes of shared memory of constant size; a block of CUDA has 49152\n(.*\n)*  take a",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_refusals(function):
    with pytest.raises(KernelError, match=REFUSED[function]) as caught:
        cuda.jit(function)[1, 8](np.ones(8), np.ones(8))
    assert f"in kernel '{function.__name__}'" in str(caught.value)


@pytest.mark.parametrize(
    ("launch", "problem"),
    [
        (lambda a: elements(a, a), "is launched with a grid and a block"),
        (lambda a: elements[3], "1 numbers configure a launch"),
        (lambda a: elements[0, 8], "0 blocks; they are positive integers"),
        (lambda a: elements[1.5, 8], "1.5 blocks"),
        (lambda a: elements[1, (8, 8, 8, 8)], "threads; they are positive"),
        (lambda a: elements[1, 2048], "a block of 2048 x 1 x 1 threads"),
        (lambda a: elements[1, 8, 0, -3], "-3 bytes"),
        (lambda a: elements[1, 8](a), "missing a required argument: 'b'"),
        (lambda a: elements[1, 8](a, (a, a)), r"test_cuda.py:\d+: elements\(\): argument 'b' is a tuple"),
        (lambda a: elements[1, 8](a, {"b": a}), "argument 'b' is a dict"),
        (lambda a: elements[1, 8](a, None), "argument 'b' is a NoneType"),
        (lambda a: elements[1, 8](a.astype(object), a), r"'a' is an array of object.*\n  convert it: a.astype"),
        (lambda a: elements[1, 8](a, a.astype(np.float16)), r"'b' is an array of float16.*\n  convert it: b.astype"),
        (lambda a: elements[1, 8](np.array(["x"]), a), "'a' is an array of str32"),
        (lambda a: elements[2**31, 8], "a grid of 2147483648 x 1 x 1 blocks; CUDA allows 2147483647 x 65535 x 65535"),
        (lambda a: elements[(1, 70000), 8], "a grid of 1 x 70000 x 1 blocks"),
        (lambda a: cuda.grid(1), "cuda.grid can be used only in CUDA kernels: launch one"),
        (lambda a: cuda.pinned_array(a), "ampi.cuda has no 'pinned_array'"),
        (lambda a: ampi.kernel(target="tpu")(square.py_func), "target 'tpu'"),
    ],
)
def test_launches_that_do_not_fit(launch, problem):
    with pytest.raises(KernelError, match=problem):
        launch(np.ones(8))


@in_python
@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s > 2 else []) for s in range(60)])
def test_random(seed):
    random_cuda.examine(seed)

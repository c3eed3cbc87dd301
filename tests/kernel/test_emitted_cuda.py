"""Emitted CUDA source: compared with the lowered form, interpreted and in Numba's simulator, and compiled to PTX if
numba-cuda is installed."""

import math
import pathlib
import re

import emitted_cuda
import numpy as np
import ptx_budgets
import pytest
import test_cuda
from numba import complex128, float64, int64
from uncompiled import compiled, in_a_process, in_python, run_in_python

import ampi.cuda as cuda
from ampi import KernelError
from ampi.kernel.cuda import device_source, emission, spaces, together

RANDOM = np.random.default_rng(8)
SIZE = 24
HERE = pathlib.Path(__file__).parent


@compiled
def test_in_python(request):
    """Run most of these tests in a separate process without compilation, which would take far longer."""
    run_in_python(__file__, request)


@cuda.jit
def shared_number(a, b, scale, power):
    """Scalars whose adjoints are sums over all threads, and a register that lives across a barrier."""
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    x = a[i % a.size] * scale
    shared[t] = math.exp(-x * x)
    cuda.syncthreads()
    if i < b.size:
        b[i] = shared[7 - t] * x**power


@cuda.jit
def saved(a, b, n):
    """The values that the adjoint of a loop needs are in a device buffer."""
    i = cuda.grid(1)
    if i < a.size:
        x = a[i]
        for k in range(n):
            x = x * math.sin(x) + a[(i + k) % a.size]
        b[i] = x


@cuda.jit
def rounds(a, b, n):
    """Barriers in a loop of any length: values of all threads are saved."""
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    shared[t] = a[i % a.size]
    for _ in range(n):
        cuda.syncthreads()
        x = shared[(t + 1) % 8] * shared[t]
        cuda.syncthreads()
        shared[t] = math.sin(x)
    if i < b.size:
        b[i] = shared[t]


@cuda.jit
def left_early(a, b):
    i = cuda.grid(1)
    x = a[i % a.size]
    for k in range(5):
        x = x * x + 0.1 * k
        if x > 1.5:
            break
    if i < b.size:
        b[i] = x


@cuda.jit
def set_in_loops(a, b):
    """Numbers that are first set inside loops and branches, and read behind them."""
    i = cuda.grid(1)
    x = a[i % a.size]
    while True:
        x = x * 0.7
        y = x * x
        if y < 0.1:
            break
    if i < b.size:
        z = x * y
    for k in range(3):
        if k == 0:
            before = x
        else:
            y += before
            before = x * k
    if i < b.size:
        b[i] = z * y


@cuda.jit
def searched(a, b):
    """A bisection saves nothing: its numbers have no derivatives."""
    i = cuda.grid(1)
    if i >= b.size:
        return
    low, high = 0, a.size - 1
    while high - low > 1:
        middle = (low + high) // 2
        if a[middle] > 0.1 * i:
            high = middle
        else:
            low = middle
    b[i] = a[low] * a[high]


@cuda.jit
def factorised(a, b):
    """Loops whose length depends on counters around them: a Cholesky factor, and a substitution backwards."""
    i = cuda.grid(1)
    if i >= b.size // 3:
        return
    low = cuda.local.array((3, 3), float64)
    x = cuda.local.array(3, float64)
    for j in range(3):
        for k in range(j + 1):
            total = a[(3 * i + j) % a.size] * a[(3 * i + k) % a.size] + (4.0 if j == k else 0.0)
            for m in range(k):
                total -= low[j, m] * low[k, m]
            low[j, k] = math.sqrt(total) if j == k else total / low[k, k]
    for j in range(2, -1, -1):
        x[j] = b[3 * i + j]
        for k in range(2, j, -1):
            x[j] -= low[k, j] * x[k]
        x[j] /= low[j, j]
    for j in range(3):
        b[3 * i + j] = x[j]


@cuda.jit
def eliminated(a, b):
    """Gaussian elimination by the threads of a block, with barriers between its steps."""
    shared = cuda.shared.array((4, 4), float64)
    t = cuda.threadIdx.x
    for j in range(4):
        shared[t, j] = a[(4 * t + j) % a.size] + (5.0 if t == j else 0.0)
    cuda.syncthreads()
    for k in range(3):
        if t > k:
            factor = shared[t, k] / shared[k, k]
            for j in range(k, 4):
                shared[t, j] -= factor * shared[k, j]
        cuda.syncthreads()
    b[cuda.grid(1)] = shared[t, 3] * shared[t, t]


@cuda.jit
def grown(a, b):
    """Loops of unknown length, whose values the adjoint saves."""
    i = cuda.grid(1)
    x = a[i % a.size]
    while x < 5.0:
        x = x * x + 1.25
        m = 0
        while m * m < i % 4:
            x += 0.1 * math.sin(x)
            m += 1
    if i < b.size:
        b[i] = x


@cuda.jit
def over_grid(a, b, total):
    i = cuda.grid(1)
    x = 0.0
    while i < a.size:
        x += a[i] * a[i] * math.cos(x)
        b[i] = b[i] * x
        i += cuda.gridsize(1)
    cuda.atomic.add(total, 0, x)


@cuda.jit
def relaxed(a, b):
    """A loop of unknown length around barriers."""
    shared = cuda.shared.array(8, float64)
    t = cuda.threadIdx.x
    shared[t] = a[cuda.grid(1)] ** 2 + 1.0
    cuda.syncthreads()
    while shared[0] > 0.1:
        x = 0.3 * shared[t] + 0.2 * shared[(t + 1) % 8]
        cuda.syncthreads()
        shared[t] = x * math.cos(0.1 * x)
        cuda.syncthreads()
    b[cuda.grid(1)] = shared[t]


@cuda.jit
def extremes(a, b, top, count):
    """The first thread that has the largest value wins; it may have it several times, and others may have it, too."""
    i = cuda.grid(1)
    for k in range(3):
        x = a[(i + 5 * k) % a.size]
        cuda.atomic.max(top, (i % 2, 0), max(x, 0.25) * x)
        if x < 0.5:
            cuda.atomic.min(top, (0, 1), b[i])
    cuda.atomic.max(count, 0, i % 5)


@cuda.jit
def planes(a, top):
    i, j = cuda.grid(2)
    if i < a.shape[0] and j < a.shape[1]:
        cuda.atomic.max(top, 0, abs(a[i, j]))


@cuda.jit
def after_barriers(a, b):
    """A tree in each block, whose result is compared with those of other blocks, in a loop of unknown length."""
    shared = cuda.shared.array(8, float64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    x = a[i]
    while x < 4.0:
        x = 1.5 * x * x + 1.0
    shared[t] = x * a[i]
    cuda.syncthreads()
    half = 4
    while half > 0:
        if t < half:
            shared[t] = max(shared[t], shared[t + half])
        cuda.syncthreads()
        half //= 2
    if t == 0:
        cuda.atomic.max(b, 0, shared[0])


@cuda.jit
def between_threads(a, b, n):
    """Maxima and minima in shared memory, some of them equal, also in a loop around barriers."""
    shared = cuda.shared.array((2, 3), float64)
    most = cuda.shared.array(1, int64)
    t, i = cuda.threadIdx.x, cuda.grid(1)
    if t < 6:
        shared[t // 3, t % 3] = 0.125 * t
    if t == 0:
        most[0] = 0
    cuda.syncthreads()
    cuda.atomic.max(shared, (0, t % 2), a[i] * a[i])
    cuda.atomic.max(most, 0, t % 5)
    if t > 2:
        cuda.atomic.min(shared, (1, 2), a[i])
    cuda.syncthreads()
    x = shared[0, t % 3] * a[i] + most[0]
    for _ in range(n):
        cuda.syncthreads()
        if i < 20:
            cuda.atomic.max(shared, (1, 0), 0.5 * x * x)
        cuda.syncthreads()
        x = 0.5 * shared[1, 0] + 0.25 * x
    b[i] = x * shared[1, 2]


@cuda.jit
def named(blocks_x, shared_bytes, griddim, stream, length, block_winner):
    """Arguments with names that generated sources use."""
    i = cuda.grid(1)
    x = blocks_x[i]
    while x < length:
        x = x * x + 1.2
    shared_bytes[i] = x * griddim[i] * stream
    cuda.atomic.max(block_winner, 0, x)


@cuda.jit
def single(a, b):
    """In blocks of one thread, a loop may save values and change a number."""
    i = cuda.blockIdx.x
    x = a[i]
    m = 0
    while m < 2 and x < 3.0:
        j = 0
        while j * j < m + 1:
            x += 0.1 * x * x
            j += 1
        m += 1
    b[i] = b[i] * x


TIES = np.round(RANDOM.uniform(-1.0, 1.0, SIZE), 1)
CASES = {
    **{
        kernel: (launch, lambda: (RANDOM.normal(size=SIZE), RANDOM.normal(size=SIZE)))
        for kernel, launch in test_cuda.LAUNCHES.items()
    },
    grown: ((3, 8), lambda: (RANDOM.normal(size=SIZE), np.zeros(SIZE))),
    over_grid: ((2, 4), lambda: (RANDOM.normal(size=SIZE), RANDOM.normal(size=SIZE), np.zeros(1))),
    relaxed: ((3, 8), lambda: (RANDOM.normal(size=SIZE), np.zeros(SIZE))),
    extremes: ((3, 8), lambda: (TIES.copy(), TIES[::-1].copy(), np.zeros((2, 2)), np.zeros(1, np.int64))),
    between_threads: ((3, 8), lambda: (TIES.copy(), np.zeros(SIZE), 2)),
    named: ((3, 8), lambda: (*(RANDOM.normal(size=SIZE) for _ in range(3)), 0.5, 3.0, np.zeros(1))),
    single: ((SIZE - 2, 1), lambda: (RANDOM.normal(size=SIZE), RANDOM.normal(size=SIZE))),
    planes: (((2, 3), (4, 2)), lambda: (np.round(RANDOM.normal(size=(7, 6)), 1).T.copy().T, np.zeros(1))),
    after_barriers: ((3, 8), lambda: (TIES.copy(), np.full(1, 3.0))),
    test_cuda.product: (
        ((2, 2), (4, 4)),
        lambda: (RANDOM.normal(size=(7, 6)), RANDOM.normal(size=(6, 8)), np.zeros((7, 8))),
    ),
    shared_number: ((3, 8), lambda: (RANDOM.uniform(0.5, 2.0, SIZE), np.zeros(SIZE - 1), 0.7, 2.0)),
    factorised: ((2, 4), lambda: (RANDOM.normal(size=SIZE), RANDOM.normal(size=18))),
    eliminated: ((2, 4), lambda: (RANDOM.normal(size=SIZE), np.zeros(8))),
    saved: ((4, 8), lambda: (RANDOM.normal(size=SIZE), np.zeros(SIZE), 3)),
    rounds: ((2, 8), lambda: (RANDOM.normal(size=SIZE), np.zeros(SIZE), 3)),
    set_in_loops: ((3, 8), lambda: (RANDOM.normal(size=SIZE), np.zeros(SIZE))),
    left_early: ((3, 8), lambda: (RANDOM.normal(size=SIZE), np.zeros(SIZE))),
    searched: ((3, 8), lambda: (np.sort(RANDOM.normal(size=SIZE)), np.zeros(SIZE - 2))),
}
TOLERANCES = {test_cuda.tile: 1e-5}  # float32 in shared memory


@in_python
@pytest.mark.parametrize(
    "kernel",
    [pytest.param(k, marks=pytest.mark.slow if k is test_cuda.product else [], id=k.__name__) for k in CASES],
)
def test_emitted(kernel):
    """The interpreter also finds races in emitted source."""
    launch, given = CASES[kernel]
    emitted_cuda.compare(kernel[launch], given(), TOLERANCES.get(kernel, 1e-12), order=5)


@in_python
@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s > 1 else []) for s in range(40)])
def test_random(seed):
    emitted_cuda.examine(seed)


@compiled
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_simulator():
    """Numba's simulator runs emitted source: it uses no names that only ampi knows."""
    pytest.importorskip("numba.cuda")
    text = in_a_process(HERE / "emitted_cuda.py", 6, 2, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert text.startswith("2 compared")


@compiled
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_launches_before_a_derivative_in_the_simulator():
    """Those that find winners of maxima, and lengths of loops."""
    pytest.importorskip("numba.cuda")
    names = "largest", "extremes", "between_threads", "grown", "over_grid", "after_barriers"
    text = in_a_process(HERE / "emitted_cuda.py", *names, NUMBA_ENABLE_CUDASIM="1", NUMBA_DISABLE_JIT="1")
    assert sorted(text.split()[::2]) == sorted(names)


BREAK = {
    "no barriers": (together.Used, "needs_barrier", lambda used, after: False),
    "plain additions": (device_source.Writer, "is_plain", lambda writer, name, phase: True),
    "elements of all owners": (spaces.Spaces, "owning_axes", lambda known, accesses, everywhere: (0,)),
    "registers for shared arrays": (
        spaces.Spaces,
        "_is_register",
        lambda known, s, accesses: known.constant(s.shape[0]) == known.geometry.threads,
    ),
}


@in_python
@pytest.mark.slow
@pytest.mark.parametrize("what", BREAK)
def test_what_is_broken_is_noticed(what, monkeypatch):
    """Random kernels find mistakes in decisions on barriers, atomic additions and memory of arrays."""
    monkeypatch.setattr(*BREAK[what])
    with pytest.raises((AssertionError, KernelError)):
        for seed in range(10):
            emitted_cuda.examine(seed)


def test_text(capsys):
    """The source and ``explain`` describe arguments and resources."""
    given = np.ones(SIZE), np.zeros(SIZE), 0.5, 2.0
    text = shared_number.adjoint_source(shared_number[3, 8], *given, target="cuda")
    assert "shared_number_adjoint(griddim, a, b, scale, power, a_bar, b_bar)" in text
    explained = shared_number.explain(shared_number[3, 8], *given, target="cuda")
    resources = r"(\d+ registers, \d+ bytes spilled \(sm_80\)|registers not known \(.* is not installed: pip .*\)), "
    assert re.search(resources, explained)
    title, first, _, *facts = re.sub(resources, "", explained).splitlines()
    assert title.startswith("shared_number (") and "test_emitted_cuda.py:" in title and "blocks of 8 x 1 x 1" in first
    assert "\n".join(facts) in text and capsys.readouterr().out == explained + "\n"
    assert "by the thread that stores the element in the kernel" not in explained
    assert re.search(r"a_bar: atomic additions \(line \d+\): several threads may .*, as a_bar\[", explained)
    alone = shared_number.explain(shared_number[3, 8], *given, target="cuda", active="scale")
    assert "a_bar" not in alone
    largest = test_cuda.largest
    explained = largest.explain(largest[3, 8], np.ones(SIZE), np.zeros(SIZE), target="cuda")
    assert "b: atomic maxima (line" in explained and "b: atomic minima (line" in explained
    assert re.search(
        r"b_bar: plain stores .*: by the thread that stores the element in the kernel, as b_bar\[", explained
    )
    assert "a_bar: atomic additions (line" in text and "b_bar: plain stores (line" in text
    assert "x_of_threads = " in text, "a register that lives across a barrier is no array"
    assert text.count("cuda.shared.array(8, np.float64)") == 2
    compile(text, "source", "exec")
    assert "def shared_number_kernel(" in shared_number.source(shared_number[3, 8], *given, target="cuda")
    assert "def shared_number_tangent(" in shared_number.tangent_source(shared_number[3, 8], *given, target="cuda")
    tree = test_cuda.tree
    text = tree.adjoint_source(tree[4, 8], np.ones(SIZE), np.zeros(SIZE), target="cuda")
    assert "while" not in text, "the strides of the tree are constants"
    only = shared_number.adjoint_source(shared_number[3, 8], *given, target="cuda", active=["scale"])
    assert "a_bar" not in only and "scale_bar_total" in only


@cuda.jit
def below(a, b):
    i = cuda.grid(1)
    b[i] = a[math.floor(0.4 * i)] + a[math.ceil(0.4 * i)]


def test_what_the_compiler_needs():
    """numba-cuda's ``math.floor`` returns a float; a kernel's buffers have the axes with which they are indexed."""
    text = below.source(below[1, 8], np.ones(8), np.zeros(8), target="cuda")
    assert "a[int(math.floor(" in text and "int(math.ceil(" in text
    made = emission.emitted(rounds[2, 8], (np.ones(SIZE), np.zeros(SIZE), 3), "adjoint")
    assert [kind.ndim for kernel in made.facts for _, _, kind in kernel.buffers] == [3, 3]
    (argument_types,) = made.kernels.values()
    assert [kind.ndim for kind in argument_types[-2:]] == [3, 3]


def of_complex(a, b):
    total = cuda.shared.array(1, complex128)
    if cuda.threadIdx.x == 0:
        total[0] = a[0] * 1j
    cuda.syncthreads()
    b[cuda.grid(1)] = (total[0] * a[cuda.grid(1)]).imag


def of_order(a, b):
    b[cuda.grid(1)] = cuda.atomic.add(a, 0, 1.0)


def of_two_kinds(a, b):
    cuda.atomic.max(b, cuda.grid(1) % 2, a[cuda.grid(1)])
    cuda.atomic.min(b, 0, a[cuda.grid(1)])


def read_as_well(a, b):
    cuda.atomic.max(b, 0, a[cuda.grid(1)])
    a[cuda.grid(1)] = b[1]


def of_gamma(a, b):
    b[cuda.grid(1)] = math.lgamma(a[cuda.grid(1)])


def in_a_loop(a, b):
    shared = cuda.shared.array(1, float64)
    if cuda.threadIdx.x == 0:
        shared[0] = 0.0
    cuda.syncthreads()
    for k in range(cuda.threadIdx.x, a.size, cuda.blockDim.x):
        cuda.atomic.max(shared, 0, a[k])
    cuda.syncthreads()
    b[cuda.grid(1)] = shared[0]


REFUSED = {
    of_complex: "a sum of complex numbers over the threads of a block, in source for a GPU",
    of_order: "the result of an atomic operation, in source for a GPU: .*which thread came first",
    in_a_loop: r"cuda.atomic.max of shared memory in a loop, .*\n(.*\n)* *take the max in a variable first",
    of_two_kinds: "maxima and minima in the same elements of 'b', in source for a GPU: their order",
    read_as_well: r"'b' is used in another way as well as by cuda.atomic.max",
    of_gamma: r"digamma\(\) cannot be called in source for a GPU",
}


@pytest.mark.parametrize("function", REFUSED, ids=lambda function: function.__name__)
def test_refusals(function):
    kernel = cuda.jit(function)
    with pytest.raises(KernelError, match=REFUSED[function]) as caught:
        kernel.adjoint_source(kernel[1, 8], np.ones(8), np.ones(8), target="cuda")
    assert f"in kernel '{function.__name__}'" in str(caught.value)
    kernel.adjoint_source(kernel[1, 8], np.ones(8), np.ones(8))  # it has one on the CPU


def test_other_targets():
    with pytest.raises(KernelError, match="target 'hip'"):
        saved.adjoint_source(saved[1, 8], np.ones(8), np.ones(8), 3, target="hip")


@cuda.jit
def of_all_threads(a, b):
    i = cuda.grid(1)
    if i < b.size:
        b[i] = b[i] * a[0] + a[1] * a[a.size - 1]


@in_python
def test_elements_that_all_threads_read():
    """Their adjoints are sums over all threads, added to the elements after the launch."""
    a, b = RANDOM.normal(size=5), RANDOM.normal(size=SIZE)
    emitted_cuda.compare(of_all_threads[3, 8], (a, b))
    text = of_all_threads.adjoint_source(of_all_threads[3, 8], a, b, target="cuda")
    assert "a_bar: sums over all threads, added after the launch" in text
    assert text.count("added(a_bar, ") == 3 and "atomic.add(a_bar" not in text


@compiled
@pytest.mark.slow
@pytest.mark.parametrize("name", ptx_budgets.names())
def test_registers(name):
    """No kernel, adjoint or tangent needs more registers, or spills more, than its budget."""
    reason = ptx_budgets.missing()
    if reason:
        pytest.skip(reason)
    budgets = ptx_budgets.stored()
    for kernel, numbers in ptx_budgets.measured(name).items():
        assert not ptx_budgets.is_over(numbers, budgets[kernel]), (kernel, numbers, budgets[kernel])


def test_budgets_are_stored():
    known = {name.partition(" ")[0] for name in ptx_budgets.stored()}
    assert known == set(ptx_budgets.names())

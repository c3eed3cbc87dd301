"""CUDA kernels in which several threads store the same value to one element: one adjoint, or a warning."""

import linecache
import random
import warnings

import guarded_device
import numpy as np
import pytest
from numba import float64
from uncompiled import compiled, in_python, run_in_python

import ampi
import ampi.cuda as cuda
import ampi.numpy as anp
from ampi import ActivityWarning
from ampi.device import backends
from ampi.kernel.cuda import owners

INDICES = (
    "0 k blockIdx threadIdx i i//2 i%3 2*i+1 b.size-1-i threadIdx//2 4*blockIdx+1 j j//3 n i+n "
    "blockIdx+threadIdx c c//2 n//2"
).split()
CONDITIONS = (
    "True", "True", "i < b.size", "threadIdx == 0", "i % 2 == 0", "i == n", "blockIdx == 0", "n < 7", "i < 3",
    "threadIdx == 3", "i < b.size and i % 2 == 1", "i < n and n < 30",
)  # fmt: skip
LAUNCHES = ((1, 1), (1, 4), (2, 4), (3, 8), (2, 1), (2, (4, 2)))


def drawn(seed):
    """A kernel: its text, launch, and the number of its last argument."""
    draw = random.Random(seed)
    lines = [
        "def kernel(a, b, n):",
        "    i, j, threadIdx, blockIdx = cuda.grid(1), 3 * cuda.grid(1) + 1, cuda.threadIdx.x, cuda.blockIdx.x",
        "    c = i + 1",
    ]
    for _ in range(draw.randint(1, 2)):
        index, condition = draw.choice(INDICES), draw.choice(CONDITIONS)
        kind = draw.random()
        start = len(lines)
        if kind < 0.2 and index != "k":
            lines += ["s = cuda.shared.array(80, float64)", f"s[{index}] = a[{index}]", "cuda.syncthreads()"]
            lines += [f"if {condition}:", f"    b[{index}] = s[{index}] * a[{index}]"]
        elif index == "k":
            lines += ["for k in range(3):", f"    if {condition}:", "        b[k] = a[k] * a[k]"]
        elif kind < 0.4:
            lines += [f"if not ({condition}):", "    return", f"b[{index}] = a[{index}] * a[{index}]"]
        else:
            lines += [f"if {condition}:", f"    b[{index}] = a[{index}] * a[{index}]"]
        lines[start:] = ["    " + line for line in lines[start:]]
        if kind < 0.4:
            break  # a shared array has one name, and a thread that has returned does nothing else
    return "\n".join(lines), draw.choice(LAUNCHES), draw.randint(2, 9)


def loaded(text):
    """The kernel of a text."""
    name = f"<owners {len(linecache.cache)}>"
    linecache.cache[name] = len(text), None, text.splitlines(True), name
    space = {"cuda": cuda, "float64": float64}
    exec(compile(text, name, "exec"), space)
    return cuda.jit(space["kernel"])


class Recorder:
    """An array that records where threads store, by block."""

    def __init__(self, size, owner, log):
        self.size, self.owner, self.log = size, owner, log

    def __getitem__(self, index):
        return 1.0

    def __setitem__(self, index, value):
        self.log.setdefault((self.owner(), index), set()).add(self.thread())


def is_shared_out(text, launch, n):
    """Return whether two threads store to one element; each thread runs alone, in Python."""
    from types import SimpleNamespace

    grid, block = launch
    x, y = block if isinstance(block, tuple) else (block, 1)
    log, at = {}, [None]
    made = lambda owner: Recorder(80, owner, log)
    Recorder.thread = lambda self: at[0]
    for bx in range(grid):
        for t in range(x * y):
            at[0] = bx, t
            place = SimpleNamespace(
                grid=lambda _, bx=bx, t=t: bx * x + t % x,
                threadIdx=SimpleNamespace(x=t % x),
                blockIdx=SimpleNamespace(x=bx),
                shared=SimpleNamespace(array=lambda *_, bx=bx: made(lambda: ("s", bx))),
                syncthreads=lambda: None,
            )
            space = {"cuda": place, "float64": None}
            exec(text, space)
            space["kernel"](made(lambda: "a"), made(lambda: "b"), n)
    return any(len(threads) > 1 for threads in log.values())


def examine(seed, on_device=False):
    """Compare the gradient of a random kernel with differences; returns whether a warning was issued."""
    text, launch, n = drawn(seed)
    kernel = loaded(text)
    a = np.random.default_rng(seed).uniform(0.5, 1.5, 80)
    w = np.linspace(1.0, 2.0, 80)

    def loss(x):
        if on_device:
            d, b = cuda.to_device(x), cuda.to_device(np.zeros(80))
            kernel[launch](d, b, n)
            return anp.sum(b.copy_to_host() * w)
        b = anp.zeros(80)
        kernel[launch](x, b, n)
        return anp.sum(b * w)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        gradient = ampi.grad(loss)(a)
    told = [str(c.message) for c in caught if c.category is ActivityWarning]
    if any("store to the same element of" in t for t in told):
        text = text.replace("n < 7", "n < 30")  # conditions on numbers are taken to hold, and limits to be large
        numbers = (20, n) if "i == n" not in text else range(1, 20)
        assert any(is_shared_out(text, launch, k) for k in numbers), f"seed {seed}\n{text}\n{launch}"
        return True
    differences = np.array([(loss(a + e) - loss(a - e)) / 2e-6 for e in 1e-6 * np.eye(80)])
    np.testing.assert_allclose(gradient, differences, rtol=1e-6, atol=1e-7, err_msg=f"seed {seed}\n{text}\n{launch}")
    return False


@compiled
def test_in_python(request):
    """Run most of these tests in a separate process without compilation, which would take far longer."""
    run_in_python(__file__, request)


@in_python
def test_random():
    told = [examine(seed) for seed in range(40)]
    assert 5 < sum(told) < 30


@in_python
@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 200))
def test_many(first):
    for seed in range(first, first + 200):
        examine(seed)


@in_python
@pytest.mark.parametrize("first", [0, pytest.param(1000, marks=pytest.mark.slow)])
def test_on_a_device(first):
    before = backends.choose(guarded_device.Guarded())
    try:
        for seed in range(first, first + (10 if first == 0 else 200)):
            examine(seed, on_device=True)
    finally:
        backends.choose(before)


def without_effect(a, b):
    if not True:
        b[0] = a[0]


def test_without_effect():
    """A kernel of which nothing is left has a source for a GPU as well."""
    kernel = cuda.jit(without_effect)
    for text in (kernel.source, kernel.adjoint_source):
        assert "without_effect" in text(kernel[2, 4], np.ones(3), np.ones(3), target="cuda")


@in_python
def test_what_is_broken_is_noticed(monkeypatch):
    monkeypatch.setattr(owners, "with_owners", lambda body, *more: (body, []))
    from ampi.kernel.cuda import lowering

    monkeypatch.setattr(lowering, "with_owners", owners.with_owners)
    with pytest.raises(AssertionError):
        for seed in range(10):
            examine(seed)


def one_element(a, b):
    b[0] = a[0] * a[0]


@compiled
def test_compiled():
    kernel = cuda.jit(one_element)
    a = np.arange(2.0, 5.0)

    def loss(x):
        b = anp.zeros(3)
        kernel[64, 32](x, b)
        return anp.sum(b)

    np.testing.assert_array_equal(ampi.grad(loss)(a), [4.0, 0.0, 0.0])

"""Adjoints on several threads: the same results in every form of a loop, and the reasons for the forms."""

import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numba
import numpy as np
import pytest
from kernel_cases import CASES
from kernel_checks import Check, activity_patterns, kernel_ir, load, make_arguments, without
from patience import patience

import ampi
from ampi import KernelError
from ampi.kernel import pipeline
from ampi.kernel.codegen import emit
from ampi.kernel.ir.remarks import Kind
from ampi.kernel.options import Options
from ampi.kernel.runtime import cache, threads
from ampi.kernel.runtime.noalias import SeparateArrays

APART = "on threads: no two"
DISTINCT = "on threads if"
SHARED = "iterations touch the same elements of"
LOOPS = {"axpy": APART, "guarded": APART, "gather": DISTINCT, "scatter_add": APART, "permuted": APART,
         "two_dimensions": SHARED, "dot": APART, "norm_then_scale": APART, "local_array": APART,
         "sparse_product": SHARED, "n_body": SHARED, "while_in_loop": APART}  # fmt: skip


def threaded(name, **options):
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[0]
    return Check(CASES[name].function, arguments, active, Options(threads=True, **options))


@pytest.mark.parametrize("name", LOOPS)
def test_the_form_of_a_loop_and_its_reason(name):
    check = threaded(name)
    assert any(LOOPS[name] in r.sentence for r in check.adjoint.remarks), check.adjoint.remarks
    assert "prange" in emit.source(check.adjoint.function)
    check.compare(1e-12)


COMPILED = ("gather", "scatter_add", "dot", "local_array")  # of each form


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in COMPILED else [pytest.mark.slow]) for name in LOOPS]
)
def test_threads_give_the_same(name):
    check = threaded(name)
    array_seeds, result_seeds = check.seeds()
    expected = check.adjoints(array_seeds, result_seeds)
    check.run_adjoint = load(check.adjoint.function, jit=True, parallel=True)
    before = numba.get_num_threads()
    numba.set_num_threads(min(2, before))
    try:
        found = check.adjoints(array_seeds, result_seeds)
    finally:
        numba.set_num_threads(before)
    for n in expected:
        np.testing.assert_allclose(found[n], expected[n], rtol=1e-13, atol=1e-13)


def flat(x, out, n):
    for i in numba.prange(out.shape[0]):
        for j in range(n):
            out[i] += x[i * n + j] * x[i * n + j]


def flat_in_three(x, out, m, n):
    for i in numba.prange(out.shape[0]):
        for j in range(n):
            for k in range(m):
                out[i] += x[(i * n + j) * m + k] * x[(i * n + j) * m + k]


def flat_of_matrix(x, out):
    n = out.shape[1]
    for i in numba.prange(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = x[i * n + j] * x[i * n + j]


def flat_backwards(x, out, n):
    for i in numba.prange(out.shape[0]):
        for j in range(n - 1, -1, -1):
            out[i] += x[i * n + j] * x[i * n + j]


def flat_and_one_more(x, out, n):
    for i in numba.prange(out.shape[0] - 1):
        for j in range(n + 1):
            out[i] += x[i * n + j] * x[i * n + j]


def flat_of_unknown_length(x, out, n, m):
    for i in numba.prange(out.shape[0]):
        for j in range(m):
            out[i] += x[i * n + j] * x[i * n + j]


def extremes(x, out):
    low, high = 1e20, 0.0
    for i in numba.prange(x.shape[0]):
        low = min(low, x[i] * x[i])
        high = max(x[i] * x[i], high)
        out[i] = x[i] * x[i]
    return low * high


def whole_arrays(u, new):
    new[1:-1] = u[1:-1] * u[2:] + u[:-2]
    return np.sum(new * u)


@pytest.mark.parametrize(
    ("kernel", "more", "form"),
    [
        (flat, [np.ones(6), 4], APART),
        (flat_in_three, [np.ones(2), 4, 3], APART),
        (flat_of_matrix, [np.ones((6, 4))], APART),
        (flat_backwards, [np.ones(6), 4], APART),
        (flat_and_one_more, [np.ones(6), 4], SHARED),
        (flat_of_unknown_length, [np.ones(6), 4, 4], SHARED),
        (whole_arrays, [np.ones(24)], APART),
        (extremes, [np.ones(24)], "on threads"),
    ],
)
def test_the_form_of_a_loop_of_its_own_kind(kernel, more, form):
    x = np.random.default_rng(5).uniform(0.5, 1.5, 24)
    names = kernel.__code__.co_varnames
    check = Check(kernel, [x, *more], names[:2], without("gather", threads=True))
    on_threads = [r.sentence for r in check.adjoint.remarks if r.kind is Kind.PARALLEL]
    assert on_threads and all(form in f or "blocks" in f for f in on_threads), check.adjoint.remarks
    check.compare(1e-10)


def test_loops_that_search_an_extreme_are_vectorised(monkeypatch, tmp_path):
    @ampi.kernel(fastmath=True)
    def least(x, y):
        s = 1e20
        for i in range(x.shape[0]):
            s = min(s, x[i] / y[i])
        return s

    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    x, y = np.linspace(2, 1, 50), np.ones(50)
    assert least(x, y) == 1.0
    (text,) = least.serial.inspect_llvm().values()
    assert "llvm.minnum.v" in text or "vector.reduce.fmin" in text


@ampi.kernel(parallel=True, fastmath=True)
def rates(x, y, c):
    low = 1e20
    for i in numba.prange(x.shape[0]):
        y[i] = x[i] / (c[i] + 1.0) if c[i] > 0.0 else x[i]
        low = min(low, y[i])
    return low


def test_parts_are_vectorised(cache_folder):
    """No part may keep Numba's check for indices that count from the end: see `with_unsigned_indices`."""
    x, y, c = np.ones(50), np.ones(50), np.ones(50)
    rates.contract(rates.types_of((x, y, c)), frozenset("xyc")).adjoint  # noqa: B018
    (path,) = cache_folder.glob("rates_adjoint_*.py")
    module = cache.load_module(path, path.read_text())
    part = numba.njit(fastmath=True, error_model="numpy", pipeline_class=SeparateArrays)(
        getattr(module, module.PARTS[-1])
    )
    names = part.py_func.__code__.co_varnames[: part.py_func.__code__.co_argcount]
    numbers = {"begin": 0, "end": 50}
    part(*(numbers.get(n.rstrip("_0123456789"), -1 if "from" in n else 0.5 if n == "low_bar" else x) for n in names))
    (text,) = part.inspect_llvm().values()
    assert re.search(r"fdiv [a-z ]*<", text)


def test_without_threads_nothing_is_parallel():
    arguments = make_arguments("axpy")
    derivative = pipeline.build_adjoint(kernel_ir(CASES["axpy"].function, arguments), {"x"})
    assert "prange" not in emit.source(derivative.function)


@ampi.kernel(parallel=True)
def smoothed(x):
    s = 0.0
    for i in numba.prange(1, x.shape[0] - 1):
        s += x[i - 1] * x[i + 1]
    return s


def test_adjoints_with_arrays_of_each_threads_own_are_kept_on_disk(monkeypatch, tmp_path):
    monkeypatch.setattr(cache, "folder", lambda: tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error", numba.NumbaWarning)
        ampi.grad(smoothed)(np.arange(9.0))
    assert list(tmp_path.glob("smoothed_adjoint_*.nbc"))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize(
    ("values", "places", "found"),
    [
        ([5.0, 3.0, 5.0, 3.0], [-1, 4, -1, 8], (4, 8)),  # parts without iterations keep the value from before
        ([5.0, 5.0], [-1, -1], (-1, -1)),
        ([5.0, 7.0], [2, 4], (-1, 2)),  # as large as the value from before
    ],
)
def test_places_of_extremes_are_those_of_a_serial_loop(values, places, found, last):
    parts, places = np.array(values), np.array(places)
    assert threads.place_of_smallest.py_func(5.0, parts, places, last) == found[last]
    assert threads.place_of_largest.py_func(-5.0, -parts, places, last) == found[last]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("arguments", [["12"], ["200", "all"]])
def test_every_form_holds_under_eight_threads(arguments):
    """See ``hammer.py``, which runs in a separate process to set the number of threads."""
    environment = {**os.environ, "NUMBA_NUM_THREADS": "8"}
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, str(here / "hammer.py"), *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=patience(300),
    )
    assert done.returncode == 0, done.stdout + done.stderr


class TestChoice:
    """The choices of `threads.choose`, for costs of (operation, launch, own element, atomic addition)."""

    @pytest.mark.parametrize(
        ("trips", "elements", "apart", "added", "form"),
        [
            (10, 0, True, False, threads.ALONE),  # too short to pay for the threads
            (100_000, 0, True, False, threads.APART),
            (100_000, 0, False, False, threads.ALONE),
            (100_000, 1_000, False, True, threads.OWN),
            (100_000, 10_000_000, False, True, threads.ATOMIC),
            (1_000, 10_000_000, False, True, threads.ALONE),
        ],
    )
    def test_is_the_quickest(self, trips, elements, apart, added, form):
        facts = (trips, 100, elements, 1, 4, apart, added, False, (0.1, 8000.0, 0.6, 5.0))
        assert threads.choose(*facts) == form
        estimates = threads.estimates(*facts)
        assert min(estimates, key=estimates.get) == form

    def test_neighbouring_blocks(self):
        facts = (100_000, 100, 1_000, 1, 4, False, True, True, (0.1, 8000.0, 0.6, 5.0))
        assert threads.choose(*facts) == threads.NEAR and threads.NEAR in threads.estimates(*facts)

    @pytest.mark.parametrize("own", [False, True])
    @pytest.mark.parametrize("width", [1, 3])
    @pytest.mark.parametrize("reach", [0, 3, 40])
    def test_blocks_that_are_apart_touch_different_elements(self, own, width, reach):
        """Never reported for blocks that share elements, and always if the ranges of their elements are disjoint."""
        rng = np.random.default_rng(reach)
        index = np.arange(60)[:, None] + rng.integers(0, reach + 1, (60, width))
        start, stop, blocks, first, last, low, high = 1, 59, 6, -1, 1, 0, 2
        touched = []
        for block in range(blocks):
            begin, end = threads.piece(start, stop, block, blocks)
            found = {int(index[e + d, k]) for e in range(begin, end) for d in (first, last) for k in range(width)}
            touched.append(found | ({e + d for e in range(begin, end) for d in (low, high)} if own else set()))
        pairs = [(a, b) for k, a in enumerate(touched) for b in touched[k + 2 :: 2]]
        apart = all(max(a) < min(b) for a, b in pairs)
        facts = (first, last, own, low, high, start, stop, blocks)
        assert threads.blocks_are_apart(index.reshape(-1), 60, *facts) == apart
        assert apart == (reach < 40) and (not apart or all(a.isdisjoint(b) for a, b in pairs))
        index[30, 0] = -1  # the last element of the array
        assert not threads.blocks_are_apart(index.reshape(-1), 60, *facts)
        assert not threads.blocks_are_apart(index.reshape(-1), 60, -2, *facts[1:])  # rows before the first

    def test_on_one_thread_is_one_thread(self):
        assert threads.choose(10**9, 100, 1, 1, 1, True, True, True, (0.1, 0.0, 0.0, 0.0)) == threads.ALONE

    def test_costs_are_measured_once(self, monkeypatch, tmp_path):
        monkeypatch.setattr(cache, "folder", lambda: tmp_path)
        first = threads.costs()
        assert len(first) == len(threads.NAMES) and all(cost > 0 for cost in first)
        monkeypatch.setattr(threads, "_measured", None)
        assert threads.costs() == first


class TestDistinct:
    """Detection of index arrays without repetitions."""

    @pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
    @pytest.mark.parametrize("view", [lambda a: a, lambda a: a.reshape(4, -1), lambda a: a[::-2]])
    def test_permutations_are(self, dtype, view):
        order = np.random.default_rng(1).permutation(40).astype(dtype)
        assert threads.Distinct()(view(order))

    @pytest.mark.parametrize("values", [[1, 2, 1], [0, -1], [10**9, 3, 10**9]])
    def test_repeated_and_negative_indices_are_not(self, values):
        assert not threads.Distinct()(np.array(values))

    @pytest.mark.parametrize("size", [100, threads.LONG + 3])
    def test_changed_arrays_are_looked_at_again(self, size, monkeypatch):
        monkeypatch.setattr(threads, "_started", True)
        known, order = threads.Distinct(), np.arange(size)
        assert known(order) and known(order)
        order[[3, 4]] = order[[4, 3]]
        assert known(order)
        order[3] = order[4]
        assert not known(order)


@ampi.kernel(parallel=True)
def scattered(x, out, index):
    s = 0.0
    for i in numba.prange(out.shape[0]):
        out[i] = x[index[i]] * x[index[i]]
        s += out[i] * x[index[i]]
    return s


def test_explain_reports_what_was_chosen_and_why(capsys):
    x, out = np.ones(50), np.zeros(50)
    text = scattered.explain(x, out, np.arange(50), active=["x"])
    assert capsys.readouterr().out == text + "\n"
    parts = ["with respect to x\n", "out    receives derivatives; written", "nothing: the adjoint recomputes"]
    if numba.get_num_threads() > 1:
        parts += ["for i in numba.prange(out.shape[0])", "x_bar", "here 50 iterations run on"]
        parts += ["here index names no element twice"]
    for part in parts:
        assert part in text
    with pytest.raises(ValueError, match="scattered has no argument"):
        scattered.explain(x, out, np.arange(50), active=["y"])


def test_explain_reports_what_is_saved():
    @ampi.kernel
    def powers(x):
        s = 1.0
        for i in range(x.shape[0]):
            s = s * x[i]
        return s

    text = powers.explain(np.ones(3))
    assert "s is saved in each iteration" in text and "on one thread, iteration by iteration" in text


@numba.stencil
def neighbours(a, b):
    return 0.5 * a[-1] + a[1] * b[0]


def test_what_numba_fails_to_compile_is_an_error_of_the_kernel():
    """Numba counts the arguments of a stencil before ``*arguments`` is unpacked, and asserts their number."""

    @ampi.kernel(parallel=True, deterministic=True)
    def call(*arguments):
        return neighbours(*arguments)

    with pytest.raises(KernelError, match=r"test_parallel.py:\d+: in kernel 'call': Numba itself.*\n.*one by one"):
        call(np.ones(5), np.ones(5))


def test_parallel_kernels_on_one_thread_are_compiled_without_threads():
    before = numba.get_num_threads()
    numba.set_num_threads(1)
    try:
        assert not scattered.dispatcher.targetoptions["parallel"]
        x, index = np.linspace(1, 2, 20), np.arange(20)
        grad = ampi.grad(lambda x: scattered(x, ampi.numpy.zeros(20), index))(x)
        np.testing.assert_allclose(grad, 3 * x**2)
    finally:
        numba.set_num_threads(before)


@ampi.kernel(parallel=True)
def sizes_in_a_branch(a, b, w, flag):
    out = np.zeros(w.shape[0])
    for i in numba.prange(w.shape[0]):
        out[i] = w[i] * w[i]
        if flag > 0 and w[i] > 0.5:
            out[i] += (a * b).sum() * w[i]
    return out


def test_threads_need_not_raise_errors_about_sizes():
    """Sizes are compared before the loop, whether or not it enters the branch."""
    a, b, w = np.linspace(0.5, 1.5, 5), np.linspace(1.0, 2.0, 5), np.linspace(0.1, 0.9, 9)
    total = lambda a, b, w: ampi.numpy.sum(sizes_in_a_branch(a, b, w, 1))
    found = ampi.grad(total, argnums=(0, 1, 2))(a, b, w)
    large = w > 0.5
    for mine, expected in zip(found, (b * w[large].sum(), a * w[large].sum(), 2 * w + large * (a @ b)), strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-13)
    with pytest.raises(ampi.ActivityError, match="arrays of different sizes"):
        ampi.grad(lambda w: ampi.numpy.sum(sizes_in_a_branch(a, b[:3], w, 0)))(w)
    with pytest.raises(ampi.ActivityError, match="arrays of different sizes"):
        ampi.grad(lambda a: ampi.numpy.sum(sizes_in_a_branch(a, b[:3], w, 0)))(a)


@pytest.mark.parametrize(
    "dtype",
    [np.int64, *(pytest.param(t, marks=pytest.mark.slow) for t in (np.int32, np.uint8, np.float32, np.complex64))],
)
def test_threads_count(dtype):
    """Several iterations add to the same elements, whatever their type."""

    def counted(x, index):
        counts = np.zeros(8, dtype)
        for b in numba.prange(4):
            for k in range(len(index)):
                if index[k] % 4 == b:
                    counts[index[k]] += 1
        s = 0.0
        for i in range(8):
            s += x[int(counts[i].real)] * x[i]
        return s

    x, index = np.arange(8) + 0.5, np.array([0, 1, 1, 2, 3, 3, 3, 7, 7, 5])
    value, gradient = ampi.value_and_grad(ampi.kernel(counted, parallel=True))(x, index)
    serial, expected = ampi.value_and_grad(ampi.kernel(counted))(x, index)
    assert value == pytest.approx(serial)
    np.testing.assert_allclose(gradient, expected)

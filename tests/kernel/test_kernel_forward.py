"""Kernels in forward mode: ⟨Jv, w⟩ = ⟨v, Jᵀw⟩ for the corpus, with kernels called as in a user's program."""

import combined_cases
import function_cases
import kernel_cases
import kernel_checks
import numpy as np
import pytest
from forward_check import check_forward
from kernel_checks import is_float
from test_corpus import CORPUS

import ampi
from ampi.kernel.call_record import StandIn


def independents(values):
    """The floating-point leaves of a kernel's arguments."""
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from independents(value)
        elif is_float(value):
            yield np.asarray(value)


def filled(values, given):
    """The same arguments with ``given`` in place of these leaves."""
    for value in values:
        if isinstance(value, (tuple, list)):
            items = list(filled(value, given))
            yield type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
        elif is_float(value):
            x = next(given)
            yield x.copy(order="K") if isinstance(value, np.ndarray) else x
        else:
            yield np.array(value) if isinstance(value, np.ndarray) else value


def program(kernel, values):
    """A function from the floating-point leaves of the arguments to the arrays among them after the call, and the
    result."""

    def f(*x):
        given = list(filled(values, iter(x)))
        result = kernel(*given)
        return [a for a in flat(given) if isinstance(a, ampi.ndarray) and a.ndim], result

    return f


def flat(values):
    for value in values:
        if isinstance(value, (tuple, list)):
            yield from flat(value)
        else:
            yield value


def arguments_of(name, dtype=np.float64):
    """Arguments of a kernel of the corpus."""
    kind, _, key = name.partition(": ")
    entry = CORPUS[name]
    if not key:
        return kernel_checks.make_arguments(name, dtype)
    if kind == "language":
        return kernel_checks.copies(entry.arguments)
    if kind == "arrays":
        rng = np.random.default_rng(3)
        return [
            kernel_cases.random_array(rng, dtype, a, 0.5, 1.5) if isinstance(a, tuple) else a for a in entry.arguments
        ]
    return function_cases.make_arguments(key, dtype) if kind == "functions" else combined_cases.make_arguments(dtype)


# A tape recorded for walks runs the kernel itself.  Numba does not compile these at all, or (lists_begun_anew) with a
# result that is not Python's.
NOT_NUMBAS = {
    "language: array_of_the_iteration_before",
    "language: assigned_in_comprehensions",
    "language: assigned_in_conditions",
    "language: assigned_in_expressions",
    "language: lists_begun_anew",
}


def check(name, dtype=np.float64):
    values = arguments_of(name, dtype)
    f = program(ampi.kernel(CORPUS[name].function), values)
    check_forward(f, list(independents(values)), 1e-11, same_bits=False, walk=name not in NOT_NUMBAS)


SOME = [
    name
    for name in CORPUS
    if not name.startswith("structured")
    and CORPUS[name].function.__module__ != "recursion_cases"  # run by Python: see test_recursion for compiled ones
]


LONG = {
    "arrays: choices",
    "arrays: orders",
    "arrays: linear_systems",
    "functions: truth_values",
    "functions: trapezoids",
    "functions: keywords",
    "functions: percentiles_without_gaps",
    "functions: units",
}  # compile for ten seconds and more


@pytest.mark.parametrize("name", [n for n in SOME[::60] if n not in LONG])
def test_identity(name):
    check(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_identity_for_each_kernel(name):
    check(name)


@ampi.kernel
def overwritten(u, out):
    for i in range(out.shape[0]):
        out[i] = u[i] * u[i] * 0.5


@pytest.mark.parametrize("step", [1, 3, -2, 4096])
def test_walks_through_kernels_that_overwrite_views(step):
    """What such an array held before the call is not saved; a walk runs the tangent on zeros with the same layout."""

    def f(x):
        y = ampi.numpy.zeros(20 * abs(step))
        overwritten(x, y[::step][:20])
        return np.sum(y * y)

    x0 = np.linspace(0.5, 1.5, 20)
    with ampi.Tape(tangents=True) as tape:
        x = tape.watch(x0)
        y = f(x)
    for _ in range(20):
        assert tape.tangent(y, x, x0) == pytest.approx(tape.gradient(y, x) @ x0, rel=1e-13)


def test_placeholders_have_memory_for_all_elements():
    a = np.ones((6, 40, 4))
    for view in (a, a[::2], a[::-1, 1::3], a.T, a[:, ::-7, 2], a[1:1], a[2, 3, 1:2]):
        filled = StandIn(view).filled()
        assert not filled.any() and filled.shape == view.shape
        owner = filled
        while getattr(owner, "base", None) is not None:
            owner = owner.base
        low, high = np.lib.array_utils.byte_bounds(filled)
        first, last = np.lib.array_utils.byte_bounds(owner)
        assert not view.size or (first <= low and high <= last)
        if view.size:
            assert filled.strides == (view.strides if not view.flags.c_contiguous else np.empty(view.shape).strides)

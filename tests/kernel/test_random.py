"""Random kernels: narrow ones with loops and elements, wide ones with whole arrays, swaps, tuples and calls, and those
with control flow, several exits and permuted carried values."""

import re

import numba
import numpy as np
import pytest
import random_check
from kernel_checks import Check, copies, run
from of_the_day import of_the_day
from random_carried import Carried
from random_check import examine, examine_lists, examine_recorded, in_python, is_refusal, kernel_of, run_by_python
from random_flow import Flow
from random_kernels import Program
from random_language import Language
from random_lists import OfLists
from random_optional import Optional
from random_raises import Refusing, examine_refusing
from random_recursion import DiscardedResults, MutualRecursion, Recursion
from random_reflections import Reflection

import ampi
from ampi import KernelError

LONG = {10_055, 20_017, 20_033, 30_005, 40_025, 40_027, 50_005, 50_006, 50_029, 60_008, 60_034, 70_005, 90_001,
        90_004}  # fmt: skip
"""Seeds that take three seconds or more."""


def seeds(first, count):
    """The seeds of a test: an eighth of them today; the others, and those that take long, are marked slow."""
    long = [pytest.param(seed, marks=pytest.mark.slow) for seed in sorted(LONG) if first <= seed < first + count]
    return [*of_the_day((seed for seed in range(first, first + count) if seed not in LONG), -(-count // 8)), *long]


@pytest.mark.parametrize("seed", seeds(10_000, 80))
def test_random(seed):
    examine(Program(seed).source(), seed)


@pytest.mark.parametrize("seed", seeds(20_000, 44))
def test_wide(seed):
    examine(Program(seed, wide=True).source(), seed)


@pytest.mark.parametrize("seed", seeds(50_000, 30))
def test_functions(seed):
    """Programs that swap arrays in a way that is refused are skipped."""
    try:
        examine(Program(seed, wide=True, functions=True).source(), seed)
    except KernelError as problem:
        if not re.search("copy the array before|its own name", str(problem)):
            raise
        pytest.skip(str(problem))


@pytest.mark.parametrize("seed", seeds(60_000, 28))
def test_language(seed):
    """Programs that are refused are skipped, mostly for what a tape needs to know beforehand."""
    try:
        examine(Language(seed).source(), seed)
    except KernelError as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("seed", seeds(30_000, 8))
def test_recorded(seed):
    examine_recorded(Program(seed).source(), seed)


@pytest.mark.parametrize("seed", seeds(130_000, 16))
def test_exceptions(seed):
    try:
        examine_refusing(Refusing(seed).source(), seed)
    except KernelError as problem:
        pytest.skip(str(problem))


@pytest.mark.parametrize("seed", seeds(40_000, 30))
def test_flow(seed):
    examine(Flow(seed).source(), seed)


@pytest.mark.parametrize("seed", seeds(70_000, 8))
def test_recursion(seed):
    examine(Recursion(seed).source(), seed)


@pytest.mark.parametrize("seed", seeds(80_048, 16))
def test_recursion_that_discards_results(seed):
    examine(DiscardedResults(seed).source(), seed)


@pytest.mark.parametrize("seed", seeds(90_000, 8))
def test_mutual_recursion(seed):
    examine(MutualRecursion(seed).source(), seed)


@pytest.mark.parametrize("seed", seeds(110_000, 48))
def test_reflections(seed):
    program = Reflection(seed)
    examine(program.source(), seed)
    kernel, arguments = kernel_of(program.source(), seed)
    written = ampi.kernel(kernel).adjoint_source(*arguments)
    assert ("frames" not in written) == program.unfolded


@pytest.mark.parametrize("seed", seeds(120_000, 48))
def test_names_that_may_be_none(seed):
    """Values are compared with Python's, too; code that runs only where a name is certainly None may be refused."""
    source = Optional(seed).source()
    kernel, arguments = kernel_of(source, seed)
    given, (left, result) = copies(arguments), run_by_python(source, seed)
    try:
        np.testing.assert_allclose(ampi.kernel(kernel)(*given), result, rtol=1e-12)
    except (KernelError, numba.core.errors.TypingError) as problem:
        pytest.skip(f"refused, by Numba as well: {problem}")
    for mine, expected in zip(given, left, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=1e-12)
    examine(source, seed)


@pytest.mark.parametrize("seed", seeds(100_000, 16))
def test_carried_parts(seed):
    try:
        examine(Carried(seed).source(), seed)
    except (KernelError, ValueError) as problem:
        if not is_refusal(problem):
            raise
        pytest.skip(str(problem))


@pytest.mark.parametrize("seed", seeds(80_000, 16))
def test_lists_among_arguments(seed):
    examine_lists(OfLists(seed).source(), seed)


def two_exits(x, a):
    q0 = x
    q1 = x * a
    p = x
    for _ in range(3):
        if x > 9.0:
            break
        p = p - q1 * q0
        if p > 1e9:
            break
        q0 = q1
        q1 = p * a
    return p


def test_copies_of_arrays_replaced_after_two_exits():
    """A new value takes the place of the current one, which becomes the previous one, in a loop with two exits."""
    Check(two_exits, [2.0, 0.7], ("x", "a")).compare(1e-12)


ROWS_AND_COLUMNS = """\
def kernel(a, b, c, index, u, v, n):
    m = np.ones((n, n + 1)) * v
    p = m[:, n - 1]
    for i in range(0, n, 2):
        p = m[i][::-1]
    p[-1] += b[0]
    return m[-1, 0] + p[1]
"""


def test_a_column_and_rows_by_one_name():
    """The rows have their own name, so that what is known of the column is not used for them."""
    with pytest.raises(KernelError, match="copy the array before"):
        examine(ROWS_AND_COLUMNS, 23)


def overwritten_in_every_case(b, u, v):
    if v > 0.3:
        u = u * u
    for i in range(3):
        u = np.tanh(b[i] * v) ** 2
    return u


def test_what_one_side_of_a_condition_binds_does_not_enter_a_loop_that_overwrites_it():
    """The loop runs at least once, so that nothing reads its initial value; the program must still be valid, with the
    condition true and false."""
    for v in (0.2, 0.7):
        arguments = [np.array([0.4, 0.9, -0.3]), 0.5, v]
        Check(overwritten_in_every_case, arguments, ("b", "u", "v")).compare(1e-10)


PARTS_THAT_OVERLAP = """\
def kernel(a, b, c, index, u, v, n):
    b[::2] = b[:3]
    c[:2], c[1:3] = c[1:3], c[:2] * u
    a[::-2] = a[:3]
    a[1:], v = a[:-1], v * a[2]
    return v
"""


def test_parts_that_overlap(monkeypatch):
    """They are assigned as in Numba; with NumPy's assignment the derivatives would differ, and the check would fail."""
    kernel, arguments = kernel_of(PARTS_THAT_OVERLAP, 3)
    expected = run(numba.njit(kernel), arguments)
    for found, wanted in zip(run(in_python(PARTS_THAT_OVERLAP, 3), arguments), expected):
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(a, b)
    examine(PARTS_THAT_OVERLAP, 3)
    monkeypatch.setattr(random_check, "apart", lambda value: value)
    with pytest.raises(AssertionError):
        examine(PARTS_THAT_OVERLAP, 3)

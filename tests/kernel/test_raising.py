"""Random kernels that raise on division by zero (Numba's default error model), recorded and not.

A recorded call raises in the same place as an unrecorded one, after the same writes, although its run may be the first
part of a split adjoint.
"""

import random
from types import ModuleType

import numba
import numpy as np
import pytest
from derivative_check import difference
from of_the_day import of_the_day
from written import examined, written

import ampi

NUMBERS = ["x[0]", "x[1]", "x[i]", "x[i - 1]", "y[i]", "y[2]", "s", "t"]
UPDATES = ["s = s * 0.5 + {a} / {b}", "t = {a} / {b}", "x[i] = {a} / {b}", "x[i] = x[i] * t + s", "s = s * {a} * 0.5",
           "r[i] = {a} / ({b} * {c})", "u = {a} / {b}", "r[i % (i + k)] = s", "r[(i + 2) // k % 6] = t * {a}",
           "s += {a} * (i % k)"]  # fmt: skip


def program(seed):
    """A kernel of three arrays and an integer that divides in loops and branches; not all quotients are needed."""
    draw = random.Random(seed)
    update = lambda: draw.choice(UPDATES).format(**{name: draw.choice(NUMBERS) for name in "abc"})
    lines = ["s = x[0]", "t = y[0]", f"i = {draw.randrange(4)}", update()]
    for _ in range(draw.randint(1, 3)):
        lines.append(f"for i in range(1, {draw.choice(['6', 'len(x)', 'k + 3'])}):")
        for _ in range(draw.randint(1, 3)):
            if draw.random() < 0.3:
                lines += [f"    if {draw.choice(NUMBERS)} > {draw.choice(['0.4', '1.2'])}:", f"        {update()}"]
            else:
                lines.append(f"    {update()}")
        lines.append("    x[i] = x[i] * s + 0.5 * t" if draw.random() < 0.5 else "    s = s * s * 0.5 + 0.1 * t")
    end = draw.choice(["", "return s", "return r * s", "return r[1:] + t, s * t", "v = x / y[1]\n    return v"])
    return "\n".join(["def kernel(x, y, r, k):", *(f"    {line}" for line in [*lines, end]), ""])


def point(seed):
    draw = random.Random(seed + 1)
    numbers = lambda: np.array([draw.choice([0.5, 0.75, 1.25, 1.5]) if draw.random() < 0.93 else 0.0 for _ in range(6)])
    return numbers(), numbers(), np.full(6, 0.25), draw.choice([0, 1, 2, 2, 3])


def leaves(result, *arrays):
    results = result if isinstance(result, tuple) else () if result is None else (result,)
    return [*results, *arrays]


def outcome(call, x, y, r, k):
    """The results of a call, or that it raised, and the arrays after it."""
    x, y, r = x.copy(), y.copy(), r.copy()
    try:
        found = leaves(call(x, y, r, k))
    except ZeroDivisionError:
        found = ["division by zero"]
    return [*found, x, y, r]


def check(text, seed):
    """Check a kernel; return whether it raised, and whether its own run was the first part of a split adjoint."""
    function = written(text, f"divisions {seed}")["kernel"]
    plain, kernel = numba.njit(function), ampi.kernel(function, error_model="python")
    given = point(seed)
    expected = outcome(plain, *given)
    with ampi.Tape() as tape:
        x, y = (tape.watch(v) for v in given[:2])
        z, r = x * 1.0, ampi.numpy.array(given[2])
        try:
            found = leaves(kernel(z, y, r, given[3]))
        except ZeroDivisionError:
            found = ["division by zero"]
        found += [z, y, r]
    assert len(found) == len(expected)
    for a, b in zip(found, expected):
        np.testing.assert_allclose(a, b, rtol=1e-13) if not isinstance(b, str) else None
        assert isinstance(a, str) == isinstance(b, str)
    split = any(contract.split is not None for contract in kernel.contracts.values())
    if isinstance(expected[0], str):
        return True, split
    rng, h = np.random.default_rng(seed), 1e-4
    outputs = [v for v in found if tape.is_active(v)]
    is_output = [tape.is_active(v) for v in found]
    seeds = [rng.normal(size=np.shape(v)) for v in outputs]
    bars = tape.gradient(outputs, [x, y], seed=seeds)
    d = [rng.normal(size=6) for _ in bars]

    def along(t):
        moved = outcome(plain, given[0] + t * d[0], given[1] + t * d[1], *given[2:])
        return sum(np.sum(w * v) for w, v in zip(seeds, (v for v, active in zip(moved, is_output) if active)))

    if not all(np.isfinite(v).all() for v in (*outputs, *bars)):  # operations on whole arrays do not raise
        return False, split
    slope = difference(along, h)
    size = sum(np.abs(b).max() for b in bars)
    np.testing.assert_allclose(sum(b @ e for b, e in zip(bars, d)), slope, rtol=1e-5, atol=1e-6 * size)
    return False, split


@pytest.mark.parametrize("seed", of_the_day(range(90), 8))
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed} at {point(seed)}"):
        check(text, seed)


class PackageError(ValueError):
    pass


class TooLargeError(Exception):
    pass


ERRORS = ModuleType("errors_of_a_package")
ERRORS.Bad = PackageError


@numba.njit
def square(x):
    if x > 5:
        raise TooLargeError("too large")
    return x * x


@ampi.kernel
def with_exceptions_of_its_own(x, n):
    if n < 0:
        raise PackageError("negative", n)
    if n == 7:
        raise ERRORS.Bad
    s = 0.0
    for i in range(n):
        s += square(x[i])
    if n == 3:
        raise ValueError(f"three: {n}")
    return s


@pytest.mark.parametrize(
    ("n", "error", "given"),
    [
        (-1, PackageError, ("negative", -1)),
        (7, PackageError, ()),
        (6, TooLargeError, ("too large",)),
        (3, ValueError, ("three: 3",)),
    ],
)
@pytest.mark.parametrize("mode", ["call", "grad", "jvp", "hvp", "jacfwd"])
def test_exceptions_are_those_of_the_kernel_in_all_modes(n, error, given, mode):
    x, f = np.arange(1.0, 8.0), lambda n: lambda x: with_exceptions_of_its_own(x, n)
    run = {
        "call": lambda n: f(n)(x),
        "grad": lambda n: ampi.grad(f(n))(x),
        "jvp": lambda n: ampi.jvp(f(n), (x,), (x,)),
        "hvp": lambda n: ampi.hvp(f(n), x, x),
        "jacfwd": lambda n: ampi.jacfwd(f(n), x),
    }[mode]
    with pytest.raises(error) as found:
        run(n)
    assert type(found.value) is error and found.value.args == given
    derivative = 2.0 * x * (np.arange(7) < 2)
    expected = {"call": 5.0, "jvp": (5.0, derivative @ x)}.get(mode, derivative)
    found = run(2)
    np.testing.assert_allclose(found[0] if mode == "jacfwd" else found, expected)

"""Parsing of calls of other kernels, of parallel loops, and of names."""

import numba
import numpy as np
from numba import prange
from parsed import check, numbers

from ampi.kernel import ir, kernel
from ampi.kernel.ir.names import stem

# ------------------------------------------------------------------------------------------------ other kernels


@kernel
def square(x):
    return x * x


@kernel
def sum_and_largest(x, scale=1.0, floor=None):
    if len(x) == 0:
        return 0.0, 0.0
    s = 0.0
    m = x[0]
    if floor is not None:
        m = max(m, floor)
    for i in range(len(x)):
        s += x[i] * scale
        m = max(m, square(x[i]))
    return s, m


@kernel
def bump(x, k):
    x[k] += 1.0
    return x[k]


@kernel
def squares(x):
    y = np.empty_like(x)
    for i in range(len(x)):
        y[i] = square(x[i])
    return y


@numba.njit
def apply(f, x):
    return f(f(x))


def calls(a, out):
    s, m = sum_and_largest(a[1])
    t, _ = sum_and_largest(a[0], floor=3.0, scale=2.0)
    u = sum_and_largest(out)
    v = out[0] + bump(out, 0) * out[0] + (bump(out, 0) if t > 100 else out[0])
    while bump(out, 1) < 5:
        v += 1
    w = squares(out)
    for i in range(2):
        y = squares(a[i])
        w[i] += y[1]
    if v > 0 and bump(out, 2) > 0:
        v = -v
    return s, m, t, u, v, w[0] + w[1], apply(square, v), square(x=2.0)


def shadowed(x):
    s = square(x)
    max = s + 1
    for x in range(3):
        max += x
    return max


def test_calls_are_inlined():
    check(calls, numbers(2, 3), numbers(4))
    check(shadowed, 2.0)


# ------------------------------------------------------------------------------------------------ parallel loops


def reductions(x, y):
    s = 0.0
    p = 1.0
    low = x[0]
    high = x[0]
    for i in prange(len(x)):
        t = x[i] * 2
        s += t + 1
        s = s - y[i]
        p *= x[i]
        low = min(low, t)
        high = max(x[i], high)
        y[i] = t
    return s, p, low, high


def test_reductions():
    function = check(reductions, numbers(5), numbers(5))
    (loop,) = (s for s in function.body if isinstance(s, ir.For))
    assert loop.parallel
    assert sorted(loop.reductions) == [("high", "max"), ("low", "min"), ("p", "mul"), ("s", "add")]


# ------------------------------------------------------------------------------------------------ names


def reused(x):
    t = x[0] * 2
    y = t + 1
    t = x[1] * 3
    for i in range(2):
        t = t * x[i]
    for i in range(2):
        y += t * i
    return y


def test_every_value_has_its_name():
    function = check(reused, numbers(3))
    targets = [stem(n.target.name) for n in ir.walk(function.body) if isinstance(n, ir.Assign)]
    assert targets == ["t", "y", "t", "t", "y"]
    assert len({n.target.name for n in ir.walk(function.body) if isinstance(n, ir.Assign)}) == 3
    loops = [n.var.name for n in ir.walk(function.body) if isinstance(n, ir.For)]
    assert len(set(loops)) == 2


def assigned_argument(x, n):
    if n < 0:
        n = -n
    x = x + n
    return x


def test_arguments_are_never_assigned():
    function = check(assigned_argument, 1.5, -2)
    arguments = {a.name for a in function.arguments}
    assert not arguments & {n.target.name for n in ir.walk(function.body) if isinstance(n, ir.Assign)}

"""Parsing: the IR of a kernel, written out as Python, computes what the function does, with Numba's types."""

import math
from collections import namedtuple

import numba
import numpy as np
import pytest
from numba import typeof, types
from parsed import check, numbers

from ampi.kernel import ir
from ampi.kernel.frontend.parse import parse

State = namedtuple("State", "x v n")
Pair = namedtuple("Pair", "left right")
TABLE = (1.0, 2.0, 4.0)
CORNERS = np.array([[0, 1], [1, 2], [2, 0]])
GAMMA = 1.4
SMALL = np.float32(0.5)
DEBUG = False


# ------------------------------------------------------------------------------------------------ control flow


def early_return(x, k):
    if k < 0:
        return -1.0
    s = 0.0
    for i in range(len(x)):
        if x[i] > 0.9:
            return s
        s += x[i]
    return 2 * s


def return_from_two_loops(x, limit):
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > limit:
                return i, j
        if i == 3:
            return -1, -1
    return -2, -2


def break_and_continue(x):
    s = 0.0
    n = 0
    for i in range(10, -1, -2):
        if i == 8:
            continue
        if i < 3:
            if x[i] > 10:
                s = 100.0
            else:
                break
        for j in range(i):
            if j % 3 == 0:
                continue
            elif j > 6:
                break
            s += x[j]
        else_value = s * 2
        s = else_value / 2
        n += 1
    return s, n, i


def while_loops(x, n):
    k = n
    count = 0
    while True:
        count += 1
        if k % 2 == 0:
            k //= 2
        else:
            k = 3 * k + 1
        if k == 1:
            break
    while count > 0 and x[count % 3] < 2:
        count -= 7
        if count < -3:
            continue
        count -= 1
    return k, count


def conditional_jump(x, n):
    total = 0.0
    for i in range(n):
        if x[i] < 0.3:
            total += 1
            if x[i] < 0.1:
                continue
        elif x[i] > 0.8:
            if total > 3:
                break
            total += 10
        total += x[i]
    if total > 5:
        if total < 6:
            return 0.0
        total -= 1
    return total


def loop_variable_lives_on(n):
    for i in range(n):
        i = i * 2
        if i > 5:
            break
    s = i
    for i in range(3):
        s += i
    return s, i


def step_of_either_sign(a, b, c):
    s = 0
    for i in range(a, b, c):
        if i == 100:
            break
        s = s * 3 + i
    return s


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (early_return, (numbers(9), 1)),
        (early_return, (numbers(9), -1)),
        (early_return, (numbers(9) / 2, 1)),
        (return_from_two_loops, (numbers(5, 4), 0.9)),
        (return_from_two_loops, (numbers(5, 4), 2.0)),
        (return_from_two_loops, (numbers(2, 4), 2.0)),
        (break_and_continue, (numbers(12),)),
        (while_loops, (numbers(4), 27)),
        (conditional_jump, (numbers(30), 30)),
        (conditional_jump, (numbers(6), 6)),
        (loop_variable_lives_on, (9,)),
        (step_of_either_sign, (0, 10, 3)),
        (step_of_either_sign, (10, 0, -3)),
        (step_of_either_sign, (10, 0, 3)),
    ],
)
def test_jumps_are_lowered(function, arguments):
    check(function, *arguments)


def plain_loop(x):
    s = 0.0
    for i in range(len(x)):
        if x[i] > 0.5:
            s += x[i]
    return s


def test_loop_without_jumps_stays_a_for():
    function = check(plain_loop, numbers(5))
    assert [type(s) for s in function.body] == [ir.Assign, ir.For, ir.Return]


# ------------------------------------------------------------------------------------------------ values and types


def arithmetic(a, b, i, j, z):
    p = a + i, a - b, i * j, i / j, i // j, i % j, a**2, a**b, i**2, -a, +i, ~i
    q = i & j, i | j, i ^ j, i << 2, j >> 1, z * a, z.real + z.imag, abs(z), z.conjugate()
    return p, q, not i, divmod(i, j), 1 < i <= j + 3, i and j, a or b, a if i > j else i


def functions(a, i):
    return (
        (math.sqrt(a), np.cbrt(a), math.floor(a), np.floor(a), math.exp(a), np.hypot(a, 2.0), round(a), math.pi),
        (max(a, i, 3), min((a, i)), abs(-a), float(i), int(a), bool(i), complex(a, i), np.float32(a), np.int32(i)),
        (math.pow(i, 2), np.power(i, 2), pow(a, 3), math.erf(a), np.sign(a), np.arctan2(a, 1.0), np.fmod(a, 0.3)),
    )


def changing_types(x, n):
    t = 1
    u = t / 3
    t = u + 1
    s = 0
    for i in range(n):
        s += x[i]
    w = x[0]
    w = w * 2.0
    flag = n > 2
    if flag:
        value = 1
    else:
        value = 2.5
    return t, s, w, value, flag


def constants(i):
    s = GAMMA + SMALL
    for k in range(3):
        s += TABLE[k] * CORNERS[k, i]
    if DEBUG:
        s = undefined_name  # noqa: F821
    for w in TABLE:
        s *= w
    return s, TABLE[-1], len(TABLE), np.pi, math.inf


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (arithmetic, (0.7, 2.2, 7, 3, 1.5 + 2j)),
        (arithmetic, (np.float32(0.7), 2.2, np.int32(7), 3, np.complex64(1.5 + 2j))),
        (functions, (0.7, 3)),
        (functions, (np.float32(1.7), np.int32(3))),
        (changing_types, (numbers(4), 4)),
        (changing_types, (numbers(4, dtype=np.float32), 2)),
        (constants, (1,)),
    ],
)
def test_values_and_types(function, arguments):
    lowered = check(function, *arguments)
    compiled = numba.njit(error_model="numpy")(function)
    compiled(*arguments)
    expected = compiled.nopython_signatures[0].return_type
    result = lowered.body[-1].values
    assert [v.type for v in result] == [types.unliteral(t) for t in leaf_types(expected)]


def leaf_types(type_):
    if isinstance(type_, types.BaseTuple):
        for t in type_.types:
            yield from leaf_types(t)
    else:
        yield type_


# ------------------------------------------------------------------------------------------------ arrays and tuples


def indexing(a, index, out):
    for i in range(a.shape[0]):
        row = a[i]
        for j in range(len(row)):
            out[index[j]] += row[j] * a[i][j]
            out[j] -= a[-1, j]
            out[j] *= 2
            out[j] /= 3
        out[0], out[1] = out[1], out[0]
        for value in row:
            out[2] += value
    k = 1, 2
    out[-1] = a[k] + a.size + a.ndim
    return row[0]


def local_arrays(n, x):
    w = np.zeros(n)
    e = np.empty((n, 2), dtype=np.float32)
    o = np.ones(3, np.int64)
    f = np.full((2, 2), 7.0)
    z = np.zeros_like(x)
    t = np.array([x[0], 2.0, n])
    for i in range(n):
        w[i] = x[i] ** 2
        for j in range(2):
            e[i, j] = w[i] + f[j, 1] + o[j]
        z[i] = e[i, 1]
        local = np.zeros(2)
        local[i % 2] = i
        z[i] += local[1]
    return w, e, z, t


def tuples(state, pair, k):
    x, _, n = state
    (a, b), c = (state.x[0], pair[1]), pair.left
    a, b = b, a + c
    t = a, b
    if n > 2:
        t = b, a
    u = Pair(t[0], right=x)
    u.right[k] = t[1]
    for _ in range(n):
        a, b = b, a + b
    s = 0.0
    for w in (a, b, c):
        s += w
    both = t + (s,)
    return both, both[1:], Pair(left=s, right=a), (a, b, c)[k]


def simultaneous(x):
    a = 1.0
    b = 2.0
    for _ in range(3):
        a, b, x[0] = b, a + x[0], a
    x[0], x[1], x[2] = x[2], x[0], x[1]
    return a, b


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (indexing, (numbers(4, 3), np.array([2, 0, 1], np.int32), numbers(5))),
        (indexing, (np.asfortranarray(numbers(4, 3)), np.array([2, 0, 1], np.uint8), numbers(10)[::2])),
        (local_arrays, (3, numbers(4))),
        (tuples, (State(numbers(3), numbers(2), 3), Pair(1.0, 2.0), 1)),
        (tuples, (State(numbers(3), numbers(2), 1), Pair(1.0, 2.0), 2)),
        (simultaneous, (numbers(3),)),
    ],
)
def test_arrays_and_tuples(function, arguments):
    check(function, *arguments)


def test_argument_leaves():
    given = State(numbers(3), numbers(2), 3), Pair(1.0, 2.0), 1
    function = parse(tuples, tuple(map(typeof, given)))
    assert [a.path for a in function.arguments] == [
        ("state", "x"), ("state", "v"), ("state", "n"), ("pair", "left"), ("pair", "right"), ("k",)
    ]  # fmt: skip
    assert function.arguments[0].shown == "state.x"
    assert function.result == (
        "tuple",
        None,
        (
            ("tuple", None, ("scalar",) * 3),
            ("tuple", None, ("scalar",) * 2),
            ("tuple", Pair, ("scalar",) * 2),
            "scalar",
        ),
    )

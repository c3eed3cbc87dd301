"""Constants in kernels: indices of several types, integers that wrap around, exponents that are not finite."""

import linecache
import math
import random

import numpy as np
import pytest
from numba import types

import ampi
import ampi.cuda as cuda
from ampi.kernel import ir
from ampi.kernel.cuda.constants import evaluated


def written(text, name="f"):
    """The function that a program defines."""
    file = f"<constants {len(linecache.cache)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    namespace = {"np": np, "dtype": np.float64}
    exec(compile(text, file, "exec"), namespace)
    return namespace[name]


# ------------------------------------------------------------------------------------------------ indices

PLACES = ("{}", "np.int8({})", "np.int32({})", "np.int64({})", "np.uint8({})", "np.uint64({})", "({} - 70)", "p{}")


def program_of_places(seed):
    """Stores, loads and sums at constant places, each of them written in many ways; ``p2`` is a variable."""
    rng = random.Random(seed)
    place = lambda: rng.choice(PLACES).format(rng.randrange(4))  # more elements than become scalars
    lines = ["a = np.zeros(70, dtype)", *(f"p{k} = {k}" for k in range(4)), "t = x"]
    for _ in range(rng.randint(4, 9)):
        match rng.randrange(4):
            case 0:
                lines.append(f"a[{place()}] = t * x")
            case 1:
                lines.append(f"a[{place()}] += x + 0.5 * t")
            case 2:
                lines.append(f"t = a[{place()}] + 0.25 * x")
            case _:
                lines += [f"if t > {rng.choice((-100.0, 100.0))}:", f"    a[{place()}] = 0.5 * x * a[{place()}]"]
    lines.append("return " + " + ".join(f"{k + 1} * a[{k}]" for k in range(4)))
    return "def f(x):\n" + "".join(f"    {line}\n" for line in lines)


class Dual:
    """A number with its derivative, for Python."""

    def __init__(self, value, change=0.0):
        self.value, self.change = value, change

    def __add__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.value + other.value, self.change + other.change)

    def __mul__(self, other):
        other = other if isinstance(other, Dual) else Dual(other)
        return Dual(self.value * other.value, self.value * other.change + self.change * other.value)

    def __gt__(self, other):
        return self.value > other

    __radd__, __rmul__ = __add__, __mul__


def check_places(text):
    function = written(text)
    function.__globals__["dtype"] = object
    expected = function(Dual(1.5, 1.0))
    expected = expected if isinstance(expected, Dual) else Dual(expected)
    function.__globals__["dtype"] = np.float64
    kernel = ampi.kernel(function)
    assert kernel(1.5) == pytest.approx(expected.value), text
    assert ampi.grad(kernel)(1.5) == pytest.approx(expected.change), text


@pytest.mark.parametrize("place", ["np.int32(3)", "np.uint64(3)", "np.int8(3)", "-67", "np.int32(-68)"])
def test_an_index_of_another_type(place):
    before = "def f(x):\n    a = np.zeros(70, dtype)\n    a[3] = x\n    a[2] = x\n    t = a[3]\n"
    check_places(f"{before}    a[{place}] = t * x\n    return a[3] + 2 * a[2]\n")


def test_places():
    for seed in range(6):
        check_places(program_of_places(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_places(seed):
    for k in range(20):
        check_places(program_of_places(100 * seed + k))


def narrowed(x):
    """Different counters are the same index after conversion to a narrower type."""
    a = np.full(256, 2.0)
    for i in range(300):
        a[np.uint8(i)] = a[np.uint8(i)] * x
    return a[3]


def narrowed_sum(x):
    a = np.full(256, 2.0)
    n = 256
    for i in range(10):
        a[i] = a[i] * x
        a[np.uint8(i + n)] += a[i] * a[np.int8(i + n)]
    return a[3]


@pytest.mark.parametrize("function", [narrowed, narrowed_sum])
def test_indices_of_a_narrower_type(function):
    kernel = ampi.kernel(function)
    expected = (kernel(1.5 + 1e-6) - kernel(1.5 - 1e-6)) / 2e-6
    assert ampi.grad(kernel)(1.5) == pytest.approx(expected, rel=1e-6)
    assert ampi.jvp(kernel, (1.5,), (1.0,))[1] == pytest.approx(expected, rel=1e-6)


# ------------------------------------------------------------------------------------------------ exponents

EXPONENTS = [
    (math.inf, 0.5, 0.0),
    (math.inf, -0.5, 0.0),
    (math.inf, 0.0, 0.0),
    (math.inf, 2.0, math.inf),
    (-math.inf, 2.0, 0.0),
    (-math.inf, 0.5, -math.inf),
    (math.nan, 0.5, math.nan),
    (1e300, 0.5, 0.0),
    (1e300, 1.0, 1e300),
    (-1e300, 2.0, 0.0),
    (-1e300, 1.0, -1e300),
    (2.0**53 + 2, 1.0, 2.0**53 + 2),
    (2.5, 4.0, 20.0),
    (-3.0, 0.5, -48.0),
    (2 + 1j, 0.5, ((2 + 1j) * 0.5 ** (1 + 1j)).real),
    (2.5 + 0j, 4.0, 20.0),
    (complex(math.nan, 0), 0.5, math.nan),
]


@pytest.mark.parametrize(("exponent", "x", "expected"), EXPONENTS)
def test_constant_exponents(exponent, x, expected):
    def real(x):
        return (x**exponent).real

    def plain(x):
        return x**exponent

    kernel = ampi.kernel(real if isinstance(exponent, complex) else plain)
    assert ampi.grad(kernel)(x) == pytest.approx(expected, nan_ok=True)
    assert ampi.jvp(kernel, (x,), (1.0,))[1] == pytest.approx(expected, nan_ok=True)


# ------------------------------------------------------------------------------------------------ integers that wrap

EDGES = {
    "{}": (-(2**63), 1 - 2**63, 2**63 - 1, 2**62, 3037000500, 1, -1, 2, 63),
    "np.int8({})": (-128, 127, 1, -1, 2),
    "np.uint8({})": (255, 0, 1, 128),
    "np.int32({})": (-(2**31), 2**31 - 1, 1, -1, 65536),
    "np.uint32({})": (2**32 - 1, 0, 1),
    "np.int64({})": (-(2**63), 2**63 - 1, 2**62, -1, 3),
    "np.uint64({})": (2**64 - 1, 2**63, 0, 1),
}
BINARY = ("{} + {}", "{} - {}", "{} * {}", "{} & {}", "{} | {}", "{} ^ {}", "min({}, {})", "max({}, {})")
LIMITED = {"{} << {}": (0, 1, 31, 62, 63), "{} >> {}": (0, 1, 63), "{} ** {}": (0, 1, 2, 3, 63), "{} // {}": (1, -1, 7)}
UNARY = ("-{}", "~{}", "abs({})", *(form for form in EDGES if form != "{}"))
CONDITIONS = ("> 0", "< 0", "== 0", "> 127", "!= 1", ">= 4611686018427387904")


def program_of_integers(seed):
    """Operations on constants, and a branch that depends on the last one."""
    rng = random.Random(seed)

    def number():
        form = rng.choice(list(EDGES))
        return form.format(rng.choice(EDGES[form]))

    lines, names = [f"s0 = {number()}"], ["s0"]
    for k in range(1, rng.randint(3, 5)):
        form = rng.choice((*BINARY, *LIMITED, *UNARY))
        first = rng.choice(names) if rng.random() < 0.8 else f"({number()})"
        second = rng.choice(LIMITED[form]) if form in LIMITED else rng.choice((*names, number()))
        lines.append(f"s{k} = {form.format(first, second)}")
        names.append(f"s{k}")
    return "\n    ".join(lines) + f"\n    t = {names[-1]}", rng.choice(CONDITIONS)


def check_branch(lines, condition):
    """The derivative program takes the branch of the kernel: x * x, or x."""
    text = f"def f(x):\n    {lines}\n    if t {condition}:\n        return x * x\n    return x\n"
    kernel = ampi.kernel(written(text))
    assert ampi.grad(kernel)(3.0) == {9.0: 6.0, 3.0: 1.0}[kernel(3.0)], text


@pytest.mark.parametrize(
    "lines",
    [
        "s = 4611686018427387904; t = s + s",
        "s = -9223372036854775808; t = -s",
        "s = -9223372036854775808; t = abs(s)",
        "s = 9223372036854775807; t = np.int8(127) + s",
        "s = np.uint64(18446744073709551615); t = s + np.uint32(2)",
        "s = 3; t = s ** 41",
        "t = np.int8(200)",
        "t = 4611686018427387904 + 4611686018427387904",
        "t = 3 << 62",
        "t = 0 - -9223372036854775808",
    ],
)
def test_integers_that_overflow(lines):
    check_branch(lines, "> 0")


def test_integers():
    for seed in (41, 3, 24):
        check_branch(*program_of_integers(seed))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
def test_many_integers(seed):
    for k in range(30):
        try:
            check_branch(*program_of_integers(1000 * seed + k))
        except ampi.KernelError:  # Numba has no such operation either
            continue


FOLDED = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "max": np.maximum, "min": np.minimum,
    "floordiv": np.floor_divide, "mod": np.remainder, "lt": np.less, "ge": np.greater_equal, "eq": np.equal,
    "lshift": np.left_shift, "rshift": np.right_shift, "neg": np.negative,
}  # fmt: skip


@pytest.mark.parametrize("name", FOLDED)
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "uint32", "int64", "uint64"])
def test_sizes_of_cuda_kernels_wrap(name, dtype):
    """Integers that are known when a launch is lowered have the values of compiled code, as NumPy's arrays have."""
    ty, info = getattr(types, dtype), np.iinfo(dtype)
    edges = {info.min, info.min + 1, info.max, info.max // 2 + 1, 0, 1, 3, 7}
    for first in edges:
        for second in edges if name != "neg" else {0}:
            if name.endswith("shift") and not 0 <= second < info.bits:
                continue
            if name in ("floordiv", "mod") and second == 0:
                continue
            values = [first, second][: 1 if name == "neg" else 2]
            with np.errstate(all="ignore"):
                expected = FOLDED[name](*(np.array([v], dtype) for v in values))[0]
            result = types.boolean if expected.dtype == bool else ty
            found = evaluated(ir.Op(name, tuple(ir.Const(v, ty) for v in values), result))
            assert found == expected and type(found) is type(expected.item()), (name, values)
    assert evaluated(ir.Op("lshift", (ir.Const(1, ty), ir.Const(10**3, types.int64)), ty)) is None


@cuda.jit
def overflowing(a, b):
    t = cuda.threadIdx.x
    shared = cuda.shared.array(8, np.float64)
    shared[t] = a[t]
    half = 4611686018427387904
    rounds = half + half
    while rounds < 0:
        cuda.syncthreads()
        shared[t] = shared[t] * shared[t]
        cuda.syncthreads()
        rounds = 0
    b[t] = shared[t]


def test_integers_wrap():
    """The number of iterations of an unrolled loop is that of compiled code, whose integers wrap around."""
    a, b = np.linspace(0.5, 1.5, 8), np.zeros(8)
    overflowing[1, 8](a, b)
    np.testing.assert_array_equal(b, a * a)
    gradient = ampi.grad(lambda x: ampi.numpy.sum(of(overflowing[1, 8], x)))(a)
    np.testing.assert_allclose(gradient, 2 * a, rtol=1e-14)


def of(launch, x):
    b = ampi.numpy.zeros(8)
    launch(x, b)
    return b

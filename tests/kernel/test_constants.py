"""Constants in kernels: indices of several types, integers that wrap around, exponents that are not finite."""

import linecache
import math
import random

import numpy as np
import pytest

import ampi


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

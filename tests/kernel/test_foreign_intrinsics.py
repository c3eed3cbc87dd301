"""Intrinsics of other packages in kernels, called with integers: values are Numba's, and gradients those of the same
programs in plain Python."""

import importlib
import os
import random
import subprocess
import sys
from fractions import Fraction

import llvm_functions
import numba
import numpy as np
import pytest
from llvm_functions import as_number, ones_in
from numba.extending import intrinsic
from written import examined, written

import ampi

cache = importlib.import_module("ampi.kernel.runtime.cache")
A = np.array([0.3, -0.8, 1.2, 0.5, 0.7])
INDEX = np.array([4, 0, 3, 255, 7], dtype=np.uint8)


def counted(a, index):
    s = 0.0
    for i in range(a.shape[0]):
        s = s * 0.5 + a[i] ** 2 * ones_in(index[i])
        if llvm_functions.higher(ones_in(index[i] & np.uint8(6)), 1):
            s *= a[0]
    return s


def counted_by_hand(a, index):
    s = 0.0
    for i in range(a.shape[0]):
        s = s * 0.5 + a[i] ** 2 * int(index[i]).bit_count()
        if (int(index[i]) & 6).bit_count() > 1:
            s *= a[0]
    return s


def numbers(a, index):
    bits = 4607182418800017408  # of 1.0
    foreign_1_llvm_functions_as_number = a[0] * a[1]
    return as_number(bits + int(index[0])) * foreign_1_llvm_functions_as_number + as_number(4611686018427387904)


def numbers_by_hand(a, index):
    return np.array([4607182418800017408 + int(index[0])]).view(float)[0] * a[0] * a[1] + 2.0


def threads(a, index):
    b = np.empty_like(a)
    for i in numba.prange(a.shape[0]):
        b[i] = a[i] ** 3 + ones_in(index[i])
    return b.sum()


def threads_by_hand(a, index):
    return np.sum(a**3) + sum(int(i).bit_count() for i in index)


KERNELS = [
    (counted, counted_by_hand, {}),
    (numbers, numbers_by_hand, {}),
    (threads, threads_by_hand, {"parallel": True}),
]


@pytest.mark.parametrize("f, by_hand, options", KERNELS, ids=lambda f: getattr(f, "__name__", ""))
def test_derivatives(f, by_hand, options):
    kernel = ampi.kernel(f, **options)
    program = lambda a: kernel(a, INDEX)
    assert kernel(A, INDEX) == pytest.approx(by_hand(A, INDEX), rel=1e-14)
    gradient = np.array([by_hand(A + 1e-30j * e, INDEX).imag / 1e-30 for e in np.eye(A.size)])
    np.testing.assert_allclose(ampi.grad(program)(A), gradient, rtol=1e-13)
    _, tangents = ampi.jvp(program, (A,), (np.eye(A.size),), vectorised=True)
    np.testing.assert_allclose(tangents, gradient, rtol=1e-13)
    d = np.cos(A)
    expected = (ampi.grad(program)(A + 1e-6 * d) - ampi.grad(program)(A - 1e-6 * d)) / 2e-6
    np.testing.assert_allclose(ampi.hvp(program, A, d), expected, rtol=1e-6, atol=1e-9)


IN_PYTHON = {
    "ones_in": lambda x: int(x).bit_count(),
    "higher": lambda x, y: x > y,
    "as_number": lambda bits: float(np.array([bits]).view(float)[0]),
    "less_than_sum": lambda x, y, z, w: x < y + z + w,
    "fused": lambda x, y, z: x * y + z,
}
DTYPES = [np.int8, np.uint8, np.int16, np.uint32, np.int64, np.bool_]


class Writer:
    """Writes ``kernel(a, index)``, with integers from intrinsics as weights, indices, bounds, conditions and
    arguments."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def integer(self, depth=2):
        atoms = ["index[i]", "index[0]", "i", "3", "(i & 5)", "len(a)"]
        if not depth or self.random.random() < 0.3:
            return self.random.choice(atoms)
        x, y = self.integer(depth - 1), self.integer(depth - 1)
        return self.random.choice([f"ones_in({x})", f"ones_in({x})", f"({x} + {y})", f"int(higher({x}, {y}))"])

    def condition(self):
        x, y, z, w = (self.integer(1) for _ in range(4))
        return self.random.choice([f"higher({x}, {y})", f"less_than_sum({x}, {y}, {z}, {w})", f"{x} > ones_in({y})"])

    def statement(self):
        place = f"a[{self.integer()} % len(a)]"
        value = self.random.choice([f"s * 0.3 + {place} ** 2", f"np.sin({place}) * s", f"{place} * a[0]"])
        return self.random.choice(
            [
                f"s = {value} + 0.1 * {self.integer()}",
                f"s += as_number(4607182418800017408 + {self.integer()}) * {place}",
                f"s = fused(s, 0.3 * {place}, {value})",
                f"if {self.condition()}:\n    s = {value}",
                f"for k in range({self.integer(1)}):\n    s = 0.5 * s + {place} * (k + 1)",
                f"s = {value} if {self.condition()} else s * a[1]",
            ]
        )

    def program(self, on_threads):
        loop = "for i in numba.prange(len(a)):" if on_threads else "for i in range(len(a)):"
        lines = ["def kernel(a, index):", "    r = 0.0", f"    {loop}", "        s = a[i]"]
        for _ in range(3):
            lines += ["        " + line for line in self.statement().splitlines()]
        return "\n".join([*lines, "        r += s * (i + 1)", "    return r", ""])


@pytest.mark.parametrize("seed", [pytest.param(s, marks=pytest.mark.slow if s % 20 else ()) for s in range(80)])
def test_drawn_programs(seed):
    on_threads = seed % 3 == 2
    text = Writer(seed).program(on_threads)
    functions = {name: getattr(llvm_functions, name) for name in IN_PYTHON}
    index = np.minimum(INDEX, 100).astype(DTYPES[seed % len(DTYPES)])
    numbers = [int(i) for i in index]
    with examined(text, seed):
        plain = written(text, f"intrinsics in Python {seed}", np=np, numba=numba, **IN_PYTHON)["kernel"]
        drawn = written(text, f"intrinsics {seed}", np=np, numba=numba, **functions)["kernel"]
        kernel = ampi.kernel(drawn, parallel=on_threads)
        value, gradient = ampi.value_and_grad(lambda a: kernel(a, index))(A)
        expected = [plain(A + 1e-30j * e, numbers).imag / 1e-30 for e in np.eye(A.size)]
        assert value == pytest.approx(plain(A, numbers), rel=1e-12)
        np.testing.assert_allclose(gradient, expected, rtol=1e-11, atol=1e-12)


def of_a_number(a, index):
    return a[0] * llvm_functions.as_bits(a[1])


def kernel_with(factor):
    @intrinsic
    def function(typing_context, x):
        def generate(context, builder, signature, arguments):
            return builder.mul(arguments[0], arguments[0].type(factor))

        return x(x), generate

    return lambda a, i: a[0] * function(i[0])


@ampi.kernel
def compensated(a, b):
    """A compensated dot product, and the sum of its rounding errors, whose derivative is zero."""
    s = e = 0.0
    for i in range(len(a)):
        p = a[i] * b[i]
        e += llvm_functions.fused(a[i], b[i], -p)
        s += p
    return s + e, e


def test_rounding_errors_of_products():
    b = np.sin(5 * A)
    with ampi.Tape() as tape:
        x, y = tape.watch(A), tape.watch(b)
        total, error = compensated(x, y)
    exact = [Fraction(u) * Fraction(v) - Fraction(u * v) for u, v in zip(A.tolist(), b.tolist(), strict=True)]
    assert ampi.value(error) != 0.0
    np.testing.assert_allclose(ampi.value(error), float(sum(exact)), rtol=1e-13)
    np.testing.assert_allclose(tape.gradient(total, [x, y]), [b, A], rtol=1e-14)


def not_fused(a, index):
    return llvm_functions.twice_rounded(a[0], a[1], a[2])


REFUSED = [
    (not_fused, r"llvm_functions\.twice_rounded with other arguments than .*integers"),
    (of_a_number, r"llvm_functions\.as_bits with other arguments than .*integers(.|\n)*custom_jvp"),
    (kernel_with(3), r"function is not an attribute of its module(.|\n)*top level"),
]


@pytest.mark.parametrize("f, message", REFUSED, ids=["twice_rounded", "of_a_number", "nowhere"])
def test_others_are_refused(f, message):
    with pytest.raises(ampi.KernelError, match=message):
        ampi.grad(lambda a: ampi.kernel(f)(a, INDEX))(A)


PROGRAM = """
import sys, numpy as np, ampi
{definition}
@ampi.kernel
def kernel(a, i):
    return a * ones(i)
print(ampi.grad(kernel)(0.5, 7))
"""


OF_THE_SCRIPT = """
from numba.extending import intrinsic
@intrinsic
def ones(typing_context, x):
    return x(x), lambda context, builder, signature, arguments: arguments[0]
"""


def test_another_process_takes_them_from_the_cache(tmp_path):
    folders = [os.path.dirname(__file__), *sys.path]
    environment = {**os.environ, "AMPI_CACHE_DIR": str(tmp_path / "kept"), "PYTHONPATH": os.pathsep.join(folders)}

    def run(definition):
        (tmp_path / "program.py").write_text(PROGRAM.format(definition=definition))
        command = [sys.executable, tmp_path / "program.py"]
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert [run("from llvm_functions import ones_in as ones").stdout for _ in range(2)] == ["3.0\n"] * 2
    source = (
        "from llvm_functions import intrinsic, types, cgutils, ir\n@intrinsic\ndef ones(context, x):\n    return None"
    )
    assert "is defined in the main script" in run(source).stderr


def test_what_such_a_function_is_belongs_to_the_key():
    assert cache.identity(kernel_with(3)) == cache.identity(kernel_with(3))
    assert cache.identity(kernel_with(3)) != cache.identity(kernel_with(4))

"""Parsed kernels written out as Python again, for the tests of the parser."""

import numba
import numpy as np
from numba import prange, typeof

from ampi.kernel import ir, kernel
from ampi.kernel.codegen import emit
from ampi.kernel.frontend.parse import parse
from ampi.kernel.normalise.array_phi import resolve
from ampi.kernel.normalise.lower import lower


def flat(values):
    for value in values:
        if isinstance(value, tuple):
            yield from flat(value)
        else:
            yield value


def compile_ir(function):
    """The IR as a function compiled by Numba."""
    (function,) = emit.spelled(function)
    namespace = dict(function.constants)
    exec(emit.HEADER + emit.source(function), namespace)
    return numba.njit(error_model="numpy")(namespace[function.name])


def copies(arguments):
    return tuple(
        a.copy() if isinstance(a, np.ndarray) else type(a)(*copies(a)) if hasattr(a, "_fields")
        else copies(a) if isinstance(a, tuple) else a
        for a in arguments
    )  # fmt: skip


def check(function, *arguments):
    """Parse, lower, write out and run a function; compare results and all arrays with the function itself."""
    lowered = resolve(lower(parse(function, tuple(map(typeof, arguments)))))
    for node in ir.walk(lowered.body[:-1]):
        assert not isinstance(node, (ir.Break, ir.Continue, ir.Return))
    mine, theirs = copies(arguments), copies(arguments)
    got = compile_ir(lowered)(*flat(mine))
    expected = numba.njit(error_model="numpy")(function)(*theirs)
    got = tuple(flat(got)) if isinstance(got, tuple) else (got,)
    expected = () if expected is None else tuple(flat(expected)) if isinstance(expected, tuple) else (expected,)
    assert len(got) == len(expected)
    for a, b in zip((*got, *flat(mine)), (*expected, *flat(theirs)), strict=True):
        np.testing.assert_array_equal(a, b)
    return lowered


def numbers(*shape, dtype=float):
    return np.random.default_rng(1).random(shape).astype(dtype)


@kernel
def forever(n):
    return forever(n - 1)


def carried(x):
    t = 0.0
    for i in prange(len(x)):
        x[i] += t
        t = x[i]
    return t


def reduced_and_read(x):
    s = 0.0
    for i in prange(len(x)):
        s += x[i]
        x[i] = s
    return s

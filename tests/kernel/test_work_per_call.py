"""Instructions of Python that a repeated call of a kernel takes while a tape records, and in a sweep."""

import numpy
import pytest
from instructions import counted, instructions

import ampi
import ampi.numpy as np

FEW, MANY = 10, 30


@ampi.kernel
def five(a, b, c, d, e, s):
    for i in range(len(a)):
        a[i] += s * b[i] * c[i] + d[i] * e[i]


@ampi.kernel
def eight(a, b, c, d, e, f, g, h, s):
    for i in range(len(a)):
        a[i] = s * b[i] * c[i] + d[i] * e[i] + f[i] * g[i] * h[i]


def counts(kernel, arrays, calls):
    """Return the numbers for recording so many calls, and for their sweep."""

    def loop():
        for _ in range(calls):
            kernel(*given, 0.5)

    with ampi.Tape() as tape:
        x = tape.watch(numpy.full(4, 0.1))
        given = [x * 1.0 for _ in range(arrays)]
        recorded = instructions(loop)
        y = np.sum(given[0])
    return recorded, instructions(tape.gradient, y, x)


@counted
@pytest.mark.parametrize("kernel, arrays, most", [(five, 5, (430, 330)), (eight, 8, (505, 365))])
def test_work_per_call(kernel, arrays, most):
    counts(kernel, arrays, MANY)  # after which all of it is specialised
    few, many = (counts(kernel, arrays, calls) for calls in (FEW, MANY))
    found = [(n - m) / (MANY - FEW) for n, m in zip(many, few)]
    assert all(n <= limit for n, limit in zip(found, most)), found

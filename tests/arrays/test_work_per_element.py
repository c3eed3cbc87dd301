"""Operations on elements and small arrays execute few instructions of Python while a tape records.

Limits are a tenth above what was counted; a form that takes the general way exceeds its own several times.
"""

import math

import numpy as np
import pytest
from instructions import counted, instructions

import ampi
import ampi.numpy as anp
from ampi.programs import numbers

FORMS = {
    "s += x[i, j] * y[i, j]": 700,
    "c[i, j] = x[i, j] * y[i, j]": 750,
    "w[()] += x[i, j]": 680,
    "s += x[i, j] ** y[i, j]": 850,
    "s += float(x[i, j])": 520,
    "s += math.sin(x[i, j])": 800,
    "s += math.atan2(x[i, j], y[i, j])": 1200,
    "s += x[i, j] % 0.3": 1200,
    "s += x[i, j] // 0.3": 800,
    "s += divmod(x[i, j], 0.3)[1]": 1000,
    "c[i, j : j + 3] = x[i, j]": 800,
    "c[i, j : j + 3] = 0.5": 570,
    "c.flat[i * 12 + j] = x[i, j]": 950,
    "p[i] = p[j] * v + p[i]": 1950,
    "u = u * 0.5 + abs(p[i]) * p[j].real": 1800,
    "s += numpy.mean(x[i, j : j + 3])": 890,
    "s += x[i, j : j + 3].max()": 1270,
    "s += numpy.prod(x[i, j : j + 3])": 870,
    "s += numpy.clip(x[i, j], 0.6, 0.9)": 1000,
    "t = x[i, j : j + 3].copy()": 500,
    "a, b, d = x[i, j : j + 3]": 1080,
    "t = x[i, j : j + 3] * y[i, j]": 1190,
    "t = x[i, j : j + 3] * y[i, j : j + 3]": 950,
    "t += x[i, j : j + 3]": 720,
    "t *= 0.5": 1150,
    "t /= x[i, j]": 1850,
    "c[i, j : j + 3] += x[i, j : j + 3] * y[i, j]": 2050,
    "a, b, d = x[i, j : j + 3] * y[i, j]": 1550,
    "t = numpy.array([x[i, j], y[i, j]])": 800,
}
N = 12
MOST_ELEMENTS = 64


def function_of(form):
    text = f"""
def loops(numpy, math, float, x, y, c, w, t):
    s = u = x[0, 0] * 0.0
    p = x[0] * (1 + 0.5j)
    v = p[0] * 0.5
    for i in range({N}):
        for j in range({N - 3}):
            {form}
"""
    names = {}
    exec(compile(text, "<form>", "exec"), names)
    return names["loops"]


@counted
@pytest.mark.parametrize("form", FORMS)
def test_work_per_operation(form):
    function, start = function_of(form), np.random.default_rng(5).uniform(1.0, 1.5, (N, N))
    counts = []
    for _ in range(2):  # the first tape prepares
        with ampi.Tape() as tape:
            x, y = tape.watch(start), tape.watch(start * 0.5)
            given = x, y, x * 1.0, anp.zeros(()), x[0, :3] * 1.0
            convert = lambda v: numbers.convert(float, v)
            counts.append(instructions(function, anp, OURS if "math" in form else math, convert, *given))
    assert counts[1] / (N * (N - 3)) <= FORMS[form]


OURS = numbers.make_math()

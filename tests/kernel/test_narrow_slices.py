"""Slices of one element, which are broadcast along longer axes: random programs, compared with Python and Numba."""

import random

import numba
import numpy as np
import pytest
from derivative_check import difference
from second_check import check_second
from written import examined, written

import ampi

PARTS = ["p[:, {k}:{next}]", "p[{k}:{next}]", "p[-1:]", "p[:, -1:]", "p[:1]", "p.T[{k}:{next}].T", "v[{k}:{next}]",
         "v[-1:]", "p[{k}:{next}, {k}:{next}]"]  # fmt: skip
WHOLE = ["p", "v", "p * v", "p.T.T", "np.sin(p)"]


def program(seed):
    """A random function from a matrix of three columns and a vector to a number."""
    draw = random.Random(seed)

    def part():
        k = draw.randrange(3)
        return draw.choice(PARTS).format(k=k, next=k + 1)

    lines, names = [], []
    for n in range(draw.randint(3, 6)):
        left = draw.choice([part(), part(), *WHOLE, *names])
        right = draw.choice([part(), *WHOLE, *names])
        form = draw.choice(["{a} + {b}", "{a} * {b}", "{a} - {b}", "np.maximum({a}, {b})", "{a} / (2.0 + {b} * {b})"])
        lines.append(f"    a{n} = {form.format(a=left, b=right)}")
        names.append(f"a{n}")
        lines.append(f"    s += np.tanh({names[-1]}).sum()")
    return "\n".join(["def kernel(p, v):", "    s = 0.0", *lines, "    return s * (p[:, 0:1].T - p[:, 1:2]).sum()", ""])


def check(text, seed):
    plain = written(text, f"slices {seed}", np=np)["kernel"]
    kernel = ampi.kernel(plain)
    generator = np.random.default_rng(seed)
    p, v = generator.uniform(0.3, 1.5, (3, 3)), generator.uniform(0.3, 1.5, 3)
    value = plain(p, v)
    np.testing.assert_allclose([numba.njit(plain)(p, v), kernel(p, v)], value, rtol=1e-12)
    bars, h = ampi.grad(kernel, (0, 1))(p, v), 1e-5
    for _ in range(3):
        d, e = generator.normal(size=(3, 3)), generator.normal(size=3)
        along = lambda t, d=d, e=e: plain(p + t * d, v + t * e)
        slope = difference(along, h)
        np.testing.assert_allclose((bars[0] * d).sum() + bars[1] @ e, slope, rtol=1e-7, atol=1e-7)
    if seed % 4 == 1:
        check_second(kernel, [p, v], 1e-11, rough=1e-5)


@pytest.mark.parametrize("seed", [pytest.param(s, marks=[pytest.mark.slow] if s % 16 else []) for s in range(24)])
def test_programs(seed):
    text = program(seed)
    with examined(text, f"program {seed}"):
        check(text, seed)


@ampi.kernel
def differences(p):
    x = p[:, 2:3]
    return (x.T - x * 2.0).sum()


def test_a_slice_that_is_empty():
    p = np.ones((3, 3))
    np.testing.assert_allclose(ampi.grad(differences)(p), np.outer(np.ones(3), [0.0, 0.0, -3.0]))
    with pytest.raises(ValueError, match=r"which is to stretch, is empty|unable to broadcast"):  # by Numba itself
        ampi.grad(differences)(np.ones((3, 2)))
    with pytest.raises(ValueError, match="a slice of one element, which is to stretch, is empty"):
        ampi.jvp(differences, np.ones((3, 2)), np.ones((3, 2)))


@ampi.kernel
def on_its_own(p):
    x = p[2:3]
    return (x * x + x).sum()


def test_an_empty_slice_on_its_own():
    np.testing.assert_array_equal(ampi.grad(on_its_own)(np.ones((2, 3))), np.zeros((2, 3)))

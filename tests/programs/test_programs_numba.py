"""Functions that a program gives to Numba's other decorators: they find the modules that Numba knows.

Each program says itself what is right: it holds what is compiled against plain Python. It runs by itself as well.
"""

import itertools
import textwrap

import pytest
from program_runs import check

import ampi

HEAD = """
    import math
    import math as m
    import numba
    import numpy as np
    from math import sqrt as root
    from numpy import sqrt
    from mpi4py import MPI
    scale = 2.0
"""
TAIL = """
    def offset(v):
        return v + 0.25
    helper = numba.njit(offset)
"""
BODIES = {
    "a module": "math.sqrt(v) + np.cos(v)",
    "a module by another name": "m.sqrt(v) + m.cos(v)",
    "functions by name": "root(v) * sqrt(v)",
    "variables": "scale * np.sqrt(v) + np.pi + later",
    "functions that come later": "helper(v) * scale",
}
DECORATORS = {
    "vectorize": "@numba.vectorize\ndef f(v): return {body}",
    "vectorize with types": "@numba.vectorize(['f8(f8)'])\ndef f(v): return {body}",
    "njit with types": "@numba.njit('f8(f8)')\ndef f(v): return {body}",
    "cfunc": "@numba.cfunc('f8(f8)')\ndef g(v): return {body}\nf = g.ctypes",
    "guvectorize": "@numba.guvectorize(['void(f8[:], f8[:])'], '(n)->(n)')\ndef g(a, out):\n"
    "    for i in range(len(a)):\n        v = a[i]\n        out[i] = {body}\nf = lambda v: g(np.array([v, v]))[1]",
    "stencil": "@numba.stencil\ndef g(a):\n    v = a[0]\n    return {body} + 0.0 * a[1]\n"
    "f = lambda v: g(np.array([v, v, v]))[1]",
    "jitclass": "from numba.experimental import jitclass\n@jitclass([('v', numba.float64)])\nclass C:\n"
    "    def __init__(self, v): self.v = v\n    def get(self):\n        v = self.v\n        return {body}\n"
    "f = lambda v: C(v).get()",
    "register_jitable": "@numba.extending.register_jitable\ndef g(v): return {body}\n"
    "@numba.njit\ndef f(v): return g(v)",
    "overload": "def g(v): return {body}\n@numba.extending.overload(g)\ndef g_for_numba(v):\n"
    "    return lambda v: {body}\n@numba.njit\ndef f(v): return g(v)",
}
SEES_WHAT_COMES = {"vectorize", "register_jitable", "jitclass"}  # what the others name must be there before them


def source_of(decorator, body):
    before = "later = 0.5\n" + textwrap.dedent(TAIL) if decorator not in SEES_WHAT_COMES else ""
    after = "" if before else "later = 0.5\n" + textwrap.dedent(TAIL)
    python = f"def expected(v): return {BODIES[body]}".replace("helper", "offset")
    made = DECORATORS[decorator].replace("{body}", BODIES[body])
    return "\n".join([textwrap.dedent(HEAD), before, made, after, python])


SOME = list(BODIES)[::4]


@pytest.mark.parametrize("body", [pytest.param(b, marks=[pytest.mark.slow] * (b not in SOME)) for b in BODIES])
@pytest.mark.parametrize("decorator", DECORATORS)
def test_passive(program, decorator, body):
    """Of constants they give what the program by itself gets."""
    source = source_of(decorator, body) + textwrap.dedent("""
        assert abs(f(1.75) - expected(1.75)) < 1e-12, (f(1.75), expected(1.75))
        k = 3.0
        y = k * float(f(1.75))
    """)
    assert float(ampi.trace(program(source), "k", "y")[1]) == pytest.approx(_value(source), rel=1e-12)


def _value(source):
    space = {"__name__": "by_itself"}
    exec(compile(source, "by itself", "exec"), space)
    return space["y"] / space["k"]


@pytest.mark.parametrize(
    "decorator, body",
    [
        pytest.param(decorator, body, marks=[pytest.mark.slow] * (decorator in ("stencil", "vectorize with types")))
        for decorator, body in itertools.product(DECORATORS, SOME)
    ],
)
def test_active_by_themselves(program, decorator, body):
    """Numbers that carry derivatives: the gradient, or an error or warning with the line."""
    source = source_of(decorator, body) + "\nk = 1.75\ny = f(k) * 1.0\n"
    line = next(n for n, text in enumerate(source.splitlines(), 1) if text.startswith("y = "))
    try:
        check(program(source), ["k"], ["y"])
    except (ampi.ActivityError, ampi.ActivityWarning, ampi.KernelError) as error:
        assert decorator not in ("vectorize", "vectorize with types", "njit with types"), error
        assert "prog.py:" in str(error), error
        assert line


@pytest.mark.parametrize("body", SOME)
@pytest.mark.parametrize("decorator", ["vectorize", "vectorize with types", "njit with types", "stencil"])
def test_active_in_kernels(program, decorator, body):
    call = "g(np.array([v, v, v]))[1]" if decorator == "stencil" else "f(v)"
    source = source_of(decorator, body) + textwrap.dedent(f"""
        @numba.njit
        def kernel(v, out):
            for i in range(len(out)):
                out[i] = {call} * (i + 1)
        k = 1.75
        out = np.zeros(3)
        kernel(k, out)
        y = np.sum(out)
    """)
    found = check(program(source), ["k"], ["y"])
    assert found.values[0] == pytest.approx(6 * _value(source + "\nk = 1.0; y = expected(1.75)"), rel=1e-12)

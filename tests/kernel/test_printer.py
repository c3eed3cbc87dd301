"""The printed form of the intermediate representation."""

import textwrap

import numpy as np
import pytest
from numba import types

import ampi
from ampi.kernel import ir, prange
from ampi.kernel.ir import ssa
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.printer import expression, printed, statement


def smooth(u, v, c):
    total = 0.0
    for i in prange(1, len(u) - 1):
        t = u[i - 1] + u[i + 1]
        if t > 0.5:
            v[i] = u[i] + c * t * t
        total += v[i]
    while total > 1.0:
        total *= 0.5
    return total


def kinds(base):
    """All subclasses of a node class."""
    for made in base.__subclasses__():
        yield made
        yield from kinds(made)


def form(node):
    """The printed form without line numbers."""
    return [line.split("  # ")[0].rstrip() for line in printed(node).splitlines()]


def lines(text):
    return textwrap.dedent(text).strip("\n").splitlines()


@pytest.fixture(scope="module")
def parsed():
    return ampi.kernel(smooth).lower_ir(np.ones(5), np.ones(5), 0.3)


@pytest.mark.parametrize("kind", sorted({*kinds(ir.Stmt)}, key=lambda k: (k.__module__, k.__name__)))
def test_every_statement_has_a_printed_form(kind):
    assert statement.dispatch(kind) is not statement.dispatch(object), f"{kind.__name__} has none"


def test_parsed_form(parsed):
    assert form(parsed) == lines("""
        function smooth(u: array(float64, 1d, C), v: array(float64, 1d, C), c: float64)
          total: float64 = 0.0
          for i: int64 in 1 .. u.shape[0] - 1 parallel reducing total by add
            t: float64 = u[i - 1] + u[i + 1]
            if t > 0.5
              v[i] = u[i] + c * t * t
            total: float64 = total + v[i]
          while total > 1.0
            total: float64 = total * 0.5
          return total
    """)


def test_single_assignment_form(parsed):
    assert form(construct(parsed)) == lines("""
        function smooth(u: array(float64, 1d, C), v: array(float64, 1d, C), c: float64)
          t@1: int64 = u.shape[0] - 1
          loop i@1: int64 in 1 .. t@1 parallel
            t@2: int64 = i@1 - 1
            t@3: float64 = u[t@2]
            t@4: int64 = i@1 + 1
            t@5: float64 = u[t@4]
            t@6: float64 = t@3 + t@5
            t@7: bool = t@6 > 0.5
            if t@7
              t@8: float64 = u[i@1]
              t@9: float64 = c * t@6
              t@10: float64 = t@9 * t@6
              t@11: float64 = t@8 + t@10
              v[i@1] = t@11
            t@12: float64 = v[i@1]
            total@2: float64 = total@1 + t@12
          carry total@1: float64 from 0.0 to total@2
          t@13: bool = total@1 > 1.0
          loop trip@1 while go_on@1
            total@4: float64 = 0.5 * total@3
            t@14: bool = total@4 > 1.0
            trip@2: int64 = trip@1 + 1
          carry total@3: float64 from total@1 to total@4
          carry go_on@1: bool from t@13 to t@14
          carry trip@1: int64 from 0 to trip@2
          return total@3
    """)


def test_lines_of_the_source_stand_at_the_margin(parsed):
    first = smooth.__code__.co_firstlineno
    numbers = [int(line.rpartition("# ")[2]) for line in printed(parsed).splitlines()[1:]]
    assert numbers == [first + k for k in (1, 2, 3, 4, 5, 6, 7, 8, 9)]


def variable(name):
    return ir.Var(name, types.float64)


def operation(name, *args):
    return ir.Op(name, args, types.float64)


a, b, c = map(variable, "abc")


@pytest.mark.parametrize(
    "node, text",
    [
        (operation("mul", operation("add", a, b), c), "(a + b) * c"),
        (operation("add", a, operation("mul", b, c)), "a + b * c"),
        (operation("sub", a, operation("sub", b, c)), "a - (b - c)"),
        (operation("sub", operation("sub", a, b), c), "a - b - c"),
        (operation("neg", operation("mul", a, b)), "-(a * b)"),
        (operation("pow", operation("neg", a), b), "(-a) ** b"),
        (operation("sqrt", operation("add", a, b)), "sqrt(a + b)"),
        (ir.Op("cast", (a,), types.float32), "float32(a)"),
        (ir.Const(1, types.int64), "1"),
        (ir.Const(1, types.int32), "int32(1)"),
        (ir.Const(1.0, types.float32), "float32(1.0)"),
        (ir.Op("not", (operation("lt", a, b),), types.boolean), "not a < b"),
    ],
)
def test_expressions(node, text):
    assert expression(node) == text


def test_what_has_no_printed_form_is_an_error():
    class Unknown(ir.Stmt):
        pass

    with pytest.raises(NotImplementedError, match="Unknown"):
        printed(Unknown())
    with pytest.raises(NotImplementedError, match="Expr"):
        expression(ir.Expr())


def test_a_join_and_a_carried_scalar(parsed):
    body = (
        ssa.Branch(ir.Var("go", types.boolean), (), (), (ssa.Join(a, b, c),)),
        ssa.Loop("k", ir.Var("k", types.int64), ssa.ZERO, ssa.ONE, (), (ssa.Carried(a, b, c),), step=-1),
    )
    assert form(body) == lines("""
        if go
        join a: float64 from b or c
        loop k: int64 in 0 .. 1 backward
        carry a: float64 from b to c
    """)

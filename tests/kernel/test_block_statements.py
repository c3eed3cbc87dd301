"""Every statement that contains statements, in every pass before single assignment form.

A pass that does not know such a statement would change only a part of what is inside, or nothing.
"""

import itertools
from dataclasses import fields

import pytest
from kernel_checks import load
from numba import types

from ampi.kernel import ir
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.rebuild import names_of
from ampi.kernel.ir.verifier import verify
from ampi.kernel.pipeline import ALWAYS, PASSES, State

INT, FLOAT = types.int64, types.float64
X, R, AGAIN = ir.Var("x", FLOAT), ir.Var("r", FLOAT), ir.Var("again", types.boolean)
TRUE, FALSE = ir.Const(True, types.boolean), ir.Const(False, types.boolean)
VECTOR, MATRIX = types.Array(FLOAT, 1, "C"), types.Array(FLOAT, 2, "C")
SQUARE = ir.Op("mul", (X, X), FLOAT)
NESTED = "tuple[Stmt, ...]"


def number(value):
    return ir.Const(value, INT)


def element(array, *index):
    return ir.Load(array, tuple(map(number, index)), FLOAT)


def is_positive(x):
    return ir.Op("gt", (x, ir.Const(0.0, FLOAT)), types.boolean)


def statement_classes(base=ir.Stmt):
    for cls in base.__subclasses__():
        if cls.__module__ == ir.Stmt.__module__:
            yield cls
            yield from statement_classes(cls)


BLOCKS = {(cls.__name__, f.name) for cls in statement_classes() for f in fields(cls) if f.type == NESTED}

AROUND = {
    ("For", "body"): lambda body: (ir.For(ir.Var("k", INT), number(0), number(1), number(1), body),),
    ("While", "body"): lambda body: (
        ir.Assign(AGAIN, TRUE),
        ir.While(AGAIN, (*body, ir.Assign(AGAIN, FALSE))),
    ),
    ("If", "then"): lambda body: (ir.If(is_positive(X), body, (ir.Assign(R, X),)),),
    ("If", "orelse"): lambda body: (ir.If(is_positive(ir.Op("neg", (X,), FLOAT)), (ir.Assign(R, X),), body),),
    ("Custom", "body"): lambda body: (
        ir.Custom((ir.Assign(R, X), *body), (X,), (R,), (ir.Var("r_of_call", FLOAT),), (), None),
        ir.Assign(R, ir.Var("r_of_call", FLOAT)),
    ),
}

T, U, V = ir.Var("t", VECTOR), ir.Var("u", VECTOR), ir.Var("v", MATRIX)
I, J = ir.Var("i", INT), ir.Var("j", INT)
TOTAL = ir.Assign(R, ir.Op("add", (element(T, 0), element(T, 1)), FLOAT))

INSIDE = {
    "elements": (
        ir.Alloc(T, (number(2),), ir.Const(0.0, FLOAT)),
        ir.Store(T, (number(0),), X),
        ir.Accumulate(T, (number(1),), SQUARE),
        TOTAL,
    ),
    "from the end": (
        ir.Alloc(T, (number(2),), ir.Const(0.0, FLOAT)),
        ir.Store(T, (number(-2),), X),
        ir.Accumulate(T, (number(-1),), SQUARE),
        TOTAL,
    ),
    "part": (
        ir.Alloc(V, (number(2), number(2)), ir.Const(0.0, FLOAT)),
        ir.Alias(T, V, (number(1),)),
        ir.Store(T, (number(0),), X),
        ir.Store(V, (number(1), number(1)), SQUARE),
        TOTAL,
    ),
    "loop": (
        ir.Alloc(T, (number(2),), ir.Const(0.0, FLOAT)),
        ir.For(I, number(0), number(2), number(1), (ir.Store(T, (I,), X),)),
        ir.Accumulate(T, (number(1),), ir.Op("sub", (SQUARE, X), FLOAT)),
        TOTAL,
    ),
    "whole": (
        ir.Alloc(U, (number(2),), X),
        ir.Store(U, (number(1),), SQUARE),
        ir.Alloc(T, (number(2),), None),
        ir.Elementwise(T, (I,), (number(2),), (I,), ir.Load(U, (I,), FLOAT)),
        TOTAL,
    ),
    "copied": (
        ir.Alloc(U, (number(2),), None),
        ir.Elementwise(U, (J,), (number(2),), (J,), ir.Const(0.5, FLOAT)),
        ir.Alloc(T, (number(2),), None),
        ir.Elementwise(T, (I,), (number(2),), (I,), ir.Load(U, (I,), FLOAT)),
        ir.Assign(R, ir.Op("mul", (ir.Op("add", (element(T, 0), element(T, 1)), FLOAT), X), FLOAT)),
        ir.Assign(R, ir.Op("add", (R, SQUARE), FLOAT)),
    ),
    "growing": (
        ir.Alloc(T, (number(1),), ir.Const(0.0, FLOAT)),
        ir.Grow(T, number(2)),
        ir.Store(T, (number(0),), X),
        ir.Store(T, (number(1),), SQUARE),
        TOTAL,
    ),
}  # fmt: skip


def wrapped(inside, around):
    body = INSIDE[inside]
    for block in around:
        body = AROUND[block](body)
    return ir.Function(
        "f", (ir.Argument("x", FLOAT, ("x",)),), (*body, ir.Return((R,))), result="scalar"
    )  # fmt: skip


def test_every_block_is_drawn():
    assert set(AROUND) == BLOCKS


BEFORE_SSA = [step for step in PASSES if step.stage in ("normalise", "simplify") and step.run is not None]
SWITCHED = tuple({step.name: None for step in BEFORE_SSA if step.default != ALWAYS})


@pytest.mark.parametrize("inside", INSIDE)
@pytest.mark.parametrize("on", [(), *((name,) for name in SWITCHED), SWITCHED], ids=lambda on: "+".join(on) or "none")
def test_passes_treat_blocks_as_a_whole(inside, on):
    """With each pass alone, and with all: the result of the program stays."""
    pairs = itertools.product(AROUND, repeat=2) if on == SWITCHED or "scalarise" in on else ()
    for around in (*((block,) for block in AROUND), *pairs):
        if len(around) == 2 and around[0] == around[1]:  # they would share their variables
            continue
        program = wrapped(inside, around)
        assert ended(program, on)(3.0) == 12.0, around


def ended(program, on):
    """The program in its final form after the passes that cannot be switched off, and those given."""
    state = State()
    for step in BEFORE_SSA:
        if step.default == ALWAYS or step.name in on:
            program = step.run(program, state)
            verify(program, True, f"after {step.name}")
    program = construct(program)
    verify(program, False, "after ssa")
    state.names = names_of(program)
    program = state.run("prepare", program)
    return load(state.run("finish", state.run("vectorise", program), only=("destruct", "room")))

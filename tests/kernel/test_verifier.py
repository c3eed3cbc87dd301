"""The verifier finds every kind of fault planted in well-formed programs."""

from dataclasses import replace

import numpy as np
import pytest
from kernel_cases import CASES
from kernel_checks import activity_patterns, kernel_ir, make_arguments
from numba import types

import ampi
from ampi.kernel import ir, pipeline
from ampi.kernel.ir import ssa
from ampi.kernel.ir.construct import construct
from ampi.kernel.ir.ssa import every
from ampi.kernel.ir.verifier import Malformed, verify
from ampi.kernel.observations import watched
from ampi.kernel.options import Options

FLOAT, INT, ARRAY = types.float64, types.int64, types.Array(types.float64, 1, "C")
X, OUT, C = ir.Var("x", ARRAY), ir.Var("out", ARRAY), ir.Var("c", FLOAT)
A, B, I = ir.Var("a@1", FLOAT), ir.Var("b@1", FLOAT), ir.Var("i@1", INT)
ONE = ir.Const(1.0, FLOAT)
ZERO, FIRST = ir.Const(0, INT), (ir.Const(0, INT),)
TRUE = ir.Const(True, types.boolean)


def function(*body, arguments=(X, OUT, C), roles=None):
    given = tuple(ir.Argument(v.name, v.type, role=(roles or {}).get(v.name)) for v in arguments)
    return ir.Function("f", given, body, result="scalar")


def product(*operands, name="mul", type_=FLOAT):
    return ir.Op(name, operands, type_)


def loop(*body, carried=(), var=I):
    return ssa.Loop(var.name, var, ZERO, ir.Size(X, 0, INT), body, carried)


SOUND = (
    ir.Assign(A, ir.Load(X, FIRST, FLOAT)),
    loop(
        ir.Assign(ir.Var("t@1", FLOAT), product(A, C)),
        ir.Store(OUT, (I,), ir.Var("t@1", FLOAT)),
        carried=(ssa.Carried(ir.Var("s@1", FLOAT), ONE, ir.Var("t@1", FLOAT)),),
    ),
    ssa.Branch(TRUE, (ir.Assign(B, ONE),), (), (ssa.Join(ir.Var("j@1", FLOAT), B, ONE),)),
    ir.Return((ir.Var("j@1", FLOAT),)),
)
COMPLEX = ir.Const(1j, types.complex128)
FAULTS = {
    "use before definition": ("'a@1' is used before", [ir.Assign(B, product(A, C)), ir.Assign(A, ONE)]),
    "use outside of the loop": ("outside of the block", [loop(ir.Assign(A, ONE)), ir.Assign(B, A)]),
    "use in the other branch": ("outside of the block", [ssa.Branch(TRUE, (ir.Assign(A, ONE),), (ir.Assign(B, A),))]),
    "use after the branch": ("outside of the block", [ssa.Branch(TRUE, (ir.Assign(A, ONE),)), ir.Assign(B, A)]),
    "two definitions": ("defined twice", [ir.Assign(A, ONE), ir.Assign(A, ONE), ssa.Branch(TRUE, ())]),
    "an argument that is assigned": ("'c' is", [ir.Assign(C, ONE), ssa.Branch(TRUE, ())]),
    "types at a join": ("joins a", [ssa.Branch(TRUE, (), (), (ssa.Join(A, ONE, ZERO),))]),
    "types of what is carried": ("carries a", [loop(carried=(ssa.Carried(A, ZERO, ONE),))]),
    "a condition that is a number": ("a condition is expected", [ssa.Branch(ONE, ())]),
    "an index that is no integer": ("an integer is expected", [ir.Assign(A, ir.Load(X, (ONE,), FLOAT))]),
    "too many indices": ("2 indices", [ir.Store(OUT, (*FIRST, ZERO), ONE)]),
    "an element of another type": ("is no int64", [ir.Assign(I, ir.Load(X, FIRST, INT))]),
    "an axis that is not there": ("axis 1", [ir.Assign(I, ir.Size(X, 1, INT))]),
    "a complex number in a real array": ("instead of a float64", [ir.Store(OUT, FIRST, COMPLEX)]),
    "a number in an integer": ("instead of a int64", [ir.Assign(I, ONE)]),
    "an integer of numbers": ("is a int64", [ir.Assign(I, product(C, C, type_=INT))]),
    "a real product of complex numbers": ("of complex numbers", [ir.Assign(A, product(COMPLEX, C))]),
    "a selection of two types": ("selects from", [ir.Assign(A, product(TRUE, ONE, ZERO, name="select"))]),
    "an unknown operation": ("no operation 'product'", [ir.Assign(A, product(C, C, name="product"))]),
    "an operand too few": ("of 1 operands", [ir.Assign(A, product(C))]),
    "an unknown operation on matrices": ("'invert' on matrices", [ir.Fill(OUT, "invert", (X,))]),
    "an array of too few sizes": ("of 0 sizes", [ir.Alloc(ir.Var("w@1", ARRAY), (), None)]),
    "an array where a number is expected": ("a number is expected", [ir.Assign(A, product(X, C))]),
    "a number where an array is expected": ("is no array", [ir.Assign(A, ir.Load(C, FIRST, FLOAT))]),
    "another type": ("used as a", [ir.Assign(A, ir.Var("c", types.float32))]),
}  # fmt: skip


def test_a_sound_program_is_accepted():
    verify(function(*SOUND), False)
    verify(function(*SOUND), False, writable=["out"])


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault):
    message, body = FAULTS[fault]
    with pytest.raises(Malformed, match=message):
        verify(function(*body, ssa.Branch(TRUE, ()), ir.Return((C,))), False, "here")


@pytest.mark.parametrize("array, message", [("x", "declared written"), ("table", "to the constant")])
def test_stores_to_what_is_not_written(array, message):
    table = ir.Var("table", ARRAY)
    body = ir.Store(X if array == "x" else table, FIRST, ONE), ir.Return((C,))
    with pytest.raises(Malformed, match=message):
        verify(
            function(*body, arguments=(X, OUT, C, table), roles={"table": ("constant", "table")}),
            False,
            writable=["out"],
        )


def test_readonly_arrays_are_not_written():
    frozen = ir.Var("frozen", types.Array(FLOAT, 1, "C", readonly=True))
    with pytest.raises(Malformed, match="declared written"):
        verify(function(ir.Store(frozen, FIRST, ONE), arguments=(frozen,)), False)


def adjoint_of(name, **options):
    arguments = make_arguments(name)
    active = activity_patterns(CASES[name].function, arguments)[0]
    state = pipeline.State(Options(**options), active=frozenset(active))
    constructed = state.run("construct", kernel_ir(CASES[name].function, arguments))
    return pipeline._draft(state.run("analyse", state.run("prepare", constructed)), state)


def test_an_adjoint_that_reads_unsaved_values():
    """Without the forward statements, values that the others read are neither recomputed nor saved."""
    draft = adjoint_of("recurrence_in_memory")
    verify(draft.whole(), False)
    with pytest.raises(Malformed, match="neither recomputed nor saved"):
        verify(draft.reverse(), False)


def test_an_adjoint_that_changes_the_kernels_arguments():
    draft = adjoint_of("axpy")
    shadows = [shadow.name for shadow in draft.shadow.values()]
    verify(draft.whole(), False, writable=shadows)
    stored = [s for s in every(construct(kernel_ir(CASES["axpy"].function, make_arguments("axpy"))).body)]
    assert any(isinstance(s, ir.Store) for s in stored)
    argument = next(a for a in draft.primal.arguments if isinstance(a.type, types.Array))
    write = ir.Store(ir.Var(argument.name, argument.type), FIRST, ONE)
    whole = draft.whole()
    with pytest.raises(Malformed, match="declared written"):
        verify(replace(whole, body=(write, *whole.body)), False, writable=shadows)


def test_a_pass_that_breaks_the_program_is_named(monkeypatch):
    def broken(program, way):
        return replace(program, body=(ir.Assign(A, B), *program.body))

    table = tuple(replace(p, run=broken) if p.name == "loads" else p for p in pipeline.PASSES)
    monkeypatch.setattr(pipeline, "PASSES", table)
    monkeypatch.setenv("AMPI_VERIFY", "1")
    with pytest.raises(Malformed, match=r"axpy after loads, line .*: 'b@1' is used before"):
        adjoint_of("axpy")
    monkeypatch.setenv("AMPI_VERIFY", "0")
    adjoint_of("axpy")


def test_passes_can_be_printed_and_timed(monkeypatch, capsys):
    code = kernel_ir(CASES["axpy"].function, make_arguments("axpy"))
    monkeypatch.setenv("AMPI_PRINT_AFTER", "slice, sums")
    with watched() as seen:
        pipeline.build_adjoint(code, ["x"])
    printed = capsys.readouterr().err
    assert "--- after slice (prune)\nfunction axpy_adjoint(" in printed and "--- after sums" in printed
    assert "--- after gather" not in printed
    names = [o.name for o in seen]
    assert names.index("ssa") < names.index("adjoint") < names.index("slice") < names.index("destruct")
    assert all(o.seconds >= 0 and o.statements > 0 for o in seen)
    monkeypatch.delenv("AMPI_PRINT_AFTER")
    pipeline.build_adjoint(code, ["x"])
    assert not capsys.readouterr().err and len(seen) == len(names)
    monkeypatch.setenv("AMPI_PRINT_AFTER", "slice,gathr")
    with pytest.raises(ampi.KernelError, match=r"AMPI_PRINT_AFTER: unknown pass gathr; write some of parse, .*slice"):
        pipeline.build_adjoint(code, ["x"])


def test_explain_shows_the_passes(capsys):
    def scaled(x, c):
        for i in range(len(x)):
            x[i] *= c

    text = ampi.kernel(scaled).explain(np.ones(3), 2.0, passes=True)
    assert text + "\n" == capsys.readouterr().out
    rows = [line.split() for line in text.partition("\npasses\n")[2].splitlines()[1:]]
    assert ["read", "parse"] in [row[:2] for row in rows] and ["prune", "slice"] in [row[:2] for row in rows]
    assert all(int(row[2]) > 0 and float(row[3]) >= 0 and int(row[4]) > 0 for row in rows)
    assert "\npasses\n" not in ampi.kernel(scaled).explain(np.ones(3), 2.0)


def test_the_table_is_the_way():
    """Passes are in the order of `pipeline.STAGES`; each has a description and a valid default."""
    order = list(pipeline.STAGES)
    stages = [order.index(p.stage) for p in pipeline.PASSES]
    assert stages == sorted(stages)
    assert all(
        p.doc and p.default in ("always", "on", "separate", "unchecked", "after", "plain") for p in pipeline.PASSES
    )
    assert np.array_equal(sorted(set(stages)), range(len(order)))

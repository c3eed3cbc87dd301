"""Faster replacements of Numba's walks over the statements of a function, with the same results.

See `quick_compilation`, which puts them in place.

* Variables.  Numba asks each value in a statement for its class, one class after the other, in each of its passes: a
  seventh of the time of a compilation.  Here the usual classes are known.
* Phi nodes.  Numba compares each variable that one stands for with the targets of all assignments of a block, attribute
  by attribute.  Here assignments are found by name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import copy
from typing import Any

from llvmlite.ir import DoubleType, FloatType, IntType
from numba.core import ir
from numba.core.utils import PYVERSION

_WITHOUT_VARIABLES = {
    *(type(None), str, bool, int, float, complex, type, type(len), type(lambda: None)),
    *(ir.Loc, ir.Const, ir.Global, ir.FreeVar, ir.Arg),
}


def variables_in_statement(statement: Any) -> list[Any]:
    """The variables of a statement; as `numba.core.ir.Stmt.list_vars`."""
    return _variables(statement, statement.__dict__.values())


def variables_in_expression(expression: Any) -> list[Any]:
    """The variables of an expression; as `numba.core.ir.Expr.list_vars`."""
    return _variables(expression, expression._kws.values())


def _variables(owner: Any, values: Any) -> list[Any]:
    found: list[Any] = []
    for value in values:
        kind = type(value)
        if kind is ir.Var:
            found.append(value)
        elif kind is ir.Expr:
            found += variables_in_expression(value)
        elif kind not in _WITHOUT_VARIABLES:
            found += owner._rec_list_vars(value)
    return found


def without_phis(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Assign the values of phi nodes in the blocks that precede them; as ``PreLowerStripPhis._strip_phi_nodes``."""

    def strip(numbas: Any, function: Any) -> Any:
        ends: dict[int, list[tuple[Any, Any]]] = {}
        bodies: dict[int, list[Any]] = {}
        for label, block in function.blocks.items():
            kept = bodies[label] = []
            for statement in block.body:
                value = statement.value if isinstance(statement, ir.Assign) else None
                if not (isinstance(value, ir.Expr) and value.op == "phi"):
                    kept.append(statement)
                    continue
                for before, given in zip(value.incoming_blocks, value.incoming_values):
                    ends.setdefault(before, []).append((statement.target, given))
        blocks = {}
        for label, block in function.blocks.items():
            blocks[label] = copy(block)
            body = _with_assignments(bodies[label], ends.get(label, []), function.loc)
            if body is None:
                return original(numbas, function)
            blocks[label].body = body
        function.blocks = blocks
        return function

    return strip


def _with_assignments(body: list[Any], pairs: list[tuple[Any, Any]], loc: Any) -> list[Any] | None:
    """The statements of a block with assignments of values to targets, each directly after the assignment of its value,
    or at the beginning; None if a value is assigned several times."""
    if not pairs:
        return body
    first: list[Any] = []
    behind: dict[str, list[Any]] = {}
    assigned = [s.target.name for s in body if isinstance(s, ir.Assign)]
    names = set(assigned)
    if len(names) < len(assigned):
        return None
    for target, value in pairs:
        is_undefined = value is ir.UNDEFINED
        value = ir.Expr.null(loc=loc) if is_undefined else value
        if target.name in names or (not is_undefined and type(value) is not ir.Var):
            return None
        statement = ir.Assign(target=target, value=value, loc=value.loc)
        # The last one comes first, before those that were put there earlier.
        place = behind.setdefault(value.name, []) if not is_undefined and value.name in names else first
        place.insert(0, statement)
        names.add(target.name)
    whole: list[Any] = []
    waiting = [*reversed(body), *reversed(first)]
    while waiting:
        s = waiting.pop()
        whole.append(s)
        if isinstance(s, ir.Assign):
            waiting += reversed(behind.get(s.target.name, []))
    return whole


def memoised(original: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A function that computes each result once."""
    return functools.cache(original)


def sizes_once(original: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """The sizes of numbers in memory, each computed once: LLVM makes a module to answer."""
    known: dict[Any, Any] = {}

    def get_abi_sizeof(context: Any, kind: Any) -> Any:
        if not isinstance(kind, (IntType, FloatType, DoubleType)):
            return original(context, kind)
        key = id(context), kind
        if key not in known:
            known[key] = original(context, kind)
        return known[key]

    return get_abi_sizeof


def products_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """Products of complex numbers without a call; as the function in `numba.cpython.numbers.complex_mul_impl`."""

    def compile_internal(context: Any, builder: Any, function: Any, sig: Any, args: Any, locals: Any = None) -> Any:
        if function.__qualname__ != "complex_mul_impl.<locals>.complex_mul" or PYVERSION >= (3, 14):
            return original(context, builder, function, sig, args, locals)
        x, y = (context.make_complex(builder, kind, value=v) for kind, v in zip(sig.args, args, strict=True))
        flags = ("arcp",)  # of no effect here, but others are not added: the function is not compiled with ``fastmath``
        times = lambda a, b: builder.fmul(a, b, flags=flags)
        product = context.make_complex(builder, sig.return_type)
        product.real = builder.fsub(times(x.real, y.real), times(x.imag, y.imag), flags=flags)
        product.imag = builder.fadd(times(x.real, y.imag), times(x.imag, y.real), flags=flags)
        return product._getvalue()

    return compile_internal

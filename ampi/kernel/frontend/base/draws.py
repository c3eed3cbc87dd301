"""Random numbers in kernels: each number drawn is stored in an array of the call, in the order of the program.

::

    z = np.random.standard_normal()         drawn[place] = draw_normal(place)
                                            z = drawn[place]
                                            place = place + 1

The program that draws (see `ampi.kernel.drawing`) has the stores; derivative programs read what it has stored.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.frontend.base.values import Static, Value
from ampi.kernel.ir.index_algebra import INT, ONE

METHODS: dict[str, Callable[..., Any]] = {}
"""The rules of methods of random generators, registered by ``random.generators``."""
ON_THREADS = "draw them before the loop, in an array: np.random.random(n)"


def drawn_in(builder: Any, dtype: types.Type) -> ir.Drawn:
    """The array that stores a function's random numbers of one type, and the variable that counts them."""
    if dtype not in builder.drawn:
        array = ir.Var(builder.names.fresh("drawn"), types.Array(dtype, 1, "C"))
        builder.drawn[dtype] = ir.Drawn(array, ir.Var(builder.names.fresh("place"), INT))
    return builder.drawn[dtype]


def draw(builder: Any, node: ast.AST, name: str, dtype: types.Type, *parameters: ir.Expr) -> ir.Var:
    """Emit the drawing of a number; return its variable."""
    refuse_on_threads(builder, node)
    drawn = drawn_in(builder, dtype)
    builder.emit(ir.Store(drawn.array, (drawn.place,), ir.Op(name, (drawn.place, *parameters), dtype)))
    value = builder.temporary("drawn", ir.Load(drawn.array, (drawn.place,), dtype))
    builder.emit(ir.Assign(drawn.place, ir.Op("add", (drawn.place, ONE), INT)))
    return value


@dataclass(frozen=True)
class Generator:
    """A random generator among the arguments, as a value."""

    var: ir.Var


def generator_argument(builder: Any, type_: types.Type, path: tuple[Any, ...]) -> Static:
    """The value of a parameter, or of a part of one, that is a random generator."""
    name = f"@generator{len(builder.generators)}"  # no variable of a function to which it is passed can have this name
    builder.generators.append(ir.Argument(name, type_, path, ("generator", len(builder.generators))))
    return Static(Generator(ir.Var(name, type_)))


def generators_in(body: tuple[ir.Stmt, ...]) -> dict[str, ir.Var]:
    """The random generators that statements use, by name."""
    nodes = (n for n in ir.walk(body) if isinstance(n, ir.Var))
    return {v.name: v for v in nodes if isinstance(v.type, types.NumPyRandomGeneratorType)}


def method_value(builder: Any, node: ast.Call, generator: Generator, values: list[Value], keywords: dict) -> Value:
    """A call of a generator's method."""
    assert isinstance(node.func, ast.Attribute)
    handler = METHODS.get(node.func.attr)
    if handler is None:
        builder.fail(
            node,
            f"'.{node.func.attr}()' of a random generator is not known to the differentiator",
            "draw the numbers outside of the kernel, and pass them as an array",
        )
    try:
        bound = inspect.signature(handler).bind(builder, node, Static(generator), *values, **keywords)
    except TypeError as problem:
        builder.fail(node, f"{ast.unparse(node.func)}: {problem}", "use the arguments that Numba knows")
    return handler(*bound.args, **bound.kwargs)


def refuse_on_threads(builder: Any, node: ast.AST) -> None:
    if "prange" in builder.loops:
        builder.fail(node, "random numbers in a parallel loop, where each thread has its own generator", ON_THREADS)

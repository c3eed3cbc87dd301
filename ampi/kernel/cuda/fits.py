"""Launches whose arrays are too small: accesses out of bounds that a thread certainly makes.

CUDA does not notice them.  The statements of a thread are examined for the first and last threads of a launch, whose
indices are known, as are the sizes and integers among the arguments: an index or a condition that depends on anything
else is not judged (``AMPI_CHECK=full`` is, thread by thread).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.cuda.constants import evaluated, is_exact
from ampi.kernel.cuda.uniformity import assigned
from ampi.kernel.frontend.base.cuda_names import WARP
from ampi.kernel.frontend.base.source import read_source
from ampi.kernel.frontend.cuda.language import AXES
from ampi.kernel.ir.names import stem
from ampi.kernel.ir.rewrite import mapped

LAZY = frozenset({"select", "and", "or"})
Fail = Callable[[int, str, str], NoReturn]


@dataclass(frozen=True)
class Access:
    """An access to an array, and the conditions under which it is made.

    Attributes
    ----------
    array : str
    index : tuple of Expr
    conditions : tuple of Expr
    line : int
    shape : tuple of Expr
        The shape of a shared array; empty for an argument.
    itemsize : int
        Bytes of an element.
    """

    array: str
    index: tuple[ir.Expr, ...]
    conditions: tuple[ir.Expr, ...]
    line: int
    shape: tuple[ir.Expr, ...] = ()
    itemsize: int = 0


def accesses(body: tuple[ir.Stmt, ...], arguments: frozenset[str]) -> tuple[Access, ...]:
    """Return the accesses of a thread whose indices follow from its place and from arguments, in statements without
    jumps."""
    found: dict[Any, Access] = {}
    for one in _Accesses(body, arguments).block(body, ()):
        found.setdefault((one.array, one.index, one.conditions), one)
    return tuple(found.values())


class _Accesses:
    def __init__(self, body: tuple[ir.Stmt, ...], arguments: frozenset[str]) -> None:
        counts = Counter(v.name for v in assigned(body))
        self.arguments = arguments
        self.shared = {s.target.name: s for s in ir.walk(body) if isinstance(s, ir.Alloc) and s.shared}
        self.values = {
            s.target.name: s.value
            for s in ir.walk(body)
            if isinstance(s, ir.Assign) and counts[s.target.name] == 1 and is_exact(s.target.type)
        }

    def block(self, body: tuple[ir.Stmt, ...], conditions: tuple[ir.Expr, ...]) -> Iterator[Access]:
        for s in body:
            match s:
                case ir.If():
                    yield from self.expression(s.condition, conditions, s.line)
                    condition = self.expanded(s.condition)
                    yield from self.block(s.then, (*conditions, condition))
                    yield from self.block(s.orelse, (*conditions, ir.Op("not", (condition,), condition.type)))
                case ir.For(step=ir.Const(value=1)):
                    yield from self.loop(s, conditions)
                case ir.Store() | ir.Accumulate():
                    for e in (*s.index, s.value):
                        yield from self.expression(e, conditions, s.line)
                    yield from self.access(s.array, s.index, conditions, s.line)
                case ir.Alias() | ir.View() | ir.Elementwise():
                    yield from self.access(s.array, s.index, conditions, s.line)
                case ir.Assign():
                    yield from self.expression(s.value, conditions, s.line)

    def loop(self, s: ir.For, conditions: tuple[ir.Expr, ...]) -> Iterator[Access]:
        """Iterate over the accesses of the first and the last iteration."""
        runs = self.expanded(ir.Op("lt", (s.start, s.stop), types.boolean))
        for value in (s.start, ir.Op("sub", (s.stop, s.step), s.var.type)):
            self.values[s.var.name] = value
            yield from self.block(s.body, (*conditions, runs))
        del self.values[s.var.name]

    def expression(self, e: ir.Expr, conditions: tuple[ir.Expr, ...], line: int) -> Iterator[Access]:
        if isinstance(e, ir.Load):
            yield from self.access(e.array, e.index, conditions, line)
        children = ir.children(e)
        if isinstance(e, ir.Op) and e.name in LAZY:
            children = e.args[:1]
        for child in children:
            if isinstance(child, ir.Expr):
                yield from self.expression(child, conditions, line)

    def access(
        self, array: ir.Var, index: tuple[ir.Expr, ...], conditions: tuple[ir.Expr, ...], line: int
    ) -> Iterator[Access]:
        made = self.shared.get(array.name)
        if made is None and array.name not in self.arguments:
            return
        expanded = tuple(map(self.expanded, index))
        if made is None:
            yield Access(array.name, expanded, conditions, line)
        else:
            size = numpy_support.as_dtype(array.type.dtype).itemsize
            yield Access(array.name, expanded, conditions, line, made.shape, size)

    def expanded(self, e: ir.Expr, depth: int = 0) -> ir.Expr:
        """Return an integer or a condition in terms of arguments and indices of the thread."""

        def change(n: ir.Expr) -> ir.Expr:
            value = self.values.get(n.name) if isinstance(n, ir.Var) and depth < 20 else None
            return n if value is None else self.expanded(value, depth + 1)

        return mapped(e, change)  # type: ignore[no-any-return]


def places(grid: tuple[int, ...], block: tuple[int, ...], shared: int) -> Iterator[dict[str, int]]:
    """Iterate over the indices of the last and the first threads of a launch along its axes."""
    ends = [sorted({(b - 1, n - 1), (0, 0)}, reverse=True) for b, n in zip(grid, block)]
    for found in itertools.product(*ends):
        at, thread = zip(*found)
        rank = thread[0] + block[0] * (thread[1] + block[1] * thread[2])
        here = {"rank": rank, "laneid": rank % WARP, "threads": block[0] * block[1] * block[2], "shared": shared}
        for k, axis in enumerate(AXES):
            here[f"threadIdx.{axis}"], here[f"blockIdx.{axis}"] = thread[k], at[k]
            here[f"blockDim.{axis}"], here[f"gridDim.{axis}"] = block[k], grid[k]
            here[f"grid.{axis}"] = at[k] * block[k] + thread[k]
            here[f"gridsize.{axis}"] = grid[k] * block[k]
        yield here


MOST_KNOWN = 1000
"""Launches that are remembered to fit."""


class Fitting:
    """The accesses of a kernel, and the launches that fit them."""

    def __init__(self, kernel: Any, found: tuple[Access, ...], arguments: tuple[ir.Argument, ...]) -> None:
        self.kernel, self.found = kernel, found
        self.names = [a.name for a in arguments]
        self.shown = {a.name: a.shown for a in arguments}
        self.known: set[Any] = set()

    def require(self, launch: Any, leaves: Sequence[Any]) -> None:
        """Raise an error if one of the first or last threads of a launch accesses an element that does not exist."""
        if not self.found:
            return
        facts = [getattr(v, "shape", None) or (v if isinstance(v, (int, np.integer)) else None) for v in leaves]
        key = (launch.grid, launch.block, launch.shared, *facts)
        if key in self.known:
            return
        shapes = {n: v.shape for n, v in zip(self.names, leaves) if getattr(v, "ndim", 0)}
        integers = {n: int(v) for n, v in zip(self.names, leaves) if isinstance(v, (int, np.integer))}

        def fail(line: int, problem: str, advice: str) -> NoReturn:
            raise read_source(self.kernel.frozen_func).error(line, problem, advice) from None

        require(self.found, launch, shapes, integers, self.shown, fail)
        if len(self.known) < MOST_KNOWN:
            self.known.add(key)


def require(
    found: tuple[Access, ...],
    launch: Any,
    shapes: Mapping[str, tuple[int, ...]],
    integers: Mapping[str, int],
    shown: Mapping[str, str],
    fail: Fail,
) -> None:
    """Raise an error for an access that is out of bounds in one of the first and last threads of a launch.

    Parameters
    ----------
    found : tuple of Access
    launch : Launch
    shapes, integers : mapping
        Shapes and values of arguments, by their names in the accesses.
    shown : mapping
        The user's names of the arguments.
    fail : callable
        Called with line, problem and advice.
    """

    def known(n: ir.Expr) -> ir.Expr:
        if isinstance(n, ir.Size) and n.array.name in shapes:
            return ir.Const(shapes[n.array.name][n.axis], n.type)
        return n

    for one in found:
        index = tuple(mapped(i, known) for i in one.index)
        conditions = tuple(mapped(c, known) for c in one.conditions)
        of_shape = tuple(mapped(n, known) for n in one.shape)
        for here in places(launch.grid, launch.block, launch.shared):
            if not all(evaluated(c, integers, here) is True for c in conditions):
                continue
            shape = tuple(evaluated(n, integers, here) for n in of_shape) if of_shape else shapes.get(one.array, ())
            for axis, (i, size) in enumerate(zip(index, shape)):
                value = evaluated(i, integers, here)
                if value is not None and size is not None and not -size <= value < size:
                    _refuse(one, launch, axis, value, shape, here, shown, fail)


def _refuse(
    one: Access,
    launch: Any,
    axis: int,
    value: int,
    shape: tuple[Any, ...],
    here: dict[str, int],
    shown: Mapping[str, str],
    fail: Fail,
) -> NoReturn:
    thread, block = (_place([here[f"{name}.{a}"] for a in AXES]) for name in ("threadIdx", "blockIdx"))
    index = f"thread {thread} of block {block} uses index {value}"
    along = f" along axis {axis}" if len(shape) > 1 else ""
    if not one.shape:
        name = shown.get(one.array, one.array)
        sizes = f"argument '{name}' has the shape {tuple(shape)}, and {index} of it{along}"
        advice = f"leave out the threads beyond it, for example by if cuda.grid(1) < {name}.size:"
        fail(one.line, sizes, f"{advice} or take fewer blocks, or a larger array")
    if any(isinstance(n, ir.Op) and n.name == "shared" for e in one.shape for n in ir.walk(e)):
        given = f"{launch.shared} bytes, which are {shape[0]} elements of {one.itemsize} bytes"
        wanted = f"at least {one.itemsize * (value + 1)} bytes"
        fail(one.line, f"the launch gives the shared array '{stem(one.array)}' {given}, and {index}",
             f"write kernel[blocks, threads, stream, bytes] with {wanted}")  # fmt: skip
    text = f"the shared array '{stem(one.array)}' has the shape {tuple(shape)}, and {index} of it{along}"
    size = " x ".join(map(str, launch.block))
    fail(one.line, f"{text}, in blocks of {size} threads", "take smaller blocks, or a larger shared array")


def _place(index: list[int]) -> str:
    while len(index) > 1 and index[-1] == 0:
        index.pop()
    return str(index[0]) if len(index) == 1 else f"({', '.join(map(str, index))})"

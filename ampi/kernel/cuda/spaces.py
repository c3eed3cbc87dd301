"""Memory spaces of the arrays in an emitted kernel, and ownership of its stores by threads.

A lowered program has arrays for all threads of a block.  On a GPU, an array in which each thread uses its own element
becomes a register, each thread has a copy of an array that only the block's common statements fill, and all others are
in shared memory, or in a buffer in global memory that the host makes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from numba import types
from numba.np import numpy_support

from ampi.kernel import ir
from ampi.kernel.cuda.constants import evaluated
from ampi.kernel.cuda.loops import Geometry
from ampi.kernel.frontend.cuda.language import AXES, place
from ampi.kernel.ir import index_algebra
from ampi.kernel.ir.index_algebra import Sum
from ampi.kernel.ir.inference import is_array
from ampi.kernel.ir.rewrite import mapped

_OF_ONE_BLOCK = frozenset(f"{n}.{a}" for n in ("blockIdx", "blockDim") for a in AXES)
SHARED_BYTES = 48 * 1024
OF_EACH = 64
"""Largest size of an array of which each thread of a block has an equal copy."""
LOCAL = 1024
"""Largest size of an array of one thread that is not a buffer made by the host."""


@dataclass(frozen=True)
class Access:
    """One load, store or increment (``kind``) of an array; ``phase`` is the number of its phase, 0 outside phases."""

    kind: str
    array: str
    index: tuple[Sum, ...]
    phase: int


@dataclass
class Spaces:
    """Analysis of the arrays and integers of a program for a block of threads.

    Attributes
    ----------
    registers
        Arrays of which each thread has its own element.
    each
        Arrays of which each thread has an equal copy.
    shared
        Arrays in shared memory, with their shapes.
    buffers
        Arrays in global memory, and whether each thread has its own.
    """

    body: tuple[ir.Stmt, ...]
    geometry: Geometry
    arguments: frozenset[str]
    registers: dict[str, tuple[int, ...]] = field(default_factory=dict)
    each: dict[str, tuple[int, ...]] = field(default_factory=dict)
    shared: dict[str, tuple[int, ...]] = field(default_factory=dict)
    buffers: dict[str, tuple[tuple[ir.Expr, ...], bool]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.count: Counter[str] = Counter()
        self.value: dict[str, ir.Expr] = {}
        self.axis: dict[str, str] = {}
        self.varying: set[str] = set()
        self.common: set[str] = set()  # assigned for a block, which may differ between blocks
        self.alloc: dict[str, tuple[ir.Alloc, int]] = {}
        self.accesses: list[Access] = []
        self.reads: set[tuple[str, int]] = set()
        self.phases = 0
        self.numbers: dict[int, int] = {}  # of phases, by their loops
        self._names(self.body, False, False)
        self._accesses(self.body, 0)
        self._place()

    # ------------------------------------------------------------------------------------------- scalars

    def _names(self, body: tuple[ir.Stmt, ...], in_launch: bool, in_phase: bool) -> None:
        for s in body:
            match s:
                case ir.Assign():
                    self.count[s.target.name] += 1
                    self.value[s.target.name] = s.value
                    if in_phase:
                        self.varying.add(s.target.name)
                    elif in_launch:
                        self.common.add(s.target.name)
                case ir.For():
                    if s.axis:
                        self.axis[s.var.name] = s.axis
                    elif in_phase:
                        self.varying.add(s.var.name)
                    else:
                        self.common.add(s.var.name)
                    self.count[s.var.name] += 1
                    threads = s.axis.startswith(("threadIdx", "grid", "stride"))
                    self._names(s.body, in_launch or bool(s.axis), in_phase or threads)
                case ir.While():
                    self._names(s.body, in_launch, in_phase)
                case ir.If():
                    self._names(s.then, in_launch, in_phase)
                    self._names(s.orelse, in_launch, in_phase)

    def expanded(self, e: ir.Expr) -> ir.Expr:
        """Return an integer in terms of thread indices, and of scalars that are assigned several times."""

        def change(n: ir.Expr) -> ir.Expr:
            if not isinstance(n, ir.Var) or is_array(n.type):
                return n
            if n.name in self.axis:
                return place(self.axis[n.name])
            if self.count[n.name] == 1 and n.name in self.value and isinstance(n.type, types.Integer):
                value = self.value[n.name]
                if not any(isinstance(m, ir.Load) for m in ir.walk(value)):
                    return self.expanded(value)
            return n

        return mapped(e, change)

    def total(self, e: ir.Expr) -> Sum:
        return index_algebra.as_sum(self.expanded(e))

    def constant(self, e: ir.Expr) -> int | None:
        """Return the value of a constant integer expression; None if it is not constant."""
        return evaluated(self.expanded(e))

    def of_host(self, e: ir.Expr) -> ir.Expr | None:
        """Return an integer in terms of the arguments alone; None if that is impossible."""
        e = self.expanded(e)
        for n in ir.walk(e):
            if isinstance(n, ir.Load) or (isinstance(n, ir.Op) and not n.args):
                return None
            if isinstance(n, ir.Var) and n.name not in self.arguments:
                return None
        return e

    # ------------------------------------------------------------------------------------------- accesses

    def _accesses(self, body: tuple[ir.Stmt, ...], phase: int) -> None:
        for s in body:
            match s:
                case ir.For():
                    inner = phase
                    if not phase and s.axis.startswith(("threadIdx", "grid", "stride")):
                        self.phases += 1
                        inner = self.numbers[id(s)] = self.phases
                    self._expressions((s.start, s.stop, s.step), phase)
                    if not inner and self.own_loop(s):
                        self._own(s)
                    else:
                        self._accesses(s.body, inner)
                case ir.While():
                    self._expressions((s.condition,), phase)
                    self._accesses(s.body, phase)
                case ir.If():
                    self._expressions((s.condition,), phase)
                    self._accesses(s.then, phase)
                    self._accesses(s.orelse, phase)
                case ir.Alloc():
                    self.alloc[s.target.name] = s, phase
                    self._expressions(s.shape, phase)
                case ir.Store() | ir.Accumulate():
                    self._expressions((*s.index, s.value), phase)
                    self._note("store" if isinstance(s, ir.Store) else "add", s.array.name, s.index, phase)
                case _:
                    self._expressions(tuple(c for c in ir.children(s) if isinstance(c, ir.Expr)), phase)

    def _expressions(self, expressions: tuple[ir.Expr, ...], phase: int) -> None:
        for e in expressions:
            for n in ir.walk(e):
                if isinstance(n, ir.Load):
                    self._note("load", n.array.name, n.index, phase)
                elif isinstance(n, ir.Var):
                    self.reads.add((n.name, phase))

    def _note(self, kind: str, array: str, index: tuple[ir.Expr, ...], phase: int) -> None:
        self.accesses.append(Access(kind, array, tuple(map(self.total, index)), phase))

    def own_loop(self, s: ir.For) -> bool:
        """Return whether a common loop fills arrays of threads, element by element."""
        if s.axis or self.constant(s.stop) != self.geometry.threads or self.constant(s.start) != 0:
            return False
        inside = tuple(innermost(s))
        return bool(inside) and all(isinstance(n, ir.Store) and n.index[0] == s.var for n in inside)

    def _own(self, s: ir.For) -> None:
        for n in innermost(s):
            assert isinstance(n, ir.Store)
            self._expressions((n.value,), 0)
            self.accesses.append(Access("store", n.array.name, (self.rank(), *map(self.total, n.index[1:])), -1))

    def rank(self) -> Sum:
        """Return the rank of a thread in its block."""
        total, size = Sum(), 1
        for k, axis in enumerate(AXES):
            if self.geometry.block[k] > 1:
                total = total.plus(Sum(0, {place(f"threadIdx.{axis}"): size}))
            size *= self.geometry.block[k]
        return total

    # ------------------------------------------------------------------------------------------- places

    def _place(self) -> None:
        of: dict[str, list[Access]] = {}
        for a in self.accesses:
            of.setdefault(a.array, []).append(a)
        left = SHARED_BYTES
        for name, (s, phase) in self.alloc.items():
            accesses = of.get(name, [])
            sizes = tuple(map(self.constant, s.shape))
            known = tuple(n for n in sizes if n is not None)
            count = _product(known) if len(known) == len(sizes) else None
            itemsize = numpy_support.as_dtype(s.target.type.dtype).itemsize
            if phase:  # of one thread
                if count is not None and count <= LOCAL:
                    self.each[name] = known
                else:
                    self.buffers[name] = s.shape, True
            elif self._is_register(s, accesses):
                rest = tuple(n for n in sizes[1:] if n is not None)
                if len(rest) == len(sizes) - 1 and _product(rest) <= LOCAL:
                    self.registers[name] = rest
                else:
                    self.buffers[name] = s.shape, False
            elif count is not None and count <= OF_EACH and all(a.kind == "load" or a.phase == 0 for a in accesses):
                self.each[name] = known
            elif count is not None and count * itemsize <= left:
                left -= count * itemsize
                self.shared[name] = known
            else:
                self.buffers[name] = s.shape, False

    def _is_register(self, s: ir.Alloc, accesses: list[Access]) -> bool:
        """Return whether each thread uses only its own elements of an array."""
        if self.constant(s.shape[0]) != self.geometry.threads:
            return False
        rank = self.rank()
        return all(a.phase and a.index and a.index[0] == rank for a in accesses)

    # ------------------------------------------------------------------------------------------- owners

    def is_own(self, array: str, phase: int | None) -> bool:
        """Return whether no two threads (of a block in a phase, or of the launch) use the same element of an array."""
        accesses = [a for a in self.accesses if a.array == array and (phase is None or a.phase == phase)]
        return bool(self.owning_axes(accesses, phase is None))

    def owning_axes(self, accesses: list[Access], everywhere: bool) -> tuple[Any, ...]:
        """Return the indices that all accesses share, and that differ from thread to thread."""
        if not accesses or any(not a.phase for a in accesses if everywhere):
            return ()
        first = accesses[0].index
        same = [k for k, i in enumerate(first) if all(a.index[k] == i for a in accesses)]
        found: list[dict[str, int]] = []
        for k in same:
            terms: dict[str, int] = {}
            for term, c in first[k].terms.items():
                if isinstance(term, ir.Op) and not term.args:
                    terms[term.name] = abs(int(c))
                elif not self._agreed(term, everywhere):
                    break
            else:
                found.append(terms)
        needed = self._needed(everywhere)
        known: set[str] = set()
        for terms in found:
            if self._differ(terms):
                known |= set(terms)
        return tuple(same) if needed <= known else ()

    def _needed(self, everywhere: bool) -> set[str]:
        grid = {v for v in self.axis.values() if v.startswith(("grid", "stride"))}
        if grid:
            return grid
        needed = {f"threadIdx.{a}" for k, a in enumerate(AXES) if self.geometry.block[k] > 1}
        if everywhere:
            needed |= {v for v in self.axis.values() if v.startswith("blockIdx")}
        return needed

    def _differ(self, terms: dict[str, int]) -> bool:
        """Return whether a sum of indices with these coefficients differs for different indices."""
        reach = 0
        for name, c in sorted(
            terms.items(), key=lambda item: (item[0].startswith(("block", "grid", "stride")), item[1])
        ):
            if c <= reach:
                return False
            kind, _, axis = name.partition(".")
            if kind != "threadIdx":
                reach = 1 << 62  # their number is not known
                continue
            reach += c * (self.geometry.block[AXES.index(axis)] - 1)
        return True

    def _agreed(self, term: ir.Expr, everywhere: bool) -> bool:
        """Return whether an expression is equal in all threads."""
        for n in ir.walk(term):
            if isinstance(n, ir.Op) and not n.args:
                if everywhere or n.name not in _OF_ONE_BLOCK:
                    return False
            elif isinstance(n, ir.Load):
                return False
            elif isinstance(n, ir.Var) and not is_array(n.type):
                if n.name in self.varying or (everywhere and n.name in self.common):
                    return False
        return True


def innermost(s: ir.Stmt) -> Iterator[ir.Stmt]:
    """Iterate over the innermost statements of nested loops."""
    if isinstance(s, ir.For):
        for inner in s.body:
            yield from innermost(inner)
    else:
        yield s


def _product(sizes: tuple[int, ...]) -> int:
    total = 1
    for n in sizes:
        total *= n
    return total

"""A CUDA kernel as an ordinary kernel: parsed for one thread, split at barriers, with loops over threads and blocks."""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from types import FunctionType
from typing import Any, NoReturn

from numba import types
from numba.np import numpy_support

from ampi.kernel import ir, pipeline
from ampi.kernel.codegen import emit
from ampi.kernel.cuda import fission, flat
from ampi.kernel.cuda.fits import Access, accesses
from ampi.kernel.cuda.guards import has_barrier, with_guards
from ampi.kernel.cuda.known_loops import written_out
from ampi.kernel.cuda.loops import Geometry, Launched, over_blocks
from ampi.kernel.cuda.owners import Several, with_owners
from ampi.kernel.cuda.preparations import RUN, Form, prepared
from ampi.kernel.cuda.rectangular import rectangular
from ampi.kernel.cuda.registers import in_registers
from ampi.kernel.cuda.shared_extremes import is_extreme
from ampi.kernel.cuda.uniformity import analyse, with_warp_guards
from ampi.kernel.frontend.base.source import Source, read_source
from ampi.kernel.frontend.language.reductions import find_reductions
from ampi.kernel.frontend.parse import parse
from ampi.kernel.ir.names import Names
from ampi.kernel.ir.rewrite import mapped
from ampi.kernel.normalise.initial_values import with_initial_values
from ampi.kernel.normalise.lower import lower

_LINE = re.compile(r"# line (\d+)$")


@dataclass
class Notes:
    """What is found in a kernel: lines in which threads store to the same element, and accesses whose indices follow
    from the place of a thread."""

    several: list[Several] = field(default_factory=list)
    accesses: tuple[Access, ...] = ()


def lowered(
    function: Any,
    argument_types: tuple[Any, ...],
    geometry: Geometry,
    shared_bytes: int | None = None,
    bounded: bool = False,
    apart: set[str] | None = None,
    notes: Notes | None = None,
    form: Form = RUN,
) -> ir.Function:
    """Return the IR of a launch of a CUDA kernel, whose arguments are the kernel's and those of `Launched`.

    With ``apart`` loops add to scalars what they would add to one element (`registers`); the arrays that must then
    share memory with no other argument are entered there.

    With ``shared_bytes``, the size of dynamic shared memory, it is for `emission`: all loops over blocks are parallel,
    and loops around barriers are unrolled if their iterations are known.  For ``bounded`` see `lower` and
    `rectangular`, for ``form`` see `preparations`.  In ``notes`` is entered what is found.
    """
    source = read_source(function)

    def fail(line: int, problem: str, advice: str) -> NoReturn:
        raise source.error(line, problem, advice) from None

    threads = parse(function, argument_types)
    refuse_result(threads, source)
    refuse_truth(threads.body, fail)
    threads = replace(threads, body=without_implied_errors(threads.body))
    require_shared_memory(threads.body, geometry, fail)
    names = Names.of(threads)
    arguments = frozenset(a.name for a in threads.arguments)
    body = threads.body
    if has_barrier(body):
        body = with_guards(body, names)
    body = tuple(s for s in lower(replace(threads, body=body), bounded).body if not isinstance(s, ir.Return))
    if bounded:
        body = rectangular(body, names)
    body = without_unread_old_values(body)
    if notes is not None:
        notes.accesses = accesses(body, arguments)
    body, found = with_owners(body, geometry, arguments)
    if notes is not None:
        notes.several += found
    emitted = shared_bytes is not None
    if emitted:
        refuse_order(body, fail)
        body = written_out(substituted_bytes(body, shared_bytes), geometry.block)
        body, more = prepared(body, form, {a.name: a for a in threads.arguments}, geometry, names, fail)
        threads = replace(threads, arguments=(*threads.arguments, *more))
        arguments |= {a.name for a in more}
    launched = Launched.of(names)
    plain = flat.with_plain_places(body)
    is_parallel = not waits_for_blocks(body)
    if flat.is_flat(plain):
        body = flat.over_grid(plain, geometry, launched, names, is_parallel, not emitted)
        if emitted:
            body = all_parallel(body)
    else:
        shared = tuple(s for s in ir.walk(body) if isinstance(s, ir.Alloc) and s.shared)
        body = without_shared(body)
        known = analyse(body)
        body = with_warp_guards(body, known, names)
        split = fission.split((*shared, *body), analyse(body), names, fail, arguments)
        body = over_blocks(split, geometry, launched, names, is_parallel)
        if emitted:
            body = all_parallel(body)
    body = with_plain_atomics(body)
    if apart is not None:
        body, arrays = in_registers(body, names)
        apart |= arrays
    made = replace(threads, arguments=(*threads.arguments, *launched.arguments()), body=body, result=None)
    if emitted:  # threads share no variables
        made = with_initial_values(made, lambda loop: bool(loop.axis))
    return find_reductions(made, source.fail)


MOST_STATIC = 48 * 1024
"""Bytes of shared memory that a block of CUDA has, unless a launch asks for more."""


def require_shared_memory(body: tuple[ir.Stmt, ...], geometry: Geometry, fail: Any) -> None:
    """Raise an error for shared arrays without any memory, and for more than a block has."""
    total = 0
    for s in ir.walk(body):
        if not (isinstance(s, ir.Alloc) and s.shared):
            continue
        if not all(isinstance(n, ir.Const) for n in s.shape):
            of_launch = any(isinstance(n, ir.Op) and n.name == "shared" for n in ir.walk(s.shape))
            if of_launch and not geometry.dynamic:
                text = "this shared array gets its size from the launch, which gives it 0 bytes"
                fail(s.line, text, "write the number of bytes: kernel[blocks, threads, stream, bytes]")
            continue
        size = numpy_support.as_dtype(s.target.type.dtype).itemsize
        total += size * math.prod(n.value for n in s.shape)  # type: ignore[attr-defined]
        if total > MOST_STATIC:
            text = f"{total} bytes of shared memory of constant size; a block of CUDA has {MOST_STATIC}"
            fail(s.line, text, "take a smaller array, or write shape 0 and the number of bytes at the launch: "
                 "kernel[blocks, threads, stream, bytes]")  # fmt: skip


def refuse_result(threads: ir.Function, source: Source) -> None:
    returned = next((n for n in ir.walk(threads.body) if isinstance(n, ir.Return) and n.values), None)
    if returned is not None:
        raise source.error(
            returned.line, "a CUDA kernel returns nothing", "write results into an array among its arguments"
        )


def refuse_truth(body: tuple[ir.Stmt, ...], fail: Any) -> None:
    """Refuse conditions that are arrays, which could only raise an error while the kernel runs."""
    for s in ir.walk(body):
        if isinstance(s, ir.Raise) and "the truth of an array" in s.text:
            fail(s.line, "a condition that is an array, in a CUDA kernel", "pass a number, or compare one element")


def without_implied_errors(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Remove the errors of operations, such as those of an index out of range, which no thread of a device raises."""
    kept = (ir.in_blocks(s, without_implied_errors) for s in body if not (isinstance(s, ir.Raise) and s.implied))
    return tuple(s for s in kept if not (isinstance(s, ir.If) and not s.then and not s.orelse))


def without_unread_old_values(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Remove the old values of atomic operations that nothing reads.

    Those that only the operation itself reads become plain loads.
    """
    outside: set[str] = set()
    inside: set[str] = set()
    for s in ir.walk(body):
        if isinstance(s, ir.Stmt):
            target = s.target if isinstance(s, ir.Assign) else None
            found = inside if isinstance(s, ir.Store) and s.atomic else outside
            read = (c for c in ir.children(s) if isinstance(c, ir.Expr) and c is not target)
            found |= {n.name for e in read for n in ir.walk(e) if isinstance(n, ir.Var)}

    def visit(block: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in block:
            match s:
                case ir.Assign(value=ir.Op(name="old", args=(load,))) if s.target.name not in outside:
                    if s.target.name not in inside:
                        continue
                    s = replace(s, value=load)
            out.append(ir.in_blocks(s, visit))
        return tuple(out)

    return visit(body)


def without_shared(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Remove allocations of shared arrays, which are made once for a block."""
    return tuple(ir.in_blocks(s, without_shared) for s in body if not (isinstance(s, ir.Alloc) and s.shared))


def of_block(body: tuple[ir.Stmt, ...]) -> set[str]:
    """Return the names of the arrays that a launch makes, and of parts of them."""
    local: set[str] = set()
    for s in ir.walk(body):
        if isinstance(s, ir.Alloc) or (isinstance(s, (ir.Alias, ir.View)) and s.array.name in local):
            local.add(s.target.name)
    return local


def waits_for_blocks(body: tuple[ir.Stmt, ...]) -> bool:
    """Return whether the result of an atomic operation on global memory is used: blocks then run one after another."""
    local = of_block(body)
    for s in ir.walk(body):
        if isinstance(s, ir.Store) and s.atomic and s.array.name not in local:
            return True
        if isinstance(s, ir.Assign) and isinstance(s.value, ir.Op) and s.value.name == "old":
            if s.value.args[0].array.name not in local:  # type: ignore[attr-defined]
                return True
    return False


def refuse_order(body: tuple[ir.Stmt, ...], fail: Any) -> None:
    """Refuse operations whose result depends on the order of threads."""
    for s in ir.walk(body):
        is_old = isinstance(s, ir.Assign) and isinstance(s.value, ir.Op) and s.value.name == "old"
        if is_old or (isinstance(s, ir.Store) and s.atomic and not is_extreme(s)):
            what = "the result of an atomic operation" if is_old else "an atomic operation on integers"
            text = f"{what}, in source for a GPU: the adjoint would have to know which thread came first"
            advice = "reduce in the block through shared memory (a tree), and let one thread store the result"
            fail(s.line, text, advice)


def substituted_bytes(body: tuple[ir.Stmt, ...], count: int | None) -> tuple[ir.Stmt, ...]:
    """Replace the number of bytes of dynamic shared memory by a constant."""
    number = ir.Const(count, types.int64)
    change = lambda e: number if isinstance(e, ir.Op) and e.name == "shared" and not e.args else e
    return tuple(mapped(s, change) for s in body)


def all_parallel(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Make all loops over blocks, and over the threads of a grid, parallel."""
    change = lambda s: replace(s, parallel=True) if isinstance(s, ir.For) and s.axis[:6] != "thread" and s.axis else s
    return tuple(mapped(s, lambda e: e, change) for s in body)


def has_parallel_loop(node: Any) -> bool:
    """Return whether blocks, or threads, run in parallel."""
    body = node.body if isinstance(node, ir.Function) else node
    return any(isinstance(s, ir.For) and s.parallel for s in ir.walk(body))


def with_plain_atomics(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Make operations plain instead of atomic where no other thread can interfere."""
    local, parallel = of_block(body), has_parallel_loop(body)

    def plain(s: ir.Stmt) -> ir.Stmt:
        match s:
            case ir.Accumulate(atomic=True):
                return replace(s, atomic=parallel and s.array.name not in local)
            case ir.Store(atomic=True):
                return replace(s, atomic=False)
        return s

    return tuple(mapped(s, lambda e: e, plain) for s in body)


# --------------------------------------------------------------------------------------------- as a function


def with_early_allocations(body: tuple[ir.Stmt, ...]) -> tuple[ir.Stmt, ...]:
    """Statements in which local arrays of threads are allocated outside of the loops that do not run in parallel.

    Threads fill them before they read them, so those that run one after another can share them.
    """
    counts = Counter(s.target.name for s in ir.walk(body) if isinstance(s, ir.Alloc))

    def is_local(s: ir.Stmt) -> bool:
        if not isinstance(s, ir.Alloc) or s.fill is not None or counts[s.target.name] > 1:
            return False
        return all(isinstance(n, ir.Const) for n in s.shape)

    def visit(block: tuple[ir.Stmt, ...], early: list[ir.Stmt]) -> tuple[ir.Stmt, ...]:
        out: list[ir.Stmt] = []
        for s in block:
            match s:
                case ir.Alloc() if is_local(s):
                    early.append(s)
                    continue
                case ir.For(parallel=True):
                    mine: list[ir.Stmt] = []
                    inner = visit(s.body, mine)
                    s = replace(s, body=(*mine, *inner))
                case _:
                    s = ir.in_blocks(s, lambda block: visit(block, early))
            out.append(s)
        return tuple(out)

    early: list[ir.Stmt] = []
    found = visit(body, early)
    return (*early, *found)


def as_function(made: ir.Function, function: Any) -> FunctionType:
    """Return the Python function of a lowered kernel, for Numba to compile; `parse` finds the IR in it."""
    way = pipeline.State()
    (written,) = emit.spelled(way.run("simplify", way.run("normalise", made)))
    written = replace(written, body=tuple(s for s in written.body if not isinstance(s, ir.Return)))
    written = replace(written, body=with_early_allocations(written.body))
    text = emit.source(written)
    space: dict[str, Any] = {"__name__": function.__module__}
    exec(emit.header(text), space)
    space.update(written.constants)
    exec(compile(with_lines(text, made.first_line), made.filename, "exec"), space)
    result = space[written.name]
    result.__module__, result.__qualname__ = function.__module__, function.__qualname__
    result.__doc__ = function.__doc__
    arguments = tuple(replace(a, name=a.name, path=a.path) for a in made.arguments)
    result.__ampi_ir__ = replace(made, arguments=arguments)
    result.__ampi_text__ = text
    return result


def with_lines(text: str, first_line: int) -> ast.Module:
    """Return a program whose statements have the line numbers of their origins."""
    tree = ast.parse(text)
    found = [_LINE.search(line) for line in text.splitlines()]
    lines = [first_line if m is None else int(m.group(1)) for m in found]
    for n in range(1, len(lines)):
        if found[n] is None:
            lines[n] = lines[n - 1]
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = lines[node.lineno - 1]  # type: ignore[attr-defined]
            node.col_offset = node.end_col_offset = 0  # type: ignore[attr-defined]
    return tree

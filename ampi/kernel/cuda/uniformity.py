"""Uniformity (divergence) analysis: the values that are equal in all threads of a block."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from numba import types

from ampi.kernel import ir
from ampi.kernel.cuda.guards import Guard, has_barrier
from ampi.kernel.frontend.cuda.language import AXES

OF_THREADS = frozenset((*(f"{n}.{a}" for n in ("threadIdx", "grid") for a in AXES), "rank", "laneid", "old"))
"""Operations whose value differs from thread to thread."""
OF_BLOCKS = OF_THREADS | {f"blockIdx.{a}" for a in AXES}
"""Operations whose value differs from thread to thread of a launch."""


@dataclass(frozen=True)
class Uniformity:
    """The scalars that may differ between threads of a block, and the arrays that are private to a thread."""

    varying: frozenset[str]
    own: frozenset[str]
    sources: frozenset[str] = OF_THREADS

    def differs(self, value: Any) -> bool:
        """Return whether an expression may have another value in another thread."""
        return any(
            (isinstance(n, ir.Op) and n.name in self.sources)
            or (isinstance(n, ir.Var) and n.name in self.varying)
            or (isinstance(n, ir.Load) and n.array.name in self.own)
            for n in ir.walk(value)
        )


def own_arrays(body: tuple[ir.Stmt, ...]) -> frozenset[str]:
    """Return the names of local arrays of threads, and of parts of them."""
    own: set[str] = set()
    for s in ir.walk(body):
        if isinstance(s, ir.Alloc) and not s.shared:
            own.add(s.target.name)
        elif isinstance(s, (ir.Alias, ir.View)) and s.array.name in own:
            own.add(s.target.name)
    return frozenset(own)


def analyse(
    body: tuple[ir.Stmt, ...], sources: frozenset[str] = OF_THREADS, own: frozenset[str] = frozenset()
) -> Uniformity:
    """Find the values that differ between threads, in statements without jumps.

    ``sources`` are the operations whose values differ, and ``own`` are further arrays that are not the same for all.
    """
    known = Uniformity(frozenset(), own_arrays(body) | own, sources)
    everywhere = _names(body)
    partly = set()  # scalars that only some threads of a warp assign, and that are read afterwards
    for s in ir.walk(body):
        if isinstance(s, Guard) and not s.returned:
            inside = _names(s.then)
            partly |= {v.name for v in assigned(s.then) if inside[v.name] < everywhere[v.name]}
    known = replace(known, varying=frozenset(partly))
    while True:
        found = set(known.varying)
        _spread(body, False, known, found)
        if found == known.varying:
            return known
        known = replace(known, varying=frozenset(found))


def _spread(body: tuple[ir.Stmt, ...], divergent: bool, known: Uniformity, found: set[str]) -> None:
    for s in body:
        match s:
            case ir.Assign():
                if divergent or known.differs(s.value):
                    found.add(s.target.name)
            case ir.Alias() | ir.View():
                if divergent or known.differs(s.index):
                    found.add(s.target.name)
            case ir.Barrier(target=ir.Var() as target) if divergent or known.sources > OF_THREADS:
                found.add(target.name)
            case Guard():
                _spread(s.then, divergent, known, found)
            case ir.If():
                inner = divergent or known.differs(s.condition)
                _spread(s.then, inner, known, found)
                _spread(s.orelse, inner, known, found)
            case ir.For():
                inner = divergent or any(map(known.differs, (s.start, s.stop, s.step)))
                if inner:
                    found.add(s.var.name)
                _spread(s.body, inner, known, found)
            case ir.While():
                _spread(s.body, divergent or known.differs(s.condition), known, found)
            case ir.Custom():
                found |= {v.name for v in s.outputs}
                _spread(s.body, True, known, found)


def assigned(body: tuple[ir.Stmt, ...]) -> Iterator[ir.Var]:
    """Iterate over the scalars that statements assign."""
    for s in ir.walk(body):
        match s:
            case ir.Assign(target=target):
                yield target
            case ir.For(var=var):
                yield var
            case ir.Barrier(target=ir.Var() as target):
                yield target
            case ir.Custom(outputs=outputs):
                yield from outputs


def _names(node: Any) -> Counter[str]:
    return Counter(n.name for n in ir.walk(node) if isinstance(n, ir.Var))


def with_warp_guards(body: tuple[ir.Stmt, ...], known: Uniformity, names: Any) -> tuple[ir.Stmt, ...]:
    """Turn branches that not all threads take, and in which only warps synchronise, into guards."""
    out: list[ir.Stmt] = []
    for s in body:
        match s:
            case ir.If() if not isinstance(s, Guard) and _warps_wait(s) and known.differs(s.condition):
                there, other = (ir.Var(names.fresh("there"), types.boolean) for _ in range(2))
                out.append(ir.Assign(there, s.condition, line=s.line))
                out.append(ir.Assign(other, ir.Op("not", (there,), types.boolean), line=s.line))
                for condition, block in ((there, s.then), (other, s.orelse)):
                    block = with_warp_guards(block, known, names)
                    out += [Guard(condition, block, line=s.line, returned=False)] if block else []
                continue
        out.append(ir.in_blocks(s, lambda block: with_warp_guards(block, known, names)))
    return tuple(out)


def _warps_wait(node: Any) -> bool:
    return has_barrier(node) and all(n.kind == "warp" for n in ir.walk(node) if isinstance(n, ir.Barrier))

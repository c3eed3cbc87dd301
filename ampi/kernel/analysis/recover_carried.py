"""Recovery of carried scalars: a scalar that a loop carries and stores is read from where it was stored.

A recurrence often stores its value in every iteration: ``total += x[i]; y[i] = total``.  The scalar at the beginning of
an iteration is then what the previous one stored, and need not be saved again.
"""

from __future__ import annotations

from dataclasses import dataclass

from ampi.kernel import ir
from ampi.kernel.analysis import tbr
from ampi.kernel.analysis.tbr import Access, Accesses
from ampi.kernel.ir import Expr, Stmt, Var
from ampi.kernel.ir.ssa import Loop, definitions, every


@dataclass(frozen=True)
class Place:
    """``array[index]``, into which each iteration stores the next value of a carried scalar.

    For each dimension, ``shifts`` has the difference between the index and the loop's counter; None: the index does not
    depend on the loop.
    """

    array: Var
    index: tuple[Expr, ...]
    shifts: tuple[int | None, ...]


def find_stored(body: tuple[Stmt, ...], accesses: Accesses) -> dict[str, Place]:
    """The places where carried scalars are stored, by the scalars' names."""
    access = {id(a.statement): a for of_array in accesses.of.values() for a in of_array}
    found: dict[str, Place] = {}
    for loop in every(body):
        if not isinstance(loop, Loop) or loop.condition is not None or loop.step != 1:
            continue
        inside = {v.name for t in every((loop,)) for v in definitions(t)}
        for s in loop.body:
            if not isinstance(s, ir.Store) or s.array.type.dtype != s.value.type:
                continue
            for c in loop.carried:
                if c.next == s.value and isinstance(s.value, Var) and c.var != loop.var:
                    place = _place(access[id(s)], loop, inside, accesses)
                    if place is not None:
                        found[c.var.name] = place
    return found


def _place(store: Access, loop: Loop, inside: set[str], accesses: Accesses) -> Place | None:
    name = store.array.name
    depth = len(accesses.home.get(name, ()))
    if len(store.loops) <= depth or any(tbr.may_reach(store, w, depth, accesses) for w in accesses.writes(name)):
        return None
    shifts: list[int | None] = []
    for e in store.index:
        form = tbr.affine(e, accesses)
        moves = form.terms == {(loop.var.name, ""): 1}
        if moves and tbr.is_nonnegative(e, accesses):
            shifts.append(form.constant)
        elif not any(isinstance(n, Var) and n.name in inside for n in ir.walk(e)):
            shifts.append(None)
        else:
            return None
    return Place(store.array, store.index, tuple(shifts)) if set(shifts) != {None} else None

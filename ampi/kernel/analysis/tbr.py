"""To-be-recorded (TBR) analysis: where the reverse sweep reads a value that the forward sweep loaded.

The adjoint recomputes one iteration at a time, with the caller's arrays as they were before the call.  A load in such
an iteration is

* ``ORIGINAL``  if no write of the kernel can have reached the element before: it is read from the caller's array;
* ``FINAL``     if no write can reach it afterwards: it is read from the working copy that the forward sweep completed;
* ``SAVED``     otherwise: the forward sweep saves the value that was loaded; or, for several loads,
* ``SNAPSHOT``  the part of the array that they read (see ``snapshots``).

An array's *home* is the innermost loop that allocates it (the function, for arguments).  Inside one iteration of its
home an array is recomputed as a whole, so the question only arises for loads in loops further inside.

The analysis compares index expressions that are affine in loop counters.  Iterations of ``prange`` are independent, as
the user declares; other loops count as dependent unless independence is proven.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from numba import types

from ampi.kernel import ir
from ampi.kernel.ir import Const, Expr, Op, Size, Stmt, Var
from ampi.kernel.ir.index_algebra import Sum
from ampi.kernel.ir.ssa import Branch, Loop


class Source(enum.Enum):
    """Where the reverse sweep finds a loaded value; ``HERE``: in place, as no loop lies between home and load."""

    HERE = "computed in place"
    ORIGINAL = "read from the array before the call"
    FINAL = "read from the working copy"
    SAVED = "saved by the forward sweep"
    SNAPSHOT = "read from a copy of the array saved at the beginning of an enclosing iteration"


@dataclass(frozen=True)
class Access:
    """A statement that reads or writes an element, and its position in the program."""

    statement: Stmt
    array: Var
    index: tuple[Expr, ...]
    position: int
    loops: tuple[Loop, ...]
    arms: tuple[tuple[int, str], ...]

    @property
    def is_load(self) -> bool:
        return isinstance(self.statement, ir.Assign)


@dataclass
class Accesses:
    """All accesses of a function by array, and the facts needed to compare their indices."""

    of: dict[str, list[Access]] = field(default_factory=lambda: defaultdict(list))
    home: dict[str, tuple[Loop, ...]] = field(default_factory=dict)
    depth: dict[str, tuple[Loop, ...]] = field(default_factory=dict)
    value: dict[str, Expr] = field(default_factory=dict)
    counter: dict[str, Loop] = field(default_factory=dict)
    unsigned: set[str] = field(default_factory=set)
    product: dict[str, tuple[str, ...]] = field(default_factory=dict)
    form: dict[str, Sum] = field(default_factory=dict)
    fills: list[tuple[ir.Fill, int, tuple[Loop, ...]]] = field(default_factory=list)

    def writes(self, array: str) -> list[Access]:
        return [a for a in self.of[array] if not a.is_load]


def collect(function: ir.Function) -> Accesses:
    """The accesses of a function in single assignment form."""
    found = Accesses()
    found.unsigned |= {a.name for a in function.arguments if getattr(a.type, "signed", True) is False}
    position = 0

    def visit(body: tuple[Stmt, ...], loops: tuple[Loop, ...], arms: tuple[tuple[int, str], ...]) -> None:
        nonlocal position
        for s in body:
            position += 1
            match s:
                case ir.Assign(target=target, value=value):
                    found.depth[target.name] = loops
                    found.value[target.name] = value
                    if getattr(target.type, "signed", True) is False:
                        found.unsigned.add(target.name)
                    if isinstance(value, ir.Load):
                        found.of[value.array.name].append(Access(s, value.array, value.index, position, loops, arms))
                case ir.Store(array=array, index=index) | ir.Accumulate(array=array, index=index):
                    found.of[array.name].append(Access(s, array, index, position, loops, arms))
                case ir.Alloc(target=target):
                    found.home[target.name] = loops
                case ir.Fill():
                    found.fills.append((s, position, loops))
                case ir.Launch(reduced=reduced):
                    found.depth.update({r.var.name: loops for r in reduced})
                case Loop():
                    found.depth[s.var.name] = (*loops, s)
                    found.counter[s.var.name] = s
                    for c in s.carried:
                        found.depth[c.var.name] = (*loops, s)
                    visit(s.body, (*loops, s), arms)
                case Branch():
                    for j in s.joins:
                        found.depth[j.var.name] = loops
                    visit(s.then, loops, (*arms, (id(s), "then")))
                    visit(s.orelse, loops, (*arms, (id(s), "else")))

    visit(function.body, (), ())
    return found


def require_steady(accesses: Accesses) -> None:
    """Check that the arrays of each ``Fill`` still have the same values when its adjoint reads them."""
    for fill, position, loops in accesses.fills:
        assert accesses.home.get(fill.target.name) == loops, fill
        assert not accesses.writes(fill.target.name), fill
        for a in fill.arguments:
            home = accesses.home.get(a.name, ())
            for w in accesses.writes(a.name):
                common = [x for x, y in zip(w.loops, loops) if x is y]
                assert w.position < position and len(common) == len(home), fill


def find_sources(function: ir.Function, accesses: Accesses, switched_on: bool = True) -> dict[str, Source]:
    """The source of each load's value in the reverse sweep, by the name of its target.

    Switched off, every value of an array that is written is saved.
    """
    sources: dict[str, Source] = {}
    local = set(accesses.home)
    for array, of_array in accesses.of.items():
        writes = accesses.writes(array)
        home = accesses.home.get(array, ())
        for load in (a for a in of_array if a.is_load):
            sources[load.statement.target.name] = _source(load, writes, home, array in local, accesses, switched_on)
    return sources


def _source(
    load: Access, writes: list[Access], home: tuple[Loop, ...], is_local: bool, accesses: Accesses, switched_on: bool
) -> Source:
    if not writes and not is_local:
        return Source.ORIGINAL
    depth = len(home)
    before = any(may_reach(w, load, depth, accesses) for w in writes)
    if not before and not is_local and switched_on:
        return Source.ORIGINAL
    if len(load.loops) == depth:
        return Source.HERE
    after = any(may_reach(load, w, depth, accesses) for w in writes)
    return Source.SAVED if after or not switched_on else Source.FINAL


def may_reach(first: Access, second: Access, depth: int, accesses: Accesses) -> bool:
    """Return whether ``first`` may touch an element that ``second`` touches later, within one iteration of the first
    ``depth`` loops around both."""
    common = common_loops(first, second)
    for level in range(depth, len(common)):
        if not common[level].parallel and may_overlap(first, second, common, level, accesses):
            return True
    if first.position < second.position and not _exclusive(first, second):
        return may_overlap(first, second, common, None, accesses)
    return False


def common_loops(a: Access, b: Access) -> tuple[Loop, ...]:
    common = []
    for x, y in zip(a.loops, b.loops):
        if x is not y:
            break
        common.append(x)
    return tuple(common)


def _exclusive(a: Access, b: Access) -> bool:
    """Return whether two accesses are on different sides of one branch."""
    sides = dict(a.arms)
    return any(sides.get(branch, side) != side for branch, side in b.arms)


# --------------------------------------------------------------------------------------------- affine forms

Symbol = tuple[str, str]  # a name, and the access to which it belongs: "a", "b", or "" for both


def affine(e: Expr, accesses: Accesses) -> Sum:
    """The affine form of an integer atom: a sum of loop counters, values that are not affine, and products of these
    (`Accesses.product` has their factors), not yet assigned to either access."""
    match e:
        case Const(value=value) if isinstance(value, int):
            return Sum(int(value))
        case Size(array=array, axis=axis):
            return Sum(terms={(f"{array.name}.shape[{axis}]", ""): 1})
        case Var(name=name):
            if name not in accesses.form:
                accesses.form[name] = _affine_value(name, accesses)
            return accesses.form[name]
        case Op():
            combined = _affine_operation(e, accesses)
            if combined is not None:
                return combined
    return Sum(terms={(repr(e), ""): 1})


def _affine_value(name: str, accesses: Accesses) -> Sum:
    definition = accesses.value.get(name)
    if isinstance(definition, Size) and definition.array.name not in accesses.home:
        return affine(definition, accesses)
    combined = _affine_operation(definition, accesses) if isinstance(definition, Op) else None
    return Sum(terms={(name, ""): 1}) if combined is None else combined


def _affine_operation(op: Op, accesses: Accesses) -> Sum | None:
    if op.name not in ("add", "sub", "neg", "mul", "cast", "pos"):
        return None
    if op.name == "cast" and not _keeps_integers(op.args[0].type, op.type):
        return None
    forms = [affine(a, accesses) for a in op.args]
    match op.name:
        case "add":
            return forms[0].plus(forms[1])
        case "sub":
            return forms[0].plus(forms[1], -1)
        case "neg":
            return forms[0].times(-1)
        case "mul":
            return _multiplied(forms[0], forms[1], accesses)
        case _:
            return forms[0]


def _keeps_integers(old: types.Type, new: types.Type) -> bool:
    """Return whether a conversion changes no index; ``np.uint8(i)`` is the same for many ``i``."""
    return hasattr(old, "signed") and hasattr(new, "signed") and new.bitwidth >= min(old.bitwidth, 64)


def _multiplied(x: Sum, y: Sum, accesses: Accesses) -> Sum | None:
    """The product of two forms, its symbols not assigned to either access; None if it has too many terms."""
    if len(x.terms) * len(y.terms) > LONGEST:
        return None
    found = x.times(y.constant).plus(Sum(terms=y.terms), x.constant)
    for (a, _), c in x.terms.items():
        for (b, _), d in y.terms.items():
            found = found.plus(Sum(terms={(_product(a, b, accesses), ""): c * d}))
    return found


def _product(a: str, b: str, accesses: Accesses) -> str:
    """The symbol of a product of two symbols."""
    factors = sorted((*_factors(a, accesses), *_factors(b, accesses)))
    name = " * ".join(factors)
    accesses.product[name] = tuple(factors)
    accesses.depth[name] = max((accesses.depth.get(f, ()) for f in factors), key=len)
    return name


def _factors(name: str, accesses: Accesses) -> tuple[str, ...]:
    return accesses.product.get(name, (name,))


LONGEST = 16  # the most terms of a product


@dataclass(frozen=True)
class _Pair:
    """Two accesses whose indices are compared: in different iterations of ``loop`` (None: of no loop), and in the same
    iterations of ``shared``.  ``least`` has lower bounds of symbols."""

    loop: Loop | None
    shared: tuple[Loop, ...]
    accesses: Accesses
    least: dict[str, int] = field(default_factory=dict)

    def is_same(self, name: str) -> bool:
        """Return whether a symbol has one value for both accesses."""
        loops = self.accesses.depth.get(name, ())
        return len(loops) <= len(self.shared) and all(x is y for x, y in zip(loops, self.shared))


def may_overlap(a: Access, b: Access, common: tuple[Loop, ...], level: int | None, accesses: Accesses) -> bool:
    """Return whether the two indices can be equal where ``a`` is executed in an earlier iteration of loop
    ``common[level]`` than ``b``, in the same iterations of the loops around it; ``level=None``: in the same iterations
    of all."""
    loop, shared = (None, common) if level is None else (common[level], common[:level])
    pair = _Pair(loop, shared, accesses, _of_ranges((*a.loops, *b.loops), accesses))
    return not any(_never_zero(difference, pair) for difference in _differences(a, b, pair))


def reach(a: Access, b: Access, common: tuple[Loop, ...], level: int, accesses: Accesses) -> int | None:
    """The largest number of iterations of loop ``common[level]`` after which the index of ``b`` can be that of ``a``,
    in the same iterations of the loops around it; None: no bound is known."""
    pair = _Pair(common[level], common[:level], accesses, _of_ranges((*a.loops, *b.loops), accesses))
    found = []
    for difference in _differences(a, b, pair):
        difference = _by_distance(difference, pair)
        factor = difference.terms.get(_DISTANCE)
        if factor is None:
            continue
        rest = difference.without(_DISTANCE)
        bounds = [_bound(rest, side, pair) for side in (-1, 1)]
        if bounds[0] is not None and bounds[1] is not None:
            found.append(max(abs(bounds[0]), abs(bounds[1])) // abs(factor))
    return min(found, default=None)


def _differences(a: Access, b: Access, pair: _Pair) -> Iterator[Sum]:
    """The differences of the indices, in each dimension in which neither counts from the end (-1 and n - 1 name the
    same element)."""
    accesses = pair.accesses
    for x, y in zip(a.index, b.index):
        if is_nonnegative(x, accesses, a.loops) and is_nonnegative(y, accesses, b.loops):
            difference = _tagged(affine(x, accesses), "a", pair)
            yield difference.plus(_tagged(affine(y, accesses), "b", pair), -1)


def is_nonnegative(e: Expr, accesses: Accesses, loops: tuple[Loop, ...] = ()) -> bool:
    """Return whether an index of an access in these loops is certainly not negative."""
    if getattr(e.type, "signed", True) is False:
        return True
    pair = _Pair(None, (), accesses, _of_ranges(loops, accesses))
    lowest = _bound(_tagged(affine(e, accesses), "a", pair), -1, pair)
    return lowest is not None and lowest >= 0


def _of_ranges(loops: Iterable[Loop], accesses: Accesses) -> dict[str, int]:
    """Lower bounds of sizes that follow because loops have iterations: ``n`` is at least one inside ``range(n)``."""
    least: dict[str, int] = {}
    for loop in loops:
        if loop.condition is not None:
            continue
        length = affine(loop.stop, accesses).plus(affine(loop.start, accesses), -1)
        if loop.step < 0:
            length = length.times(-1)
        if len(length.terms) == 1:
            (((name, _), factor),) = length.terms.items()
            if factor == 1 and not accesses.depth.get(name):
                least[name] = max(1 - length.constant, least.get(name, 1 - length.constant))
    return least


def _tagged(form: Sum, tag: str, pair: _Pair) -> Sum:
    """A form in which symbols that may differ between the two accesses are marked with the access."""
    terms = {(name, "" if pair.is_same(name) else tag): c for (name, _), c in form.terms.items()}
    return Sum(form.constant, terms)


def _never_zero(difference: Sum, pair: _Pair) -> bool:
    """Return whether an index difference cannot vanish, given that a's counter of the loop comes before b's."""
    difference = _by_distance(difference, pair)
    if not difference.terms:
        return difference.constant != 0
    if difference.terms.keys() == {_DISTANCE}:
        distance, rest = divmod(-difference.constant, difference.terms[_DISTANCE])
        direction = 1 if pair.loop is not None and pair.loop.step < 0 else -1
        return rest != 0 or distance * direction < 1
    lowest = _bound(difference, -1, pair)
    highest = _bound(difference, 1, pair)
    return (lowest is not None and lowest > 0) or (highest is not None and highest < 0)


_BETWEEN = "the distance"  # no name of a variable
_DISTANCE: Symbol = (_BETWEEN, "")  # from b's counter of the loop to a's: at most -1, or at least 1 going down


def _by_distance(form: Sum, pair: _Pair) -> Sum:
    """A form with a's counter of the loop written as b's plus a distance."""
    loop, accesses = pair.loop, pair.accesses
    if loop is None or loop.condition is not None:
        return form
    for (name, tag), c in list(form.terms.items()):
        others = list(_factors(name, accesses))
        if tag != "a" or loop.var.name not in others:
            continue
        others.remove(loop.var.name)
        if all(pair.is_same(f) for f in others):
            moved = _BETWEEN
            for f in others:
                moved = _product(moved, f, accesses)
            form = form.without((name, tag)).plus(Sum(terms={(name, "b"): c, (moved, ""): c}))
    return form


def _bound(form: Sum, side: int, pair: _Pair) -> int | None:
    """The largest (``side=1``) or smallest value of a form, from the ranges of the loop counters in it."""
    for _ in range(LONGEST):
        form = _by_distance(form, pair)
        if not form.terms:
            return form.constant
        for symbol, c in _inner_first(form, pair.accesses):
            limit = _limit(symbol, 1 if c * side > 0 else -1, pair)
            if limit is not None:
                form = form.without(symbol).plus(limit, c)
                break
        else:
            return None
    return None


def _inner_first(form: Sum, accesses: Accesses) -> list[tuple[Symbol, int]]:
    """The terms of a form, counters of inner loops first: their limits depend on outer counters and on sizes.

    Values computed in a loop (``min(i, n)``) come before the counter of that loop, for the same reason.
    """

    def order(term: tuple[Symbol, int]) -> tuple[int, bool, int]:
        name = term[0][0]
        return -len(accesses.depth.get(name, ())), name in accesses.counter, -len(_factors(name, accesses))

    return sorted(form.terms.items(), key=order)


def _limit(symbol: Symbol, side: int, pair: _Pair) -> Sum | None:
    name, tag = symbol
    accesses = pair.accesses
    if len(_factors(name, accesses)) > 1:
        return _limit_of_product(symbol, side, pair)
    if symbol == _DISTANCE:
        nearest = -1 if pair.loop is None or pair.loop.step > 0 else 1
        return Sum(nearest) if side * nearest < 0 else None
    if side < 0 and name in pair.least:
        return Sum(pair.least[name])
    if side < 0 and (".shape[" in name or name in accesses.unsigned):
        return Sum()
    value = accesses.value.get(name)
    if isinstance(value, Op) and value.name == ("min" if side > 0 else "max"):
        best = min(value.args, key=lambda a: not isinstance(a, Const))
        return _tagged(affine(best, accesses), tag or "a", pair)
    counted = accesses.counter.get(name)
    if counted is None or counted.condition is not None:
        return None
    ascending = counted.step > 0
    last = affine(counted.stop, accesses).plus(Sum(-1 if ascending else 1))
    first = affine(counted.start, accesses)
    return _tagged(last if (side > 0) == ascending else first, tag or "a", pair)


def _limit_of_product(symbol: Symbol, side: int, pair: _Pair) -> Sum | None:
    """The limit of one factor times the others, which are not negative."""
    name, tag = symbol
    accesses = pair.accesses
    factors = list(_factors(name, accesses))
    first = _BETWEEN if _BETWEEN in factors else max(factors, key=lambda f: len(accesses.depth.get(f, ())))
    factors.remove(first)
    tag_of = lambda f: "" if pair.is_same(f) else tag
    limit = _limit((first, tag_of(first)), side, pair)
    for f in factors:
        lowest = _bound(Sum(terms={(f, tag_of(f)): 1}), -1, pair)
        if limit is None or lowest is None or lowest < 0:
            return None
        untagged = Sum(limit.constant, {(n, ""): c for (n, _), c in limit.terms.items()})
        multiplied = _multiplied(untagged, Sum(terms={(f, ""): 1}), accesses)
        limit = None if multiplied is None else _tagged(multiplied, tag or "a", pair)
    return limit


def are_independent(loop: Loop, accesses: Accesses, arrays: Iterable[str] | None = None) -> bool:
    """Return whether no iteration of a loop touches an element that another one writes (increments apart), for all
    arrays or the given ones.  Loop-carried scalars are ignored."""
    if loop.parallel:
        return True
    for array in arrays if arrays is not None else list(accesses.of):
        inside = [a for a in accesses.of[array] if any(around is loop for around in a.loops)]
        if any(around is loop for around in accesses.home.get(array, ())):
            continue  # every iteration allocates it again
        for w in inside:
            if w.is_load:
                continue
            for other in inside:
                if isinstance(w.statement, ir.Accumulate) and isinstance(other.statement, ir.Accumulate):
                    continue
                common = common_loops(w, other)
                level = next(k for k, around in enumerate(common) if around is loop)
                if may_overlap(w, other, common, level, accesses) or may_overlap(other, w, common, level, accesses):
                    return False
    return True

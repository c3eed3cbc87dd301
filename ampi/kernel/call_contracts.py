"""Lookup of a call's contract, by which of its arguments are active and which share memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import Any

import numpy as np

from ampi.errors import ActivityError
from ampi.kernel import arguments, forward, lanes, second
from ampi.kernel.case import Case
from ampi.kernel.contract import Contract, make_contract
from ampi.kernel.list_arguments import refuse_overlap as refuse_overlap_of_lists
from ampi.kernel.runtime.noalias import are_separate
from ampi.memory import storages as memory
from ampi.memory.extents import Extent


def find_contract(
    kernel: Any,
    primal: Any,
    kinds: tuple[Any, ...],
    leaves: Sequence[Any],
    storages: Sequence[memory.Storage | None],
    active: frozenset[int],
    threaded: bool,
    plain: bool,
    after: bool,
) -> Contract:
    """The contract of a call, made at the first call of its kind.

    ``plain`` is true if all memory is ordinary: no other code writes it.
    """
    places, same, separate = find_aliases(leaves, plain and have_own_storages(leaves, storages))
    choices = active, same, separate, threaded, after

    def contract_for(single: frozenset[tuple[int, int]]) -> Contract:
        key = kinds, choices, single, plain
        contract = kernel.contracts.get(key)
        if contract is None:
            case = Case(primal.types, *choices, single, plain)
            tangent = cache(partial(forward.make_tangent_contract, kernel, case))
            twice = cache(partial(second.make_second_contract, kernel, case))
            more = {"tangent": tangent, "second": twice, "drawing": cache(partial(drawing_of, kernel, case))}
            made = make_contract(kernel, case)
            if made.whole is not None:
                more["whole"] = cache(partial(_whole, kernel, case, made.whole, more))
            contract = kernel.contracts[key] = lanes.with_lanes(kernel, case, replace(made, **more))
        return contract

    contract = contract_for(frozenset())
    if active and contract.disagreement is not None and contract.disagreement(*leaves):
        contract = contract_for(axes_of_size_one(leaves))
    if active and not separate:
        refuse_overlap(kernel, contract, places, same, leaves)
    return contract


def _whole(kernel: Any, case: Case, make: Callable[[], Contract], more: dict[str, Any]) -> Contract:
    """The contract with an adjoint in one program."""
    return lanes.with_lanes(kernel, case, replace(make(), **{**more, "whole": None}))


def find_aliases(leaves: Sequence[Any], separate: bool) -> tuple[list[Any], tuple[tuple[int, int], ...], bool]:
    """The places of leaves, the pairs that are the same array, and whether no others overlap.

    Nothing is compared if the leaves are already known to be ``separate``.
    """
    if separate:
        return [], (), True
    places = list(map(arguments.place, leaves))
    same = arguments.same_places(places)
    merged = {k for k, _ in same}
    separate = are_separate([None if k in merged else p and p[:2] for k, p in enumerate(places)], leaves)
    return places, same, separate


def axes_of_size_one(leaves: Sequence[Any]) -> frozenset[tuple[int, int]]:
    """The axes (leaf, axis) of size one of arrays, which are broadcast."""
    arrays = [(k, leaf) for k, leaf in enumerate(leaves) if isinstance(leaf, np.ndarray)]
    return frozenset((k, axis) for k, a in arrays for axis, n in enumerate(a.shape) if n == 1)


def drawing_of(kernel: Any, case: Case) -> Any:
    """The `Drawing` of a kernel with random numbers; imports the differentiator only if there are any."""
    from ampi.kernel.drawing import make_drawing

    return make_drawing(kernel, case)


def find_tangent_contract(
    kernel: Any, bound: tuple[Any, ...], leaves: Sequence[Any], storages: Sequence[Any], active: frozenset[int]
) -> forward.TangentContract:
    """The contract of a call in forward mode (compare `find_contract`)."""
    threaded = kernel.is_threaded()
    places, same, separate = find_aliases(leaves, have_own_storages(leaves, storages))
    kinds = tuple(map(arguments.kind, bound))

    def contract_for(single: frozenset[tuple[int, int]]) -> forward.TangentContract:
        key = "tangent", kinds, active, same, separate, threaded, single
        contract = kernel.contracts.get(key)
        if contract is None:
            types = kernel.types_of(tuple(map(arguments.plain, bound)))
            case = Case(types, active, same, separate, threaded, single=single)
            drawing = cache(partial(drawing_of, kernel, case))
            contract = replace(forward.make_tangent_contract(kernel, case), drawing=drawing)
            kernel.contracts[key] = contract
        return contract

    contract = contract_for(frozenset())
    if contract.disagreement is not None and contract.disagreement(*leaves):
        contract = contract_for(axes_of_size_one(leaves))
        if contract.disagreement is not None:
            refuse_stretching(kernel, contract.disagreement(*leaves))
    if not separate:
        refuse_overlap(kernel, contract, places, same, leaves)
    refuse_overlap_of_lists(kernel, contract.names, contract.writes, bound, leaves)
    return contract


def have_own_storages(leaves: Sequence[Any], storages: Sequence[memory.Storage | None]) -> bool:
    """Return whether each array has a separate storage."""
    found: list[memory.Storage] = []
    for leaf, storage in zip(leaves, storages):
        if isinstance(leaf, np.ndarray):
            if storage is None or storage in found:
                return False
            found.append(storage)
    return True


def refuse_stretching(kernel: Any, line: int) -> None:
    """Raise an error for an axis of size one that is broadcast, unless it is an argument's or visible in the source."""
    from ampi.kernel.normalise.expand import ADVICE

    if line:
        raise ActivityError(
            f"{kernel.py_func.__code__.co_filename}:{line}: in kernel '{kernel.__name__}': arrays of "
            f"different sizes in one operation; {ADVICE}"
        )


def refuse_overlap(
    kernel: Any,
    contract: Contract | forward.TangentContract,
    places: Sequence[Any],
    same: tuple[tuple[int, int], ...],
    leaves: Sequence[Any],
) -> None:
    """Raise an error for arguments that overlap without being the same array."""
    merged = {k for k, _ in same}
    for w in contract.writes:
        for k, other in enumerate(places):
            if k == w or other is None or k in merged or places[w][0] >= other[1] or other[0] >= places[w][1]:
                continue
            if Extent(leaves[w]).overlaps(Extent(leaves[k])):
                raise ActivityError(
                    f"{kernel.__name__}(): arguments '{contract.names[k]}' and '{contract.names[w]}' overlap "
                    "in memory, and the kernel writes one of them; pass the whole array once, or a copy"
                )

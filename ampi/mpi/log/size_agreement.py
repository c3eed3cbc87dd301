"""Comparison of the lengths in collective calls of different ranks, in the agreement before a sweep."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence

import numpy as np

from .messages import Collective
from .reverse import SIZES_TAG, Reverse
from .sizes import Sizes


def sizes_of(call: Collective) -> Sizes | None:
    """Return the lengths of a call that must fit those of other ranks; None if there are none."""
    known = getattr(getattr(call, "call", None), "known_sizes", None)
    return None if known is None else known()


def unequal_lengths(call: Collective, most: int, least: int, most_blocks: int, least_blocks: int) -> str:
    """Describe how lengths differ that must be equal on all ranks (minima have the other sign); '' if they do not."""
    sizes = sizes_of(call)
    if sizes is None:
        return ""
    mine = sizes.amount(sizes.same)
    if most != -least:
        low, high = sizes.amount(-least), sizes.amount(most)
        return (
            f"{call.describe()}: the counts do not fit: this rank gives {mine}, the ranks give {low} to {high}; MPI "
            "requires them to be equal"
        )
    if most_blocks != -least_blocks:
        return (
            f"{call.describe()}: the counts do not fit: this rank gives {mine} in all, as the others do, but not all "
            "ranks divide this into the same blocks"
        )
    return ""


def compare_pairs(
    reverse: Reverse,
    calls: Sequence[Collective],
    problems: list[str],
    told: Callable[..., Generator[None, None, np.ndarray]],
) -> Generator[None]:
    """Compare with each partner what one sends and the other expects in all calls that are reversed.

    The ranks have agreed on the calls: partners of one are partners of the other.
    """
    rows: dict[int, list[tuple[int, int, int]]] = {}
    for k, call in enumerate(calls):
        sizes = sizes_of(call) if call.happening else None
        if sizes is not None:
            for partner in sizes.going.keys() | sizes.coming.keys():
                row = k, sizes.going.get(partner, 0), sizes.coming.get(partner, 0)
                rows.setdefault(partner, []).append(row)
    going = []
    for partner in sorted(rows):
        mine = np.array([(reverse.identity, 0, 0), *rows[partner]], np.int64)
        going.append(reverse.comm.Isend(mine, partner, SIZES_TAG))
    for partner in sorted(rows):
        theirs = yield from told(partner, SIZES_TAG, 3)
        for (k, sent, expected), (_, their_sent, their_expected) in zip(rows[partner], theirs[1:].tolist()):
            _compare(reverse, partner, calls[k], (sent, their_expected), (their_sent, expected), problems)
    for request in going:
        while not request.Test():
            yield


def _compare(
    reverse: Reverse,
    partner: int,
    call: Collective,
    there: tuple[int, int],
    here: tuple[int, int],
    problems: list[str],
) -> None:
    sizes = sizes_of(call)
    assert sizes is not None
    for (sent, expected), sender, receiver in (
        (there, "this rank", f"rank {partner} expects"),
        (here, f"rank {partner}", "this rank expects"),
    ):
        if sent != expected:
            problems.append(
                f"rank {reverse.rank}: {call.describe()}: the counts do not fit: {sender} sends {sizes.amount(sent)}, "
                f"{receiver} {sizes.amount(expected)}; MPI requires them to be equal"
            )

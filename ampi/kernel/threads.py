"""Names of `ampi.kernel.runtime.threads` that generated programs import from here."""

from ampi.kernel.runtime.threads import (
    ALONE,
    APART,
    ATOMIC,
    NEAR,
    OWN,
    add_own,
    atomic_add,
    blocks_are_apart,
    choose,
    largest_of_parts,
    piece,
    place_of_largest,
    place_of_smallest,
    smallest_of_parts,
)

__all__ = [
    "ALONE",
    "APART",
    "ATOMIC",
    "NEAR",
    "OWN",
    "add_own",
    "atomic_add",
    "blocks_are_apart",
    "choose",
    "largest_of_parts",
    "piece",
    "place_of_largest",
    "place_of_smallest",
    "smallest_of_parts",
]

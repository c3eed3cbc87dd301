"""Names of `ampi.kernel.runtime.special` that generated programs import from here."""

from ampi.kernel.runtime.special import (
    digamma,
    fused,
    get_num_threads,
    longer,
    put_into,
    scratch,
    selected,
    separate,
    solve_upper,
    tetragamma,
    trigamma,
    where_nonzero,
)

__all__ = [
    "digamma",
    "fused",
    "get_num_threads",
    "longer",
    "put_into",
    "scratch",
    "selected",
    "separate",
    "solve_upper",
    "tetragamma",
    "trigamma",
    "where_nonzero",
]

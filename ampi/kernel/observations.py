"""Runs of the compiler's passes, as seen by tools that watch them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Observation:
    """A run of a pass: its time, and the number of statements after it."""

    name: str
    stage: str
    seconds: float
    statements: int


observed: ContextVar[list[Observation] | None] = ContextVar("observed", default=None)
"""The runs of passes since the watching began; None if no code watches."""


@contextlib.contextmanager
def watched() -> Iterator[list[Observation]]:
    """Collect the passes that run in the ``with`` block in a list."""
    found: list[Observation] = []
    token = observed.set(found)
    try:
        yield found
    finally:
        observed.reset(token)

"""Tangents of the memory of messages: reading and setting them."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...tape import Push, Tape, lanes_of, no_second_derivative
from .buffers import Buffer
from .message_memory import AdjointMemory


class Reader:
    """A stand-in for a sweep: where a sweep takes adjoints, it returns copies of tangents, which stay unchanged."""

    def __init__(self, push: Push) -> None:
        self.push = push

    def has_shadow(self, region: Any) -> bool:
        """Return whether the region's storage has a tangent."""
        return self.push.has_shadow(region)

    def shadow(self, region: Any) -> np.ndarray:
        """Return a copy of the region's tangent."""
        return self.push.shadow(region).copy()

    shadow_again = shadow

    def take(self, region: Any) -> np.ndarray | None:
        """Return a copy of the region's tangent; None for zeros."""
        return self.shadow(region) if self.has_shadow(region) else None

    def zero(self, region: Any, key: Any = ...) -> None:
        """Do nothing: the tangent stays."""


def require_program(tape: Tape) -> None:
    """In second order: raise an error if an adjoint communicates."""
    if tape.sweeping:
        raise no_second_derivative("an adjoint that communicates")


def tangent_in(push: Push, memory: AdjointMemory) -> np.ndarray:
    """Return the tangent of a message's memory as a new flat array; in vector mode, all directions concatenated."""
    if push.lanes is None:
        return memory.take(Reader(push))
    return np.concatenate(tangents_in(push, memory))


def tangent_in_place(push: Push, memory: Any, always: bool = False) -> np.ndarray | None:
    """Return the tangent of a message's memory, flat and not copied; None if it is not contiguous.

    Also None where there is no tangent yet, unless ``always``.
    """
    return memory.in_place(push, always) if type(memory) is Buffer else None


def tangents_in(push: Push, memory: AdjointMemory) -> list[np.ndarray]:
    """Return the tangents of a message's memory in each direction."""
    return [memory.take(Reader(lane)) for lane in lanes_of(push)]


def set_tangent(push: Push, memory: AdjointMemory, flat: np.ndarray | None) -> None:
    """Set the tangent of a message's memory, in the form of `tangent_in`; None: set it to zero."""
    lanes = lanes_of(push)
    for lane in lanes:
        memory.zero(lane)
    if flat is not None:
        for lane, part in zip(lanes, np.split(flat, len(lanes)) if len(lanes) > 1 else [flat]):
            memory.add(lane, part)

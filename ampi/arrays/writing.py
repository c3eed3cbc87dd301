"""Assignment to arrays and their parts.

All writes go through `write`, which keeps the undo log correct even if NumPy raises an error in the middle of a write.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ActivityError
from ..memory.handouts import settle
from ..memory.storages import PACKED, Region, carries_derivatives, plain, region_of, storage_of
from ..tape import BaseAdjoint, Push, Sweep, Undo, Zero, current, overwrite
from ..tape.recording import tasks
from .activity import holds_same_bytes, is_active, plain_of, require_tracked
from .byte_views import movable
from .elementwise import unbroadcast
from .partial_writes import record_partial_write


def concerns_tapes(target: np.ndarray) -> bool:
    """Return whether a write into the array concerns a tape, open or closed."""
    storage = storage_of(target)
    return storage is not None and (bool(storage.needs) or storage.tape is not None)


def must_announce(target: np.ndarray) -> bool:
    """Return whether a write must go through `write`: it concerns a tape, or the memory is watched."""
    storage = storage_of(target)
    return storage is not None and bool(storage.needs or storage.tape is not None or storage.guard or tasks)


def write(
    targets: Sequence[np.ndarray], action: Callable[[], Any], key: Any = None, are_constants: bool = False
) -> tuple[Any, list[Undo]]:
    """Run an action that overwrites arrays, or only their ``array[key]`` if a key is given.

    Returns
    -------
    result, undo
        The action's result, and the undo information for the record that the caller appends.
    """
    undo = overwrite(*targets, key=key)
    try:
        result = action()
        for target in targets:
            storage = storage_of(target)
            if storage is not None and storage.guard:
                settle(storage)
        return result, undo
    except BaseException as error:
        tape = current()
        if tape is not None:
            if undo:
                tape.append(None, undo)
            if isinstance(error, Exception):
                record_partial_write(tape, targets, action, are_constants, error)
        raise


def write_constants(targets: Sequence[np.ndarray], action: Callable[[], Any], key: Any = None) -> Any:
    """Run an action that overwrites arrays with constants."""
    tape = current()
    zeroed = [] if tape is None else [region_of(target) for target in targets if tape.is_active(target)]
    result, undo = write(targets, action, key, True)
    if tape is not None:
        if zeroed or undo:
            tape.append(Zero(zeroed, key) if zeroed else None, undo)
        if key is None:
            for target in targets:
                tape.deactivate(target)
    return result


class Assign(BaseAdjoint):
    """target[...] = source, with broadcasting."""

    __slots__ = ("source", "target")
    second_order = "linear"
    reads_memory = False

    def __init__(self, target: Region, source: Region) -> None:
        self.target = target
        self.source = source

    def __call__(self, sweep: Sweep) -> None:
        g = sweep.take(self.target)
        if g is not None:
            sweep.add(self.source, unbroadcast(g, self.source.shape))

    def tangent(self, push: Push) -> None:
        """Assign the tangent as the values were."""
        push.put(self.target, push.get(self.source))


def taken(sweep: Sweep, result: Region, fresh: bool, mask: Any) -> np.ndarray:
    """Take the adjoint of an operation's result; it is zero where a mask kept the old value."""
    shadow = sweep.shadow(result)
    if fresh:
        return shadow if mask is None else np.where(mask, shadow, 0)
    if mask is None:
        g = shadow.copy()
        shadow[...] = 0
        return g
    mask = np.broadcast_to(mask, shadow.shape)
    g = np.where(mask, shadow, 0)
    shadow[mask] = 0
    return g


def assign(
    target: np.ndarray,
    value: Any,
    what: str = "item assignment",
    casting: Any = "unsafe",
    action: Callable[[], Any] | None = None,
) -> None:
    """``target[...] = value`` for a view of the memory; an action, if given, makes NumPy write the values."""
    if action is None:
        view = plain(target)
        source = plain_of(value)
        action = lambda: np.copyto(view, source, casting=casting)
    tape = current()
    moved = movable(tape, value) if target.dtype.itemsize == 1 else None
    if moved is not None and holds_same_bytes(moved, target):
        _assign_packed(tape, target, moved, action, what)
        return
    if not is_active(tape, value):
        write_constants([target], action)
        return
    require_tracked(target, what)
    if not carries_derivatives(target.dtype):
        write_constants([target], action)
        return
    assert tape is not None
    _, undo = write([target], action)
    tape.append(Assign(region_of(target), region_of(value)), undo)
    tape.activate(target)


def assign_as(out: Any, what: str, run: Callable[[Any], Any], derive: Callable[[], Any]) -> Any:
    """Record a call of a NumPy function with an output array.

    ``run(scratch)`` is NumPy's own call, which determines the values that are written and raises NumPy's errors;
    ``derive()`` is the recorded call without an output array.
    """
    if not out.size:
        run(plain(out))
        return out
    scratch = plain(out).copy(order="K")
    try:
        run(scratch)
    except Exception as error:
        _write_partially(out, scratch, error)
        raise
    assign(out, derive(), what, action=lambda: np.copyto(plain(out), scratch))
    return out


def _write_partially(out: Any, scratch: np.ndarray, error: Exception) -> None:
    """Write to an array what a function wrote to a copy before it raised an error."""

    def action() -> None:
        np.copyto(plain(out), scratch)
        raise error

    if scratch.tobytes() != plain(out).tobytes():
        write([out], action)


def _assign_packed(tape: Any, target: np.ndarray, value: Any, action: Callable[[], Any], what: str) -> None:
    """``target[...] = value`` for bytes that hold packed values."""
    if storage_of(target) is None and storage_of(value).packed != PACKED:  # type: ignore[union-attr]
        action()  # received bytes, which most likely hold no active numbers
        return
    require_tracked(target, what)
    make_slots(target, value)
    _, undo = write([target], action)
    tape.append(Assign(region_of(target), region_of(value)), undo)
    tape.activate(target)


def make_slots(target: np.ndarray, value: np.ndarray) -> None:
    """Give memory slots for the bytes of packed values that are about to be written."""
    storage: Any = storage_of(target)
    if storage.volatile:
        raise ActivityError(
            "the bytes of active values are written into the memory of a window; write the numbers, or pass "
            "ampi.value(...)"
        )
    storage.packed = max(storage.packed, storage_of(value).packed)  # type: ignore[union-attr]

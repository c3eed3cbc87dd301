"""Assignment to arrays and their parts.

Everything that writes goes through `write`, which keeps the undo log right even where NumPy raises halfway.
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
from .halfway import record_halfway


def concerns_tapes(target: np.ndarray) -> bool:
    """Whether a write into the array concerns any tape, open or closed."""
    storage = storage_of(target)
    return storage is not None and (bool(storage.needs) or storage.tape is not None)


def must_announce(target: np.ndarray) -> bool:
    """Whether a write into the array has to be announced: it concerns a tape, or the memory is watched for others."""
    storage = storage_of(target)
    return storage is not None and bool(storage.needs or storage.tape is not None or storage.guard or tasks)


def write(
    targets: Sequence[np.ndarray], action: Callable[[], Any], key: Any = None, are_constants: bool = False
) -> tuple[Any, list[Undo]]:
    """Run an action that overwrites arrays (only ``array[key]``, if a key is given), by constants or by active values.

    Returns
    -------
    result, undo
        What the action returned, and what belongs into the record that the caller appends.
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
                record_halfway(tape, targets, action, are_constants, error)
        raise


def write_constants(targets: Sequence[np.ndarray], action: Callable[[], Any], key: Any = None) -> Any:
    """Run an action that overwrites arrays with values that carry no derivative."""
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


class _Assign(BaseAdjoint):
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
        """The tangent is assigned as the values are."""
        push.put(self.target, push.get(self.source))


def assign(
    target: np.ndarray,
    value: Any,
    what: str = "item assignment",
    casting: Any = "unsafe",
    action: Callable[[], Any] | None = None,
) -> None:
    """``target[...] = value``; target is a view of the memory to be overwritten, by an action of NumPy's if one is
    given."""
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
    tape.append(_Assign(region_of(target), region_of(value)), undo)
    tape.activate(target)


def assign_as(out: Any, what: str, run: Callable[[Any], Any], derive: Callable[[], Any]) -> Any:
    """What a function of NumPy's does that is given an array for its result.

    ``run(scratch)`` is NumPy's own call, which decides what is written, whether it may be, and in which arithmetic;
    ``derive()`` the recorded one without such an array.
    """
    if not out.size:
        run(plain(out))
        return out
    scratch = plain(out).copy(order="K")
    try:
        run(scratch)
    except Exception as error:
        _write_halfway(out, scratch, error)
        raise
    assign(out, derive(), what, action=lambda: np.copyto(plain(out), scratch))
    return out


def _write_halfway(out: Any, scratch: np.ndarray, error: Exception) -> None:
    """Give an array what a function has written to a copy of it before it raised an error."""

    def action() -> None:
        np.copyto(plain(out), scratch)
        raise error

    if scratch.tobytes() != plain(out).tobytes():
        write([out], action)


def _assign_packed(tape: Any, target: np.ndarray, value: Any, action: Callable[[], Any], what: str) -> None:
    """The same for bytes that hold packed values."""
    if storage_of(target) is None and storage_of(value).packed != PACKED:  # type: ignore[union-attr]
        action()  # bytes that came from elsewhere: most likely they hold nothing
        return
    require_tracked(target, what)
    make_slots(target, value)
    _, undo = write([target], action)
    tape.append(_Assign(region_of(target), region_of(value)), undo)
    tape.activate(target)


def make_slots(target: np.ndarray, value: np.ndarray) -> None:
    """Bytes that hold packed values are about to enter memory."""
    storage: Any = storage_of(target)
    if storage.volatile:
        raise ActivityError(
            "the bytes of active values are written into the memory of a window; write the numbers, or pass "
            "ampi.value(...)"
        )
    storage.packed = max(storage.packed, storage_of(value).packed)  # type: ignore[union-attr]

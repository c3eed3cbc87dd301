"""Operations that raise an error after they have written a part of an array, or all of it.

NumPy does so, for example, where `numpy.errstate` makes an overflow an error. A program may catch the error and use the
array. The written elements are found by running the operation again on other values: those that stay were not written.
A kernel cannot run again so, as other values may lead it out of its arrays: any element may have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..errors import ActivityError
from ..memory.storages import Region, plain, region_of, storage_of
from ..tape import BaseAdjoint, Push, Sweep, Tape, Zero, where_called


class _Unknown(BaseAdjoint):
    """Adjoint of elements with active values that no record describes: it must be zero."""

    __slots__ = ("mask", "message", "region")
    second_order = "linear"
    reads_memory = False

    def __init__(self, region: Region, mask: np.ndarray, message: str) -> None:
        self.region = region
        self.mask = mask
        self.message = message

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.region) and sweep.shadow(self.region)[..., self.mask].any():
            raise ActivityError(self.message)

    def tangent(self, push: Push) -> None:
        """Set NaN: whether the elements are used before they are overwritten is not known yet."""
        push.put(self.region, np.nan, self.mask)


def record_partial_write(
    tape: Tape, targets: Sequence[np.ndarray], action: Callable[[], Any], are_constants: bool, error: Exception
) -> None:
    """Record the elements that an action wrote before it raised an error."""
    for target in targets:
        is_active = tape.is_active(target)
        if storage_of(target) is None or (are_constants and not is_active):
            continue
        mask = _written(target, action)
        if mask is None or not mask.any():
            continue
        if are_constants:
            tape.append(Zero([region_of(target)], (mask,)))
            continue
        _record_unknown(tape, target, mask, "an operation on active arrays", error)


def record_any_writes(tape: Tape, targets: Sequence[np.ndarray], what: str, error: BaseException) -> None:
    """Record that ``what`` raised an error after it may have written active values to arrays, wherever in them."""
    for target in targets:
        if storage_of(target) is not None and target.dtype.kind in "fc":
            _record_unknown(tape, target, np.ones(target.shape, bool), what, error)


def _record_unknown(tape: Tape, target: np.ndarray, mask: np.ndarray, what: str, error: BaseException) -> None:
    message = (
        f"{where_called()}: {what} raised {type(error).__name__} ({error}) when it had "
        f"written to an array of shape {target.shape}, which is used afterwards; what was written has no "
        "derivative: assign all of the array again where the error is caught, or pass ampi.value(...) of it"
    )
    tape.append(_Unknown(region_of(target), mask, message))
    tape.activate(target)


def _written(target: np.ndarray, action: Callable[[], Any]) -> np.ndarray | None:
    """A mask of the elements that an action writes before it raises an error."""
    memory = plain(target)
    if memory.dtype.kind not in "fc" or not memory.flags.writeable:
        return None
    now, mask = memory.copy(order="K"), np.zeros(memory.shape, bool)
    try:
        for fill in (0.5, 0.25):
            memory[...] = fill
            try:
                action()
            except Exception:
                mask |= memory != fill
            else:
                mask[...] = True
    finally:
        memory[...] = now
    return mask

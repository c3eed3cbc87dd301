"""States of time loops with arrays on a device: the loop stores, restores and compares copies on the host.

A step begins by copying them to the device and ends by copying the results back; both copies are differentiated.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .views import Carried, View

if TYPE_CHECKING:
    from collections.abc import Iterator


def carried(state: Any) -> Carried | None:
    """Return a state with copies of its arrays on a device, which are constant on all tapes from now on; None if it has
    none."""
    made = _with_copies(state)
    if not made[1]:
        return None
    from ..device.memory import release

    for array in View(made).on_device:
        release(array)
    return made


def carried_step(step: Callable[[Any], Any]) -> Callable[[Carried], Carried]:
    """Return a step whose state is that of `carried`."""
    from ..device.arrays import transfer
    from ..device.memory import state_of_step

    def run(given: Carried) -> Carried:
        state, copies = given
        arrays = View(given).on_device
        token = state_of_step.set(frozenset(array.storage for array in arrays))
        try:
            for array, values in zip(arrays, copies, strict=True):
                transfer(array, values)
            result = step(state)
        finally:
            state_of_step.reset(token)
        return _with_copies(state if result is None else result)

    return run


def landed(state: Carried) -> Any:
    """Return the program's state at the end of a loop; its arrays on a device get the values, and their derivatives."""
    from ..device.arrays import transfer

    for array, values in zip(View(state).on_device, state[1], strict=True):
        transfer(array, values)
    return state[0]


@contextmanager
def kept(*states: Any) -> Iterator[None]:
    """Restore the values of arrays on a device at the end of the block."""
    from ..device.memory import Memory

    arrays = [array for state in states if isinstance(state, Carried) for array in View(state).on_device]
    values = [Memory.copy(array) for array in arrays]
    try:
        yield
    finally:
        for array, copy in zip(arrays, values):
            Memory.take(array, copy)


def _with_copies(state: Any) -> Carried:
    made = Carried([state, []])
    made[1] = [array.copy_to_host() for array in View(made).on_device]
    return made

"""Arrays that steps of a time loop leave behind, other than in the state: their derivatives are not known."""

from __future__ import annotations

import itertools
import sys
from typing import TYPE_CHECKING, Any

from ..memory.live_arrays import tracked_arrays
from ..memory.storages import Storage, carries_derivatives, forget_node, is_scalar, next_serial, storage_of
from ..tape.elsewhere import Unknown
from .stored import set_tape

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .replay import Loop
    from .views import View


class Left:
    """What the steps of a loop leave behind.

    The first step is recorded, so it is known which of its arrays are constants (a table that is computed once).  Later
    steps run without being recorded: what they leave behind may depend on anything.

    Parameters
    ----------
    outside : dict
        See `Loop`.

    Attributes
    ----------
    is_new : bool
        True until the first step has been run.
    is_known : bool
        True if all steps that have been run were recorded.
    has_more : bool
        True if a step that was not recorded has been run since the last one that was.
    """

    def __init__(self, outside: dict[Storage, Any]) -> None:
        self._outside = outside
        self.is_new = True
        self.is_known = True
        self.has_more = False
        self._lost: Any = None
        self._looks = 2  # a search takes longer than many a step: these are all, unless steps do leave arrays behind
        self._constants = 0  # a serial number; earlier arrays that carry no derivatives are constants

    def note_first(self) -> None:
        """Note that the first step has been run and recorded, while its tape still exists."""
        for _ in self._made():  # each gets its serial number
            pass
        self._constants = next_serial()
        self.is_new = False

    def before_recorded(self, loop: Loop, given: View) -> None:
        """Make it an error if a step uses what steps that were not recorded have made, unless it is in the state."""
        if self.has_more and self._looks > 0:
            self.has_more = False
            self._looks -= 1
            self._mark(loop, given, active=False)

    def _is_unknown(self, storage: Storage) -> bool:
        """Return whether a storage that steps have made may depend on something, although it is on no tape."""
        return storage.tape is None and not self.is_known and storage.serial > self._constants

    def _lost_by(self, loop: Loop) -> Any:
        """Return the reference of memory whose derivatives are lost, which the tapes of steps know as well."""
        if self._lost is None:
            unknown = Unknown(
                loop.tape,
                "was computed by a step of ampi.timeloop and is not in its state, so that its derivative is not known; "
                "add it to the state (a list of results, too), or let the step store ampi.value(x) if it is a constant",
            )
            loop.references.add(unknown.reference)
            loop.tape.unknown += (unknown,)
            self._lost = unknown.reference
        return self._lost

    def after_loop(self, loop: Loop, final: View) -> None:
        """Make it an error to use what steps have made, unless it is in the final state or known to be constant."""
        self._mark(loop, final, active=True)

    def _mark(self, loop: Loop, state: View, active: bool) -> None:
        """Mark as lost what is not in the state: what may depend on anything, and what is ``active`` on any tape."""
        lost = self._lost_by(loop)
        kept = {storage_of(array) for array in state.tracked()}
        for storage in self._made():
            if storage not in kept and (self._is_unknown(storage) or (active and storage.tape in loop.references)):
                set_tape(storage, lost)
                self._looks = sys.maxsize

    def after_error(self, loop: Loop) -> None:
        """Make it an error to use what the steps have written before one of them has raised an error."""
        unknown = Unknown(
            loop.tape,
            "was written by the steps of an ampi.timeloop that ended with an error, so that its derivative is not "
            "known; continue with a copy from before the loop (ampi.value(x) is its value as a constant)",
        )
        loop.tape.unknown += (unknown,)
        for storage in itertools.chain(loop.written.storages, self._made()):
            set_tape(storage, unknown.reference)

    def _made(self) -> Iterator[Storage]:
        """Iterate over the memory that steps have made and that still exists, if it may carry derivatives."""
        found: set[Storage] = set()
        for array in tracked_arrays():
            if not carries_derivatives(array.dtype):
                continue
            if is_scalar(array):
                forget_node(array)
            storage = storage_of(array)
            if storage is not None and storage not in found and storage not in self._outside:
                found.add(storage)
                yield storage

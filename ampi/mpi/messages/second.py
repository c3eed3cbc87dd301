"""Messages in second order.

While the program runs, tangents are sent beside the values, as in forward mode, and everything is logged for the sweep,
as in reverse mode.  In the sweep one message carries the adjoint and its tangents.
"""

from __future__ import annotations

from typing import Any

from ...tape import AdjointRecord, no_second_derivative
from ..log import log
from ..log.ownership import require_alone
from ..log.reverse import Reverse
from ..memory.tangents import require_program
from .forward import ForwardCommunication, ForwardLog


class SecondCommunication(ForwardCommunication):
    """The messages that are logged while a tape of second order records."""

    __slots__ = ()

    def __init__(self, tape: Any) -> None:
        with tape.pushing():
            super().__init__(tape)

    def log(self, reverse: Reverse) -> SecondLog:  # type: ignore[override]
        """Return the log of one communicator."""
        found = self.logs.get(reverse)
        if found is None:
            reverse.require_usable()
            require_alone(self.tape(), reverse)  # type: ignore[arg-type]
            found = self.logs[reverse] = SecondLog(self.push, reverse)
        return found  # type: ignore[return-value]


class SecondLog(ForwardLog):
    """The log of one communicator in second order."""

    __slots__ = ()

    def log_message(self, message: Any) -> None:
        """Send the tangent of a message that is about to be sent, or prepare for that of a receive."""
        require_program(self.push.tape)
        super().log_message(message)
        self.messages.append(message)

    def log_collective(self, call: Any) -> None:
        """Check a collective call."""
        require_program(self.push.tape)
        of_objects = call.name[0].islower()
        if not (isinstance(call, AdjointRecord) or of_objects or call.name in _OF_WINDOWS):
            raise no_second_derivative(f"{call.name} on {self.reverse.name}")
        self.collectives.append(call)


_OF_WINDOWS = ("Win", "Fence", "Free")


log.communication_classes["second"] = SecondCommunication

"""Tangents of collective calls, in one direction or several.

They are sent on the reverse communicator, in the same way as the values.  The transfer begins before the values are
sent, and ends after that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ...tape import Push, lanes_of
from ..log.reverse import Reverse
from ..waiting.waiting import wait
from .movements import group_of
from .reverse_schedule import StepsInProgress, in_step

if TYPE_CHECKING:
    from .collective_calls import Part


def begin_tangent(
    part: Part, push: Push, reverse: Reverse, name: str, started: bool, values: Callable[[], Any] | None = None
) -> Callable[[], None]:
    """Begin to send the tangents of a call; return the function that ends it.

    ``started``: the call has a request; ``values()`` gives the values of an operation that is not linear, if they are
    not in memory.
    """
    describe = lambda: f"the tangent of {name} on {reverse.name}"
    compare = None if push.lanes is None else _compare_directions(push, reverse, describe)
    if compare is not None and not started:
        compare()  # now: Open MPI mixes up a nonblocking reduction with a Reduce_scatter that overtakes it
    if push.lanes is None:
        steps = part.tangent(push, reverse, name, values)
    else:
        steps = in_step([part.tangent(lane, reverse, name, values) for lane in lanes_of(push)])
    under_way = StepsInProgress(steps, True)
    try:
        under_way.advance()
    except BaseException:  # from MPI, for wrong arguments: no other call will wait for the comparison
        if compare is not None and started:
            compare()
        raise

    def finish() -> None:
        if compare is not None and started:
            compare()
        under_way.finish(describe, reverse)

    return finish


def _compare_directions(push: Push, reverse: Reverse, describe: Callable[[], str]) -> Callable[[], None]:
    """Begin to compare the number of directions among all ranks, once on each communicator.

    Returns the function that waits for the result.
    """
    key = "directions", reverse
    if key in push.state:
        return lambda: None
    push.state[key] = True
    here = len(push.lanes)
    mine, most = np.array([here, -here]), np.zeros(2, np.int64)
    request = group_of(reverse).Iallreduce(mine, most, mpi.MAX)

    def finish(mine: np.ndarray = mine) -> None:  # keeps `mine` alive, which MPI reads until then
        wait(request, describe, reverse)
        if most[0] != -most[1]:
            raise CommunicationError(
                f"rank {reverse.rank}: ampi.jvp has {here} directions here, but {-most[1]} to {most[0]} on the ranks "
                f"of {reverse.name}: the leading axis of the tangents must have the same length on all ranks"
            )

    return finish

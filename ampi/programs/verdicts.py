"""Programs that check their own results, and end with an error if these are not as expected.

In a run with displaced variables such an end (``sys.exit("wrong")``, a failed ``assert``, ``comm.Abort()``) is
accepted, once the requested variables have been computed.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..errors import ProgramError
from ..mpi.comm import Communicator
from ..mpi.endings import abort

PATIENCE = 30.0  # seconds that a rank which ended so waits for the others
_AMPI = Path(__file__).parent.parent


class _Aborted(SystemExit):
    """``comm.Abort()``"""


@contextlib.contextmanager
def aborting() -> Iterator[None]:
    """Make ``comm.Abort(status)`` end the program's run on this rank only."""

    def abort(self: Any, errorcode: int = 0) -> None:
        raise _Aborted(errorcode)

    Communicator.Abort = abort  # type: ignore[attr-defined]
    try:
        yield
    finally:
        del Communicator.Abort  # type: ignore[attr-defined]


def is_success(end: BaseException) -> bool:
    """Return whether a program's end means success."""
    return isinstance(end, SystemExit) and not isinstance(end, _Aborted) and end.code in (None, 0)


def described(end: BaseException) -> str:
    """The error with which a program's run ended, and its place."""
    frames = [f for f in traceback.extract_tb(end.__traceback__) if _AMPI not in Path(f.filename).parents]
    where = f"{frames[-1].filename}:{frames[-1].lineno}: " if frames else ""
    if isinstance(end, _Aborted):
        return f"{where}comm.Abort({end.code})"
    if isinstance(end, SystemExit):
        return f"{where}sys.exit({end.code!r})"
    return f"{where}{type(end).__name__}{f': {end}' if str(end) else ''}"


@contextlib.contextmanager
def ending(comm: Any, seconds: float, names: str) -> Iterator[None]:
    """End a block that runs much longer than before (``seconds``): the program in it may wait forever."""
    limit = PATIENCE + 10 * seconds
    if comm.Get_size() == 1:
        yield
        return
    rank, done = comm.Get_rank(), threading.Event()

    def watch() -> None:
        if done.wait(limit + rank):  # the first rank prints the message
            return
        sys.stderr.write(
            f"ampi.run: with values of {names} that differ among ranks which had the same, the program has not ended "
            f"after {limit:.0f} seconds (it took {seconds:.1f} before): its ranks may wait for one another, since they "
            "decide by these. If one of them is one value that all ranks have, write --replicated NAME.\n"
        )
        sys.stderr.flush()
        abort(comm, 1)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def await_others(comm: Any, end: BaseException | None) -> None:
    """Wait for the ranks that are still running the program. Collective.

    A rank whose run ended with ``end`` has a time limit, since the others may wait for it in the program.
    """
    request = comm.Ibarrier()
    deadline = time.monotonic() + PATIENCE
    while end is not None and not request.Test():
        if time.monotonic() > deadline:
            error = ProgramError(
                f"with displaced variables the program ended on rank {comm.Get_rank()} ({described(end)}), and did not "
                f"on other ranks for {PATIENCE:.0f} seconds, which wait for it: --check cannot displace these variables"
            )
            print(f"ampi.run: {error}", file=sys.stderr, flush=True)
            comm.Abort(1)
        time.sleep(0.001)
    request.Wait()

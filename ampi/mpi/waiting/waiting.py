"""Waiting in a sweep: it ends when the message has come, or when it is certain that it cannot come.

A rank that computes for minutes is waited for, with a line on stderr now and then.  If the message cannot come, an
error is raised: a partner has sent a notice that it stopped its sweep, its program has ended, or ranks wait for each
other.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable

import numpy as np
from mpi4py import MPI as mpi

from ...errors import CommunicationError
from ...tape import Sweep
from .deadlocks import Judge, Whom
from .notices import look, stranded
from .sides import Side

SOON = 0.5
"""Seconds after which a rank that waits begins to find out why."""

LONGEST = 1.0
"""The most seconds that one pause counts for: a process that was suspended has not waited meanwhile."""

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound to ours


class Running(threading.local):
    """The sweep that a thread runs.

    Attributes
    ----------
    listening : list
        Reverse sides of its communicators, on which notices may come.
    underway : list of callable
        Work that it has started, and continues whenever it waits.
    moved : int
        Number of steps of these so far.
    """

    def __init__(self) -> None:
        self.listening: list[Side] = []
        self.underway: list[Callable[[], None]] = []
        self.moved = 0

    def begin(self, listening: Iterable[Side]) -> Callable[[], list[Callable[[], None]]]:
        """Begin a sweep, perhaps inside of another one.

        Returns
        -------
        callable
            To be called at its end; returns what it had underway.
        """
        outer = self.listening, self.underway
        self.listening, self.underway = list(listening), []

        def end() -> list[Callable[[], None]]:
            underway = self.underway
            self.listening, self.underway = outer
            return underway

        return end


running = Running()


def timeout() -> float | None:
    """Return the seconds without progress after which a sweep gives up (AMPI_TIMEOUT); None without it."""
    text = os.environ.get("AMPI_TIMEOUT")
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not seconds > 0:
        raise CommunicationError(
            f"the environment variable AMPI_TIMEOUT is {text!r}; it takes a number of seconds, for example 600"
        )
    return seconds


class Patience:
    """Pauses between two tests whether a message has come: a little longer each time.

    Used in a ``with`` statement, at the end of which the wait is over.

    Parameters
    ----------
    describe : callable
        Describes what is waited for, for messages.
    whom : callable, optional
        Returns pairs of a `Side` and the rank on it that must act, or None if some rank on it must.  Without it, some
        rank of the world must.

    Attributes
    ----------
    judge : Judge or None
        Determines whether it can come at all, once the wait has lasted for some time.
    """

    __slots__ = ("began", "checked", "describe", "judge", "turns", "whom")

    def __init__(
        self, describe: Callable[[], str], whom: Callable[[], Iterable[Whom]] = lambda: [(None, None)]
    ) -> None:
        self.describe = describe
        self.whom = whom
        self.turns = 0
        self.began = self.checked = 0.0
        self.judge: Judge | None = None

    def __enter__(self) -> Patience:
        return self

    def __exit__(self, *error: object) -> None:
        if self.judge is not None:
            self.judge.board.goes_on()

    def waited(self) -> float:
        """Return the seconds since the first long pause."""
        return time.monotonic() - self.began if self.began else 0.0

    def pause(self) -> None:
        """Pause.

        Raises
        ------
        CommunicationError
            It cannot come, or AMPI_TIMEOUT seconds have passed.
        """
        self.turns += 1
        for proceed in running.underway:
            proceed()
        if self.turns < 2:
            return
        os.sched_yield()  # there may be fewer cores than ranks
        if self.turns < 50:
            return
        _WORLD.Iprobe()  # lets MPI serve what others ask of this rank, whatever it waits for
        if self.turns > 2000:
            time.sleep(1e-4)
        now = time.monotonic()
        if not self.began:
            self.began = self.checked = now
        if now - self.checked > 0.01:
            self.began += max(now - self.checked - LONGEST, 0.0)
            self.checked = now
            look(running.listening, self.describe)
            self._consider(now - self.began)

    def _consider(self, waited: float) -> None:
        limit = timeout()
        if limit is not None and waited > limit:
            raise CommunicationError(
                f"rank {_WORLD.Get_rank()} of the world: no progress for {limit:g} s in the sweep, waiting for "
                f"{self.describe()}; has every rank asked for the gradient? (AMPI_TIMEOUT sets the time)"
            )
        if waited > SOON:
            if self.judge is None:
                self.judge = Judge(self.describe, list(self.whom()))
            self.judge.consider(waited, running.moved)


def wait(
    request: mpi.Request, describe: Callable[[], str], reverse: Side | None = None, partner: int | None = None
) -> None:
    """Wait for a request of mpi4py in a sweep.

    Parameters
    ----------
    request : mpi4py.MPI.Request
    describe : callable
        Gives the text for the error message: the operation, its partner, tag and source line.
    reverse : Side, optional
        The communicator's side on which the request was made.
    partner : int, optional
        The rank on it without which the request does not complete.

    Raises
    ------
    CommunicationError
        The request cannot complete: ranks have ended or wait for each other, or a partner stopped its sweep with an
        error.  Or nothing came for AMPI_TIMEOUT seconds, if that is set.
    """
    if request.Test():
        return
    with Patience(describe, lambda: [(reverse, partner)]) as patience:
        try:
            while not request.Test():
                patience.pause()
        except BaseException:
            stranded.append(request)
            raise


class Outbox:
    """Adjoints under way to other ranks.  Sending never blocks: the program may have relied on buffering.

    Delivered ones are dropped whenever their number or size has doubled since the last time.
    """

    __slots__ = ("_many", "_much", "_patient", "flights", "nbytes")

    _FEW = 32
    _CACHED = 1 << 18  # delivered memory is reused while it is still in the cache
    _MUCH = 1 << 26

    def __init__(self) -> None:
        self.flights: list[tuple[mpi.Request, np.ndarray, Callable[[], str], Side, int]] = []
        self.nbytes = 0
        self._many = self._FEW
        self._much = self._CACHED
        self._patient = self._MUCH

    def send(self, reverse: Side, array: np.ndarray, dest: int, tag: int, describe: Callable[[], str]) -> None:
        """Send an array that is not modified any more."""
        request = reverse.comm.Isend(array, dest, tag)
        if request.Test():
            return
        self.flights.append((request, array, describe, reverse, dest))
        self.nbytes += array.nbytes
        if len(self.flights) > self._many or self.nbytes > self._much:
            self._forget_delivered()
            # Memory is bounded if the receivers keep up; if they cannot, using more is better than a deadlock.
            deadline = time.monotonic() + 0.1
            while self.nbytes > self._patient:
                if time.monotonic() > deadline:
                    self._patient = 2 * self.nbytes
                os.sched_yield()
                self._forget_delivered()
            self._many = max(self._FEW, 2 * len(self.flights))
            self._much = max(self._CACHED, 2 * self.nbytes)

    def _forget_delivered(self) -> None:
        self.flights = [flight for flight in self.flights if not flight[0].Test()]
        self.nbytes = sum(flight[1].nbytes for flight in self.flights)

    def flush(self) -> None:
        """Wait until everything has been delivered."""
        while self.flights:
            request, _, describe, reverse, dest = self.flights[-1]
            wait(request, describe, reverse, dest)
            self.flights.pop()


def outbox_of(sweep: Sweep) -> Outbox:
    """Return the outbox of a sweep."""
    outbox = sweep.state.get("outbox")
    if outbox is None:
        outbox = sweep.state["outbox"] = Outbox()
    return outbox

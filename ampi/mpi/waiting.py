"""Waiting in a sweep: it ends when what is waited for has come, when a partner has stopped, or when time is up."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ..errors import CommunicationError
from ..tape import Sweep

STOPPED_TAG = 0
"""Tag of the notice on a reverse communicator that a rank has stopped its sweep."""

LONGEST = 1.0
"""Seconds that one pause counts for at most: a process that was suspended has not waited meanwhile."""

_WORLD = mpi.COMM_WORLD  # mpi4py's own: the name in its module may be rebound to ours
_TEXT = 2000  # bytes of a notice


class Running(threading.local):
    """The sweep that a thread runs.

    Attributes
    ----------
    listening : list
        Reverse sides of its communicators: where notices may come from.
    underway : list of callable
        What it has begun, and goes on with whenever it waits.
    """

    def __init__(self) -> None:
        self.listening: list[Any] = []
        self.underway: list[Callable[[], None]] = []

    def begin(self, listening: Iterable[Any]) -> Callable[[], list[Callable[[], None]]]:
        """A sweep begins, perhaps inside of another one.

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

stranded: list[Any] = []
"""Requests of sweeps that stopped, with their buffers: MPI may still read from them or write to them."""


def timeout() -> float:
    """Seconds without progress after which a sweep gives up: AMPI_TIMEOUT."""
    text = os.environ.get("AMPI_TIMEOUT", "60")
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
    """Pauses between two looks whether something has come: a little longer each time, and not for ever."""

    __slots__ = ("began", "checked", "turns")

    def __init__(self) -> None:
        self.turns = 0
        self.began = self.checked = 0.0

    def waited(self) -> float:
        """Seconds since the first pause that was long."""
        return time.monotonic() - self.began if self.began else 0.0

    def pause(self, describe: Callable[[], str]) -> None:
        """Pause.

        Parameters
        ----------
        describe : callable
            Says what is waited for, for the error message.

        Raises
        ------
        CommunicationError
            AMPI_TIMEOUT seconds have passed, or a partner stopped its sweep with an error.
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
            _look_for_notices(describe)
            if now - self.began > timeout():
                raise CommunicationError(
                    f"rank {_WORLD.Get_rank()} of the world: no progress for {timeout():g} s in the sweep, waiting for "
                    f"{describe()}; has every rank asked for the gradient? (AMPI_TIMEOUT sets the time)"
                )


def wait(request: mpi.Request, describe: Callable[[], str]) -> None:
    """Wait for a request of mpi4py's in a sweep.

    Parameters
    ----------
    request : mpi4py.MPI.Request
    describe : callable
        Gives the text for the error message: the operation, its partner, tag and source line.

    Raises
    ------
    CommunicationError
        Nothing came for AMPI_TIMEOUT seconds (60 by default), or a partner stopped its sweep with an error.
    """
    if request.Test():
        return
    patience = Patience()
    try:
        while not request.Test():
            patience.pause(describe)
    except BaseException:
        stranded.append(request)
        raise


def tell(reverse: Any, partners: Iterable[int], error: BaseException) -> None:
    """Tell partners, who may be waiting for this rank, that it has stopped, why, and with which status it may end."""
    reverse.keep()
    stopped = f"{status_of(error)} {notice_of(error)}"
    for partner in partners:
        notice = f"{reverse.identity} {reverse.sweep_with(partner)} {stopped}".encode()[:_TEXT]
        stranded.append(reverse.comm.Isend([notice, mpi.BYTE], partner, STOPPED_TAG))


def _look_for_notices(describe: Callable[[], str]) -> None:
    status = mpi.Status()
    for reverse in running.listening:
        if reverse.pending:
            continue  # MPI has not made it yet
        while reverse.comm.Iprobe(mpi.ANY_SOURCE, STOPPED_TAG, status):
            notice, source = bytearray(status.Get_count(mpi.BYTE)), status.Get_source()
            reverse.comm.Recv([notice, mpi.BYTE], source, STOPPED_TAG)
            identity, number, stopped = notice.decode(errors="replace").split(" ", 2)
            if int(identity) == reverse.identity:
                reverse.notices.append((source, int(number), stopped))
        for notice in reverse.notices.copy():
            source, number, stopped = notice
            if number > reverse.sweep_with(source):
                continue  # of a later sweep: that rank has done its part of this one
            reverse.notices.remove(notice)
            if number < reverse.sweep_with(source):
                continue  # of a sweep that this rank refused as well
            ending, text = stopped.split(" ", 1)
            error = CommunicationError(
                f"rank {_WORLD.Get_rank()} of the world: gave up waiting for {describe()}, because {text}"
            )
            error.notice = text  # type: ignore[attr-defined]
            error.ending = int(ending)  # type: ignore[attr-defined]
            raise error


def notice_of(error: BaseException) -> str:
    """What the other ranks are told about the error that stopped a sweep: where it began."""
    return getattr(error, "notice", None) or (
        f"rank {_WORLD.Get_rank()} of the world stopped its sweep with {type(error).__name__}: {error}"
    )


def status_of(error: BaseException) -> int:
    """The status with which a program ends that does not catch an error: that of the rank where it began."""
    match error:
        case SystemExit(code=int() as status):
            return int(status)
        case SystemExit(code=code):
            return int(code is not None)
        case KeyboardInterrupt():
            return 128 + signal.SIGINT
    return getattr(error, "ending", 0) or 1


class Outbox:
    """Adjoints on their way to other ranks.  Sending never blocks: the program may have leant on buffering.

    Those that have been delivered are forgotten whenever number or bytes have doubled since the last time.
    """

    __slots__ = ("_many", "_much", "_patient", "flights", "nbytes")

    _FEW = 32
    _CACHED = 1 << 18  # delivered memory is used again while it is still in the cache
    _MUCH = 1 << 26

    def __init__(self) -> None:
        self.flights: list[tuple[mpi.Request, np.ndarray, Callable[[], str]]] = []
        self.nbytes = 0
        self._many = self._FEW
        self._much = self._CACHED
        self._patient = self._MUCH

    def send(self, comm: mpi.Comm, array: np.ndarray, dest: int, tag: int, describe: Callable[[], str]) -> None:
        """Send an array that nobody changes any more."""
        request = comm.Isend(array, dest, tag)
        if request.Test():
            return
        self.flights.append((request, array, describe))
        self.nbytes += array.nbytes
        if len(self.flights) > self._many or self.nbytes > self._much:
            self._forget_delivered()
            # Memory is bounded where the receivers keep up; where they cannot, going on is better than a deadlock.
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
        self.nbytes = sum(array.nbytes for _, array, _ in self.flights)

    def flush(self) -> None:
        """Wait until everything has been delivered."""
        while self.flights:
            request, _, describe = self.flights[-1]
            wait(request, describe)
            self.flights.pop()


def outbox_of(sweep: Sweep) -> Outbox:
    """The outbox of a sweep."""
    outbox = sweep.state.get("outbox")
    if outbox is None:
        outbox = sweep.state["outbox"] = Outbox()
    return outbox

"""One-sided operations in the steps of a time loop: a step that runs again repeats the order of its first run.

The order in which several ranks update one target, or get a lock, is not deterministic.  The values that are fetched
depend on it, and so does the rounding of sums.  In the first run of a step the atomic operations on a rank's memory are
therefore executed one at a time, and each records its position in the step's book.  When the step runs again, each
operation waits for its turn.  Epochs of locks are numbered as well: an epoch waits for the conflicting epochs that
ended before it in the first run.  All waits are for earlier events of the first run, so a step that did not deadlock
then does not deadlock now.

Atomic operations in epochs of Fence and of Start are postponed to the end of their epochs.  After a fence they are
executed in lock epochs, rank by rank for each target, and a second fence follows.

A window that was made before the step is not restored when steps run again.  On such a window an atomic operation
returns the values of its first run, and changes nothing.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from mpi4py import MPI as mpi

from ...errors import ActivityError
from ...tape import overwrite
from ...tape.recording import opened
from ...tape.replays import Book, books
from ..memory.arguments import parse
from ..waiting.waiting import Patience
from .access import elements_of
from .window import ALL, Window, window_of

ATOMIC = {
    "Accumulate": (("origin", "target_rank", "target", "op"), ""),
    "Raccumulate": (("origin", "target_rank", "target", "op"), ""),
    "Get_accumulate": (("origin", "result", "target_rank", "target", "op"), "result"),
    "Rget_accumulate": (("origin", "result", "target_rank", "target", "op"), "result"),
    "Fetch_and_op": (("origin", "result", "target_rank", "target_disp", "op"), "result"),
    "Compare_and_swap": (("origin", "compare", "result", "target_rank", "target_disp"), "result"),
}
"""Parameters of the atomic operations, and the name of the one that receives fetched values."""

_BEFORE = mpi.MODE_NOPRECEDE | mpi.MODE_NOSTORE  # assertions of a fence that need not hold for the second one


class Call:
    """An atomic operation that a step calls.

    Attributes
    ----------
    rank : int
        The target.
    """

    __slots__ = ("_function", "_kept", "_named", "name", "rank", "result", "win")

    def __init__(self, win: Any, function: Callable, name: str, arguments: tuple, keywords: dict[str, Any]) -> None:
        parameters, fetched = ATOMIC[name]
        self._named = {**dict(zip(parameters, arguments)), **keywords}
        self._function = function
        self._kept: list[mpi.Datatype] = []
        self.name = name
        self.win = win
        self.rank: int = self._named["target_rank"]
        self.result = self._named[fetched] if fetched else None

    def postpone(self) -> None:
        """Duplicate the datatypes, which the user may free before the operation is executed."""
        self._named = {parameter: self._with_own_datatypes(value) for parameter, value in self._named.items()}

    def _with_own_datatypes(self, value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(self._with_own_datatypes(part) for part in value)
        if isinstance(value, mpi.Datatype) and not value.is_predefined:
            value = value.Dup()
            self._kept.append(value)
        return value

    def execute(self) -> Any:
        """Call MPI."""
        try:
            return self._function(self.win, **self._named)
        finally:
            for datatype in self._kept:
                datatype.Free()

    def fetched(self) -> np.ndarray | None:
        """Return a copy of the fetched values; None if there are none, or if they have several dtypes."""
        if self.result is None:
            return None
        try:
            return elements_of(parse(self.result))
        except ActivityError:
            return None

    def restore(self, values: np.ndarray | None) -> None:
        """Store the values that were fetched in the first run."""
        if values is None:
            return
        result, tape = parse(self.result), opened()
        undo = overwrite(*result.overwritten())
        if undo and tape is not None:
            tape.append(None, undo)
        result.store(values)


class Turn:
    """An atomic operation and its position in the order of a step, as the open books have recorded it.

    Attributes
    ----------
    number : int or None
        Its position among the operations on the target's memory, if it is known.
    again : bool
        True if the step runs again, and the position is that of its first run.
    is_replayed : bool
        True if the operation returns the values of the first run, and changes nothing.
    """

    __slots__ = ("_books", "_values", "again", "call", "is_replayed", "number", "window")

    def __init__(self, window: Window, call: Call, open_books: Sequence[Book]) -> None:
        self.window = window
        self.call = call
        self.number: int | None = None
        self.again = self.is_replayed = False
        self._books = open_books
        self._values: np.ndarray | None = None
        for book in open_books:
            if book.follows:
                number, values = book.next(call.name)
                if window.in_steps.made_in(book):
                    self.number, self.again = number, True
                else:
                    self.is_replayed, self._values = True, values

    def execute(self) -> Any:
        """Execute the operation, whose turn has come."""
        return mpi.REQUEST_NULL if self.is_replayed else self.call.execute()

    def record(self, number: int) -> None:
        """Record its position in the books, once it has been executed."""
        if self.is_replayed:
            self.call.restore(self._values)
        for book in self._books:
            if not book.follows:
                lives_on = not self.window.in_steps.made_in(book)
                book.enter(self.call.name, (number, self.call.fetched() if lives_on else None))


def _await(window: Window, reached: Callable[[], bool], what: str) -> None:
    """Wait until the other ranks have reached a point of the first run."""
    if reached():
        return
    name = window.reverse.name
    with Patience(
        lambda: (
            f"{what} in {name}, which a step of ampi.timeloop that runs again executes in the order of its first run"
        ),
        lambda: [(window.reverse, None)],
    ) as patience:
        while not reached():
            patience.pause()


@contextlib.contextmanager
def _in_turn(window: Window, rank: int, turns: Sequence[Turn]) -> Iterator[None]:
    """Execute atomic operations on a rank's memory inside the block, at whose end they are complete."""
    order = window.order
    turns = [turn for turn in turns if turn.call.rank == rank]
    to_do = [turn for turn in turns if not turn.is_replayed]
    number = next((turn.number for turn in to_do if turn.number is not None), None)
    alone = window.locked.get(rank) == mpi.LOCK_EXCLUSIVE
    if number is not None and to_do[0].again:
        _await(window, lambda: order.stepped(rank) >= number, f"an atomic operation on the memory of rank {rank}")
    elif number is not None:
        order.await_step(rank, number)
    elif to_do and not alone:
        order.enter_step(rank)
    try:
        yield
        first = order.step(rank, len(to_do)) if to_do else 0
        for turn in turns:
            turn.record(first)
            first += not turn.is_replayed
    finally:
        if to_do and number is None and not alone:
            order.leave_step(rank)


def _atomic(function: Callable, name: str) -> Callable:
    """Wrap an atomic operation."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> Any:
        open_books = books()
        window = window_of(self) if open_books else None
        if window is None:
            return function(self, *arguments, **keywords)
        call = Call(self, function, name, arguments, keywords)
        if call.rank == mpi.PROC_NULL:
            return function(self, *arguments, **keywords)
        if window.is_locked(call.rank):
            window.in_steps.touched.add(call.rank)
            return _execute_locked(self, window, Turn(window, call, open_books))
        if name[0] == "R" or not (window.started or window.fences):
            return function(self, *arguments, **keywords)  # MPI's error
        call.postpone()
        window.in_steps.later.append(call)
        return None

    return method


def _execute_locked(win: Any, window: Window, turn: Turn) -> Any:
    """Execute an atomic operation in a lock epoch."""
    rank = turn.call.rank
    with _in_turn(window, rank, [turn]):
        result = turn.execute()
        if not turn.is_replayed:
            win.Flush(rank)
    return result if turn.call.name[0] == "R" else None


def _fence(function: Callable, name: str) -> Callable:
    """Wrap `Fence`, at which the postponed atomic operations are executed."""

    def method(self: Any, assertion: int = 0) -> None:
        open_books = books()
        window = window_of(self) if open_books else None
        if window is None:
            return function(self, assertion)
        later, number = window.in_steps.taken(), window.fences + 1
        if later:
            window.order.call_step(number)
        function(self, assertion & ~mpi.MODE_NOPUT)
        if not window.order.step_called(number):
            return None
        turns = [Turn(window, call, open_books) for call in sorted(later, key=lambda call: call.rank)]
        if not any(book.follows and window.in_steps.made_in(book) for book in open_books):
            _number(window, turns)
        for rank, some in itertools.groupby(turns, lambda turn: turn.call.rank):
            group = list(some)
            with _in_turn(window, rank, group):
                _unwrapped["Lock"](self, rank, mpi.LOCK_SHARED)
                for turn in group:
                    turn.execute()
                    self.Flush(rank)
                _unwrapped["Unlock"](self, rank)
        return function(self, assertion & ~_BEFORE)

    return method


def _number(window: Window, turns: Sequence[Turn]) -> None:
    """Number the operations of a fence in the order of the ranks, as on a tape; collective."""
    comm, order = window.reverse.comm, window.order
    mine = np.zeros(order.size, np.int64)
    for turn in turns:
        mine[turn.call.rank] += not turn.is_replayed
    ranks = np.flatnonzero(mine)
    numbers = np.zeros_like(mine)
    numbers[ranks] = [order.stepped(rank) for rank in ranks]
    before = np.zeros_like(mine)  # on the first rank nothing is received
    comm.Exscan(mine, before)
    numbers += before
    comm.Barrier()  # all ranks have read the counts before the first rank adds to them
    for turn in turns:
        if not turn.is_replayed:
            turn.number = int(numbers[turn.call.rank])
            numbers[turn.call.rank] += 1


def _complete(function: Callable, name: str) -> Callable:
    """Wrap `Complete`, at which the postponed atomic operations are executed, one rank at a time for each target."""

    def method(self: Any) -> None:
        open_books = books()
        window = window_of(self) if open_books else None
        later = [] if window is None else window.in_steps.taken()
        if not later:
            return function(self)
        assert window is not None
        for target in window.started:  # a rank that has a turn must not wait for ranks that wait for their turns
            window.order.await_post(target, window.starts[target])
        turns = [Turn(window, call, open_books) for call in sorted(later, key=lambda call: call.rank)]
        with contextlib.ExitStack() as stack:
            for rank in sorted({call.rank for call in later}, reverse=True):  # the lowest one is left first
                stack.enter_context(_in_turn(window, rank, turns))
            for turn in turns:
                turn.execute()
            function(self)
        return None

    return method


# ----------------------------------------------------------------------------------------------------- lock epochs


def _lock(function: Callable, name: str) -> Callable:
    """Wrap `Lock` and `Lock_all`, which wait for the epochs that ended before them in the first run."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> None:
        open_books = books()
        window = window_of(self) if open_books else None
        if window is None:
            return function(self, *arguments, **keywords)
        steps, order = window.in_steps, window.order
        for book in open_books:
            if book.follows:
                for rank, (exclusive, number) in book.next(name).items():
                    if steps.made_in(book):
                        count = order.epochs if exclusive else order.exclusive_epochs
                        _await(window, lambda: count(rank) >= number, f"a lock of the memory of rank {rank}")  # noqa: B023
        function(self, *arguments, **keywords)
        rank = ALL if name == "Lock_all" else keywords.get("rank", arguments[0] if arguments else None)
        steps.touched = {window.reverse.rank} if rank == ALL else steps.touched
        steps.locks[rank] = [book.enter(name, {}) for book in open_books if not book.follows]  # type: ignore[index]
        return None

    return method


def _unlock(function: Callable, name: str) -> Callable:
    """Wrap `Unlock` and `Unlock_all`: the epoch is numbered while it still excludes others."""

    def method(self: Any, *arguments: Any, **keywords: Any) -> None:
        open_books = books()
        window = window_of(self) if open_books else None
        if window is None:
            return function(self, *arguments, **keywords)
        rank = ALL if name == "Unlock_all" else keywords.get("rank", arguments[0] if arguments else None)
        entries = window.in_steps.locks.pop(rank, None)
        if entries is not None:
            exclusive = window.locked.get(rank) == mpi.LOCK_EXCLUSIVE
            for target in sorted(window.in_steps.touched) if rank == ALL else [rank]:
                if target == mpi.PROC_NULL:
                    continue
                number = window.order.end_epoch(target, exclusive)
                for entry in entries:
                    entry[1][target] = exclusive, number
        return function(self, *arguments, **keywords)

    return method


def _touching(function: Callable, name: str) -> Callable:
    """Wrap `Put` and `Get`, whose target counts as locked in an epoch of `Lock_all`."""

    def method(self: Any, origin: Any, target_rank: int, *arguments: Any, **keywords: Any) -> Any:
        window = window_of(self) if books() else None
        if window is not None and target_rank != mpi.PROC_NULL:
            window.in_steps.touched.add(target_rank)
        return function(self, origin, target_rank, *arguments, **keywords)

    return method


_unwrapped: dict[str, Callable] = {}


def _keeping_original(wrap: Callable[[Callable, str], Callable]) -> Callable[[Callable, str], Callable]:
    def wrapped(function: Callable, name: str) -> Callable:
        _unwrapped[name] = function
        return wrap(function, name)

    return wrapped


METHODS: dict[str, Callable[[Callable, str], Callable]] = {
    **dict.fromkeys(ATOMIC, _atomic),
    **dict.fromkeys(("Put", "Get", "Rput", "Rget"), _touching),
    "Fence": _fence,
    "Complete": _complete,
    "Lock": _keeping_original(_lock),
    "Unlock": _keeping_original(_unlock),
    "Lock_all": _lock,
    "Unlock_all": _unlock,
}
"""Wrappers of the methods of windows in the steps of time loops, by name."""

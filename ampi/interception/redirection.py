"""Redirection of C functions that the class of an array cannot override through any Python protocol.

``plain[...] = active`` and ``numpy.asarray(active)`` run in C, which reads our arrays as if they were plain.  While a
tape records, the entry points of this code (slots of types, tables of methods) point to a few machine instructions.  If
no operand is an `ampi.ndarray`, these jump to the original function, after some nanoseconds; otherwise they call a
Python function.

`entry_points` finds the entry points, `trampolines` makes the instructions.

Built-in functions hash and compare by their entry points, so a table keyed by functions does not find a redirected one.
Numba has such tables: nothing is redirected while Numba is imported, or compiles in any thread (its compiler lock
reports that).
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator

import numpy as np

from ..base import checks
from ..base.arrivals import around_imports, when_imported
from ..base.locks import RLock
from ..base.program_lines import warning_level
from ..errors import ActivityWarning
from ..tape import Tape, at_closing, at_opening
from .entry_points import ARRAY_BASE, WORD, Unknown, has_known_flags, object_at, word_at, writeable
from .trampolines import Hook, Place, compile_trampolines


class Interception:
    """C functions that are redirected while a tape of the process records and Numba does not compile."""

    def __init__(self, find: Callable[[], list[Place]], cls: type) -> None:
        self._find = find
        self._cls = cls
        self._places: list[Place] | None = None
        self._changing: list[Place] = []
        self._users = 0
        self._compiling = 0
        self._lock = RLock()  # a garbage collection inside may close the tape of a generator
        self.problem = ""
        self.is_held = False

    def begin(self, tape: Tape) -> None:
        """Redirect the functions when a tape begins to record."""
        with self._lock:
            if self._places is None:
                self._places = self._find_places()
                for place in self._places:
                    if place.permanent:
                        place.redirect(True)
                self._changing = [place for place in self._places if not place.permanent]
                if self._places:
                    around_imports("numba", self._suspended)
                    when_imported("numba", self._listen)
            self._count(users=1)

    def end(self, tape: Tape) -> None:
        """Count a tape that ends recording."""
        self._count(users=-1)

    @contextlib.contextmanager
    def on(self) -> Iterator[None]:
        """Inside the block, keep the redirection when tapes close, and search for no new places."""
        outer, self.is_held = self.is_held, True
        self._count(users=1)
        try:
            yield
        finally:
            self._count(users=-1)
            self.is_held = outer

    def extend(self, signature: str, hook: Hook, addresses: tuple[int, ...], original: int) -> None:
        """Redirect further pointers to a function that is already redirected to this hook."""
        with self._lock:
            for place in self._places or ():
                if (place.signature, place.original, place.hook) == (signature, original, hook):
                    place.add(addresses, redirected=place.permanent or self._is_on)

    def add(self, places: list[Place]) -> None:
        """Redirect further places permanently if NumPy's are redirected; places in read-only memory are left out."""
        with self._lock:
            if not self._places or not places:
                return
            allowed = writeable(address for place in places for address in place.addresses)
            places = [place for place in places if allowed.issuperset(place.addresses)]
            compile_trampolines(places, self._cls)
            for place in places:
                place.redirect(True)
            self._places += places

    @contextlib.contextmanager
    def _suspended(self) -> Iterator[None]:
        """Restore the original functions while Numba is imported and fills its tables."""
        self._count(compiling=1)
        try:
            yield
        finally:
            self._count(compiling=-1)

    def _listen(self) -> None:
        """Restore the original functions while Numba compiles."""
        from numba.core import event

        class Listener(event.Listener):
            on_start = staticmethod(lambda _: self._count(compiling=1))
            on_end = staticmethod(lambda _: self._count(compiling=-1))

        event.register("numba:compiler_lock", Listener())

    def _count(self, users: int = 0, compiling: int = 0) -> None:
        with self._lock:
            was_on = self._is_on
            self._users += users
            self._compiling = max(self._compiling + compiling, 0)
            if self._is_on != was_on:
                for place in self._changing:
                    place.redirect(not was_on)

    @property
    def is_working(self) -> bool:
        """True if NumPy's functions were found and are redirected."""
        return bool(self._places)

    @property
    def _is_on(self) -> bool:
        return self._users > 0 and not self._compiling

    def _find_places(self) -> list[Place]:
        """The places to redirect, with their trampolines; none, with a warning, if the layout is unknown."""
        if checks.level == checks.OFF:
            return []
        if not checks.intercepts:
            self.problem = "AMPI_INTERCEPT=off"
            return []
        try:
            if WORD != 8 or sys.implementation.name != "cpython" or np.ndarray.__basicsize__ < (ARRAY_BASE + 1) * 8:
                raise Unknown("this Python")
            places = self._find()
            addresses = {address for place in places for address in place.addresses}
            if object.__basicsize__ != 16 or writeable(addresses) != addresses or not has_known_flags():
                raise Unknown("this Python")
            compile_trampolines(places, self._cls)
        except (Unknown, KeyError, AttributeError, ValueError, RuntimeError, ImportError) as error:
            self.problem = str(error)
            warnings.warn(
                f"ampi cannot redirect NumPy's C functions here (unknown layout: {error}): an active array that is "
                "assigned to a plain one, converted by numpy.asarray, or passed to compiled code becomes a constant "
                "without a warning; set AMPI_INTERCEPT=off to silence this warning",
                ActivityWarning,
                stacklevel=warning_level(),
            )
            return []
        return places


def arguments_at(signature: str, items: int, n: int = 0, names: int = 0) -> tuple[tuple, dict]:
    """Positional and keyword arguments of a C call; ``n`` is the argument count of the fast convention."""
    if "tuple" in signature:
        return object_at(items), object_at(n) if n else {}
    keywords = object_at(names) if names else ()
    found = [object_at(word_at(items + k * WORD)) for k in range(n + len(keywords))]
    return tuple(found[:n]), dict(zip(keywords, found[n:]))


def start(find: Callable[[], list[Place]], cls: type) -> Interception:
    """Redirect the places that `find` returns whenever a tape records."""
    found = Interception(find, cls)
    at_opening.append(found.begin)
    at_closing.append(found.end)
    return found

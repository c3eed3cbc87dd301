"""Statements on single elements: thousands of them in one record, in flat arrays.

A loop that reads, computes and writes one element at a time would otherwise have one record, an object on the tape, for
each of these statements.  Here each adds a few numbers to a list: the scalars are *variables*, numbered in the order in
which they are created, and a statement holds its operands and the partial derivatives with respect to them (which are
known when it runs, so no value has to be kept for the sweep).  This is a Jacobian tape, as in Hogan, "Fast reverse-mode
automatic differentiation using expression templates in C++" (Adept, 2014), and Sagebaum, Albring and Gauger,
"High-performance derivative computations using CoDiPack" (2019).

Each statement appends these numbers to the lists of its record, which a sweep reads from the end::

    statement       integers                    reals
    READ            offset, place + READ                variable = memory
    STORE           a, offset, place + STORE            memory = a
    CLEAR           offset, place + CLEAR               memory = a constant
    SCALE           a, SCALE                    p       variable = a p
    SUM             a, b, SUM                   p, q    variable = a p + b q
    ADD, SUBTRACT   a, b, ADD or SUBTRACT               variable = a ± b
    FLOW            see `flows`                 p ...   a few elements = or += others, or a variable, times p

The new variable is not stored: it has the next number.  Memory is given by the index of its storage in a list (its
place) and an offset, so views and overwriting need no further care.  Statements share a record until another record is
appended to the tape.
"""

from __future__ import annotations

import sys
import warnings
import weakref
from array import array
from collections.abc import Callable
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.locks import RLock
from ..base.program_lines import warning_level, where_called
from ..errors import PerformanceWarning
from ..memory.extents import Extent, address_of, bytes_within
from ..memory.needs import Needs
from ..memory.regions import SLOT
from ..memory.storages import Region, Storage, TrackedArray, set_node, variables_in
from ..memory.storages import variable as new_variable
from . import flows
from .element_places import BITS, SINGLE
from .records import AdjointRecord, Record
from .undo import Undo, needs_lock

if TYPE_CHECKING:
    from .push import Push
    from .sweep import Sweep

READ, STORE, CLEAR, SCALE, SUM, ADD, SUBTRACT, FLOW = range(8)
PLACE = 16
"""The factor of a storage's place in the codes of memory."""

LONGEST = 1 << 14
"""Numbers in one record, after which a new one is begun."""
ROOM = 128
"""Scalars that are reused, with contiguous memory."""
HELD = 8
"""The number of these that the program may hold before they are replaced."""
LINE_IS_HOT = 50_000
"""Variables made by one line of the program, after which a warning says that a kernel would be faster."""
SAMPLE = 4096  # variables after which the line that makes them is looked up
FEW, MANY = 500_000, 3_000_000
"""Numbers that Python itself sweeps before compiled code does: where Numba has been imported, and where it has not."""
SHORT = 24
"""Records with fewer numbers are swept by Python, which takes less time than a call of compiled code."""
SAVED = 512
"""Bytes around an element that are saved at once, if an earlier record needs them."""

_lock = RLock()  # for records: another thread may look at a number


class Statements(AdjointRecord):
    """A record of statements on single elements, and its adjoint.

    Attributes
    ----------
    first, last : int
        Its variables: numbers ``first`` up to ``last`` (None: the record is not complete).
    integers, reals : list, later array.array
        The statements.
    storages : list of Storage
        By their places.
    created : list of Storage
        The memory of scalars that code other than these statements has seen, and of small arrays that they made.
    unread : set of Storage
        Those among them that no statement of the record has read.
    late : list of int
        Statements that store into such memory, added since the record was completed.
    """

    __slots__ = ("_recorder", "created", "first", "integers", "last", "late", "reals", "storages", "undo", "unread")
    reads_memory = False

    def __init__(self, recorder: Elements) -> None:
        self._recorder = weakref.ref(recorder)  # weak: it holds these records, and a cycle would outlive the tape
        self.first = recorder.count
        self.last: int | None = None
        self.integers: Any = []
        self.reals: Any = []
        self.storages: list[Storage] = []
        self.created: list[Storage] = []
        self.unread: set[Storage] = set()
        self.late: list[int] = []
        self.undo: list[Undo] = []

    @property
    def count(self) -> int:
        """The number of variables of the tape, in all its records."""
        return self._recorder().count  # type: ignore[union-attr]  # the tape is alive

    def place(self, storage: Storage) -> int:
        """Add a storage; return its place, times `PLACE`."""
        with _lock:
            self.storages.append(storage)
            return PLACE * (len(self.storages) - 1)

    def complete(self) -> None:
        """Close the record: nothing is added any more."""
        with _lock:
            self.last = self.count
            self.integers = array("q", self.integers)
            self.reals = array("d", self.reals)

    def __call__(self, sweep: Sweep) -> None:
        adjoints = of_variables(sweep, self.count)
        integers, last = self.integers, self.last
        if last is None:
            last = self.count
        if self.late:
            integers = [*integers, *self.late]
        blocks = [self._block(sweep, storage) for storage in self.storages]
        packed = any(storage.packed or storage.volatile for storage in self.storages)
        if packed or not _is_compiled(len(integers)):
            sweep_in_python(integers, self.reals, self.storages, blocks, adjoints, last)
            return
        addresses = np.array([0 if block is None else address_of(block) for block in blocks], np.intp)
        _compiled[0](np.array(integers, np.int64), np.array(self.reals, np.float64), addresses, adjoints, last)

    def tangent(self, push: Push) -> None:
        """Push tangents from the first statement to the last."""
        tangents = of_variables(push, self.count)
        walk_in_python([*self.integers, *self.late], self.reals, self.storages, push, tangents, self.first)

    def _block(self, sweep: Sweep, storage: Storage) -> np.ndarray | None:
        """Return the shadow of a storage; None if it is zero and stays so."""
        if storage in self.unread and not sweep.has_block(storage):
            return None
        return sweep.block(storage)


def of_variables(walk: Sweep | Push, count: int) -> np.ndarray:
    """Return the adjoints, or tangents, of the variables of a tape."""
    found = walk.state.get(Elements)
    if found is None:
        found = walk.state[Elements] = np.zeros(count)
    return found


_compiled: list[Any] = [None, 0]  # the function, and the numbers that were swept without it


def _is_compiled(length: int) -> bool:
    """Return whether compiled code sweeps a record of this many numbers: only once Python has spent as much time on
    other records as it takes to load the compiled code."""
    if _compiled[0] is None or length < SHORT:
        return False
    _compiled[1] += length
    return _compiled[1] > (FEW if "numba" in sys.modules else MANY)


def set_compiled_sweep(function: Any) -> None:
    """Register the compiled form of `sweep_in_python`, which takes the addresses of shadows."""
    _compiled[0] = function


def sweep_in_python(
    integers: Any, reals: Any, storages: list[Storage], blocks: list, adjoints: np.ndarray, variable: int
) -> None:
    """Apply the adjoints of statements, from the last one to the first.

    Numbers are Python's here, and memory is seen through memoryviews: NumPy would take five times as long.
    """
    sums: Any = memoryview(adjoints)
    views: dict[int, tuple[Any, int]] = {flows.VARIABLES: (sums, SLOT)}
    integers = integers[:] if type(integers) is list else integers.tolist()
    reals = array("d", reals).tolist()  # a NumPy number of single precision would round what it multiplies
    pop, pop_real = integers.pop, reals.pop

    def elements(place: int) -> tuple[Any, int]:
        """The adjoints of a storage's double numbers, None if they are zero; and the bytes from one to the next."""
        view = views.get(place)
        if view is None:
            view = views[place] = _elements_of(place, storages, blocks)
        return view

    while integers:
        code = pop()
        kind = code & 7
        if kind == STORE or kind == CLEAR:
            view = views.get(code & ~7)
            if view is None:
                view = views[code & ~7] = _elements_of(code, storages, blocks)
            shadow, size = view
            at = pop() // size
            if kind == STORE:
                if shadow is None:
                    pop()
                    continue
                sums[pop()] += shadow[at]
                shadow[at] = 0.0
            elif shadow is not None:
                shadow[at] = 0.0
            continue
        if kind == FLOW:
            variable = flows.reverse(code, integers, reals, elements, sums, variable)
            continue
        variable -= 1
        g = sums[variable]
        if g:
            sums[variable] = 0.0
        if kind == READ:
            at = pop()
            if g:
                view = views.get(code & ~7)
                if view is None:
                    view = views[code & ~7] = _elements_of(code, storages, blocks)
                shadow, size = view
                shadow[at // size] += g
        elif kind == SCALE:
            p = pop_real()
            if g and p:
                sums[pop()] += g * p
            else:
                pop()
        elif kind == SUM:
            q = pop_real()
            p = pop_real()
            b = pop()
            if g:
                if p:
                    sums[pop()] += g * p
                else:
                    pop()
                if q:
                    sums[b] += g * q
            else:
                pop()
        elif g:
            b = pop()
            sums[pop()] += g
            sums[b] += g if kind == ADD else -g
        else:
            del integers[-2:]


def _elements_of(code: int, storages: list[Storage], blocks: list) -> tuple[Any, int]:
    """The adjoints of a storage's elements of one precision, and the bytes from one to the next."""
    storage, block = storages[code // PLACE], blocks[code // PLACE]
    if block is None:
        return None, 1
    if storage.packed:
        return memoryview(block).cast("B").cast("d"), 1
    size = 4 if code & SINGLE else SLOT
    whole = block.nbytes // size * size  # the last bytes may be of other numbers
    return memoryview(block[:whole]).cast("f" if code & SINGLE else "d"), size


def walk_in_python(
    integers: Any, reals: Any, storages: list[Storage], push: Push, tangents: np.ndarray, variable: int
) -> None:
    """Push tangents through statements, after a backward pass that finds where each begins: only from the end can they
    be told apart."""
    found: list[tuple[int, int, int]] = []  # where each begins, and where its reals do
    k, r = len(integers), len(reals)
    while k:
        kind = integers[k - 1] & 7
        r -= 1 if kind == SCALE else 2 if kind == SUM else flows.partials(integers[k - 1]) if kind == FLOW else 0
        k -= 2 if kind in (READ, CLEAR, SCALE) else flows.WORDS if kind == FLOW else 3
        found.append((k, kind, r))

    def elements_of(place: int) -> tuple[Any, int]:
        """The tangents of the elements in a place, and the bytes from one to the next."""
        if place == flows.VARIABLES:
            return tangents, SLOT
        return _element(place, 0, storages, push)[0], _bytes_between(storages[place // PLACE])

    for k, kind, r in reversed(found):
        if kind == FLOW:
            variable = flows.forward(integers[k : k + flows.WORDS], reals, r, elements_of, tangents, variable)
            continue
        if kind in (READ, CLEAR):
            elements, at = _element(integers[k + 1], integers[k], storages, push)
            if kind == CLEAR:
                elements[at] = 0
                continue
            tangents[variable] = elements[at]
        elif kind == STORE:
            elements, at = _element(integers[k + 2], integers[k + 1], storages, push)
            elements[at] = tangents[integers[k]]
            continue
        elif kind == SCALE:
            tangents[variable] = _product(tangents[integers[k]], reals[r])
        elif kind == SUM:
            a, b = integers[k : k + 2]
            tangents[variable] = _product(tangents[a], reals[r]) + _product(tangents[b], reals[r + 1])
        else:
            a, b = integers[k : k + 2]
            tangents[variable] = tangents[a] + tangents[b] if kind == ADD else tangents[a] - tangents[b]
        variable += 1


def _product(x_dot: float, partial: float) -> float:
    return x_dot * partial if x_dot and partial else 0.0


def _bytes_between(storage: Storage) -> int:
    return 1 if storage.packed else SLOT


def _element(code: int, offset: int, storages: list[Storage], push: Push) -> tuple[np.ndarray, int]:
    """Return the tangents of the elements of a storage in one precision, and the index of one of them."""
    storage = storages[code // PLACE]
    block = push.block(storage)
    if storage.packed:
        return block.view(np.float64), offset
    size = 4 if code & SINGLE else SLOT
    return np.ndarray((block.nbytes // size,), np.float32 if size == 4 else np.float64, block), offset // size


def _unused() -> int:
    """Return the reference count of an object that only a list holds, as seen by code that takes it from there as
    `Elements` does."""
    ring = [object()]
    made = ring[0]
    return getrefcount(made)


UNUSED = _unused() if getattr(sys, "_is_gil_enabled", lambda: True)() else 0
"""References to a scalar that nothing but `Elements.ring` holds."""


class Pairs:
    """A reference to a tape in the nodes of complex numbers, which are pairs of variables."""

    __slots__ = ("reference",)

    def __init__(self, reference: Callable[[], Any]) -> None:
        self.reference = reference

    def __call__(self) -> Any:
        """Return the tape; None if it exists no more."""
        return self.reference()


class Elements:
    """The statements on single elements that a tape records.

    Attributes
    ----------
    count : int
        The variables so far.
    current : Statements or None
        The latest record; statements can be added while it is the last one on the tape.
    integers, reals, places
        The statements of this record, and the codes of its storages.
    ring : list of scalar
        Scalars for future numbers.  Most numbers of a program are short-lived, and their objects are reused: those to
        which only this list refers (see `UNUSED`), and whose memory no other code has seen.
    pool : memoryview
        Their memory.
    room : int
        How many of them have not been examined in this round.
    missed : int
        How many of them the program held in this round.
    pairs : Pairs
    seen : list of scalar
        Numbers whose memory other code has seen.
    """

    __slots__ = (
        "__weakref__",
        "count",
        "current",
        "integers",
        "lines",
        "missed",
        "pairs",
        "places",
        "pool",
        "reals",
        "records",
        "reference",
        "ring",
        "room",
        "sampled",
        "seen",
        "statements",
    )

    def __init__(self, records: list, reference: Any) -> None:
        self.records = records
        self.reference = reference
        self.pairs = Pairs(reference)
        self.count = 0
        self.current: Statements | None = None
        self.integers: list[int] = []
        self.reals: list[float] = []
        self.places: dict[Storage, int] = {}
        self.statements: list[Statements] = []
        self.sampled = 0
        self.room = 0
        self.pool: Any = None
        self.ring: list[TrackedArray] = []
        self.missed = 0
        self.seen: list[TrackedArray] = []
        self.lines: dict[str, int] = {}

    def open(self) -> list[int]:
        """Begin a record at the end of the tape; return its `integers`."""
        if self.current is not None:
            self.current.complete()
        if self.count - self.sampled >= SAMPLE:
            self._sample()
        made = self.current = Statements(self)
        self.statements.append(made)
        self.integers, self.reals, self.places = made.integers, made.reals, {}
        self.records.append(made)
        return self.integers

    def enlarge(self) -> int:
        """Begin a round of scalars, with new ones where the old ones are in use; return their number."""
        if len(self.integers) > LONGEST:
            self.open()
        size = len(self.ring)
        if size < ROOM or self.missed > HELD or self.seen:
            size = min(ROOM, 4 * size or 8)
            memory = np.empty(size)
            self.pool = memoryview(memory)
            self.ring = variables_in(memory, (0.0, None, self.reference))
            self.seen.clear()
        self.missed = 0
        return size

    def missing(self, number: Any, node: tuple) -> TrackedArray:
        """Return a new scalar in place of one that the program still holds."""
        self.missed += 1
        if self.missed > HELD:
            self.room = 0
        return new_variable(number, node)

    def made(self, number: np.floating, variable: int | None) -> TrackedArray:
        """Return a scalar for a variable, or for a constant (None)."""
        node = number, variable, self.reference
        if type(number) is not np.float64:
            return new_variable(number, node)
        room = self.room or self.enlarge()
        self.room = room = room - 1
        made = self.ring[room]
        if getrefcount(made) > UNUSED:
            return self.missing(number, node)
        self.pool[room] = number
        set_node(made, node)
        return made

    def note_seen(self, scalar: TrackedArray) -> None:
        """Note that other code has seen the memory of a number: it is not reused."""
        self.seen.append(scalar)
        if len(self.seen) >= ROOM:
            self.room = 0

    @staticmethod
    def can_read(storage: Storage) -> bool:
        """Return whether statements may read a storage: its values come from a record, and its shadow has the usual
        form."""
        return not (storage.arriving or storage.packed or storage.volatile or storage.guard)

    def place(self, storage: Storage) -> int:
        """Return the code of a storage that is read or written, and was not before, in the present record."""
        current: Any = self.current
        current.unread.discard(storage)
        found = self.places[storage] = current.place(storage)
        return found

    def creates(self, storage: Storage) -> int:
        """Return the code of the storage of a new array, which statements are about to fill."""
        if self.records[-1] is not self.current or len(self.integers) > LONGEST:
            self.open()
        made: Any = self.current
        made.created.append(storage)
        made.unread.add(storage)
        return made.place(storage)  # not among the places of what is read

    def store(self, variable: int, storage: Storage, dtype: np.dtype, count: int) -> None:
        """Store successive variables in memory that no other code has seen yet, and which holds them from now on."""
        made = self.statements[-1]  # behind all that has used them: adjoints are summed in this order
        place = made.place(storage)
        if count == 1:
            statement: tuple[int, ...] = variable, 0, place + STORE + BITS[dtype.type]
        else:
            head = count * flows.COUNT + FLOW + flows.OVERWRITES
            statement = 8 * variable, flows.VARIABLES + flows.STEP, 0, place + flows.STEP, head
        made.created.append(storage)
        made.unread.add(storage)
        with _lock:  # another thread may be looking at the number
            if made.last is None:
                made.integers += statement
            else:
                made.late += statement

    def _sample(self) -> None:
        """Count the operations of the present line, and warn once that a kernel would be faster."""
        where = where_called()
        number = self.lines.get(where, 0) + self.count - self.sampled
        self.sampled = self.count
        self.lines[where] = number
        if number >= LINE_IS_HOT and where not in _said:
            _said.add(where)
            warnings.warn(
                f"{number:,} one-element operations at {where}: put this loop into an @ampi.kernel, which is compiled",
                PerformanceWarning,
                stacklevel=warning_level(),
            )

    def save(self, storage: Storage, array: np.ndarray, region: Region, offset: int) -> bool:
        """Save what tapes need of the memory around an element that is about to be overwritten. Return False if it must
        be saved in another way."""
        low = storage.address + offset
        element = Extent.of_range(low, low + region.dtype.itemsize)
        with needs_lock:
            for reference, needs in list(storage.needs.items()):
                if not needs.meets(element):
                    continue
                other = reference()
                if other is None or not isinstance(needs, Needs) or not needs.meets_range(element.low, element.high):
                    return False
                begin = max(storage.address, low - (low - storage.address) % SAVED)
                end = min(storage.address + storage.nbytes, begin + SAVED)
                saved = Undo(storage, bytes_within(array, begin, end), Extent.of_range(begin, end))
                other.saved_bytes += saved.saved.nbytes
                if other.budget is not None:
                    other.budget.note_undo(saved)
                needs.cut(saved.extent)
                if needs.is_empty():
                    del storage.needs[reference]
                if reference is self.reference:
                    if not self.records or self.records[-1] is not self.current:
                        self.open()
                    self.current.undo.append(saved)  # type: ignore[union-attr]
                else:
                    other.append_unobserved(Record(None, [saved], ()))
        return True


_said: set[str] = set()

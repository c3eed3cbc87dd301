"""The variables that are watched and read while a program runs.

In the recorded run, independents are watched where they are first assigned.  In later runs, for finite differences,
they are displaced at the same places.
"""

from __future__ import annotations

import collections
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

import numpy as np

from ..derivatives.arguments import leaves_of, map_leaves
from ..errors import ProgramError
from ..memory import storages as memory
from ..memory.layouts import require_plain_class
from ..memory.storages import TrackedArray, carries_derivatives, plain, tracked
from ..numpy import asarray
from ..tape import Tape, current
from .edits import READ, WATCH, Request
from .names import Name


class OnThisRank(ProgramError):
    """An error in the middle of a program's run, which other ranks may not have."""

    __module__ = ProgramError.__module__
    __qualname__ = ProgramError.__qualname__


_UNREACHABLE = (NameError, AttributeError, LookupError, TypeError)


class Independent:
    """An independent variable.

    Attributes
    ----------
    text : str
        The requested name as written.
    name : Name or None
        None for variables that the program itself marks.
    place : str
        ``file:line`` where it was watched; empty if it was not.
    watched : object
        The watched value: numbers and arrays, possibly in lists, tuples and dictionaries.
    values : list
        Copies of its numbers and arrays.
    times : int
        The number of times the same statement assigned the same value.
    others : int
        The number of times it assigned another one.
    direction : list of array or None
        The direction of its displacements.
    is_none : bool
        True if None was assigned, which cannot be watched.
    """

    def __init__(self, text: str, name: Name | None) -> None:
        self.text = text
        self.name = name
        self.place = ""
        self.watched: Any = None
        self.values: list[Any] = []
        self.times = 0
        self.others = 0
        self.direction: list[Any] | None = None
        self.is_none = False
        self.executions: set[tuple[str, int]] = set()
        self.originals: list[Any] = []
        self._key = ""

    @property
    def is_watched(self) -> bool:
        return bool(self.place)

    def begin(self, tape: Tape, place: str, value: Any) -> Any:
        """Watch the variable."""
        leaves = leaves_of(value)
        file, line, _ = place.rsplit(":", 2)
        where = f"{file}:{line}"
        if not leaves:
            raise OnThisRank(f"{self.text} ({where}) is {_described(value)}: it has no numbers")
        for leaf in leaves:
            _require_inexact(self.text, where, leaf, value)
        self.place, self._key = where, place
        self.values = [memory_of(leaf) for leaf in leaves]
        found = iter([tape.watch(own(leaf)) for leaf in leaves])
        self.watched = _replaced(value, lambda leaf: next(found))
        self.originals = [x if memory.is_scalar(x) else x.copy() for x in leaves_of(self.watched)]
        return self.watched

    def is_same(self, place: str, value: Any) -> bool:
        """Return whether this is the first statement again, with the same value."""
        if place != self._key:
            return False
        self.others += 1
        leaves = leaves_of(value)
        if len(leaves) != len(self.values) or any(map(_is_active, leaves)):
            return False
        same = all(_equal(memory_of(leaf), known) for leaf, known in zip(leaves, self.values))
        self.others -= same
        return same

    def again(self, value: Any) -> Any:
        """The watched variable, for another assignment of the same value."""
        originals = iter(self.originals)

        def replace(leaf: Any) -> Any:
            original = next(originals)
            if not isinstance(leaf, np.ndarray) or memory.is_scalar(leaf):
                return original
            leaf = own(leaf)
            leaf[...] = original
            return leaf

        return _replaced(value, replace)

    def displaced(self, value: Any, step: float) -> Any:
        """The variable with displaced values."""
        directions = iter(self.direction or ())

        def replace(leaf: Any) -> Any:
            by = step * next(directions)
            if isinstance(leaf, np.ndarray) and not memory.is_scalar(leaf) and leaf.flags.writeable:
                leaf = own(leaf)
                plain(leaf)[...] += by
                return leaf
            return own((memory_of(leaf) + by).astype(np.asarray(memory_of(leaf)).dtype)[()])

        return _replaced(value, replace)


class Dependent:
    """A dependent variable.

    Attributes
    ----------
    text : str
        The requested name as written.
    name : Name or None
    value : ampi.ndarray, float or None
        The latest value; for an array its sum.
    times : int
        The number of times it was read.
    reason : str
        Why it has no value, if it has none.
    magnitude : float
        The sum of the absolute values of its elements.
    """

    def __init__(self, text: str, name: Name | None) -> None:
        self.text = text
        self.name = name
        self.forget()

    def forget(self) -> None:
        """Reset for a new run."""
        self.value: Any = None
        self.times = 0
        self.reason = ""
        self.magnitude = 0.0

    def read(self, value: Any) -> None:
        """Store the variable's value where it is read."""
        self.times += 1
        self.value, self.reason = None, "is None"
        if value is None:
            return
        self.reason = f"is {_described(value)}, and no number"
        if not isinstance(value, (bool, int, float, complex, np.ndarray, np.generic, list, tuple)):
            return
        try:
            array = asarray(value)
        except (ValueError, TypeError):
            return
        if array.dtype.kind == "c":
            self.reason = "is complex; take its real part, or its absolute value"
        elif array.dtype.kind in "fiub" and array.size:
            self.value, self.reason = _total(array), ""
            self.magnitude = float(np.sum(np.abs(memory_of(array))))


class Session:
    """The variables of a program, and the functions that its changed modules call.

    Attributes
    ----------
    independents, dependents : list
    declared : bool
        True to add variables that the program marks.
    requests : list of Request
        For `edits.edit`.
    tape : Tape or None
        The tape on which independents are watched; None in runs that only displace them.
    step : float
        The size of the displacements then.
    """

    def __init__(self, wrt: list[Name], of: list[Name], declared: bool = False) -> None:
        self.declared = declared
        self.independents = [Independent(name.text, name) for name in wrt]
        self.dependents = [Dependent(name.text, name) for name in of]
        self.requests = [Request(WATCH, k, name) for k, name in enumerate(wrt)]
        self.requests += [Request(READ, k, name) for k, name in enumerate(of)]
        self.tape: Tape | None = None
        self.step = 0.0
        self._counts: collections.Counter = collections.Counter()

    @property
    def hooks(self) -> dict[str, Callable]:
        """Built-in names of the program's modules."""
        return {
            "__ampi_watch__": self.watch,
            "__ampi_has__": self.has,
            "__ampi_is_fixed__": is_fixed,
            "__ampi_with__": with_member,
            "__ampi_is_computed__": is_computed,
            "__ampi_in_place__": self.in_place,
            "__ampi_read__": self.read,
            "__ampi_end__": lambda number, find: _End(self, self.dependents[number], find),
        }

    def begin(self, tape: Tape | None, step: float = 0.0) -> None:
        """Begin a run."""
        self.tape, self.step = tape, step
        self._counts.clear()
        for dependent in self.dependents:
            dependent.forget()

    def watch(self, number: int, place: str, value: Any) -> Any:
        """Watch a variable after an assignment; returns the value with which the program continues."""
        return self.assigned(self.independents[number], place, value)

    def in_place(self, number: int, place: str, find: Callable) -> None:
        """Watch the array that a property returns, in place.

        Raises
        ------
        ProgramError
            The property returns a new object each time.
        """
        found = self.watch(number, place, find())
        variable = self.independents[number]
        if self.tape is not None and variable.is_watched and not _look_at_one_memory(found, find()):
            raise OnThisRank(
                f"{variable.text} ({place.rsplit(':', 1)[0]}) is a property that cannot be assigned, and its value is "
                "made anew each time: name the attribute from which it is computed"
            )

    def assigned(self, variable: Independent, place: str, value: Any) -> Any:
        """Watch a variable, named by the user or marked by the program, after an assignment."""
        if value is None:
            variable.is_none = True
            return value  # a later value is meant: on other ranks it may stay None
        self._counts[variable, place] += 1
        execution = place, self._counts[variable, place]
        if self.tape is None:
            return variable.displaced(value, self.step) if execution in variable.executions else value
        if current() is not self.tape:
            return value  # in another thread, or inside ampi.passive()
        if not variable.is_watched:
            if variable.is_none and all(map(_is_active, leaves_of(value))):
                return value  # it comes from a rank on which it is the independent
            self._require_other(variable, place, value)
            found = variable.begin(self.tape, place, value)
        elif value is variable.watched or not variable.is_same(place, value):
            return value
        else:
            found = variable.again(value)
        variable.executions.add(execution)
        variable.times += 1
        return found

    def _require_other(self, variable: Independent, place: str, value: Any) -> None:
        """Raise an error if an array is another independent already: a tape could not distinguish the two."""
        mine = [leaf for leaf in leaves_of(value) if isinstance(leaf, TrackedArray) and not memory.is_scalar(leaf)]
        for other in self.independents:
            for known in leaves_of(other.watched):
                if any(memory.region_of(leaf).place == memory.region_of(known).place for leaf in mine):
                    raise OnThisRank(
                        f"{variable.text} ({place.rsplit(':', 1)[0]}) is the array that {other.text} is "
                        f"({other.place}): name one of them"
                    )

    def declare_independent(self, text: str, place: str, value: Any) -> Any:
        """Watch an independent that the program marks."""
        found = next((x for x in self.independents if x.text == text), None)
        if found is None and self.declared and self.tape is not None:
            found = Independent(text, None)
            self.independents.append(found)
        return value if found is None else self.assigned(found, place, value)

    def declare_dependent(self, text: str, value: Any) -> Any:
        """Read a dependent that the program marks."""
        found = next((x for x in self.dependents if x.text == text), None)
        if found is None and self.declared and self.tape is not None:
            found = Dependent(text, None)
            self.dependents.append(found)
        if found is not None:
            found.read(value)
        return value

    def align(self, comm: Any) -> None:
        """Use the same variables in the same order on all ranks, whatever each rank has marked. Collective."""
        for variables, make in ((self.independents, Independent), (self.dependents, Dependent)):
            everywhere = comm.allgather([x.text for x in variables])
            order = list(dict.fromkeys(text for texts in everywhere for text in texts))
            known = {x.text: x for x in variables}
            variables[:] = [known.get(text) or make(text, None) for text in order]

    def has(self, number: int, place: str, find: Callable) -> bool:
        """Return whether an attribute or element exists."""
        try:
            find()
        except _UNREACHABLE:
            return False
        return True

    def read(self, number: int, value: Any) -> Any:
        """Read a dependent; returns its value."""
        self.dependents[number].read(value)
        return value

    def finish(self, namespace_of: Callable[[str], Any]) -> None:
        """End a run: read the dependents at the top level of modules."""
        for dependent in self.dependents:
            name = dependent.name
            if name is None or name.function or name.line is not None:
                continue
            space = namespace_of(name.module)
            if space is None:
                dependent.reason = f"is in module {name.module}, which the program does not import"
                continue
            try:
                value = eval(name.path, space)
            except _UNREACHABLE:
                dependent.reason = f"is not there at the end of {name.where}"
            else:
                dependent.read(value)


class _End:
    """Reads a dependent at the end of a function, even if it ends by ``sys.exit()`` or by the program's own error about
    displaced values (see `verdicts`)."""

    def __init__(self, session: Session, dependent: Dependent, find: Callable) -> None:
        self.ends = (SystemExit,) if session.tape is not None else (SystemExit, AssertionError)
        self.dependent = dependent
        self.find = find

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, *_: Any) -> None:
        if kind is not None and not issubclass(kind, self.ends):
            return
        try:
            value = self.find()
        except _UNREACHABLE:
            self.dependent.reason = "is not there where the function ends"
        else:
            self.dependent.read(value)


# ------------------------------------------------------------------------------------------------------------ values


def memory_of(leaf: Any) -> Any:
    """A plain copy of a number or array."""
    return np.array(plain(leaf) if isinstance(leaf, TrackedArray) else leaf)


def own(leaf: Any) -> Any:
    """A tracked array on the same memory; a number as a tracked scalar."""
    if isinstance(leaf, np.ndarray):
        if not isinstance(leaf, TrackedArray):
            require_plain_class(type(leaf))
        return tracked(leaf)
    return memory.tracked_copy(leaf)


def is_fixed(x: Any) -> bool:
    """Return whether attributes and elements of an object cannot be assigned: a (named) tuple, or a frozen
    dataclass."""
    return isinstance(x, tuple) or (dataclasses.is_dataclass(type(x)) and type(x).__dataclass_params__.frozen)  # type: ignore[attr-defined]


def _look_at_one_memory(a: Any, b: Any) -> bool:
    if not all(isinstance(x, np.ndarray) and not memory.is_scalar(x) for x in (a, b)):
        return False
    return np.shares_memory(*[plain(x) if isinstance(x, TrackedArray) else x for x in (a, b)])


def is_computed(x: Any, name: Any) -> bool:
    """Return whether an attribute is a property that cannot be assigned."""
    found = inspect.getattr_static(type(x), name, None) if isinstance(name, str) else None
    return isinstance(found, property) and found.fset is None


def with_member(x: Any, key: Any, value: Any) -> Any:
    """Such an object with another attribute or element."""
    if not isinstance(x, tuple):
        return dataclasses.replace(x, **{key: value})
    if isinstance(key, str):
        return x._replace(**{key: value})  # type: ignore[attr-defined]
    items = list(x)
    items[key] = value
    return type(x)(*items) if hasattr(x, "_fields") else tuple(items)


def _is_active(leaf: Any) -> bool:
    tape = current()
    return tape is not None and isinstance(leaf, np.ndarray) and tape.is_active(leaf)


def _equal(a: Any, b: Any) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _replaced(value: Any, function: Callable) -> Any:
    """A structure with its leaves replaced; lists and dictionaries remain the same objects."""
    if isinstance(value, dict):
        for key in value:
            value[key] = _replaced(value[key], function)
        return value
    if type(value) is list:
        value[:] = [_replaced(item, function) for item in value]
        return value
    return map_leaves(lambda leaf: function(leaf), value) if isinstance(value, (tuple, list)) else function(value)


def _total(array: np.ndarray) -> Any:
    """The sum of an array, with its derivative."""
    if array.dtype.kind != "f":
        return float(array.sum())
    found = array.reshape(-1)[0] if array.size == 1 else array.sum()
    return found if _is_active(found) else memory.tracked_copy(np.asarray(memory_of(found))[()])


def _described(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and dtype {value.dtype}"
    kind = type(value)
    name = kind.__name__ if kind.__module__ in ("builtins", "__main__") else f"{kind.__module__}.{kind.__name__}"
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _require_inexact(text: str, where: str, leaf: Any, whole: Any) -> None:
    """Raise an error unless a value consists of numbers that can have derivatives."""
    if isinstance(leaf, (float, complex)) or (
        isinstance(leaf, (np.ndarray, np.generic)) and carries_derivatives(leaf.dtype)
    ):
        return
    inside = "" if leaf is whole else f", in {_described(whole)},"
    if isinstance(leaf, (bool, int, np.integer, np.bool_)) or (
        isinstance(leaf, np.ndarray) and leaf.dtype.kind in "iub"
    ):
        shown = _described(leaf) if isinstance(leaf, np.ndarray) else f"the integer {leaf!r}"
        raise OnThisRank(
            f"{text} ({where}){inside} is {shown}: integers have no derivative; where a real number is meant, write it "
            "as one (1.0 and not 1, dtype=float)"
        )
    named = sorted(name for name, v in getattr(leaf, "__dict__", {}).items() if isinstance(v, (float, np.ndarray)))
    more = f"; it has the attributes {', '.join(f'{text}.{name}' for name in named)}" if named else ""
    raise OnThisRank(f"{text} ({where}){inside} is {_described(leaf)}, and no number{more}")

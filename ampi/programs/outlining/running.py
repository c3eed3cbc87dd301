"""Loops of a running program: a hot loop is compiled, and the results of its kernel are those of Python."""

from __future__ import annotations

import ast
import linecache
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...kernel.frontend.base.source import Source
from ...memory.storages import TrackedArray, plain
from ...tape import current
from .kinds import BOOL, BOOL_, FLOAT, FLOAT64, INT, INT64, SAFE, Refused, kind_of
from .loops import Loop
from .lowering import Lowered, lower
from .plain_attributes import MISSING, plain_attribute
from .remembered import note_hot, was_hot

RECORDED, UNRECORDED = 25_000, 1_000_000
"""Estimated operations of a loop after which it is compiled: while a tape records, and without one."""
REMEMBERED = 2_000
"""Operations after which the cache is searched for the loop, which an earlier run may have compiled."""
FEWEST = 60
"""Operations below which a loop runs in Python, since the call of a kernel takes as long."""
MOST_FAILURES = 3
_IN_SILENCE = frozenset(("warn", "ignore"))
"""Values of `numpy.seterr` under which NumPy's numbers raise no exceptions and call nothing of the program."""
COPIED = 1 << 16
"""Bytes that may be copied before any loop, so that it can run again; a loop with more work may copy more."""


class Unset:
    """The value of a variable that a loop has not assigned."""


UNSET = Unset()


class Running:
    """A loop of a program that runs.

    Attributes
    ----------
    loop : Loop
    on : bool
        True if its guard calls this object.
    forms : dict
        Its compiled forms, and those refused, by the kinds of its values.
    """

    def __init__(self, loop: Loop, holds: Callable[[], bool]) -> None:
        self.loop = loop
        self.holds = holds
        self.on = loop.refusal is None
        self.forms: dict[Any, Form] = {}
        self.was_hot: bool | None = None
        self.entries = 0
        self.bound = {path: loop.inputs.index(path[0]) for path in loop.paths}
        self.wide = any(len(path) > 1 for path in loop.paths)

    def __call__(self, *given: Any) -> Any:
        values = self.values(given)
        if values is None:
            return None
        key = tuple(map(kind_of, values.values()))
        form = self.forms.get(key)
        self.entries += 1
        if form is None:
            form = self.forms[key] = Form(self, values)
            if len(self.forms) > 40:
                self.on = False
        return None if form.refusal else form.enter(values)

    def values(self, given: tuple[Any, ...]) -> dict[tuple[str, ...], Any] | None:
        """Return the present values of all paths; for paths that lead through an array, the array."""
        if not self.wide:
            return {path: given[k] for path, k in self.bound.items()}
        found: dict[tuple[str, ...], Any] = {}
        for path, k in self.bound.items():
            value = given[k]
            for n, name in enumerate(path[1:], 1):
                if isinstance(value, np.ndarray):
                    found[path[:n]] = value
                    break
                value = plain_attribute(value, name)
                if value is MISSING:
                    return None
            else:
                found[path] = value
        return found


class Form:
    """A loop for values of certain kinds.

    Attributes
    ----------
    refusal : Refused or None
        The reason why it is not compiled.
    """

    def __init__(self, running: Running, values: dict[tuple[str, ...], Any]) -> None:
        self.running = running
        self.refusal: Refused | None = None
        self.kernel: Any = None
        self.done = 0.0
        self.failures = 0
        self.kept = [v for v in values.values() if not isinstance(v, np.ndarray)]  # whose identity is in the key
        self.lower(values, True)

    def lower(self, values: dict[tuple[str, ...], Any], hopeful: bool) -> None:
        self.kernel, self.hopeful = None, hopeful
        try:
            self.lowered = lower(self.running.loop, values, hopeful)
            self.prepare()
        except Refused as refused:
            self.refusal = refused

    def prepare(self) -> None:
        lowered, live = self.lowered, sorted(self.running.loop.live)
        self.paths = [path for path, _, _ in lowered.arguments]
        self.checked = [path for path, _, form in lowered.arguments if form == INT]
        self.floats = {k for k, (path, _, form) in enumerate(lowered.arguments) if form == FLOAT}
        names = [name for _, name, _ in lowered.arguments]
        self.written = [path for path, name, _ in lowered.arguments if name in lowered.writes]
        self.copied = [path for path, name, _ in lowered.arguments if name in lowered.copied]
        known = {"__builtins__": {}, "max": max, "min": min}
        self.work = eval(f"lambda {', '.join(names)}: {lowered.work}", known)
        self.outside = eval(f"lambda {', '.join(names)}: {lowered.outside}", known)
        slots = 1 + sum(isinstance(kind, str) for kind in lowered.returns)
        counts = [_count_of(kind) for _, kind, _ in lowered.outputs]
        flags = slots + sum(counts)
        self.places: list[tuple[int, Any, int | None] | None] = [None] * len(live)
        for count, (name, kind, flag) in zip(counts, lowered.outputs):
            at = None
            if flag is not None:
                at, flags = flags, flags + 1
            self.places[live.index(name)] = slots, kind, at
            slots += count

    def enter(self, values: dict[tuple[str, ...], Any]) -> Any:
        """Run the loop's kernel; return None if the loop must run in Python."""
        for path, (space, name, kind) in self.lowered.others.items():
            value = space.get(name, UNSET)
            if kind_of(value) != kind:
                return None
            values[path] = value
        for path in self.checked:
            if not -SAFE <= values[path] <= SAFE:
                return None
        arguments = [values[path] for path in self.paths]
        work = self.work(*arguments)
        if self.kernel is None and not self.is_hot(work):
            return None
        if work < FEWEST:
            return None
        if not _IN_SILENCE.issuperset(np.geterr().values()):
            return None
        if self.outside(*arguments):
            return self.fail_outside(values)
        if any(np.may_share_memory(values[one], values[other]) for one in self.copied for other in self.written):
            return None
        if self.lowered.compares and self.running.holds():
            return None
        saved: Any = ()
        if self.lowered.may_fail and self.written:
            arrays = [values[path] for path in self.written]
            if sum(a.nbytes for a in arrays) > COPIED + 64 * work:
                return None
            saved = [(a, plain(a).copy()) for a in arrays]
        for k in self.floats:
            if type(arguments[k]) is int:
                arguments[k] = float(arguments[k])
        if self.kernel is None:
            self.kernel = made_kernel(self.running.loop, self.lowered)
        try:
            found = self.kernel(*arguments)
        except BaseException as error:
            for array, copy in saved:
                plain(array)[...] = copy
            if not isinstance(error, Exception):
                raise
            self.fail(error)
            return None
        return self.outcome(found, values)

    def is_hot(self, work: float) -> bool:
        """Count operations; return whether compiling the loop is worth while, at once if an earlier run compiled it."""
        self.done += work
        running = self.running
        if running.was_hot is None and self.done > REMEMBERED:
            running.was_hot = was_hot(running.loop)
        if running.was_hot:
            return True
        if self.done > (UNRECORDED if current() is None else RECORDED):
            note_hot(running.loop)
            running.was_hot = True
        return bool(running.was_hot)

    def fail_outside(self, values: dict[tuple[str, ...], Any]) -> None:
        """Count a loop with an index that may be out of bounds: it runs in Python, later with checks inside."""
        self.failures += 1
        if self.hopeful:
            self.lower(values, False)
        elif self.failures >= MOST_FAILURES:
            self.refusal = Refused(None, "indices out of bounds")

    def fail(self, error: Exception) -> None:
        """Count an error in the kernel: the loop runs in Python, which raises the program's error if it has one."""
        self.failures += 1
        if self.failures >= MOST_FAILURES:
            self.refusal = Refused(None, f"{type(error).__name__}: {error}")

    def outcome(self, found: Any, given: dict[tuple[str, ...], Any]) -> tuple[Any, ...]:
        """Return the values that the guard assigns: a ``return``'s result in a tuple, or None, and changed numbers."""
        lowered = self.lowered
        if not isinstance(found, tuple):
            return (None,) + (UNSET,) * len(self.places)
        code = int(found[0])
        if code:
            result = lowered.returns[code - 1]
            if isinstance(result, tuple):
                return (result,)
            slot = 1 + sum(isinstance(kind, str) for kind in lowered.returns[: code - 1])
            return ((as_kind(found[slot], result),),)
        values: list[Any] = [None]
        for place in self.places:
            if place is None or (place[2] is not None and not found[place[2]]):
                values.append(UNSET)
            elif isinstance(place[1], tuple):
                path, count = place[1]
                values.append(given[path][tuple(map(int, found[place[0] : place[0] + count]))])
            elif isinstance(place[1], int):
                values.append(_stacked(found[place[0] : place[0] + place[1]], given))
            else:
                values.append(as_kind(found[place[0]], place[1]))
        return tuple(values)


def _count_of(kind: Any) -> int:
    """The number of a kernel's results for an output."""
    return kind[1] if isinstance(kind, tuple) else kind if isinstance(kind, int) else 1


def _stacked(elements: tuple[Any, ...], given: dict[tuple[str, ...], Any]) -> Any:
    """A new array of a kernel's numbers; one of ampi's if an array that the loop was given is."""
    if not any(isinstance(x, TrackedArray) for x in given.values()):
        return np.array(elements, np.float64)
    import ampi.numpy as anp

    return anp.stack(elements)


def as_kind(value: Any, kind: str) -> Any:
    """Convert a kernel's number to the class that Python would have returned."""
    if isinstance(value, TrackedArray):
        if kind in (FLOAT, FLOAT64):
            return value
        value = plain(value)[()]
    if kind == FLOAT64:
        return np.float64(value)
    if kind == INT64:
        return np.int64(value)
    if kind == BOOL_:
        return np.bool_(value)
    return float(value) if kind == FLOAT else bool(value) if kind == BOOL else int(value)


def made_kernel(loop: Loop, lowered: Lowered) -> Any:
    """The kernel of a lowered loop, whose lines are those of the program."""
    from ...kernel.dispatcher import kernel

    name = f"loop_at_line_{loop.node.lineno}"
    names = ", ".join(name for _, name, _ in lowered.arguments)
    body = lowered.text or [(loop.node.lineno, "pass")]
    text = "\n".join([f"def {name}({names}):", *(f"    {line}" for _, line in body)])
    tree = ast.parse(text)
    lines = [loop.node.lineno, *(n for n, _ in body)]
    for node in ast.walk(tree):
        if hasattr(node, "lineno"):
            node.lineno = node.end_lineno = lines[node.lineno - 1]
            node.col_offset = node.end_col_offset = 0
    definition: Any = tree.body[0]
    space: dict[str, Any] = {"math": math, "_np": np, "__name__": __name__}
    exec(compile(tree, loop.filename, "exec", dont_inherit=True), space)
    function = space[name]
    first = loop.node.lineno
    shown = tuple(linecache.getlines(loop.filename)[first - 1 : loop.node.end_lineno])
    function.__ampi_source__ = Source(name, loop.filename, first, shown, definition)
    function.__qualname__ = f"{loop.function}.{name}" if loop.function else name
    return kernel(function, error_model="numpy")

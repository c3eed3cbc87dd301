"""Loops inside of an outlined loop: ``for`` over ranges and arrays, ``while``, and their ``else``."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from .expressions import constants_of
from .kinds import INT, Refused, View, as_view, number
from .states import State, joined

MOST_ROUNDS = 40
"""Most times that the body of a loop is lowered, until the kinds of its numbers no longer change."""


class Iterations:
    """Lowering of loops; a base of `lowering.Lowering`."""

    line: int
    conditional: int
    prologue: dict[str, int]
    count: int

    def for_loop(self, s: ast.For, state: State) -> State | None:
        line = self.line
        head, binders, trips, empty = self.header(s, state)
        runs = self.hopeful and empty is not None
        if runs:
            self.prologue.setdefault(str(empty), line)
        flag = self.flag_of_break(s)

        def iteration(before: State) -> State | None:
            with self.indented(head):
                inside: State | None = before.copy()
                for target, text, found in binders(before):
                    inside = self.store(target, text, found, inside)  # type: ignore[arg-type]
                return self.block(s.body, inside)

        leaves = _leaves(s)
        self.conditional += leaves
        self.line = line
        before, back, breaks = self.until_stable(s, state, flag, trips, iteration)
        self.conditional -= leaves
        return self.leave(s, back if runs else before, breaks, flag)

    def while_loop(self, s: ast.While, state: State) -> State | None:
        flag = self.flag_of_break(s)

        def iteration(before: State) -> State | None:
            with self.indented("while True:"):
                start = len(self.lines)
                inside = before.copy()
                test = self.condition(s.test, inside)
                if len(self.lines) == start:
                    self.lines[-1] = self.lines[-1][0], "    " * (self.depth - 2) + f"while {test}:"
                else:
                    self.emit(f"if not {test}:")
                    self.lines.append((self.line, "    " * self.depth + "break"))
                return self.block(s.body, inside)

        self.conditional += 1
        before, _, breaks = self.until_stable(s, state, flag, "10", iteration)
        self.conditional -= 1
        return self.leave(s, before, breaks, flag)

    def flag_of_break(self, s: Any) -> str:
        """Return the variable that is 1 if a loop with an ``else`` was left by ``break``; '' if it needs none."""
        flag = self.temporary("left") if s.orelse and _has_break(s) else ""
        if flag:
            self.emit(f"{flag} = 0")
        return flag

    def until_stable(
        self, s: Any, state: State, flag: str, trips: str, iteration: Callable[[State], State | None]
    ) -> tuple[State, State | None, list[State]]:
        """Lower an iteration again until the kinds of the numbers before it no longer change.

        Returns
        -------
        tuple
            The state before each iteration, that at its end (None if it has none), and those at each ``break``.
        """
        line, before = self.line, state
        mark = len(self.lines), self.count, len(self.work)
        prologue, returns = dict(self.prologue), list(self.done.returns)
        failing = self.done.may_fail
        for _ in range(MOST_ROUNDS):
            del self.lines[mark[0] :], self.work[mark[2] :]
            self.count = mark[1]
            self.prologue, self.done.returns = dict(prologue), list(returns)
            self.done.may_fail = failing
            self.line = line
            breaks: list[State] = []
            continues: list[State] = []
            self.exits.append((breaks, continues, flag))
            self.trips.append(trips)
            back = iteration(before)
            self.trips.pop()
            self.exits.pop()
            for one in continues:
                back = joined(back, one, self)
            after = before if back is None else joined(before, back, self, loop=True)
            assert after is not None
            if after == before:
                return before, back, breaks
            before = after
        raise Refused(s, "its numbers change their types too often")

    def leave(self, s: Any, normal: State | None, breaks: list[State], flag: str) -> State | None:
        """The state after a loop, and its ``else``."""
        end = None if normal is None else normal.copy()
        if s.orelse:
            if flag:
                self.conditional += 1
                with self.indented(f"if {flag} == 0:"):
                    end = self.block(s.orelse, end)
                self.conditional -= 1
            else:
                end = self.block(s.orelse, end)
        for one in breaks:
            end = joined(end, one, self)
        return end

    def header(self, s: ast.For, state: State) -> tuple[str, Any, str, str | None]:
        """Return the head of a loop in the kernel, the values of its targets, its trip count, and when that is zero."""
        if isinstance(s.iter, ast.Call) and self.constant_of(s.iter.func, state) is range:
            text, found, trips, empty = self.range_of(s.iter, state)
            if not isinstance(s.target, ast.Name):
                raise Refused(s, "a loop over a range with several targets")
            item = self.fresh(f"step_{s.target.id}")
            direct = s.target.id not in self.reals
            name = s.target.id if direct else item
            return f"for {name} in {text}:", lambda before: [(s.target, name, found)], trips, empty
        values = constants_of(s.iter)
        if values:
            return self.constants(s, values)
        sources, targets, counter = self.sequences(s.iter, s.target, state)
        index = self.temporary("index")
        lengths = [self.length_of(view) for view in sources]
        text = lengths[0] if len(lengths) == 1 else f"min({', '.join(lengths)})"
        low_high = ("0", f"{lengths[0]} - 1")
        step = number(INT, low=low_high[0], high=low_high[1])

        def binders(before: State) -> Any:
            found = []
            if counter is not None:
                found.append((counter, index, step))
            for target, view in zip(targets, sources):
                part = View(view.array, (*view.indices, index))
                if part.ndim:
                    found.append((target, "", part))
                else:
                    found.append((target, self.element(part), number(view.array.element)))
            return found

        empty = " or ".join(f"{length} == 0" for length in lengths)
        return f"for {index} in range({text}):", binders, f"({lengths[0]})", empty

    def constants(self, s: ast.For, values: list[int]) -> tuple[str, Any, str, None]:
        """The header of a loop over integers in the source: ``for step in (-1, 0, 1):``."""
        if not isinstance(s.target, ast.Name):
            raise Refused(s, "a loop over numbers with several targets")
        item, index = self.temporary("item"), self.temporary("index")
        low, high = f"({min(values)})", f"({max(values)})"
        found = number(INT, magnitude=max(map(abs, values)), low=low, high=high)

        def binders(before: State) -> Any:
            self.emit(f"{item} = {values[0]}")
            for k, value in enumerate(values[1:], 1):
                self.emit(f"if {index} == {k}:")
                self.emit(f"    {item} = {value}")
            return [(s.target, item, found)]

        return f"for {index} in range({len(values)}):", binders, str(len(values)), None

    def sequences(self, iterated: Any, target: Any, state: State) -> tuple[list[View], list[Any], Any]:
        """The arrays over which a loop runs, their targets, and the target of a counter."""
        function = self.constant_of(iterated.func, state) if isinstance(iterated, ast.Call) else None
        if function is enumerate and len(iterated.args) == 1:
            if not isinstance(target, ast.Tuple) or len(target.elts) != 2:
                raise Refused(iterated, "enumerate() with another target than two names")
            sources, targets, counter = self.sequences(iterated.args[0], target.elts[1], state)
            if counter is not None:
                raise Refused(iterated, "enumerate() of enumerate()")
            return sources, targets, target.elts[0]
        if function is zip:
            if not isinstance(target, ast.Tuple) or len(target.elts) != len(iterated.args):
                raise Refused(iterated, "zip() with another number of targets")
            return [self.view(x, state) for x in iterated.args], target.elts, None
        return [self.view(iterated, state)], [target], None

    def view(self, node: Any, state: State) -> View:
        found = as_view(self.anything(node, state)[1])
        if not isinstance(found, View):
            raise Refused(node, f"a loop over {ast.unparse(node)}, which is no array and no range")
        indices = []
        for index in found.indices:
            if not index.isidentifier() or index in self.assigned:
                name = self.temporary("row")
                self.emit(f"{name} = {index}")
                index = name
            indices.append(index)
        return View(found.array, tuple(indices))


def _leaves(loop: Any) -> bool:
    """Return whether iterations of a loop may end early, or be its last."""
    return any(isinstance(n, (ast.Break, ast.Continue, ast.Return)) for n in ast.walk(loop))


def _has_break(loop: Any) -> bool:
    waiting = list(loop.body)
    while waiting:
        n = waiting.pop()
        if isinstance(n, ast.Break):
            return True
        if not isinstance(n, (ast.For, ast.While)):
            waiting += [c for c in ast.iter_child_nodes(n) if isinstance(c, ast.stmt)]
        else:
            waiting += n.orelse
    return False

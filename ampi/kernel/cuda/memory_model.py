"""Memory of an interpreted launch: arrays that record which thread reads and writes each element, and find races."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np


@dataclass(frozen=True)
class Access:
    """An access to an element: by which block and thread, after how many barriers, and in which line."""

    block: tuple[int, int, int]
    thread: tuple[int, int, int]
    warp: int
    barriers: int
    warp_barriers: int
    line: int
    atomic: bool = False

    def is_ordered(self, other: Access) -> bool:
        """Return whether one of two accesses comes before the other in any run."""
        if self.block != other.block:
            return False
        if self.thread == other.thread or self.barriers != other.barriers:
            return True
        return self.warp == other.warp and self.warp_barriers != other.warp_barriers


class Memory:
    """One array: its elements, which of them have a value, and the latest accesses to them."""

    def __init__(self, name: str, data: np.ndarray, defined: bool, owner: Any, private: bool = False) -> None:
        self.name, self.data, self.owner, self.private = name, data, owner, private
        self.shape = data.shape
        self.defined = np.full(data.size, defined)
        self.writes: dict[int, Access] = {}
        self.reads: dict[int, list[Access]] = {}

    def element(self, position: int) -> str:
        where = ", ".join(map(str, np.unravel_index(position, self.shape)))
        return f"{self.name}[{where}]"

    def read(self, position: int, now: Access) -> None:
        if not self.defined[position]:
            self.owner.undefined.append((self, position, now))
        if self.private:
            return
        last = self.writes.get(position)
        if last is not None and not now.is_ordered(last) and not (last.atomic and now.atomic):
            self.race(position, now, "reads", last, "writes")
        others = [a for a in self.reads.get(position, ()) if a.block != now.block or not a.is_ordered(now)]
        if len(others) < 2 or all(a.thread == now.thread for a in others):
            others.append(now)
        self.reads[position] = others[-2:]

    def write(self, position: int, now: Access) -> None:
        self.defined[position] = True
        if self.private:
            return
        last = self.writes.get(position)
        if last is not None and not now.is_ordered(last) and not (last.atomic and now.atomic):
            self.race(position, now, "writes", last, "writes")
        for other in self.reads.get(position, ()):
            if not now.is_ordered(other) and not (other.atomic and now.atomic):
                self.race(position, now, "writes", other, "reads")
        self.writes[position] = now

    def refuse_undefined(self, position: int, now: Access) -> NoReturn:
        text = f"thread {shown(now.thread)} reads {self.element(position)}, which has no value yet"
        self.owner.report(now, text, "assign it first")

    def race(self, position: int, now: Access, does: str, last: Access, did: str) -> NoReturn:
        own = "" if now.block == last.block else f" of block {shown(last.block)}"
        text = (
            f"a race: thread {shown(now.thread)} of block {shown(now.block)} {does} {self.element(position)}, which "
            f"thread {shown(last.thread)}{own} {did} in line {last.line}, and no barrier is between them"
        )
        advice = "put cuda.syncthreads() between the two, or use cuda.atomic"
        if own:
            advice = "blocks of a launch cannot wait for one another: use cuda.atomic, or make two launches"
        return self.owner.report(now, text, advice)


class Watched:
    """A view of an array of an interpreted launch."""

    def __init__(self, memory: Memory, data: np.ndarray, positions: np.ndarray) -> None:
        self.memory, self.data, self.positions = memory, data, positions

    @classmethod
    def of(cls, memory: Memory) -> Watched:
        return cls(memory, memory.data, np.arange(memory.data.size).reshape(memory.shape))

    shape = property(lambda self: self.data.shape)
    size = property(lambda self: self.data.size)
    ndim = property(lambda self: self.data.ndim)
    dtype = property(lambda self: self.data.dtype)
    T = property(lambda self: Watched(self.memory, self.data.T, self.positions.T))

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: Any) -> Any:
        return self.read(index, sys._getframe(1).f_lineno)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.write(index, value, sys._getframe(1).f_lineno)

    def read(self, index: Any, line: int, atomic: bool = False) -> Any:
        position = self.at(index, line)
        if isinstance(position, np.ndarray):
            return Watched(self.memory, self.data[index], position)
        self.memory.read(int(position), self.memory.owner.access(line, atomic))
        return self.data[index]

    def write(self, index: Any, value: Any, line: int, atomic: bool = False) -> None:
        position = self.at(index, line)
        for p in np.ravel(position):
            self.memory.write(int(p), self.memory.owner.access(line, atomic))
        self.data[index] = value

    def at(self, index: Any, line: int) -> Any:
        try:
            return self.positions[index]
        except IndexError as problem:
            owner = self.memory.owner
            return owner.report(
                owner.access(line), f"{self.memory.name}[{index}]: {problem}", "guard the access by a condition"
            )

    def update(self, index: Any, change: Callable[[Any], Any], line: int) -> Any:
        """Change an element atomically; the result is its old value."""
        old = self.read(index, line, atomic=True)
        self.write(index, change(old), line, atomic=True)
        return old


def shown(place: tuple[int, int, int]) -> str:
    """Return an index as text, without trailing zeros after the first number."""
    count = 3 if place[2] else 2 if place[1] else 1
    return str(place[0]) if count == 1 else str(place[:count])

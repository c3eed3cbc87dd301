"""Arrays from nested lists and tuples that contain tracked arrays."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..base.missing_rules import no_rule
from ..errors import ActivityError
from ..memory.storages import Region, TrackedArray, region_of, tracked, wrapped
from ..tape import BaseAdjoint, Push, Sweep, current
from .activity import carries, carry, plain_of
from .byte_views import movable
from .writing import assign


class _Stack(BaseAdjoint):
    __slots__ = ("result", "sources")
    second_order = "linear"

    def __init__(self, sources: list[tuple[int, Region]], result: Region) -> None:
        self.sources = sources  # with the index of each one's first element in the result
        self.result = result

    def __call__(self, sweep: Sweep) -> None:
        if not sweep.has_shadow(self.result):
            return
        g = sweep.shadow(self.result).reshape(-1)
        for first, source in self.sources:
            sweep.add(source, g[first : first + math.prod(source.shape)].reshape(source.shape))

    def tangent(self, push: Push) -> None:
        """Put the tangents into their places in the result."""
        y_dot = np.zeros(math.prod(self.result.shape), push.dtype(self.result))
        for first, source in self.sources:
            y_dot[first : first + math.prod(source.shape)] = push.get(source).reshape(-1)
        push.put(self.result, y_dot.reshape(self.result.shape))


_MOST_DIMENSIONS = 64
"""NumPy's limit: a deeper nesting, such as a list that contains itself, is an object."""


def _nested_leaves(x: Any, depth: int = 0) -> Iterator[Any]:
    if isinstance(x, (list, tuple)) and depth < _MOST_DIMENSIONS:
        for item in x:
            yield from _nested_leaves(item, depth + 1)
    else:
        yield x


def nested_plain(x: Any, depth: int = 0) -> Any:
    """Lists and tuples with plain arrays and numbers instead of tracked ones."""
    if isinstance(x, (list, tuple)) and depth < _MOST_DIMENSIONS:
        items = [nested_plain(item, depth + 1) for item in x]
        return items if isinstance(x, list) else tuple(items)  # the fields of a structured element
    return plain_of(x)


def _fill_fields(target: np.ndarray, x: Any) -> None:
    """Set the fields of new structured elements from tracked arrays in lists and tuples."""
    if isinstance(x, (list, tuple)) and any(isinstance(leaf, TrackedArray) for leaf in _nested_leaves(x)):
        if target.ndim:
            for k, item in enumerate(x):
                _fill_fields(target[k, ...], item)
        else:
            for name, item in zip(target.dtype.names or (), x):
                _fill_fields(target[name], item)
    elif isinstance(x, TrackedArray):
        assign(target, x)


def from_nested(x: Any, **keywords: Any) -> Any:
    """Convert lists and tuples that contain tracked arrays to one array, recorded; return anything else unchanged.

    Keyword arguments are those of `numpy.array`.
    """
    if not isinstance(x, (list, tuple)):
        return x
    leaves = list(_nested_leaves(x))
    if not any(isinstance(leaf, TrackedArray) for leaf in leaves):
        return x
    result = wrapped(np.array(nested_plain(x), **keywords))
    tape = current()
    if result.dtype.hasobject and not (tape is not None and any(carries(tape, leaf) for leaf in leaves)):
        return wrapped(np.array(x, **keywords))  # an object may be one of the arrays
    if tape is None:
        return result
    if result.dtype.names is not None:
        _fill_fields(result, x)
        return result
    moved = [movable(tape, leaf) for leaf in leaves]
    leaves = [leaf if found is None else found for leaf, found in zip(leaves, moved)]
    active = [(k, leaf) for k, leaf in enumerate(leaves) if carries(tape, leaf)]
    if active and result.dtype.hasobject:
        raise no_rule(np.array, " for arrays of objects")
    if active and carry(tape, result, [leaf for _, leaf in active]):
        starts = list(itertools.accumulate([np.size(leaf) for leaf in leaves], initial=0))
        if result.size != starts[-1]:
            raise ActivityError("active arrays of different shapes cannot be combined into one array")
        sources = [(starts[k], region_of(leaf)) for k, leaf in active]
        tape.append(_Stack(sources, region_of(result)), created=(result,))
    return result


def as_array(x: Any) -> Any:
    """Convert an array, a number or nested lists of them to an `ampi.ndarray`, with the elements' derivatives."""
    return tracked(np.asanyarray(from_nested(x)))

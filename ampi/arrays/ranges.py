"""Ranges of numbers with active ends or steps: `numpy.arange`, `numpy.mgrid`, slices in `numpy.r_`.

The number of elements is a constant; each element depends on the start and the step, not on the end of an open range.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..memory.storages import tracked, wrapped
from ..tape import current
from .activity import any_active, plain_of
from .exact import exactly


def arange(*arguments: Any, **keywords: Any) -> Any:
    """`numpy.arange` with its derivatives with respect to start and step."""
    names = ("start", "stop", "step", "dtype") if len(arguments) > 1 or "stop" in keywords else ("stop",)
    given = {**dict(zip(names, arguments)), **keywords}
    values = np.arange(*map(plain_of, arguments), **{name: plain_of(x) for name, x in keywords.items()})
    start, step = given.get("start", 0), given.get("step")
    if given.get("stop") is None:  # the only end is where the range stops
        start = 0
    if values.dtype.kind not in "fc" or not _any_active([start, step]):
        return wrapped(values)
    return exactly(lambda *_: values)(_spaced)(start, 1 if step is None else step, len(values))


def _spaced(start: Any, step: Any, count: int) -> Any:
    return tracked(np.asanyarray(start + step * tracked(np.arange(float(count)))))


def is_active_key(key: Any) -> bool:
    """Return whether a slice among a key's items depends on something active."""
    return _any_active(
        [_parts(item) for item in (key if isinstance(key, tuple) else (key,)) if isinstance(item, slice)]
    )


def _any_active(x: Any) -> bool:
    tape = current()
    return tape is not None and any_active(tape, (x,))


def _parts(key: slice) -> tuple:
    return key.start, key.stop, key.step


def of_slice(key: slice, origin: Any = np.r_) -> Any:
    """The numbers that a slice means in `numpy.r_` or `numpy.mgrid`."""
    start, stop, step = (0 if key.start is None else key.start), key.stop, key.step
    if not isinstance(step, complex):
        return arange(start, stop, 1 if step is None else step)
    count = int(abs(step))
    between = (stop - start) / (count - 1) if count > 1 else 0.0 * stop
    return exactly(lambda *_: origin[plain_of(start) : plain_of(stop) : step])(_spaced)(start, between, count)


def grid(origin: Any, key: Any) -> Any:
    """``numpy.mgrid[key]`` or ``numpy.ogrid[key]`` with derivatives."""
    if not isinstance(key, tuple):
        return of_slice(key, origin)
    axes = [of_slice(item) for item in key]
    wide = [axis.reshape([-1 if k == n else 1 for k in range(len(axes))]) for n, axis in enumerate(axes)]
    exact = origin[tuple([slice(*map(plain_of, _parts(item))) for item in key])]
    dense = isinstance(exact, np.ndarray)
    return exactly(lambda *_: exact)(lambda *parts: np.stack(np.broadcast_arrays(*parts)) if dense else parts)(*wide)

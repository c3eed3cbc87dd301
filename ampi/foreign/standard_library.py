"""Tracked numbers in json, statistics and sqlite3, whose C code checks for `float`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..arrays.scalars import scalar
from ..arrays.texts import warn_json
from ..base.arrivals import when_imported


def without_tracked(x: Any) -> Any:
    """Replace tracked numbers in a structure by Python's; return the same object if there are none."""
    kind = type(x)
    if kind is scalar:
        warn_json(x)
        return plain_of(x).item() if x.dtype.type is np.float64 else x
    if isinstance(x, dict):
        found = {without_tracked(key): without_tracked(value) for key, value in x.items()}
        return found if any(a is not b for a, b in zip(_items(found), _items(x))) else x
    if isinstance(x, (list, tuple)):
        items = [without_tracked(item) for item in x]
        return items if any(a is not b for a, b in zip(items, x)) else x
    return x


def _items(x: dict[Any, Any]) -> Iterator[Any]:
    for pair in x.items():
        yield from pair


def _json() -> None:
    """Let JSON encoders write tracked numbers, without derivatives: the encoder in C only accepts a `float`."""
    encoder = sys.modules["json.encoder"].JSONEncoder
    encode, iterate = encoder.encode, encoder.iterencode

    @functools.wraps(encode)
    def to_text(self: Any, o: Any) -> str:
        _prepare(self)
        try:
            return encode(self, o)
        except TypeError:
            found = _without_tracked(o)
            if found is o:
                raise
        return encode(self, found)

    @functools.wraps(iterate)
    def to_pieces(self: Any, o: Any, _one_shot: bool = False) -> Any:
        _prepare(self)
        return iterate(self, o if _one_shot else _without_tracked(o), _one_shot)

    encoder.encode, encoder.iterencode = to_text, to_pieces


def _without_tracked(o: Any) -> Any:
    try:
        return without_tracked(o)
    except RecursionError:  # json reports the structure that contains itself
        return o


def _prepare(encoder: Any) -> None:
    if not isinstance(encoder.default, _Default):
        encoder.default = _Default(encoder.default)


class _Default:
    """An encoder's ``default`` that also converts the tracked numbers in its results."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self.function = function

    def __call__(self, o: Any) -> Any:
        found = without_tracked(o)
        return without_tracked(self.function(o)) if found is o else found


def _statistics() -> None:
    module: Any = sys.modules["statistics"]
    coerce = module._coerce

    @functools.wraps(coerce)
    def of_numpys(first: type, second: type) -> type:
        kinds = (np.float64 if kind is scalar else kind for kind in (first, second))
        return coerce(*kinds)

    module._coerce = of_numpys


def _sqlite3() -> None:
    """Register a converter: sqlite3 would store a number as the bytes of a buffer."""
    sys.modules["sqlite3"].register_adapter(scalar, lambda x: plain_of(x).item())


when_imported("json.encoder", _json)
when_imported("statistics", _statistics)
when_imported("sqlite3", _sqlite3)

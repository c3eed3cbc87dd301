"""Conversion of plain data to text, which is read without running any code.

The text is JSON, in which a list begins with a letter for its type. Classes are stored by name, and found only among
those that this process has already defined. Other objects (for example in an array of objects) are pickled one by one.
Unpickling can run any code, so the caller decides whether it is allowed.
"""

from __future__ import annotations

import base64
import json
import pickle
import struct
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

MARK = b"ampi 1\n"
_LARGE = 1 << 63


def packed(data: Any) -> bytes:
    """Convert data to text, from which `unpacked` makes equal data."""
    return MARK + json.dumps(_encoded(data), separators=(",", ":"), check_circular=False).encode()


def unpacked(text: bytes, before_pickles: Callable[[], None]) -> Any:
    """Convert a text of `packed` to data.

    Parameters
    ----------
    text : bytes
    before_pickles : callable
        Raises an error if pickled objects must not be trusted.

    Raises
    ------
    ValueError
        The text was not written by `packed`.
    """
    if not text.startswith(MARK):
        raise ValueError("this version of ampi writes another format")
    try:
        return _Reader(before_pickles).made(json.loads(text[len(MARK) :]))
    except (LookupError, TypeError, AttributeError, OverflowError, MemoryError, struct.error, RecursionError) as error:
        raise ValueError(str(error)) from error


def _encoded(x: Any) -> Any:
    cls = type(x)
    if cls is bool or x is None:
        return x
    if cls is str:
        return x if x.isascii() else _encoded_text(x)
    if cls is int:
        return x if -_LARGE < x < _LARGE else ["i", hex(x)]
    if cls is float:
        return x if x - x == 0 else ["f", struct.pack("<d", x).hex()]
    encode = _ENCODERS.get(cls)
    if encode is not None:
        return encode(x)
    if isinstance(x, type):
        named = ["C", x.__module__, x.__qualname__]
        return named if _found(*named[1:]) is x else _pickled(x)
    if isinstance(x, np.dtype):
        return _encoded_dtype(x) or _pickled(x)
    if cls is np.ndarray and x.dtype.hasobject and x.dtype == object:
        return ["o", list(x.shape), *map(_encoded, x.ravel().tolist())]
    if (cls is np.ndarray or isinstance(x, np.generic)) and not x.dtype.hasobject:
        dtype = _encoded_dtype(x.dtype)
        if dtype is not None and (cls is np.ndarray or type(np.empty((), x.dtype)[()]) is cls):
            values = np.ascontiguousarray(x)
            return ["a" if cls is np.ndarray else "n", dtype, list(np.shape(x)), _as_text(values.tobytes())]
    return _pickled(x)


def _encoded_text(x: str) -> Any:
    try:
        x.encode()
    except UnicodeEncodeError:  # JSON has two surrogates for one character
        return ["u", _as_text(x.encode("utf-8", "surrogatepass"))]
    return x


def _as_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _encoded_dtype(dtype: np.dtype) -> list | None:
    if type(dtype) in _PLAIN_DTYPES and dtype.metadata is None and dtype.names is None:
        return ["y", dtype.str]
    try:
        described = np.lib.format.dtype_to_descr(dtype)
        if dtype.metadata is None and np.lib.format.descr_to_dtype(described) == dtype:
            return ["Y", _encoded(described), dtype.isalignedstruct]
    except (TypeError, ValueError):
        pass
    return None


_PLAIN_DTYPES = {type(np.dtype(code)) for code in "?bhilqBHILQefdgFDGSUMm"}


def _pickled(x: Any) -> list:
    return ["P", _as_text(pickle.dumps(x))]


def _pairs(x: dict) -> list:
    return ["d", *(part for pair in x.items() for part in map(_encoded, pair))]


_ENCODERS: dict[type, Callable[[Any], list]] = {
    tuple: lambda x: ["t", *map(_encoded, x)],
    list: lambda x: ["l", *map(_encoded, x)],
    dict: _pairs,
    set: lambda x: ["s", *map(_encoded, x)],
    frozenset: lambda x: ["S", *map(_encoded, x)],
    bytes: lambda x: ["b", _as_text(x)],
    complex: lambda x: ["c", struct.pack("<dd", x.real, x.imag).hex()],
    slice: lambda x: ["x", _encoded(x.start), _encoded(x.stop), _encoded(x.step)],
    type(...): lambda x: ["e"],
}


def _found(module: str, name: str) -> Any:
    """Return a class by its name, in a module that has been imported; None if it is not found."""
    found = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


class _Reader:
    def __init__(self, before_pickles: Callable[[], None]) -> None:
        self.before_pickles = before_pickles

    def made(self, encoded: Any) -> Any:
        if type(encoded) is not list:
            return encoded
        return getattr(self, f"_{_LETTERS[encoded[0]]}")(*encoded[1:])

    def _tuple(self, *parts: Any) -> tuple:
        return tuple(map(self.made, parts))

    def _list(self, *parts: Any) -> list:
        return list(map(self.made, parts))

    def _dict(self, *parts: Any) -> dict:
        items = iter(map(self.made, parts))
        return dict(zip(items, items))

    def _set(self, *parts: Any) -> set:
        return set(map(self.made, parts))

    def _frozenset(self, *parts: Any) -> frozenset:
        return frozenset(map(self.made, parts))

    def _slice(self, *parts: Any) -> slice:
        return slice(*map(self.made, parts))

    def _bytes(self, text: str) -> bytes:
        return base64.b64decode(text)

    def _surrogates(self, text: str) -> str:
        return base64.b64decode(text).decode("utf-8", "surrogatepass")

    def _integer(self, text: str) -> int:
        return int(text, 16)

    def _float(self, text: str) -> float:
        (value,) = struct.unpack("<d", bytes.fromhex(text))
        return value

    def _complex(self, text: str) -> complex:
        return complex(*struct.unpack("<dd", bytes.fromhex(text)))

    def _ellipsis(self) -> Any:
        return ...

    def _class(self, module: str, name: str) -> type:
        found = _found(module, name)
        if found is None:
            raise ValueError(f"there is no class {name} in {module}")
        return found

    def _dtype(self, text: str) -> np.dtype:
        return np.dtype(text)

    def _described(self, encoded: Any, is_aligned: bool) -> np.dtype:
        found = np.lib.format.descr_to_dtype(self.made(encoded))
        if not is_aligned or found.fields is None:
            return found
        names = list(found.names)
        formats, offsets = zip(*(found.fields[name][:2] for name in names))
        return np.dtype(
            {"names": names, "formats": formats, "offsets": offsets, "itemsize": found.itemsize}, align=True
        )

    def _array(self, dtype: Any, shape: list, text: str) -> np.ndarray:
        found = np.zeros(shape, self.made(dtype))
        if found.nbytes:
            found[...] = np.frombuffer(base64.b64decode(text), found.dtype).reshape(shape)
        return found

    def _number(self, dtype: Any, shape: list, text: str) -> Any:
        return self._array(dtype, shape, text)[()]

    def _objects(self, shape: list, *parts: Any) -> np.ndarray:
        found = np.empty(len(parts), object)
        for k, part in enumerate(parts):
            found[k] = self.made(part)
        return found.reshape(shape)

    def _pickled(self, text: str) -> Any:
        self.before_pickles()
        return pickle.loads(base64.b64decode(text))


_LETTERS = {
    "t": "tuple", "l": "list", "d": "dict", "s": "set", "S": "frozenset", "b": "bytes", "c": "complex", "x": "slice",
    "e": "ellipsis", "u": "surrogates", "i": "integer", "f": "float", "C": "class", "y": "dtype", "Y": "described",
    "a": "array", "n": "number", "o": "objects", "P": "pickled",
}  # fmt: skip

"""Tracked scalars: immutable 0-d arrays, like NumPy's scalars, and elements of structured arrays.

Where NumPy returns a number (a reduction, an element, arithmetic of numbers) it is immutable: ``t *= 0.5`` binds the
name t to a new number, and other references keep the old one. A 0-d array that the user made is an array.
"""

from __future__ import annotations

import ctypes
import dis
import math
import operator
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..memory.storages import as_array, as_record, is_record, is_scalar, plain, set_scalar_types
from ..tape import current
from . import activity, complex_numbers, element_arithmetic, elements, indexing, ufuncs
from .array import ndarray
from .losses import lose_exactly


def _rebinding(name: str) -> Any:
    def method(self, other: Any) -> Any:
        return NotImplemented  # Python then computes `self op other`, and binds the name to that

    method.__name__ = name
    return method


_OPERATORS = {dis.opmap[name] for name in ("BINARY_OP", "BINARY_POWER", "INPLACE_POWER") if name in dis.opmap}


def _is_operator(frame: Any) -> bool:
    """Return whether a frame computes with an operator: NumPy's numbers round their powers in another way than
    `numpy.power`, and call that for ``number ** variable``."""
    return frame.f_code.co_code[frame.f_lasti] in _OPERATORS


class scalar(ndarray):
    """A number that carries derivatives, where NumPy returns a scalar.

    It is a 0-d `ampi.ndarray` with read-only memory. In-place operators return a new scalar, it can be hashed,
    `isinstance` treats it as NumPy's number (`numpy.float64`, a `float`), and NumPy converts it as it does its own
    scalars: ``s[...]``, ``s.reshape(1)`` and ``np.atleast_1d(s)`` are arrays with their own memory.
    """

    __slots__ = ()
    __module__ = "ampi"
    __setattr__ = object.__setattr__  # faster than NumPy's; a number has no attribute that can be set

    def __array_finalize__(self, template: Any) -> None:
        if is_scalar(template):
            as_array(self)

    # Read-only, as for NumPy's numbers: an object is reused for several numbers, one after the other (`tape.elements`).
    shape = property(np.ndarray.shape.__get__)
    dtype = property(np.ndarray.dtype.__get__)
    strides = property(np.ndarray.strides.__get__)

    for _name in "add sub mul matmul truediv floordiv mod pow lshift rshift and xor or".split():
        vars()[f"__i{_name}__"] = _rebinding(f"__i{_name}__")
    for _name, _method in element_arithmetic.operators().items():
        vars()[_name] = _method
    del _name, _method

    __len__ = __iter__ = __contains__ = None  # type: ignore[assignment]  # numbers have no length

    @property
    def __class__(self) -> type:  # type: ignore[override]
        """The class for `isinstance`: that of NumPy's number, such as `numpy.float64`, which is a `float`."""
        return self.dtype.type

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if method == "__call__" and not keywords and len(inputs) <= 2:
            if len(inputs) == 2 and (type(inputs[0]) is ndarray or type(inputs[1]) is ndarray):
                return ndarray.__array_ufunc__(self, ufunc, method, *inputs)
            if ufunc is np.power and issubclass(type(inputs[0]), np.generic):
                tape = current()
                if tape is not None and _is_operator(sys._getframe(1)):
                    made = element_arithmetic.call(tape, ufunc, inputs, operator.pow)
                    if made is not None:
                        return made
            of = element_arithmetic.of_one if len(inputs) == 1 else element_arithmetic.of_two
            found = of(ufunc, *inputs)
            if found is not NotImplemented:
                return found
        return ufuncs.apply(ufunc, method, inputs, keywords)

    def __hash__(self) -> int:
        return hash(activity.plain_of(self))

    def __getitem__(self, key: Any) -> Any:
        return self if type(key) is tuple and not key else self._array()[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        raise TypeError(
            "a scalar cannot be changed (NumPy gives this as a number, not as an array); compute another one, or make "
            "an array of it: a = ampi.numpy.array(s)"
        )

    def _array(self) -> Any:
        return indexing.copied(self, np.array(plain(self)))

    def __floor__(self) -> int:
        return math.floor(plain(self).item())

    def __ceil__(self) -> int:
        return math.ceil(plain(self).item())

    def __trunc__(self) -> int:
        return math.trunc(plain(self).item())

    def is_integer(self) -> bool:
        """Return whether the number is an integer."""
        return plain(self)[()].is_integer()

    def as_integer_ratio(self) -> tuple[int, int]:
        """The number as a fraction, without its derivative (with a warning while a tape records)."""
        lose_exactly("as_integer_ratio() of", self)
        return plain(self)[()].as_integer_ratio()

    def hex(self) -> str:
        """The number in hexadecimal, for double precision, without its derivative (with a warning)."""
        lose_exactly("hex() of", self)
        return plain(self)[()].hex()

    def copy(self, order: Any = "C") -> scalar:
        """The number itself, which is immutable."""
        return self

    def astype(
        self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """The number in another dtype."""
        return self._array().astype(dtype, order, casting, subok)[()]

    def reshape(self, *shape: Any, **keywords: Any) -> Any:
        """An array with one element."""
        return np.reshape(self, shape[0] if len(shape) == 1 else shape, **keywords)

    def ravel(self, order: Any = "C") -> Any:
        """A 1-d array with one element."""
        return np.ravel(self, order)

    def flatten(self, order: Any = "C") -> Any:
        """A 1-d array with one element."""
        return np.ravel(self, order)

    def squeeze(self, axis: Any = None) -> Any:
        """The number itself."""
        return np.squeeze(self, axis)

    def transpose(self, *axes: Any) -> Any:
        """The number itself."""
        return self

    @property
    def T(self) -> Any:
        """The number itself."""
        return self

    @property
    def real(self) -> Any:
        """The real part."""
        return self._part(False) if self.dtype.kind == "c" else self

    @property
    def imag(self) -> Any:
        """The imaginary part."""
        return self._part(True)

    def _part(self, imaginary: bool) -> Any:
        if self.dtype.kind == "c" and (found := complex_numbers.part(self, imaginary)) is not None:
            return found
        return indexing.getitem((np.ndarray.imag if imaginary else np.ndarray.real).__get__(self), ())


class record(ndarray):
    """An element of a structured array with floating-point fields, where NumPy returns a `numpy.void`.

    It is a view of the array's memory, as NumPy's is: ``r["p"] = v`` sets the array's element, and ``r["p"]`` is a
    number.
    """

    __slots__ = ()
    __module__ = "ampi"

    def __array_finalize__(self, template: Any) -> None:
        if is_record(template):
            as_array(self)

    def __getitem__(self, key: Any) -> Any:
        if type(key) is tuple and not key:
            return self
        part = indexing.getitem(self, self._name(key))
        if isinstance(key, list):
            return as_record(part)
        return part[()] if isinstance(part, ndarray) and not part.ndim and key is not Ellipsis else part

    def __setitem__(self, key: Any, value: Any) -> None:
        indexing.setitem(self, self._name(key), value)

    def _name(self, key: Any) -> Any:
        """The name of a field that is given by its name or position."""
        if not isinstance(key, (int, np.integer)) or isinstance(key, bool):
            return key
        if not -len(self) <= key < len(self):
            raise IndexError(f"invalid index ({key}): the element has {len(self)} fields")
        return self.dtype.names[key]

    def __len__(self) -> int:
        return len(self.dtype.names)

    def __iter__(self) -> Iterator[Any]:
        return (self[name] for name in self.dtype.names)

    def __hash__(self) -> int:
        return hash(plain(self)[()])

    def __repr__(self) -> str:
        return repr(plain(self)[()])

    def __str__(self) -> str:
        return str(plain(self)[()])

    def copy(self, order: Any = "C") -> Any:
        """A copy of the element."""
        return as_record(indexing.copied(self, np.array(plain(self))))


_SEQUENCE, _TYPE_FLAGS = 1 << 5, 168  # Py_TPFLAGS_SEQUENCE, and the offset of a type's flags (64-bit)


def _is_no_sequence(cls: type) -> None:
    """Keep the pattern ``[*_]`` of ``match`` from matching numbers.

    NumPy 2.5 marks its arrays, and so all classes derived from them, as sequences, but not its numbers.
    """
    flags = ctypes.c_ulong.from_address(id(cls) + _TYPE_FLAGS)
    if cls.__flags__ & _SEQUENCE and sys.implementation.name == "cpython" and flags.value == cls.__flags__:
        flags.value &= ~_SEQUENCE
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(cls))


for _cls in (scalar, record):
    _is_no_sequence(_cls)
set_scalar_types(scalar, record)
elements.set_scalar_type(scalar)
element_arithmetic.set_scalar_type(scalar)

"""`ampi.ndarray`: NumPy's array whose memory carries derivatives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base import checks
from ..base.missing_rules import no_rule
from ..base.structures import like
from ..memory.storages import (
    TrackedArray,
    forget_region,
    is_scalar,
    note_structured,
    plain,
    region_of,
    set_array_type,
    set_region,
    tracked,
    wrapped,
)
from ..tape import current
from ..tape.apart import is_apart, is_tracked
from . import (
    activity,
    byte_views,
    elements,
    extensions,
    fast_calls,
    few_elements,
    few_writes,
    indexing,
    known_classes,
    nested,
    texts,
    ufuncs,
    writing,
)
from .callers import caller_of_numba, is_called_by_ampi, is_called_by_program
from .constants import marked
from .losses import (
    lend,
    lose,
    lose_number,
    lose_unheard,
    warn_filed,
    warn_lost,
    would_be_lost,
)

_transposed = np.ndarray.T.__get__  # type: ignore[attr-defined]


class ndarray(TrackedArray):
    """A `numpy.ndarray` that carries derivatives.

    The functions of `ampi.numpy` return it, and so do `Tape.watch` and every NumPy function that is given one.
    ``ampi.numpy.asarray(a)`` makes one that shares the memory of a plain array.

    Examples
    --------
    >>> x = np.zeros(3)
    >>> type(x) is ampi.ndarray, isinstance(x, numpy.ndarray)
    (True, True)
    """

    __slots__ = ()
    __module__ = "ampi"

    if TYPE_CHECKING:  # inherited from NumPy's array, these would return NumPy's type

        def __getitem__(self, key: Any) -> Any: ...
        def __add__(self, other: Any) -> ndarray: ...
        def __radd__(self, other: Any) -> ndarray: ...
        def __sub__(self, other: Any) -> ndarray: ...
        def __rsub__(self, other: Any) -> ndarray: ...
        def __mul__(self, other: Any) -> ndarray: ...
        def __rmul__(self, other: Any) -> ndarray: ...
        def __truediv__(self, other: Any) -> ndarray: ...
        def __rtruediv__(self, other: Any) -> ndarray: ...
        def __floordiv__(self, other: Any) -> ndarray: ...
        def __rfloordiv__(self, other: Any) -> ndarray: ...
        def __mod__(self, other: Any) -> ndarray: ...
        def __rmod__(self, other: Any) -> ndarray: ...
        def __pow__(self, other: Any) -> ndarray: ...
        def __rpow__(self, other: Any) -> ndarray: ...
        def __matmul__(self, other: Any) -> ndarray: ...
        def __rmatmul__(self, other: Any) -> ndarray: ...
        def __neg__(self) -> ndarray: ...
        def __pos__(self) -> ndarray: ...
        def __abs__(self) -> ndarray: ...

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        if not keywords and method == "__call__":
            tape = current()
            if tape is not None and (found := few_elements.call(tape, ufunc, inputs)) is not None:
                return found
        return ufuncs.apply(ufunc, method, inputs, keywords)

    def __array_function__(self, function: Any, types: Any, arguments: tuple, keywords: dict) -> Any:
        return extensions.call_function(function, arguments, keywords)

    if np.lib.NumpyVersion(np.__version__) < "2.4.0":  # where ** makes a Python float of a 0-d exponent

        def __pow__(self, other: Any, *modulus: Any) -> Any:
            if isinstance(other, ndarray) and other.ndim == 0:
                return np.power(self, other)
            return super().__pow__(other, *modulus)

        def __rpow__(self, other: Any, *modulus: Any) -> Any:
            return np.power(other, self) if self.ndim == 0 else super().__rpow__(other, *modulus)

        def __ipow__(self, other: Any) -> Any:
            if isinstance(other, ndarray) and other.ndim == 0:
                return np.power(self, other, out=(self,))
            return super().__ipow__(other)

    # ------------------------------------------------------------------------------------------ leaving the array

    def __float__(self) -> float:
        texts.lose_float(self)
        return float(_number_of(activity.plain_of(self)))

    def __int__(self) -> int:
        warn_lost("int() of", self)
        return int(_number_of(activity.plain_of(self)))

    def __complex__(self) -> complex:
        lose_number("complex() of", self) if checks.whole else warn_lost("complex() of", self)
        return complex(activity.plain_of(self))

    def item(self, *arguments: Any) -> Any:
        """One element as a Python number, without its derivative (with a warning while a tape records)."""
        if checks.whole and would_be_lost(self):
            return self._element(*arguments)
        warn_lost("item() of", self)
        return plain(self).item(*arguments)

    def tolist(self) -> Any:
        """Nested lists of Python numbers, without derivatives (with a warning while a tape records)."""
        if checks.whole and would_be_lost(self):
            return [x.tolist() for x in self] if self.ndim else self[()]
        warn_lost("tolist() of", self)
        return plain(self).tolist()

    def _element(self, *arguments: Any) -> Any:
        """The element that `item` returns, with its derivative."""
        plain(self).item(*arguments)  # raises NumPy's errors
        index = arguments[0] if len(arguments) == 1 and isinstance(arguments[0], tuple) else arguments
        if len(index) == 1 and self.ndim != 1:
            index = np.unravel_index(index[0], self.shape)
        return self[tuple(index) or (0,) * self.ndim]

    def __round__(self, ndigits: int | None = None) -> Any:
        """`round` of a 0-d array, as of NumPy's scalars; it has derivative zero."""
        if self.ndim:
            raise TypeError("only 0-d arrays can be rounded; use ampi.numpy.round")
        return round(plain(self).item()) if ndigits is None else np.round(self, ndigits)

    @property
    def __numba_array_subtype_dispatch__(self) -> Any:
        # Numba reads this attribute of subclasses of NumPy's array; without it, it treats them as NumPy's.
        if not caller_of_numba(2).startswith("numba.typed."):  # which keeps the array
            lose_unheard("a function of numba.njit given", self, "make it an ampi.kernel")
        lend(self)
        raise AttributeError

    def __repr__(self) -> str:
        return texts.of_active(self, repr(plain(self)[()] if is_scalar(self) else plain(self)))

    def __str__(self) -> str:
        return texts.of_active(self, str(plain(self)))

    def __format__(self, spec: str) -> str:
        return texts.of_active(self, format(plain(self)[()] if self.ndim == 0 else plain(self), spec))

    def __reduce__(self) -> Any:
        return wrapped, (np.array(plain(self))[()] if is_scalar(self) else plain(self),)

    def tobytes(self, order: Any = "C") -> bytes:
        """`numpy.ndarray.tobytes`, without derivatives (with a warning while a tape records)."""
        warn_lost("tobytes() of", self)
        return plain(self).tobytes(order)

    def tofile(self, *arguments: Any, **keywords: Any) -> None:
        """`numpy.ndarray.tofile`, without derivatives (with a warning while a tape records)."""
        warn_filed("tofile() of", self)
        plain(self).tofile(*arguments, **keywords)

    @property
    def ctypes(self) -> Any:
        """`numpy.ndarray.ctypes`; what C code does with the address is not recorded (with a warning)."""
        self._hand_out("the address of")
        return plain(self).ctypes

    @property
    def data(self) -> memoryview:
        """`numpy.ndarray.data`; what is done with it is not recorded (with a warning)."""
        self._hand_out("the memory of")
        return plain(self).data

    @property
    def __array_interface__(self) -> dict:
        self._hand_out("the address of")
        return plain(self).__array_interface__

    @property
    def __array_struct__(self) -> Any:
        self._hand_out("the address of")
        return plain(self).__array_struct__

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        if is_called_by_program(2):  # where this class replaces NumPy's
            found = np.ndarray.view(self, ndarray)
            dtype = found.dtype if dtype is None else dtype
            return found if dtype == found.dtype and not activity.copies(copy) else found.astype(dtype)
        self._hand_out("a plain numpy array of")
        return np.array(plain(self), dtype=dtype, copy=copy)

    def __dlpack__(self, **keywords: Any) -> Any:
        self._hand_out("the memory of")
        return plain(self).__dlpack__(**keywords)

    def view(self, *arguments: Any, **keywords: Any) -> Any:
        """`numpy.ndarray.view`; what is done with a plain view is not recorded (with a warning)."""
        result = np.ndarray.view(self, *arguments, **keywords)
        if result.dtype.names:
            note_structured()
        if not isinstance(result, TrackedArray):
            self._hand_out("a plain view of")
        return result

    def _hand_out(self, what: str) -> None:
        """Warn, and prepare for code outside ampi that gets the array's address."""
        lose(what, self, "wrap the call with ampi.custom_vjp")
        lend(self)

    def __copy__(self) -> ndarray:
        return self.copy("K")

    def __deepcopy__(self, memo: dict) -> ndarray:
        return wrapped(copy.deepcopy(plain(self), memo)) if self.dtype.hasobject else self.copy("K")

    @property
    def T(self) -> Any:
        """The transposed array, a view; its region is cached with that of the array."""
        found = _transposed(self)
        region = getattr(self, "_region", None)
        if region is not None:
            made = getattr(region, "transposed", None)
            if made is None:
                made = region.transposed = region_of(found)
            set_region(found, made)
        return found

    # ------------------------------------------------------------------------------------------------- new arrays

    def copy(self, order: Any = "C") -> ndarray:
        """A copy; derivatives pass."""
        if order in ("C", "K") and self.size <= few_writes.MOST and (made := few_elements.copied(self)) is not None:
            return made
        return indexing.copied(self, np.ndarray.copy(self, order))

    def astype(
        self, dtype: Any, order: Any = "K", casting: Any = "unsafe", subok: bool = True, copy: bool = True
    ) -> Any:
        """`numpy.ndarray.astype`; derivatives pass between floating-point and complex dtypes."""
        values = plain(self)
        result = values.astype(dtype, order, casting, subok, copy)
        if result.dtype == object and activity.is_active(current(), self):
            raise no_rule(np.ndarray.astype, " to objects")
        if result.dtype.kind in "SUT":
            warn_lost("astype() to text of", self)
        elif result.dtype.kind in "mM":
            lose("a time (timedelta64) computed from", self, "compute with a number of seconds")
        if result is values or (not activity.copies(copy) and np.may_share_memory(result, values)):
            return self if result.dtype == self.dtype else wrapped(result)
        return indexing.copied(self, result)

    def reshape(self, *shape: Any, **keywords: Any) -> ndarray:
        """`numpy.ndarray.reshape`: a view if possible, otherwise a copy."""
        result = np.ndarray.reshape(self, *shape, **keywords)
        return result if indexing.looks_into(result, self) else self._in_new_order(result, np.reshape, **keywords)

    def ravel(self, order: Any = "C") -> Any:
        """`numpy.ndarray.ravel`: a view if possible, otherwise a copy."""
        result = np.ndarray.ravel(self, order)
        return result if indexing.looks_into(result, self) else self._in_new_order(result, None, order=order)

    def _in_new_order(self, result: ndarray, function: Any, order: Any = "C", **keywords: Any) -> Any:
        moved = byte_views.movable(current(), self)
        if moved is None and not activity.is_active(current(), self):
            return result
        source = self if moved is None else moved
        if order == "C":
            return indexing.copied(source, plain(result))
        return np.ravel(source, order) if function is None else function(source, result.shape, order=order, **keywords)

    def flatten(self, order: Any = "C") -> Any:
        """A 1-d copy."""
        made = self.ravel(order)
        return made.copy() if indexing.looks_into(made, self) else made

    def _by_function(name: str) -> Any:
        function = getattr(np, name)

        def method(self, *arguments: Any, **keywords: Any) -> Any:
            return function(self, *arguments, **keywords)

        method.__name__ = name
        method.__doc__ = f"`numpy.{name}` of this array."
        return method

    # NumPy's own methods of these names read plain numbers, or have no subgradient.
    dot = _by_function("dot")
    put = _by_function("put")
    repeat = _by_function("repeat")
    std = _by_function("std")
    take = _by_function("take")
    del _by_function

    def choose(self, *choices: Any, out: Any = None, mode: Any = "raise") -> Any:
        """`numpy.choose` with this array of indices."""
        return np.choose(self, choices[0] if len(choices) == 1 else choices, out, mode)

    def cumsum(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """`numpy.cumsum` of this array."""
        return self._accumulated(np.add, axis, dtype, out)

    def cumprod(self, axis: Any = None, dtype: Any = None, out: Any = None) -> Any:
        """`numpy.cumprod` of this array."""
        return self._accumulated(np.multiply, axis, dtype, out)

    def _accumulated(self, ufunc: np.ufunc, axis: Any, dtype: Any, out: Any) -> Any:
        # NumPy's methods flatten into memory that is not tracked.
        flat = axis is None or not self.ndim
        return ufunc.accumulate(self.ravel() if flat else self, 0 if axis is None else axis, dtype, out)

    def var(self, axis: Any = None, *arguments: Any, **keywords: Any) -> Any:
        """`numpy.var` of this array."""
        if self.ndim:
            return np.ndarray.var(self, axis, *arguments, **keywords)
        np.ndarray.var(plain(self), axis, *arguments, **keywords)  # raises NumPy's errors
        # NumPy computes in place in what it takes for its own temporary array.
        keywords.pop("keepdims", None)
        return np.ndarray.var(self.reshape(1), None if axis == () else axis, *arguments, **keywords)

    def compress(self, condition: Any, axis: Any = None, out: Any = None) -> ndarray:
        """`numpy.compress` of this array."""
        return np.compress(condition, self, axis, out)

    def round(self, decimals: int = 0, out: Any = None) -> ndarray:
        """`numpy.round` of this array, which has derivative zero."""
        return np.round(self, decimals, out)

    def trace(self, offset: int = 0, axis1: int = 0, axis2: int = 1, dtype: Any = None, out: Any = None) -> ndarray:
        """Sum of a diagonal."""
        return self.diagonal(offset, axis1, axis2).sum(axis=-1, dtype=dtype, out=out)

    # ---------------------------------------------------------------------------------------------------- writing

    def fill(self, value: Any) -> None:
        """Set every element to one value."""
        writing.assign(self, value, "fill", action=lambda: plain(self).fill(writing.plain_of(value)))

    def sort(self, axis: int = -1, kind: Any = None, order: Any = None, **options: Any) -> None:
        """Sort in place."""
        if axis is None:
            raise TypeError("'NoneType' object cannot be interpreted as an integer")
        writing.assign(self, np.sort(self, axis, kind, order, **options))

    def partition(self, kth: Any, axis: int = -1, kind: Any = "introselect", order: Any = None) -> None:
        """Partition in place."""
        if axis is None:
            raise TypeError("'NoneType' object cannot be interpreted as an integer")
        writing.assign(self, np.partition(self, kth, axis, kind, order))

    @property
    def real(self) -> ndarray:
        """The real part, a view."""
        return np.ndarray.real.__get__(self)

    @real.setter
    def real(self, value: Any) -> None:
        self._set_part(np.ndarray.real, value)

    def _set_part(self, part: Any, value: Any) -> None:
        given, value = nested.nested_plain(value), nested.from_nested(value)
        target = part.__get__(self)
        if isinstance(value, np.ndarray) and region_of(target).place == region_of(tracked(value)).place:
            return  # as NumPy does, even if the array is read-only
        action = lambda: part.__set__(plain(self), given)
        writing.assign(target, value, action=action)

    @property
    def imag(self) -> ndarray:
        """The imaginary part, a view (zeros for a real array)."""
        return np.ndarray.imag.__get__(self)

    @imag.setter
    def imag(self, value: Any) -> None:
        if self.dtype.kind != "c":
            raise TypeError("array does not have imaginary part to set")
        self._set_part(np.ndarray.imag, value)

    @property
    def flat(self) -> FlatView:
        """The elements in C order, to read and to write."""
        return FlatView(self)

    @flat.setter
    def flat(self, value: Any) -> None:
        FlatView(self)._set(..., value, lambda constants: setattr(plain(self), "flat", constants))

    def _rearranging(name: str) -> Any:
        method = getattr(np.ndarray, name)

        def guarded(self, *arguments: Any, **keywords: Any) -> Any:
            if activity.is_active(current(), self) or writing.concerns_tapes(self):
                raise no_rule(method, " (it changes memory without the tape's notice)")
            forget_region(self)
            return method(self, *arguments, **keywords)

        guarded.__name__ = name
        guarded.__doc__ = method.__doc__
        return guarded

    byteswap = _rearranging("byteswap")
    resize = _rearranging("resize")
    setfield = _rearranging("setfield")
    del _rearranging


class FlatView:
    """The elements of an array in C order: `numpy.ndarray.flat` with derivatives.

    Attributes
    ----------
    base : ampi.ndarray
    """

    __slots__ = ("_elements", "base")

    def __init__(self, base: ndarray) -> None:
        self.base = base
        self._elements = plain(base).flat  # raises an error for too many axes

    def __len__(self) -> int:
        return self.base.size

    @property
    def index(self) -> int:
        """Index of the iteration's next element."""
        return self._elements.index

    @property
    def coords(self) -> tuple:
        """Multi-index of the iteration's next element."""
        return self._elements.coords

    def __iter__(self) -> FlatView:
        return self

    def __next__(self) -> Any:
        """The next element, with its derivative."""
        place = self._elements.index
        found = next(self._elements)
        if not self.base.ndim or not activity.is_active(current(), self.base):
            return found  # a number, not a 0-d array: descending into `flat` would never end otherwise
        return self[place]

    def _places(self, key: Any) -> Any:
        return np.arange(self.base.size).reshape(self.base.shape).flat[activity.plain_of(key)]

    def __getitem__(self, key: Any) -> Any:
        shape = self.base.shape
        if type(key) is int and len(shape) == 2 and -(size := shape[0] * shape[1]) <= key < size:
            return self.base[divmod(key + size if key < 0 else key, shape[1])]
        base = self.base if self.base.ndim else self.base[None]
        return base[np.unravel_index(self._places(key), base.shape)]

    def __setitem__(self, key: Any, value: Any) -> None:
        shape = self.base.shape
        if type(key) is int and len(shape) == 2 and -(size := shape[0] * shape[1]) <= key < size and not np.ndim(value):
            self.base[divmod(key + size if key < 0 else key, shape[1])] = value
            return
        key = activity.plain_of(key)
        self._set(key, value, lambda constants: plain(self.base).flat.__setitem__(key, constants))

    def _set(self, key: Any, value: Any, action: Callable[[Any], None]) -> None:
        constants, value = nested.nested_plain(value), nested.from_nested(value)
        write = lambda: action(constants)
        if (current() is None and not writing.must_announce(self.base)) or not np.size(value):
            write()
            return
        if not activity.is_active(current(), value):
            writing.write_constants([self.base], write, self._selected(key))
            return
        places = np.asarray(self._places(key))
        if not places.size:
            write()
            return
        written = plain(self.base)
        if isinstance(key, slice) and written.flags.c_contiguous:
            written = written.reshape(-1)[key]
        if places.size > 1 and np.may_share_memory(value, written):
            raise no_rule(np.ndarray.flat, " for values from the same array (NumPy reads what it has just written)")
        # A shorter value is repeated, as NumPy does.
        taken = np.arange(places.size).reshape(places.shape) % value.size
        base = self.base if self.base.ndim else self.base[None]
        indexing.setitem(base, np.unravel_index(places, base.shape), value.reshape(-1)[taken], write)

    def _selected(self, key: Any) -> Any:
        """A mask of the elements, as a key of the array."""
        mask = np.zeros(self.base.shape, bool)
        mask.flat[key] = True
        return (mask,)

    def __delitem__(self, key: Any) -> None:
        raise TypeError("Cannot delete iterator elements")

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        if not is_called_by_ampi(2):
            self.base._hand_out("a plain numpy array of")
        found = self.base.reshape(-1)
        if not plain(self.base).flags.c_contiguous:
            found.flags.writeable = False
        return found if dtype is None or found.dtype == dtype else found.astype(dtype)

    def copy(self) -> ndarray:
        """A 1-d copy."""
        return self.base.flatten()


set_array_type(ndarray)
elements.leave_to_numpy(ndarray)
fast_calls.set_array_type(ndarray)
few_elements.set_array_type(ndarray)


def _number_of(x: Any) -> Any:
    """The number that `float` and `int` convert: a complex one becomes real with NumPy's warning.

    NumPy calls them where an array is assigned to an element, and treats complex ones so.
    """
    is_complex = isinstance(x, np.ndarray) and not x.ndim and x.dtype.kind == "c"
    return x[()] if is_complex else x


def value(x: Any) -> Any:
    """The value of an array or number, without its derivative.

    Parameters
    ----------
    x : array_like, or a (nested) tuple, list or dictionary of them, or an object that holds some
        Objects are those of classes declared by `ampi.rules.define_class`, and SciPy's sparse matrices.

    Returns
    -------
    numpy.ndarray, scalar, or the structure of ``x``
        Plain copies; a 0-d array gives a NumPy scalar.  Of an array on a device, a constant copy there.

    Examples
    --------
    >>> x = np.arange(3.0)
    >>> ampi.value(x * x), type(ampi.value(x)) is numpy.ndarray
    (array([0., 1., 4.]), True)
    """
    if isinstance(x, TrackedArray):
        return marked(np.array(plain(x)))[()]
    if known_classes.is_known(x):
        return known_classes.mapped(lambda a: value(a) if isinstance(a, TrackedArray) else a, x)
    if isinstance(x, (tuple, list, dict)):
        return like(x, [value(item) for item in (x.values() if isinstance(x, dict) else x)])
    return x.passive() if is_apart(x) and is_tracked(x) else x

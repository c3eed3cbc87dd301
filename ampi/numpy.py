"""NumPy's namespace with functions that return `ampi.ndarray`: write ``import ampi.numpy as np``.

All names of NumPy are here. Ufuncs, classes and constants are NumPy's own; functions are NumPy's own with the result as
an `ampi.ndarray`, so that arrays that a program creates (new ones, from files, from numbers) can carry derivatives. The
attribute ``numpy_function`` of such a function is NumPy's.
"""

from __future__ import annotations

import functools
import importlib.machinery
import sys as _sys
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as _np

from .arrays import element_arithmetic as _element_arithmetic
from .arrays import extensions as _extensions
from .arrays import few_elements as _few_elements
from .arrays import ranges as _ranges
from .arrays import scalars as _scalars  # noqa: F401
from .arrays.activity import copies as _copies
from .arrays.activity import is_active as _is_active
from .arrays.activity import plain_of as _plain_of
from .arrays.array import ndarray
from .arrays.nested import from_nested as _from_nested
from .arrays.writing import write_constants as _write_constants
from .base.missing_rules import no_rule as _no_rule
from .base.structures import leaves as _leaves
from .base.structures import mapped as _mapped
from .memory import storages as _memory
from .rules.functions import CONSTANT as _CONSTANT
from .rules.undispatched import PARTLY as _PARTLY
from .rules.undispatched import OfNumbers as _OfNumbers
from .rules.undispatched import RefusingToWrite as _RefusingToWrite
from .rules.undispatched import any_active as _any_active
from .rules.undispatched import checked as _checked
from .rules.undispatched import refusing as _refusing
from .rules.undispatched import require_active as _require_active
from .rules.undispatched import standing_for as _standing_for
from .rules.undispatched import with_lists_joined as _with_lists_joined
from .tape import current as _current

if TYPE_CHECKING:  # what annotations name, and constants; functions are of any type
    from numpy import (  # noqa: I001
        bool_ as bool_,
        complex64 as complex64,
        complex128 as complex128,
        dtype as dtype,
        e as e,
        euler_gamma as euler_gamma,
        float16 as float16,
        float32 as float32,
        float64 as float64,
        floating as floating,
        generic as generic,
        inexact as inexact,
        inf as inf,
        int8 as int8,
        int16 as int16,
        int32 as int32,
        int64 as int64,
        integer as integer,
        intp as intp,
        nan as nan,
        newaxis as newaxis,
        number as number,
        pi as pi,
        ufunc as ufunc,
        uint8 as uint8,
        uint16 as uint16,
        uint32 as uint32,
        uint64 as uint64,
    )

__all__ = list(_np.__all__)


def _ours(function: Callable, formula: Callable | None = None) -> Callable:
    """Wrap a function of NumPy so that it returns an `ampi.ndarray`; a formula, if given, computes the result."""
    run = formula or (function if hasattr(function, "_implementation") else _checked(function))

    @functools.wraps(function)
    def call(*arguments: Any, **keywords: Any) -> Any:
        is_seen = formula is not None or _current() is None  # formulas handle lists themselves
        if not is_seen:
            arguments, keywords = _with_lists_joined(function, arguments, keywords)
        if not is_seen and function in _PARTLY and _any_active(arguments, keywords):
            return _memory.wrapped(_extensions.call_function(function, arguments, keywords))
        result = run(*arguments, **keywords)
        if not is_seen and function not in _CONSTANT and function is not _np.imag:  # of real numbers
            _require_active(function, arguments, keywords, result)
        return result if type(result) is ndarray else _memory.wrapped(result)

    if function in _few_elements.OF_WHOLE:
        call = _of_few_elements(call, _few_elements.OF_WHOLE[function])
    elif function is _np.clip:
        call = _of_numbers(call, _np._core.umath.clip)
    made: Any = call if hasattr(function, "__get__") else staticmethod(call)  # must not become a method in a class
    made.numpy_function = function
    return made


def _of_numbers(call: Callable, ufunc: Any) -> Callable:
    """Wrap a function that is a ufunc for numbers, so that one of tracked numbers is recorded as such."""

    @functools.wraps(call)
    def call_of_numbers(*arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == ufunc.nin and not keywords and _memory.is_scalar(arguments[0]):
            tape = _current()
            if tape is not None and (found := _element_arithmetic.call(tape, ufunc, arguments)) is not None:
                return found
        return call(*arguments, **keywords)

    return call_of_numbers


def _of_few_elements(call: Callable, of_few: Callable) -> Callable:
    """Wrap a reduction, so that one of a few elements is recorded without the way by NumPy."""

    @functools.wraps(call)
    def call_reduction(*arguments: Any, **keywords: Any) -> Any:
        if len(arguments) == 1 and not keywords and (found := of_few(arguments[0])) is not None:
            return found
        return call(*arguments, **keywords)

    return call_reduction


def _wrappable(found: Any) -> bool:
    return callable(found) and not isinstance(found, (type, _np.ufunc, types.ModuleType))


# ------------------------------------------------------------------------------------------- arrays from other things


def _empty(shape: Any, dtype: Any = None, order: Any = "C", *, device: Any = None, like: Any = None) -> ndarray:
    if dtype is None:
        dtype = _np.float64
    elif type(dtype) is _CLASS_OF_DTYPES:
        return _np.empty(shape, dtype, order).view(ndarray)
    if device is not None:
        _np.empty(0, device=device)  # raises an error for all but "cpu"
    made = _np.ndarray.__new__(ndarray, shape, dtype, None, 0, None, order)
    if made.dtype.names:
        _memory.note_structured()
    return made


_CLASS_OF_DTYPES = type(_np.dtypes.StrDType)  # such classes of dtypes have no size


def _full(
    shape: Any, fill_value: Any, dtype: Any = None, order: Any = "C", *, device: Any = None, like: Any = None
) -> ndarray:
    fill_value = _from_nested(fill_value)
    made = _empty(shape, _np.asarray(fill_value).dtype if dtype is None else dtype, order, device=device)
    if isinstance(fill_value, ndarray):
        made[...] = fill_value
    else:
        _np.copyto(_memory.plain(made), fill_value, casting="unsafe")
    return made


def _array(
    object: Any,
    dtype: Any = None,
    *,
    copy: Any = True,
    order: Any = "K",
    subok: bool = False,
    ndmin: int = 0,
    like: Any = None,
    **newer: Any,
) -> Any:
    if type(object) in (list, tuple) and (dtype is None or dtype is float) and not ndmin and order in ("K", "C"):
        tape = _current()
        found = None if tape is None else _few_elements.array_of(tape, object)
        if found is not None:
            return found
    nested = _from_nested(object, dtype=dtype)
    if nested is not object:
        object, dtype, copy = nested, None, None
    if not isinstance(object, ndarray):
        subok = not isinstance(object, _np.ndarray)  # __array__ may return an ampi.ndarray
        made = _np.array(object, dtype=dtype, copy=copy, order=order, ndmin=ndmin, subok=subok, **newer)
        return _memory.tracked(made) if type(made) is _np.ndarray else made
    if newer or (copy in (False, _np._CopyMode.NEVER) and _memory.is_scalar(object)):
        _np.array(_plain_of(object), copy=copy, ndmin=ndmin, **newer)  # raises NumPy's errors
    if _memory.is_scalar(object):
        object, copy = object[...], None  # a 0-d array
    given = _plain_of(object)
    made = _np.array(given, dtype=dtype, copy=copy, order=order)
    if made is given:
        result = object
    elif _np.may_share_memory(made, given):  # an equivalent dtype
        result = object.view(made.dtype)
    elif made.shape == object.shape and not object.dtype.hasobject:
        result = object.astype(made.dtype, order)
    elif _is_active(_current(), object):
        raise _no_rule(_np.array, f" with the dtype {dtype}")
    else:
        result = _memory.wrapped(made)
    return result.reshape((1,) * (ndmin - result.ndim) + result.shape) if result.ndim < ndmin else result


def _asarray(
    a: Any, dtype: Any = None, order: Any = None, *, device: Any = None, copy: Any = None, like: Any = None
) -> Any:
    if isinstance(a, ndarray) and dtype is None and order is None and not _copies(copy) and not _memory.is_scalar(a):
        return a if type(a) is ndarray else a.view(ndarray)
    if device is not None:
        _np.empty(0, device=device)  # raises an error for all but "cpu"
    return _array(a, dtype, copy=copy, order="K" if order is None else order)


def _asanyarray(a: Any, *arguments: Any, **keywords: Any) -> Any:
    if isinstance(a, _np.ndarray) and not isinstance(a, ndarray) and type(a) is not _np.ndarray:
        return _np.asanyarray(a, *arguments, **keywords)
    return _asarray(a, *arguments, **keywords)


def _contiguous(order: str) -> Callable:
    return lambda a, dtype=None, *, like=None: _array(a, dtype, copy=None, order=order, ndmin=1)


def _like(function: Callable) -> Callable:
    def create(prototype: Any, *arguments: Any, subok: bool = True, **keywords: Any) -> Any:
        return _memory.wrapped(function(_plain_of(prototype), *arguments, **keywords))

    return create


arange = _ours(_np.arange, _ranges.arange)
array = _ours(_np.array, _array)
asanyarray = _ours(_np.asanyarray, _asanyarray)
asarray = _ours(_np.asarray, _asarray)
ascontiguousarray = _ours(_np.ascontiguousarray, _contiguous("C"))
asfortranarray = _ours(_np.asfortranarray, _contiguous("F"))
copy = _ours(_np.copy, lambda a, order="K", subok=False: _array(a, order=order))
empty = _ours(_np.empty, _empty)
empty_like = _ours(_np.empty_like, _like(_np.empty_like))
full = _ours(_np.full, _full)
ones_like = _ours(_np.ones_like, _like(_np.ones_like))
zeros_like = _ours(_np.zeros_like, _like(_np.zeros_like))


class vectorize(_np.vectorize):
    __doc__ = _np.vectorize.__doc__

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Call the function for each element; derivatives pass where it takes and returns numbers by position."""
        if not _any_active(arguments, keywords):
            plain = [_plain_of(x) for x in arguments]
            return _memory.wrapped(super().__call__(*plain, **{name: _plain_of(x) for name, x in keywords.items()}))
        if keywords or self.signature is not None or self.excluded:
            raise _no_rule(_np.vectorize, " with a signature, excluded or keyword arguments")
        arguments = tuple(map(_from_nested, arguments))
        # NumPy calls the function in memory order, and results have that order.
        objects = [_np.asanyarray(_plain_of(x), dtype=object) for x in arguments]  # which may have another memory order
        layout = _np.nditer([*objects, None], ("refs_ok", "zerosize_ok")).operands[-1].strides
        order = sorted(range(len(layout)), key=lambda k: -layout[k])
        wide = [_np.transpose(x, order) for x in _np.broadcast_arrays(*arguments)]
        shape, back = wide[0].shape, [order.index(k) for k in range(len(order))]
        results = [self.pyfunc(*[_memory.tracked(x)[k] for x in wide]) for k in _np.ndindex(shape)]
        if isinstance(results[0], tuple):
            return tuple(_array(list(part)).reshape(shape).transpose(back) for part in zip(*results))
        return _array(results).reshape(shape).transpose(back)


# Classes of NumPy that read the plain numbers of an array.
matrix = _standing_for(_np.matrix)
poly1d = _standing_for(_np.poly1d)
recarray = _standing_for(_np.recarray)
nested_iters = _refusing(_np.nested_iters)


class finfo(metaclass=_OfNumbers):
    __doc__ = _np.finfo.__doc__
    origin = _np.finfo
    __class_getitem__: Any = classmethod(types.GenericAlias)


class nditer(metaclass=_RefusingToWrite):
    __doc__ = _np.nditer.__doc__
    origin = _np.nditer


class ndenumerate:
    __doc__ = _np.ndenumerate.__doc__

    def __init__(self, arr: Any) -> None:
        self._array = _asarray(arr)
        self._indices = iter(_np.ndindex(self._array.shape))

    def __iter__(self) -> ndenumerate:
        return self

    def __next__(self) -> tuple[tuple[int, ...], Any]:
        """The next index and the element there, with its derivative."""
        index = next(self._indices)
        return index, self._array[index]


class broadcast:
    __doc__ = _np.broadcast.__doc__

    def __init__(self, *arrays: Any) -> None:
        parts = [x for one in arrays for x in (one._arrays if isinstance(one, broadcast) else [one])]
        self._arrays: list[Any] = [_asarray(x) for x in parts]
        self._origin = _np.broadcast(*[_plain_of(x) for x in self._arrays])
        self._wide: Any = None
        self.index = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._origin, name)

    @property
    def iters(self) -> tuple:
        """The elements of each array, without broadcasting."""
        return tuple(x.flat for x in self._arrays)

    def reset(self, /) -> None:
        """Start again."""
        self.index = 0

    def __iter__(self) -> broadcast:
        return self

    def __next__(self) -> tuple:
        """The next elements, with their derivatives."""
        if self.index >= self._origin.size:
            raise StopIteration
        if self._wide is None:
            self._wide = _np.broadcast_arrays(*self._arrays)
        place = _np.unravel_index(self.index, self._origin.shape)
        self.index += 1
        return tuple(x[place] for x in self._wide)


class _Getter:
    """`numpy.r_`, `numpy.c_`, `numpy.mgrid` or `numpy.ogrid`, used with brackets."""

    def __init__(self, origin: Any) -> None:
        self._origin = origin

    def __getitem__(self, key: Any) -> Any:
        if _ranges.is_active_key(key):
            if self._origin in (_np.mgrid, _np.ogrid):
                return _ranges.grid(self._origin, key)
            items = key if isinstance(key, tuple) else (key,)
            key = tuple([_ranges.of_slice(item) if isinstance(item, slice) else item for item in items])
        if _current() is None or not isinstance(key, tuple):
            return _memory.wrapped(self._origin[key])
        # NumPy would convert dtypes as plain arrays.
        items = [_from_nested(item) for item in key]
        if not [item for item in items if isinstance(item, ndarray)]:  # `any` may be NumPy's here
            return _memory.wrapped(self._origin[key])
        dtype = self._origin[tuple([_plain_of(item) for item in items])].dtype
        items = [item.astype(dtype, copy=False) if isinstance(item, ndarray) else item for item in items]
        return _memory.wrapped(self._origin[tuple(items)])

    def __getattr__(self, name: str) -> Any:
        return getattr(self._origin, name)


r_, c_, mgrid, ogrid = _Getter(_np.r_), _Getter(_np.c_), _Getter(_np.mgrid), _Getter(_np.ogrid)


# ---------------------------------------------------------------------------------------------------- sub-namespaces


class _Submodule(types.ModuleType):
    """A namespace below `ampi.numpy` whose functions return `ampi.ndarray`s."""

    def __init__(
        self,
        name: str,
        origin: types.ModuleType,
        wrap: Callable = _ours,
        wrap_class: Callable = lambda found: found,
        **own: Any,
    ) -> None:
        super().__init__(f"ampi.numpy.{name}", origin.__doc__)
        self.__dict__.update(own)
        self.__path__: list[str] = []  # `_Below` finds its submodules
        self._wrap = wrap
        self._wrap_class = wrap_class
        self._name = name
        self.stands_for = origin
        if hasattr(origin, "__all__"):
            self.__all__ = list(origin.__all__)
        _sys.modules[self.__name__] = self

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.stands_for, name)
        if isinstance(found, types.ModuleType):
            if not found.__name__.startswith(_np.__name__):
                return found
            found = _Submodule(f"{self._name}.{name}", found, self._wrap, self._wrap_class)
        elif isinstance(found, type):
            found = self._wrap_class(found)
        elif _wrappable(found):
            found = self._wrap(found)
        setattr(self, name, found)
        return found

    def __dir__(self) -> list[str]:
        return dir(self.stands_for)


class _Below:
    """Importer of ``ampi.numpy.fft`` and the other submodules, which are attributes of `ampi.numpy`.

    Python would otherwise load NumPy's files a second time, extension modules included.
    """

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """A spec for a name that is a module below `numpy`."""
        if not name.startswith(f"{__name__}."):
            return None
        try:
            importlib.import_module(_np.__name__ + name[len(__name__) :])
        except ModuleNotFoundError:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: Any) -> None:
        """Use Python's default module, which `exec_module` replaces."""

    def exec_module(self, module: types.ModuleType) -> None:
        """Replace the new, empty module by the attribute of that name."""
        name = module.__name__
        found: Any = _sys.modules[__name__]
        for part in name[len(__name__) + 1 :].split("."):
            found = getattr(found, part)
        _sys.modules[name] = found


__path__: list[str] = []
stands_for = _np
"""The module of NumPy that this namespace stands for."""
_sys.meta_path.insert(0, _Below())


def _shuffling(function: Callable) -> Callable:
    """Wrap a function that permutes its argument in place and does not dispatch."""

    @functools.wraps(function)
    def shuffle(*arguments: Any, **keywords: Any) -> None:
        target = next((x for x in arguments if isinstance(x, _np.ndarray)), keywords.get("x"))
        if not isinstance(target, ndarray):
            function(*arguments, **keywords)
            return
        if _is_active(_current(), target):
            raise _no_rule(function, "; index with a permutation instead,")
        arguments = tuple(_plain_of(x) for x in arguments)
        keywords = {name: _plain_of(x) for name, x in keywords.items()}
        _write_constants([target], lambda: function(*arguments, **keywords))

    return shuffle


def _sampling(function: Callable) -> Callable:
    """Wrap a function that draws random numbers: its compiled code reads plain numbers."""

    @functools.wraps(function)
    def draw(*arguments: Any, **keywords: Any) -> Any:
        tape = _current()
        for x in _leaves((arguments, keywords)):
            if _is_active(tape, x):
                raise _no_rule(function, "; draw standard numbers or indices and compute with them,")
        out = keywords.get("out")
        if not isinstance(out, ndarray):
            return function(*arguments, **keywords)
        plain, named = _mapped(_plain_of, arguments), _mapped(_plain_of, keywords)
        _write_constants([out], lambda: function(*plain, **named))
        return out

    return _ours(draw)


class Generator(_np.random.Generator):
    __doc__ = _np.random.Generator.__doc__

    def __reduce__(self) -> Any:
        return type(self), (self.bit_generator,), None


class RandomState(_np.random.RandomState):
    __doc__ = _np.random.RandomState.__doc__

    def __reduce__(self) -> Any:
        _, arguments, state = super().__reduce__()
        return type(self), arguments, state


class _Shared(RandomState):
    """The generator behind the functions of `numpy.random`, available as ``np.random.mtrand._rand``."""

    def __reduce__(self) -> Any:
        _, arguments, state = _np.random.mtrand._rand.__reduce__()
        return RandomState, arguments, state


def _of_ours(name: str, found: Any) -> Any:
    """Wrap a method that draws so that it returns an `ampi.ndarray`."""
    if name in ("get_state", "seed", "set_state", "spawn"):
        return found
    return _shuffling(found) if name == "shuffle" else _sampling(found)


for _class in (Generator, RandomState):
    for _name, _method in vars(_class.__base__).items():
        if not _name.startswith("_") and callable(_method):
            setattr(_class, _name, _of_ours(_name, _method))
            if _class is RandomState:
                setattr(_Shared, _name, staticmethod(_of_ours(_name, getattr(_np.random.mtrand._rand, _name))))
_OF_RANDOM = {_np.random.Generator: Generator, _np.random.RandomState: RandomState}


def _default_rng(seed: Any = None) -> Generator:
    return seed if isinstance(seed, Generator) else Generator(_np.random.default_rng(seed).bit_generator)


def _with_our_numpy(function: Callable) -> Callable:
    """A copy of a function of NumPy's Python source whose `np` is `ampi.numpy`."""
    if not isinstance(function, types.FunctionType):
        return function
    names = {**function.__globals__, "np": _sys.modules[__name__]}
    made = types.FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)
    made.__kwdefaults__ = function.__kwdefaults__
    return _checked(made)


linalg = _Submodule("linalg", _np.linalg)
fft = _Submodule("fft", _np.fft)
lib = _Submodule("lib", _np.lib)
ma = _Submodule("ma", _np.ma, _ours, _standing_for)
polynomial = _Submodule(
    "polynomial", _np.polynomial, lambda function: _ours(function, _with_our_numpy(function)), _standing_for
)
rec = _Submodule("rec", _np.rec, _ours, _standing_for)
random = _Submodule(
    "random",
    _np.random,
    lambda found: _of_ours(found.__name__, found),
    lambda found: _OF_RANDOM.get(found, found),
    Generator=Generator,
    RandomState=RandomState,
    default_rng=functools.wraps(_np.random.default_rng)(_default_rng),
)
random.mtrand._rand = _Shared()


_OWN = {"__cached__", "__file__", "__loader__", "__package__", "__path__", "__spec__", "__warningregistry__"}
"""Attributes that each module has for itself: NumPy's would be wrong."""


def __getattr__(name: str) -> Any:
    if name in _OWN:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(_np, name)
    if not name.startswith("_") and _wrappable(found):
        found = globals()[name] = _ours(found)
    return found


def __dir__() -> list[str]:
    return sorted({*dir(_np), *(name for name in globals() if not name.startswith("_"))})

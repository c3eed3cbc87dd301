"""Hooks for calls of NumPy's C code, and of methods of other packages, that read or write arrays.

`interception` redirects the calls while a tape records.  A write that ends with the call is recorded as one of
constants (`numpy.random.Generator`, h5py); code that may keep the array's address is lent the array
(`arrays.losses.lend`).
"""

from __future__ import annotations

import contextlib
import operator
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from .. import numpy as ours
from ..arrays import indexing, nested, writing
from ..arrays.activity import copies
from ..arrays.array import ndarray
from ..arrays.callers import is_called_by_ampi, is_called_by_numpy, is_called_by_program
from ..arrays.losses import (
    lend,
    lose,
    lose_unheard,
    warn_lost,
    would_be_lost,
)
from ..base import arrivals, checks
from ..base.missing_rules import no_rule
from ..base.structures import leaves
from ..errors import ActivityError
from ..interception import entry_points, redirection
from ..interception.entry_points import object_at
from ..interception.hooks import replace_method
from ..interception.redirection import arguments_at
from ..interception.trampolines import NOTHING, Hook, Place
from ..memory.storages import TrackedArray, carries_derivatives, plain, storage_of, tracked
from ..tape import Tape, at_opening, current
from . import conversions, numba_containers

_IN = "make that array with ampi.numpy"
_AS = "use ampi.numpy"


def _first_active(x: Any) -> Any:
    """Return the first active array in an operand, or None."""
    if current() is None:
        return None
    return next((leaf for leaf in leaves(x) if isinstance(leaf, ndarray) and would_be_lost(leaf)), None)


# --------------------------------------------------------------------------------------------------------------- hooks


def _store(target: int, key: int, value: int) -> Any:
    """``target[key] = value`` where the value is tracked, or the target is a plain view of tracked memory."""
    array, item, given = object_at(target), object_at(key), object_at(value)
    return None if current() is None or is_called_by_ampi(2) else _assign(array, item, given)


def _assign(array: Any, item: Any, given: Any) -> Any:
    if isinstance(array, ndarray) or (type(array) is np.ndarray and storage_of(array) is not None):
        indexing.setitem(array, item, given)  # type: ignore[arg-type]
        return True
    active = _first_active(given)
    if active is not None and _is_lost(array, item):
        lose(f"assignment into a plain numpy array of shape {np.shape(array)} of", active, _IN)
    return None


def _is_lost(target: Any, key: Any) -> bool:
    dtype = getattr(target, "dtype", None) or target.base.dtype
    if not dtype.hasobject:
        return carries_derivatives(dtype)
    keys = key if type(key) is tuple else (key,)
    return not (len(keys) == np.ndim(target) and all(isinstance(k, (int, np.integer)) for k in keys))


def _set(name: str) -> Hook:
    def hook(target: int, value: int, _: int) -> Any:
        array, given = object_at(target), object_at(value)
        if current() is None or is_called_by_ampi(2):
            return None
        return _assign(getattr(array, name), ..., given)

    return hook


def _convert(name: str, signature: str) -> Hook:
    """Hook of ``numpy.asarray(x)`` and similar functions."""

    def hook(_: int, items: int, n: int = 0, names: int = 0) -> Any:
        if current() is None or (is_called_by_ampi(2) and not (name == "asanyarray" and is_called_by_numpy(2))):
            return None
        arguments, keywords = arguments_at(signature, items, n, names)
        x = arguments[0] if arguments else next(iter(keywords.values()))
        if name == "asanyarray" or keywords.get("subok"):
            keywords.pop("subok", None)
            return getattr(ours, name)(*arguments, **keywords)
        active = _first_active(x)
        if active is not None and not _keeps_arrays(x, arguments, keywords):
            lose(f"numpy.{name}() of", active, _AS)
        if isinstance(x, ndarray) and (name != "array" or not copies(keywords.get("copy", True))):
            lend(x)
        return None

    return hook


def _keeps_arrays(x: Any, arguments: tuple, keywords: dict) -> bool:
    """Return whether a conversion drops no derivatives: its dtype carries none, or the arrays stay objects."""
    dtype = keywords.get("dtype", arguments[1] if len(arguments) > 1 else None)
    if dtype is None:
        return False
    dtype = np.dtype(dtype)
    if dtype.hasobject:
        return isinstance(x, (tuple, list)) and len({np.shape(leaf) for leaf in x}) > 1
    return not carries_derivatives(dtype)


def _method(name: str, signature: str) -> Hook:
    """Hook of a method of plain arrays with tracked arguments, which calls the function of the same name."""
    function = getattr(np, name)

    def hook(target: int, items: int, n: int = 0, names: int = 0) -> Any:
        array = object_at(target)
        if isinstance(array, ndarray) or current() is None or is_called_by_ampi(2):
            return None
        arguments, keywords = arguments_at(signature, items, n, names)
        if not any(isinstance(x, ndarray) for x in leaves((arguments, keywords))):
            return None
        array = _as_numpys(array)
        if name == "compress":
            condition, *others = arguments
            found = function(condition, array, *others, **keywords)
        else:
            found = function(array, *arguments, **keywords)
        return NOTHING if found is None else found

    return hook


_METHODS = ("choose", "compress", "dot", "put", "take")


def _fill(signature: str) -> Hook:
    """Hook of ``plain.fill(x)``."""

    def hook(target: int, items: int, n: int = 0, names: int = 0) -> Any:
        if current() is None or is_called_by_ampi(2):
            return None
        arguments, keywords = arguments_at(signature, items, n, names)
        done = _assign(object_at(target), ..., [*arguments, *keywords.values()][0])
        return None if done is None else NOTHING

    return hook


def _function(name: str, signature: str) -> Hook:
    """Hook of a C function with lists of tracked arrays, which calls the function of `ampi.numpy`."""

    def hook(_: int, items: int, n: int = 0, names: int = 0) -> Any:
        if current() is None or is_called_by_ampi(2):
            return None
        arguments, keywords = arguments_at(signature, items, n, names)
        if _first_active((arguments, keywords)) is None:
            return None
        arguments, keywords = _as_numpys((arguments, keywords))
        found = getattr(ours, name)(*arguments, **keywords)
        return NOTHING if found is None else found

    return hook


def _as_numpys(x: Any) -> Any:
    """Convert arrays of other subclasses to NumPy's, which would otherwise dispatch to these subclasses."""
    if isinstance(x, np.ndarray):
        return x if type(x) is np.ndarray or isinstance(x, ndarray) else x.view(np.ndarray)
    if type(x) in (tuple, list):
        return type(x)([_as_numpys(item) for item in x])
    return {key: _as_numpys(item) for key, item in x.items()} if type(x) is dict else x


_FUNCTIONS = {
    "arange": "arange",
    "bincount": "bincount",
    "c_einsum": "einsum",
    "concatenate": "concatenate",
    "copyto": "copyto",
    "correlate2": "correlate",
    "dot": "dot",
    "inner": "inner",
    "interp": "interp",
    "putmask": "putmask",
    "vdot": "vdot",
    "where": "where",
}
"""Functions in NumPy's C code that compute, and the public functions that call them."""


def _export(array: int, _: int, __: int) -> Any:
    """Hook of the buffer protocol: memoryview, readinto, frombuffer, Cython's views, mpi4py without ampi."""
    x = object_at(array)
    if current() is None or is_called_by_ampi(2):
        return None
    lose = warn_lost if is_called_by_program(2) else lose_unheard  # the program may write it to a file
    with contextlib.suppress(ActivityError):  # the caller would replace it by its own error; it is raised again later
        lose("reading from a buffer of", x, "send the array itself by a communicator of ampi")
    lend(x)
    return None


def _compute(function: Callable[[Any], Callable]) -> Hook:
    """Hook of a ufunc with lists of tracked arrays, which NumPy would convert to plain numbers."""

    def hook(ufunc: int, items: int, n: int, names: int = 0) -> Any:
        if current() is None or is_called_by_ampi(2):
            return None
        arguments, keywords = arguments_at("fast", items, n & sys.maxsize, names)
        arguments = tuple([nested.from_nested(x) for x in arguments])
        if function is _REDUCE and _first_active((arguments[1:], keywords)) is not None:
            arguments = (tracked(arguments[0]), *arguments[1:])  # NumPy does not dispatch on an initial value's class
        if not any(isinstance(x, ndarray) for x in arguments):
            return None
        found = function(object_at(ufunc))(*arguments, **keywords)
        return NOTHING if found is None else found

    return hook


_REDUCE = operator.attrgetter("reduce")


def _operate(name: str) -> Hook:
    """Hook of an operator of a NumPy number and a list of tracked arrays, which would become a plain array."""
    compute = divmod if name == "divmod" else getattr(operator, name)

    def hook(a: int, b: int, _: int = 0) -> Any:
        if current() is None or is_called_by_ampi(2):
            return None
        x, y = object_at(a), object_at(b)
        if name == "mul" and (isinstance(x, np.integer) or isinstance(y, np.integer)):
            return None  # repeats the list
        x, y = nested.from_nested(x), nested.from_nested(y)
        return compute(x, y) if isinstance(x, ndarray) or isinstance(y, ndarray) else None

    return hook


def _ufuncs(*modules: Any) -> list[np.ufunc]:
    found = {id(x): x for module in modules for x in vars(module).values()}
    return [x for x in found.values() if type(x) is np.ufunc]


def _call(ufunc: np.ufunc) -> np.ufunc:
    return ufunc


_CALL = _compute(_call)


def _redirect_special() -> None:
    """Redirect SciPy's special functions, which are ufuncs."""
    found = _ufuncs(sys.modules["scipy.special"])
    with contextlib.suppress(entry_points.Unknown):
        redirected.extend("lists", _CALL, *entry_points.calls_of(np.ufunc, found))


def _iterate(_: int, items: int, named: int) -> Any:
    """Hook of ``numpy.nditer``."""
    if current() is None or is_called_by_ampi(2):
        return None
    arguments, keywords = arguments_at("tuple", items, named)
    arrays = [x for x in leaves((arguments[:1], keywords.get("op"))) if isinstance(x, ndarray)]
    for x in arrays:
        lose("numpy.nditer of", x, "write it with functions of ampi.numpy")
        lend(x)
    return None


def _convert_several(kind: int, items: int, named: int) -> Any:
    """Hook of the class by which NumPy's Python code converts operands that are not arrays."""
    if current() is None or is_called_by_ampi(2):
        return None
    arguments, keywords = arguments_at("tuple", items, named)
    found = tuple([nested.from_nested(x) for x in arguments])
    return None if all(a is b for a, b in zip(found, arguments)) else object_at(kind)(*found, **keywords)


def _as_arrays(converter: int, items: int, n: int, names: int) -> Any:
    """Hook of that class's method for the converted arrays, from which NumPy may ask for plain ones."""
    if current() is None or is_called_by_ampi(2):
        return None
    arguments, keywords = arguments_at("fast", items, n, names)
    if arguments or keywords.get("subok", True):
        return None
    keywords.pop("subok")
    found = object_at(converter).as_arrays(**keywords)
    return None if _first_active(found) is None else found


def _places() -> list[Place]:
    """All places that are redirected while a tape records."""
    places = []
    addresses, _stored[0] = entry_points.mapping_slot(np.ndarray, np.ndarray)
    places.append(Place((*addresses, *_slots_of_derived_classes()), _stored[0], "store", _store))
    places.append(Place(*entry_points.mapping_slot(np.flatiter, np.flatiter), "store flat", _store))
    for name in ("real", "imag", "flat"):
        places.append(Place(*entry_points.setter(np.ndarray, name), "set", _set(name)))
    for name in ("array", "asarray", "asanyarray", "ascontiguousarray", "asfortranarray", "frombuffer"):
        address, original, signature = entry_points.entry_of_function(getattr(np, name))
        places.append(Place(address, original, signature, _convert(name, signature)))
    for name in _METHODS:
        address, original, signature = entry_points.entry_of_method(np.ndarray, name)
        places.append(Place(address, original, signature, _method(name, signature)))
    places.append(Place(*(found := entry_points.entry_of_method(np.ndarray, "fill")), _fill(found[-1])))
    for name, public in _FUNCTIONS.items():
        function = getattr(np._core.multiarray, name, None)
        if function is not None:
            found = entry_points.entry_of_function(getattr(function, "_implementation", function))
            places.append(Place(*found, _function(public, found[-1])))
    for name in ("accumulate", "outer", "reduce", "reduceat"):
        address, original, signature = entry_points.entry_of_method(np.ufunc, name)
        if signature != "fast":
            raise entry_points.Unknown(name)
        if name == "reduce":
            places.append(Place(address, original, "reduce", _compute(_REDUCE), permanent=True))
        else:
            places.append(Place(address, original, "lists", _compute(operator.attrgetter(name)), permanent=True))
    found = _ufuncs(np, np._core.umath, np.linalg._umath_linalg)
    places.append(Place(*entry_points.calls_of(np.ufunc, found), "lists", _CALL, permanent=True))
    for cls in conversions.NUMBERS:
        for name, (address, original) in entry_points.operator_slots(cls).items():
            signature = "power" if name == "pow" else "binary"
            places.append(Place(address, original, signature, _operate(name), permanent=True))
    places += [*conversions.places(), *_random_places()]
    several = np._core._multiarray_umath._array_converter
    places.append(Place(*entry_points.other_slot(several, "new"), "tuple", _convert_several))
    address, original, _ = entry_points.entry_of_method(several, "as_arrays")
    places.append(Place(address, original, "any fast", _as_arrays))
    places.append(Place(*entry_points.buffer_slot(ndarray), "buffer", _export))
    places.append(Place(*entry_points.init_slot(np.nditer), "init", _iterate))
    return places


_derived: set[type] = {np.ndarray}
"""Classes of arrays whose slots are redirected; kept alive, since the pointers are in them."""


_stored = [0]
"""Address of the C function for item assignment of NumPy's array."""


def _slots_of_derived_classes() -> tuple[int, ...]:
    """Addresses of the slots for item assignment in new subclasses of NumPy's array."""
    found = []
    pending = [np.ndarray]
    while pending:
        for cls in type.__subclasses__(pending.pop()):
            if not issubclass(cls, TrackedArray):
                pending.append(cls)
                if cls not in _derived and not any("__setitem__" in vars(base) for base in _classes_before_numpys(cls)):
                    _derived.add(cls)
                    with contextlib.suppress(
                        entry_points.Unknown
                    ):  # made while a tape records: it inherited the trampoline
                        found.append(entry_points.setitem_slot(cls, _stored[0]))
    return tuple(found)


def _classes_before_numpys(cls: type) -> tuple[type, ...]:
    return cls.__mro__[: cls.__mro__.index(np.ndarray)]


redirected = redirection.start(_places, ndarray)
"""The redirected functions; ``redirected.problem`` is the reason if there are none."""


def _redirect_new_classes(tape: Tape) -> None:
    """Redirect classes that were derived since the last tape."""
    if _stored[0] and not redirected.is_held and (slots := _slots_of_derived_classes()):
        redirected.extend("store", _store, slots, _stored[0])


at_opening.append(_redirect_new_classes)


def _writing(find: Callable[[tuple, dict], Any]) -> Callable[[Callable], Callable]:
    """Wrap a method that writes to one of its arguments, which ``find`` returns, and reads the others."""

    def replace(method: Callable) -> Callable:
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            out = find(arguments, keywords)
            if isinstance(out, np.ndarray) and (isinstance(out, ndarray) or writing.must_announce(out)):
                return _write_through(method, self, arguments, keywords, out)
            if isinstance(out, list):  # its items are moved unmodified
                return method(self, *arguments, **keywords)
            if current() is not None and any(_first_active(x) is not None for x in (*arguments, *keywords.values())):
                raise no_rule(method, "; draw standard numbers or indices and compute with them,")
            return method(self, *arguments, **keywords)

        return call

    return replace


def _write_through(method: Callable, self: Any, arguments: tuple, keywords: dict, out: np.ndarray) -> Any:
    others = [x for x in (*arguments, *keywords.values()) if x is not out]
    if any(_first_active(x) is not None for x in others) or (_first_active(out) is not None and _reads(method)):
        raise no_rule(method, "; index with a permutation instead,")
    target = plain(out)
    arguments = tuple(target if x is out else x for x in arguments)
    keywords = {name: target if x is out else x for name, x in keywords.items()}
    result = writing.write_constants([out], lambda: method(self, *arguments, **keywords))
    return out if result is target else result


def _reads(method: Callable) -> bool:
    return method.__name__ in ("shuffle", "permuted")


def _argument(name: str, position: int) -> Callable[[tuple, dict], Any]:
    """A function that returns an argument of a call, by name or position."""
    return lambda arguments, keywords: keywords.get(name, arguments[position] if len(arguments) > position else None)


_NEVER = sys.maxsize
_GENERATOR = {
    "random": _argument("out", 2),
    "standard_normal": _argument("out", 2),
    "standard_exponential": _argument("out", 3),
    "standard_gamma": _argument("out", 3),
    "permuted": _argument("out", _NEVER),
    "shuffle": _argument("x", 0),
}


def _random_methods(cls: type) -> dict[str, Any]:
    """The methods of a class that draws random numbers, by name."""
    return {name: found for name, found in vars(cls).items() if not name.startswith("_") and callable(found)}


def _wrap_random(name: str) -> Callable[[Callable], Callable]:
    return _writing(_GENERATOR.get(name, _argument("out", _NEVER)))


def _replace_random() -> None:
    for cls in (np.random.Generator, np.random.RandomState):
        for name in _random_methods(cls):
            replace_method(cls, name, _wrap_random(name))


def _random_places() -> list[Place]:
    """Places of the same methods, for those bound to an object before the first tape, as in `numpy.random`."""
    originals: dict[int, Any] = {}
    for cls in (np.random.Generator, np.random.RandomState):
        for name, found in _random_methods(cls).items():
            original = getattr(found, "__wrapped__", found)
            originals[id(original)] = original, _wrap_random(name)(original)

    def hook(method: int, items: int, n: int, names: int) -> Any:
        if current() is None or is_called_by_ampi(2):
            return None
        arguments, keywords = arguments_at("fast", items, n & sys.maxsize, names)
        found = originals[method][1](*arguments, **keywords)
        return NOTHING if found is None else found

    with contextlib.suppress(entry_points.Unknown):
        entries = entry_points.calls_by_entry([method for method, _ in originals.values()])
        return [Place(addresses, entry, "call", hook, permanent=True) for addresses, entry in entries]
    return []  # the methods of the classes are still replaced


def _replace_h5py_datasets() -> None:
    replace_method(sys.modules["h5py.h5d"].DatasetID, "read", _reading_parts)


def _reading_parts(method: Callable) -> Callable:
    """Wrap h5py's method that reads into an array, or into a part that a dataspace selects."""
    read = _writing(_argument("arr_obj", 2))(method)

    def call(self: Any, mspace: Any, fspace: Any, arr_obj: Any, *others: Any, **keywords: Any) -> Any:
        count = getattr(mspace, "get_select_npoints", None)
        partly = isinstance(arr_obj, np.ndarray) and count is not None and 0 < count() < arr_obj.size
        if not partly or _first_active(arr_obj) is None:
            return read(self, mspace, fspace, arr_obj, *others, **keywords)
        # Elements that are equal in both afterwards have been read.
        found = [np.full((*arr_obj.shape, arr_obj.itemsize), byte, np.uint8) for byte in (0, 255)]
        for target in found:
            method(self, mspace, fspace, target.view(arr_obj.dtype)[..., 0], *others, **keywords)
        where = (found[0] == found[1]).all(axis=-1)
        indexing.setitem(arr_obj, where, found[0].view(arr_obj.dtype)[..., 0][where])
        return None

    return call


def _replace_h5py_attributes() -> None:
    replace_method(sys.modules["h5py.h5a"].AttrID, "read", _writing(_argument("arr", 0)))


def _replace_stencils() -> None:
    replace_method(sys.modules["numba.stencils.stencil"].StencilFunc, "__call__", _by_a_kernel("call_stencil"))


def _replace_generalized_ufuncs() -> None:
    replace_method(sys.modules["numba.np.ufunc.gufunc"].GUFunc, "__call__", _by_a_kernel("call_generalized"))


def _by_a_kernel(name: str) -> Callable[[Callable], Callable]:
    """Wrap the call of a function that Numba compiled: it is differentiated if an array is active."""

    def replace(method: Callable) -> Callable:
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if current() is not None and any(_first_active(x) is not None for x in (*arguments, *keywords.values())):
                from . import numba_calls  # which makes kernels

                return getattr(numba_calls, name)(self, method, arguments, keywords)
            return method(self, *arguments, **keywords)

        return call

    return replace


_LATER: dict[str, Callable[[], None]] = {
    "h5py.h5a": _replace_h5py_attributes,
    "h5py.h5d": _replace_h5py_datasets,
    "numba.core.dispatcher": lambda: numba_containers.guard_functions(redirected),
    "numba.np.ufunc.gufunc": _replace_generalized_ufuncs,
    "numba.stencils.stencil": _replace_stencils,
    "numba.typed.typeddict": numba_containers.guard_dictionaries,
    "numba.typed.typedlist": numba_containers.guard_lists,
    "numpy.random": _replace_random,
    "scipy.special": _redirect_special,
}
"""Actions to run when a module is imported."""

_registering = threading.Lock()


def _register_imports(tape: Tape) -> None:
    """When the first tape begins to record, register the actions for later imports."""
    with _registering:
        if _LATER and checks.level != checks.OFF:
            for name in list(_LATER):
                arrivals.when_imported(name, _LATER.pop(name))
    arrivals.settle()


at_opening.append(_register_imports)

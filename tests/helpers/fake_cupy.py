"""A GPU and CuPy that need none: arrays in guarded memory, with CuPy's names, parameters and refusals.

NumPy computes the values.  As in CuPy, an array is never converted to one of NumPy by itself, arrays of both are not
mixed, and functions have CuPy's parameters only (``data/cupy_names.json``).  Memory that anything else touches ends the
process (`guarded_device`).
"""

import contextlib
import json
import pathlib

import numpy as np
from guarded_device import Guarded
from numpy.lib.mixins import NDArrayOperatorsMixin

from ampi.memory.extents import address_of, array_at

KNOWN = json.loads((pathlib.Path(__file__).parents[1] / "data" / "cupy_names.json").read_text())
UFUNCS = set(KNOWN["ufuncs"].split())
METHODS = (
    "all any argmax argmin argsort astype clip conj conjugate copy cumprod cumsum diagonal dot max mean min nonzero "
    "prod ptp ravel repeat reshape round squeeze std sum swapaxes take trace transpose var"
).split()
_device = []


class ndarray(NDArrayOperatorsMixin):
    """An array in the memory of the fake device."""

    def __init__(self, address, owner, shape, strides, dtype):
        self.address, self.owner = address, owner
        self.shape, self.strides, self.dtype = tuple(shape), tuple(strides), np.dtype(dtype)

    ndim = property(lambda self: len(self.shape))
    size = property(lambda self: int(np.prod(self.shape)))
    T = property(lambda self: run(np.transpose, self))
    real = property(lambda self: run(lambda a: a.real, self))
    imag = property(lambda self: run(lambda a: a.imag, self))
    data = property(lambda self: self)
    ptr = property(lambda self: self.address)

    @property
    def __cuda_array_interface__(self):
        return {
            "shape": self.shape,
            "strides": self.strides,
            "typestr": self.dtype.str,
            "descr": self.dtype.descr,
            "data": (self.address, False),
            "version": 3,
        }

    def __array__(self, *args, **kwargs):
        raise TypeError("Implicit conversion to a NumPy array is not allowed. Please use `.get()`")

    def get(self):
        with _device[0].reach():
            return np.array(plain(self))

    def item(self):
        return self.get().item()

    def __len__(self):
        return self.shape[0]

    def __bool__(self):
        return bool(self.get())

    def __float__(self):
        return float(self.get())

    def __int__(self):
        return int(self.get())

    def __getitem__(self, key):
        return run(lambda a, key: a[key], self, key)

    def __setitem__(self, key, value):
        run(np.ndarray.__setitem__, self, key, value)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **keywords):
        name = ufunc.__name__
        assert len(out) <= 1 and name in UFUNCS | {"clip"}, name
        if method in ("reduce", "accumulate") and name not in ("add", "multiply"):
            raise NotImplementedError(f"`cupy_{name}.{method}` is not supported yet")
        if method == "at":
            if inputs[0].dtype.kind == "c":
                raise TypeError("cupy.add.at only supports int32, int64, float16, float32, float64, uint32, uint64")
            return run(ufunc.at, *inputs)
        found = run(getattr(ufunc, method), *inputs, **keywords)
        if not out:
            return found
        if not np.can_cast(found.dtype, out[0].dtype, keywords.get("casting", "same_kind")):
            raise TypeError(f"output (typecode {found.dtype.char!r}) could not be coerced")
        out[0][...] = found
        return out[0]

    def __array_function__(self, function, types, args, kwargs):
        name = f"{function.__module__}.{function.__name__}"
        if name not in KNOWN["functions"] or not all(issubclass(t, (ndarray, np.ndarray)) for t in types):
            return NotImplemented
        known = KNOWN["functions"][name].split()
        assert any(n.startswith("*") for n in known) or len(args) <= len(known), name
        assert known[-1].startswith("**") or set(kwargs) <= set(known) or known == ["*"], (name, kwargs)
        return run(function, *args, **kwargs)


def _method(name):
    return lambda self, *args, **kwargs: run(getattr(np.ndarray, name), self, *args, **kwargs)


for _name in METHODS:
    setattr(ndarray, _name, _method(_name))


def plain(x):
    """The NumPy array over an array's memory."""
    return array_at(x.address, x.shape, x.strides, x.dtype)


def _mapped(function, x):
    if isinstance(x, (tuple, list)):
        return type(x)([_mapped(function, item) for item in x])
    if isinstance(x, dict):
        return {name: _mapped(function, item) for name, item in x.items()}
    if isinstance(x, slice):
        return slice(*[_mapped(function, item) for item in (x.start, x.stop, x.step)])
    return function(x)


def _given(x):
    if isinstance(x, ndarray):
        return plain(x)
    if isinstance(x, np.ndarray):
        raise TypeError(f"Unsupported type {type(x)}")
    if hasattr(x, "__cuda_array_interface__"):
        i = x.__cuda_array_interface__
        strides = i["strides"] or np.empty(i["shape"], i["typestr"]).strides
        return array_at(i["data"][0], i["shape"], strides, np.dtype(i["typestr"]))
    return x


def run(function, *args, **kwargs):
    """Compute on the device."""
    with _device[0].reach(), np.errstate(all="ignore"):
        return _mapped(_found, function(*_mapped(_given, args), **_mapped(_given, kwargs)))


def _found(x):
    if not isinstance(x, (np.ndarray, np.generic)):
        return x
    x = np.asarray(x)
    address = address_of(x)
    for block in list(_device[0].blocks):
        if x.size and block.address <= address < block.address + block.size:
            return ndarray(address, block, x.shape, x.strides, x.dtype)
    made = np.empty_like(x, order="K")
    address, owner = _device[0].empty(made.nbytes)
    result = ndarray(address, owner, made.shape, made.strides, made.dtype)
    plain(result)[...] = x
    return result


class Cupy:
    """The module."""

    ndarray = ndarray

    def __getattr__(self, name):
        if name in ("arange", "zeros", "ones", "empty", "asarray"):
            return lambda *args, **kwargs: run(getattr(np, name), *args, **kwargs)
        raise AttributeError(name)


class FakeGpu(Guarded):
    """The processor as a device whose arrays only the fake CuPy computes with."""

    library = Cupy()

    def __init__(self):
        super().__init__()
        _device[:] = [self]

    def computing(self):
        return contextlib.nullcontext()

    def array(self, memory):
        return ndarray(memory.address, memory.owner, memory.shape, memory.strides, memory.dtype)

    def adopted(self, array):
        return array.address, array.owner

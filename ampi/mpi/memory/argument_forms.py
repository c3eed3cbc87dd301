"""Forms of a message argument that mpi4py accepts: memory, counts, displacements and datatype."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

from .datatypes import datatype_named, typemap_of
from .typemaps import Typemap


def _is_memory(spec: Any) -> bool:
    if isinstance(spec, (list, tuple)):
        return False
    if hasattr(spec, "__dlpack__") or hasattr(spec, "__cuda_array_interface__"):
        return True
    try:
        memoryview(spec)
    except TypeError:
        return False
    return True


def _is_datatype(item: Any) -> bool:
    return isinstance(item, (MPI.Datatype, Typemap, str))


def is_bottom(memory: Any) -> bool:
    """True if displacements are addresses (``MPI.BOTTOM``)."""
    return memory is None or isinstance(memory, MPI.BottomType)


def is_nothing(count: Any, displ: Any, datatype: Any) -> bool:
    """True if a message consists of no items of the null datatype."""
    return count == 0 and not displ and isinstance(datatype, MPI.Datatype) and datatype == MPI.DATATYPE_NULL


def _form(spec: Any, pairs: type | tuple[type, ...]) -> tuple[Any, Any, Any, Any]:
    """Return memory, counts, displacements and datatype of a message.

    ``pairs`` are the types that a pair ``(counts, displs)`` may have.
    """
    if not isinstance(spec, (list, tuple)):
        if not _is_memory(spec):
            raise TypeError("message: expecting buffer or list/tuple")
        return spec, None, None, None
    if not 2 <= len(spec) <= 4:
        raise ValueError("message: expecting 2 to 4 items")
    memory, counts, *rest = spec
    displs = datatype = None
    if len(spec) == 4:
        return memory, counts, *rest
    if len(spec) == 3:
        (datatype,) = rest
    elif _is_datatype(counts):
        counts, datatype = None, counts
    if isinstance(counts, pairs):
        counts, displs = counts
    return memory, counts, displs, datatype


def simple_form(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Return memory, count, displacement and datatype of a message with one count."""
    return _form(spec, (list, tuple))


def vector_form(spec: Any) -> tuple[Any, Any, Any, Any]:
    """Return memory, counts, displacements and datatype of a message with one count per rank."""
    return _form(spec, tuple)  # mpi4py: a list has one count per rank


def per_rank(values: Any, blocks: int, spread: Callable[[int], list[int]]) -> list[int]:
    """Return one integer for each rank; ``spread`` makes them from a single one."""
    try:
        return spread(operator.index(values))
    except TypeError:
        pass
    values = [operator.index(value) for value in values]
    if len(values) != blocks:
        raise ValueError(f"expecting {blocks} items, got {len(values)}")
    return values


def as_array(memory: Any) -> np.ndarray:
    """Return a NumPy array on any memory that mpi4py accepts, without a copy.

    Memory that only supports DLPack or the CUDA array interface is never tracked: an array of bytes is enough.
    """
    if isinstance(memory, np.ndarray):
        array = memory
    else:
        try:
            array = np.asarray(memoryview(memory))
        except TypeError:
            array = np.asarray(memoryview(MPI.memory(memory)))
    if not array.flags.forc:
        raise BufferError("message: ndarray is not contiguous")
    return array


def typemap_for(datatype: Any, dtype: np.dtype | None = None) -> Typemap:
    """Return the typemap of a datatype argument; without one, of elements of an array's dtype."""
    if isinstance(datatype, Typemap):
        return datatype
    if datatype is None:
        datatype = datatype_named(dtype.char)  # type: ignore[union-attr]
    elif isinstance(datatype, str):
        datatype = datatype_named(datatype)
    if datatype == MPI.DATATYPE_NULL:
        raise ValueError("message: datatype is null")
    return typemap_of(datatype)


def is_in_place(spec: Any) -> bool:
    """True if a send buffer argument stands for ``MPI.IN_PLACE`` (mpi4py takes None for it as well)."""
    return spec is None or spec is MPI.IN_PLACE


def with_typemaps(spec: Any) -> Any:
    """Replace the datatypes of a message argument by typemaps: a program may free them before it starts the request."""
    return _with_datatypes(spec, _typemap)


def duplicated(spec: Any) -> tuple[Any, list[MPI.Datatype]]:
    """Replace the datatypes of a message argument by duplicates, which are returned too, to be freed later."""
    made: list[MPI.Datatype] = []

    def duplicate(datatype: MPI.Datatype) -> MPI.Datatype:
        made.append(datatype.Dup())
        return made[-1]

    return _with_datatypes(spec, duplicate), made


def _with_datatypes(spec: Any, change: Callable[[MPI.Datatype], Any]) -> Any:
    if type(spec) in (list, tuple):
        return type(spec)(_with_datatypes(item, change) for item in spec)
    if isinstance(spec, MPI.Datatype) and spec != MPI.DATATYPE_NULL and not spec.is_predefined:
        return change(spec)
    return spec


def _typemap(datatype: MPI.Datatype) -> Any:
    try:
        return typemap_of(datatype)
    except NotImplementedError:  # raised again when the request starts while a tape records
        return datatype

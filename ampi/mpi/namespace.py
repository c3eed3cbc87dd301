"""The module `ampi.MPI`, mpi4py.MPI's namespace with ampi's classes and constants; names rebound in mpi4py.MPI."""

from __future__ import annotations

import contextlib
import copyreg
import functools
import inspect
import sys
import types
from collections.abc import Iterator
from typing import Any

from mpi4py import MPI as mpi

from ..base.pools import has_servers
from ..memory.storages import TrackedArray
from ..tape.recording import current
from . import comm as _comm
from . import pkl5
from .base.handles import predefined
from .base.rules import TABLE, Treatment
from .files import File
from .messages.point_to_point import Message
from .messages.requests import Prequest, Request
from .operations import Op
from .packing import Datatype
from .windows.windows import Win

BASE: dict[str, Any] = dict(vars(mpi))
"""mpi4py.MPI's namespace as mpi4py made it."""

_COMMUNICATORS = ("Comm", "Intracomm", "Topocomm", "Cartcomm", "Graphcomm", "Distgraphcomm", "Intercomm")
_OTHERS = {cls.__name__: cls for cls in (Request, Prequest, Message, Win, File, Datatype, Op)}
_CONSTANTS = {**predefined(BASE, BASE["Datatype"], Datatype), **predefined(BASE, BASE["Op"], Op)}


def _constant(name: str) -> Any:
    """Our object for a communicator that exists from the start; collective over it.

    mpi4py's own, without derivatives, if MPI is not in use, or if other ranks do not run the program.
    """
    base = BASE[name]
    if not mpi.Is_initialized() or mpi.Is_finalized() or (name == "COMM_WORLD" and has_servers()):
        return base
    return _comm.make_constant(name, base)


COMM_WORLD = _constant("COMM_WORLD")
COMM_SELF = _constant("COMM_SELF")


def _get_address(location: Any) -> int:
    """Get the address of a location in memory."""
    if current() is not None and isinstance(location, TrackedArray):
        from ..arrays.losses import lend  # which no program needs that has no tape

        lend(location)  # nothing is read here, but other code can write there now
    return BASE["Get_address"](location)


def _make() -> types.ModuleType:
    module = types.ModuleType("ampi.MPI", "mpi4py.MPI with ampi's communicators, requests and messages.")
    module.__dict__.update({name: value for name, value in BASE.items() if not name.startswith("__")})
    for name in _COMMUNICATORS:
        setattr(module, name, getattr(_comm, name))
    module.__dict__.update(_OTHERS)
    module.__dict__.update(_CONSTANTS)
    module.Get_address = functools.wraps(BASE["Get_address"])(_get_address)  # type: ignore[attr-defined]
    documented: set[type] = set()
    for name in (*_COMMUNICATORS, *_OTHERS):
        getattr(module, name).__module__ = "ampi.MPI"  # where pickle finds the constants
        _document(getattr(module, name), documented)
    module.COMM_WORLD = COMM_WORLD  # type: ignore[attr-defined]
    module.COMM_SELF = COMM_SELF  # type: ignore[attr-defined]
    sys.modules["ampi.MPI"] = module
    # Where pickle finds mpi4py's own constants when those of mpi4py.MPI are rebound.
    original = sys.modules["ampi.mpi.original"] = types.ModuleType("ampi.mpi.original", "mpi4py.MPI as it was.")
    original.__dict__.update({name: value for name, value in BASE.items() if not name.startswith("__")})
    return module


def _document(cls: type, documented: set[type]) -> None:
    """Give methods mpi4py's docstrings, which start with the signature; the class's stands without indentation."""
    cls.__doc__ = inspect.cleandoc(cls.__doc__ or "")
    base = cls._base  # type: ignore[attr-defined]
    for part in cls.__mro__[: cls.__mro__.index(base)]:
        if part in documented:
            continue
        documented.add(part)
        for name, member in vars(part).items():
            function = getattr(member, "__func__", member)
            if isinstance(function, types.FunctionType) and name in vars(base):
                function.__doc__ = (getattr(base, name).__doc__ or "") + _treatment(base, name)


_TREATMENTS = {
    Treatment.DIFFERENTIATED: "Differentiated while a tape records. Its adjoint, in the sweep of all ranks concerned",
    Treatment.PASSES: "Passes through: it moves nothing that could carry a derivative",
    Treatment.ERROR: "Has no derivative rule: an error if a buffer carries derivatives, mpi4py's own otherwise",
}


def _treatment(base: type, name: str) -> str:
    """A paragraph from the table of operations; none for a method that is not in it."""
    operation = next((TABLE[key] for cls in base.__mro__ if (key := f"{cls.__name__}.{name}") in TABLE), None)
    if operation is None:
        return ""
    text = _TREATMENTS[operation.treatment] + (f": {operation.adjoint}" if operation.adjoint else "")
    return f"\n\n{_filled(text)}."


@functools.cache
def _filled(text: str, width: int = 87) -> str:
    """A text in lines; `textwrap` takes a quarter of the time of ``import ampi`` for this."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) < width:
            lines[-1] += f" {word}" if lines[-1] else word
        else:
            lines.append(word)
    return "\n".join(lines)


MPI = _make()
pkl5.install(sys.modules["ampi.mpi.original"])


def rebind_classes() -> None:
    """Let programs that write ``MPI.Request.Waitall(requests)`` against mpi4py's module reach our classes.

    Predefined datatypes and operations have methods that move data, so they are ours as well. ``isinstance`` takes
    objects of mpi4py's classes for instances of ours, and they are pickled as before.
    """
    for name in (*_COMMUNICATORS, *_OTHERS, *_CONSTANTS):
        setattr(mpi, name, getattr(MPI, name))
    mpi.Get_address = MPI.Get_address
    for name in (*_COMMUNICATORS, *_OTHERS):
        copyreg.pickle(BASE[name], _reduce_base)
    names = {id(value): name for name, value in reversed(BASE.items())}
    for codes in (mpi._typedict, mpi._typedict_c, mpi._typedict_f):
        for code, datatype in codes.items():
            codes[code] = _CONSTANTS.get(names.get(id(datatype), ""), datatype)


def _reduce_base(instance: Any) -> Any:
    """Pickle an object of mpi4py's own class while the name of its class is rebound."""
    reduced = instance.__reduce__()
    if isinstance(reduced, str) or reduced[1][:1] != (type(instance),):
        return reduced
    return _rebuild_base, (type(instance).__name__, *reduced[1][1:])


def _rebuild_base(name: str, *arguments: Any) -> Any:
    cls = BASE[name]
    return cls.__new__(cls, *arguments)


def install() -> None:
    """Replace mpi4py's communicators and classes by ampi's, for unmodified programs."""
    rebind_classes()
    for name in ("COMM_WORLD", "COMM_SELF"):
        setattr(mpi, name, getattr(MPI, name))


@contextlib.contextmanager
def installed() -> Iterator[None]:
    """Replace them while a block runs."""
    before = {name: getattr(mpi, name) for name in ("COMM_WORLD", "COMM_SELF")}
    install()
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(mpi, name, value)

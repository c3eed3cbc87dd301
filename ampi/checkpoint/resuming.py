"""States and adjoints of a time loop in a folder, and resuming from there."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import os
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ..base.program_lines import LIBRARIES
from ..errors import TapeError
from ..memory.storages import Region, Storage, memory_at
from ..mpi.files import positions, positions_as_data, restore_positions
from ..tape import Sweep
from .encoding import Decoder, Encoder, Outside, objects_of, region_again
from .folder import FINAL, FORWARD, REVERSE, Folder
from .generators import generators_as_data, restore_generators
from .reproduction import held_again
from .states import write

if TYPE_CHECKING:
    from .replay import Loop
    from .reproduction import Held

__all__ = ["FINAL", "FORWARD", "REVERSE", "Disk", "OnDisk"]


class Disk:
    """The folder of a time loop.

    Attributes
    ----------
    folder : Folder
    first : list
        The objects in the initial state of the loop.
    sweeps : int
        Number of sweeps so far: results of the first one are stored.
    resumable : bool
        True if another process may resume: then states remain until the adjoint of an earlier one is stored.
    """

    resumable = True

    def __init__(self, folder: Folder, loop: Loop, owners: dict[Storage, np.ndarray], state: Any) -> None:
        self.folder = folder
        self.first = objects_of(state)
        self.outside = Outside(owners, self.first, loop.active)
        self.sweeps = 0
        self._loop = loop
        self._seed = ""

    def open(self, step: Any, resume: bool, **about: Any) -> None:
        """Open the folder (`Folder.open`); ``about`` distinguishes this run from others."""
        self.folder.open(
            {
                "ampi": sys.modules[__package__.partition(".")[0]].__version__,
                "ampi's code": _code_of_ampi(),
                "program": os.path.basename(sys.argv[0]) if sys.argv else "",
                "step": getattr(step, "__qualname__", type(step).__qualname__),
                "its code": _digest(*(repr(encoded).encode() for encoded in codes_of(step))),
                **numbers_of(step),
                "number of ranks": self.folder.comm.size,
                **about,
                "what the loop begins with": self._beginning(),
            },
            resume,
        )

    def _beginning(self) -> str:
        encoder = Encoder(self.outside, self.first)
        encoded = [repr(encoder.encode(self.first[0]) if self.first else ())]
        blocks = [memory_at(s.address, s.nbytes) for s in self.outside.named]
        return _digest(
            *(t.encode() for t in encoded), *(a.tobytes() for a in encoder.arrays), *(b.data for b in blocks)
        )

    # -------------------------------------------------------------------------------------------------------- states

    def save_state(self, name: str, state: Any) -> None:
        """Store a state, and other memory that the steps have written."""
        encoder = Encoder(self.outside, self.first)
        data = encoder.encode(state)
        written = [(self.outside.encoded(view), encoder.add(view)) for view in self._loop.written]
        outcomes = {n: entries for n, entries in self._loop.outcomes.items() if entries}
        encoded = data, written, positions_as_data(positions()), outcomes, generators_as_data()
        self.folder.save(name, encoded, encoder.arrays)

    def load_state(self, name: str) -> tuple[Any, list[tuple[np.ndarray, np.ndarray]]]:
        """Return the state, with file pointers restored, and views of other memory with their values.

        The memory itself is not changed.
        """
        (data, written, files, outcomes, generators), arrays = self.folder.loaded(name)
        restore_positions(files)
        restore_generators(generators)
        self._loop.outcomes = {**outcomes, **self._loop.outcomes}  # from another process, and from this one
        pairs = [(self.outside.view(encoded), arrays[number]) for encoded, number in written]
        return Decoder(self.outside, self.first, arrays).decode(data), pairs

    def resume_state(self, name: str) -> tuple[Any, list[np.ndarray]]:
        """Return, in another process, the state with restored memory, and views of the memory that was written."""
        state, written = self.load_state(name)
        for view, values in written:
            write(view, values)
        return state, [view for view, _ in written]

    # ------------------------------------------------------------------------------------------------------ adjoints

    def begin_sweep(self, sweep: Sweep, final: dict[tuple, Region]) -> None:
        """Note that the sweep reaches the loop."""
        self.sweeps += 1
        parts: list[Any] = []
        for path, region in final.items():
            parts += repr(path).encode(), np.array(sweep.shadow(region)).tobytes() if sweep.has_shadow(region) else b""
        self._seed = _digest(*parts)

    def save_adjoint(self, n: int, sweep: Sweep, later: dict[tuple, Region], start: Held | None) -> None:
        """Store the adjoint of the state before step n, and remove later states.

        The adjoint of everything that the loop uses is stored as well, and so are the contents with which step n began.
        """
        if self.sweeps > 1:
            return
        storages = [s for s in self.outside.names if s in self._loop.active or s in self._loop.written.storages]
        storages += [s for s in {r.storage: None for r in later.values()} if s not in storages]
        arrays: list[np.ndarray] = []
        encoded = []
        for storage in storages:
            has = sweep.has_block(storage)
            encoded.append((self.outside.names.get(storage), storage.nbytes, len(arrays) if has else None))
            if has:
                arrays.append(sweep.block(storage))
        places = {
            path: (storages.index(r.storage), (r.offset, r.shape, r.strides, r.dtype)) for path, r in later.items()
        }
        removed = [f"state-{m}" for m in self.folder.states(1 << 62) if m >= n]
        known = [path.stem for path in self.folder.path.glob("adjoint-*.h5") if path.stem != f"adjoint-{n}"]
        held = None if start is None else start.__getstate__()
        self.folder.agree(f"adjoint-{n}", (self._seed, encoded, places, held), arrays, removes=[*removed, *known])

    def load_adjoint(self, n: int, sweep: Sweep) -> tuple[dict[tuple, Region], Held | None]:
        """Put adjoints into a sweep; return the regions of the state's, and the contents with which step n began."""
        (seed, encoded, places, held), arrays = self.folder.loaded(f"adjoint-{n}")
        if seed != self._seed:
            raise TapeError(
                f"{self._loop.where}: ampi.timeloop: {self.folder.path} has the sweep of another seed, or of another "
                "program after the loop; remove it, or name another folder"
            )
        storages = []
        for name, nbytes, k in encoded:
            storage = Storage(0, nbytes) if name is None else self.outside.storage(name)
            if k is None:
                sweep.forget(storage)
            else:
                sweep.adopt(storage, arrays[k].copy())
            storages.append(storage)
        later = {path: region_again(storages[k], place) for path, (k, place) in places.items()}
        return later, None if held is None else held_again(held)


class OnDisk:
    """A state in the folder, from the beginning of a step."""

    nbytes = counted = 0

    def __init__(self, disk: Disk, n: int) -> None:
        self.disk = disk
        self.n = n

    def remove(self) -> None:
        """Release the state: it is no longer needed."""
        if not self.disk.resumable:
            self.disk.folder.remove(f"state-{self.n}")

    def restore(self, loop: Loop) -> Any:
        """Return the state, with memory restored."""
        state, written = self.disk.load_state(f"state-{self.n}")
        if loop.first_values is not None:
            loop.first_values.put_back()
        for view, values in written:
            write(view, values)
        return state


_NUMBERS = bool, int, float, complex, str, np.generic


def functions_of(step: Any) -> list[Any]:
    """Return the program's functions that a step consists of: itself, and those that it uses by name, recursively."""
    found: dict[int, Any] = {}

    def visit(x: Any) -> None:
        for name in ("func", "__func__", "py_func", "__wrapped__"):  # partial objects, methods, kernels
            x = getattr(x, name, x)
        if not isinstance(x, FunctionType):
            call = getattr(type(x), "__call__", None)  # noqa: B004
            if not isinstance(call, FunctionType):
                return
            x = call
        if id(x) in found or str(x.__globals__.get("__name__", "")).partition(".")[0] in LIBRARIES:
            return
        found[id(x)] = x
        for value in _named_in(x).values():
            visit(value)

    visit(step)
    return list(found.values())


def _named_in(function: FunctionType) -> dict[str, Any]:
    """Return objects that a function may use by name: variables of its module and of enclosing functions, defaults."""
    names = [name for code in _codes(function.__code__) for name in code.co_names]
    found = {name: function.__globals__[name] for name in names if name in function.__globals__}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        with contextlib.suppress(ValueError):  # empty
            found[name] = cell.cell_contents
    for owner in [*filter(_is_module_of_program, found.values())]:
        found.update((f"{owner.__name__}.{name}", vars(owner)[name]) for name in names if name in vars(owner))
    defaults = function.__defaults__ or ()
    count = function.__code__.co_argcount
    found.update(zip(function.__code__.co_varnames[count - len(defaults) : count], defaults))
    return {**found, **(function.__kwdefaults__ or {})}


def _is_module_of_program(x: Any) -> bool:
    if not isinstance(x, ModuleType):
        return False
    package = x.__name__.partition(".")[0]
    return package not in LIBRARIES and package not in sys.stdlib_module_names


def _codes(code: CodeType) -> list[CodeType]:
    """Iterate over a code object and those of functions inside it."""
    return [code, *(c for const in code.co_consts if isinstance(const, CodeType) for c in _codes(const))]


def codes_of(step: Any) -> list[tuple]:
    """Return instructions, names and constants of a step, without its file and lines."""
    return [
        (code.co_code, code.co_names, [_in_order(c) for c in code.co_consts if not isinstance(c, CodeType)])
        for function in functions_of(step)
        for code in _codes(function.__code__)
    ]


def _in_order(const: Any) -> Any:
    return sorted(map(repr, const)) if isinstance(const, frozenset) else const


def numbers_of(step: Any) -> dict[str, str]:
    """Return numbers and text that a step's functions use by name."""
    found = {}
    for function in functions_of(step):
        for name, value in _named_in(function).items():
            if issubclass(type(value), _NUMBERS):
                found[f"{name} in {function.__qualname__}"] = repr(value)
    owner, method = getattr(step, "__self__", None), getattr(step, "__func__", None)
    if isinstance(method, FunctionType):
        names = {name for code in _codes(method.__code__) for name in code.co_names}
        for name, value in getattr(owner, "__dict__", {}).items():
            if name in names and issubclass(type(value), _NUMBERS):
                found[f"{name} of the {type(owner).__name__} of {method.__qualname__}"] = repr(value)
    return found


@functools.cache
def _code_of_ampi() -> str:
    """Return a fingerprint of this installation of ampi, beyond its version."""
    top = Path(__file__).parents[1]
    parts = [(str(path.relative_to(top)).encode(), path.read_bytes()) for path in sorted(top.rglob("*.py"))]
    return _digest(*itertools.chain.from_iterable(parts))


def _digest(*parts: Any) -> str:
    found = hashlib.blake2b(digest_size=12)
    for part in parts:
        found.update(part)
    return found.hexdigest()

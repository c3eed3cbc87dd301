"""Launches of CUDA kernels with arrays on a device, and their records.

The sources of the kernel, of its adjoint and of its tangent (``kernel/cuda/emission``) are generated at the first
launch with arguments of these types; the names that they import are those of the device (`backends`).
"""

from __future__ import annotations

import cmath
import itertools
import linecache
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..base.program_lines import warning_level, where_called
from ..errors import ActivityError, ActivityWarning, KernelError
from ..kernel import arguments
from ..kernel.cuda import launch as launching
from ..kernel.cuda.emission import HEADER, Emitted, emitted
from ..kernel.gpu import blocks_of
from ..memory.regions import Region
from ..memory.storages import TrackedArray, carries_derivatives, region_of
from ..tape import BaseAdjoint, lanes_of, recording
from ..tape.recording import passive
from .arrays import DeviceArray, foreign, region
from .backends import device
from .memory import DeviceRegion, Memory, append, is_active, need, overwrite


@dataclass
class Program:
    """A generated source that was loaded for a device."""

    emitted: Emitted
    call: Callable[..., Any]
    device: Any


_numbers = itertools.count()
_programs: dict[Any, Program] = {}


def program(launch: Any, args: tuple[Any, ...], mode: str, active: frozenset[str] | None = None) -> Program:
    """Return the program of a kernel, of its adjoint or of its tangent, for arguments of these types."""
    kinds = tuple(map(_kind, args))
    key = launch.kernel, launch.geometry, launch.shared, kinds, mode, active, device()
    found = _programs.get(key)
    if found is None:
        found = _programs[key] = _load(emitted(launch, tuple(map(_like, args)), mode, active))
    return found


def _kind(value: Any) -> Any:
    if isinstance(value, Memory):
        return value.dtype, value.ndim, _order(value)
    return launching.kind(value)


def _order(array: Memory) -> str:
    flags = array.sketch().flags
    return "C" if flags.c_contiguous else "F" if flags.f_contiguous else "A"


def _like(value: Any) -> Any:
    """Return an array on the host with the type of an array on a device; numbers are returned unchanged."""
    if not isinstance(value, Memory):
        return arguments.plain(value)
    order = _order(value)
    if order == "A":
        return np.empty((2,) * value.ndim + (2,), value.dtype)[..., 0]
    return np.empty((2,) * value.ndim, value.dtype, order=order)


def _load(made: Emitted) -> Program:
    one = device()
    header = HEADER.strip().splitlines()[-1]
    text = made.text.replace(header, "")
    name = f"<{made.launch} {next(_numbers)}>"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    space: dict[str, Any] = {
        "__name__": __name__,
        "cmath": cmath,
        "math": math,
        "np": np,
        "blocks_of": blocks_of,
        **one.names,
    }
    exec(compile(text, name, "exec"), space)
    return Program(made, space[made.launch], one)


# ------------------------------------------------------------------------------------------------------ arguments


def _checked(launch: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments, arrays of other packages as `Memory`; raise an error for one that kernels do not accept."""
    kernel = launch.kernel
    found = []
    for name, value in zip(kernel._signature.parameters, args):
        where = f"{where_called()}: {kernel.__name__}(): argument '{name}' is"
        if isinstance(value, np.ndarray) and not arguments.is_scalar(value):
            raise KernelError(
                f"{where} a NumPy array, but another argument is on a device\n  copy it there: "
                f"{name} = ampi.cuda.to_device({name})"
            )
        launching.require_argument(where.removesuffix(" is"), name, value)
        if launching.is_on_device(value) and not isinstance(value, DeviceArray):
            try:
                value = foreign(value)
            except KernelError as problem:
                raise KernelError(f"{where} {problem}") from None
        elif isinstance(value, DeviceArray) and value.device is not device():
            raise KernelError(f"{where} on {value.device!r}, but kernels are launched on {device()!r}\n  copy it there")
        found.append(value)
    return tuple(found)


def leaves_of(args: tuple[Any, ...]) -> list[Any]:
    """Return the arrays and numbers among the arguments; a structured array gives an array for each field."""
    return list(_leaves(args))


def _leaves(args: Any) -> Iterator[Any]:
    for value in args:
        if isinstance(value, Memory) and value.dtype.names is not None:
            sketch = value.sketch()
            for name in value.dtype.names:
                if value.dtype[name].names is not None or value.dtype[name].base.kind in "biufc":
                    yield from _leaves((value.like(sketch[name]),))
        elif isinstance(value, Memory):
            yield value
        else:
            yield arguments.plain(value) if isinstance(value, TrackedArray) else value


def _require_apart(launch: Any, made: Emitted, leaves: list[Any]) -> None:
    """Raise an error if an array that the kernel writes shares memory with another one."""
    arrays = [(n, v) for n, v in zip(made.leaves, leaves) if isinstance(v, Memory) and v.size]
    for name, value in arrays:
        if name not in made.writes:
            continue
        for other, array in arrays:
            if other != name and array.owner is value.owner and _overlap(value, array):
                raise KernelError(
                    f"{where_called()}: {launch.kernel.__name__}(): arguments '{name}' and '{other}' share memory, "
                    f"and the kernel writes '{name}'\n  pass a copy of one of them (ampi.cuda.to_device({other}))"
                )


def _overlap(one: Memory, other: Memory) -> bool:
    return bool(np.shares_memory(one.sketch(), other.sketch()))


# ------------------------------------------------------------------------------------------------------ launches


def run(launch: Any, args: tuple[Any, ...]) -> None:
    """Launch a kernel with arrays on a device."""
    given = args
    args = _checked(launch, args)
    tape = recording()
    for value in given:
        if isinstance(value, TrackedArray) and tape is not None:
            tape.is_active(value)  # raises an error if its derivative would be lost
    primal = program(launch, args, "primal")
    made, leaves = primal.emitted, leaves_of(args)
    _require_apart(launch, made, leaves)
    made.fitting.require(launch, leaves)
    written = [v for n, v in zip(made.leaves, leaves) if n in made.writes]
    record = None if tape is None else _record(tape, launch, args, given, leaves, made)
    undo = [u for array in written if isinstance(array, DeviceArray) for u in overwrite(array)]
    _call(primal, launch, [_handle(v) for v in leaves_in_order(primal, leaves)])
    if tape is None:
        return
    if record is not None:
        one_block = math.prod(launch.grid) == 1
        for several in made.several:
            if several.in_one_block or not one_block:
                text = f"{where_called()}: {launch.kernel.__name__}(), {several}"
                warnings.warn(text, ActivityWarning, stacklevel=warning_level())
        for array in record.outputs:
            tape.set_active(array.storage)
        record.outputs = ()
    if record is not None or undo:
        append(tape, record, undo)


def _record(
    tape: Any, launch: Any, args: tuple[Any, ...], given: tuple[Any, ...], leaves: list[Any], made: Emitted
) -> Launched | None:
    """Return the record of a launch that is about to run; None if no argument is active."""
    numbers = _tracked_numbers(args, given, made.leaves)
    names: set[str] = set()
    for name, value in zip(made.leaves, leaves):
        if isinstance(value, DeviceArray):
            if carries_derivatives(value.dtype) and is_active(tape, value):
                names.add(name)
                if value.repeats_elements():  # a thread may own an element of an argument
                    raise KernelError(
                        f"{where_called()}: {launch.kernel.__name__}(): argument '{name}' has elements that share "
                        f"memory, since it was broadcast\n  pass a copy: {name}.copy()"
                    )
        elif name in numbers and carries_derivatives(numbers[name].dtype) and tape.is_active(numbers[name]):
            names.add(name)
    if not names:
        return None
    outputs = []
    for name, value in zip(made.leaves, leaves):
        if name in made.writes and isinstance(value, Memory) and carries_derivatives(value.dtype):
            if not isinstance(value, DeviceArray):
                raise ActivityError(
                    f"{where_called()}: {launch.kernel.__name__}(): argument '{name}' is an array of "
                    f"{type(value.owner).__module__.partition('.')[0]}, into which the kernel writes active values, "
                    f"whose derivatives would be lost; write {name} = ampi.cuda.as_cuda_array({name}), or make it with "
                    "ampi.cuda"
                )
            outputs.append(value)
            names.add(name)
    return Launched(tape, launch, args, leaves, frozenset(names), outputs, numbers, made)


def _tracked_numbers(args: tuple[Any, ...], given: tuple[Any, ...], leaves: tuple[str, ...]) -> dict[str, Any]:
    """Return the tracked numbers among the arguments, by their names in the generated source."""
    found: dict[str, Any] = {}
    names = iter(leaves)
    for value, original in zip(args, given):
        for name in itertools.islice(names, len(leaves_of((value,)))):
            if isinstance(original, TrackedArray):
                found[name] = original
    return found


def leaves_in_order(program: Program, leaves: list[Any]) -> list[Any]:
    """Return the arguments in the order of a program's parameters."""
    by_name = dict(zip(program.emitted.leaves, leaves))
    return [by_name[name] for _, name in program.emitted.roles]


def _handle(value: Any) -> Any:
    return value.device.handle(value) if isinstance(value, Memory) else value


def _call(program: Program, launch: Any, given: list[Any]) -> Any:
    """Call a program on the grid of a launch."""
    with passive():
        extra = (launch.stream,) if launch.stream else ()
        return program.device.run(program.call, launch.grid, *given, *extra)


class Launched(BaseAdjoint):
    """Record of the launch of a kernel on a device; its adjoint and tangent run there as well."""

    reads_memory = False
    second_order = "joint"

    def __init__(
        self,
        tape: Any,
        launch: Any,
        args: tuple[Any, ...],
        leaves: list[Any],
        names: frozenset[str],
        outputs: Any,
        numbers: dict[str, Any],
        made: Emitted,
    ) -> None:
        self.launch, self.outputs = launch, outputs
        self.leaves = made.leaves
        self.active = names
        self.types = tuple(map(_like_memory, args))
        self.regions = {
            n: region(v) if isinstance(v, DeviceArray) else region_of(numbers[n])
            for n, v in zip(made.leaves, leaves)
            if n in names
        }
        self.written = [n for n in made.leaves if n in made.writes and n in names]
        # Arrays that the programs read are kept: without a copy, except those that other packages may overwrite.
        self.walks = tape.walks or tape.forward is not None or tape.tangents is not None
        wanted: set[str] = set()
        if tape.forward is None:
            wanted |= self._read(program(launch, args, "adjoint", names))
        if self.walks:
            wanted |= {n for role, n in program(launch, args, "tangent", names).emitted.roles if role == "argument"}
        if tape.tangents is not None:
            wanted |= self._read(program(launch, args, "second", names))
        self.kept: dict[str, Any] = {}
        self.storages = set()
        for n, v in zip(made.leaves, leaves):
            if not isinstance(v, Memory):
                self.kept[n] = v
            elif n not in wanted:
                self.kept[n] = v.bare()
            elif isinstance(v, DeviceArray):
                need(tape, v)
                self.kept[n] = v.bare()
                self.storages.add(v.storage)
            else:
                self.kept[n] = v.copy()

    @property
    def name(self) -> str:  # type: ignore[override]
        """A description of the record, for messages."""
        return f"a launch of {self.launch.kernel.__name__} on a device"

    @staticmethod
    def _read(made: Program) -> set[str]:
        return {n for role, n in made.emitted.roles if role == "argument" and n in made.emitted.reads}

    def __call__(self, sweep: Any) -> None:
        """Run the adjoint on the shadows; in second order its tangent, which computes the adjoints, too."""
        if not any(sweep.has_shadow(self.regions[n]) for n in self.written):
            return
        sweep.put_back(self.storages)
        if sweep.pairs:
            self._with_tangents(*sweep.lanes, pushes=lanes_of(sweep.tape.tangents))
            return
        made = program(self.launch, self.types, "adjoint", self.active)
        with _Shadows() as shadows:
            given = [
                shadows.of(sweep, self.regions[n]) if role == "shadow" else self.kept[n]
                for role, n in made.emitted.roles
            ]
            found = _call(made, self.launch, [_handle(v) for v in given]) or ()
        self._add_numbers(sweep, found)

    def _with_tangents(self, adjoints: Any, *tangents: Any, pushes: Sequence[Any]) -> None:
        made = program(self.launch, self.types, "second", self.active)
        for lane, push in zip(tangents, pushes):
            is_last = lane is tangents[-1]
            with _Shadows() as shadows, _Shadows() as dots:
                given: list[Any] = []
                for role, n in made.emitted.roles:
                    if role == "argument":
                        given.append(self.kept[n])
                    elif role == "tangent":
                        given.append(_tangent_of(push, self.regions[n], self.kept[n]))
                    elif role == "shadow tangent":
                        given.append(dots.of(lane, self.regions[n]))
                    else:  # each run computes the adjoints, and the last one keeps them
                        given.append(shadows.of(adjoints, self.regions[n], copied=not is_last))
                found = _call(made, self.launch, [_handle(v) for v in given]) or ()
            count = len(made.emitted.dotted)
            if is_last:
                self._add_numbers(adjoints, found[:count])
            rest = iter(found[count:])
            self._add_numbers(lane, [next(rest) if has_tangent else 0.0 for has_tangent in made.emitted.dotted])

    def _add_numbers(self, sweep: Any, found: Sequence[Any]) -> None:
        """Add to the adjoints of the active numbers among the arguments."""
        numbers = [n for n in self.leaves if n in self.active and not isinstance(self.regions[n], DeviceRegion)]
        for n, bar in zip(numbers, found):
            sweep.add(self.regions[n], np.asarray(bar))

    def tangent(self, push: Any) -> None:
        """Run the tangent on copies of what the kernel writes."""
        if not self.walks:
            raise ActivityError(
                f"{self.name} was recorded for adjoints only, and has no tangent; write ampi.Tape(tangents=True)"
            )
        made = program(self.launch, self.types, "tangent", self.active)
        given: list[Any] = []
        for role, n in made.emitted.roles:
            value = self.kept[n]
            if role == "argument":
                given.append(value.copy() if isinstance(value, Memory) and n in made.emitted.writes else value)
            elif isinstance(self.regions[n], DeviceRegion):
                given.append(push.shadow(self.regions[n]))
            else:
                given.append(np.asarray(push.get(self.regions[n]))[()])
        _call(made, self.launch, [_handle(v) for v in given])


class _Shadows:
    """The shadows that a program updates.

    A thread may own an element of one argument only: where shadows share elements, the program gets zeros instead,
    which are added afterwards.
    """

    def __init__(self) -> None:
        self.given: list[Memory] = []
        self.apart: list[tuple[Memory, Memory]] = []

    def __enter__(self) -> _Shadows:
        return self

    def of(self, sweep: Any, place: Region, copied: bool = False) -> Memory:
        """Return the shadow of a region, or a copy that is dropped."""
        shadow: Memory = sweep.shadow(place)
        if copied:
            return shadow.copy()
        if any(_overlap(shadow, other) for other in self.given if shadow.size and other.size):
            whole, shadow = shadow, shadow.new_like()
            shadow.fill(0)
            self.apart.append((whole, shadow))
        self.given.append(shadow)
        return shadow

    def __exit__(self, error: Any, *more: Any) -> None:
        for whole, shadow in self.apart if error is None else ():
            whole.add(shadow)


def _tangent_of(push: Any, place: Region, like: Any) -> Any:
    """Return the tangent of an argument, which is not modified."""
    if not isinstance(place, DeviceRegion):
        return np.asarray(push.get(place))[()]
    if push.has_shadow(place):
        return push.shadow(place)
    zeros = like.new_like()
    zeros.fill(0)
    return zeros


def _like_memory(value: Any) -> Any:
    """Return an argument in a form that tells `program` its type."""
    return value.bare() if isinstance(value, DeviceArray) else arguments.plain(value)


launching.on_device[:] = [run]

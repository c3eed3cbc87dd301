"""Tasks of pools whose workers do not run the differentiated function: ``mpi4py.futures.MPIPoolExecutor``.

The workers are in a loop of the pool's own, where no tape is open when a sweep begins.  So each task opens a tape for
itself, which ends with it, and returns which of its results are active.  The sweep submits the task again, with the
adjoints of its results: it runs once more, on any worker, and returns the adjoints of its arguments.
Forward mode submits it with tangents; second order submits it with tangents, and in the sweep with adjoints and their
tangents.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..arrays.activity import is_active
from ..base import checks
from ..base.program_lines import where_called
from ..errors import ActivityError, TapeError
from ..interception.hooks import Hook
from ..memory.storages import is_scalar, plain, region_of, tracked_copy
from ..mpi.memory.bundles import dumped, loaded
from ..tape import BaseAdjoint, Push, SecondTape, Sweep, Tape, VectorPush, place_of, second_order
from ..tape.recording import is_passive, opened, recording, restored
from .processes import require_constant_globals
from .tasks import strand_lock

Values = list[Any]  # arrays and numbers of NumPy


class Call:
    """A function with arguments, as it is sent to workers.

    Attributes
    ----------
    contents : bytes
        The pickled function and arguments, with places instead of arrays.
    values : list of numpy.ndarray or numpy.inexact
        The values of the arrays.
    active : list of int
        The indices of those that carry derivatives.
    """

    def __init__(self, contents: bytes, values: Values, active: list[int]) -> None:
        self.contents, self.values, self.active = contents, values, active

    def recorded(self, tape: Tape, dots: Sequence[Any] = ()) -> tuple[list[Any], Results]:
        """Run the function on an open tape, in second order with tangents; return the arguments and the `Results`."""
        places = [tape.watch(v) if k in self.active else tracked_copy(v) for k, v in enumerate(self.values)]
        independents = [places[k] for k in self.active]
        for array, dot in zip(independents, dots):
            tape.start(array, dot)  # type: ignore[attr-defined]
        function, arguments, keywords = loaded(self.contents, places)
        contents, arrays = dumped(function(*arguments, **keywords))
        return independents, Results(contents, arrays, active_among(tape, arrays))


class Results:
    """What a task has returned, on the worker.

    Attributes
    ----------
    contents : bytes
        The pickled object, with places instead of arrays.
    arrays : list of ampi.ndarray
    active : list of int
        The indices of those that carry derivatives.
    digest : bytes
        Of the values of those, by which another run is compared.
    """

    def __init__(self, contents: bytes, arrays: list[Any], active: list[int]) -> None:
        self.contents, self.arrays, self.active = contents, arrays, active
        digest = hashlib.blake2b(repr(active).encode())
        for k in active:
            digest.update(plain(arrays[k]).tobytes())
        self.digest = digest.digest()

    def outputs(self) -> list[Any]:
        """Return the active arrays."""
        return [self.arrays[k] for k in self.active]


def active_among(tape: Tape, arrays: Sequence[Any]) -> list[int]:
    """Return the indices of the arrays that carry derivatives."""
    found = [k for k, array in enumerate(arrays) if array.size and is_active(tape, array)]
    if any(arrays[k].dtype.names is not None for k in found):
        raise ActivityError(
            f"{where_called()}: a task of another process is given, or returns, an active structured array; pass its "
            "fields, or ampi.value(array)"
        )
    return found


def _value_of(array: Any) -> Any:
    return np.array(plain(array))[()] if is_scalar(array) else np.array(plain(array), order="K")


# ------------------------------------------------------------------------------------------------- what workers run


def run_plainly(contents: bytes, values: Values) -> Any:
    """Run a task without derivatives."""
    function, arguments, keywords = loaded(contents, list(map(tracked_copy, values)))
    return function(*arguments, **keywords)


def run(call: Call) -> tuple[bytes, Values, list[int], bytes]:
    """Run a task; return its results, and what is known of them."""
    with Tape() as tape:
        _, results = call.recorded(tape)
    return results.contents, list(map(_value_of, results.arrays)), results.active, results.digest


def back(call: Call, seeds: Values, several: bool) -> tuple[Values, bytes]:
    """Run a task again; return the adjoints of its active arguments for those of its results."""
    with Tape() as tape:
        arguments, results = call.recorded(tape)
    outputs = results.outputs()
    if len(outputs) != len(seeds):
        return [], results.digest
    found = tape.gradient(outputs, arguments, **{"seeds" if several else "seed": seeds})
    return list(found), results.digest


def forth(call: Call, dots: Values, several: bool) -> tuple[Values, bytes]:
    """Run a task again; return the tangents of its results for those of its active arguments."""
    with Tape(tangents=True) as tape:
        arguments, results = call.recorded(tape)
    return list(tape.tangent(results.outputs(), arguments, dots, vectorised=several)), results.digest


def back_twice(call: Call, dots: Values, seeds: list[Values], several: bool) -> tuple[list[Values], bytes]:
    """Run a task again with the tangents of its active arguments; return the adjoints of these, each with its tangents
    (by direction), for the adjoints of its results, each with its tangents."""
    with restored(), SecondTape(functools.partial(VectorPush, count=len(dots[0])) if several else Push) as tape:
        arguments, results = call.recorded(tape, dots)
        tape.finish(None)
        outputs, found = results.outputs(), []
        if len(outputs) == len(seeds):
            of_values, of_tangents = [s[0] for s in seeds], [s[1:] for s in seeds]
            adjoints, products, _ = second_order(tape, outputs, arguments, of_values, of_tangents)
            found = [[adjoint, *(dot if several else (dot,))] for adjoint, dot in zip(adjoints, products)]
    tape.dismantle()
    return found, results.digest


# ------------------------------------------------------------------------------------------------ what is recorded


class Submitted(BaseAdjoint):
    """The record of a submit.

    Attributes
    ----------
    call : Call
    regions : list of Region
        Of the active arguments.
    dots : list of numpy.ndarray
        In second order: the tangents of these.
    """

    __slots__ = ("_executor", "call", "dots", "regions", "where")
    name = "a task of another process"
    second_order = "joint"
    batched = True
    reads_memory = False
    held = ("regions",)

    def __init__(self, executor: Any, call: Call, arrays: Sequence[Any]) -> None:
        self._executor, self.call = executor, call
        self.regions = [region_of(arrays[k]) for k in call.active]
        self.dots: Values = []
        self.where = where_called()

    def send(self, function: Callable, *arguments: Any) -> Any:
        """Submit a function of the call to the executor, or to one like it if that is shut down; return the future."""
        executor = open_one(self._executor, self.where)
        return kind_of(executor).submit(executor, function, self.call, *arguments)

    def __call__(self, sweep: Sweep) -> None:
        """Wait for the adjoints of the arguments, and add them."""
        returned = sweep.state.pop(self, None)
        if returned is None:
            return
        for region, found in zip(self.regions, returned(), strict=True):
            if sweep.pairs:
                for lane, value in zip(sweep.lanes, found, strict=True):
                    lane.add(region, value)
            else:
                sweep.add(region, found)

    def tangent(self, push: Push) -> None:
        """Submit the task with tangents."""
        dots = [np.array(push.get(region)) for region in self.regions]
        if push.tape.tangents is push:
            self.dots = dots
        push.state[self] = self.send(forth, dots, push.lanes is not None)

    def checked(self, found: tuple[list[Any], bytes], digest: bytes) -> list[Any]:
        """Return what another run has found; raise an error if its results were others."""
        values, other = found
        if other != digest:
            raise ActivityError(
                f"the task submitted at {self.where} gives other results when it runs again for its derivative; pass "
                "it all that it depends on: let it draw random numbers with a seed among its arguments, and modify "
                "nothing on its worker (or use an MPICommExecutor inside the differentiated function: its tasks run "
                "once)"
            )
        return values


class Returned(BaseAdjoint):
    """The record of a result."""

    __slots__ = ("digest", "regions", "submitted")
    name = Submitted.name
    second_order = "joint"
    batched = True
    reads_memory = False
    held = ("regions",)

    def __init__(self, submitted: Submitted, arrays: Sequence[Any], digest: bytes) -> None:
        self.submitted, self.digest = submitted, digest
        self.regions = [region_of(array) for array in arrays]

    def __call__(self, sweep: Sweep) -> None:
        """Submit the task with the adjoints of its results."""
        if sweep.pairs:
            self._call_pairs(sweep)
            return
        taken = [sweep.take(region) for region in self.regions]
        if all(each is None for each in taken):
            return
        lead = () if sweep.lanes is None else (len(sweep.lanes),)
        seeds = [
            np.zeros((*lead, *region.shape), region.dtype) if each is None else each
            for region, each in zip(self.regions, taken)
        ]
        future = self.submitted.send(back, seeds, bool(lead))
        self._returns(sweep, future)

    def _call_pairs(self, sweep: Sweep) -> None:
        taken = [[lane.take(region) for lane in sweep.lanes] for region in self.regions]
        if all(each is None for found in taken for each in found):
            return
        seeds = [
            [np.zeros(region.shape, region.dtype) if each is None else each for each in found]
            for region, found in zip(self.regions, taken)
        ]
        several = sweep.tape.tangents.lanes is not None
        self._returns(sweep, self.submitted.send(back_twice, self.submitted.dots, seeds, several))

    def _returns(self, sweep: Sweep, future: Any) -> None:
        sweep.state[self.submitted] = lambda: self.submitted.checked(future.result(), self.digest)

    def tangent(self, push: Push) -> None:
        """Wait for the tangents of the results."""
        found = self.submitted.checked(push.state.pop(self.submitted).result(), self.digest)
        for region, dot in zip(self.regions, found, strict=True):
            push.put(region, dot)


class Pending:
    """A task whose result has not been asked for, or has been: then it is ``found``."""

    def __init__(self, tape: Tape, submitted: Submitted) -> None:
        self.tape, self.submitted = tape, submitted
        self.has_found = False
        self.found: Any = None

    def opened(self, raw: tuple[bytes, Values, list[int], bytes]) -> Any:
        """Return the result, which is recorded when it is asked for the first time."""
        if self.has_found:
            return self.found
        contents, values, active, digest = raw
        tape = recording()
        if tape is not self.tape or tape.closed:
            if self.tape.closed or (is_passive() and opened() is self.tape):
                return loaded(contents, [np.array(v)[()] for v in values])
            raise ActivityError(
                f"{where_called()}: the result of the task submitted at {self.submitted.where} is asked for in another "
                "thread or task, in a callback, inside an inner tape, or in another step of a time loop; ask for it "
                "where the task was submitted (`future.result()`)"
            )
        arrays = [tracked_copy(v) for v in values]
        outputs = [arrays[k] for k in active]
        for array in outputs:
            tape.activate(array)
        if outputs:
            tape.append(Returned(self.submitted, outputs, digest), (), outputs)
        self.found, self.has_found = loaded(contents, arrays), True
        return self.found


@functools.cache
def _future_class(kind: type) -> type:
    """Return the class of futures of an executor whose results carry derivatives."""

    def result(self: Any, timeout: float | None = None) -> Any:
        """Return the result, as `concurrent.futures.Future.result`."""
        return self._ampi_pending.opened(kind.result(self, timeout))  # type: ignore[attr-defined]

    return type("RemoteFuture", (kind,), {"result": result, "__doc__": "A future whose result carries derivatives."})


def submitted(executor: Any, tape: Tape | None, function: Any, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """Submit a task if it is given active values (without a tape: arrays that may be); return its future, or None."""
    try:
        contents, arrays = dumped((function, arguments, keywords))
    except ActivityError:
        raise
    except Exception:
        return None  # the executor raises the error
    if tape is None:  # inside `passive`
        return (
            kind_of(executor).submit(executor, run_plainly, contents, list(map(_value_of, arrays))) if arrays else None
        )
    name = f"mpi4py.futures.{type(executor).__name__}"
    require_constant_globals(name, function, advice="")
    active = active_among(tape, arrays)
    if not active and not any(is_active(tape, array) for array in arrays):
        return None
    if not active:  # those that carry derivatives have no elements, and a worker may be a thread of another tape
        return kind_of(executor).submit(executor, run_plainly, contents, list(map(_value_of, arrays)))
    if checks.whole:
        raise ActivityError(
            f"{where_called()}: a task of {name} is given an active array, and its workers run the program without "
            "ampi; use mpi4py.futures.MPICommExecutor, or write the program with ampi.numpy and call ampi.grad"
        )
    call = Call(contents, [_constant(tape, array) for array in arrays], active)
    record = Submitted(executor, call, arrays)
    tape.append(record)
    future = record.send(run)
    future._ampi_pending = Pending(tape, record)
    future.__class__ = _future_class(type(future))
    return future


def _constant(tape: Tape, array: Any) -> Any:
    """Return the present values of an array; tasks that are given the same ones share them."""
    view = plain(array)
    return np.array(view)[()] if is_scalar(array) else tape.constant(view, place_of(view))


# ------------------------------------------------------------------------------------------------------- executors


class Kind(NamedTuple):
    """A class of executors.

    Attributes
    ----------
    cls : type
    submit : callable
        Its original method, without ampi's hook.
    is_shut_down : callable
    another : callable
        Makes an executor like a given one.
    """

    cls: type
    submit: Callable
    is_shut_down: Callable[[Any], bool]
    another: Callable[[Any], Any]


_kinds: list[Kind] = []
_stand_ins: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
of_communicators: weakref.WeakSet[Any] = weakref.WeakSet()
"""Executors of `MPICommExecutor`, whose workers leave when they are shut down."""


def enter_kind(*kind: Any) -> None:
    """Enter a class of executors, see `Kind`."""
    _kinds.append(Kind(*kind))


def kind_of(executor: Any) -> Kind:
    """Return the class of an executor."""
    return next(kind for kind in _kinds if isinstance(executor, kind.cls))


def open_one(executor: Any, where: str) -> Any:
    """Return an executor, or one like it if it is shut down, for tasks that run again."""
    kind = kind_of(executor)
    if not kind.is_shut_down(executor):
        return executor
    if executor in of_communicators:
        raise TapeError(
            f"the task submitted at {where} runs again for its derivative, and its MPICommExecutor has ended; enter it "
            "around the call of ampi.grad, or inside the differentiated function on all ranks of its communicator"
        )
    with strand_lock:
        found = _stand_ins.get(executor)
        if found is None or kind.is_shut_down(found):
            found = _stand_ins[executor] = kind.another(executor)
        return found


def submit(found: Hook, arguments: tuple, keywords: dict[str, Any]) -> Any:
    """``executor.submit`` while a tape is open in any thread."""
    executor, function, *rest = arguments
    tape = recording()
    if tape is None and not (is_passive() and opened() is not None):
        return found.original(*arguments, **keywords)
    future = submitted(executor, tape, function, tuple(rest), keywords)
    return found.original(*arguments, **keywords) if future is None else future

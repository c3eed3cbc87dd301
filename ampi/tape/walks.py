"""Walks: tangents pushed through all records of a closed tape, in the order of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ActivityError, TapeError
from ..memory.storages import carries_derivatives
from .apart import is_apart, is_tracked, region_at
from .push import Push, tangent_of
from .recording import actively, is_around, passively
from .seeds import in_structure_of, leaves
from .undo import Undo
from .vector_push import VectorPush, directions_of

if TYPE_CHECKING:
    from .tape import Tape


def walk(
    tape: Tape,
    prepare: Callable[[Push], None],
    finish: Callable[[Push], Any],
    make: Callable[[Tape], Push] = Push,
) -> Any:
    """Push tangents through all records of a closed tape.

    ``prepare(push)`` sets the tangents of the independents; ``finish(push)`` collects the results, with memory as it
    was at the end of the program.
    """
    if not tape.closed:
        raise TapeError(
            "tape.tangent: the tape is still open; close it first"
            if is_around(tape)
            else f"tape.tangent: the tape is still open in thread '{tape.thread_name}'; close it first"
        )
    if not tape.sweep_lock.acquire(blocking=False):
        raise TapeError("tape.tangent: this tape is being swept already; compute one derivative of it at a time")
    push = make(tape)
    undos: list[Undo] = []
    done = 0
    scope = passively()
    try:
        _check(tape)
        tape.begin_reading()
        for callback in tape.sweep_starts.values():
            callback(push)  # type: ignore[arg-type]
        prepare(push)
        undos = [undo for record in tape.records for undo in record.undo]
        for undo in reversed(undos):
            undo.swap()
            done += 1
        for place, record in enumerate(tape.records):
            for undo in record.undo:
                undo.swap()
                done -= 1
            for call in push.ahead.get(place, ()):
                call()
            if record.adjoint is not None:
                push.push(record.adjoint, record.undo)
            for call in push.then.get(place, ()):
                call()
        for last in push.at_last:
            last()
        result = finish(push)
        push.finish(None)
        return result
    except BaseException as error:
        push.finish(error)
        raise
    finally:
        for undo in undos[len(undos) - done :]:
            undo.swap()
        if tape.budget is not None:
            tape.budget.end()
        actively(scope)
        tape.sweep_lock.release()
        push.dismantle()


def _check(tape: Tape) -> None:
    """Raise an error, on all ranks that communicated, if an operation on the tape has no tangent."""
    try:
        for record in tape.records:
            if record.adjoint is not None:
                tangent_of(record.adjoint)
    except ActivityError as error:
        tape.refuse(error)
        raise


def walk_for(tape: Tape, y: Any, x: Any, x_dot: Any, vectorised: bool | int = False) -> Any:
    """Return the tangents of outputs: `Tape.tangent`."""
    pairs = []
    places = [tape.watched(leaf, "tangent(y, x, x_dot)") for leaf in leaves(x)]
    given = list(leaves(x_dot)) if isinstance(x, (tuple, list)) else [x_dot] if places else []
    if len(given) != len(places):
        raise TapeError(f"tape.tangent: {len(places)} arrays but {len(given)} tangents")
    lead: tuple[int, ...] = ()
    if vectorised is not False:
        like = [np.broadcast_to(0.0, region.shape) for region in places]
        lead = (directions_of("tape.tangent", like, [np.asarray(value) for value in given], vectorised),)
    for region, value in zip(places, given):
        value = value if is_apart(value) else np.asarray(value)
        if value.shape != (*lead, *region.shape):
            raise TapeError(f"tape.tangent: the tangent has shape {value.shape}, its x {region.shape}")
        if value.dtype.kind == "c" and region.dtype.kind == "f":
            raise TapeError("tape.tangent: the tangent is complex, its x real")
        pairs.append((region, value))
    for output in leaves(y):
        if not is_tracked(output):
            raise TapeError(f"tape.tangent: y is a plain {type(output).__name__}, which carries no derivative")
        if not carries_derivatives(output.dtype):
            raise TapeError(f"tape.tangent: y of dtype {output.dtype} has no derivative")

    def prepare(push: Push) -> None:
        push.state.update((region.place, value) for region, value in pairs)

    def finish(push: Push) -> Any:
        return in_structure_of(y, iter([region_at(output).tangent(push) for output in leaves(y)]))

    return walk(tape, prepare, finish, (lambda tape: VectorPush(tape, *lead)) if lead else Push)

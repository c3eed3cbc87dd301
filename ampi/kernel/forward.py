"""Kernels in forward mode: a call runs the kernel's tangent program, which includes the kernel's own work."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampi import tape
from ampi.arrays.activity import is_active
from ampi.arrays.partial_writes import record_any_writes
from ampi.errors import ActivityError
from ampi.kernel import arguments
from ampi.kernel.arguments import opaque
from ampi.kernel.call_record import put_tangents, wrap
from ampi.kernel.case import Case
from ampi.kernel.contract import derivative_options, load, separated, suspects
from ampi.kernel.lanes import make_tangent_lanes
from ampi.kernel.result_forms import as_arrays, as_returned
from ampi.kernel.runtime import cache
from ampi.memory import storages as memory
from ampi.tape.interleaved import FEWEST, WIDTH, padded


@dataclass(frozen=True)
class TangentContract:
    """The facts about a kernel in forward mode, for one `Case`; leaves are given by position, as in `Contract`.

    Attributes
    ----------
    tangent : callable
        ``tangent(*leaves, *shadows, *dots)``, with the tangents of the arrays in ``shadows``, which it updates, and of
        the numbers in ``scalars``.  It returns a tuple: the leaves of the kernel's result, and the tangents of those
        that are active.
    structure : str, tuple or None
        The structure of the kernel's result: None, ``"leaf"``, or a tuple of these.
    twice : bool
        Whether the kernel itself also runs, and the tangent program on copies, because the kernel raises errors, draws
        random numbers, or returns instances of classes.
    forms : int, tuple or None
        The form of the result while it is recorded: see `Contract`.
    drawn : tuple of str
        The dtypes of the arrays of random numbers, which are the last leaves.
    drawing : callable or None
        ``drawing()`` is the `drawing.Drawing` for the same case.
    lanes : callable or None
        ``lanes()`` is ``tangent`` in several directions at once, or None (see `lanes`).
    checks_first : bool
        As in `Contract`.
    """

    names: tuple[str, ...]
    writes: tuple[int, ...]
    becomes_active: tuple[int, ...]
    shadows: tuple[int, ...]
    scalars: tuple[int, ...]
    result_active: tuple[bool, ...]
    result_dtypes: tuple[str, ...]
    structure: Any
    twice: bool
    tangent: Callable[..., tuple]
    disagreement: Callable[..., int] | None = None
    forms: Any = None
    drawn: tuple[str, ...] = ()
    drawing: Callable[[], Any] | None = None
    lanes: Callable[[], Callable[..., tuple] | None] | None = None
    checks_first: bool = False


def make_tangent_contract(kernel: Any, case: Case) -> TangentContract:
    """The tangent contract of a kernel; its program is stored in the cache folder like adjoints."""
    case = separated(kernel, case)
    module, what = load(kernel, case, "tangent", (), _generate)
    options = derivative_options(kernel, case, module.THREADS)
    code = cache.key(module.PROGRAM, cache.of_options(options))
    program = getattr(module, module.TANGENT)
    compiled = opaque(cache.compiled(program, f"{kernel.__name__}_tangent_{code}", options, what=what))
    facts = dict(module.CONTRACT)
    facts["twice"] = facts["twice"] or kernel.checked or kernel.options.get("error_model") != "numpy"
    facts["twice"] = facts["twice"] or bool(facts["drawn"])  # the kernel's own run confirms the random numbers
    several = functools.cache(functools.partial(make_tangent_lanes, kernel, case))
    disagreement = getattr(module, "disagreement", None)
    return TangentContract(**facts, tangent=compiled, disagreement=disagreement, lanes=several)


def _generate(kernel: Any, case: Case) -> str:
    """The text of the file; imports the differentiator."""
    from ampi.kernel.programs import generate_tangent

    return generate_tangent(kernel, case)


NOTHING_ACTIVE = object()
"""The result of `call` if no argument is active; the kernel has not run then."""


def call(
    kernel: Any,
    recording: tape.Tape,
    args: tuple[Any, ...],
    bound: tuple[Any, ...],
    find: Callable[..., TangentContract],
) -> Any:
    """Call a kernel in forward mode: its result, with tangents pushed; ``find`` returns the contract."""
    leaves = arguments.leaves_of(bound)
    storages = [memory.storage_of(leaf) if isinstance(leaf, np.ndarray) else None for leaf in leaves]
    active = frozenset(
        k for k, s in enumerate(storages) if s is not None and s.tape is not None and is_active(recording, leaves[k])
    )
    if not active:
        return NOTHING_ACTIVE
    contract = find(kernel, bound, leaves, storages, active)
    for k in contract.becomes_active:
        if storages[k] is None:
            raise ActivityError(
                f"{kernel.__name__}() at {tape.where_called()}: argument '{contract.names[k]}' is a "
                "plain array, and would receive values that carry derivatives; make it with ampi.numpy"
            )
    push: tape.Push = recording.forward
    undo = tape.overwrite(*[leaves[k] for k in contract.writes]) if contract.writes else []
    if undo:
        recording.append(None, undo)
    numbers = contract.drawing()(args, leaves) if contract.drawn and contract.drawing is not None else None
    try:
        result, dots = run(kernel, contract, push, args, leaves, numbers)
    except BaseException as error:
        record_any_writes(recording, [leaves[k] for k in suspects(contract, error)], "a kernel", error)
        raise
    for k in contract.becomes_active:
        recording.set_active(storages[k])  # type: ignore[arg-type]
    if not contract.result_dtypes:
        return result
    facts = zip(contract.result_active, contract.result_dtypes, strict=True)
    given, regions = result, list[Any]()
    if contract.forms is not None:
        result = as_arrays(given, contract.forms, iter(contract.result_dtypes), leaves)
    result = wrap(recording, result, leaves, facts, regions, [])
    put_tangents(push, regions, dots)
    return (
        result if contract.forms is None else as_returned(result, contract.forms, given, iter(contract.result_active))
    )


def run(
    kernel: Any,
    contract: TangentContract,
    push: tape.Push,
    args: tuple[Any, ...],
    leaves: Sequence[Any],
    numbers: Any = None,
) -> tuple[Any, Iterator[Any]]:
    """Run a kernel with tangents: its result, and the tangents of the active leaves of the result.

    The tangents are an iterator, in vector mode with a leading axis for directions.  ``numbers`` has the kernel's
    random numbers, if it draws any.
    """
    if push.lanes is not None:
        return _run_lanes(kernel, contract, push, args, leaves, numbers)
    given: list[Any] = [memory.plain(a) if isinstance(a, np.ndarray) else a for a in leaves]
    given = [a[()] if arguments.is_scalar(leaf) else a for a, leaf in zip(given, leaves)]
    given += [] if numbers is None else numbers.arrays
    shadows = [push.shadow(memory.region_of(leaves[k])) for k in contract.shadows]
    dots = [push.get(memory.region_of(leaves[k]))[()] for k in contract.scalars]
    result = None
    if contract.twice:
        before = [np.array(a, order="K") if k in contract.writes else a for k, a in enumerate(given)]
        run_kernel = lambda: kernel.dispatcher(*map(arguments.plain, args))
        result = run_kernel() if numbers is None else numbers.run(run_kernel)
        given = before
    found = contract.tangent(*given, *shadows, *dots)
    count = len(contract.result_dtypes)
    if count and not contract.twice:
        result = _structured(contract.structure, iter(found[:count]))
    return result, iter(found[count:])


def _run_lanes(
    kernel: Any,
    contract: TangentContract,
    push: tape.Push,
    args: tuple[Any, ...],
    leaves: Sequence[Any],
    numbers: Any,
) -> tuple[Any, Iterator[Any]]:
    """`run` in vector mode: on copies of the arrays that the kernel writes, except for the last direction."""
    dots: list[Any] = []
    values: list[Any] = [memory.plain(a) if isinstance(a, np.ndarray) else a for a in leaves]
    values = [a[()] if arguments.is_scalar(leaf) else a for a, leaf in zip(values, leaves)]
    values += [] if numbers is None else numbers.arrays
    regions = [memory.region_of(leaves[k]) for k in contract.shadows]
    scalars = [memory.region_of(leaves[k]) for k in contract.scalars]
    count = len(contract.result_dtypes)
    interleaved = _interleaved_shadows(contract, push, regions)
    if interleaved is not None:
        return _run_together(kernel, contract, push, args, values, interleaved, scalars, numbers)
    for lane in push.lanes[:-1]:
        given = [np.array(a, order="K") if k in contract.writes else a for k, a in enumerate(values)]
        shadows = map(lane.shadow, regions)
        given_dots = [lane.get(region)[()] for region in scalars]
        try:
            dots.append(contract.tangent(*given, *shadows, *given_dots)[count:])
        except Exception:
            if contract.twice:
                kernel.dispatcher(*map(arguments.plain, args))  # raises its own exception
            raise
    result, last = run(kernel, contract, push.lanes[-1], args, leaves, numbers)
    return result, iter([np.stack(some) for some in zip(*dots, last)])


def _interleaved_shadows(contract: TangentContract, push: Any, regions: list[memory.Region]) -> list[np.ndarray] | None:
    """The tangents of all directions, interleaved; None if no program takes them in this form."""
    if len(push.lanes) < FEWEST or contract.lanes is None or contract.lanes() is None:
        return None
    found = [push.side_by_side(region) for region in regions]
    return None if any(shadow is None for shadow in found) else found


def _run_together(
    kernel: Any,
    contract: TangentContract,
    push: Any,
    args: tuple[Any, ...],
    values: list[Any],
    shadows: list[np.ndarray],
    scalars: list[memory.Region],
    numbers: Any,
) -> tuple[Any, Iterator[Any]]:
    """`_run_lanes`, for several directions at once."""
    assert contract.lanes is not None
    program: Any = contract.lanes()
    directions, count = len(push.lanes), len(contract.result_dtypes)
    given_dots = [np.zeros(padded(directions), region.dtype) for region in scalars]
    for dots, region in zip(given_dots, scalars):
        dots[:directions] = [lane.get(region)[()] for lane in push.lanes]
    result, before = None, values
    if contract.twice:
        before = [np.array(a, order="K") if k in contract.writes else a for k, a in enumerate(values)]
        run_kernel = lambda: kernel.dispatcher(*map(arguments.plain, args))
        result = run_kernel() if numbers is None else numbers.run(run_kernel)
    parts = []
    for begin in range(0, directions, WIDTH):
        is_last = begin + WIDTH >= directions
        own = before
        if not is_last:
            own = [np.array(a, order="K") if k in contract.writes else a for k, a in enumerate(before)]
        part = slice(begin, begin + WIDTH)
        found = program(
            *own,
            *(shadow[..., part] for shadow in shadows),
            *(dots[part] for dots in given_dots),
        )
        parts.append(found[count:])
        if is_last and count and not contract.twice:
            result = _structured(contract.structure, iter(found[:count]))
    joined = (np.concatenate([np.moveaxis(np.asarray(d), -1, 0) for d in some])[:directions] for some in zip(*parts))
    return result, iter([np.ascontiguousarray(dots) for dots in joined])


def _structured(structure: Any, found: Iterator[Any]) -> Any:
    if isinstance(structure, tuple):
        return tuple(_structured(part, found) for part in structure)
    return next(found)

"""Kernels in second order: the tangent of a call's adjoint program, which also computes the adjoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampi import tape
from ampi.errors import KernelError
from ampi.kernel.arguments import opaque
from ampi.kernel.case import Case
from ampi.kernel.contract import derivative_options, load, separated
from ampi.kernel.runtime import cache


@dataclass(frozen=True)
class SecondContract:
    """The facts about a kernel in second order, for one `Case`.

    Attributes
    ----------
    program : callable
        ``program(*given, *dots)`` takes the arguments of the adjoint, and the tangents of its arrays and numbers at the
        positions ``arrays`` and ``numbers``.  It updates shadows and their tangents, and returns the adjoints of the
        kernel's active scalars, and then the tangents of those for which ``results`` is true.
    results : tuple of bool
        For each active scalar of the kernel, whether its adjoint has a tangent.
    distinct, new : tuple of int
        As in `Contract`.
    """

    arrays: tuple[int, ...]
    numbers: tuple[int, ...]
    results: tuple[bool, ...]
    distinct: tuple[int, ...]
    new: tuple[int, ...]
    program: Callable[..., tuple]


def make_second_contract(kernel: Any, case: Case) -> SecondContract:
    """The second-order contract of a kernel; its program is stored in the cache folder like adjoints."""
    case = separated(kernel, case)
    try:
        module, what = load(kernel, case, "second", (case.after, case.plain), _generate)
    except KernelError as problem:
        raise tape.no_second_derivative(f"the kernel {kernel.__name__} ({problem})") from None
    options = derivative_options(kernel, case, False)
    code = cache.key(module.PROGRAM, cache.of_options(options))
    program = getattr(module, module.SECOND)
    compiled = opaque(cache.compiled(program, f"{kernel.__name__}_second_{code}", options, what=what))
    return SecondContract(**module.CONTRACT, program=compiled)


def _generate(kernel: Any, case: Case) -> str:
    """The text of the file; imports the differentiator."""
    from ampi.kernel.programs import generate_second

    return generate_second(kernel, case)


def sweep_call(call: Any, sweep: tape.PairSweep) -> None:
    """Run the tangent of a recorded call's adjoint, once for each direction; each run also computes the adjoint."""
    if not any(map(sweep.has_shadow, call.outputs)):
        return
    contract, (adjoints, *tangents) = call.contract, sweep.lanes
    assert contract.second is not None
    second = contract.second()
    values: list[Any] = []
    dots: list[Any] = []
    for v in call.values:
        value, dot = sweep.values(v) if isinstance(v, np.ndarray) else (call.value(adjoints, v), None)
        values.append(value)
        dots.append(dot)
    for k, region in zip(contract.scalars, call.scalars):
        dots[k] = [push.get(region)[()] for push in tape.lanes_of(sweep.tape.tangents)]
    flags = [call.is_distinct(adjoints, k, values[k]) for k in second.distinct] + [False for _ in second.new]
    shadows = [adjoints.shadow(region) for region in call.shadows]
    given = (*values, *shadows, *(call.seed_in(adjoints, s) for s in call.seeds), *flags)
    before = [shadow.copy() for shadow in shadows] if len(tangents) > 1 else []
    count = len(contract.scalars)
    for j, lane in enumerate(tangents):
        if j:
            for shadow, old in zip(shadows, before):
                shadow[...] = old
        all_dots: list[Any] = [None if dot is None else dot[j] for dot in dots]
        all_dots += [lane.shadow(region) for region in call.shadows]
        all_dots += [call.seed_in(lane, s) for s in call.seeds]
        # The program is compiled for tangents that may be written.
        arrays = [_zeros(given[k]) if all_dots[k] is None else all_dots[k] for k in second.arrays]
        arrays = [np.array(d) if d.flags.writeable is False else d for d in arrays]
        numbers = [_zeros(given[k]) if all_dots[k] is None else all_dots[k] for k in second.numbers]
        found = second.program(*given, *arrays, *numbers)
        rest = iter(found[count:])
        for region, has_tangent in zip(call.scalars, second.results, strict=True):
            if has_tangent:
                lane.add(region, next(rest))
    for region, value in zip(call.scalars, found[:count], strict=True):
        adjoints.add(region, value)
    for k, region in zip(contract.shadows, call.shadows):
        if k in contract.ends:
            for lane in sweep.lanes:
                lane.end(region)


def _zeros(value: Any) -> Any:
    if not isinstance(value, np.ndarray):
        return type(value)(0)
    contiguous = value.flags.c_contiguous  # np.zeros does not touch the memory, as np.zeros_like does
    return np.zeros(value.shape, value.dtype) if contiguous else np.zeros_like(value)

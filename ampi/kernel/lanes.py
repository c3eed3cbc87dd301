"""Kernels in vector modes: the adjoint program of a call, for several directions at once where it can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache as cache_of
from functools import partial
from typing import Any

import numpy as np
from numba.core import config

from ampi import tape
from ampi.kernel.arguments import opaque
from ampi.kernel.case import Case
from ampi.kernel.contract import Contract, derivative_options, load, separated
from ampi.kernel.runtime import cache
from ampi.tape.interleaved import FEWEST, WIDTH, padded


@dataclass(frozen=True)
class LanesContract:
    """What a vector sweep knows of a kernel, for one `Case`, besides its `Contract`.

    Attributes
    ----------
    program : callable
        As ``Contract.adjoint``, in `WIDTH` directions: shadows and seeds have a last axis for them, whose elements lie
        one behind the other, and it returns a tuple of numbers for each active scalar.
    distinct : tuple of int
        The arrays of indices of which it is told whether they name no element twice.
    new : tuple of int
        The arrays of which it is told whether their shadow is new.
    """

    program: Callable[..., tuple]
    distinct: tuple[int, ...]
    new: tuple[int, ...]


def make_lanes_contracts(kernel: Any, case: Case) -> dict[str, tuple[dict[str, Any], LanesContract]]:
    """The contracts of a kernel for its whole adjoint, and for the one behind the part that saves, and what they need;
    empty where the adjoint runs once for each direction."""
    case = separated(kernel, case)
    if config.DISABLE_JIT:
        return {}
    module, what = load(kernel, case, f"lanes{WIDTH}", (case.after, case.plain), _generate)
    options = derivative_options(kernel, case, False)
    code = cache.key(module.PROGRAM, cache.of_options(options))
    found = {}
    for form, facts in module.LANES.items():
        name = f"{kernel.__name__}_lanes_{form}_{code}"
        program = opaque(cache.compiled(getattr(module, facts["program"]), name, options, what=what))
        found[form] = facts, LanesContract(program, facts["distinct"], facts["new"])
    return found


def _generate(kernel: Any, case: Case) -> str:
    """The text of the file; what differentiates is imported when something is differentiated."""
    from ampi.kernel.programs import generate_lanes

    return generate_lanes(kernel, case, WIDTH)


def make_tangent_lanes(kernel: Any, case: Case) -> Callable[..., tuple] | None:
    """A kernel's tangent program in `WIDTH` directions: as ``TangentContract.tangent``, with shadows and tangents that
    have a last axis for them, as the tangents that it returns have; None where it has to run once for each."""
    case = separated(kernel, case)
    if config.DISABLE_JIT:
        return None
    module, what = load(kernel, case, f"tangent_lanes{WIDTH}", (), _generate_tangent)
    if not module.LANES:
        return None
    options = derivative_options(kernel, case, False)
    name = f"{kernel.__name__}_tangent_lanes_{cache.key(module.PROGRAM, cache.of_options(options))}"
    return opaque(cache.compiled(getattr(module, module.LANES), name, options, what=what))


def _generate_tangent(kernel: Any, case: Case) -> str:
    from ampi.kernel.programs import generate_tangent_lanes

    return generate_tangent_lanes(kernel, case, WIDTH)


def with_lanes(kernel: Any, case: Case, contract: Contract) -> Contract:
    """A contract that knows of adjoints in several directions at once, which are made when they are asked for."""
    made = cache_of(partial(make_lanes_contracts, kernel, case))
    split = contract.split
    if split is not None:
        split = replace(split, lanes=partial(_chosen, made, "split", split.needs, split.after))
    return replace(contract, split=split, lanes=partial(_chosen, made, "whole", contract.needs, contract.after))


def _chosen(
    made: Callable[[], dict[str, tuple[dict[str, Any], LanesContract]]],
    form: str,
    needs: tuple[int, ...],
    after: tuple[int, ...],
) -> LanesContract | None:
    """The one for which calls have kept what it needs."""
    facts, found = made().get(form, (None, None))
    if facts is None or not set(facts["needs"]) <= set(needs) or facts["after"] != after:
        return None
    return found


def sweep_together(call: Any, sweep: tape.VectorSweep) -> bool:
    """Run the adjoint of a recorded call in all directions at once; False where it has to run once for each."""
    count, contract = len(sweep.lanes), call.contract
    if count < FEWEST or contract.lanes is None:
        return False
    lanes = contract.lanes()
    if lanes is None or not sweep.fit_side_by_side(call.shadows):
        return False
    regions = dict(zip(contract.shadows, call.shadows))
    new = [sweep.begin_side_by_side(regions[k], call.shadows) for k in lanes.new]
    shadows = [sweep.side_by_side(region) for region in call.shadows]
    values = [call.value(sweep, v) for v in call.values]
    flags = [call.is_distinct(sweep, k, values[k]) for k in lanes.distinct] + new
    seeds = [_seeds(call, sweep, s) for s in call.seeds]
    rest = *(sweep.after if call.arrays_after else ()), *call.kept, *flags
    for begin in range(0, count, WIDTH):
        arrays = (*shadows, *seeds)
        if count > WIDTH:
            arrays = tuple(array[..., begin : begin + WIDTH] for array in arrays)
        for region, found in zip(call.scalars, lanes.program(*values, *arrays, *rest)):
            for lane, value in zip(sweep.lanes[begin:], found):
                lane.add(region, value)
    for k, region in zip(contract.shadows, call.shadows):
        if k in contract.ends:
            sweep.end(region)
    return True


def _seeds(call: Any, sweep: tape.VectorSweep, s: Any) -> np.ndarray:
    """The adjoints of a leaf of the result, side by side."""
    rows = [call.seed_in(lane, s) for lane in sweep.lanes]
    found = np.zeros((*np.shape(rows[0]), padded(len(rows))), np.asarray(rows[0]).dtype)
    for k, row in enumerate(rows):
        found[..., k] = row
    return found

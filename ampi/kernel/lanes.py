"""Kernels in vector mode: adjoint and tangent programs for several directions at once, where possible."""

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
    """The further facts about a kernel for vector sweeps, for one `Case`.

    Attributes
    ----------
    program : callable
        Like ``Contract.adjoint``, in `WIDTH` directions: shadows and seeds have a contiguous last axis for them, and it
        returns a tuple of numbers for each active scalar.
    distinct, new : tuple of int
        As in `Contract`.
    """

    program: Callable[..., tuple]
    distinct: tuple[int, ...]
    new: tuple[int, ...]


def make_lanes_contracts(kernel: Any, case: Case) -> dict[str, tuple[dict[str, Any], LanesContract]]:
    """The vector contracts of a kernel, each with the facts on which it depends, by the form of the adjoint.

    The forms are the whole adjoint, and the second part of a split one.  Empty if the adjoint runs once for each
    direction.
    """
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
    """The text of the file; imports the differentiator."""
    from ampi.kernel.programs import generate_lanes

    return generate_lanes(kernel, case, WIDTH)


def make_tangent_lanes(kernel: Any, case: Case) -> Callable[..., tuple] | None:
    """A kernel's tangent program in `WIDTH` directions; None if it has to run once for each.

    It is like ``TangentContract.tangent``, with a last axis for directions in shadows and tangents, given and returned.
    """
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
    """A contract with adjoints in several directions at once, which are made on first use."""
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
    """The vector contract, or None if calls do not save all values that it needs."""
    facts, found = made().get(form, (None, None))
    if facts is None or not set(facts["needs"]) <= set(needs) or facts["after"] != after:
        return None
    return found


def sweep_together(call: Any, sweep: tape.VectorSweep) -> bool:
    """Run the adjoint of a recorded call in all directions at once; False if it has to run once for each."""
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
    rest = *(sweep.after if call.arrays_after else ()), *call.saved, *flags
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
    """The adjoints of a leaf of the result in all directions, interleaved."""
    rows = [call.seed_in(lane, s) for lane in sweep.lanes]
    found = np.zeros((*np.shape(rows[0]), padded(len(rows))), np.asarray(rows[0]).dtype)
    for k, row in enumerate(rows):
        found[..., k] = row
    return found

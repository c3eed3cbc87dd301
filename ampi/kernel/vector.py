"""Kernels in vector mode: where no program takes several directions, the adjoint program runs once for each."""

from __future__ import annotations

from typing import Any

from ampi import tape
from ampi.kernel.lanes import sweep_together


def sweep_call(call: Any, sweep: tape.VectorSweep) -> None:
    """Run the adjoint of a recorded call in all directions, at once if there is a program for that."""
    if not any(map(sweep.has_shadow, call.outputs)) or sweep_together(call, sweep):
        return
    lanes = [lane for lane in sweep.lanes if any(map(lane.has_shadow, call.outputs))]
    contract = call.contract
    adjoint = contract.adjoint
    values = [call.value(sweep, v) for v in call.values]
    flags = [call.is_distinct(sweep, k, values[k]) for k in contract.distinct]
    shadows = []
    for k, region in zip(contract.shadows, call.shadows):
        if k in contract.new:
            flags.append(len(lanes) == len(sweep.lanes) and sweep.begin_all_anew(region, call.shadows))
        shadows.append(sweep.each(region))
    if len(lanes) < len(sweep.lanes):
        used = [j for j, lane in enumerate(sweep.lanes) if lane in lanes]
        shadows = [[rows[j] for j in used] for rows in shadows]
    rest = *(sweep.after if call.arrays_after else ()), *call.saved, *flags
    by_lane = zip(*shadows) if shadows else [()] * len(lanes)
    for lane, rows in zip(lanes, by_lane):
        seeds = [call.seed_in(lane, s) for s in call.seeds]
        for region, value in zip(call.scalars, adjoint(*values, *rows, *seeds, *rest)):
            lane.add(region, value)
    for k, region in zip(contract.shadows, call.shadows):
        if k in contract.ends:
            sweep.end(region)

"""What tapes know of devices before a program uses one: how arrays there become independents, and errors for active
arrays that numba.cuda itself would copy there, without their derivatives."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

from ..arrays.callers import is_called_by_ampi
from ..base.program_lines import where_called
from ..errors import ActivityError
from ..interception.hooks import hook, when_imported
from ..tape.apart import trackers


def _tracked(x: Any) -> Any:
    from .arrays import tracked_apart

    return tracked_apart(x)


trackers.append(_tracked)


def _refuse_active(found: Any, tape: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    if is_called_by_ampi(4):  # which records the copy
        return found.original(*arguments, **keywords)
    for value in (*arguments, *keywords.values()):
        if isinstance(value, np.ndarray) and tape.is_active(value):
            raise ActivityError(
                f"{where_called()}: {found.name}() of an array that carries derivatives, which would be lost; copy it "
                "with ampi's function of the same name (import ampi.cuda as cuda), or pass ampi.value(x)"
            )
    return found.original(*arguments, **keywords)


TO_DEVICE = "numba.cuda.to_device"
COPY_TO_DEVICE = "numba.cuda.cudadrv.devicearray.DeviceNDArray.copy_to_device"
SIMULATED = "numba.cuda.simulator.cudadrv.devicearray"


def _hook() -> None:
    to_device = getattr(sys.modules["numba.cuda.api"], "to_device", None)
    arrays = sys.modules.get("numba.cuda.cudadrv.devicearray")
    base = getattr(arrays, "DeviceNDArrayBase", None)
    if to_device is not None:
        hook(to_device, _refuse_active, TO_DEVICE)
    if base is not None:
        hook(base.copy_to_device, _refuse_active, COPY_TO_DEVICE)


def _hook_simulator() -> None:
    arrays = sys.modules[SIMULATED]
    hook(arrays.to_device, _refuse_active, TO_DEVICE)
    hook(arrays.FakeCUDAArray.copy_to_device, _refuse_active, COPY_TO_DEVICE)


when_imported("numba.cuda.api", _hook)
when_imported(SIMULATED, _hook_simulator)

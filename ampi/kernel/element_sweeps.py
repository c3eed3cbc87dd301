"""The compiled sweep over statements on single elements, loaded when a sweep is long enough."""

from __future__ import annotations

import os
from typing import Any

from ampi.tape.elements import set_compiled_sweep


def _sweep_compiled(*arguments: Any) -> None:
    """Load the compiled sweep, and run it."""
    from ampi.kernel.runtime import element_sweep

    set_compiled_sweep(element_sweep.sweep)
    element_sweep.sweep(*arguments)


if os.environ.get("NUMBA_DISABLE_JIT", "0") in ("", "0"):
    set_compiled_sweep(_sweep_compiled)

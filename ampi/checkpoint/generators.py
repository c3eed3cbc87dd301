"""The generator from which kernels draw random numbers: a part of every state of a program."""

from __future__ import annotations

import sys
from typing import Any


def generators_of_kernels() -> Any:
    """Return the state of the kernels' random number generator, to be restored; None if there are no kernels."""
    kernels = sys.modules.get("ampi.kernel.dispatcher")
    if "numba" not in sys.modules and not (kernels is not None and kernels.Kernel.exist):
        return None
    from ..kernel.runtime.random_state import Generators

    return Generators()


def told_generators() -> Any:
    """What `put_back_told_generators` takes, in another process as well."""
    found = generators_of_kernels()
    return None if found is None else found.own


def put_back_told_generators(told: Any) -> None:
    """Restore the state of the kernels' random number generator."""
    if told is not None:
        from ..kernel.runtime.random_state import Generators

        Generators(own=told).put_back()

"""The kernels' random number generator, which is a part of every state of a program."""

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


def generators_as_data() -> Any:
    """Return the state of the generator as data for `restore_generators`, also in another process."""
    found = generators_of_kernels()
    return None if found is None else found.own


def restore_generators(encoded: Any) -> None:
    """Restore the state of the kernels' random number generator."""
    if encoded is not None:
        from ..kernel.runtime.random_state import Generators

        Generators(own=encoded).put_back()

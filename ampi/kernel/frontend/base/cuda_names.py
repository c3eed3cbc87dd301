"""Stand-ins for the names of ``numba.cuda``, which the parser recognises in CUDA kernels; they need no CUDA."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np

from ampi.errors import KernelError

WARP = 32
"""Threads of a warp."""


class Mark:
    """A name of ``cuda`` that has a meaning inside kernels only."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __repr__(self) -> str:
        return f"cuda.{self.name}"

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise KernelError(f"cuda.{self.name} can be used only in CUDA kernels: launch one, kernel[grid, block](...)")


class Place(Mark):
    """An integer: a thread's position (``threadIdx.x``) or the size of the launch (``gridDim.x``)."""


class Axes(Mark):
    """Three integers: ``threadIdx``, ``blockIdx``, ``blockDim`` or ``gridDim``."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.x, self.y, self.z = (Place(f"{name}.{axis}") for axis in "xyz")


class Intrinsic(Mark):
    """A function of ``cuda``."""


def _intrinsics(*names: str) -> dict[str, Intrinsic]:
    return {name: Intrinsic(name) for name in names}


def _space(name: str, *functions: str) -> SimpleNamespace:
    return SimpleNamespace(**{f: Intrinsic(f"{name}.{f}") for f in functions})


ATOMICS = (
    "add",
    "sub",
    "max",
    "min",
    "nanmax",
    "nanmin",
    "and_",
    "or_",
    "xor",
    "exch",
    "inc",
    "dec",
    "cas",
    "compare_and_swap",
)

RANDOM = _space(
    "random", "xoroshiro128p_next", *(f"xoroshiro128p_{k}_float{n}" for k in ("uniform", "normal") for n in (32, 64))
)
NAMES: dict[str, Any] = {
    **{name: Axes(name) for name in ("threadIdx", "blockIdx", "blockDim", "gridDim")},
    "laneid": Place("laneid"),
    "warpsize": WARP,
    **_intrinsics("grid", "gridsize"),
    **_intrinsics("syncthreads", "syncthreads_count", "syncthreads_and", "syncthreads_or", "syncwarp"),
    **_intrinsics("threadfence", "threadfence_block", "threadfence_system"),
    **_intrinsics("shfl_sync", "shfl_up_sync", "shfl_down_sync", "shfl_xor_sync"),
    **_intrinsics(
        "all_sync",
        "any_sync",
        "eq_sync",
        "ballot_sync",
        "activemask",
        "lanemask_lt",
        "match_any_sync",
        "match_all_sync",
    ),
    **_intrinsics("fma", "selp", "rsqrt", "popc", "brev", "clz", "ffs", "nanosleep"),
    "cbrt": np.cbrt,
    "shared": _space("shared", "array"),
    "local": _space("local", "array"),
    "const": _space("const", "array_like"),
    "atomic": _space("atomic", *ATOMICS),
    "cg": _space("cg", "this_grid", "this_block"),
}


def stand_in(value: Any) -> Any:
    """The mark for a name of numba-cuda, or for its module; anything else unchanged."""
    if isinstance(value, ModuleType):
        return MODULE if value.__name__ in ("numba.cuda", "ampi.cuda") else value
    if (getattr(value, "__module__", None) or "").startswith("numba.cuda."):
        name = (getattr(value, "__qualname__", None) or getattr(value, "__name__", "")).partition(".")
        if value.__module__ == "numba.cuda.random" and name[0] not in NAMES:
            return getattr(RANDOM, name[0], Intrinsic(f"random.{name[0]}"))
        owner = NAMES.get(name[0])
        return owner if not name[2] or owner is None else getattr(owner, name[2], value)
    return value


class _Module:
    """The stand-in for the module ``numba.cuda`` while a kernel is parsed."""

    __name__ = "cuda"

    def __init__(self) -> None:
        vars(self).update(NAMES, random=RANDOM)


MODULE = _Module()

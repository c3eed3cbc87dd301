"""The states of the random generators of compiled code: save, compare and restore them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numba import _helperlib
from numba.core import config
from numba.extending import register_jitable
from numba.np.random.random_methods import random_interval


class _State(ctypes.Structure):
    """Numba's ``rnd_state_t``."""

    _fields_ = (
        ("index", ctypes.c_int),
        ("mt", ctypes.c_uint * 624),
        ("has_gauss", ctypes.c_int),
        ("gauss", ctypes.c_double),
        ("is_initialized", ctypes.c_int),
    )


class Generators:
    """The saved states of this thread's generators: Numba's for ``np.random``, and others.

    Parameters
    ----------
    others : sequence of numpy.random.Generator
        The generators among a kernel's arguments.
    own : bytes or dict, optional
        The state of Numba's generator; by default its current one.
    """

    __slots__ = ("_states", "others", "own")

    def __init__(self, others: Sequence[Any] = (), own: Any = None) -> None:
        self.others = others
        self.own = _taken() if own is None else own
        self._states = [g.bit_generator.state for g in others]

    def put_back(self) -> None:
        """Restore the states, so that the generators draw the same numbers again."""
        _put_back(self.own)
        for generator, state in zip(self.others, self._states):
            generator.bit_generator.state = state

    def are_current(self) -> bool:
        """Return whether the generators are in this state now."""
        states = [g.bit_generator.state for g in self.others]
        return _is_same(self.own, _taken()) and all(map(_is_same, self._states, states))


def _taken() -> Any:
    """The state of the generator of ``np.random``."""
    if config.DISABLE_JIT:
        return np.random.get_state(legacy=False)  # noqa: NPY002
    return ctypes.string_at(_helperlib.rnd_get_np_state_ptr(), ctypes.sizeof(_State))


def _put_back(state: Any) -> None:
    if config.DISABLE_JIT:
        np.random.set_state(state)  # noqa: NPY002
    else:
        ctypes.memmove(_helperlib.rnd_get_np_state_ptr(), state, ctypes.sizeof(_State))


def _is_same(first: Any, second: Any) -> bool:
    if isinstance(first, dict):
        return all(_is_same(value, second[name]) for name, value in first.items())
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    return bool(first == second)


@register_jitable
def seeded(seed):  # type: ignore[no-untyped-def]
    """Seed the generator of ``np.random``; return a number, which programs store like drawn ones."""
    np.random.seed(seed)  # noqa: NPY002
    return 0.0


@register_jitable
def interval(generator, largest):  # type: ignore[no-untyped-def]
    """A random integer from 0 to ``largest``, drawn as generators do to shuffle."""
    return np.intp(random_interval(generator.bit_generator, largest))

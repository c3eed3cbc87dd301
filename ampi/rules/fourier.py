"""`numpy.fft`: the adjoint of a Fourier transform is the inverse transform with the other normalisation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..arrays.activity import plain_of
from ..arrays.exact import exactly
from ..arrays.nested import from_nested
from ..base.missing_rules import no_rule
from ..base.structures import bound
from ..memory.storages import region_of, tracked, wrapped
from ..tape import BaseAdjoint, Push, Sweep, current

# The adjoint of a transform scaled by s is the inverse transform scaled by s: "forward" and "backward" are swapped.
ADJOINT_NORM = {None: "forward", "backward": "forward", "ortho": "ortho", "forward": "backward"}


class Transform(BaseAdjoint):
    """A transform along some axes of an array cropped or padded to ``lengths``."""

    __slots__ = ("axes", "forward", "inverse", "kind", "lengths", "norm", "result", "source")
    second_order = "linear"

    def __call__(self, sweep: Sweep) -> None:
        if sweep.has_shadow(self.result):
            g = sweep.shadow(self.result)
            sweep.add(self.source, resized(ADJOINTS[self.kind](self, g), self.axes, self.source.shape))

    def tangent(self, push: Push) -> None:
        """The transform of the tangent."""
        push.put(self.result, self.forward(push.get(self.source)))


def resized(x: np.ndarray, axes: tuple, shape: tuple) -> np.ndarray:
    """Crop or pad with zeros at the end of some axes."""
    for axis in axes:
        n = shape[axis]
        if x.shape[axis] > n:
            x = np.moveaxis(np.moveaxis(x, axis, 0)[:n], 0, axis)
        elif x.shape[axis] < n:
            widths = [(0, 0)] * x.ndim
            widths[axis] = (0, n - x.shape[axis])
            x = np.pad(x, widths)
    return x


def _complex_adjoint(t: Transform, g: np.ndarray) -> np.ndarray:
    back = np.fft.fftn if t.inverse else np.fft.ifftn
    return back(g, axes=t.axes, norm=ADJOINT_NORM[t.norm])


def _from_real_adjoint(t: Transform, g: np.ndarray) -> np.ndarray:
    # The half spectrum is the cropped full one: its adjoint is padded with zeros.
    last = t.axes[-1]
    shape = list(g.shape)
    shape[last] = t.lengths[-1]
    return np.fft.ifftn(resized(g, (last,), tuple(shape)), axes=t.axes, norm=ADJOINT_NORM[t.norm]).real


def _to_real_adjoint(t: Transform, g: np.ndarray) -> np.ndarray:
    # Each frequency of the half spectrum except the first (and the last, for an even length) represents two.
    last, n = t.axes[-1], t.lengths[-1]
    norm = ADJOINT_NORM[t.norm]
    half = np.moveaxis(np.fft.rfft(g, axis=last, norm=norm), last, -1)
    half[..., 1 : (n + 1) // 2] *= 2
    half = np.moveaxis(half, -1, last)
    return np.fft.fftn(half, axes=t.axes[:-1], norm=norm) if len(t.axes) > 1 else half


ADJOINTS: dict[str, Callable] = {
    "complex": _complex_adjoint,
    "from real": _from_real_adjoint,
    "to real": _to_real_adjoint,
}


def _rule(function: Callable, kind: str, inverse: bool) -> Callable:
    single = not function.__name__.endswith(("2", "n"))
    names = "a n axis norm" if single else "a s axes norm"
    default = {"n": None, "axis": -1} if single else {"s": None, "axes": (-2, -1) if "2" in function.__name__ else None}

    def rule(*arguments: Any, **keywords: Any) -> Any:
        given = {**default, "norm": None, **bound(f"{names} out", arguments, keywords)}
        a = tracked(np.asanyarray(from_nested(given["a"])))
        tape = current()
        assert tape is not None
        options = [given[name] for name in names.split()[1:]]
        result = wrapped(function(plain_of(a), *options))
        record = Transform()
        record.forward = lambda a_dot: function(a_dot, *options)
        record.kind, record.inverse, record.norm = kind, inverse, given["norm"]
        wanted = (None if given["n"] is None else (given["n"],)) if single else given["s"]
        record.axes = axes_of((given["axis"],) if single else given["axes"], wanted, a.ndim)
        if len(set(record.axes)) < len(record.axes) and (kind != "complex" or wanted is not None):
            raise no_rule(function, f" for repeated axes {given['axes']} (transform one axis after the other)")
        record.lengths = lengths_of(wanted, record.axes, a.shape, result.shape, kind)
        record.source = region_of(a)
        record.result = region_of(result)
        tape.activate(result)
        tape.append(record, created=(result,))
        return result

    return rule


def axes_of(axes: Any, wanted: Any, ndim: int) -> tuple:
    """The axes of a transform."""
    if axes is None:
        axes = range(ndim) if wanted is None else range(ndim - len(wanted), ndim)
    return tuple(k % ndim for k in axes)


def lengths_of(wanted: Any, axes: tuple, shape: tuple, result_shape: tuple, kind: str) -> tuple:
    """Lengths of the transforms, which a half spectrum does not determine."""
    lengths = [result_shape[k] for k in axes]
    if kind == "from real":
        lengths[-1] = shape[axes[-1]] if wanted is None or wanted[-1] in (None, -1) else wanted[-1]
    return tuple(lengths)


def _of_conjugate(function: Callable, transform: Callable, before: bool) -> Callable:
    """A transform of the conjugate, or its conjugate, with the other normalisation."""

    @exactly(function)
    def rule(a: Any, n: Any = None, axis: Any = -1, norm: Any = None, out: None = None) -> Any:
        a = tracked(np.asanyarray(from_nested(a)))
        found = transform(np.conj(a) if before else a, n, axis, ADJOINT_NORM[norm])
        return found if before else np.conj(found)

    return rule


KINDS: dict[Callable, tuple[str, bool]] = {
    np.fft.fft: ("complex", False),
    np.fft.ifft: ("complex", True),
    np.fft.fft2: ("complex", False),
    np.fft.ifft2: ("complex", True),
    np.fft.fftn: ("complex", False),
    np.fft.ifftn: ("complex", True),
    np.fft.rfft: ("from real", False),
    np.fft.rfft2: ("from real", False),
    np.fft.rfftn: ("from real", False),
    np.fft.irfft: ("to real", True),
    np.fft.irfft2: ("to real", True),
    np.fft.irfftn: ("to real", True),
}
"""The transforms, whether they are of complex numbers, and whether they are inverse."""
RULES: dict[Callable, Callable] = {
    np.fft.hfft: _of_conjugate(np.fft.hfft, np.fft.irfft, True),
    np.fft.ihfft: _of_conjugate(np.fft.ihfft, np.fft.rfft, False),
    **{function: _rule(function, *kind) for function, kind in KINDS.items()},
}

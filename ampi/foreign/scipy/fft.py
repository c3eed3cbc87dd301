"""`scipy.fft`: the adjoint of a transform is the inverse transform with the other normalisation.

The public functions are multimethods, which call the functions of two backend modules: these have the rules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
from scipy.fft import _basic_backend, _fftlog_backend, _realtransforms_backend

from ...interception.hooks import hook
from ...rules.definitions import define
from ...rules.fourier import ADJOINT_NORM, resized
from . import guards


def _axes(shape: tuple, s: Any, axes: Any) -> tuple:
    ndim = len(shape)
    if axes is None:
        axes = range(ndim) if s is None else range(ndim - np.size(s), ndim)
    return tuple(k % ndim for k in np.atleast_1d(axes))


def _complex(inverse: bool) -> Callable:
    back = scipy.fft.fftn if inverse else scipy.fft.ifftn

    def adjoint(g: Any, shape: Any, s: Any, axes: Any, norm: Any) -> Any:
        axes = _axes(shape, s, axes)
        return resized(back(g, axes=axes, norm=ADJOINT_NORM[norm]), axes, shape) if axes else g

    return adjoint


def _from_real(conjugate: bool) -> Callable:
    def adjoint(g: Any, shape: Any, s: Any, axes: Any, norm: Any) -> Any:
        # The half spectrum is the cropped full one: its adjoint is padded with zeros.
        axes = _axes(shape, s, axes)
        if conjugate:
            g, norm = np.conj(g), ADJOINT_NORM[norm]
        full = list(g.shape)
        length = -1 if s is None else np.atleast_1d(s)[-1]
        full[axes[-1]] = shape[axes[-1]] if length == -1 else length
        found = scipy.fft.ifftn(resized(g, axes[-1:], tuple(full)), axes=axes, norm=ADJOINT_NORM[norm]).real
        return resized(found, axes, shape)

    return adjoint


def _to_real(conjugate: bool) -> Callable:
    def adjoint(g: Any, shape: Any, s: Any, axes: Any, norm: Any) -> Any:
        # Each frequency of the half spectrum except the first (and the last, for an even length) represents two.
        axes = _axes(shape, s, axes)
        norm = norm if conjugate else ADJOINT_NORM[norm]
        last, n = axes[-1], g.shape[axes[-1]]
        norm = ADJOINT_NORM[norm]
        half = np.moveaxis(scipy.fft.rfft(g, axis=last, norm=ADJOINT_NORM[norm]), last, -1)
        half[..., 1 : (n + 1) // 2] *= 2
        half = np.moveaxis(half, -1, last)
        if len(axes) > 1:
            half = scipy.fft.fftn(half, axes=axes[:-1], norm=ADJOINT_NORM[norm])
        return resized(np.conj(half) if conjugate else half, axes, shape)

    return adjoint


# ---------------------------------------------------------------------------------------------- cosines and sines


def _transposed(g: np.ndarray, axis: int, kind: str, type: int, norm: Any, orthogonalize: Any) -> np.ndarray:
    """Apply the transpose of a real transform along one axis.

    With ``orthogonalize`` a transform is a multiple of an orthogonal one, whose transpose has the inverse type; without
    it, the ends of the axis have other weights.
    """
    transform = getattr(scipy.fft, kind)
    orthogonalize = norm == "ortho" if orthogonalize is None else orthogonalize
    other = {1: 1, 2: 3, 3: 2, 4: 4}[type]
    if orthogonalize:
        return transform(g, other, axis=axis, norm=norm, orthogonalize=True)
    if type == 4 or (type == 1 and kind == "dst"):
        return transform(g, type, axis=axis, norm=norm, orthogonalize=False)
    ends = (0, -1) if type == 1 else (0,) if kind == "dct" else (-1,)
    before = 2 if type in (1, 2) else 1
    after = 0.5 if type in (1, 3) else 1
    g = _ends_times(g, axis, ends, before)
    return _ends_times(transform(g, other, axis=axis, norm=norm, orthogonalize=False), axis, ends, after)


def _ends_times(x: np.ndarray, axis: int, ends: tuple, factor: float) -> np.ndarray:
    if factor == 1:
        return x
    weights = np.ones(x.shape[axis], x.real.dtype)
    weights[list(ends)] *= factor
    return x * weights.reshape([-1 if k == axis else 1 for k in range(x.ndim)])


_OF_REAL_ONLY = not np.allclose(
    scipy.fft.dct(np.ones(2) + 0j, orthogonalize=True), scipy.fft.dct(np.ones(2), orthogonalize=True)
)
"""SciPy ignores ``orthogonalize`` for complex numbers."""


def _real_transform(kind: str, inverse: bool) -> Callable:
    def adjoint(g: Any, shape: Any, type: int, s: Any, axes: Any, norm: Any, orthogonalize: Any) -> Any:
        if inverse:
            type, norm = {1: 1, 2: 3, 3: 2, 4: 4}[type], norm if norm == "ortho" else ADJOINT_NORM[norm]
        axes = _axes(shape, s, axes)
        if _OF_REAL_ONLY and np.iscomplexobj(g):
            orthogonalize = None
        for axis in axes:
            g = _transposed(g, axis, kind, type, norm, orthogonalize)
        return resized(g, axes, shape)

    return adjoint


def _install(module: Any, name: str, adjoint: Callable) -> None:
    function = getattr(module, name)
    real = module is _realtransforms_backend
    if name.endswith(("n", "2")):
        if real:
            found = lambda g, shape, type, s, axes, norm, orthogonalize: adjoint(
                g, shape, type, s, axes, norm, orthogonalize
            )
        else:
            found = lambda g, shape, s, axes, norm: adjoint(g, shape, s, axes, norm)
    elif real:
        found = lambda g, shape, type, n, axis, norm, orthogonalize: adjoint(
            g, shape, type, None if n is None else (n,), (axis,), norm, orthogonalize
        )
    else:
        found = lambda g, shape, n, axis, norm: adjoint(g, shape, None if n is None else (n,), (axis,), norm)
    define(function, adjoint={"x": found})
    hook(function, None).name = f"scipy.fft.{name}"


for _end in ("", "2", "n"):
    _install(_basic_backend, f"fft{_end}", _complex(False))
    _install(_basic_backend, f"ifft{_end}", _complex(True))
    _install(_basic_backend, f"rfft{_end}", _from_real(False))
    _install(_basic_backend, f"irfft{_end}", _to_real(False))
    _install(_basic_backend, f"hfft{_end}", _to_real(True))
    _install(_basic_backend, f"ihfft{_end}", _from_real(True))
for _end in ("", "n"):
    for _kind in ("dct", "dst"):
        _install(_realtransforms_backend, f"{_kind}{_end}", _real_transform(_kind, False))
        _install(_realtransforms_backend, f"i{_kind}{_end}", _real_transform(_kind, True))
for _name in ("fht", "ifht"):
    hook(getattr(_fftlog_backend, _name), guards.refuse, f"scipy.fft.{_name}")

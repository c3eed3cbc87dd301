"""`scipy.signal`: convolutions and linear filters, differentiated also with respect to coefficients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.fft
import scipy.ndimage as nd
import scipy.signal as sg

from ...arrays.activity import plain_of
from ...arrays.elementwise import unbroadcast
from ...memory.storages import TrackedArray
from ...rules.definitions import any_active, define, refusal
from ...tape import current
from .tracked_arrays import as_tracked, axes_of, zeros

# --------------------------------------------------------------------------------------------------------- convolutions


def _widened(g: Any, a: tuple, b: tuple, axes: tuple, mode: str) -> Any:
    """Return the adjoint of the full convolution from that of a part of it."""
    if mode == "full":
        return g
    full, key = list(g.shape), [slice(None)] * g.ndim
    for axis in axes:
        full[axis] = a[axis] + b[axis] - 1
        start = b[axis] // 2 if mode == "same as correlate2d" else (full[axis] - g.shape[axis]) // 2
        key[axis] = slice(start, start + g.shape[axis])
    wide = zeros(full, g.dtype, g)
    wide[tuple(key)] = g
    return wide


def _convolution_bar(
    g: Any, own: tuple, other: Any, first: tuple, second: tuple, axes: tuple, mode: str, method: str | None
) -> Any:
    """Return the adjoint of one factor of a convolution: the correlation with the other one.

    It is computed by the same method: Fourier transforms give small elements the error of large ones.
    """
    wide = _widened(g, first, second, axes, mode)
    reversed_other = np.conj(np.flip(other, axes))
    if method is not None and wide.size and reversed_other.size:
        return sg.convolve(wide, reversed_other, "valid", method)
    found = sg.fftconvolve(wide, reversed_other, axes=axes) if wide.size and reversed_other.size else np.zeros(own)
    key = [slice(None)] * found.ndim
    for axis in axes:
        start = other.shape[axis] - 1
        key[axis] = slice(start, start + own[axis])
    return unbroadcast(found[tuple(key)], own)


def _factors(correlation: bool, several: bool, same: str = "same") -> dict[str, Callable]:
    def of_first(g: Any, in1: Any, in2: Any, mode: Any, axes: Any, method: Any = None) -> Any:
        mode = same if mode == "same" else mode
        other = np.conj(np.flip(in2, axes)) if correlation else in2
        return _convolution_bar(g, in1.shape, other, in1.shape, in2.shape, axes, mode, method)

    def of_second(g: Any, in1: Any, in2: Any, mode: Any, axes: Any, method: Any = None) -> Any:
        mode = same if mode == "same" else mode
        found = _convolution_bar(g, in2.shape, in1, in1.shape, in2.shape, axes, mode, method)
        return np.conj(np.flip(found, axes)) if correlation else found

    if several:
        return {
            "in1": lambda g, in1, in2, mode, axes: of_first(g, in1, in2, mode, axes_of(axes, g.ndim)),
            "in2": lambda g, in1, in2, mode, axes: of_second(g, in1, in2, mode, axes_of(axes, g.ndim)),
        }

    def along_all(of: Callable, g: Any, in1: Any, in2: Any, mode: Any, method: Any) -> Any:
        return of(g, np.asarray(in1), np.asarray(in2), mode, axes_of(None, np.ndim(g)), method)

    if same != "same":  # in a plane
        return {
            "in1": lambda g, in1, in2, mode: along_all(of_first, g, in1, in2, mode, "direct"),
            "in2": lambda g, in1, in2, mode: along_all(of_second, g, in1, in2, mode, "direct"),
        }
    return {
        "in1": lambda g, in1, in2, mode, method: along_all(of_first, g, in1, in2, mode, method),
        "in2": lambda g, in1, in2, mode, method: along_all(of_second, g, in1, in2, mode, method),
    }


def _larger_first(name: str) -> Callable:
    def require(in1: Any, in2: Any, mode: Any) -> None:
        if mode != "full" and any(m < n for m, n in zip(np.shape(in1), np.shape(in2))):
            raise refusal(f"scipy.signal.{name}", f" for mode={mode!r} and an in2 that is larger than in1")

    return require


for _name in ("convolve", "correlate"):
    define(getattr(sg, _name), adjoint=_factors(_name == "correlate", False), require=_larger_first(_name))
for _name in ("fftconvolve", "oaconvolve"):
    define(getattr(sg, _name), adjoint=_factors(False, True), require=_larger_first(_name))


def _zero_around(name: str, boundary: Any, fillvalue: Any) -> None:
    if boundary not in ("fill", "pad") or np.any(fillvalue):
        raise refusal(f"scipy.signal.{name}", " for a boundary that is not filled with zeros")


def _plane(name: str) -> None:
    def require(in1: Any, in2: Any, mode: Any, boundary: Any, fillvalue: Any) -> None:
        _zero_around(name, boundary, fillvalue)
        _larger_first(name)(in1, in2, mode)

    define(getattr(sg, name), adjoint=_factors(name == "correlate2d", False, f"same as {name}"), require=require)


for _name in ("convolve2d", "correlate2d"):
    _plane(_name)


# -------------------------------------------------------------------------------------------------------------- filters


def _backwards(b: Any, a: Any, g: Any, axis: int) -> Any:
    """The transpose of a filter without initial state: the same filter backwards in time."""
    return np.flip(sg.lfilter(np.conj(b), np.conj(a), np.flip(g, axis), axis), axis)


def _coefficients(w: Any, x: Any, count: int, axis: int) -> Any:
    """Σ_n w[n] x̄[n - k] for k < count."""
    w, x = np.moveaxis(w, axis, -1), np.moveaxis(x, axis, -1)
    n = w.shape[-1]
    sums = [(w[..., k:] * np.conj(x[..., : max(n - k, 0)])).sum() for k in range(count)]
    return np.stack(sums) if isinstance(w, TrackedArray) else np.array(sums)


def _of_b(g: Any, b: Any, a: Any, x: Any, axis: Any) -> Any:
    found = _coefficients(_backwards([1.0], a, g, axis), x, np.size(b), axis)
    return found.reshape(np.shape(b))


def _of_a(g: Any, a: Any, axis: Any, result: Any) -> Any:
    return -_coefficients(_backwards([1.0], a, g, axis), result, np.size(a), axis).reshape(np.shape(a))


_lfilter_at_rest = {
    "x": lambda g, b, a, axis: _backwards(b, a, g, axis),
    "b": _of_b,
    "a": _of_a,
}


def _from_rest(b: Any, a: Any, x: Any, axis: int = -1) -> Any:
    """`lfilter` without an initial state."""
    return sg.lfilter(plain_of(b), plain_of(a), plain_of(x), axis)


define(_from_rest, adjoint=_lfilter_at_rest)


@define(sg.lfilter)
def _lfilter(b: Any, a: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    b, a = (np.atleast_1d(v) if isinstance(v, np.ndarray) else np.atleast_1d(as_tracked(v)) for v in (b, a))
    x = as_tracked(x)
    if zi is None:
        return _from_rest(b, a, x, axis)
    # An initial state acts as the first inputs of the filter without its zeros (numerator a[0]).
    zi, n, order = as_tracked(zi), x.shape[axis], max(len(b), len(a)) - 1
    if n < order:
        raise refusal("scipy.signal.lfilter", " for fewer values than its state has")
    zi = np.broadcast_to(zi, tuple(order if k == axis % x.ndim else m for k, m in enumerate(x.shape)))
    rest = [(0, n - order if k == axis % x.ndim else 0) for k in range(x.ndim)]
    y = _from_rest(b, a, x, axis) + _from_rest(a[:1], a, np.pad(zi, rest), axis)
    return y, _final_state(b, a, np.moveaxis(x, axis, -1), np.moveaxis(y, axis, -1), order, axis)


def _final_state(b: Any, a: Any, x: Any, y: Any, order: int, axis: int) -> Any:
    b, a = b / a[0], a / a[0]
    states = []
    for m in range(order):
        total = 0.0
        for k in range(order - m):
            if m + 1 + k < len(b):
                total = total + b[m + 1 + k] * x[..., x.shape[-1] - 1 - k]
            if m + 1 + k < len(a):
                total = total - a[m + 1 + k] * y[..., y.shape[-1] - 1 - k]
        states.append(total)
    return np.moveaxis(np.stack(states, -1), -1, axis) if states else np.zeros((*x.shape[:-1], 0))


@define(sg.sosfilt)
def _sosfilt(sos: Any, x: Any, axis: int = -1, zi: Any = None) -> Any:
    sos, x, finals = as_tracked(sos), as_tracked(x), []
    for k in range(len(sos)):
        if zi is None:
            x = sg.lfilter(sos[k, :3], sos[k, 3:], x, axis)
        else:
            x, final = sg.lfilter(sos[k, :3], sos[k, 3:], x, axis, zi[k])
            finals.append(final)
    return x if zi is None else (x, np.stack(finals))


def _extended(x: Any, axis: int, padtype: Any, edge: int) -> Any:
    if padtype is None or edge == 0:
        return x
    x = np.moveaxis(x, axis, -1)
    left, right = x[..., edge:0:-1], x[..., -2 : -(edge + 2) : -1]
    if padtype == "odd":
        left, right = 2 * x[..., :1] - left, 2 * x[..., -1:] - right
    elif padtype == "constant":
        left, right = np.repeat(x[..., :1], edge, -1), np.repeat(x[..., -1:], edge, -1)
    return np.moveaxis(np.concatenate([left, x, right], -1), -1, axis)


def _both_ways(x: Any, axis: int, padtype: Any, edge: int, zi: Any, run: Callable) -> Any:
    wide = np.moveaxis(_extended(x, axis, padtype, edge), axis, -1)
    y = run(wide, zi, wide[..., :1])
    y = run(y[..., ::-1], zi, y[..., -1:])[..., ::-1]
    y = y[..., edge : y.shape[-1] - edge] if edge and padtype is not None else y
    return np.moveaxis(y, -1, axis)


@define(sg.filtfilt)
def _filtfilt(
    b: Any,
    a: Any,
    x: Any,
    axis: int = -1,
    padtype: Any = "odd",
    padlen: Any = None,
    method: str = "pad",
    irlen: Any = None,
) -> Any:
    if method != "pad":
        raise refusal("scipy.signal.filtfilt", f" for method={method!r}")
    if any_active(current(), b, a):
        raise refusal("scipy.signal.filtfilt", " with respect to its coefficients")
    b, a = np.atleast_1d(plain_of(b)), np.atleast_1d(plain_of(a))
    edge = 3 * max(len(a), len(b)) if padlen is None else int(padlen)
    run = lambda x, zi, first: sg.lfilter(b, a, x, zi=zi * first)[0]
    return _both_ways(as_tracked(x), axis, padtype, 0 if padtype is None else edge, sg.lfilter_zi(b, a), run)


@define(sg.sosfiltfilt)
def _sosfiltfilt(sos: Any, x: Any, axis: int = -1, padtype: Any = "odd", padlen: Any = None) -> Any:
    if any_active(current(), sos):
        raise refusal("scipy.signal.sosfiltfilt", " with respect to its coefficients")
    sos, x = np.asarray(plain_of(sos)), as_tracked(x)
    taps = 2 * len(sos) + 1 - min((sos[:, 2] == 0).sum(), (sos[:, 5] == 0).sum())
    edge = 0 if padtype is None else 3 * taps if padlen is None else int(padlen)
    zi = sg.sosfilt_zi(sos)
    zi = zi.reshape((len(sos), *[1] * (x.ndim - 1), 2))
    return _both_ways(x, axis, padtype, int(edge), zi, lambda x, zi, first: sg.sosfilt(sos, x, zi=zi * first)[0])


@define(sg.savgol_filter)
def _savgol_filter(
    x: Any,
    window_length: int,
    polyorder: int,
    deriv: int = 0,
    delta: float = 1.0,
    axis: int = -1,
    mode: str = "interp",
    cval: float = 0.0,
) -> Any:
    x = as_tracked(x)
    weights = sg.savgol_coeffs(window_length, polyorder, deriv=deriv, delta=delta)
    if mode != "interp":
        return nd.convolve1d(x, weights, axis, mode=mode, cval=cval)
    y = np.moveaxis(nd.convolve1d(x, weights, axis, mode="constant"), axis, -1)
    x = np.moveaxis(x, axis, -1)
    half, t = window_length // 2, np.arange(window_length)
    fit = np.linalg.pinv(np.vander(t, polyorder + 1))
    values = np.array([np.polyval(np.polyder(p, deriv), t) for p in np.eye(polyorder + 1)]).T / delta**deriv
    ends = values @ fit  # values of the polynomial that fits a window
    first = np.matmul(x[..., :window_length], ends[:half].T)
    last = np.matmul(x[..., -window_length:], ends[window_length - half :].T)
    return np.moveaxis(np.concatenate([first, y[..., half : y.shape[-1] - half], last], -1), -1, axis)


define(  # subtracts a projection, so it is its own transpose
    sg.detrend,
    adjoint={"data": lambda g, axis, type, bp: sg.detrend(np.asanyarray(g), axis, type, bp)},
)


@define(sg.hilbert)
def _hilbert(x: Any, N: Any = None, axis: int = -1) -> Any:
    x = as_tracked(x)
    n = x.shape[axis] if N is None else N
    weights = np.zeros(n)
    weights[0] = 1
    weights[1 : (n + 1) // 2] = 2
    if n % 2 == 0:
        weights[n // 2] = 1
    shape = [1] * x.ndim
    shape[axis] = n
    return scipy.fft.ifft(scipy.fft.fft(x, n, axis) * weights.reshape(shape), axis=axis)

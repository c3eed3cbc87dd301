"""`scipy.ndimage`: linear filters and interpolation of low order.

The adjoint of a filter distributes each output over the elements that it depends on; contributions to the extension
beyond the borders are added to the elements that were extended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.ndimage as nd

from ...rules.definitions import define, refusal
from .tracked_arrays import as_tracked, axes_of, zeros

_ALIASES = {"grid-mirror": "reflect", "grid-wrap": "wrap", "grid-constant": "constant"}


def _places(k: Any, n: int, mode: str) -> Any:
    """Return for each position the index of the element that it repeats, on an axis of length n; -1 for none."""
    mode = _ALIASES.get(mode, mode)
    if mode == "reflect":
        k = k % (2 * n)
        return np.where(k >= n, 2 * n - 1 - k, k)
    if mode == "mirror":
        if n == 1:
            return np.zeros_like(k)
        k = k % (2 * n - 2)
        return np.where(k >= n, 2 * n - 2 - k, k)
    if mode == "nearest":
        return np.clip(k, 0, n - 1)
    if mode == "wrap":
        return k % n
    return np.where((k < 0) | (k >= n), -1, k)


def _folded(wide: Any, axis: int, n: int, before: int, mode: str) -> Any:
    """Return the adjoint of an axis from that of the extended axis."""
    places = _places(np.arange(wide.shape[axis]) - before, n, mode)
    moved = np.moveaxis(wide, axis, 0)[places >= 0]
    found = zeros((n, *moved.shape[1:]), wide.dtype, wide)
    np.add.at(found, places[places >= 0], moved)
    return np.moveaxis(found, 0, axis)


def _per_axis(x: Any, count: int) -> list:
    return list(x) if np.ndim(x) or isinstance(x, (list, tuple)) else [x] * count


def _spread(g: Any, weights: Any, axes: tuple, mode: Any, origins: list, shape: tuple) -> Any:
    """Adjoint of result[i] = Σ_j weights[j] x[i + j - size // 2 - origin] along some axes."""
    modes = _per_axis(mode, len(axes))
    wide_shape = list(g.shape)
    for axis, n in zip(axes, weights.shape):
        wide_shape[axis] += n - 1
    wide = zeros(wide_shape, np.result_type(g, weights), g)
    for j in np.ndindex(weights.shape):
        if weights[j]:
            key = [slice(None)] * g.ndim
            for axis, k in zip(axes, j):
                key[axis] = slice(k, k + g.shape[axis])
            wide[tuple(key)] += np.conj(weights[j]) * g
    for axis, n, origin, mode_ in zip(axes, weights.shape, origins, modes):
        wide = _folded(wide, axis, shape[axis], n // 2 + origin, mode_)
    return wide


def _of_weights(g: Any, x: Any, weights: Any, axes: tuple, mode: Any, origins: list, cval: Any) -> Any:
    """The adjoint of the weights of a correlation without conjugation."""
    modes = _per_axis(mode, len(axes))
    for axis, n, origin, mode_ in zip(axes, weights.shape, origins, modes):
        places = _places(np.arange(x.shape[axis] + n - 1) - n // 2 - origin, x.shape[axis], mode_)
        moved = np.moveaxis(x, axis, 0)[places]
        moved[places < 0] = cval
        x = np.moveaxis(moved, 0, axis)
    found = zeros(weights.shape, np.result_type(g, x), g)
    for j in np.ndindex(weights.shape):
        key = [slice(None)] * g.ndim
        for axis, k in zip(axes, j):
            key[axis] = slice(k, k + g.shape[axis])
        found[j] = np.vdot(g, x[tuple(key)]).conj() if np.iscomplexobj(g) else (g * x[tuple(key)]).sum()
    return found if np.iscomplexobj(weights) else found.real


def _as_correlation(weights: Any, origins: list, convolution: bool) -> tuple:
    """Express a convolution or correlation as a correlation without conjugation; return its weights and origins."""
    weights = np.asarray(weights)
    if not convolution:
        return np.conj(weights), origins
    flipped = weights[(slice(None, None, -1),) * weights.ndim]
    return flipped, [-o - (1 - n % 2) for o, n in zip(origins, weights.shape)]


def _along_one(convolution: bool) -> dict[str, Callable]:
    def of_input(g: Any, shape: Any, weights: Any, axis: Any, mode: Any, origin: Any) -> Any:
        weights, origins = _as_correlation(weights, [origin], convolution)
        return _spread(g, weights, (axis % len(shape),), mode, origins, shape)

    def of_weights(g: Any, input: Any, weights: Any, axis: Any, mode: Any, origin: Any, cval: Any) -> Any:
        reversed_weights, origins = _as_correlation(weights, [origin], convolution)
        found = _of_weights(g, input, reversed_weights, (axis % input.ndim,), mode, origins, cval)
        return found[::-1] if convolution else np.conj(found)

    return {"input": of_input, "weights": of_weights}


def _along_all(convolution: bool) -> dict[str, Callable]:
    def of_input(g: Any, shape: Any, weights: Any, mode: Any, origin: Any, axes: Any) -> Any:
        axes = axes_of(axes, len(shape))
        weights, origins = _as_correlation(weights, _per_axis(origin, len(axes)), convolution)
        return _spread(g, weights, axes, mode, origins, shape)

    def of_weights(g: Any, input: Any, weights: Any, mode: Any, origin: Any, axes: Any, cval: Any) -> Any:
        axes = axes_of(axes, input.ndim)
        reversed_weights, origins = _as_correlation(weights, _per_axis(origin, len(axes)), convolution)
        found = _of_weights(g, input, reversed_weights, axes, mode, origins, cval)
        return found[(slice(None, None, -1),) * found.ndim] if convolution else np.conj(found)

    return {"input": of_input, "weights": of_weights}


define(nd.correlate1d, adjoint=_along_one(False))
define(nd.convolve1d, adjoint=_along_one(True))
define(nd.correlate, adjoint=_along_all(False))
define(nd.convolve, adjoint=_along_all(True))
define(
    nd.uniform_filter1d,
    adjoint={
        "input": lambda g, shape, size, axis, mode, origin: _spread(
            g, np.full(size, 1.0 / size), (axis % len(shape),), mode, [origin], shape
        )
    },
)


# ---------------------------------------------------------------------------------------- compositions of these filters


@define(nd.uniform_filter)
def _uniform_filter(
    input: Any,
    size: Any = 3,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
) -> Any:
    input = as_tracked(input)
    axes = axes_of(axes, input.ndim)
    modes = _per_axis(mode, len(axes))
    result = input
    for axis, n, mode_, at in zip(axes, _per_axis(size, len(axes)), modes, _per_axis(origin, len(axes))):
        if n > 1:
            result = nd.uniform_filter1d(result, int(n), axis, output, mode_, cval, at)
    return result.copy() if result is input else result


@define(nd.gaussian_filter1d)
def _gaussian_filter1d(
    input: Any,
    sigma: Any,
    axis: int = -1,
    order: int = 0,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    truncate: float = 4.0,
    *,
    radius: Any = None,
) -> Any:
    radius = int(truncate * float(sigma) + 0.5) if radius is None else radius
    weights = nd._filters._gaussian_kernel1d(float(sigma), order, radius)[::-1]
    return nd.correlate1d(as_tracked(input), weights, axis, output, mode, cval, 0)


@define(nd.gaussian_filter)
def _gaussian_filter(
    input: Any,
    sigma: Any,
    order: Any = 0,
    output: Any = None,
    mode: Any = "reflect",
    cval: Any = 0.0,
    truncate: float = 4.0,
    *,
    radius: Any = None,
    axes: Any = None,
) -> Any:
    input = as_tracked(input)
    axes = axes_of(axes, input.ndim)
    modes = _per_axis(mode, len(axes))
    each = [_per_axis(x, len(axes)) for x in (sigma, order, radius)]
    result = input
    for axis, width, derivative, reach, mode_ in zip(axes, *each, modes):
        if width > 1e-15:
            result = nd.gaussian_filter1d(result, width, axis, derivative, output, mode_, cval, truncate, radius=reach)
    return result.copy() if result is input else result


def _differences(smooth: list) -> Callable:
    def filtered(input: Any, axis: int = -1, output: Any = None, mode: Any = "reflect", cval: Any = 0.0) -> Any:
        input = as_tracked(input)
        axis = axis % input.ndim
        modes = _per_axis(mode, input.ndim)
        result = nd.correlate1d(input, [-1, 0, 1], axis, output, modes[axis], cval, 0)
        for other in range(input.ndim):
            if other != axis:
                result = nd.correlate1d(result, smooth, other, output, modes[other], cval, 0)
        return result

    return filtered


define(nd.sobel, _differences([1, 2, 1]))
define(nd.prewitt, _differences([1, 1, 1]))


def _total(input: Any, axes: Any, mode: Any, of_axis: Callable) -> Any:
    axes = axes_of(axes, input.ndim)
    modes = _per_axis(mode, len(axes))
    result = 0
    for axis, mode_ in zip(axes, modes):
        result = result + of_axis(axis, mode_)
    return result


@define(nd.laplace)
def _laplace(input: Any, output: Any = None, mode: Any = "reflect", cval: Any = 0.0, *, axes: Any = None) -> Any:
    x = as_tracked(input)
    return _total(x, axes, mode, lambda axis, mode_: nd.correlate1d(x, [1, -2, 1], axis, output, mode_, cval, 0))


def _gaussians(combine: Callable, order: int) -> Callable:
    def filtered(
        input: Any,
        sigma: Any,
        output: Any = None,
        mode: Any = "reflect",
        cval: Any = 0.0,
        *,
        axes: Any = None,
        **keywords: Any,
    ) -> Any:
        x = as_tracked(input)

        widths = _per_axis(sigma, x.ndim)
        if order == 2 and axes is not None and len(axes_of(axes, x.ndim)) < x.ndim:  # no filter along other axes
            of_others = dict(zip(axes_of(axes, x.ndim), _per_axis(sigma, x.ndim)))
            widths = [of_others.get(axis, 0) for axis in range(x.ndim)]

        def of_axis(axis: int, mode_: Any) -> Any:
            orders = [order if other == axis else 0 for other in range(x.ndim)]
            return combine(nd.gaussian_filter(x, widths, orders, output, mode_, cval, **keywords))

        total = _total(x, axes, mode, of_axis)
        return total if order == 2 else np.sqrt(total)

    return filtered


define(nd.gaussian_laplace, _gaussians(lambda x: x, 2))
define(nd.gaussian_gradient_magnitude, _gaussians(lambda x: x * x, 1))

for _name, _size in {"gaussian": "sigma", "uniform": "size", "ellipsoid": "size", "shift": "shift"}.items():
    exec(
        f"define(nd.fourier_{_name}, adjoint={{'input': lambda g, {_size}, n, axis: "
        f"np.conj(nd.fourier_{_name}(np.conj(g), {_size}, n, axis))}})"
    )


# -------------------------------------------------------------------------------------------------------- interpolation


def _low_order(name: str) -> Callable:
    def require(order: Any, mode: Any) -> None:
        if order > 1 or mode not in ("constant", "nearest", "mirror", "reflect", "grid-wrap", "grid-constant"):
            raise refusal(f"scipy.ndimage.{name}", f" for order={order} and mode={mode!r}", "use order=0 or order=1")

    return require


def _scattered(g: Any, coordinates: Any, shape: tuple, order: int, mode: str, run: Callable) -> Any:
    """The adjoint of interpolation between the elements of an array; ``run(x, order, mode)`` interpolates x, with 0.

    At a jump (between two elements, or at a border) rounding decides: there SciPy is asked.
    """
    if order == 0:
        numbers = np.arange(1.0, np.prod(shape, dtype=int) + 1).reshape(shape)
        places = np.rint(run(numbers, 0, mode)).astype(np.intp) - 1
        flat = zeros((numbers.size,), g.dtype, g)
        np.add.at(flat, np.maximum(places, 0), np.where(places >= 0, g, 0))
        return flat.reshape(shape)
    inside = run(np.ones(shape), 1, mode) > 0.5 if mode == "constant" else np.ones(g.shape, bool)
    mode = "nearest" if mode == "constant" else mode
    taps = []
    for x, n in zip(coordinates, shape):
        x = np.asarray(x, float)
        if mode == "nearest":
            x = np.clip(x, 0, n - 1)
        low = np.floor(x).astype(np.intp)
        taps.append([(_places(low, n, mode), 1.0 - (x - low)), (_places(low + 1, n, mode), x - low)])
    found = zeros(shape, g.dtype, g)
    for choice in itertools.product(*taps):
        places = tuple(k for k, _ in choice)
        weight = np.ones(g.shape)
        for k, w in choice:
            weight = weight * np.where(k >= 0, w, 0)
        np.add.at(found, tuple(np.maximum(k, 0) for k in places), np.where(inside, g * weight, 0))
    return found


def _mapped(g: Any, shape: Any, coordinates: Any, order: Any, mode: Any) -> Any:
    run = lambda x, order, mode: nd.map_coordinates(x, coordinates, None, order, mode, prefilter=False)
    return _scattered(np.asanyarray(g), coordinates, shape, order, mode, run)


define(nd.map_coordinates, adjoint={"input": _mapped}, require=_low_order("map_coordinates"))


def _shifted(g: Any, shape: Any, shift: Any, order: Any, mode: Any) -> Any:
    run = lambda x, order, mode: nd.shift(x, shift, None, order, mode, prefilter=False)
    coordinates = [k - s for k, s in zip(np.indices(g.shape), _per_axis(shift, g.ndim))]
    return _scattered(g, coordinates, shape, order, mode, run)


define(nd.shift, adjoint={"input": _shifted}, require=_low_order("shift"))


def _zoomed(g: Any, shape: Any, zoom: Any, order: Any, mode: Any) -> Any:
    run = lambda x, order, mode: nd.zoom(x, zoom, None, order, mode, prefilter=False)
    steps = [(n - 1) / (m - 1) if m > 1 else 1.0 for n, m in zip(shape, g.shape)]
    return _scattered(g, [k * s for k, s in zip(np.indices(g.shape), steps)], shape, order, mode, run)


def _of_grid(order: Any, mode: Any, grid_mode: Any) -> None:
    if grid_mode:
        raise refusal("scipy.ndimage.zoom", " with grid_mode=True")
    _low_order("zoom")(order, mode)


define(nd.zoom, adjoint={"input": _zoomed}, require=_of_grid)


def _transformed(g: Any, shape: Any, matrix: Any, offset: Any, order: Any, mode: Any) -> Any:
    given = (matrix, offset, g.shape)
    run = lambda x, order, mode: nd.affine_transform(x, *given, None, order, mode, prefilter=False)
    matrix, n = np.asarray(matrix, float), len(shape)
    if matrix.ndim == 1:
        matrix = np.diag(matrix)
    if matrix.shape[1] == n + 1:
        matrix, offset = matrix[:n, :n], matrix[:n, n]
    coordinates = np.tensordot(matrix, np.indices(g.shape), 1)
    at = np.asarray(_per_axis(offset, n), float).reshape((n,) + (1,) * g.ndim)
    return _scattered(g, coordinates + at, shape, order, mode, run)


define(nd.affine_transform, adjoint={"input": _transformed}, require=_low_order("affine_transform"))

"""Test cases of NumPy's functions that have a derivative rule, by name."""

import numpy as np
import sample_cases
from derivative_check import random

REAL, BOTH = ("f",), ("f", "c")


class Case:
    """A function of arrays of given shapes with values between two bounds."""

    def __init__(self, f, *shapes, domain=(0.3, 0.9), kinds=BOTH, tolerance=2e-8):
        self.f = f
        self.shapes = shapes
        self.domain = domain
        self.kinds = kinds
        self.tolerance = tolerance

    def arguments(self, dtype):
        generator = np.random.default_rng(7)
        return [random(generator, shape, dtype, *self.domain) for shape in self.shapes]


def case(f, *shapes, **options):
    return Case(f, *shapes, **options)


V, M = (5,), (3, 4)
CROSS_IN_THE_PLANE = np.lib.NumpyVersion(np.__version__) < "2.5.0"  # later versions take vectors of length 3 only
MASK = np.array([True, False, True, True, False])
GRID = np.arange(12.0).reshape(3, 4) % 5 > 1
INDEX = np.array([[2, 0, 2], [1, 1, 0]])


def _unary(name, **options):
    return [case(getattr(np, name), M, **options)]


def _binary(name, shift=0.0, **options):
    # The shift keeps the arguments of an extremum apart.
    function = getattr(np, name)
    f = lambda x, y: function(x, y + shift) if shift else function(x, y)
    return [
        case(f, M, M, **options),
        case(f, M, (4,), **options),
        case(f, (3, 1), (1, 4), **options),
        case(lambda x: f(x, 0.7), M, **options),
        case(lambda x: f(0.4, x), M, **options),
        case(f, (), M, **options),
    ]


def _spd(x):
    """A well-conditioned Hermitian matrix made from a square one."""
    return x @ np.conj(np.swapaxes(x, -1, -2)) + np.diag(np.arange(1.0, x.shape[-1] + 1))


def _regular(x):
    """A well-conditioned matrix."""
    return x + 2.0 * np.eye(x.shape[-1])


def _ignoring_nan(name):
    return lambda x: getattr(np, name)(x + np.array([0.0, np.nan, 0.0, 0.0]), axis=1)


def _along(name, axis):
    return case(lambda x: getattr(np, name)(x, axis=axis), (2, 3, 4), kinds=REAL)


def _fft(name, *arguments, **keywords):
    return lambda x: getattr(np.fft, name)(x, *arguments, **keywords)


def _put_like(f):
    def run(x, v):
        y = x * 1.0
        f(y, v)
        return y * y

    return run


CASES = {
    # ------------------------------------------------------------------------------------------------ ufuncs
    "add": _binary("add"),
    "subtract": _binary("subtract"),
    "multiply": _binary("multiply"),
    "divide": _binary("divide"),
    "power": [
        *_binary("power"),
        case(lambda x: x**3, M),
        case(lambda x: x**2, M),
        case(lambda x: x**-1, M),
        case(lambda x: x**0.5, M),
        case(lambda x: x**0, M),
        case(lambda x: x ** np.arange(4), M),
    ],
    "float_power": _binary("float_power"),
    "remainder": [
        case(lambda x, y: np.remainder(x + 2.0, 1.0 + 0.1 * y), M, M, kinds=REAL),
        case(lambda x: x % 0.31, M, kinds=REAL),
        case(lambda x: 2.1 % (0.8 + 0.1 * x), V, kinds=REAL),
    ],
    "fmod": [
        case(lambda x, y: np.fmod(-x - 2.0, 1.0 + 0.1 * y), M, M, kinds=REAL),
        case(lambda x: np.fmod(-x, 0.31), M, kinds=REAL),
    ],
    "maximum": _binary("maximum", 0.025, kinds=REAL),
    "minimum": _binary("minimum", 0.025, kinds=REAL),
    "fmax": _binary("fmax", 0.025, kinds=REAL),
    "fmin": _binary("fmin", 0.025, kinds=REAL),
    "logaddexp": _binary("logaddexp", kinds=REAL),
    "logaddexp2": _binary("logaddexp2", kinds=REAL),
    "arctan2": _binary("arctan2", kinds=REAL),
    "hypot": _binary("hypot", kinds=REAL),
    "nextafter": [case(np.nextafter, M, M, kinds=REAL), case(lambda x: np.nextafter(x, 9.0), M, kinds=REAL)],
    "heaviside": [case(lambda x: np.heaviside(np.array([0.0, 1.0, 0.0, -1.0]), x), M, kinds=REAL)],
    "copysign": [
        case(lambda x: np.copysign(x, np.array([1.0, -1.0, 1.0, -2.0])), M, kinds=REAL),
        case(lambda x: np.copysign(-x, x), M, kinds=REAL),
    ],
    "ldexp": [case(lambda x: np.ldexp(x, np.array([1, 2, -1, 0])), M, kinds=REAL)],
    "negative": _unary("negative"),
    "positive": _unary("positive"),
    "fabs": [case(lambda x: np.fabs(x - 0.6), M, kinds=REAL)],
    "absolute": [*_unary("absolute"), case(lambda x: abs(x - 0.6), M)],
    "sqrt": _unary("sqrt"),
    "cbrt": _unary("cbrt", kinds=REAL),
    "square": _unary("square"),
    "reciprocal": _unary("reciprocal"),
    "exp": _unary("exp"),
    "exp2": _unary("exp2"),
    "expm1": _unary("expm1"),
    "log": _unary("log"),
    "log2": _unary("log2"),
    "log10": _unary("log10"),
    "log1p": _unary("log1p"),
    "sin": _unary("sin"),
    "cos": _unary("cos"),
    "tan": _unary("tan"),
    "arcsin": _unary("arcsin"),
    "arccos": _unary("arccos"),
    "arctan": _unary("arctan"),
    "sinh": _unary("sinh"),
    "cosh": _unary("cosh"),
    "tanh": _unary("tanh"),
    "arcsinh": _unary("arcsinh"),
    "arccosh": [case(np.arccosh, M, domain=(1.2, 2.0)), case(np.arccosh, M, kinds=("c",))],
    "arctanh": _unary("arctanh"),
    "degrees": _unary("degrees", kinds=REAL),
    "rad2deg": _unary("rad2deg", kinds=REAL),
    "radians": _unary("radians", kinds=REAL),
    "deg2rad": _unary("deg2rad", kinds=REAL),
    "conjugate": _unary("conjugate"),
    "clip": [
        case(lambda x: np.clip(x, 0.45, 0.7), M, kinds=REAL),
        case(lambda x, a: np.clip(x, a, a + 0.2), M, (4,), kinds=REAL),
        case(lambda x: x.clip(0.5), M, kinds=REAL),
        case(lambda x: x.clip(max=0.5), M, kinds=REAL),
    ],
    "divmod": [case(lambda x: np.divmod(x, 0.31)[1], M, kinds=REAL)],
    "modf": [case(lambda x: np.modf(3.0 * x), M, kinds=REAL)],
    "frexp": [case(lambda x: np.frexp(x)[0], M, domain=(0.55, 0.9), kinds=REAL)],
    "matmul": [
        case(np.matmul, M, (4, 2)),
        case(np.matmul, (4,), (4, 2)),
        case(np.matmul, M, (4,)),
        case(np.matmul, V, V),
        case(np.matmul, (2, 3, 4), (4, 2)),
        case(np.matmul, (2, 1, 3, 4), (3, 4, 2)),
        case(lambda x, y: x.T @ y[::-1], M, (3, 2)),
    ],
    "vecdot": [case(np.vecdot, M, M), case(np.vecdot, M, (4,))],
    "matvec": [case(lambda a, b: np.matvec(a, b), M, (4,)), case(lambda a, b: np.matvec(a, b), (2, 3, 4), (2, 4))],
    "vecmat": [case(lambda a, b: np.vecmat(a, b), (3,), M)],
    # ----------------------------------------------------------------------------------------- ufuncs' methods
    "add.reduce": [
        case(np.add.reduce, M),
        case(lambda x: np.add.reduce(x, axis=None), (2, 3, 2)),
        case(lambda x: np.add.reduce(x, axis=(0, -1), keepdims=True), (2, 3, 2)),
        case(lambda x: np.add.reduce(x, axis=1, where=GRID), M),
        case(lambda x: np.add.reduce(x, axis=1, initial=3.0), M),
        case(lambda x: np.add.reduce(x, axis=None), ()),
    ],
    "multiply.reduce": [
        case(lambda x: np.multiply.reduce(x, axis=None), M),
        case(lambda x: np.multiply.reduce(x, axis=(0, 2), keepdims=True, initial=1.5), (2, 3, 2)),
        case(lambda x: np.multiply.reduce(x * np.array([1.0, 0.0, 1.0, 1.0]), axis=1), M),
        case(lambda x: np.multiply.reduce(x * np.array([1.0, 0.0, 0.0, 1.0]), axis=1), M),
        case(lambda x: np.multiply.reduce(x, axis=1, where=GRID), M),
    ],
    "maximum.reduce": [
        case(np.maximum.reduce, M, kinds=REAL),
        case(lambda x: np.maximum.reduce(x, axis=None, initial=0.7), M, kinds=REAL),
    ],
    "minimum.reduce": [case(np.minimum.reduce, M, kinds=REAL)],
    "fmax.reduce": [case(np.fmax.reduce, M, kinds=REAL)],
    "fmin.reduce": [case(np.fmin.reduce, M, kinds=REAL)],
    "logaddexp.reduce": [case(lambda x: np.logaddexp.reduce(x, axis=1), M, kinds=REAL)],
    "hypot.reduce": [case(lambda x: np.hypot.reduce(x, axis=1), M, kinds=REAL)],
    "add.accumulate": [case(lambda x: np.add.accumulate(x, axis=1), M)],
    "multiply.accumulate": [
        case(lambda x: np.multiply.accumulate(x, axis=1), M),
        case(lambda x: np.multiply.accumulate(x * np.array([1.0, 0.0, 1.0, 0.0]), axis=-1), M),
    ],
    "maximum.accumulate": [case(lambda x: np.maximum.accumulate(x, axis=1), M, kinds=REAL)],
    "minimum.accumulate": [case(lambda x: np.minimum.accumulate(x, axis=0), M, kinds=REAL)],
    "add.reduceat": [case(lambda x: np.add.reduceat(x, [0, 2, 1], axis=1), M)],
    "multiply.outer": [case(np.multiply.outer, V, M), case(np.subtract.outer, (), V)],
    "add.at": [
        case(_put_like(lambda y, v: np.add.at(y, [0, 0, 3], v)), V, (3,)),
        case(_put_like(lambda y, v: np.subtract.at(y, ([1, 1], [0, 0]), v)), M, (2,)),
    ],
    "multiply.at": [
        case(_put_like(lambda y, v: np.multiply.at(y, [0, 0, 3], v)), V, (3,)),
        case(_put_like(lambda y, v: np.divide.at(y, (slice(None), [1, 1]), v)), M, (3, 2)),
        case(_put_like(lambda y, v: np.negative.at(y, [1, 1, 2])), V, ()),
    ],
    # ---------------------------------------------------------------------------------------------- composites
    "amax": [case(np.amax, M, kinds=REAL)],
    "amin": [case(lambda x: np.amin(x, axis=1), M, kinds=REAL)],
    "angle": [case(np.angle, M, kinds=("c",)), case(lambda x: np.angle(x, deg=True), M, kinds=("c",))],
    "apply_over_axes": [case(lambda x: np.apply_over_axes(np.sum, x, [0, 2]), (2, 3, 2))],
    "astype": [case(lambda x: x.astype(x.dtype) * 2.0, M), case(lambda x: x.astype(complex) * 1j, M)],
    "average": [case(np.average, M), case(lambda x, w: np.average(x, axis=0, weights=w), M, (3,))],
    "cumprod": [case(lambda x: np.cumprod(x, axis=1), M), case(np.cumprod, M)],
    "cumsum": [case(lambda x: np.cumsum(x, axis=0), M), case(np.cumsum, M), case(lambda x: x.cumsum(-1), M)],
    "cumulative_prod": [case(lambda x: np.cumulative_prod(x, axis=1), M)],
    "cumulative_sum": [case(lambda x: np.cumulative_sum(x, axis=1), M)],
    "diff": [
        case(np.diff, M),
        case(lambda x: np.diff(x, 2, axis=0), (5, 3)),
        case(lambda x: np.diff(x, prepend=x[:, :1]), M),
    ],
    "ediff1d": [case(np.ediff1d, V)],
    "full_like": [case(lambda x, a: x * np.full_like(x, a), M, ())],
    "geomspace": [case(lambda a, b: np.geomspace(a, b, 6), (), (), kinds=REAL)],
    "gradient": [
        case(np.gradient, V),
        case(np.gradient, (4, 5)),
        case(lambda x: np.gradient(x, 0.3, axis=1, edge_order=2), (4, 5)),
    ],
    "i0": [case(np.i0, V, kinds=REAL, tolerance=1e-6)],
    "imag": [case(np.imag, M, kinds=("c",)), case(lambda x: x.imag * 2.0, M, kinds=("c",))],
    "kron": [case(np.kron, (2, 3), (3, 2)), case(np.kron, (3,), (2, 2))],
    "linspace": [
        case(lambda a, b: np.linspace(a, b, 6), (), ()),
        case(lambda a, b: np.linspace(a, b, 4, endpoint=False), (3,), (3,)),
    ],
    "logspace": [case(lambda a, b: np.logspace(a, b, 5), (), (), kinds=REAL)],
    "max": [case(np.max, M, kinds=REAL), case(lambda x: x.max(axis=1, keepdims=True), M, kinds=REAL)],
    "mean": [
        case(np.mean, M),
        case(lambda x: x.mean(axis=(0, 1)), (2, 3, 2)),
        case(lambda x: np.mean(x, axis=1, where=GRID), M),
    ],
    "median": [case(np.median, V, kinds=REAL), case(lambda x: np.median(x, axis=1), M, kinds=REAL)],
    "meshgrid": [case(np.meshgrid, (3,), (4,))],
    "min": [case(np.min, M, kinds=REAL), case(lambda x: x.min(axis=0), M, kinds=REAL)],
    "percentile": [
        case(lambda x: np.percentile(x, 30.0), V, kinds=REAL),
        case(lambda x: np.percentile(x, [20.0, 70.0], axis=1), M, kinds=REAL),
    ],
    "piecewise": [case(lambda x: np.piecewise(x, [x.real < 0.5, x.real >= 0.5], [np.sin, lambda z: z * z]), M)],
    "prod": [case(np.prod, M), case(lambda x: x.prod(axis=0), M)],
    "ptp": [case(np.ptp, M, kinds=REAL), case(lambda x: np.ptp(x, axis=1), M, kinds=REAL)],
    "quantile": [case(lambda x: np.quantile(x, 0.4), V, kinds=REAL)],
    "real": [case(np.real, M), case(lambda x: x.real * 2.0, M)],
    "sinc": [case(np.sinc, M)],
    "std": [
        case(np.std, M),
        case(lambda x: x.std(axis=1, ddof=1), M),
        case(lambda x: np.std(x, axis=0, keepdims=True), M),
    ],
    "sum": [
        case(np.sum, M),
        case(lambda x: x.sum(axis=1, keepdims=True), M),
        case(lambda x: np.sum(x, axis=(0, 2)), (2, 3, 2)),
        case(lambda x: np.sum(x, where=GRID), M),
        case(lambda x: x[::-1, ::2].T.sum(axis=0), M),
        case(lambda x: sum(x), M),
    ],
    "take_along_axis": [case(lambda x: np.take_along_axis(x, np.array([[1], [3], [1]]), axis=1), M)],
    "trace": [case(np.trace, (3, 4)), case(lambda x: x.trace(1, 0, 2), (2, 3, 2))],
    "trapezoid": [case(np.trapezoid, V), case(lambda y, x: np.trapezoid(y, x), V, V)],
    "var": [case(np.var, M), case(lambda x: x.var(axis=(0, 1), ddof=1), M)],
    "linalg.matrix_power": [
        case(lambda x: np.linalg.matrix_power(_regular(x), 3), (3, 3)),
        case(lambda x: np.linalg.matrix_power(_regular(x), -2), (3, 3)),
    ],
    "linalg.multi_dot": [case(lambda a, b, c: np.linalg.multi_dot([a, b, c]), (2, 3), (3, 4), (4, 2))],
    "linalg.trace": [case(np.linalg.trace, (2, 3, 3))],
    # ------------------------------------------------------------------------------------------------ movement
    "append": [case(lambda x, y: np.append(x, y), M, V), case(lambda x: np.append(x, [1.0, 2.0]), V)],
    "array_split": [case(lambda x: np.array_split(x * 2, 3), V)],
    "atleast_1d": [case(lambda x: np.atleast_1d(x * 2), ()), case(np.atleast_1d, (), V)],
    "atleast_2d": [case(np.atleast_2d, V)],
    "atleast_3d": [case(np.atleast_3d, V)],
    "block": [case(lambda a, b: np.block([[a, b], [b, a]]), (2, 2), (2, 2))],
    "broadcast_arrays": [case(lambda a, b: [2.0 * x for x in np.broadcast_arrays(a, b)], (3, 1), (4,))],
    "broadcast_to": [
        case(lambda a: np.broadcast_to(a, (2, 3, 4)) * 2.0, (3, 1)),
        case(lambda a: np.broadcast_to(a, (2, 3)), (3,)),
    ],
    "choose": [case(lambda a, b: np.choose([0, 1, 1, 0], [a, b]), (4,), (4,))],
    "column_stack": [case(lambda a, b: np.column_stack([a, b]), (3,), (3, 2))],
    "compress": [case(lambda x: np.compress(MASK, x), V), case(lambda x: x.compress([True, False, True], axis=0), M)],
    "concatenate": [
        case(lambda a, b: np.concatenate([a, b, a]), (2, 3), (1, 3)),
        case(lambda a, b: np.concatenate((a, np.ones((2, 1)), b), axis=-1), (2, 3), (2, 2)),
        case(lambda a, b: np.concatenate((a, b), axis=None), (2, 3), (2,)),
    ],
    "copy": [case(np.copy, M), case(lambda x: x.copy(), M)],
    "delete": [case(lambda x: np.delete(x, 1, axis=1), M), case(lambda x: np.delete(x, [0, 3]), V)],
    "diag": [case(np.diag, V), case(lambda x: np.diag(x, 1), (3, 4)), case(lambda x: np.diag(x, -2), V)],
    "diagflat": [case(np.diagflat, (2, 2))],
    "diagonal": [case(lambda x: np.diagonal(x) * 2, (3, 4)), case(lambda x: x.diagonal(1, 1, 2), (2, 3, 3))],
    "dsplit": [case(lambda x: np.dsplit(x, 2), (2, 3, 4))],
    "dstack": [case(lambda a, b: np.dstack([a, b]), V, V)],
    "expand_dims": [case(lambda x: np.expand_dims(x, (0, 2)), V)],
    "extract": [case(lambda x: np.extract(MASK, x), V)],
    "flip": [case(lambda x: np.flip(x, 1) * 2, M)],
    "fliplr": [case(np.fliplr, M)],
    "flipud": [case(np.flipud, M)],
    "hsplit": [case(lambda x: np.hsplit(x, 2), M)],
    "hstack": [case(lambda a, b: np.hstack([a, b]), V, V)],
    "insert": [case(lambda x, v: np.insert(x, [1, 3], v), V, (2,)), case(lambda x: np.insert(x, 1, 5, axis=1), M)],
    "matrix_transpose": [case(np.matrix_transpose, (2, 3, 4))],
    "moveaxis": [case(lambda x: np.moveaxis(x, 0, -1), (2, 3, 4))],
    "pad": [
        case(lambda x: np.pad(x, 2), M),
        case(lambda x, c: np.pad(x, ((1, 0), (0, 2)), constant_values=7.0) * c, M, ()),
        case(lambda x: np.pad(x, 2, mode="edge"), M),
        case(lambda x: np.pad(x, 2, mode="reflect"), M),
        case(lambda x: np.pad(x, 2, mode="symmetric"), M),
        case(lambda x: np.pad(x, 2, mode="wrap"), M),
    ],
    "permute_dims": [case(lambda x: np.permute_dims(x, (2, 0, 1)), (2, 3, 4))],
    "ravel": [
        case(np.ravel, M),
        case(lambda x: np.ravel(x.T), M),
        case(lambda x: x.ravel(order="F"), M),
        case(lambda x: x.T.ravel(order="K"), M),
    ],
    "repeat": [case(lambda x: np.repeat(x, 3), M), case(lambda x: x.repeat([1, 0, 2], axis=0), M)],
    "reshape": [
        case(lambda x: np.reshape(x, (4, 3)), M),
        case(lambda x: x.T.reshape(2, -1), M),
        case(lambda x: x.reshape((2, 6), order="F"), M),
    ],
    "resize": [case(lambda x: np.resize(x, (4, 5)), M)],
    "roll": [case(lambda x: np.roll(x, 2), M), case(lambda x: np.roll(x, (1, -1), axis=(0, 1)), M)],
    "rollaxis": [case(lambda x: np.rollaxis(x, 2), (2, 3, 4))],
    "rot90": [case(lambda x: np.rot90(x, 3), M)],
    "select": [case(lambda x, y: np.select([GRID, ~GRID & (np.arange(4) > 1)], [x, y * 2], 0.5), M, M)],
    "sliding_window_view": [case(lambda x: np.lib.stride_tricks.sliding_window_view(x, 3) * 2.0, V)],
    "split": [case(lambda x: np.split(x, [1, 3]), V)],
    "squeeze": [case(np.squeeze, (1, 3, 1))],
    "stack": [case(lambda a, b: np.stack([a, b], axis=1), V, V)],
    "swapaxes": [case(lambda x: np.swapaxes(x, 0, 2), (2, 3, 4))],
    "take": [
        case(lambda x: np.take(x, INDEX), V),
        case(lambda x: x.take([2, 2, 0], axis=1), M),
        case(lambda x: np.take(x, [7, -9], mode="wrap"), V),
    ],
    "tile": [case(lambda x: np.tile(x, 2), M), case(lambda x: np.tile(x, (2, 1, 3)), M)],
    "transpose": [case(np.transpose, M), case(lambda x: x.transpose(2, 0, 1) * 2, (2, 3, 4))],
    "tril": [case(np.tril, (4, 4)), case(lambda x: np.tril(x, 1), M)],
    "trim_zeros": [case(lambda x: np.trim_zeros(np.pad(x, 2)), V)],
    "triu": [case(lambda x: np.triu(x, -1), (4, 4))],
    "unstack": [case(lambda x: np.unstack(x), M)],
    "vsplit": [case(lambda x: np.vsplit(x, 3), M)],
    "vstack": [case(lambda a, b: np.vstack([a, b]), (4,), M)],
    "where": [
        case(lambda x, y: np.where(GRID, x, y), M, (4,)),
        case(lambda x: np.where(x.real > 0.5, x, 1), M),
        case(lambda x: np.where(x.real > 0.5, 2.0, x), M),
    ],
    "fft.fftshift": [case(np.fft.fftshift, V)],
    "fft.ifftshift": [case(np.fft.ifftshift, M)],
    "linalg.diagonal": [case(np.linalg.diagonal, (2, 3, 3))],
    "linalg.matrix_transpose": [case(np.linalg.matrix_transpose, (2, 3, 3))],
    # ----------------------------------------------------------------------------------------------- rewritten
    "apply_along_axis": [
        case(lambda x: np.apply_along_axis(lambda v: v * v.sum(), 0, x), M),
        case(lambda x: np.apply_along_axis(np.sum, 1, x), M),
    ],
    "bincount": [case(lambda w: np.bincount([0, 2, 2, 1, 0], w, 4), V, kinds=REAL)],
    "convolve": [
        case(lambda a, b, m=m: np.convolve(a, b, m), (6,), (n,)) for m in ("full", "same", "valid") for n in (3, 4, 8)
    ],
    "correlate": [
        case(lambda a, b, m=m: np.correlate(a, b, m), (6,), (n,)) for m in ("full", "same", "valid") for n in (3, 4, 8)
    ],
    "interp": [
        case(lambda x, f: np.interp(x, [0.4, 0.42, 0.66, 0.8], f), V, (4,), kinds=REAL),
        case(lambda x: np.interp(0.6, x.cumsum(), np.arange(5.0)), V, kinds=REAL),
    ],
    "nan_to_num": [
        case(lambda x: np.nan_to_num(x / np.array([1.0, 2.0, 1.0, 4.0])), M),
        case(lambda x: np.nan_to_num(x + np.array([np.nan, 0, np.inf, 0])), M, kinds=REAL),
    ],
    **{
        name: [
            case(_ignoring_nan(name), M, kinds=REAL),
            *(_along(name, a) for a in (0, 1, -1)),
            *(_along(name, a) for a in ((), (0, 2)) if "cum" not in name),
        ]
        for name in ("nancumprod", "nancumsum", "nanmax", "nanmean", "nanmin", "nanprod", "nanstd", "nansum", "nanvar")
    },
    "partition": [case(lambda x: np.partition(x, 2)[2], V, kinds=REAL)],
    "polyval": [case(np.polyval, (4,), M)],
    "real_if_close": [case(np.real_if_close, M), case(lambda x: np.real_if_close(x.real + 0j) * 2, M)],
    "sort": [
        case(np.sort, M, kinds=REAL),
        case(lambda x: np.sort(x, axis=None), M, kinds=REAL),
        case(lambda x: np.sort(x, 0), M, kinds=REAL),
    ],
    "unwrap": [case(lambda x: np.unwrap(9.0 * x), V, kinds=REAL)],
    # ------------------------------------------------------------------------------------------ linear algebra
    "cross": [
        case(np.cross, (4, 3), (3,)),
        case(lambda a, b: np.cross(a, b, axisa=0), (3, 4), (4, 3)),
        *([case(np.cross, (4, 2), (2,)), case(np.cross, (3,), (4, 2))] if CROSS_IN_THE_PLANE else []),
    ],
    "dot": [
        case(np.dot, V, V),
        case(np.dot, M, (4, 2)),
        case(np.dot, M, (4,)),
        case(np.dot, (2, 3), (4, 3, 2)),
        case(np.dot, (), M),
        case(lambda x, y: x.dot(y), (2, 2, 3), (3,)),
    ],
    "einsum": [
        case(lambda a, b: np.einsum("ij,jk->ik", a, b), M, (4, 2)),
        case(lambda a, b: np.einsum("ij,kj", a, b), M, (2, 4)),
        case(lambda a: np.einsum("ii->i", a), (3, 3)),
        case(lambda a: np.einsum("ii", a), (3, 3)),
        case(lambda a: np.einsum("ij->j", a), M),
        case(lambda a: np.einsum("iij->j", a), (3, 3, 2)),
        case(lambda a, b, c: np.einsum("i,ij,j->", a, b, c), (3,), M, (4,)),
        case(lambda a, b: np.einsum("...i,...i->...", a, b), (2, 3, 4), (3, 4)),
        case(lambda a, b: np.einsum(a, [0, 1], b, [1, 2], [0, 2]), M, (4, 2)),
        case(lambda a, b: np.einsum("ij,ij->ij", a, b), (3, 1), M),
        case(lambda a: np.einsum("ij,ij->i", a, np.ones((3, 4))), M),
    ],
    "inner": [case(np.inner, M, (2, 4)), case(np.inner, V, V)],
    "outer": [case(np.outer, V, M)],
    "tensordot": [
        case(np.tensordot, (2, 3, 4), (3, 4, 2)),
        case(lambda a, b: np.tensordot(a, b, ([0], [1])), (2, 3), (4, 2)),
        case(lambda a, b: np.tensordot(a, b, 0), V, V),
    ],
    "vdot": [case(np.vdot, M, M)],
    "linalg.cholesky": [
        case(lambda x: np.linalg.cholesky(_spd(x)), (3, 3)),
        case(lambda x: np.linalg.cholesky(_spd(x), upper=True), (2, 3, 3)),
        case(lambda x: np.linalg.cholesky(np.tril(_spd(x))), (3, 3)),
        case(lambda x: np.linalg.cholesky(_spd(x) + np.triu(x, 1), upper=False), (2, 3, 3)),
        case(lambda x: np.linalg.cholesky(np.triu(_spd(x)), upper=True), (3, 3)),
    ],
    "linalg.det": [
        case(lambda x: np.linalg.det(_regular(x)), (3, 3)),
        case(lambda x: np.linalg.det(_regular(x)), (2, 3, 3)),
    ],
    "linalg.eig": [case(lambda x: np.linalg.eig(_regular(x) * np.arange(1.0, 4.0))[0], (3, 3), kinds=REAL)],
    "linalg.eigvals": [case(lambda x: np.linalg.eigvals(_regular(x) * np.arange(1.0, 4.0)), (3, 3), kinds=REAL)],
    "linalg.eigh": [
        case(lambda x: np.linalg.eigh(_spd(x))[0], (3, 3)),
        case(lambda x: abs(np.linalg.eigh(_spd(x))[1]), (3, 3)),
        *[
            case(lambda x, UPLO=UPLO: abs(np.linalg.eigh(x + np.diag([1.0, 3.0, 6.0]), UPLO)[1]), (3, 3))
            for UPLO in ("L", "U")
        ],
    ],
    "linalg.eigvalsh": [
        case(lambda x: np.linalg.eigvalsh(_spd(x)), (3, 3)),
        *[case(lambda x, UPLO=UPLO: np.linalg.eigvalsh(x, UPLO), (3, 3)) for UPLO in ("L", "U")],
    ],
    "linalg.inv": [
        case(lambda x: np.linalg.inv(_regular(x)), (3, 3)),
        case(lambda x: np.linalg.inv(_regular(x)), (2, 3, 3)),
    ],
    "linalg.norm": [
        case(np.linalg.norm, M),
        case(np.linalg.norm, V),
        *[case(lambda x, p=p: np.linalg.norm(x, p, axis=1), M) for p in (None, 1, 2, 3, 0.5, np.inf, -np.inf)],
        *[
            case(lambda x, p=p: np.linalg.norm(x * np.arange(1.0, 5.0), p), M)
            for p in ("fro", "nuc", 1, -1, np.inf, 2, -2)
        ],
        case(lambda x: np.linalg.norm(x, axis=(0, 2), keepdims=True), (2, 3, 2)),
    ],
    "linalg.pinv": [
        case(np.linalg.pinv, (4, 2), kinds=REAL, tolerance=1e-6),
        case(np.linalg.pinv, (2, 4), kinds=REAL, tolerance=1e-6),
    ],
    "linalg.slogdet": [case(lambda x: np.linalg.slogdet(_regular(x))[1], (3, 3), kinds=REAL)],
    "linalg.solve": [
        case(lambda a, b: np.linalg.solve(_regular(a), b), (3, 3), (3,)),
        case(lambda a, b: np.linalg.solve(_regular(a), b), (3, 3), (3, 2)),
        case(lambda a, b: np.linalg.solve(_regular(a), b), (2, 3, 3), (2, 3, 2)),
        case(lambda a, b: np.linalg.solve(_regular(a), b), (2, 3, 3), (3,)),
        case(lambda a, b: np.linalg.solve(_regular(a), b), (2, 3, 3), (3, 2)),
        case(lambda a, b: np.linalg.solve(_regular(a), b), (3, 3), (2, 3, 2)),
        case(lambda a, b: np.linalg.solve(_regular(a), b), (2, 1, 3, 3), (4, 3, 1)),
    ],
    "linalg.svd": [
        case(lambda x: np.linalg.svd(x + np.diag(np.arange(1.0, 5.0))[:, :3], full_matrices=False)[1], (4, 3)),
        case(lambda x: np.linalg.svd(_regular(x) * np.arange(1.0, 4.0), compute_uv=False), (3, 3)),
        case(lambda x: [p * p for p in np.linalg.svd(x + np.diag([1.0, 3.0, 6.0]))], (3, 3), kinds=REAL),
    ],
    "linalg.cross": [case(np.linalg.cross, (3,), (2, 3))],
    "linalg.matmul": [case(np.linalg.matmul, M, (4, 2))],
    "linalg.matrix_norm": [case(np.linalg.matrix_norm, (2, 3, 4))],
    "linalg.outer": [case(np.linalg.outer, V, (3,))],
    "linalg.svdvals": [case(lambda x: np.linalg.svdvals(x * np.array([1.0, 3.0])), (3, 2))],
    "linalg.tensordot": [case(np.linalg.tensordot, (2, 3, 4), (3, 4, 2))],
    "linalg.vecdot": [case(np.linalg.vecdot, M, M)],
    "linalg.vector_norm": [
        case(np.linalg.vector_norm, M),
        case(lambda x: np.linalg.vector_norm(x, axis=(0, 2), ord=3, keepdims=True), (2, 3, 2)),
    ],
    # ----------------------------------------------------------------------------------------------------- fft
    **{
        f"fft.{name}": [
            case(
                _fft(name, n, norm=norm),
                (2, length),
                kinds=REAL if name == "rfft" else BOTH,
            )
            for norm in (None, "ortho", "forward")
            for n in (None, 4, 5, 9)
            for length in (5, 6)
        ]
        + [case(_fft(name, axis=0), (5, 2), kinds=REAL if name == "rfft" else BOTH)]
        for name in ("fft", "ifft", "rfft", "irfft")
    },
    **{
        f"fft.{name}": [
            case(
                _fft(name, norm=norm),
                (2, 4, 5),
                kinds=REAL if name.startswith("r") else BOTH,
            )
            for norm in (None, "ortho", "forward")
        ]
        + [
            case(
                _fft(name, (3, 7), (2, 0)),
                (2, 4, 5),
                kinds=REAL if name.startswith("r") else BOTH,
            )
        ]
        for name in ("fft2", "ifft2", "fftn", "ifftn", "rfft2", "rfftn", "irfft2", "irfftn")
    },
    # ------------------------------------------------------------------------------------------------- writers
    "copyto": [
        case(_put_like(lambda y, v: np.copyto(y, v)), M, (4,)),
        case(_put_like(lambda y, v: np.copyto(y, v, where=GRID)), M, (4,)),
    ],
    "fill_diagonal": [
        case(_put_like(lambda y, v: np.fill_diagonal(y, v)), (3, 3), ()),
        case(_put_like(lambda y, v: np.fill_diagonal(y, v, wrap=True)), (7, 3), (2,)),
    ],
    "place": [case(_put_like(lambda y, v: np.place(y, GRID, v)), M, (3,))],
    "put": [
        case(_put_like(lambda y, v: np.put(y, [0, 5, 5, -1], v)), M, (3,)),
        case(_put_like(lambda y, v: y.put([0, 50], v, mode="clip")), M, (2,)),
    ],
    "put_along_axis": [case(_put_like(lambda y, v: np.put_along_axis(y, np.array([[1], [3], [0]]), v, 1)), M, (3, 1))],
    "putmask": [case(_put_like(lambda y, v: np.putmask(y, GRID, v)), M, (5,))],
}

for _name, _cases in sample_cases.cases_of(case).items():
    CASES[_name] = CASES.get(_name, []) + _cases

# Functions that older versions of NumPy lack.
for _name in ("cumulative_prod", "cumulative_sum", "matvec", "unstack", "vecmat"):
    if not hasattr(np, _name):
        del CASES[_name]

ALL = [(name, k) for name, cases in CASES.items() for k in range(len(cases))]

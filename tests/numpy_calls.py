"""Calls of every function of NumPy that has a rule, with every parameter that it takes."""

from typing import NamedTuple

import numpy as np


class Array(NamedTuple):
    """An array of these numbers, which may be active, of any layout and precision."""

    shape: tuple = (3, 4)
    kinds: str = "fc"
    low: float = 0.3
    high: float = 0.9
    special: str = ""


class Call(NamedTuple):
    """Values to choose from for each parameter; those in ``must`` are always given."""

    must: dict
    may: dict = {}
    positional: tuple = ()


M, V, T, S = Array(), Array((5,)), Array((2, 3, 4)), Array(())
R, RV = Array(kinds="f"), Array((5,), "f")
REAL, REAL_S = Array((3, 4), "f"), Array((), "f")
NAN = Array((3, 4), "f", special="nan")
AXES = [0, 1, -1]
MASK = np.array([[True, False, True, True], [True, True, False, True], [False, True, True, True]])
OUT = "a fresh output"
DTYPES = ["f", "d", "D"]


def of(*arrays, **may):
    """A call whose first parameters are these arrays, by their places."""
    return Call({}, may, arrays)


SUMS = {"axis": [None, *AXES, (0, 1)], "dtype": ["d", "D"], "out": [OUT], "keepdims": [True, False]}
EXTREMA = {"axis": [None, *AXES], "out": [OUT], "keepdims": [True], "initial": [0.1, 0.5]}
MASKED = {"axis": [None, *AXES], "out": [OUT], "keepdims": [True]}
MOMENTS = {
    "axis": [None, *AXES],
    "dtype": ["d"],
    "out": [OUT],
    "ddof": [1],
    "keepdims": [True],
    "where": [MASK],
    "mean": [Array((1, 1)), 0.5],
    "correction": [1, 2],
}
NAN_MOMENTS = {**MOMENTS, "mean": [Array((1, 1), "f"), 0.5]}
QUANTILE = {
    "axis": [None, *AXES],
    "out": [OUT],
    "overwrite_input": [True],
    "method": [
        "linear",
        "lower",
        "higher",
        "midpoint",
        "nearest",
        "hazen",
        "weibull",
        "inverted_cdf",
        "normal_unbiased",
    ],
    "keepdims": [True],
    "interpolation": ["lower"],
}
WEIGHTED = {"method": ["inverted_cdf"], "axis": [1], "weights": [np.arange(1.0, 13.0).reshape(3, 4), R]}
JOINED = {"out": [OUT], "dtype": ["d", "D"], "casting": ["same_kind"]}
PERIODS = [3.0, 6.0, Array((), "f", 3.0, 3.5)]
SVD = {"full_matrices": [False], "compute_uv": [True, False], "hermitian": [True]}
FFT1 = {"n": [3, 4, 6], "axis": AXES, "norm": ["ortho", "forward", "backward"], "out": [OUT]}
FFTN = {"axes": [(0, 1), (1, 0)], "norm": ["ortho", "forward"], "out": [OUT]}

CALLS = {
    # ---------------------------------------------------------------------------------------------- composites
    "amax": of(R, **EXTREMA),
    "amax 2": Call({"initial": [0.1, 0.5], "where": [MASK]}, MASKED, (R,)),
    "amin": of(R, **EXTREMA),
    "amin 2": Call({"initial": [0.95, 0.5], "where": [MASK]}, MASKED, (R,)),
    "max": of(R, **EXTREMA),
    "max 2": Call({"initial": [0.1, 0.5], "where": [MASK]}, MASKED, (R,)),
    "min": of(R, **{**EXTREMA, "initial": [0.95, 0.5]}),
    "min 2": Call({"initial": [0.95, 0.5], "where": [MASK]}, MASKED, (R,)),
    "angle": of(Array(kinds="c"), deg=[True]),
    "astype": of(M, ["f", "d", "D"], copy=[True, False], device=["cpu"]),
    "average": of(M, axis=[0, 1, (0, 1)], weights=[M, np.ones((3, 4))], returned=[True], keepdims=[True]),
    "clip": Call({}, {"out": [OUT], "min": [0.4, REAL], "max": [0.7, REAL]}, (R,)),
    "cumprod": of(M, axis=AXES, dtype=["d", "D"], out=[OUT]),
    "cumsum": of(M, axis=AXES, dtype=["d", "D"], out=[OUT]),
    "cumulative_prod": Call({"axis": AXES}, {"dtype": ["D"], "out": [OUT], "include_initial": [True]}, (M,)),
    "cumulative_sum": Call({"axis": AXES}, {"dtype": ["D"], "out": [OUT], "include_initial": [True]}, (M,)),
    "diff": of(M, n=[1, 2], axis=AXES, prepend=[Array((3, 1)), 0.5, S], append=[0.5, S]),
    "ediff1d": of(M, to_end=[S, 0.5, V], to_begin=[S, V]),
    "full_like": of(M, [S, 0.5], dtype=["d", "D"], order=["C", "F"], subok=[True], shape=[(2, 2)], device=["cpu"]),
    "geomspace": of(REAL_S, Array((), "f", 2.0, 3.0), num=[4], endpoint=[False], dtype=["d"], axis=[0]),
    "gradient": Call({}, {"axis": [0, 1], "edge_order": [1, 2]}, (Array((4, 5)),)),
    "gradient 2": Call({}, {"edge_order": [1, 2]}, (V, [0.3, REAL_S])),
    "kron": of(M, Array((2, 2))),
    "logspace": of(REAL_S, REAL_S, num=[4], endpoint=[False], base=[2.0, REAL_S], dtype=["d"], axis=[0]),
    "mean": of(M, **{**SUMS, "where": [MASK]}),
    "median": of(R, axis=[None, *AXES], out=[OUT], overwrite_input=[True], keepdims=[True]),
    "meshgrid": of(Array((3,)), Array((4,)), copy=[True, False], sparse=[True], indexing=["ij", "xy"]),
    "percentile": of(R, [30.0, [20.0, 70.0], Array((), "f", 20.0, 40.0)], **QUANTILE),
    "quantile": of(R, [0.4, [0.2, 0.7], REAL_S], **QUANTILE),
    "percentile 2": Call(WEIGHTED, {"keepdims": [True]}, (R, [30.0, 55.0])),
    "quantile 2": Call(WEIGHTED, {"keepdims": [True]}, (R, [0.3, 0.55])),
    "piecewise": Call({}, {}, (R, [[MASK, ~MASK]], [[np.sin, np.square], [0.5, np.sin]])),
    "prod": of(M, **SUMS, initial=[2.0, S], where=[MASK]),
    "ptp": of(R, axis=[None, *AXES], out=[OUT], keepdims=[True]),
    "real": of(M),
    "sum": of(M, **SUMS, initial=[2.0, S], where=[MASK]),
    "take_along_axis": Call({"axis": [1, -1]}, {}, (M, [np.array([[1], [3], [0]])])),
    "trace": of(T, offset=[1, -1], axis1=[0], axis2=[2], dtype=["D"], out=[OUT]),
    "trapezoid": of(Array((5,)), x=[Array((5,), "f"), np.arange(5.0)], dx=[0.3, S], axis=[-1, 0]),
    "var": of(M, **MOMENTS),
    "linalg.matrix_power": of(Array((3, 3), special="regular"), [2, 3, -1]),
    "linalg.multi_dot": Call({}, {"out": [OUT]}, ([[M, Array((4, 2)), Array((2, 3))]],)),
    "linalg.trace": of(T, offset=[1], dtype=["D"]),
    # ------------------------------------------------------------------------------------------------ movement
    "append": of(M, [M, V, 0.5]),
    "append 2": Call({"axis": [0, 1]}, {}, (M, M)),
    "array_split": of(M, [2, 3], axis=[0, 1]),
    "atleast_1d": of(S, M),
    "atleast_2d": of(V, S),
    "atleast_3d": of(V, M),
    "block": Call({}, {}, ([[[Array((2, 2)), Array((2, 3))]], [Array((2,)), Array((1,))]],)),
    "broadcast_arrays": of(Array((3, 1)), Array((4,)), subok=[True]),
    "broadcast_to": of(Array((3, 1)), [(3, 4), (2, 3, 4)], subok=[True]),
    "choose": Call({}, {"out": [OUT], "mode": ["wrap", "clip"]}, ([[0, 1, 1, 0]], [[Array((4,)), Array((4,))]])),
    "column_stack": Call({}, {}, ([[Array((3,)), M]],)),
    "compress": of([[True, False, True]], M, axis=[0], out=[OUT]),
    "concatenate": Call({}, {"axis": [0, None], **JOINED}, ([[M, M]],)),
    "copy": of(M, order=["C", "F", "K"], subok=[True]),
    "delete": of(M, [1, [0, 2], slice(0, 2)], axis=[0, 1]),
    "diag": of([V, M], k=[1, -1]),
    "diagflat": of(Array((2, 2)), k=[1]),
    "diagonal": of(T, offset=[1], axis1=[0], axis2=[2]),
    "dsplit": of(T, [2, [1]]),
    "dstack": Call({}, {}, ([[M, M]],)),
    "expand_dims": Call({"axis": [0, (0, 2)]}, {}, (M,)),
    "extract": of(MASK, M),
    "flip": of(M, axis=[0, None, (0, 1)]),
    "fliplr": of(M),
    "flipud": of(M),
    "hsplit": of(M, [2, [1]]),
    "hstack": Call({}, {"dtype": ["D"], "casting": ["same_kind"]}, ([[M, M]],)),
    "insert": of(M, [1, [0, 2]], [0.5, S], axis=[0, 1]),
    "matrix_transpose": of(T),
    "moveaxis": of(T, [0, (0, 1)], [(1, 2)[0], (1, 2)]),
    "pad": Call(
        {"mode": ["constant", "edge", "reflect", "symmetric", "wrap", "linear_ramp", "mean", "maximum"]},
        {"constant_values": [0.5, S], "end_values": [S], "stat_length": [2], "reflect_type": ["odd", "even"]},
        (M, [1, ((1, 0), (2, 1))]),
    ),
    "ravel": of(M, order=["C", "F", "K", "A"]),
    "repeat": of(M, [2, [1, 2, 0]], axis=[0, None]),
    "reshape": of(M, [(4, 3), -1], order=["C", "F", "A"], copy=[True, None]),
    "resize": of(M, [(2, 3), (4, 5)]),
    "roll": of(M, [1, 5], axis=[0, 1, None]),
    "rollaxis": of(T, [2, 1], start=[0, 1]),
    "rot90": of(M, k=[1, 2, 3], axes=[(1, 0)]),
    "select": of([[MASK, ~MASK]], [[M, M]], default=[0.5, S]),
    "split": of(Array((4, 4)), [2, [1, 3]], axis=[0, 1]),
    "squeeze": of(Array((3, 1)), axis=[1, None]),
    "stack": Call({}, {"axis": [0, 1, -1], **JOINED}, ([[M, M]],)),
    "swapaxes": of(T, [0, -1], [1, 2]),
    "take": of(M, [[0, 2, 2], 1], axis=[0, 1, None], out=[OUT], mode=["clip", "wrap"]),
    "tile": of(M, [2, (2, 1)]),
    "transpose": of(T, axes=[(2, 0, 1), None]),
    "tril": of(M, k=[1, -1]),
    "trim_zeros": of(Array((5,), special="ends"), trim=["f", "b", "fb"], axis=[0, None]),
    "triu": of(M, k=[1, -1]),
    "unstack": of(M, axis=[0, 1]),
    "vsplit": of(Array((4, 3)), [2, [1]]),
    "vstack": Call({}, {"dtype": ["D"], "casting": ["same_kind"]}, ([[M, M]],)),
    "where": of(MASK, [M, 0.5], M),
    "lib.stride_tricks.sliding_window_view": Call({"axis": [0, 1]}, {"subok": [True], "writeable": [False]}, (M, [2])),
    "fft.fftshift": of(M, axes=[0, (0, 1)]),
    "fft.ifftshift": of(M, axes=[0, (0, 1)]),
    "linalg.diagonal": of(T, offset=[1]),
    "linalg.matrix_transpose": of(T),
    # ----------------------------------------------------------------------------------------------- rewritten
    "apply_along_axis": of([np.cumsum, np.sum, lambda x, s=1.0: x * s], AXES, M),
    "apply_over_axes": of([np.sum], M, [[0], [0, 1]]),
    "bincount": Call({"weights": [Array((4,), "f")]}, {"minlength": [5]}, ([[0, 2, 2, 1]],)),
    "convolve": of(V, Array((3,)), mode=["full", "same", "valid"]),
    "correlate": of(V, Array((3,)), mode=["full", "same", "valid"]),
    "i0": of(R),
    "imag": of(M),
    "interp": of(RV, [np.array([0.1, 0.5, 1.0]), Array((3,), "f", special="sorted")], Array((3,), "fc"), left=[S, 0.5],
                 right=[S, 0.5], period=[0.8]),
    "linspace": of(S, [S, 2.0, V], num=[4], endpoint=[False], retstep=[True], dtype=["d", "D"], axis=[0, -1],
                   device=["cpu"]),
    "nan_to_num": Call(
        {"posinf": [2.0, REAL_S], "neginf": [-2.0, REAL_S]},
        {"copy": [True, False], "nan": [0.5, REAL_S]},
        (Array((3, 4), "f", special="inf"),),
    ),
    "nancumprod": of(NAN, axis=AXES, dtype=["d"], out=[OUT]),
    "nancumsum": of(NAN, axis=AXES, dtype=["d"], out=[OUT]),
    "nanmax": of(NAN, **EXTREMA),
    "nanmax 2": Call({"initial": [0.1, 0.5], "where": [MASK]}, MASKED, (NAN,)),
    "nanmin": of(NAN, **{**EXTREMA, "initial": [0.95, 0.5]}),
    "nanmin 2": Call({"initial": [0.95, 0.5], "where": [MASK]}, MASKED, (NAN,)),
    "nanmean": of(NAN, axis=[None, *AXES], dtype=["d"], out=[OUT], keepdims=[True], where=[MASK]),
    "nanprod": of(NAN, **SUMS, initial=[2.0, S], where=[MASK]),
    "nansum": of(NAN, **SUMS, initial=[2.0, S], where=[MASK]),
    "nanstd": of(NAN, **NAN_MOMENTS),
    "nanvar": of(NAN, **NAN_MOMENTS),
    "partition": of(R, [1, [0, 2]], axis=[0, -1, None], kind=["introselect"], order=[None]),
    "polyval": of(Array((3,)), M),
    "real_if_close": of([M, Array(kinds="c", special="almost real")], tol=[1, 1000]),
    "sinc": of(M),
    "sort": of(R, axis=[0, -1, None], kind=["stable", "quicksort"], order=[None], stable=[True, False],
               descending=[True, False]),
    "std": of(M, **MOMENTS),
    "unwrap": of(Array((6,), "f", 0.0, 20.0), discont=[4.0, REAL_S], axis=[0], period=PERIODS),
    # ------------------------------------------------------------------------------------------- linear algebra
    # Vectors of complex matrices have phases that LAPACK chooses.
    "cross": of(Array((4, 3)), Array((4, 3)), axis=[1]),
    "cross 2": Call({"axisa": [0], "axisb": [1]}, {"axisc": [0]}, (Array((3, 4)), Array((4, 3)))),
    "dot": of(M, Array((4, 2)), out=[OUT]),
    "einsum": Call({}, {"out": [OUT], "optimize": [True], "dtype": ["D"], "order": ["F"], "casting": ["same_kind"]},
                   (["ij,jk->ik", "ij,jk"], M, Array((4, 3)))),
    "inner": of(M, Array((2, 4))),
    "outer": of(V, M, out=[OUT]),
    "tensordot": of(T, Array((3, 4, 2)), axes=[2, ([1, 2], [0, 1]), ([0], [2])]),
    "vdot": of(M, M),
    "linalg.cholesky": of(Array((3, 3), special="positive"), upper=[True]),
    "linalg.det": of(Array((3, 3), special="regular")),
    "linalg.eig": of(Array((3, 3), "f", special="regular")),
    "linalg.eigh": of(Array((3, 3), "f", special="positive"), UPLO=["U", "L"]),
    "linalg.eigvals": of(Array((3, 3), special="regular")),
    "linalg.eigvalsh": of(Array((3, 3), special="positive"), UPLO=["U", "L"]),
    "linalg.inv": of(Array((3, 3), special="regular")),
    "linalg.norm": of(M, ord=[2, 1, "fro", "nuc", np.inf], axis=[0, (0, 1)], keepdims=[True]),
    "linalg.pinv": of(M, rcond=[1e-9], rtol=[1e-9]),
    "linalg.pinv 2": Call({}, {"hermitian": [True, False]}, (Array((3, 3), "f", special="positive"),)),
    "linalg.slogdet": of(Array((3, 3), special="regular")),
    "linalg.solve": of(Array((3, 3), special="regular"), [Array((3,)), Array((3, 2))]),
    "linalg.svd": of(Array((3, 3), "f", special="regular"), **SVD),
    "linalg.cross": of(Array((4, 3)), Array((4, 3)), axis=[1]),
    "linalg.matmul": of(M, Array((4, 2))),
    "linalg.matrix_norm": of(T, keepdims=[True], ord=[1, 2, "nuc", -np.inf]),
    "linalg.outer": of(V, V),
    "linalg.svdvals": of(M),
    "linalg.tensordot": of(T, Array((3, 4, 2)), axes=[2]),
    "linalg.vecdot": of(M, M, axis=[0, -1]),
    "linalg.vector_norm": of(M, axis=[0, None], keepdims=[True], ord=[1, 3, np.inf]),
    # ----------------------------------------------------------------------------------------------------- fft
    **{f"fft.{name}": of(Array((4, 6)), **FFT1) for name in ("fft", "ifft", "irfft")},
    "fft.rfft": of(Array((4, 6), "f"), **FFT1),
    **{f"fft.{name}": of(Array((4, 6)), **FFTN) for name in ("fft2", "ifft2", "fftn", "ifftn", "irfft2", "irfftn")},
    **{f"fft.{name}": of(Array((4, 6), "f"), **FFTN) for name in ("rfft2", "rfftn")},
    **{
        f"fft.{name} 2": Call(
            {"s": [(3, 4), (2, 6), (4, 3)], "axes": [(0, 1), (1, 0)]},
            {"norm": ["ortho"]},
            (Array((4, 6), "f" if name.startswith("rfft") else "fc"),),
        )
        for name in ("fft2", "ifft2", "fftn", "ifftn", "irfft2", "irfftn", "rfft2", "rfftn")
    },
    # ------------------------------------------------------------------------------------------------- writers
    "copyto": of(M, [M, S, 0.5], casting=["same_kind"], where=[MASK]),
    "fill_diagonal": of(Array((6, 3)), [S, 0.5, Array((3,))], wrap=[True]),
    "place": of(M, MASK, [V, 0.5, Array((2,))]),
    "put": of(M, [[0, 5], [1, 14]], [S, Array((2,))], mode=["wrap", "clip"]),
    "put_along_axis": Call({"axis": [1]}, {}, (M, [np.array([[1], [3], [0]])], [0.5, Array((3, 1))])),
    "putmask": of(M, MASK, [M, V]),
}  # fmt: skip

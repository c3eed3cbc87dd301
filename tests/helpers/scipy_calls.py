"""Calls of every SciPy function that has a derivative rule; methods of objects are tested elsewhere."""

import numpy as np
from drawn_calls import Array, Call, of

M, V, S3 = Array(), Array((5,)), Array((3, 3), special="regular")
R, RV, RS = Array(kinds="f"), Array((5,), "f"), Array((), "f")
REG, POS = Array((3, 3), special="regular"), Array((3, 3), special="positive")
REAL_REG, REAL_POS = Array((3, 3), "f", special="regular"), Array((3, 3), "f", special="positive")
TRI = Array((3, 3), special="triangular")
RHS = [Array((3,)), Array((3, 2))]
PIVOTS = np.array([1, 1, 2], np.int32)
FIXED = [0.5, 1.0, 0.25]
FFT1 = {"n": [3, 4, 7], "axis": [0, -1], "norm": ["ortho", "forward"], "overwrite_x": [True], "workers": [1]}
FFTN = {"s": [(3, 4), (4, 7)], "axes": [(0, 1), (1, 0)], "norm": ["ortho", "forward"], "overwrite_x": [True]}
DCT = {"type": [1, 2, 3, 4], "n": [5, 6], "axis": [0, -1], "norm": ["ortho", "forward"], "orthogonalize": [True, False]}
DCTN = {"type": [1, 2, 3, 4], "s": [(4, 5)], "axes": [(0, 1)], "norm": ["ortho"], "orthogonalize": [True]}
FILTER = {"mode": ["reflect", "constant", "nearest", "mirror", "wrap", "grid-wrap"], "cval": [0.7], "origin": [0, -1]}
EDGES = {"mode": ["reflect", "constant", "nearest", "wrap"], "cval": [0.5]}
GRID, LINE, W = Array((6, 7), "f"), Array((6, 8), "f"), Array((3,), "f")
SMOOTH = {**EDGES, "truncate": [2.0]}
ORDER1 = {"order": [0, 1, 3], "mode": ["constant", "nearest", "reflect", "wrap"], "cval": [0.4], "prefilter": [False]}
RECURSION = [1.0, -0.4, 0.2]
SOS = [[0.2, 0.4, 0.2, 1.0, -0.4, 0.2]]
LONG = Array((2, 30), "f")
MODES = {"mode": ["full", "same", "valid"]}
PLACES = [[[0.3, 1.4, 2.6], [1.2, 0.1, 3.3]], Array((2, 3), "f", 0.1, 0.9)]

CALLS = {
    # ----------------------------------------------------------------------------------------------------- fft
    **{f"fft.{name}": of(Array((4, 6)), **FFT1) for name in ("fft", "ifft", "irfft", "hfft")},
    **{f"fft.{name}": of(Array((4, 6), "f"), **FFT1) for name in ("rfft", "ihfft")},
    **{f"fft.{f}{n}": of(Array((4, 6)), **FFTN) for f in ("fft", "ifft", "irfft", "hfft") for n in ("2", "n")},
    **{f"fft.{f}{n}": of(Array((4, 6), "f"), **FFTN) for f in ("rfft", "ihfft") for n in ("2", "n")},
    **{f"fft.{name}": of(Array((4, 6), "f"), **DCT) for name in ("dct", "idct", "dst", "idst")},
    **{f"fft.{name}": of(Array((4, 6), "f"), **DCTN) for name in ("dctn", "idctn", "dstn", "idstn")},
    # ----------------------------------------------------------------------------------------------- integrate
    "integrate.cumulative_trapezoid": of(M, x=[Array((4,), "f", special="sorted")], dx=[0.3], axis=[-1], initial=[0]),
    "integrate.romb": of(Array((3, 5), "f"), dx=[0.3], axis=[-1]),
    "integrate.simpson": of(Array((3, 5), "f"), x=[Array((5,), "f", special="sorted")], dx=[0.3], axis=[-1]),
    "integrate.trapezoid": of(M, x=[Array((4,), "f", special="sorted")], dx=[0.3], axis=[-1]),
    # -------------------------------------------------------------------------------------------------- linalg
    "linalg.det": of(REG),
    "linalg.inv": of(POS, assume_a=["general", "her", "upper triangular", "diagonal"], lower=[True]),
    "linalg.lstsq": of(Array((4, 3)), [Array((4,)), Array((4, 2))], lapack_driver=["gelsd", "gelsy"], cond=[1e-9]),
    "linalg.matmul_toeplitz": of([(Array((3,)), Array((4,))), Array((4,))], [Array((4,)), Array((4, 2))]),
    "linalg.pinv": of(M, atol=[1e-9], rtol=[1e-9], return_rank=[True]),
    "linalg.solve": of(POS, RHS, assume_a=["gen", "sym", "her", "pos", "upper triangular", "tridiagonal"],
                       lower=[True], transposed=[True]),
    "linalg.solve_banded": of([(1, 1)], Array((3, 3), special="row 1"), RHS),
    "linalg.solve_toeplitz": of([(Array((3,), special="row 0"), Array((3,), special="row 0")),
                                 Array((3,), special="row 0")], RHS),
    "linalg.solve_triangular": of(POS, RHS, trans=[0, 1, 2, "T"], lower=[True], unit_diagonal=[True]),
    "linalg.solveh_banded": of(Array((2, 3), "f", special="row 1"), RHS),
    "linalg.solveh_banded 2": Call({"lower": [True]}, {}, (Array((2, 3), "f", special="row 0"), RHS)),
    # Eigenvalues only: vectors have signs and phases that LAPACK chooses.
    "linalg.eigh": Call({"eigvals_only": [True]}, {"lower": [True, False], "b": [POS], "driver": ["ev"]}, (POS,)),
    "linalg.eigvals": of(REAL_REG, b=[REAL_POS], homogeneous_eigvals=[True]),
    "linalg.eigvalsh": of(POS, lower=[True, False], subset_by_index=[[0, 1]], b=[POS], driver=["ev"]),
    "linalg.cho_factor": of(POS, lower=[True, False]),
    "linalg.cho_solve": of([(POS, True), (POS, False)], RHS),
    "linalg.cho_solve_banded": of([(Array((2, 3), "f", special="row 1"), False)], RHS),
    "linalg.cholesky": of(POS, lower=[True, False]),
    "linalg.lu": of(S3, permute_l=[True], p_indices=[True]),
    "linalg.lu_factor": of(S3),
    "linalg.lu_solve": of([(S3, PIVOTS)], RHS, trans=[0, 1, 2]),
    "linalg.qr": of(REAL_REG, mode=["full", "economic", "r"], pivoting=[True]),
    "linalg.qr 2": Call({"mode": ["economic"]}, {}, (Array((4, 3), "f"),)),
    "linalg.svd": of(REAL_REG, full_matrices=[False], compute_uv=[False, True], lapack_driver=["gesvd"]),
    "linalg.svdvals": of(M),
    "linalg.expm_frechet": of([[[1.0, 0.2], [0.3, 0.4]], S3], Array((2, 2)), compute_expm=[True, False]),
    "linalg.expm": of(Array((3, 3))),
    "linalg.sqrtm": of(POS),
    "linalg.norm": of(M, ord=[1, "fro", np.inf], axis=[0, 1], keepdims=[True]),
    "linalg.solve_sylvester": of(REG, REG, Array((3, 3))),
    "linalg.block_diag": of(M, V, Array((2, 1))),
    "linalg.circulant": of(V),
    "linalg.hankel": of(V, r=[Array((3,))]),
    "linalg.toeplitz": of(V, r=[Array((3,))]),
    # ------------------------------------------------------------------------------------------------- ndimage
    "ndimage.convolve": of(GRID, [Array((3, 3), "f"), np.ones((3, 2))], **FILTER),
    "ndimage.correlate": of(GRID, [Array((3, 3), "f"), np.ones((2, 3))], **FILTER),
    "ndimage.convolve1d": of(GRID, [W, FIXED], axis=[0, 1], **FILTER),
    "ndimage.correlate1d": of(GRID, [W, FIXED], axis=[0, 1], **FILTER),
    "ndimage.gaussian_filter": of(GRID, [0.8, (0.5, 1.0)], order=[0, 1, (0, 1)], radius=[2], **SMOOTH),
    "ndimage.gaussian_filter1d": of(GRID, [0.8], axis=[0, 1], order=[0, 1, 2], radius=[2], **SMOOTH),
    "ndimage.gaussian_gradient_magnitude": of(GRID, [0.8], **EDGES),
    "ndimage.gaussian_laplace": of(GRID, [0.8], **EDGES),
    "ndimage.laplace": of(GRID, **EDGES),
    "ndimage.prewitt": of(GRID, axis=[0, 1], **EDGES),
    "ndimage.sobel": of(GRID, axis=[0, 1], **EDGES),
    "ndimage.uniform_filter": of(GRID, [3, (2, 3)], **FILTER),
    "ndimage.uniform_filter1d": of(GRID, [3, 2], axis=[0, 1], **FILTER),
    "ndimage.fourier_ellipsoid": of(LINE, [2.0, (2.0, 3.0)], n=[8], axis=[-1]),
    "ndimage.fourier_gaussian": of(LINE, [0.5, (0.5, 0.8)], n=[8], axis=[-1]),
    "ndimage.fourier_shift": of(LINE, [0.5, (0.5, 0.8)], n=[8], axis=[-1]),
    "ndimage.fourier_uniform": of(LINE, [2.0, (2.0, 3.0)], n=[8], axis=[-1]),
    "ndimage.affine_transform": Call({"order": [1, 0]}, {"mode": ORDER1["mode"], "offset": [(0.2, 0.3)]},
                                     (GRID, [[[0.9, 0.1], [-0.1, 1.1]]])),
    "ndimage.map_coordinates": Call({"order": [1, 0]}, {"mode": ORDER1["mode"], "cval": [0.4]}, (GRID, PLACES)),
    "ndimage.shift": Call({"order": [1, 0]}, {"mode": ORDER1["mode"], "cval": [0.4]}, (GRID, [0.3, (0.4, -0.7)])),
    "ndimage.zoom": Call({"order": [1, 0]}, {"mode": ORDER1["mode"], "grid_mode": [True]}, (GRID, [1.3, (0.7, 1.4)])),
    # -------------------------------------------------------------------------------------------------- signal
    "signal.convolve": of(V, W, **MODES, method=["direct", "fft"]),
    "signal.correlate": of(V, W, **MODES, method=["direct", "fft"]),
    "signal.fftconvolve": of(V, W, **MODES),
    "signal.oaconvolve": of(V, W, **MODES),
    "signal.convolve2d": of(M, Array((2, 3)), **MODES, boundary=["fill", "wrap", "symm"], fillvalue=[0.3]),
    "signal.correlate2d": of(M, Array((2, 3)), **MODES, boundary=["fill", "wrap", "symm"], fillvalue=[0.3]),
    "signal.detrend": of(LONG, axis=[-1, 0], type=["linear", "constant"], bp=[[0, 10]]),
    "signal.filtfilt": of([FIXED, W], [RECURSION], LONG, padtype=["odd", "even", None], padlen=[5], method=["gust"]),
    "signal.hilbert": of(LONG, N=[32], axis=[-1, 0]),
    "signal.lfilter": of([FIXED, W], [RECURSION], LONG, axis=[-1, 0], zi=[Array((2, 2), "f")]),
    "signal.savgol_filter": of(LONG, [5], [2], deriv=[0, 1], delta=[0.5], axis=[-1],
                               mode=["interp", "nearest", "mirror", "constant", "wrap"], cval=[0.3]),
    "signal.sosfilt": of([SOS], LONG, axis=[-1], zi=[Array((1, 2, 2), "f")]),
    "signal.sosfiltfilt": of([SOS], LONG, axis=[-1], padtype=["odd", "even", None], padlen=[5]),
    # ------------------------------------------------------------------------------------------------- special
    "special.polygamma": of([1, 2], R),
    "special.softplus": of(R),
    "special.zeta": of([2.5, np.array([2.0, 3.0, 4.0, 5.0])], Array((3, 4), "f", 1.2, 2.0)),
    "special.lambertw": of(M, k=[0]),
    "special.log_softmax": of(R, axis=[0, None]),
    "special.softmax": of(R, axis=[0, None]),
    "special.logsumexp": of(R, axis=[0, None], b=[R], keepdims=[True], return_sign=[True]),
    "special.multigammaln": of(Array((3,), "f", 2.0, 3.0), [2]),
    **{f"special.spherical_{f}": of([2, np.arange(4)], R, derivative=[True]) for f in ("jn", "yn", "in", "kn")},
}  # fmt: skip

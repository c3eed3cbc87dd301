"""Test cases of NumPy's functions for statistics, sets, polynomials and linear algebra, for `numpy_rule_cases`."""

import numpy as np

REAL, BOTH = ("f",), ("f", "c")
V, M = (5,), (3, 4)
HOLES = np.array([[0.0, np.nan, 0.0, 0.0], [np.nan, 0.0, 0.0, np.nan], [0.0, 0.0, 0.0, 0.0]])
GROWING = np.arange(1.0, 6.0)


def cases_of(case):
    """The cases of each function by name, made by `numpy_rule_cases.case`."""
    covariances = [
        case(np.cov, M),
        case(np.cov, V),
        case(np.cov, (1, 5)),
        case(lambda x: np.cov(x, rowvar=False), M),
        case(lambda x: np.cov(x, rowvar=False, bias=True), (1, 5)),
        case(lambda x, y: np.cov(x, y), V, V),
        case(lambda x, y: np.cov(x, y, rowvar=False, bias=True), (5, 2), (5, 1)),
        case(lambda x, w: np.cov(x, aweights=w, ddof=0), M, (4,), kinds=REAL),
        case(lambda x, w: np.cov(x, fweights=[1, 2, 0, 3], aweights=w), M, (4,), kinds=REAL),
        case(lambda x: np.cov(x, fweights=[1, 2, 0, 3]), M),
    ]
    histograms = [
        case(lambda w: np.histogram(GROWING, 3, weights=w), V),
        case(lambda w: np.histogram(GROWING, [0.0, 1.0, 2.5, 5.0], weights=w, density=True), V, kinds=REAL),
        case(lambda x: np.histogram(x, 4), M, kinds=REAL),
        case(lambda x, w: np.histogram(x, 4, density=True, weights=w), M, M, kinds=REAL),
        case(lambda x: np.histogram(x, "sqrt", density=True), (9,), kinds=REAL),
        case(lambda x: np.histogram(x, [0.2, 0.5, 0.7, 1.0]) + (x * 2,), M, kinds=REAL),
        case(lambda w: np.histogram(GROWING, 4, (2, 4.5), weights=w), V, kinds=REAL),
    ]
    return {
        "cov": covariances,
        "corrcoef": [
            case(np.corrcoef, M),
            case(lambda x, y: np.corrcoef(x, y), V, V),
            case(lambda x: np.corrcoef(x, rowvar=False), (5, 2), kinds=REAL),
            case(lambda x: np.corrcoef(x) + 0 * x.sum(), V),
        ],
        "histogram": histograms,
        "histogram_bin_edges": [
            case(lambda x: np.histogram_bin_edges(x, 4), M, kinds=REAL),
            case(lambda x: np.histogram_bin_edges(x, "auto"), V, kinds=REAL),
        ],
        "histogram2d": [
            case(lambda x, y: np.histogram2d(x, y, [2, 3], density=True), V, V, kinds=REAL),
            case(lambda w: np.histogram2d(GROWING, GROWING % 3, 3, weights=w), V, kinds=REAL),
            case(lambda w: np.histogram2d(GROWING, GROWING % 3, [0.0, 1.5, 4.0], weights=w), V, kinds=REAL),
        ],
        "histogramdd": [
            case(lambda x: np.histogramdd(x, 3, density=True), (7, 3), kinds=REAL),
            case(lambda x, w: np.histogramdd(x, (2, 3), weights=w), (6, 2), (6,), kinds=REAL),
            case(
                lambda x, w: np.histogramdd(x, [2, [0.3, 0.6, 0.8]], [(0.2, 0.7), None], weights=w),
                (6, 2),
                (6,),
                kinds=REAL,
            ),
        ],
        "unique": [
            case(np.unique, M),
            case(lambda x: np.unique(np.concatenate([x, x])), V),
            case(lambda x: np.unique(np.concatenate([x, x[::-1]]), True, True, True)[0] * 2.0, V),
            case(lambda x: np.unique(x[[2, 0, 2]], axis=0), M, kinds=REAL),
        ],
        "union1d": [case(lambda x, y: np.union1d(x, np.concatenate([y, x[1:3]])), V, (3,))],
        "intersect1d": [
            case(lambda x, y: np.intersect1d(x, np.concatenate([y, x[1:3]])), V, (3,)),
            case(lambda x: np.intersect1d(x, x[1:3], return_indices=True)[0] * 1.0, V),
        ],
        "setdiff1d": [case(lambda x, y: np.setdiff1d(x, np.concatenate([y, x[1:3]])), V, (3,))],
        "setxor1d": [case(lambda x, y: np.setxor1d(x, np.concatenate([y, x[1:3]])), V, (3,))],
        "unique_all": [case(lambda x: np.unique_all(x[[1, 1, 0, 2]]).values, V)],
        "unique_counts": [case(lambda x: np.unique_counts(x[[1, 1, 0, 2]]).values, V)],
        "unique_inverse": [case(lambda x: np.unique_inverse(x[[1, 1, 0, 2]]).values, V)],
        "unique_values": [case(lambda x: np.sort(np.unique_values(x[[1, 1, 0, 2]])), V)],
        "sort_complex": [case(np.sort_complex, V)],
        **{
            name: [
                *(case(lambda x, f=f, a=a: f(x + HOLES, axis=a), M, kinds=REAL) for a in (None, 0, -1, (0, 1))),
                case(lambda x, f=f: f(x + HOLES, axis=1, keepdims=True), M, kinds=REAL),
                case(lambda x, f=f: f(x, axis=(0, 2)), (2, 3, 4), kinds=REAL),
            ]
            for name, f in {
                "nanmedian": np.nanmedian,
                "nanquantile": lambda x, **k: np.nanquantile(x, [0.31, 0.9], **k),
                "nanpercentile": lambda x, **k: np.nanpercentile(x, 37.0, **k),
            }.items()
        },
        "poly": [case(np.poly, V), case(np.poly, (3, 3), kinds=REAL)],
        "polyadd": [case(np.polyadd, (3,), V), case(lambda x: np.polyadd(x, 2.0), V)],
        "polysub": [case(np.polysub, (3,), V), case(lambda x: np.polysub([1, 2], x), ())],
        "polymul": [case(np.polymul, (3,), V), case(lambda x: np.polymul([0, 0, 1, 2], x), V)],
        "polydiv": [
            case(np.polydiv, (3,), V),
            case(np.polydiv, V, (3,)),  # in single precision NumPy leaves rounding errors in the remainder
            case(lambda x: np.polydiv(np.polymul(x, [1.0, 2.0]), [1.0, 2.0])[0], V),
        ],
        "polyder": [case(np.polyder, V), case(lambda p: np.polyder(p, 3), V)],
        "polyint": [case(np.polyint, V), case(lambda p, k: np.polyint(p, 2, k), V, (2,))],
        "polyfit": [
            case(lambda x, y: np.polyfit(x, y, 2), (7,), (7,), kinds=REAL, tolerance=1e-6),
            case(lambda x, y, w: np.polyfit(x, y, 2, w=w), (7,), (7, 2), (7,), kinds=REAL, tolerance=1e-6),
            case(lambda y: np.polyfit(GROWING, y, 2), V),
            case(lambda x, y: np.polyfit(x, y, 1, full=True)[:2], V, V, kinds=REAL),
            case(lambda x, y: np.polyfit(x, y, 1, cov=True), V, V, kinds=REAL),
            case(lambda x, y: np.polyfit(x, y, 1, cov="unscaled"), V, V, kinds=REAL),
        ],
        "roots": [case(np.roots, V), case(lambda p: np.roots(np.concatenate([[0.0], p, [0.0]])), (4,))],
        "vander": [
            case(np.vander, V),
            case(lambda x: np.vander(x, 3, increasing=True), V),
            case(lambda x: np.vander(x, 0), V),
        ],
        "linalg.cond": [case(lambda x, p=p: np.linalg.cond(x + np.eye(3), p), (3, 3)) for p in (None, -2, 1, np.inf)]
        + [case(lambda x: np.linalg.cond(x), M), case(lambda x: np.linalg.cond(x + 2 * np.eye(2)), (3, 2, 2))],
        "linalg.lstsq": [
            case(lambda a, b: np.linalg.lstsq(a, b, rcond=None), (5, 3), V, tolerance=1e-7),
            case(lambda a, b: np.linalg.lstsq(a, b, rcond=None), (5, 3), (5, 2), tolerance=1e-7),
            case(lambda a, b: np.linalg.lstsq(a, b, rcond=None)[0], (2, 4), (2,), tolerance=1e-7),
            case(lambda b: np.linalg.lstsq(np.outer(GROWING, [1, 2.0]), b, rcond=None)[0], V),
        ],
        "linalg.pinv": [case(np.linalg.pinv, s, tolerance=1e-7) for s in ((4, 2), (2, 3), (2, 3, 3))]
        + [case(lambda x: np.linalg.pinv(x, rcond=1e-6), (4, 2))],
        "linalg.qr": [case(lambda x: np.linalg.qr(_steep(x)), s) for s in ((4, 3), (3, 3), (2, 4), (2, 3, 2), (4, 1))]
        + [
            case(lambda x: np.linalg.qr(_steep(x), "r"), (4, 3)),
            case(lambda x: np.linalg.qr(_steep(x), "r"), (2, 4)),
            case(lambda x: np.linalg.qr(_steep(x), "complete"), (2, 4)),
        ],
        "linalg.tensorinv": [case(lambda x: np.linalg.tensorinv(x + np.eye(6).reshape(2, 3, 6), 2), (2, 3, 6))],
        "linalg.tensorsolve": [
            case(lambda a, b: np.linalg.tensorsolve(a + np.eye(6).reshape(2, 3, 6), b), (2, 3, 6), (2, 3)),
            case(
                lambda a, b: np.linalg.tensorsolve(np.moveaxis(a + np.eye(6).reshape(2, 3, 6), 2, 0), b, axes=(0,)),
                (2, 3, 6),
                (2, 3),
            ),
        ],
        "fft.hfft": [case(np.fft.hfft, V), case(lambda x: np.fft.hfft(x, 5, 0, "ortho"), M)],
        "fft.ihfft": [case(lambda x: np.fft.ihfft(x.real), V), case(lambda x: np.fft.ihfft(x, 6, 0), M, kinds=REAL)],
    }


def _steep(x):
    """A matrix of full rank with well-separated columns."""
    return x + 2.0 * np.eye(*x.shape[-2:])

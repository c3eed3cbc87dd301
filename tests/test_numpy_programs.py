"""NumPy programs that `scripts/fuzz --numpy` found to compute something else, held against NumPy."""

import pytest
from numpy_check import examine

FOUND = {
    "an empty list as an index": ["z[[]] += 3"],
    "a narrow dtype": ["a = np.nanstd(f)"],
    "a real dtype for complex numbers": [
        "a = np.cumprod(z, dtype=np.float64)",
        "b = np.prod(z, axis=0, dtype=np.float64)",
    ],
    "a scalar in many places": [
        "np.copyto(f, np.sum(f), where=f > 0)",
        "a = np.broadcast_to(x[0, 0], (2, 3)) * x[:2, :3]",
    ],
    "0-d targets": ["a = np.mean(x, out=np.zeros(()))", "np.putmask(a, a > -9, a[None])", "a.flat[::-1] = a[...]"],
    "real values in complex memory": ["a = z + -1", "np.abs(a, out=a)"],
    "a 0-d array left alone": ["a = np.nan_to_num(np.mean(f, out=np.zeros(())), copy=False)"],
    "any order": ["a = np.flip(np.diag(z)).ravel('A')"],
    "flattening on the way": ["a = np.real(z).cumprod()", "b = x.T[::2].cumsum()"],
    "0-d variances": [
        "a = np.var(x[0, 0, ...])",
        "b = x[0, 0].std()",
        "c = np.var(z[0, 0])",
        "d = np.std(z[0, 0, ...])",
    ],
    "scalars in new shapes": [
        "a = np.squeeze(x[0, 0])",
        "b = np.reshape(x[0, 0], ())",
        "c = np.broadcast_to(x[0, 0], ())",
    ],
    "joined dtypes": ["a = np.r_[x[0], z.ravel(), f, 1]"],
}


@pytest.mark.parametrize("lines", FOUND.values(), ids=FOUND)
def test_found_before(lines):
    assert not examine(lines)

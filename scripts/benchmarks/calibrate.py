"""Calibration: the speed of this machine relative to the reference machine of the bars in ``scripts/bench``.

Prints two ratios of times: for gathers in double precision like those of LULESH, and for vectorised pairs in single
precision like miniBUDE's.
"""

import math
import time

import numba
import numpy as np

REFERENCE_MS = {"gather": 1.18, "pairs": 26.6}  # the best of many runs on one core


@numba.njit(fastmath=True, error_model="numpy")
def gather(x, y, z, corner, out):
    for e in range(corner.shape[0]):
        s = 0.0
        for k in range(8):
            a, b = corner[e, k], corner[e, (k + 3) % 8]
            dx, dy, dz = x[a] - x[b], y[a] - y[b], z[a] - z[b]
            s += dx * (dy * dz - dx) + dy * (dz * dx - dy) + dz * (dx * dy - dz)
        out[e] = s


@numba.njit(fastmath=True, error_model="numpy")
def pairs(px, py, pz, radius, lx, ly, lz, energy):
    zero, one = np.float32(0), np.float32(1)
    for i in range(px.shape[0]):
        for j in range(lx.shape[0]):
            for k in range(lx.shape[1]):
                dx, dy, dz = lx[j, k] - px[i], ly[j, k] - py[i], lz[j, k] - pz[i]
                r = math.sqrt(dx * dx + dy * dy + dz * dz)
                gap = r - radius[i]
                inside = gap < zero
                steric = (one - r / radius[i]) * (one if inside else zero)
                energy[k] += steric + (one if inside else one - gap) * (one if gap < one else zero)


def best(function, *arguments, repeat):
    """The shortest time of several calls, in milliseconds, the first of which, which compiles, does not count."""
    function(*arguments)
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def corners(edge):
    """The nodes of each element of a cube."""
    n = edge + 1
    i = np.arange(edge)
    first = (i[:, None, None] * n * n + i[None, :, None] * n + i[None, None, :]).ravel()
    return np.stack([first + k for k in (0, 1, 1 + n, n, n * n, n * n + 1, n * n + n + 1, n * n + n)], 1)


def main():
    random = np.random.default_rng(0)
    edge = 45
    nodes = random.random((3, (edge + 1) ** 3))
    atoms = random.random((4, 938), dtype=np.float32) * np.float32(10) + np.float32(1)
    ligand = random.random((3, 26, 4096), dtype=np.float32) * np.float32(10)
    measured = {
        "gather": best(gather, *nodes, corners(edge), np.empty(edge**3), repeat=40),
        "pairs": best(pairs, *atoms, *ligand, np.zeros(4096, np.float32), repeat=20),
    }
    for name, ms in measured.items():
        print(f"{name}: {ms:.2f} ms, {ms / REFERENCE_MS[name]:.2f} x the reference machine")


if __name__ == "__main__":
    main()

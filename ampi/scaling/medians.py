"""Medians of repeated measurements, with confidence bands.

The band of a time follows from order statistics: the median lies between the j-th smallest and the j-th largest of n
values with a probability from the binomial distribution, for any distribution of the values (Hahn and Meeker,
*Statistical Intervals*, 1991, section 5.2; recommended for such measurements by Hoefler and Belli, *Scientific
benchmarking of parallel computing systems*, SC15). Few values do not reach 95 %: then the band covers all of them, and
`Band.confidence` has its confidence.

The band of a quotient of medians is that of Efron's percentile bootstrap; times of the same run are drawn together.
"""

import dataclasses
from collections.abc import Mapping

import numpy as np
from scipy.stats import binom

from ampi.scaling.results import Results

CONFIDENCE = 0.95
DRAWS = 2000


@dataclasses.dataclass(frozen=True)
class Band:
    """A median, and the bounds of the true one with this confidence."""

    median: float
    low: float
    high: float
    confidence: float


@dataclasses.dataclass(frozen=True, order=True)
class Point:
    """A configuration of one mode."""

    mode: str
    threads: int
    ranks: int

    @property
    def workers(self) -> int:
        """Ranks times threads."""
        return self.ranks * self.threads


def samples(results: Results) -> dict[Point, dict[tuple[str, int], float]]:
    """The times of each configuration, in seconds, by run and repetition."""
    found: dict[Point, dict[tuple[str, int], float]] = {}
    for run in results.good:
        for mode, seconds in run["seconds"].items():
            point = Point(mode, run["threads"], run["ranks"])
            found.setdefault(point, {})[run["run"], run["repetition"]] = seconds
    return {point: dict(sorted(found[point].items())) for point in sorted(found)}


def band(values: Mapping[tuple[str, int], float]) -> Band:
    """The median of some times, with its band from order statistics."""
    ordered = np.sort(np.fromiter(values.values(), float))
    count = len(ordered)
    inside = lambda cut: 1.0 - 2.0 * binom.cdf(cut, count, 0.5)  # between the values cut and count - 1 - cut
    cut = 0
    while cut + 1 < count / 2 and inside(cut + 1) >= CONFIDENCE:
        cut += 1
    confidence = max(0.0, float(inside(cut)))
    return Band(float(np.median(ordered)), float(ordered[cut]), float(ordered[count - 1 - cut]), confidence)


def quotient(over: Mapping[tuple[str, int], float], under: Mapping[tuple[str, int], float], seed: int = 0) -> Band:
    """The quotient of two medians, with its band from the bootstrap."""
    generator = np.random.default_rng(seed)
    names = sorted(over), sorted(under)
    upper, lower = np.array([over[k] for k in names[0]]), np.array([under[k] for k in names[1]])
    drawn = generator.integers(len(upper), size=(DRAWS, len(upper)))
    others = drawn if names[0] == names[1] else generator.integers(len(lower), size=(DRAWS, len(lower)))
    found = np.median(upper[drawn], axis=1) / np.median(lower[others], axis=1)
    low, high = np.quantile(found, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
    return Band(float(np.median(upper) / np.median(lower)), float(low), float(high), CONFIDENCE)


def ratios(results: Results) -> dict[tuple[int, int], Band]:
    """Ratios of gradient to primal, by threads and ranks, where both were measured."""
    times = samples(results)
    return {
        (point.threads, point.ranks): quotient(values, times[primal])
        for point, values in times.items()
        if point.mode == "gradient" and (primal := Point("primal", point.threads, point.ranks)) in times
    }


def efficiencies(results: Results, scaling: str) -> dict[Point, Band]:
    """Parallel efficiency, with respect to the fewest workers (ranks times threads) of the same mode.

    Strong scaling: T(w₀) w₀ / (T(w) w); weak scaling: T(w₀) / T(w).
    """
    times = samples(results)
    found = {}
    for point, values in times.items():
        base = min((other for other in times if other.mode == point.mode), key=lambda p: (p.workers, p.threads))
        factor = base.workers / point.workers if scaling == "strong" else 1.0
        if point == base:
            found[point] = Band(1.0, 1.0, 1.0, CONFIDENCE)
            continue
        speed = quotient(times[base], values)
        found[point] = Band(speed.median * factor, speed.low * factor, speed.high * factor, speed.confidence)
    return found


def speed_ups(results: Results, scaling: str) -> dict[Point, Band]:
    """Speed-up over the fewest workers, ideally w / w₀; in weak scaling the scaled speed-up (Gustafson)."""
    found = {}
    known = efficiencies(results, scaling)
    for point, value in known.items():
        factor = point.workers / min(other.workers for other in known if other.mode == point.mode)
        found[point] = Band(value.median * factor, value.low * factor, value.high * factor, value.confidence)
    return found

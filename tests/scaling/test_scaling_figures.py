"""Medians, fits, pictures and exports of results."""

import csv
import io
import itertools
import re

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import nnls

from ampi import scaling
from ampi.scaling import exports, fits, medians, plots, published
from ampi.scaling.results import Results

SESSION = {
    "kind": "session", "session": "ab", "seed": 1, "scaling": "strong",
    "machine": {"hosts": ["n1", "n2"]}, "git": {"commit": "c0ffee", "dirty": True},
}  # fmt: skip


def run(mode, ranks, threads, repetition, seconds, status="ok"):
    times = {mode: seconds} if status == "ok" else {}
    return {
        "kind": "run", "session": "ab", "run": mode, "ranks": ranks, "threads": threads, "size": 3, "wall": 1.5,
        "repetition": repetition, "status": status, "seconds": times, "started": "now", "message": "",
    }  # fmt: skip


def made(time, ranks=(1, 2, 4, 8, 16), threads=(1,), repetitions=5):
    """Results where a mode on so many ranks and threads took ``time(mode, ranks, threads, repetition)``."""
    keys = itertools.product(("primal", "gradient"), ranks, threads, range(repetitions))
    return Results([SESSION], [run(*key, time(*key)) for key in keys])


times = st.floats(1e-9, 1e6)


@st.composite
def measured(draw):
    """Results, some of which failed."""
    keys = st.tuples(st.sampled_from(["primal", "gradient"]), *[st.integers(1, 64)] * 2, st.integers(0, 3))
    drawn = draw(st.dictionaries(keys, times | st.none(), min_size=1, max_size=20))
    return Results([SESSION], [run(*key, time, "ok" if time else "failed") for key, time in drawn.items()])


@given(measured())
def test_csv_reads_back_as_the_results(found):
    rows = list(csv.DictReader(io.StringIO(exports.to_csv(found))))
    assert len(rows) == len(found.runs)
    for row, one in zip(rows, found.runs):
        names = ("run", "ranks", "threads", "size", "repetition", "status", "session", "started")
        assert [row[name] for name in names] == [str(one[name]) for name in names]
        assert ({row["mode"]: float(row["seconds"])} if row["mode"] else {}) == one["seconds"]
        assert (row["hosts"], row["commit"], row["dirty"], row["scaling"]) == ("n1 n2", "c0ffee", "True", "strong")


def read_extrap(text):
    """What stands in the text format of Extra-P: the values of each region at each point."""
    found, parameters, points, region, metric = {}, [], [], None, None
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        tag, _, rest = line.partition(" ")
        if tag == "PARAMETER":
            parameters += rest.split(" ")
        elif tag == "POINTS":
            groups = re.findall(r"\(([^()]*)\)", rest) or rest.split(" ")
            points = [tuple(float(x) for x in group.split(" ")) for group in groups]
            assert all(len(point) == len(parameters) for point in points)
        elif tag == "METRIC":
            metric = rest
        elif tag == "REGION":
            region, number = rest, 0
        else:
            assert tag == "DATA" and metric and re.fullmatch(r"[-+]?\d+\.?\d*( [-+]?\d+\.?\d*)*", rest)
            found[region, points[number]] = [float(x) for x in rest.split(" ")]
            number += 1
    return parameters, points, found


@given(measured())
def test_extrap_reads_back_as_the_results(found):
    expected = {}
    for one in sorted(found.good, key=lambda one: one["repetition"]):
        expected.setdefault((one["run"], (one["ranks"], one["threads"])), []).extend(one["seconds"].values())
    modes = {mode for mode, _ in expected}
    whole = {place for _, place in expected if all((mode, place) in expected for mode in modes)}
    if not whole:
        with pytest.raises(scaling.ScalingError, match="nothing to export"):
            exports.to_extrap(found)
        return
    parameters, points, read = read_extrap(exports.to_extrap(found, "two\nlines"))
    several = len({threads for _, threads in whole}) > 1
    assert parameters == (["p", "t"] if several else ["p"]) and len(points) == len(whole)
    known = {(mode, place if several else place[:1]): v for (mode, place), v in expected.items() if place in whole}
    assert read == known


RANKS = 2.0 ** numpy.arange(0, 11)


@given(st.sampled_from(fits.EXPONENTS), st.floats(1e-6, 1e6))
def test_fits_find_the_exponents_of_exact_curves(exponents, factor):
    power, logarithm = exponents
    ranks = RANKS[1:] if logarithm else RANKS
    found = fits.fit(ranks, factor * ranks**power * numpy.log2(ranks) ** logarithm)
    assert (found.constant, found.power, found.logarithm) == (0, power, logarithm)
    assert found.factor == pytest.approx(factor, rel=1e-9) and found.error < fits.FLAT and found.bend is None


@settings(max_examples=15)
@given(st.sampled_from(fits.EXPONENTS), st.floats(1e-6, 1e6), st.integers(0, 2**32 - 1))
def test_fits_of_noise_predict_within_the_noise(exponents, factor, seed):
    # which of two near exponents is chosen, and whether with a small constant, is up to the noise: predictions are not
    power, logarithm = exponents
    ranks = RANKS[1:] if logarithm else RANKS
    noise = 1 + 0.003 * numpy.random.default_rng(seed).standard_normal(len(ranks))
    found = fits.fit(ranks, factor * ranks**power * numpy.log2(ranks) ** logarithm * noise)
    for p in ranks:
        assert found(p) == pytest.approx(factor * p**power * numpy.log2(p) ** logarithm, rel=0.03)
    assert found.error < 0.015


@settings(max_examples=15)
@given(st.sampled_from([1.0, 1.5, 2.0, -1.0]), st.sampled_from([4, 8, 16, 64]), st.integers(0, 2**32 - 1))
def test_fits_find_where_a_curve_bends(power, bend, seed):
    noise = 1 + 0.002 * numpy.random.default_rng(seed).standard_normal(len(RANKS))
    found = fits.fit(RANKS, 4.0 * (1 + (RANKS / bend) ** power) * noise)
    assert found.constant == pytest.approx(4.0, rel=0.1) and found.bend == pytest.approx(bend, rel=0.35)
    assert "within what was measured" in fits.described(found, "the ratio")


@given(st.floats(0.1, 100), st.integers(0, 2**32 - 1))
@settings(max_examples=15)
def test_noise_alone_is_mostly_a_constant(value, seed):
    noise = 1 + 0.01 * numpy.random.default_rng(seed).standard_normal(len(RANKS))
    found = fits.fit(RANKS, value * noise)
    assert abs(found(1024) / found(1) - 1) < 0.05


def test_few_points_are_no_model():
    with pytest.raises(scaling.ScalingError, match="needs 4 different numbers of ranks at least, and there are 3"):
        fits.fit([1, 2, 2, 4], [1, 1, 1, 1])
    with pytest.raises(scaling.ScalingError, match="times above 0"):
        fits.fit([1, 2, 4, 8], [1, 0, 1, 1])


@given(st.integers(1, 30), st.randoms(use_true_random=False))
def test_bands_of_medians(count, random):
    values = [k + random.random() / 2 for k in range(count)]
    random.shuffle(values)
    found = medians.band({("a", k): value for k, value in enumerate(values)})
    assert found.low <= found.median <= found.high and found.median == numpy.median(values)
    cut = sorted(values).index(found.low)
    heads = numpy.array([bin(k).count("1") for k in range(2 ** min(count, 14))])
    if count <= 14:  # by counting all outcomes: how many of the values lie below the true median
        inside = numpy.mean((heads > cut) & (heads < count - cut))
        assert found.confidence == pytest.approx(inside, abs=1e-12)
        assert found.confidence >= 0.95 or count < 6


def test_bands_hold_the_median_as_often_as_they_say():
    generator = numpy.random.default_rng(1)
    draws = generator.exponential(size=(2000, 9))
    bands = [medians.band({("a", k): x for k, x in enumerate(row)}) for row in draws]
    held = numpy.mean([band.low <= numpy.log(2) <= band.high for band in bands])
    assert held == pytest.approx(bands[0].confidence, abs=0.015)


@pytest.mark.parametrize("scaled", ["strong", "weak"])
def test_efficiencies_and_speed_ups(scaled):
    work = lambda p: 1.0 if scaled == "strong" else p
    time = lambda mode, p, t, k: (3 if mode == "gradient" else 1) * work(p * t) / (p * t) ** 0.5 * (1 + 1e-3 * k)
    found = made(time, threads=(1, 2))
    for point, value in medians.efficiencies(found, scaled).items():
        assert value.median == pytest.approx(point.workers**-0.5) and value.low <= value.median <= value.high
    for point, value in medians.speed_ups(found, scaled).items():
        assert value.median == pytest.approx(point.workers**0.5)
    assert [band.median for band in medians.ratios(found).values()] == pytest.approx([3] * 10)


def test_times_of_one_run_are_compared_in_pairs():
    """The primal varies, but the gradient always takes twice as long: their ratio is sure."""
    runs = [run("both", 1, 1, k, 0.0) | {"seconds": {"primal": 1.0 + k, "gradient": 2.0 + 2 * k}} for k in range(9)]
    band = medians.ratios(Results([SESSION], runs))[1, 1]
    assert (band.low, band.median, band.high) == (2.0, 2.0, 2.0)
    apart = [
        run(mode, 1, 1, k, (1.0 + k) * (1 + (mode == "gradient"))) for k in range(9) for mode in ("primal", "gradient")
    ]
    band = medians.ratios(Results([SESSION], apart))[1, 1]
    assert band.low < 1.5 and band.high > 2.5


@pytest.mark.parametrize("ending, start", [("png", b"\x89PNG"), ("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_pictures(tmp_path, ending, start):
    found = made(lambda mode, p, t, k: (3 if mode == "gradient" else 1) / p / t + 0.01 * k, threads=(1, 2))
    path = plots.plot(found, "strong", tmp_path / f"a.{ending}", "name", ["lulesh-strong"])
    assert path.read_bytes().startswith(start)
    if ending == "svg":
        assert path.stat().st_size > 20000


def test_pictures_that_cannot_be_drawn(tmp_path):
    found = made(lambda *key: 1.0)
    with pytest.raises(scaling.ScalingError, match="nothing to draw"):
        plots.plot(Results([], []), "strong", tmp_path / "a.png")
    with pytest.raises(scaling.ScalingError, match=r"a picture ends in .*svg"):
        plots.plot(found, "strong", tmp_path / "a.txt")
    with pytest.raises(scaling.ScalingError, match="choose from lulesh-strong, lulesh-weak, minibude-openmp"):
        plots.plot(found, "strong", tmp_path / "a.png", beside=["lulesh"])


def test_published_figures():
    assert published.OVERHEADS["lulesh-strong"]["CoDiPack"] == {1: 9.63, 8: 9.09, 27: 7.32, 64: 4.39}
    assert published.OVERHEADS["minibude-openmp"] == {"Enzyme C++ (OpenMP)": {1: 2.38, 64: 3.92}}


def test_terms_are_not_taken_for_noise():
    drawn = [1 + 0.01 * numpy.random.default_rng(seed).standard_normal(len(RANKS)) for seed in range(20)]
    assert sum(fits.fit(RANKS, 5 * noise).factor == 0 for noise in drawn) >= 14


@given(st.lists(st.integers(1, 500), min_size=4, max_size=9, unique=True), st.data())
def test_coefficients_are_those_of_nonnegative_least_squares(ranks, data):
    """Of SciPy, with each point left out in turn."""
    p = numpy.array(sorted(ranks), float)
    y = numpy.array(data.draw(st.lists(st.floats(0.5, 3), min_size=len(p), max_size=len(p))))
    columns = fits._columns(p, True, data.draw(st.sampled_from(fits.EXPONENTS)))
    weights = 1 - numpy.eye(len(p))
    for weight, found in zip(weights, fits._coefficients(columns, y, weights)):
        matrix = (columns / y[:, None])[weight > 0]
        _, best = nnls(matrix, numpy.ones(len(matrix)))
        assert (found >= 0).all() and numpy.linalg.norm(matrix @ found - 1) <= best * (1 + 1e-6) + 1e-7

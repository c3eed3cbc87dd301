"""Pictures of a study: speed-up, efficiency, and gradient to primal, with the ideal and with confidence bands."""

import io
import pathlib
from collections.abc import Sequence
from typing import Any

from ampi.base import whole_files
from ampi.scaling import medians, published
from ampi.scaling.medians import Band
from ampi.scaling.results import Results
from ampi.scaling.study import ScalingError

STYLES = {"primal": "o-", "gradient": "s--"}


def plot(
    results: Results, scaling: str, path: str | pathlib.Path, title: str = "", beside: Sequence[str] = ()
) -> pathlib.Path:
    """Draw a study.

    Parameters
    ----------
    results : Results
        From `ampi.scaling.read_results`.
    scaling : str
        ``"strong"`` or ``"weak"``.
    path : path
        The picture; its suffix sets the format (``.png``, ``.svg``, ``.pdf``).
    title : str, optional
        A title.
    beside : sequence of str, optional
        Names in `ampi.scaling.published.OVERHEADS` to draw beside the ratio, with their source.

    Raises
    ------
    ScalingError
        Nothing was measured, the suffix is unknown, or Matplotlib is missing.
    """
    if not results.good:
        raise ScalingError("there is nothing to draw: no run has succeeded yet")
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ScalingError("pictures need Matplotlib: pip install matplotlib") from None
    figure = Figure(figsize=(11, 3.8), layout="constrained", dpi=144)
    canvas = FigureCanvasAgg(figure)
    path = pathlib.Path(path)
    if path.suffix[1:] not in canvas.get_supported_filetypes():
        raise ScalingError(f"{path}: a picture ends in {', '.join(sorted(canvas.get_supported_filetypes()))}")
    panels = figure.subplots(1, 3)
    _draw_speed_up(panels[0], results, scaling)
    _draw_efficiency(panels[1], results, scaling)
    _draw_ratio(panels[2], results, beside)
    if title:
        figure.suptitle(title)
    picture = io.BytesIO()
    figure.savefig(picture, format=path.suffix[1:])
    whole_files.write(path, picture.getvalue(), ScalingError)
    return path


def _draw_speed_up(axes: Any, results: Results, scaling: str) -> None:
    lines = _by_line(medians.speed_ups(results, scaling))
    workers = sorted({x for line in lines.values() for x in line})
    axes.plot(workers, [x / workers[0] for x in workers], ":", color="0.5", label="ideal")
    _draw(axes, lines)
    axes.set(title=f"{'scaled ' * (scaling == 'weak')}speed-up, {scaling} scaling")
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    _ticks(axes, workers)


def _draw_efficiency(axes: Any, results: Results, scaling: str) -> None:
    lines = _by_line(medians.efficiencies(results, scaling))
    axes.axhline(1.0, linestyle=":", color="0.5", label="ideal")
    _draw(axes, lines)
    axes.set(title=f"efficiency, {scaling} scaling")
    axes.set_ylim(bottom=0)
    _ticks(axes, sorted({x for line in lines.values() for x in line}))


def _draw_ratio(axes: Any, results: Results, beside: Sequence[str]) -> None:
    found = medians.ratios(results)
    lines: dict[tuple[str, int], dict[int, Band]] = {}
    for (threads, ranks), band in found.items():
        lines.setdefault(("gradient", threads), {})[ranks * threads] = band
    _draw(axes, lines)
    places = {x for line in lines.values() for x in line}
    for name in beside:
        if name not in published.OVERHEADS:
            raise ScalingError(f"nothing is published under {name!r}; choose from {', '.join(published.OVERHEADS)}")
        for tool, values in published.OVERHEADS[name].items():
            axes.plot(list(values), list(values.values()), "x:", alpha=0.7, label=tool)
            places |= set(values)
    axes.set(title="gradient / primal", ylabel=f"crosses: {published.CITATION}" if beside else "")
    axes.set_ylim(0, 1.3 * axes.get_ylim()[1])  # with room for the legend
    if places:
        _ticks(axes, sorted(places))


def _by_line(found: dict[medians.Point, Band]) -> dict[tuple[str, int], dict[int, Band]]:
    """Bands over workers, for each mode and number of threads."""
    lines: dict[tuple[str, int], dict[int, Band]] = {}
    for point, band in found.items():
        lines.setdefault((point.mode, point.threads), {})[point.workers] = band
    return lines


def _draw(axes: Any, lines: dict[tuple[str, int], dict[int, Band]]) -> None:
    places = sorted({threads for _, threads in lines})
    several = len(places) > 1
    for (mode, threads), line in sorted(lines.items(), reverse=True):
        x = sorted(line)
        label = f"{mode}, {threads} thread{'s' * (threads > 1)} per rank" if several else mode
        color = f"C{2 * places.index(threads) + (mode == 'gradient')}"
        axes.plot(x, [line[at].median for at in x], STYLES[mode], markersize=4, label=label, color=color)
        low, high = [line[at].low for at in x], [line[at].high for at in x]
        axes.fill_between(x, low, high, alpha=0.15, color=color, linewidth=0)
        axes.vlines(x, low, high, alpha=0.5, color=color)


def _ticks(axes: Any, places: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(list(places), [str(x) for x in places])
    axes.minorticks_off()
    axes.set_xlabel("ranks × threads")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="x-small", ncols=2 if len(axes.lines) > 4 else 1)

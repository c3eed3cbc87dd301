"""Matplotlib draws ampi's arrays, active or not, without a warning."""

import warnings

import numpy
import pytest

import ampi
import ampi.numpy
from ampi.base import checks

matplotlib = pytest.importorskip("matplotlib")

DRAWN = {
    "plot": lambda axes, x, s: axes.plot(x, x),
    "plot numbers": lambda axes, x, s: axes.plot([s, 2 * s], [1, s], linewidth=s),
    "scatter": lambda axes, x, s: axes.scatter(x, x, c=x, s=x),
    "limits": lambda axes, x, s: (axes.set_xlim([-0.01, s]), axes.set_ylim(-s, s)),
    "lines": lambda axes, x, s: (axes.axhline(s), axes.hlines(x, 0, s)),
    "imshow": lambda axes, x, s: axes.imshow(x.reshape(2, 3), vmin=s, vmax=2 * s),
    "contourf": lambda axes, x, s: axes.contourf(x.reshape(2, 3)),
    "quiver": lambda axes, x, s: axes.quiver(x, x, x, x),
    "hist": lambda axes, x, s: axes.hist(x),
    "bar": lambda axes, x, s: axes.bar(numpy.arange(6), x),
    "errorbar": lambda axes, x, s: axes.errorbar(numpy.arange(6), x, yerr=x),
    "set_ydata": lambda axes, x, s: axes.plot(numpy.arange(6))[0].set_ydata(x),
    "title": lambda axes, x, s: axes.set_title(f"{s:.3f} {x}"),
}


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize("name", DRAWN)
def test_pictures_are_those_of_plain_arrays(name, active, strict, monkeypatch, tmp_path):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    def picture(x):
        figure = Figure(figsize=(2, 2))
        canvas = FigureCanvasAgg(figure)
        DRAWN[name](figure.add_subplot(), x, x[1] * 1.5)
        canvas.draw()
        return numpy.asarray(canvas.buffer_rgba()).copy()

    monkeypatch.setattr(checks, "strict", strict)
    x0 = numpy.arange(6.0) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", ampi.ActivityWarning)
        if active:
            with ampi.Tape() as tape:
                found = picture(tape.watch(x0))
        else:
            found = picture(ampi.numpy.array(x0))
    numpy.testing.assert_array_equal(found, picture(x0))

"""Active numbers in other forms: NumPy's classes of numbers, text, and files.

A derivative passes, or a warning names the line where it is lost; what is only shown says nothing.
"""

import csv
import decimal
import io
import json
import logging
import os
import pickle
import sys
import warnings

import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.arrays import losses as outside

X = numpy.array([1.5, 2.5, 3.5])
KINDS = [numpy.float16, numpy.float32, numpy.float64, numpy.longdouble]
COMPLEX = [numpy.complex64, numpy.complex128, numpy.clongdouble]


class Derived(numpy.float32):
    pass


def told(f):
    """The gradient of a program, and the warnings of ampi's that it draws."""
    outside._warned.clear()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        gradient = ampi.grad(f)(X.copy())
    return gradient, [str(w.message) for w in seen if issubclass(w.category, ampi.ActivityWarning)]


# ------------------------------------------------------------------------------------------------ classes of numbers

MADE = {
    "a number": lambda kind, x: kind(x[0]),
    "by its dtype": lambda kind, x: numpy.dtype(kind).type(x[0]),
    "by __new__": lambda kind, x: kind.__new__(kind, x[0]),
    "an array": lambda kind, x: kind(x)[0],
    "a list": lambda kind, x: kind([x[0], x[1]])[0],
    "an array of one": lambda kind, x: kind(x[:1]).reshape(()),
    "ours": lambda kind, x: np.array(x[0], dtype=kind),
}


@pytest.mark.parametrize("how", MADE)
@pytest.mark.parametrize("kind", KINDS + COMPLEX, ids=lambda kind: kind.__name__)
def test_classes_of_numbers_keep_derivatives(kind, how):
    gradient, said = told(lambda x: np.sum(MADE[how](kind, x) * x).real)
    assert not said
    numpy.testing.assert_allclose(gradient, [7.5 + 1.5, 1.5, 1.5])
    with ampi.Tape() as tape:
        found = MADE[how](kind, tape.watch(X))
        assert found.dtype == kind
        assert isinstance(found, kind) or how in ("ours", "an array of one")
    _, tangent = ampi.jvp(lambda x: np.sum(MADE[how](kind, x) * x).real, X, numpy.array([1.0, 0, 0]))
    assert tangent == pytest.approx(9.0)


def test_numbers_of_other_kinds_are_refused_or_warned_about():
    with pytest.raises(ampi.ActivityError, match="Derived"):
        ampi.grad(lambda x: x[0] * Derived(x[0]))(X)
    assert told(lambda x: numpy.int32(x[0]) * x[0])[1]
    assert not told(lambda x: x[0] if numpy.bool_(x[0]) else x[1])[1]
    assert numpy.float32(np.ones(2)[0]) == 1 and type(numpy.float32(2.5)) is numpy.float32


# ------------------------------------------------------------------------------------------------------------- text

READ = {
    "str": lambda x: float(str(x[0])),
    "repr": lambda x: float(repr(x[0])[len("np.float64(") : -1]),
    "format": lambda x: float(format(x[0], ".17g")),
    "f": lambda x: float(f"{x[0]}"),
    "f with a format": lambda x: float(f"{x[0]:.17g}"),
    "f with more": lambda x: float(f" {x[0]:.17g} "),
    "%": lambda x: float("%.17g" % x[0]),  # noqa: UP031
    "%s": lambda x: float("%s" % x[0]),  # noqa: UP031
    "method": lambda x: float("{:.17g}".format(x[0])),  # noqa: UP032
    "complex": lambda x: complex(str(x[0])).real,
    "int": lambda x: int(f"{x[0]:.0f}"),
    "NumPy's number": lambda x: numpy.float64(str(x[0])),
    "decimal": lambda x: float(decimal.Decimal(str(x[0]))),
    "str_": lambda x: float(numpy.str_(x[0])),
    "an array's": lambda x: numpy.fromstring(str(x)[1:-1], sep=" ")[0],
    "array2string": lambda x: numpy.fromstring(numpy.array2string(x)[1:-1], sep=" ")[0],
    "parts": lambda x: float(str(x).strip("[]").split()[0]),
    "joined": lambda x: float("".join([str(x[0])])),
    "eval": lambda x: eval("numpy." + repr(x))[0],
    "astype": lambda x: x.astype("U20").astype(float)[0],
    "json": lambda x: json.loads(json.dumps([x[0]]))[0],
    "json of a list": lambda x: json.loads(json.dumps(x.tolist()))[0],
    "loadtxt": lambda x: numpy.loadtxt(io.StringIO(f"{x[0]} {x[1]}"))[0],
}


def by_a_name(x):
    text = str(x[0])
    return float(text)


def by_a_name_of_parts(x):
    text = f"{x[0]} {x[1]}"
    return float(text.split()[0])


def by_a_function(x):
    return (lambda text: float(text))(str(x[0]).rjust(30))


READ.update({f.__name__: f for f in (by_a_name, by_a_name_of_parts, by_a_function)})


@pytest.mark.parametrize("name", READ)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_number_that_is_read_from_text_draws_a_warning(name):
    gradient, said = told(lambda x: READ[name](x) * x[0])
    assert said and "test_casts_and_texts.py:" in said[0]
    assert "ampi.value" in said[0]
    assert gradient[0] == pytest.approx(1.5, abs=0.6)


def show_print(x):
    print(x, x[0], f"{x[0]:.3e}", str(x), repr(x), file=io.StringIO())
    print("%.3e" % x[0], "{:.2f}".format(x[0]), file=io.StringIO())  # noqa: UP031, UP032


def show_write(x):
    sys.stderr.write(f"energy {x[0]:.3e}\n")
    sys.stderr.write("energy %.3e\n" % x[0])  # noqa: UP031


def show_log(x):
    logging.getLogger("casts").warning("energy %.3e %s", x[0], x)
    logging.getLogger("casts").warning(f"energy {x[0]:.3e}")


def show_later(x):
    text = f"energy {x[0]:.3e}"
    parts = [str(v) for v in x]
    print(text, ", ".join(parts), file=io.StringIO())


def show_error(x):
    try:
        raise ValueError(f"{x[0]} is too large")
    except ValueError as error:
        assert f"{X[0]} is" in str(error)


def show_key(x):
    known = {f"{x[0]:.1f}": 2.0, str(x[1]): 3.0}
    assert float(known[f"{x[0]:.1f}"]) == 2.0


def show_json(x):
    print(json.dumps({"energy": x[0]}), file=io.StringIO())


SHOWN = [show_print, show_write, show_log, show_later, show_error, show_key, show_json]


@pytest.mark.parametrize("show", SHOWN, ids=lambda show: show.__name__)
def test_printing_and_plotting_do_not_warn(show, request):
    if show in (show_key, show_json) and sys.version_info < (3, 11):
        pytest.skip("Python 3.10 tells the line alone")
    gradient, said = told(lambda x: (show(x), np.sum(x))[1])
    assert not said
    assert (gradient == 1).all()


@pytest.mark.filterwarnings("ignore::ampi.errors.ActivityWarning")
def test_texts_are_texts():
    with ampi.Tape() as tape:
        x = tape.watch(X)
        text = str(x[0])
        assert text == "1.5" and hash(text) == hash("1.5") and isinstance(text, str)
        assert type(pickle.loads(pickle.dumps(text))) is str
        assert "a" + text + "b" == "a1.5b" and {"1.5": 1}[text] == 1
        assert f"{text:>5}" == "  1.5" and f"{text!s}" == "1.5" and str(text) == text
        with ampi.passive():
            assert type(str(x[0])) is str
    assert float(text) == 1.5 and int(str(numpy.int64(3))) == 3


# ------------------------------------------------------------------------------------------------------------- files


def filed(save, load):
    def program(x):
        file = io.BytesIO()
        save(file, x)
        file.seek(0)
        return load(file)

    return program


def by_path(save, load):
    def program(x):
        save("filed", x)
        return load("filed")

    return program


def by_h5py(save):
    h5py = pytest.importorskip("h5py")

    def program(x):
        with h5py.File("filed.h5", "w") as file:
            save(file, x)
        with h5py.File("filed.h5") as file:
            return file["q"][...] if "q" in file else file.attrs["q"]

    return program


def by_scipy(save, load):
    scipy = pytest.importorskip("scipy.io")
    return filed(lambda file, x: save(scipy, file, x), lambda file: load(scipy, file))


def by_csv(x):
    file = io.StringIO()
    csv.writer(file).writerow(x)
    return numpy.array(file.getvalue().split(","), float)


def by_csv_of_names(x):
    file = io.StringIO()
    csv.DictWriter(file, ["a"]).writerow({"a": x[0]})
    return float(file.getvalue())


FILES = {
    "save": lambda: filed(np.save, np.load),
    "NumPy's save": lambda: filed(numpy.save, numpy.load),
    "savez": lambda: filed(lambda f, x: numpy.savez(f, a=x), lambda f: numpy.load(f)["a"]),
    "savez_compressed": lambda: filed(numpy.savez_compressed, lambda f: numpy.load(f)["arr_0"]),
    "savetxt": lambda: filed(numpy.savetxt, numpy.loadtxt),
    "write_array": lambda: filed(numpy.lib.format.write_array, numpy.load),
    "tofile": lambda: by_path(lambda path, x: x.tofile(path), numpy.fromfile),
    "tofile, text": lambda: by_path(lambda path, x: x.tofile(path, " "), lambda path: numpy.fromfile(path, sep=" ")),
    "dump": lambda: by_path(lambda path, x: x.dump(path), lambda path: numpy.load(path, allow_pickle=True)),
    "pickle": lambda: filed(lambda f, x: pickle.dump(x, f), pickle.load),
    "memmap": lambda: by_path(
        lambda path, x: numpy.memmap(path, float, "w+", shape=3).__setitem__(..., x), numpy.fromfile
    ),
    "open": lambda: by_path(lambda path, x: open(path, "wb").write(x), numpy.fromfile),
    "csv": lambda: by_csv,
    "csv of names": lambda: by_csv_of_names,
    "h5py": lambda: by_h5py(lambda f, x: f.__setitem__("q", x)),
    "h5py, a number": lambda: by_h5py(lambda f, x: f.__setitem__("q", x[0])),
    "h5py, data": lambda: by_h5py(lambda f, x: f.create_dataset("q", data=x)),
    "h5py, a list": lambda: by_h5py(lambda f, x: f.create_dataset("q", data=[x[0], x[1]])),
    "h5py, another dtype": lambda: by_h5py(lambda f, x: f.create_dataset("q", (3,), "f4").__setitem__(..., x)),
    "h5py, a part": lambda: by_h5py(lambda f, x: f.create_dataset("q", (5,), "f8").__setitem__(slice(1, 4), x)),
    "h5py, direct": lambda: by_h5py(lambda f, x: f.create_dataset("q", (3,), "f8").write_direct(x)),
    "h5py, required": lambda: by_h5py(lambda f, x: f.require_dataset("q", (3,), "f8", data=x)),
    "h5py, an attribute": lambda: by_h5py(lambda f, x: f.attrs.__setitem__("q", x)),
    "h5py, a new attribute": lambda: by_h5py(lambda f, x: f.attrs.create("q", x)),
    "Matlab": lambda: by_scipy(lambda io, f, x: io.savemat(f, {"a": x}), lambda io, f: io.loadmat(f)["a"]),
    "Matrix Market": lambda: by_scipy(lambda io, f, x: io.mmwrite(f, x[:, None]), lambda io, f: io.mmread(f)),
}


@pytest.mark.parametrize("name", FILES)
def test_what_comes_back_from_a_file_draws_a_warning(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = FILES[name]()
    _, said = told(lambda x: np.sum(program(x)) * x[0])
    assert said
    assert "test_casts_and_texts.py:" in said[0]
    _, said = told(lambda x: np.sum(program(ampi.value(x))) * x[0])
    assert not said

    def on_purpose(x):
        with ampi.passive():
            program(x)
        return np.sum(x)

    assert not told(on_purpose)[1]


@pytest.mark.parametrize("name", ["save", "h5py", "csv"])
def test_a_line_that_writes_is_named_in_one_warning(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    program = FILES[name]()
    _, said = told(lambda x: sum([np.sum(program(x * k)) for k in range(3)]) + np.sum(x))
    assert len(said) == 1
    assert "ampi.passive()" in said[0] and "ampi.value(x)" in said[0]


def test_files_of_a_time_loop_do_not_warn(tmp_path):
    def run(x):
        return np.sum(ampi.timeloop(lambda u: np.sin(u), x, steps=6, checkpoints=2, storage=str(tmp_path)))

    _, said = told(run)
    assert not said
    assert os.listdir(tmp_path) is not None


@pytest.mark.parametrize(
    "f",
    [
        lambda x, t: (x * t) / t,
        lambda x, t: (t / x) / t,
        lambda x, t: (x[0] * t) / t,
        lambda x, t: (1000.0 * x).astype("m8[ms]").astype(float),
        lambda x, t: np.multiply(x, t, dtype="m8") / t,
        lambda x, t: np.multiply(x, t, out=np.zeros(2, "m8[ms]")) / t,
    ],
)
def test_whole_units_of_time_warn(f):
    def loss(x):
        return np.sum(f(x, numpy.timedelta64(1000, "ms"))) + np.sum(x * x)

    with pytest.warns(ampi.ActivityWarning, match=r"a time \(timedelta64\) computed from an active array drops"):
        gradient = ampi.grad(loss)(np.array([0.3, 0.7]))
    np.testing.assert_allclose(gradient, [0.6, 1.4])

"""Copies of a script share compiled code; errors, texts and warnings of each name its own file and lines."""

import importlib.util
import traceback

import numpy as np
import pytest

import ampi

SCRIPT = """
import numba
import numpy as np

import ampi


@numba.njit
def root(v):
    if v < 0.0:
        raise ValueError("below zero")  # error of raising_callee
    return np.sqrt(v)


@ampi.kernel
def quiet(x, y):
    for i in range(len(x)):
        y[i] = x[i] * x[i]


@ampi.kernel
def raising(x, y):
    for i in range(len(x)):
        if x[i] < 0.0:
            raise ValueError("below zero")  # error of raising
        y[i] = x[i] * x[i]


@ampi.kernel
def asserting(x, y):
    for i in range(len(x)):
        assert x[i] >= 0.0  # error of asserting
        y[i] = x[i] * x[i]


@ampi.kernel
def raising_callee(x, y):
    for i in range(len(x)):
        y[i] = root(x[i])


@ampi.kernel
def shrinking(x, y):
    for _ in range(2):
        x = x[1:] * 2.0  # error of shrinking
    y[0] = x[0]


@ampi.kernel(boundscheck=True)
def beyond(x, y):
    for i in range(len(x) + (x[0] < 0.0)):
        y[i] = x[i] * x[i]  # error of beyond

"""
KERNELS = ("raising", "asserting", "raising_callee", "beyond")


def copies(tmp_path, number=3):
    """The script as modules from files in several folders, each with more lines before its contents."""
    rng = np.random.default_rng(11)
    lines = 0
    for k in range(number):
        folder = tmp_path / f"copy {k}"
        folder.mkdir()
        path = folder / "script.py"
        path.write_text("\n" * lines + SCRIPT)
        lines += int(rng.integers(1, 9))
        spec = importlib.util.spec_from_file_location(f"script_{k}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield path, module


def recorded(kernel, x):
    with ampi.Tape() as tape:
        x = tape.watch(x)
        y = ampi.numpy.zeros(len(x))
        kernel(x, y)
    return tape, x, y


@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("recording", [False, True])
def test_errors_name_the_copy_that_runs(tmp_path, cache_folder, name, recording):
    for path, module in copies(tmp_path):
        kernel = getattr(module, name)
        x = np.array([-1.0, 2.0, 3.0])
        with pytest.raises(Exception) as caught:
            recorded(kernel, x) if recording else kernel(x, np.zeros(3))
        assert_names(path, name, caught.value)


def assert_names(path, name, error):
    line = 1 + next(k for k, text in enumerate(path.read_text().split("\n")) if text.endswith(f"error of {name}"))
    places = [(f.filename, f.lineno) for f in traceback.extract_tb(error.__traceback__)]
    assert (str(path), line) in places or f"{path}:{line}:" in str(error), (places, str(error))


def test_errors_of_sweeps_name_the_copy_that_runs(tmp_path, cache_folder):
    for path, module in copies(tmp_path):
        tape, x, y = recorded(module.shrinking, np.ones(4))
        with pytest.raises(ValueError, match="changes its size") as caught:
            tape.gradient(y, x, np.ones(4))
        assert_names(path, "shrinking", caught.value)


@pytest.mark.parametrize("name", ("quiet", *KERNELS))
def test_texts_and_gradients_are_of_the_copy_that_runs(tmp_path, cache_folder, name):
    shown = []
    for path, module in copies(tmp_path):
        kernel = getattr(module, name)
        x = np.array([1.0, 2.0, 3.0])
        tape, active, y = recorded(kernel, x)
        np.testing.assert_allclose(tape.gradient(y, active, np.ones(3)), derivative(name, x), rtol=1e-12)
        shown.append((str(path), kernel.adjoint_source(x, np.zeros(3))))
    for path, text in shown:
        assert path in text
        assert not any(other in text for other, _ in shown if other != path)


def derivative(name, x):
    if name != "raising_callee":
        return 2 * x
    return 0.5 / np.sqrt(x)


def test_what_raises_nothing_is_compiled_once(tmp_path, cache_folder):
    counts = []
    for _, module in copies(tmp_path):
        x = np.ones(3)
        tape, active, y = recorded(module.quiet, x)
        tape.gradient(y, active, np.ones(3))
        counts.append(len(list(cache_folder.rglob("quiet*.nbc"))))
    assert counts[0] > 1 and len(set(counts)) == 1

"""Programs loaded from the cache behave as in the process that compiled them: values, derivatives, errors, output."""

import os
import subprocess
import sys

import pytest
from patience import patience

PROGRAM = """
import linecache

import numba
import numpy as np

import ampi


def made(text, **names):  # a function of a namespace that has no name, as tools make them
    linecache.cache["<made>"] = len(text), None, text.splitlines(True), "<made>"
    exec(compile(text, "<made>", "exec"), names)
    return names["made"]


root = numba.njit(made('''
def made(v):
    if v < 0.0:
        raise ValueError("below zero", v)
    return v * v * v
'''))
said = numba.njit(made('''
def made(v):
    print("said", v)
    return v
'''))


@ampi.kernel
def callee(x, y):
    for i in range(len(x)):
        y[i] = root(x[i])


@ampi.kernel
def printing(x, y):
    for i in range(len(x)):
        y[i] = 2.0 * x[i]
    y[0] += said(x[0])


@ampi.kernel
def own(x, y):
    for i in range(len(x)):
        if x[i] < -1.0:
            raise ValueError("below one", i, x[i])
        y[i] = x[i] * x[i]


@ampi.kernel(boundscheck=True)
def one_index(x, y):
    for i in range(len(x) + (x[0] < 0.0)):
        y[i] = x[i] * x[i]


@ampi.kernel(boundscheck=True)
def by_table(x, y):
    table = np.array([0, 7, 1])
    for i in range(len(x)):
        y[i] = x[table[i] if x[0] < 0.0 else i] * 2.0


@ampi.kernel(boundscheck=True)
def matrix(x, y):
    z = np.zeros((2, 3))
    for i in range(3):
        z[1, i] = x[i]
    y[0] = z[0, 1] * z[1, 3 if x[0] < 0.0 else 2]


@ampi.kernel(boundscheck=True)
def several(x, y):
    where = np.array([0, 1, 5 if x[0] < 0.0 else 2])
    y[:] = x[where]


def attempt(what, *arguments):
    try:
        print(what.__name__, *arguments, "->", *what(*arguments))
    except Exception as error:
        print(what.__name__, *arguments, "raises", type(error).__name__, error)


def plain(kernel, x):
    y = np.zeros(3)
    kernel(np.array(x), y)
    return y


def gradient(kernel, x):
    with ampi.Tape() as tape:
        x = tape.watch(np.array(x))
        y = ampi.numpy.zeros(3)
        kernel(x, y)
        s = np.sum(y * y)
    return tape.gradient(s, x)


for kernel in (callee, printing, own, one_index, by_table, matrix, several):
    print("-----", kernel.__name__)
    for x in ([1.0, 2.0, 3.0], [-4.0, 2.0, 3.0]):
        attempt(plain, kernel, x)
        attempt(gradient, kernel, x)
"""
NAMES = "callee printing own one_index by_table matrix several".split()


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    """The program's output by kernel, from a run that compiles and one that loads."""
    folder = tmp_path_factory.mktemp("loaded")
    script = folder / "script.py"
    script.write_text(PROGRAM)
    environment = {**os.environ, "AMPI_CACHE_DIR": str(folder / "cache")}

    def run():
        done = subprocess.run(
            [sys.executable, script], env=environment, capture_output=True, text=True, timeout=patience(100)
        )
        assert done.returncode == 0, done.stderr
        parts = [part.partition("\n") for part in done.stdout.split("----- ")[1:]]
        return {name: text for name, _, text in parts}

    return run(), run()


@pytest.mark.parametrize("name", NAMES)
def test_loaded_programs_do_what_compiled_ones_do(outputs, name):
    compiled, loaded = (found[name] for found in outputs)
    assert loaded == compiled and compiled.count("\n") >= 4
    assert ("raises" in compiled) is (name != "printing"), compiled
    assert "runtime exception arguments" not in compiled, compiled

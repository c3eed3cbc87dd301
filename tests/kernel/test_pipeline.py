"""``@ampi.kernel``: calls, the cache on disk, and calls on a recording tape."""

import copy
import inspect
import math
import os
import pickle
import stat
import subprocess
import sys
import textwrap
import traceback
from collections import namedtuple

import numba
import numpy as np
import pytest
from patience import patience

import ampi
from ampi import tape
from ampi.errors import ActivityError, KernelError
from ampi.kernel import kernel, prange
from ampi.kernel.runtime import files
from ampi.memory.storages import TrackedArray, tracked

State = namedtuple("State", "x v")
WEIGHTS = np.array([1.0, 2.0, 3.0])


@kernel
def square(x):
    """The square."""
    return x * x


@kernel(parallel=True, fastmath=True)
def weighted(x, y, a, power=2):
    s = 0.0
    for i in prange(len(x)):
        y[i] = square(x[i]) * a * WEIGHTS[i % 3]
        s += y[i] ** power
    return s


def with_scale(scale):
    @kernel
    def scaled(state, floor=None):
        for i in range(len(state.x)):
            state.x[i] = math.sin(state.v[i]) * scale
        if floor is not None:
            state.x[0] = max(state.x[0], floor)
        return State(state.x, state.v)

    return scaled


scaled = with_scale(3.0)


@kernel
def roots(x):
    y = np.empty_like(x)
    for i in range(len(x)):
        y[i] = math.sqrt(x[i])
    return y, len(x), x[0]


@kernel
def add_square(x, y):
    for i in range(len(x)):
        y[i] += square(x[i])
    return y[0]


# ------------------------------------------------------------------------------------------------ calls


def test_is_called_like_the_function():
    x, y = np.arange(4.0), np.zeros(4)
    assert square(3.0) == 9.0
    expected = sum((v * v * 2 * WEIGHTS[i % 3]) ** 2 for i, v in enumerate(x))
    assert weighted(x, y, 2.0) == pytest.approx(expected)
    assert weighted(x, a=2.0, y=y, power=2) == pytest.approx(expected)
    result = scaled(State(x, y))
    assert type(result) is State
    np.testing.assert_allclose(x, 3 * np.sin(y))
    scaled(State(x, y), floor=100.0)
    assert x[0] == 100.0
    with pytest.raises(TypeError, match="weighted"):
        weighted(x, z=1)


def test_takes_tracked_arrays_and_scalars():
    x = tracked(np.arange(4.0))
    assert square(tracked(np.array(3.0))) == 9.0
    weighted(x, x[::-1], tracked(np.array(2.0)))


def test_keeps_the_functions_name():
    assert square.__name__ == "square"
    assert square.__doc__ == "The square."
    assert square.__wrapped__ is square.py_func
    assert pickle.loads(pickle.dumps(square)) is square
    assert copy.deepcopy(square) is square
    assert "square" in repr(square)


def test_is_a_function_inside_of_numba():
    @numba.njit
    def twice(x):
        return square(square(x))

    assert twice(2.0) == 16.0


def test_arrays_come_back_as_they_were_given():
    plain, array = np.array([1.0, 4.0]), tracked(np.array([1.0, 4.0]))
    assert type(roots(plain)[0]) is np.ndarray
    assert isinstance(roots(array)[0], TrackedArray)
    assert isinstance(scaled(State(array, plain)).x, TrackedArray)
    with tape.Tape() as t:
        assert type(roots(plain)[0]) is np.ndarray
        assert isinstance(roots(array)[0], TrackedArray)
        t.watch(1.0)


def test_ampi_numpy_is_numpy_inside():
    zeros = ampi.numpy.zeros

    @kernel
    def normalised(x):
        y = zeros(len(x))
        z = ampi.numpy.empty_like(y)
        for i in ampi.prange(len(x)):
            y[i] = ampi.numpy.sqrt(x[i]) / ampi.numpy.pi
            z[i] = y[i] * 2
        return z

    with tape.Tape() as t:
        x = t.watch(np.array([1.0, 4.0]))
        z = normalised(x)
    np.testing.assert_allclose(z, [2 / np.pi, 4 / np.pi])
    np.testing.assert_allclose(t.gradient(z, x, seed=np.ones(2)), [1 / np.pi, 0.5 / np.pi])


def test_a_kernel_as_an_argument():
    @kernel
    def twice(f, x):
        return f(f(x))

    assert twice(square, 3.0) == 81.0
    with tape.Tape() as t:
        x = t.watch(3.0)
        y = twice(square, x)
    assert t.gradient(y, x) == 4 * 27.0


def test_failed_call_is_undone_in_the_sweep():
    @kernel
    def fails(x):
        x[0] = 0.0
        if x[1] > 1.0:
            raise ValueError("too large")

    with tape.Tape() as t:
        x = t.watch(np.array([3.0, 2.0]))
        y = tracked(np.zeros(2))
        add_square(x, y)
        with pytest.raises(ValueError, match="too large"):
            fails(x)
    np.testing.assert_allclose(t.gradient(y, x, seed=np.ones(2)), [6.0, 4.0])


def test_without_compilation(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM.format(factor=2.0, body="x + 1")).replace("stats = program", "# "))
    text = script.read_text().split("print(")[0] + (
        "import ampi\n"
        "with ampi.Tape() as t:\n"
        "    x = t.watch(np.arange(4.0))\n"
        "    out = ampi.numpy.zeros(4)\n"
        "    program(State(x, 1.0), out)\n"
        "print(t.gradient(out, x, seed=np.ones(4)).tolist())\n"
    )
    script.write_text(text)
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "AMPI_CACHE_DIR": str(tmp_path)}
    answer = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=patience(100)
    )
    assert answer.stdout.strip() == "[2.0, 2.0, 2.0, 2.0]", answer.stderr


def test_refuses_unknown_options():
    with pytest.raises(KernelError, match="paralel"):
        kernel(paralel=True)(square.py_func)
    with pytest.raises(KernelError, match="function"):
        kernel(3)


def test_errors_come_at_the_first_call():
    @kernel
    def middle(x):
        return np.polyfit(x, x, 1)

    with pytest.raises(KernelError, match="polyfit"):
        middle(np.zeros(3))
    with pytest.raises(KernelError, match="argument 'x' is a dict"):
        middle.adjoint_source({})


@pytest.mark.parametrize("given", [[[1.0], [2.0]], numba.typed.List([(1.0, 2)]), [(1.0, 2.0)]])
def test_lists_of_other_things_are_refused_with_what_to_pass(given):
    @kernel
    def first(values, x):
        return values[0] * x

    with pytest.raises(KernelError, match=r"argument 'values' is a (.|\n)*a list for each item of its tuples"):
        first(given, 2.0)


def test_ir_and_source_can_be_looked_at():
    x = np.zeros(3)
    assert [a.name for a in weighted.lower_ir(x, x, 1.0).arguments] == ["x", "y", "a", "power"]
    text = weighted.adjoint_source(x, x, 1.0)
    assert "def weighted_adjoint(x, y, a, power, x_bar, y_bar" in text
    assert "WEIGHTS = np.array([1.0, 2.0, 3.0]" in text
    assert "x_bar" not in weighted.adjoint_source(x, x, 1.0, active=["a"])
    with pytest.raises(ValueError, match="no argument"):
        weighted.adjoint_source(x, x, 1.0, active=["z"])


# ------------------------------------------------------------------------------------------------ the cache

PROGRAM = """
import sys
import numpy as np
from collections import namedtuple
from ampi.kernel import kernel
State = namedtuple("State", "x v")
FACTOR = {factor}

@kernel
def helper(x):
    return {body}

@kernel
def program(state, out):
    for i in range(len(out)):
        out[i] = helper(state.x[i]) * FACTOR
    return State(state.x, state.v)

x, out = np.arange(4.0), np.zeros(4)
result = program(State(x, 1.0), out)
assert type(result) is State
stats = program.dispatcher.stats
print(out[1], sum(stats.cache_misses.values()), sum(stats.cache_hits.values()))
"""


def run(folder, tmp_path, number=1, **changes):
    """Run the program in ``number`` processes at the same time: (value, misses, hits) of each."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(PROGRAM.format(**{"factor": 2.0, "body": "x + 1", **changes})))
    environment = {**os.environ, "AMPI_CACHE_DIR": str(folder)}
    started = [
        subprocess.Popen([sys.executable, str(script)], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(number)
    ]
    answers = [p.communicate(timeout=patience(100))[0].split() for p in started]
    assert all(p.returncode == 0 for p in started)
    return [(float(value), int(misses), int(hits)) for value, misses, hits in answers]


def test_compiled_once(tmp_path):
    folder = tmp_path / "cache"
    answers = run(folder, tmp_path, number=2)
    assert sorted(answers) == [(4.0, 0, 1), (4.0, 1, 0)]
    # A change of the kernel itself, of one that it calls, or of a constant is seen.
    assert run(folder, tmp_path, factor=3.0) == [(6.0, 1, 0)]
    assert run(folder, tmp_path, body="x + 2") == [(6.0, 1, 0)]
    assert run(folder, tmp_path) == [(4.0, 0, 1)]
    for path in (folder / "kernels").iterdir():
        assert not path.name.endswith(".tmp")


def test_damaged_files_are_made_again(tmp_path):
    folder = tmp_path / "cache"
    run(folder, tmp_path)
    for path in (folder / "kernels").glob("*.nbc"):
        path.write_bytes(b"not what it was")
    assert run(folder, tmp_path)[0][0] == 4.0


def folder_with(monkeypatch, name, value):
    monkeypatch.setenv(name, str(value))
    files.folder.cache_clear()
    try:
        return files.folder()
    finally:
        files.folder.cache_clear()


def test_folder_is_private(tmp_path, monkeypatch):
    folder = folder_with(monkeypatch, "AMPI_CACHE_DIR", tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o755)
    folder_with(monkeypatch, "AMPI_CACHE_DIR", tmp_path / "a" / "b")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    monkeypatch.delenv("AMPI_CACHE_DIR")
    assert folder_with(monkeypatch, "XDG_CACHE_HOME", tmp_path / "xdg") == tmp_path / "xdg" / "ampi" / "kernels"


def test_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    (tmp_path / "kernels").mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(KernelError, match="belongs to another user"):
        folder_with(monkeypatch, "AMPI_CACHE_DIR", tmp_path)


def test_folder_that_is_a_link_is_refused(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(KernelError, match="not a folder"):
        folder_with(monkeypatch, "AMPI_CACHE_DIR", tmp_path)


def test_home_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.delenv("AMPI_CACHE_DIR", raising=False)
    (tmp_path / "file").write_text("")
    folder = folder_with(monkeypatch, "XDG_CACHE_HOME", tmp_path / "file")
    assert os.access(folder, os.W_OK)
    assert "file" not in folder.parts


# ------------------------------------------------------------------------------------------- where exceptions come from


def raised(call):
    try:
        call()
    except Exception as error:
        return error
    return None


@ampi.kernel
def shrinking(a, n):
    for _ in range(n):
        a = a[1:] * 2.0  # the line that is named
    return a[0]


def test_an_exception_in_an_adjoint_points_into_the_kernel():
    with ampi.Tape() as tape:
        a = tape.watch(np.ones(4))
        result = shrinking(a, 2)
    error = raised(lambda: tape.gradient(result, a))
    assert isinstance(error, ValueError)
    line = inspect.getsourcelines(shrinking.py_func)[1] + 3
    assert f"{__file__}:{line}: in kernel 'shrinking': the array 'a' changes its size" in str(error)
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert (last.filename, last.lineno, last.line) == (__file__, line, "a = a[1:] * 2.0  # the line that is named")


@ampi.kernel
def refusing(a):
    s = 0.0
    for v in a:
        if v < 0:
            raise ValueError("negative")
        s += v
    return s


def test_an_exception_while_recording_points_into_the_kernel():
    with ampi.Tape() as tape:
        a = tape.watch(-np.ones(2))
        error = raised(lambda: refusing(a))
    last = traceback.extract_tb(error.__traceback__)[-1]
    assert (last.filename, last.line) == (__file__, 'raise ValueError("negative")')


@ampi.kernel
def added_up(a):
    s = 0.0
    for v in a:
        s += v
    return s


@pytest.mark.parametrize("dtype", [np.uint8, np.int64])
def test_bytes_of_active_numbers_are_refused(dtype):
    pair = np.dtype([("v", "f8"), ("n", "i4")])
    with ampi.Tape() as tape:
        x = tape.watch(np.ones(3))
        y = 2.0 * x
        pairs = ampi.numpy.zeros(3, pair)
        pairs["v"] = y
        with pytest.raises(ActivityError, match=f"bytes of active values .* an array of {np.dtype(dtype)}"):
            added_up(y.view(dtype))
        assert added_up(pairs["n"]) == 0 and added_up(ampi.value(y).view(dtype)) > 0
        z = added_up(pairs["v"])
    np.testing.assert_array_equal(tape.gradient(z, x), np.full(3, 2.0))

"""Progress of long compilations is shown on a terminal, on rank 0 only."""

import os
import pty
import subprocess
import sys

import pytest

PROGRAM = """
import ampi, ampi.numpy as np, numpy
from ampi.kernel.runtime import progress
progress.SOON = {soon}

@ampi.kernel
def square(x):
    return x * x

assert ampi.grad(square)(3.0) == 6.0
"""


def on_a_terminal(path, environment):
    """What a program writes to standard error if that is a terminal."""
    ours, its = pty.openpty()
    process = subprocess.Popen([sys.executable, path], stderr=its, env=environment)
    os.close(its)
    text = b""
    while True:
        try:
            part = os.read(ours, 4096)
        except OSError:  # closed at the other end
            break
        if not part:
            break
        text += part
    os.close(ours)
    assert process.wait(timeout=110) == 0, text
    return text.decode()


@pytest.fixture
def program(tmp_path):
    def make(soon):
        path = tmp_path / "program.py"
        path.write_text(PROGRAM.format(soon=soon))
        return path, {**os.environ, "AMPI_CACHE_DIR": str(tmp_path / "cache"), "NUMBA_NUM_THREADS": "1"}

    return make


def test_progress_is_shown_and_erased(program):
    path, environment = program(0.0)
    text = on_a_terminal(path, environment)
    said = [line for line in text.split("\r\x1b[K") if line]
    assert f"ampi: compiling the adjoint of square ({path}:6)..." in said, text
    assert f"ampi: compiling square ({path}:6)..." in said
    assert text.endswith("\r\x1b[K")
    assert on_a_terminal(path, environment) == ""  # all is in the cache


def test_quick_compilations_are_not_shown(program):
    assert on_a_terminal(*program(100.0)) == ""


def test_nothing_in_a_pipe(program):
    path, environment = program(0.0)
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, env=environment, timeout=110)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")

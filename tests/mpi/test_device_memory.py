"""Buffers in device memory: MPI may use them, the tape never does."""

import pathlib
import subprocess
import sys

import device_memory
import pytest

HERE = pathlib.Path(__file__).parent


@pytest.mark.parametrize(
    "name",
    [n if n in ("receive", "persistent") else pytest.param(n, marks=pytest.mark.slow) for n in device_memory.CALLS],
)
def test_tape_does_not_touch_device_memory(name):
    """The memory cannot be read or written: a process that tries crashes."""
    command = [sys.executable, str(HERE / "device_memory.py"), name]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 0 and "done" in run.stdout, run.stdout + run.stderr


def test_the_memory_is_protected():
    code = "import ctypes, device_memory; ctypes.string_at(device_memory.Device(3).address, 1)"
    run = subprocess.run([sys.executable, "-c", code], cwd=HERE, capture_output=True)
    assert run.returncode < 0

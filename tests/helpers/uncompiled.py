"""Tests in processes of their own where nothing is compiled: kernels with few threads need far less time there."""

import os
import subprocess
import sys

import pytest
from numba import config

in_python = pytest.mark.skipif(not config.DISABLE_JIT, reason="runs where nothing is compiled: see test_in_python")
compiled = pytest.mark.skipif(config.DISABLE_JIT, reason="Numba compiles nothing")


def in_a_process(*command, **environment):
    """Run Python with these arguments and variables of the environment; return what it prints."""
    run = subprocess.run(
        [sys.executable, *map(str, command)], env={**os.environ, **environment}, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stdout + run.stderr
    return run.stdout


def run_in_python(file, request):
    """Run the tests of a file where nothing is compiled: the slow ones if this run is of these."""
    slow = ["--slow"] if request.config.getoption("--slow") else []
    in_a_process("-m", "pytest", "-q", "-p", "no:cacheprovider", file, *slow, NUMBA_DISABLE_JIT="1")

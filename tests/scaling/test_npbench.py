"""``scripts/bench npbench FOLDER``, over a folder in NPBench's layout."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import ampi

pytestmark = pytest.mark.skipif(ampi.COMM_WORLD.size > 1, reason="the ranks would only do the same")
SCRIPTS = Path(__file__).resolve().parents[2] / "scripts" / "benchmarks"

KERNEL = """
import numpy as np
import numba as nb


@nb.jit(nopython=True, parallel=False, fastmath=True)
def kernel(n, u, k):
    s = 0.0
    for i in range(n):
        u[i] = u[i] * u[i - 1] + k[i]
        s += u[i] * u[i]
    return s
"""
INITIALIZE = """
import numpy as np


def initialize(n, datatype=np.float32):
    return np.linspace(0.1, 1.0, n, dtype=datatype), np.arange(n)
"""


def test_a_folder_of_this_layout(tmp_path):
    """Numbers for a kernel of floating point; a word about one of integers; the ratio in the last line."""
    for name, given in (("little", ["n", "u", "k"]), ("whole", ["n", "k", "k"])):
        place = tmp_path / "npbench" / "benchmarks" / "group" / name
        place.mkdir(parents=True)
        (place / f"{name}.py").write_text(INITIALIZE, encoding="utf-8")
        (place / f"{name}_numba_n.py").write_text(KERNEL, encoding="utf-8")
        (tmp_path / "bench_info").mkdir(exist_ok=True)
        info = {
            "relative_path": f"group/{name}",
            "module_name": name,
            "func_name": "kernel",
            "parameters": {"S": {"n": 30}, "M": {"n": 60}},
            "init": {"func_name": "initialize", "input_args": ["n"], "output_args": ["u", "k"]},
            "input_args": given,
        }
        (tmp_path / "bench_info" / f"{name}.json").write_text(json.dumps({"benchmark": info}), encoding="utf-8")
    command = [sys.executable, str(SCRIPTS), "npbench", str(tmp_path), "--size", "M", "-r", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    _, little, whole, last = done.stdout.splitlines()
    assert re.fullmatch(r"little( +\d+\.\d+){5}", little)
    assert whole.split(maxsplit=1) == ["whole", "without arrays of floating point"]
    assert last.startswith("1 gradients: median")

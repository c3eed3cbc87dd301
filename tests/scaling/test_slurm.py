"""A study of LULESH by the jobs of a real SLURM, of one node, which ``scripts/slurm_here`` starts."""

import os
import pathlib
import shutil
import subprocess
import sys

import pytest

from ampi import scaling
from ampi.scaling import results

ROOT = pathlib.Path(__file__).parents[2]
STUDY = f"""\
[study]
script = "{ROOT}/examples/lulesh/lulesh.py"
arguments = "-s {{size}} -t {{threads}} -i 4 --gradient origin --last 2 --cost --repeat 1"
scaling = "weak"
size = 2
size_is = "per rank"
ranks = [1, 8]
repetitions = 1
warmup = 0
timeout = 300
launcher = "{pathlib.Path(sys.executable).with_name("mpiexec")} -launcher fork -n {{ranks}}"
[runs.both]
primal = {{from = "print", pattern = 'primal +([0-9.]+) ms', unit = "ms"}}
gradient = {{from = "print", pattern = 'gradient +([0-9.]+) ms', unit = "ms"}}
[job]
system = "slurm"
walltime = "00:10:00"
tasks_per_node = 8
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lulesh(tmp_path):
    if os.geteuid() or not all(map(shutil.which, ("munged", "slurmctld", "slurmd"))):
        pytest.skip("takes root, and Debian's slurm-wlm and munge")
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    submit = f"{sys.executable} -m ampi.scaling submit {path}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [ROOT / "scripts" / "slurm_here", "sh", "-c", f"{submit} && {submit}"],
        env=environment, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Submitted batch job") == done.stdout.count("is not submitted again") == 2, done.stdout
    study = scaling.read_study(path)
    found = results.read(results.files_of(study, None), study)
    assert set(study.cases()) <= set(found.done())

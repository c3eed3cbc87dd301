"""``scripts/bench_mpi --set-up``: ranks that are forks of one process hold what others do, and end with one another."""

import json
import os
import pathlib
import subprocess
import sys

import pytest
from patience import patience

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"
CRASH = """\
import os
import signal
import time

def crash():
    from mpi4py import MPI

    if MPI.COMM_WORLD.Get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    MPI.COMM_WORLD.Barrier()

def crash_later():
    from mpi4py import MPI

    time.sleep(1.5)
    crash()
"""


@pytest.fixture(autouse=True)
def hydra():
    """Forked ranks need an mpiexec that speaks PMI by a descriptor, which MPICH's does."""
    mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
    if (
        not mpiexec.exists()
        or "HYDRA" not in subprocess.run([mpiexec, "--version"], capture_output=True, text=True).stdout
    ):
        pytest.skip("no mpiexec of MPICH's")
    return mpiexec


def measured(folder, *options):
    command = [sys.executable, SCRIPTS / "set_up_costs.py", "2", "--programs", "ring", *options]
    subprocess.run([*command, "--json", folder / "found.json"], check=True, timeout=patience(60))
    (line,) = json.loads((folder / "found.json").read_text())
    return line


def test_forked_ranks_hold_what_others_do(tmp_path):
    usual, forked = measured(tmp_path), measured(tmp_path, "--preload")
    for name in ("partners", "records", "tape"):
        assert forked[name] == usual[name]
    assert abs(forked["swept"] - usual["swept"]) < 0.2 * usual["swept"]  # bytes: what is collected meanwhile varies
    assert forked["resident"] < usual["resident"]


def test_all_end_with_one_that_is_killed(tmp_path, monkeypatch, hydra):
    (tmp_path / "crashing.py").write_text(CRASH)
    monkeypatch.syspath_prepend(SCRIPTS)
    import preloaded_ranks

    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with preloaded_ranks.server("mpi4py.MPI", "crashing") as command:
        done = subprocess.run([hydra, "-n", "3", *command, "crashing:crash"], capture_output=True, timeout=patience(30))
        assert done.returncode
        ranks = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout
        assert sum(str(command[-1]) in line and " serve " in line for line in ranks.splitlines()) <= 1


def test_segments_of_killed_ranks_are_removed(tmp_path, monkeypatch, hydra):
    (tmp_path / "crashing.py").write_text(CRASH)
    monkeypatch.syspath_prepend(SCRIPTS)
    import preloaded_ranks
    import set_up_costs

    made = []
    monkeypatch.setattr(set_up_costs, "Segments", lambda kind=set_up_costs.Segments: made.append(kind()) or made[-1])
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with preloaded_ranks.server("mpi4py.MPI", "crashing") as command:
        status, _, _ = set_up_costs.started(hydra, 2, [*command, "crashing:crash_later"], [])
    (segments,) = made
    assert status and segments.own and not any(path.exists() for path in segments.own)

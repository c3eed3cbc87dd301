"""LULESH's gradient by its command line, killed and started again by the same command, to the last bit."""

import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time

import pytest
from patience import patience

h5py = pytest.importorskip("h5py")

PROGRAM = pathlib.Path(__file__).parents[2] / "examples" / "lulesh" / "lulesh.py"
OPTIONS = {1: ("-s", "3", "-i", "20", "--checkpoints", "2"), 8: ("-s", "2", "-i", "8", "--checkpoints", "1")}
pytestmark = pytest.mark.timeout(400)  # the first run compiles LULESH's kernels and their adjoints


class Runs:
    """The command with a folder for its states; each rank leaves its process's number in another one."""

    def __init__(self, ranks, folder):
        self.ranks, self.folder, self.pids = ranks, folder, folder / "pids"
        self.states = folder / "states" / "loop-0"
        self.pids.mkdir()

    def start(self, states, output):
        alone = {k: v for k, v in os.environ.items() if not k.startswith(("PMI", "HYDRA", "OMPI"))}
        for path in self.pids.iterdir():
            path.unlink()
        said = f'touch {self.pids}/$$; exec {sys.executable} {PROGRAM} "$@"'
        command = ["sh", "-c", said, "lulesh", *OPTIONS[self.ranks], "--gradient", "origin", "--resume"]
        if self.ranks > 1:
            program = pathlib.Path(sys.executable).with_name("mpiexec")
            launcher = str(program) if program.exists() else shutil.which("mpiexec")
            command = [launcher, "-n", str(self.ranks), *command]
        with open(self.folder / "said", "w") as said:
            return subprocess.Popen(
                [*command, "--storage", self.folder / states, "--output", self.folder / output],
                env=alone,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=subprocess.STDOUT,
            )

    def finish(self, process):
        assert process.wait(patience(300)) == 0, (self.folder / "said").read_text()

    def kill_when(self, name, all_ranks):
        """SIGKILL as soon as there is such a file on some rank."""
        process, end = self.start("states", "killed.h5"), time.monotonic() + patience(200)
        while not list(self.states.glob(f"rank-*/{name}.h5")):
            assert process.poll() is None and time.monotonic() < end, (self.folder / "said").read_text()
            time.sleep(0.0005)
        pids = sorted(int(path.name) for path in self.pids.iterdir())
        assert len(pids) == self.ranks
        for pid in pids if all_ranks else pids[-1:]:
            os.kill(pid, signal.SIGKILL)
        assert process.wait(patience(60)) != 0 and not (self.folder / "killed.h5").exists()

    def gradients(self, output):
        with h5py.File(self.folder / output) as file:
            return {name: file[name][...] for name in file if name.startswith("gradient_")}


@pytest.mark.parametrize(
    "ranks, all_ranks", [pytest.param(*x, marks=pytest.mark.slow) for x in ((1, True), (8, False), (8, True))]
)
def test_what_was_killed_gives_the_same_gradient(ranks, all_ranks, tmp_path):
    """Once while its steps run, and once in its sweep."""
    runs = Runs(ranks, tmp_path)
    runs.finish(runs.start("others", "whole.h5"))
    last = OPTIONS[ranks][3]
    runs.kill_when("state-3", all_ranks)
    assert not list(runs.states.glob(f"rank-*/final-{last}.h5"))
    runs.kill_when("adjoint-[1-9]*", all_ranks)
    assert list(runs.states.glob(f"rank-*/final-{last}.h5"))
    runs.finish(runs.start("states", "killed.h5"))
    found, expected = runs.gradients("killed.h5"), runs.gradients("whole.h5")
    assert expected.keys() == found.keys() and expected["gradient_energy"].any()
    for name, values in expected.items():
        assert found[name].tobytes() == values.tobytes(), name

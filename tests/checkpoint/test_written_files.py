"""Files that ampi writes and reads, and full disks, folders and damage: errors name the file, older files stay."""

import errno
import gzip
import json
import os
import pathlib
import random
import resource
import signal
import subprocess
import sys

import h5py
import numpy
import pytest

import ampi
import ampi.numpy as np
from ampi.base import whole_files
from ampi.mpi import COMM_WORLD
from ampi.scaling import ScalingError, jobs, queue, read_study, results
from ampi.tape import spill

STUDY = """
[study]
script = "program.py"
ranks = [1]
repetitions = 1
[runs.a]
primal = {from = "wall"}
[job]
system = "slurm"
"""


@pytest.fixture
def full(monkeypatch):
    """A limit on the size of files stands for a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    def limit(nbytes):
        resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.fixture
def study(tmp_path):
    path = tmp_path / "study.toml"
    path.write_text(STUDY)
    (tmp_path / "program.py").write_text("print('time 1.0')\n")
    return read_study(path)


@pytest.mark.parametrize("old", [None, b"what was there"])
@pytest.mark.parametrize("room", [0, 1, 5000, 9999])
def test_a_file_is_whole_or_as_it_was(tmp_path, full, old, room):
    path = tmp_path / "file"
    if old is not None:
        path.write_bytes(old)
        path.chmod(0o640)
    full(room)
    with pytest.raises(ampi.AmpiError, match=rf"cannot write 10,000 bytes of {path}: File too large"):
        whole_files.write(path, bytes(10_000))
    full(10_000)
    assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if old is None else [old])
    whole_files.write(path, bytes(10_000))
    assert path.read_bytes() == bytes(10_000)
    assert old is None or path.stat().st_mode & 0o777 == 0o640


def test_links_and_devices_stay(tmp_path):
    (tmp_path / "there").mkdir()
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "there" / "file")
    whole_files.write(link, "text")
    assert link.is_symlink() and (tmp_path / "there" / "file").read_text() == "text"
    whole_files.write("/dev/null", "text")
    with pytest.raises(ampi.AmpiError, match="cannot write 4 bytes of /dev/full: No space left on device"):
        whole_files.write("/dev/full", "text")
    assert os.path.exists("/dev/null") and not list(pathlib.Path("/dev").glob("*.part"))


@pytest.mark.parametrize("what", ["missing folder", "folder", "file in the way"])
def test_folders_that_do_not_exist(tmp_path, what):
    (tmp_path / "file").write_text("")
    path = {"missing folder": tmp_path / "no" / "f", "folder": tmp_path, "file in the way": tmp_path / "file" / "f"}
    with pytest.raises(ampi.AmpiError, match=f"cannot write 4 bytes of {path[what]}: (No such|Is a|Not a)"):
        whole_files.write(path[what], "text")


@pytest.mark.mpi
@pytest.mark.parametrize("room", [0, 700, 3000])
def test_reports_on_a_full_disk(tmp_path, full, room):
    """An error on all ranks; the older report stays."""
    folder = pathlib.Path(COMM_WORLD.bcast(str(tmp_path)))
    if COMM_WORLD.rank == 0:
        for name in ("index.html", "trace.json.gz"):
            (folder / name).write_text("older")
    with ampi.tracing() as trace:
        ampi.grad(lambda x: np.sum(COMM_WORLD.allreduce(x) * x))(numpy.ones(5))
    full(room)
    with pytest.raises(ampi.AmpiError, match=rf"cannot write .* of {folder}/(trace|index).*: File too large"):
        trace.write(str(folder))
    if not room:
        with pytest.raises(ampi.AmpiError, match=rf"cannot write [0-9,]+ bytes of {folder}/out.dot"):
            trace.write_graph(str(folder / "out.dot"))
    full(resource.RLIM_INFINITY)
    COMM_WORLD.Barrier()
    if COMM_WORLD.rank == 0:
        assert (folder / "index.html").read_text() == "older"
        assert (folder / "trace.json.gz").read_bytes() == b"older" or gzip.open(folder / "trace.json.gz").read()
        assert {path.name for path in folder.iterdir()} == {"index.html", "trace.json.gz"}


@pytest.mark.parametrize("room", [0, 100, 3000, 60000])
def test_gradients_of_a_program_on_a_full_disk(tmp_path, full, room):
    """HDF5 does not crash, and the older file stays."""
    from ampi.programs import results as written
    from ampi.programs.gradients import Differentiation
    from ampi.programs.runs import Program

    (tmp_path / "program.py").write_text("import numpy as np\nx = np.ones(10000)\ny = np.sum(x * x)\n")
    (tmp_path / "out.h5").write_text("older")
    problem = Differentiation(Program("file", str(tmp_path / "program.py"), []), ["x"], ["y"])
    with ampi.mpi.installed():
        found = problem.gradients()
    full(room)
    with pytest.raises(ampi.ProgramError, match=f"--output: cannot write 80,000 bytes of {tmp_path}/out.h5: File too"):
        written.write(str(tmp_path / "out.h5"), problem, found, "command")
    full(resource.RLIM_INFINITY)
    assert (tmp_path / "out.h5").read_text() == "older"
    assert not list(tmp_path.glob("*.part"))
    written.write(str(tmp_path / "out.h5"), problem, found, "command")
    with h5py.File(tmp_path / "out.h5") as file:
        assert numpy.array_equal(file["y/x/rank0"][...], 2 * numpy.ones(10000))


@pytest.mark.parametrize("seed", range(6))
def test_results_of_studies_on_a_full_disk(study, full, seed):
    """Lines that were there are as they were, and the study goes on when there is room."""
    draw = random.Random(seed)
    lines = [{"kind": "warmup", "text": "a" * draw.randrange(300)} for _ in range(10)]
    full(draw.randrange(1500))
    done = []
    with results.Writer(study.results) as writer:
        for line in lines:
            try:
                writer.add(line)
                done.append(line)
            except ScalingError as error:
                assert f"bytes of {study.results}: File too large; earlier measurements are kept" in str(error)
    full(resource.RLIM_INFINITY)
    with results.Writer(study.results) as writer:
        writer.add(lines[0])
    assert list(results._lines(study.results)) == [*done, lines[0]]


def test_a_study_names_what_it_cannot_write_or_read(study, tmp_path, full, monkeypatch):
    full(0)
    with pytest.raises(ScalingError, match=r"cannot write [0-9,]+ bytes of .*study-1.sh: File too large"):
        jobs.write(study)
    with pytest.raises(ScalingError, match=r"Submitted batch job 7: the job is submitted, but this cannot be written"):
        queue.note(study, 1, "Submitted batch job 7")
    full(resource.RLIM_INFINITY)
    queue.note(study, 1, "Submitted batch job 7")
    noted = jobs.folder_of(study) / "submitted.jsonl"
    noted.write_bytes(noted.read_bytes()[:-9])
    with pytest.raises(ScalingError, match=r"submitted.jsonl is damaged"):
        queue.waiting(study, 1)
    noted.unlink()
    noted.mkdir()
    with pytest.raises(ScalingError, match=r"submitted.jsonl cannot be read: Is a directory"):
        queue.waiting(study, 1)
    study.results.mkdir()
    with pytest.raises(ScalingError, match=r"jsonl cannot be read: Is a directory"):
        results.read(results.files_of(study), study)
    with pytest.raises(ScalingError, match=r"jsonl cannot be written: Is a directory"):
        results.Writer(study.results)


@pytest.mark.parametrize("when", ["writes", "reads", "is put back"])
def test_files_of_tapes_that_fail(tmp_path, monkeypatch, when):
    def failing(*arguments):
        raise OSError(errno.EIO, "Input/output error")

    file = spill.SpillFile(str(tmp_path), 1 << 20)
    if when == "writes":
        monkeypatch.setattr(os, "pwritev", failing)
    index, (place,) = file.store([numpy.ones(1000)])
    verb = "read" if when == "reads" else "write"
    if when == "reads":
        file.written(index)
        monkeypatch.setattr(os, "preadv", failing)
    if when == "is put back":
        file.written(index)
        monkeypatch.setattr(os, "pwritev", failing)
    with pytest.raises(ampi.TapeError, match=rf"spill='{tmp_path}': cannot {verb} [0-9,]+ bytes: Input/output error"):
        file.put(place, numpy.zeros(1000)) if when == "is put back" else place.array()


def test_a_run_that_fails_where_there_is_no_room_for_its_report(tmp_path, mpiexec):
    """The file in which ranks leave their tracebacks cannot be made: tracebacks all the same, and no crash."""
    script = tmp_path / "program.py"
    script.write_text("from mpi4py import MPI\nraise ValueError(f'on rank {MPI.COMM_WORLD.rank}')\n")
    starter = tmp_path / "start.py"
    starter.write_text(
        "import resource, runpy, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "import ampi.mpi\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))\n"
        f"sys.argv = ['ampi.run', {str(script)!r}]\n"
        "runpy.run_module('ampi.run', run_name='__main__')\n"
    )
    done = mpiexec(2, starter)
    assert done.returncode not in (0, -signal.SIGBUS, -signal.SIGSEGV)
    assert "ValueError: on rank" in done.stderr and "OSError" not in done.stderr


def test_gradients_that_cannot_be_written_are_an_error_before_the_program_runs(tmp_path):
    (tmp_path / "program.py").write_text("print('runs')\nx = 2.0\ny = x * x\n")
    command = [sys.executable, "-m", "ampi.run", "--wrt", "x", "--of", "y", "--output", str(tmp_path / "f" / "out.h5")]
    (tmp_path / "f").write_text("")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(("PMI", "HYDRA", "OMPI"))}
    done = subprocess.run(
        [*command, str(tmp_path / "program.py")], capture_output=True, text=True, env=alone, check=False
    )
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith(f"ampi.run: --output {tmp_path / 'f' / 'out.h5'}: ")
    assert "Traceback" not in done.stderr


def test_what_a_run_has_recorded_is_read_with_care(study, tmp_path):
    from ampi.scaling import model

    path = tmp_path / "rank-0.json"
    path.write_text(json.dumps({"a": 1})[:-2])
    assert model._read(path) is None
    path.unlink()
    path.mkdir()
    with pytest.raises(ScalingError, match=r"rank-0.json cannot be read: Is a directory"):
        model._read(path)


@pytest.mark.parametrize("name", ["nothere.rst", "", "unmarked.rst"])
def test_tables_for_files_that_cannot_take_them(tmp_path, name, capsys):
    from ampi import coverage

    (tmp_path / "unmarked.rst").write_text("nothing")
    with pytest.raises(SystemExit):
        coverage.main(["--rst", str(tmp_path / name)])
    assert f"error: --rst {tmp_path / name}: " in capsys.readouterr().err

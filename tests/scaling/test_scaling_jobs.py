"""Job scripts, against stand-ins of sbatch, qsub and bsub that check their directives and run the script here."""

import os
import pathlib
import shlex
import string
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_scaling import runs_in, write

import ampi
from ampi import scaling
from ampi.scaling import jobs
from ampi.scaling.command import main

STAND_IN = r'''#!{python}
"""Stands in for {system}: checks the directives of a script as that would, and runs it."""
import os, re, shlex, subprocess, sys

NAME, NUMBER, TIME = r"[A-Za-z][\w-]*", r"[1-9]\d*", r"\d+:[0-5]\d:[0-5]\d"
GRAMMAR = {{
    "slurm": ("#SBATCH", [
        rf"--job-name={{NAME}}", rf"--(nodes|ntasks|ntasks-per-node|cpus-per-task)={{NUMBER}}", rf"--time={{TIME}}",
        r"--(partition|account)=[\w.+-]+", r"--output=[\w./-]+", r"--exclusive"]),
    "pbs": ("#PBS", [
        r"-N [A-Za-z][\w-]{{0,14}}",
        rf"-l select={{NUMBER}}:ncpus={{NUMBER}}:mpiprocs={{NUMBER}}:ompthreads={{NUMBER}}",
        rf"-l walltime={{TIME}}", r"-[qA] [\w.+-]+", r"-j oe", r"-o [\w./-]+", r"-l place=excl"]),
    "lsf": ("#BSUB", [
        rf"-J {{NAME}}", rf"-n {{NUMBER}}", rf'-R "(span\[ptile={{NUMBER}}\]|affinity\[core\({{NUMBER}}\)\])"',
        r"-W \d+:[0-5]\d", r"-[qP] [\w.+-]+", r"-o [\w./-]+", r"-x"]),
}}
tag, allowed = GRAMMAR["{system}"]
if "{system}" == "lsf":
    if sys.argv[1:]:
        sys.exit("bsub: a script comes from standard input")
    text = sys.stdin.read()
else:
    text = open(sys.argv[1]).read()
lines = text.splitlines()
if lines[0] != "#!/bin/bash":
    sys.exit("this does not look like a batch script")
over = False
for line in lines[1:]:
    if line.startswith(tag):
        if over:
            sys.exit("a directive behind a command: " + line)
        if not any(re.fullmatch(pattern, line[len(tag) + 1:]) for pattern in allowed):
            sys.exit("invalid directive: " + line)
    elif line.strip() and not line.startswith("#"):
        over = True
if subprocess.run(["bash", "-n"], input=text, text=True).returncode:
    sys.exit("bash cannot read this")
done = subprocess.run(["bash", "-c", "module() {{ echo module $*; }}; " + text], text=True, capture_output=True)
open(os.environ["STAND_IN_LOG"], "a").write(done.stdout + done.stderr)
SAID = {{"slurm": "Submitted batch job 42", "pbs": "42.server", "lsf": "Job <42> is submitted to queue <q>."}}
print(SAID["{system}"])
'''
LAUNCH = """#!{python}
import os, re, sys
words = sys.argv[1:]
while words[0].startswith("-"):
    if words.pop(0) == "-n":
        words.pop(0)
os.execvp(words[0], words)
"""
STUDY = """\
[study]
script = "program.py"
arguments = "25"
ranks = [1, 2, 6]
threads = [1, 2]
repetitions = 2
warmup = 0
[runs.a]
primal = {from = "wall"}
"""
COMMANDS = {"slurm": "sbatch", "pbs": "qsub", "lsf": "bsub"}
ONLY = {"slurm": "--exclusive", "pbs": "-l place=excl", "lsf": "-x"}


@pytest.fixture
def batch(tmp_path, monkeypatch):
    """Stand-ins on PATH; the log of the jobs."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for system, command in COMMANDS.items():
        (folder / command).write_text(STAND_IN.format(python=sys.executable, system=system))
    for command in ("srun", "mpiexec"):
        (folder / command).write_text(LAUNCH.format(python=sys.executable))
    for path in folder.iterdir():
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(ampi.__file__).parents[1]))
    monkeypatch.setenv("STAND_IN_LOG", str(tmp_path / "log"))
    return tmp_path / "log"


def job(system, **more):
    lines = [f'system = "{system}"', *(f"{key} = {value}" for key, value in more.items())]
    return "[job]\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("system", [pytest.param(s, marks=[pytest.mark.slow] * (s != "pbs")) for s in COMMANDS])
def test_jobs_are_written_submitted_and_measure(system, batch, tmp_path, capsys):
    folder = tmp_path / "a study's folder"
    folder.mkdir()
    more = {
        "partition": '"long"', "account": '"p-42"', "walltime": '"01:30:10"', "tasks_per_node": "4",
        "modules": '["openmpi/5.0", "python"]', "setup": '["export NOTE=hello", "echo set up"]',
        "directives": f'["{ONLY[system]}"]',
    }  # fmt: skip
    path = write(folder, STUDY + job(system, **more))
    assert main(["submit", str(path)]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    assert printed.count("42") == 3
    measured = [case for ranks in (1, 2, 6) for case in runs_in(folder / f"study-results-{ranks}.jsonl")]
    read = scaling.read_study(path)
    assert sorted(measured) == sorted((c.repetition, c.run, c.ranks, c.threads) for c in read.cases())
    log = batch.read_text()
    assert log.count("module load openmpi/5.0") == log.count("module load python") == log.count("set up") == 3
    assert main(["submit", str(path)]) == 0 and "everything is measured" in capsys.readouterr().out


EXPECTED = {
    "slurm": [
        "--job-name=study-6", "--nodes=2", "--ntasks=6", "--ntasks-per-node=4", "--cpus-per-task=2", "--time=01:00:00",
    ],
    "pbs": ["-N study-6", "-l select=2:ncpus=8:mpiprocs=4:ompthreads=2", "-l walltime=01:00:00", "-j oe"],
    "lsf": ["-J study-6", "-n 6", '-R "span[ptile=4]"', '-R "affinity[core(2)]"', "-W 01:00"],
}  # fmt: skip


@pytest.mark.parametrize("system", COMMANDS)
def test_directives(system, tmp_path):
    text = jobs.script(scaling.read_study(write(tmp_path, STUDY + job(system, tasks_per_node=4))), 6)
    tag = {"slurm": "#SBATCH", "pbs": "#PBS", "lsf": "#BSUB"}[system]
    found = [line.removeprefix(tag + " ") for line in text.splitlines() if line.startswith(tag)]
    assert [line for line in found if not line.startswith(("--output", "-o "))] == EXPECTED[system]
    assert "@" not in text and "module" not in text


@pytest.mark.parametrize("system", COMMANDS)
@pytest.mark.parametrize("directives", ['["--nodse=3"]', '["; rm x"]'])
def test_stand_ins_refuse_what_is_wrong(system, directives, batch, tmp_path, capsys):
    path = write(tmp_path, STUDY + job(system, directives=directives))
    assert main(["submit", str(path)]) == 1
    assert f"{COMMANDS[system]} refused" in capsys.readouterr().err and not batch.exists()


def test_without_a_batch_system(tmp_path, capsys, monkeypatch):
    path = write(tmp_path, STUDY)
    assert main(["submit", str(path)]) == 1 and "[job] system is missing" in capsys.readouterr().err
    path = write(tmp_path, STUDY + job("slurm"))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["submit", str(path)]) == 1 and "sbatch: No such file" in capsys.readouterr().err


@pytest.mark.parametrize("system", COMMANDS)
def test_a_template_of_ones_own(system, tmp_path, capsys):
    assert main(["template", system]) == 0
    own = capsys.readouterr().out.replace("set -e\n", "set -e\nulimit -s unlimited\n")
    (tmp_path / "own.sh").write_text(own)
    path = write(tmp_path, STUDY + job(system, template='"own.sh"'))
    text = jobs.script(scaling.read_study(path), 2)
    assert text.replace("ulimit -s unlimited\n", "") == jobs.script(
        scaling.read_study(write(tmp_path, STUDY + job(system))), 2
    )
    (tmp_path / "own.sh").write_text("@nodse@\n")
    with pytest.raises(scaling.ScalingError, match="a template has @nodse@; there are @name@, @nodes@"):
        jobs.script(scaling.read_study(write(tmp_path, STUDY + job(system, template='"own.sh"'))), 2)


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=30), st.integers(1, 10**6))
def test_names_of_jobs(name, ranks):
    found = jobs.job_name(name, ranks)
    assert len(found) <= 15 and found[0] in string.ascii_letters and found.endswith(f"-{ranks}")
    assert set(found) <= set(string.ascii_letters + string.digits + "_-")


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1).filter(lambda text: "@" not in text))
def test_what_a_script_quotes_bash_reads_back(value):
    text = jobs.filled("printf %s @folder@\n@setup@\n", {"folder": shlex.quote(value), "setup": []})
    done = subprocess.run(["bash", "-c", text], capture_output=True, check=True)
    assert done.stdout.decode() == value


# ------------------------------------------------------------------------------------------------- submitting twice

SUBMITS = {"slurm": "Submitted batch job 77", "pbs": "77.server", "lsf": "Job <77> is submitted to queue <q>."}
ASKED = {"slurm": "squeue", "pbs": "qstat", "lsf": "bjobs"}
WAITS = {"slurm": "PENDING", "pbs": "77.server  study  me  00:00:00 Q workq", "lsf": "RUN"}
ENDED = {"slurm": "COMPLETED", "pbs": "77.server  study  me  00:00:00 C workq", "lsf": "DONE"}
GONE = {"slurm": "Invalid job id specified", "pbs": "qstat: Unknown Job Id 77", "lsf": "Job <77> is not found"}


def command(folder, name, said, status=0):
    (folder / name).write_text(
        f"#!/bin/sh\necho 'submitted' >> {folder}/log\necho '{said}' >&{2 if status else 1}\nexit {status}\n"
    )
    (folder / name).chmod(0o755)


@pytest.mark.parametrize("system", COMMANDS)
def test_jobs_that_wait_are_not_submitted_again(system, tmp_path, monkeypatch, capsys):
    path = write(tmp_path, STUDY.replace("[1, 2, 6]", "[2]") + job(system))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command(tmp_path, COMMANDS[system], SUBMITS[system])
    submit = lambda *more: (main(["submit", str(path), *more]), capsys.readouterr())
    assert SUBMITS[system] in submit()[1].out

    command(tmp_path, ASKED[system], WAITS[system])
    status, said = submit()
    assert status == 0 and "job 77" in said.out and "is not submitted again" in said.out
    assert SUBMITS[system] in submit("--again")[1].out
    for answer in (ENDED, GONE):
        command(tmp_path, ASKED[system], answer[system], status=int(answer is GONE))
        assert SUBMITS[system] in submit()[1].out, answer

    command(tmp_path, ASKED[system], "cannot reach the server", status=1)
    status, said = submit()
    assert status == 1 and "it may still run" in said.err and "cannot reach" in said.err and "--again" in said.err
    (tmp_path / ASKED[system]).unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    status, said = submit()
    assert status == 1 and f"{ASKED[system]}: No such file" in said.err


def test_a_job_without_a_number_is_not_submitted_again(tmp_path, monkeypatch, capsys):
    path = write(tmp_path, STUDY.replace("[1, 2, 6]", "[2]") + job("slurm"))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    command(tmp_path, "sbatch", "thank you")
    assert main(["submit", str(path)]) == 0
    assert main(["submit", str(path)]) == 1
    assert "its number is not known" in capsys.readouterr().err

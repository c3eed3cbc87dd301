"""Job scripts for SLURM, PBS and LSF: one for each number of ranks that a study has not measured fully yet.

A template is a script in which ``@name@`` stands for a setting of the study; lines with an empty setting are omitted.
Each job writes a separate file of results (``study-results-8.jsonl``), so that jobs may run at the same time; all of
these are read together.
"""

import dataclasses
import pathlib
import re
import shlex
import subprocess
import sys

from ampi.base import whole_files
from ampi.scaling import results
from ampi.scaling.study import ScalingError, Study

SLURM = """\
#!/bin/bash
#SBATCH --job-name=@name@
#SBATCH --nodes=@nodes@
#SBATCH --ntasks=@ranks@
#SBATCH --ntasks-per-node=@tasks@
#SBATCH --cpus-per-task=@threads@
#SBATCH --time=@walltime@
#SBATCH --partition=@partition@
#SBATCH --account=@account@
#SBATCH --output=@log@
#SBATCH @directive@

"""
PBS = """\
#!/bin/bash
#PBS -N @name@
#PBS -l select=@nodes@:ncpus=@cpus@:mpiprocs=@tasks@:ompthreads=@threads@
#PBS -l walltime=@walltime@
#PBS -q @partition@
#PBS -A @account@
#PBS -j oe
#PBS -o @log@
#PBS @directive@

"""
LSF = """\
#!/bin/bash
#BSUB -J @name@
#BSUB -n @ranks@
#BSUB -R "span[ptile=@tasks@]"
#BSUB -R "affinity[core(@threads@)]"
#BSUB -W @minutes@
#BSUB -q @partition@
#BSUB -P @account@
#BSUB -o @log@
#BSUB @directive@

"""
BODY = """\
set -e
cd @folder@
module load @module@
@setup@
exec @python@ -m ampi.scaling run @study@ --ranks @ranks@ --launcher @launcher@
"""


@dataclasses.dataclass(frozen=True)
class System:
    """A batch system: its template, and the commands that submit a script and start ranks within a job."""

    template: str
    submit: str
    launcher: str
    from_input: bool = False


SYSTEMS = {
    "slurm": System(SLURM + BODY, "sbatch", "srun --ntasks={ranks} --cpus-per-task={threads}"),
    "pbs": System(PBS + BODY, "qsub", "mpiexec -n {ranks}"),
    "lsf": System(LSF + BODY, "bsub", "mpiexec -n {ranks}", from_input=True),
}


def script(study: Study, ranks: int, results_file: pathlib.Path | None = None) -> str:
    """The job script for a number of ranks.

    Raises
    ------
    ScalingError
        ``[job]`` does not name the batch system, or its template cannot be read or has unknown names.
    """
    job = study.job
    if not job.system:
        raise ScalingError(f'{study.path}: [job] system is missing: "slurm", "pbs" or "lsf"')
    system = SYSTEMS[job.system]
    tasks = min(ranks, job.tasks_per_node)
    threads = max(study.threads)
    minutes = -(-job.walltime // 60)
    launcher = job.launcher or " ".join(study.launcher) or system.launcher
    values: dict[str, str | list[str]] = {
        "name": job_name(study.name, ranks),
        "nodes": str(-(-ranks // tasks)),
        "ranks": str(ranks),
        "tasks": str(tasks),
        "threads": str(threads),
        "cpus": str(tasks * threads),
        "walltime": f"{job.walltime // 3600:02}:{job.walltime // 60 % 60:02}:{job.walltime % 60:02}",
        "minutes": f"{minutes // 60:02}:{minutes % 60:02}",
        "partition": job.partition,
        "account": job.account,
        "log": f"{study.path.stem}-{ranks}.log",
        "directive": list(job.directives),
        "folder": shlex.quote(str(study.folder)),
        "module": [shlex.quote(module) for module in job.modules],
        "setup": list(job.setup),
        "python": shlex.quote(sys.executable),
        "study": shlex.quote(study.path.name),
        "launcher": shlex.quote(launcher),
    }
    if results_file is not None:
        values["launcher"] = f"{values['launcher']} --results {shlex.quote(str(results_file.absolute()))}"
    return filled(_template(study), values)


def _template(study: Study) -> str:
    if not study.job.template:
        return SYSTEMS[study.job.system].template
    path = study.folder / study.job.template
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ScalingError(f"{study.path}: [job] template {path}: {error.strerror}") from None


def job_name(name: str, ranks: int) -> str:
    """A name that all batch systems accept: a letter first, at most 15 characters."""
    end = f"-{ranks}"
    plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
    plain = plain if plain[:1].isalpha() else f"s{plain}"
    return plain[: 15 - len(end)] + end


def filled(template: str, values: dict[str, str | list[str]]) -> str:
    """A template with its names replaced by values; a list is written as one line for each item.

    Raises
    ------
    ScalingError
        The template has an unknown name.
    """
    lines = []
    for line in template.splitlines():
        names = re.findall(r"@(\w+)@", line)
        for name in names:
            if name not in values:
                raise ScalingError(f"a template has @{name}@; there are {', '.join(f'@{known}@' for known in values)}")
        repeated = [name for name in names if isinstance(values[name], list)]
        for item in values[repeated[0]] if repeated else [""]:
            known = {name: item if name in repeated else str(values[name]) for name in names}
            if all(known.values()):
                lines.append(re.sub(r"@(\w+)@", lambda match, known=known: known[match[1]], line))
    return "\n".join(lines) + "\n"


def folder_of(study: Study) -> pathlib.Path:
    """The folder of a study's job scripts: ``STUDY-jobs/`` beside it."""
    return study.path.with_name(f"{study.path.stem}-jobs")


def write(study: Study, results_file: pathlib.Path | None = None) -> dict[int, pathlib.Path]:
    """Write the job scripts for missing cases to ``STUDY-jobs/`` beside the study; their paths, by ranks."""
    done = results.read(results.files_of(study, results_file), study).done()
    missing = sorted({case.ranks for case in study.cases() if case not in done})
    texts = {ranks: script(study, ranks, results_file) for ranks in missing}
    folder = folder_of(study)
    try:
        folder.mkdir(exist_ok=True)
    except OSError as error:
        raise ScalingError(f"{folder} cannot be made: {error.strerror}") from None
    paths = {ranks: folder / f"{study.path.stem}-{ranks}.sh" for ranks in texts}
    for ranks, text in texts.items():
        whole_files.write(paths[ranks], text, ScalingError)
    return paths


def submit(study: Study, path: pathlib.Path) -> str:
    """Submit a job script; returns the message of the batch system.

    Raises
    ------
    ScalingError
        There is no such batch system here, or it refused the script.
    """
    system = SYSTEMS[study.job.system]
    command = [system.submit] if system.from_input else [system.submit, str(path)]
    try:
        with open(path, encoding="utf-8") as file:
            done = subprocess.run(
                command, stdin=file if system.from_input else subprocess.DEVNULL, capture_output=True, text=True,
                cwd=path.parent, check=False,
            )  # fmt: skip
    except OSError as error:
        raise ScalingError(f"{system.submit}: {error.strerror}; the script is {path}") from None
    if done.returncode:
        raise ScalingError(f"{system.submit} refused {path}: {(done.stderr or done.stdout).strip()}")
    return done.stdout.strip()

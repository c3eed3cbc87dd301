"""Waiting and running jobs of a study, from a list of submitted jobs and queries to the batch system.

Without it, a study that is submitted twice would measure everything twice, since results of queued jobs are missing.
"""

import dataclasses
import json
import pathlib
import re
import subprocess

from ampi.scaling import jobs, runner
from ampi.scaling.study import ScalingError, Study


@dataclasses.dataclass(frozen=True)
class Query:
    """A query for a job's state in a batch system.

    Attributes
    ----------
    identity : str
        A regular expression with one group that finds the job's ID in the message printed at submission.
    command : tuple of str
        The command that prints the job's state; the ID is appended.
    ended : str
        States of jobs that have ended.
    gone : str
        The message for jobs that the batch system has forgotten.
    """

    identity: str
    command: tuple[str, ...]
    ended: str
    gone: str


QUERIES = {
    "slurm": Query(
        r"job (\d+)",
        ("squeue", "--noheader", "--format=%T", "--jobs"),
        r"COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY|BOOT_FAIL|DEADLINE|PREEMPTED",
        r"Invalid job id",
    ),
    "pbs": Query(r"(\S+)", ("qstat",), r"\b[CFX]\b", r"(?i)unknown job|has finished"),
    "lsf": Query(r"Job <(\d+)>", ("bjobs", "-noheader", "-o", "stat"), r"DONE|EXIT", r"is not found"),
}


def note(study: Study, ranks: int, message: str) -> None:
    """Note a submitted job."""
    found = re.search(QUERIES[study.job.system].identity, message)
    line = {"ranks": ranks, "system": study.job.system, "job": found[1] if found else "", "submitted": runner.now()}
    path = _path(study)
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise ScalingError(
            f"{message}: the job is submitted, but this cannot be written to {path}: {error.strerror}; submit again "
            "only when it has ended"
        ) from None


def waiting(study: Study, ranks: int) -> str:
    """The last job for a number of ranks, and its state, if it has not ended; empty if there is none.

    Raises
    ------
    ScalingError
        There is one, but the batch system does not report its state.
    """
    try:
        lines = [json.loads(line) for line in _path(study).read_text(encoding="utf-8").splitlines()]
        mine = [line for line in lines if line["ranks"] == ranks]
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise ScalingError(f"{_path(study)} cannot be read: {error.strerror}") from None
    except (ValueError, LookupError, TypeError):
        raise ScalingError(
            f"{_path(study)} is damaged; see which jobs wait or run, and remove it, or take --again"
        ) from None
    return _state(mine[-1]) if mine else ""


def _path(study: Study) -> pathlib.Path:
    return jobs.folder_of(study) / "submitted.jsonl"


def _state(line: dict[str, str]) -> str:
    query = QUERIES[line["system"]]
    what = f"job {line['job'] or '(its number is not known)'} for {line['ranks']} ranks, submitted {line['submitted']}"
    how = "submit --again submits all that is missing, whatever became of it"
    if not line["job"]:
        raise ScalingError(f"{what}: it may still run; {how}")
    try:
        done = subprocess.run(
            [*query.command, line["job"]], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError as error:
        raise ScalingError(f"{what}: {query.command[0]}: {error.strerror}: it may still run; {how}") from None
    message = f"{done.stdout}\n{done.stderr}".strip()
    if re.search(query.gone, message):
        return ""
    if done.returncode:
        raise ScalingError(f"{what}: it may still run, {query.command[0]} says: {message}; {how}")
    state = done.stdout.strip().splitlines()[-1:]  # qstat has a line for each job below its headings
    if not state or re.search(query.ended, state[0]):
        return ""
    word = state[0] if line["system"] != "pbs" else "in the queue"
    return f"job {line['job']} is {word.lower()}"

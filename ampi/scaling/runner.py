"""The runner: measures the missing cases of a study in random order.

Repetitions are blocks: each runs all configurations, in a new order, so that drifts of the machine affect all of them
equally (randomised complete blocks), and an interrupted study has measured each about equally often.
"""

import contextlib
import datetime
import json
import os
import pathlib
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from ampi.scaling import machine, results
from ampi.scaling.study import Case, Figure, Run, ScalingError, Study

MAX_OUTPUT = 2000  # characters of a failed run's output that are kept
GRACE = 5.0  # seconds between asking a run to end and killing it
INHERITED = re.compile(r"(PMI|PMIX|OMPI_COMM_WORLD)_\w+")  # of a launcher above this process


def measure(
    study: Study,
    path: pathlib.Path | None = None,
    ranks: int | None = None,
    retry: bool = True,
    say: Callable[[str], None] = print,
) -> int:
    """Measure the missing cases of a study.

    Parameters
    ----------
    study : Study
        From `ampi.scaling.read_study`.
    path : path, optional
        The file of results (``study.results``); cases in the files beside it are not measured again.
    ranks : int, optional
        Only on this number of ranks, with results in the file for it (``study-results-8.jsonl``), as jobs do.
    retry : bool
        Repeat runs that failed before.
    say : callable
        Called with a line for each run.

    Returns
    -------
    int
        The number of failed runs.

    Raises
    ------
    ScalingError
        The results are of another study, another process is adding to them, or there is no launcher.

    Examples
    --------
    >>> study = ampi.scaling.read_study("study.toml")
    >>> ampi.scaling.measure(study, ranks=1)
    study: 2 of 4 runs to measure, order of seed ..., into study-results-1.jsonl
    [1/2] a on 1 x 1, repetition ...: primal ... s
    [2/2] a on 1 x 1, repetition ...: primal ... s
    0
    """
    path = path or study.results
    found = results.read(results.files_of(study, path), study)
    done = found.done(failed=not retry)
    seed = next(seed for seed in (found.seed, study.seed, secrets.randbits(32)) if seed is not None)
    missing = [case for case in order(study, seed) if case not in done and ranks in (None, case.ranks)]
    if ranks is not None:
        path = path.with_name(f"{path.stem}-{ranks}{path.suffix}")
    say(f"{study.name}: {len(missing)} of {len(study.cases())} runs to measure, order of seed {seed}, into {path.name}")
    if not missing:
        return 0
    failed = 0
    with results.Writer(path) as writer:
        session = secrets.token_hex(4)
        writer.add(header(study, session, seed))
        warm: set[tuple[str, int, int]] = set()
        for number, case in enumerate(missing, 1):
            configuration = (case.run, case.ranks, case.threads)
            for _ in range(study.warmup if configuration not in warm else 0):
                writer.add({"kind": "warmup", "session": session, **execute(study, case)})
            warm.add(configuration)
            line = {"kind": "run", "session": session, **execute(study, case)}
            writer.add(line)
            failed += line["status"] != "ok"
            say(f"[{number}/{len(missing)}] {described(line)}")
    return failed


def order(study: Study, seed: int) -> list[Case]:
    """All cases, repetition by repetition, each in a random order from `seed`."""
    found = []
    for repetition in range(study.repetitions):
        block = sorted(case for case in study.cases() if case.repetition == repetition)
        random.Random(f"{seed} {repetition}").shuffle(block)
        found += block
    return found


def header(study: Study, session: str, seed: int) -> dict[str, Any]:
    """The first line of a session."""
    return {
        "kind": "session",
        "session": session,
        "started": now(),
        "name": study.name,
        "scaling": study.scaling,
        "seed": seed,
        "study": study.identity(),
        "launcher": list(study.launcher),
        "machine": machine.describe(),
        "versions": machine.versions(),
        "git": machine.commit(study.folder),
    }


def now() -> str:
    """The time, in UTC."""
    return datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")


def described(line: dict[str, Any]) -> str:
    """A line of results for the terminal."""
    where = f"{line['run']} on {line['ranks']} x {line['threads']}, repetition {line['repetition'] + 1}"
    if line["status"] != "ok":
        return f"{where}: {line['status']}: {line['message'].strip().splitlines()[-1] if line['message'] else ''}"
    return f"{where}: " + ", ".join(f"{mode} {seconds:.4g} s" for mode, seconds in line["seconds"].items())


def command(study: Study, case: Case) -> list[str]:
    """The command line of a case, launcher first."""
    run = study.runs[case.run]
    filled = lambda parts: [part.format(**placeholders(case)) for part in parts]
    start = filled(study.launcher) if study.launcher else launcher(case.ranks)
    script = str(study.folder / study.script)
    return [*start, sys.executable, *filled(run.python), script, *filled(study.arguments), *filled(run.arguments)]


def placeholders(case: Case) -> dict[str, int]:
    """The values of a study's placeholders."""
    return {"size": case.size, "ranks": case.ranks, "threads": case.threads, "repetition": case.repetition}


def launcher(ranks: int) -> list[str]:
    """``mpiexec -n RANKS``, from Python's environment if it has one."""
    beside = pathlib.Path(sys.executable).with_name("mpiexec")
    program = str(beside) if beside.exists() else shutil.which("mpiexec")
    if program is None:
        raise ScalingError('there is no mpiexec on PATH: set launcher, for example to "srun --ntasks={ranks}"')
    return [program, "-n", str(ranks)]


def environment(study: Study, case: Case) -> dict[str, str]:
    """The environment of a case: this one, with the case's number of threads and the study's variables."""
    found = {name: value for name, value in os.environ.items() if not INHERITED.fullmatch(name)}
    found.update(OMP_NUM_THREADS=str(case.threads), NUMBA_NUM_THREADS=str(case.threads))
    found.update({name: value.format(**placeholders(case)) for name, value in study.environment.items()})
    return found


def execute(study: Study, case: Case) -> dict[str, Any]:
    """Run a case once; its line in the results."""
    run = study.runs[case.run]
    line: dict[str, Any] = {
        "run": case.run, "ranks": case.ranks, "threads": case.threads, "size": case.size,
        "repetition": case.repetition, "started": now(), "status": "ok", "seconds": {}, "wall": None, "message": "",
    }  # fmt: skip
    for figure in run.figures.values():
        if figure.file:
            (study.folder / figure.file).unlink(missing_ok=True)
    status, wall, output, errors = start(command(study, case), study.folder, environment(study, case), study.timeout)
    line["wall"] = wall
    if status is None:
        line.update(status="timeout", message=f"ended after {study.timeout:g} s\n{errors[-MAX_OUTPUT:]}")
    elif status:
        line.update(status="failed", message=f"{(errors or output)[-MAX_OUTPUT:]}\nexit status {status}")
    else:
        try:
            line["seconds"] = taken(study, run, wall, output)
        except ScalingError as error:
            line.update(status="failed", message=f"{output[-MAX_OUTPUT:]}\n{error}")
    return line


def taken(study: Study, run: Run, wall: float, output: str) -> dict[str, float]:
    """The times of a run, by mode, in seconds."""
    return {mode: seconds(figure, study.folder, wall, output) for mode, figure in run.figures.items()}


def seconds(figure: Figure, folder: pathlib.Path, wall: float, output: str) -> float:
    """One time of a run.

    Raises
    ------
    ScalingError
        The program has not printed or written it, or it is not a positive number.
    """
    if figure.source == "wall":
        return wall
    if figure.source == "print":
        matches = re.findall(figure.pattern, output)
        if not matches:
            raise ScalingError(f"the program printed nothing that fits pattern = {figure.pattern!r}")
        value: Any = matches[-1]
    else:
        value = _json_value(figure, folder, output)
    try:
        number = float(value) * figure.scale
    except (TypeError, ValueError):
        raise ScalingError(f"{value!r} is not a number") from None
    if not 0 < number < float("inf"):
        raise ScalingError(f"a time must be above 0, and is {value}")
    return number


def _json_value(figure: Figure, folder: pathlib.Path, output: str) -> Any:
    try:
        text = (folder / figure.file).read_text(encoding="utf-8") if figure.file else output
    except OSError as error:
        raise ScalingError(f"the program has not written {figure.file}: {error.strerror}") from None
    for line in reversed(text.splitlines()):
        with contextlib.suppress(ValueError):
            found = json.loads(line)
            if isinstance(found, dict) and figure.key in found:
                return found[figure.key]
    where = figure.file or "the output of the program"
    raise ScalingError(f"{where} has no line with a JSON object that has the key {figure.key!r}")


def start(
    arguments: list[str], folder: pathlib.Path, variables: dict[str, str], timeout: float
) -> tuple[int | None, float, str, str]:
    """Run a command: exit status (None: killed after the time limit), seconds, output, and errors."""
    with (
        tempfile.TemporaryFile("w+", errors="replace") as output,
        tempfile.TemporaryFile("w+", errors="replace") as errors,
    ):
        began = time.perf_counter()
        try:
            process = subprocess.Popen(
                arguments, cwd=folder, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            raise ScalingError(
                f"{arguments[0]}: {error.strerror}; set launcher to the command that starts ranks"
            ) from None
        late = threading.Event()
        with _ended(process, timeout, late):
            status = process.wait()  # without a timeout, which would poll the process every 50 ms only
            wall = time.perf_counter() - began
        output.seek(0)
        errors.seek(0)
        return None if late.is_set() else status, wall, output.read(), errors.read()


@contextlib.contextmanager
def _ended(process: subprocess.Popen[bytes], timeout: float, late: threading.Event) -> Iterator[None]:
    """End a process and those that it has started, whatever happens; sets `late` if it took too long."""

    def end() -> None:
        late.set()
        _signal(process, signal.SIGTERM)

    timers = [threading.Timer(timeout, end), threading.Timer(timeout + GRACE, _signal, (process, signal.SIGKILL))]
    for timer in timers:
        timer.daemon = True
        timer.start()
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
        if process.poll() is None:
            _signal(process, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE)
            _signal(process, signal.SIGKILL)
            process.wait()


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a running process, and to those that it has started."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)

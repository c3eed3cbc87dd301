"""The passes of ``scripts/test``: pytest on one rank without ``mpiexec``, then on several ranks under it.

The tests of one rank are distributed to one process more than there are cores (at most five), since some tests only
wait; those of one file stay together, since they share compiled code.

Kernels are compiled with little optimisation (``NUMBA_OPT=1``, if nothing else is set), which takes half of the time;
the slow tests have all of it.

Every argument but ``-n`` goes to pytest. Exit status 0 if something ran and nothing failed; the last line gives the
totals.
"""

import argparse
import collections
import contextlib
import datetime
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

RANKS = (1, 2, 3, 4, 8)
ALONE = 0.6  # the part of a limited time for the tests on one rank
GRACE = 600  # seconds for running tests when the time is over
LATE = -1000  # instead of an exit status: the time was over, and no test hung
PATIENCE = 600 * float(os.environ.get("AMPI_TEST_PATIENCE", "1"))
"""Seconds without the start of a test; a single test has its own limit, in pyproject.toml."""
NO_TESTS = 5  # pytest's exit status when nothing was selected


@contextlib.contextmanager
def shared_bytecode():
    """Where Python may not write bytecode beside its sources, let all processes of a run share a folder for it.

    Tests start thousands of processes, each of which would compile all modules.
    """
    with tempfile.TemporaryDirectory(prefix="ampi-bytecode-") as folder:
        before = os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        if before:
            os.environ["PYTHONPYCACHEPREFIX"] = folder
        try:
            yield
        finally:
            if before:
                del os.environ["PYTHONPYCACHEPREFIX"]
                os.environ["PYTHONDONTWRITEBYTECODE"] = before


@shared_bytecode()
def main():
    parser = argparse.ArgumentParser(prog="scripts/test", allow_abbrev=False, add_help=False)
    parser.add_argument("-n", dest="ranks", type=int, action="append")
    parser.add_argument("--within", type=float, metavar="MINUTES", help="leave out tests that do not begin by then")
    options, pytest_args = parser.parse_known_args()

    totals = collections.Counter()
    failed = []  # a line for each failure, shown together at the end of a long log
    listed = None  # the tests for several ranks, as the pass on one rank has found them
    end = time.time() + 60 * options.within if options.within else None
    passes = options.ranks or RANKS
    os.environ.setdefault("AMPI_TEST_DAY", datetime.date.today().isoformat())  # one day for all, even at midnight
    for number, ranks in enumerate(passes):
        if ranks > 1 and listed is not None and not any(least <= ranks <= most for least, most in sizes(listed)):
            continue
        with tempfile.TemporaryDirectory(prefix="ampi-test-") as folder:
            until = None
            if end is not None and time.time() > end:
                print(f"##### {ranks} ranks: left out, the time is over", flush=True)
                continue
            if end is not None:
                left = len(passes) - number
                part = 1 if left == 1 else ALONE if ranks == 1 else 1 / left
                until = time.time() + part * (end - time.time())
            if listed is not None:
                pathlib.Path(folder, "listed").write_text(listed)
            counts = run_pass(ranks, pytest_args, pathlib.Path(folder), until, end)
            names = read_names(pathlib.Path(folder))
            failed += [f"FAILED on {ranks} rank{'s' * (ranks > 1)}: {name}" for name in names]
            if ranks == 1:
                listed = read_sizes(pathlib.Path(folder))
        totals += counts
    if totals["late"]:
        print(f"{totals['late']} of those skipped were left out: they did not begin within {options.within:g} minutes")
    if failed:
        print("\n#####", *failed, sep="\n")
    line = f"{totals['passed']} passed, {totals['failed']} failed"
    if totals["skipped"]:
        line += f", {totals['skipped']} skipped"
    print(line, flush=True)
    return 1 if totals["failed"] or not totals else 0  # nothing ran: a misspelt -k, most likely


def run_pass(ranks, pytest_args, folder, until=None, end=None):
    """Run pytest on `ranks` ranks; numbers of tests that ``passed``, ``failed`` and were ``skipped``, and of those
    skipped because they would have begun after ``until`` (``late``).  Tests that still run at ``end`` have `GRACE`."""
    print(f"\n##### {ranks} rank{'s' * (ranks > 1)}", flush=True)
    command = [sys.executable, "-m", "pytest", *pytest_args]
    environment = {**os.environ, "AMPI_TEST_FOLDER": str(folder)}
    environment.setdefault("AMPI_TIMEOUT", str(PATIENCE / 10))  # of sweeps; 60 by default
    environment.setdefault("UCX_LOG_LEVEL", "error")  # it warns of each request that a test leaves behind on purpose
    if "--slow" not in pytest_args:
        environment.setdefault("NUMBA_OPT", "1")
    if until is not None:
        environment["AMPI_TEST_UNTIL"] = str(until)
    if ranks == 1:
        command.append("--timeout-method=signal")  # no partner to wait for: the other tests may go on
        if not set(pytest_args) - {"--slow", "--few-cases"}:
            command += ["-n", str(min(os.cpu_count() or 1, 4) + 1), "--dist", "loadfile", "--no-loadscope-reorder"]
    else:
        mpiexec = pathlib.Path(sys.executable).with_name("mpiexec")
        command = [str(mpiexec), "-n", str(ranks), *command, "-p", "no:cacheprovider"]
        # Ranks must draw and order the same tests, and share the cores.
        environment["PYTHONHASHSEED"] = "0"
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS"):
            environment.setdefault(name, "1")

    status, ending = run_patiently(command, environment, folder / "running", end)
    counts = read_outcomes(folder)
    if status == LATE:
        print(f"##### {ranks} ranks: stopped, the time is over", flush=True)
    if status in (0, NO_TESTS, LATE) and not (status == LATE and counts["failed"]):
        return counts
    if not (folder / "finished").exists():
        show(folder / "failures", "failed before")
        show_logs(folder)
        started = (folder / "running").read_text().splitlines() if (folder / "running").exists() else []
        test = started[-1] if started else "before the first test"
        print(f"FAILED: on {ranks} ranks, {ending}: {test}", flush=True)
        add_name(folder, f"{test}: {ending}")
        counts["failed"] += 1
    elif not counts["failed"]:  # a wrong argument, an error while collecting, or a rank that ended badly
        show_logs(folder)
        print(f"FAILED: on {ranks} ranks: {ending}", flush=True)
        add_name(folder, ending)
        counts["failed"] += 1
    return counts


def run_patiently(command, environment, running, end=None):
    """Run `command` until it ends or hangs, or the time is over; its exit status, and a description of its end."""
    process = subprocess.Popen(command, env=environment, start_new_session=True, stdin=subprocess.DEVNULL)
    begin = time.time()
    try:
        while True:
            try:
                status = process.wait(5)
                return status, f"exit status {status}"
            except subprocess.TimeoutExpired:
                last = running.stat().st_mtime if running.exists() else begin
                if time.time() - last > PATIENCE:
                    return stop(process), f"no progress for {PATIENCE} s"
                if end is not None and time.time() > end + GRACE:
                    stop(process)
                    return LATE, "the time was over"
    except KeyboardInterrupt:
        stop(process)
        raise


def stop(process):
    """Terminate mpiexec, which ends its ranks, and then kill the rest of its process group."""
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        pass
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    return 1


def read_outcomes(folder):
    file = folder / "outcomes"
    late = folder / "late"
    found = collections.Counter(file.read_text().split() if file.exists() else ())
    return found + collections.Counter(late=len(late.read_text().splitlines()) if late.exists() else 0)


def add_name(folder, text):
    """Name what failed beside the tests' own failures."""
    with open(folder / "names", "a") as names:
        print(text, file=names)


def read_names(folder):
    """A line for each failed phase of a test: its name and the error message."""
    file = folder / "names"
    return file.read_text(errors="replace").splitlines() if file.exists() else []


def read_sizes(folder):
    """A line for each test of several ranks: name, least and greatest number; None if they were not collected."""
    file = folder / "sizes"
    return file.read_text() if file.exists() else None


def sizes(listed):
    """The least and greatest number of ranks of each test."""
    return [tuple(map(int, line.split()[1:])) for line in listed.splitlines()]


def show_logs(folder):
    for log in sorted(folder.glob("rank-*.log")):
        show(log, f"the end of what {log.stem.replace('-', ' ')} said", lines=25)


def show(file, title, lines=None):
    if file.exists():
        text = file.read_text(errors="replace").splitlines()
        print(f"\n----- {title}", *text[-lines if lines else None :], sep="\n", flush=True)


if __name__ == "__main__":
    sys.exit(main())

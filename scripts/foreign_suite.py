"""Run mpi4py's tests in four ways, and report differences from plain mpi4py (``scripts/mpi4py_suite``).

Ways:

plain      mpi4py alone, for comparison
swapped    ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` replaced by ampi's, no tape
recording  the same, and every test runs inside a tape that records
run        unchanged under ``python -m ampi.run``

A difference is a test whose outcome (passed, failed, error, skipped, not finished, not run) on any rank is not that of
the plain run; unavoidable ones are listed in `EXPECTED`, with the reason. A table at the end has the outcomes of the
tests in each way; every test counts once, with its worst outcome on any rank.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import re
import runpy
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import urllib.request

WAYS = ("plain", "swapped", "recording", "run")
RANKS = (1, 2, 3)
SHOWN = 40  # lines of differences for one way
PATIENCE = 600  # seconds without the end of a test on any rank, after which the run counts as hanging
OUTCOMES = (
    "not run",
    "not finished",
    "error",
    "failed",
    "unexpected success",
    "expected failure",
    "skipped",
    "passed",
)  # the worst first
COLUMNS = ("tests", "passed", "failed", "error", "skipped", "other", "different", "expected", "seconds")
# New processes need a process manager that starts them, which the wheels' mpiexec does not do everywhere.
LEFT_OUT = ("test_spawn", "test_dynproc")
# A pool has no worker on one rank.
LEFT_OUT_ALONE = ("test_util_pool",)
# C code makes objects of mpi4py's own class from handles; the test compares with the class of COMM_SELF.
EXPECTED = {"test_objmodel.TestObjModel.testCAPI"}


# ---------------------------------------------------------------------------------------------------------- the driver


def main():
    if sys.argv[1:2] == ["--child"]:
        return child(*sys.argv[2:5], sys.argv[5:])
    parser = argparse.ArgumentParser(prog="scripts/mpi4py_suite", allow_abbrev=False)
    parser.add_argument("-n", dest="ranks", type=int, action="append", help="number of ranks (1, 2 and 3)")
    parser.add_argument("--way", choices=WAYS[1:], action="append", help="compare only this way with plain mpi4py")
    options, arguments = parser.parse_known_args()
    tests = fetch_tests()
    table = []
    for ranks in options.ranks or RANKS:
        plain = None
        for way in ("plain", *(options.way or WAYS[1:])):
            begin = time.monotonic()
            found = outcomes(way, ranks, tests, arguments)
            if way == "plain" and not found:
                return 1
            plain = plain or found
            differences = compare(plain, found)
            unexpected = [line for name, line in differences.items() if name not in EXPECTED]
            for line in unexpected[:SHOWN]:
                print(f"{ranks} rank{'s' * (ranks > 1)}, {way}: {line}", flush=True)
            expected = len(differences) - len(unexpected)
            row = [*tally(found), len(unexpected), expected, round(time.monotonic() - begin)]
            table.append((ranks, way, dict(zip(COLUMNS, row))))
            show(table[-1:])
    print()
    show(table)
    return 1 if any(row["different"] for _, _, row in table) else 0


def show(table):
    """Print rows under their headings."""
    print("ranks  way      ", *(f"{column:>9}" for column in COLUMNS))
    for ranks, way, row in table:
        print(f"{ranks:5}  {way:9}", *(f"{row[column]:9}" for column in COLUMNS), flush=True)


def fetch_tests():
    """The folder of tests of the installed mpi4py's source distribution, from PyPI or the cache."""
    import mpi4py

    name = f"mpi4py-{mpi4py.__version__}"
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache") / "ampi-sources"
    folder = cache / name / "test"
    if not folder.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen("https://pypi.org/simple/mpi4py/", timeout=60) as answer:
            index = answer.read().decode()
        url, digest = re.search(rf'href="([^"#]*/{re.escape(name)}\.tar\.gz)#sha256=(\w+)"', index).groups()
        with urllib.request.urlopen(url, timeout=300) as answer:
            archive = answer.read()
        if hashlib.sha256(archive).hexdigest() != digest:
            raise SystemExit(f"{url}: the checksum does not match")
        with tempfile.TemporaryDirectory(dir=cache) as unpacked:
            path = pathlib.Path(unpacked, "archive")
            path.write_bytes(archive)
            with tarfile.open(path) as tar:
                # Pythons before 3.10.12 and 3.11.4 have no filters; the checksum verifies the contents.
                tar.extractall(unpacked, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))
            pathlib.Path(unpacked, name).rename(cache / name)
    return folder


def outcomes(way, ranks, tests, arguments):
    """Outcomes of the tests: dict of test name -> list with one outcome for each rank."""
    left_out = LEFT_OUT + LEFT_OUT_ALONE * (ranks == 1)
    arguments = [*arguments, *(part for name in left_out for part in ("-e", name))]
    with tempfile.TemporaryDirectory() as folder:
        command = ["-m", "ampi.run", __file__] if way == "run" else [__file__]
        command = [sys.executable, *command, "--child", way, str(tests), folder, *arguments]
        command = [str(pathlib.Path(sys.executable).with_name("mpiexec")), "-n", str(ranks), *command]
        log = pathlib.Path(folder, "log")
        files = [pathlib.Path(folder, f"{rank}.outcomes") for rank in range(ranks)]
        with log.open("w") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True, cwd=tests)
            status = wait(process, files)
        found = collections.defaultdict(lambda: ["not run"] * ranks)
        for rank, file in enumerate(files):
            for line in file.read_text().splitlines() if file.exists() else ():
                name, outcome = json.loads(line)
                found[name][rank] = outcome
        if status:
            tail = log.read_text(errors="replace")[-3000:]
            print(f"{ranks} rank{'s' * (ranks > 1)}, {way}: {status}; the end of the output:\n{tail}", file=sys.stderr)
        return dict(found)


def wait(process, files):
    """Wait until mpiexec ends, or no test has ended for long; a description of the end, "" for success."""
    begin = time.time()
    while True:
        try:
            code = process.wait(5)
            return f"ended with status {code}" if code else ""
        except subprocess.TimeoutExpired:
            last = max([begin, *(file.stat().st_mtime for file in files if file.exists())])
            if time.time() - last > PATIENCE:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return f"was stopped after {PATIENCE} s in which no test had ended"


def tally(found):
    """The number of tests, and how many of each outcome, by the worst on any rank."""
    worst = [min((kind(outcome) for outcome in ranks), key=OUTCOMES.index) for ranks in found.values()]
    counts = [worst.count(column) for column in ("passed", "failed", "error", "skipped")]
    return [len(worst), *counts, len(worst) - sum(counts)]


def kind(outcome):
    """An outcome without the error."""
    return outcome.split(":")[0]


def compare(plain, found):
    """A line for each test with a different outcome, by name."""
    lines = {}
    for name in sorted(plain.keys() | found.keys()):
        before, after = plain.get(name, ["not run"]), found.get(name, ["not run"])
        if [kind(outcome) for outcome in before] != [kind(outcome) for outcome in after]:
            lines[name] = f"{name}: {before} became {after}"
    return lines


# ---------------------------------------------------------------------------------------------------------- the child


class Outcomes(unittest.TextTestResult):
    """Writes the outcome of every test to a file as soon as it is known; the last line on a test counts."""

    file = None

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.failed = set()

    def note(self, test, outcome):
        self.file.write(json.dumps([test.id(), outcome]) + "\n")

    def note_failure(self, test, outcome):
        self.failed.add(test.id())
        self.note(test, outcome)

    def startTest(self, test):
        super().startTest(test)
        self.note(test, "not finished")

    def addSuccess(self, test):
        super().addSuccess(test)
        if test.id() not in self.failed:
            self.note(test, "passed")

    def addError(self, test, err):
        super().addError(test, err)
        self.note_failure(test, f"error: {err[1]!r}")

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.note_failure(test, f"failed: {err[1]!r}")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.note(test, "skipped")

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.note(test, "expected failure")

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.note(test, "unexpected success")

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.note_failure(test, f"failed: {err[1]!r}")


def child(way, tests, folder, arguments):
    """Run the tests on this rank and write their outcomes to a file."""
    from mpi4py import MPI

    rank = MPI.Intracomm(MPI.COMM_WORLD).Get_rank()
    if way in ("swapped", "recording"):
        import ampi

        MPI.COMM_WORLD, MPI.COMM_SELF = ampi.COMM_WORLD, ampi.COMM_SELF
    if way == "recording":
        record_every_test()
    sys.argv = ["main.py", "--quiet", *arguments]
    sys.dont_write_bytecode = True
    sys.path.insert(0, tests)
    program = runpy.run_path(str(pathlib.Path(tests, "main.py")))["TestProgram"]
    runner = unittest.TextTestRunner(resultclass=Outcomes, verbosity=0)
    program.runTests = lambda self: setattr(self, "result", runner.run(self.test))
    with open(pathlib.Path(folder, f"{rank}.outcomes"), "w", buffering=1) as Outcomes.file:
        program(module=None, exit=False)
    return 0


def record_every_test():
    """Let each test run, with its setUp and tearDown, while a tape records."""
    import ampi

    run = unittest.TestCase.run

    def recorded(self, result=None):
        with ampi.Tape():
            return run(self, result)

    unittest.TestCase.run = recorded


if __name__ == "__main__":
    sys.exit(main())

"""What ``scripts/mpi4py_suite`` runs: mpi4py's tests in four ways, and what came out differently from plain mpi4py.

Ways:

plain      mpi4py alone: what the others are compared with
swapped    ``MPI.COMM_WORLD`` and ``MPI.COMM_SELF`` replaced by ampi's, no tape
recording  the same, and every test runs inside a tape that records
run        unchanged under ``python -m ampi.run``

A difference is a test whose outcome (passed, failed, error, skipped, not run) on any rank is not that of the plain run;
those that cannot be otherwise are named in `EXPECTED`, with the reason.
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
import unittest
import urllib.request

WAYS = ("plain", "swapped", "recording", "run")
RANKS = (1, 2, 3)
SHOWN = 40  # lines of differences for one way
LIMIT = 1500  # seconds for one way on one number of ranks
# New processes need a process manager that starts them, which the wheels' mpiexec does not do everywhere.
LEFT_OUT = ("test_spawn", "test_dynproc")
# A pool has no worker on one rank.
LEFT_OUT_ALONE = ("test_util_pool",)
# What C code makes of a handle is an object of mpi4py's own class; the test asks for the class of COMM_SELF.
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
    different = 0
    for ranks in options.ranks or RANKS:
        plain = outcomes("plain", ranks, tests, arguments)
        if not plain:
            return 1
        print(f"{ranks} rank{'s' * (ranks > 1)}, plain mpi4py: {tally(plain)}", flush=True)
        for way in options.way or WAYS[1:]:
            found = outcomes(way, ranks, tests, arguments)
            differences = compare(plain, found)
            different += len(differences)
            print(f"{ranks} rank{'s' * (ranks > 1)}, {way}: {tally(found)}; {len(differences)} different", flush=True)
            for line in differences[:SHOWN]:
                print("   ", line, flush=True)
    return 1 if different else 0


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
                tar.extractall(unpacked, filter="data")
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
        with log.open("w") as file:
            process = subprocess.Popen(command, stdout=file, stderr=file, start_new_session=True, cwd=tests)
            try:
                process.wait(LIMIT)
                ended = f"ended with status {process.returncode}"
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                ended = f"was stopped after {LIMIT} s"
        found = collections.defaultdict(lambda: ["not run"] * ranks)
        for rank in range(ranks):
            path = pathlib.Path(folder, f"{rank}.json")
            if not path.exists():
                tail = log.read_text(errors="replace")[-3000:]
                print(f"rank {rank} of {ranks}, {way}: {ended} and left no outcomes:\n{tail}", file=sys.stderr)
                continue
            for name, outcome in json.loads(path.read_text()).items():
                found[name][rank] = outcome
        return dict(found)


def tally(found):
    """The numbers of outcomes, over all ranks."""
    counts = collections.Counter(outcome.split(":")[0] for ranks in found.values() for outcome in ranks)
    return ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))


def compare(plain, found):
    """A line for each test that came out differently."""
    lines = []
    for name in sorted(plain.keys() | found.keys()):
        before, after = plain.get(name, "not run"), found.get(name, "not run")
        if name not in EXPECTED and [kind.split(":")[0] for kind in before] != [kind.split(":")[0] for kind in after]:
            lines.append(f"{name}: {before} became {after}")
    return lines


# ---------------------------------------------------------------------------------------------------------- the child


class Outcomes(unittest.TextTestResult):
    """Keeps the outcome of every test."""

    def __init__(self, *arguments, **keywords):
        super().__init__(*arguments, **keywords)
        self.outcome = {}

    def addSuccess(self, test):
        super().addSuccess(test)
        self.outcome.setdefault(test.id(), "passed")

    def addError(self, test, err):
        super().addError(test, err)
        self.outcome[test.id()] = f"error: {err[1]!r}"

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.outcome[test.id()] = f"failed: {err[1]!r}"

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        self.outcome[test.id()] = "skipped"

    def addExpectedFailure(self, test, err):
        super().addExpectedFailure(test, err)
        self.outcome[test.id()] = "expected failure"

    def addUnexpectedSuccess(self, test):
        super().addUnexpectedSuccess(test)
        self.outcome[test.id()] = "unexpected success"

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            self.outcome[test.id()] = f"failed: {err[1]!r}"


def child(way, tests, folder, arguments):
    """Run the tests on this rank and leave their outcomes in a file."""
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
    result = program(module=None, exit=False).result
    path = pathlib.Path(folder, f"{rank}.json")
    path.with_suffix(".part").write_text(json.dumps(result.outcome))
    path.with_suffix(".part").rename(path)
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

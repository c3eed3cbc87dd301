"""How the tests run on several ranks.

``pytest`` runs everything that one rank can do. Under ``mpiexec -n N python -m pytest`` the tests marked ``mpi`` whose
``min_size`` fits run, on all ranks (of a test's many cases half on two ranks, the other half on three; on more than
that half of the tests, with some of their cases); the ranks agree on the outcome of each phase of each test, and rank 0
reports for all. ``scripts/test`` does both; ``scripts/test --all-cases`` leaves none out, ``--few-cases`` runs a few
of each test.
"""

import functools
import gc
import os
import pathlib
import shutil
import subprocess
import sys
import time
import zlib

import pytest
from mpi4py import MPI
from of_the_day import DAY
from patience import FACTOR, patience

WORLD = MPI.COMM_WORLD  # mpi4py's own, whatever a test puts in its place
FOLDER = os.environ.get("AMPI_TEST_FOLDER")  # where scripts/test looks for outcomes and logs
PATIENCE = patience(20.0)  # seconds a rank that failed waits for the others to leave the test
OUTCOMES = ("passed", "skipped", "failed")
FEW = 3  # ranks: on more, which share the cores, of what runs on these half of the tests run, with so many cases
CASES = {4: 6, 8: 2}
MANY = 4  # cases of a test: where there are more, every second of them runs on two ranks, and the others on three
UNTIL = float(os.environ.get("AMPI_TEST_UNTIL", "inf"))  # seconds since 1970 after which no test begins
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")  # of several that share the tests of one rank, which one this is
LONGEST = (  # files that take minutes: where processes share the files they begin first, so that all end together
    "test_functions.py",
    "test_lulesh_gradient.py",
    "test_random.py",
    "test_example_inversion.py",
    "test_waiting.py",
    "test_arrays.py",
    "test_parallel.py",
    "test_corpus.py",
    "test_adjoint.py",
    "test_kernel_forward.py",
)
WINDOWS = pytest.StashKey()  # the windows that there are before a test
OTHERS = []  # tests that run on several ranks, but not on this number of them
COMPILING = ("test_compiled_ufuncs.py", "test_programs_numba.py")  # beside those in tests/kernel

os.environ.setdefault("AMPI_VERIFY", "1")  # what every pass of the kernel differentiator makes is looked at

try:
    import hypothesis
    from hypothesis.internal.conjecture import providers
except ImportError:
    pass
else:  # every rank draws the same examples, and a slow machine is not a failure
    hypothesis.settings.register_profile("ampi", derandomize=True, deadline=None)
    hypothesis.settings.load_profile("ampi")
    # Hypothesis also draws the constants that it finds in the modules imported so far: these depend on which tests ran
    # before in this process, and a failure would not come again.
    if hasattr(providers, "_get_local_constants"):
        providers._get_local_constants = providers.Constants


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the tests marked slow, and no others")
    parser.addoption("--regenerate", action="store_true", help="compile and store what Numba makes of tests' kernels")
    parser.addoption("--all-cases", action="store_true", help="on several ranks all tests with all cases")
    parser.addoption("--few-cases", action="store_true", help="a few cases of each test")


def pytest_report_header():
    return f"drawn programs of the day AMPI_TEST_DAY={DAY}"


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config):
    """Of what tests write each rank has a folder of its own: pytest clears its common one away at the end, and ranks
    that do so at once take links away from each other, which pytest does not survive."""
    if FOLDER and WORLD.size > 1:
        config.option.basetemp = pathlib.Path(FOLDER, f"files-{WORLD.rank}")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    if config.getvalue("dist") == "loadfile":
        from file_scheduler import FileScheduling

        return FileScheduling(config, log)
    return None


@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    if FOLDER and WORLD.rank:
        log = open(pathlib.Path(FOLDER, f"rank-{WORLD.rank}.log"), "w", buffering=1)
        config.get_terminal_writer()._file = log
    if WORLD.size > 1:
        config.pluginmanager.register(Agreement(config, WORLD.Dup()), "ranks-agree")
        # An error on one rank in the middle of a message would leave the others waiting.
        for category in ("ActivityWarning", "PerformanceWarning"):
            config.addinivalue_line("filterwarnings", f"default::ampi.errors.{category}")


@pytest.hookimpl(trylast=True)
def pytest_ignore_collect(collection_path, config):
    """On several ranks only modules that have a test for them are imported. If the pass on one rank has listed these
    tests, they are known; otherwise a module that contains the mark may have some."""
    if WORLD.size > 1 and collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        modules = listed_modules(config)
        if modules is not None:
            return True if collection_path not in modules else None
        return True if "mark.mpi" not in collection_path.read_text(encoding="utf-8") else None
    return None


@functools.cache
def listed_modules(config):
    """Modules with tests that run on so many ranks, by the list of scripts/test; None if there is none."""
    file = pathlib.Path(FOLDER or "", "listed")
    if not FOLDER or not file.exists():
        return None
    listed = [(name, int(least), int(most)) for name, least, most in map(str.split, file.read_text().splitlines())]
    return {config.rootpath / name.partition("::")[0] for name, *sizes in listed if runs(config, name, *sizes)}


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makeitem(collector, name, obj):
    """Cases are made only of tests of which some run; the others have almost as many."""
    config = collector.config
    if config.getoption("--slow") or any("::" in argument for argument in config.args):
        return None  # single cases may be slow; a test that is asked for must be found
    if not collector.istestfunction(obj, name):
        return None
    marks = {}
    for mark in [*getattr(obj, "pytestmark", ()), *collector.iter_markers()]:
        marks.setdefault(mark.name, mark)
    test, sizes = f"{collector.nodeid}::{name}", sizes_of(marks.get("mpi"))
    if "slow" in marks or not runs(config, test, *sizes):
        if "slow" not in marks and "mpi" in marks:
            OTHERS.append((test, *sizes))
        return []
    return None


@pytest.hookimpl(wrapper=True)
def pytest_generate_tests(metafunc):
    """Cases that are marked slow are not made either."""
    yield
    cases = getattr(metafunc, "_calls", ())  # pytest has no other way to leave out some
    if not metafunc.config.getoption("--slow") and not any("::" in argument for argument in metafunc.config.args):
        quick = [case for case in cases if not any(mark.name == "slow" for mark in case.marks)]
        cases[:] = quick or cases


def pytest_collection_modifyitems(config, items):
    slow = config.getoption("--slow")
    if FACTOR != 1:
        for item in items:
            mark = item.get_closest_marker("timeout")
            limit = mark.args[0] if mark else float(config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(patience(limit)), append=False)
    selected = [item for item in items if bool(item.get_closest_marker("slow")) == slow]
    if WORLD.rank == 0 and WORKER in ("", "gw0"):
        tests = {(test_of(item), *sizes_of(mark)) for item in selected if (mark := item.get_closest_marker("mpi"))}
        note("sizes", "".join(f"{name} {least} {most}\n" for name, least, most in sorted(tests | set(OTHERS))))
    selected = [item for item in selected if runs(config, test_of(item), *sizes_of(item.get_closest_marker("mpi")))]
    if WORLD.size > 1 and not all_cases(config):
        selected = some_cases(selected) if WORLD.size > FEW else every_second_case(selected)
    if config.getoption("--few-cases"):
        selected = few_cases(selected)
    if WORKER:
        last = len(LONGEST)
        selected.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else last)
    chosen = set(selected)
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = selected


def pytest_collection_finish():
    settle()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    yield
    if nextitem is not None and nextitem.path != item.path:
        settle()
    left = [window for number, window in open_windows().items() if number not in item.stash[WINDOWS]]
    assert not left, f"windows were not freed, and would belong to every tape of later tests: {left}"


def settle():
    """What is alive now, thousands of tests, all modules, and all that Numba keeps of what it has compiled, stays to
    the end: no collection of garbage has to look through it again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    late = time.time() > UNTIL
    if WORLD.size > 1 and UNTIL != float("inf"):
        late = item.config.pluginmanager.get_plugin("ranks-agree").comm.bcast(late)  # all leave out the same
    if late:
        if WORLD.rank == 0:
            note("late", item.nodeid + "\n")
        pytest.skip("left out: the time given to scripts/test --within is over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """What every test needs; fixtures that all tests use would take longer than most of them."""
    item.stash[WINDOWS] = frozenset(open_windows())
    with pytest.MonkeyPatch.context() as patch:
        choose_ways(item, patch)
        return (yield)


def open_windows():
    from ampi.mpi.windows.window import windows

    return {id(window): window for window in windows.values()}


def choose_ways(item, patch):
    """Calls with arrays of few elements, and usual calls, are recorded in ways of their own: every third test does
    without the first, and every third without both. A module that says ``MOST_ELEMENTS = 0`` does without the first."""
    from ampi.arrays import fast_calls, fast_writes, few_writes

    most = getattr(item.module, "MOST_ELEMENTS", None)
    if most is None and (ways := zlib.crc32(item.nodeid.encode()) % 3):
        most = 0
        if ways == 2:
            patch.setattr(fast_writes, "LARGEST", 0)
    if most is not None:
        patch.setattr(fast_calls, "MOST_ELEMENTS", most)
        patch.setattr(few_writes, "MOST", min(most, few_writes.MOST))


def all_cases(config):
    """Whether several ranks run all that is for them."""
    named = config.getoption("keyword") or any("::" in argument for argument in config.args)
    return named or config.getoption("--slow") or config.getoption("--all-cases")


def runs(config, test, least, most):
    """Whether a test for ``least`` to ``most`` ranks runs on this number of them. Of those that have run on `FEW` ranks
    about half do on four, and the others on more."""
    if not least <= WORLD.size <= most:
        return False
    if WORLD.size <= FEW or least > FEW or all_cases(config):
        return True
    on_four = most <= 4 or zlib.crc32(test.encode()) % 2 == 0
    return on_four == (WORLD.size <= 4)


def sizes_of(mark):
    """The least and the greatest number of ranks of a test with this mark, or without one."""
    return (mark.kwargs.get("min_size", 1), mark.kwargs.get("max_size", sys.maxsize)) if mark else (1, 1)


def least_size(item):
    return sizes_of(item.get_closest_marker("mpi"))[0]


def test_of(item):
    return item.nodeid.partition("[")[0]


def by_test(items):
    """The cases of each test."""
    groups = {}
    for item in items:
        groups.setdefault(test_of(item), []).append(item)
    return list(groups.values())


def every_second_case(items):
    """Of tests with many cases half of them: those that run on two ranks do not run on three."""
    kept = set()
    for group in by_test(items):
        kept.update(group[WORLD.size % 2 :: 2] if len(group) > MANY and least_size(group[0]) < FEW else group)
    return [item for item in items if item in kept]


def some_cases(items):
    """On more than `FEW` ranks some cases, spread evenly over all, of tests that have run on fewer."""
    kept = set()
    for group in by_test(items):
        kept.update(group if least_size(group[0]) > FEW else spread(group, CASES[8 if WORLD.size > 4 else 4]))
    return [item for item in items if item in kept]


def few_cases(items):
    """Two cases of each test that compiles kernels, and twelve of each other test, spread evenly over all."""
    kept = set()
    for group in by_test(items):
        path = group[0].path
        kept.update(spread(group, 2 if "kernel" in path.parts or path.name in COMPILING else 12))
    return [item for item in items if item in kept]


def spread(group, count):
    """At most ``count`` of a test's cases, evenly spread over all."""
    count = min(count, len(group))
    return [group[(2 * k + 1) * len(group) // (2 * count)] for k in range(count)]


# What scripts/test reads, from rank 0


def note(name, text):
    """Add text to a file."""
    if FOLDER:
        file = opened(name)
        file.write(text)
        file.flush()


@functools.cache
def opened(name):
    return open(pathlib.Path(FOLDER, name), "a")  # opening it for each test would take as long as many tests


def pytest_runtest_logstart(nodeid):
    if WORLD.rank == 0 and not WORKER:
        note("running", nodeid + "\n")


def pytest_runtest_logreport(report):
    if WORLD.rank == 0 and not WORKER and (report.when == "call" or not report.passed):
        note("outcomes", report.outcome + "\n")
        if report.failed:
            note("failures", f"\n{report.nodeid}\n{text_of(report)}\n")
            note("names", f"{report.nodeid} ({report.when}): {error_line(report)}\n")


def pytest_sessionfinish():
    if WORLD.rank == 0 and not WORKER:
        note("finished", "")


class Agreement:
    """Plugin: a phase of a test that fails on one rank fails on every rank, and rank 0 shows the failures of all."""

    def __init__(self, config, comm):
        self.terminal = config.get_terminal_writer()
        self.comm = comm

    def pytest_collection_finish(self, session):
        names = [item.nodeid for item in session.items]
        if self.comm.allreduce(names != self.comm.bcast(names)):
            pytest.exit("the ranks have collected different tests", returncode=1)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        worst = self.agree(report)
        if worst == "failed":
            self.share_failures(report)
        elif worst == "skipped" and report.when == "setup" and report.passed:
            report.outcome, report.longrepr = "skipped", (str(item.path), 0, "Skipped on another rank")
        return report

    def agree(self, report):
        """The worst outcome on any rank. Sleeps while it waits: there may be fewer cores than ranks."""
        receive = bytearray(1)
        send = bytearray([OUTCOMES.index(report.outcome)])
        request = self.comm.Iallreduce([send, MPI.UNSIGNED_CHAR], [receive, MPI.UNSIGNED_CHAR], MPI.MAX)
        start, pause = time.monotonic(), 0.0
        while not request.Test():
            if report.failed and time.monotonic() - start > PATIENCE:
                self.give_up(report)
            time.sleep(pause)
            pause = min(pause + 1e-5, 0.01)
        return OUTCOMES[receive[0]]

    def share_failures(self, report):
        """Make the phase a failure here; on rank 0 with what the other ranks have to say."""
        texts = self.comm.gather(text_of(report) if report.failed else None)
        ranks_of = {}
        for rank, text in enumerate(texts or ()):
            if text is not None and (rank or report.passed):
                ranks_of.setdefault(text, []).append(rank)
        for text, ranks in ranks_of.items():
            report.sections.append((f"failed on rank {', '.join(map(str, ranks))}", text))
        if not report.failed:
            report.outcome, report.longrepr = "failed", "Passed on this rank, failed on another."

    def give_up(self, report):
        """End the run: this rank failed, and some other rank waits in the test for what will never come."""
        self.terminal.line()
        self.terminal.sep("!", f"{report.nodeid} failed on rank {WORLD.rank} while other ranks remain in the test")
        self.terminal.line(text_of(report))
        self.terminal.flush()
        WORLD.Abort(1)


def text_of(report):
    return "\n".join([report.longreprtext, *(f"--- {name}\n{text}" for name, text in report.sections if text)])


def error_line(report):
    """The message of the error: the first line of the report that pytest marks as such."""
    lines = report.longreprtext.splitlines()
    return next((line[1:].strip() for line in lines if line.startswith("E ")), lines[-1] if lines else "")[:300]


@pytest.fixture
def mpiexec():
    """``mpiexec(ranks, *arguments, timeout=100)``: run Python with these arguments on so many ranks, output as text."""
    program = pathlib.Path(sys.executable).with_name("mpiexec")
    program = str(program) if program.exists() else shutil.which("mpiexec")
    if program is None:
        pytest.skip("no mpiexec")

    def run(ranks, *arguments, timeout=100):
        command = ["timeout", str(patience(timeout)), program, "-n", str(ranks), sys.executable, *map(str, arguments)]
        # Buffered, so that a short line arrives whole among those of other ranks.
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONUNBUFFERED"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, env=environment
        )

    return run

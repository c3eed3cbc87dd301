"""Differentiate other people's unmodified programs, with a row for each case and number of ranks
(``scripts/showcases``).

A row comes from three runs: the program alone, ``python -m ampi.run --check``, and a measurement. `CASES` has the
programs and their arguments; their code is not part of ampi, and is only read. An edit is a piece of a file and its
replacement in a copy, for programs that do not run with a new mpi4py.
"""

import argparse
import contextlib
import dataclasses
import fnmatch
import importlib.util
import json
import os
import pathlib
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).parent.parent
RANKS = (1, 2, 4)
PATIENCE = 900  # seconds for one run


@dataclasses.dataclass(frozen=True)
class Case:
    """A program and what is differentiated.

    Attributes
    ----------
    name : str
    file : str
        Below the checkout; of packages from PyPI a program of ours below ``examples/``.
    arguments : str
        The program's.
    options : str
        Those of ``python -m ampi.run``.
    needs : tuple of str
        Packages that must be there.
    ranks : tuple of int
        On which it runs.
    edits : tuple of (str, str)
        What must be changed in the file, and into what.
    """

    name: str
    file: str
    arguments: str
    options: str
    needs: tuple = ()
    ranks: tuple = RANKS
    edits: tuple = ()


INTEGER_SIDES = (("fac2 = r/fac1", "fac2 = r//fac1"),)  # mpi4py 4 takes no floating-point numbers for sides of a grid
FLOW = "--also lb --of lb.utils:calculate_velocity_field:velocity_field"
CASES = (
    Case("transpose", "PYTHON/transpose-numpy.py", "10 256", "--wrt main:A --of main:B", ranks=(1,)),
    Case("transpose-numba", "PYTHON/transpose-numba.py", "10 256", "--wrt main:A --of main:B", ranks=(1,)),
    Case("transpose-alltoall", "PYTHON/transpose-numpy-mpi.py", "10 256", "--wrt main:A --of main:B"),
    Case("transpose-p2p", "PYTHON/transpose-numpy-mpi-p2p.py", "10 256", "--wrt main:A --of main:B"),
    Case("transpose-rma", "PYTHON/transpose-numpy-mpi-rma.py", "10 256", "--wrt main:TA --of main:B"),
    Case("stencil", "PYTHON/stencil-numpy.py", "3 16", "--wrt main:W --of main:norm", ranks=(1,)),
    Case("stencil-numba", "PYTHON/stencil-numba.py", "10 64", "--wrt main:W --of main:norm", ranks=(1,)),
    Case("stencil-mpi", "PYTHON/stencil-numpy-mpi.py", "3 16", "--wrt main:W --of main:norm", edits=INTEGER_SIDES),
    Case("stencil-numba-mpi", "PYTHON/stencil-numba-mpi.py", "10 64", "--wrt main:W --of main:norm",
         edits=INTEGER_SIDES),
    Case("p2p", "PYTHON/p2p-numpy.py", "3 16 16", "--wrt main:grid --of main:grid", ranks=(1,)),
    Case("p2p-numba", "PYTHON/p2p-numba.py", "10 64 64", "--wrt main:grid --of main:grid", ranks=(1,),
         edits=(("@jit", "@numba.jit"),)),
    Case("p2p-mpi", "PYTHON/p2p-numpy-mpi.py", "3 16 16", "--wrt main:grid --of main:grid"),
    Case("p2p-numba-mpi", "PYTHON/p2p-numba-mpi.py", "10 64 64", "--wrt main:grid --of main:grid"),
    Case("spectralDNS", "spectralDNS3D_short.py", "", "--wrt nu --of k"),
    Case("couette", "simulations/couette_flow.py", "--nx 32 --ny 32 --n-steps 20", f"{FLOW} --wrt args.w",
         ("matplotlib",)),
    Case("poiseuille", "simulations/poiseuille_flow.py", "--nx 32 --ny 32 --n-steps 20", f"{FLOW} --wrt args.w",
         ("matplotlib",)),
    Case("pylops-mpi", "libraries/with_pylops_mpi.py", "",
         "--also pylops --also pylops_mpi --wrt model --wrt matrix --of misfit --objective replicated",
         ("pylops_mpi",)),
    Case("mpi4py-fft", "libraries/with_mpi4py_fft.py", "", "--also mpi4py_fft --wrt amplitude --of skewness",
         ("mpi4py_fft",)),
    Case("fbpic", "libraries/with_fbpic.py", "", "--also fbpic --wrt field --of energy", ("fbpic",)),
    Case("veros", "libraries/with_veros.py", "", "--also veros --wrt wind --of energy", ("veros",),
         (1,)),  # on several ranks its matrix comes by messages, and matrices of diagonals have no rule
)  # fmt: skip


def main() -> int:
    """Run the cases that are asked for; 1 if a check fails."""
    if sys.argv[1:2] == ["--measure"]:
        return measure(json.loads(sys.argv[2]))
    options = parse()
    chosen = [case for case in CASES if not options.case or any(fnmatch.fnmatch(case.name, p) for p in options.case)]
    if not chosen:
        sys.exit(f"no case has such a name; there are {', '.join(case.name for case in CASES)}")
    print(f"{'case':20} {'ranks':>5} {'edits':>5}  {'gradient':28} {'primal/s':>9} {'gradient/s':>10} {'ratio':>6}")
    failed = 0
    for case in chosen:
        path, why = find(case, options.folder)
        if path is None:
            print(f"{case.name:20} {'':5} {len(case.edits):5}  not there: {why}", flush=True)
            continue
        for ranks in case.ranks:
            if ranks in options.ranks:
                with copied(case, path) as script:
                    cells, passed = row(case, script, ranks, options.verbose)
                print(f"{case.name:20} {ranks:5} {len(case.edits):5}  {cells}", flush=True)
                failed += not passed
    return min(failed, 1)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/showcases",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Differentiates other people's MPI programs, unmodified. Nothing is fetched: give the folders\n"
        "of checkouts; packages are taken where Python finds them.",
        epilog="cases:\n" + "\n".join(f"  {c.name:20} {c.file} {c.arguments}\n{'':22} {c.options}" for c in CASES)
        + "\n\nThe exit status is 1 if a gradient differs from finite differences, or a run fails. Times are those of\n"
        "a second run in one process, without imports and compilation.",
    )  # fmt: skip
    parser.add_argument("folder", nargs="*", type=pathlib.Path, help="a checkout")
    parser.add_argument("--case", action="append", help="only cases whose names match this pattern (may be repeated)")
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS, help="numbers of ranks (default: 1 2 4)")
    parser.add_argument("--verbose", action="store_true", help="print the commands and their output")
    return parser.parse_intermixed_args()


def find(case: Case, folders: list[pathlib.Path]) -> tuple[pathlib.Path | None, str]:
    """A case's program, or the reason why it is missing."""
    for package in case.needs:
        if importlib.util.find_spec(package) is None:
            return None, f"Python finds no {package}"
    if case.file.startswith("libraries/"):
        return ROOT / "examples" / case.file, ""
    for folder in folders:
        if (folder / case.file).exists():
            return (folder / case.file).resolve(), ""
    return None, f"no folder has {case.file}"


@contextlib.contextmanager
def copied(case: Case, path: pathlib.Path):
    """The program itself, or a copy with its edits in a new folder."""
    if not case.edits:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        text = path.read_text()
        for old, new in case.edits:
            if old not in text:
                sys.exit(f"{path} has no {old!r} any more: see CASES")
            text = text.replace(old, new)
        copy = pathlib.Path(folder, path.name)
        copy.write_text(text)
        yield copy


def row(case: Case, script: pathlib.Path, ranks: int, verbose: bool) -> tuple[str, bool]:
    """The cells of a row from the third on, and whether all is well."""
    arguments = shlex.split(case.arguments)
    with tempfile.TemporaryDirectory() as folder:
        launch = lambda *command: run(ranks, [str(c) for c in command], script, folder, verbose)
        alone = launch(script, *arguments)
        if alone.returncode:
            return f"does not run by itself: {last_line(alone)}", False
        checked = launch("-m", "ampi.run", *shlex.split(case.options), "--check", script, *arguments)
        verdicts = re.findall(r"^(PASS|FAIL).*?relative difference ([^,]*),", checked.stdout, re.M)
        if checked.returncode or not verdicts:
            said = f"FAIL {verdicts[0][1]}" if verdicts else f"FAIL: {last_line(checked)}"
            return said, False
        measured = launch(__file__, "--measure", json.dumps([case.options, str(script), arguments]))
        try:
            primal, gradient = json.loads(measured.stdout.splitlines()[-1])
        except (ValueError, IndexError):
            return f"PASS, not measured: {last_line(measured)}", False
    largest = max((difference for _, difference in verdicts), key=float)
    return f"{'PASS, differs by ' + largest:28} {primal:9.3f} {gradient:10.3f} {gradient / primal:6.1f}", True


def run(
    ranks: int, command: list[str], script: pathlib.Path, folder: str, verbose: bool
) -> subprocess.CompletedProcess:
    """Run Python on several ranks, in a folder for output; modules are found in the checkout."""
    path = [str(ROOT), str(script.parent.parent), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "OMP_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
    }
    full = [shutil.which("mpiexec") or "mpiexec", "-n", str(ranks), sys.executable, *command]
    if verbose:
        print(f"$ {shlex.join(full)}", flush=True)
    try:
        done = subprocess.run(
            full, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
        )
    except subprocess.TimeoutExpired as error:
        kept = (error.stdout or b"").decode(), f"ran for more than {PATIENCE} seconds"
        done = subprocess.CompletedProcess(full, 1, *kept)
    if verbose:
        print(done.stdout + done.stderr, flush=True)
    return done


def last_line(done: subprocess.CompletedProcess) -> str:
    """The most informative line of an error."""
    lines = [
        line for line in (done.stdout + "\n" + done.stderr).splitlines() if re.match(r"\S*(Error|ampi\.run:)", line)
    ]
    return (lines or [f"exit status {done.returncode}"])[-1][:200]


# ------------------------------------------------------------------------------------------------- one rank, measuring


def measure(what: list) -> int:
    """On each rank: print the seconds of a program's run, and of its run with the gradient."""
    options, script, arguments = what
    with quietly():
        times = measured(options, script, arguments)
    from mpi4py import MPI

    if MPI.Comm.Get_rank(MPI.COMM_WORLD) == 0:
        print(json.dumps(times), flush=True)
    return 0


def measured(options: str, script: str, arguments: list[str]) -> list[float]:
    """Seconds of the second run of each, in one process, without imports and compilation."""
    primal = [timed(lambda: plainly(script, arguments)) for _ in range(2)][-1]
    import ampi.mpi
    from ampi.programs import command
    from ampi.programs.gradients import Differentiation
    from ampi.programs.modules import Loader

    given, rest = command.split([*shlex.split(options), script, *arguments])
    imports = Timer()
    Loader.exec_module = imports.around(Loader.exec_module)
    ampi.mpi.install()

    def gradient() -> None:
        program = command.program_of(rest)
        problem = Differentiation(program, given.wrt, given.of, given.also, given.objective)
        problem.gradients()
        problem.runner.forget()

    for name in [name for name in sys.modules if name.partition(".")[0] in given.also]:
        del sys.modules[name]  # the program's own, loaded by itself
    timed(gradient)
    imports.total = 0.0
    return [primal, timed(gradient) - imports.total]


class Timer:
    """The seconds spent in a function, outermost calls alone."""

    def __init__(self) -> None:
        self.total = 0.0
        self.depth = 0

    def around(self, function):
        """The function, timed."""

        def call(*arguments, **keywords):
            began = time.perf_counter()
            self.depth += 1
            try:
                return function(*arguments, **keywords)
            finally:
                self.depth -= 1
                self.total += 0.0 if self.depth else time.perf_counter() - began

        return call


def timed(function) -> float:
    """Seconds of a call, without those in which Numba compiles."""
    from numba.core import event

    with event.install_timer("numba:compile", lambda _: None) as compiling:
        began = time.perf_counter()
        function()
        seconds = time.perf_counter() - began
    return seconds - compiling.duration if compiling.done else seconds


def plainly(script: str, arguments: list[str]) -> None:
    """Run a program by itself."""
    argv, path = sys.argv, list(sys.path)
    sys.argv, sys.path[0] = [script, *arguments], os.path.dirname(script)
    try:
        runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        if end.code:
            raise
    finally:
        sys.argv, sys.path[:] = argv, path


@contextlib.contextmanager
def quietly():
    """A context without the program's output."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "w") as nothing:
        os.dup2(nothing.fileno(), 1)
        try:
            yield
        finally:
            sys.stdout.flush()
            os.dup2(kept, 1)


if __name__ == "__main__":
    sys.exit(main())

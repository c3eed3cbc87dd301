"""The checks of ``scripts/package``: the contents of sdist and wheel, and whether they work in an empty environment.

copy FOLDER         copy what belongs to a source distribution
check DIST          compare sdist and wheel with the checkout, and their metadata with each other
try PYTHON DIST     use the wheel that is installed for an interpreter, and run tests of the sdist with it
"""

import argparse
import email
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import textwrap
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
LEFT_OUT = (".ci/", ".github/", ".gitignore")
"""Files of the checkout that a source distribution does not need."""
GENERATED = ("PKG-INFO", "setup.cfg", "ampi.egg-info/")
IGNORED = {"__pycache__", "build", "dist", "ampi.egg-info"}
TESTS = ("tests/test_layout.py", "tests/test_versions.py", "tests/derivatives/test_derivatives.py")
"""Tests that are run from the sdist: on its files, on what it says of itself, and on gradients."""
ON_RANKS = "tests/mpi/messages/test_point_to_point.py"


def main():
    parser = argparse.ArgumentParser(prog="scripts/distributions.py", description=__doc__.splitlines()[0])
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("copy")
    one.add_argument("folder", type=pathlib.Path)
    one.set_defaults(do=lambda options: copy(options.folder))
    one = commands.add_parser("check")
    one.add_argument("dist", type=pathlib.Path)
    one.add_argument("--release", metavar="VERSION", help="the version that everything must have")
    one.set_defaults(do=lambda options: report(problems_of(options.dist) + wrong_versions(options.release)))
    one = commands.add_parser("try")
    one.add_argument("python", type=pathlib.Path)
    one.add_argument("dist", type=pathlib.Path)
    one.set_defaults(do=lambda options: attempt(options.python, options.dist))
    options = parser.parse_args()
    options.do(options)


def report(problems):
    """End with the problems, if there are any."""
    if problems:
        sys.exit("\n".join(["scripts/package:", *problems]))


# ------------------------------------------------------------------------------------------------------------ contents


def tracked():
    """The files of the checkout, as git knows them; those of the folder where there is no git, as in an sdist."""
    done = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        **{"cwd": ROOT, "capture_output": True, "text": True, "check": False},
    )
    top = subprocess.run(["git", "rev-parse", "--show-prefix"], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0 and not top.stdout.strip():
        names = [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]
    else:
        names = [str(path.relative_to(ROOT)) for path in ROOT.rglob("*") if path.is_file()]
    hidden = lambda part: part in IGNORED or part.startswith(".venv") or part.endswith("_cache")
    return sorted(name for name in names if not any(map(hidden, pathlib.PurePath(name).parts)))


def copy(folder):
    """Copy the files of the checkout to a new folder."""
    for name in tracked():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)


def problems_of(dist):
    """What is missing in sdist and wheel, or should not be there."""
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with tarfile.open(sdist) as file:
        in_sdist = {name.partition("/")[2] for name in file.getnames() if file.getmember(name).isfile()}
    with zipfile.ZipFile(wheel) as file:
        in_wheel = {name for name in file.namelist() if ".dist-info/" not in name}
        metadata = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        known = email.message_from_string(file.read(metadata).decode())
    source = {name for name in tracked() if not name.startswith(LEFT_OUT)}
    return [
        *(f"the sdist lacks {name} (MANIFEST.in)" for name in sorted(source - in_sdist)),
        *(f"the sdist has {name}" for name in sorted(in_sdist - source) if not name.startswith(GENERATED)),
        *(f"the wheel lacks {name} (setup.cfg)" for name in sorted(of_package(source) - in_wheel)),
        *(f"the wheel has {name}" for name in sorted(in_wheel - of_package(source))),
        *metadata_problems(known),
    ]


def of_package(names):
    return {name for name in names if name.startswith("ampi/")}


def metadata_problems(known):
    """What PyPI and installers need and the metadata do not have."""
    links = {text.partition(",")[0] for text in known.get_all("Project-URL", [])}
    missing = {"Documentation", "Source", "Issues", "Changelog"} - links
    found = [f"no project URL {name}" for name in sorted(missing)]
    if known["License-Expression"] != "BSD-3-Clause":
        found.append(f"the licence is {known['License-Expression']!r}, and no SPDX expression")
    if any(text.startswith("License ::") for text in known.get_all("Classifier", [])):
        found.append("a classifier of the licence beside its SPDX expression, which PyPI refuses")
    return found


def versions():
    """Where the version stands, and what it is there."""
    read = lambda name: (ROOT / name).read_text(encoding="utf-8")
    first = lambda pattern, name: re.search(pattern, read(name), re.M)[1]
    return {
        "ampi.__version__": first(r'^__version__ = "(.*)"', "ampi/__init__.py"),
        "CITATION.cff": first(r"^version: (.*)$", "CITATION.cff"),
        "packaging/conda/recipe.yaml": first(r'^  version: "(.*)"', "packaging/conda/recipe.yaml"),
        "CHANGELOG.rst": first(r"^(\d+\.\d+\S*)", "CHANGELOG.rst"),
    }


def wrong_versions(release):
    """The places that have another version than the release, or than each other."""
    found = versions()
    expected = release or found["ampi.__version__"]
    wrong = [f"{place} has version {own}, and not {expected}" for place, own in found.items() if own != expected]
    if release and re.search(rf"^{re.escape(release)} \(unreleased\)", (ROOT / "CHANGELOG.rst").read_text(), re.M):
        wrong.append(f"CHANGELOG.rst says that {release} is unreleased")
    return wrong


# ----------------------------------------------------------------------------------------------------------------- use


def first_example():
    """README's first program, and the output that it promises on two ranks."""
    text = (ROOT / "README.rst").read_text(encoding="utf-8")
    code = re.search(r"^\.\. code(?:-block)?:: python\n(?: +:.*\n)*\n((?: +.*\n|\n)+)", text, re.M)
    shown = re.search(r"^ +\$ mpiexec -n 2 python \S+\.py\n((?: +.+\n)+)", text, re.M)
    return textwrap.dedent(code[1]), textwrap.dedent(shown[1])


def attempt(python, dist):
    """Use the installed wheel as users do, outside of the checkout, and run some tests of the sdist."""
    python = pathlib.Path(os.path.abspath(python))  # not resolved: a virtual environment is a link
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        use(python, folder)
        check_types(python, folder)
        with tarfile.open(next(dist.glob("*.tar.gz"))) as file:
            file.extractall(folder, filter="data") if sys.version_info >= (3, 12) else file.extractall(folder)
        (source,) = (path for path in folder.iterdir() if path.name.startswith("ampi-"))
        shutil.rmtree(source / "ampi.egg-info")
        run_tests(python, source)


def environment(python):
    """Only what any shell has, and the interpreter's own folder first on the path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    return {**kept, "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}", "NUMBA_OPT": "1", "AMPI_VERIFY": "0"}


def run(python, *command, folder, status=0):
    """Run a command in a folder; its output. Ends the script if it fails."""
    done = subprocess.run(
        list(map(str, command)),
        **{"cwd": folder, "env": environment(python), "capture_output": True, "text": True, "check": False},
    )
    if done.returncode != status:
        sys.exit(
            f"scripts/package: {' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def use(python, folder):
    """Start the commands, and README's first example, in an empty folder."""
    program, expected = first_example()
    (folder / "example.py").write_text(program, encoding="utf-8")
    place = run(python, python, "-c", "import ampi; print(ampi.__file__)", folder=folder)
    if "site-packages" not in place:
        sys.exit(f"scripts/package: not the wheel was tried, but {place}")
    said = run(python, "mpiexec", "-n", 2, python, "example.py", folder=folder)
    if sorted(said.splitlines()) != sorted(expected.splitlines()):
        sys.exit(f"scripts/package: README's first example prints\n{said}and not\n{expected}")
    version = versions()["ampi.__version__"]
    for command in ([python.parent / "ampi"], [python, "-m", "ampi"]):
        if not run(python, *command, "--version", folder=folder).startswith(f"ampi {version} "):
            sys.exit(f"scripts/package: {command} has another version")
    run(python, "mpiexec", "-n", 2, "ampi", folder=folder)
    run(python, "mpiexec", "-n", 2, "ampi", "report", "out", "example.py", folder=folder)
    if "<script" not in (folder / "out" / "index.html").read_text(encoding="utf-8"):
        sys.exit("scripts/package: the report has no page")


def check_types(python, folder):
    """Have mypy and pyright look at a user's program, with the types of the wheel."""
    shutil.copy(ROOT / "tests" / "data" / "typed_program.py", folder)
    print("types:", run(python, python, "typed_program.py", folder=folder).strip())
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", python, "typed_program.py"]
    print(run(python, *mypy, folder=folder), end="")
    pyright = [sys.executable, "-m", "pyright", "--pythonpath", python, "typed_program.py"]
    print(run(python, *pyright, folder=folder), end="")


def run_tests(python, source):
    """Run tests in an unpacked sdist, which has all that they need."""
    pytest = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--few-cases"]
    print(run(python, *pytest, *TESTS, folder=source).strip().splitlines()[-1])
    print(run(python, "mpiexec", "-n", 2, *pytest, ON_RANKS, folder=source).strip().splitlines()[-1])


if __name__ == "__main__":
    main()

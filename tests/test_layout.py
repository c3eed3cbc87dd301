"""Lower floors of the package never import upper ones, and nothing in the repository is tied to one machine."""

import ast
import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "ampi"
FLOORS = {
    "errors": 0,
    "memory": 0,
    "needs": 0,
    "census": 0,
    "checks": 0,
    "handouts": 0,
    "recording": 0,
    "tape": 0,
    "array": 1,
    "bits": 1,
    "rules": 1,
    "scalars": 1,
    "structures": 1,
    "custom": 1,
    "functions": 1,
    "indexing": 1,
    "ufuncs": 1,
    "numpy": 1,
    "outside": 1,
    "interception": 1,
    "foreign": 1,
    "unseen": 1,
    "mpi": 1,
    "kernel": 1,
    "checkpoint": 2,
    "derivatives": 2,
    "testing": 3,
    "report": 3,
    "coverage": 3,
    "run": 3,
    "__main__": 3,
}
TEXTS = {".py", ".rst", ".cfg", ".toml", ".sh", ".in", ".md", ".txt", ""}
IGNORED = {".git", ".hypothesis", "build", "__pycache__"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "__init__.py")


def name_of(path):
    """``('kernel', 'parse')`` for ampi/kernel/parse.py, ``('kernel',)`` for ampi/kernel/__init__.py."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def imports(path):
    """The modules of ampi that a file imports anywhere in it, as names below ``ampi``."""
    for node in ast.walk(ast.parse(path.read_text(), str(path))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from below_ampi(alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            start = package_of(path, node.level) if node.level else []
            module = [*start, *(node.module or "").split(".")] if node.module else start
            for alias in node.names:
                yield from below_ampi([*module, alias.name])


def package_of(path, level):
    """The package that `level` leading dots mean in this file."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return list(parts[: len(parts) - level])


def below_ampi(parts):
    if parts[0] == "ampi" and len(parts) > 1:
        yield tuple(parts[1:])


@pytest.mark.parametrize("path", modules(), ids=lambda path: ".".join(name_of(path)))
def test_imports_stay_on_or_below_their_floor(path):
    own = name_of(path)
    assert own[0] in FLOORS, f"say in {__name__}.FLOORS which floor {own[0]} is on"
    for imported in imports(path):
        assert imported[0] in FLOORS, f"{path.name} imports ampi.{imported[0]} from the top: import its home module"
        assert FLOORS[imported[0]] <= FLOORS[own[0]], f"{path.name} imports ampi.{'.'.join(imported)} from above"
        assert (own[0], imported[0]) != ("kernel", "mpi"), "kernels know nothing of MPI"


def test_import_finder(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "ampi")
    path = tmp_path / "ampi" / "kernel" / "emit.py"
    path.parent.mkdir(parents=True)
    path.write_text(
        "import numpy, ampi.tape\nfrom ampi import memory\nfrom ..mpi.comm import X\nfrom . import ir\n"
        "def f():\n    from ampi.run import main\n    from .. import errors\n"
    )
    assert {name[0] for name in imports(path)} == {"tape", "memory", "mpi", "kernel", "run", "errors"}


def files():
    return sorted(
        path
        for path in ROOT.rglob("*")
        if path.is_file()
        and path.suffix in TEXTS
        and not IGNORED.intersection(path.relative_to(ROOT).parts)
        and not any(part.startswith(".venv") or part.endswith("_cache") for part in path.relative_to(ROOT).parts)
    )


def test_no_file_names_a_place_on_one_machine():
    places = re.compile("|".join(rf"(?<![\w.$}}~-])/{place}/\w" for place in ("home", "root", "work", "Users", "tmp")))
    named = []
    for path in files():
        for number, line in enumerate(path.read_text(errors="ignore").splitlines(), 1):
            if places.search(line):
                named.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not named, "\n".join(named)


def test_examples_use_public_names_only():
    for path in sorted((ROOT / "examples").rglob("*.py")):
        source = ast.parse(path.read_text(), str(path))
        for node in ast.walk(source):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "ampi":
                assert not any(alias.name.startswith("_") for alias in node.names), path
                assert node.module in ("ampi", "ampi.numpy", "ampi.testing", "ampi.report"), f"{path}: {node.module}"


def test_no_two_files_of_tests_have_one_name():
    """pytest imports them by their names."""
    names = [path.name for path in pathlib.Path(__file__).parent.rglob("test_*.py")]
    assert len(set(names)) == len(names), sorted(name for name in set(names) if names.count(name) > 1)
